//! KV pages and states in memory, and copies of them in the tier's host memory.

use std::cell::{Ref, RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;

use crate::ops::{Copied, PoolRegion, Side};
use step::executor::DeviceError;

use super::Cpu;

/// Memory of pieces of one size. The system backs a piece with memory when it is first used.
#[derive(Clone, Debug)]
pub struct Pieces(Rc<RefCell<Vec<f32>>>);

/// A layer's part of each piece of a pool.
#[derive(Debug)]
pub struct LayerPart {
    elements: Rc<RefCell<Vec<f32>>>,
    pub starts: Starts,
}

/// First elements of a layer's part of each piece.
#[derive(Clone, Copy, Debug)]
pub struct Starts {
    at: usize,
    stride: usize,
}

impl Starts {
    /// First element of the layer's part of `piece`, among the elements of all layers.
    pub fn of(&self, piece: u32) -> usize {
        piece as usize * self.stride + self.at
    }
}

impl LayerPart {
    pub fn of(region: PoolRegion<Pieces>) -> LayerPart {
        LayerPart {
            starts: Starts {
                at: region.at / size_of::<f32>(),
                stride: region.stride / size_of::<f32>(),
            },
            elements: region.pool.0,
        }
    }

    /// Elements of all layers.
    pub fn read(&self) -> Ref<'_, Vec<f32>> {
        self.elements.borrow()
    }

    pub fn write(&self) -> RefMut<'_, Vec<f32>> {
        self.elements.borrow_mut()
    }
}

/// Host memory for copies of pieces.
#[derive(Default)]
pub struct HostCopies {
    bytes: Vec<u8>,
    copied: u64,
}

impl Cpu {
    pub(super) fn pieces(&self, pieces: usize, bytes: usize) -> Result<Pieces, DeviceError> {
        assert!(bytes.is_multiple_of(size_of::<f32>()));
        self.budget.check((pieces * bytes) as u64)?;
        let elements = vec![0.0; pieces * bytes / size_of::<f32>()];
        Ok(Pieces(Rc::new(RefCell::new(elements))))
    }

    pub(super) fn take_bytes(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.budget.check(bytes as u64)?;
        self.host_copies.bytes = vec![0; bytes];
        Ok(())
    }
}

impl HostCopies {
    pub fn range(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Copies pieces to or from host memory; all copies are made before this returns.
    pub fn copy(&mut self, copies: &[Copied<'_, Pieces>], to: Side) {
        for Copied { regions, piece, at } in copies {
            let mut host = &mut self.bytes[*at..];
            for region in *regions {
                let (now, rest) = host.split_at_mut(region.stride);
                copy_part(region, *piece, now, to);
                host = rest;
            }
        }
        self.copied += copies.len() as u64;
    }

    pub fn copied(&self) -> u64 {
        self.copied
    }
}

fn copy_part(region: &PoolRegion<Pieces>, piece: usize, host: &mut [u8], to: Side) {
    let range = region.range(piece);
    let mut elements = region.pool.0.borrow_mut();
    let elements = &mut elements[range.start / size_of::<f32>()..range.end / size_of::<f32>()];
    let pairs = elements.iter_mut().zip(host.as_chunks_mut().0);
    match to {
        Side::Host => pairs.for_each(|(from, to)| *to = from.to_ne_bytes()),
        Side::Device => pairs.for_each(|(to, from)| *to = f32::from_ne_bytes(*from)),
    }
}
