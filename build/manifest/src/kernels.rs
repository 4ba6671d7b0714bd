//! Ops of `ffi/ops.toml` for a target: their kernels, and the shapes that these are compiled for.
//!
//! A kernel computes and asserts its use of registers and shared memory itself, in `cuda/`;
//! `bounds` has the facts of models that it accepts.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::family::Switch;
use crate::schema::leaf::Op;
use crate::schema::model::Model;
use crate::shapes::{Shape, camel};
use crate::table::{FP8_BLOCK, Format, Role, Row};
use crate::target::Target;

/// A kernel chosen for an op, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChoice {
    /// Name of the op.
    pub op: &'static str,
    /// Shape of the block that the kernel is compiled for; `None` for an op without shapes.
    pub shape: Option<String>,
    /// Symbol of the launcher, without `atlas_`.
    pub launcher: String,
    /// Name of the kernel: `cuda/ops/<op>/<kernel>.cuh` without its architecture.
    pub kernel: &'static str,
    /// Threads of a block.
    pub threads: u64,
    /// Whether the kernel lays out rows as operands of warpgroup instructions.
    pub operands: bool,
}

/// A launcher of a target: one op for one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Name of the op.
    pub op: &'static str,
    /// Shape of the block that the launcher is for; `None` for an op without shapes.
    pub shape: Option<String>,
    /// Symbol without `atlas_`: the op, with the shape where the model has several of its kind.
    pub name: String,
}

impl Launcher {
    fn new(op: &'static str, shape: Option<String>, several: bool) -> Launcher {
        let name = match &shape {
            Some(shape) if several => format!("{op}_{shape}"),
            _ => op.to_string(),
        };
        Launcher { op, shape, name }
    }
}

/// A kind of block; each of its shapes has a launcher for each of its ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Name in `over` of `ffi/ops.toml`, and of the file in `src/model/blocks`.
    pub name: &'static str,
    /// Type of the block in `src/model/blocks`.
    pub block: &'static str,
    /// Trait of the block's operations in `src/model/ops`; `Ops` is declared in the block's file.
    pub ops: &'static str,
}

impl Kind {
    pub const ATTENTION: Kind = Kind::of("attention", "Attention", "Attend");
    pub const DELTA: Kind = Kind::of("delta", "DeltaNet", "Delta");
    pub const EXPERTS: Kind = Kind::of("experts", "Experts", "Route");
    pub const MLP: Kind = Kind::of("mlp", "Mlp", "Gate");
    /// An MLP and experts side by side, each with its own operations.
    pub const BOTH: Kind = Kind::of("both", "Both", "Both");
    /// Products before and after attention that turn latents into queries, and results into values.
    pub const LATENT: Kind = Kind::of("latent", "Latent", "Ops");

    pub(crate) const fn of(name: &'static str, block: &'static str, ops: &'static str) -> Kind {
        Kind { name, block, ops }
    }

    /// Names of the traits of the kind's shapes and operations.
    pub(crate) fn traits(self) -> [String; 2] {
        let Kind { name, ops, .. } = self;
        match ops {
            "Ops" => ["Shape", "Ops"].map(|of| format!("blocks::{name}::{of}")),
            _ => [format!("shapes::{}", camel(name)), format!("ops::{ops}")],
        }
    }

    /// Names of all kinds.
    pub(crate) fn names() -> Vec<&'static str> {
        let over = OPS.values().filter_map(|entry| entry.over.as_deref());
        distinct(over.chain([Kind::BOTH.name]))
    }
}

/// Row of an op in `ffi/ops.toml`, without the keys that targets do not depend on.
#[derive(Deserialize)]
struct Entry {
    /// Name of the kind of block whose shapes the op is for, if it has any.
    over: Option<String>,
    kernels: Vec<String>,
    threads: u64,
    why: String,
}

/// Every op by name.
static OPS: LazyLock<BTreeMap<String, Entry>> = LazyLock::new(|| {
    let rows = toml::from_str(include_str!("../../../ffi/ops.toml"));
    rows.expect("a table that the tests of this crate read")
});

/// Kernel for many rows, which it lays out as operands of warpgroup instructions.
const WARPGROUPS: &str = "warpgroups_f16";
/// Op whose blocks hold a row in registers, and the elements of the row that one thread holds.
const ROW_OP: (&str, u64) = ("rms_norm", 32);
/// Kernel of rows that are rounded to NVFP4.
pub(crate) const FP4_KERNEL: &str = "block_scaled_fp4";
/// Ops that have the kernel [`FP4_KERNEL`].
pub(crate) const FP4_OPS: [&str; 2] = ["experts", "moe"];

