//! One request from its head to the last byte of its answer: its id, and its line in the access
//! log, which never contains prompts and replies.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Serialize;

use engine::fair_queue::Source;
use host::calendar::strftime;

use super::body::WholeBody;
use super::journal::Journal;
use super::keys::{self, KeyId};
use super::limits::REQUEST_ID_BYTES_MAX;
use super::peer::Asked;
use super::random;
use super::recording::Recording;
use super::settings::Settings;

/// Header of the request's id, in requests and answers.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Header of the request's id for clients of Anthropic's API.
pub const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// W3C Trace Context, level 1.
const TRACEPARENT: &str = "traceparent";

/// A request while it is answered. Its access log line is written when the last reference drops.
#[derive(Debug)]
pub struct Call {
    /// Guard that counts the request among those of its connection that are being answered.
    asked: Asked,
    /// Number by which the engine distinguishes calls.
    number: u64,
    /// Id of the API key that came with the request.
    key: OnceLock<KeyId>,
    /// Id from the client, or a new one. The id is returned and logged, and has no other meaning.
    pub id: HeaderValue,
    trace: Option<Trace>,
    method: Method,
    /// Pattern of the request's route; None if its path has no route.
    route: Option<&'static str>,
    at: SystemTime,
    pub began: Instant,
    status: AtomicU16,
    replies: OnceLock<Replies>,
    log: Option<Arc<Journal>>,
    recording: Option<Recording>,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    /// Part of `prompt`: tokens whose states came from the prefix cache.
    pub cached: usize,
    pub completion: usize,
    /// Part of `completion`: tokens of reasoning.
    pub reasoning: usize,
}

/// Outcome of the replies to one request.
#[derive(Debug)]
pub struct Replies {
    pub usage: Usage,
    /// Time from submission until the first of the replies got a slot.
    pub queued: Option<Duration>,
    /// Time at which the first token came.
    pub first_token: Option<Instant>,
    /// Finish reasons in the words of the chat completions API, or "cancelled" or "failed".
    pub finishes: Vec<&'static str>,
}

/// Trace of the request across services, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Trace {
    trace_id: String,
    parent_id: String,
}

impl Call {
    /// A request whose head has just come.
    pub fn new(
        asked: Asked,
        headers: &HeaderMap,
        method: Method,
        route: Option<&'static str>,
        settings: &Settings,
    ) -> Call {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Call {
            asked,
            number: LAST.fetch_add(1, Ordering::Relaxed),
            key: OnceLock::new(),
            id: request_id(headers),
            trace: headers.get(TRACEPARENT).and_then(Trace::parse),
            method,
            route,
            at: SystemTime::now(),
            began: Instant::now(),
            status: AtomicU16::default(),
            replies: OnceLock::new(),
            log: settings.access_log.clone(),
            recording: settings.dump.clone().map(Recording::new),
        }
    }

    /// The request's id as text.
    pub fn id_text(&self) -> &str {
        // `request_id` returns visible ASCII only, so the id is always text.
        self.id.to_str().unwrap_or_default()
    }

    /// Sets the API key that the request came with, once.
    pub fn brings(&self, key: KeyId) {
        let _ = self.key.set(key);
    }

    /// Id of the API key that the request came with; None if the server asks for no key.
    pub fn key(&self) -> Option<KeyId> {
        self.key.get().copied()
    }

    /// Source for the fair order of admission: key, or address without keys, and connection.
    pub fn source(&self) -> Source {
        let mut client = DefaultHasher::new();
        match self.key.get() {
            Some(key) => key.hash(&mut client),
            None => self.asked.peer.network().hash(&mut client),
        }
        Source {
            client: client.finish(),
            returns: self.asked.returns,
            connection: self.asked.peer.connection,
            call: self.number,
        }
    }

    /// Domain of the prefix cache: requests of the same key and salt, or all without either.
    pub fn domain(&self, salt: &str) -> u128 {
        keys::domain(self.key(), salt)
    }

    /// Sets the status of the answer, for the access log.
    pub fn answered(&self, status: StatusCode) {
        self.status.store(status.as_u16(), Ordering::Relaxed);
    }

    /// Records the body of the request, if requests are dumped.
    pub fn asked(&self, body: &WholeBody) {
        if let Some(recording) = &self.recording {
            recording.asked(body);
        }
    }

    /// Appends to the recorded body of the answer, if requests are dumped.
    pub fn responded(&self, bytes: &[u8]) {
        if let Some(recording) = &self.recording {
            recording.add_answer(bytes);
        }
    }

    /// Sets the outcome of the request's replies, once.
    pub fn generated(&self, replies: Replies) {
        let _ = self.replies.set(replies);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let (time, status) = (rfc3339_millis(self.at), self.status.load(Ordering::Relaxed));
            recording.write(time, self.id_text(), self.route, status);
        }
        let Some(log) = self.log.take() else { return };
        // The line consists of numbers and texts, which always serialise.
        if let Ok(line) = serde_json::to_vec(&Line::of(self)) {
            log.push(line);
        }
    }
}

