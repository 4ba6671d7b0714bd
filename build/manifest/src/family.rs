//! Families of checkpoints: which tensors one has, by which names.

mod blocks;
mod qwen3_5_moe;

use crate::schema::model::Family;
use crate::table::Row;
use crate::target::Target;

impl Target {
    /// Every tensor that the target's checkpoint has beside a vision tower, matrices in BF16: the
    /// leaf's rules say what they are.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = match self.model.family {
            Family::Qwen35Moe => qwen3_5_moe::rows(self),
        };
        rows.retain(|row| row.sites.iter().next().is_some());
        rows
    }
}
