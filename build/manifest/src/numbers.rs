//! Numbers of a model, each declared here: its key, its pointers in configurations, its range and
//! its families. Rules, comparison with `config.json` and adoption all read these declarations.

use std::ops::RangeInclusive;

use crate::check::largest::{
    EXPERTS, HEAD_DIM, HEADS, LAYERS, LOGITS, NORM_EPS, POSITIONS, ROPE_THETA as BASE, SCALING,
    TAPS, VOCAB, WIDTH,
};
use crate::family::{FeedForward, Mixers, Scale, Switch, Traits};
use crate::schema::model::{FeedForward as Part, Model};

/// Whether a model has a number or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Has {
    Always,
    Maybe,
    Never,
}

const fn always(holds: bool) -> Has {
    match holds {
        true => Has::Always,
        false => Has::Never,
    }
}

const fn maybe(holds: bool) -> Has {
    match holds {
        true => Has::Maybe,
        false => Has::Never,
    }
}

/// Traits that decide which numbers a model has: its family's, and those of its feed-forwards.
pub(crate) struct Form {
    pub traits: &'static Traits,
    pub parts: Vec<Part>,
}

impl Form {
    pub(crate) fn of(model: &Model) -> Form {
        Form {
            traits: model.family.traits(),
            parts: model.feed_forward(),
        }
    }

    /// Whether the model has a table, or may have it.
    pub(crate) fn has(&self, table: &str) -> bool {
        let mut tables = TABLES.iter().filter(|(name, _)| *name == table);
        tables.all(|(_, of)| of(self) != Has::Never)
    }

    fn feeds(&self, part: Part) -> bool {
        self.parts.contains(&part) || self.parts.contains(&Part::Both)
    }

    fn turns(&self) -> bool {
        !self.traits.has(Switch::Unturned)
    }

    fn beside(&self) -> bool {
        self.traits.feed_forward == FeedForward::ExpertBeside
    }

    fn shares(&self) -> bool {
        !matches!(
            self.traits.feed_forward,
            FeedForward::Mlp | FeedForward::Experts
        )
    }
}

/// Function that tells whether models of a form have a number or a table.
pub(crate) type Of = fn(&Form) -> Has;

/// Range of the values of a number.
#[derive(Clone, Debug)]
pub(crate) enum Range {
    Whole(RangeInclusive<u64>),
    /// Above the first bound, up to and including the second.
    Above(f64, f64),
    Within(f64, f64),
    Flag,
}

use Range::{Above, Flag, Whole, Within};

impl Range {
    /// The range as a rule in words.
    pub(crate) fn rule(&self) -> String {
        match self {
            Range::Whole(range) => format!("must be {} ..= {}", range.start(), range.end()),
            Range::Above(least, most) => {
                format!(
                    "must be above {} and at most {}",
                    short(*least),
                    short(*most)
                )
            }
            Range::Within(least, most) => format!("must be {} ..= {}", short(*least), short(*most)),
            Range::Flag => "must be true or false".to_string(),
        }
    }
}

/// A number in decimal or exponent form, whichever is shorter.
fn short(number: f64) -> String {
    let (plain, power) = (number.to_string(), format!("{number:e}"));
    match power.len() <= plain.len() {
        true => power,
        false => plain,
    }
}

/// A number of a model.
pub(crate) struct Number {
    /// Dotted key of `model.toml`.
    pub key: &'static str,
    /// Pointers in configurations, the present form's first; a family may have its own.
    pub at: &'static [&'static str],
    pub range: Range,
    pub of: Of,
    /// Whether a configuration must state the number: shapes do not show it, and it has no default.
    pub required: bool,
    /// Constant of the block's shape that has the number's value, on host and device; 0 where the
    /// model has no such number.
    pub constant: Option<&'static str>,
}

impl Number {
    /// Table of the manifest that has the key.
    pub(crate) fn table(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Pointers to the number in configurations of a family.
    pub(crate) fn places(&self, traits: &Traits) -> &'static [&'static str] {
        traits.word(self.key).unwrap_or(self.at)
    }

    pub(crate) const fn required(self) -> Number {
        Number {
            required: true,
            ..self
        }
    }

    pub(crate) const fn is(self, constant: &'static str) -> Number {
        Number {
            constant: Some(constant),
            ..self
        }
    }

    const fn of(self, of: Of) -> Number {
        Number { of, ..self }
    }

    const fn maybe(self) -> Number {
        self.of(|_| Has::Maybe)
    }
}

