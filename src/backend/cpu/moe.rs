//! Routing, the routed experts with rows grouped by expert, and the shared expert.

use crate::target::{
    EXPERT_INTERMEDIATE, EXPERTS, EXPERTS_PER_TOKEN, EXPERTS_ROWS_NVFP4, HIDDEN,
    SHARED_INTERMEDIATE,
};

use super::elementwise::silu_mul;
use super::lanes::{LANES, exp, sigmoid};
use super::matrix::{Matrix, Product, linear};
use super::nvfp4;
use super::pool::Pool;
use super::share::Shared;
use super::{TASK_WORK, TASKS_PER_THREAD, Tensor, split};

/// Experts that a row visits, the shared one last.
const TURNS: usize = EXPERTS_PER_TOKEN + 1;

/// The experts of one layer, the shared one last.
#[derive(Default)]
pub struct Experts {
    /// Gate rows, then up rows, `[2 I, H]` of each expert.
    pub gate_up: Vec<Matrix>,
    /// `[H, I]` of each expert.
    pub down: Vec<Matrix>,
    /// Whether what they multiply is rounded to NVFP4 first.
    pub rounds: bool,
}

impl Experts {
    /// None yet; `nvfp4` says whether the checkpoint has them so.
    pub fn stored_as(nvfp4: bool) -> Experts {
        Experts {
            rounds: EXPERTS_ROWS_NVFP4 && nvfp4,
            ..Experts::default()
        }
    }

    /// Rounds rows `[.., width]` that are to be multiplied.
    fn round(&self, rows: &mut [f32], width: usize) {
        if self.rounds {
            rows.chunks_exact_mut(width).for_each(nvfp4::round);
        }
    }
}

/// Experts `[rows][EXPERTS_PER_TOKEN]`, most likely first, and weights `[rows][TURNS]`.
#[derive(Default)]
pub struct Routing {
    pub(super) experts: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

impl Routing {
    /// Chooses for each row of `logits [rows, EXPERTS + 1]`.
    pub fn fill(&mut self, logits: &[f32]) {
        self.experts.clear();
        self.weights.clear();
        let rows = logits.chunks_exact(EXPERTS + 1);
        rows.for_each(|row| self.push(row));
    }

