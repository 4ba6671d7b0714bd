//! Rules on the facts of a model and of its checkpoint.

use std::collections::BTreeSet;

use toml::Value;

use super::{File, Rule, largest};
use crate::expand::toml_name;
use crate::family::{Mixers, Switch, Traits};
use crate::kernels::{PANEL_ROWS, TOP_K};
use crate::numbers::{self, Form, Has, Number, ROPE_THETA, Range, TABLES};
use crate::schema::model::{
    self as schema, AddedTokens, Attention, Chat, Checkpoint, Latent, Layers, Mixer, Model, Mtp,
    Sampling, StackedIn, Unused,
};
use crate::table::Format;
use crate::target::Target;

const SHA256_DIGITS: usize = 64;
const TEMPERATURE_MAX: f64 = 2.0;
const SUM_OF: &str =
    "the sum over the tensors that dims, formats, input_scales and stacked_experts give";

/// Text of the token `id`, if it is an added token with a known text.
fn added_text(tokens: &AddedTokens, id: u64) -> Option<&str> {
    let index = id.checked_sub(tokens.first)?;
    let text = tokens.texts.get(usize::try_from(index).ok()?)?;
    Some(text.as_str()).filter(|text| !text.is_empty())
}

/// The rules of a table, if the model has it.
fn rules_of<T>(table: &Option<T>, rules: impl FnOnce(&T) -> Rule) -> Rule {
    table.as_ref().map_or(Ok(()), rules)
}

impl File {
    pub(super) fn model_rules(&self, model: &Model) -> Rule {
        self.model_parts(model).into_iter().collect()
    }

    /// The rules on a model's facts, a rule for each table.
    pub(super) fn model_parts(&self, model: &Model) -> Vec<Rule> {
        let mut rules = vec![
            self.text("title", &model.title),
            self.text("id", &model.id),
            self.text("licence", &model.licence),
            self.layer_rules(&model.layers)
                .and_then(|()| self.form_rules(model)),
        ];
        rules.extend(self.number_rules(model));
        rules.extend([
            self.family_rules(model),
            self.attention_rules("attention", &model.attention),
            rules_of(&model.sliding, |it| self.attention_rules("sliding", it)),
            self.rotary_rules(model),
            rules_of(&model.gdn, |gdn| {
                let (values, keys) = (gdn.value_heads, gdn.key_heads);
                self.multiple([("gdn.value_heads", values), ("gdn.key_heads", keys)])
            }),
            rules_of(&model.mamba, |mamba| {
                self.multiple([("mamba.heads", mamba.heads), ("mamba.groups", mamba.groups)])
            }),
            rules_of(&model.latent, |latent| self.latent_rules(model, latent)),
            rules_of(&model.moe, |moe| {
                let (chosen, experts) = (moe.experts_per_token, moe.experts);
                let rule = format!("must be 1 ..= moe.experts = {experts}");
                let fits = (1..=experts).contains(&chosen);
                self.rule(fits, "moe.experts_per_token", chosen, &rule)
            }),
            self.mtp_rules(&model.mtp, model.vocab),
            rules_of(&model.vision, |vision| self.unused_rules(vision)),
            self.sampling_rules(&model.sampling, model.vocab),
            rules_of(&model.chat, |chat| self.chat_rules(chat, model.vocab)),
        ]);
        rules
    }

    /// Tables and numbers that the family requires are there, in range, and others are absent.
    fn number_rules(&self, model: &Model) -> Vec<Rule> {
        let form = Form::of(model);
        let manifest = Value::try_from(model).expect("plain structures always serialise");
        let value = |key: &str| {
            key.split('.')
                .try_fold(&manifest, |table, name| table.get(name))
        };
        let has = |key: &str, has| match has {
            Has::Maybe => Ok(()),
            _ => self.family_has(form.traits, key, value(key).is_some(), has == Has::Always),
        };
        let number = |number: &Number| {
            let (key, table, its) = (number.key, number.table(), (number.of)(&form));
            match value(key) {
                // A base of 0 counts as absent: the manifest's type has no option for it.
                None if key == ROPE_THETA && its != Has::Never => {
                    self.rule(false, key, 0, &number.range.rule())
                }
                None if value(table).is_none() && !matches!(table, "" | "mixer") => Ok(()),
                None => has(key, its),
                Some(value) => has(key, its).and_then(|()| self.ranged(key, value, &number.range)),
            }
        };
        let tables = TABLES.iter().map(|(table, of)| has(table, of(&form)));
        let known = |key: &str| numbers::of_table(form.traits, "mixer").any(|its| its.key == key);
        let mut stated = model.mixer.keys().map(|name| format!("mixer.{name}"));
        let unknown = stated.find(|key| !known(key));
        let unknown = unknown.map(|key| has(&key, Has::Never));
        let all = numbers::all(form.traits).map(number);
        tables.chain(all).chain(unknown).collect()
    }

