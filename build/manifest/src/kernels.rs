//! Which ops a family consists of, which kernels exist for them, and what those need.

use crate::schema::model::{Family, Model};
use crate::target::Target;

/// A kernel chosen for an op, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChoice<'a> {
    /// Name of the op.
    pub op: &'a str,
    /// Name of the kernel: `cuda/ops/<op>/<kernel>.cuh` without its architecture.
    pub kernel: &'a str,
    /// Threads of a block.
    pub threads: u64,
    /// Shared memory of one block, bytes.
    pub shared_bytes: u64,
    /// Widest row that the threads can hold, elements; `None` when they hold no row.
    pub row_max: Option<u64>,
    /// Whether it lays rows out as operands of warpgroup instructions.
    pub operands: bool,
}

/// What a kernel's block is given.
struct Block {
    threads: u64,
    /// Shared memory that the hardware lets a block have, bytes.
    shared_bytes_max: u64,
    /// Streaming multiprocessors.
    sms: u64,
}

/// A kernel that a leaf may name.
struct Kernel {
    op: &'static str,
    name: &'static str,
    /// Shared memory of one block in bytes.
    shared_bytes: fn(&Model, &Block) -> u64,
    /// Elements of a row that one thread can hold; `None` for a kernel that holds no row.
    elements_per_thread: Option<u64>,
    /// Whether it lays rows out as operands of warpgroup instructions.
    operands: bool,
}

impl Kernel {
    const fn new(op: &'static str, name: &'static str) -> Kernel {
        Kernel {
            op,
            name,
            shared_bytes: |_, _| 0,
            elements_per_thread: None,
            operands: false,
        }
    }

    /// Blocks of warpgroups, which many rows take.
    const fn warpgroups(self) -> Kernel {
        Kernel {
            operands: true,
            ..self.shared(|_, _| WARPGROUP_BYTES)
        }
    }

    const fn shared(self, shared_bytes: fn(&Model, &Block) -> u64) -> Kernel {
        Kernel {
            shared_bytes,
            ..self
        }
    }

    /// A block keeps a row in registers and adds its warps' sums.
    const fn row(self) -> Kernel {
        Kernel {
            elements_per_thread: Some(32),
            ..self.shared(|_, block| block.threads / WARP * F32_BYTES)
        }
    }
}

const WARP: u64 = 32;
const F32_BYTES: u64 = 4;
const BF16_BYTES: u64 = 2;

/// Two stages of 64 rows of 128 columns.
const PANEL_STAGES: u64 = 2 * 64 * 128 * BF16_BYTES;

/// Kernel of rows that are rounded to NVFP4.
pub(crate) const FP4_KERNEL: &str = "block_scaled_fp4";
/// Ops that have it.
pub(crate) const FP4_OPS: [&str; 2] = ["experts", "moe"];

/// Two stages of 64 rows of 512 columns with their scales, padded, and the rows' numbers.
const FP4_STAGES: u64 = 2 * 64 * (512 / 2 + 48) + 64 * 4;

/// Steps of weights and rows under way, their barriers, and operands on their way out.
const WARPGROUP_BYTES: u64 = 227 * 1024;

