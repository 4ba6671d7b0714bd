//! Reading safetensors files: 8 bytes of header length, JSON header, data.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of the header's length, which is little-endian.
pub(crate) const LENGTH_BYTES: usize = 8;
const METADATA: &str = "__metadata__";

/// A checkpoint file that is malformed, or that cannot be transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointError {
    /// Tensor, or empty for the file.
    pub tensor: String,
    /// Fault, in words.
    pub problem: String,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tensor.is_empty() {
            true => f.write_str(&self.problem),
            false => write!(f, "tensor {}: {}", self.tensor, self.problem),
        }
    }
}

impl std::error::Error for CheckpointError {}

pub(crate) fn fail<T>(tensor: &str, problem: impl Into<String>) -> Result<T, CheckpointError> {
    let (tensor, problem) = (tensor.into(), problem.into());
    Err(CheckpointError { tensor, problem })
}

/// One entry of a safetensors header.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Entry {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// First byte and end of the tensor in the data section.
    pub data_offsets: [usize; 2],
}

/// Header without its metadata, and the data section.
pub(crate) fn split(file: &[u8]) -> Result<(BTreeMap<String, Entry>, &[u8]), CheckpointError> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return fail("", "shorter than the length of a safetensors header");
    };
    let length = u64::from_le_bytes(*length);
    let Some((text, data)) = usize::try_from(length)
        .ok()
        .and_then(|at| rest.split_at_checked(at))
    else {
        return fail(
            "",
            format!("header of {length} bytes is longer than the file"),
        );
    };
    let json = |error: serde_json::Error| CheckpointError {
        tensor: String::new(),
        problem: format!("malformed safetensors header: {error}"),
    };
    let mut entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(json)?;
    entries.remove(METADATA);
    let typed = entries.into_iter().map(|(name, value)| {
        let entry = serde_json::from_value(value).map_err(json)?;
        Ok((name, entry))
    });
    Ok((typed.collect::<Result<_, CheckpointError>>()?, data))
}

pub(crate) fn slice<'a>(
    name: &str,
    entry: &Entry,
    data: &'a [u8],
) -> Result<&'a [u8], CheckpointError> {
    let [start, end] = entry.data_offsets;
    match data.get(start..end) {
        Some(bytes) => Ok(bytes),
        None => fail(name, format!("offsets {start}..{end} lie outside the file")),
    }
}
