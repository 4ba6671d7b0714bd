//! Each operation against its formula in F64, over shapes of the tests' own: every target tests
//! every operation.

use super::*;
use crate::ops::{Attend, Decay, Delta, Ends, GatedDelta, Hidden, Route};
use crate::shapes::{Attention as _, Delta as _, Experts as _};
use crate::target::*;
use step::executor::{PageId, SeqRows, Slot};
use step::random::Random;

use super::experts::{Experts, Routing};

/// Two queries of a key, half of each rotated.
struct Full;

impl shapes::Attention for Full {
    const HEADS: usize = 6;
    const KV_HEADS: usize = 3;
    const HEAD_DIM: usize = 40;
    const VALUE_DIM: usize = 40;
    const ROTARY_DIM: usize = 20;
    const ROPE: shapes::Rope = shapes::Rope {
        theta: 1e5,
        scaling: None,
    };
    const SCALE: f32 = 0.25;
    const GATED: bool = true;
    const NORMED: bool = true;
    const POSITION_BYTES: usize = 2 * 3 * 40 * size_of::<f32>();
}

/// Three values of a key, no width a multiple of what is computed together.
struct Gdn;

impl shapes::Delta for Gdn {
    const NORM: usize = Self::VALUE_DIM;
    const KEY_HEADS: usize = 2;
    const VALUE_HEADS: usize = 6;
    const KEY_DIM: usize = 20;
    const VALUE_DIM: usize = 12;
    const CONV: usize = 4;
}

/// Numbers of experts that are no powers of two, and a shared one of another width.
struct Moe;

impl shapes::Experts for Moe {
    const COUNT: usize = 7;
    const PER_TOKEN: usize = 3;
    const INTERMEDIATE: usize = 32;
    const WIDTH: usize = HIDDEN;
    const SHARED: usize = 48;
    const SHARED_GATED: bool = true;
    const ROWS_NVFP4: bool = true;
    const ACTIVATION: shapes::Activation = shapes::Activation::Silu;
}

/// F32 rounding of sums of a few hundred terms near 1.
const TOLERANCE: f64 = 2e-5;

pub(super) fn tensor(random: &mut Random, rows: usize, width: usize) -> Tensor {
    Tensor {
        rows,
        width,
        values: random.normal(rows * width),
    }
}

pub(super) fn assert_close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= TOLERANCE * (1.0 + expected.abs()),
            "{index}: {found}, not {expected}"
        );
    }
}

pub(super) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rms_scale(x: &[f64]) -> f64 {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    1.0 / (mean + f64::from(NORM_EPS)).sqrt()
}

/// One sequence of `rows` rows from `start`, on the pages and slot given.
pub(super) fn batch(slot: u32, start: usize, rows: usize, pages: &[PageId]) -> Batch {
    let tokens = vec![0; rows];
    let mut batch = Batch::new(KV_PAGES);
    let rows = SeqRows::of(Slot(slot), start, &tokens, pages);
    batch.fill(&[rows]).unwrap();
    batch
}

#[test]
fn norm_and_products_of_it() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(1));
    let residual = tensor(&mut random, 3, HIDDEN);
    let norm = random.normal(HIDDEN);
    let weights = [5, 2].map(|rows| random.normal(rows * HIDDEN));
    let matrices = weights
        .each_ref()
        .map(|w| Matrix::new(HIDDEN, std::slice::from_ref(w)));
    let mut normed = Vec::new();
    for row in wide(&residual.values).chunks(HIDDEN) {
        let scale = rms_scale(row);
        let weighted = row.iter().zip(&norm);
        normed.extend(weighted.map(|(x, w)| x * scale * f64::from(*w)));
    }
    let (mut x, mut a, mut b) = (Tensor::default(), Tensor::default(), Tensor::default());
    let mut parts = [(&matrices[0], &mut a), (&matrices[1], &mut b)];
    cpu.norm_linear(&residual, &norm, &mut x, true, &mut parts);
    assert_close(&x.values, &normed);
    for (out, w) in [a, b].iter().zip(&weights) {
        let dot =
            |x: &[f64], w: &[f32]| -> f64 { x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum() };
        let rows = normed.chunks(HIDDEN);
        let expected = rows.flat_map(|x| w.chunks(HIDDEN).map(move |w| dot(x, w)));
        assert_close(&out.values, &expected.collect::<Vec<_>>());
    }
}

