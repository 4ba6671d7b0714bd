//! Norms and gates on one row or head.

use crate::shapes::{ALPHA, Activation, CLAMP, GELU_CUBIC, GELU_SLOPE};
use crate::target::{CHANNELS, HIDDEN, NORM_EPS};

use super::lanes::{LANES, Lanes, sigmoid, silu};
use super::wide::Vector;

/// `1 / sqrt(mean(x^2) + eps)`, summed in index order. The mean of a hidden state is over the
/// model's channels, without padding, which is zero.
pub fn inverse_rms(x: &[f32]) -> f32 {
    let width = if x.len() == HIDDEN { CHANNELS } else { x.len() };
    let mut sum = 0.0;
    x.iter().for_each(|x| sum += x * x);
    1.0 / (sum / width as f32 + NORM_EPS).sqrt()
}

/// `x = x * inverse_rms(x)`.
pub fn unit_rms(x: &mut [f32]) {
    let scale = inverse_rms(x);
    x.iter_mut().for_each(|x| *x *= scale);
}

/// `out += x * inverse_rms(x) * w`.
pub fn add_rms_norm(x: &[f32], w: &[f32], out: &mut [f32]) {
    assert!(x.len() == w.len() && x.len() == out.len());
    let scale = inverse_rms(x);
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out += x * scale * w;
    }
}

/// `x = x * inverse_rms(x) * w * silu(z)`.
pub fn gated_rms_norm(x: &mut [f32], w: &[f32], z: &[f32]) {
    assert!(x.len() == w.len() && x.len() == z.len());
    let scale = inverse_rms(x);
    let parts = x
        .chunks_mut(LANES)
        .zip(w.chunks(LANES))
        .zip(z.chunks(LANES));
    for ((x, w), z) in parts {
        let gate = Lanes::load_part(z).map(silu);
        let normed = Lanes::load_part(x)
            .mul(Lanes::splat(scale))
            .mul(Lanes::load_part(w));
        normed.mul(gate).store(x);
    }
}

/// `x = x * inverse_rms(x) * w`.
pub fn norm(x: &mut [f32], w: &[f32]) {
    let scale = inverse_rms(x);
    x.iter_mut().zip(w).for_each(|(x, w)| *x *= scale * w);
}

/// `x *= silu(z)`.
pub fn gate(x: &mut [f32], z: &[f32]) {
    assert_eq!(x.len(), z.len());
    for (x, z) in x.chunks_mut(LANES).zip(z.chunks(LANES)) {
        let gate = Lanes::load_part(z).map(silu);
        Lanes::load_part(x).mul(gate).store(x);
    }
}

/// `x *= sigmoid(gate)`.
pub fn mul_sigmoid(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len());
    for (x, gate) in x.chunks_mut(LANES).zip(gate.chunks(LANES)) {
        Lanes::load_part(x)
            .mul(Lanes::load_part(gate).map(sigmoid))
            .store(x);
    }
}

/// `out[i]` is the activation of `gate[i]` and `up[i]`.
pub fn gated(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let clamped = |gate: f32| {
        let gate = gate.min(CLAMP);
        gate * sigmoid(ALPHA * gate)
    };
    match activation {
        Activation::Silu => gated_by(gate, up, out, silu, |up| up),
        Activation::GeluTanh => gated_by(gate, up, out, gelu, |up| up),
        Activation::Relu2 => gated_by(gate, up, out, positive, |up| up),
        Activation::Clamped => {
            gated_by(gate, up, out, clamped, |up| up.clamp(-CLAMP, CLAMP) + 1.0);
        }
    }
}

/// `out[i] = open(gate[i]) * lift(up[i])`.
#[inline(always)]
fn gated_by(
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
    open: impl Fn(f32) -> f32,
    lift: impl Fn(f32) -> f32,
) {
    assert!(gate.len() == out.len() && up.len() == out.len());
    let parts = out.chunks_mut(LANES).zip(gate.chunks(LANES));
    for ((out, gate), up) in parts.zip(up.chunks(LANES)) {
        let up = Lanes::load_part(up).map(&lift);
        Lanes::load_part(gate).map(&open).mul(up).store(out);
    }
}

/// `max(x, 0)`, and NaN for NaN.
#[inline(always)]
pub fn positive(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * sigmoid(GELU_SLOPE * (x + GELU_CUBIC * x * x * x))
}
