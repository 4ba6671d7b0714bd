//! Rules on the facts of a model and of its checkpoint.

use std::collections::BTreeSet;

use super::{File, Rule, largest};
use crate::family::{FeedForward, Mixers, Scale, Switch};
use crate::kernels::{PANEL_ROWS, TOP_K};
use crate::schema::model::{
    self as schema, AddedTokens, Attention, Chat, Checkpoint, Gdn, Latent, Layers, Mamba, Mixer,
    Model, Moe, Mtp, Sampling, StackedIn, Unused,
};
use crate::table::Format;
use crate::target::Target;

const SHA256_DIGITS: usize = 64;
const TEMPERATURE_MAX: f64 = 2.0;
/// Below it an epsilon is lost beside the F32 square that it is added to.
const NORM_EPS_LEAST: f64 = 1e-12;
const SUM_OF: &str =
    "the sum over the tensors that dims, formats, input_scales and stacked_experts give";

/// Text of the token `id`, if it is an added one whose text is known.
fn added_text(tokens: &AddedTokens, id: u64) -> Option<&str> {
    let index = id.checked_sub(tokens.first)?;
    let text = tokens.texts.get(usize::try_from(index).ok()?)?;
    Some(text.as_str()).filter(|text| !text.is_empty())
}

impl File {
    pub(super) fn model_rules(&self, model: &Model) -> Rule {
        self.model_parts(model).into_iter().collect()
    }

    /// The rules on a model's facts, each for what others do not look at.
    pub(super) fn model_parts(&self, model: &Model) -> Vec<Rule> {
        let eps = model.norm_eps;
        let range = (NORM_EPS_LEAST..=largest::NORM_EPS).contains(&eps);
        let (gdn, moe) = (model.gdn.as_ref(), model.moe.as_ref());
        let (mamba, latent) = (model.mamba.as_ref(), model.latent.as_ref());
        let (mlp, vision) = (model.mlp.as_ref(), model.vision.as_ref());
        let (sliding, scalar) = (model.sliding.as_ref(), model.query_pre_attn_scalar);
        let (chat, cap) = (model.chat.as_ref(), model.logit_cap.unwrap_or(1.0));
        vec![
            self.text("title", &model.title),
            self.text("id", &model.id),
            self.text("licence", &model.licence),
            self.count("hidden", model.hidden, largest::WIDTH),
            self.count("vocab", model.vocab, largest::VOCAB),
            self.count("max_position", model.max_position, largest::POSITIONS),
            self.rule(range, "norm_eps", eps, "must be 1e-12 ..= 1e-2"),
            self.rule(
                (0.0..=largest::LOGITS).contains(&cap) && cap as f32 > 0.0,
                "logit_cap",
                cap,
                "must be above 0 and at most 1e6",
            ),
            self.count("query_pre_attn_scalar", scalar.unwrap_or(1), largest::WIDTH),
            self.layer_rules(&model.layers)
                .and_then(|()| self.form_rules(model)),
            self.family_rules(model),
            self.attention_rules("attention", &model.attention),
            sliding.map_or(Ok(()), |sliding| self.attention_rules("sliding", sliding)),
            self.rotary_rules(model),
            gdn.map_or(Ok(()), |gdn| self.gdn_rules(gdn)),
            mamba.map_or(Ok(()), |mamba| self.mamba_rules(mamba)),
            latent.map_or(Ok(()), |latent| self.latent_rules(model, latent)),
            moe.map_or(Ok(()), |moe| self.moe_rules(moe)),
            mlp.map_or(Ok(()), |mlp| {
                self.count("mlp.intermediate", mlp.intermediate, largest::WIDTH)
            }),
            self.mtp_rules(&model.mtp, model.vocab),
            vision.map_or(Ok(()), |vision| self.unused_rules("vision", vision)),
            self.sampling_rules(&model.sampling, model.vocab),
            chat.map_or(Ok(()), |chat| self.chat_rules(chat, model.vocab)),
        ]
    }

    fn mtp_rules(&self, mtp: &Mtp, vocab: u64) -> Rule {
        self.within("mtp.layers", mtp.layers, 0..=1)?;
        if let Some(unused) = &mtp.unused {
            let rule = "is of a model whose mtp.layers are 0";
            self.rule(mtp.layers == 0, "mtp.unused", "stated", rule)?;
            self.unused_rules("mtp.unused", unused)?;
        }
        mtp.draft_ids.map_or(Ok(()), |ids| {
            let rule = format!("must be a multiple of {PANEL_ROWS}, {TOP_K} ..= vocab = {vocab}");
            let fits = ids.is_multiple_of(PANEL_ROWS) && (TOP_K..=vocab).contains(&ids);
            self.rule(fits, "mtp.draft_ids", ids, &rule)
        })
    }

