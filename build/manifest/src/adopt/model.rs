//! Facts of a model from its `config.json`, in the words that the family has for them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::limits::PAGE;
use super::words::{Read, Words, positive, text};
use crate::check::largest;
use crate::config::{
    EXPERTS_LATENT, FACTOR, FAST, GROWN, GROWTH, HIGH, KIND, LOW, MSCALE, ORIGINAL, SLOW, TRUNCATE,
};
use crate::family::{
    AttentionWords, FeedForward, MLP, Mixers, ROTARY_DIM, SLIDING, Scale, Switch, Traits, WINDOW,
};
use crate::schema::model::{
    Attention, Family, FeedForward as Part, Gdn, Latent, Layers, Mamba, Mixer, Mlp, Model, Moe,
    Mtp, RopeScaling, Sampling, Yarn,
};

/// Licence of weights that nobody has looked at yet, as an identifier of SPDX.
const LICENCE_UNKNOWN: &str = "LicenseRef-unknown";
/// Sampling that changes nothing.
const SAMPLING: Sampling = Sampling {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
};
/// The kind of `attention.rope_scaling`.
const LLAMA3: &str = "llama3";
const YARN: &str = "yarn";

/// The family of a configuration.
pub(super) fn family(words: &mut Words) -> Read<Family> {
    let known: Vec<String> = Family::ALL.iter().map(|family| named(*family)).collect();
    let rule = format!(
        "is no type of a known family; known are {}",
        known.join(", ")
    );
    words.required(&["/model_type"], &rule, |value| {
        let is = |family: &Family| {
            let mut types = family.traits().types.iter();
            types.any(|name| Some(*name) == value.as_str())
        };
        Family::ALL.iter().find(|family| is(family)).copied()
    })
}

/// A family, and what configurations call it if that is something else.
fn named(family: Family) -> String {
    let Traits { name, types, .. } = family.traits();
    match types {
        [only] if only == name => name.to_string(),
        _ => format!("{name} ({})", types.join(", ")),
    }
}

/// Every fact of the model `name` that its configuration decides; `predicts`: its checkpoint has a
/// layer of multi-token prediction.
pub(super) fn model(words: &mut Words, family: Family, name: &str, predicts: bool) -> Read<Model> {
    let traits = family.traits();
    let hidden = words.count("/hidden_size", largest::WIDTH);
    let vocab = words.count("/vocab_size", largest::VOCAB);
    let tied = words.optional(
        &["/tie_word_embeddings"],
        "must be true or false",
        Value::as_bool,
    );
    let norm_eps = words.number(&["/rms_norm_eps", "/layer_norm_epsilon"]);
    let positions = words.between(&["/max_position_embeddings"], PAGE..=largest::POSITIONS);
    let layers = layers(words, traits);
    let full = match traits.has(Switch::Latent) {
        false => attention(words, traits, traits.attention, hidden),
        true => over_latents(words, traits.attention),
    };
    let latent = latent(words, traits);
    let sliding = sliding(words, traits, hidden);
    let (gdn, mamba) = (gdn(words, traits), mamba(words, traits));
    let both = both(words, traits);
    let (mlp, moe) = (mlp(words, traits), moe(words, traits, both));
    let mtp = mtp(words, traits, predicts);
    let scale = scale(words, traits);
    let cap = words.optional(
        &["/final_logit_softcapping"],
        "must be a number above 0",
        positive,
    );
    Ok(Model {
        title: name.to_string(),
        id: name.to_string(),
        family,
        licence: LICENCE_UNKNOWN.to_string(),
        hidden: hidden?,
        vocab: vocab?,
        tied_head: tied?.unwrap_or(traits.tied),
        norm_eps: norm_eps?,
        max_position: positions?,
        query_pre_attn_scalar: scale?,
        logit_cap: cap?,
        layers: Layers {
            feed_forward: Vec::from_iter(both?.then_some(Part::Both)),
            ..layers?
        },
        attention: full?,
        sliding: sliding?,
        latent: latent?,
        gdn: gdn?,
        mamba: mamba?,
        moe: moe?,
        mlp: mlp?,
        mtp: mtp?,
        vision: None,
        chat: None,
        sampling: SAMPLING,
        checkpoint: BTreeMap::new(),
    })
}

