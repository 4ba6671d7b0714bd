//! Numbers and bytes of a checkpoint's tensors, from which all other byte figures follow.

use serde::Serialize;

use crate::schema::model::Checkpoint;
use crate::table::{Dtype, Format, Kind, Piece, Purpose, Role, Row, Sites};
use crate::target::Target;

/// Part of a model that a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Decoder, embedding and head.
    Text,
    /// Multi-token prediction.
    Mtp,
}

impl Part {
    pub(crate) fn of(row: &Row) -> Part {
        match row.sites {
            Sites::Prediction => Part::Mtp,
            Sites::Whole | Sites::Layers(_) => Part::Text,
        }
    }
}

/// Number of tensors with a row's elements in the checkpoint.
pub(crate) fn count(row: &Row) -> u64 {
    (row.sites.iter().count() * row.tensors_of_site()) as u64
}

/// Elements of a row's matrices or vectors; scales and unused scalars do not count.
pub(crate) fn elements(row: &Row) -> u64 {
    match row.kind {
        Kind::Unused => 0,
        _ => count(row) * row.shape.iter().product::<usize>() as u64,
    }
}

pub(crate) fn piece_bytes(piece: &Piece) -> u64 {
    (piece.elements() * piece.dtypes[0].bytes()) as u64
}

impl Target {
    /// Rows of the table with each tensor once: of rows that are parts of one tensor, the first.
    pub(crate) fn tensors(&self) -> Vec<Row> {
        let mut found: Vec<Row> = Vec::new();
        for row in self.table() {
            let same = |other: &Row| other.name == row.name && other.sites == row.sites;
            if !found.iter().any(same) {
                found.push(row);
            }
        }
        found
    }

    /// Pieces of a row that the checkpoint has by its manifest.
    pub(crate) fn pieces(&self, row: &Row) -> Vec<Piece> {
        let mut pieces = row.pieces();
        let checkpoint = self.checkpoint();
        let states = |has: fn(&Checkpoint) -> bool| checkpoint.is_some_and(has);
        let counts = match row.role {
            Role::TiedHead => states(|checkpoint| checkpoint.tied_head_stored),
            Role::KeyScale | Role::ValueScale => {
                Part::of(row) == Part::Text && states(|checkpoint| checkpoint.kv_scales)
            }
            _ => {
                let format = row.format();
                format.is_some_and(|format| self.input_scales().contains(&format))
            }
        };
        pieces.retain(|piece| piece.purpose != Purpose::Input || counts);
        pieces
    }

    /// Bytes of a row's tensors; scales and vectors that may be BF16 or F32 count as BF16.
    pub(crate) fn bytes_stored(&self, row: &Row) -> u64 {
        let pieces = self.pieces(row);
        count(row) * pieces.iter().map(piece_bytes).sum::<u64>()
    }

    /// Bytes that a row's tensors take beyond `bytes_stored` if vectors are F32.
    pub(crate) fn bytes_if_f32(&self, row: &Row) -> u64 {
        match row.kind {
            Kind::Vector { .. } => {
                elements(row) * (Dtype::F32.bytes() - Dtype::Bf16.bytes()) as u64
            }
            Kind::Matrix(_) | Kind::Rounded { .. } | Kind::Unused => 0,
        }
    }

    /// Bytes of a row's tensors in memory, without padding of widths.
    pub(crate) fn bytes_resident(&self, row: &Row) -> u64 {
        let other = |resident: &Format| row.format() != Some(*resident);
        let Some(resident) = row.resident().filter(other) else {
            return self.bytes_stored(row);
        };
        let k = row.k();
        let rows = row.shape.iter().product::<usize>() / k;
        count(row) * resident.bytes(rows, k) as u64
    }

    /// Bytes of a row's tensors in the checkpoint that one decoded token reads at batch 1.
    pub(crate) fn bytes_read(&self, row: &Row) -> u64 {
        self.read_of(row, self.bytes_resident(row))
    }

    /// Share of `all`, a quantity of a row's tensors, that one decoded token reads.
    pub(crate) fn read_of(&self, row: &Row, all: u64) -> u64 {
        let moe = self.model.moe();
        match row.role {
            _ if Part::of(row) == Part::Mtp || row.role == Role::TiedHead => 0,
            Role::Embedding if !self.model.tied_head => all / self.model.vocab,
            role if role.is_expert() => all / moe.experts * moe.experts_per_token,
            _ => all,
        }
    }
}
