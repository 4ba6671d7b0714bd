//! Start of a model, for several verbs: files of the checkpoint, tokenizer and template, engine.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;

use engine::speculate::Speculate;
use engine::{self, EngineError, Handle, Limits, Phase, Setup};
use host::log;
use host::threads;
use model::Runs;
use model::backend::mapping::Mapping;
use model::backend::{self, Backend};
use model::target::{self, FACTS};
use model::weights::{self, Checkpoint, Layout, Progress, Stage};
use model::{Plan, Runner, ledger};
use step::ToolFormat;
use text::chat::ChatModel;
use text::grammar;
use text::identity;
use text::template::Template;
use text::template::special::{self, SpecialTokens};
use text::template::stated;
use text::tokenizer::Tokenizer;

use super::check::{self, Checks};
use super::exit::device_exit;
pub use super::exit::{Exit, Failure, print, start_failure};
pub use super::files::Files;
use super::meter::Meter;
pub use super::meter::loading;

/// Time between two polls of the lease on mapped weights; must be far less than the time for which
/// the system keeps a writer waiting.
const GUARD_EVERY: Duration = Duration::from_millis(100);
/// Time to report a failure of the device to clients and operator before the process ends.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Failure because of a file of the checkpoint that cannot be used.
fn config(name: &str, problem: &dyn Error) -> Failure {
    Exit::Config.failure(format!("{name}: {problem}; download it again"))
}

/// Failure because of a file that belongs to another model.
fn foreign(name: &str, problem: &str) -> Failure {
    Exit::Config.failure(format!("{name} {problem}; {}", weights::download()))
}

/// Special tokens that the checkpoint names; none if it does not have the file.
fn special_tokens(files: &Files) -> Result<SpecialTokens, Failure> {
    if !files.has(special::FILE) {
        return Ok(SpecialTokens::default());
    }
    let file = files.read(special::FILE)?;
    SpecialTokens::parse(&file).map_err(|error| config(special::FILE, &error))
}

/// The chat template, and the name of its source: the binary if it has one; else the checkpoint's
/// own file or, if that is missing, the file of [`stated`].
fn template_source(files: &Files) -> Result<(&'static str, String), Failure> {
    if !target::TEMPLATE.is_empty() {
        return Ok(("chat template of this binary", target::TEMPLATE.to_string()));
    }
    let file = target::TEMPLATE_FILE;
    if !files.has(file) && files.has(stated::FILE) {
        let stated = stated::template(&files.read(stated::FILE)?);
        let stated = stated.map_err(|error| config(stated::FILE, &error))?;
        if let Some(source) = stated {
            return Ok((stated::FILE, source));
        }
    }
    let source = String::from_utf8(files.read(file)?).map_err(|error| config(file, &error))?;
    Ok((file, source))
}

/// Loads the chat template.
fn template(files: &Files) -> Result<Template, Failure> {
    let (file, source) = template_source(files)?;
    let special = special_tokens(files)?;
    let template = Template::load(&source, special).map_err(|error| config(file, &error))?;
    identity::check_template(&FACTS, &template).map_err(|why| foreign(file, &why))?;
    Ok(template)
}

/// Loads tokenizer and template.
///
/// # Errors
/// Names the file that cannot be used.
pub fn chat_model(files: &Files) -> Result<ChatModel, Failure> {
    let file = files.read(target::TOKENIZER_FILE)?;
    let tokenizer = Tokenizer::of_file(target::TOKENIZER_FILE, &file, target::VOCAB)
        .map_err(|error| config(target::TOKENIZER_FILE, &error))?;
    identity::check_tokenizer(&FACTS, &tokenizer)
        .map_err(|why| foreign(target::TOKENIZER_FILE, &why))?;
    let template = match FACTS.tool_format {
        Some(ToolFormat::Harmony) => Template::harmony(),
        _ => template(files)?,
    };
    ChatModel::new(&FACTS, tokenizer, template)
        .map_err(|error| config(target::TOKENIZER_FILE, &*error))
}

/// Name and version of the binary on one line.
pub fn version_line() -> String {
    format!("{} {}", target::BINARY, env!("CARGO_PKG_VERSION"))
}

