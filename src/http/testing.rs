//! A server on a real socket over an executor that follows a script, and a client for it.

#[path = "tests/client.rs"]
pub mod client;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use engine::{self, Limits};
use step::executor::{DeviceError, Executor, SeqRows, TokenId};
use step::testing::TINY;
use text::chat::ChatModel;
use text::reply::Delta;
use text::testing::{END_OF_TURN, Random, chat_model, harmony_model, rechunk_text};

use super::body;
use super::error::ApiError;
use super::listener::Listener;
use super::server::Server;
use super::settings::Settings;
use super::state::{Loading, ServerState};

pub use client::{Answer, Connection, PATIENCE, with};
use client::{request, send_to};

/// Connections that a server takes at once, few enough for both their ends in one process.
pub const CONNECTIONS: usize = 300;

/// The script counts what was said, so there are no drafts.
const LIMITS: Limits = Limits {
    drafts: 0,
    ..Limits::of(&TINY)
};

/// Script of an executor: each reply is the script's tokens, then the end of the turn.
#[derive(Clone)]
pub struct Script {
    pub tokens: Vec<TokenId>,
    /// Replies after the first one, by the order in which they begin; the last is repeated.
    pub further: Vec<Vec<TokenId>>,
    /// The model that is asked.
    pub model: fn() -> ChatModel,
    /// The script starts again at its end.
    pub endless: bool,
    /// Time of a step.
    pub step: Duration,
    /// The step that fails.
    pub fails_at: Option<usize>,
}

impl Script {
    pub fn text(text: &str) -> Script {
        let tokens = chat_model().tokenizer.encode(text).unwrap();
        Script {
            tokens,
            further: Vec::new(),
            model: chat_model,
            endless: false,
            step: Duration::ZERO,
            fails_at: None,
        }
    }

    /// Replies of a model that speaks harmony.
    pub fn harmony(replies: &[&str]) -> Script {
        Script::replies(harmony_model, replies)
    }

    /// Replies of a model.
    pub fn replies(model: fn() -> ChatModel, replies: &[&str]) -> Script {
        let tokenizer = model().tokenizer;
        let encode = |text: &&str| tokenizer.encode(text).unwrap();
        let mut replies = replies.iter().map(encode);
        Script {
            tokens: replies.next().unwrap_or_default(),
            further: replies.collect(),
            model,
            ..Script::text("")
        }
    }

    /// The reply that begins after so many others.
    fn reply(&self, begun: usize) -> &[TokenId] {
        match (begun, self.further.len()) {
            (0, _) | (_, 0) => &self.tokens,
            (begun, length) => &self.further[begun.min(length) - 1],
        }
    }

    pub fn endless() -> Script {
        Script {
            endless: true,
            step: Duration::from_millis(1),
            ..Script::text("again ")
        }
    }
}

struct Scripted {
    script: Script,
    /// Tokens written so far, by slot, and which of the script's replies it is.
    written: Vec<usize>,
    replies: Vec<usize>,
    /// Replies that were begun.
    begun: usize,
    /// Tokens of the rows of the last step.
    rows: Vec<TokenId>,
    /// Logits of the last step.
    logits: Vec<f32>,
    steps: usize,
}

impl Executor for Scripted {
    const VOCAB: usize = TINY.vocab;

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        thread::sleep(self.script.step);
        self.steps += 1;
        if self.script.fails_at == Some(self.steps) {
            return Err(DeviceError::Failed("the script says so".to_string()));
        }
        self.logits.clear();
        self.rows.clear();
        for row in rows {
            self.rows.extend(row.tokens);
            let slot = row.states.to.0 as usize;
            let written = &mut self.written[slot];
            if row.start == 0 || row.states.from != row.states.to {
                *written = 0;
            }
            if row.logits == 0 {
                continue;
            }
            if *written == 0 {
                self.replies[slot] = self.begun;
                self.begun += 1;
            }
            let reply = self.script.reply(self.replies[slot]);
            let length = reply.len();
            let at = if self.script.endless {
                *written % length
            } else {
                *written
            };
            let token = reply.get(at).copied().unwrap_or(END_OF_TURN);
            *written += 1;
            let first = self.logits.len();
            self.logits.resize(first + Self::VOCAB, 0.0);
            self.logits[first + token as usize] = 20.0;
        }
        Ok(())
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        Ok(&self.logits[index * Self::VOCAB..][..Self::VOCAB])
    }

    /// Inside a prompt each token is followed by itself.
    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        logits.resize(rows.len() * Self::VOCAB, 0.0);
        for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(Self::VOCAB)) {
            logits[self.rows[*row] as usize] = 20.0;
        }
        Ok(())
    }
}

/// A server that runs until it is dropped or stopped.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: Arc<ServerState>,
    stop: Option<oneshot::Sender<()>>,
    haste: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

impl TestServer {
    /// Serves `script`.
    pub fn start(script: Script) -> TestServer {
        TestServer::with(Some(script), Settings::default())
    }