/// Number whose root scores are divided by, where configurations state it.
fn scale(words: &mut Words, traits: &Traits) -> Read<Option<u64>> {
    let stated = traits.scale == Scale::Stated;
    let stated = stated.then(|| words.count("/query_pre_attn_scalar", largest::WIDTH));
    stated.transpose()
}

fn layers(words: &mut Words, traits: &Traits) -> Read<Layers> {
    if traits.mixers == Mixers::Mamba {
        return blocks(words);
    }
    let count = words.count("/num_hidden_layers", largest::LAYERS);
    let mixers = match traits.mixers {
        Mixers::Attention => Ok(vec![Mixer::Attention]),
        Mixers::Hybrid | Mixers::Sliding | Mixers::Windowed | Mixers::Mamba => mixers(words, count),
    };
    let (count, mixers) = (count? as usize, mixers?);
    Ok(Layers {
        count,
        period: shortest(&mixers, count),
        feed_forward: Vec::new(),
    })
}

/// Layers of one block each, a letter of a text.
fn blocks(words: &mut Words) -> Read<Layers> {
    let rule = "must have an M (Mamba-2), * (attention) or E (experts) for each layer";
    let blocks = words.required(&["/hybrid_override_pattern"], rule, |value| {
        let letters = value.as_str()?.chars();
        let blocks: Option<Vec<_>> = letters.map(block).collect();
        blocks.filter(|blocks| (1..=largest::LAYERS as usize).contains(&blocks.len()))
    })?;
    let count = blocks.len();
    let (period, feed_forward) = blocks.into_iter().unzip();
    Ok(Layers {
        count,
        period,
        feed_forward,
    })
}

fn block(letter: char) -> Option<(Mixer, Part)> {
    match letter {
        'M' => Some((Mixer::Mamba, Part::None)),
        '*' => Some((Mixer::Attention, Part::None)),
        'E' => Some((Mixer::None, Part::Moe)),
        _ => None,
    }
}

/// The mixer of each layer: listed, or attention behind every so many.
fn mixers(words: &mut Words, count: Read<u64>) -> Read<Vec<Mixer>> {
    let rule = "must list \"linear_attention\", \"full_attention\" or \"sliding_attention\" for \
                each layer";
    let listed = words.optional(&["/layer_types"], rule, |value| {
        let names = value.as_array()?.iter();
        let mixers: Option<Vec<Mixer>> = names.map(mixer).collect();
        let whole = |mixers: &Vec<Mixer>| count.is_ok_and(|count| count == mixers.len() as u64);
        mixers.filter(|mixers| count.is_err() || whole(mixers))
    })?;
    if let Some(listed) = listed {
        return Ok(listed);
    }
    let interval = words.whole("/full_attention_interval", 1..=largest::LAYERS)?;
    let Some(interval) = interval else {
        return Err(words.absent("/layer_types", rule));
    };
    let attends = |layer: u64| layer.is_multiple_of(interval);
    let mixer = |layer| match attends(layer) {
        true => Mixer::Attention,
        false => Mixer::Gdn,
    };
    Ok((1..=count?).map(mixer).collect())
}

fn mixer(name: &Value) -> Option<Mixer> {
    match name.as_str()? {
        "linear_attention" => Some(Mixer::Gdn),
        "full_attention" => Some(Mixer::Attention),
        "sliding_attention" => Some(Mixer::Sliding),
        _ => None,
    }
}