const WARP: u64 = 32;

/// Shared memory of a block from which on kernels have large weight rings, bytes.
const LARGE_BLOCK: u64 = 128 * 1024;

/// Number of logits of a panel: rows of the head.
pub(crate) const PANEL_ROWS: u64 = 16;
/// Largest logits of a row that are ranked: as many as a request may ask for by `top_k` or
/// `top_logprobs` in practice, so that whole rows of logits are rarely copied to the host.
pub(crate) const TOP_K: u64 = 64;

/// Number of chunks of a row of logits: one for each block of the head, which has an SM to itself.
pub const fn top_k_chunks(model: &Model, sms: u64) -> u64 {
    let panels = model.vocab.div_ceil(PANEL_ROWS);
    if panels < sms { panels } else { sms }
}

/// Largest number of logits of a part, which one warp ranks: eight a lane.
const PART_LOGITS: u64 = 8 * WARP;

/// Number of parts of a chunk: all chunks together have at least twice `TOP_K`.
pub const fn top_k_parts(model: &Model, sms: u64) -> u64 {
    let chunks = top_k_chunks(model, sms);
    let chunk = model.vocab.div_ceil(PANEL_ROWS).div_ceil(chunks) * PANEL_ROWS;
    let (of_chunk, of_row) = (chunk.div_ceil(PART_LOGITS), (2 * TOP_K).div_ceil(chunks));
    if of_chunk > of_row { of_chunk } else { of_row }
}

/// Largest number of rows that `moe` takes in one launch.
pub(crate) const MOE_ROWS: u64 = 128;

/// Name of the kind of block whose shapes an op is for.
fn kind_of(op: &str) -> Option<&'static str> {
    OPS.get(op)?.over.as_deref()
}

/// Names of the kernels of `op`, whose shape after a point is ignored; `None` when there is no such
/// op.
pub(crate) fn kernels_of(op: &str) -> Option<&'static [String]> {
    let op = op.split('.').next().unwrap_or(op);
    OPS.get(op).map(|entry| entry.kernels.as_slice())
}

/// The first kernel of every op, which a hardware without a choice of its own has.
pub(crate) fn usual_kernels() -> impl Iterator<Item = (String, Op)> {
    OPS.iter().map(|(op, entry)| {
        let usual = Op {
            kernel: entry.kernels[0].clone(),
            threads: entry.threads,
            rows: None,
            why: entry.why.clone(),
        };
        (op.clone(), usual)
    })
}

impl Target {
    /// Columns of the matrices of `linear`, and of those of `linear_add`.
    pub(crate) fn product_widths(&self) -> [Vec<u64>; 2] {
        let model = &self.padded_model();
        let pair = (model.mtp.layers > 0).then_some(2 * model.hidden);
        let attended = self.attentions().into_iter();
        let attended = attended.map(|each| self.o_columns(&each));
        let rank = model.latent.as_ref().map(|latent| latent.query_rank);
        let recurred = self.traits().recurs.map(|recurs| (recurs.columns)(model).1);
        let inner = model.mlp.as_ref().map(|mlp| mlp.intermediate);
        let beside = self.beside().then(|| model.moe().shared());
        let latent = model.moe().latent;
        let inner = inner.into_iter().chain(beside).chain(latent);
        let outputs = distinct(attended.chain(recurred).chain(inner));
        let stored = [model.hidden].into_iter().chain(pair).chain(rank);
        match self.has(Switch::Sandwiched) {
            true => [distinct(stored.chain(outputs)), Vec::new()],
            false => [stored.collect(), outputs],
        }
    }

    /// Formats of the matrices of `norm_linear`, and of those of `linear` and `linear_add`
    /// together: name of the constant, op, and formats.
    pub(crate) fn product_formats(&self) -> [(&'static str, &'static str, Vec<Format>); 2] {
        let table = self.table();
        let of = |is: fn(Role) -> bool| {
            let rows = table.iter().filter(|row| is(row.role));
            distinct(rows.filter_map(Row::resident))
        };
        [
            ("NORM_LINEAR_FORMATS", "norm_linear", of(follows_a_norm)),
            ("LINEAR_FORMATS", "linear", of(is_of_linear)),
        ]
    }

