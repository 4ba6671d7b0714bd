//! `batch`: answers a file of requests into another file, without a server. Each request is handled
//! as if it came over HTTP; many are in progress at once, so that the engine computes them
//! together.

mod answers;
mod requests;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};
use hyper::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{interval, sleep};

use self::answers::Answers;
use self::requests::{Line, Requests, Wanted, key};
use super::serve::signalled;
use super::{Exit, Failure};
use crate::start::boot::{self, Files};
use engine::{Limits, Phase};
use host::log;
use http::limits::DRAIN_TIMEOUT;
use http::offline::{self, Answered};
use http::settings::Settings;
use http::state::ServerState;
use http::threads::{self, OF_RUNTIME};
use model::target;
use model::weights::Progress;

/// Requests in progress at once: as many as there are slots, and as many that are being parsed.
const AT_ONCE: usize = 2 * target::MAX_SEQUENCES;
/// Time between two progress lines.
const REPORTED_EVERY: Duration = Duration::from_secs(5);

/// answer a file of requests into another file, without a server
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "batch", help_triggers("--help"))]
pub struct Batch {
    /// file of requests in the format of OpenAI's Batch API: a line of JSON each, with custom_id,
    /// method, url and body
    #[argh(positional)]
    requests: PathBuf,

    /// file that gets a line for each answer as soon as it is there; what it holds already, of an
    /// earlier run, is not asked again
    #[argh(positional)]
    answers: PathBuf,

    /// directory that holds the weights; none for a model inside the binary
    #[argh(option)]
    weights: Option<PathBuf>,
}

/// Answers the requests that have no answer yet.
///
/// # Errors
/// When a file cannot be used, the model cannot be loaded or fails, or a signal ends the run before
/// all requests are answered. A refused request is no error: its answer is.
pub fn run(options: &Batch) -> Result<(), Failure> {
    boot::require_serving()?;
    let requests = Requests::open(&options.requests)?;
    let answers = Answers::open(&options.answers, &options.requests)?;
    let mut run = Run::new(requests, answers);
    if run.left() > 0 {
        let files = Files::locate(options.weights.as_deref())?;
        boot::preflight(&files, OF_RUNTIME + boot::THREADS)?;
        let runtime = threads::runtime("batch")
            .map_err(|why| Exit::Internal.failure(format!("no threads: {why}")))?;
        runtime.block_on(answer(&files, &mut run))?;
    }
    log::line(run.summary());
    Ok(())
}

/// Reason why answering ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    All,
    Signal(&'static str),
    /// The engine stopped.
    Engine,
}

/// Loads the model and answers until the last request or a signal.
async fn answer(files: &Files, run: &mut Run) -> Result<(), Failure> {
    let mut signals = pin!(signalled());
    let progress = Arc::new(Progress::default());
    let limits = Limits::of(&target::FACTS);
    let started = boot::engine(files, &progress, None, limits.into());
    let (engine, thread, chat) = (started.handle, started.thread, started.chat);
    let chat = tokio::select! {
        chat = boot::serving(&engine, chat) => chat?,
        // The thread that loads the chat model goes on until the process ends.
        name = &mut signals => return Err(run.cut(name?)),
    };
    let Some(chat) = chat else {
        return boot::ended(thread);
    };
    let loading = move || boot::loading(&progress);
    let settings = Settings::default();
    let state = ServerState::new(&target::FACTS, target::MODEL_ID, settings, loading);
    state.serve(chat, engine.clone());
    let ended = tokio::select! {
        ended = run.all(&state) => ended?,
        name = &mut signals => run.finish(name?).await?,
        _ = boot::reached(&engine, Phase::Stopped) => End::Engine,
    };
    run.under_way.abort_all();
    run.answers.keep()?;
    engine.drain();
    boot::ended(thread)?;
    match ended {
        End::Signal(name) if run.left() > 0 => Err(run.cut(name)),
        End::Engine => Err(Exit::Internal.failure("the engine stopped by itself")),
        End::All | End::Signal(_) => Ok(()),
    }
}

/// Id of a request, and its answer; None if the engine stopped first.
type Done = (String, Option<Answered>);

/// A run from a file of requests to a file of answers.
struct Run {
    requests: Requests,
    answers: Answers,
    under_way: JoinSet<Done>,
    /// Permits for requests in progress; a request that must run alone takes all of them.
    slots: Arc<Semaphore>,
}

