//! Failures of a plan or of a run of its graph.

use std::path::{Path, PathBuf};

/// An error of the graph. Each names the action, file or argument with the fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan itself is wrong: a bug in the code that made it.
    #[error("plan of `{label}`: {what}")]
    Plan { label: String, what: String },
    /// The plan needs programs that this machine lacks; `what` says how to install them.
    #[error("{what}")]
    Host { what: String },
    /// A declared file of the workspace does not exist.
    #[error("`{label}` needs {path}: {why}")]
    Input {
        label: String,
        path: PathBuf,
        why: String,
    },
    /// The action ran and failed; `output` is its printed text.
    #[error("`{label}` failed: {why}\n  {}{}", argv.join(" "), quoted(output))]
    Failed {
        label: String,
        argv: Vec<String>,
        why: String,
        output: String,
    },
    /// The action succeeded without leaving a declared output.
    #[error("`{label}` succeeded but left no `{output}`, which it declares as output")]
    Missing { label: String, output: String },
    /// The host refused a file operation.
    #[error("{doing} {path}: {why}")]
    Io {
        doing: String,
        path: PathBuf,
        why: std::io::Error,
    },
}

impl Error {
    /// A mistake in the plan of the action `label`.
    pub fn plan(label: &str, what: impl Into<String>) -> Error {
        Error::Plan {
            label: label.to_string(),
            what: what.into(),
        }
    }

    /// Failure of an action that ran.
    pub fn failed(label: &str, argv: Vec<String>, why: String, output: String) -> Error {
        let label = label.to_string();
        Error::Failed {
            label,
            argv,
            why,
            output,
        }
    }

    /// Conversion of an I/O error of the host, for `map_err`.
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

/// Output of an action, indented line by line.
fn quoted(output: &str) -> String {
    let lines = output.lines().map(|line| format!("\n  | {line}"));
    lines.collect()
}
