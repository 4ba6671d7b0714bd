//! Rules on a leaf, against the facts that it builds on.

use super::{File, Rule, largest};
use crate::kernels::{FP4_KERNEL, FP4_OPS, kernels_of};
use crate::schema::hardware::{Backend, Gpu};
use crate::schema::leaf::{Format, KvFormat, Quant, Rows};
use crate::target::Target;

/// Prefill is cut on this grid, and so are pages: recurrent layers work in chunks of it.
const GRID_TOKENS: u64 = 64;
const WARP: u64 = 32;
const BLOCK_THREADS_MAX: u64 = 1024;

impl File {
    pub(super) fn leaf_rules(&self, target: &Target) -> Rule {
        self.name_rules(target)?;
        self.limit_rules(target)?;
        self.step_rules(target)?;
        self.weight_rules(target)?;
        match &target.hardware.gpu {
            None => self.cpu_rules(target),
            Some(gpu) => self.gpu_rules(target, gpu),
        }
    }

    fn cpu_rules(&self, target: &Target) -> Rule {
        let rule = "a cpu keeps keys and values in f32";
        let float = target.leaf.quant.kv == KvFormat::F32;
        self.rule(float, "quant.kv", "bf16", rule)?;
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
        let grid = page > 0 && page.is_multiple_of(GRID_TOKENS);
        self.rule(grid, "limits.page", page, "must be a multiple of 64")?;
        let context = limits.context;
        let pages = context > 0 && context.is_multiple_of(page);
        let rule = format!("must be a multiple of limits.page = {page}");
        self.rule(pages, "limits.context", context, &rule)?;
        let most = target.model.max_position;
        let rule = format!("must be at most the model's max_position = {most}");
        self.rule(context <= most, "limits.context", context, &rule)?;
        let (tokens, most) = (limits.kv_tokens, limits.sequences * context);
        let rule = format!("must be a multiple of limits.page = {page}");
        self.rule(
            tokens.is_multiple_of(page),
            "limits.kv_tokens",
            tokens,
            &rule,
        )?;
        let rule = format!("must be at least limits.context = {context}: one sequence may fill it");
        self.rule(tokens >= context, "limits.kv_tokens", tokens, &rule)?;
        let rule = format!("must be at most limits.sequences * limits.context = {most}");
        self.rule(tokens <= most, "limits.kv_tokens", tokens, &rule)
    }

    fn step_rules(&self, target: &Target) -> Rule {
        let (steps, limits) = (&target.leaf.steps, &target.leaf.limits);
        let prefill = steps.prefill;
        let pages = prefill > 0 && prefill.is_multiple_of(limits.page);
        let rule = format!("must be a multiple of limits.page = {}", limits.page);
        self.rule(pages, "steps.prefill", prefill, &rule)?;
        let most = limits.kv_tokens;
        let rule = format!("must be at most limits.kv_tokens = {most}: a step fills pages");
        self.rule(prefill <= most, "steps.prefill", prefill, &rule)?;
        let rows = &steps.decode;
        let ascending =
            rows.first().is_some_and(|&first| first > 0) && rows.is_sorted_by(|a, b| a < b);
        let shown = format!("{rows:?}");
        self.rule(
            ascending,
            "steps.decode",
            &shown,
            "must ascend from at least 1",
        )?;
        let last = rows.last() == Some(&limits.sequences);
        let rule = format!("must end with limits.sequences = {}", limits.sequences);
        self.rule(last, "steps.decode", &shown, &rule)
    }

    fn weight_rules(&self, target: &Target) -> Rule {
        let leaf = &target.leaf;
        let files = target
            .checkpoint()
            .is_some_and(|checkpoint| !checkpoint.files.is_empty());
        let rule = "needs a [checkpoint] of the model that states its files";
        self.rule(!leaf.embed || files, "embed", leaf.embed, rule)?;
        if let Some(key) = &leaf.checkpoint {
            let known = target.model.checkpoint.contains_key(key);
            self.rule(
                known,
                "checkpoint",
                key,
                "must be a [checkpoint] of the model",
            )?;
        }
        let formats = [leaf.quant.experts, leaf.quant.shared_expert];
        let nvfp4 = formats.into_iter().all(Format::is_nvfp4);
        self.mtp_rules(target)?;
        let exact = leaf.quant.experts_rows == Rows::Exact;
        let rule = "is for experts of NVFP4, the shared one too";
        self.rule(exact || nvfp4, "quant.experts_rows", "nvfp4", rule)?;
        let Some(derive) = &leaf.derive else {
            return Ok(());
        };
        let known = target.model.checkpoint.contains_key(&derive.from);
        self.rule(
            known,
            "derive.from",
            &derive.from,
            "must be a [checkpoint] of the model",
        )?;
        let published = target.model.checkpoint.contains_key(&target.quant);
        let rule = "the model publishes a checkpoint of this quantisation";
        self.rule(!published, "derive", "a table", rule)?;
        for (key, format) in matrix_formats(&leaf.quant) {
            let rule = "transformation = \"dequantise\" makes bf16";
            let key = format!("quant.{key}");
            self.rule(format == Format::Bf16, &key, format!("{format:?}"), rule)?;
        }
        Ok(())
    }

