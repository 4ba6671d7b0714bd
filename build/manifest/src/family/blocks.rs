//! Tensors of the blocks that families are made of, under the names that most families use.

use std::borrow::Cow;

use super::Switch;
use crate::schema::model::{Attention, FeedForward, Mixer, StackedIn};
use crate::table::{Format, Kind, Role, Row, Run, Sites};
use crate::target::Target;

/// Layers of one kind, and the beginning of their tensors' names.
pub(super) struct Place {
    pub prefix: Cow<'static, str>,
    pub sites: Sites,
}

impl Place {
    /// The decoder layers whose mixer `of` accepts.
    pub fn mixing(target: &Target, of: impl Fn(Mixer) -> bool) -> Place {
        Place::decoder(target.mixers().into_iter().map(of))
    }

    /// The decoder layers whose feed-forward `of` accepts.
    pub fn feeding(target: &Target, of: impl Fn(FeedForward) -> bool) -> Place {
        Place::decoder(target.model.feed_forwards().into_iter().map(of))
    }

    fn decoder(of: impl Iterator<Item = bool>) -> Place {
        let layers = of.enumerate().filter(|(_, is_one)| *is_one);
        Place {
            prefix: "model.layers.{layer}.".into(),
            sites: Sites::Layers(layers.map(|(layer, _)| layer).collect()),
        }
    }

    /// The multi-token-prediction layer; no layer if the checkpoint has none.
    pub fn prediction(target: &Target) -> Place {
        let none = Sites::Layers(Cow::Borrowed(&[]));
        Place {
            prefix: "mtp.layers.0.".into(),
            sites: if target.mtp_layers() > 0 {
                Sites::Prediction
            } else {
                none
            },
        }
    }

    /// The tensors outside of layers.
    pub fn whole() -> Place {
        Place {
            prefix: "".into(),
            sites: Sites::Whole,
        }
    }

    /// The tensors of block `block` in this place.
    pub fn within(&self, block: &str) -> Place {
        Place {
            prefix: format!("{}{block}.", self.prefix).into(),
            sites: self.sites.clone(),
        }
    }

    pub fn matrix(&self, role: Role, name: &str, n: u64, k: u64) -> Row {
        Row {
            runs: Cow::Owned(vec![run(n, 0, n)]),
            kind: Kind::Matrix(Format::Bf16),
            ..self.vector(role, name, &[n, k])
        }
    }

    pub fn vector(&self, role: Role, name: &str, shape: &[u64]) -> Row {
        Row {
            role,
            name: format!("{}{name}", self.prefix).into(),
            sites: self.sites.clone(),
            copies: 1,
            shape: sizes(shape),
            runs: Cow::Borrowed(&[]),
            kind: Kind::Vector { plus_one: false },
        }
    }

    /// Weights of a norm, less one in some families' checkpoints.
    fn norm(&self, target: &Target, role: Role, name: &str, width: u64) -> Row {
        let plus_one = target.has(Switch::PlusOne);
        Row {
            kind: Kind::Vector { plus_one },
            ..self.vector(role, name, &[width])
        }
    }

    fn unused(&self, role: Role, name: &str, shape: &[u64]) -> Row {
        Row {
            kind: Kind::Unused,
            ..self.vector(role, name, shape)
        }
    }
}

pub(super) fn sizes(sizes: &[u64]) -> Cow<'static, [usize]> {
    sizes.iter().map(|&size| size as usize).collect()
}

/// `count` rows from `first` on, of a tensor of `total` rows.
pub(super) fn run(total: u64, first: u64, count: u64) -> Run {
    Run {
        groups: 1,
        stride: total as usize,
        first: first as usize,
        rows: count as usize,
    }
}

/// Tensors of a block in the layers of a place.
type Rows = fn(&Target, &Place) -> Vec<Row>;