#[test]
fn product_that_joins_the_residual() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(9));
    let (x, w) = (tensor(&mut random, 3, 8), random.normal(5 * 8));
    let matrix = Matrix::new(8, &[w]);
    let (mut residual, mut sums) = (tensor(&mut random, 3, 5), Tensor::default());
    cpu.linear(&x, &matrix, &mut sums);
    let pairs = residual.values.iter().zip(&sums.values);
    let expected: Vec<f32> = pairs.map(|(residual, sum)| residual + sum).collect();
    cpu.linear_add(&x, &matrix, &mut residual);
    assert_eq!(residual.values, expected);
}

#[test]
fn product_of_gated_heads_joins_the_residual() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(10));
    let mut x = tensor(&mut random, 2, Gdn::VALUES);
    let z = tensor(&mut random, 2, Gdn::VALUES);
    let norm = random.normal(Gdn::VALUE_DIM);
    let matrix = Matrix::new(Gdn::VALUES, &[random.normal(5 * Gdn::VALUES)]);
    let mut residual = tensor(&mut random, 2, 5);
    let copy = |from: &Tensor, width| Tensor::of(width, from.values.clone());
    let (mut gated, mut expected) = (copy(&x, Gdn::VALUES), copy(&residual, 5));
    Delta::<Gdn>::gated_rms_norm(&mut cpu, &mut gated, &norm, &z);
    cpu.linear_add(&gated, &matrix, &mut expected);
    Delta::<Gdn>::gated_linear_add(&mut cpu, &mut x, &norm, &z, &matrix, &mut residual);
    assert_eq!(residual.values, expected.values);
}

#[test]
fn gated_norm() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(2));
    let (mut x, z) = (
        tensor(&mut random, 2, Gdn::VALUES),
        tensor(&mut random, 2, Gdn::VALUES),
    );
    let w = random.normal(Gdn::VALUE_DIM);
    let mut expected = Vec::new();
    for (x, z) in wide(&x.values)
        .chunks(Gdn::VALUE_DIM)
        .zip(wide(&z.values).chunks(Gdn::VALUE_DIM))
    {
        let scale = rms_scale(x);
        let gated = x.iter().zip(z).zip(&w);
        expected.extend(gated.map(|((x, z), w)| x * scale * f64::from(*w) * z * sigmoid(*z)));
    }
    Delta::<Gdn>::gated_rms_norm(&mut cpu, &mut x, &w, &z);
    assert_close(&x.values, &expected);
}

#[test]
fn rotation_of_normed_heads() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(3));
    let stride = 2 * Full::HEAD_DIM;
    let mut x = tensor(&mut random, 2, Full::HEADS * stride);
    let w = random.normal(Full::HEAD_DIM);
    let start = 77;
    let mut expected = wide(&x.values);
    for (index, head) in expected.chunks_mut(stride).enumerate() {
        let position = (start + index / Full::HEADS) as f64;
        let scale = rms_scale(&head[..Full::HEAD_DIM]);
        for (x, w) in head.iter_mut().zip(&w) {
            *x *= scale * f64::from(*w);
        }
        for pair in 0..Full::ROTARY_DIM / 2 {
            let frequency = Full::ROPE
                .theta
                .powf(-2.0 * pair as f64 / Full::ROTARY_DIM as f64);
            let (sin, cos) = (position * frequency).sin_cos();
            let (low, high) = (head[pair], head[pair + Full::ROTARY_DIM / 2]);
            head[pair] = low * cos - high * sin;
            head[pair + Full::ROTARY_DIM / 2] = high * cos + low * sin;
        }
    }
    let pages = [PageId(0), PageId(1)];
    cpu.norm_and_rotate::<Full>(&mut x, stride, Some(&w), &batch(0, start, 2, &pages));
    assert_close(&x.values, &expected);
}

