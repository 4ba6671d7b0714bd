//! The CPU's norms, products and attention against formulas in F64.

use std::marker::PhantomData;

use super::head_norms::{Norms, beside};
use super::rows::{gathered, sampled};
use super::{F32_CHAIN, Random, Report, distance};
use model::backend::cpu::{Cpu, Matrix, Tensor, as_cached};
use model::ops::{Attend, Batch, Dense, Device};
use model::shapes;
use model::target::{CHANNELS, FORMAT_KV, HIDDEN, KvFormat, MAX_CONTEXT, NORM_EPS, PAGE};
use step::executor::{PageId, SeqRows, Slot};

/// Number of rows of the matrix whose products are compared.
const PRODUCTS: usize = 64;
/// Most positions of a sequence: a table or sum that wraps is visible after position 1,024.
const POSITIONS_MAX: usize = 2048;
/// Positions where pages, splits of a context, or tables may end; both sides are compared.
const EDGES: [usize; 5] = [PAGE, 256, 512, 1024, 1536];

/// Compares `rms_norm` of rows of different magnitude: the residual grows with depth, and each row
/// has its own norm.
pub(super) fn norms(report: &mut Report, random: &mut Random, rows: usize) {
    let x = (0..rows).flat_map(|row| random.bf16(HIDDEN, (1 + row % 9) as f32));
    let (x, weight): (Vec<f32>, _) = (x.collect(), random.gains(HIDDEN));
    let formula = x.chunks_exact(HIDDEN).flat_map(|row| norm(row, &weight));
    let formula: Vec<f32> = formula.map(|value| value as f32).collect();
    let (mut cpu, mut out) = (Cpu::default(), Tensor::default());
    cpu.rms_norm(&Tensor::of(HIDDEN, x), &weight, &mut out, None);
    let found = seen(&mut cpu, &out);
    let shape = format!("{rows} x {HIDDEN}");
    compare(report, "rms_norm", &shape, &found, &formula);
}

/// Compares `linear` with a matrix of a few rows, on rows of every tile.
pub(super) fn products(report: &mut Report, random: &mut Random, rows: usize) {
    let (x, w) = (
        random.bf16(rows * HIDDEN, 1.0),
        random.bf16(PRODUCTS * HIDDEN, 1.0),
    );
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        let pairs = x.iter().zip(w);
        pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    let of_row = |x| w.chunks_exact(HIDDEN).map(move |w| dot(x, w) as f32);
    let sample = sampled(random, rows);
    let wanted = gathered(&x, rows, &sample);
    let formula: Vec<f32> = wanted.chunks_exact(HIDDEN).flat_map(of_row).collect();
    let (mut cpu, mut out) = (Cpu::default(), Tensor::default());
    let matrix = Matrix::new(HIDDEN, std::slice::from_ref(&w));
    cpu.linear(&Tensor::of(HIDDEN, x), &matrix, &mut out);
    let found = gathered(&seen(&mut cpu, &out), rows, &sample);
    let shape = format!("{rows} x {PRODUCTS}");
    compare(report, "linear", &shape, &found, &formula);
}

/// Compares `store_kv` and `attend` on rows far into a sequence.
pub(super) fn attention<A: shapes::Attention>(report: &mut Report, random: &mut Random) {
    let positions = POSITIONS_MAX.min(MAX_CONTEXT);
    let sequence = Sequence::<A>::drawn(random, positions);
    let near = EDGES.iter().flat_map(|edge| edge - 1..=edge + 1);
    let wanted = near.filter(|&at| at + 1 < positions);
    let wanted: Vec<usize> = [0]
        .into_iter()
        .chain(wanted)
        .chain([positions - 1])
        .collect();
    let (attended, rotated) = sequence.attended(&wanted);
    let keys = sequence.keys();
    let exact: Vec<f32> = keys.iter().flatten().map(|&x| x as f32).collect();
    compare(report, "attention", "keys", &rotated, &exact);
    // Rounding is not continuous: near the middle between two codes, the CPU's choice is taken.
    let keys = match FORMAT_KV {
        KvFormat::Fp8 => rounded::<A>(&rotated),
        KvFormat::F32 | KvFormat::Bf16 => keys,
    };
    for (position, found) in wanted.iter().zip(attended) {
        let formula = sequence.formula(&keys, *position);
        let case = format!("position {position}");
        compare(report, "attention", &case, &found, &formula);
    }
}

