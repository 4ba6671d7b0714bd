//! Client of a running server, this program's or another: one connection, and times of streamed
//! replies.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::sse::Reader;

/// Bytes of the largest body that is read whole: errors, and the list of models.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Characters of a refusal that are shown.
const REFUSAL_CHARS_MAX: usize = 300;
const END_OF_STREAM: &str = "[DONE]";
pub const CHAT: &str = "/v1/chat/completions";
/// Start of the realm that servers of this program state to clients without a key.
const OUR_REALM: &str = "realm=\"Atlas";

/// Address of a server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// URL as given, for reports.
    pub url: String,
    authority: String,
    host: String,
    port: u16,
    /// Path before `/v1`, without a slash at the end.
    prefix: String,
    key: Option<String>,
}

impl Endpoint {
    /// # Errors
    /// States the fault of the URL.
    pub fn parse(url: &str, key: Option<String>) -> Result<Endpoint, String> {
        let bad = |why: &str| format!("--url {url}: {why}, for example http://127.0.0.1:8000");
        let uri: Uri = url.parse().map_err(|_| bad("it must be a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(bad("it must begin with http://"));
        }
        let authority = uri.authority().ok_or_else(|| bad("it must name a host"))?;
        Ok(Endpoint {
            url: url.to_owned(),
            authority: authority.to_string(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// Whether the server is on this machine.
    pub fn is_here(&self) -> bool {
        let ip = self.host.parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// # Errors
    /// The reason why the server cannot be reached, in words.
    pub async fn connect(&self) -> Result<Connection, String> {
        let refused = |cause: &dyn std::fmt::Display| format!("cannot reach {}: {cause}", self.url);
        let address = (self.host.as_str(), self.port);
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|cause| refused(&cause))?;
        stream.set_nodelay(true).map_err(|cause| refused(&cause))?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|cause| refused(&cause))?;
        // The task ends when the sender is dropped; its errors are also reported by the sender.
        tokio::spawn(connection);
        Ok(Connection {
            endpoint: self.clone(),
            sender,
        })
    }
}

/// A timed request for a chat completion.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub model: &'a str,
    pub prompt: String,
    /// Exact number of tokens of the reply.
    pub tokens: usize,
}

impl Ask<'_> {
    pub fn body(&self) -> String {
        json!({
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
        .to_string()
    }
}

/// Request of a known client, such as a coding agent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub path: String,
    /// Headers in addition to host, key and content type.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// Token counts of a reply, and the times of its pieces since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    /// Times of the pieces that had text, ascending, at least one.
    pub pieces: Vec<(Duration, usize)>,
}

impl Timings {
    pub fn first(&self) -> Duration {
        self.pieces[0].0
    }

    pub fn last(&self) -> Duration {
        self.pieces[self.pieces.len() - 1].0
    }
}

pub struct Connection {
    endpoint: Endpoint,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// JSON that the server returns for a path.
    pub async fn read(&mut self, path: &str) -> Result<Value, String> {
        let response = self.send(Method::GET, path, String::new()).await?;
        let text = read_whole(response).await?;
        serde_json::from_str(&text).map_err(|cause| format!("{path}: {cause}"))
    }

    /// Target and version of the server; None if it is another program's, or requires another key.
    pub async fn target(&mut self) -> Option<String> {
        let of = self.read("/version").await.ok()?;
        let (target, version) = (of["target"].as_str()?, of["version"].as_str()?);
        Some(format!("{target} {version}"))
    }

    /// Whether the server is this program's and requires another key.
    pub async fn is_locked(&mut self) -> bool {
        let answer = self.exchange(Method::GET, "/version", &[], String::new());
        let Ok(answer) = answer.await else {
            return false;
        };
        let challenge = answer.headers().get(header::WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|value| value.to_str().ok());
        answer.status() == StatusCode::UNAUTHORIZED
            && challenge.is_some_and(|value| value.contains(OUR_REALM))
    }

    /// Id of the first model that the server lists.
    pub async fn first_model(&mut self) -> Result<String, String> {
        let list = self.read("/v1/models").await?;
        let id = list["data"][0]["id"].as_str();
        let id = id.ok_or("/v1/models lists no model; name one with --model")?;
        Ok(id.to_owned())
    }

    /// Sends `ask` and reads the whole stream. A reply that is cut off or of another length is an
    /// error.
    pub async fn chat(&mut self, ask: &Ask<'_>) -> Result<Timings, String> {
        let begun = Instant::now();
        let response = self.send(Method::POST, CHAT, ask.body()).await?;
        let mut transcript = Transcript::default();
        let take = |data: &str, at| {
            transcript.take(data, at);
            false
        };
        follow(response, begun, take).await?;
        transcript.finish(ask.tokens)
    }

    /// Asks one question; passes the answer's text to `write`, piece by piece.
    ///
    /// # Errors
    /// When the server refuses, the reply is cut off, or `write` fails.
    pub async fn answer(
        &mut self,
        model: &str,
        prompt: &str,
        mut write: impl FnMut(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        let body = json!({
            "model": model, "messages": [{"role": "user", "content": prompt}], "stream": true,
        });
        let response = self.send(Method::POST, CHAT, body.to_string()).await?;
        let (mut ended, mut outcome) = (false, Ok(()));
        let take = |data: &str, _| {
            ended |= data == END_OF_STREAM;
            if !ended && outcome.is_ok() {
                outcome = text_of(data).and_then(|text| write(&text));
            }
            outcome.is_err()
        };
        follow(response, Instant::now(), take).await?;
        outcome?;
        match ended {
            true => Ok(()),
            false => Err("the stream ended without [DONE]".to_owned()),
        }
    }

    /// Posts a request of any dialect; returns the answer's first text and its time, and reads no
    /// further.
    pub async fn first_text(&mut self, outgoing: Outgoing) -> Result<(Duration, String), String> {
        let begun = Instant::now();
        let (path, headers) = (&outgoing.path, &outgoing.headers);
        let response = self.exchange(Method::POST, path, headers, outgoing.body);
        let response = response.await?;
        let response = accepted(response).await?;
        let kind = response.headers().get(header::CONTENT_TYPE);
        if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
            let text = read_whole(response).await?;
            let text = any_text_of(&text).unwrap_or(Err("the answer holds no text".to_owned()));
            return Ok((begun.elapsed(), text?));
        }
        let mut found = None;
        let take = |data: &str, at| {
            found = found.take().or_else(|| Some((at, any_text_of(data)?)));
            found.is_some()
        };
        follow(response, begun, take).await?;
        let (at, text) = found.ok_or("the stream ended without a text")?;
        Ok((at, text?))
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let response = self.exchange(method, path, &[], body).await?;
        accepted(response).await
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let (prefix, authority) = (&self.endpoint.prefix, &self.endpoint.authority);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.endpoint.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::from(body));
        let request = request.map_err(|cause| cause.to_string())?;
        let ready = self.sender.ready().await;
        ready.map_err(|cause| format!("the connection is gone: {cause}"))?;
        let response = self.sender.send_request(request).await;
        response.map_err(|cause| format!("no response: {cause}"))
    }
}

/// Passes each event of a stream and its time since `begun` to `take`, until `take` returns true.
async fn follow(
    response: Response<Incoming>,
    begun: Instant,
    mut take: impl FnMut(&str, Duration) -> bool,
) -> Result<(), String> {
    let mut body = response.into_body();
    let (mut reader, mut enough) = (Reader::default(), false);
    while !enough && let Some(frame) = body.frame().await {
        let frame = frame.map_err(|cause| format!("the stream broke: {cause}"))?;
        let at = begun.elapsed();
        if let Ok(bytes) = frame.into_data() {
            reader.feed(&bytes, |data| enough |= take(data, at))?;
        }
    }
    Ok(())
}

/// The response if its status is 200, else an error with the server's message.
async fn accepted(response: Response<Incoming>) -> Result<Response<Incoming>, String> {
    if response.status() == StatusCode::OK {
        return Ok(response);
    }
    let status = response.status();
    let text = read_whole(response).await?;
    Err(refusal(status, &text))
}

/// Text of a refusal: the message of an API's error object, or else the body.
fn refusal(status: StatusCode, body: &str) -> String {
    let said: Option<Value> = serde_json::from_str(body).ok();
    let said = said.and_then(|said| said.get("error").map(words));
    let said = said.unwrap_or_else(|| body.trim().to_owned());
    let shown: String = said.chars().take(REFUSAL_CHARS_MAX).collect();
    format!("the server refuses ({status}): {shown}")
}

/// Text of an error inside a stream.
fn reported(error: &Value) -> String {
    format!("the server reports: {}", words(error))
}

/// Message of an error object; the whole object if it has no message.
fn words(error: &Value) -> String {
    let message = error.get("message").unwrap_or(error);
    let text = message.as_str().map(str::to_owned);
    text.unwrap_or_else(|| error.to_string())
}

/// JSON pointers to the model's text, or to names of functions, in events and whole answers of all
/// dialects.
const TEXTS: [&str; 13] = [
    "/choices/0/delta/content",
    "/choices/0/delta/reasoning_content",
    "/choices/0/delta/tool_calls/0/function/name",
    "/choices/0/message/content",
    "/choices/0/message/reasoning_content",
    "/choices/0/message/tool_calls/0/function/name",
    "/content_block/name",
    "/delta/partial_json",
    "/delta/text",
    "/delta/thinking",
    "/delta",
    "/item/name",
    "/choices/0/text",
];

/// Text of the model in an event or an answer of any dialect, or its error; None if it has neither.
fn any_text_of(data: &str) -> Option<Result<String, String>> {
    let event: Value = serde_json::from_str(data).ok()?;
    let error = ["/error", "/response/error"].map(|pointer| event.pointer(pointer));
    if let Some(error) = error.into_iter().flatten().find(|error| !error.is_null()) {
        return Some(Err(reported(error)));
    }
    let texts = TEXTS.iter();
    let texts = texts.filter_map(|pointer| event.pointer(pointer)?.as_str());
    let mut texts = texts.filter(|text| !text.is_empty());
    texts.next().map(|text| Ok(text.to_owned()))
}

/// An event of a stream, if it tells of no error.
fn chunk_of(data: &str) -> Result<Chunk, String> {
    let chunk: Chunk = serde_json::from_str(data)
        .map_err(|cause| format!("an event is not a completion chunk: {cause}"))?;
    match &chunk.error {
        Some(error) => Err(reported(error)),
        None => Ok(chunk),
    }
}

/// Text of an event of a stream.
fn text_of(data: &str) -> Result<String, String> {
    let choices = chunk_of(data)?.choices.into_iter();
    Ok(choices.filter_map(|choice| choice.delta.content).collect())
}

async fn read_whole(response: Response<Incoming>) -> Result<String, String> {
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX);
    let body = body.collect().await;
    let body = body.map_err(|cause| format!("the body broke: {cause}"))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
}

/// Members of a delta that may have text of the model, in various servers.
#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<Value>>,
}