/// The shortest list that makes all `count` mixers when it is repeated.
fn shortest(mixers: &[Mixer], count: usize) -> Vec<Mixer> {
    let repeats = |period: &usize| {
        let rest = mixers.iter().skip(*period);
        count.is_multiple_of(*period) && rest.zip(mixers).all(|(later, first)| later == first)
    };
    let period = (1..=mixers.len()).find(repeats);
    mixers[..period.unwrap_or(mixers.len())].to_vec()
}

/// The attention that `its` words are of.
fn attention(
    words: &mut Words,
    traits: &Traits,
    its: &AttentionWords,
    hidden: Read<u64>,
) -> Read<Attention> {
    let heads = words.count(its.heads.pointers[0], largest::HEADS);
    let kv_heads = words.count(its.kv_heads.pointers[0], largest::HEADS);
    let pointer = its.head_dim.pointers[0];
    let stated = words.whole(pointer, 1..=largest::HEAD_DIM);
    let head_dim = head_dim(words, traits, (pointer, stated), [hidden, heads]);
    if traits.has(Switch::Unturned) {
        return Ok(Attention {
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
            rotary_dim: 0,
            turned_pairs: None,
            window: None,
            rope_theta: 0.0,
            rope_scaling: None,
            yarn: None,
        });
    }
    let rotary_dim = rotary_dim(words, traits, its, head_dim);
    let kind = its.rope_theta.pointers[0].replace("rope_theta", "rope_type");
    let kind = words.optional(&[&kind], "must be a text", text)?;
    let proportional = kind.as_deref() == Some("proportional");
    let rope_theta = words.number(its.rope_theta.pointers);
    let rope_scaling = rope_scaling(words);
    let yarn = yarn(words);
    let window = match traits.mixers {
        Mixers::Windowed => Some(words.count(WINDOW.pointers[0], largest::POSITIONS)?),
        _ => None,
    };
    Ok(Attention {
        window,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rotary_dim: if proportional { head_dim? } else { rotary_dim? },
        turned_pairs: match proportional {
            true => Some(rotary_dim? / 2),
            false => None,
        },
        rope_theta: rope_theta?,
        rope_scaling: rope_scaling?,
        yarn: yarn?,
    })
}

/// The attention over latents, of one head that is as wide as what a position keeps.
fn over_latents(words: &mut Words, its: &AttentionWords) -> Read<Attention> {
    let heads = words.count(its.heads.pointers[0], largest::HEADS);
    let rank = words.count("/kv_lora_rank", largest::HEAD_DIM);
    let turned = words.count("/qk_rope_head_dim", largest::HEAD_DIM);
    let rope_theta = words.number(its.rope_theta.pointers);
    let yarn = yarn(words);
    Ok(Attention {
        heads: heads?,
        kv_heads: 1,
        head_dim: rank? + turned?,
        rotary_dim: turned?,
        turned_pairs: None,
        window: None,
        rope_theta: rope_theta?,
        rope_scaling: None,
        yarn: yarn?,
    })
}

fn latent(words: &mut Words, traits: &Traits) -> Read<Option<Latent>> {
    if !traits.has(Switch::Latent) {
        return Ok(None);
    }
    let query_rank = words.count("/q_lora_rank", largest::WIDTH);
    let nope_dim = words.count("/qk_nope_head_dim", largest::HEAD_DIM);
    let value_dim = words.count("/v_head_dim", largest::HEAD_DIM);
    let rule = "must be a number above 0";
    let temperature_beta = words.optional(GROWTH, rule, positive);
    Ok(Some(Latent {
        query_rank: query_rank?,
        nope_dim: nope_dim?,
        value_dim: value_dim?,
        temperature_beta: temperature_beta?,
    }))
}

/// The attention over a window, in families that have one.
fn sliding(words: &mut Words, traits: &Traits, hidden: Read<u64>) -> Read<Option<Attention>> {
    if traits.mixers != Mixers::Sliding {
        return Ok(None);
    }
    let window = words.count(WINDOW.pointers[0], largest::POSITIONS);
    let sliding = attention(words, traits, &SLIDING, hidden)?;
    Ok(Some(Attention {
        window: Some(window?),
        ..sliding
    }))
}

