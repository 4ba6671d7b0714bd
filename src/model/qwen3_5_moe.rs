//! Qwen3.5 and Qwen3.6 mixture-of-experts models: Gated DeltaNet and gated attention layers, each
//! followed by routed experts and a shared expert.

use crate::ops::{Attend, Batch, Delta, DeltaNet, Dense, Ends, GatedDelta, Qkv, Route};
use crate::target;

use super::parts::{Attention, GdnLayer, Layer, Mixer, Model, Scratch};

/// Operations that the family is written in.
pub trait Runs: Dense + Attend<target::Full> + Delta<target::Gdn> + Route<target::Moe> {}

impl<B> Runs for B where B: Dense + Attend<target::Full> + Delta<target::Gdn> + Route<target::Moe> {}

/// Runs the step of `batch`: updates caches and states, leaves the normalised hidden state of every
/// row in `s.x`, the logits of the wanted rows in `s.logits [wanted, VOCAB]`, and what they are
/// ranked by in `s.ranked`, if the backend ranks them.
pub fn forward<B: Runs>(ops: &mut B, model: &mut Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    forward_watched(ops, model, s, batch, |_, _, _| {});
}

/// A part of the forward pass that adds to the hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Embedding,
    Mixer,
    /// The logits of the router are still in `Scratch::router` behind it.
    Experts,
}

/// `forward`, with a look behind each part: the hidden states are in `s.residual`.
pub fn forward_watched<B: Runs>(
    ops: &mut B,
    model: &mut Model<B>,
    s: &mut Scratch<B>,
    batch: &Batch,
    mut behind: impl FnMut(&mut B, &Scratch<B>, Part),
) {
    ops.embed(&model.embed, batch, &mut s.residual);
    behind(ops, s, Part::Embedding);
    for layer in &mut model.layers {
        mixer(ops, layer, s, batch);
        behind(ops, s, Part::Mixer);
        experts(ops, layer, s);
        behind(ops, s, Part::Experts);
    }
    let ends = Ends {
        x: &mut s.x,
        last: &mut s.last,
        logits: &mut s.logits,
        ranked: &mut s.ranked,
    };
    ops.lm_head(&s.residual, &model.norm, model.head(), batch, ends);
}

/// Runs the multi-token-prediction layer on `s.x`, the hidden states that `forward` left, and the
/// token after each row (`batch.tokens`). Leaves its own hidden states in `s.x` and the logits of
/// the token after next in `s.logits`.
pub fn draft<B: Runs>(ops: &mut B, model: &mut Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    let mtp = model
        .mtp
        .as_mut()
        .expect("the target has a multi-token-prediction layer");
    ops.embed(&model.embed, batch, &mut s.residual);
    ops.rms_norm(&s.residual, &mtp.norm_embedding, &mut s.y);
    ops.rms_norm(&s.x, &mtp.norm_hidden, &mut s.residual);
    ops.concat(&s.y, &s.residual, &mut s.pair);
    ops.linear(&s.pair, &mtp.fc, &mut s.residual);
    mixer(ops, &mut mtp.layer, s, batch);
    experts(ops, &mtp.layer, s);
    ops.rms_norm(&s.residual, &mtp.norm, &mut s.x);
    logits(ops, model, s, batch);
}

/// Adds the layer's mixer to `s.residual`.
pub fn mixer<B: Runs>(ops: &mut B, layer: &mut Layer<B>, s: &mut Scratch<B>, batch: &Batch) {
    let norm = &layer.input_norm;
    match &mut layer.mixer {
        Mixer::Gdn(gdn) => gated_delta_net(ops, norm, gdn, s, batch),
        Mixer::Attention(attention) => gated_attention(ops, norm, attention, s, batch),
    }
}

/// Adds the layer's experts to `s.residual`.
pub fn experts<B: Runs>(ops: &mut B, layer: &Layer<B>, s: &mut Scratch<B>) {
    let mut router = [(&layer.moe.router, &mut s.router)];
    ops.norm_linear(&s.residual, &layer.post_norm, &mut s.x, true, &mut router);
    let (routing, residual) = (&mut s.routing, &mut s.residual);
    ops.moe(&s.x, &s.router, routing, &layer.moe.experts, residual);
}

fn gated_delta_net<B: Runs>(
    ops: &mut B,
    norm: &B::Vector,
    w: &mut GdnLayer<B>,
    s: &mut Scratch<B>,
    batch: &Batch,
) {
    let mut projections = [
        (&w.qkv, &mut s.qkv),
        (&w.z, &mut s.z),
        (&w.b, &mut s.b),
        (&w.a, &mut s.a),
    ];
    ops.norm_linear(&s.residual, norm, &mut s.x, false, &mut projections);
    let input = DeltaNet {
        qkv: &s.qkv,
        z: &s.z,
        b: &s.b,
        a: &s.a,
        conv: &w.conv,
        a_log: &w.a_log,
        dt_bias: &w.dt_bias,
        norm: &w.norm,
    };
    if batch.is_decode() {
        ops.delta_net(input, &mut s.conv, &mut w.state, batch, &mut s.mixed);
        return ops.linear_add(&s.mixed, &w.out, &mut s.residual);
    }
    // Prompts and verified drafts: heads are normed with the product that they are for.
    ops.conv_silu(&s.qkv, &w.conv, &mut w.state, batch, &mut s.conv);
    let delta = GatedDelta {
        qkv: &s.conv,
        b: &s.b,
        a: &s.a,
        a_log: &w.a_log,
        dt_bias: &w.dt_bias,
    };
    ops.gated_delta(delta, &mut w.state, batch, &mut s.mixed);
    ops.gated_linear_add(&mut s.mixed, &w.norm, &s.z, &w.out, &mut s.residual);
}

fn gated_attention<B: Runs>(
    ops: &mut B,
    norm: &B::Vector,
    w: &mut Attention<B>,
    s: &mut Scratch<B>,
    batch: &Batch,
) {
    let mut projections = [(&w.q, &mut s.q), (&w.k, &mut s.k), (&w.v, &mut s.v)];
    ops.norm_linear(&s.residual, norm, &mut s.x, false, &mut projections);
    let input = Qkv {
        q: &mut s.q,
        k: &mut s.k,
        v: &s.v,
        norms: Some([&w.q_norm, &w.k_norm]),
    };
    ops.attention(input, &mut w.cache, batch, &mut s.mixed);
    ops.linear_add(&s.mixed, &w.o, &mut s.residual);
}

/// Leaves the logits of the wanted rows of `s.x`, the hidden states that `forward` or `draft` left,
/// in `s.logits [wanted, VOCAB]`.
pub fn logits<B: Runs>(ops: &mut B, model: &Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.select(&s.x, batch, &mut s.last);
    ops.linear(&s.last, model.head(), &mut s.logits);
}
