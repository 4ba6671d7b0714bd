//! The choice of a drafter at the start, by what steps and predictions take.

use std::thread::sleep;
use std::time::Duration;

use super::drafts::Drafter;
use super::predict::MEASURED;
use super::speculate::Speculate;
use super::testing::simulator::{HashModel, VOCAB, engine};
use super::{Engine, Limits};
use step::PAGE;
use step::executor::{DeviceError, Drafted, Drafting, Executor, SeqRows, Slot, TokenId};
use step::testing::TINY;

const LIMITS: Limits = Limits {
    sequences: 2,
    snapshots: 3,
    window: None,
    drafts: 7,
    speculate: Speculate::Auto,
    queued: 1,
    pages: 4,
    prefill_tokens: PAGE,
    ..Limits::of(&TINY)
};

/// Time that nothing else here comes near.
const LONG: Duration = Duration::from_millis(25);
const SHORT: Duration = Duration::from_millis(1);

/// A model whose steps and predictions take the time that they are given.
struct Timed {
    model: HashModel<VOCAB>,
    predicts: bool,
    /// Whether it makes drafts ahead of the host.
    draws: bool,
    /// Times of a step's rows but the first, together, and of a prediction.
    more_rows: Duration,
    prediction: Duration,
    /// Added to the first of as many predictions after steps as are measured.
    cold: Duration,
    /// Rows, and states after drafts, of each step.
    steps: Vec<(usize, Vec<Slot>)>,
    /// Predictions after a step, each time.
    predictions: Vec<usize>,
}

impl Timed {
    fn predict_after(&mut self, depth: usize) {
        let first = self.predictions.len().is_multiple_of(MEASURED);
        sleep(self.prediction * depth as u32 + if first { self.cold } else { Duration::ZERO });
        self.predictions.push(depth);
    }
}

impl Executor for Timed {
    const VOCAB: usize = VOCAB;

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let count = rows[0].tokens.len();
        self.steps.push((count, rows[0].draft_states.to_vec()));
        sleep(
            SHORT
                + if count > 1 {
                    self.more_rows
                } else {
                    Duration::ZERO
                },
        );
        self.model.step(rows)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        self.model.logits(index)
    }

    fn predicts(&self) -> bool {
        self.predicts
    }

    fn predict(&mut self, next: &[TokenId], wanted: &[usize]) -> Result<(), DeviceError> {
        assert_eq!((next.len(), wanted), (1, &[0][..]));
        self.predict_after(1);
        Ok(())
    }

    fn predict_on(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        sleep(self.prediction);
        let depth = self.predictions.last_mut().expect("a prediction is before");
        assert_eq!(rows[0].start, *depth);
        *depth += 1;
        Ok(())
    }

    fn step_draft(&mut self, rows: &[SeqRows<'_>], by: &Drafting<'_>) -> Result<bool, DeviceError> {
        if self.draws {
            self.step(rows)?;
            self.predict_after(by.depth);
        }
        Ok(self.draws)
    }

    fn drafted(&mut self, _drafted: &mut Vec<Drafted>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.model.logits_of(rows, logits)
    }
}

/// An engine that has not chosen yet, of a model whose further rows and predictions take so long.
fn undecided(limits: Limits, [more_rows, prediction]: [Duration; 2]) -> Engine<Timed> {
    let timed = Timed {
        model: HashModel::new(&limits),
        predicts: true,
        draws: false,
        more_rows,
        prediction,
        cold: LONG,
        steps: Vec::new(),
        predictions: Vec::new(),
    };
    engine(limits, timed).1
}

/// An engine that has chosen.
fn chosen(limits: Limits, times: [Duration; 2]) -> Engine<Timed> {
    let mut engine = undecided(limits, times);
    engine.choose_drafter().unwrap();
    engine
}

fn predicts(engine: &Engine<Timed>) -> bool {
    matches!(engine.drafter, Drafter::Mtp)
}

#[test]
fn a_prediction_layer_drafts_where_it_can_pay() {
    let drafts = |times| predicts(&chosen(LIMITS, times));
    // The shortest of the measured times counts: the first ones are long here.
    assert!(drafts([Duration::ZERO; 2]));
    assert!(!drafts([Duration::ZERO, LONG]), "predictions take too long");
    assert!(!drafts([8 * LONG, Duration::ZERO]), "rows do");
}

#[test]
fn a_depth_that_is_asked_for_is_drafted_though_it_does_not_pay() {
    let asked = Limits {
        speculate: Speculate::Depth(2),
        ..LIMITS
    };
    assert!(predicts(&chosen(asked, [Duration::ZERO, LONG])));
}

/// Steps of so many rows, and of one, and after further ones predictions.
fn measured(engine: &Engine<Timed>, rows: usize) {
    let of = |rows: usize| {
        let first = LIMITS.sequences + LIMITS.snapshots;
        let draft_states = first..first + rows - 1;
        let draft_states = draft_states.map(|state| Slot(state as u32)).collect();
        vec![(rows, draft_states); MEASURED]
    };
    let steps: Vec<(usize, Vec<Slot>)> = [of(rows), of(1), of(1)].concat();
    assert_eq!(engine.executor.steps, steps);
    assert_eq!(engine.executor.predictions, [rows - 1; MEASURED]);
}

#[test]
fn steps_of_one_row_and_of_all_drafts_are_measured_and_all_predictions() {
    for (drafts, rows) in [(7, 8), (3, 4), (14, 8)] {
        measured(
            &chosen(Limits { drafts, ..LIMITS }, [Duration::ZERO; 2]),
            rows,
        );
    }
}

#[test]
fn drafts_that_the_device_makes_are_measured_as_it_makes_them() {
    for prediction in [Duration::ZERO, LONG] {
        let mut engine = undecided(LIMITS, [Duration::ZERO, prediction]);
        engine.executor.draws = true;
        engine.choose_drafter().unwrap();
        measured(&engine, 8);
        assert_eq!(predicts(&engine), prediction.is_zero());
    }
}

#[test]
fn nothing_is_measured_where_nothing_would_be_drafted() {
    let off = Limits {
        speculate: Speculate::Off,
        ..LIMITS
    };
    let no_room = Limits {
        drafts: 0,
        ..LIMITS
    };
    for limits in [off, no_room] {
        let engine = chosen(limits, [Duration::ZERO; 2]);
        assert!(!predicts(&engine) && engine.executor.steps.is_empty());
    }
}

#[test]
fn a_model_without_the_layer_drafts_by_earlier_tokens() {
    let mut engine = undecided(LIMITS, [Duration::ZERO; 2]);
    engine.executor.predicts = false;
    engine.choose_drafter().unwrap();
    assert!(!predicts(&engine) && engine.executor.steps.is_empty());
}
