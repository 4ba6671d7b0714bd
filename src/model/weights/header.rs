//! The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes.
//!
//! Format: <https://huggingface.co/docs/safetensors>. Everything is checked before any tensor is
//! read; a header that passes describes every byte of the file exactly once.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

pub use crate::target::Dtype;

/// Largest header in bytes, as in the format's description.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Largest number of tensors in one file; five times that of the largest checkpoint known.
pub const TENSORS_MAX: usize = 600_000;
/// Largest number of dimensions of a tensor.
const RANK_MAX: usize = 8;
/// Bytes of the length field in front of the JSON text.
pub const LENGTH_BYTES: u64 = 8;

impl Dtype {
    fn parse(name: &str) -> Option<Dtype> {
        Some(match name {
            "U8" => Dtype::U8,
            "F8_E4M3" => Dtype::F8E4M3,
            "BF16" => Dtype::Bf16,
            "F32" => Dtype::F32,
            "BOOL" | "I8" | "F8_E5M2" | "F8_E8M0" => Dtype::Other(1),
            "I16" | "U16" | "F16" => Dtype::Other(2),
            "I32" | "U32" => Dtype::Other(4),
            "I64" | "U64" | "F64" => Dtype::Other(8),
            _ => return None,
        })
    }
}

/// Type, dimensions and location of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Range of the tensor's bytes, counted from the start of the file.
    pub bytes: Range<u64>,
}

/// Reads the length field: bytes of JSON in a file of `file_bytes` bytes.
///
/// # Errors
/// The fault of the length.
pub fn json_bytes(length: [u8; 8], file_bytes: u64) -> Result<usize, String> {
    let bytes = u64::from_le_bytes(length);
    if bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "header of {bytes} bytes, at most {HEADER_BYTES_MAX} are allowed"
        ));
    }
    if bytes > file_bytes - LENGTH_BYTES {
        return Err(format!("header of {bytes} bytes in a file of {file_bytes}"));
    }
    Ok(bytes as usize)
}

/// Parses and checks the JSON text of a file of `file_bytes` bytes.
///
/// # Errors
/// The fault, naming the tensor.
pub fn parse(json: &[u8], file_bytes: u64) -> Result<BTreeMap<String, TensorInfo>, String> {
    let text = std::str::from_utf8(json).map_err(|_| "header is not UTF-8".to_string())?;
    let header: Header = serde_json::from_str(text).map_err(|e| format!("header: {e}"))?;
    let data_start = LENGTH_BYTES + json.len() as u64;
    let mut tensors = Vec::with_capacity(header.0.len());
    for (name, entry) in header.0 {
        let info = entry
            .check(data_start, file_bytes)
            .map_err(|e| format!("tensor {name}: {e}"))?;
        tensors.push((name, info));
    }
    check_cover(&mut tensors, data_start..file_bytes)?;
    into_map(tensors)
}

fn into_map(tensors: Vec<(String, TensorInfo)>) -> Result<BTreeMap<String, TensorInfo>, String> {
    let count = tensors.len();
    let names: BTreeMap<String, TensorInfo> = tensors.into_iter().collect();
    if names.len() != count {
        return Err("header names a tensor twice".to_string());
    }
    Ok(names)
}

/// Checks that tensors follow one another without gap or overlap up to the end of the file.
fn check_cover(tensors: &mut [(String, TensorInfo)], data: Range<u64>) -> Result<(), String> {
    tensors.sort_by_key(|(_, info)| info.bytes.start);
    let mut end = data.start;
    for (name, info) in tensors.iter() {
        if info.bytes.start != end {
            let what = if info.bytes.start < end {
                "overlaps the one before"
            } else {
                "leaves a hole"
            };
            return Err(format!("tensor {name} {what}"));
        }
        end = info.bytes.end;
    }
    if end != data.end {
        return Err(format!(
            "tensors end at byte {end} of a file of {} bytes",
            data.end
        ));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    fn check(&self, data_start: u64, file_bytes: u64) -> Result<TensorInfo, String> {
        let dtype = Dtype::parse(&self.dtype)
            .ok_or_else(|| format!("unknown element type {:?}", self.dtype))?;
        let bytes = self.bytes(dtype)?;
        let [begin, end] = self.data_offsets;
        if begin.checked_add(bytes) != Some(end) {
            return Err(format!("offsets {begin}..{end} do not hold {bytes} bytes"));
        }
        if end > file_bytes - data_start {
            return Err(format!(
                "ends at byte {end} of {} data bytes",
                file_bytes - data_start
            ));
        }
        if begin % dtype.bytes() as u64 != 0 {
            return Err(format!(
                "offset {begin} is not aligned to {} bytes",
                dtype.bytes()
            ));
        }
        let shape = self.shape.iter().map(|&n| n as usize).collect();
        Ok(TensorInfo {
            dtype,
            shape,
            bytes: data_start + begin..data_start + end,
        })
    }

    fn bytes(&self, dtype: Dtype) -> Result<u64, String> {
        if self.shape.len() > RANK_MAX {
            return Err(format!(
                "{} dimensions, at most {RANK_MAX}",
                self.shape.len()
            ));
        }
        if self.shape.contains(&0) {
            return Err(format!("shape {:?} is empty", self.shape));
        }
        self.shape
            .iter()
            .try_fold(dtype.bytes() as u64, |bytes, &n| bytes.checked_mul(n))
            .ok_or_else(|| format!("shape {:?} overflows", self.shape))
    }
}

/// Entries in file order; a duplicate key is found by the caller.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("__metadata__ is given twice"));
                }
                map.next_value::<BTreeMap<String, String>>()?;
                continue;
            }
            if entries.len() == TENSORS_MAX {
                return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(Header(entries))
    }
}
