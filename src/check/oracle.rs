//! The device against the CPU's operations over the real weights, part by part.
//!
//! A text is run through the model on the device, its end token by token, and all hidden states are
//! recorded. The CPU then computes the layers, loading one at a time, in two ways: in a chain of
//! its own, and with each part fed the device's input, so that a part's error is not mixed with
//! errors before it, and the part is named. Attention, the only part that depends on positions, is
//! compared over a longer text as well.

use std::fmt;
use std::time::Instant;

use model::ops::{Batch, Dense, Device, LOGITS_ROWS_MAX, cap};
use model::shapes::PageGroup;
use model::target::{HIDDEN, LAYERS, PAGE, PREFILL_TOKENS, Role, Shape, Site, VOCAB, blocks_at};
use model::weights::{Checkpoint, Layout, WeightsError};
use step::executor::{BlockTable, DeviceError, Executor, PageId, SeqRows, Slot, TokenId};
use step::ranking::weight_of;

use super::session::{most_likely, window_ring};
use super::text_check::TEXT_IS_WHOLE;
use model::backend::cpu::{Cpu, Tensor};
use model::{HookPoint, Layer, Loader, Memory, ROUTED, ROUTER_LOGITS, Runner, Runs, Scratch};

/// Largest number of tokens that are compared: enough to visit every expert of a layer of 256 and
/// to cross pages and cells. Builds that run only a part of the start's text compare fewer.
pub const ORACLE_TOKENS: usize = if TEXT_IS_WHOLE { 256 } else { 8 };
/// Most tokens of the longer text: rotary embedding that wraps at position 1,024 fails there.
const FAR_TOKENS: usize = if TEXT_IS_WHOLE { 1536 } else { 16 };
/// Number of tokens at the end of the text that the device runs one by one.
const DECODED: usize = 64;
/// Number of consecutive rows whose errors are averaged: as many as are decoded, so that a fault of
/// decode steps or of far positions alone is not averaged away.
const AVERAGED: usize = DECODED;
/// Largest mean error of a part's contribution. Rounding alone was measured on an H200: 6e-4 for
/// recurrent mixers and experts, 2.5e-3 for attention over keys and values in BF16. A part that is
/// off by one percent has 1e-2.
const MEAN_WITHIN: f64 = 5e-3;
/// Largest error of one row of a part's contribution, if the row visits the same experts; measured:
/// 3.7e-3.
const ROW_WITHIN: f64 = 4.0 * MEAN_WITHIN;

/// Norm-wise relative errors of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// The largest mean of [`AVERAGED`] consecutive rows.
    pub mean: f64,
    pub largest: f64,
}

impl Errors {
    /// Errors of `rows`, which are ordered by position.
    fn of(rows: &[f64]) -> Errors {
        let mean = |rows: &[f64]| rows.iter().sum::<f64>() / rows.len() as f64;
        Errors {
            mean: rows.rchunks(AVERAGED).map(mean).fold(0.0, nan_max),
            largest: rows.iter().copied().fold(0.0, nan_max),
        }
    }

    /// Errors with the larger mean and the larger row of both.
    fn or(self, other: Errors) -> Errors {
        Errors {
            mean: nan_max(self.mean, other.mean),
            largest: nan_max(self.largest, other.largest),
        }
    }

    /// A comparison by `>` would let NaN pass, which is not within any bound.
    fn within(self) -> bool {
        self.mean <= MEAN_WITHIN && self.largest <= ROW_WITHIN
    }
}

/// The larger of both numbers; NaN if either is.
fn nan_max(a: f64, b: f64) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false => a.max(b),
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1e} (row {:.1e})", self.mean, self.largest)
    }
}

/// Errors of the parts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerFinding {
    pub layer: usize,
    /// Errors of the mixer's addition, of the router's logits, and of the experts' addition.
    pub mixer: Errors,
    pub router: Errors,
    pub experts: Errors,
    /// Number of rows that choose other experts on the device, because the router's logits of two
    /// experts are nearly equal: they differ by no more than `router` says. `experts` leaves the
    /// rows out.
    pub ties: usize,
    /// Number of experts that at least one row visits.
    pub visited: usize,
    /// Errors of the hidden states after the layer, against the CPU's own chain.
    pub chain: Errors,
}

impl LayerFinding {
    pub fn passed(&self) -> bool {
        let parts = [self.mixer, self.router, self.experts];
        parts.into_iter().all(Errors::within)
    }
}