    /// Most rows of one launch of `moe`: as the kernel's choice states, or as many as a block with
    /// `shared_bytes_max` can plan.
    pub(crate) fn moe_rows(&self, shared_bytes_max: u64) -> u64 {
        let chosen = self.op("moe", None).and_then(|choice| choice.rows);
        chosen.unwrap_or(match shared_bytes_max {
            LARGE_BLOCK.. => MOE_ROWS,
            _ => MOE_ROWS / 2,
        })
    }

    /// The kernel of `op` for `shape`: the leaf's for this shape or for all, or the hardware's.
    pub(crate) fn op(&self, op: &str, shape: Option<&str>) -> Option<&Op> {
        let of_leaf = &self.leaf.op;
        let of_shape = format!("{op}.{}", shape.unwrap_or_default());
        let chosen = of_leaf.get(&of_shape).or(of_leaf.get(op));
        chosen.or(self.hardware.op.get(op))
    }

    /// Whether `norm_linear` writes many rows in F16 for `experts`: only if products of F16 rows
    /// have whole blocks of columns.
    pub(crate) fn experts_take_rounded(&self) -> bool {
        let kernels = [("norm_linear", "resident_f16"), ("experts", "grouped_f16")];
        let whole = |columns: u64| columns.is_multiple_of(FP8_BLOCK as u64);
        self.has_kernels(&kernels) && whole(self.padded(self.model.hidden))
    }

    /// Whether `attend` writes rows of launches with cells in F16 for the products after it; not if
    /// rows are latents.
    pub(crate) fn attend_rounds(&self) -> bool {
        let products = [("linear", "panels_f16"), ("linear_add", "panels_f16")];
        self.has_kernels(&products)
            && self.attentions().iter().all(|each| {
                let attend = self.op("attend", Some(&each.snake()));
                attend.is_some_and(|it| it.kernel == "warps_bf16")
                    && !each.is_latent()
                    && self.o_columns(each).is_multiple_of(FP8_BLOCK as u64)
            })
    }

    /// Whether every one of these ops has this kernel.
    fn has_kernels(&self, kernels: &[(&str, &str)]) -> bool {
        let mut kernels = kernels.iter();
        kernels.all(|(op, kernel)| self.op(op, None).is_some_and(|it| it.kernel == *kernel))
    }

    /// Path of the manifest that chooses the kernel of `op`.
    pub(crate) fn chooser_of(&self, op: &str) -> String {
        let mut of_leaf = self.leaf.op.keys();
        let same = |key: &String| key.split('.').next() == Some(op);
        match of_leaf.any(same) {
            true => self.leaf_file(),
            false => self.hardware_file(),
        }
    }

    /// The kernels of this target, by launcher. Ops without a known kernel are left out.
    pub fn kernels(&self) -> Vec<KernelChoice> {
        let launchers = self.launchers().into_iter();
        let chosen = launchers.filter_map(|Launcher { op, shape, name }| {
            let choice = self.op(op, shape.as_deref())?;
            let mut known = kernels_of(op)?.iter();
            Some(KernelChoice {
                op,
                shape,
                launcher: name,
                kernel: known.find(|known| **known == choice.kernel)?,
                threads: choice.threads,
                operands: choice.kernel == WARPGROUPS,
            })
        });
        chosen.collect()
    }

    /// Every launcher of this target, by name.
    pub fn launchers(&self) -> Vec<Launcher> {
        let shapes = self.shapes();
        let of_op = |op: &'static str| {
            let Some(kind) = kind_of(op) else {
                return vec![Launcher::new(op, None, false)];
            };
            let names = shapes.iter().filter(|shape| shape.kind.name == kind);
            let names: Vec<_> = names.map(Shape::snake).collect();
            let several = names.len() > 1;
            let launcher = |shape| Launcher::new(op, Some(shape), several);
            names.into_iter().map(launcher).collect()
        };
        let ops = OPS.keys().map(String::as_str);
        let mut all: Vec<_> = ops.flat_map(of_op).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether `op`, with a shape after a point, has a launcher.
    pub(crate) fn has_launcher(&self, op: &str) -> bool {
        let mut launchers = self.launchers().into_iter();
        launchers.any(|launcher| {
            let shape = launcher.shape.unwrap_or_default();
            format!("{}.{shape}", launcher.op) == op
        })
    }