impl Run {
    fn new(requests: Requests, answers: Answers) -> Run {
        let run = Run {
            requests,
            answers,
            under_way: JoinSet::new(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
        };
        let known = run.done();
        if known > 0 {
            let all = run.requests.count();
            let report = format!("{known} of {all} requests are answered already");
            log::line(report);
        }
        let strange = run.answers.names().count() - known;
        if strange > 0 {
            let report = format!("{strange} answers are of no request of the file");
            log::line(report);
        }
        run
    }

    /// Number of requests of the file that are answered.
    fn done(&self) -> usize {
        let asked = |name: &&_| self.requests.has(name);
        self.answers.names().filter(asked).count()
    }

    fn left(&self) -> usize {
        self.requests.count() - self.done()
    }

    /// Submits the unanswered requests in the order of the file, and writes answers as they come.
    async fn all(&mut self, state: &Arc<ServerState>) -> Result<End, Failure> {
        let mut lines = self.requests.lines()?;
        let mut meter = Meter::new(state, self);
        let mut ticks = interval(REPORTED_EVERY);
        ticks.tick().await;
        loop {
            while self.under_way.len() < AT_ONCE
                && let Some(line) = lines.next()
            {
                let (number, line) = line?;
                self.take(state, number, line)?;
            }
            tokio::select! {
                asked = self.under_way.join_next() => match asked {
                    Some(asked) => self.write(asked)?,
                    None => return Ok(End::All),
                },
                _ = ticks.tick() => meter.report(state, self),
            }
        }
    }

    /// Submits the request of a line, unless it is answered.
    fn take(&mut self, state: &Arc<ServerState>, number: usize, line: Line) -> Result<(), Failure> {
        let name = key(&line);
        self.requests.check(number, &name)?;
        if self.answers.has(&name) {
            return Ok(());
        }
        match line {
            Ok(wanted) => {
                let (state, slots) = (state.clone(), self.slots.clone());
                self.under_way.spawn(ask(state, slots, wanted));
                Ok(())
            }
            Err(bad) => self.answers.refuse(&bad),
        }
    }

    fn write(&mut self, asked: Result<Done, JoinError>) -> Result<(), Failure> {
        match asked {
            Ok((custom_id, Some(answered))) => self.answers.add(custom_id, &answered),
            // The request has no answer, so the next run submits it again.
            Ok((_, None)) => Ok(()),
            Err(why) => Err(Exit::Internal.failure(format!("a request: {why}"))),
        }
    }

    /// Waits for requests in progress until a time limit or another signal.
    async fn finish(&mut self, name: &'static str) -> Result<End, Failure> {
        log::line(format_args!(
            "{name}: finishing {} requests; another signal cuts them",
            self.under_way.len()
        ));
        let mut cut = pin!(async {
            tokio::select! {
                () = sleep(DRAIN_TIMEOUT) => {}
                _ = signalled() => {}
            }
        });
        loop {
            tokio::select! {
                asked = self.under_way.join_next() => match asked {
                    Some(asked) => self.write(asked)?,
                    None => break,
                },
                () = &mut cut => break,
            }
        }
        Ok(End::Signal(name))
    }

    fn cut(&self, name: &str) -> Failure {
        let message = format!(
            "{name}: {} of {} requests are answered; the same command goes on",
            self.done(),
            self.requests.count()
        );
        Exit::Cut.failure(message)
    }

    fn summary(&self) -> String {
        let failed = self.answers.failed();
        let all = self.requests.count();
        format!("{all} requests are answered, {failed} of them with an error")
    }
}

/// Answers a request; one that is refused because memory or slots are short is retried alone.
async fn ask(state: Arc<ServerState>, slots: Arc<Semaphore>, wanted: Wanted) -> Done {
    let (url, body) = (wanted.url, wanted.body);
    let slot = slots.acquire().await;
    let mut answered = offline::post(&state, url.clone(), body.clone()).await;
    drop(slot);
    let status = answered.status;
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        let _alone = slots.acquire_many(AT_ONCE as u32).await;
        answered = offline::post(&state, url, body).await;
    }
    let serving = state.service().map(|service| service.engine.phase()) == Some(Phase::Serving);
    let lost = answered.status.is_server_error() && !serving;
    (wanted.custom_id, (!lost).then_some(answered))
}

/// Printer of progress lines for the operator.
struct Meter {
    since: Instant,
    done_before: usize,
    last: Instant,
    tokens: u64,
}

impl Meter {
    fn new(state: &ServerState, run: &Run) -> Meter {
        let now = Instant::now();
        Meter {
            since: now,
            done_before: run.done(),
            last: now,
            tokens: tokens(state),
        }
    }

    fn report(&mut self, state: &ServerState, run: &Run) {
        let (now, tokens) = (Instant::now(), tokens(state));
        let rate = (tokens - self.tokens) as f64 / (now - self.last).as_secs_f64();
        (self.last, self.tokens) = (now, tokens);
        log::line(line(
            (run.done(), run.requests.count()),
            run.done() - self.done_before,
            run.answers.failed(),
            rate,
            now - self.since,
        ));
    }
}

/// Number of tokens that all replies have so far.
fn tokens(state: &ServerState) -> u64 {
    let service = state.service();
    service.map_or(0, |service| service.engine.stats().generated_tokens.get())
}

/// Progress line: requests, failures, rate, time left at the rate of this run's `new` answers.
fn line(
    (done, all): (usize, usize),
    new: usize,
    failed: usize,
    rate: f64,
    elapsed: Duration,
) -> String {
    let left = match new {
        0 => "time left unknown".to_string(),
        new => {
            let each = elapsed.as_secs_f64() / new as f64;
            format!("{:.0} s left", each * (all - done) as f64)
        }
    };
    format!("{done} of {all} requests, {failed} with an error, {rate:.0} tokens/s, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_progress_and_time_left() {
        let report = line((30, 100), 20, 1, 812.4, Duration::from_secs(10));
        assert_eq!(
            report,
            "30 of 100 requests, 1 with an error, 812 tokens/s, 35 s left"
        );
        let report = line((10, 100), 0, 0, 0.0, Duration::from_secs(5));
        assert!(report.ends_with("time left unknown"));
    }
}