#[test]
fn attention_over_scattered_pages() {
    const ROWS: usize = PAGE + 3;
    let (mut cpu, mut random) = (Cpu::new(2), Random::new(4));
    let kv = Full::KV_HEADS * Full::HEAD_DIM;
    let (mut k, v) = (tensor(&mut random, ROWS, kv), tensor(&mut random, ROWS, kv));
    let mut q = tensor(&mut random, ROWS, 2 * Full::HEADS * Full::HEAD_DIM);
    let norms = [random.normal(Full::HEAD_DIM), random.normal(Full::HEAD_DIM)];
    let batch = batch(0, 0, ROWS, &[PageId(3), PageId(1)]);
    let (mut cache, mut out) = (
        Attend::<Full>::kv_cache(&cpu, KV_PAGES).unwrap(),
        Tensor::default(),
    );
    let norms = [Some(&norms[0]), Some(&norms[1])];
    cpu.store_kv(&mut q, &mut k, Some(&v), norms, &mut cache, &batch);
    cpu.attend(&q, &cache, None, &batch, &mut out);
    // Queries and keys as `rotation_of_normed_heads` has proved them.
    let (q, k, v) = (wide(&q.values), wide(&k.values), wide(&v.values));
    let mut expected = Vec::new();
    for (row, head) in (0..ROWS).flat_map(|row| (0..Full::HEADS).map(move |head| (row, head))) {
        let (q, gate) =
            q[(row * Full::HEADS + head) * 2 * Full::HEAD_DIM..].split_at(Full::HEAD_DIM);
        let kv_head = head / (Full::HEADS / Full::KV_HEADS);
        let at = |position: usize| position * kv + kv_head * Full::HEAD_DIM;
        let scores: Vec<f64> = (0..=row)
            .map(|j| q.iter().zip(&k[at(j)..]).map(|(q, k)| q * k).sum::<f64>())
            .map(|dot| (dot * f64::from(Full::SCALE)).exp())
            .collect();
        let sum: f64 = scores.iter().sum();
        for dim in 0..Full::HEAD_DIM {
            let mixed = scores
                .iter()
                .enumerate()
                .map(|(j, score)| score * v[at(j) + dim]);
            expected.push(mixed.sum::<f64>() / sum * sigmoid(gate[dim]));
        }
    }
    assert_close(&out.values, &expected);
}

#[test]
fn convolution_across_steps() {
    const ROWS: usize = 9;
    let (mut cpu, mut random) = (Cpu::new(2), Random::new(6));
    let x = tensor(&mut random, ROWS, Gdn::QKV);
    let w = random.normal(Gdn::QKV * Gdn::CONV);
    let mut expected = Vec::new();
    for (row, channel) in (0..ROWS).flat_map(|row| (0..Gdn::QKV).map(move |c| (row, c))) {
        let taps = (0..Gdn::CONV).filter(|tap| row + tap + 1 >= Gdn::CONV);
        let input = |tap| f64::from(x.values[(row + tap + 1 - Gdn::CONV) * Gdn::QKV + channel]);
        let sum: f64 = taps
            .map(|tap| f64::from(w[channel * Gdn::CONV + tap]) * input(tap))
            .sum();
        expected.push(sum * sigmoid(sum));
    }
    let (mut state, mut found) = (Delta::<Gdn>::delta_state(&cpu).unwrap(), Vec::new());
    state.part.write().fill(9.0);
    let mut start = 0;
    for rows in [1, 2, 5, 1] {
        let values = x.values[start * Gdn::QKV..(start + rows) * Gdn::QKV].to_vec();
        let (part, mut out) = (Tensor::of(Gdn::QKV, values), Tensor::default());
        let batch = batch(1, start, rows, &[PageId(0)]);
        cpu.conv_silu(&part, (&w, None), &mut state, &batch, &mut out);
        found.extend(out.values);
        start += rows;
    }
    assert_close(&found, &expected);
}

