//! State that all connections share.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::sync::watch;

use engine::Handle;
use host::calendar::seconds;
use step::Facts;
use text::chat::ChatModel;

use super::body;
use super::error::ApiError;
use super::figures::{ServerFigures, Times};
use super::parsing::Parsing;
use super::responses::running::Running;
use super::responses::store::Store;
use super::seal::Seal;
use super::settings::Settings;

/// Receiver of the error with which replies are aborted; None until they are aborted.
type AbortSignal = watch::Receiver<Option<ApiError>>;

/// Future of the error with which a reply is aborted.
pub struct Abort {
    signals: Vec<AbortSignal>,
    wait: Pin<Box<dyn Future<Output = ApiError> + Send>>,
}

impl Abort {
    fn when(signal: AbortSignal) -> Abort {
        Abort {
            signals: vec![signal.clone()],
            wait: Box::pin(aborted_by(signal)),
        }
    }

    /// Abort that also completes when `signal` does.
    pub fn or_when(mut self, signal: AbortSignal) -> Abort {
        self.signals.push(signal.clone());
        Abort {
            signals: self.signals,
            wait: Box::pin(async move {
                tokio::select! {
                    biased;
                    error = self.wait => error,
                    error = aborted_by(signal) => error,
                }
            }),
        }
    }

    /// Whether a signal has changed, so that the abort must be polled.
    pub fn may_be_due(&self) -> bool {
        let due = |signal: &AbortSignal| signal.has_changed().unwrap_or(false);
        self.signals.iter().any(due)
    }
}

/// Waits for the error of a signal; for ever if its sender is gone.
async fn aborted_by(mut signal: AbortSignal) -> ApiError {
    let error = signal.wait_for(Option::is_some).await;
    let error = error.ok().and_then(|error| error.clone());
    match error {
        Some(error) => error,
        None => std::future::pending().await,
    }
}

impl Future for Abort {
    type Output = ApiError;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ApiError> {
        self.wait.as_mut().poll(cx)
    }
}

/// Progress of loading the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// Stage of loading in plain words, for messages.
    pub stage: &'static str,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// Model and engine that serve requests, once loaded.
pub struct Service {
    pub chat: ChatModel,
    pub engine: Handle,
    pub times: Times,
}

/// State of the server: loading until the service is there, then serving, then draining.
pub struct ServerState {
    pub facts: &'static Facts,
    pub model_id: String,
    pub settings: Settings,
    /// Time of the server's start, seconds since 1970.
    pub created: u64,
    pub figures: ServerFigures,
    /// Memory budget for bodies of requests.
    pub bodies: body::Memory,
    /// Queue of jobs that parse bodies.
    pub parsing: Parsing,
    /// Complete responses that clients may fetch again.
    pub responses: Store,
    /// Seal of reasoning that clients keep without reading it.
    pub seal: Seal,
    /// Responses that are being written.
    pub running: Arc<Running>,
    loading: Box<dyn Fn() -> Loading + Send + Sync>,
    service: OnceLock<Arc<Service>>,
    draining: AtomicBool,
    aborted: watch::Sender<Option<ApiError>>,
}

impl ServerState {
    /// State of a server whose model is loading; `loading` returns the progress.
    pub fn new(
        facts: &'static Facts,
        model_id: &str,
        settings: Settings,
        loading: impl Fn() -> Loading + Send + Sync + 'static,
    ) -> Arc<ServerState> {
        Arc::new(ServerState {
            facts,
            model_id: model_id.to_string(),
            seal: Seal::new(settings.keys.as_ref()),
            settings,
            created: seconds(),
            figures: ServerFigures::default(),
            bodies: body::Memory::default(),
            parsing: Parsing::default(),
            responses: Store::default(),
            running: Arc::default(),
            loading: Box::new(loading),
            service: OnceLock::new(),
            draining: AtomicBool::new(false),
            aborted: watch::Sender::new(None),
        })
    }

    /// Starts to answer requests.
    pub fn serve(&self, chat: ChatModel, engine: Handle) {
        let service = Service {
            chat,
            engine,
            times: Times::default(),
        };
        let set = self.service.set(Arc::new(service));
        assert!(set.is_ok(), "the service is set once");
    }

    pub fn service(&self) -> Option<&Arc<Service>> {
        self.service.get()
    }

    pub fn loading(&self) -> Loading {
        (self.loading)()
    }

    /// Stops admitting requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        if let Some(service) = self.service() {
            service.engine.drain();
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Ends open replies with an error.
    pub fn abort_replies(&self, error: ApiError) {
        self.aborted.send_replace(Some(error));
    }

    pub fn abort(&self) -> Abort {
        Abort::when(self.aborted.subscribe())
    }
}
