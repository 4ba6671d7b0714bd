//! A server over a model that always says the same, and one that is nothing but its sockets.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atlas::start::boot::{self, Files};
use engine::speculate::Speculate;
use engine::{self, Limits};
use http::files;
use http::limits::IO_THREADS;
use http::listener::Listener;
use http::server::Server;
use http::settings::Settings;
use http::state::{Loading, ServerState};
use http::threads::Threads;
use model::target;
use serde_json::json;
use step::executor::{DeviceError, Executor, Ranked, SeqRows};

/// Sequences at once, far more than a real model of this size has.
const SEQUENCES: usize = 1024;
/// Bytes of a token's event beside the token.
const EVENT_BYTES: usize = 200;
/// Text of every token of the model.
pub const WORD: &str = "a";

/// When each token was computed, by the length of its prompt.
pub type Sent = BTreeMap<usize, Vec<u64>>;

/// Nanoseconds since 1970, the same clock in both processes.
pub fn nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

struct Null {
    step: Duration,
    /// Whether `sent` is kept.
    times: bool,
    next: Instant,
    /// Logits of every row, and the ranking of each.
    logits: Vec<f32>,
    ranked: Vec<f32>,
    /// Length of the prompt in each slot.
    prompts: Vec<usize>,
    /// A prompt's length and when a token followed, in the order of the tokens: to sort them while
    /// the server is at work would take as long as it does.
    sent: Arc<Mutex<Vec<(usize, u64)>>>,
}

impl Executor for Null {
    const VOCAB: usize = target::VOCAB;

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        if !self.step.is_zero() {
            thread::sleep(self.next.saturating_duration_since(Instant::now()));
            self.next = self.next.max(Instant::now()) + self.step;
        }
        if !self.times {
            return Ok(());
        }
        let (now, mut sent) = (nanos(), self.sent.lock().expect("no panic"));
        for row in rows.iter().filter(|row| row.logits > 0) {
            let prompt = &mut self.prompts[row.states.to.0 as usize];
            let begins = row.start == 0 || row.states.from != row.states.to;
            if begins || row.tokens.len() > 1 {
                *prompt = row.start + row.tokens.len();
            }
            sent.push((*prompt, now));
        }
        Ok(())
    }

    fn ranked(&self, _: usize) -> Option<Ranked<'_>> {
        Some(Ranked::new(&self.ranked))
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        Ok(&self.logits)
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        logits.resize(rows.len() * Self::VOCAB, 0.0);
        Ok(())
    }
}

/// Serves with steps of the time `step` until standard input ends; tells its address first and at
/// last when tokens were computed, if it shall keep these `times`.
pub fn serve(step: Duration, times: bool) {
    let chat = boot::chat_model(&Files::Embedded).expect("a model inside the binary");
    let token = chat.tokenizer.encode(WORD).expect("a text")[0];
    let mut row = vec![-1.0; target::VOCAB];
    row[token as usize] = 20.0;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let limits = Limits {
        sequences: SEQUENCES,
        snapshots: 1,
        drafts: 0,
        speculate: Speculate::Off,
        queued: SEQUENCES,
        pages: SEQUENCES * target::MAX_CONTEXT / target::PAGE,
        prefill_tokens: SEQUENCES * target::PAGE,
        ..Limits::of(&target::FACTS)
    };
    // Before the address is told: a client measures memory from there on.
    let null = Null {
        step,
        times,
        next: Instant::now(),
        // All but the word together weigh next to nothing.
        ranked: vec![token as f32, row[token as usize], 1.0],
        logits: row,
        prompts: vec![0; SEQUENCES],
        sent: sent.clone(),
    };
    let make = move || -> Result<Null, Box<dyn Error + Send + Sync>> { Ok(null) };
    let (engine, _) = engine::spawn(limits, make);
    let loading = || Loading {
        stage: "",
        bytes_done: 0,
        bytes_total: 0,
    };
    let state = ServerState::new(&target::FACTS, "null", Settings::default(), loading);
    state.serve(chat, engine);
    let threads = Threads::new(IO_THREADS).expect("threads");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = runtime.block_on(Listener::tcp(any)).expect("a free port");
    println!("{}", listener.address().expect("an address"));
    let server = Server::new(listener, state, files::connections()).in_homes(threads.homes());
    runtime.spawn(server.run(std::future::pending()));
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let mut sorted = Sent::new();
    for &(prompt, at) in sent.lock().expect("no panic").iter() {
        sorted.entry(prompt).or_default().push(at);
    }
    println!("{}", serde_json::to_string(&sorted).expect("numbers"));
}

/// Streams without a server: as many sockets, to each of which at every `step` an event of the
/// usual length is written, by as many threads as the server has. What tokens take here is the
/// system's and the clients' share of what they take through the server.
pub fn serve_plain(step: Duration, streams: usize, tokens: usize) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any).expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    let accept = |_| {
        let (mut socket, _) = listener.accept().expect("a client");
        socket.set_nodelay(true).expect("a socket");
        let _ = socket.read(&mut [0; 4096]).expect("a question");
        socket
    };
    let mut sockets: Vec<TcpStream> = (0..streams).map(accept).collect();
    let each = streams.div_ceil(IO_THREADS);
    let sent: Sent = thread::scope(|scope| {
        let halves = sockets.chunks_mut(each).enumerate();
        let halves = halves.map(|(half, sockets)| {
            scope.spawn(move || plain_events(step, half * each, sockets, tokens))
        });
        let halves: Vec<_> = halves.collect();
        let sent = halves
            .into_iter()
            .map(|half| half.join().expect("no panic"));
        sent.flatten().collect()
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("{}", serde_json::to_string(&sent).expect("numbers"));
}

/// Writes `tokens` events to each socket; the first of them is named `first` as if it were the
/// length of its prompt. Returns when they were due.
fn plain_events(step: Duration, first: usize, sockets: &mut [TcpStream], tokens: usize) -> Sent {
    let event = format!(
        "data: {{\"pad\":\"{}\",\"choices\":[{{\"delta\":{{\"content\":\"{WORD}\"}}}}]}}\n\n",
        "x".repeat(EVENT_BYTES)
    );
    let (mut next, mut due) = (Instant::now(), Vec::with_capacity(tokens));
    for _ in 0..tokens {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = next.max(Instant::now()) + step;
        due.push(nanos());
        for socket in &mut *sockets {
            socket.write_all(event.as_bytes()).expect("a client");
        }
    }
    for (at, socket) in sockets.iter_mut().enumerate() {
        let prompt = first + at + 1;
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": tokens});
        let end = format!("data: {}\n\ndata: [DONE]\n\n", json!({"usage": usage}));
        socket.write_all(end.as_bytes()).expect("a client");
        let _ = socket.shutdown(std::net::Shutdown::Write);
    }
    (1..=sockets.len())
        .map(|at| (first + at, due.clone()))
        .collect()
}