    /// Widest row that the threads of a kernel hold, elements; `None` if they hold no row.
    pub(crate) fn row_max(choice: &KernelChoice) -> Option<u64> {
        let (op, elements) = ROW_OP;
        (choice.op == op).then_some(elements * choice.threads)
    }
}

/// Whether `linear` may take matrices of a role: not of experts, nor between latents and heads.
fn is_of_linear(role: Role) -> bool {
    let of_heads = matches!(role, Role::LatentKeys | Role::LatentValues);
    !role.is_of_experts() && !of_heads
}

/// Whether `norm_linear` takes matrices of a role.
fn follows_a_norm(role: Role) -> bool {
    use Role::{Embedding, ExpertsOut, Fusion, GdnOutput, Head, MlpDown, Output, QueryUp};
    let others = matches!(
        role,
        Embedding | ExpertsOut | Fusion | GdnOutput | Head | MlpDown | Output | QueryUp
    );
    is_of_linear(role) && !others
}

/// Items without duplicates, in the order of their first occurrence.
pub(crate) fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Kind, Launcher, OPS, Role, follows_a_norm};

    /// Methods of the groups that make storage rather than compute, beside those that find it `_at`
    /// a place.
    const STORAGE: [&str; 4] = ["kv_cache", "delta_state", "load_experts", "routing"];

    /// Ops of a device beside those of a forward pass: what draws drafts, loads weights, and
    /// measures.
    const BESIDE: [&str; 4] = ["accept", "draft", "pack", "read_bytes"];

    fn model() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/model")
    }

    /// Texts of the files that groups of operations stand in.
    fn files() -> Vec<String> {
        let folders = ["ops", "blocks"].map(|folder| model().join(folder));
        let entries = folders
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap());
        let paths = entries.map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| path.is_file());
        files
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    }

    /// Methods of a file's groups: of what every model has, and of traits over shapes.
    fn methods(file: &str) -> impl Iterator<Item = &str> {
        let traits = file.split("\npub trait ").skip(1);
        let is_group = |head: &str| {
            ["Dense", "Ops"].iter().any(|name| head.starts_with(name)) || head.contains("shapes::")
        };
        let groups = traits.filter(move |body| is_group(body.lines().next().unwrap()));
        let bodies = groups.map(|body| body.split("\n}\n").next().unwrap());
        let lines = bodies.flat_map(str::lines);
        let heads = lines.filter_map(|line| line.strip_prefix("    fn "));
        heads.map(|line| line.split(['(', '<']).next().unwrap())
    }

    #[test]
    fn the_ops_are_those_of_the_groups() {
        let (files, stores) = (files(), |name: &str| STORAGE.contains(&name));
        let names = files.iter().flat_map(|file| methods(file));
        let mut names: Vec<_> = names
            .filter(|name| !stores(name) && !name.ends_with("_at"))
            .collect();
        names.extend(BESIDE);
        names.sort_unstable();
        assert_eq!(OPS.keys().collect::<Vec<_>>(), names);
    }

    #[test]
    fn every_kind_of_block_is_a_file() {
        for kind in Kind::names() {
            let file = model().join(format!("blocks/{kind}.rs"));
            assert!(
                file.is_file(),
                "ffi/ops.toml: over `{kind}`: no {}",
                file.display()
            );
        }
    }

    #[test]
    fn every_op_has_kernels_that_are_files() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cuda/ops");
        for (op, entry) in OPS.iter() {
            let files = std::fs::read_dir(folder.join(op)).unwrap();
            let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let files: Vec<String> = files.collect();
            assert!(!entry.kernels.is_empty(), "{op}");
            for kernel in &entry.kernels {
                let names = [format!("{kernel}.cuh"), format!("{kernel}_sm")];
                let is_it = |file: &String| names.iter().any(|name| file.starts_with(name));
                assert!(files.iter().any(is_it), "{op}: {kernel}");
            }
        }
    }

    #[test]
    fn a_launcher_is_named_after_its_shape_where_there_are_several() {
        let name = |several| Launcher::new("attend", Some("global".to_string()), several).name;
        assert_eq!([name(false), name(true)], ["attend", "attend_global"]);
    }

    #[test]
    fn products_behind_a_norm_are_no_output_projections() {
        let behind = [Role::Query, Role::GdnBeta, Role::MlpUp, Role::Router];
        assert!(behind.into_iter().all(follows_a_norm));
        let others = [Role::Output, Role::GdnOutput, Role::MlpDown, Role::ExpertUp];
        assert!(!others.into_iter().any(follows_a_norm));
    }
}