pub(super) fn compare(
    report: &mut Report,
    op: &'static str,
    case: &str,
    found: &[f32],
    formula: &[f32],
) {
    let error = distance(found, formula);
    report.within(op, case, "cpu = formula in f64", error, F32_CHAIN);
}

pub(super) fn seen(cpu: &mut Cpu, tensor: &Tensor) -> Vec<f32> {
    let mut found = Vec::new();
    let read = cpu.read(tensor, 0..tensor.rows, &mut found);
    read.expect("the CPU's memory can be read");
    found
}

/// Formula: `x * rsqrt(mean(x^2) + NORM_EPS) * w`.
fn norm<'a>(row: &'a [f32], weight: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
    let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let width = if row.len() == HIDDEN {
        CHANNELS
    } else {
        row.len()
    };
    let scale = 1.0 / (squares / width as f64 + f64::from(NORM_EPS)).sqrt();
    let weighted = row.iter().zip(weight);
    weighted.map(move |(&x, &w)| f64::from(x) * scale * f64::from(w))
}

/// A head with rotary embedding for its position, normed first if there are weights.
fn rotated<A: shapes::Attention>(
    head: &[f32],
    weight: Option<&Vec<f32>>,
    position: usize,
) -> Vec<f64> {
    let weight = weight.map_or(&[][..], Vec::as_slice);
    let (plain, normed) = head.split_at(head.len() - weight.len());
    let plain = plain.iter().map(|&x| f64::from(x));
    let mut head: Vec<f64> = plain.chain(norm(normed, weight)).collect();
    for pair in 0..A::PAIRS {
        let (cos, sin) = A::ROPE.rotation(position, pair, A::ROTARY_DIM);
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let (low, high) = (head[pair], head[pair + A::PAIRS]);
        head[pair] = low * cos - high * sin;
        head[pair + A::PAIRS] = high * cos + low * sin;
    }
    head
}

/// Keys as pages store them, by head.
fn rounded<A: shapes::Attention>(keys: &[f32]) -> Vec<Vec<f64>> {
    let rounded = as_cached::<A>(keys);
    let heads = rounded.chunks_exact(A::HEAD_DIM);
    heads
        .map(|head| head.iter().map(|&x| f64::from(x)).collect())
        .collect()
}

/// A sequence in which every row has the same query.
struct Sequence<A> {
    /// A query for each head, with a gate where the shape has gates.
    query: Vec<f32>,
    /// Keys, `[positions][KEYS]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    norms: Norms<Vec<f32>>,
    shape: PhantomData<A>,
}

impl<A: shapes::Attention> Sequence<A> {
    fn drawn(random: &mut Random, positions: usize) -> Sequence<A> {
        Sequence {
            query: random.bf16(A::QUERIES, 1.0),
            keys: random.bf16(positions * A::KEYS, 1.0),
            values: as_cached::<A>(&random.bf16(positions * A::KEYS, 1.0)).into_owned(),
            norms: Norms::draw::<A>(random),
            shape: PhantomData,
        }
    }

    fn positions(&self) -> usize {
        self.keys.len() / A::KEYS
    }

    /// The CPU's results at the `wanted` positions, and its normed and rotated keys.
    fn attended(&self, wanted: &[usize]) -> (Vec<Vec<f32>>, Vec<f32>) {
        let pages = self.positions().div_ceil(PAGE);
        let mut cpu = Cpu::default();
        let mut cache = Attend::<A>::kv_cache(&cpu, pages).expect("the CPU's memory can be taken");
        let (mut out, mut found) = (Tensor::default(), Vec::new());
        let stored = (0..pages).map(|page| self.store(&mut cpu, &mut cache, page));
        let (queries, keys): (Vec<_>, Vec<_>) = stored.collect();
        for &position in wanted {
            let (page, row) = (position / PAGE, position % PAGE);
            let mut query = Vec::new();
            let read = cpu.read(&queries[page], row..row + 1, &mut query);
            read.expect("the CPU's memory can be read");
            let query = Tensor::of(query.len(), query);
            let batch = batch(position..position + 1, pages);
            let sinks = self.norms.sinks();
            Attend::<A>::attend(&mut cpu, &query, &cache, sinks, &batch, &mut out);
            found.push(seen(&mut cpu, &out));
        }
        let rotated = keys.iter().flat_map(|keys| seen(&mut cpu, keys));
        (found, rotated.collect())
    }

