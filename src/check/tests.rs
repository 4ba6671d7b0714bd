//! The model against itself in other batches.
//!
//! Runs for whatever target the build names, when the repository holds its weights.

use std::ops::Range;
use std::sync::Arc;

use crate::bits::moves::{self, Moved};
use crate::{Chooser, Extent, Rule, Trial, Tried, bit_rules};
use model::backend::cpu::Cpu;
use model::ops::LOGITS_ROWS_MAX;
#[cfg(all(has = "mlp", not(has = "both")))]
use model::target::Role;
use model::target::{
    self, HIDDEN, KV_PAGES, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, STATES, Shape, Site, VOCAB,
    blocks_at,
};
use model::testing::{parts, runner};
use model::weights::{self, LAYER_GROWTH};
use model::{HookPoint, Plan, Runner, Taker};
use step::executor::{BlockTable, Draw, Executor, PageId, SeqRows, Slot, States, TokenId};
use step::random::Random;

/// A sequence by hand: any slot, any pages.
pub(crate) struct Sequence {
    slot: Slot,
    pages: Vec<PageId>,
    tokens: Vec<TokenId>,
    pub(crate) done: usize,
}

impl Sequence {
    pub(crate) fn rows(&self, count: usize) -> SeqRows<'_> {
        let tokens = &self.tokens[self.done..self.done + count];
        SeqRows::of(self.slot, self.done, tokens, &self.pages)
    }
}

pub(crate) fn alone(tokens: &[TokenId]) -> Sequence {
    let pages = (0..tokens.len().div_ceil(PAGE) as u32)
        .map(PageId)
        .collect();
    Sequence {
        slot: Slot(0),
        pages,
        tokens: tokens.to_vec(),
        done: 0,
    }
}

/// Logits after every position, token by token.
fn decode(runner: &mut Runner<Cpu>, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut sequence = alone(tokens);
    let mut all = Vec::new();
    for _ in tokens {
        runner.step(&[sequence.rows(1)]).unwrap();
        sequence.done += 1;
        all.push(runner.logits(0).unwrap().to_vec());
    }
    all
}

/// Deals the sequences' rows into random steps on random slots and pages; every row of logits must
/// have the bits that it has alone, token by token.
#[test]
fn bits_do_not_depend_on_batch_chunk_slot_or_page() {
    const SEQUENCES: usize = 3;
    const TOKENS: usize = 80;
    let Some(mut runner) = runner(3) else { return };
    let mut random = Random::new(11);
    let texts = (0..SEQUENCES).map(|_| random.tokens(0..VOCAB, TOKENS));
    let texts: Vec<Vec<TokenId>> = texts.collect();
    let expected: Vec<_> = texts
        .iter()
        .map(|tokens| decode(&mut runner, tokens))
        .collect();
    for _ in 0..3 {
        let mut sequences = deal(&texts, &mut random);
        while sequences.iter().any(|sequence| sequence.done < TOKENS) {
            random_step(&mut runner, &mut sequences, &expected, &mut random);
        }
    }
}

#[test]
fn the_rules_of_a_self_test_hold() {
    let Some(mut runner) = runner(3) else { return };
    let extent = Extent {
        sequences: 3,
        steps: 1,
        cuts: 2,
    };
    let mut trial = Recorder {
        random: Random::new(5),
        done: 0,
        found: Vec::new(),
    };
    bit_rules(&mut runner, extent, &mut trial).unwrap();
    assert_eq!(trial.done, extent.trials());
    assert!(trial.found.iter().all(Tried::passed), "{:?}", trial.found);
    let rules = 5 + usize::from(target::DRAFTS > 0);
    assert_eq!(trial.found.len(), rules);
}

/// Each layer's part of what is saved is needed, the prediction layer's and the convolution's tail
/// among them: with zeros instead of it other bits come.
#[test]
fn what_is_saved_of_a_sequence_has_every_layer() {
    let Some(mut runner) = runner(1) else { return };
    let mut trial = Recorder {
        random: Random::new(9),
        done: 0,
        found: Vec::new(),
    };
    let (moved, bytes) = (Moved::drawn(&mut trial), runner.piece_bytes().unwrap());
    moves::take_host_memory(&mut runner).unwrap();
    let wanted = moved.left(&mut runner).unwrap();
    let (begun, len) = moved.saved(&mut runner).unwrap();
    let saved = runner.host_memory(0..len).to_vec();
    let mut goes_on = |parts: &[(usize, &Range<usize>)]| {
        let memory = runner.host_memory(0..len);
        memory.copy_from_slice(&saved);
        let spoil =
            |(piece, part): &(usize, &Range<usize>)| memory[*piece..][(*part).clone()].fill(0);
        parts.iter().for_each(spoil);
        moved.restored(&mut runner, &begun).unwrap() == wanted
    };
    assert!(goes_on(&[]));
    let [of_page, of_window, of_state] = parts::<Cpu>(weights::Layout::whole());
    let state = if of_state.is_empty() { 0 } else { bytes.state };
    let count = (len - state) / (bytes.page + bytes.window);
    assert!(!of_page.is_empty());
    for (first, each, count, parts) in [
        (0, bytes.page, count, of_page),
        (count * bytes.page, bytes.window, count, of_window),
        (len - state, state, 1, of_state),
    ] {
        for part in &parts {
            let pieces = (0..count).map(|piece| (first + piece * each, part));
            let pieces: Vec<_> = pieces.collect();
            assert!(!goes_on(&pieces), "{part:?} from {first} on");
        }
    }
}