/// Width of a head: as stated, or a share of the hidden width where the family takes that.
fn head_dim(
    words: &mut Words,
    traits: &Traits,
    (pointer, stated): (&str, Read<Option<u64>>),
    [hidden, heads]: [Read<u64>; 2],
) -> Read<u64> {
    if let Some(stated) = stated? {
        return Ok(stated);
    }
    let (hidden, heads) = (hidden?, heads?);
    match traits.default_head_dim && hidden.is_multiple_of(heads) {
        true => Ok(hidden / heads),
        false => {
            let rule = format!("must be stated; hidden_size = {hidden} says nothing of it");
            Err(words.absent(pointer, &rule))
        }
    }
}

/// Elements of a head that turn.
fn rotary_dim(
    words: &mut Words,
    traits: &Traits,
    its: &AttentionWords,
    head_dim: Read<u64>,
) -> Read<u64> {
    let pointers = its.rotary_dim.pointers;
    let head_dim = head_dim?;
    if pointers.contains(&ROTARY_DIM)
        && let Some(elements) = words.whole(ROTARY_DIM, 1..=head_dim)?
    {
        return Ok(elements);
    }
    let rule = "must be above 0 and at most 1";
    let share = |value: &Value| positive(value).filter(|share| *share <= 1.0);
    let share = match traits.mixers {
        Mixers::Hybrid => words.required(pointers, rule, share)?,
        Mixers::Attention | Mixers::Sliding | Mixers::Windowed | Mixers::Mamba => {
            words.optional(pointers, rule, share)?.unwrap_or(1.0)
        }
    };
    Ok((share * head_dim as f64).round() as u64)
}

fn rope_scaling(words: &mut Words) -> Read<Option<RopeScaling>> {
    let kind = words.optional(KIND, "must be a text", text)?;
    if kind.as_deref() != Some(LLAMA3) {
        return Ok(None);
    }
    let factor = words.number(FACTOR);
    let low = words.number(LOW);
    let high = words.number(HIGH);
    let original = words.required(ORIGINAL, "must be a count of tokens", Value::as_u64);
    Ok(Some(RopeScaling {
        factor: factor?,
        low_freq_factor: low?,
        high_freq_factor: high?,
        original_max_position: original?,
    }))
}

fn yarn(words: &mut Words) -> Read<Option<Yarn>> {
    let kind = words.optional(KIND, "must be a text", text)?;
    if kind.as_deref() != Some(YARN) {
        return Ok(None);
    }
    let factor = words.number(FACTOR);
    let fast = words.number(FAST);
    let slow = words.number(SLOW);
    let original = words.required(ORIGINAL, "must be a count of tokens", Value::as_u64);
    let truncate = words.optional(TRUNCATE, "must be true or false", Value::as_bool);
    let rule = "must be a number above 0";
    let growth = words.optional(GROWN, rule, positive);
    let number = words.optional(MSCALE, rule, positive);
    let (growth, number) = (growth?, number?);
    Ok(Some(Yarn {
        factor: factor?,
        beta_fast: fast?,
        beta_slow: slow?,
        original_max_position: original?,
        truncate: truncate?.unwrap_or(true),
        // Queries and keys grow by the quotient of both numbers, which a fact says are one.
        attention_factor: growth.or(number.map(|_| 1.0)),
        mscale_all_dim: number,
    }))
}

fn gdn(words: &mut Words, traits: &Traits) -> Read<Option<Gdn>> {
    if traits.mixers != Mixers::Hybrid {
        return Ok(None);
    }
    let key_heads = words.count("/linear_num_key_heads", largest::HEADS);
    let value_heads = words.count("/linear_num_value_heads", largest::HEADS);
    let key_dim = words.count("/linear_key_head_dim", largest::HEAD_DIM);
    let value_dim = words.count("/linear_value_head_dim", largest::HEAD_DIM);
    let conv_kernel = words.count("/linear_conv_kernel_dim", largest::TAPS);
    Ok(Some(Gdn {
        key_heads: key_heads?,
        value_heads: value_heads?,
        key_dim: key_dim?,
        value_dim: value_dim?,
        conv_kernel: conv_kernel?,
    }))
}

