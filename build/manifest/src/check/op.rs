//! Rules on the kernel of an op, which a hardware or a leaf chooses.

use super::{File, Rule};
use crate::kernels::{MOE_ROWS, kernels_of};
use crate::schema::leaf::Op;

const WARP: u64 = 32;
const BLOCK_THREADS_MAX: u64 = 1024;

impl File {
    /// Rules on `choice` for `op`, a name that may end in a point and a shape.
    pub(super) fn op_rules(&self, op: &str, choice: &Op) -> Rule {
        let Some(kernels) = kernels_of(op) else {
            return self.rule(false, "op", op, "no family has an op of this name");
        };
        let known = kernels.contains(&choice.kernel);
        let rule = format!("no such kernel; {op} has {kernels:?}");
        self.rule(known, &format!("op.{op}.kernel"), &choice.kernel, &rule)?;
        let threads = choice.threads;
        let warps = threads.is_multiple_of(WARP) && (WARP..=BLOCK_THREADS_MAX).contains(&threads);
        let rule = "must be a multiple of 32 in 32 ..= 1024";
        self.rule(warps, &format!("op.{op}.threads"), threads, rule)?;
        if let Some(rows) = choice.rows {
            let key = format!("op.{op}.rows");
            self.rule(op == "moe", &key, rows, "is of op.moe alone")?;
            self.within(&key, rows, 1..=MOE_ROWS)?;
        }
        let reason = !choice.why.trim().is_empty();
        let key = format!("op.{op}.why");
        self.rule(reason, &key, "\"\"", "must give the reason")
    }
}