/// Threads of a started model, beside those of its device: one that loads tokenizer and template,
/// those of grammars; the engine, one that waits for its end and one that guards the weights; then
/// those that compute masks.
pub const THREADS: usize = 1 + grammar::THREADS + 3 + engine::constraint::THREADS;

/// Checks files, threads and memory before anything is loaded, and logs the version. `threads`:
/// those needed beside this one and the device's.
///
/// # Errors
/// When files are missing, or there are too few threads or too little memory.
pub fn preflight(files: &Files, threads: usize) -> Result<(), Failure> {
    files.require_whole()?;
    log::line(version_line());
    let needed = threads + backend::threads();
    threads::require(needed).map_err(|why| Exit::Unavailable.failure(why))?;
    ledger::preflight::<Backend>()?;
    if let Some(part) = backend::partition() {
        log::line(format_args!("kernels on {part}: a part of this GPU"));
    }
    Ok(())
}

/// The running engine, its thread, and the chat model, which is loaded at the same time.
pub struct Engine<T = JoinHandle<engine::Outcome>> {
    pub handle: Handle,
    pub thread: T,
    pub chat: TextSide,
}

/// A model that was started, and whose end has no waiting thread yet.
pub type Started = Engine<engine::Thread>;

/// Result of loading the chat model.
pub type TextSide = oneshot::Receiver<Result<ChatModel, Failure>>;

/// Warning about a checkpoint whose configuration declares a prediction layer without tensors.
const LACKS_PREDICTION: &str = "the checkpoint has no tensors of the layer of multi-token \
    prediction that its model has: replies are drafted from their own text alone";

/// Whether a model drafts, which decides whether the memory for its prediction layer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    Yes,
    No,
}

impl Drafting {
    /// Whether an engine with these limits asks for drafts.
    pub fn of(limits: Limits) -> Drafting {
        match limits.drafts > 0 && limits.speculate != Speculate::Off {
            true => Drafting::Yes,
            false => Drafting::No,
        }
    }

    /// Parts of a model that are loaded, given the parts that exist.
    pub fn loaded(self, there: Layout) -> Layout {
        match self {
            Drafting::Yes => there,
            Drafting::No => there.without_prediction(),
        }
    }
}

/// Opens and loads the weights, and checks the model with the checks from `checks`; blocks.
///
/// # Errors
/// `WeightsError`, or the error of `Checks::run` if the model computes wrong results.
pub fn runner(
    files: &Files,
    progress: &Arc<Progress>,
    drafting: Drafting,
    checks: impl FnOnce() -> Result<Checks, Box<dyn Error + Send + Sync>>,
) -> Result<Runner<Backend>, Box<dyn Error + Send + Sync>> {
    progress.enter(Stage::Checking);
    let checkpoint = files.open(progress.clone())?;
    let checkpoint = match drafting {
        Drafting::Yes => checkpoint,
        Drafting::No => checkpoint.without_prediction(),
    };
    let meter = Meter::start(progress);
    log_doubts(&checkpoint);
    if checkpoint.lacks_prediction() && drafting == Drafting::Yes {
        log::line(LACKS_PREDICTION);
    }
    progress.enter(Stage::Opening);
    let mut runner = load(backend::open()?, &checkpoint)?;
    drop(meter);
    progress.enter(Stage::Verifying);
    let found = checks()?.run(&mut runner)?;
    let taken = ledger::mebibytes(runner.matrix_bytes());
    log::line(format_args!("the weights take {taken}"));
    found.iter().for_each(log::line);
    progress.enter(Stage::Ready);
    Ok(runner)
}

/// Plans the memory, logs the plan, and loads the model.
///
/// # Errors
/// `TooLittle`, or `WeightsError`.
pub fn load<B: Runs>(
    device: B,
    checkpoint: &Checkpoint,
) -> Result<Runner<B>, Box<dyn Error + Send + Sync>> {
    let plan = Plan::within::<Backend>(device.available(), checkpoint.layout())?;
    load_planned(device, checkpoint, &plan)
}