impl Delta {
    /// Bytes of text, where there is any; arguments of calls are not counted.
    fn text_bytes(&self) -> Option<usize> {
        let texts = [&self.content, &self.reasoning_content, &self.reasoning];
        let bytes = texts.into_iter().flatten().map(String::len).sum();
        (bytes > 0 || self.tool_calls.is_some()).then_some(bytes)
    }
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
}

/// Collector of the events of one reply.
#[derive(Debug, Default)]
pub struct Transcript {
    reply: Timings,
    counted: bool,
    ended: bool,
    error: Option<String>,
}

impl Transcript {
    /// Takes the data of an event; `at` is the time since a start that the caller chooses.
    pub fn take(&mut self, data: &str, at: Duration) {
        if data == END_OF_STREAM {
            self.ended = true;
            return;
        }
        let chunk = match chunk_of(data) {
            Ok(chunk) => chunk,
            Err(why) => {
                self.error.get_or_insert(why);
                return;
            }
        };
        let deltas = chunk.choices.iter().map(|choice| &choice.delta);
        if let Some(bytes) = deltas.filter_map(Delta::text_bytes).reduce(|a, b| a + b) {
            self.reply.pieces.push((at, bytes));
        }
        if let Some(usage) = chunk.usage {
            self.counted = true;
            self.reply.prompt_tokens = usage.prompt_tokens;
            self.reply.completion_tokens = usage.completion_tokens;
        }
    }

