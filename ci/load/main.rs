//! Limits of the server by itself: `cargo bench --bench load`, or only those that are named behind
//! `--` of `idle`, `streams`, `throughput` and `latency`.
//!
//! A process of its own serves a model that computes nothing, through the engine, the texts and the
//! sockets that any model has; this one is its clients. The two of them share the machine's cores,
//! so that the figures are what is left for a server whose clients are elsewhere.

mod arrivals;
mod client;
mod server;

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::iter::repeat_n;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use atlas::bench::client::Timings;
use atlas::bench::process::memory;
use host::testing::cpu_time;
use http::files;

use arrivals::watch;
use client::{idle, stream, tokens};
use server::Sent;

/// Says that the process is the server; the next arguments are the time of a step in microseconds
/// and `TIMES` if it shall note when each token was computed, in memory that is not the server's.
const SERVE: &str = "serve-null-model";
const TIMES: &str = "times";
/// Says that the process is plain sockets.
const SERVE_PLAIN: &str = "serve-plain-sockets";

const IDLE_CONNECTIONS: usize = 2000;
const STREAMS: usize = 1000;
const PACED_STREAMS: usize = 256;
/// Time of a step where the model has a pace of its own: fifty tokens a second.
const PACE: Duration = Duration::from_millis(20);
/// Tokens of a stream before it is measured: others are still beginning.
const SETTLING: usize = 100;
/// Rounds in which latency is measured, with a server and without.
const LATENCY_ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, micros, rest @ ..] = &arguments[..]
        && first == SERVE
    {
        let step = Duration::from_micros(micros.parse().expect("a number"));
        return server::serve(step, rest.iter().any(|word| word == TIMES));
    }
    if arguments.first().is_some_and(|first| first == SERVE_PLAIN) {
        return server::serve_plain(PACE, PACED_STREAMS, 3 * SETTLING);
    }
    files::connections();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    // Cargo adds a flag of its own.
    let names: Vec<&String> = arguments
        .iter()
        .filter(|name| !name.starts_with('-'))
        .collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| *wanted == name);
    runtime.block_on(async {
        if wanted("idle") {
            idle_connections().await;
        }
        if wanted("streams") {
            open_streams().await;
        }
        if wanted("throughput") {
            throughput().await;
        }
        if wanted("latency") {
            latency().await;
        }
    });
}

/// The server as a process.
struct Null {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Null {
    fn start(step: Duration) -> Null {
        Null::launch(&[SERVE, &step.as_micros().to_string()])
    }