impl fmt::Display for LayerFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "ok  " } else { "FAIL" };
        let [mixer_kind, _] = blocks_at(Site::Layer(self.layer));
        let kind = mixer_kind.map_or("none", Shape::name);
        let LayerFinding {
            layer,
            mixer,
            router,
            experts,
            ties,
            visited,
            chain,
        } = self;
        write!(f, "{verdict} layer {layer:>2} {kind:<9} {mixer}, ")?;
        match ROUTED[0] {
            0 => write!(f, "mlp {experts}")?,
            count => write!(
                f,
                "router {router}, {visited} of {count} experts {experts}, {ties} ties"
            )?,
        }
        write!(f, "; hidden states {:.1e} off so far", chain.mean)
    }
}

/// Errors of all parts of a model.
#[derive(Clone, Copy, Debug)]
pub struct OracleReport {
    pub tokens: usize,
    /// Number of tokens that the device ran one by one.
    pub decoded: usize,
    /// Errors of the embedding, and of the head's logits over the device's last hidden states.
    pub embedding: Errors,
    pub head: Errors,
    pub layers_failed: usize,
    /// Mean Kullback-Leibler divergence of the device's predictions from the CPU's, nats.
    pub kld: f64,
    /// Number of positions at which device and CPU predict the same most likely token.
    pub same_top: usize,
    /// Mean negative log-likelihood of the text on the device and on the CPU, nats per token.
    pub nats: [f64; 2],
}

impl OracleReport {
    pub fn passed(&self) -> bool {
        self.layers_failed == 0 && self.embedding.within() && self.head.within()
    }
}

impl fmt::Display for OracleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OracleReport {
            tokens,
            decoded,
            embedding,
            head,
            layers_failed,
            kld,
            same_top,
            nats: [device, cpu],
        } = self;
        let verdict = if self.passed() { "ok  " } else { "FAIL" };
        let share = 100.0 * *same_top as f64 / *tokens as f64;
        write!(
            f,
            "{verdict} {layers_failed} of {LAYERS} layers are wrong; embedding {embedding}, head \
             {head}\n\
             {verdict} {tokens} positions, {decoded} one by one: {device:.4} nats per token on the \
             device, {cpu:.4} on the CPU; KLD {kld:.2e}, same most likely token {share:.2} %"
        )
    }
}

/// Reason why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    #[error("{0}")]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Weights(#[from] WeightsError),
}

/// Compares the idle model of `runner` with `reference`'s model of the weights of `checkpoint`,
/// over the first [`ORACLE_TOKENS`] of `tokens`. `on_layer` gets the comparison of each layer,
/// and the seconds that it took.
pub fn oracle<B: Runs>(
    runner: &mut Runner<B>,
    reference: Cpu,
    checkpoint: &Checkpoint,
    tokens: &[TokenId],
    mut on_layer: impl FnMut(&LayerFinding, f64),
) -> Result<OracleReport, OracleError> {
    let far = &tokens[..tokens.len().min(FAR_TOKENS)];
    let tokens = &tokens[..tokens.len().min(ORACLE_TOKENS)];
    let device = Trace::of_device(runner, tokens)?;
    let far = Far::of_device(runner, far)?;
    let mut cpu = Reference::new(reference, tokens)?;
    let embedding = cpu.embed(checkpoint, &device)?;
    let mut layers_failed = 0;
    for layer in 0..LAYERS {
        let begun = Instant::now();
        let found = cpu.layer(checkpoint, layer, &device, &far)?;
        layers_failed += usize::from(!found.passed());
        on_layer(&found, begun.elapsed().as_secs_f64());
    }
    let ends = cpu.head(checkpoint, tokens, &device)?;
    Ok(OracleReport {
        tokens: tokens.len(),
        decoded: decoded(tokens),
        embedding,
        head: ends.head,
        layers_failed,
        kld: ends.kld,
        same_top: ends.same_top,
        nats: ends.nats,
    })
}

fn decoded(tokens: &[TokenId]) -> usize {
    DECODED.min(tokens.len() / 2)
}

/// Results of the device for the text.
#[derive(Default)]
struct Trace {
    /// Hidden states `[tokens, HIDDEN]` after the embedding, then after each mixer and after its
    /// experts.
    states: Vec<Vec<f32>>,
    /// Logits of each layer's router, `[tokens, ROUTER_LOGITS]`.
    routers: Vec<Vec<f32>>,
    /// Logits of the model, `[tokens, VOCAB]`.
    logits: Vec<f32>,
}