const KERNELS: &[Kernel] = &[
    Kernel::new("embed", "rows_f32"),
    Kernel::new("rms_norm", "rows_f32").row(),
    Kernel::new("linear", "panels_f16").shared(linear_bytes),
    Kernel::new("linear_add", "panels_f16").shared(linear_bytes),
    Kernel::new("linear_add", "warpgroups_f16").warpgroups(),
    Kernel::new("norm_linear", "held_f16").shared(norm_linear_bytes),
    Kernel::new("norm_linear", "warpgroups_f16").warpgroups(),
    Kernel::new("store_kv", "pages_bf16"),
    Kernel::new("attend", "split_kv_bf16").shared(attend_bytes),
    Kernel::new("attend", "tiles_bf16").shared(attend_tiles_bytes),
    Kernel::new("attention", "split_kv_bf16").shared(attention_bytes),
    Kernel::new("conv_silu", "channels_f32"),
    Kernel::new("gated_delta", "chunks_f16").shared(gated_delta_bytes),
    Kernel::new("gated_rms_norm", "heads_f32"),
    Kernel::new("gated_linear_add", "heads_f32"),
    Kernel::new("gated_linear_add", "warpgroups_f16").warpgroups(),
    Kernel::new("delta_net", "heads_f32").shared(delta_net_bytes),
    Kernel::new("route", "rows_f32"),
    Kernel::new("experts", "grouped_f16").shared(|_, _| PANEL_STAGES),
    Kernel::new("experts", "warpgroups_f16").warpgroups(),
    Kernel::new("experts", FP4_KERNEL).shared(|_, _| FP4_STAGES),
    Kernel::new("moe", "rows_f16").shared(moe_bytes),
    Kernel::new("moe", FP4_KERNEL).shared(|_, _| FP4_STAGES),
    Kernel::new("concat", "vectors_f32"),
    Kernel::new("select", "vectors_f32"),
    Kernel::new("top_k", "chunks_f32"),
    Kernel::new("lm_head", "held_f16").shared(norm_linear_bytes),
    Kernel::new("pack", "vectors"),
    Kernel::new("read_bytes", "ring").shared(|_, block| read_bytes(block)),
];

/// Rows of a tile that weights are streamed for.
const TILE_ROWS: u64 = 8;
/// Most rows that a block holds in registers.
const BLOCK_ROWS: u64 = 32;
/// Registers of a thread for rows that its block holds, at most.
const HELD_REGISTERS: u64 = 128;
/// Blocks that may have this much have large rings of weights.
const LARGE_BLOCK: u64 = 128 * 1024;

/// A block that streams.
#[derive(Clone, Copy)]
struct Shape {
    warps: u64,
    /// Of each warp's ring.
    slots: u64,
    /// Codes of a piece, bytes.
    piece: u64,
    /// That it has room for.
    rows: u64,
}

impl Shape {
    /// Of products with many panels, and with few; where an SM is small, of many rows, and of one.
    fn all(block: &Block) -> [Shape; 2] {
        let shapes = match block.shared_bytes_max {
            LARGE_BLOCK.. => [(16, 3, 2048, TILE_ROWS), (8, 6, 2048, TILE_ROWS)],
            _ => [(8, 2, 1024, TILE_ROWS), (16, 2, 2048, 1)],
        };
        shapes.map(|(warps, slots, piece, rows)| Shape {
            warps,
            slots,
            piece,
            rows,
        })
    }

    /// Rings of codes with their scales, and a barrier a slot; whole lines.
    const fn ring(self) -> u64 {
        let slot = self.piece + self.piece / 8 + 8;
        (self.warps * self.slots * slot).next_multiple_of(128)
    }

    /// The rows, and two turns' sums of all warps, 16 rows of weights each.
    const fn staged(self, rows: u64, width: u64) -> u64 {
        rows * (staged_row(width) + 2 * self.warps * 16 * F32_BYTES)
    }

    const fn bytes(self, width: u64) -> u64 {
        self.ring() + self.staged(self.rows, width)
    }
}

/// A row of BF16, padded by a vector.
const fn staged_row(width: u64) -> u64 {
    (width + 8) * BF16_BYTES
}

/// What a block that streams needs for a tile of rows.
fn streaming(block: &Block, width: u64) -> u64 {
    let shapes = Shape::all(block).map(|shape| shape.bytes(width));
    shapes.into_iter().fold(0, u64::max)
}

