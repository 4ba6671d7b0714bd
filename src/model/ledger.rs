//! The memory that a server of this target takes, computed from its constants before it is taken.

use super::ROWS_MAX;
use crate::backend::{self, Backend};
use crate::ops::{Ops, RANKED};
use crate::target::{self, KvFormat, Mixer};
use crate::weights::layout;

/// One line of the ledger.
pub struct Entry {
    pub name: &'static str,
    pub bytes: u64,
}

/// What is held from the start to the end.
pub fn entries() -> [Entry; 4] {
    [
        Entry {
            name: "weights, at most",
            bytes: weights_max(),
        },
        Entry {
            name: "KV pages",
            bytes: kv_pages(),
        },
        Entry {
            name: "recurrent states",
            bytes: recurrent_states(),
        },
        Entry {
            name: "activations",
            bytes: activations(),
        },
    ]
}

/// The ledger as lines, the sum last.
pub fn lines() -> Vec<String> {
    let entries = entries();
    let sum = entries.iter().map(|entry| entry.bytes).sum();
    let line = |name: &str, bytes: u64| format!("  {name:<17}{:>12}", mebibytes(bytes));
    let mut lines: Vec<String> = entries
        .iter()
        .map(|entry| line(entry.name, entry.bytes))
        .collect();
    lines.push(line("sum", sum));
    lines
}

/// For people.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

/// As the device holds them. What it really takes is known once they are loaded, since a device may
/// hold values in fewer bytes when that loses nothing.
pub fn weights_max() -> u64 {
    let spec = layout::model(&|_| false);
    let bytes = spec
        .matrices()
        .map(|matrix| Backend::matrix_bytes_max(matrix.n, matrix.k, matrix.format));
    bytes.sum()
}

fn layers_with(mixer: Mixer) -> usize {
    target::MIXERS
        .iter()
        .filter(|found| **found == mixer)
        .count()
}

/// Keys and values of every page in every attention layer, the drafting layer's included.
fn kv_pages() -> u64 {
    let element = match target::FORMAT_KV {
        KvFormat::F32 => 4,
        KvFormat::Bf16 => 2,
    };
    let layers = layers_with(Mixer::Attention) + target::MTP_LAYERS;
    let token = 2 * target::KV_HEADS * target::HEAD_DIM * element;
    (layers * target::KV_PAGES * target::PAGE * token) as u64
}

/// Matrix states and convolution tails of every sequence in every recurrent layer.
fn recurrent_states() -> u64 {
    let matrix = target::GDN_VALUE_HEADS * target::GDN_KEY_DIM * target::GDN_VALUE_DIM;
    let channels = 2 * target::GDN_KEY_HEADS * target::GDN_KEY_DIM
        + target::GDN_VALUE_HEADS * target::GDN_VALUE_DIM;
    let elements = matrix + target::GDN_CONV * channels;
    (layers_with(Mixer::Gdn) * target::MAX_SEQUENCES * elements * size_of::<f32>()) as u64
}

/// Every activation of the largest step, its logits, and what the device's operations work in.
fn activations() -> u64 {
    let values = target::GDN_VALUE_HEADS * target::GDN_VALUE_DIM;
    let heads = target::HEADS * target::HEAD_DIM;
    let width = 6 * target::HIDDEN
        + 2 * (2 * target::GDN_KEY_HEADS * target::GDN_KEY_DIM + values)
        + values
        + 2 * target::GDN_VALUE_HEADS
        + 2 * heads
        + 2 * target::KV_HEADS * target::HEAD_DIM
        + values.max(heads)
        + target::EXPERTS
        + 1;
    let logits = target::MAX_SEQUENCES * (target::VOCAB + RANKED);
    ((ROWS_MAX * width + logits) * size_of::<f32>() + backend::WORKSPACE_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_ends_with_the_sum() {
        let sum: u64 = entries().iter().map(|entry| entry.bytes).sum();
        assert!(lines().last().unwrap().ends_with(&mebibytes(sum)));
    }

    #[test]
    fn every_part_of_this_target_takes_memory() {
        for entry in entries() {
            assert!(entry.bytes > 0, "{}", entry.name);
        }
    }
}
