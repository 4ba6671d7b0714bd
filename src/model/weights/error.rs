//! Reasons for which a checkpoint is refused.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::names::INDEX;
use crate::target;
use step::executor::DeviceError;

/// Reason for which a checkpoint cannot be served. The text names the file, the tensor and the fix.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The path leads to no directory with a checkpoint; `problem` states a remedy last.
    #[error("{path}: {problem}")]
    Directory { path: PathBuf, problem: String },
    /// A packed file is damaged or not this binary's; `problem` states a remedy last.
    #[error("{path}: {problem}")]
    Packed { path: PathBuf, problem: String },
    /// A file is missing.
    #[error("{path}: is not there; {}", download())]
    Absent { path: PathBuf },
    /// Files that the directory must have are missing; `names` in their shortest form.
    #[error("{directory}: {names} missing; {hint}")]
    Incomplete {
        directory: PathBuf,
        names: String,
        hint: String,
    },
    /// A link leads to a missing file.
    #[error("{path}: is a link to {target}, which is not there; {}", download())]
    Dangling { path: PathBuf, target: PathBuf },
    /// The user of this process may not read a file or look into a directory.
    #[error(
        "{path}: the user of this process may not read it; allow it, as `chmod a+rX {path}` does"
    )]
    Denied { path: PathBuf },
    /// The path leads to something that is not a regular file.
    #[error(
        "{path}: is no regular file; put the file itself in its place: {}",
        download()
    )]
    NotRegular { path: PathBuf },
    /// Another user may have placed the file, or a link on its path.
    #[error("{path}: {}", distrust(why, directory))]
    Untrusted {
        path: PathBuf,
        directory: PathBuf,
        why: Distrust,
    },
    /// No file can have the name, or the name leads in a circle.
    #[error("{path}: {error}; give another path")]
    Unusable { path: PathBuf, error: io::Error },
    /// A file that must be small is large.
    #[error(
        "{path}: is larger than {bytes_max} bytes, which such a file never is; {}",
        download()
    )]
    LargeFile { path: PathBuf, bytes_max: u64 },
    /// A file name of the index leads out of the weights directory.
    #[error("{INDEX}: names {file}, which is no plain file name; {}", download())]
    Escapes { file: String },
    /// The content is of another kind than the name says; the problem ends with the fix.
    #[error("{file}: {problem}")]
    Foreign { file: String, problem: &'static str },
    /// The configuration states other facts than those compiled in.
    #[error("{problem}")]
    Config { problem: String },
    /// The sums of all tensors differ from the manifest's.
    #[error(
        "the checkpoint has {found} {what}, the manifest of this binary states {expected}; {}",
        download()
    )]
    Sum {
        what: &'static str,
        found: u64,
        expected: u64,
    },
    /// A record in the directory states another revision than the manifest.
    #[error(
        "{by} says revision {found}, this binary was built for {}; {}",
        target::REVISION.unwrap_or("none"),
        download()
    )]
    Revision { by: String, found: String },
    /// The operating system reported an error for a file.
    #[error("{file}: {error}")]
    Io { file: String, error: io::Error },
    /// The safetensors header is malformed.
    #[error("{file}: {problem}; download the file again")]
    Header { file: String, problem: String },
    /// The shard index is malformed or disagrees with the shards.
    #[error("{file}: {problem}; download the index and the shards again")]
    Index { file: String, problem: String },
    /// A tensor of the target is not in the checkpoint.
    #[error(
        "tensor {tensor} is missing ({count} in all); this is another model or another \
         quantisation than the binary was built for"
    )]
    Missing { tensor: String, count: usize },
    /// The checkpoint has a tensor that the target does not know.
    #[error(
        "{file}: tensor {tensor} is unknown; this is another model or another quantisation than \
         the binary was built for"
    )]
    Unexpected { file: String, tensor: String },
    /// A tensor has other dimensions than the target's.
    #[error(
        "{file}: tensor {tensor} is {found:?}, the binary was built for {expected:?}; use the \
         binary of this model"
    )]
    Shape {
        file: String,
        tensor: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// A tensor is stored in another element type than the target's.
    #[error(
        "{file}: tensor {tensor} is stored as {found}, the binary was built for {expected}; use \
         the binary of this quantisation"
    )]
    Dtype {
        file: String,
        tensor: String,
        found: String,
        expected: String,
    },
    /// A file has another size than that of the revision that the binary was built for.
    #[error("{file}: {found} bytes, expected {expected}; download the file again")]
    Size {
        file: String,
        found: u64,
        expected: u64,
    },
    /// A file became shorter after it was opened.
    #[error(
        "{file}: ends before its {bytes} bytes; it was cut while it was read. Download the file \
         again"
    )]
    Truncated { file: String, bytes: u64 },
    /// A file was written to while it was read.
    #[error("{file}: was written to while it was read; start again when nothing writes to it")]
    Changed { file: String },
    /// A weight or scale cannot be used.
    #[error("{file}: tensor {tensor} holds {}", wrong.at(*index))]
    Element {
        file: String,
        tensor: String,
        index: usize,
        wrong: Wrong,
    },
    /// The device has too little memory for the weights, or failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl WeightsError {
    /// Converts an error of the operating system for a path. Faults that last until a person mends
    /// them are separate from faults that a disk or a network may have at any time.
    pub(super) fn of_path(path: &Path, error: io::Error) -> WeightsError {
        let path = path.to_path_buf();
        let lasting = [Errno::LOOP, Errno::NAMETOOLONG, Errno::NOTDIR, Errno::INVAL];
        match error.kind() {
            ErrorKind::NotFound => WeightsError::Absent { path },
            ErrorKind::PermissionDenied => WeightsError::Denied { path },
            _ if Errno::from_io_error(&error).is_some_and(|code| lasting.contains(&code)) => {
                WeightsError::Unusable { path, error }
            }
            _ => WeightsError::Io {
                file: path.display().to_string(),
                error,
            },
        }
    }
}