/// Tensors of a decoder whose layers have attention or no mixer.
pub(super) fn plain(target: &Target, experts: Rows) -> Vec<Row> {
    let mut rows = ends(target);
    rows.extend(layer_norms(target));
    for each in target.attentions() {
        let layers = Place::mixing(target, |mixer| mixer == each.mixer);
        rows.extend(match target.has(Switch::Latent) {
            false => attention(target, &layers, &each.facts),
            true => latent(target, &layers),
        });
        if target.has(Switch::KeysAreValues) && each.mixer == Mixer::Attention {
            take_values_from_keys(&mut rows);
        }
    }
    rows.extend(feed_forwards(target, experts));
    rows
}

/// Renames the values' tensor to that of keys in the last layers: there values are keys.
fn take_values_from_keys(rows: &mut [Row]) {
    let last = |role| rows.iter().rposition(|row| row.role == role);
    if let (Some(key), Some(value)) = (last(Role::Key), last(Role::Value)) {
        rows[value].name = rows[key].name.clone();
    }
}

/// Tensors of a decoder whose layers mix by `gdn` or attention, and of its prediction layer.
pub(super) fn hybrid(target: &Target, gdn: Rows, experts: Rows) -> Vec<Row> {
    let mut rows = ends(target);
    rows.extend(layer_norms(target));
    let attending = Place::mixing(target, |mixer| mixer == Mixer::Attention);
    let shape = &target.model.attention;
    rows.extend(attention(target, &attending, shape));
    let recurring = Place::mixing(target, |mixer| mixer.recurs());
    rows.extend(gdn(target, &recurring));
    rows.extend(feed_forwards(target, experts));
    let layer = Place::prediction(target);
    rows.extend(prediction(target, &layer));
    rows.extend(norms(target, [&layer; 2]));
    rows.extend(attention(target, &layer, shape));
    rows.extend(match target.traits().feed_forward.usual() {
        FeedForward::Moe => experts(target, &layer),
        FeedForward::Mlp | FeedForward::Both | FeedForward::None => mlp(target, &layer),
    });
    rows
}

/// Tensors of every layer's feed-forward.
fn feed_forwards(target: &Target, experts: Rows) -> Vec<Row> {
    let layers = |part| Place::feeding(target, |each| each == part || each == FeedForward::Both);
    let mut rows = mlp(target, &layers(FeedForward::Mlp));
    rows.extend(experts(target, &layers(FeedForward::Moe)));
    rows
}

/// Tensors outside of layers: embedding, last norm and head.
fn ends(target: &Target) -> Vec<Row> {
    let (vocab, hidden) = (target.model.vocab, target.model.hidden);
    let (whole, decoder) = (Place::whole(), Place::whole().within("model"));
    vec![
        decoder.matrix(Role::Embedding, "embed_tokens", vocab, hidden),
        decoder.norm(target, Role::FinalNorm, "norm.weight", hidden),
        match target.model.tied_head {
            true => whole.unused(Role::TiedHead, "lm_head.weight", &[vocab, hidden]),
            false => whole.matrix(Role::Head, "lm_head", vocab, hidden),
        },
    ]
}

/// Norms before mixers and feed-forwards, and in some families after both.
fn layer_norms(target: &Target) -> Vec<Row> {
    let mixing = Place::mixing(target, |mixer| mixer != Mixer::None);
    let feeding = Place::feeding(target, |part| part != FeedForward::None);
    norms(target, [&mixing, &feeding])
}

fn norms(target: &Target, [mixing, feeding]: [&Place; 2]) -> Vec<Row> {
    let norm = |place: &Place, role, name: &str| {
        let name = format!("{name}_layernorm.weight");
        place.norm(target, role, &name, target.model.hidden)
    };
    let input = norm(mixing, Role::InputNorm, "input");
    let mut rows = match target.has(Switch::Sandwiched) {
        false => vec![input, norm(feeding, Role::PostNorm, "post_attention")],
        true => vec![
            input,
            norm(mixing, Role::MixedNorm, "post_attention"),
            norm(feeding, Role::PostNorm, "pre_feedforward"),
            norm(feeding, Role::FedNorm, "post_feedforward"),
        ],
    };
    if target.has(Switch::LayerScalars) {
        rows.push(feeding.vector(Role::LayerScalar, "layer_scalar", &[1]));
    }
    rows
}