/// Trial of rules that records its findings.
struct Recorder {
    random: Random,
    done: usize,
    found: Vec<Tried>,
}

impl Trial for Recorder {
    fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }

    fn trying(&mut self, done: usize, of: usize) {
        assert!(done == self.done && done < of);
        self.done += 1;
    }

    fn tell(&mut self, tried: Tried) {
        self.found.push(tried);
    }

    fn chooser(&mut self, _: &Rule) -> (Draw, Chooser) {
        unreachable!("the CPU ranks nothing, so that it drafts nothing")
    }
}

/// Puts the texts on random slots and pages.
fn deal(texts: &[Vec<TokenId>], random: &mut Random) -> Vec<Sequence> {
    let mut slots: Vec<u32> = (0..MAX_SEQUENCES as u32).collect();
    let mut pages: Vec<u32> = (0..KV_PAGES as u32).collect();
    let mut take = |from: &mut Vec<u32>| from.swap_remove(random.below(from.len()));
    let sequences = texts.iter().map(|tokens| Sequence {
        slot: Slot(take(&mut slots)),
        pages: (0..tokens.len().div_ceil(PAGE))
            .map(|_| PageId(take(&mut pages)))
            .collect(),
        tokens: tokens.clone(),
        done: 0,
    });
    sequences.collect()
}

fn random_step(
    runner: &mut Runner<Cpu>,
    sequences: &mut [Sequence],
    expected: &[Vec<Vec<f32>>],
    random: &mut Random,
) {
    let mut chosen = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let left = sequence.tokens.len() - sequence.done;
        let count = [0, 1, 1, 1 + random.below(30)][random.below(4)].min(left);
        if count > 0 {
            chosen.push((index, count));
        }
    }
    let rows: Vec<SeqRows<'_>> = chosen
        .iter()
        .map(|&(i, count)| sequences[i].rows(count))
        .collect();
    runner.step(&rows).unwrap();
    for (row, &(index, count)) in chosen.iter().enumerate() {
        let logits = runner.logits(row).unwrap();
        sequences[index].done += count;
        let alone = &expected[index][sequences[index].done - 1];
        let differing = logits
            .iter()
            .zip(alone)
            .filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(
            differing.count(),
            0,
            "sequence {index}, {} tokens",
            sequences[index].done
        );
    }
}

/// Logits of rows inside of chunks have the bits that they have token by token.
#[test]
fn bits_of_rows_inside_a_chunk_are_those_of_a_last_row() {
    const TOKENS: usize = PAGE + 9;
    let Some(mut runner) = runner(3) else { return };
    let mut random = Random::new(5);
    let tokens = random.tokens(0..VOCAB, TOKENS);
    let expected = decode(&mut runner, &tokens);
    for chunk in [7, PAGE, TOKENS.min(PREFILL_TOKENS)] {
        let mut sequence = alone(&tokens);
        let mut logits = Vec::new();
        while sequence.done < TOKENS {
            let count = chunk.min(TOKENS - sequence.done);
            runner.step(&[sequence.rows(count)]).unwrap();
            let rows: Vec<usize> = (0..count).collect();
            for rows in rows.chunks(1 + random.below(LOGITS_ROWS_MAX)) {
                runner.logits_of(rows, &mut logits).unwrap();
                for (row, logits) in rows.iter().zip(logits.chunks_exact(VOCAB)) {
                    let alone = &expected[sequence.done + row];
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                    assert!(
                        logits.iter().zip(alone).all(same),
                        "chunk {chunk}, row {row}"
                    );
                }
            }
            sequence.done += count;
            let last = runner.logits(0).unwrap();
            assert!(
                last == expected[sequence.done - 1],
                "the step's own, chunk {chunk}"
            );
        }
    }
}

