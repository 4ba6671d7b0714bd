//! Rules on a leaf and the facts of model and hardware that it refers to.

use super::{File, Rule, largest};
use crate::constants::group_formats;
use crate::family::Switch;
use crate::formats::Formatted;
use crate::kernels::{FP4_KERNEL, FP4_OPS, distinct};
use crate::schema::hardware::{Backend, Gpu};
use crate::schema::leaf::{KvFormat, Rows};
use crate::table::{FP8_BLOCK, Format, Owner, Role, Row, Run};
use crate::target::Target;
use crate::weights::Part;

/// Tokens of a chunk of recurrent layers; prefill and pages are multiples of it.
const GRID_TOKENS: u64 = 64;

impl File {
    pub(super) fn leaf_rules(&self, target: &Target) -> Rule {
        self.name_rules(target)?;
        self.limit_rules(target)?;
        self.step_rules(target)?;
        self.weight_rules(target)?;
        self.kept_latent_rules(target)?;
        match &target.hardware.gpu {
            None => self.cpu_rules(target),
            Some(gpu) => self.gpu_rules(target, gpu),
        }
    }

    /// Latents are not rounded to FP8, which has too few bits for them.
    fn kept_latent_rules(&self, target: &Target) -> Rule {
        let rounded = target.has(Switch::Latent) && target.leaf.numbers.kv == KvFormat::Fp8;
        let rule = "latents are kept in f32 or bf16";
        self.rule(!rounded, "numbers.kv", "fp8", rule)
    }

    fn cpu_rules(&self, target: &Target) -> Rule {
        let rule = "a cpu keeps keys and values in f32 or as fp8 rounds";
        let kept = target.leaf.numbers.kv != KvFormat::Bf16;
        self.rule(kept, "numbers.kv", "bf16", rule)?;
        let none = target.leaf.op.is_empty();
        self.rule(none, "op", "a table", "a cpu target chooses no kernels")
    }

    fn name_rules(&self, target: &Target) -> Rule {
        let mut parts = target.name.split('/');
        for (key, value) in [("hw", &target.leaf.hw), ("model", &target.leaf.model)] {
            let folder = parts.next().unwrap_or("");
            let rule = format!("must be {folder}, as in the path");
            self.rule(value == folder, key, value, &rule)?;
        }
        Ok(())
    }

    fn limit_rules(&self, target: &Target) -> Rule {
        let limits = &target.leaf.limits;
        let page = limits.page;
        self.count("limits.sequences", limits.sequences, largest::REQUESTS)?;
        self.count("limits.queued", limits.queued, largest::REQUESTS)?;
        self.count("limits.kv_tokens", limits.kv_tokens, largest::KV_TOKENS)?;
        self.snapshot_rules(target)?;
        self.draft_rules(target)?;
        let grid = page > 0 && page.is_multiple_of(GRID_TOKENS);
        self.rule(grid, "limits.page", page, "must be a multiple of 64")?;
        let context = limits.context;
        self.multiple([("limits.context", context), ("limits.page", page)])?;
        let most = target.model.max_position;
        let rule = format!("must be at most the model's max_position = {most}");
        self.rule(context <= most, "limits.context", context, &rule)?;
        let (tokens, most) = (limits.kv_tokens, limits.sequences * context);
        self.multiple([("limits.kv_tokens", tokens), ("limits.page", page)])?;
        let rule = format!("must be at least limits.context = {context}: one sequence may fill it");
        self.rule(tokens >= context, "limits.kv_tokens", tokens, &rule)?;
        let rule = format!("must be at most limits.sequences * limits.context = {most}");
        self.rule(tokens <= most, "limits.kv_tokens", tokens, &rule)
    }

    fn snapshot_rules(&self, target: &Target) -> Rule {
        let keeps = target.keeps_snapshots();
        match target.leaf.limits.snapshots {
            Some(snapshots) if keeps => {
                self.count("limits.snapshots", snapshots, largest::REQUESTS)
            }
            Some(snapshots) => {
                let rule = "the model has no recurrent states to keep, and no windowed pages";
                self.rule(false, "limits.snapshots", snapshots, rule)
            }
            None => {
                let rule = "must be stated, as the model has recurrent states or windowed pages";
                self.rule(!keeps, "limits.snapshots", "none", rule)
            }
        }
    }

    fn draft_rules(&self, target: &Target) -> Rule {
        let Some(drafts) = target.leaf.limits.drafts else {
            return Ok(());
        };
        self.count("limits.drafts", drafts, largest::REQUESTS)
    }

    fn step_rules(&self, target: &Target) -> Rule {
        let (steps, limits) = (&target.leaf.steps, &target.leaf.limits);
        let prefill = steps.prefill;
        self.multiple([("steps.prefill", prefill), ("limits.page", limits.page)])?;
        let most = limits.kv_tokens;
        let rule = format!("must be at most limits.kv_tokens = {most}: a step fills pages");
        self.rule(prefill <= most, "steps.prefill", prefill, &rule)
    }

