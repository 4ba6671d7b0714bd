//! Batch invariance of a whole model: the bits of a sequence's logits depend neither on the other
//! sequences of its steps, nor on how its prompt was cut, nor on whether the step was recorded.
//!
//! Memory is not cleared between trials: slots, pages and rows of activations hold values of
//! earlier ones. Rows beyond those of a step hold NaN only in the checks of single operations.

mod drafts;
pub(crate) mod moves;

use std::fmt;

use model::ops::{CELL, ONE_BY_ONE};
use model::target::{
    DRAFTS, KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, STATES, TOP_K, VOCAB,
    WINDOW,
};
use step::executor::{
    BlockTable, DeviceError, Draw, Executor, PageId, Ranked, SeqRows, Slot, Snapshot, States,
    TokenId,
};
use step::ranking::{all_finite, argmax, most_likely};

use super::session::window_ring;
use model::{Runner, Runs};

/// Numbers and sizes of the trials of a run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Sequences of the largest batch; every smaller batch is tried too.
    pub sequences: usize,
    /// Greedy tokens after each prompt of a batch.
    pub steps: usize,
    /// Number of trials of each other rule: cuts of a long prompt, prompts that resume from
    /// snapshots, replies with drafts.
    pub cuts: usize,
}

impl Extent {
    /// Number of batches, cuts, resumptions and replies with drafts together.
    pub fn trials(&self) -> usize {
        let drafted = if DRAFTS > 0 { self.cuts } else { 0 };
        self.sequences + 2 * self.cuts + drafted
    }
}

/// Extent of a whole run: `selftest --bits`.
pub const WHOLE: Extent = Extent {
    sequences: MAX_SEQUENCES,
    steps: 4,
    cuts: 32,
};

/// Longest prompt of a batch: it crosses pages; its last cell is full, short or nearly empty.
const PROMPT_MAX: usize = match 2 * CELL + 3 {
    longest if longest < PREFILL_TOKENS => longest,
    _ => PREFILL_TOKENS,
};
/// Length of the prompt that is cut into chunks, tokens.
const CUT_PROMPT_MAX: usize = 16 * CELL + CELL / 3;

/// Greedy tokens of a sequence, each with a digest of the logits that it was chosen by.
type Trace = Vec<(TokenId, u64)>;

/// A prompt with a slot and pages of its own.
struct Sequence {
    slot: Slot,
    pages: Vec<PageId>,
    /// Pages of the windowed group that are reused in turn; none: `pages`, one for each block.
    ring: Option<Vec<PageId>>,
    prompt: Vec<TokenId>,
    /// Number of tokens that are computed already, and the state after them.
    begin: Option<(usize, Slot)>,
    /// Number of tokens after which a snapshot of the state is taken, and its slot.
    kept: Option<(usize, Slot)>,
}

impl Sequence {
    fn new(slot: usize, pages: Vec<PageId>, prompt: Vec<TokenId>) -> Sequence {
        Sequence {
            slot: Slot(slot as u32),
            pages,
            ring: None,
            prompt,
            begin: None,
            kept: None,
        }
    }

    /// Rows of `tokens` from position `start` on, with logits of the last one.
    fn rows<'a>(&'a self, start: usize, tokens: &'a [TokenId]) -> SeqRows<'a> {
        SeqRows {
            window: BlockTable::whole(self.ring.as_ref().unwrap_or(&self.pages)),
            ..SeqRows::of(self.slot, start, tokens, &self.pages)
        }
    }

    /// States that rows `start..end` read and write.
    fn states(&self, start: usize, end: usize) -> States {
        let begin = self.begin.filter(|(tokens, _)| *tokens == start);
        let kept = self
            .kept
            .filter(|(tokens, _)| (start + 1..=end).contains(tokens));
        States {
            from: begin.map_or(self.slot, |(_, state)| state),
            to: self.slot,
            snapshot: kept.map(|(tokens, slot)| Snapshot {
                rows: tokens - start,
                slot,
            }),
        }
    }
}

/// A rule, and the numbers of rows compared by it.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Inputs of the trial, such as `1 to 8 rows`.
    pub case: String,
    /// Rule in the form of an equation.
    pub rule: &'static str,
    /// Number of rows of logits that were compared.
    pub rows: usize,
    /// Number of compared rows whose bits differ.
    pub different: usize,
}

