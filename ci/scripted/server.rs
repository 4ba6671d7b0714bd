//! The real HTTP server and engine over an executor that plays a script.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use atlas::start::boot::{self, Files};
use engine::{self, Limits};
use http::files;
use http::limits::IO_THREADS;
use http::listener::Listener;
use http::server::Server;
use http::settings::Settings;
use http::state::{Loading, ServerState};
use http::threads::Threads;
use model::target;
use tokio::runtime::Builder;

use super::play::{Play, Scene};

/// Tokens of a prompt and its reply: the requests of coding agents are far longer than what `tiny`
/// was made for, and this executor remembers tokens alone.
const CONTEXT: usize = 256 * 1024;
/// Name of the model for clients.
pub const MODEL: &str = "scripted";

const LIMITS: Limits = Limits {
    pages: target::MAX_SEQUENCES * CONTEXT / target::PAGE,
    context: CONTEXT,
    // A play counts what was said.
    drafts: 0,
    ..Limits::of(&target::FACTS)
};

/// Plays `scenes` on a local port under `settings`, with steps of the time `step`, until `stop`
/// completes; port 0 takes a free one. `bound` is told the address. The threads are those of the
/// product.
///
/// # Errors
/// When the model's text files, threads or the address cannot be had, in plain words.
pub fn serve(
    scenes: Vec<Scene>,
    step: Duration,
    settings: Settings,
    port: u16,
    bound: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let chat = boot::chat_model(&Files::Embedded).map_err(|failure| failure.message)?;
    let state = ServerState::new(&target::FACTS, MODEL, settings, || Loading {
        stage: "starting",
        bytes_done: 0,
        bytes_total: 0,
    });
    let play = Play::new(scenes, step, &chat);
    let (engine, _) = engine::spawn(LIMITS, move || Ok(play));
    state.serve(chat, engine);
    let none = |error: io::Error| error.to_string();
    let threads = Threads::new(IO_THREADS).map_err(none)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(none)?;
    runtime.block_on(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = Listener::tcp(address).await.map_err(none)?;
        bound(listener.address().ok_or("the socket has no address")?);
        let server = Server::new(listener, state, files::connections());
        server.in_homes(threads.homes()).run(stop).await;
        Ok(())
    })
}