    fn weight_rules(&self, target: &Target) -> Rule {
        let leaf = &target.leaf;
        let files = target
            .checkpoint()
            .is_some_and(|checkpoint| !checkpoint.files.is_empty());
        let rule = "needs a [checkpoint] of the model that states its files";
        self.rule(!leaf.embed || files, "embed", leaf.embed, rule)?;
        if let Some(key) = &leaf.checkpoint {
            self.published_rule(target, "checkpoint", key)?;
        }
        self.format_rules(target)?;
        let Some(derive) = &leaf.derive else {
            return Ok(());
        };
        self.published_rule(target, "derive.from", &derive.from)?;
        let published = target.model.checkpoint.contains_key(&target.quant);
        let rule = "the model publishes a checkpoint of this quantisation";
        self.rule(!published, "derive", "a table", rule)?;
        for (at, each) in leaf.format.iter().enumerate() {
            let key = format!("format.{at}.as");
            let rule = "transformation = \"dequantise\" makes bf16";
            let bf16 = each.r#as == Format::Bf16;
            self.rule(bf16, &key, format!("{:?}", each.r#as), rule)?;
        }
        Ok(())
    }

    fn published_rule(&self, target: &Target, key: &str, name: &str) -> Rule {
        let known = target.model.checkpoint.contains_key(name);
        self.rule(known, key, name, "must be a [checkpoint] of the model")
    }

    /// Every matrix has a format, and a format that its role allows.
    fn format_rules(&self, target: &Target) -> Rule {
        self.resident_rules(target)?;
        let formatted = Formatted::of(target);
        formatted.check(&self.0)?;
        for row in &formatted.rows {
            self.row_rules(row)?;
            self.pad_rules(target, row)?;
        }
        let nvfp4 = experts_formats(&formatted.rows)
            .into_iter()
            .all(Format::is_nvfp4);
        let rounds = target.leaf.numbers.experts_rows == Rows::Nvfp4;
        let rule = "is for experts of NVFP4, the shared one too";
        self.rule(!rounds || nvfp4, "numbers.experts_rows", "nvfp4", rule)
    }

    /// Weights of fewer bits than the checkpoint's have a target of their own, named by the format.
    fn resident_rules(&self, target: &Target) -> Rule {
        for (at, each) in target.leaf.format.iter().enumerate() {
            let Some(resident) = each.resident else {
                continue;
            };
            let key = format!("format.{at}.resident");
            let (name, short) = (resident.name(), resident.short());
            let rule = format!(
                "weights with other bits than the checkpoint's are a target of their own; name \
                 the leaf after them, as {}-{short}.toml",
                target.quant
            );
            self.rule(
                target.quant.split('-').any(|part| part == short),
                &key,
                name,
                &rule,
            )?;
            let rule = "weights are rounded to nvfp4_modelopt or fp8_block128";
            self.rule(resident.is_rounded_to(), &key, name, rule)?;
            let rule = format!("must have fewer bits than {}", each.r#as.name());
            self.rule(resident.bits() < each.r#as.bits(), &key, name, &rule)?;
        }
        self.source_rules(target)
    }

    /// Rounded weights come from a published checkpoint under another name than this leaf's.
    fn source_rules(&self, target: &Target) -> Rule {
        if !target.rounds() {
            return Ok(());
        }
        let named = target.leaf.checkpoint.is_some();
        let rule = "must name the [checkpoint] that weights are rounded from";
        self.rule(named, "checkpoint", "none", rule)?;
        let published = target.model.checkpoint.contains_key(&target.quant);
        let rule = "the model publishes a checkpoint of this leaf's name; name the leaf otherwise";
        self.rule(!published, "format.resident", &target.quant, rule)
    }

    fn row_rules(&self, row: &Row) -> Rule {
        let (Some(format), Some(resident)) = (row.format(), row.resident()) else {
            return Ok(());
        };
        let key = format!("format of {}", row.name);
        let rule = "must be bf16 or f32: publishers leave it in floats, and kernels take it so";
        for format in [format, resident] {
            let floats = format.exact() == Format::Bf16;
            self.rule(floats || !row.role.is_float(), &key, format.name(), rule)?;
        }
        let stacked = format == Format::Bf16 || format.is_of_stacks() == row.is_stacked();
        let rule = "experts that share a tensor are bf16 or mxfp4, and nothing else is mxfp4";
        self.rule(stacked, &key, format.name(), rule)?;
        let key = format!("columns of {}", row.name);
        for format in [format, resident] {
            let (name, columns) = (format.coding().name().to_uppercase(), format.columns());
            let rule = format!("{name} needs a multiple of {columns} columns");
            self.rule(row.k().is_multiple_of(columns), &key, row.k(), &rule)?;
        }
        let blocks = |run: &Run| {
            let edges = [run.first, run.stride, run.rows];
            edges.iter().all(|edge| edge.is_multiple_of(FP8_BLOCK))
        };
        let one = row.runs.len() == 1 && row.runs[0].groups == 1 && row.runs[0].first == 0;
        let whole = one || !format.has_blocks() || row.runs.iter().all(blocks);
        let key = format!("rows of {}", row.name);
        let rule = "blocks of 128 rows that share a scale must not be cut";
        self.rule(whole, &key, row.n(), rule)
    }

    /// Pads are powers of two; matrices with scales of several rows have no need of padding.
    fn pad_rules(&self, target: &Target, row: &Row) -> Rule {
        let rule = "must be a power of two";
        let pads = ["numbers.pad", "numbers.pad_inner"].into_iter();
        for (key, pad) in pads.clone().zip(target.pads()) {
            self.rule(pad.is_power_of_two(), key, pad, rule)?;
        }
        let in_blocks = |format: Format| format.coding().factors() == Owner::Blocks;
        let plain = !row.resident().is_some_and(in_blocks);
        let rule = format!("is for matrices of no fp8, and {} is one", row.name);
        let padded = row.padded(target.pads().map(|pad| pad as usize));
        let whole = plain && row.role != Role::Fusion || padded == [row.n(), row.k()];
        pads.zip(target.pads())
            .try_for_each(|(key, pad)| self.rule(pad == 1 || whole, key, pad, &rule))
    }

    fn gpu_rules(&self, target: &Target, gpu: &Gpu) -> Rule {
        debug_assert_eq!(target.hardware.backend, Backend::Cuda);
        let kept = target.leaf.numbers.kv != KvFormat::F32;
        let rule = "kernels keep keys and values in bf16 or fp8";
        self.rule(kept, "numbers.kv", "f32", rule)?;
        let resident = target.resident_bytes();
        let reserve = target.hardware.host_reserve_bytes.unwrap_or(0);
        let rule = format!(
            "weights, KV pages, states and host_reserve_bytes need {} bytes, above \
             gpu.memory_bytes = {}",
            resident + reserve,
            gpu.memory_bytes
        );
        let tokens = target.leaf.limits.kv_tokens;
        self.rule(
            resident + reserve <= gpu.memory_bytes,
            "limits.kv_tokens",
            tokens,
            &rule,
        )?;
        for (constant, formats) in group_formats(target) {
            let name = constant.doc.trim_end_matches('.').to_lowercase();
            let names: Vec<_> = formats.iter().map(|format| format.name()).collect();
            let rule = format!("kernels take one format for {name}");
            self.rule(formats.len() <= 1, "format", names.join(", "), &rule)?;
        }
        let formats = experts_formats(&target.table());
        let names: Vec<_> = formats.iter().map(|format| format.name()).collect();
        let rule = "kernels take one format for routed experts and the shared one";
        self.rule(formats.len() <= 1, "format", names.join(", "), rule)?;
        for (op, choice) in &target.leaf.op {
            self.op_rules(op, choice)?;
            let shaped = op.contains('.');
            let rule = "the model has no block of this shape that the op is over";
            self.rule(!shaped || target.has_launcher(op), "op", op, rule)?;
        }
        self.rows_rules(target)?;
        self.bound_rules(target)?;
        for choice in target.kernels() {
            let Some(row_max) = Target::row_max(&choice) else {
                continue;
            };
            let rule = format!(
                "{} keeps a row in registers, at most {} elements a thread; hidden = {}",
                choice.kernel,
                row_max / choice.threads,
                target.padded(target.model.hidden)
            );
            let key = format!("op.{}.threads", choice.op);
            let holds = target.padded(target.model.hidden) <= row_max;
            let chooser = File(target.chooser_of(choice.op));
            chooser.rule(holds, &key, choice.threads, &rule)?;
        }
        Ok(())
    }

    /// Rows are rounded to NVFP4 exactly where kernels multiply NVFP4 rows.
    fn rows_rules(&self, target: &Target) -> Rule {
        let rounds = target.leaf.numbers.experts_rows == Rows::Nvfp4;
        for op in FP4_OPS {
            let Some(choice) = target.op(op, None) else {
                continue;
            };
            let rule =
                format!("{FP4_KERNEL} and numbers.experts_rows = \"nvfp4\" ask for each other");
            let key = format!("op.{op}.kernel");
            let agrees = rounds == (choice.kernel == FP4_KERNEL);
            self.rule(agrees, &key, &choice.kernel, &rule)?;
        }
        Ok(())
    }
}

/// Formats in memory of the decoder's routed and shared experts.
fn experts_formats(rows: &[Row]) -> Vec<Format> {
    let of_decoder = |row: &&Row| row.role.is_of_experts() && Part::of(row) == Part::Text;
    let experts = rows.iter().filter(of_decoder);
    distinct(experts.filter_map(Row::resident))
}