impl Tried {
    fn nothing(case: &str, rule: &'static str) -> Tried {
        Tried {
            case: case.to_string(),
            rule,
            rows: 0,
            different: 0,
        }
    }

    fn add(&mut self, found: &Trace, wanted: &Trace) {
        assert_eq!(found.len(), wanted.len());
        self.rows += wanted.len();
        self.different += found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    }

    /// Whether the rule holds; it does not if no row was compared.
    pub fn passed(&self) -> bool {
        self.different == 0 && self.rows > 0
    }
}

/// Source of drawn inputs, and receiver of results.
pub trait Trial {
    /// A drawn number below `end`.
    fn below(&mut self, end: usize) -> usize;
    /// Called before each trial with the number of trials done, and of all trials.
    fn trying(&mut self, done: usize, of: usize);
    /// Called with the result of each rule.
    fn tell(&mut self, tried: Tried);
    /// Chooser by a sampling rule, as a device applies it at position 1, the host at any position.
    fn chooser(&mut self, rule: &Rule) -> (Draw, Chooser);
}

/// Token at a position, chosen by the ranking of its row.
pub type Chooser = Box<dyn Fn(&Ranked<'_>, usize) -> TokenId>;

/// Parameters of a random sampling rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub seed: u64,
}

/// Execution of the steps after prompts: as recorded graphs, or launch by launch.
#[derive(Clone, Copy)]
enum Way {
    Recorded,
    Eager,
}

/// Digest of all rows of logits in order, equal for builds that compute the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    rows: usize,
    digest: u64,
}

impl Seen {
    fn nothing() -> Seen {
        Seen {
            rows: 0,
            digest: FNV_OFFSET,
        }
    }

    fn add(&mut self, trace: &Trace) {
        self.rows += trace.len();
        let words = trace.iter().map(|seen| seen.1);
        self.digest = words.fold(self.digest, fold);
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "digest of {} rows of logits: {:016x}",
            self.rows, self.digest
        )
    }
}

/// Tries all rules on inputs that `trial` draws, and tells `trial` the compared and differing rows.
pub fn bit_rules<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    trial: &mut impl Trial,
) -> Result<Seen, DeviceError> {
    let mut seen = Seen::nothing();
    let sequences = sequences(trial, extent);
    batches(runner, &sequences, extent, (trial, &mut seen))?;
    cuts(runner, extent, (trial, &mut seen))?;
    resumes(runner, extent, trial)?;
    rings(runner, extent, trial)?;
    drafts::drafts(runner, extent, trial)?;
    drafts::predictions(runner, extent, trial)?;
    moves::moves(runner, trial)?;
    Ok(seen)
}

fn sequences(trial: &mut impl Trial, extent: Extent) -> Vec<Sequence> {
    let each = (PROMPT_MAX + extent.steps).div_ceil(PAGE);
    assert!(extent.sequences <= MAX_SEQUENCES && extent.sequences * each <= KV_PAGES);
    let sequence = |index: usize| {
        let prompt = prompt(trial, 1 + index * 37 % PROMPT_MAX);
        Sequence::new(index, pages(index * each, each * PAGE), prompt)
    };
    (0..extent.sequences).map(sequence).collect()
}

fn prompt(trial: &mut impl Trial, length: usize) -> Vec<TokenId> {
    (0..length).map(|_| trial.below(VOCAB) as TokenId).collect()
}

/// Compares batches of every size, each beginning with another sequence, with each sequence alone.
fn batches<B: Runs>(
    runner: &mut Runner<B>,
    sequences: &[Sequence],
    extent: Extent,
    (trial, seen): (&mut impl Trial, &mut Seen),
) -> Result<(), DeviceError> {
    let alone = sequences
        .iter()
        .map(|sequence| Ok(replies(runner, &[sequence], extent.steps, Way::Recorded)?.remove(0)))
        .collect::<Result<Vec<_>, DeviceError>>()?;
    alone.iter().for_each(|trace| seen.add(trace));
    let case = format!("1 to {} rows", sequences.len());
    let rules = [
        "greedy alone = in every batch",
        "recorded steps = eager ones",
    ];
    let mut compared = rules.map(|rule| Tried::nothing(&case, rule));
    for size in 1..=sequences.len() {
        trial.trying(size - 1, extent.trials());
        let members: Vec<usize> = (0..size).map(|at| (at + size) % sequences.len()).collect();
        let batch: Vec<_> = members.iter().map(|&member| &sequences[member]).collect();
        for (way, compared) in [Way::Recorded, Way::Eager].into_iter().zip(&mut compared) {
            let found = replies(runner, &batch, extent.steps, way)?;
            for (&member, found) in members.iter().zip(&found) {
                compared.add(found, &alone[member]);
                seen.add(found);
            }
        }
    }
    compared.into_iter().for_each(|tried| trial.tell(tried));
    Ok(())
}

