//! Rules on the facts of a model and of its checkpoint.

use super::{File, Rule};
use crate::schema::model::{Attention, Chat, Gdn, Layers, Model, Moe, Sampling};
use crate::target::Target;
use crate::weights::{NVFP4_GROUP, Storage};

const SHA256_DIGITS: usize = 64;
const TEMPERATURE_MAX: f64 = 2.0;

impl File {
    pub(super) fn model_rules(&self, model: &Model) -> Rule {
        self.positive("hidden", model.hidden)?;
        self.positive("vocab", model.vocab)?;
        self.positive("max_position", model.max_position)?;
        self.rule(
            model.norm_eps > 0.0,
            "norm_eps",
            model.norm_eps,
            "must be above 0",
        )?;
        self.layer_rules(&model.layers)?;
        self.attention_rules(&model.attention)?;
        self.gdn_rules(&model.gdn)?;
        self.moe_rules(&model.moe)?;
        let layers = model.mtp.layers;
        self.rule(layers <= 1, "mtp.layers", layers, "must be 0 or 1")?;
        self.sampling_rules(&model.sampling)?;
        model
            .chat
            .as_ref()
            .map_or(Ok(()), |chat| self.chat_rules(chat, model.vocab))
    }

    fn layer_rules(&self, layers: &Layers) -> Rule {
        self.positive("layers.count", layers.count as u64)?;
        let period = layers.period.len();
        let divides = period > 0 && layers.count.is_multiple_of(period);
        let rule = format!(
            "{period} mixers must divide layers.count = {}; list every layer where none repeats",
            layers.count
        );
        self.rule(
            divides,
            "layers.period",
            format!("{:?}", layers.period),
            &rule,
        )
    }

    fn attention_rules(&self, attention: &Attention) -> Rule {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            ..
        } = *attention;
        self.positive("attention.heads", heads)?;
        self.positive("attention.head_dim", head_dim)?;
        let groups = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let rule = format!("must divide attention.heads = {heads}");
        self.rule(groups, "attention.kv_heads", kv_heads, &rule)?;
        let even = rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim;
        let rule = format!("must be even and at most attention.head_dim = {head_dim}");
        self.rule(even, "attention.rotary_dim", rotary_dim, &rule)?;
        let theta = attention.rope_theta;
        self.rule(
            theta > 0.0,
            "attention.rope_theta",
            theta,
            "must be above 0",
        )?;
        let from = "2 * heads * head_dim, query and gate";
        self.equals(
            "attention.q_rows",
            attention.q_rows,
            2 * heads * head_dim,
            from,
        )?;
        let from = "kv_heads * head_dim";
        self.equals(
            "attention.kv_rows",
            attention.kv_rows,
            kv_heads * head_dim,
            from,
        )?;
        let from = "heads * head_dim";
        self.equals(
            "attention.o_columns",
            attention.o_columns,
            heads * head_dim,
            from,
        )
    }

    fn gdn_rules(&self, gdn: &Gdn) -> Rule {
        let Gdn {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = *gdn;
        self.positive("gdn.key_heads", key_heads)?;
        self.positive("gdn.key_dim", key_dim)?;
        self.positive("gdn.value_dim", value_dim)?;
        let groups = value_heads > 0 && value_heads.is_multiple_of(key_heads);
        let rule = format!("must be a multiple of gdn.key_heads = {key_heads}");
        self.rule(groups, "gdn.value_heads", value_heads, &rule)?;
        let taps = gdn.conv_kernel;
        self.rule(taps >= 2, "gdn.conv_kernel", taps, "must be at least 2")?;
        let values = value_heads * value_dim;
        let from = "2 * key_heads * key_dim + value_heads * value_dim";
        self.equals(
            "gdn.qkv_rows",
            gdn.qkv_rows,
            2 * key_heads * key_dim + values,
            from,
        )?;
        self.equals("gdn.z_rows", gdn.z_rows, values, "value_heads * value_dim")?;
        self.equals("gdn.gate_rows", gdn.gate_rows, value_heads, "value_heads")
    }

    fn moe_rules(&self, moe: &Moe) -> Rule {
        let (chosen, experts) = (moe.experts_per_token, moe.experts);
        let rule = format!("must be 1 ..= moe.experts = {experts}");
        self.rule(
            (1..=experts).contains(&chosen),
            "moe.experts_per_token",
            chosen,
            &rule,
        )?;
        self.positive("moe.intermediate", moe.intermediate)?;
        self.positive("moe.shared_intermediate", moe.shared_intermediate)
    }

    fn sampling_rules(&self, sampling: &Sampling) -> Rule {
        let heat = sampling.temperature;
        let range = (0.0..=TEMPERATURE_MAX).contains(&heat);
        self.rule(range, "sampling.temperature", heat, "must be 0 ..= 2")?;
        let share = sampling.top_p;
        self.rule(
            share > 0.0 && share <= 1.0,
            "sampling.top_p",
            share,
            "must be in (0, 1]",
        )
    }

    fn chat_rules(&self, chat: &Chat, vocab: u64) -> Rule {
        let some = !chat.stop_ids.is_empty();
        self.rule(some, "chat.stop_ids", "[]", "must name at least one token")?;
        let below = format!("must be below vocab = {vocab}");
        for &id in &chat.stop_ids {
            self.rule(id < vocab, "chat.stop_ids", id, &below)?;
        }
        self.rule(
            chat.think_open_id < vocab,
            "chat.think_open_id",
            chat.think_open_id,
            &below,
        )?;
        let close = chat.think_close_id;
        self.rule(close < vocab, "chat.think_close_id", close, &below)
    }

    /// Rules that need the leaf's formats: what the checkpoint states against what follows.
    pub(super) fn checkpoint_rules(&self, target: &Target) -> Rule {
        for group in target.weights() {
            let packed = matches!(group.storage, Storage::Format(format) if format.is_nvfp4());
            let whole = !packed || group.k.is_multiple_of(NVFP4_GROUP);
            let key = format!("{} columns", group.name);
            let rule = "NVFP4 needs a multiple of 16 columns";
            self.rule(whole, &key, group.k, rule)?;
        }
        let Some(checkpoint) = target.checkpoint() else {
            return Ok(());
        };
        let quant = target
            .leaf
            .derive
            .as_ref()
            .map_or(&target.quant, |derive| &derive.from);
        let table = format!("checkpoint.{quant}");
        for file in &checkpoint.files {
            let digest = file.sha256.as_str();
            let digits = digest
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let valid = digits && digest.len() == SHA256_DIGITS;
            let key = format!("{table}.files.{}.sha256", file.name);
            self.rule(
                valid,
                &key,
                digest,
                "must be 64 lower-case hexadecimal digits",
            )?;
        }
        if target.leaf.derive.is_some() {
            return Ok(());
        }
        let from = "the sum over the tensors that dims, formats, input_scales, stacked_experts and \
                    a_log_f32 give";
        let key = format!("{table}.tensors");
        self.equals(&key, checkpoint.tensors, target.checkpoint_tensors(), from)?;
        let key = format!("{table}.tensor_bytes");
        self.equals(
            &key,
            checkpoint.tensor_bytes,
            target.checkpoint_bytes(),
            from,
        )
    }
}