/// Parts of a sum over K.
const fn segments(width: u64) -> u64 {
    match width / 128 {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// The ring of a block that holds rows, two turns' sums of all warps, padded, and their barrier.
fn holding(block: &Block, width: u64) -> u64 {
    let slots = match block.shared_bytes_max {
        LARGE_BLOCK.. => 8,
        _ => 3,
    };
    let shape = Shape {
        warps: 8,
        slots,
        piece: 2048,
        rows: BLOCK_ROWS,
    };
    let mut rows = BLOCK_ROWS;
    while rows > TILE_ROWS && width / segments(width) / 64 * rows > HELD_REGISTERS {
        rows /= 2;
    }
    let sums = 2 * shape.warps * rows * (16 + 4) * F32_BYTES;
    (shape.ring() + sums + 16).next_multiple_of(128)
}

/// Stages of many rows, rows that are held, or those that weights are streamed for, of any product.
fn linear_bytes(model: &Model, block: &Block) -> u64 {
    let attention = model.attention.heads * model.attention.head_dim;
    let values = model.gdn.value_heads * model.gdn.value_dim;
    let widths = [model.hidden, 2 * model.hidden, attention, values];
    let bytes = widths.map(|width| streaming(block, width).max(holding(block, width)));
    bytes.into_iter().fold(PANEL_STAGES, u64::max)
}

/// Sums of squares of rows' warps, the stream, and a tile of rows; or rows that are held.
fn norm_linear_bytes(model: &Model, block: &Block) -> u64 {
    let squares = TILE_ROWS * (block.threads / WARP) * F32_BYTES;
    let few = squares.next_multiple_of(128) + streaming(block, model.hidden);
    few.max(holding(block, model.hidden))
}

/// Logits of a panel.
const PANEL_ROWS: u64 = 16;
/// Largest logits of a row that are ranked: as many as a request may ask for by `top_k` or
/// `top_logprobs` in practice, so that whole rows of logits are hardly ever taken to the host.
pub(crate) const TOP_K: u64 = 64;

/// Chunks of a row of logits: what each block of the head makes, which has an SM to itself.
pub const fn top_k_chunks(model: &Model, sms: u64) -> u64 {
    let panels = model.vocab.div_ceil(PANEL_ROWS);
    if panels < sms { panels } else { sms }
}

/// Logits of a part of a chunk, which a warp ranks, at most: eight a lane.
const PART_LOGITS: u64 = 8 * WARP;

/// Parts of a chunk: twice as many of a row as are ranked, or more.
pub const fn top_k_parts(model: &Model, sms: u64) -> u64 {
    let chunks = top_k_chunks(model, sms);
    let chunk = model.vocab.div_ceil(PANEL_ROWS).div_ceil(chunks) * PANEL_ROWS;
    let (of_chunk, of_row) = (chunk.div_ceil(PART_LOGITS), (2 * TOP_K).div_ceil(chunks));
    if of_chunk > of_row { of_chunk } else { of_row }
}

/// A head's state, its channels, unit query and key, the result, three numbers, and a barrier for
/// each 32 columns of the state; whole vectors.
fn delta_net_bytes(model: &Model, _: &Block) -> u64 {
    let (key, value) = (model.gdn.key_dim, model.gdn.value_dim);
    let numbers = value * key + 2 * key + value + 2 * key + value + 3;
    ((numbers * F32_BYTES).next_multiple_of(8) + value / 32 * 8).next_multiple_of(16)
}

/// Rows that `moe` takes at once: as many as a block of `shared_bytes_max` has room to plan.
pub const fn moe_rows(shared_bytes_max: u64) -> u64 {
    match shared_bytes_max {
        LARGE_BLOCK.. => 128,
        _ => 64,
    }
}

/// Both products of some rows, or the first one of a row.
fn moe_bytes(model: &Model, block: &Block) -> u64 {
    moe_rows_bytes(model, block).max(moe_row_bytes(model, block))
}

/// The stream, a row's experts and their weights, and the row.
fn moe_row_bytes(model: &Model, block: &Block) -> u64 {
    let [wide, narrow] = Shape::all(block);
    let shape = match block.shared_bytes_max {
        LARGE_BLOCK.. => wide,
        _ => narrow,
    };
    let chosen = (model.moe.experts_per_token + 1) * 2 * F32_BYTES;
    let row = shape.staged(1, model.hidden);
    (shape.ring() + chosen.next_multiple_of(16) + row).next_multiple_of(128)
}

/// The stream, two rounds' sums, rows of two tiles or the activations of a block's tiles, a
/// barrier, and the plan.
fn moe_rows_bytes(model: &Model, block: &Block) -> u64 {
    let (moe, sms) = (&model.moe, block.sms);
    let [wide, ..] = Shape::all(block);
    let rows_max = moe_rows(block.shared_bytes_max);
    let (experts, turns) = (moe.experts + 1, rows_max * (moe.experts_per_token + 1));
    let visited = turns.min(experts);
    let tiles = (turns - visited) / TILE_ROWS + visited;
    // Panels of a warp in a round.
    let panels = match block.shared_bytes_max {
        LARGE_BLOCK.. => 2,
        _ => 1,
    };
    let partial = 2 * panels * wide.warps * 16 * (TILE_ROWS + 1) * F32_BYTES;
    let rows = 2 * TILE_ROWS * staged_row(model.hidden);
    let held = (tiles.div_ceil(sms) + 1) * TILE_ROWS * staged_row(moe.intermediate);
    // A bit a row, a first place; an expert and a row of every turn; three numbers a tile.
    let lists = experts * (rows_max / 8 + 2) + turns * 2 * 2 + tiles * 3 * 2;
    let plan = lists.next_multiple_of(4) + (1 + WARP) * F32_BYTES;
    (wide.ring() + partial + rows.max(held) + 8 + plan).next_multiple_of(128)
}

/// 32 queries, a block of 64 keys and values, scores, weights, and three numbers a query.
fn attend_bytes(model: &Model, _: &Block) -> u64 {
    let (rows, block, head) = (32, 64, model.attention.head_dim + 8);
    let operands = (rows + 2 * block) * head * BF16_BYTES;
    let scores = rows * ((block + 4) * F32_BYTES + (block + 8) * BF16_BYTES);
    operands + scores + rows * 3 * F32_BYTES
}

/// 128 queries, two blocks of 64 keys and two of values, two barriers each; whole operands.
fn attend_tiles_bytes(model: &Model, _: &Block) -> u64 {
    let operands = (128 + 4 * 64) * model.attention.head_dim * BF16_BYTES;
    (operands + 4 * 2 * 8).next_multiple_of(1024)
}

/// A ring of blocks of 64 keys or of values, with a barrier each, six if there is room; 16 queries,
/// the scores of a split, factors of its four blocks, two numbers a query, and a key and a value.
/// Whole lines.
fn attention_bytes(model: &Model, block: &Block) -> u64 {
    let (queries, split, head) = (16, 256, model.attention.head_dim);
    let query = (head + 8) * BF16_BYTES + (split + 4) * F32_BYTES;
    let numbers = (split / 64 + 2) * F32_BYTES;
    let own = 2 * head * BF16_BYTES;
    let ring = |slots: u64| {
        let slots = slots * (64 * head * BF16_BYTES + 8);
        (slots + queries * (query + numbers) + own).next_multiple_of(128)
    };
    match ring(6) {
        bytes if bytes <= block.shared_bytes_max => bytes,
        _ => ring(2),
    }
}

/// Records of the cells under way and two barriers each; for two warps' columns and two cells, the
/// state and updates that are handed over, a number and three barriers, and values, a number and
/// two barriers. Operands of 16 by 16, as sums of 8 by 16, are 16 bytes a lane. Whole lines.
fn gated_delta_bytes(model: &Model, block: &Block) -> u64 {
    let (cell, lanes, barrier) = (64, 32 * 16, 8);
    let stages = match block.shared_bytes_max {
        LARGE_BLOCK.. => 3,
        _ => 1,
    };
    let key = model.gdn.key_dim;
    // Tiles of the lower triangle, of two matrices.
    let triangles = 2 * (4 * 5 / 2) * 16 * 16 * BF16_BYTES;
    let record = 2 * cell * key * BF16_BYTES + triangles + 3 * cell * F32_BYTES;
    let handed = (key + cell) / 16 * lanes + (1 + 3) * barrier;
    let values = (cell / 8 * lanes + (1 + 2) * barrier).next_multiple_of(16);
    (stages * (record + 2 * barrier) + 2 * 2 * (handed + values)).next_multiple_of(128)
}

/// All that a block may have, as pieces of 4 KiB, a barrier each, as many for every warp; whole
/// lines.
fn read_bytes(block: &Block) -> u64 {
    let (warps, slot) = (block.threads / WARP, 4096 + 8);
    let slots = block.shared_bytes_max / warps / slot;
    (warps * slots * slot).next_multiple_of(128)
}

/// Ops of a device beside those of a forward pass: what loads weights, and what measures.
const BESIDE: &[&str] = &["pack", "read_bytes"];

/// Every op that a forward pass of the family calls.
fn ops_of(family: Family) -> &'static [&'static str] {
    match family {
        Family::Qwen35Moe => &[
            "embed",
            "rms_norm",
            "linear",
            "linear_add",
            "norm_linear",
            "store_kv",
            "attend",
            "attention",
            "conv_silu",
            "gated_delta",
            "gated_rms_norm",
            "gated_linear_add",
            "delta_net",
            "route",
            "experts",
            "moe",
            "concat",
            "select",
            "top_k",
            "lm_head",
        ],
    }
}

/// Names of the kernels of `op`; `None` when there is no such op.
pub(crate) fn kernels_of(op: &str) -> Option<Vec<&'static str>> {
    let families = [Family::Qwen35Moe].map(ops_of);
    let known = families.iter().any(|ops| ops.contains(&op)) || BESIDE.contains(&op);
    let of_op = KERNELS.iter().filter(|kernel| kernel.op == op);
    known.then(|| of_op.map(|kernel| kernel.name).collect())
}