#[test]
fn logits_of_rows_that_did_not_run_are_refused() {
    let Some(mut runner) = runner(1) else { return };
    let mut logits = Vec::new();
    runner.step(&[alone(&[1, 2]).rows(2)]).unwrap();
    assert!(runner.logits_of(&[0, 1], &mut logits).is_ok());
    assert!(runner.logits_of(&[2], &mut logits).is_err());
    let many: Vec<usize> = vec![0; LOGITS_ROWS_MAX + 1];
    assert!(runner.logits_of(&many, &mut logits).is_err());
}

#[test]
fn threads_do_not_change_bits() {
    let (Some(mut one), Some(mut three)) = (runner(1), runner(3)) else {
        return;
    };
    let tokens: Vec<TokenId> = (0..70).map(|i| (i * 37 % VOCAB) as TokenId).collect();
    assert_eq!(decode(&mut one, &tokens), decode(&mut three, &tokens));
}

#[test]
fn rows_out_of_range_are_refused() {
    let Some(mut runner) = runner(1) else { return };
    let mut refuse = |rows: SeqRows<'_>| runner.step(&[rows]).unwrap_err().to_string();
    let pages = &[PageId(0)][..];
    let good = SeqRows::of(Slot(0), 0, &[0], pages);
    assert!(
        refuse(SeqRows {
            tokens: &[VOCAB as u32],
            ..good
        })
        .contains("vocabulary")
    );
    assert!(
        refuse(SeqRows {
            tokens: &[],
            ..good
        })
        .contains("context")
    );
    assert!(
        refuse(SeqRows {
            start: target::MAX_CONTEXT,
            ..good
        })
        .contains("context")
    );
    assert!(
        refuse(SeqRows {
            start: PAGE,
            ..good
        })
        .contains("pages")
    );
    assert!(
        refuse(SeqRows {
            pages: &[PageId(KV_PAGES as u32)],
            window: BlockTable::whole(&[PageId(KV_PAGES as u32)]),
            ..good
        })
        .contains("page")
    );
    assert!(
        refuse(SeqRows {
            states: States::own(Slot(STATES as u32)),
            ..good
        })
        .contains("slot")
    );
}

/// Hidden states after a part of the forward pass.
struct Left {
    part: HookPoint,
    /// Hidden states.
    states: Vec<f32>,
    /// Whether a router's logits are there.
    routed: bool,
}

/// Hidden states after each part of a model's forward pass over a page of tokens.
fn left_of_parts(checkpoint: &weights::Checkpoint) -> Vec<Left> {
    left_by(Cpu::new(2), checkpoint)
}

/// [`left_of_parts`] with contributions of blocks computed apart, multiplied, then added.
fn left_of_multiplied(factor: f32) -> Vec<Left> {
    let mut cpu = Cpu::new(2);
    cpu.contributions = Some(factor);
    left_by(cpu, &weights::open_seeded(Arc::default()))
}

fn left_by(cpu: Cpu, checkpoint: &weights::Checkpoint) -> Vec<Left> {
    let plan = Plan::largest::<Cpu>(checkpoint.layout());
    let mut runner = Runner::load(cpu, checkpoint, &plan).unwrap();
    let tokens: Vec<_> = (0..PAGE).map(|at| (at * 7919 % VOCAB) as TokenId).collect();
    let mut left = Vec::new();
    let look = |taker: &mut Taker<'_, Cpu>, part| {
        let (mut states, mut router) = (Vec::new(), Vec::new());
        taker.take(|s| &s.stream.residual, HIDDEN, &mut states)?;
        taker.take_router(&mut router)?;
        left.push(Left {
            part,
            states,
            routed: !router.is_empty(),
        });
        Ok(())
    };
    let sequence = alone(&tokens);
    runner.step_watched(&[sequence.rows(PAGE)], look).unwrap();
    left
}

/// A block of each layer, or none, and the hidden states before and after it.
fn blocks_run(left: &[Left]) -> impl Iterator<Item = (Site, Option<Shape>, &[Left])> {
    let layers = (0..target::LAYERS).map(Site::Layer);
    let blocks = layers.flat_map(|site| blocks_at(site).map(|block| (site, block)));
    let blocks = blocks.zip(left.windows(2));
    blocks.map(|((site, block), pair)| (site, block, pair))
}

#[test]
fn a_layer_adds_by_the_blocks_that_it_has_alone() {
    let left = left_of_parts(&weights::open_seeded(Arc::default()));
    assert_eq!(left.len(), 1 + 2 * target::LAYERS);
    for (site, block, pair) in blocks_run(&left) {
        let adds = pair[0].states != pair[1].states;
        assert_eq!(adds, block.is_some(), "{site:?} {:?}", pair[1].part);
        let routes = block.is_some_and(|block| block.name() == "moe");
        assert!(!routes || pair[1].routed, "{site:?}");
        let feeds = pair[1].part == HookPoint::FeedForward;
        assert!(!feeds || pair[1].routed == routes, "{site:?}");
    }
}

