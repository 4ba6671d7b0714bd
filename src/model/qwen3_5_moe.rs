//! Qwen3.5 and Qwen3.6 mixture-of-experts models: Gated DeltaNet and gated attention layers, each
//! followed by routed experts and a shared expert.

use crate::ops::{Batch, GatedDelta, Ops};
use crate::target::HEAD_DIM;

use super::parts::{Attention, Gdn, Layer, Mixer, Model, Moe, Scratch};

/// Runs the step of `batch`: updates caches and states, leaves the normalised hidden state of every
/// row in `s.x` and the logits of the wanted rows in `s.logits [wanted, VOCAB]`.
pub fn forward<B: Ops>(ops: &mut B, model: &mut Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.embed(&model.embed, batch, &mut s.residual);
    ops.rms_norm(&s.residual, &model.layers[0].input_norm, &mut s.x);
    for index in 0..model.layers.len() {
        let (layers, later) = model.layers.split_at_mut(index + 1);
        let next_norm = later.first().map_or(&model.norm, |next| &next.input_norm);
        layer(ops, &mut layers[index], s, batch);
        ops.add_rms_norm(&mut s.residual, &s.y, next_norm, &mut s.x);
    }
    logits(ops, model, s, batch);
}

/// Runs the multi-token-prediction layer on `s.x`, the hidden states that `forward` left, and the
/// token after each row (`batch.tokens`). Leaves its own hidden states in `s.x` and the logits of
/// the token after next in `s.logits`.
pub fn draft<B: Ops>(ops: &mut B, model: &mut Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    let mtp = model
        .mtp
        .as_mut()
        .expect("the target has a multi-token-prediction layer");
    ops.embed(&model.embed, batch, &mut s.residual);
    ops.rms_norm(&s.residual, &mtp.norm_embedding, &mut s.y);
    ops.rms_norm(&s.x, &mtp.norm_hidden, &mut s.residual);
    ops.concat(&s.y, &s.residual, &mut s.pair);
    ops.linear(&s.pair, &mtp.fc, &mut s.residual);
    ops.rms_norm(&s.residual, &mtp.layer.input_norm, &mut s.x);
    layer(ops, &mut mtp.layer, s, batch);
    ops.add_rms_norm(&mut s.residual, &s.y, &mtp.norm, &mut s.x);
    logits(ops, model, s, batch);
}

/// `s.x` (normalised input) -> `s.y` (to be added to `s.residual`); `s.residual` takes the mixer's
/// output on the way.
fn layer<B: Ops>(ops: &mut B, layer: &mut Layer<B>, s: &mut Scratch<B>, batch: &Batch) {
    match &mut layer.mixer {
        Mixer::Gdn(gdn) => gated_delta_net(ops, gdn, s, batch),
        Mixer::Attention(attention) => gated_attention(ops, attention, s, batch),
    }
    ops.add_rms_norm(&mut s.residual, &s.y, &layer.post_norm, &mut s.x);
    moe(ops, &layer.moe, s);
}

fn gated_delta_net<B: Ops>(ops: &mut B, w: &mut Gdn<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.linear(&s.x, &w.qkv, &mut s.qkv);
    ops.linear(&s.x, &w.z, &mut s.z);
    ops.linear(&s.x, &w.b, &mut s.b);
    ops.linear(&s.x, &w.a, &mut s.a);
    ops.conv_silu(&s.qkv, &w.conv, &mut w.state, batch, &mut s.conv);
    let input = GatedDelta {
        qkv: &s.conv,
        b: &s.b,
        a: &s.a,
        a_log: &w.a_log,
        dt_bias: &w.dt_bias,
    };
    ops.gated_delta(input, &mut w.state, batch, &mut s.mixed);
    ops.gated_rms_norm(&mut s.mixed, &w.norm, &s.z);
    ops.linear(&s.mixed, &w.out, &mut s.y);
}

fn gated_attention<B: Ops>(ops: &mut B, w: &mut Attention<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.linear(&s.x, &w.q, &mut s.q);
    ops.linear(&s.x, &w.k, &mut s.k);
    ops.linear(&s.x, &w.v, &mut s.v);
    ops.norm_rope(&mut s.q, 2 * HEAD_DIM, &w.q_norm, batch);
    ops.norm_rope(&mut s.k, HEAD_DIM, &w.k_norm, batch);
    ops.store_kv(&s.k, &s.v, &mut w.cache, batch);
    ops.attend(&s.q, &w.cache, batch, &mut s.mixed);
    ops.attention_gate(&mut s.mixed, &s.q);
    ops.linear(&s.mixed, &w.o, &mut s.y);
}

fn moe<B: Ops>(ops: &mut B, w: &Moe<B>, s: &mut Scratch<B>) {
    ops.linear(&s.x, &w.router, &mut s.router);
    ops.route(&s.router, &mut s.routing);
    ops.experts(&s.x, &s.routing, &w.experts, &mut s.y);
    ops.linear(&s.x, &w.shared_gate_up, &mut s.gate_up);
    ops.silu_mul(&s.gate_up, &mut s.act);
    ops.linear(&s.act, &w.shared_down, &mut s.shared);
    ops.linear(&s.x, &w.shared_gate, &mut s.gate);
    ops.add_gated(&mut s.y, &s.shared, &s.gate);
}

/// Leaves the logits of the wanted rows of `s.x`, the hidden states that `forward` or `draft` left,
/// in `s.logits [wanted, VOCAB]`.
pub fn logits<B: Ops>(ops: &mut B, model: &Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.select(&s.x, batch, &mut s.last);
    ops.linear(
        &s.last,
        model.head.as_ref().unwrap_or(&model.embed),
        &mut s.logits,
    );
}