    /// The tables that the family has, and no others.
    fn family_rules(&self, model: &Model) -> Rule {
        let traits = model.family.traits();
        let hybrid = traits.mixers == Mixers::Hybrid;
        let mamba = traits.mixers == Mixers::Mamba;
        let beside = traits.feed_forward == FeedForward::ExpertBeside;
        let sliding = traits.mixers.slide();
        let shaped = traits.mixers == Mixers::Sliding;
        let windowed = model.attention.window.is_some();
        let parts = model.feed_forward();
        let both = parts.contains(&schema::FeedForward::Both);
        let shared = model.moe.as_ref().map(|moe| moe.shared_intermediate);
        let scale = model.moe.as_ref().and_then(|moe| moe.scale);
        let latent = model.moe.as_ref().is_some_and(|moe| moe.latent.is_some());
        let unused = model.mtp.unused.is_some();
        let attends = model.layers.period.contains(&Mixer::Attention);
        let recurs = model.layers.period.contains(&Mixer::Gdn);
        let mixes = model.layers.period.contains(&Mixer::Mamba);
        let slides = model.layers.period.contains(&Mixer::Sliding);
        let window = model.sliding.as_ref().and_then(|sliding| sliding.window);
        let scaling = |attention: &Attention| attention.rope_scaling.is_some();
        let scaled = model.sliding.as_ref().is_some_and(scaling);
        let prediction = (model.mtp.layers > 0).then_some(());
        for (key, stated, has) in [
            ("gdn", model.gdn.is_some(), hybrid),
            ("mamba", model.mamba.is_some(), mamba),
            ("latent", model.latent.is_some(), traits.has(Switch::Latent)),
            (
                "attention.rotary_dim",
                model.attention.rotary_dim > 0,
                !traits.has(Switch::Unturned),
            ),
            (
                "attention.rope_theta",
                model.attention.rope_theta != 0.0,
                model.attention.rope_theta != 0.0 && !traits.has(Switch::Unturned),
            ),
            (
                "moe",
                model.moe.is_some(),
                parts.contains(&schema::FeedForward::Moe) || both,
            ),
            (
                "mlp",
                model.mlp.is_some(),
                parts.contains(&schema::FeedForward::Mlp) || both,
            ),
            (
                "moe.shared_intermediate",
                shared.flatten().is_some(),
                matches!(
                    traits.feed_forward,
                    FeedForward::SharedExpert
                        | FeedForward::UngatedShared
                        | FeedForward::ExpertBeside
                ),
            ),
            ("moe.scale", scale.is_some(), beside),
            ("moe.latent", latent, latent && beside),
            ("mtp.unused", unused, unused && mamba),
            (
                "query_pre_attn_scalar",
                model.query_pre_attn_scalar.is_some(),
                traits.scale == Scale::Stated,
            ),
            ("sliding", model.sliding.is_some(), shaped),
            ("sliding.window", window.is_some(), shaped),
            ("sliding.rope_scaling", scaled, false),
            ("attention.window", windowed, sliding && !shaped),
            (
                "attention.rope_scaling",
                scaling(&model.attention),
                scaling(&model.attention) && !sliding,
            ),
            ("layers.period", recurs, hybrid && recurs),
            ("layers.period", mixes, mamba && mixes),
            ("layers.period", slides, sliding),
            ("mtp", prediction.is_some(), hybrid && prediction.is_some()),
        ] {
            let (found, rule) = match has {
                true => ("absent", format!("family = {:?} has it", traits.name)),
                false => ("stated", format!("family = {:?} has none", traits.name)),
            };
            self.rule(stated == has, key, found, &rule)?;
        }
        let rule = format!("family = {:?} attends in some layers", traits.name);
        let period = format!("{:?}", model.layers.period);
        self.rule(attends, "layers.period", period, &rule)
    }