fn mamba(words: &mut Words, traits: &Traits) -> Read<Option<Mamba>> {
    if traits.mixers != Mixers::Mamba {
        return Ok(None);
    }
    let heads = words.count("/mamba_num_heads", largest::HEADS);
    let head_dim = words.count("/mamba_head_dim", largest::HEAD_DIM);
    let groups = words.count("/n_groups", largest::HEADS);
    let state_dim = words.count("/ssm_state_size", largest::HEAD_DIM);
    let conv_kernel = words.count("/conv_kernel", largest::TAPS);
    Ok(Some(Mamba {
        heads: heads?,
        head_dim: head_dim?,
        groups: groups?,
        state_dim: state_dim?,
        conv_kernel: conv_kernel?,
    }))
}

fn mlp(words: &mut Words, traits: &Traits) -> Read<Option<Mlp>> {
    if traits.feed_forward != FeedForward::Mlp {
        return Ok(None);
    }
    let intermediate = words.count(MLP.intermediate, largest::WIDTH)?;
    Ok(Some(Mlp { intermediate }))
}

/// Whether experts stand beside the MLP of every layer.
fn both(words: &mut Words, traits: &Traits) -> Read<bool> {
    let rule = "must be true or false";
    let stated = words.optional(&["/enable_moe_block"], rule, Value::as_bool)?;
    Ok(traits.has(Switch::Both) && stated == Some(true))
}

fn moe(words: &mut Words, traits: &Traits, both: Read<bool>) -> Read<Option<Moe>> {
    if traits.feed_forward == FeedForward::Mlp && !both? {
        return Ok(None);
    }
    let experts = words.count_at(traits.words.experts.pointers, largest::EXPERTS);
    let chosen = words.count(traits.chosen, largest::EXPERTS);
    let intermediate = words.count(traits.words.intermediate, largest::WIDTH);
    let shared = shared(words, traits);
    let scale = match traits.feed_forward {
        FeedForward::ExpertBeside => Some(words.number(&["/routed_scaling_factor"])?),
        _ => None,
    };
    let latent = match traits.feed_forward {
        FeedForward::ExpertBeside => words.whole(EXPERTS_LATENT, 1..=largest::WIDTH)?,
        _ => None,
    };
    Ok(Some(Moe {
        experts: experts?,
        experts_per_token: chosen?,
        intermediate: intermediate?,
        shared_intermediate: shared?,
        latent,
        scale,
    }))
}

fn shared(words: &mut Words, traits: &Traits) -> Read<Option<u64>> {
    match traits.feed_forward {
        FeedForward::UngatedShared => {
            let count = words.count("/n_shared_experts", largest::EXPERTS)?;
            let width = words.count(traits.words.intermediate, largest::WIDTH)?;
            Ok(Some(count * width))
        }
        FeedForward::SharedExpert => {
            let width = words.count("/shared_expert_intermediate_size", largest::WIDTH)?;
            Ok(Some(width))
        }
        FeedForward::ExpertBeside => {
            let pointer = "/moe_shared_expert_intermediate_size";
            Ok(Some(words.count(pointer, largest::WIDTH)?))
        }
        FeedForward::Mlp | FeedForward::Experts => Ok(None),
    }
}

/// Layers of multi-token prediction: as stated, or as the checkpoint has them.
fn mtp(words: &mut Words, traits: &Traits, predicts: bool) -> Read<Mtp> {
    let stated = words.whole("/mtp_num_hidden_layers", 0..=1)?;
    let found = predicts && traits.mixers == Mixers::Hybrid;
    let layers = stated.unwrap_or(found.into());
    Ok(Mtp {
        layers,
        draft_ids: None,
        unused: None,
    })
}