    /// A table or number is stated if the family has it, and only then.
    fn family_has(&self, family: &Traits, key: &str, stated: bool, has: bool) -> Rule {
        let (found, rule) = match has {
            true => ("absent", "has it"),
            false => ("stated", "has none"),
        };
        let rule = format!("family = {:?} {rule}", family.name);
        self.rule(stated == has, key, found, &rule)
    }

    fn ranged(&self, key: &str, value: &Value, range: &Range) -> Rule {
        let whole = value
            .as_integer()
            .map(|whole| u64::try_from(whole).unwrap_or(0));
        let real = value.as_float().unwrap_or_default();
        let holds = match range {
            Range::Whole(range) => whole.is_some_and(|whole| range.contains(&whole)),
            Range::Above(least, most) => real as f32 > *least as f32 && real <= *most,
            Range::Within(least, most) => (*least..=*most).contains(&real),
            Range::Flag => true,
        };
        let shown = whole.map_or_else(|| real.to_string(), |whole| whole.to_string());
        self.rule(holds, key, shown, &range.rule())
    }

    fn mtp_rules(&self, mtp: &Mtp, vocab: u64) -> Rule {
        mtp.draft_ids.map_or(Ok(()), |ids| {
            let rule = format!("must be a multiple of {PANEL_ROWS}, {TOP_K} ..= vocab = {vocab}");
            let fits = ids.is_multiple_of(PANEL_ROWS) && (TOP_K..=vocab).contains(&ids);
            self.rule(fits, "mtp.draft_ids", ids, &rule)
        })
    }

    /// Layers are of the kinds that the family has.
    fn family_rules(&self, model: &Model) -> Rule {
        let traits = model.family.traits();
        let period = &model.layers.period;
        let [attends, slides] =
            [Mixer::Attention, Mixer::Sliding].map(|mixer| period.contains(&mixer));
        let its_own = traits.recurs.map(Mixer::Recurrent);
        let is_other = |mixer: &Mixer| mixer.recurs() && Some(*mixer) != its_own;
        let others = period.iter().any(is_other);
        let predicts = model.mtp.layers > 0;
        self.family_has(traits, "layers.period", others, false)?;
        self.family_has(traits, "layers.period", slides, traits.mixers.slide())?;
        self.family_has(traits, "mtp", predicts, traits.mixers.predict() && predicts)?;
        let rule = format!("family = {:?} attends in some layers", traits.name);
        let period = format!("{period:?}");
        self.rule(attends, "layers.period", period, &rule)
    }

    /// Layers have the family's form, and each has at least one block.
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
        let mut layers = model.mixers().into_iter().zip(model.feed_forwards());
        let empty = layers.position(|each| each == (Mixer::None, none));
        let rule = format!("layer {} has neither a mixer nor this", empty.unwrap_or(0));
        self.rule(empty.is_none(), key, &parts, &rule)
    }

    /// Rotated elements of a head, which some families choose and others fix.
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
        rules_of(&model.sliding, |sliding| whole("sliding", sliding))
    }

    fn layer_rules(&self, layers: &Layers) -> Rule {
        let Layers {
            count,
            period,
            feed_forward,
        } = layers;
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

    /// Rules on the attention that `table` states.
    fn attention_rules(&self, table: &str, attention: &Attention) -> Rule {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            turned_pairs,
            ref rope_scaling,
            ref yarn,
            ..
        } = *attention;
        let key = |name: &str| format!("{table}.{name}");
        let groups = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let rule = format!("must divide {table}.heads = {heads}");
        self.rule(groups, &key("kv_heads"), kv_heads, &rule)?;
        if rotary_dim == 0 {
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
        let rule = format!("{table}.rope_scaling is another change of the same");
        let alone = yarn.is_none() || rope_scaling.is_none();
        self.rule(alone, &key("yarn"), "stated", &rule)?;
        let low = rope_scaling.as_ref().map(|it| {
            let names = ["rope_scaling.high_freq_factor", "low_freq_factor"];
            (names, [it.high_freq_factor, it.low_freq_factor])
        });
        let slow = yarn.as_ref().map(|it| {
            let names = ["yarn.beta_fast", "beta_slow"];
            (names, [it.beta_fast, it.beta_slow])
        });
        for ([name, low_name], [high, low]) in low.into_iter().chain(slow) {
            let rule = format!("must be above {low_name} = {low}");
            self.rule(high > low, &key(name), high, &rule)?;
        }
        Ok(())
    }

    /// Widths of latents, which are stored beside the rotated elements.
    fn latent_rules(&self, model: &Model, latent: &Latent) -> Rule {
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

    fn unused_rules(&self, vision: &Unused) -> Rule {
        self.count("vision.tensors", vision.tensors, largest::TENSORS)?;
        self.count("vision.bytes", vision.bytes, largest::BYTES)
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

    /// The ids of a conversation's framing are those of the added tokens with these texts.
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

    /// Rules that need the leaf's formats: stated figures of the checkpoint against derived ones.
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

    /// A switch of the checkpoint is set only where the model has the part it is about.
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
            let name = toml_name(part);
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

    /// Published sums of tensors and bytes equal those that follow from the dimensions.
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
