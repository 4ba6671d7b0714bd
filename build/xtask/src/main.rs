//! `cargo xtask`: plan, action graph, verbs. `build/README.md` explains all three.

#[cfg(test)]
#[path = "advisories_tests.rs"]
mod advisories;
mod binary;
mod cli;
mod cmd;
mod cuda;
mod dist;
mod glibc;
mod graph;
mod plan;
mod server;
mod site;
#[cfg(test)]
#[path = "tidy_tests.rs"]
mod tidy;
mod toolchain;
mod weights;
mod wheel;
mod workflow;

use std::panic;
use std::process::{ExitCode, exit};

fn main() -> ExitCode {
    end_with_the_reader();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match cli::start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Exit code after the reader of standard output has closed it: that of a shell for SIGPIPE.
const READER_LEFT: i32 = 128 + 13;

/// Makes the process exit quietly when its reader closes standard output, as in `show TARGET |
/// head`: printing panics then.
fn end_with_the_reader() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.to_string().contains("Broken pipe") {
            exit(READER_LEFT);
        }
        default(info);
    }));
}
