//! Reading safetensors files: 8 bytes of header length, JSON header, data.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of the header's length, which is little-endian.
pub(crate) const LENGTH_BYTES: usize = 8;
const METADATA: &str = "__metadata__";

pub(crate) fn fail<T>(tensor: &str, problem: impl fmt::Display) -> Result<T, String> {
    Err(format!("tensor {tensor}: {problem}"))
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
///
/// # Errors
/// Message that says why the file is no safetensors file.
pub(crate) fn split(file: &[u8]) -> Result<(BTreeMap<String, Entry>, &[u8]), String> {
    let length = file.split_first_chunk::<LENGTH_BYTES>();
    let (length, rest) = length.ok_or("shorter than the length of a safetensors header")?;
    let length = u64::from_le_bytes(*length);
    let at = usize::try_from(length).ok();
    let parts = at.and_then(|at| rest.split_at_checked(at));
    let too_long = || format!("header of {length} bytes is longer than the file");
    let (text, data) = parts.ok_or_else(too_long)?;
    let json = |error| format!("malformed safetensors header: {error}");
    let mut entries: BTreeMap<String, Value> = serde_json::from_slice(text).map_err(json)?;
    entries.remove(METADATA);
    let entry = |(name, value)| Ok((name, serde_json::from_value(value).map_err(json)?));
    let entries = entries.into_iter().map(entry);
    Ok((entries.collect::<Result<_, String>>()?, data))
}

pub(crate) fn slice<'a>(name: &str, entry: &Entry, data: &'a [u8]) -> Result<&'a [u8], String> {
    let [start, end] = entry.data_offsets;
    match data.get(start..end) {
        Some(bytes) => Ok(bytes),
        None => fail(name, format!("offsets {start}..{end} lie outside the file")),
    }
}
