//! Packed weights: one file of weights as the kernels of one target read them, made once by `pack`,
//! so that a start repacks nothing and reads every byte once, or maps it and reads none.
//!
//! A page of [`table::Head`], the weights in the order of [`Writer::weight`], each on a page of its
//! own, small files of the checkpoint, and the [`Table`] that names all of them. Bytes between head
//! and table have a digest for every `PIECE_BYTES`; the head has that of the table. A start checks
//! head and table; `verify --full` compares every piece.

mod open;
pub mod table;
#[cfg(test)]
mod tests;
mod write;

pub use open::{Packed, PackedStack, Reader, is_packed};
pub use table::{PIECE_BYTES, Table};
pub use write::Writer;

use sha2::{Digest, Sha256};

use super::hex::hex;
use crate::target;

/// Name of the packed weights of this target where a directory or a bundle has them.
pub fn file_name() -> String {
    format!("{}.packed", target::BINARY)
}

/// Name of the folder of packed weights for builds with kernels of `layout` and the same manifest
/// as this one, in a directory with folders for older and newer builds.
pub fn folder_name(layout: u32) -> String {
    format!("{}-{layout}", &manifest()[..MANIFEST_DIGITS])
}

/// Digits of the manifest's digest in the name of a folder.
const MANIFEST_DIGITS: usize = 16;

/// Digest of the manifest of this target, which decides the layout of weights, among other things.
pub(super) fn manifest() -> String {
    hex(&Sha256::digest(target::MANIFEST))
}
