//! Routing, the routed experts with rows grouped by expert, and the shared expert.

use std::marker::PhantomData;

use crate::ops::{ExpertSource, Route};
use crate::shapes;
use crate::weights::WeightsError;
use step::executor::DeviceError;

use super::elementwise::gated;
use super::lanes::{LANES, exp, sigmoid};
use super::matrix::{Matrix, Product, linear};
use super::nvfp4;
use super::pool::Pool;
use super::share::Shared;
use super::{Cpu, TASK_WORK, TASKS_PER_THREAD, Tensor, bytes_of, split};

/// The experts of one layer, the shared one last.
pub struct Experts<E> {
    /// Gate rows, if the shape has a gate, then up rows, `[INPUTS I, WIDTH]` of each expert.
    pub gate_up: Vec<Matrix>,
    /// Down matrix `[WIDTH, I]` of each expert.
    pub down: Vec<Matrix>,
    /// Whether rows are rounded to NVFP4 before a product with an expert's matrix.
    pub rounds: bool,
    shape: PhantomData<E>,
}

impl<E: shapes::Experts> Experts<E> {
    /// An empty list of experts; `nvfp4`: the checkpoint has their weights in NVFP4.
    pub fn stored_as(nvfp4: bool) -> Experts<E> {
        Experts {
            gate_up: Vec::new(),
            down: Vec::new(),
            rounds: E::ROWS_NVFP4 && nvfp4,
            shape: PhantomData,
        }
    }

    /// Rounds rows `[.., width]` before a product, if experts multiply rounded rows.
    fn round(&self, rows: &mut [f32], width: usize) {
        if self.rounds {
            rows.chunks_exact_mut(width).for_each(nvfp4::round);
        }
    }
}

/// Routing of a step: experts `[rows][PER_TOKEN]`, most likely first, weights `[rows][ASSIGNED]`.
pub struct Routing<E> {
    /// Probabilities of the row that is being routed.
    probabilities: Vec<f32>,
    /// Probabilities with corrections, by which experts are compared; minus infinity once chosen.
    choices: Vec<f32>,
    pub(super) experts: Vec<u32>,
    pub(super) weights: Vec<f32>,
    shape: PhantomData<E>,
}

impl<E> Default for Routing<E> {
    fn default() -> Routing<E> {
        Routing {
            probabilities: Vec::new(),
            choices: Vec::new(),
            experts: Vec::new(),
            weights: Vec::new(),
            shape: PhantomData,
        }
    }
}

impl<E: shapes::Experts> Routing<E> {
    /// Chooses experts for each row of `logits [rows, LOGITS]`; `per_expert` as in `Route::route`.
    pub fn fill(&mut self, logits: &[f32], per_expert: Option<&[f32]>) {
        self.experts.clear();
        self.weights.clear();
        let rows = logits.chunks_exact(E::LOGITS);
        rows.for_each(|row| self.push(row, per_expert));
    }

    fn push(&mut self, logits: &[f32], per_expert: Option<&[f32]>) {
        self.probabilities.resize(E::COUNT, 0.0);
        let probabilities = &mut self.probabilities[..];
        match E::SIGMOID {
            true => sigmoids(&logits[..E::COUNT], probabilities),
            false => softmax(&logits[..E::COUNT], probabilities),
        }
        self.choices.clone_from(&self.probabilities);
        if let Some(corrections) = per_expert.filter(|_| E::SIGMOID) {
            let choices = self.choices.iter_mut().zip(corrections);
            choices.for_each(|(choice, correction)| *choice += correction);
        }
        let mut total = if E::SIGMOID { TOTAL_EPS } else { 0.0 };
        let first = self.weights.len();
        for _ in 0..E::PER_TOKEN {
            let best = most_likely(&self.choices);
            let probability = self.probabilities[best];
            total += probability;
            self.experts.push(best as u32);
            self.weights.push(probability);
            self.choices[best] = f32::NEG_INFINITY;
        }
        let weights = self.weights[first..].iter_mut();
        weights.for_each(|weight| *weight = *weight / total * E::WEIGHT_SCALE);
        if let Some(scales) = per_expert.filter(|_| E::SCALED) {
            let chosen = self.experts[self.experts.len() - E::PER_TOKEN..].iter();
            let weights = self.weights[first..].iter_mut();
            weights
                .zip(chosen)
                .for_each(|(weight, &expert)| *weight *= scales[expert as usize]);
        }
        let shared = logits[E::COUNT..].iter();
        self.weights.extend(shared.map(|&logit| sigmoid(logit)));
        self.weights.resize(first + E::ASSIGNED, 1.0);
    }
}

impl<E: shapes::Experts> Route<E> for Cpu {
    type Experts = Experts<E>;
    type Routing = Routing<E>;

