//! Switches of layer math that a family lists: for each its meaning, the shape's constant that it
//! sets, and the statements of configurations about it.

use serde_json::{Value, json};

use super::{Activation, FeedForward, Mixers, Traits};
use crate::config::{family_fact, leading};
use crate::facts::Fact;
use crate::kernels::Kind;

/// A part of layer math that a family either has or lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// Attention is over latents, from which heads are made.
    Latent,
    /// Attention has no positions: nothing is rotated.
    Unturned,
    /// Each query has a gate, which multiplies its head's result.
    Gated,
    /// Queries and keys have an RMS norm for each head.
    Normed,
    /// Queries and keys have one RMS norm over all heads of a row.
    RowsNormed,
    /// Values have an RMS norm for each head, without weights.
    ValuesNormed,
    /// Layers over all positions take values from the projection of keys.
    KeysAreValues,
    /// Each query head's softmax counts a learned score beside those of positions.
    Sinks,
    /// Products of attention, router and experts have biases.
    Biased,
    /// Norms stand after blocks, too: a block's result is normed before it is added.
    Sandwiched,
    /// Norm weights are stored less one, but for the norm of Gated DeltaNet.
    PlusOne,
    /// Rows of the embedding are multiplied by the square root of their width.
    ScaledEmbedding,
    /// Hidden states are multiplied by a learned number at the end of each layer.
    LayerScalars,
    /// Layers may have experts beside an MLP.
    Both,
    /// Router scores are sigmoids, with a learned correction that counts in the choice alone.
    Sigmoid,
    /// The weight of a chosen expert is multiplied by a learned number of the expert.
    ExpertsScaled,
}

use Switch::{Biased, Gated, KeysAreValues, Normed, RowsNormed, Sigmoid, ValuesNormed};

/// Constants of shapes that switches set, in the order of the traits.
const CONSTANTS: &[(Kind, &str, Switch)] = &[
    (Kind::ATTENTION, "GATED", Gated),
    (Kind::ATTENTION, "NORMED", Normed),
    (Kind::ATTENTION, "ROWS_NORMED", RowsNormed),
    (Kind::ATTENTION, "VALUES_NORMED", ValuesNormed),
    (Kind::EXPERTS, "SIGMOID", Sigmoid),
];

impl Traits {
    /// Whether the family has a switch on.
    pub(crate) fn has(&self, switch: Switch) -> bool {
        self.has.contains(&switch)
    }

    /// Constants that switches set in the shapes of a kind.
    pub(crate) fn constants(&self, kind: Kind) -> impl Iterator<Item = (&'static str, bool)> {
        let of_kind = CONSTANTS.iter().filter(move |(its, ..)| *its == kind);
        of_kind.map(|(_, name, switch)| (*name, self.has(*switch)))
    }
}

/// Clamp of an expert's gate and up: `shapes::CLAMP` of the server.
const CLAMP: f64 = 7.0;
/// Factor in the sigmoid of a clamped gate: `shapes::ALPHA` of the server.
const ALPHA: f64 = 1.702;

/// A family, and those of its layers that have an MLP where other layers have experts.
pub(crate) struct Layers<'a> {
    traits: &'a Traits,
    dense: &'a [usize],
}

impl Layers<'_> {
    fn has(&self, switch: Switch) -> bool {
        self.traits.has(switch)
    }

    /// Name of the function that makes scores of router logits.
    fn scores(&self) -> &'static str {
        if self.has(Sigmoid) {
            "sigmoid"
        } else {
            "softmax"
        }
    }

    /// Names of the activation in configurations.
    fn activation(&self) -> Value {
        json!(self.traits.activation.words())
    }

    /// `number` in families with clamped gates; null in other families.
    fn clamped(&self, number: f64) -> Value {
        let is = self.traits.activation == Activation::Clamped;
        is.then_some(number).into()
    }
}

/// A statement of configurations about layer math.
pub(crate) struct Stated {
    pub(super) pointer: &'static str,
    /// List of the right values.
    pub(super) right: fn(&Layers) -> Value,
    /// Families in whose configurations the statement is looked for.
    pub(super) of: fn(&Traits) -> bool,
    /// Families whose configurations must make the statement, as the default is another value.
    pub(super) required: fn(&Traits) -> bool,
}

impl Stated {
    pub(super) const fn of(self, of: fn(&Traits) -> bool) -> Stated {
        Stated { of, ..self }
    }

    pub(super) const fn required(self, required: fn(&Traits) -> bool) -> Stated {
        Stated { required, ..self }
    }

    fn fact(&self, layers: &Layers) -> Fact {
        let right = (self.right)(layers);
        Fact {
            required: (self.required)(layers.traits),
            ..family_fact(right.as_array().map_or(&[], Vec::as_slice), self.pointer)
        }
    }
}

