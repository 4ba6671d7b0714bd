//! Closed loop of load: each stream sends a request once the reply to its last one is complete.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};

use super::client::{Ask, Connection, Endpoint, Timings};
use super::figures::Figures;
use super::process;
use super::report::Report;
use super::scenario::{self, Scenario};
use super::{unavailable, usage};
use crate::start::exit::Failure;
use crate::start::machine;

/// Time limit of a reply.
const REPLY_TIME_MAX: Duration = Duration::from_secs(600);
/// Most prompts that are tried to find the number of words for a number of tokens.
const PROBES_MAX: usize = 8;

/// Runs the scenarios one after the other.
pub(super) async fn measure(
    endpoint: &Endpoint,
    model: Option<String>,
    scenarios: &[Scenario],
    pid: Option<u32>,
) -> Result<Report, Failure> {
    let mut connection = endpoint.connect().await.map_err(unavailable)?;
    let model = match model {
        Some(model) => model,
        None => connection.first_model().await.map_err(unavailable)?,
    };
    let mut report = Report::new(&endpoint.url, &model);
    report.server = connection.target().await;
    report.machine = endpoint.is_here().then(machine::measured_on);
    let mut prompts = Prompts::default();
    for scenario in scenarios {
        prompts.words = words_for(&mut connection, &model, scenario, &mut prompts)
            .await
            .map_err(unavailable)?;
        let outcome = run(endpoint, &model, scenario, &mut prompts).await;
        report.add(outcome.0, outcome.1);
    }
    report.memory = pid.map(process::memory).transpose().map_err(usage)?;
    Ok(report)
}

/// Source of prompts of one length, of which no two are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Prompts {
    words: usize,
    used: usize,
}

impl Prompts {
    fn next(&mut self) -> String {
        self.used += 1;
        scenario::prompt(self.used, self.words)
    }
}

/// The number of words whose prompt comes closest to the tokens that the scenario asks for.
///
/// The client does not know the tokens of words and of the chat template, so the server's counts
/// are used.
async fn words_for(
    connection: &mut Connection,
    model: &str,
    scenario: &Scenario,
    prompts: &mut Prompts,
) -> Result<usize, String> {
    let wanted = scenario.prompt_tokens as isize;
    let mut words = wanted;
    let mut best = (isize::MAX, 0);
    for _ in 0..PROBES_MAX {
        prompts.words = words as usize;
        let ask = Ask {
            model,
            prompt: prompts.next(),
            tokens: 1,
        };
        let reply = connection.chat(&ask).await?;
        let missing = wanted - reply.prompt_tokens as isize;
        best = best.min((missing.abs(), words));
        let tokens_per_word = (reply.prompt_tokens as isize / words.max(1)).max(1);
        let step = match missing / tokens_per_word {
            0 => missing.signum(),
            step => step,
        };
        let next = (words + step).max(0);
        if missing == 0 || next == words {
            break;
        }
        words = next;
    }
    Ok(best.1 as usize)
}

/// Warms up with one reply per stream, then measures.
async fn run(
    endpoint: &Endpoint,
    model: &str,
    scenario: &Scenario,
    prompts: &mut Prompts,
) -> (Figures, Option<String>) {
    let warm_up = Scenario {
        requests: scenario.streams,
        ..scenario.clone()
    };
    replies(endpoint, model, &warm_up, prompts).await;
    let begun = Instant::now();
    let outcomes = replies(endpoint, model, scenario, prompts).await;
    let wall = begun.elapsed();
    let (replies, errors): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    let replies: Vec<Timings> = replies.into_iter().flatten().collect();
    let figures = Figures::of(scenario, &replies, errors.len(), wall);
    (figures, errors.into_iter().find_map(Result::err))
}

type Outcomes = Vec<Result<Timings, String>>;

async fn replies(
    endpoint: &Endpoint,
    model: &str,
    scenario: &Scenario,
    prompts: &mut Prompts,
) -> Outcomes {
    let last = prompts.used + scenario.requests;
    let shared = Rc::new(Cell::new(*prompts));
    let local = LocalSet::new();
    let mut streams = JoinSet::new();
    for _ in 0..scenario.streams.min(scenario.requests) {
        let stream = Stream {
            endpoint: endpoint.clone(),
            model: model.to_owned(),
            tokens: scenario.max_tokens,
            prompts: shared.clone(),
            last,
        };
        streams.spawn_local_on(stream.run(), &local);
    }
    let outcomes = local.run_until(streams.join_all()).await;
    *prompts = shared.get();
    outcomes.into_iter().flatten().collect()
}

/// One client of the closed loop.
struct Stream {
    endpoint: Endpoint,
    model: String,
    tokens: usize,
    prompts: Rc<Cell<Prompts>>,
    /// Number of the scenario's last prompt.
    last: usize,
}

impl Stream {
    async fn run(self) -> Outcomes {
        let mut outcomes = Vec::new();
        let mut connection = None;
        while let Some(prompt) = self.next_prompt() {
            let timed = tokio::time::timeout(REPLY_TIME_MAX, self.ask(&mut connection, prompt));
            let outcome = timed.await.unwrap_or_else(|_| {
                let most = REPLY_TIME_MAX.as_secs();
                Err(format!("no complete reply within {most} s"))
            });
            if outcome.is_err() {
                connection = None;
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    fn next_prompt(&self) -> Option<String> {
        let mut prompts = self.prompts.get();
        let prompt = (prompts.used < self.last).then(|| prompts.next());
        self.prompts.set(prompts);
        prompt
    }

    /// Times one reply. A missing connection is opened first, outside of the time.
    async fn ask(
        &self,
        connection: &mut Option<Connection>,
        prompt: String,
    ) -> Result<Timings, String> {
        let open = match connection {
            Some(open) => open,
            None => connection.insert(self.endpoint.connect().await?),
        };
        let ask = Ask {
            model: &self.model,
            prompt,
            tokens: self.tokens,
        };
        open.chat(&ask).await
    }
}
