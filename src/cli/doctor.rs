//! `doctor`: what stands in the way of serving, one line each.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use crate::backend::{self, Backend, parity};
use crate::model::{Plan, ledger};
use crate::target;
use crate::weights::{Layout, Progress};
use host::threads;

use super::boot::{self, Files};
use super::{Exit, Failure, about, machine, serve};

/// check this machine: GPU, memory, disk, limits, port, weights; a line each, ok or what to fix
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "doctor", help_triggers("--help"))]
pub struct Doctor {
    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(positional)]
    weights: Option<PathBuf>,

    /// port to be served on (default 8000)
    #[argh(option, default = "8000")]
    port: u16,
}

/// What one check found: something in order, or what to do.
pub type Finding = Result<String, String>;

/// Prints `ok` and `fix` lines.
///
/// # Errors
/// When anything has to be fixed.
pub fn run(options: &Doctor) -> Result<(), Failure> {
    let device = parity::describe();
    // That of a device that is not there is not asked.
    let memory = device.is_ok().then(memory);
    let mut findings = vec![serving(), processor(), machine::kernel(), device];
    if cfg!(feature = "cuda") {
        findings.extend([machine::holders(), machine::power()]);
    }
    findings.extend(memory);
    findings.extend([threads(), machine::open_files(), port(options.port)]);
    findings.push(weights(options.weights.as_deref()));
    findings.extend(options.weights.as_deref().map(machine::disk));
    for finding in &findings {
        let line = match finding {
            Ok(fine) => format!("ok   {fine}\n"),
            Err(fix) => format!("fix  {fix}\n"),
        };
        boot::print(&line)?;
    }
    match findings.iter().filter(|finding| finding.is_err()).count() {
        0 => Ok(()),
        count => Err(Failure::new(Exit::Unavailable, format!("{count} to fix"))),
    }
}

fn serving() -> Finding {
    boot::require_serving()
        .map(|()| about::version_line())
        .map_err(|failure| failure.message)
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(format!(
        "{cores} processor cores ({})",
        std::env::consts::ARCH
    ))
}

/// Whether the model fits, and with how many KV pages.
fn memory() -> Finding {
    let room = backend::room().map_err(|error| error.to_string())?;
    let plan = Plan::within::<Backend>(room, Layout::whole().without_prediction())
        .map_err(|error| error.to_string())?;
    let needed = ledger::mebibytes(plan.bytes());
    Ok(format!(
        "{needed} of memory are needed: {}",
        plan.room_words()
    ))
}

fn threads() -> Finding {
    let needed = serve::THREADS + boot::THREADS + backend::threads();
    let had = threads::require(needed).map_err(|why| why.to_string());
    had.map(|()| format!("{} threads can be had", needed + 1))
}

fn port(port: u16) -> Finding {
    match TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Ok(format!("port {port} is free")),
        Err(error) => Err(format!("port {port}: {error}; choose another with --port")),
    }
}

fn weights(directory: Option<&std::path::Path>) -> Finding {
    let files = Files::locate(directory).map_err(|failure| failure.message)?;
    let opened = files.open(Arc::new(Progress::default()));
    opened.map_err(|error| error.to_string())?;
    if !target::TOKENIZER_FILE.is_empty() {
        boot::chat_model(&files).map_err(|failure| failure.message)?;
    }
    Ok(match files {
        Files::Embedded => format!("weights of {} are inside this binary", target::MODEL_ID),
        files => format!("weights {files}"),
    })
}