/// Reason for which an element of a tensor cannot be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// A weight or scale that is infinite or not a number.
    NotFinite,
    /// An element of a stored head differs from the embedding that the head is tied to.
    Untied,
    /// A weight is 2^16 or more in magnitude.
    TooLarge(f32),
    /// A weight stored as F32 is no BF16 number.
    Narrow(f32),
    /// A power of two of MXFP4 is too small beside its row's largest.
    Apart,
}

impl Wrong {
    /// Text of the error with the fix.
    fn at(self, index: usize) -> String {
        match self {
            Wrong::NotFinite => {
                format!("a value that is not finite at element {index}; download the file again")
            }
            Wrong::Untied => format!(
                "another number than the embedding at element {index}, and this binary ties the \
                 two as config.json says, where transformers takes the stored head: set \
                 tie_word_embeddings to false there and tied_head to false in the manifest of {}, \
                 and build again",
                target::MODEL
            ),
            Wrong::TooLarge(value) => format!(
                "{value} at element {index}: products are of F16, which holds no weight of 65536 \
                 or more. Another download of the same file will not help; use a checkpoint whose \
                 weights are smaller"
            ),
            Wrong::Narrow(value) => format!(
                "{value} at element {index}, which is no BF16 number: this binary holds these \
                 weights of F32 in BF16, and none of their bits may be lost. Another download of \
                 the same file will not help; use a checkpoint whose weights are BF16 numbers"
            ),
            Wrong::Apart => format!(
                "a power of two at element {index} that is more than 2^24 below the largest of \
                 its row, and kernels would lose its weights; use a checkpoint without such rows"
            ),
        }
    }
}

/// Reason for which a link is not followed. Users are given by number.
#[derive(Debug)]
pub enum Distrust {
    /// Another user placed the link.
    LinkOf(u32, PathBuf),
    /// The path leads through another user's directory.
    DirectoryOf(u32, PathBuf),
    /// The path leads through a directory in which any user can place links.
    OpenToAll(PathBuf),
    /// The file is another user's, in a directory where any user can place files.
    FileOf(u32, PathBuf),
    /// The first user placed the link or name; the file to copy belongs to the other one.
    ChosenBy(u32, PathBuf, u32),
}

/// Text of the reason with the fix.
fn distrust(why: &Distrust, directory: &Path) -> String {
    let directory = directory.display();
    match why {
        Distrust::LinkOf(user, link) => format!(
            "the link {} is user {user}'s, not of the owner of {directory}; put a link of your \
             own or the file itself in its place",
            link.display()
        ),
        Distrust::DirectoryOf(user, on_the_way) => format!(
            "the link leads through {}, which is user {user}'s, not of the owner of {directory}; \
             put the file itself in the link's place, or `chown` that directory",
            on_the_way.display()
        ),
        Distrust::OpenToAll(on_the_way) => format!(
            "the link leads through {path}, where any user can place links; `chmod o-w {path}`",
            path = on_the_way.display()
        ),
        Distrust::FileOf(user, file) => format!(
            "the link leads to {}, which is user {user}'s in a directory that is open to all; put \
             the file itself in the link's place",
            file.display()
        ),
        Distrust::ChosenBy(user, file, owner) => format!(
            "user {user} placed the link {}, and the file is user {owner}'s: it is not copied; put \
             the file itself in the link's place",
            file.display()
        ),
    }
}

/// Command that downloads the checkpoint to this machine.
pub fn download() -> String {
    match (target::REPOSITORY, target::REVISION) {
        _ if !target::EMBEDDED.is_empty() => {
            format!(
                "or give none: the binary holds the files of {}",
                target::MODEL
            )
        }
        (None, _) => format!("take it from where the files of {} are", target::MODEL),
        (Some(repository), None) => format!("`hf download {repository}` brings it"),
        (Some(repository), Some(revision)) => {
            format!("`hf download {repository} --revision {revision}` brings it")
        }
    }
}
