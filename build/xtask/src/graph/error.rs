//! What can go wrong between a plan and its outputs.

use std::fmt;
use std::path::{Path, PathBuf};

/// Errors of the graph. Each names the action, file or argument it is about.
#[derive(Debug)]
pub enum Error {
    /// The plan itself is wrong: a bug of the code that made it.
    Plan { label: String, what: String },
    /// The plan needs programs that this machine lacks; `what` says how to get them.
    Host { what: String },
    /// A declared file of the workspace is not there.
    Input {
        label: String,
        path: PathBuf,
        why: String,
    },
    /// The action ran and failed. `output` is what it printed.
    Failed {
        label: String,
        argv: Vec<String>,
        why: String,
        output: String,
    },
    /// The action succeeded without leaving what it declares.
    Missing { label: String, output: String },
    /// The host refused a file operation.
    Io {
        doing: String,
        path: PathBuf,
        why: std::io::Error,
    },
}

impl Error {
    /// Wraps an error of the host; for `map_err`.
    pub(crate) fn io<'a>(
        doing: &'a str,
        path: &'a Path,
    ) -> impl FnOnce(std::io::Error) -> Error + use<'a> {
        move |why| Error::Io {
            doing: doing.to_string(),
            path: path.to_path_buf(),
            why,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plan { label, what } => write!(f, "plan of `{label}`: {what}"),
            Error::Host { what } => f.write_str(what),
            Error::Input { label, path, why } => {
                write!(f, "`{label}` needs {}: {why}", path.display())
            }
            Error::Failed {
                label,
                argv,
                why,
                output,
            } => {
                write!(f, "`{label}` failed: {why}\n  {}", argv.join(" "))?;
                output
                    .lines()
                    .try_for_each(|line| write!(f, "\n  | {line}"))
            }
            Error::Missing { label, output } => {
                write!(
                    f,
                    "`{label}` succeeded but left no `{output}`, which it declares as output"
                )
            }
            Error::Io { doing, path, why } => write!(f, "{doing} {}: {why}", path.display()),
        }
    }
}

impl std::error::Error for Error {}