/// The id from the client, if it is valid in a header and in a line; else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fits = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    match headers.get(REQUEST_ID).filter(fits) {
        Some(id) => id.clone(),
        None => {
            let id = format!("req_{}", &random::hex()[..24]);
            HeaderValue::try_from(id).expect("letters and digits")
        }
    }
}

impl Trace {
    /// Reads `version-trace_id-parent_id-flags`; later versions may append more fields.
    fn parse(value: &HeaderValue) -> Option<Trace> {
        let mut fields = value.to_str().ok()?.split('-');
        let mut field = |digits: usize| {
            let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let fits = |text: &&str| text.len() == digits && text.bytes().all(hexadecimal);
            fields.next().filter(fits)
        };
        let (version, trace_id, parent_id, _) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
        let known = version != "ff" && (version != "00" || fields.next().is_none());
        (known && !is_zero(trace_id) && !is_zero(parent_id)).then(|| Trace {
            trace_id: trace_id.to_string(),
            parent_id: parent_id.to_string(),
        })
    }
}

/// A line of the access log, in JSON. A field that does not apply is null.
#[derive(Debug, Serialize)]
struct Line<'c> {
    /// Time at which the request's head came, in UTC.
    time: String,
    id: &'c str,
    trace_id: Option<&'c str>,
    parent_id: Option<&'c str>,
    method: &'c str,
    route: Option<&'static str>,
    /// Status of the answer; null if the client left before there was one.
    status: Option<u16>,
    prompt_tokens: Option<usize>,
    cached_tokens: Option<usize>,
    completion_tokens: Option<usize>,
    queue_ms: Option<f64>,
    ttft_ms: Option<f64>,
    total_ms: f64,
    /// Finish reason of each reply.
    finish_reasons: &'c [&'static str],
}

impl Line<'_> {
    fn of(call: &Call) -> Line<'_> {
        let (replies, trace) = (call.replies.get(), call.trace.as_ref());
        let first_token = replies.and_then(|replies| replies.first_token);
        Line {
            time: rfc3339_millis(call.at),
            id: call.id_text(),
            trace_id: trace.map(|trace| trace.trace_id.as_str()),
            parent_id: trace.map(|trace| trace.parent_id.as_str()),
            method: call.method.as_str(),
            route: call.route,
            status: Some(call.status.load(Ordering::Relaxed)).filter(|status| *status > 0),
            prompt_tokens: replies.map(|replies| replies.usage.prompt),
            cached_tokens: replies.map(|replies| replies.usage.cached),
            completion_tokens: replies.map(|replies| replies.usage.completion),
            queue_ms: replies.and_then(|replies| replies.queued).map(millis),
            ttft_ms: first_token.map(|first| millis(first - call.began)),
            total_ms: millis(call.began.elapsed()),
            finish_reasons: replies.map_or(&[], |replies| &replies.finishes),
        }
    }
}

/// Milliseconds, rounded to a microsecond.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

fn rfc3339_millis(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = strftime("%Y-%m-%dT%H:%M:%S", at);
    format!("{seconds}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn a_client_names_its_request_within_bounds() {
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        for name in ["a", "6f0c-11:é".trim_end_matches('é'), &longest] {
            assert_eq!(request_id(&headers("x-request-id", name)), name);
        }
        for name in ["", "a b", "\u{e9}", &(longest.clone() + "x")] {
            let id = request_id(&headers("x-request-id", name));
            assert!(id.to_str().unwrap().starts_with("req_"), "{name:?}");
        }
        let none = HeaderMap::new();
        assert_ne!(request_id(&none), request_id(&none));
    }

    #[test]
    fn a_trace_is_read_as_its_standard_says() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let parse = |text: &str| Trace::parse(&HeaderValue::from_str(text).unwrap());
        let found = Some(Trace {
            trace_id: trace.to_string(),
            parent_id: parent.to_string(),
        });
        assert_eq!(parse(&format!("00-{trace}-{parent}-01")), found);
        assert_eq!(parse(&format!("01-{trace}-{parent}-01-later")), found);
        let zeros = "0".repeat(32);
        for text in [
            format!("00-{trace}-{parent}-01-later"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{trace}-{parent}"),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{zeros}-{parent}-01"),
            format!("00-{trace}-{}-01", &zeros[..16]),
            format!("0-{trace}-{parent}-01"),
            String::new(),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_time_has_three_digits_after_its_seconds() {
        let at = UNIX_EPOCH + Duration::from_millis(951_782_400_007);
        assert_eq!(rfc3339_millis(at), "2000-02-29T00:00:00.007Z");
    }
}
