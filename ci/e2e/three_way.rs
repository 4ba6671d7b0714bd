//! Every three of the things that a request may meet together: its answer has the bits that it has
//! alone, computed plainly.
//!
//! Rules of the reply (grammar, penalties, stop strings) are those of the plain request too. The
//! rest is not: that one is asked whole and once, of a server without drafts, and shares nothing.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::batch_invariance::choices;
use crate::harness::{Answer, Connection, Server, few_or_many, with};

/// Makes the things and the list of all.
macro_rules! things {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Features and events that a request may meet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Thing {
            $($(#[$doc])* $name,)*
        }
        use Thing::*;

        const THINGS: &[Thing] = &[$($name,)*];
    };
}

things! {
    /// Its beginning is kept.
    Cache,
    /// Its prompt is cut smaller, beside a reply.
    Chunk,
    /// Its reply has drafts.
    Speculation,
    /// It has several choices.
    Choices,
    Stream,
    Grammar,
    Penalties,
    StopStrings,
    /// It was left amid its reply before, and another one is left beside it.
    Cancellation,
}

/// Ways to choose three of nine.
const WAYS: usize = 84;
/// Drawn requests of each.
const ROUNDS: usize = few_or_many(1, 12);

const CACHED: &str = "/usage/prompt_tokens_details/cached_tokens";
const DRAFTS: &str = "atlas_draft_tokens_total";
const CANCELLED: &str = "atlas_requests_finished_total{reason=\"cancelled\"}";
const RUNNING: &str = "atlas_requests_running";

const PATH: &str = "/v1/completions";
/// Time into an answer at which a client leaves.
const LEAVE: Duration = Duration::from_millis(5);

/// Servers that are asked: one without drafts, for plain requests and others, and one with.
struct Servers {
    plain: Server,
    drafts: Server,
}

/// A request, and what it meets.
struct Case {
    number: usize,
    things: Vec<Thing>,
}

impl Case {
    fn meets(&self, thing: Thing) -> bool {
        self.things.contains(&thing)
    }

    /// Beginning that is shared with what is asked before, of more than a page.
    fn beginning(&self) -> String {
        format!(
            "Case {}: {}",
            self.number,
            "one and two is three. ".repeat(12)
        )
    }

    /// The rules of the reply.
    fn rules(&self) -> Value {
        let most = 10 + self.number % 7;
        let temperature = [0.0, 0.8, 1.3][self.number % 3];
        let mut body = json!({"max_tokens": most, "seed": self.number, "logprobs": 3,
            "temperature": temperature});
        if self.meets(Grammar) {
            let said = json!({"regex": "((one|two) three four, ){9}"});
            body = with(body, json!({"structured_outputs": said}));
        }
        if self.meets(Penalties) {
            let penalties = json!({"presence_penalty": 0.7, "frequency_penalty": 0.4,
                "repetition_penalty": 1.2});
            body = with(body, penalties);
        }
        if self.meets(StopStrings) {
            body = with(body, json!({"stop": ["o th", "e.", "\n\n"]}));
        }
        body
    }

    fn body(&self) -> Value {
        let behind = "What is two and three? ".repeat(2 + self.number % 5);
        let prompt = format!("{}{behind}", self.beginning());
        with(self.rules(), json!({"prompt": prompt}))
    }

    /// Has the server know what the case says that it does.
    fn prepare(&self, server: &Server) {
        if self.meets(Cache) {
            // A state is kept where two part, and the third goes on from it.
            for behind in ["Rome is old, and so are many things.", "Is it so?"] {
                let prompt = format!("{}{behind}", self.beginning());
                let body = json!({"prompt": prompt, "max_tokens": 2});
                assert_eq!(server.post_to(PATH, &body).status, 200);
            }
        }
        if self.meets(Cancellation) {
            let cancelled = server.metric(CANCELLED);
            drop(begin(server, self.body()));
            server.wait_for_metric(CANCELLED, cancelled + 1.0);
        }
    }

    /// Request with all that the case meets.
    fn asked(&self) -> Value {
        let choices = if self.meets(Choices) { 3 } else { 1 };
        let body = with(self.body(), json!({"n": choices}));
        let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
        match self.meets(Stream) {
            true => with(body, streamed),
            false => body,
        }
    }

    /// The choices with all that it meets.
    fn met(&self, servers: &Servers) -> Vec<Value> {
        let server = match self.meets(Speculation) {
            true => &servers.drafts,
            false => &servers.plain,
        };
        self.prepare(server);
        let beside = json!({"prompt": format!("Beside {}", self.number), "temperature": 1.0});
        let begin = |thing| self.meets(thing).then(|| begin(server, beside.clone()));
        let (neighbour, leaving) = (begin(Chunk), begin(Cancellation));
        let answer = self.ask(server, leaving);
        if neighbour.is_some() {
            assert!(
                server.metric(RUNNING) > 0.0,
                "a reply was beside it to its end"
            );
        }
        drop(neighbour);
        server.wait_for_metric(RUNNING, 0.0);
        self.check_cached(&answer);
        choices(&answer, self.meets(Stream))
    }

    /// Asks while a client leaves.
    fn ask(&self, server: &Server, leaving: Option<Connection>) -> Answer {
        let asked = self.asked();
        thread::scope(|scope| {
            let answer = scope.spawn(|| server.post_to(PATH, &asked));
            thread::sleep(LEAVE);
            drop(leaving);
            answer.join().unwrap()
        })
    }

    /// Something of the prompt was kept, or nothing, as it is meant to be.
    fn check_cached(&self, answer: &Answer) {
        let told = match self.meets(Stream) {
            true => answer.events().pop().unwrap(),
            false => answer.json(),
        };
        let cached = told.pointer(CACHED).and_then(Value::as_u64);
        let kept = self.meets(Cache) || self.meets(Cancellation);
        let cached = cached.unwrap_or_else(|| panic!("{told}"));
        assert_eq!(cached > 0, kept, "{:?}: {told}", self.things);
    }

    /// The choices of the request alone: the first, and all where it has several.
    fn alone(&self, server: &Server, count: usize) -> Vec<Value> {
        // Nothing is kept for another salt.
        let salt = format!("{} {count}", self.number);
        let plain = json!({"n": count, "cache_salt": salt});
        let answer = server.post_to(PATH, &with(self.body(), plain));
        assert_eq!(answer.json().pointer(CACHED), Some(&json!(0)));
        choices(&answer, false)
    }

    /// Choices that were compared.
    fn compare(&self, servers: &Servers) -> usize {
        let met = self.met(servers);
        let first = self.alone(&servers.plain, 1);
        assert_eq!(met[..1], first, "case {}: {:?}", self.number, self.things);
        if met.len() > 1 {
            let all = self.alone(&servers.plain, met.len());
            assert_eq!(met, all, "case {}: {:?}", self.number, self.things);
        }
        met.len()
    }
}

/// A long reply, of which something has come.
fn begin(server: &Server, body: Value) -> Connection {
    let long = json!({"stream": true, "max_tokens": 700, "ignore_eos": true, "stop": null,
        "structured_outputs": null});
    let body = with(body, long).to_string();
    let mut reader = server.open_post(PATH, body.as_bytes());
    reader.read_until("data: ");
    reader
}

/// Every three of the things.
fn threes() -> Vec<[Thing; 3]> {
    let mut threes = Vec::new();
    for (at, &first) in THINGS.iter().enumerate() {
        for (behind, &second) in THINGS.iter().enumerate().skip(at + 1) {
            let thirds = THINGS[behind + 1..].iter();
            threes.extend(thirds.map(|&third| [first, second, third]));
        }
    }
    threes
}

#[test]
fn every_three_things_together_change_no_bit() {
    let servers = Servers {
        plain: Server::start_with(&["--speculate", "off"]),
        drafts: Server::start_with(&["--speculate", "7"]),
    };
    let threes = threes();
    assert_eq!(threes.len(), WAYS);
    let mut together: Vec<Vec<Thing>> = threes.iter().map(|three| three.to_vec()).collect();
    together.push(THINGS.to_vec());
    let (mut cases, mut compared) = (0, 0);
    for things in together.iter().cycle().take(ROUNDS * together.len()) {
        let number = cases;
        let things = things.clone();
        compared += Case { number, things }.compare(&servers);
        cases += 1;
    }
    println!(
        "{cases} requests of {} threes and all {} things at once: {compared} choices compared, 0 \
         different, {} drafts tried",
        threes.len(),
        THINGS.len(),
        servers.drafts.metric(DRAFTS)
    );
    assert!(servers.drafts.metric(DRAFTS) > 0.0);
}
