//! Writes safetensors: eight bytes of the header's length, JSON header, data.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::blocks::{Element, Kind};

/// Multiple of bytes at which the data section begins.
const ALIGNMENT: usize = 8;

/// A tensor to be written, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub name: String,
    /// `[rows, columns]`, or `[columns]` of a vector.
    pub shape: Vec<usize>,
    pub kind: Kind,
    pub data: &'a [u8],
    /// Number of heads whose rows are interleaved in `data`: neighbouring rows of `data` are
    /// written half a head apart. `None` where rows keep their order.
    pub interleaved: Option<usize>,
    /// Whether one was added to each element of `data`; it is subtracted again.
    pub plus_one: bool,
}

impl Tensor<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn rows(&self) -> usize {
        match self.shape[..] {
            [rows, _] => rows,
            _ => 1,
        }
    }

    /// Row of `data` that is written as row `row`.
    ///
    /// RoPE rotates rows `i` and `i + head / 2` of a head together in the written file, and rows `2
    /// i` and `2 i + 1` in `data`.
    fn source(&self, row: usize) -> usize {
        let Some(heads) = self.interleaved else {
            return row;
        };
        let head = self.rows() / heads;
        let (first, at) = (row / head * head, row % head);
        let (side, pair) = (at / (head / 2), at % (head / 2));
        first + 2 * pair + side
    }
}

/// A tensor in the JSON header.
#[derive(serde::Serialize)]
struct Described<'a> {
    dtype: &'a str,
    shape: &'a [usize],
    data_offsets: [usize; 2],
}

/// Writes a safetensors file. `tensors` are in the order of their names.
pub fn safetensors(
    to: &mut impl Write,
    tensors: &[Tensor<'_>],
    element: Element,
) -> io::Result<()> {
    let mut end = 0;
    let described = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.elements() * element.bytes();
        let described = Described {
            dtype: element.dtype(),
            shape: &tensor.shape,
            data_offsets: [start, end],
        };
        (&tensor.name, described)
    });
    let header: BTreeMap<_, _> = described.collect();
    let mut header = serde_json::to_vec(&header).expect("plain structures serialise");
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    for tensor in tensors {
        data(to, tensor, element)?;
    }
    to.flush()
}

fn data(to: &mut impl Write, tensor: &Tensor<'_>, element: Element) -> io::Result<()> {
    let row_bytes = tensor.data.len() / tensor.rows();
    let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
    for row in 0..tensor.rows() {
        let stored = &tensor.data[tensor.source(row) * row_bytes..][..row_bytes];
        numbers.clear();
        bytes.clear();
        tensor.kind.dequantise(stored, &mut numbers);
        let added = if tensor.plus_one { 1.0 } else { 0.0 };
        for &number in &numbers {
            element.push(number - added, &mut bytes);
        }
        to.write_all(&bytes)?;
    }
    Ok(())
}