    /// Formats of the prediction layer are stated where the model has one.
    fn mtp_rules(&self, target: &Target) -> Rule {
        let quant = &target.leaf.quant;
        let has_layer = target.model.mtp.layers > 0;
        for (key, format) in [
            ("quant.mtp_attention", quant.mtp_attention),
            ("quant.mtp_experts", quant.mtp_experts),
        ] {
            let (stated, rule) = match has_layer {
                true => ("absent", "the model has a prediction layer"),
                false => ("stated", "the model has no prediction layer"),
            };
            self.rule(format.is_some() == has_layer, key, stated, rule)?;
        }
        Ok(())
    }

    fn gpu_rules(&self, target: &Target, gpu: &Gpu) -> Rule {
        debug_assert_eq!(target.hardware.backend, Backend::Cuda);
        let half = target.leaf.quant.kv == KvFormat::Bf16;
        let rule = "kernels keep keys and values in bf16";
        self.rule(half, "quant.kv", "f32", rule)?;
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
        for op in target.leaf.op.keys() {
            self.op_rules(target, op)?;
        }
        self.rows_rules(target)?;
        for choice in target.kernels() {
            let key = format!("op.{}.kernel", choice.op);
            let rule = format!(
                "needs {} bytes of shared memory, above gpu.shared_bytes_per_block = {}",
                choice.shared_bytes, gpu.shared_bytes_per_block
            );
            let fits = choice.shared_bytes <= gpu.shared_bytes_per_block;
            self.rule(fits, &key, choice.kernel, &rule)?;
            let Some(row_max) = choice.row_max else {
                continue;
            };
            let rule = format!(
                "{} keeps a row in registers, at most {} elements a thread; hidden = {}",
                choice.kernel,
                row_max / choice.threads,
                target.model.hidden
            );
            let key = format!("op.{}.threads", choice.op);
            let holds = target.model.hidden <= row_max;
            self.rule(holds, &key, choice.threads, &rule)?;
        }
        Ok(())
    }

    /// Rows are rounded to NVFP4 by the kernels that multiply such rows, and by no others.
    fn rows_rules(&self, target: &Target) -> Rule {
        let rounds = target.leaf.quant.experts_rows == Rows::Nvfp4;
        for op in FP4_OPS {
            let Some(choice) = target.leaf.op.get(op) else {
                continue;
            };
            let rule =
                format!("{FP4_KERNEL} and quant.experts_rows = \"nvfp4\" ask for each other");
            let key = format!("op.{op}.kernel");
            let agrees = rounds == (choice.kernel == FP4_KERNEL);
            self.rule(agrees, &key, &choice.kernel, &rule)?;
        }
        Ok(())
    }

    fn op_rules(&self, target: &Target, op: &str) -> Rule {
        let choice = &target.leaf.op[op];
        let Some(kernels) = kernels_of(op) else {
            return self.rule(false, "op", op, "no family has an op of this name");
        };
        let known = kernels.contains(&choice.kernel.as_str());
        let rule = format!("no such kernel; {op} has {kernels:?}");
        self.rule(known, &format!("op.{op}.kernel"), &choice.kernel, &rule)?;
        let threads = choice.threads;
        let warps = threads.is_multiple_of(WARP) && (WARP..=BLOCK_THREADS_MAX).contains(&threads);
        let rule = "must be a multiple of 32 in 32 ..= 1024";
        self.rule(warps, &format!("op.{op}.threads"), threads, rule)?;
        let reason = !choice.why.trim().is_empty();
        self.rule(
            reason,
            &format!("op.{op}.why"),
            "\"\"",
            "must give the reason",
        )
    }
}

/// Key and format of every group of matrices.
fn matrix_formats(quant: &Quant) -> impl Iterator<Item = (&'static str, Format)> {
    let formats = [
        ("embed", Some(quant.embed)),
        ("head", Some(quant.head)),
        ("gdn", Some(quant.gdn)),
        ("attention", Some(quant.attention)),
        ("experts", Some(quant.experts)),
        ("shared_expert", Some(quant.shared_expert)),
        ("mtp_attention", quant.mtp_attention),
        ("mtp_experts", quant.mtp_experts),
    ];
    let stated = formats.into_iter();
    stated.filter_map(|(key, format)| Some((key, format?)))
}
