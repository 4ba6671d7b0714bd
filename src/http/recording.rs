//! Dump of requests and answers for a replay, texts included, if the operator asks for it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::body::Bytes;
use serde::Serialize;

use super::body::{Share, WholeBody};
use super::journal::Journal;
use super::limits::DUMP_ANSWER_BYTES_MAX;

/// Record of one request with a body, and of its answer so far.
#[derive(Debug)]
pub struct Recording {
    dump: Arc<Journal>,
    /// Body, and its share of the memory for bodies.
    request: OnceLock<(Bytes, Arc<Share>)>,
    answer: Mutex<RecordedAnswer>,
}

#[derive(Debug, Default)]
struct RecordedAnswer {
    bytes: Vec<u8>,
    cut: bool,
}

/// A line of the dump, in JSON.
#[derive(Debug, Serialize)]
struct Line<'r> {
    time: String,
    id: &'r str,
    route: Option<&'r str>,
    /// Body as text; bytes that are not UTF-8 are replaced.
    request: &'r str,
    status: u16,
    /// JSON of an answer, or the events of a stream.
    response: &'r str,
    /// Whether the answer was longer than `response`.
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

    /// Sets the body of the request; without a body nothing is recorded.
    pub fn asked(&self, body: &WholeBody) {
        let _ = self.request.set((body.bytes.clone(), body.share.clone()));
    }

    /// Appends to the recorded answer, up to its limit.
    pub fn add_answer(&self, bytes: &[u8]) {
        // A panic cannot leave bytes half appended.
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let left = DUMP_ANSWER_BYTES_MAX - answer.bytes.len();
        answer.cut |= bytes.len() > left;
        answer
            .bytes
            .extend_from_slice(&bytes[..bytes.len().min(left)]);
    }

    /// Appends the request and its response to the dump as a line of JSON; nothing without a body.
    pub fn write(self, time: String, id: &str, route: Option<&str>, status: u16) {
        let Some((request, _)) = self.request.get() else {
            return;
        };
        let answer = self.answer.into_inner();
        let answer = answer.unwrap_or_else(PoisonError::into_inner);
        let line = Line {
            time,
            id,
            route,
            request: &String::from_utf8_lossy(request),
            status,
            response: &String::from_utf8_lossy(&answer.bytes),
            cut: answer.cut,
        };
        // The line consists of texts and numbers, which always serialise.
        if let Ok(line) = serde_json::to_vec(&line) {
            self.dump.push(line);
        }
    }
}
