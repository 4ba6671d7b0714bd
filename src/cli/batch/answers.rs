//! File of answers: lines of JSON, each written as soon as the answer is complete. Requests with
//! answers of earlier runs are skipped.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::requests::{Bad, Key};
use crate::cli::transfer::copy::unwritable;
use crate::cli::{Exit, Failure};
use host::log;
use host::operator_file;
use host::output;
use http::offline::Answered;
use http::random;

/// Start of each line that `batch` writes.
const BEGINNING: &[u8] = br#"{"id":"batch_req_"#;

/// A line of the file of answers.
#[derive(Serialize)]
struct Answer<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Option<Response<'a>>,
    error: Option<Problem<'a>>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct Problem<'a> {
    code: &'static str,
    message: String,
    param: Option<&'a str>,
    /// Line in the file of requests, if the request has no name.
    line: Option<usize>,
}

/// Members that are read of an earlier run's line.
#[derive(Deserialize)]
struct Known {
    custom_id: Option<String>,
    response: Option<KnownResponse>,
    error: Option<KnownProblem>,
}

#[derive(Deserialize)]
struct KnownResponse {
    status_code: u16,
}

#[derive(Deserialize)]
struct KnownProblem {
    line: Option<usize>,
}

impl Known {
    /// Name of the answered request; None if the line is no answer.
    fn key(&self) -> Option<Key> {
        let line = self.error.as_ref().and_then(|error| error.line);
        let named = self.custom_id.clone().map(Key::CustomId);
        named.or(line.map(Key::Line))
    }

    fn failed(&self) -> bool {
        let succeeded = |response: &KnownResponse| is_success(response.status_code);
        !self.response.as_ref().is_some_and(succeeded)
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The file of answers while this process writes it.
#[derive(Debug)]
pub struct Answers {
    file: File,
    path: PathBuf,
    done: HashSet<Key>,
    failed: usize,
}

/// Longest wait for the file's lock: a program that this one has just started shares its locks
/// until it runs.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// Time between two attempts to lock the file.
const LOCK_EVERY: Duration = Duration::from_millis(10);

fn lock(file: &File) -> Result<(), TryLockError> {
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => {
                thread::sleep(LOCK_EVERY);
            }
            told => return told,
        }
    }
}

impl Answers {
    /// Opens or makes the file; removes a line that an earlier run did not finish.
    ///
    /// # Errors
    /// When the file cannot be written, is `requests`, is written by another process, or has lines
    /// that are no answers.
    pub fn open(path: &Path, requests: &Path) -> Result<Answers, Failure> {
        let io = |why| Exit::Io.at(path, why);
        let file = output::append(path).map_err(unwritable(path))?;
        let metadata = file.metadata().map_err(io)?;
        let read = std::fs::metadata(requests).map_err(io)?;
        if (metadata.dev(), metadata.ino()) == (read.dev(), read.ino()) {
            let problem = "holds the requests; name another file";
            return Err(Exit::Usage.at(path, problem));
        }
        lock(&file).map_err(|why| match why {
            TryLockError::WouldBlock => {
                Exit::Unavailable.at(path, "is written by another process; wait for its end")
            }
            TryLockError::Error(why) => io(why),
        })?;
        let mut answers = Answers {
            file,
            path: path.to_path_buf(),
            done: HashSet::new(),
            failed: 0,
        };
        answers.read()?;
        Ok(answers)
    }

    /// Reads the answers of earlier runs.
    fn read(&mut self) -> Result<(), Failure> {
        let file = self.file.try_clone().map_err(|why| self.io(&why))?;
        let (mut reader, mut text) = (BufReader::new(file), Vec::new());
        let (mut whole, mut number) = (0, 0);
        loop {
            text.clear();
            let bytes = reader.read_until(b'\n', &mut text);
            let bytes = bytes.map_err(|why| self.io(&why))? as u64;
            if bytes == 0 {
                return Ok(());
            }
            number += 1;
            if !text.ends_with(b"\n") {
                return self.mend(&text, whole, number);
            }
            whole += bytes;
            self.know(&text).ok_or_else(|| self.foreign(number))?;
        }
    }