pub(crate) const fn number(key: &'static str, range: Range, at: &'static [&'static str]) -> Number {
    Number {
        key,
        at,
        range,
        of: |_| Has::Always,
        required: false,
        constant: None,
    }
}

/// Range of counts, 1 ..= `most`.
const fn count(most: u64) -> Range {
    Whole(1..=most)
}

/// Pointers to a number of a RoPE scaling, in both forms of configurations.
macro_rules! places {
    ($name:literal) => {
        &[
            concat!("/rope_parameters/", $name),
            concat!("/rope_scaling/", $name),
        ]
    };
}
pub(crate) use places;

/// Range of factors above 0.
const FACTOR: Range = Above(0.0, SCALING);
/// Range of factors that are at least 1.
const GROWTH: Range = Within(1.0, SCALING);
/// Key of RoPE's base.
pub(crate) const ROPE_THETA: &str = "attention.rope_theta";
/// Pointer to the number of rotated elements of a head, where configurations state no share.
pub(crate) const TURNED_ELEMENTS: &str = "/rotary_dim";
/// Key of the rotated elements of a head; most configurations state their share.
pub(crate) const ROTARY_DIM: &str = "attention.rotary_dim";
/// Key of rotated pairs, of which configurations state a share.
pub(crate) const TURNED_PAIRS: &str = "attention.turned_pairs";

/// Makes numbers of rows: key, range, pointers, families, and whether it is required.
macro_rules! numbers {
    ($($key:literal: $range:expr, $at:expr $(, $mark:ident $(($of:expr))?)*;)*) => {
        &[$(number($key, $range, $at)$(.$mark($($of)?))*),*]
    };
}

/// Numbers in configurations of several families, in the order of comparison. An epsilon below the
/// least that norms may have would be lost beside the F32 square it is added to.
pub(crate) const NUMBERS: &[Number] = numbers! {
    "hidden": count(WIDTH), &["/hidden_size"];
    "vocab": count(VOCAB), &["/vocab_size"];
    "tied_head": Flag, &["/tie_word_embeddings"];
    "norm_eps": Within(1e-12, NORM_EPS), &["/rms_norm_eps", "/layer_norm_epsilon"], required;
    "max_position": count(POSITIONS), &["/max_position_embeddings"];
    "layers.count": count(LAYERS), &["/num_hidden_layers"];
    "mtp.layers": Whole(0..=1), &["/mtp_num_hidden_layers"];
    "query_pre_attn_scalar": count(WIDTH),
        &["/query_pre_attn_scalar"], required,
        of(|it| always(it.traits.scale == Scale::Stated));
    "logit_cap": Above(0.0, LOGITS), &["/final_logit_softcapping"], required, maybe;
    "attention.heads": count(HEADS), &["/num_attention_heads"], required, is("HEADS");
    "attention.kv_heads": count(HEADS), &["/num_key_value_heads"], required, is("KV_HEADS");
    "attention.head_dim": count(HEAD_DIM), &["/head_dim"], required, is("HEAD_DIM");
    "attention.rotary_dim": count(HEAD_DIM),
        &["/rope_parameters/partial_rotary_factor", "/partial_rotary_factor"],
        of(|it| always(it.turns()));
    "attention.turned_pairs": count(HEAD_DIM), &[], of(|it| maybe(it.turns()));
    "attention.window": count(POSITIONS),
        &["/sliding_window"], required,
        of(|it| always(it.traits.mixers == Mixers::Windowed));
    "attention.rope_theta": Above(1.0, BASE),
        &["/rope_parameters/rope_theta", "/rope_theta"], required,
        of(|it| always(it.turns()));
    "attention.rope_scaling.factor": GROWTH, places!("factor"), required;
    "attention.rope_scaling.low_freq_factor": FACTOR, places!("low_freq_factor"), required;
    "attention.rope_scaling.high_freq_factor": FACTOR, places!("high_freq_factor"), required;
    "attention.rope_scaling.original_max_position": count(POSITIONS),
        places!("original_max_position_embeddings"), required;
    "attention.yarn.factor": GROWTH, places!("factor"), required;
    "attention.yarn.beta_fast": FACTOR, places!("beta_fast"), required;
    "attention.yarn.beta_slow": FACTOR, places!("beta_slow"), required;
    "attention.yarn.original_max_position": count(POSITIONS),
        places!("original_max_position_embeddings"), required;
    "attention.yarn.truncate": Flag, places!("truncate"), maybe;
    "attention.yarn.attention_factor": FACTOR, places!("attention_factor"), maybe;
    "attention.yarn.mscale_all_dim": FACTOR, places!("mscale_all_dim"), required, maybe;
    "sliding.window": count(POSITIONS), &["/sliding_window"], required;
    "sliding.heads": count(HEADS), &["/num_attention_heads"], required;
    "sliding.kv_heads": count(HEADS), &["/num_key_value_heads"], required;
    "sliding.head_dim": count(HEAD_DIM), &["/head_dim"], required;
    "sliding.rotary_dim": count(HEAD_DIM),
        &["/rope_parameters/sliding_attention/partial_rotary_factor"];
    "sliding.turned_pairs": count(HEAD_DIM), &[], maybe;
    "sliding.rope_theta": Above(1.0, BASE),
        &["/rope_parameters/sliding_attention/rope_theta", "/rope_local_base_freq"], required;
    "latent.query_rank": count(WIDTH), &["/q_lora_rank"], required, is("QUERY_RANK");
    "latent.nope_dim": count(HEAD_DIM), &["/qk_nope_head_dim"], required, is("NOPE_DIM");
    "latent.value_dim": count(HEAD_DIM), &["/v_head_dim"], required, is("RESULT_DIM");
    "latent.temperature_beta": FACTOR, places!("llama_4_scaling_beta"), required, maybe;
    "gdn.key_heads": count(HEADS), &["/linear_num_key_heads"], required, is("KEY_HEADS");
    "gdn.value_heads": count(HEADS), &["/linear_num_value_heads"], required, is("VALUE_HEADS");
    "gdn.key_dim": count(HEAD_DIM), &["/linear_key_head_dim"], required, is("KEY_DIM");
    "gdn.value_dim": count(HEAD_DIM), &["/linear_value_head_dim"], required, is("VALUE_DIM");
    "gdn.conv_kernel": Whole(2..=TAPS), &["/linear_conv_kernel_dim"], is("CONV");
    "mamba.groups": count(HEADS), &["/n_groups"], required, is("KEY_HEADS");
    "mamba.heads": count(HEADS), &["/mamba_num_heads"], required, is("VALUE_HEADS");
    "mamba.state_dim": count(HEAD_DIM), &["/ssm_state_size"], required, is("KEY_DIM");
    "mamba.head_dim": count(HEAD_DIM), &["/mamba_head_dim"], required, is("VALUE_DIM");
    "mamba.conv_kernel": Whole(2..=TAPS), &["/conv_kernel"], is("CONV");
    "mlp.intermediate": count(WIDTH), &["/intermediate_size"];
    "moe.experts": count(EXPERTS), &["/num_experts", "/num_local_experts"], is("COUNT");
    "moe.experts_per_token": count(EXPERTS), &["/num_experts_per_tok"], required, is("PER_TOKEN");
    "moe.intermediate": count(WIDTH), &["/moe_intermediate_size"];
    "moe.shared_intermediate": count(WIDTH),
        &["/shared_expert_intermediate_size"], of(|it| always(it.shares()));
    "moe.latent": count(WIDTH), &["/moe_latent_size"], required, of(|it| maybe(it.beside()));
    "moe.scale": FACTOR, &["/routed_scaling_factor"], required, of(|it| always(it.beside()));
};

/// Tables of manifests, and the models that have them.
pub(crate) const TABLES: &[(&str, Of)] = &[
    ("gdn", |it| always(it.traits.mixers == Mixers::Hybrid)),
    ("mamba", |it| always(it.traits.mixers == Mixers::Mamba)),
    ("latent", |it| always(it.traits.has(Switch::Latent))),
    ("moe", |it| always(it.feeds(Part::Moe))),
    ("mlp", |it| always(it.feeds(Part::Mlp))),
    ("sliding", |it| always(it.traits.mixers == Mixers::Sliding)),
    ("sliding.rope_scaling", |_| Has::Never),
    ("sliding.yarn", |_| Has::Never),
    ("attention.rope_scaling", |it| {
        maybe(it.turns() && !it.traits.mixers.slide())
    }),
    ("attention.yarn", |it| maybe(it.turns())),
];

/// The number whose key is `key`.
pub(crate) fn of_key(key: &str) -> &'static Number {
    let number = NUMBERS.iter().find(|number| number.key == key);
    number.expect("a number of this list")
}

/// Numbers of a family: those of all families, and those of its mixer.
pub(crate) fn all(traits: &Traits) -> impl Iterator<Item = &'static Number> {
    let own = traits.recurs.into_iter().flat_map(|recurs| recurs.numbers);
    NUMBERS.iter().chain(own)
}

/// Numbers of a table of the manifest.
pub(crate) fn of_table(traits: &Traits, table: &str) -> impl Iterator<Item = &'static Number> {
    all(traits).filter(move |number| number.table() == table)
}

/// A JSON pointer to a dotted key.
pub(crate) fn pointer(key: &str) -> String {
    format!("/{}", key.replace('.', "/"))
}
