//! Norms and gates on one row or head.

use crate::shapes::{ALPHA, CLAMP};
use crate::target::{CHANNELS, HIDDEN, NORM_EPS};

use super::lanes::{LANES, Lanes, sigmoid, silu};
use super::wide::Vector;

/// `1 / sqrt(mean(x^2) + eps)`, summed in index order. Of a hidden state the mean is over the
/// model's channels: what pads it is zero.
pub fn inverse_rms(x: &[f32]) -> f32 {
    let width = if x.len() == HIDDEN { CHANNELS } else { x.len() };
    let mut sum = 0.0;
    x.iter().for_each(|x| sum += x * x);
    1.0 / (sum / width as f32 + NORM_EPS).sqrt()
}

/// `out = x * inverse_rms(x) * w`.
pub fn rms_norm(x: &[f32], w: &[f32], out: &mut [f32]) {
    assert!(x.len() == w.len() && x.len() == out.len());
    let scale = inverse_rms(x);
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = x * scale * w;
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

/// `x *= sigmoid(gate)`.
pub fn mul_sigmoid(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len());
    for (x, gate) in x.chunks_mut(LANES).zip(gate.chunks(LANES)) {
        Lanes::load_part(x)
            .mul(Lanes::load_part(gate).map(sigmoid))
            .store(x);
    }
}

/// `out[i] = silu(x[i]) * x[I + i]`.
pub fn silu_mul(x: &[f32], out: &mut [f32]) {
    let (gate, up) = x.split_at(out.len());
    swiglu(gate, up, out);
}

/// `out[i] = min(g, CLAMP) * sigmoid(ALPHA min(g, CLAMP)) * (clamp(u) + 1)` of gate `g = x[i]` and
/// up `u = x[I + i]`, which stays within `-CLAMP ..= CLAMP`.
pub fn clamped_mul(x: &[f32], out: &mut [f32]) {
    let (gate, up) = x.split_at(out.len());
    let parts = out.chunks_mut(LANES).zip(gate.chunks(LANES));
    for ((out, gate), up) in parts.zip(up.chunks(LANES)) {
        let gate = Lanes::load_part(gate).map(|gate| gate.min(CLAMP));
        let open = gate.map(|gate| gate * sigmoid(ALPHA * gate));
        let up = Lanes::load_part(up).map(|up| up.clamp(-CLAMP, CLAMP) + 1.0);
        open.mul(up).store(out);
    }
}

/// `out[i] = silu(gate[i]) * up[i]`.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len());
    let parts = out
        .chunks_mut(LANES)
        .zip(gate.chunks(LANES))
        .zip(up.chunks(LANES));
    for ((out, gate), up) in parts {
        Lanes::load_part(gate)
            .map(silu)
            .mul(Lanes::load_part(up))
            .store(out);
    }
}
