//! Reads GGUF: header, metadata, descriptions of tensors, data.
//!
//! Format: the ggml project's `docs/gguf.md`, versions 2 and 3, little-endian.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;

use super::blocks::Kind;
use super::{GgufError, fail};

const MAGIC: &[u8; 4] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
/// Key of the alignment of tensors, bytes.
const ALIGNMENT: &str = "general.alignment";
/// Alignment of tensors where the key is absent, bytes.
const ALIGNMENT_USUAL: u64 = 32;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 4;
/// Deepest nesting of lists.
const NESTING_MAX: usize = 4;
/// Fewest bytes of a key with its value.
const KEY_BYTES_LEAST: usize = 8 + 4 + 1;
/// Fewest bytes of a tensor's description.
const TENSOR_BYTES_LEAST: usize = 8 + 4 + 4 + 8;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Single(f32),
    Double(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// A value, and its offset in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub offset: usize,
    pub value: Value,
}

/// A tensor, as the file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Offset of the description in the file, bytes.
    pub offset: usize,
    pub kind: Kind,
    /// Elements in each dimension, columns first.
    pub dimensions: Vec<usize>,
    pub data: &'a [u8],
}

/// A whole GGUF file in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf<'a> {
    pub metadata: BTreeMap<String, Entry>,
    pub tensors: BTreeMap<String, Tensor<'a>>,
}

impl<'a> Gguf<'a> {
    /// Parses a file in memory.
    ///
    /// # Errors
    /// The first violation of the format: data that ends outside of the file, duplicates, or
    /// overlaps.
    pub fn parse(bytes: &'a [u8]) -> Result<Gguf<'a>, GgufError> {
        let mut reader = Reader { bytes, at: 0 };
        let (tensors, keys) = reader.header()?;
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let offset = reader.at;
            let (key, entry) = reader.entry()?;
            match metadata.entry(key) {
                Place::Occupied(place) => return fail(offset, of_key(place.key()), "comes twice"),
                Place::Vacant(place) => place.insert(entry),
            };
        }
        let mut described = BTreeMap::new();
        for _ in 0..tensors {
            let description = reader.description()?;
            match described.entry(description.name.clone()) {
                Place::Occupied(_) => return description.wrong("comes twice"),
                Place::Vacant(place) => place.insert(description),
            };
        }
        let alignment = alignment(&metadata)?;
        let data = reader.at.next_multiple_of(alignment).min(bytes.len());
        let tensors = place(described, &bytes[data..], alignment)?;
        Ok(Gguf { metadata, tensors })
    }
}

/// Name of a key in errors.
pub fn of_key(key: &str) -> String {
    format!("key `{key}`")
}

/// Name of a tensor in errors.
pub fn of_tensor(name: &str) -> String {
    format!("tensor `{name}`")
}

fn alignment(metadata: &BTreeMap<String, Entry>) -> Result<usize, GgufError> {
    let Some(entry) = metadata.get(ALIGNMENT) else {
        return Ok(ALIGNMENT_USUAL as usize);
    };
    match &entry.value {
        Value::Unsigned(n) if n.is_power_of_two() && (8..=1 << 20).contains(n) => Ok(*n as usize),
        value => fail(
            entry.offset,
            of_key(ALIGNMENT),
            format!("{value:?} is no power of two from 8"),
        ),
    }
}

/// Gives each tensor its data, which may not overlap another tensor's data.
fn place(
    described: BTreeMap<String, Description>,
    data: &[u8],
    alignment: usize,
) -> Result<BTreeMap<String, Tensor<'_>>, GgufError> {
    let mut in_order: Vec<Description> = described.into_values().collect();
    in_order.sort_by_key(|tensor| tensor.start);
    let (mut end, mut placed) = (0, BTreeMap::new());
    for tensor in in_order {
        let bytes = tensor.bytes()?;
        if tensor.start < end {
            return tensor.wrong("lies over the one before it");
        }
        if tensor.start % alignment != 0 {
            return tensor.wrong(format!("begins at no multiple of {alignment} bytes"));
        }
        let after = tensor.start.checked_add(bytes);
        let Some(own) = after.and_then(|after| data.get(tensor.start..after)) else {
            return tensor.wrong(format!(
                "has {bytes} bytes from {}, of {} in the file",
                tensor.start,
                data.len()
            ));
        };
        end = tensor.start + bytes;
        let described = Tensor {
            offset: tensor.offset,
            kind: tensor.kind,
            dimensions: tensor.dimensions,
            data: own,
        };
        placed.insert(tensor.name, described);
    }
    Ok(placed)
}

/// Description of a tensor, before its data are known.
struct Description {
    offset: usize,
    name: String,
    kind: Kind,
    dimensions: Vec<usize>,
    /// Offset of the first byte in the data section.
    start: usize,
}

impl Description {
    fn wrong<T>(&self, problem: impl Into<String>) -> Result<T, GgufError> {
        fail(self.offset, of_tensor(&self.name), problem)
    }

