//! The file of requests: a line of JSON each, in the format of OpenAI's Batch API.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use hyper::body::Bytes;
use hyper::{Method, Uri};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::{Exit, Failure, lines};
use host::operator_file;
use http::limits::{BODY_BYTES_MAX, URI_BYTES_MAX};

/// Bytes of the longest line: a body of the largest size, and the other members.
const LINE_BYTES_MAX: usize = BODY_BYTES_MAX + 64 * 1024;
/// Bytes of the longest name of a request.
const CUSTOM_ID_BYTES_MAX: usize = 512;
/// Most names that are reported as used twice.
const TWICE_MAX: usize = 8;

/// Name of a request or, if it has none, its line; the answer has the same key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    CustomId(String),
    Line(usize),
}

/// A request that has no answer yet.
#[derive(Debug)]
pub struct Wanted {
    pub custom_id: String,
    pub url: Uri,
    pub body: Bytes,
}

/// A line that is no valid request.
#[derive(Debug, PartialEq)]
pub struct Bad {
    pub custom_id: Option<String>,
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Field at fault; None if the line as a whole is at fault.
    pub field: Option<&'static str>,
    /// Description of the fault and its fix.
    pub problem: String,
}

/// A request, or the fault of its line.
pub type Line = Result<Wanted, Bad>;

/// Key of the request on a line.
pub fn key(line: &Line) -> Key {
    match line {
        Ok(wanted) => Key::CustomId(wanted.custom_id.clone()),
        Err(bad) => match &bad.custom_id {
            Some(id) => Key::CustomId(id.clone()),
            None => Key::Line(bad.line),
        },
    }
}

/// Fields of a line, whose values are not checked yet.
#[derive(Deserialize)]
struct Fields<'l> {
    #[serde(borrow, default)]
    custom_id: Option<&'l RawValue>,
    #[serde(borrow, default)]
    method: Option<&'l RawValue>,
    #[serde(borrow, default)]
    url: Option<&'l RawValue>,
    #[serde(borrow, default)]
    body: Option<&'l RawValue>,
}

/// Parses the text of line number `line`.
fn read(line: usize, text: &[u8]) -> Line {
    let bad = |custom_id: Option<&String>, field, problem: &str| Bad {
        custom_id: custom_id.cloned(),
        line,
        field,
        problem: problem.to_string(),
    };
    if text.len() > LINE_BYTES_MAX {
        let problem = format!("is longer than {LINE_BYTES_MAX} bytes; send less");
        return Err(bad(None, None, &problem));
    }
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(bad(None, None, "is no JSON object; write one a line"));
    }
    let fields: Fields = serde_json::from_slice(text)
        .map_err(|why| bad(None, None, &format!("is not valid JSON: {why}")))?;
    let custom_id =
        custom_id(fields.custom_id).map_err(|problem| bad(None, Some("custom_id"), &problem))?;
    let wrong = |field, problem: &str| bad(Some(&custom_id), Some(field), problem);
    if string(fields.method).is_none_or(|method| method != Method::POST.as_str()) {
        return Err(wrong("method", "must be \"POST\""));
    }
    let url = string(fields.url).and_then(|url| path(&url));
    let url = url.ok_or_else(|| wrong("url", "must be a path such as /v1/chat/completions"))?;
    let body = fields.body.ok_or_else(|| wrong("body", "is missing"))?;
    Ok(Wanted {
        url,
        body: Bytes::copy_from_slice(body.get().as_bytes()),
        custom_id,
    })
}

fn string(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

fn custom_id(value: Option<&RawValue>) -> Result<String, String> {
    let fits = |id: &String| (1..=CUSTOM_ID_BYTES_MAX).contains(&id.len());
    let problem = format!("must be a text of 1 to {CUSTOM_ID_BYTES_MAX} bytes");
    string(value).filter(fits).ok_or(problem)
}

/// Path and query of `url`; None if they are not on this server.
fn path(url: &str) -> Option<Uri> {
    let fits = url.starts_with('/') && url.len() <= URI_BYTES_MAX;
    url.parse().ok().filter(|_| fits)
}

/// The file of requests with the length that it had when opened; lines appended later are for the
/// next run. The file is read twice: for its names, then for its requests.
#[derive(Debug)]
pub struct Requests {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Line number of each name.
    names: HashMap<Key, usize>,
}

impl Requests {
    /// Reads the names of all requests.
    ///
    /// # Errors
    /// When the file cannot be read, or two requests have one name: the answers could not be
    /// distinguished.
    pub fn open(path: &Path) -> Result<Requests, Failure> {
        let file = operator_file::open(path, u64::MAX).map_err(|why| Exit::Io.at(path, why))?;
        let mut requests = Requests {
            path: path.to_path_buf(),
            bytes: file.limit(),
            file: file.into_inner(),
            names: HashMap::new(),
        };
        let mut twice = Vec::new();
        for found in requests.lines()? {
            let (number, line) = found?;
            match requests.names.entry(key(&line)) {
                Entry::Vacant(free) => drop(free.insert(number)),
                Entry::Occupied(first) => twice.push((number, first.key().clone(), *first.get())),
            }
        }
        match twice.is_empty() {
            true => Ok(requests),
            false => Err(stand_twice(path, &twice)),
        }
    }

    /// Number of requests in the file.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    pub fn has(&self, name: &Key) -> bool {
        self.names.contains_key(name)
    }

    /// Refuses a line that has another name than when the names were read: two answers might then
    /// have the same name.
    ///
    /// # Errors
    /// Names the changed line.
    pub fn check(&self, number: usize, name: &Key) -> Result<(), Failure> {
        match self.names.get(name) == Some(&number) {
            true => Ok(()),
            false => Err(changed(&self.path, number)),
        }
    }

    /// Lines that are not blank, with their numbers, from the start of the file.
    ///
    /// # Errors
    /// When the file cannot be read any more.
    pub fn lines(
        &self,
    ) -> Result<impl Iterator<Item = Result<(usize, Line), Failure>> + use<>, Failure> {
        let path = self.path.clone();
        let failure = move |why: io::Error| Exit::Io.at(&path, why);
        let mut file = self.file.try_clone().map_err(&failure)?;
        file.seek(SeekFrom::Start(0)).map_err(&failure)?;
        let reader = BufReader::new(file.take(self.bytes));
        let read = |(number, text): (usize, Vec<u8>)| (number, read(number, &text));
        let lines = lines::numbered(reader, LINE_BYTES_MAX);
        Ok(lines.map(move |line| line.map(read).map_err(&failure)))
    }
}

