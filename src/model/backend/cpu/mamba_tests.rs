//! Mamba-2 and its experts' router against their formulas in F64.

use super::experts::Routing;
use super::tests::{assert_close, batch, sigmoid, tensor, wide};
use super::{Cpu, Tensor};
use crate::ops::{Decay, Delta, GatedDelta};
use crate::shapes;
use crate::target::NORM_EPS;
use step::executor::PageId;
use step::random::Random;

/// Three heads of a group, no width a multiple of what is computed together.
struct Mamba;

impl shapes::Delta for Mamba {
    const MAMBA: bool = true;
    const NORM: usize = 3 * Self::VALUE_DIM;
    const KEY_HEADS: usize = 2;
    const VALUE_HEADS: usize = 6;
    const KEY_DIM: usize = 20;
    const VALUE_DIM: usize = 12;
    const CONV: usize = 4;
}

use shapes::Delta as Shape;

#[test]
fn a_channel_s_bias_joins_its_taps() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(1));
    let x = tensor(&mut random, 1, Mamba::QKV);
    let (w, bias) = (
        random.normal(Mamba::QKV * Mamba::CONV),
        random.normal(Mamba::QKV),
    );
    let (mut state, mut out) = (
        Delta::<Mamba>::delta_state(&cpu).unwrap(),
        Tensor::default(),
    );
    let batch = batch(0, 0, 1, &[PageId(0)]);
    cpu.conv_silu(&x, (&w, Some(&bias)), &mut state, &batch, &mut out);
    let newest = w.chunks_exact(Mamba::CONV).map(|taps| taps[3]);
    let sums = newest.zip(&bias).zip(x.row(0)).map(|((tap, bias), x)| {
        let sum = f64::from(tap) * f64::from(*x) + f64::from(*bias);
        sum * sigmoid(sum)
    });
    assert_close(out.row(0), &sums.collect::<Vec<_>>());
}

#[test]
fn states_take_values_whole_and_results_have_a_part_of_them() {
    const ROWS: usize = 5;
    let (mut cpu, mut random) = (Cpu::new(2), Random::new(2));
    let xbc = tensor(&mut random, ROWS, Mamba::QKV);
    let dt = tensor(&mut random, ROWS, Mamba::VALUE_HEADS);
    let [a_log, dt_bias, skip] = [(); 3].map(|()| random.normal(Mamba::VALUE_HEADS));
    let mut expected = vec![0.0; ROWS * Mamba::VALUES];
    for head in 0..Mamba::VALUE_HEADS {
        let mut state = vec![0.0f64; Mamba::KEY_DIM * Mamba::VALUE_DIM];
        let key = head / Mamba::GROUP * Mamba::KEY_DIM;
        for row in 0..ROWS {
            let part = |start, width| wide(&xbc.row(row)[start..start + width]);
            let (c, b) = (
                part(key, Mamba::KEY_DIM),
                part(Mamba::KEYS + key, Mamba::KEY_DIM),
            );
            let first = head * Mamba::VALUE_DIM;
            let x = part(2 * Mamba::KEYS + first, Mamba::VALUE_DIM);
            let step = f64::from(dt.row(row)[head] + dt_bias[head]).exp().ln_1p();
            let decay = (-f64::from(a_log[head]).exp() * step).exp();
            for (column, x) in x.iter().enumerate() {
                let mut sum = f64::from(skip[head]) * x;
                for (dim, (b, c)) in b.iter().zip(&c).enumerate() {
                    let s = &mut state[dim * Mamba::VALUE_DIM + column];
                    *s = *s * decay + step * x * b;
                    sum += *s * c;
                }
                expected[row * Mamba::VALUES + first + column] = sum;
            }
        }
    }
    let (mut state, mut out) = (
        Delta::<Mamba>::delta_state(&cpu).unwrap(),
        Tensor::default(),
    );
    state.part.write().fill(9.0);
    let decay = Decay {
        a_log,
        dt_bias,
        skip: Some(skip),
    };
    let input = GatedDelta {
        qkv: &xbc,
        b: &dt,
        a: &dt,
        decay: &decay,
    };
    cpu.gated_delta(
        input,
        &mut state,
        &batch(2, 0, ROWS, &[PageId(0)]),
        &mut out,
    );
    assert_close(&out.values, &expected);
}

#[test]
fn results_are_gated_before_the_heads_of_a_group_are_normed() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(3));
    let (mut x, z) = (
        tensor(&mut random, 2, Mamba::VALUES),
        tensor(&mut random, 2, Mamba::VALUES),
    );
    let w = random.normal(Mamba::VALUES);
    let gated = wide(&x.values).into_iter().zip(wide(&z.values));
    let gated: Vec<f64> = gated.map(|(x, z)| x * z * sigmoid(z)).collect();
    let groups = gated
        .chunks(Mamba::NORM)
        .enumerate()
        .flat_map(|(at, group)| {
            let square = group.iter().map(|x| x * x).sum::<f64>() / Mamba::NORM as f64;
            let scale = 1.0 / (square + f64::from(NORM_EPS)).sqrt();
            let gains = &w[at % Mamba::KEY_HEADS * Mamba::NORM..][..Mamba::NORM];
            let normed = group.iter().zip(gains);
            normed
                .map(move |(x, w)| x * scale * f64::from(*w))
                .collect::<Vec<_>>()
        });
    let expected: Vec<f64> = groups.collect();
    Delta::<Mamba>::gated_rms_norm(&mut cpu, &mut x, &w, &z);
    assert_close(&x.values, &expected);
}

/// Four experts, two a row.
struct Moe;

impl shapes::Experts for Moe {
    const COUNT: usize = 4;
    const PER_TOKEN: usize = 2;
    const INTERMEDIATE: usize = 8;
    const WIDTH: usize = 12;
    const LATENT: bool = true;
    const BESIDE: usize = 8;
    const SIGMOID: bool = true;
    const WEIGHT_SCALE: f32 = 2.5;
    const ACTIVATION: shapes::Activation = shapes::Activation::Relu2;
}

#[test]
fn a_correction_chooses_experts_and_weighs_none() {
    let mut routing = Routing::<Moe>::default();
    let logits = [0.0, 1.0, 2.0, -1.0];
    routing.fill(&logits, Some(&[0.0, 0.0, -9.0, 0.5]));
    assert_eq!(routing.experts, [3, 1]);
    let scores = [-1.0, 1.0].map(sigmoid);
    let weights = scores.map(|score| 2.5 * score / (scores[0] + scores[1]));
    assert_close(&routing.weights, &weights);
}
