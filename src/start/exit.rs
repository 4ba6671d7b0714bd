//! Exit codes of a process, and failures with their messages.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use host::log;
use model::TooLittle;
use model::weights::WeightsError;
use step::executor::DeviceError;

/// Exit code of the process; the numbers follow sysexits.h, except 2 for wrong usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Usage = 2,
    Unavailable = 69,
    Internal = 70,
    /// There is no GPU that this binary can use.
    NoDevice = 71,
    Io = 74,
    /// The process was told to stop, and cut off replies.
    Cut = 75,
    Config = 78,
}

impl Exit {
    /// Exit code with the number `code`, which another process of this program had.
    pub fn of_code(code: i32) -> Option<Exit> {
        use Exit::{Config, Cut, Internal, Io, NoDevice, Unavailable, Usage};
        let failures = [Usage, Unavailable, Internal, NoDevice, Io, Cut, Config];
        failures.into_iter().find(|exit| *exit as i32 == code)
    }

    /// Failure that ends the process with this exit code and prints `message`.
    pub fn failure(self, message: impl fmt::Display) -> Failure {
        let message = message.to_string();
        Failure {
            exit: self,
            message,
        }
    }

    /// A failure about a file: its path, and the problem.
    pub fn at(self, path: &Path, problem: impl fmt::Display) -> Failure {
        self.failure(format_args!("{}: {problem}", path.display()))
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

/// Failure of a verb: message and exit code.
#[derive(Debug, PartialEq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

/// Failure of a start whose model cannot be used because of `cause`.
pub fn start_failure(cause: &(dyn Error + Send + Sync + 'static)) -> Failure {
    let exit = match cause.downcast_ref::<WeightsError>() {
        Some(WeightsError::Io { .. } | WeightsError::Truncated { .. }) => Exit::Io,
        Some(WeightsError::Device(error)) => device_exit(error),
        Some(_) => Exit::Config,
        None if cause.is::<TooLittle>() => Exit::Unavailable,
        None => cause.downcast_ref().map_or(Exit::Internal, device_exit),
    };
    exit.failure(cause)
}

/// Makes reports of a model that cannot be used from errors.
macro_rules! reports {
    ($($error:ty)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                start_failure(&error)
            }
        }
    )*};
}

reports! { WeightsError DeviceError TooLittle }

impl From<Box<dyn Error + Send + Sync>> for Failure {
    fn from(error: Box<dyn Error + Send + Sync>) -> Failure {
        start_failure(error.as_ref())
    }
}

pub fn device_exit(error: &DeviceError) -> Exit {
    match error {
        DeviceError::Memory(_) => Exit::Unavailable,
        DeviceError::Absent(_) => Exit::NoDevice,
        DeviceError::Failed(_) => Exit::Internal,
        DeviceError::Weights(_) => Exit::Io,
    }
}

/// Writes to standard output, unbuffered.
///
/// # Errors
/// When it is closed.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        // The reader has enough, as `head` does, so there is no message.
        ErrorKind::BrokenPipe => Exit::Io.failure(""),
        _ => Exit::Io.failure(format!("standard output: {error}")),
    })
}
