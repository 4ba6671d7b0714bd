//! End of a process, and what it says then.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use host::log;
use model::TooLittle;
use model::weights::WeightsError;
use step::executor::DeviceError;

/// End of the process; the numbers follow sysexits.h but for the usual 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Usage = 2,
    Unavailable = 69,
    Internal = 70,
    /// There is no GPU that this binary can use.
    NoDevice = 71,
    Io = 74,
    /// It was asked to stop, and ended replies before their time.
    Cut = 75,
    Config = 78,
}

impl Exit {
    /// The failure that another process of this program ended with.
    pub fn of_code(code: i32) -> Option<Exit> {
        use Exit::{Config, Cut, Internal, Io, NoDevice, Unavailable, Usage};
        let failures = [Usage, Unavailable, Internal, NoDevice, Io, Cut, Config];
        failures.into_iter().find(|exit| *exit as i32 == code)
    }

    /// Says `why` and ends the process after `grace`, whatever its threads wait for by then.
    pub fn within(self, grace: Duration, why: impl fmt::Display) {
        let leave = move || {
            thread::sleep(grace);
            host::leave(self as i32)
        };
        let timer = thread::Builder::new().spawn(leave);
        log::line(why);
        if timer.is_err() {
            leave();
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a verb failed: what to say, and how to end.
#[derive(Debug, PartialEq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
        }
    }
}

/// Report of a model that cannot be used.
pub fn start_failure(cause: &(dyn Error + Send + Sync + 'static)) -> Failure {
    let exit = match cause.downcast_ref::<WeightsError>() {
        Some(WeightsError::Io { .. } | WeightsError::Truncated { .. }) => Exit::Io,
        Some(WeightsError::Device(error)) => device_exit(error),
        Some(_) => Exit::Config,
        None if cause.is::<TooLittle>() => Exit::Unavailable,
        None => cause.downcast_ref().map_or(Exit::Internal, device_exit),
    };
    Failure::new(exit, cause)
}

pub fn device_exit(error: &DeviceError) -> Exit {
    match error {
        DeviceError::Memory(_) => Exit::Unavailable,
        DeviceError::Absent(_) => Exit::NoDevice,
        DeviceError::Failed(_) => Exit::Internal,
        DeviceError::Weights(_) => Exit::Io,
    }
}

/// Writes to standard output.
///
/// # Errors
/// When it is closed.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        // Who reads has enough, as `head` does.
        ErrorKind::BrokenPipe => Failure::new(Exit::Io, ""),
        _ => Failure::new(Exit::Io, format!("standard output: {error}")),
    })
}