    fn push(&mut self, logits: &[f32]) {
        let mut probabilities = [0.0; EXPERTS];
        softmax(&logits[..EXPERTS], &mut probabilities);
        let mut total = 0.0;
        let first = self.weights.len();
        for _ in 0..EXPERTS_PER_TOKEN {
            let best = most_likely(&probabilities);
            total += probabilities[best];
            self.experts.push(best as u32);
            self.weights.push(probabilities[best]);
            probabilities[best] = -1.0;
        }
        self.weights[first..]
            .iter_mut()
            .for_each(|weight| *weight /= total);
        self.weights.push(sigmoid(logits[EXPERTS]));
    }
}

fn softmax(logits: &[f32], out: &mut [f32; EXPERTS]) {
    let max = logits
        .iter()
        .fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
    let mut sum = 0.0;
    for (out, logit) in out.iter_mut().zip(logits) {
        *out = exp(logit - max);
        sum += *out;
    }
    out.iter_mut().for_each(|out| *out /= sum);
}

/// Index of the largest, the lowest one on a tie.
fn most_likely(probabilities: &[f32; EXPERTS]) -> usize {
    let better = |best: usize, index: usize| match probabilities[index] > probabilities[best] {
        true => index,
        false => best,
    };
    (1..EXPERTS).fold(0, better)
}

/// Rows of a step regrouped by expert. A place is a row's turn at one of its experts.
#[derive(Default)]
pub struct Scratch {
    /// First place of each expert, and the end.
    starts: Vec<usize>,
    /// Place of each `[row][rank]`.
    place_of: Vec<usize>,
    /// `[place][HIDDEN]`.
    x: Vec<f32>,
    /// `[place][2 I]`.
    gate_up: Vec<f32>,
    /// `[place][I]`.
    act: Vec<f32>,
    /// `[place][HIDDEN]`.
    y: Vec<f32>,
    tasks: Vec<Task>,
    shared: SharedExpert,
}

/// What the shared expert makes of each row.
#[derive(Default)]
struct SharedExpert {
    /// `[row][HIDDEN]`.
    x: Vec<f32>,
    /// `[row][2 I]`.
    gate_up: Vec<f32>,
    /// `[row][I]`.
    act: Vec<f32>,
    /// `[row][HIDDEN]`.
    y: Vec<f32>,
}

impl SharedExpert {
    fn run(&mut self, pool: &mut Pool, x: &Tensor, experts: &Experts) {
        const I: usize = SHARED_INTERMEDIATE;
        self.x.clone_from(&x.values);
        experts.round(&mut self.x, HIDDEN);
        self.gate_up.resize(x.rows * 2 * I, 0.0);
        self.act.resize(x.rows * I, 0.0);
        self.y.resize(x.rows * HIDDEN, 0.0);
        linear(pool, &self.x, &experts.gate_up[EXPERTS], &mut self.gate_up);
        let rows = self.act.chunks_exact_mut(I);
        for (act, gate_up) in rows.zip(self.gate_up.chunks_exact(2 * I)) {
            silu_mul(gate_up, act);
        }
        experts.round(&mut self.act, I);
        linear(pool, &self.act, &experts.down[EXPERTS], &mut self.y);
    }
}

/// Some panels of one expert's matrix.
struct Task {
    expert: usize,
    panels: std::ops::Range<usize>,
}

/// See `Ops::experts`.
pub fn experts(
    pool: &mut Pool,
    s: &mut Scratch,
    x: &Tensor,
    routing: &Routing,
    experts: &Experts,
    residual: &mut Tensor,
) {
    assert_eq!((residual.rows, residual.width), (x.rows, HIDDEN));
    s.group(x, routing);
    experts.round(&mut s.x, HIDDEN);
    let places = routing.experts.len();
    s.gate_up.resize(places * 2 * EXPERT_INTERMEDIATE, 0.0);
    s.act.resize(places * EXPERT_INTERMEDIATE, 0.0);
    s.y.resize(places * HIDDEN, 0.0);
    products(
        pool,
        &mut s.tasks,
        &s.starts,
        &experts.gate_up,
        &s.x,
        &mut s.gate_up,
    );
    let parts = s.act.chunks_exact_mut(EXPERT_INTERMEDIATE);
    for (act, gate_up) in parts.zip(s.gate_up.chunks_exact(2 * EXPERT_INTERMEDIATE)) {
        silu_mul(gate_up, act);
    }
    experts.round(&mut s.act, EXPERT_INTERMEDIATE);
    products(
        pool,
        &mut s.tasks,
        &s.starts,
        &experts.down,
        &s.act,
        &mut s.y,
    );
    s.shared.run(pool, x, experts);
    combine(pool, s, routing, &mut residual.values);
}

impl Scratch {
    /// Sorts rows by expert, rows in order within an expert.
    fn group(&mut self, x: &Tensor, routing: &Routing) {
        self.starts.clear();
        self.starts.resize(EXPERTS + 1, 0);
        for &expert in &routing.experts {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..EXPERTS {
            self.starts[expert + 1] += self.starts[expert];
        }
        let mut next = [0; EXPERTS];
        next.copy_from_slice(&self.starts[..EXPERTS]);
        self.place_of.clear();
        self.x.resize(routing.experts.len() * HIDDEN, 0.0);
        for (index, &expert) in routing.experts.iter().enumerate() {
            let place = next[expert as usize];
            next[expert as usize] += 1;
            self.place_of.push(place);
            let row = x.row(index / EXPERTS_PER_TOKEN);
            self.x[place * HIDDEN..][..HIDDEN].copy_from_slice(row);
        }
    }
}

/// `out[place] = matrices[expert of place] x[place]`.
fn products(
    pool: &mut Pool,
    tasks: &mut Vec<Task>,
    starts: &[usize],
    matrices: &[Matrix],
    x: &[f32],
    out: &mut [f32],
) {
    plan(pool, tasks, starts, &matrices[0]);
    let out = Shared::new(out);
    let tasks = &*tasks;
    pool.run(tasks.len(), |task| {
        let Task { expert, panels } = &tasks[task];
        let (w, places) = (&matrices[*expert], starts[*expert]..starts[expert + 1]);
        let x = &x[places.start * w.k..places.end * w.k];
        let product = Product {
            x,
            w,
            out: &out,
            out_start: places.start * w.n,
        };
        // SAFETY: tasks differ in expert, and so in places, or in panels.
        unsafe { product.run(panels.clone()) };
    });
}

/// Cuts the work of all experts that have rows into pieces of about equal size.
fn plan(pool: &Pool, tasks: &mut Vec<Task>, starts: &[usize], shape: &Matrix) {
    let work = |expert: usize| (starts[expert + 1] - starts[expert]) * shape.k * LANES;
    let total: usize = (0..EXPERTS)
        .map(|expert| work(expert) * shape.panels())
        .sum();
    let piece = TASK_WORK.max(total / (pool.threads() * TASKS_PER_THREAD));
    tasks.clear();
    for expert in (0..EXPERTS).filter(|&expert| work(expert) > 0) {
        let step = (piece / work(expert)).max(1);
        let cuts = (0..shape.panels()).step_by(step);
        let panels = cuts.map(|start| start..shape.panels().min(start + step));
        tasks.extend(panels.map(|panels| Task { expert, panels }));
    }
}

/// `residual[row] += sum over turns of weight * y`, in the order of the turns.
fn combine(pool: &mut Pool, s: &Scratch, routing: &Routing, residual: &mut [f32]) {
    let rows = residual.len() / HIDDEN;
    let residual = Shared::new(residual);
    split(pool, rows, HIDDEN * TURNS, |rows| {
        let mut sum = [0.0; HIDDEN];
        for row in rows {
            sum.fill(0.0);
            for turn in 0..TURNS {
                let weight = routing.weights[row * TURNS + turn];
                let y = match turn {
                    EXPERTS_PER_TOKEN => &s.shared.y[row * HIDDEN..],
                    _ => &s.y[s.place_of[row * EXPERTS_PER_TOKEN + turn] * HIDDEN..],
                };
                let pairs = sum.iter_mut().zip(y);
                pairs.for_each(|(sum, y)| *sum += weight * y);
            }
            // SAFETY: each row belongs to one task.
            let residual = unsafe { residual.range(row * HIDDEN..(row + 1) * HIDDEN) };
            let pairs = residual.iter_mut().zip(&sum);
            pairs.for_each(|(residual, sum)| *residual += sum);
        }
    });
}
