//! Start of a model for several verbs: files of the checkpoint, text side, engine.

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

/// Time between two polls of the lease on mapped weights: a small part of the time for which the
/// system keeps a writer waiting.
const GUARD_EVERY: Duration = Duration::from_millis(100);
/// Time to report the failure of the device to clients and operator before the process ends.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Report of a file of the checkpoint that cannot be used.
fn config(name: &str, problem: &dyn Error) -> Failure {
    let message = format!("{name}: {problem}; download it again");
    Failure::new(Exit::Config, message)
}

/// Report of a file of another model.
fn foreign(name: &str, problem: &str) -> Failure {
    let message = format!("{name} {problem}; {}", weights::download());
    Failure::new(Exit::Config, message)
}

/// The special tokens that the checkpoint names; none where it does not have the file.
fn special_tokens(files: &Files) -> Result<SpecialTokens, Failure> {
    if !files.has(special::FILE) {
        return Ok(SpecialTokens::default());
    }
    let file = files.read(special::FILE)?;
    SpecialTokens::parse(&file).map_err(|error| config(special::FILE, &error))
}

/// The chat template and the file that has it: one of its own, or where there is none the one of
/// [`stated`]; or the one of the binary, which then takes no other.
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

/// Loads the checkpoint's template.
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

/// Name and version on one line.
pub fn version_line() -> String {
    format!("{} {}", target::BINARY, env!("CARGO_PKG_VERSION"))
}

/// Threads of a started model, beside those that work for its device: the text side's and its
/// grammars', the engine and who waits for its end and guards its weights; then the engine's for
/// masks.
pub const THREADS: usize = 1 + grammar::THREADS + 3 + engine::constraint::THREADS;

/// Says what starts over `files`, with `threads` threads beside this one and the device's.
///
/// # Errors
/// When files are missing, threads too few or memory too little, by what is known before anything
/// is loaded.
pub fn preflight(files: &Files, threads: usize) -> Result<(), Failure> {
    let whole = files.require_whole();
    whole.map_err(|error| start_failure(&error))?;
    log::line(version_line());
    let needed = threads + backend::threads();
    threads::require(needed).map_err(|why| Failure::new(Exit::Unavailable, why))?;
    ledger::preflight::<Backend>().map_err(|error| start_failure(&error))?;
    if let Some(part) = backend::partition() {
        log::line(format_args!("kernels on {part}: a part of this GPU"));
    }
    Ok(())
}

/// The running engine, its end, and what the text side is made of meanwhile.
pub struct Engine<T = JoinHandle<engine::Outcome>> {
    pub handle: Handle,
    pub thread: T,
    pub chat: TextSide,
}

/// A model that was started, whose end nobody waits for yet.
pub type Started = Engine<engine::Thread>;

/// Result of loading the text side.
pub type TextSide = oneshot::Receiver<Result<ChatModel, Failure>>;

/// Said of a checkpoint whose configuration declares the layer that is not there.
const LACKS_PREDICTION: &str = "the checkpoint has no tensors of the layer of multi-token \
    prediction that its model has: replies are drafted from their own text alone";

/// Whether a model is to draft: its layer of multi-token prediction takes memory.
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

    /// Parts of a model that are loaded, of those that there are.
    pub fn loaded(self, there: Layout) -> Layout {
        match self {
            Drafting::Yes => there,
            Drafting::No => there.without_prediction(),
        }
    }
}

/// Opens and loads the weights, and checks the model with what `checks` gives; blocks.
///
/// # Errors
/// `WeightsError`, or what `Checks::run` found when the model computes something else than it
/// should.
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

/// Plans the memory, says what it is, and loads the model.
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

/// Says what memory a plan takes, and loads the model.
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

/// Ends the process when another one opens mapped weights to write: the system keeps the writer
/// waiting until then. Open requests get the device's error. The thread ends with the mapping.
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

/// Warns of weights that are read the slower way, and of unknown fields of their configuration.
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

/// Prints which weights this target has in fewer bits than its checkpoint, if any.
fn rounded(layout: Layout) -> Option<String> {
    let pairs = layout.rounds().into_iter();
    let words = pairs.map(|[stored, resident]| {
        let [stored, resident] = [stored, resident].map(|format| format.short().to_uppercase());
        format!("weights in {stored} are rounded to {resident}")
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Starts the engine, whose thread loads and checks the model, and loads the text side beside it;
/// `golden` is a file of golden tokens that the model is checked with too.
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
        // The engine may have failed before it asks.
        let _ = give.send(Checks::new(&of_text, Some(&chat), golden.as_deref())?);
        Ok(chat)
    };
    // The send fails where nobody waits for the result any more.
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

/// [`start`] whose process ends soon after a failure of the device.
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

/// Waits for the text side.
///
/// # Errors
/// As `chat_model`.
pub async fn chat_of(loading: TextSide) -> Result<ChatModel, Failure> {
    let broken = |_| Failure::new(Exit::Internal, "the text side broke down");
    loading.await.map_err(broken)?
}

/// Waits for the engine's end. Soon after a failure of the device the process ends, whatever it is
/// at by then.
fn end(thread: engine::Thread) -> engine::Outcome {
    let outcome = thread.join();
    if let Err(error) = &outcome
        && error.is_of_device()
    {
        engine_exit(error).within(LAST_WORDS, error);
    }
    outcome
}

/// Waits until the engine is at `phase` or further; which one it is at then.
pub async fn reached(engine: &Handle, phase: Phase) -> Phase {
    let mut phases = engine.phases();
    let found = phases.wait_for(|found| *found >= phase).await;
    let found = found.map(|found| *found);
    found.unwrap_or(Phase::Stopped)
}

/// Waits until the engine serves; the text side, or none where the engine has stopped instead.
///
/// # Errors
/// As `chat_model`.
pub async fn serving(engine: &Handle, chat: TextSide) -> Result<Option<ChatModel>, Failure> {
    let chat = chat_of(chat).await?;
    let phase = reached(engine, Phase::Serving).await;
    Ok((phase == Phase::Serving).then_some(chat))
}

/// Waits for an engine that ends.
///
/// # Errors
/// Why it ended before it was asked to.
pub fn ended(thread: JoinHandle<engine::Outcome>) -> Result<(), Failure> {
    match thread.join() {
        Ok(outcome) => outcome.map_err(|error| engine_failure(&error)),
        Err(_) => Err(Failure::new(Exit::Internal, "the engine broke down")),
    }
}

fn engine_exit(error: &EngineError) -> Exit {
    match error {
        EngineError::Device(error) => device_exit(error),
        _ => Exit::Internal,
    }
}

/// Report of an engine's end.
pub fn engine_failure(error: &EngineError) -> Failure {
    match error {
        EngineError::Start(cause) => start_failure(cause.as_ref()),
        // The engine's watchdog has reported it.
        error if error.is_of_device() => Failure::new(engine_exit(error), ""),
        error => Failure::new(Exit::Internal, error),
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
    let message = unfinished(target::TOKENIZER_FILE);
    Err(Failure::new(Exit::Config, message))
}

/// Refuses targets whose model does not draft.
///
/// # Errors
/// Says that the target's model has no layer that drafts.
pub fn require_prediction() -> Result<(), Failure> {
    if target::MTP_LAYERS == 0 {
        let message = format!("{} has no multi-token-prediction layer", target::MODEL_ID);
        return Err(Failure::new(Exit::Config, message));
    }
    Ok(())
}

/// Why this binary answers nothing, by the name of its model's tokenizer.
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