    fn launch(arguments: &[&str]) -> Null {
        let mut child = Command::new(std::env::current_exe().expect("its own path"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .expect("the server tells its address");
        let address = line.trim().parse().expect("an address");
        Null {
            child,
            stdin,
            stdout,
            address,
        }
    }

    /// Memory that the process has in RAM, in bytes.
    fn resident(&self) -> f64 {
        let memory = memory(self.child.id()).expect("the server lives");
        memory.rss_bytes as f64
    }

    /// CPU time of the process so far, in seconds.
    fn cpu(&self) -> f64 {
        cpu_time(self.child.id()).as_secs_f64()
    }

    /// Ends it; returns when each token was computed, by the length of its prompt.
    fn stop(mut self) -> Sent {
        drop(self.stdin.take());
        let mut text = String::new();
        self.stdout
            .read_to_string(&mut text)
            .expect("the server tells its times");
        self.child.wait().expect("the server ends");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Streams at once; all must end well.
async fn streams(address: SocketAddr, count: usize, tokens: usize) -> Vec<Timings> {
    let all: Vec<_> = (0..count)
        .map(|_| tokio::spawn(stream(address, 0, tokens)))
        .collect();
    let mut replies = Vec::new();
    for one in all {
        replies.push(one.await.expect("no panic"));
    }
    replies
}

async fn idle_connections() {
    let server = Null::start(PACE);
    let before = server.resident();
    let open = idle(server.address, IDLE_CONNECTIONS).await;
    let each = (server.resident() - before) / IDLE_CONNECTIONS as f64;
    println!(
        "idle: {} connections, {:.1} KiB each",
        open.len(),
        each / 1024.0
    );
    drop(open);
    server.stop();
}

async fn open_streams() {
    let server = Null::start(PACE);
    streams(server.address, 8, 16).await;
    let (before, cpu) = (server.resident(), server.cpu());
    let tokens = 3 * SETTLING;
    let address = server.address;
    let started = Instant::now();
    let all = tokio::spawn(streams(address, STREAMS, tokens));
    tokio::time::sleep(2 * SETTLING as u32 * PACE).await;
    let each = (server.resident() - before) / STREAMS as f64;
    let replies = all.await.expect("no panic");
    let rate = (STREAMS * tokens) as f64 / started.elapsed().as_secs_f64();
    println!(
        "streams: {} at once, {:.1} KiB each, {rate:.0} tokens/s, {:.2} s of CPU in {:.2} s",
        replies.len(),
        each / 1024.0,
        server.cpu() - cpu,
        started.elapsed().as_secs_f64()
    );
    server.stop();
}

async fn throughput() {
    let server = Null::start(Duration::ZERO);
    streams(server.address, 8, 16).await;
    let (cpu, started, tokens) = (server.cpu(), Instant::now(), 1500);
    let replies = streams(server.address, PACED_STREAMS, tokens).await;
    let seconds = started.elapsed().as_secs_f64();
    let events: usize = replies.iter().map(|reply| reply.pieces.len()).sum();
    println!(
        "throughput: {:.0} tokens/s in {:.0} events/s, {:.1} µs of the server's CPU a token",
        (PACED_STREAMS * tokens) as f64 / seconds,
        events as f64 / seconds,
        (server.cpu() - cpu) / (PACED_STREAMS * tokens) as f64 * 1e6
    );
    server.stop();
}

/// Time from a token's computation until its bytes are in the kernel of its client, and how long
/// that takes without a server: the rest is what the server adds. Both are measured in turns, and
/// what is in the middle of the rounds counts: what else a shared machine does lasts seconds.
async fn latency() {
    let mut added = Vec::with_capacity(LATENCY_ROUNDS);
    println!(
        "latency: {PACED_STREAMS} streams, from a token's computation to the kernel of its client"
    );
    for round in 1..=LATENCY_ROUNDS {
        let server = Null::launch(&[SERVE, &PACE.as_micros().to_string(), TIMES]);
        streams(server.address, 8, 16).await;
        let served = Delays::of(server);
        let plain = Delays::of(Null::launch(&[SERVE_PLAIN]));
        println!("  {round}  served  {served}\n     plain   {plain}");
        added.push(served.at(0.99) - plain.at(0.99));
    }
    added.sort_by(f64::total_cmp);
    println!(
        "  added at p99 {:.2} ms, in single rounds {:.2} to {:.2}",
        quantile(&added, 0.5),
        quantile(&added, 0.0),
        quantile(&added, 1.0),
    );
}

/// Delays of many streams' tokens on the way to their clients: milliseconds, ascending.
struct Delays(Vec<f64>);

impl Delays {
    /// Delays of as many streams as are paced; the server ends.
    fn of(server: Null) -> Delays {
        let replies = watch(server.address, PACED_STREAMS, 3 * SETTLING, PACE);
        let replies = replies.expect("whole streams");
        let sent = server.stop();
        let mut delays = Vec::with_capacity(PACED_STREAMS * 2 * SETTLING);
        for reply in &replies {
            let sent = &sent[&reply.prompt_tokens];
            // The warm-up may have had a prompt of this length: the last reply counts.
            let sent = &sent[sent.len() - reply.completion_tokens..];
            let came = reply.pieces.iter().zip(tokens(reply));
            let came = came.flat_map(|((at, _), tokens)| repeat_n(at.as_nanos() as u64, tokens));
            let late = came.zip(sent).skip(SETTLING);
            delays.extend(late.map(|(came, sent)| came.saturating_sub(*sent) as f64 / 1e6));
        }
        delays.sort_by(f64::total_cmp);
        Delays(delays)
    }

    fn at(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [middle, late, most] = [0.5, 0.99, 1.0].map(|share| self.at(share));
        write!(f, "p50 {middle:.2} ms, p99 {late:.2}, most {most:.2}")
    }
}

fn quantile(ascending: &[f64], share: f64) -> f64 {
    ascending[((ascending.len() - 1) as f64 * share) as usize]
}