impl Trace {
    fn of_device<B: Runs>(
        runner: &mut Runner<B>,
        tokens: &[TokenId],
    ) -> Result<Trace, DeviceError> {
        let mut trace = Trace {
            states: vec![Vec::new(); 1 + 2 * LAYERS],
            routers: vec![Vec::new(); LAYERS],
            logits: Vec::new(),
        };
        steps(tokens, |rows| trace.step(runner, rows))?;
        Ok(trace)
    }

    fn step<B: Runs>(
        &mut self,
        runner: &mut Runner<B>,
        rows: SeqRows<'_>,
    ) -> Result<(), DeviceError> {
        let (mut state, mut layer) = (0, 0);
        runner.step_watched(&[rows], |taker, part| {
            taker.take(|s| &s.stream.residual, HIDDEN, &mut self.states[state])?;
            state += 1;
            if part == HookPoint::FeedForward {
                taker.take_router(&mut self.routers[layer])?;
                layer += 1;
            }
            Ok(())
        })?;
        let all: Vec<usize> = (0..rows.tokens.len()).collect();
        let mut logits = Vec::new();
        for rows in all.chunks(LOGITS_ROWS_MAX) {
            runner.logits_of(rows, &mut logits)?;
            self.logits.extend_from_slice(&logits);
        }
        Ok(())
    }
}

/// Results of the device for the longer text.
struct Far<'a> {
    tokens: &'a [TokenId],
    /// Hidden states before and after each layer's mixer, `[tokens, HIDDEN]`; empty for layers
    /// without attention.
    states: Vec<[Vec<f32>; 2]>,
}

impl<'a> Far<'a> {
    fn of_device<B: Runs>(
        runner: &mut Runner<B>,
        tokens: &'a [TokenId],
    ) -> Result<Far<'a>, DeviceError> {
        let mut states = vec![[const { Vec::new() }; 2]; LAYERS];
        steps(tokens, |rows| {
            let mut layer = 0;
            runner.step_watched(&[rows], |taker, part| {
                let layout = Layout::whole();
                let of_layer = |layer: usize| layout.has(Role::Key, Site::Layer(layer));
                if part == HookPoint::Mixer && of_layer(layer) {
                    taker.take(|s| &s.stream.residual, HIDDEN, &mut states[layer][1])?;
                }
                layer += usize::from(part == HookPoint::FeedForward);
                if part != HookPoint::Mixer && of_layer(layer) {
                    taker.take(|s| &s.stream.residual, HIDDEN, &mut states[layer][0])?;
                }
                Ok(())
            })
        })?;
        Ok(Far { tokens, states })
    }
}