    /// Layers that are of the family's form, and of at least one block.
    fn form_rules(&self, model: &Model) -> Rule {
        let Layers {
            period,
            feed_forward,
            ..
        } = &model.layers;
        let (traits, none) = (model.family.traits(), schema::FeedForward::None);
        let (any, usual) = (
            traits.mixers == Mixers::Sliding && !traits.has(Switch::Sandwiched),
            traits.feed_forward.usual(),
        );
        let alone = traits.mixers == Mixers::Mamba;
        let other = match (alone, usual) {
            (true, _) => none,
            (false, schema::FeedForward::Moe) => schema::FeedForward::Mlp,
            (false, usual) => usual,
        };
        let is_known = |part: &schema::FeedForward| {
            let beside = traits.has(Switch::Both) && *part == schema::FeedForward::Both;
            any || beside || *part == usual || *part == other
        };
        let rule = format!("family = {:?} has no such layers", traits.name);
        let mixes = any || alone || !period.contains(&Mixer::None);
        self.rule(mixes, "layers.period", format!("{period:?}"), &rule)?;
        let (key, parts) = ("layers.feed_forward", format!("{feed_forward:?}"));
        self.rule(feed_forward.iter().all(is_known), key, &parts, &rule)?;
        let layers = model.mixers().into_iter().zip(model.feed_forwards());
        let empty = layers
            .into_iter()
            .position(|each| each == (Mixer::None, none));
        let rule = format!("layer {} has neither a mixer nor this", empty.unwrap_or(0));
        self.rule(empty.is_none(), key, &parts, &rule)
    }

    /// The part of a head that turns, which some families choose.
    fn rotary_rules(&self, model: &Model) -> Rule {
        let traits = model.family.traits();
        let in_part = traits.mixers == Mixers::Hybrid
            || traits.has(Switch::RowsNormed)
            || traits.has(Switch::Latent);
        if in_part || traits.has(Switch::Unturned) {
            return Ok(());
        }
        let whole = |table: &str, attention: &Attention| {
            let (turned, width) = (attention.rotary_dim, attention.head_dim);
            let family = traits.name;
            let rule =
                format!("family = {family:?} turns the whole head, {table}.head_dim = {width}");
            self.rule(
                turned == width,
                &format!("{table}.rotary_dim"),
                turned,
                &rule,
            )
        };
        whole("attention", &model.attention)?;
        let sliding = model.sliding.as_ref();
        sliding.map_or(Ok(()), |sliding| whole("sliding", sliding))
    }

    fn layer_rules(&self, layers: &Layers) -> Rule {
        let Layers {
            count,
            period,
            feed_forward,
        } = layers;
        self.count("layers.count", *count as u64, largest::LAYERS)?;
        let divides = |key, members: usize, words, listed: &str| {
            let rule = format!(
                "{members} {words} must divide layers.count = {count}; list every layer where \
                 none repeats"
            );
            let divides = members > 0 && count.is_multiple_of(members);
            self.rule(divides, key, listed, &rule)
        };
        let (mixers, parts) = (format!("{period:?}"), format!("{feed_forward:?}"));
        divides("layers.period", period.len(), "mixers", &mixers)?;
        let members = feed_forward.len().max(1);
        divides("layers.feed_forward", members, "parts", &parts)
    }