    /// A server whose model is still loading.
    pub fn start_loading() -> TestServer {
        TestServer::with(None, Settings::default())
    }

    /// Serves `script` as the operator chooses.
    pub fn start_as(script: Script, settings: Settings) -> TestServer {
        TestServer::with(Some(script), settings)
    }

    fn with(script: Option<Script>, settings: Settings) -> TestServer {
        let loading = || Loading {
            stage: "loading weights",
            bytes_done: 1,
            bytes_total: 4,
        };
        let model = match &script {
            Some(script) => (script.model)(),
            None => chat_model(),
        };
        let state = ServerState::new(model.facts, "scripted", settings, loading);
        if let Some(script) = script {
            let make = || -> Result<Scripted, Box<dyn Error + Send + Sync>> {
                Ok(Scripted {
                    script,
                    written: vec![0; TINY.states],
                    replies: vec![0; TINY.states],
                    begun: 0,
                    rows: Vec::new(),
                    logits: Vec::new(),
                    steps: 0,
                })
            };
            let (engine, _) = engine::spawn(LIMITS, make);
            state.serve(model, engine);
        }
        let (stop, stopped) = oneshot::channel();
        let (haste, hurried) = oneshot::channel();
        let (bound, address) = mpsc::channel();
        let shared = state.clone();
        let thread = thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let listener = Listener::tcp(any).await.unwrap();
                bound.send(listener.address().unwrap()).unwrap();
                let server = Server::new(listener, shared, CONNECTIONS);
                tokio::spawn(async {
                    if hurried.await.is_ok() {
                        tokio::time::pause();
                    }
                });
                server.run(async { drop(stopped.await) }).await
            })
        });
        TestServer {
            address: address.recv().unwrap(),
            state,
            stop: Some(stop),
            haste: Some(haste),
            thread: Some(thread),
        }
    }

    /// From here on the server's clock jumps to the next timeout whenever nothing else is to do.
    pub fn hurry(&mut self) {
        self.haste.take().unwrap().send(()).unwrap();
    }

    /// Waits until part of a body has been read.
    pub fn wait_for_body(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.state.bodies.left() == body::Memory::default().left() {
            assert!(Instant::now() < deadline, "no body arrives");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells the server to stop, as a signal would.
    pub fn signal(&mut self) {
        drop(self.stop.take());
    }

    /// Stops and says whether all replies were finished.
    pub fn stop(&mut self) -> bool {
        self.signal();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Sends bytes on a connection of their own.
    pub fn send(&self, bytes: &[u8]) -> Connection {
        send_to(self.address, bytes)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    /// Answer to a request without a body, with `more` lines in its head.
    pub fn ask(&self, method: &str, path: &str, more: &str) -> Answer {
        self.send(&request(method, path, more, b"")).answer()
    }

    /// Opens a chat with `fields` added to a plain question.
    pub fn open_chat(&self, fields: Value) -> Connection {
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}],
            "reasoning_effort": "none",
        });
        self.post("/v1/chat/completions", &with(body, fields))
    }

    /// Posts a body to `path`.
    pub fn post(&self, path: &str, body: &Value) -> Connection {
        self.post_with(path, "", body)
    }

    /// Posts a body to `path` with `more` lines in its head.
    pub fn post_with(&self, path: &str, more: &str, body: &Value) -> Connection {
        self.send(&request("POST", path, more, body.to_string().as_bytes()))
    }

    pub fn chat(&self, fields: Value) -> Answer {
        self.open_chat(fields).answer()
    }

    /// Waits until `condition` holds of the engine's figures.
    pub fn wait_for(&self, condition: impl Fn(&engine::Stats) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let stats = self.state.service().unwrap().engine.stats();
        while !condition(stats) {
            assert!(Instant::now() < deadline, "it did not happen: {stats:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.state.abort_replies(ApiError::draining());
        self.signal();
    }
}

/// A reply of reasoning, texts and whole calls in any order, cut at random places.
pub fn random_reply(random: &mut Random) -> Vec<Delta> {
    let (mut deltas, mut calls) = (Vec::new(), 0);
    for _ in 0..random.below(8) {
        let text = ["é🦀\n", "\"quoted\" \\", "plain words"][random.below(3)].repeat(3);
        let pieces = |random: &mut Random, text: &str, make: &dyn Fn(String) -> Delta| {
            let pieces = rechunk_text(text, random).into_iter();
            pieces
                .map(|piece| make(piece.to_string()))
                .collect::<Vec<_>>()
        };
        match random.below(3) {
            0 => deltas.extend(pieces(random, &text, &Delta::Reasoning)),
            1 => deltas.extend(pieces(random, &text, &Delta::Content)),
            _ => {
                let index = calls;
                let name = ["f", "n.f", "patch"][random.below(3)].to_string();
                deltas.push(Delta::ToolCall { index, name });
                let json = json!({"input": text}).to_string();
                let make = |json| Delta::Arguments { index, json };
                deltas.extend(pieces(random, &json, &make));
                calls += 1;
            }
        }
    }
    deltas
}