/// Compares the bits of a long prompt in random chunks, and of two greedy tokens after it, with
/// those of the same prompt in the largest chunks.
fn cuts<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    (trial, seen): (&mut impl Trial, &mut Seen),
) -> Result<(), DeviceError> {
    let steps = 2;
    let length = CUT_PROMPT_MAX.min(MAX_CONTEXT - steps);
    let sequence = Sequence::new(0, pages(0, length + steps), prompt(trial, length));
    let case = format!("{length} tokens, {} cuts", extent.cuts);
    let mut compared = Tried::nothing(&case, "a prompt in chunks = whole");
    let most = (PREFILL_TOKENS / CELL).min(length.div_ceil(CELL));
    let whole = in_chunks(runner, &sequence, steps, || most * CELL)?;
    seen.add(&whole);
    for cut in 0..extent.cuts {
        trial.trying(extent.sequences + cut, extent.trials());
        // The first trial has chunks of one cell, later trials chunks of random numbers of cells.
        let mut chunk = || match cut {
            0 => CELL,
            _ => (1 + trial.below(most)) * CELL,
        };
        let found = in_chunks(runner, &sequence, steps, &mut chunk)?;
        compared.add(&found, &whole);
        seen.add(&found);
    }
    trial.tell(compared);
    Ok(())
}

/// Compares prompts that resume from another prompt's pages and snapshot with whole prompts.
fn resumes<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    trial: &mut impl Trial,
) -> Result<(), DeviceError> {
    const STEPS: usize = 2;
    let longest = CUT_PROMPT_MAX.min(MAX_CONTEXT - STEPS);
    let longest = longest.min(KV_PAGES / 4 * PAGE);
    let case = format!("{} resumptions", extent.cuts);
    let mut compared = Tried::nothing(&case, "a prompt from a kept state = whole");
    for at in 0..extent.cuts {
        trial.trying(extent.sequences + extent.cuts + at, extent.trials());
        // The prompt has one row after the shared pages, a few rows, or any number.
        let length = match at % 3 {
            0 => PAGE + 1,
            1 => 2 * PAGE + ONE_BY_ONE,
            _ => longest,
        };
        let own = pages(0, length + STEPS);
        let whole = Sequence::new(0, own, prompt(trial, length.min(longest)));
        let shared = whole.prompt.len().saturating_sub(1) / PAGE;
        if shared == 0 {
            continue;
        }
        let shared = (1 + trial.below(shared)) * PAGE;
        let mut chunk = |most: usize| (1 + trial.below(most / CELL)) * CELL;
        let wanted = in_chunks(runner, &whole, STEPS, || PREFILL_TOKENS)?;
        let (donor, resumed) = resumption(&whole, shared, chunk(2 * CELL));
        prefill(runner, &donor, || chunk(PREFILL_TOKENS))?;
        let found = in_chunks(runner, &resumed, STEPS, || chunk(PREFILL_TOKENS))?;
        compared.add(&found, &wanted);
    }
    trial.tell(compared);
    Ok(())
}