fn stand_twice(path: &Path, twice: &[(usize, Key, usize)]) -> Failure {
    let shown = twice.iter().take(TWICE_MAX);
    let shown = shown.map(|(number, name, first)| match name {
        Key::CustomId(id) => format!("{id:?} on lines {first} and {number}"),
        Key::Line(line) => format!("line {line}"),
    });
    let all = shown.collect::<Vec<_>>().join(", ");
    let more = match twice.len().saturating_sub(TWICE_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let problem = format!(
        "custom_id stands twice: {all}{more}; an answer is found by it: give each request its own"
    );
    Exit::Config.at(path, problem)
}

fn changed(path: &Path, number: usize) -> Failure {
    let problem = format!(
        "line {number} was changed while its requests were answered; the same command goes on \
         with the file as it is then"
    );
    Exit::Config.at(path, problem)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use host::testing::Folder;

    #[test]
    fn a_line_that_was_changed_under_its_name_is_refused() {
        let folder = Folder::new();
        let path = folder.0.join("in");
        let line = |id| {
            format!(r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/x", "body": {{}}}}"#)
        };
        fs::write(&path, format!("{}\n{}\n", line("a"), line("b"))).unwrap();
        let requests = Requests::open(&path).unwrap();
        fs::write(&path, format!("{}\n{}\n", line("a"), line("a"))).unwrap();
        let checked = requests.lines().unwrap().map(|found| {
            let (number, line) = found.unwrap();
            requests.check(number, &key(&line))
        });
        let checked: Vec<_> = checked.collect();
        assert!(checked[0].is_ok());
        let refused = checked[1].as_ref().unwrap_err();
        assert!(refused.message.contains("line 2 was changed"));
    }

    fn bad(text: &str) -> (Option<String>, Option<&'static str>, String) {
        let bad = read(7, text.as_bytes()).expect_err("it is no request");
        assert_eq!(bad.line, 7);
        (bad.custom_id, bad.field, bad.problem)
    }

    #[test]
    fn a_request_keeps_its_body_as_it_stands() {
        let body = r#"{"b": 1,  "a":[1.50e0]}"#;
        let text = format!(
            r#"{{"custom_id": "é", "method": "POST", "url": "/v1/x", "body": {body}, "more": 1}}"#
        );
        let wanted = read(1, text.as_bytes()).unwrap();
        assert_eq!(
            (wanted.custom_id.as_str(), wanted.url.path()),
            ("é", "/v1/x")
        );
        assert_eq!(wanted.body, body);
    }

    #[test]
    fn each_fault_names_its_field_and_the_request_where_that_is_known() {
        let whole = r#"{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {}}"#;
        assert!(read(1, whole.as_bytes()).is_ok());
        for (from, to, field) in [
            ("\"POST\"", "\"GET\"", "method"),
            ("\"POST\"", "1", "method"),
            ("/v1/x", "http://a/v1/x", "url"),
            ("/v1/x", "/a b", "url"),
            ("\"/v1/x\"", "null", "url"),
            ("{}", "null", "body"),
            (", \"body\": {}", "", "body"),
        ] {
            let (custom_id, found, _) = bad(&whole.replace(from, to));
            assert_eq!(
                (custom_id.as_deref(), found),
                (Some("a"), Some(field)),
                "{to}"
            );
        }
        let long = format!("\"{}\"", "x".repeat(CUSTOM_ID_BYTES_MAX + 1));
        for id in ["\"\"", "1", "null", &long] {
            let (custom_id, found, _) = bad(&whole.replace("\"a\"", id));
            assert_eq!((custom_id, found), (None, Some("custom_id")), "{id}");
        }
        let twice = whole.replace("\"url\"", "\"method\": \"POST\", \"url\"");
        for text in ["[1]", "{", "x", r#"["a", "POST", "/v1/x", {}]"#, &twice] {
            assert_eq!(bad(text).1, None, "{text}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_refused() {
        let long = vec![b' '; LINE_BYTES_MAX + 1];
        assert!(read(1, &long).unwrap_err().problem.contains("longer"));
    }
}