/// Grouped-query attention; gates and norms of queries as the family has them.
pub(super) fn attention(target: &Target, place: &Place, attention: &Attention) -> Vec<Row> {
    let (traits, hidden) = (target.traits(), target.model.hidden);
    let gates = if traits.has(Switch::Gated) { 2 } else { 1 };
    let (kv, o) = (attention.kv_rows(), attention.o_columns());
    let block = place.within("self_attn");
    let mut rows = vec![
        block.matrix(Role::Query, "q_proj", gates * o, hidden),
        block.matrix(Role::Key, "k_proj", kv, hidden),
        block.matrix(Role::Value, "v_proj", kv, hidden),
        block.matrix(Role::Output, "o_proj", hidden, o),
        block.unused(Role::KeyScale, "k_proj.k_scale", &[]),
        block.unused(Role::ValueScale, "v_proj.v_scale", &[]),
    ];
    let widths = match traits.has(Switch::RowsNormed) {
        true => Some([o, kv]),
        false => traits
            .has(Switch::Normed)
            .then_some([attention.head_dim; 2]),
    };
    if let Some([query, key]) = widths {
        rows.push(block.norm(target, Role::QueryNorm, "q_norm.weight", query));
        rows.push(block.norm(target, Role::KeyNorm, "k_norm.weight", key));
    }
    rows
}

/// Attention over latents. One tensor has, for each head, the rows that make its keys and its
/// values of a latent. Rotated elements of keys are stored in pairs, evens before odds in memory.
fn latent(target: &Target, place: &Place) -> Vec<Row> {
    let (model, latent) = (&target.model, target.model.latent());
    let (heads, turned) = (model.attention.heads, model.attention.rotary_dim);
    let (hidden, rank, inner) = (model.hidden, model.latent_rank(), latent.query_rank);
    let block = place.within("self_attn");
    let each_second = |first: u64| Run {
        groups: turned as usize / 2,
        stride: 2,
        first: first as usize,
        rows: 1,
    };
    let kept = rank + turned;
    let of_keys = vec![each_second(rank), each_second(rank + 1), run(kept, 0, rank)];
    let head = latent.nope_dim + latent.value_dim;
    let of_heads = |role, first: u64, rows: u64| Row {
        runs: Cow::Owned(vec![Run {
            groups: heads as usize,
            ..run(head, first, rows)
        }]),
        ..block.matrix(role, "kv_b_proj", heads * head, rank)
    };
    vec![
        block.matrix(Role::QueryDown, "q_a_proj", inner, hidden),
        block.vector(Role::QueryDownNorm, "q_a_layernorm.weight", &[inner]),
        block.matrix(
            Role::QueryUp,
            "q_b_proj",
            heads * (latent.nope_dim + turned),
            inner,
        ),
        Row {
            runs: Cow::Owned(of_keys),
            ..block.matrix(Role::LatentDown, "kv_a_proj_with_mqa", kept, hidden)
        },
        block.vector(Role::LatentNorm, "kv_a_layernorm.weight", &[rank]),
        of_heads(Role::LatentKeys, 0, latent.nope_dim),
        of_heads(Role::LatentValues, latent.nope_dim, latent.value_dim),
        block.matrix(Role::Output, "o_proj", hidden, heads * latent.value_dim),
    ]
}

/// A gated MLP.
pub(super) fn mlp(target: &Target, place: &Place) -> Vec<Row> {
    let (inner, hidden) = (target.model.mlp().intermediate, target.model.hidden);
    let block = place.within("mlp");
    vec![
        block.matrix(Role::MlpGate, "gate_proj", inner, hidden),
        block.matrix(Role::MlpUp, "up_proj", inner, hidden),
        block.matrix(Role::MlpDown, "down_proj", hidden, inner),
    ]
}