    /// Reads a whole line; None if it is no answer, or the second one to a request.
    fn know(&mut self, text: &[u8]) -> Option<()> {
        let known: Known = serde_json::from_slice(text).ok()?;
        self.failed += usize::from(known.failed());
        self.done.insert(known.key()?).then_some(())
    }

    /// Removes a torn last line, which begins after `whole` bytes.
    fn mend(&mut self, torn: &[u8], whole: u64, number: usize) -> Result<(), Failure> {
        let both = torn.len().min(BEGINNING.len());
        if torn[..both] != BEGINNING[..both] {
            return Err(self.foreign(number));
        }
        self.file.set_len(whole).map_err(|why| self.io(&why))?;
        log::line(format_args!(
            "{}: line {number} was not written to its end; its request is answered again",
            self.path.display()
        ));
        Ok(())
    }

    fn foreign(&self, number: usize) -> Failure {
        let problem = format!(
            "line {number} is no answer of a batch, or the second of its custom_id; name another \
             file"
        );
        Exit::Config.at(&self.path, problem)
    }

    fn io(&self, why: &dyn Display) -> Failure {
        let fix = "what it holds is kept: the same command goes on with it";
        Exit::Io.at(&self.path, format!("{why}; {fix}"))
    }

    pub fn has(&self, name: &Key) -> bool {
        self.done.contains(name)
    }

    /// Names of answered requests.
    pub fn names(&self) -> impl Iterator<Item = &Key> {
        self.done.iter()
    }

    /// Number of answers that are errors.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Writes the answer to a request.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&mut self, custom_id: String, answered: &Answered) -> Result<(), Failure> {
        let status = answered.status.as_u16();
        let body = answered.body.as_deref();
        let body = body.and_then(|body| serde_json::from_slice::<&RawValue>(body).ok());
        let error = body.is_none().then(|| Problem {
            code: "invalid_request",
            message: "body.stream: an answer in a file is whole; leave it out".to_string(),
            param: Some("body.stream"),
            line: None,
        });
        let failed = error.is_some() || !is_success(status);
        let line = Answer {
            id: new_id(),
            custom_id: Some(&custom_id),
            response: body.map(|body| Response {
                status_code: status,
                request_id: &answered.request_id,
                body,
            }),
            error,
        };
        self.write(&line, failed)?;
        self.done.insert(Key::CustomId(custom_id));
        Ok(())
    }

    /// Writes the error for a line that is no request.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn refuse(&mut self, bad: &Bad) -> Result<(), Failure> {
        let field = bad.field;
        let field = field.map_or(String::new(), |field| format!("{field}: "));
        let line = Answer {
            id: new_id(),
            custom_id: bad.custom_id.as_deref(),
            response: None,
            error: Some(Problem {
                code: "invalid_line",
                message: format!("line {}: {field}{}", bad.line, bad.problem),
                param: bad.field,
                line: Some(bad.line),
            }),
        };
        self.write(&line, true)?;
        let named = bad.custom_id.clone().map(Key::CustomId);
        self.done.insert(named.unwrap_or(Key::Line(bad.line)));
        Ok(())
    }

    /// Writes a line as a whole or not at all, so that other readers never see a part of it.
    fn write(&mut self, line: &Answer<'_>, failed: bool) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(line).map_err(|why| self.io(&why))?;
        text.push(b'\n');
        operator_file::append(&self.file, &text).map_err(|failed| self.io(&failed.why))?;
        self.failed += usize::from(failed);
        Ok(())
    }

    /// Flushes the file to the disk.
    pub fn keep(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|why| self.io(&why))
    }
}

