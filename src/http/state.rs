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

/// Where those who end replies before their time say what the clients are told.
type Told = watch::Receiver<Option<ApiError>>;

/// Completes when replies must end at once, with what their clients are told.
pub struct Abort {
    told: Vec<Told>,
    wait: Pin<Box<dyn Future<Output = ApiError> + Send>>,
}

impl Abort {
    fn when(told: Told) -> Abort {
        Abort {
            told: vec![told.clone()],
            wait: Box::pin(said(told)),
        }
    }

    /// The abort that also comes when it is `told` to.
    pub fn or_when(mut self, told: Told) -> Abort {
        self.told.push(told.clone());
        Abort {
            told: self.told,
            wait: Box::pin(async move {
                tokio::select! {
                    biased;
                    error = self.wait => error,
                    error = said(told) => error,
                }
            }),
        }
    }

    /// False: to poll it would change nothing for whoever has done so.
    pub fn may_be_due(&self) -> bool {
        let due = |told: &Told| told.has_changed().unwrap_or(false);
        self.told.iter().any(due)
    }
}

/// Error that is told; never where those who could tell are gone.
async fn said(mut told: Told) -> ApiError {
    let error = told.wait_for(Option::is_some).await;
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

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// Stage of loading, in plain words.
    pub stage: &'static str,
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// Service of requests once the model is loaded.
pub struct Service {
    pub chat: ChatModel,
    pub engine: Handle,
    pub times: Times,
}

/// The server's life: loading until the service is there, then serving, then draining.
pub struct State {
    pub facts: &'static Facts,
    pub model_id: String,
    pub settings: Settings,
    /// Seconds since 1970 at the start.
    pub created: u64,
    pub figures: ServerFigures,
    /// Memory for bodies of requests.
    pub bodies: body::Memory,
    /// Order in which bodies are parsed.
    pub parsing: Parsing,
    /// Responses that clients may ask for again.
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

impl State {
    /// `loading` tells how far loading has come while there is no service.
    pub fn new(
        facts: &'static Facts,
        model_id: &str,
        settings: Settings,
        loading: impl Fn() -> Loading + Send + Sync + 'static,
    ) -> Arc<State> {
        Arc::new(State {
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

    /// Takes no more requests.
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
