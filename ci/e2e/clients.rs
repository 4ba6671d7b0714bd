//! Requests that real clients sent, sent again: each gets an answer of the form that its client
//! read then. `scripts/clients/record.py` makes the recordings.
//!
//! Libraries were recorded over the trained model and meet the binary. Agents were recorded over a
//! script, for their prompts are longer than what that model was made for; they meet the same
//! server and engine around the same script.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::settings::Settings;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::harness::{Answer, Server, request, run, send_to};
use crate::scripted::play::{STEP, Scene};
use crate::scripted::server;

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ci/e2e/recordings");

const LIBRARIES: [&str; 5] = [
    "anthropic-node",
    "anthropic-python",
    "openai-node",
    "openai-python",
    "vercel",
];

/// Strings that begin so were given by the server, and differ when it answers again.
const IDS: [&str; 10] = [
    "resp_",
    "msg_",
    "rs_",
    "fc_",
    "ctc_",
    "tsc_",
    "call_",
    "toolu_",
    "chatcmpl-",
    "cmpl-",
];

#[derive(Deserialize)]
struct Exchange {
    request: Request,
    response: Response,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
}

#[derive(Deserialize)]
struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: Value,
    /// Events of a stream; None of a whole answer.
    events: Option<Vec<Event>>,
}

#[derive(Deserialize)]
struct Event {
    event: Option<String>,
    data: Value,
}

fn recorded(client: &str) -> Vec<Exchange> {
    let text = fs::read_to_string(format!("{RECORDINGS}/{client}.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let exchanges: Vec<Exchange> = lines.collect();
    assert!(!exchanges.is_empty(), "{client}");
    exchanges
}

/// Agents by the names of their recordings.
fn agents() -> Vec<String> {
    let files = fs::read_dir(RECORDINGS)
        .unwrap()
        .map(|file| file.unwrap().path());
    let name = |path: PathBuf| {
        let name = path
            .file_name()?
            .to_str()?
            .strip_suffix(".jsonl")?
            .to_string();
        (!LIBRARIES.contains(&name.as_str())).then_some(name)
    };
    let mut agents: Vec<String> = files.filter_map(name).collect();
    agents.sort();
    assert!(agents.len() >= 3, "{agents:?}");
    agents
}

/// Names that the server uses now, by those that it used when the traffic was recorded.
#[derive(Default)]
struct Names {
    known: HashMap<String, String>,
}

impl Names {
    /// Learns the ids of an answer from its place in the recorded one.
    fn learn(&mut self, recorded: &Value, answered: &Value) {
        match (recorded, answered) {
            (Value::Object(recorded), Value::Object(answered)) => {
                for (name, value) in recorded {
                    self.learn(value, answered.get(name).unwrap_or(&Value::Null));
                }
            }
            (Value::Array(recorded), Value::Array(answered)) => {
                let pairs = recorded.iter().zip(answered);
                pairs.for_each(|(recorded, answered)| self.learn(recorded, answered));
            }
            (Value::String(recorded), Value::String(answered))
                if IDS.iter().any(|prefix| recorded.starts_with(prefix)) =>
            {
                self.known.insert(recorded.clone(), answered.clone());
            }
            _ => {}
        }
    }

    /// `text` with the names of now.
    fn put_into(&self, mut text: String) -> String {
        for (recorded, now) in &self.known {
            text = text.replace(recorded, now);
        }
        text
    }
}

impl Exchange {
    /// Sends the request as its client sent it.
    fn send(&self, address: SocketAddr, names: &Names) -> Answer {
        let body = match &self.request.body {
            Value::Null => String::new(),
            body => names.put_into(body.to_string()),
        };
        let path = names.put_into(self.request.path.clone());
        let lines = self.request.headers.iter();
        let lines: String = lines
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let bytes = request(&self.request.method, &path, &lines, body.as_bytes());
        send_to(address, &bytes).answer()
    }

    /// Whether the answer has to be the same each time.
    fn is_greedy(&self) -> bool {
        self.request.body["temperature"] == 0.0
    }

    /// Compares an answer with the recorded one: `exactly`, all its fields and the order of its
    /// events; else its kind alone.
    fn compare(&self, answer: &Answer, exactly: bool, names: &mut Names) {
        assert_eq!(answer.status, self.response.status);
        for name in ["content-type", "cache-control", "allow"] {
            let recorded = self
                .response
                .headers
                .iter()
                .find(|(known, _)| known == name);
            let line = recorded.map(|(_, value)| format!("\r\n{name}: {value}").to_lowercase());
            assert!(
                line.is_none_or(|line| answer.head.contains(&line)),
                "{name}"
            );
        }
        match &self.response.events {
            Some(recorded) => {
                let answered = events(&answer.body);
                for (recorded, answered) in recorded.iter().zip(&answered) {
                    names.learn(&recorded.data, &answered.data);
                }
                compare_events(recorded, &answered, exactly);
            }
            None if self.response.body.is_object() => {
                let answered = answer.json();
                names.learn(&self.response.body, &answered);
                if exactly {
                    assert_eq!(shape(&answered), shape(&self.response.body));
                }
            }
            None => assert_eq!(answer.body.is_empty(), self.response.body.is_null()),
        }
    }
}

/// The events of a stream, comments left out.
fn events(body: &str) -> Vec<Event> {
    let event = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let data = field("data: ")?;
        Some(Event {
            event: field("event: ").map(str::to_string),
            data: serde_json::from_str(data).unwrap_or_else(|_| Value::from(data)),
        })
    };
    body.split("\n\n").filter_map(event).collect()
}

fn compare_events(recorded: &[Event], answered: &[Event], exactly: bool) {
    let (kinds, now) = (kinds(recorded), kinds(answered));
    if !exactly {
        assert_eq!((now.first(), now.last()), (kinds.first(), kinds.last()));
        return;
    }
    assert_eq!(now, kinds);
    let shapes = |events: &[Event]| -> BTreeSet<String> {
        let shapes = events.iter().map(|event| shape(&event.data));
        shapes.flatten().collect()
    };
    assert_eq!(shapes(answered), shapes(recorded));
}

/// Kinds of events in their order. Equal neighbours count once: into how many pieces a text is cut
/// is a matter of time, and so is which of them tell log-probabilities.
fn kinds(events: &[Event]) -> Vec<String> {
    let mut kinds: Vec<String> = events.iter().flat_map(kinds_of).collect();
    kinds.dedup();
    kinds
}

/// A completion's last piece of text may come with its end or before it: two kinds either way.
fn kinds_of(event: &Event) -> Vec<String> {
    if let Some(name) = &event.event {
        return vec![name.clone()];
    }
    let choice = &event.data["choices"][0];
    let delta = choice["delta"].as_object().into_iter();
    let fields = delta.flat_map(|delta| delta.keys());
    let fields: Vec<&str> = fields.map(String::as_str).collect();
    let of = |finish: &Value| format!("{} {finish}", fields.join(" "));
    let mut kinds = vec![of(&choice["finish_reason"])];
    if choice["text"].as_str().is_some_and(|text| !text.is_empty()) {
        kinds.insert(0, of(&Value::Null));
    }
    kinds
}

/// The type at each path of a value; items of a list share their paths.
fn shape(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_shape(value, String::new(), &mut found);
    found
}

fn add_shape(value: &Value, path: String, found: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(items) => {
            for item in items {
                add_shape(item, format!("{path}[]"), found);
            }
            "list"
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                add_shape(value, format!("{path}.{name}"), found);
            }
            "object"
        }
    };
    found.insert(format!("{path}: {kind}"));
}

