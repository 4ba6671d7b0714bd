//! `doctor`: reports the obstacles to serving on this machine, one line each.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::bench::client::Endpoint;
use engine::Limits;
use host::threads;
use model::Plan;
use model::backend::{self, Backend};
use model::ops::Footprint;
use model::target;
use model::weights::{Layout, Progress};

use super::size::gigabytes;
use super::{Exit, Failure, serve};
use crate::start::boot::{self, Drafting, Files};
use crate::start::machine::{self, Finding};

/// Time for a server on the port to answer which program it is.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Prints `ok` and `fix` lines.
///
/// # Errors
/// When anything has to be fixed.
pub fn run(options: &Doctor) -> Result<(), Failure> {
    let device = backend::describe();
    let (weights, layout) = weights(options.weights.as_deref());
    // Memory is checked only if there is a device.
    let memory = device.is_ok().then(|| memory(layout));
    // The disk is checked only if the weights can be used.
    let directory = options.weights.as_deref().filter(|_| weights.is_ok());
    let processor = Ok(machine::processor());
    let mut findings = vec![serving(), processor, machine::kernel(), device];
    if cfg!(feature = "cuda") {
        findings.extend([machine::holders(), machine::power()]);
    }
    findings.extend(memory);
    findings.extend(tiers().into_iter().map(Ok));
    findings.extend([threads(), machine::open_files(), port(options.port)]);
    findings.push(weights);
    findings.extend(directory.map(machine::disk));
    machine::report(&findings)
}

fn serving() -> Finding {
    boot::require_serving().map_err(|failure| failure.message)?;
    Ok(boot::version_line())
}

/// Finding about memory: the plan of `serve` for weights of this layout.
fn memory(layout: Layout) -> Finding {
    let memory = backend::available().map_err(|error| error.to_string())?;
    let loaded = Drafting::of(Limits::of(&target::FACTS)).loaded(layout);
    let plan = Plan::within::<Backend>(memory, loaded);
    let plan = plan.map_err(|error| error.to_string())?;
    Ok(plan.lines().join("\n     "))
}

/// Lines about memory for prompts: the host's, unless it is also the device's, and a disk's.
fn tiers() -> Vec<String> {
    let host = Backend::host_memory();
    let most = host.bytes.filter(|_| target::HOST_RESERVE.is_none());
    let memory = most.map(|most| {
        let most = gigabytes(most.saturating_sub(host.server));
        format!(
            "{most} of the host's memory may be taken: with part of it, serve --cache-host keeps \
             prompts of agents that take turns, which the device has no place for"
        )
    });
    let disk = "serve --cache-dir DIR --cache-disk 200GB keeps such prompts on a disk, and finds \
                them there after a restart: of use where the disk reads a gigabyte a second";
    memory.into_iter().chain([disk.to_owned()]).collect()
}

fn threads() -> Finding {
    let needed = serve::THREADS + boot::THREADS + backend::threads();
    let had = threads::require(needed).map_err(|why| why.to_string());
    had.map(|()| format!("{} threads can be had", needed + 1))
}

fn port(port: u16) -> Finding {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(format!("port {port} is free")),
        Err(error) => {
            let why = holder(port).unwrap_or_else(|| error.to_string());
            Err(format!("port {port}: {why}; choose another with --port"))
        }
    }
}

/// Description of a server of this program on the port, if it answers in time.
fn holder(port: u16) -> Option<String> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let asked = async {
        let endpoint = Endpoint::parse(&format!("http://{}:{port}", Ipv4Addr::LOCALHOST), None);
        let mut connection = endpoint.ok()?.connect().await.ok()?;
        let Some(target) = connection.target().await else {
            let locked = connection.is_locked().await;
            return locked.then(|| "an Atlas that asks for an API key has it".to_string());
        };
        let model = connection.first_model().await.ok()?;
        Some(format!("{target} has it and serves {model}"))
    };
    let answered = runtime.block_on(async { timeout(HOLDER_TIMEOUT, asked).await });
    answered.ok().flatten()
}

/// Finding about the weights, and their layout; the target's layout if the weights cannot be used.
fn weights(directory: Option<&Path>) -> (Finding, Layout) {
    match opened(directory) {
        Ok((text, layout)) => (Ok(text), layout),
        Err(failure) => (Err(failure.message), Layout::whole()),
    }
}

fn opened(directory: Option<&Path>) -> Result<(String, Layout), Failure> {
    let files = Files::locate(directory)?;
    let opened = files.open(Arc::new(Progress::default()));
    let checkpoint = opened.map_err(|error| Exit::Config.failure(error))?;
    if !target::TOKENIZER_FILE.is_empty() {
        boot::chat_model(&files)?;
    }
    let text = match files {
        Files::Embedded => format!("weights of {} are inside this binary", target::MODEL_ID),
        files => format!("weights {files}"),
    };
    Ok((text, checkpoint.layout()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::{canned, whole};

    fn port_owner(answer: fn(&str) -> String) -> Option<String> {
        let url = canned(answer);
        holder(url.rsplit(':').next().unwrap().parse().unwrap())
    }

    fn refused(challenge: &str) -> String {
        let refused = whole("401 Unauthorized", "{}");
        let header = format!("\r\nwww-authenticate: {challenge}\r\n");
        refused.replacen("\r\n", &header, 1)
    }

    #[test]
    fn a_server_of_ours_that_asks_for_a_key_is_known() {
        let ours = port_owner(|_| refused("Bearer realm=\"Atlas\""));
        assert_eq!(
            ours.as_deref(),
            Some("an Atlas that asks for an API key has it")
        );
        assert_eq!(port_owner(|_| refused("Bearer")), None);
    }
}