/// Compares sequences whose windowed pages are reused with sequences that keep all pages.
fn rings<B: Runs>(
    runner: &mut Runner<B>,
    extent: Extent,
    trial: &mut impl Trial,
) -> Result<(), DeviceError> {
    const STEPS: usize = 2 * PAGE;
    if WINDOW.is_none() {
        return Ok(());
    }
    let length = CUT_PROMPT_MAX.min(MAX_CONTEXT - STEPS);
    let case = format!("{} rings", extent.cuts);
    let mut compared = Tried::nothing(&case, "pages behind a window reused = kept");
    for _ in 0..extent.cuts {
        let whole = Sequence::new(0, pages(0, length + STEPS), prompt(trial, length));
        let wanted = in_chunks(runner, &whole, STEPS, || PREFILL_TOKENS)?;
        let ring = Sequence {
            ring: Some(window_ring(0, length + STEPS, PREFILL_TOKENS)),
            ..whole
        };
        let chunk = || (1 + trial.below(PREFILL_TOKENS / CELL)) * CELL;
        compared.add(&in_chunks(runner, &ring, STEPS, chunk)?, &wanted);
    }
    trial.tell(compared);
    Ok(())
}

/// A prompt that has `shared` tokens of `whole` and `more` other tokens, and after which a snapshot
/// is taken; and `whole` resumed from it, on other pages.
fn resumption(whole: &Sequence, shared: usize, more: usize) -> (Sequence, Sequence) {
    let state = Slot((STATES - 1) as u32);
    let kept = (STATES > MAX_SEQUENCES).then_some((shared, state));
    let end = (shared + more).min(MAX_CONTEXT);
    let others = whole.prompt.iter().rev().cycle().take(end - shared);
    let after = whole.pages.len();
    let given = whole.prompt[..shared].iter().chain(others);
    let given = given.copied().collect();
    let donor = Sequence {
        kept,
        ..Sequence::new(1 % MAX_SEQUENCES, pages(after, end), given)
    };
    let from = after + donor.pages.len();
    let own = pages(from, whole.pages.len() * PAGE - shared);
    let pages = [&donor.pages[..shared / PAGE], &own].concat();
    let mut resumed = Sequence::new(2 % MAX_SEQUENCES, pages, whole.prompt.clone());
    resumed.begin = Some(kept.unwrap_or((shared, resumed.slot)));
    (donor, resumed)
}

/// Consecutive pages from `first` on that hold `tokens` tokens.
fn pages(first: usize, tokens: usize) -> Vec<PageId> {
    let pages = first..first + tokens.div_ceil(PAGE);
    assert!(pages.end <= KV_PAGES, "so many pages are there");
    pages.map(|page| PageId(page as u32)).collect()
}

/// Prefills the sequences of a batch, as many at once as a step takes, then decodes all together.
fn replies<B: Runs>(
    runner: &mut Runner<B>,
    batch: &[&Sequence],
    steps: usize,
    way: Way,
) -> Result<Vec<Trace>, DeviceError> {
    let mut traces = prefill_all(runner, batch)?;
    for step in 0..steps {
        let tokens: Vec<_> = traces.iter().map(|trace| trace[step].0).collect();
        let rows = batch.iter().zip(&tokens).map(|(sequence, token)| {
            sequence.rows(sequence.prompt.len() + step, std::slice::from_ref(token))
        });
        let rows: Vec<_> = rows.collect();
        match way {
            Way::Recorded => runner.step(&rows)?,
            Way::Eager => runner.step_eagerly(&rows)?,
        }
        for (row, trace) in traces.iter_mut().enumerate() {
            trace.push(seen(runner, row)?);
        }
    }
    Ok(traces)
}

fn prefill_all<B: Runs>(
    runner: &mut Runner<B>,
    batch: &[&Sequence],
) -> Result<Vec<Trace>, DeviceError> {
    let mut traces = Vec::with_capacity(batch.len());
    while traces.len() < batch.len() {
        let mut free = PREFILL_TOKENS;
        let fits = |sequence: &&&Sequence| {
            let left = free.checked_sub(sequence.prompt.len());
            free = left.unwrap_or(0);
            left.is_some()
        };
        let some = batch[traces.len()..].iter().take_while(fits);
        let rows = some.map(|sequence| sequence.rows(0, &sequence.prompt));
        let rows: Vec<_> = rows.collect();
        runner.step(&rows)?;
        for row in 0..rows.len() {
            traces.push(vec![seen(runner, row)?]);
        }
    }
    Ok(traces)
}

