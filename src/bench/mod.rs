//! The load client: `bench serve` measures a running server from the outside, over HTTP.
//!
//! It works with any server that speaks `/v1/chat/completions` with `stream_options.include_usage`
//! and `ignore_eos`, so peers are measured with the same yardstick. Token counts are those that the
//! server reports, times are those that a client sees.

pub mod client;
mod figures;
mod load;
pub mod process;
mod report;
mod scenario;
pub mod sse;
mod start;
mod steps;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use self::client::Endpoint;
use self::report::Report;
use self::scenario::Scenario;
use crate::start::exit::{Exit, Failure};
use host::operator_file;
use host::output;
use model::target;

/// File name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";
/// Bytes of the largest file with an API key.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// measure a running server, or the model's steps and start on this machine
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "bench")]
pub struct Command {
    #[argh(subcommand)]
    what: What,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
enum What {
    Serve(Options),
    Decode(steps::DecodeOptions),
    Prefill(steps::PrefillOptions),
    Drafts(steps::DraftsOptions),
    Start(start::StartOptions),
}

/// measure a running server over HTTP: latency and throughput of chat completions
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "serve")]
pub struct Options {
    /// address of the server, such as http://127.0.0.1:8000
    #[argh(option)]
    url: String,

    /// run only this scenario: decode-1, decode-8 or prefill-200, or one of --large (may be
    /// repeated)
    #[argh(option)]
    scenario: Vec<String>,

    /// run the scenarios for a model of real size instead: first tokens of 128, 1,024 and 8,192,
    /// and 1, 8, 32 and 64 streams; tells how to measure a peer the same way
    #[argh(switch)]
    large: bool,

    /// replies at once; this and the next three make a scenario of their own
    #[argh(option)]
    streams: Option<usize>,

    /// replies to measure
    #[argh(option)]
    requests: Option<usize>,

    /// tokens per prompt, with the chat template
    #[argh(option)]
    prompt_tokens: Option<usize>,

    /// tokens per reply
    #[argh(option)]
    max_tokens: Option<usize>,

    /// model id to ask for; the first one that the server lists if not given
    #[argh(option)]
    model: Option<String>,

    /// file that holds the API key
    #[argh(option)]
    key_file: Option<PathBuf>,

    /// process id of the server, to report its memory
    #[argh(option)]
    pid: Option<u32>,

    /// write the figures as JSON to this file, or to standard output if it is -
    #[argh(option)]
    json: Option<PathBuf>,
}

/// Runs the load, prints a table, writes the files that were asked for.
///
/// # Errors
/// Also when single requests failed, after everything has been written.
pub fn run(command: Command) -> Result<(), Failure> {
    match command.what {
        What::Serve(options) => serve(&options),
        What::Decode(options) => steps::decode(options),
        What::Prefill(options) => steps::prefill(options),
        What::Drafts(options) => steps::drafts::drafts(options),
        What::Start(options) => start::start(&options),
    }
}

fn serve(options: &Options) -> Result<(), Failure> {
    let report = measure(options)?;
    match &options.json {
        // With JSON on standard output, the table goes to standard error.
        Some(path) if path.as_os_str() == STANDARD_OUTPUT => {
            eprint!("{}", report.table());
            print!("{}", report.json());
        }
        path => {
            print!("{}", report.table());
            path.as_ref()
                .map_or(Ok(()), |path| write(path, &report.json()))?;
        }
    }
    if options.large {
        eprint!("{}", peer());
    }
    match report.first_error {
        None => Ok(()),
        Some(first) => {
            let failed: usize = report.scenarios.iter().map(|figures| figures.errors).sum();
            let text = format!("{failed} requests failed, the first one with: {first}");
            Err(unavailable(text))
        }
    }
}

/// Instructions for measuring another server with this client.
fn peer() -> String {
    let model = target::REPOSITORY.unwrap_or("WEIGHTS_DIR");
    format!(
        "\nthe same of vLLM, in a machine's other hour:\n  \
         vllm serve {model} --port 8001 --no-enable-prefix-caching\n  \
         {} bench serve --large --url http://127.0.0.1:8001\n",
        target::BINARY
    )
}

fn measure(options: &Options) -> Result<Report, Failure> {
    let scenarios = scenarios(options)?;
    let key = options.key_file.as_deref().map(read).transpose()?;
    let endpoint = Endpoint::parse(&options.url, key).map_err(usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| unavailable(format!("no sockets: {cause}")))?;
    let model = options.model.clone();
    runtime.block_on(load::measure(&endpoint, model, &scenarios, options.pid))
}

/// Scenarios by name, or the one that the options for streams, requests and tokens describe.
fn scenarios(options: &Options) -> Result<Vec<Scenario>, Failure> {
    let (streams, requests) = (options.streams, options.requests);
    let numbers = [streams, requests, options.prompt_tokens, options.max_tokens];
    if numbers.contains(&Some(0)) {
        let text = "--streams, --requests, --prompt-tokens and --max-tokens must be at least 1";
        return Err(usage(text.to_owned()));
    }
    if numbers.iter().any(Option::is_some) {
        if options.large || !options.scenario.is_empty() {
            let text = "--scenario and --large fix streams, requests and tokens already: give one \
                        or the other";
            return Err(usage(text.to_owned()));
        }
        return Ok(vec![Scenario::custom(numbers)]);
    }
    if options.scenario.is_empty() {
        return Ok(match options.large {
            true => scenario::LARGE.to_vec(),
            false => scenario::SCENARIOS.to_vec(),
        });
    }
    let named = |name: &String| scenario::named(name).map_err(usage);
    options.scenario.iter().map(named).collect()
}

fn read(path: &Path) -> Result<String, Failure> {
    let text = operator_file::text(path, FILE_BYTES_MAX);
    let text = text.map_err(|cause| file_failure(path, &cause))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    output::write(path, text).map_err(|cause| file_failure(path, &cause))
}

fn file_failure(path: &Path, cause: &dyn fmt::Display) -> Failure {
    Exit::Io.failure(format!("{}: {cause}", path.display()))
}

/// Failure because of an invalid option; the text names it and the reason.
fn usage(text: impl fmt::Display) -> Failure {
    Exit::Usage.failure(text)
}

/// Failure because of a server that does not answer.
fn unavailable(text: impl fmt::Display) -> Failure {
    Exit::Unavailable.failure(text)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