/// A block of several sums, as experts beside another, adds them in another order where they are
/// computed apart.
#[test]
fn contributions_computed_apart_add_up_to_the_same_states() {
    let whole = left_of_parts(&weights::open_seeded(Arc::default()));
    for (whole, apart) in whole.iter().zip(left_of_multiplied(1.0)) {
        let pairs = whole.states.iter().zip(&apart.states);
        let off = pairs.map(|(whole, apart)| (whole - apart).abs());
        assert!(off.fold(0.0, f32::max) < 1e-4, "{:?}", whole.part);
    }
}

/// Rows may be multiplied by a factor of their layer, in all elements.
#[test]
fn a_block_reaches_the_residual_stream_by_its_contribution_alone() {
    let left = left_of_multiplied(0.0);
    for part in &left {
        let rows = part
            .states
            .chunks(HIDDEN)
            .zip(left[0].states.chunks(HIDDEN));
        for (row, embedding) in rows {
            let factor = row[0] / embedding[0];
            let mut pairs = row.iter().zip(embedding);
            let is_multiple = |(x, e): (&f32, &f32)| (x - factor * e).abs() <= 1e-5 * x.abs();
            assert!(pairs.all(is_multiple), "{:?}", part.part);
        }
    }
}

/// An MLP among layers of other forms, by its formula in F64.
#[cfg(all(has = "mlp", not(has = "both")))]
#[test]
fn a_layer_with_an_mlp_adds_what_the_formula_gives() {
    let checkpoint = weights::open_seeded(Arc::default());
    let left = left_of_parts(&checkpoint);
    let of_mlp = blocks_run(&left).filter(|(_, block, _)| *block == Some(Shape::Mlp));
    for (site, _, pair) in of_mlp {
        let norm = checkpoint.vector(Role::PostNorm, site).read_f32().unwrap();
        let [gate, up, down] = [Role::MlpGate, Role::MlpUp, Role::MlpDown]
            .map(|role| checkpoint.matrix(role, site).read_f32().unwrap());
        let rows = pair[0]
            .states
            .chunks(HIDDEN)
            .zip(pair[1].states.chunks(HIDDEN));
        for (before, after) in rows {
            let wanted = mlp(before, &norm, [&gate, &up, &down]);
            let off = wanted
                .iter()
                .zip(after)
                .map(|(w, a)| (w - f64::from(*a)).abs());
            assert!(off.fold(0.0, f64::max) < 1e-4, "{site:?}");
        }
    }
}

/// `x + down(silu(gate(n)) * up(n))`, `n` being `x` normed.
#[cfg(all(has = "mlp", not(has = "both")))]
fn mlp(x: &[f32], norm: &[f32], [gate, up, down]: [&[f32]; 3]) -> Vec<f64> {
    let product = |matrix: &[f32], row: &[f64]| -> Vec<f64> {
        let rows = matrix.chunks(row.len());
        let dot = |w: &[f32]| w.iter().zip(row).map(|(w, x)| f64::from(*w) * x).sum();
        rows.map(dot).collect()
    };
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = (mean + f64::from(target::NORM_EPS)).sqrt();
    let normed = x.iter().zip(norm);
    let normed: Vec<_> = normed
        .map(|(x, w)| f64::from(*x) / scale * f64::from(*w))
        .collect();
    let gated = product(gate, &normed).into_iter().zip(product(up, &normed));
    let inner: Vec<_> = gated.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    let added = product(down, &inner).into_iter().zip(x);
    added.map(|(added, x)| added + f64::from(*x)).collect()
}

/// Routers of a drawn checkpoint count on it: their experts' popularity is relative to the size of
/// the hidden state.
#[test]
fn layers_of_a_drawn_checkpoint_add_little_to_the_hidden_state() {
    let left = left_of_parts(&weights::open_seeded(Arc::default()));
    let whole = left.iter().filter(|left| left.part != HookPoint::Mixer);
    let states: Vec<_> = whole.map(|left| &left.states).collect();
    for (layer, pair) in states.windows(2).enumerate() {
        let added = pair[0]
            .iter()
            .zip(pair[1])
            .map(|(before, after)| after - before);
        let square = added.map(|x| x * x).sum::<f32>() / pair[0].len() as f32;
        println!(
            "{}: layer {layer} adds {:.2} of what is counted on",
            target::MODEL,
            square / LAYER_GROWTH
        );
        assert!(
            square > LAYER_GROWTH / 4.0 && square < LAYER_GROWTH * 2.0,
            "layer {layer}: {square}"
        );
    }
}
