//! Which ops a family consists of, which kernels exist for them, and what those need.

use crate::schema::model::Family;
use crate::target::Target;

/// A kernel chosen for an op, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChoice<'a> {
    /// Name of the op.
    pub op: &'a str,
    /// Name of the kernel: `cuda/ops/<op>/<kernel>.cuh` without its architecture.
    pub kernel: &'a str,
    /// Threads that work on one row.
    pub threads: u64,
    /// Shared memory of one block, bytes.
    pub shared_bytes: u64,
    /// Widest row that the threads can hold, elements.
    pub row_max: u64,
}

/// A kernel that a leaf may name.
struct Kernel {
    op: &'static str,
    name: &'static str,
    /// Shared memory of one block in bytes, from the threads of the block.
    shared_bytes: fn(u64) -> u64,
    /// Elements of a row that one thread can hold, at most.
    elements_per_thread: u64,
}

const WARP: u64 = 32;
const F32_BYTES: u64 = 4;

const KERNELS: &[Kernel] = &[Kernel {
    op: "add_rms_norm",
    name: "rows_bf16",
    shared_bytes: |threads| threads / WARP * F32_BYTES,
    elements_per_thread: 32,
}];

/// Every op that a forward pass of the family calls.
fn ops_of(family: Family) -> &'static [&'static str] {
    match family {
        Family::Qwen35Moe => &[
            "embed",
            "add",
            "rms_norm",
            "add_rms_norm",
            "linear",
            "norm_rope",
            "store_kv",
            "attend",
            "attention_gate",
            "conv_silu",
            "gated_delta",
            "gated_rms_norm",
            "route",
            "experts",
            "silu_mul",
            "add_gated",
            "concat",
            "select",
        ],
    }
}

/// Names of the kernels of `op`; `None` when no family has such an op.
pub(crate) fn kernels_of(op: &str) -> Option<Vec<&'static str>> {
    let known = [Family::Qwen35Moe]
        .iter()
        .any(|&family| ops_of(family).contains(&op));
    let of_op = KERNELS.iter().filter(|kernel| kernel.op == op);
    known.then(|| of_op.map(|kernel| kernel.name).collect())
}

impl Target {
    /// The kernels of this target, by op. Names that no kernel has are left out.
    pub fn kernels(&self) -> Vec<KernelChoice<'_>> {
        let chosen = self.leaf.op.iter().filter_map(|(op, choice)| {
            let is = |kernel: &&Kernel| kernel.op == op && kernel.name == choice.kernel;
            let kernel = KERNELS.iter().find(is)?;
            let shared_bytes = (kernel.shared_bytes)(choice.threads);
            let row_max = kernel.elements_per_thread * choice.threads;
            let (kernel, threads) = (choice.kernel.as_str(), choice.threads);
            Some(KernelChoice {
                op,
                kernel,
                threads,
                shared_bytes,
                row_max,
            })
        });
        chosen.collect()
    }

    /// Ops of the family that this target names no kernel for.
    pub fn ops_missing(&self) -> Vec<&'static str> {
        let named = |op: &&str| !self.leaf.op.contains_key(*op);
        ops_of(self.model.family)
            .iter()
            .copied()
            .filter(named)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Family, KERNELS, ops_of};

    /// Methods of `trait Ops` that make or read storage rather than compute.
    const STORAGE: [&str; 10] = [
        "matrix_bytes_max",
        "matrix_bytes",
        "load_matrix",
        "load_vector",
        "load_experts",
        "tensor",
        "routing",
        "kv_cache",
        "gdn_state",
        "read",
    ];

    #[test]
    fn the_ops_are_those_of_the_trait() {
        let source = include_str!("../../../src/ops.rs");
        let body = source.split("pub trait Ops").nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        let lines = body.lines().filter_map(|line| line.strip_prefix("    fn "));
        let names = lines.map(|line| line.split(['(', '<']).next().unwrap());
        let names: Vec<_> = names.filter(|name| !STORAGE.contains(name)).collect();
        assert_eq!(ops_of(Family::Qwen35Moe), names);
    }

    #[test]
    fn every_kernel_is_of_an_op() {
        for kernel in KERNELS {
            assert!(
                ops_of(Family::Qwen35Moe).contains(&kernel.op),
                "{}",
                kernel.op
            );
        }
    }
}
