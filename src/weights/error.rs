//! Why a checkpoint was refused.

use std::fmt;
use std::path::PathBuf;

use crate::engine::executor::DeviceError;

/// A checkpoint that cannot be served. The text names the file, the tensor and the fix.
#[derive(Debug)]
pub enum WeightsError {
    /// Neither an index nor a single file is there.
    Empty { directory: PathBuf },
    /// The path leads to something that is not a regular file.
    NotRegular { path: PathBuf },
    /// A file name that leaves the weights directory.
    Escapes { file: String },
    /// The operating system refused.
    Io { file: String, error: std::io::Error },
    /// The safetensors header is malformed.
    Header { file: String, problem: String },
    /// The shard index is malformed or disagrees with the shards.
    Index { file: String, problem: String },
    /// A tensor of the target is not in the checkpoint.
    Missing { tensor: String, count: usize },
    /// A tensor that the target does not know.
    Unexpected { file: String, tensor: String },
    /// A tensor with other dimensions than the target's.
    Shape {
        file: String,
        tensor: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// A tensor stored in another element type than the target's.
    Dtype {
        file: String,
        tensor: String,
        found: String,
        expected: String,
    },
    /// A file of another size than the revision the binary was built for.
    Size {
        file: String,
        found: u64,
        expected: u64,
    },
    /// A file of another content than the revision the binary was built for.
    Digest {
        file: String,
        found: String,
        expected: String,
    },
    /// A file that ends before the bytes it had when it was opened.
    Truncated { file: String, bytes: u64 },
    /// A file that was written to while it was read.
    Changed { file: String },
    /// A weight or scale that is infinite or not a number.
    NotFinite {
        file: String,
        tensor: String,
        index: usize,
    },
    /// A weight of 2^16 or more in magnitude.
    TooLarge {
        file: String,
        tensor: String,
        index: usize,
        value: f32,
    },
    /// The device has no room for the weights, or failed.
    Device(DeviceError),
}

impl From<DeviceError> for WeightsError {
    fn from(error: DeviceError) -> WeightsError {
        WeightsError::Device(error)
    }
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsError::Empty { directory } => write!(
                f,
                "{}: no model.safetensors.index.json and no model.safetensors; give the directory \
                 that holds the checkpoint",
                directory.display()
            ),
            WeightsError::NotRegular { path } => {
                write!(
                    f,
                    "{}: not a regular file; download it again",
                    path.display()
                )
            }
            WeightsError::Escapes { file } => write!(
                f,
                "{file}: leads out of the weights directory; shards must lie beside the index"
            ),
            WeightsError::Io { file, error } => write!(f, "{file}: {error}"),
            WeightsError::Header { file, problem } => {
                write!(f, "{file}: {problem}; download the file again")
            }
            WeightsError::Index { file, problem } => {
                write!(
                    f,
                    "{file}: {problem}; download the index and the shards again"
                )
            }
            WeightsError::Missing { tensor, count } => write!(
                f,
                "tensor {tensor} is missing ({count} in all); this is another model or another \
                 quantisation than the binary was built for"
            ),
            WeightsError::Unexpected { file, tensor } => write!(
                f,
                "{file}: tensor {tensor} is unknown; this is another model or another \
                 quantisation than the binary was built for"
            ),
            WeightsError::Shape {
                file,
                tensor,
                found,
                expected,
            } => write!(
                f,
                "{file}: tensor {tensor} is {found:?}, the binary was built for {expected:?}; use \
                 the binary of this model"
            ),
            WeightsError::Dtype {
                file,
                tensor,
                found,
                expected,
            } => write!(
                f,
                "{file}: tensor {tensor} is stored as {found}, the binary was built for \
                 {expected}; use the binary of this quantisation"
            ),
            WeightsError::Size {
                file,
                found,
                expected,
            } => write!(
                f,
                "{file}: {found} bytes, expected {expected}; download the file again"
            ),
            WeightsError::Digest {
                file,
                found,
                expected,
            } => write!(
                f,
                "{file}: SHA-256 {found}, expected {expected}; download the file again"
            ),
            WeightsError::Truncated { file, bytes } => write!(
                f,
                "{file}: ends before its {bytes} bytes; it was cut while it was read. Download \
                 the file again"
            ),
            WeightsError::Changed { file } => write!(
                f,
                "{file}: was written to while it was read; start again when nothing writes to it"
            ),
            WeightsError::NotFinite {
                file,
                tensor,
                index,
            } => write!(
                f,
                "{file}: tensor {tensor} holds a value that is not finite at element {index}; \
                 download the file again"
            ),
            WeightsError::TooLarge {
                file,
                tensor,
                index,
                value,
            } => write!(
                f,
                "{file}: tensor {tensor} holds {value} at element {index}: products are of F16, \
                 which holds no weight of 65536 or more. Another download of the same file will \
                 not help; use a checkpoint whose weights are smaller"
            ),
            WeightsError::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WeightsError {}
