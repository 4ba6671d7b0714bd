//! The boot story: read the command line, run one verb, end with a code that scripts can read.
//!
//! `serve` binds its address first, so that /health can tell how loading goes; then loads
//! tokenizer, template and weights; then answers requests until a signal; then lets open replies
//! finish.

use std::process::ExitCode;

use atlas::bench;
use atlas::cli::{self, Exit, Failure, Parsed, Verb};
use atlas::start;
use host::allocator::{self, Allocator};
use host::log::{self, Level};
use model::target;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    allocator::prepare();
    log::set_level(Level::Info);
    let arguments: Option<Vec<String>> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.into_string().ok())
        .collect();
    let Some(arguments) = arguments else {
        log::line("an argument is not UTF-8");
        return Exit::Usage.into();
    };
    let outcome = match cli::parse(target::BINARY, &arguments) {
        Parsed::Run(verb) => run(*verb),
        Parsed::Say(text) => start::boot::print(&text),
        Parsed::Wrong(failure) => Err(failure),
    };
    match outcome {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => {
            let failure = cli::usage::explained(target::BINARY, &arguments, failure);
            failure.message.lines().for_each(log::line);
            failure.exit.into()
        }
    }
}

fn run(verb: Verb) -> Result<(), Failure> {
    verb.require_threads()?;
    match verb {
        Verb::Serve(options) => cli::serve::run(&options),
        Verb::Generate(options) => cli::generate::run(&options),
        Verb::Batch(options) => cli::batch::run(&options),
        Verb::About(options) => cli::about::run(&options),
        Verb::Verify(options) => cli::verify::run(&options),
        Verb::Doctor(options) => cli::doctor::run(&options),
        Verb::Connect(options) => cli::connect::run(&options),
        Verb::Try(options) => cli::ask::run(&options),
        Verb::Import(options) => cli::transfer::import::run(&options),
        Verb::Pack(options) => cli::pack::run(&options),
        Verb::Bundle(options) => cli::transfer::bundle::run(&options),
        Verb::Install(options) => cli::transfer::install::run(&options),
        Verb::Uninstall(options) => cli::transfer::install::remove(&options),
        Verb::Selftest(options) => cli::selftest::run(&options),
        Verb::Synth(options) => cli::synth::run(&options),
        Verb::Logits(options) => cli::logits::run(&options),
        Verb::Bench(options) => bench::run(options),
    }
}
