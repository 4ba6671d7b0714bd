//! The model inside of another program: [`Engine`] loads it and answers requests, without a server
//! and without a socket.
//!
//! ```no_run
//! use atlas::{Engine, Piece, Request};
//!
//! # fn main() -> Result<(), atlas::Error> {
//! let engine = Engine::embedded()?; // or Engine::open("directory of the weights")?
//! let reply = engine.generate(&Request::prompt("What is the capital of France?"))?;
//! println!("{} ({} tokens)", reply.text, reply.usage.completion);
//!
//! for piece in engine.stream(&Request::prompt("What is 17 + 25?").temperature(0.0))? {
//!     if let Piece::Content(text) = piece? {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A request is one of `POST /v1/chat/completions`: it has the same defaults, the same checks and,
//! with the same fields, the same bits. Many may be answered at once, by clones of one engine on
//! any threads or in asynchronous tasks; they are computed together.
//!
//! # A program that depends on it
//!
//! Hardware, model and quantisation are constants of the compiled library, as they are of a binary.
//! The build reads the target from `ATLAS_TARGET`; the default is `cpu/tiny/nvfp4`, whose weights
//! are inside the library:
//!
//! ```toml
//! [dependencies]
//! atlas = { path = "../atlas" } # a clone of the repository, whose targets/ the build reads
//! ```
//!
//! ```sh
//! ATLAS_TARGET=cpu/smollm2-135m/bf16 cargo build --release
//! ```
//!
//! Targets with device code are compiled and linked by the pipeline (`build/README.md`): cargo by
//! itself cannot build the kernels of such targets, and reports that.
//!
//! The library writes nothing to standard error by default. After
//! [`log::set_level`](host::log::set_level) it reports the progress of loading and the memory in
//! use.

mod error;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

pub use self::error::Error;
pub use self::reply::{Reply, Stream, ToolCall};
pub use self::request::Request;
pub use http::call::Usage;
pub use http::generate::generation::Finish;
pub use text::reply::Delta as Piece;

use crate::start::boot::{self, Files, Started};
use crate::start::exit::{Exit, Failure};
use engine::{DEVICE_FAILED, Limits, Outcome, Phase};
use http::error::internal;
use http::settings::Settings;
use http::state::ServerState;
use model::target;
use model::weights::Progress;

/// A loaded model that answers requests. Clones are the same engine, whose memory is freed when the
/// last clone and the last stream are dropped.
#[derive(Clone)]
pub struct Engine {
    loaded: Arc<Loaded>,
}

/// State that clones and streams share.
pub(crate) struct Loaded {
    state: Arc<ServerState>,
    /// Thread that waits for the engine's end, and ends streams if the engine has failed.
    watch: Option<JoinHandle<Outcome>>,
}

impl Engine {
    /// Loads a model whose weights are inside the program; blocks until the model is checked.
    ///
    /// # Errors
    /// [`Error::Open`], if there are no weights inside or the model cannot be loaded.
    pub fn embedded() -> Result<Engine, Error> {
        Engine::of(None).map_err(Error::open)
    }

    /// Loads the model from a directory that holds its weights, as `serve` would; blocks until the
    /// model is checked.
    ///
    /// # Errors
    /// [`Error::Open`] names the file that cannot be used, or the memory or threads that are
    /// missing.
    pub fn open(weights: impl AsRef<Path>) -> Result<Engine, Error> {
        Engine::of(Some(weights.as_ref())).map_err(Error::open)
    }

    /// [`Engine::embedded`] (without `weights`) or [`Engine::open`], with errors that have exit
    /// codes.
    pub(crate) fn of(weights: Option<&Path>) -> Result<Engine, Failure> {
        boot::require_serving()?;
        let files = Files::locate(weights)?;
        boot::preflight(&files, boot::THREADS)?;
        let progress = Arc::new(Progress::default());
        let Started {
            handle,
            thread,
            chat,
        } = boot::start(&files, &progress, None, Limits::of(&target::FACTS));
        let mut loading = Box::pin(boot::chat_of(chat));
        let chat = wait(|cx| loading.as_mut().poll(cx))?;
        let mut reached = Box::pin(boot::reached(&handle, Phase::Serving));
        if wait(|cx| reached.as_mut().poll(cx)) != Phase::Serving {
            let failed = thread.join().err();
            let itself = || Exit::Internal.failure("the engine stopped by itself");
            return Err(failed.map_or_else(itself, |error| boot::engine_failure(&error)));
        }
        drop(reached);
        let loading = move || boot::loading(&progress);
        let state = ServerState::new(
            &target::FACTS,
            target::MODEL_ID,
            Settings::default(),
            loading,
        );
        state.serve(chat, handle);
        let at_end = state.clone();
        let watch = thread::spawn(move || {
            let outcome = thread.join();
            if outcome.is_err() {
                // A device that does not answer causes no further events, so open replies are ended
                // here.
                at_end.abort_replies(internal(DEVICE_FAILED));
            }
            outcome
        });
        let watch = Some(watch);
        Ok(Engine {
            loaded: Arc::new(Loaded { state, watch }),
        })
    }

    /// Answers a request; blocks until the reply is complete.
    ///
    /// # Errors
    /// Errors of [`Engine::stream`], and [`Error::Engine`] if the model fails.
    pub fn generate(&self, request: &Request) -> Result<Reply, Error> {
        self.stream(request)?.reply()
    }

    /// Starts to answer a request. Dropping the stream ends the reply.
    ///
    /// # Errors
    /// [`Error::Request`] names the field that cannot be answered; [`Error::Busy`] if the queue of
    /// requests is full.
    pub fn stream(&self, request: &Request) -> Result<Stream, Error> {
        Stream::begin(&self.loaded, request)
    }

    /// Id of the model.
    pub fn model(&self) -> &str {
        &self.loaded.state.model_id
    }

    /// Most tokens of a prompt and its reply together.
    pub fn context(&self) -> usize {
        let service = self.loaded.state.service();
        service.map_or(target::MAX_CONTEXT, |service| service.engine.context())
    }

    /// Ends the engine if no clone and no stream is left; returns the outcome.
    pub(crate) fn close(self) -> Result<(), Failure> {
        match Arc::into_inner(self.loaded) {
            Some(mut loaded) => loaded.end().map_err(|error| boot::engine_failure(&error)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.model())
    }
}

impl Loaded {
    fn end(&mut self) -> Outcome {
        self.state.drain();
        // A panic of the thread has been reported already.
        let outcome = self.watch.take().and_then(|watch| watch.join().ok());
        outcome.unwrap_or(Ok(()))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread, inside an asynchronous runtime or not, until `poll` is ready.
fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(ready) => return ready,
            Poll::Pending => thread::park(),
        }
    }
}