    /// `table` states the attention.
    fn attention_rules(&self, table: &str, attention: &Attention) -> Rule {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            turned_pairs,
            window,
            rope_theta,
            ref rope_scaling,
            ref yarn,
        } = *attention;
        let key = |name: &str| format!("{table}.{name}");
        self.count(&key("heads"), heads, largest::HEADS)?;
        self.count(&key("head_dim"), head_dim, largest::HEAD_DIM)?;
        let groups = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let rule = format!("must divide {table}.heads = {heads}");
        self.rule(groups, &key("kv_heads"), kv_heads, &rule)?;
        self.count(&key("window"), window.unwrap_or(1), largest::POSITIONS)?;
        if (rotary_dim, rope_theta) == (0, 0.0) {
            return Ok(());
        }
        let even = rotary_dim.is_multiple_of(2) && (2..=head_dim).contains(&rotary_dim);
        let rule = format!("must be even, 2 ..= {table}.head_dim = {head_dim}");
        self.rule(even, &key("rotary_dim"), rotary_dim, &rule)?;
        let pairs = rotary_dim / 2;
        let rule = format!("must be 1 ..= {pairs}, half of {table}.rotary_dim");
        let turned = turned_pairs.unwrap_or(pairs);
        let range = (1..=pairs).contains(&turned);
        self.rule(range, &key("turned_pairs"), turned, &rule)?;
        let range = rope_theta > 1.0 && rope_theta <= largest::ROPE_THETA;
        let rule = "must be above 1 and at most 1e12";
        self.rule(range, &key("rope_theta"), rope_theta, rule)?;
        let rule = format!("{table}.rope_scaling is another change of the same");
        let alone = yarn.is_none() || rope_scaling.is_none();
        self.rule(alone, &key("yarn"), "stated", &rule)?;
        if let Some(scaling) = rope_scaling {
            let low = ("low_freq_factor", scaling.low_freq_factor);
            let high = ("high_freq_factor", scaling.high_freq_factor);
            let original = scaling.original_max_position;
            self.scaling_rules(&key("rope_scaling"), scaling.factor, [low, high], original)?;
        }
        if let Some(yarn) = yarn {
            let bounds = [("beta_slow", yarn.beta_slow), ("beta_fast", yarn.beta_fast)];
            let original = yarn.original_max_position;
            self.scaling_rules(&key("yarn"), yarn.factor, bounds, original)?;
            for (name, number) in [
                ("yarn.attention_factor", yarn.attention_factor),
                ("yarn.mscale_all_dim", yarn.mscale_all_dim),
            ] {
                self.positive(&key(name), number)?;
            }
        }
        Ok(())
    }

    /// A factor, if it is stated.
    fn positive(&self, key: &str, number: Option<f64>) -> Rule {
        let number = number.unwrap_or(1.0);
        let range = number as f32 > 0.0 && number <= largest::SCALING;
        let rule = format!("must be above 0 and at most {}", largest::SCALING);
        self.rule(range, key, number, &rule)
    }

    /// Widths of latents, which are kept beside turned elements.
    fn latent_rules(&self, model: &Model, latent: &Latent) -> Rule {
        self.count("latent.query_rank", latent.query_rank, largest::WIDTH)?;
        self.count("latent.nope_dim", latent.nope_dim, largest::HEAD_DIM)?;
        self.count("latent.value_dim", latent.value_dim, largest::HEAD_DIM)?;
        self.positive("latent.temperature_beta", latent.temperature_beta)?;
        let attention = &model.attention;
        let scaled = latent.temperature_beta.is_none() || attention.yarn.is_some();
        let rule = "needs attention.yarn, whose original_max_position it is of";
        self.rule(scaled, "latent.temperature_beta", "stated", rule)?;
        let (one, key) = (attention.kv_heads == 1, "attention.kv_heads");
        self.rule(one, key, attention.kv_heads, "must be 1 over latents")?;
        let (turned, kept) = (attention.rotary_dim, attention.head_dim);
        let rule = format!("must be below attention.head_dim = {kept}, which has a latent beside");
        self.rule(turned < kept, "attention.rotary_dim", turned, &rule)
    }

    /// Numbers of a scaling: `low` and `high` have names and bound what is scaled by degrees.
    fn scaling_rules(
        &self,
        table: &str,
        factor: f64,
        [(low_name, low), (high_name, high)]: [(&str, f64); 2],
        original: u64,
    ) -> Rule {
        let key = |name: &str| format!("{table}.{name}");
        let most = largest::SCALING;
        let rule = format!("must be 1 ..= {most}");
        let range = (1.0..=most).contains(&factor);
        self.rule(range, &key("factor"), factor, &rule)?;
        let rule = format!("must be above 0 and at most {most}");
        let range = low > 0.0 && low as f32 > 0.0 && low <= most;
        self.rule(range, &key(low_name), low, &rule)?;
        let rule = format!("must be above {low_name} = {low} and at most {most}");
        let range = high > low && high <= most;
        self.rule(range, &key(high_name), high, &rule)?;
        self.count(&key("original_max_position"), original, largest::POSITIONS)
    }

    fn gdn_rules(&self, gdn: &Gdn) -> Rule {
        let Gdn {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            conv_kernel,
        } = *gdn;
        self.count("gdn.key_heads", key_heads, largest::HEADS)?;
        self.count("gdn.value_heads", value_heads, largest::HEADS)?;
        self.count("gdn.key_dim", key_dim, largest::HEAD_DIM)?;
        self.count("gdn.value_dim", value_dim, largest::HEAD_DIM)?;
        let groups = value_heads.is_multiple_of(key_heads);
        let rule = format!("must be a multiple of gdn.key_heads = {key_heads}");
        self.rule(groups, "gdn.value_heads", value_heads, &rule)?;
        self.within("gdn.conv_kernel", conv_kernel, 2..=largest::TAPS)
    }

    fn mamba_rules(&self, mamba: &Mamba) -> Rule {
        let Mamba {
            heads,
            head_dim,
            groups,
            state_dim,
            conv_kernel,
        } = *mamba;
        self.count("mamba.heads", heads, largest::HEADS)?;
        self.count("mamba.head_dim", head_dim, largest::HEAD_DIM)?;
        self.count("mamba.groups", groups, largest::HEADS)?;
        self.count("mamba.state_dim", state_dim, largest::HEAD_DIM)?;
        let whole = heads.is_multiple_of(groups);
        let rule = format!("must be a multiple of mamba.groups = {groups}");
        self.rule(whole, "mamba.heads", heads, &rule)?;
        self.within("mamba.conv_kernel", conv_kernel, 2..=largest::TAPS)
    }

    fn moe_rules(&self, moe: &Moe) -> Rule {
        self.positive("moe.scale", moe.scale)?;
        self.count("moe.experts", moe.experts, largest::EXPERTS)?;
        let (chosen, experts) = (moe.experts_per_token, moe.experts);
        let rule = format!("must be 1 ..= moe.experts = {experts}");
        self.rule(
            (1..=experts).contains(&chosen),
            "moe.experts_per_token",
            chosen,
            &rule,
        )?;
        self.count("moe.intermediate", moe.intermediate, largest::WIDTH)?;
        self.count("moe.latent", moe.latent.unwrap_or(1), largest::WIDTH)?;
        let shared = moe.shared_intermediate.unwrap_or(1);
        self.count("moe.shared_intermediate", shared, largest::WIDTH)
    }

    fn unused_rules(&self, part: &str, unused: &Unused) -> Rule {
        let tensors = format!("{part}.tensors");
        self.count(&tensors, unused.tensors, largest::TENSORS)?;
        self.count(&format!("{part}.bytes"), unused.bytes, largest::BYTES)
    }

    fn sampling_rules(&self, sampling: &Sampling, vocab: u64) -> Rule {
        let heat = sampling.temperature;
        let range = (0.0..=TEMPERATURE_MAX).contains(&heat);
        self.rule(range, "sampling.temperature", heat, "must be 0 ..= 2")?;
        let share = sampling.top_p;
        self.rule(
            share as f32 > 0.0 && share <= 1.0,
            "sampling.top_p",
            share,
            "must be in (0, 1]",
        )?;
        self.within("sampling.top_k", sampling.top_k.into(), 0..=vocab)
    }

    fn chat_rules(&self, chat: &Chat, vocab: u64) -> Rule {
        let some = !chat.stop_ids.is_empty();
        self.rule(some, "chat.stop_ids", "[]", "must name at least one token")?;
        let below = format!("must be below vocab = {vocab}");
        for &id in &chat.stop_ids {
            self.rule(id < vocab, "chat.stop_ids", id, &below)?;
        }
        for (key, id) in [
            ("chat.think_open_id", chat.think_open_id),
            ("chat.think_close_id", chat.think_close_id),
        ] {
            let id = id.unwrap_or(0);
            self.rule(id < vocab, key, id, &below)?;
        }
        let both = chat.think_open.is_empty() == chat.think_close.is_empty();
        let rule = "is empty where chat.think_open is, and only there";
        self.rule(
            both,
            "chat.think_close",
            format!("{:?}", chat.think_close),
            rule,
        )?;
        self.file_name("chat.tokenizer", &chat.tokenizer)?;
        self.file_name("chat.template", &chat.template)?;
        self.added_token_rules(chat, vocab)
    }

    /// The ids of a conversation's framing are those of the added tokens that say it.
    fn added_token_rules(&self, chat: &Chat, vocab: u64) -> Rule {
        let AddedTokens { first, texts } = &chat.added_tokens;
        let end = first.checked_add(texts.len() as u64);
        let rule = format!(
            "{} tokens from it on must be below vocab = {vocab}",
            texts.len()
        );
        let fit = end.is_some_and(|end| end <= vocab);
        self.rule(fit, "chat.added_tokens.first", first, &rule)?;
        for &id in &chat.stop_ids {
            let known = added_text(&chat.added_tokens, id).is_some();
            self.rule(
                known,
                "chat.stop_ids",
                id,
                "must be one of chat.added_tokens",
            )?;
        }
        let tags = [
            ("chat.think_open_id", chat.think_open_id, &chat.think_open),
            (
                "chat.think_close_id",
                chat.think_close_id,
                &chat.think_close,
            ),
        ];
        for (key, id, text) in tags {
            let stated = id.and_then(|id| added_text(&chat.added_tokens, id));
            let wanted = Some(text.as_str()).filter(|text| !text.is_empty());
            let rule =
                format!("must begin the text {wanted:?}; chat.added_tokens states {stated:?}");
            let shown = id.map_or("none".to_string(), |id| id.to_string());
            let named = stated.zip(wanted).filter(|_| key == "chat.think_open_id");
            let begins = named.map(|(token, tag)| tag.starts_with(token));
            let right = begins.unwrap_or(stated == wanted) && id.is_some() == wanted.is_some();
            self.rule(right, key, shown, &rule)?;
        }
        Ok(())
    }

    /// Rules that need the leaf's formats: what the checkpoint states against what follows.
    pub(super) fn checkpoint_rules(&self, target: &Target) -> Rule {
        let Some(checkpoint) = target.checkpoint() else {
            return Ok(());
        };
        let quant = target
            .leaf
            .derive
            .as_ref()
            .map_or(&target.quant, |derive| &derive.from);
        let table = format!("checkpoint.{quant}");
        self.stated_file_rules(&table, checkpoint)?;
        if target.leaf.derive.is_some() {
            return Ok(());
        }
        self.switch_rules(target, &table, checkpoint)?;
        self.sum_rules(target, &table, checkpoint)
    }

    /// A switch of the checkpoint is about something that it has.
    fn switch_rules(&self, target: &Target, table: &str, checkpoint: &Checkpoint) -> Rule {
        let model = &target.model;
        let rows = target.table();
        let has = |format: &Format| rows.iter().any(|row| row.format() == Some(*format));
        for format in &checkpoint.input_scales {
            let rule = "names formats of matrices that the checkpoint has";
            let key = format!("{table}.input_scales");
            self.rule(has(format), &key, format!("{:?}", format.name()), rule)?;
        }
        for part in &checkpoint.stacked_experts {
            let rule = "names parts of models that have experts there";
            let key = format!("{table}.stacked_experts");
            let has = *part == StackedIn::Layers || model.mtp.layers > 0;
            let name = format!("{:?}", part.name());
            self.rule(has && model.moe.is_some(), &key, name, rule)?;
        }
        for (key, on, about, what) in [
            (
                "tied_head_stored",
                checkpoint.tied_head_stored,
                model.tied_head,
                "a tied head",
            ),
            (
                "without_mtp",
                checkpoint.without_mtp,
                model.mtp.layers > 0,
                "multi-token prediction",
            ),
        ] {
            let rule = format!("is for checkpoints of models with {what}");
            self.rule(!on || about, &format!("{table}.{key}"), on, &rule)?;
        }
        Ok(())
    }

    fn stated_file_rules(&self, table: &str, checkpoint: &Checkpoint) -> Rule {
        let mut names = BTreeSet::new();
        for file in &checkpoint.files {
            let key = format!("{table}.files.{}", file.name);
            self.file_name(&key, &file.name)?;
            let once = names.insert(&file.name);
            self.rule(once, &key, "stated twice", "a file is stated once")?;
            self.count(&format!("{key}.bytes"), file.bytes, largest::BYTES)?;
            let digest = file.sha256.as_str();
            let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            let valid = digest.len() == SHA256_DIGITS && digest.bytes().all(digit);
            let rule = "must be 64 lower-case hexadecimal digits";
            self.rule(valid, &format!("{key}.sha256"), digest, rule)?;
        }
        Ok(())
    }

    /// Published sums against those that follow from the dims.
    fn sum_rules(&self, target: &Target, table: &str, checkpoint: &Checkpoint) -> Rule {
        let tensors = target.checkpoint_tensors();
        let stated = checkpoint.tensors.unwrap_or(tensors);
        let rule = format!("must be {tensors}, {SUM_OF}");
        self.rule(
            stated == tensors,
            &format!("{table}.tensors"),
            stated,
            &rule,
        )?;
        let bytes = target.checkpoint_bytes_range();
        let stated = checkpoint.tensor_bytes.unwrap_or(*bytes.start());
        let (least, most) = bytes.clone().into_inner();
        let rule = format!(
            "must be {least}, {SUM_OF}; with vectors of F32 it is 2 more for each of their \
             elements, {most} at most"
        );
        let holds = bytes.contains(&stated) && (stated - least).is_multiple_of(2);
        self.rule(holds, &format!("{table}.tensor_bytes"), stated, &rule)
    }
}