#[test]
fn delta_rule() {
    const ROWS: usize = 5;
    let (mut cpu, mut random) = (Cpu::new(2), Random::new(7));
    let qkv = tensor(&mut random, ROWS, Gdn::QKV);
    let (a, b) = (
        tensor(&mut random, ROWS, Gdn::VALUE_HEADS),
        tensor(&mut random, ROWS, Gdn::VALUE_HEADS),
    );
    let (a_log, dt_bias) = (
        random.normal(Gdn::VALUE_HEADS),
        random.normal(Gdn::VALUE_HEADS),
    );
    let mut expected = vec![0.0; ROWS * Gdn::VALUES];
    for head in 0..Gdn::VALUE_HEADS {
        let mut state = vec![0.0f64; Gdn::KEY_DIM * Gdn::VALUE_DIM];
        for row in 0..ROWS {
            let unit = |start: usize| {
                let x = wide(&qkv.row(row)[start..start + Gdn::KEY_DIM]);
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.into_iter().map(|x| x / length).collect::<Vec<_>>()
            };
            let key_head = head / (Gdn::VALUE_HEADS / Gdn::KEY_HEADS);
            let keys = Gdn::KEY_HEADS * Gdn::KEY_DIM;
            let (q, k) = (
                unit(key_head * Gdn::KEY_DIM),
                unit(keys + key_head * Gdn::KEY_DIM),
            );
            let v = wide(&qkv.row(row)[2 * keys + head * Gdn::VALUE_DIM..][..Gdn::VALUE_DIM]);
            let input = f64::from(a.row(row)[head] + dt_bias[head]);
            let decay = (-f64::from(a_log[head]).exp() * input.exp().ln_1p()).exp();
            let beta = sigmoid(f64::from(b.row(row)[head]));
            state.iter_mut().for_each(|s| *s *= decay);
            for column in 0..Gdn::VALUE_DIM {
                let at = |dim: usize| dim * Gdn::VALUE_DIM + column;
                let recalled: f64 = (0..Gdn::KEY_DIM).map(|dim| state[at(dim)] * k[dim]).sum();
                let update = (v[column] - recalled) * beta;
                (0..Gdn::KEY_DIM).for_each(|dim| state[at(dim)] += k[dim] * update);
                let out: f64 = (0..Gdn::KEY_DIM).map(|dim| state[at(dim)] * q[dim]).sum();
                expected[row * Gdn::VALUES + head * Gdn::VALUE_DIM + column] =
                    out / (Gdn::KEY_DIM as f64).sqrt();
            }
        }
    }
    let (mut state, mut out) = (Delta::<Gdn>::delta_state(&cpu).unwrap(), Tensor::default());
    state.part.write().fill(9.0);
    let decay = Decay {
        a_log,
        dt_bias,
        skip: None,
    };
    let input = GatedDelta {
        qkv: &qkv,
        b: &b,
        a: &a,
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
fn routing_and_experts() {
    experts_of_rows(false);
}

#[test]
fn experts_that_round_what_they_multiply() {
    experts_of_rows(true);
}

fn experts_of_rows(rounds: bool) {
    const ROWS: usize = 7;
    let (mut cpu, mut random) = (Cpu::new(2), Random::new(8));
    let scaled = |random: &mut Random, count: usize| -> Vec<f32> {
        random.normal(count).into_iter().map(|w| w / 16.0).collect()
    };
    let (x, logits) = (
        tensor(&mut random, ROWS, HIDDEN),
        tensor(&mut random, ROWS, Moe::LOGITS),
    );
    let inner = |expert: usize| match expert {
        Moe::COUNT => Moe::SHARED,
        _ => Moe::INTERMEDIATE,
    };
    let weights: Vec<[Vec<f32>; 3]> = (0..=Moe::COUNT)
        .map(|expert| [(); 3].map(|()| scaled(&mut random, inner(expert) * HIDDEN)))
        .collect();
    let mut experts = Experts::<Moe>::stored_as(false);
    experts.rounds = rounds;
    for (expert, [gate, up, down]) in weights.iter().enumerate() {
        experts
            .gate_up
            .push(Matrix::new(HIDDEN, &[gate.clone(), up.clone()]));
        experts
            .down
            .push(Matrix::new(inner(expert), std::slice::from_ref(down)));
    }
    let mut expected = vec![0.0; ROWS * HIDDEN];
    for row in 0..ROWS {
        let mut order: Vec<usize> = (0..Moe::COUNT).collect();
        let logit = |expert: usize| f64::from(logits.row(row)[expert]);
        order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
        order.truncate(Moe::PER_TOKEN);
        let total: f64 = order.iter().map(|&expert| logit(expert).exp()).sum();
        for expert in order {
            let y = swiglu(&weights[expert], x.row(row), rounds);
            let out = expected[row * HIDDEN..].iter_mut().zip(y);
            out.for_each(|(out, y)| *out += y * logit(expert).exp() / total);
        }
        let y = swiglu(&weights[Moe::COUNT], x.row(row), rounds);
        let out = expected[row * HIDDEN..].iter_mut().zip(y);
        out.for_each(|(out, y)| *out += y * sigmoid(logit(Moe::COUNT)));
    }
    let (mut routing, mut residual) = (
        Route::<Moe>::routing(&cpu).unwrap(),
        tensor(&mut random, ROWS, HIDDEN),
    );
    let pairs = expected.iter().zip(wide(&residual.values));
    let expected: Vec<f64> = pairs.map(|(sum, residual)| sum + residual).collect();
    cpu.moe(&x, (&logits, None), &mut routing, &experts, &mut residual);
    assert_close(&residual.values, &expected);
}

fn swiglu([gate, up, down]: &[Vec<f32>; 3], x: &[f32], rounds: bool) -> Vec<f64> {
    let times = |w: &[f32], x: &[f32]| -> Vec<f64> {
        let mut x = x.to_vec();
        if rounds {
            nvfp4::round(&mut x);
        }
        let product = |(w, x): (&f32, &f32)| f64::from(*w) * f64::from(*x);
        let rows = w.chunks(x.len());
        rows.map(|w| w.iter().zip(&x).map(product).sum()).collect()
    };
    let (gate, up) = (times(gate, x), times(up, x));
    let act = gate.iter().zip(up);
    let act = act.map(|(gate, up)| (gate * sigmoid(*gate) * up) as f32);
    times(down, &act.collect::<Vec<_>>())
}

#[test]
fn the_most_likely_experts_come_first_and_the_lower_one_on_a_tie() {
    let mut routing = Routing::<Moe>::default();
    routing.fill(&[1.0; Moe::LOGITS], None);
    let first: Vec<u32> = (0..Moe::PER_TOKEN as u32).collect();
    assert_eq!(routing.experts, first);
    let (shared, weights) = routing.weights.split_last().unwrap();
    let equal = |w: &f32| (w - 1.0 / Moe::PER_TOKEN as f32).abs() < 1e-6;
    assert!(weights.iter().all(equal));
    assert!((f64::from(*shared) - sigmoid(1.0)).abs() < 1e-6);
}

#[test]
fn concatenation_and_selection() {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(9));
    let (a, b) = (tensor(&mut random, 3, 5), tensor(&mut random, 3, 5));
    let (mut pair, mut last) = (Tensor::default(), Tensor::default());
    cpu.concat(&a, &b, &mut pair);
    assert_eq!(pair.row(1), [a.row(1), b.row(1)].concat());
    let batch = batch(0, 0, 3, &[PageId(0)]);
    cpu.select(&pair, &batch, &mut last);
    assert_eq!(last.values, pair.row(2));
}

/// Normed rows that `lm_head` leaves, and logits of those that are wanted.
fn head(hidden: Hidden, ids: usize, batch: &Batch) -> [Tensor; 2] {
    let (mut cpu, mut random) = (Cpu::new(1), Random::new(10));
    let residual = tensor(&mut random, batch.rows(), 8);
    let norm = random.normal(8);
    let matrix = Matrix::new(8, &[random.normal(8 * VOCAB)]);
    let (mut x, mut last) = (Tensor::default(), Tensor::default());
    let (mut logits, mut ranked) = (Tensor::default(), Tensor::default());
    let ends = Ends {
        hidden,
        x: &mut x,
        last: &mut last,
        ids,
        logits: &mut logits,
        ranked: Some(&mut ranked),
    };
    cpu.lm_head(&residual, &norm, &matrix, batch, ends);
    let normed = match hidden {
        Hidden::OfRows => x,
        Hidden::OfWanted => last,
    };
    [normed, logits]
}

#[test]
fn the_head_of_the_wanted_rows_leaves_what_that_of_all_rows_does_of_them() {
    let mut batch = batch(0, 0, 4, &[PageId(0)]);
    batch.want(vec![1, 3]).unwrap();
    let [all, logits] = head(Hidden::OfRows, VOCAB, &batch);
    let [wanted, logits_of_wanted] = head(Hidden::OfWanted, VOCAB, &batch);
    assert_eq!(wanted.values, [all.row(1), all.row(3)].concat());
    assert_eq!(logits_of_wanted.values, logits.values);
}

#[test]
fn logits_of_the_first_ids_are_those_of_all() {
    let mut batch = batch(0, 0, 4, &[PageId(0)]);
    batch.want(vec![1, 3]).unwrap();
    let [_, all] = head(Hidden::OfRows, VOCAB, &batch);
    let [_, first] = head(Hidden::OfWanted, TOP_K, &batch);
    assert_eq!(first.width, TOP_K);
    let of_all = all.values.chunks_exact(VOCAB).flat_map(|row| &row[..TOP_K]);
    assert!(first.values.iter().eq(of_all));
}