    fn load_experts(&mut self, parts: &[ExpertSource<'_>]) -> Result<Experts<E>, WeightsError> {
        assert_eq!(parts.len(), E::ALL);
        let all = parts
            .iter()
            .flat_map(|part| part.inputs.iter().chain([&part.down]));
        self.budget.check(bytes_of(all))?;
        let mut experts = Experts::stored_as(parts[0].down.format().is_nvfp4());
        for ExpertSource { inputs, down } in parts {
            experts.gate_up.push(self.matrix(inputs)?);
            experts.down.push(self.matrix(&[*down])?);
        }
        Ok(experts)
    }

    fn routing(&self) -> Result<Routing<E>, DeviceError> {
        Ok(Routing::default())
    }

    fn route(&mut self, logits: &Tensor, per_expert: Option<&Vec<f32>>, routing: &mut Routing<E>) {
        routing.fill(&logits.values, per_expert.map(|per_expert| &per_expert[..]));
    }

    fn experts(&mut self, x: &Tensor, routing: &Routing<E>, weights: &Experts<E>, to: &mut Tensor) {
        let (pool, scratch) = (&mut self.pool, &mut self.experts);
        experts(pool, scratch, x, routing, weights, to);
    }
}

/// Term added to the sum of sigmoids before weights are divided by the sum.
const TOTAL_EPS: f32 = 1e-20;

fn sigmoids(logits: &[f32], out: &mut [f32]) {
    for (out, logit) in out.iter_mut().zip(logits) {
        *out = sigmoid(*logit);
    }
}

fn softmax(logits: &[f32], out: &mut [f32]) {
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

/// Index of the largest probability, the lowest index on a tie.
fn most_likely(probabilities: &[f32]) -> usize {
    let better = |best: usize, index: usize| match probabilities[index] > probabilities[best] {
        true => index,
        false => best,
    };
    (1..probabilities.len()).fold(0, better)
}

/// Rows of a step regrouped by expert. A sorted row is one row at one of its experts.
#[derive(Default)]
pub struct Scratch {
    /// First sorted row of each expert, then the number of sorted rows.
    starts: Vec<usize>,
    /// Sorted row of each row at its expert of each rank, `[row][rank]`.
    sorted_row_of: Vec<usize>,
    /// Inputs, `[sorted row][WIDTH]`.
    x: Vec<f32>,
    /// Gates and ups, `[sorted row][INPUTS I]`.
    gate_up: Vec<f32>,
    /// Activations, `[sorted row][I]`.
    act: Vec<f32>,
    /// Outputs of experts, `[sorted row][WIDTH]`.
    y: Vec<f32>,
    tasks: Vec<Task>,
    shared: SharedExpert,
}

/// Intermediate and final results of the shared expert for each row.
#[derive(Default)]
struct SharedExpert {
    /// Inputs, `[row][WIDTH]`.
    x: Vec<f32>,
    /// Gates and ups, `[row][2 I]`.
    gate_up: Vec<f32>,
    /// Activations, `[row][I]`.
    act: Vec<f32>,
    /// Outputs, `[row][WIDTH]`.
    y: Vec<f32>,
}

impl SharedExpert {
    fn run<E: shapes::Experts>(&mut self, pool: &mut Pool, x: &Tensor, experts: &Experts<E>) {
        let width = E::SHARED;
        self.x.clone_from(&x.values);
        experts.round(&mut self.x, E::WIDTH);
        self.gate_up.resize(x.rows * 2 * width, 0.0);
        self.act.resize(x.rows * width, 0.0);
        self.y.resize(x.rows * E::WIDTH, 0.0);
        linear(pool, &self.x, &experts.gate_up[E::COUNT], &mut self.gate_up);
        let rows = self.act.chunks_exact_mut(width);
        for (act, gate_up) in rows.zip(self.gate_up.chunks_exact(2 * width)) {
            activate::<E>(gate_up, act);
        }
        experts.round(&mut self.act, width);
        linear(pool, &self.act, &experts.down[E::COUNT], &mut self.y);
    }
}

/// Activation of a row, which the expert's down matrix multiplies; without a gate a function of up
/// alone.
fn activate<E: shapes::Experts>(gate_up: &[f32], act: &mut [f32]) {
    let (gate, up) = (&gate_up[..act.len()], &gate_up[gate_up.len() - act.len()..]);
    gated(E::ACTIVATION, gate, up, act);
}

/// Range of panels of one expert's matrix whose products one task computes.
struct Task {
    expert: usize,
    panels: std::ops::Range<usize>,
}

fn experts<E: shapes::Experts>(
    pool: &mut Pool,
    s: &mut Scratch,
    x: &Tensor,
    routing: &Routing<E>,
    experts: &Experts<E>,
    to: &mut Tensor,
) {
    if E::LATENT {
        to.shape(x.rows, E::WIDTH).fill(0.0);
    }
    assert_eq!((to.rows, to.width), (x.rows, E::WIDTH));
    s.group(x, routing);
    experts.round(&mut s.x, E::WIDTH);
    let sorted = routing.experts.len();
    s.gate_up.resize(sorted * E::INPUTS * E::INTERMEDIATE, 0.0);
    s.act.resize(sorted * E::INTERMEDIATE, 0.0);
    s.y.resize(sorted * E::WIDTH, 0.0);
    products(
        pool,
        &mut s.tasks,
        &s.starts,
        &experts.gate_up,
        &s.x,
        &mut s.gate_up,
    );
    let parts = s.act.chunks_exact_mut(E::INTERMEDIATE);
    for (act, gate_up) in parts.zip(s.gate_up.chunks_exact(E::INPUTS * E::INTERMEDIATE)) {
        activate::<E>(gate_up, act);
    }
    experts.round(&mut s.act, E::INTERMEDIATE);
    products(
        pool,
        &mut s.tasks,
        &s.starts,
        &experts.down,
        &s.act,
        &mut s.y,
    );
    if E::HAS_SHARED > 0 {
        s.shared.run(pool, x, experts);
    }
    combine(pool, s, routing, &mut to.values);
}

impl Scratch {
    /// Sorts rows by expert; rows of one expert stay in order.
    fn group<E: shapes::Experts>(&mut self, x: &Tensor, routing: &Routing<E>) {
        self.starts.clear();
        self.starts.resize(E::COUNT + 1, 0);
        for &expert in &routing.experts {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..E::COUNT {
            self.starts[expert + 1] += self.starts[expert];
        }
        let mut next = self.starts[..E::COUNT].to_vec();
        self.sorted_row_of.clear();
        self.x.resize(routing.experts.len() * E::WIDTH, 0.0);
        for (index, &expert) in routing.experts.iter().enumerate() {
            let sorted = next[expert as usize];
            next[expert as usize] += 1;
            self.sorted_row_of.push(sorted);
            let row = x.row(index / E::PER_TOKEN);
            self.x[sorted * E::WIDTH..][..E::WIDTH].copy_from_slice(row);
        }
    }
}

/// `out[row] = matrices[expert of row] x[row]`, rows sorted by expert.
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
        let (w, rows) = (&matrices[*expert], starts[*expert]..starts[expert + 1]);
        let x = &x[rows.start * w.k..rows.end * w.k];
        let product = Product {
            x,
            w,
            n: w.n,
            out: &out,
            out_start: rows.start * w.n,
        };
        // SAFETY: tasks differ in expert, and so in rows of the output, or in panels.
        unsafe { product.run(panels.clone()) };
    });
}

