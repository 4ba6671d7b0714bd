//! Trials of equal bits through the engine over the whole model, where it is of the repository.

use engine::testing::equivalence::{
    Chunks, DRAFT_WAYS, Desk, Drafted, Prefixes, chunks, drafted, prefix, shared_lengths, spread,
};
use model::target::{DRAFTS, FACTS, MODEL, SNAPSHOTS};
use model::testing::{Hosted, runner};
use step::testing::few_or_many;

type Model = Desk<Hosted>;

/// An engine over the model; none if the repository does not hold its weights.
fn desk() -> Option<Model> {
    // Each core has a desk of its own.
    let runner = Hosted(runner(1)?);
    Some(Desk::with_tiers(Model::limits(&FACTS, SNAPSHOTS), runner))
}

fn is_there() -> bool {
    desk().is_some()
}

fn some_desk() -> Model {
    desk().expect("it was there before")
}

/// Prompts over caches, at least all lengths once.
const PREFIXES: u64 = few_or_many(72, 20_016);

#[test]
fn what_is_kept_of_a_prompt_changes_no_bit() {
    assert!(PREFIXES.is_multiple_of(shared_lengths().len() as u64));
    if is_there() {
        let found: Prefixes = spread(PREFIXES, some_desk, prefix);
        found.report(MODEL);
    }
}

#[test]
fn chunks_change_no_bit() {
    // Around the ends of pages and steps; at length every one.
    let few = [1, 64, 65, 191, 256, 577];
    let every: Vec<usize> = (1..=800).collect();
    let lengths = match few_or_many(0, 1) {
        0 => &few[..],
        _ => &every[..],
    };
    if is_there() {
        let trial = |desk: &mut Model, number, found: &mut Chunks| {
            chunks(desk, lengths[number as usize], found);
        };
        let found: Chunks = spread(lengths.len() as u64, some_desk, trial);
        found.report(MODEL);
    }
}

#[test]
fn drafts_change_no_bit() {
    if DRAFTS > 0 && is_there() {
        let found: Drafted = spread(few_or_many(1, 250) * DRAFT_WAYS, some_desk, drafted);
        found.report(MODEL);
    }
}
