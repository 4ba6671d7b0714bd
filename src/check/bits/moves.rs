//! A sequence that is saved, evicted and restored to other pages continues with the bits of one
//! that was left alone, and so does the prediction layer.

use std::thread;

use super::{Sequence, Trace, Trial, Tried, pages, prefill, prompt, seen};
use model::ops::CELL;
use model::target::{MAX_SEQUENCES, PAGE, PREFILL_TOKENS};
use model::{Runner, Runs};
use step::executor::{DeviceError, Executor, TokenId};
use step::transfer::{Piece, Transfer};

/// Number of greedy tokens after the prompt.
const STEPS: usize = 2;
/// Length of the prompt, tokens: its last page is not full.
const PROMPT: usize = match CELL + CELL / 3 {
    length if length < PREFILL_TOKENS => length,
    _ => PREFILL_TOKENS,
};

/// A sequence, another one of equal length on its slot and pages, and the first on other pages.
pub(crate) struct Moved {
    own: Sequence,
    other: Sequence,
    elsewhere: Sequence,
}

/// Compares one sequence that is saved and restored with itself left alone.
pub(super) fn moves<B: Runs>(
    runner: &mut Runner<B>,
    trial: &mut impl Trial,
) -> Result<(), DeviceError> {
    let case = format!("{PROMPT} tokens");
    let mut compared = Tried::nothing(&case, "saved and restored elsewhere = left");
    let moved = Moved::drawn(trial);
    take_host_memory(runner)?;
    let wanted = moved.left(runner)?;
    let (begun, _) = moved.saved(runner)?;
    compared.add(&moved.restored(runner, &begun)?, &wanted);
    trial.tell(compared);
    Ok(())
}

/// Reserves host memory for the pieces of one sequence.
pub(crate) fn take_host_memory<B: Runs>(runner: &mut Runner<B>) -> Result<(), DeviceError> {
    let bytes = runner.piece_bytes().expect("pieces can be copied");
    let pages = pages(0, PROMPT + STEPS).len();
    runner.take_host_memory(pages * (bytes.page + bytes.window) + bytes.state)
}

impl Moved {
    pub(crate) fn drawn(trial: &mut impl Trial) -> Moved {
        let [own, other] = [0, 1].map(|_| prompt(trial, PROMPT));
        let sequence = |slot: usize, first, prompt| {
            Sequence::new(slot % MAX_SEQUENCES, pages(first, PROMPT + STEPS), prompt)
        };
        let after = (PROMPT + STEPS).div_ceil(PAGE);
        Moved {
            elsewhere: sequence(1, after, own.clone()),
            own: sequence(0, 0, own),
            other: sequence(0, 0, other),
        }
    }

    /// Logits of the sequence when it is neither saved nor evicted.
    pub(crate) fn left<B: Runs>(&self, runner: &mut Runner<B>) -> Result<Trace, DeviceError> {
        let mut trace = begin(runner, &self.own)?;
        go_on(runner, &self.own, &mut trace)?;
        Ok(trace)
    }

    /// Begins the sequence, saves its pieces, and runs the other one on its slot and pages. Returns
    /// the logits so far, and the bytes of the pieces.
    pub(crate) fn saved<B: Runs>(
        &self,
        runner: &mut Runner<B>,
    ) -> Result<(Trace, usize), DeviceError> {
        let begun = begin(runner, &self.own)?;
        let done = runner.transferred()?;
        let (transfers, bytes) = transfers(runner, &self.own);
        runner.save(&transfers)?;
        wait(runner, done + transfers.len() as u64)?;
        let mut others = begin(runner, &self.other)?;
        go_on(runner, &self.other, &mut others)?;
        Ok((begun, bytes))
    }

    /// Logits of the sequence when it is restored to other pages after `begun`.
    pub(crate) fn restored<B: Runs>(
        &self,
        runner: &mut Runner<B>,
        begun: &Trace,
    ) -> Result<Trace, DeviceError> {
        let (mut trace, done) = (begun.clone(), runner.transferred()?);
        let (transfers, _) = transfers(runner, &self.elsewhere);
        runner.restore(&transfers)?;
        wait(runner, done + transfers.len() as u64)?;
        go_on(runner, &self.elsewhere, &mut trace)?;
        Ok(trace)
    }
}

/// Copies of all pieces of a sequence, pages first, and their bytes together.
fn transfers<B: Runs>(runner: &Runner<B>, sequence: &Sequence) -> (Vec<Transfer>, usize) {
    let bytes = runner.piece_bytes().expect("pieces can be copied");
    let pages = sequence.pages.iter().map(|page| Piece::Page(*page));
    let window = sequence.pages.iter().map(|page| Piece::Window(*page));
    let window = window.filter(|_| bytes.window > 0);
    let recurs = bytes.state > 0 && bytes.window == 0;
    let state = recurs.then_some(Piece::State(sequence.slot));
    let mut at = 0;
    let transfer = |piece| {
        let transfer = Transfer { piece, at };
        at += bytes.of(piece);
        transfer
    };
    let transfers = pages.chain(window).chain(state).map(transfer).collect();
    (transfers, at)
}

/// Waits until `wanted` transfers are done.
fn wait<B: Runs>(runner: &mut Runner<B>, wanted: u64) -> Result<(), DeviceError> {
    while runner.transferred()? < wanted {
        thread::yield_now();
    }
    Ok(())
}

/// Prefills the prompt, with a prediction after it.
fn begin<B: Runs>(runner: &mut Runner<B>, sequence: &Sequence) -> Result<Trace, DeviceError> {
    let mut trace = vec![prefill(runner, sequence, || PREFILL_TOKENS)?];
    let mut next = sequence.prompt[1..].to_vec();
    next.push(trace[0].0);
    predict(runner, &next, &mut trace)?;
    Ok(trace)
}

/// Decodes greedy tokens after `begin`, with predictions.
fn go_on<B: Runs>(
    runner: &mut Runner<B>,
    sequence: &Sequence,
    trace: &mut Trace,
) -> Result<(), DeviceError> {
    let mut token = trace[0].0;
    for step in 0..STEPS {
        runner.step(&[sequence.rows(PROMPT + step, &[token])])?;
        let found = seen(runner, 0)?;
        token = found.0;
        trace.push(found);
        predict(runner, &[token], trace)?;
    }
    Ok(())
}

/// A prediction after the last of the step's rows, if the model predicts.
fn predict<B: Runs>(
    runner: &mut Runner<B>,
    next: &[TokenId],
    trace: &mut Trace,
) -> Result<(), DeviceError> {
    if runner.predicts() {
        runner.predict(next, &[next.len() - 1])?;
        trace.push(seen(runner, 0)?);
    }
    Ok(())
}