    /// Bytes of the whole tensor. Blocks are along the first dimension.
    fn bytes(&self) -> Result<usize, GgufError> {
        let (block, bytes) = (self.kind.elements(), self.kind.bytes());
        let row = self.dimensions.first().copied().unwrap_or(0);
        if row == 0 || row % block != 0 {
            return self.wrong(format!("rows of {row} elements are no blocks of {block}"));
        }
        let mut rows = self.dimensions[1..].iter();
        let total = rows.try_fold(row / block, |total, n| total.checked_mul(*n));
        let total = total.and_then(|blocks| blocks.checked_mul(bytes));
        match total {
            Some(total) if total > 0 => Ok(total),
            _ => self.wrong(format!("has dimensions {:?}", self.dimensions)),
        }
    }
}

/// A position in the file, with readers of the format's types.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn wrong<T>(&self, problem: impl Into<String>) -> Result<T, GgufError> {
        fail(self.at, "", problem)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..count) else {
            let left = rest.len();
            return self.wrong(format!("{count} bytes are needed, {left} are left"));
        };
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        Ok(self.take(N)?.try_into().expect("as many as asked for"))
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number of items; the file must have at least `each` bytes left for every item.
    fn count(&mut self, each: usize) -> Result<usize, GgufError> {
        let offset = self.at;
        let count = self.u64()?;
        let left = self.bytes.len() - self.at;
        match usize::try_from(count) {
            Ok(count) if count <= left / each => Ok(count),
            _ => fail(
                offset,
                "",
                format!("a count of {count}, with {left} bytes left in the file"),
            ),
        }
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let count = self.count(1)?;
        let offset = self.at;
        match std::str::from_utf8(self.take(count)?) {
            Ok(text) => Ok(text.to_string()),
            Err(why) => fail(offset, "", format!("a text is no UTF-8: {why}")),
        }
    }

    /// Reads the header; returns the number of tensors, and the number of keys.
    fn header(&mut self) -> Result<(usize, usize), GgufError> {
        if self.take(MAGIC.len())? != MAGIC {
            return fail(0, "", "the file does not begin with `GGUF`");
        }
        let offset = self.at;
        let version = self.u32()?;
        if !VERSIONS.contains(&version) {
            let known = "2 or 3, little-endian";
            return fail(offset, "", format!("version {version} is not {known}"));
        }
        Ok((
            self.count(TENSOR_BYTES_LEAST)?,
            self.count(KEY_BYTES_LEAST)?,
        ))
    }

    fn entry(&mut self) -> Result<(String, Entry), GgufError> {
        let key = self.text()?;
        let subject = |mut why: GgufError| {
            why.subject = of_key(&key);
            why
        };
        let offset = self.at;
        let value = self.u32().and_then(|kind| self.value(kind, 0));
        let value = value.map_err(subject)?;
        Ok((key, Entry { offset, value }))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, GgufError> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Single(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.flag()?),
            8 => Value::Text(self.text()?),
            9 => Value::List(self.list(depth + 1)?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Double(f64::from_le_bytes(self.array()?)),
            _ => return self.wrong(format!("a value has the type {kind}, of 0 to 12")),
        })
    }

    fn flag(&mut self) -> Result<bool, GgufError> {
        let [byte] = self.array()?;
        match byte {
            0 | 1 => Ok(byte == 1),
            _ => self.wrong(format!("a truth value is {byte}")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Value>, GgufError> {
        if depth > NESTING_MAX {
            return self.wrong(format!("lists are nested more than {NESTING_MAX} deep"));
        }
        let kind = self.u32()?;
        let count = self.count(1)?;
        (0..count).map(|_| self.value(kind, depth)).collect()
    }

    fn description(&mut self) -> Result<Description, GgufError> {
        let offset = self.at;
        let name = self.text()?;
        let subject = |mut why: GgufError| {
            why.subject = of_tensor(&name);
            why
        };
        let (dimensions, kind) = self.shape().map_err(subject)?;
        let start = self.u64().map_err(subject)?;
        Ok(Description {
            offset,
            kind,
            dimensions,
            start: usize::try_from(start).unwrap_or(usize::MAX),
            name,
        })
    }

    fn shape(&mut self) -> Result<(Vec<usize>, Kind), GgufError> {
        let count = self.u32()? as usize;
        if count > DIMENSIONS_MAX {
            return self.wrong(format!("{count} dimensions, of {DIMENSIONS_MAX} at most"));
        }
        let mut dimensions = Vec::with_capacity(count);
        for _ in 0..count {
            dimensions.push(usize::try_from(self.u64()?).unwrap_or(usize::MAX));
        }
        let kind = self.u32()?;
        match Kind::of(kind) {
            Some(kind) => Ok((dimensions, kind)),
            None => self.wrong(format!("the type {kind}, not one of {}", Kind::known())),
        }
    }
}
