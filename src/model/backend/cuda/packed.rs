//! Packed weights: panels made on the host, and the parts in which panels are read.

use std::ops::Range;

use super::jobs::Wanted;
use super::panels::Panels;
use super::storage::{Order, Storage};
use crate::weights::{MatrixSource, PackedStack, Reader, WeightsError};

/// Facts on how this device reads packed weights. A change of what `pack` returns needs another
/// version of the layout.
pub const READER: Reader = Reader {
    layout: 1,
    maps: false,
};

/// Packs matrices in the layout of the device: stacked, or gate and up of an expert interleaved.
pub fn pack(
    parts: &[MatrixSource<'_>],
    of_experts: bool,
) -> Result<(String, Vec<u8>), WeightsError> {
    let stored = parts.iter().map(MatrixSource::read);
    let stored = stored.collect::<Result<Vec<_>, _>>()?;
    let storage = Storage::Panels(stored[0].bits.coding);
    let (order, storage) = match (of_experts, &parts) {
        (true, [_, _]) => (Order::Interleaved, storage.of_experts()),
        (true, _) => (Order::Stacked, storage.of_experts()),
        (false, _) => (Order::Stacked, storage),
    };
    let panels = Panels::new(&stored, order, storage);
    Ok((storage.word(), panels.bytes))
}

/// Some bytes of a packed matrix, read at once.
pub struct Extent<'a> {
    stack: PackedStack<'a>,
    bytes: Range<usize>,
    /// Index of the destination among the call's buffers, and offset in that buffer in bytes.
    pub to: (usize, usize),
}

impl<'a> Extent<'a> {
    /// Extents of at most `most` bytes that cover the matrix; None if the matrix is not packed.
    ///
    /// # Errors
    /// `Packed` if the file has the matrix in another layout.
    pub fn all(wanted: &Wanted<'a>, most: usize) -> Result<Option<Vec<Extent<'a>>>, WeightsError> {
        let Some(stack) = MatrixSource::packed(&wanted.parts)? else {
            return Ok(None);
        };
        let (bytes, (buffer, first)) = (wanted.bytes(), wanted.to);
        if (stack.storage(), stack.bytes()) != (wanted.storage.word().as_str(), bytes) {
            return Err(stack.unknown());
        }
        let part = |start| Extent {
            stack,
            bytes: start..bytes.min(start + most),
            to: (buffer, first + start),
        };
        Ok(Some((0..bytes).step_by(most).map(part).collect()))
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Fills the first bytes of `slot` with the bytes of this extent.
    pub fn read(&self, slot: &mut [u8]) -> Result<(), WeightsError> {
        self.stack.read(self.bytes.start, &mut slot[..self.bytes()])
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;
    use crate::stacks;
    use crate::target;
    use crate::weights::packed::Writer;
    use crate::weights::{Checkpoint, Layout, Packed, open_seeded};

    /// Less than the largest matrix of the test's targets takes.
    const MOST: usize = 100_000;

    #[test]
    fn every_packed_byte_is_read_to_its_offset() {
        let checkpoint = open_seeded(Default::default());
        let path = std::env::temp_dir().join(format!("atlas-packed-{}", std::process::id()));
        let mut writer = Writer::new(File::create(&path).unwrap(), READER.layout, true).unwrap();
        let mut written = Vec::new();
        for stack in stacks(Layout::whole()) {
            let parts: Vec<_> = stack
                .parts
                .iter()
                .map(|part| checkpoint.source(*part))
                .collect();
            let (storage, bytes) = pack(&parts, stack.of_experts).unwrap();
            let n = stack.parts.iter().map(|part| part.n()).sum();
            let (key, k) = (stack.parts[0].key(), stack.parts[0].k());
            writer.weight(key, [n, k], &storage, &bytes).unwrap();
            written.push((stack, bytes));
        }
        writer.finish().unwrap();
        let packed = Arc::new(Packed::open(&path, READER).unwrap());
        let found = Checkpoint::of_packed(packed, target::LAYERS, Default::default());
        for (stack, bytes) in written {
            let parts: Vec<_> = stack.parts.iter().map(|part| found.source(*part)).collect();
            let storage = Storage::of_format(parts[0].format());
            let storage = if stack.of_experts {
                storage.of_experts()
            } else {
                storage
            };
            let wanted = Wanted {
                parts,
                order: Order::Stacked,
                storage,
                to: (0, 0),
            };
            let mut read = vec![0; bytes.len()];
            for part in Extent::all(&wanted, MOST).unwrap().unwrap() {
                part.read(&mut read[part.to.1..]).unwrap();
            }
            assert!(read == bytes, "{}", stack.parts[0].key());
        }
        std::fs::remove_file(path).unwrap();
    }
}
