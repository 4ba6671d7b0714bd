//! Bounds of kernels on a model's facts, each with the assertion in device code that it repeats. A
//! test finds every bound in `cuda/`, and no assertion about a model's facts there without a bound.

use crate::check::{File, Rule};
use crate::schema::model::{Gdn, Model, Moe};
use crate::shapes::Attends;
use crate::table::{FP8_BLOCK, Format, Owner, RUN_COLUMNS, Role, Row};
use crate::target::Target;

/// A key of a table of the manifest, its value, and whether the kernel takes it.
type Fact = (&'static str, u64, bool);

/// Shapes that a bound is about, and the function that takes the bounded fact from each.
#[derive(Clone, Copy)]
enum Of {
    /// Each shape of attention.
    Attention(fn(&Attends) -> Fact),
    /// A recurrent mixer; the flag says whether it is Mamba-2.
    Gdn(fn(&Gdn, bool) -> Fact),
    /// Experts, and the width of the rows that routed experts read and write.
    Experts(fn(&Moe, u64) -> Fact),
    Model(fn(&Model) -> Option<Fact>),
}

/// A bound on the shapes that a kernel takes.
struct Bound {
    /// Op and name of the kernel that has the bound; absent: every kernel of the op.
    kernel: Option<[&'static str; 2]>,
    /// File in `cuda/`.
    file: &'static str,
    /// Condition of the assertion, without spaces.
    condition: &'static str,
    of: Of,
    /// The bound as a rule of the manifest, in words.
    rule: &'static str,
}

/// Makes bounds of rows: the file, op and name of the one kernel that has the bound, the condition,
/// the shapes, and the rule.
macro_rules! bounds {
    ($($file:literal $(in $op:literal $name:literal)? asserts $condition:literal:
        $of:ident($holds:expr), $rule:literal;)*) => {
        &[$(Bound {
            kernel: [$(Some([$op, $name]),)? None][0],
            file: $file,
            condition: $condition,
            of: Of::$of($holds),
            rule: $rule,
        },)*]
    };
}

/// Fact of `key` and whether its value is a multiple of a number.
fn multiple(key: &'static str, value: u64, of: u64) -> Fact {
    (key, value, value.is_multiple_of(of))
}

fn at_most(key: &'static str, value: u64, most: u64) -> Fact {
    (key, value, value <= most)
}

/// Largest number of parts into which a sum over K is split.
const SEGMENTS_MAX: u64 = 8;

/// Parts of a sum over `k` columns, as `tile/panels.cuh` cuts it.
fn segments(k: u64) -> u64 {
    let runs = k / RUN_COLUMNS as u64;
    let parts = runs & runs.wrapping_neg();
    match parts * RUN_COLUMNS as u64 / FP8_BLOCK as u64 {
        0 => parts.max(1),
        blocks => blocks.min(SEGMENTS_MAX),
    }
}

/// Experts that every row visits: the shared one, unless it is an MLP beside the routed ones.
fn shared(moe: &Moe) -> u64 {
    u64::from(moe.shared() > 0 && moe.scale.is_none())
}

/// Width of the rows that routed experts read and write, and the key that states it.
fn experts_width(model: &Model) -> Option<(&'static str, u64)> {
    let latent = model.moe.as_ref()?.latent;
    let latent = latent.map(|width| ("moe.latent", width));
    Some(latent.unwrap_or(("hidden", model.hidden)))
}

/// Activations that the rows of a panel make: half as many where every other row is a gate.
fn of_panel(moe: &Moe) -> u64 {
    match moe.scale {
        None => 8,
        Some(_) => 16,
    }
}

const BOUNDS: &[Bound] = bounds! {
    "ops/attend/queries.cuh" asserts
        "kValueDim == 64 || kValueDim == 128 || kValueDim == 256 || kValueDim == 512":
        Attention(|it| {
            let holds = matches!(it.value_dim, 64 | 128 | 256 | 512);
            ("head_dim", it.facts.head_dim, holds)
        }),
        "must be 64, 128, 256 or 512, turned elements beside latents aside: warps have whole tiles";
    "ops/attend/queries.cuh" asserts "kHeads == kGroups * kGroup && kGroup <= 16":
        Attention(|it| {
            let group = it.facts.heads / it.facts.kv_heads;
            let holds = group <= 16 || it.is_latent() && group.is_multiple_of(16);
            ("kv_heads", it.facts.kv_heads, holds)
        }),
        "must leave at most 16 query heads to a KV head, or a multiple to latents: they are rows \
         of one product";
    "ops/attend/queries.cuh" asserts "kHeadDim <= 512":
        Attention(|it| at_most("head_dim", it.facts.head_dim, 512)),
        "must be at most 512: a block has room for a page of keys beside its queries";
    "tile/pages.cuh" asserts "!kFp8Pages && A::kRotaryDim % kPageColumns == 0":
        Attention(|it| {
            let turned = it.facts.rotary_dim;
            let holds = !it.is_latent() || turned.is_multiple_of(64);
            ("rotary_dim", turned, holds)
        }),
        "must be a multiple of 64: latents are whole blocks of a page";
    "ops/latent_queries/heads_f16.cuh" asserts
        "L::kNopeDim % tile::kHeadStep == 0 && A::kValueDim % tile::kHeadColumns == 0":
        Model(|it| {
            let nope = it.latent.as_ref()?.nope_dim;
            let holds = nope.is_multiple_of(64) && it.latent_rank().is_multiple_of(64);
            Some(("latent.nope_dim", nope, holds))
        }),
        "must be a multiple of 64, as latents are: heads are whole steps, latents whole blocks";
    "ops/latent_results/heads_f16.cuh" asserts "L::kResultDim % tile::kHeadColumns == 0":
        Model(|it| Some(multiple("latent.value_dim", it.latent.as_ref()?.value_dim, 64))),
        "must be a multiple of 64: results are whole blocks";
    "tile/head.cuh" asserts "A::kHeadDim % kWarpLanes == 0":
        Attention(|it| multiple("head_dim", it.facts.head_dim, 32)),
        "must be a multiple of 32: a lane has whole elements of a head";
    "tile/head.cuh" asserts "kPairs % kWarpLanes == 0":
        Attention(|it| multiple("rotary_dim", it.facts.rotary_dim, 64)),
        "must be a multiple of 64: both elements of a pair are in one lane";
    "ops/store_kv/pages.cuh" asserts "kHeadDim % tile::kPageColumns == 0":
        Attention(|it| multiple("head_dim", it.facts.head_dim, 64)),
        "must be a multiple of 64: a page is whole blocks";
    "ops/attend/tiles_bf16_sm90.cuh" in "attend" "tiles_bf16" asserts "A::kValueDim == A::kHeadDim":
        Attention(|it| ("head_dim", it.facts.head_dim, !it.is_latent())),
        "must have no latents: values lie beside keys";
    "ops/attend/tiles_bf16_sm90.cuh" in "attend" "tiles_bf16" asserts "A::kHeadDim <= 256":
        Attention(|it| at_most("head_dim", it.facts.head_dim, 256)),
        "must be at most 256: a warpgroup's sums are the columns of a head";
    "ops/attend/warps_bf16.cuh" in "attend" "warps_bf16" asserts "A::kValueDim <= 256":
        Attention(|it| at_most("head_dim", it.value_dim, 256)),
        "must be at most 256: a warp's mixes are the columns of a head";
    "ops/attend/split_kv_bf16.cuh" in "attend" "split_kv_bf16" asserts "A::kValueDim > 256":
        Attention(|it| ("head_dim", it.value_dim, it.value_dim > 256)),
        "must be over 256: prompts of narrower heads have kernels of their own";
    "ops/conv_silu/channels_f32.cuh" asserts "Delta::kConv == 4":
        Gdn(|it, _| ("conv_kernel", it.conv_kernel, it.conv_kernel == 4)),
        "must be 4: a channel's taps are one vector";
    "ops/gated_delta/columns_f32.cuh" asserts "Delta::kKeyDim == 4 * tile::kWarpLanes":
        Gdn(|it, _| ("key_dim", it.key_dim, it.key_dim == 128)),
        "must be 128: a warp has a key, a vector a lane";
    "ops/gated_delta/columns_f32.cuh" asserts "Delta::kValueDim % kColumns == 0":
        Gdn(|it, _| multiple("value_dim", it.value_dim, 32)),
        "must be a multiple of 32: blocks have whole columns";
    "ops/gated_rms_norm/heads_f32.cuh" asserts
        "Delta::kNorm % (4 * tile::kWarpLanes) == 0 && (Delta::kMamba || Delta::kNorm == 4 * \
         tile::kWarpLanes)":
        Gdn(|it, mamba| {
            let group = it.value_heads / it.key_heads * it.value_dim;
            let holds = match mamba {
                true => group.is_multiple_of(128),
                false => it.value_dim == 128,
            };
            ("value_dim", it.value_dim, holds)
        }),
        "must be 128, or a group's heads a multiple of it: a lane has whole vectors of a norm";
    "ops/conv_silu/channels_f32.cuh" asserts "Delta::kKeyDim % 4 == 0 && Delta::kValueDim % 4 == 0":
        Gdn(|it, _| multiple("value_dim", it.value_dim, 4)),
        "must be a multiple of 4: heads are whole vectors";
    "ops/gated_linear_add/warpgroups_f16_sm90.cuh" in "gated_linear_add" "warpgroups_f16" asserts
        "tile::kRoundColumns % Delta::kValueDim == 0":
        Gdn(|it, _| ("value_dim", it.value_dim, 512_u64.is_multiple_of(it.value_dim))),
        "must divide 512: a warp rounds whole heads";
    "ops/gated_delta/cells_f16.cuh" asserts "kBlockHeads <= 3":
        Gdn(|it, _| {
            let group = it.value_heads / it.key_heads;
            let holds = group.is_multiple_of(2) || group <= 3;
            ("value_heads", it.value_heads, holds)
        }),
        "must be one, three or an even number for each of the heads of keys: a block has the \
         memory of three";
    "ops/experts/plan.cuh" asserts "kExperts <= kPlanThreads":
        Experts(|it, _| ("experts", it.experts, it.experts + shared(it) <= 1024)),
        "must be at most 1024, the shared expert included: a thread counts an expert";
    "ops/experts/plan.cuh" asserts
        "Experts::kShared == 0 || (Experts::kShared == Experts::kIntermediate && \
         target::FORMAT_SHARED_EXPERT == target::FORMAT_EXPERTS)":
        Experts(|it, _| {
            let holds = shared(it) == 0 || it.shared() == it.intermediate;
            ("shared_intermediate", it.shared(), holds)
        }),
        "must be moe.intermediate: the shared expert is one more expert";
    "ops/experts/plan.cuh" asserts "Experts::kIntermediate % kPanelActivations == 0":
        Experts(|it, _| multiple("intermediate", it.intermediate, of_panel(it))),
        "must be a multiple of 8, or of 16 without gates: panels of gate and up are full";
    "tile/warpgroups_sm90.cuh" in "experts" "warpgroups_f16" asserts "kK % kBlockColumns == 0":
        Experts(|it, _| multiple("intermediate", it.intermediate, 128)),
        "must be a multiple of 128: steps are whole";
    "ops/experts/warpgroups_f16_sm90.cuh" in "experts" "warpgroups_f16" asserts
        "Experts::kIntermediate % Sink::kColumns == 0":
        Experts(|it, _| multiple("intermediate", it.intermediate, 8 * of_panel(it))),
        "must be a multiple of 64, or of 128 without gates: tiles are full";
    "ops/moe/rows_f16.cuh" asserts "kGatePanels % kAtOnce == 0":
        Experts(|it, width| {
            // Panels that a block of the smaller shape, with 8 warps, multiplies at once.
            let at_once = 8 / segments(width);
            let holds = (it.intermediate / of_panel(it)).is_multiple_of(at_once);
            ("intermediate", it.intermediate, holds)
        }),
        "must be a multiple of 64 where experts read narrow rows: a round's panels are of one tile";
    "ops/moe/rows_f16.cuh" asserts "kRowsMax * kChoiceWords <= kAssigned * Experts::kIntermediate":
        Experts(|it, _| {
            let chosen = it.experts_per_token;
            let holds = 64 * (chosen / 2) <= (chosen + shared(it)) * it.intermediate;
            ("intermediate", it.intermediate, holds)
        }),
        "must be at least 32: choices of all rows fit a row";
    "ops/moe/rows_f16.cuh" asserts "Experts::kPerToken % 2 == 0 && Experts::kCount < 0xffff":
        Experts(|it, _| multiple("experts_per_token", it.experts_per_token, 2)),
        "must be even: two choices are a word";
    "ops/route/rows_f32.cuh" asserts "kAssigned <= tile::kWarpLanes":
        Experts(|it, _| {
            let chosen = it.experts_per_token;
            ("experts_per_token", chosen, chosen + shared(it) <= 32)
        }),
        "must be at most 32, the shared expert included: a lane writes a chosen expert";
    "ops/experts/warpgroups_f16_sm90.cuh" in "experts" "warpgroups_f16" asserts
        "kPairs % (tile::kConsumers * kBlockPairs) == 0":
        Model(|it| experts_width(it).map(|(key, width)| multiple(key, width, 128))),
        "must be a multiple of 128: tiles of an expert's rows are full";
    "ops/experts/parts.cuh" asserts "kWidth % tile::kPanelRows == 0":
        Model(|it| experts_width(it).map(|(key, width)| multiple(key, width, 16))),
        "must be a multiple of 16: an expert's panels are full";
    "tile/resident.cuh" asserts "fits_registers(kK)":
        Model(|it| Some(("hidden", it.hidden, it.hidden / segments(it.hidden) <= 1024))),
        "must be cut into segments of at most 1024 columns, as multiples of 1024 are: registers \
         have room for no more";
    "ops/swiglu/vectors_f32.cuh" asserts "M::kIntermediate % 4 == 0":
        Model(|it| Some(multiple("mlp.intermediate", it.mlp.as_ref()?.intermediate, 4))),
        "must be a multiple of 4: a row is whole vectors";
    "ops/top_k/rank.cuh" asserts "VOCAB >= TOP_K && kFoundMax >= TOP_K":
        Model(|it| Some(("vocab", it.vocab, it.vocab >= crate::kernels::TOP_K))),
        "must be at least 64: so many tokens are ranked";
};

/// Columns of which a matrix in a format has a multiple: block scales are copied in pairs.
const fn columns_of(format: Format) -> u64 {
    let coding = format.coding();
    let copied = match coding.factors() {
        Owner::Blocks => 2,
        _ => 1,
    };
    copied * coding.columns() as u64
}

impl Of {
    /// Facts of a target that the bound is about: shape, if any, key, value, whether it holds.
    fn facts(&self, target: &Target) -> Vec<(Option<String>, String, u64, bool)> {
        let model = &target.padded_model();
        let of = |table: &str, (key, value, holds): Fact| {
            let key = match table.is_empty() {
                true => key.to_string(),
                false => format!("{table}.{key}"),
            };
            (None, key, value, holds)
        };
        match self {
            Of::Attention(bound) => {
                let attentions = target.attentions();
                let each = attentions.iter().map(|each| {
                    let (_, key, value, holds) = of(each.table(), bound(each));
                    (Some(each.snake()), key, value, holds)
                });
                each.collect()
            }
            Of::Gdn(bound) => {
                let recurrence = model.recurrence().into_iter();
                let each = recurrence.map(|gdn| {
                    match (model.mamba.is_some(), bound(&gdn, model.mamba.is_some())) {
                        (false, fact) => of("gdn", fact),
                        (true, (key, value, holds)) => of("mamba", (of_mamba(key), value, holds)),
                    }
                });
                each.collect()
            }
            Of::Experts(bound) => {
                let moe = model.moe.iter();
                let width = |moe: &Moe| moe.latent.unwrap_or(model.hidden);
                moe.map(|moe| of("moe", bound(moe, width(moe)))).collect()
            }
            Of::Model(bound) => bound(model).map(|fact| of("", fact)).into_iter().collect(),
        }
    }
}

impl Target {
    /// The first op whose kernel does not take the model, with its shape if any, and the broken
    /// rule.
    pub(crate) fn unfit(&self) -> Option<(String, &'static str)> {
        let kernels = BOUNDS
            .iter()
            .filter_map(|bound| Some((bound, bound.kernel?)));
        let broken = kernels.flat_map(|(bound, [op, kernel])| {
            let facts = bound.of.facts(self).into_iter();
            let broken = facts.filter(|(.., holds)| !holds);
            broken.map(move |(shape, ..)| (bound.rule, op, kernel, shape))
        });
        let mut chosen = broken.filter(|(_, op, kernel, shape)| {
            let choice = self.op(op, shape.as_deref());
            choice.is_some_and(|choice| choice.kernel == *kernel)
        });
        let (rule, op, _, shape) = chosen.next()?;
        Some((table(op, shape), rule))
    }
}

/// Name of the table of a manifest that chooses an op's kernel.
fn table(op: &str, shape: Option<String>) -> String {
    shape.map_or(op.to_string(), |shape| format!("{op}.{shape}"))
}

impl File {
    /// Every fact of the model is within the bounds of this hardware's kernels.
    pub(crate) fn bound_rules(&self, target: &Target) -> Rule {
        let model = File(target.model_path("model.toml"));
        for bound in BOUNDS {
            for (shape, key, value, holds) in bound.of.facts(target) {
                let Bound {
                    rule,
                    file,
                    condition,
                    ..
                } = bound;
                let rule = format!("{rule} (cuda/{file} asserts {condition})");
                let Some([op, kernel]) = bound.kernel else {
                    model.rule(holds, &key, value, &rule)?;
                    continue;
                };
                let chosen = target.op(op, shape.as_deref());
                let is_it = chosen.is_some_and(|choice| choice.kernel == kernel);
                let table = table(op, shape);
                let rule =
                    format!("{key} = {value} {rule}; name another kernel in [op.\"{table}\"]");
                let chooser = File(target.chooser_of(op));
                chooser.rule(holds || !is_it, &format!("op.{op}.kernel"), kernel, &rule)?;
            }
        }
        let rows = target.table();
        let of_heads = |row: &&Row| matches!(row.role, Role::LatentKeys | Role::LatentValues);
        for row in rows.iter().filter(of_heads) {
            let rule = "kernels take rows that make heads of latents in bf16";
            let format = row.resident().map_or("none", Format::name);
            let key = format!("format of {}", row.name);
            model.rule(format == Format::Bf16.name(), &key, format, rule)?;
        }
        let matrices = rows.iter().filter_map(|row| Some((row, row.resident()?)));
        for (row, format) in matrices {
            let (key, value) = columns_key(target, row);
            let k = row.padded(target.pads().map(|pad| pad as usize))[1] as u64;
            let step = columns_of(format);
            let rule = format!(
                "makes {k} columns of {}; kernels take multiples of {step} in {}",
                row.name,
                format.name()
            );
            model.rule(k.is_multiple_of(step), &key, value, &rule)?;
        }
        Ok(())
    }
}

/// Key of Mamba-2 that corresponds to a key of Gated DeltaNet.
fn of_mamba(key: &'static str) -> &'static str {
    match key {
        "key_heads" => "groups",
        "value_heads" => "heads",
        "key_dim" => "state_dim",
        "value_dim" => "head_dim",
        other => other,
    }
}

/// Key and value of the fact that decides the columns of a matrix.
fn columns_key(target: &Target, row: &Row) -> (String, u64) {
    let model = &target.model;
    let (recurs, moe) = (target.traits().recurs, model.moe.as_ref());
    let (key, value) = match row.role {
        Role::Output => {
            let attentions = target.attentions().into_iter();
            let is = |each: &Attends| target.o_columns(each) == row.k() as u64;
            let mut its = attentions
                .filter(is)
                .map(|each| (each.table(), each.facts.heads));
            let (table, heads) = its
                .next_back()
                .unwrap_or(("attention", model.attention.heads));
            return (format!("{table}.heads"), heads);
        }
        Role::GdnOutput if let Some(recurs) = recurs => {
            let ((key, value), _) = (recurs.columns)(model);
            (key, Some(value))
        }
        Role::MlpDown if target.beside() => ("moe.shared_intermediate", moe.map(Moe::shared)),
        Role::MlpDown => {
            let mlp = model.mlp.as_ref();
            ("mlp.intermediate", mlp.map(|mlp| mlp.intermediate))
        }
        Role::ExpertDown => ("moe.intermediate", moe.map(|moe| moe.intermediate)),
        Role::ExpertUp | Role::ExpertsOut if moe.is_some_and(|moe| moe.latent.is_some()) => {
            ("moe.latent", moe.and_then(|moe| moe.latent))
        }
        Role::SharedDown => ("moe.shared_intermediate", moe.map(Moe::shared)),
        _ => ("hidden", None),
    };
    (key.to_string(), value.unwrap_or(model.hidden))
}

#[cfg(test)]
mod tests;