/// Divides the products of all experts that have rows into tasks of about equal size.
fn plan(pool: &Pool, tasks: &mut Vec<Task>, starts: &[usize], shape: &Matrix) {
    let work = |expert: usize| (starts[expert + 1] - starts[expert]) * shape.k * LANES;
    let experts = starts.len() - 1;
    let total: usize = (0..experts)
        .map(|expert| work(expert) * shape.panels())
        .sum();
    let piece = TASK_WORK.max(total / (pool.threads() * TASKS_PER_THREAD));
    tasks.clear();
    for expert in (0..experts).filter(|&expert| work(expert) > 0) {
        let step = (piece / work(expert)).max(1);
        let cuts = (0..shape.panels()).step_by(step);
        let panels = cuts.map(|start| start..shape.panels().min(start + step));
        tasks.extend(panels.map(|panels| Task { expert, panels }));
    }
}

/// `to[row] += sum over the row's experts of weight * y`, in the order of the routing.
fn combine<E: shapes::Experts>(pool: &mut Pool, s: &Scratch, routing: &Routing<E>, to: &mut [f32]) {
    let rows = to.len() / E::WIDTH;
    let to = Shared::new(to);
    split(pool, rows, E::WIDTH * E::ASSIGNED, |rows| {
        let mut sum = vec![0.0; E::WIDTH];
        for row in rows {
            sum.fill(0.0);
            for rank in 0..E::ASSIGNED {
                let weight = routing.weights[row * E::ASSIGNED + rank];
                let y = match rank < E::PER_TOKEN {
                    true => &s.y[s.sorted_row_of[row * E::PER_TOKEN + rank] * E::WIDTH..],
                    false => &s.shared.y[row * E::WIDTH..],
                };
                let pairs = sum.iter_mut().zip(y);
                pairs.for_each(|(sum, y)| *sum += weight * y);
            }
            // SAFETY: each row belongs to one task.
            let to = unsafe { to.range(row * E::WIDTH..(row + 1) * E::WIDTH) };
            let pairs = to.iter_mut().zip(&sum);
            pairs.for_each(|(to, sum)| *to += sum);
        }
    });
}