fn new_id() -> String {
    format!("batch_req_{}", random::hex())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hyper::StatusCode;
    use hyper::body::Bytes;

    use super::*;
    use host::testing::Folder;

    /// A folder with a file of requests.
    fn folder() -> Folder {
        Folder::with("in", b"")
    }

    fn open(folder: &Folder) -> Result<Answers, Failure> {
        Answers::open(&folder.join("out"), &folder.join("in"))
    }

    fn answered(status: StatusCode, body: Option<&'static str>) -> Answered {
        Answered {
            status,
            request_id: "req_1".to_string(),
            body: body.map(Bytes::from),
        }
    }

    fn id(name: &str) -> Key {
        Key::CustomId(name.to_string())
    }

    fn nameless() -> Bad {
        Bad {
            custom_id: None,
            line: 3,
            field: Some("custom_id"),
            problem: "must be a text".to_string(),
        }
    }

    #[test]
    fn what_was_written_is_known_again_wherever_the_file_is_cut() {
        let folder = folder();
        let mut answers = open(&folder).unwrap();
        let fine = answered(StatusCode::OK, Some(r#"{"a": "b\nc"}"#));
        answers.add("one".to_string(), &fine).unwrap();
        answers.refuse(&nameless()).unwrap();
        drop(answers);
        let path = folder.join("out");
        let text = fs::read(&path).unwrap();
        let first = text.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for length in 0..=text.len() {
            fs::write(&path, &text[..length]).unwrap();
            let answers = open(&folder).unwrap();
            assert_eq!(answers.has(&id("one")), length >= first, "{length}");
            assert_eq!(answers.has(&Key::Line(3)), length == text.len(), "{length}");
            let whole = [0, first, text.len()];
            assert!(whole.contains(&(fs::metadata(&path).unwrap().len() as usize)));
        }
        assert_eq!(open(&folder).unwrap().failed(), 1);
    }

    #[test]
    fn an_answer_is_written_as_the_format_says() {
        let folder = folder();
        let mut answers = open(&folder).unwrap();
        let fine = answered(StatusCode::OK, Some(r#"{"a":1}"#));
        answers.add("one".to_string(), &fine).unwrap();
        answers
            .add("two".to_string(), &answered(StatusCode::OK, None))
            .unwrap();
        answers.refuse(&nameless()).unwrap();
        assert_eq!(answers.failed(), 2);
        let text = fs::read_to_string(folder.join("out")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let [one, two, three] = lines.collect::<Vec<_>>().try_into().unwrap();
        assert!(one["id"].as_str().unwrap().starts_with("batch_req_"));
        assert_eq!(one["custom_id"], "one");
        let response =
            serde_json::json!({"status_code": 200, "request_id": "req_1", "body": {"a": 1}});
        assert_eq!(
            (&one["response"], one["error"].is_null()),
            (&response, true)
        );
        assert!(two["response"].is_null());
        assert_eq!(two["error"]["param"], "body.stream");
        assert!(three["custom_id"].is_null());
        assert_eq!(
            three["error"]["message"],
            "line 3: custom_id: must be a text"
        );
    }

    #[test]
    fn a_file_of_something_else_stays_as_it_is() {
        let folder = folder();
        let path = folder.join("out");
        let known = r#"{"id":"x","custom_id":"a","response":null,"error":null}"#;
        let twice = format!("{known}\n{known}\n");
        for text in ["my notes", "my notes\n", "{}\n", twice.as_str()] {
            fs::write(&path, text).unwrap();
            let failure = open(&folder).unwrap_err();
            assert_eq!(failure.exit, Exit::Config, "{text}");
            assert!(failure.message.contains("line "), "{}", failure.message);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn two_runs_do_not_write_one_file() {
        let folder = folder();
        let _first = open(&folder).unwrap();
        assert_eq!(open(&folder).unwrap_err().exit, Exit::Unavailable);
        let own = Answers::open(&folder.join("in"), &folder.join("in"));
        assert_eq!(own.unwrap_err().exit, Exit::Usage);
    }
}