/// Runs a sequence alone, its prompt in the given chunks.
fn in_chunks<B: Runs>(
    runner: &mut Runner<B>,
    sequence: &Sequence,
    steps: usize,
    chunk: impl FnMut() -> usize,
) -> Result<Trace, DeviceError> {
    let mut trace = vec![prefill(runner, sequence, chunk)?];
    for step in 0..steps {
        runner.step(&[sequence.rows(sequence.prompt.len() + step, &[trace[step].0])])?;
        trace.push(seen(runner, 0)?);
    }
    Ok(trace)
}

/// Prefills the prompt in chunks of `chunk()` rows; returns the trace of its last logits.
fn prefill<B: Runs>(
    runner: &mut Runner<B>,
    sequence: &Sequence,
    mut chunk: impl FnMut() -> usize,
) -> Result<(TokenId, u64), DeviceError> {
    let length = sequence.prompt.len();
    let mut done = sequence.begin.map_or(0, |(tokens, _)| tokens);
    while done < length {
        let end = (done + chunk().min(PREFILL_TOKENS)).min(length);
        let rows = SeqRows {
            states: sequence.states(done, end),
            logits: usize::from(end == length),
            ..sequence.rows(done, &sequence.prompt[done..end])
        };
        runner.step(&[rows])?;
        done = end;
    }
    seen(runner, 0)
}

/// Greedy token and digest of a row of the last step's logits; on devices that rank rows, checks
/// that this row's ranking agrees.
fn seen<B: Runs>(runner: &mut Runner<B>, row: usize) -> Result<(TokenId, u64), DeviceError> {
    let ranked: Option<Vec<_>> = runner.ranked(row).map(|ranked| ranked.top().collect());
    let logits = runner.logits(row)?;
    let found = greedy_and_digest(logits)?;
    match ranked.is_none_or(|ranked| ranked == most_likely(logits, TOP_K)) {
        true => Ok(found),
        false => Err(DeviceError::Failed(
            "a row is not ranked as it is".to_string(),
        )),
    }
}

/// The greedy token of a row of logits, and the digest of all bits of the row.
pub(super) fn greedy_and_digest(logits: &[f32]) -> Result<(TokenId, u64), DeviceError> {
    Ok((argmax(logits), digest(logits)?))
}

/// Digest of all bits of a row of logits: FNV-1a over 32-bit words in `PARTS` interleaved chains,
/// which a core computes at once.
pub(super) fn digest(logits: &[f32]) -> Result<u64, DeviceError> {
    if !all_finite(logits) {
        return Err(DeviceError::Failed("a logit is not finite".to_string()));
    }
    let words = logits.chunks(PARTS);
    let parts = words.fold([FNV_OFFSET; PARTS], |mut parts, words| {
        let both = parts.iter_mut().zip(words);
        both.for_each(|(part, word)| *part = fold(*part, word.to_bits().into()));
        parts
    });
    Ok(parts.into_iter().fold(FNV_OFFSET, fold))
}

/// Interleaved chains of a digest.
const PARTS: usize = 8;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn fold(digest: u64, word: u64) -> u64 {
    (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_other_bits_breaks_the_rule() {
        let row = |logit: f32| vec![greedy_and_digest(&[1.0, logit]).unwrap()];
        let mut tried = Tried::nothing("", "one bit");
        tried.add(&row(0.5), &row(0.5));
        assert!(tried.passed());
        tried.add(&row(0.5), &row(0.5f32.next_up()));
        assert_eq!((tried.rows, tried.different), (2, 1));
        assert!(!tried.passed());
    }

    #[test]
    fn other_bits_or_fewer_rows_have_another_digest() {
        let text = |logits: &[f32]| {
            let mut seen = Seen::nothing();
            let rows = logits
                .iter()
                .map(|&logit| greedy_and_digest(&[1.0, logit]).unwrap());
            seen.add(&rows.collect());
            seen.to_string()
        };
        assert_eq!(text(&[0.5, 0.25]), text(&[0.5, 0.25]));
        for other in [&[0.5, 0.25f32.next_up()][..], &[0.25, 0.5], &[0.5]] {
            assert_ne!(text(other), text(&[0.5, 0.25]));
        }
        assert!(text(&[0.5]).starts_with("digest of 1 rows of logits: "));
    }

    #[test]
    fn nothing_compared_is_no_success() {
        assert!(!Tried::nothing("", "nothing").passed());
    }
}
