//! Records of what a client sent and was told, for a replay: only where the operator asks for them,
//! since no log has that.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::body::Bytes;
use serde::Serialize;

use super::body::{Share, WholeBody};
use super::journal::Journal;
use super::limits::DUMP_ANSWER_BYTES_MAX;

/// One request with a body, and its answer so far.
#[derive(Debug)]
pub struct Recording {
    dump: Arc<Journal>,
    /// Body with its share of the memory for bodies.
    request: OnceLock<(Bytes, Arc<Share>)>,
    answer: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    bytes: Vec<u8>,
    cut: bool,
}

/// A line of the dump.
#[derive(Debug, Serialize)]
struct Line<'r> {
    time: String,
    id: &'r str,
    route: Option<&'r str>,
    /// The body; what is not UTF-8 in it is replaced.
    request: &'r str,
    status: u16,
    /// The JSON of an answer, or the events of a streamed one.
    response: &'r str,
    /// The answer went on.
    cut: bool,
}

impl Recording {
    pub fn new(dump: Arc<Journal>) -> Recording {
        Recording {
            dump,
            request: OnceLock::new(),
            answer: Mutex::default(),
        }
    }

    /// Takes the body of the request; without one nothing is recorded.
    pub fn asked(&self, body: &WholeBody) {
        let _ = self.request.set((body.bytes.clone(), body.share.clone()));
    }

    /// Takes the next bytes of the answer.
    pub fn told(&self, bytes: &[u8]) {
        // Bytes are appended whole or not at all.
        let mut told = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let room = DUMP_ANSWER_BYTES_MAX - told.bytes.len();
        told.cut |= bytes.len() > room;
        told.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Writes the line.
    pub fn write(self, time: String, id: &str, route: Option<&str>, status: u16) {
        let Some((request, _)) = self.request.get() else {
            return;
        };
        let told = self.answer.into_inner();
        let told = told.unwrap_or_else(PoisonError::into_inner);
        let line = Line {
            time,
            id,
            route,
            request: &String::from_utf8_lossy(request),
            status,
            response: &String::from_utf8_lossy(&told.bytes),
            cut: told.cut,
        };
        // It is made of texts and a number, which serialise.
        if let Ok(line) = serde_json::to_vec(&line) {
            self.dump.push(line);
        }
    }
}