/// Makes statements of rows: pointer, right values, families, and whether it is required.
macro_rules! stated {
    ($($pointer:literal: $right:expr $(, $mark:ident($of:expr))*;)*) => {
        &[$($crate::family::Stated {
            pointer: $pointer,
            right: $right,
            of: |_| true,
            required: |_| false,
        }$(.$mark($of))*),*]
    };
}

pub(super) use stated;

/// Statements about layer math in configurations of several families, in the words of transformers.
/// Most values are transformers' defaults; `"vision"` is about images alone.
const STATED: &[Stated] = stated! {
    "/hidden_act": |it| it.activation();
    "/hidden_activation": |it| it.activation();
    "/attn_output_gate": |it| json!([it.has(Gated)]);
    "/attention_bias": |it| json!([it.has(Biased)]);
    "/qkv_bias": |_| json!([false]);
    "/use_bias": |_| json!([false]);
    "/mlp_bias": |_| json!([false]);
    "/use_qk_norm": |it| json!([it.has(Normed) || it.has(RowsNormed)]);
    "/qk_norm": |it| json!([it.has(Normed) || it.has(RowsNormed)]);
    "/use_sliding_window": |_| json!([false]);
    "/attention_chunk_size": |_| json!([null]);
    "/attn_logit_softcapping": |_| json!([null]);
    "/logit_scale": |_| json!([1]);
    "/logits_scaling": |_| json!([1]);
    "/embedding_multiplier": |_| json!([1]);
    "/residual_multiplier": |_| json!([1]);
    "/attention_multiplier": |_| json!([null]);
    "/swiglu_limit": |it| json!([it.clamped(CLAMP)]);
    "/swiglu_alpha": |it| json!([it.clamped(ALPHA)]);
    "/is_causal": |_| json!([true]);
    "/use_bidirectional_attention": |_| json!([false, null, "vision"]);
    "/attention_k_eq_v": |it| json!([it.has(KeysAreValues)]), required(|it| it.has(KeysAreValues));
    "/hidden_size_per_layer_input": |_| json!([0]), required(|it| it.has(KeysAreValues));
    "/num_kv_shared_layers": |_| json!([0]);
    "/use_double_wide_mlp": |_| json!([false]);
    "/qk_norm_type": |_| json!(["per_layer"]), of(|it| it.has(RowsNormed));
    "/output_gate_type": |it| it.activation(), of(|it| it.mixers == Mixers::Hybrid);
    "/mamba_ssm_dtype": |_| json!(["float32"]), of(|it| it.mixers == Mixers::Hybrid);
    "/mtp_use_dedicated_embeddings": |_| json!([false]), of(|it| it.mixers == Mixers::Hybrid);
    "/norm_topk_prob": |_| json!([true]), of(Traits::routes), required(|it| it.states_norm);
    "/n_group": |_| json!([1]), of(Traits::routes);
    "/topk_group": |_| json!([1]), of(Traits::routes);
    "/mlp_only_layers": |it| json!([it.dense]), of(Traits::routes);
    "/decoder_sparse_step": |_| json!([1]), of(Traits::routes);
    "/first_k_dense_replace": |it| json!([leading(it.dense)]), of(Traits::routes);
    "/routed_scaling_factor": |_| json!([1]), of(|it| it.routes() && !it.scales());
    "/scoring_func": |it| json!([it.scores()]), of(|it| it.routes() && !it.scales());
    "/use_routing_bias": |it| json!([it.has(Sigmoid)]), of(Traits::routes_alone);
    "/shared_intermediate_size": |_| json!([0]), of(Traits::routes_alone);
    "/shared_expert_intermediate_size": |_| json!([0]), of(Traits::routes_alone);
    "/n_shared_experts": |_| json!([0]), of(Traits::routes_alone);
};

impl Traits {
    /// Whether every layer has, or may have, experts.
    fn routes(&self) -> bool {
        self.feed_forward != FeedForward::Mlp
    }

    /// Whether layers have routed experts and no shared one.
    fn routes_alone(&self) -> bool {
        self.feed_forward == FeedForward::Experts
    }

    /// Whether models state a factor of expert weights.
    fn scales(&self) -> bool {
        self.feed_forward == FeedForward::ExpertBeside
    }

    /// Facts of the family's layer math, as configurations state them. Layers in `dense` have an
    /// MLP where others have experts.
    pub(crate) fn facts(&self, dense: &[usize]) -> Vec<Fact> {
        let types: Vec<_> = self.types.iter().map(|name| json!(name)).collect();
        let classes: Vec<_> = self.classes.iter().map(|name| json!([name])).collect();
        let named = [(types, "/model_type"), (classes, "/architectures")];
        let named = named.map(|(right, pointer)| family_fact(&right, pointer));
        let layers = Layers {
            traits: self,
            dense,
        };
        let all = STATED.iter().chain(self.stated);
        let stated = all.filter(|stated| (stated.of)(self));
        named
            .into_iter()
            .chain(stated.map(|stated| stated.fact(&layers)))
            .collect()
    }
}