/// Runs `tokens` in prefill steps, and the last ones one by one.
fn steps(
    tokens: &[TokenId],
    mut step: impl FnMut(SeqRows<'_>) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let prompt = tokens.len() - decoded(tokens);
    let pages = pages(0, tokens.len());
    let window = window_ring(0, tokens.len(), PREFILL_TOKENS);
    let mut done = 0;
    while done < tokens.len() {
        let end = match done < prompt {
            true => prompt.min(done + PREFILL_TOKENS),
            false => done + 1,
        };
        step(SeqRows {
            window: BlockTable::whole(&window),
            ..SeqRows::of(Slot(0), done, &tokens[done..end], &pages)
        })?;
        done = end;
    }
    Ok(())
}

fn pages(index: usize, tokens: usize) -> Vec<PageId> {
    let each = tokens.div_ceil(PAGE);
    let pages = index * each..(index + 1) * each;
    pages.map(|page| PageId(page as u32)).collect()
}

/// The reference's computation: the first rows of each step are a chain of its own; further rows
/// are fed the device's hidden states.
struct Reference {
    ops: Cpu,
    s: Scratch<Cpu>,
    batch: Batch,
    /// Hidden states of the reference's own chain, `[tokens, HIDDEN]`.
    own: Vec<f32>,
    host: Vec<f32>,
}

impl Reference {
    fn new(ops: Cpu, tokens: &[TokenId]) -> Result<Reference, OracleError> {
        let [own, fed] = [0, 1].map(|index| pages(index, tokens.len()));
        let mut batch = Batch::new(own.len() + fed.len());
        let rows = |slot, pages| SeqRows::of(Slot(slot), 0, tokens, pages);
        batch.fill(&[rows(0, &own), rows(1, &fed)])?;
        Ok(Reference {
            s: Scratch::new(&ops, Layout::whole().without_prediction())?,
            host: ops.host(0)?,
            own: Vec::new(),
            ops,
            batch,
        })
    }

    fn embed(&mut self, checkpoint: &Checkpoint, device: &Trace) -> Result<Errors, OracleError> {
        let table = checkpoint.matrix(Role::Embedding, Site::Whole);
        let table = self.ops.load_matrix(&[table])?;
        self.ops
            .embed(&table, &self.batch, &mut self.s.stream.residual);
        let found = self.residual()?;
        let half = found.len() / 2;
        self.own = found[..half].to_vec();
        let zero = vec![0.0; half];
        let rows = row_errors(&device.states[0], &found[half..], &zero, HIDDEN);
        Ok(Errors::of(&rows))
    }

    fn layer(
        &mut self,
        checkpoint: &Checkpoint,
        index: usize,
        device: &Trace,
        far: &Far<'_>,
    ) -> Result<LayerFinding, OracleError> {
        let pages = self
            .batch
            .page_count(PageGroup::Whole)
            .max(far.tokens.len().div_ceil(PAGE));
        let mut layer = Layer::load(&mut Loader {
            ops: &mut self.ops,
            checkpoint,
            memory: Memory::Own(pages),
            site: Site::Layer(index),
        })?;
        let [before, between, after] = [0, 1, 2].map(|part| &device.states[2 * index + part][..]);
        self.feed(before);
        layer.mix(&mut self.ops, &mut self.s, &self.batch);
        let mixer = self.compare(before, between)?;
        self.feed(between);
        layer.feed(&mut self.ops, &mut self.s, &self.batch);
        let experts = self.compare(between, after)?;
        let routing = self.routing(&device.routers[index])?;
        let same: Vec<f64> = experts
            .iter()
            .zip(&routing.same)
            .filter_map(|(error, same)| same.then_some(*error))
            .collect();
        let zero = vec![0.0; self.own.len()];
        let far = self.far_mixer(&mut layer, far, index)?;
        Ok(LayerFinding {
            layer: index,
            mixer: Errors::of(&mixer).or(Errors::of(&far)),
            router: Errors::of(&routing.errors),
            experts: Errors::of(&same),
            ties: routing.ties,
            visited: routing.visited,
            chain: Errors::of(&row_errors(after, &self.own, &zero, HIDDEN)),
        })
    }

    /// Compares the mixer of an attention layer over the longer text; skips other layers.
    fn far_mixer(
        &mut self,
        layer: &mut Layer<Cpu>,
        far: &Far<'_>,
        index: usize,
    ) -> Result<Vec<f64>, OracleError> {
        let [before, after] = &far.states[index];
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let table = pages(0, far.tokens.len());
        let mut batch = Batch::new(table.len());
        batch.fill(&[SeqRows::of(Slot(0), 0, far.tokens, &table)])?;
        self.s.stream.residual = Tensor::of(HIDDEN, before.clone());
        layer.mix(&mut self.ops, &mut self.s, &batch);
        self.ops
            .read(&self.s.stream.residual, 0..batch.rows(), &mut self.host)?;
        Ok(row_errors(after, &self.host, before, HIDDEN))
    }

    /// Fills the step with the hidden states of the reference's own chain, then with the device's.
    fn feed(&mut self, device: &[f32]) {
        let states = [&self.own[..], device].concat();
        self.s.stream.residual = Tensor::of(HIDDEN, states);
    }

    /// Advances the reference's own chain, and compares the changes since `before` of fed rows and
    /// of the device's, row by row.
    fn compare(&mut self, before: &[f32], device: &[f32]) -> Result<Vec<f64>, OracleError> {
        let found = self.residual()?;
        let half = found.len() / 2;
        self.own.copy_from_slice(&found[..half]);
        Ok(row_errors(device, &found[half..], before, HIDDEN))
    }

    fn residual(&mut self) -> Result<Vec<f32>, OracleError> {
        let rows = 0..self.batch.rows();
        self.ops
            .read(&self.s.stream.residual, rows, &mut self.host)?;
        Ok(self.host.to_vec())
    }

    /// Compares the router's logits of the fed rows, and the experts chosen by these logits;
    /// without a router all rows count as equal.
    fn routing(&mut self, device: &[f32]) -> Result<Routing, OracleError> {
        let rows = self.batch.rows();
        let Some(router) = self.s.router() else {
            return Ok(Routing {
                same: vec![true; rows / 2],
                ..Routing::default()
            });
        };
        self.ops.read(router, rows / 2..rows, &mut self.host)?;
        let zero = vec![0.0; self.host.len()];
        let errors = row_errors(device, &self.host, &zero, ROUTER_LOGITS);
        let mut visited = vec![false; ROUTED[0]];
        let mut routing = Routing {
            errors,
            ..Routing::default()
        };
        let both = device
            .chunks(ROUTER_LOGITS)
            .zip(self.host.chunks(ROUTER_LOGITS));
        for (device, cpu) in both {
            let chosen = chosen(cpu);
            chosen.iter().for_each(|&expert| visited[expert] = true);
            routing.same.push(chosen == self::chosen(device));
        }
        routing.ties = routing.same.iter().filter(|same| !**same).count();
        routing.visited = visited.iter().filter(|visited| **visited).count();
        Ok(routing)
    }

    /// Compares the predictions of both chains, and the head on the device's hidden states.
    fn head(
        &mut self,
        checkpoint: &Checkpoint,
        tokens: &[TokenId],
        device: &Trace,
    ) -> Result<Ends, OracleError> {
        let head = match checkpoint.layout().has(Role::Head, Site::Whole) {
            true => Role::Head,
            false => Role::Embedding,
        };
        let head = checkpoint.matrix(head, Site::Whole);
        let head = self.ops.load_matrix(&[head])?;
        let norm = checkpoint.vector(Role::FinalNorm, Site::Whole);
        let norm = self.ops.load_vector(&norm)?;
        self.feed(&device.states[2 * LAYERS]);
        self.ops
            .rms_norm(&self.s.stream.residual, &norm, &mut self.s.stream.x, None);
        let (mut ends, mut errors, zero) = (Ends::default(), Vec::new(), vec![0.0; VOCAB]);
        for position in 0..tokens.len() {
            self.batch.want(vec![position, tokens.len() + position])?;
            self.ops
                .select(&self.s.stream.x, &self.batch, &mut self.s.last);
            self.ops.linear(&self.s.last, &head, &mut self.s.logits);
            cap(&mut self.ops, &mut self.s.logits);
            self.ops.read(&self.s.logits, 0..2, &mut self.host)?;
            let (own, fed) = self.host.split_at(VOCAB);
            let device = &device.logits[position * VOCAB..][..VOCAB];
            errors.extend(row_errors(device, fed, &zero, VOCAB));
            ends.add(device, own, tokens.get(position + 1).copied());
        }
        ends.head = Errors::of(&errors);
        Ok(ends.mean_of(tokens.len()))
    }
}

/// Comparison of a layer's routing.
#[derive(Default)]
struct Routing {
    errors: Vec<f64>,
    /// For each row, whether device and CPU choose the same experts.
    same: Vec<bool>,
    ties: usize,
    visited: usize,
}

/// Indices of the experts chosen for a row.
fn chosen(logits: &[f32]) -> Vec<usize> {
    let top = step::ranking::most_likely(&logits[..ROUTED[0]], ROUTED[1]);
    let mut chosen: Vec<usize> = top.iter().map(|&(expert, _)| expert as usize).collect();
    chosen.sort_unstable();
    chosen
}

/// Sums of errors of predictions, after the last layer.
#[derive(Default)]
struct Ends {
    head: Errors,
    kld: f64,
    same_top: usize,
    nats: [f64; 2],
}

impl Ends {
    /// Adds a position: logits of the device and of the CPU's own chain, and the text's next token.
    fn add(&mut self, device: &[f32], cpu: &[f32], next: Option<TokenId>) {
        let [of_device, of_cpu] = [device, cpu].map(log_normaliser);
        let pairs = device.iter().zip(cpu);
        let divergence = pairs.map(|(&device, &cpu)| {
            let log_p = f64::from(cpu) - of_cpu;
            log_p.exp() * (log_p - (f64::from(device) - of_device))
        });
        self.kld += divergence.sum::<f64>();
        self.same_top += usize::from(most_likely(device) == most_likely(cpu));
        if let Some(next) = next {
            self.nats[0] -= f64::from(device[next as usize]) - of_device;
            self.nats[1] -= f64::from(cpu[next as usize]) - of_cpu;
        }
    }

    fn mean_of(mut self, tokens: usize) -> Ends {
        self.kld /= tokens as f64;
        let predicted = (tokens - 1).max(1) as f64;
        self.nats = self.nats.map(|nats| nats / predicted);
        self
    }
}

fn log_normaliser(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + weight_of(logits, max).ln()
}

/// For each row of `width`: the norm of `device - cpu` over the norm of `device - before`.
fn row_errors(device: &[f32], cpu: &[f32], before: &[f32], width: usize) -> Vec<f64> {
    let rows = device.chunks(width).zip(cpu.chunks(width));
    let rows = rows.zip(before.chunks(width));
    let errors = rows.map(|((device, cpu), before)| match distance(device, cpu) {
        // A row without a difference has no error, even where the layer adds nothing.
        0.0 => 0.0,
        off => off / distance(device, before),
    });
    errors.collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
    squares.sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests;