impl Target {
    /// The kernels of this target, by op. Names that no kernel has are left out.
    pub fn kernels(&self) -> Vec<KernelChoice<'_>> {
        let chosen = self.leaf.op.iter().filter_map(|(op, choice)| {
            let is = |kernel: &&Kernel| kernel.op == op && kernel.name == choice.kernel;
            let kernel = KERNELS.iter().find(is)?;
            let gpu = self.hardware.gpu.as_ref();
            let block = Block {
                threads: choice.threads,
                shared_bytes_max: gpu.map_or(0, |gpu| gpu.shared_bytes_per_block),
                sms: gpu.map_or(1, |gpu| gpu.sms.into()),
            };
            let shared_bytes = (kernel.shared_bytes)(&self.model, &block);
            let elements = kernel.elements_per_thread;
            let row_max = elements.map(|elements| elements * choice.threads);
            let operands = kernel.operands;
            let (kernel, threads) = (choice.kernel.as_str(), choice.threads);
            Some(KernelChoice {
                op,
                kernel,
                threads,
                shared_bytes,
                row_max,
                operands,
            })
        });
        chosen.collect()
    }

    /// Ops of the family, and those beside, that this target names no kernel for.
    pub fn ops_missing(&self) -> Vec<&'static str> {
        let named = |op: &&str| !self.leaf.op.contains_key(*op);
        let ops = ops_of(self.model.family).iter().chain(BESIDE);
        ops.copied().filter(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BESIDE, Family, KERNELS, ops_of};

    /// Methods of the groups that make storage rather than compute.
    const STORAGE: [&str; 4] = ["kv_cache", "delta_state", "load_experts", "routing"];

    /// Groups of operations that the family is written in.
    const GROUPS: [&str; 4] = [
        include_str!("../../../src/ops/dense.rs"),
        include_str!("../../../src/ops/attend.rs"),
        include_str!("../../../src/ops/delta.rs"),
        include_str!("../../../src/ops/route.rs"),
    ];

    fn methods(group: &str) -> impl Iterator<Item = &str> {
        let body = group.split("\npub trait ").nth(1).unwrap();
        let body = body.split("\n}\n").next().unwrap();
        let lines = body.lines().filter_map(|line| line.strip_prefix("    fn "));
        lines.map(|line| line.split(['(', '<']).next().unwrap())
    }

    #[test]
    fn the_ops_are_those_of_the_groups() {
        let names = GROUPS.into_iter().flat_map(methods);
        let mut names: Vec<_> = names.filter(|name| !STORAGE.contains(name)).collect();
        let mut ops = ops_of(Family::Qwen35Moe).to_vec();
        names.sort_unstable();
        ops.sort_unstable();
        assert_eq!(ops, names);
    }

    #[test]
    fn every_op_has_a_kernel() {
        let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.op).collect();
        names.dedup();
        assert_eq!([ops_of(Family::Qwen35Moe), BESIDE].concat(), names);
    }
}
