//! `cargo xtask`: plan, action graph, verbs. `build/README.md` explains all three.

#[cfg(test)]
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
mod tidy;
mod toolchain;
mod weights;
mod wheel;
mod workflow;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match cli::start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