    /// # Errors
    /// When the reply was cut short or does not have `tokens` tokens.
    pub fn finish(self, tokens: usize) -> Result<Timings, String> {
        let generated = self.reply.completion_tokens;
        match self.error {
            Some(error) => Err(error),
            None if !self.ended => Err("the stream ended without [DONE]".to_owned()),
            None if !self.counted => Err("the stream holds no usage".to_owned()),
            None if self.reply.pieces.is_empty() => Err("the reply holds no text".to_owned()),
            None if generated != tokens => Err(format!(
                "asked for {tokens} tokens, got {generated}: is ignore_eos known?"
            )),
            None => Ok(self.reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
    const ROLE: &str = r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;

    fn finish(events: &[&str]) -> Result<Timings, String> {
        let mut transcript = Transcript::default();
        for (at, event) in events.iter().enumerate() {
            transcript.take(event, Duration::from_secs(at as u64));
        }
        transcript.finish(2)
    }

    #[test]
    fn only_pieces_with_text_are_timed() {
        let reply = finish(&[ROLE, TEXT, TEXT, USAGE, END_OF_STREAM]).unwrap();
        assert_eq!(
            (reply.first(), reply.last()),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
        assert_eq!((reply.prompt_tokens, reply.completion_tokens), (9, 2));
        assert!(reply.pieces.iter().all(|&(_, bytes)| bytes == 1));
    }

    #[test]
    fn reasoning_and_tool_calls_count_as_text() {
        for delta in [
            r#"{"reasoning_content":"a"}"#,
            r#"{"reasoning":"a"}"#,
            r#"{"tool_calls":[]}"#,
        ] {
            let event = format!(r#"{{"choices":[{{"delta":{delta}}}]}}"#);
            assert!(finish(&[&event, USAGE, END_OF_STREAM]).is_ok(), "{delta}");
        }
    }

    #[test]
    fn a_reply_that_cannot_be_trusted_is_an_error() {
        let error = |events: &[&str]| finish(events).unwrap_err();
        assert!(error(&[TEXT, USAGE]).contains("[DONE]"));
        assert!(error(&[TEXT, END_OF_STREAM]).contains("usage"));
        assert!(error(&[ROLE, USAGE, END_OF_STREAM]).contains("no text"));
        assert!(error(&[TEXT, "{", USAGE, END_OF_STREAM]).contains("chunk"));
        assert!(error(&[TEXT, r#"{"error":"x"}"#, END_OF_STREAM]).contains("reports"));
        let short = USAGE.replace("s\":2", "s\":1");
        assert!(error(&[TEXT, &short, END_OF_STREAM]).contains("got 1"));
    }

    #[test]
    fn a_refusal_is_a_sentence() {
        let said = |body: &str| refusal(StatusCode::BAD_REQUEST, body);
        let told = "the server refuses (400 Bad Request): no";
        for body in [
            r#"{"error":{"message":"no","code":1}}"#,
            r#"{"error":"no"}"#,
            "no\n",
        ] {
            assert_eq!(said(body), told, "{body}");
        }
        assert!(said(r#"{"error":{"code":1}}"#).ends_with(r#"{"code":1}"#));
        assert_eq!(
            said(&"x".repeat(999)).len(),
            said("").len() + REFUSAL_CHARS_MAX
        );
        let broken = text_of(r#"{"error":{"message":"gone"}}"#).unwrap_err();
        assert_eq!(broken, "the server reports: gone");
    }

    #[test]
    fn the_text_of_any_dialect_is_found() {
        for (event, text) in [
            (TEXT, Some("a")),
            (ROLE, None),
            (
                r#"{"type":"content_block_delta","delta":{"thinking":"b"}}"#,
                Some("b"),
            ),
            (
                r#"{"type":"content_block_start","content_block":{"name":"f"}}"#,
                Some("f"),
            ),
            (
                r#"{"type":"response.created","response":{"error":null}}"#,
                None,
            ),
            (
                r#"{"type":"response.output_text.delta","delta":"c"}"#,
                Some("c"),
            ),
            (r#"{"choices":[{"message":{"content":"d"}}]}"#, Some("d")),
            (END_OF_STREAM, None),
        ] {
            let found = any_text_of(event).map(Result::unwrap);
            assert_eq!(found.as_deref(), text, "{event}");
        }
        let failed = r#"{"type":"response.failed","response":{"error":{"message":"gone"}}}"#;
        let told = Some(Err("the server reports: gone".to_owned()));
        assert_eq!(any_text_of(failed), told);
    }

    #[test]
    fn urls_are_taken_apart() {
        let endpoint = Endpoint::parse("http://[::1]:81/api/", None).unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 81));
        assert_eq!(
            (endpoint.authority.as_str(), endpoint.prefix.as_str()),
            ("[::1]:81", "/api")
        );
        assert_eq!(Endpoint::parse("http://host", None).unwrap().port, 80);
        assert!(
            Endpoint::parse("https://host", None)
                .unwrap_err()
                .contains("http://")
        );
        assert!(Endpoint::parse("127.0.0.1:80", None).is_err());
    }
}