/// Logs the memory of a plan, and loads the model.
///
/// # Errors
/// `WeightsError`.
pub fn load_planned<B: Runs>(
    device: B,
    checkpoint: &Checkpoint,
    plan: &Plan,
) -> Result<Runner<B>, Box<dyn Error + Send + Sync>> {
    plan.lines().iter().for_each(log::line);
    let packed = checkpoint.packed().filter(|packed| packed.maps());
    if let Some(mapping) = packed.and_then(|packed| packed.mapped()) {
        guard(Arc::downgrade(mapping));
    }
    Ok(Runner::load(device, checkpoint, plan)?)
}

/// Thread that ends this process when another process opens mapped weights to write, which the
/// system makes wait until then. Open requests get the device's error. The thread ends with the
/// mapping.
fn guard(mapping: Weak<Mapping>) {
    thread::spawn(move || {
        loop {
            thread::sleep(GUARD_EVERY);
            let checked = mapping.upgrade().map(|mapping| mapping.check());
            match checked {
                None => return,
                Some(Ok(())) => {}
                Some(Err(why)) => return Exit::Io.within(LAST_WORDS, why),
            }
        }
    });
}

/// Warns about weights that must be rounded, or are read only through the page cache, and about
/// unknown fields of their configuration.
pub fn log_doubts(checkpoint: &Checkpoint) {
    let unknown = checkpoint.unknown_maths();
    if !unknown.is_empty() {
        log::line(format_args!(
            "{} states {}: no such key is known here, and by its name it may change what the model \
             computes; compare answers with those of transformers",
            target::CONFIG_FILE,
            unknown.join(", ")
        ));
    }
    let packed = checkpoint.packed();
    if let (None, Some(rounded)) = (packed, rounded(checkpoint.layout())) {
        log::line(format_args!(
            "{rounded} as they are read, which takes a while; `{} pack DIR FILE` does it once",
            target::BINARY
        ));
    }
    if let Some(why) = packed.and_then(|packed| packed.detour()) {
        log::line(format_args!(
            "weights are copied to memory rather than mapped: no lease that keeps the file as it \
             is can be had ({why}); a file of the server's own user on a local disk has one"
        ));
    }
    if let Some(why) = checkpoint.progress().detour() {
        log::line(format_args!(
            "weights are read through the page cache; {why}"
        ));
    }
}