/// Router, routed experts and the shared expert.
pub(super) fn shared_expert(target: &Target, place: &Place) -> Vec<Row> {
    let (shared, hidden) = (target.model.moe().shared(), target.model.hidden);
    let block = place.within("mlp");
    let mut rows = experts(target, place);
    rows.extend([
        block.matrix(Role::SharedGate, "shared_expert.gate_proj", shared, hidden),
        block.matrix(Role::SharedUp, "shared_expert.up_proj", shared, hidden),
        block.matrix(Role::SharedDown, "shared_expert.down_proj", hidden, shared),
        block.matrix(Role::SharedRouter, "shared_expert_gate", 1, hidden),
    ]);
    rows
}

/// Router and routed experts.
pub(super) fn experts(target: &Target, place: &Place) -> Vec<Row> {
    let part = match place.sites {
        Sites::Prediction => StackedIn::Mtp,
        Sites::Whole | Sites::Layers(_) => StackedIn::Layers,
    };
    let checkpoint = target.checkpoint();
    match checkpoint.is_some_and(|checkpoint| checkpoint.stacked_experts.contains(&part)) {
        true => stacked_experts(target, place, "mlp.experts"),
        false => named_experts(target, place, "mlp", GATED),
    }
}

/// Names of gate, up and down.
pub(super) const GATED: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Router and experts under Mixtral's names.
pub(super) fn mixtral_experts(target: &Target, place: &Place) -> Vec<Row> {
    named_experts(target, place, "block_sparse_moe", ["w1", "w3", "w2"])
}

pub(super) fn router(target: &Target, place: &Place, block: &str) -> Row {
    let (moe, hidden) = (target.model.moe(), target.model.hidden);
    let name = format!("{block}.gate");
    place.matrix(Role::Router, &name, moe.experts, hidden)
}

/// Tensors of experts, one for each matrix; `names` are those of gate, up and down.
pub(super) fn named_experts(
    target: &Target,
    place: &Place,
    block: &str,
    names: [&str; 3],
) -> Vec<Row> {
    let (moe, hidden) = (target.model.moe(), target.model.hidden);
    let inner = moe.intermediate;
    let expert = |role, name: &str, n, k| Row {
        copies: moe.experts as usize,
        ..place.matrix(role, &format!("{block}.experts.{{expert}}.{name}"), n, k)
    };
    let [gate, up, down] = names;
    vec![
        router(target, place, block),
        expert(Role::ExpertGate, gate, inner, hidden),
        expert(Role::ExpertUp, up, inner, hidden),
        expert(Role::ExpertDown, down, hidden, inner),
    ]
}

/// Two tensors for all experts of a layer: rows of gate before rows of up, and down.
pub(super) fn stacked_experts(target: &Target, place: &Place, block: &str) -> Vec<Row> {
    let (moe, hidden) = (target.model.moe(), target.model.hidden);
    let (inner, copies) = (moe.intermediate, moe.experts);
    let part = |role, name: &str, [n, k]: [u64; 2], [first, count]: [u64; 2]| Row {
        copies: copies as usize,
        shape: sizes(&[copies, n, k]),
        runs: Cow::Owned(vec![run(n, first, count)]),
        ..place.matrix(role, &format!("{block}.{name}"), n, k)
    };
    let (both, down) = ([2 * inner, hidden], [hidden, inner]);
    vec![
        router(target, place, "mlp"),
        part(Role::ExpertGate, "gate_up_proj", both, [0, inner]),
        part(Role::ExpertUp, "gate_up_proj", both, [inner, inner]),
        part(Role::ExpertDown, "down_proj", down, [0, hidden]),
    ]
}

/// Tensors around the multi-token-prediction layer.
fn prediction(target: &Target, place: &Place) -> Vec<Row> {
    let hidden = target.model.hidden;
    let block = Place {
        prefix: "mtp.".into(),
        sites: place.sites.clone(),
    };
    let norm = |role, name| block.norm(target, role, name, hidden);
    vec![
        norm(Role::EmbeddingNorm, "pre_fc_norm_embedding.weight"),
        norm(Role::HiddenNorm, "pre_fc_norm_hidden.weight"),
        block.matrix(Role::Fusion, "fc", hidden, 2 * hidden),
        norm(Role::FinalNorm, "norm.weight"),
    ]
}
