//! Threads of connections, each with its own runtime.
//!
//! A connection stays on one thread: its data stays in one core's cache, and the engine wakes the
//! thread directly. Threads of a work-stealing runtime wake one another, often on a busy core.

use std::future::Future;
use std::io;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rustix::process::nice;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::spawn_blocking;

use text::work;

use super::error::{ApiError, internal};
use super::limits::{LARGE_PARSERS_MAX, PARSER_NICE, PARSERS_MAX};
use super::parsing::Body;

/// Parsing threads of one runtime.
const PARSERS: usize = PARSERS_MAX + LARGE_PARSERS_MAX;
/// Time for which an idle parsing thread is kept: long enough to be for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(u32::MAX as u64);
/// Threads that one [`runtime`] starts.
pub const OF_RUNTIME: usize = 1 + PARSERS;

/// A runtime of one thread, called `name`, and parsing threads, all of which are started here.
///
/// # Errors
/// When the system refuses the runtime.
///
/// # Panics
/// If the system refuses a thread.
pub fn runtime(name: &str) -> io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(PARSERS)
        .thread_keep_alive(KEEP_ALIVE)
        .thread_name(name)
        .enable_all()
        .build()?;
    // The runtime starts a thread only if all are busy, so each waits here for all others.
    let all = Arc::new(Barrier::new(PARSERS + 1));
    for _ in 0..PARSERS {
        let all = all.clone();
        runtime.spawn_blocking(move || all.wait());
    }
    all.wait();
    Ok(runtime)
}

/// Threads for connections. A drop waits for parsing to end: never in asynchronous code.
#[derive(Debug)]
pub struct Threads {
    runtimes: Vec<Runtime>,
}

impl Threads {
    /// Starts `count` threads, each with parsing threads of its own.
    pub fn new(count: usize) -> io::Result<Threads> {
        let runtimes = (0..count).map(|_| runtime("connections"));
        Ok(Threads {
            runtimes: runtimes.collect::<io::Result<_>>()?,
        })
    }

    /// Handles of the runtimes.
    pub fn homes(&self) -> Vec<Home> {
        let handles = self.runtimes.iter().map(Runtime::handle);
        handles.cloned().map(Home::new).collect()
    }
}

thread_local! {
    /// Lowers the priority of a parsing thread, at first use; on an error the priority stays.
    static YIELDING: () = {
        let _ = nice(PARSER_NICE);
    };
}

/// Runs `work`, which parses, renders and encodes an admitted body, on a parsing thread, so that
/// the connection's thread can go on with streams. The parsing thread's priority is below the
/// engine's. Dropping the future ends the work at its next step.
///
/// # Errors
/// Errors of `work`; an internal error if it panics.
pub async fn parse<T: Send + 'static>(
    body: Body,
    work: impl FnOnce(Body) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let client = body.client();
    let steps = client.steps();
    let read = spawn_blocking(move || {
        YIELDING.with(|_| ());
        let mut steps = steps.begin();
        work::under(move || steps.step(), || work(body))
    });
    read.await
        .map_err(|_| internal("the request could not be read"))?
}

/// Handle of the runtime of one connection thread.
#[derive(Debug)]
pub struct Home {
    runtime: Handle,
    shares: Share,
}

/// Guard that counts a connection on its thread.
pub type Share = Arc<()>;

impl Home {
    fn new(runtime: Handle) -> Home {
        Home {
            runtime,
            shares: Arc::default(),
        }
    }

    /// Handle of the current runtime.
    pub fn here() -> Home {
        Home::new(Handle::current())
    }

    /// The one of `homes` that has the fewest connections.
    pub fn emptiest(homes: &[Home]) -> &Home {
        let shares = |home: &&Home| Arc::strong_count(&home.shares);
        let emptiest = homes.iter().min_by_key(shares);
        emptiest.expect("there is a home")
    }

    /// Guard to be kept while a connection is on this thread.
    pub fn share(&self) -> Share {
        self.shares.clone()
    }

    /// Spawns a connection's future on this thread.
    pub fn run(&self, connection: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(connection);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use rustix::process::getpriority_process;
    use tokio::sync::watch;

    use super::*;
    use crate::body::{self, Memory};
    use crate::parsing::Parsing;
    use engine::fair_queue::Source;

    #[test]
    fn what_is_parsed_makes_way_and_its_connection_does_not() {
        let threads = Threads::new(1).unwrap();
        let (send, receive) = mpsc::channel();
        let niceness = || getpriority_process(None).unwrap();
        threads.homes()[0].run(async move {
            let mut found = Vec::new();
            for _ in 0..2 {
                let body = body::read(Full::new(Bytes::new()), &Memory::default()).await;
                let parsing = Parsing::default();
                let body = parsing.enter(body.unwrap(), Source::default()).await;
                let parsing = parse(body, move |_| Ok(niceness())).await;
                found.push(parsing.unwrap());
                found.push(niceness());
            }
            send.send(found).unwrap();
        });
        let lowest = 19;
        let parsers = (niceness() + PARSER_NICE).min(lowest);
        let found = receive.recv().unwrap();
        assert_eq!(found, [parsers, niceness(), parsers, niceness()]);
    }

    #[test]
    fn connections_are_spread_evenly_and_anew_when_they_end() {
        let threads = Threads::new(2).unwrap();
        let homes = threads.homes();
        let (send, receive) = mpsc::channel();
        let settle = |ends: &watch::Sender<bool>| {
            let (send, mut ends) = (send.clone(), ends.subscribe());
            let home = Home::emptiest(&homes);
            let share = home.share();
            home.run(async move {
                send.send(thread::current().id()).unwrap();
                let _ = ends.wait_for(|ends| *ends).await;
                drop(share);
            });
            receive.recv().unwrap()
        };
        let (early, late) = (watch::Sender::new(false), watch::Sender::new(false));
        let first = [settle(&early), settle(&late), settle(&early), settle(&late)];
        assert_eq!(first[..2], first[2..]);
        assert_ne!(first[0], first[1]);
        // Connections of one thread end.
        early.send_replace(true);
        while Arc::strong_count(&Home::emptiest(&homes).shares) > 1 {
            thread::yield_now();
        }
        assert_eq!([settle(&late), settle(&late)], [first[0]; 2]);
    }
}