/// Text about weights that this target stores in fewer bits than its checkpoint, if there are any.
fn rounded(layout: Layout) -> Option<String> {
    let pairs = layout.rounds().into_iter();
    let words = pairs.map(|[stored, resident]| {
        let [stored, resident] = [stored, resident].map(|format| format.short().to_uppercase());
        format!("weights in {stored} are rounded to {resident}")
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Starts the engine, whose thread loads and checks the model, and loads the chat model on another
/// thread. `golden`: a file of golden tokens for an additional check.
pub fn start(
    files: &Files,
    progress: &Arc<Progress>,
    golden: Option<&Path>,
    setup: impl Into<Setup>,
) -> Started {
    let setup = setup.into();
    let limits = setup.limits;
    check::log_drawn(files);
    let (give, given) = mpsc::channel();
    let (of_text, golden) = (files.clone(), golden.map(Path::to_path_buf));
    let (sender, chat) = oneshot::channel();
    let load = move || {
        let chat = chat_model(&of_text)?;
        // The engine may have failed before it asks for the checks.
        let _ = give.send(Checks::new(&of_text, Some(&chat), golden.as_deref())?);
        Ok(chat)
    };
    // The receiver of the chat model may be gone.
    thread::spawn(move || drop(sender.send(load())));
    let (files, progress) = (files.clone(), progress.clone());
    let checks = move || {
        let checks = given.recv();
        checks.map_err(|_| "there is nothing to check the model with".into())
    };
    let (handle, thread) = engine::spawn(setup, move || {
        runner(&files, &progress, Drafting::of(limits), checks)
    });
    Engine {
        handle,
        thread,
        chat,
    }
}

/// [`start`] of a process that ends soon after a failure of the device.
pub fn engine(
    files: &Files,
    progress: &Arc<Progress>,
    golden: Option<&Path>,
    setup: Setup,
) -> Engine {
    let started = start(files, progress, golden, setup);
    let thread = started.thread;
    Engine {
        handle: started.handle,
        thread: thread::spawn(move || end(thread)),
        chat: started.chat,
    }
}

/// Waits until the chat model is loaded.
///
/// # Errors
/// Errors of [`chat_model`].
pub async fn chat_of(loading: TextSide) -> Result<ChatModel, Failure> {
    let broken = |_| Exit::Internal.failure("the text side broke down");
    loading.await.map_err(broken)?
}

/// Waits for the engine's end. Soon after a failure of the device the process ends, whatever its
/// threads do by then.
fn end(thread: engine::Thread) -> engine::Outcome {
    let outcome = thread.join();
    if let Err(error) = &outcome
        && error.is_of_device()
    {
        engine_exit(error).within(LAST_WORDS, error);
    }
    outcome
}

/// Waits until the engine is at `phase` or a later one; returns its phase then.
pub async fn reached(engine: &Handle, phase: Phase) -> Phase {
    let mut phases = engine.phases();
    let found = phases.wait_for(|found| *found >= phase).await;
    let found = found.map(|found| *found);
    found.unwrap_or(Phase::Stopped)
}

/// Waits until the engine serves; returns the chat model, or None if the engine has stopped.
///
/// # Errors
/// Errors of [`chat_model`].
pub async fn serving(engine: &Handle, chat: TextSide) -> Result<Option<ChatModel>, Failure> {
    let chat = chat_of(chat).await?;
    let phase = reached(engine, Phase::Serving).await;
    Ok((phase == Phase::Serving).then_some(chat))
}

/// Waits until an engine that was asked to end has ended.
///
/// # Errors
/// The reason why the engine failed.
pub fn ended(thread: JoinHandle<engine::Outcome>) -> Result<(), Failure> {
    match thread.join() {
        Ok(outcome) => outcome.map_err(|error| engine_failure(&error)),
        Err(_) => Err(Exit::Internal.failure("the engine broke down")),
    }
}

fn engine_exit(error: &EngineError) -> Exit {
    match error {
        EngineError::Device(error) => device_exit(error),
        _ => Exit::Internal,
    }
}

/// Failure of a process because of its engine's error.
pub fn engine_failure(error: &EngineError) -> Failure {
    match error {
        EngineError::Start(cause) => start_failure(cause.as_ref()),
        // The engine's watchdog has reported the device's error.
        error if error.is_of_device() => engine_exit(error).failure(""),
        error => Exit::Internal.failure(error),
    }
}

/// Refuses targets that cannot answer requests.
///
/// # Errors
/// In plain words, when the target is unfinished.
pub fn require_serving() -> Result<(), Failure> {
    if target::SERVES {
        return Ok(());
    }
    Err(Exit::Config.failure(unfinished(target::TOKENIZER_FILE)))
}

/// Refuses targets whose model does not draft.
///
/// # Errors
/// States that the target's model has no prediction layer.
pub fn require_prediction() -> Result<(), Failure> {
    if target::MTP_LAYERS == 0 {
        let message = format!("{} has no multi-token-prediction layer", target::MODEL_ID);
        return Err(Exit::Config.failure(message));
    }
    Ok(())
}

/// Reason why this binary cannot answer requests, by the file name of its model's tokenizer.
fn unfinished(tokenizer: &str) -> String {
    let (binary, model) = (target::BINARY, target::MODEL);
    match tokenizer.is_empty() {
        true => format!(
            "{binary} cannot answer requests: {model} has no tokenizer and no chat template, which \
             a [chat] of its model.toml would name. `{binary} verify WEIGHTS_DIR` compares what it \
             computes"
        ),
        false => format!(
            "{binary} does not answer requests: its hardware is a part of another GPU, to measure \
             on. Its operations can be tested and timed; see `{binary} selftest --help`"
        ),
    }
}

#[cfg(test)]
#[path = "boot_tests.rs"]
mod tests;
