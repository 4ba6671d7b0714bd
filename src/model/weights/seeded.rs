//! A checkpoint of the target's exact tensors with drawn numbers (`draw`).

use super::draw::Draw;
use super::header::Dtype;
use super::layout::{Expected, Layout};
use crate::target::{Format, Kind, Site};

/// A tensor and its drawn content.
pub struct Drawn {
    /// Canonical name of the tensor.
    pub name: String,
    pub site: Site,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub draw: Draw,
}

impl Drawn {
    pub fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bytes()) as u64
    }
}

/// Tensors of `layout` by name; matrices of `scaled` formats also have scales of their inputs.
pub fn tensors(layout: Layout, scaled: &[Format]) -> Vec<Drawn> {
    let is_wanted = |tensor: &Expected| match tensor.weight.kind() {
        Kind::Matrix(stored) | Kind::Rounded { stored, .. } => {
            !tensor.piece.optional || scaled.contains(&stored)
        }
        _ => !tensor.piece.optional,
    };
    let expected = layout.tensors().into_iter();
    let wanted = expected.filter(|(_, tensor)| is_wanted(tensor));
    let drawn = wanted.map(|(name, tensor)| Drawn {
        draw: Draw::of(&name, &tensor, layout),
        name,
        site: tensor.weight.site(),
        dtype: tensor.piece.dtypes[0],
        shape: tensor.piece.shape,
    });
    drawn.collect()
}

/// Bytes of several tensors, one tensor after the other.
#[derive(Default)]
pub struct Seeded {
    /// Offset of the first byte of each tensor, ascending.
    starts: Vec<u64>,
    draws: Vec<Draw>,
    bytes: u64,
}

impl Seeded {
    /// Appends a tensor; returns the offset of its first byte.
    pub fn push(&mut self, tensor: &Drawn) -> u64 {
        let start = self.bytes;
        self.starts.push(start);
        self.draws.push(tensor.draw.clone());
        self.bytes += tensor.bytes();
        start
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` from `offset` on; both ends must lie between whole elements.
    pub fn read(&self, mut offset: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let index = self.starts.partition_point(|&start| start <= offset) - 1;
            let end = self.starts.get(index + 1).copied().unwrap_or(self.bytes);
            let here = ((end - offset) as usize).min(out.len());
            let (now, rest) = out.split_at_mut(here);
            self.draws[index].fill(offset - self.starts[index], now);
            (out, offset) = (rest, end);
        }
    }
}