/// Sends what a client sent, in its order; a difference names the client and the exchange.
fn replay(client: &str, address: SocketAddr, exactly: impl Fn(&Exchange) -> bool) {
    let mut names = Names::default();
    for (at, exchange) in recorded(client).iter().enumerate() {
        let answer = exchange.send(address, &names);
        let told = format!(
            "{client}, exchange {at}: {} -> {answer:?}",
            exchange.request.path
        );
        let compared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            exchange.compare(&answer, exactly(exchange), &mut names);
        }));
        assert!(compared.is_ok(), "{told}");
    }
}

/// A server that plays the recorded script in this process, with steps of the time `step`; it ends
/// with the sender.
pub fn scripted_server(step: Duration, settings: Settings) -> (SocketAddr, oneshot::Sender<()>) {
    let script = fs::read(format!("{RECORDINGS}/script.json")).unwrap();
    let scenes: Vec<Scene> = serde_json::from_slice(&script).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (bound, address) = mpsc::channel();
    thread::spawn(move || {
        let ended = async { drop(stopped.await) };
        let tell = |address| bound.send(address).unwrap();
        server::serve(scenes, step, settings, 0, tell, ended).unwrap();
    });
    (address.recv().unwrap(), stop)
}

#[test]
fn libraries_are_answered_as_they_were() {
    let server = Server::start();
    for client in LIBRARIES {
        replay(client, server.address, Exchange::is_greedy);
    }
}

#[test]
fn agents_are_answered_as_they_were() {
    let (address, _stop) = scripted_server(STEP, Settings::default());
    for client in agents() {
        replay(&client, address, |_| true);
    }
}

/// An owner who asks whether a client would get on is told by the request that it sends first.
#[test]
fn a_check_of_an_agent_tells_the_first_of_its_answer() {
    let (address, _stop) = scripted_server(STEP, Settings::default());
    let url = format!("http://{address}");
    for agent in [
        "claude", "codex", "opencode", "qwen", "cline", "aider", "continue",
    ] {
        let line = ["connect", agent, "--check", "--url", &url, "--model"];
        let done = run(&[&line[..], &["scripted"]].concat());
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(said.matches("ok   ").count(), 2, "{said}");
        assert!(said.contains("with its texts cut: 200 OK, \""), "{said}");
        let other = run(&[&line[..], &["another"]].concat());
        assert_eq!(other.status.code(), Some(69));
    }
}

/// The binary reads all requests of agents too, though most are too long for it.
#[test]
fn every_field_that_clients_send_is_honoured_or_knowingly_ignored() {
    let server = Server::start_with(&["--log-level", "debug"]);
    let clients = agents().into_iter().chain(LIBRARIES.map(str::to_string));
    for client in clients {
        for exchange in recorded(&client) {
            if exchange.request.body.is_object() {
                exchange.send(server.address, &Names::default());
            }
        }
    }
    let lines = server.lines_so_far();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("service_tier is passed over"))
    );
    let unknown = lines
        .iter()
        .filter(|line| line.contains("ignored the unknown field"));
    assert_eq!(unknown.collect::<Vec<_>>(), [] as [&String; 0]);
}