    /// Stores the positions of a page, with queries and keys rotated for these positions.
    fn store(
        &self,
        cpu: &mut Cpu,
        cache: &mut <Cpu as Attend<A>>::KvCache,
        page: usize,
    ) -> (Tensor, Tensor) {
        let rows = page * PAGE..self.positions().min((page + 1) * PAGE);
        let width = A::KEYS;
        let of = |values: &[f32]| {
            let part = &values[rows.start * width..rows.end * width];
            Tensor::of(width, part.to_vec())
        };
        let (mut keys, values) = (of(&self.keys), of(&self.values));
        let mut queries = Tensor::of(self.query.len(), self.query.repeat(rows.len()));
        let norms = self.norms.each();
        let pages = self.positions().div_ceil(PAGE);
        let batch = batch(rows, pages);
        let (q, k) = (&mut queries, &mut keys);
        let values = beside::<A, _>(&values);
        Attend::<A>::store_kv(cpu, q, k, values, norms, cache, &batch);
        (queries, keys)
    }

    /// Normed and rotated keys by formula, `[positions][KV_HEADS]`.
    fn keys(&self) -> Vec<Vec<f64>> {
        let heads = self.keys.chunks_exact(A::HEAD_DIM).enumerate();
        let [_, weight] = self.norms.each();
        let rotate = |(at, head)| rotated::<A>(head, weight, at / A::KV_HEADS);
        heads.map(rotate).collect()
    }

    /// Values, normed where the shape norms them, `[positions][KV_HEADS]`; parts of `keys` where
    /// these are latents.
    fn values(&self, keys: &[Vec<f64>]) -> Vec<Vec<f64>> {
        if A::LATENT {
            let latent = |key: &Vec<f64>| key[A::ROTARY_DIM..].to_vec();
            return keys.iter().map(latent).collect();
        }
        let (heads, ones) = (
            self.values.chunks_exact(A::HEAD_DIM),
            vec![1.0; A::HEAD_DIM],
        );
        let normed = heads.map(|head| match A::VALUES_NORMED {
            true => norm(head, &ones).collect(),
            false => head.iter().map(|&x| f64::from(x)).collect(),
        });
        normed.collect()
    }

    /// Formula: `sum_j softmax_j(SCALE q . k[j]) v[j]` of every head over the positions that
    /// `position` sees, times `sigmoid(gate)` if the shape has gates; the softmax counts its sinks.
    fn formula(&self, keys: &[Vec<f64>], position: usize) -> Vec<f32> {
        let [of_q, _] = self.norms.each();
        let seen =
            (0..=position).skip(A::WINDOW.map_or(0, |window| (position + 1).max(window) - window));
        let (mut out, values) = (Vec::new(), self.values(keys).concat());
        for (head, query) in self.query.chunks_exact(A::QUERY).enumerate() {
            let (query, gate) = query.split_at(A::HEAD_DIM);
            let query = rotated::<A>(query, of_q, position);
            let at = |j: usize| j * A::KV_HEADS + head / A::GROUP;
            let weight = |j| {
                let dot: f64 = query.iter().zip(&keys[at(j)]).map(|(q, k)| q * k).sum();
                (dot * f64::from(A::SCALE)).exp()
            };
            let weights: Vec<f64> = seen.clone().map(weight).collect();
            let sink = self
                .norms
                .sinks()
                .map_or(0.0, |sinks| f64::from(sinks[head]).exp());
            let sum: f64 = weights.iter().sum::<f64>() + sink;
            for dim in 0..A::VALUE_DIM {
                let value = |j| values[at(j) * A::VALUE_DIM + dim];
                let parts = weights.iter().zip(seen.clone());
                let mixed: f64 = parts.map(|(weight, j)| weight * value(j)).sum();
                let gate = gate.get(dim).map_or(1.0, |&gate| sigmoid(gate));
                out.push((mixed / sum * gate) as f32);
            }
        }
        out
    }
}

pub(super) fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

/// The batch of one sequence's rows, with block table `0..pages`.
pub(super) fn batch(rows: std::ops::Range<usize>, pages: usize) -> Batch {
    let tokens = vec![0; rows.len()];
    let table: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    let mut batch = Batch::new(pages);
    let rows = SeqRows::of(Slot(0), rows.start, &tokens, &table);
    batch.fill(&[rows]).expect("the rows fit");
    batch
}
