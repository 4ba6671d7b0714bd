//! A seeded simulator: the engine under arrivals, floods, departures, slow readers, full queues,
//! few pages, slow steps, broken logits and a failing device, with its promises checked after every
//! round. Time is simulated, too, so that a seed gives the same steps again.
//!
//! The model is a hash of a sequence's own tokens, read back through its slot and its pages, so
//! any mix-up of rows, slots or pages changes the tokens of some reply.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::ops::{AddAssign, Range};
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::equivalence::spread;
use super::{STOP, sampling};
use crate::constraint::{self, Constraint, Mask, Next};
use crate::drafts::Drafter;
use crate::events::{self, EventReceiver};
use crate::fair_queue::Source;
use crate::request::{
    Admitted, COMMON, Event, FinishReason, Request, Sampling, Scored, TokenLogprobs,
};
use crate::sampler::{self, Sampler, Scratch};
use crate::speculate::{DEPTH_MAX, Speculate};
use crate::tier::Tier;
use crate::{DEVICE_FAILED, Engine, Handle, Limits, Rejected, Round, rng, runtime, scheduler};
use step::executor::{
    DeviceError, Drafted, Drafting, Executor, PageId, Ranked, SeqRows, Slot, TokenId,
};
use step::random::Random;
use step::ranking::{self, argmax};
use step::testing::{TINY, few_or_many};
use step::transfer::{PIECE_ALIGN, Piece, PieceBytes, Transfer};
use step::{PAGE, Window};

pub const VOCAB: usize = 48;
/// Sequences that begin with this token meet broken logits now and then.
pub const POISON: TokenId = 0;

/// Knowledge of the hash model after some tokens of a sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Digest {
    hash: u64,
    first: TokenId,
    pub length: usize,
}

impl Digest {
    fn push(&mut self, token: TokenId) {
        if self.length == 0 {
            self.first = token;
        }
        self.length += 1;
        self.hash = mix(self.hash ^ u64::from(token));
    }

    /// A position whose token takes part in the logits.
    fn probe(&self) -> usize {
        self.hash as usize % self.length
    }

    fn logits<const VOCAB: usize>(&self, probed: TokenId, logits: &mut Vec<f32>) {
        let begin = logits.len();
        let key = self.hash.wrapping_add(u64::from(probed));
        // Few distinct values, so that ties are common.
        logits.extend((0..VOCAB as u64).map(|id| (mix(key ^ id << 32) % 32) as f32 / 4.0));
        if self.first == POISON && key.is_multiple_of(8) {
            let kinds = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            logits[begin + key as usize % VOCAB] = kinds[(key >> 8) as usize % kinds.len()];
        }
    }
}

/// Hash of a number.
const fn mix(value: u64) -> u64 {
    Random::new(value).bits()
}

/// The hash model on a make-believe device that checks what it is asked to do.
#[derive(Debug)]
pub struct HashModel<const VOCAB: usize> {
    states: Vec<Digest>,
    /// Whether it goes on from states; else from what lies in pages.
    recurs: bool,
    pages: Vec<[TokenId; PAGE]>,
    /// The windowed group, if it has one, and what lies in its pages.
    window: Option<Window>,
    windows: Vec<[TokenId; PAGE]>,
    /// Knowledge after each row of the last step, and the token that its probe read.
    rows: Vec<(Digest, TokenId)>,
    /// State of a prediction of each row that was wanted, and the tokens after its pages.
    predicted: Vec<(Digest, Vec<TokenId>)>,
    /// Rows that predictions after steps ran over.
    predicted_rows: usize,
    /// Page table of each row of the last step.
    tables: Vec<Vec<PageId>>,
    /// Logits of the last step.
    logits: Vec<f32>,
    /// Ranking of each row.
    ranked: Vec<Vec<f32>>,
    /// Number of logits of a row that the device ranks; 0 if none.
    pub ranks: usize,
    /// Flag for a device that draws drafts itself: those of the last `step_draft` are in `drafted`.
    pub draws: bool,
    drafted: Vec<Drafted>,
    /// Share of steps that are slow.
    slow: f64,
    slow_steps: usize,
    steps_left: u64,
    /// Rows that are scored at once, at most.
    rows_scored: usize,
    /// Host memory, and copies to it, or from it, that are under way.
    host: Vec<u8>,
    copies: VecDeque<(bool, Transfer)>,
    copied: u64,
}

/// Bytes of a page and of a state outside of the device.
pub const PIECES: PieceBytes = PieceBytes {
    page: PIECE_ALIGN,
    state: 2 * PIECE_ALIGN,
    window: 0,
};

thread_local! {
    /// Time that the steps of this thread's simulation have taken.
    static TAKEN: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Simulated time.
fn simulated() -> Instant {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    *BEGUN.get_or_init(Instant::now) + TAKEN.get()
}

/// Times that a step takes by its rows, and one that is held up.
const STEP: Duration = Duration::from_millis(2);
const ROW: Duration = Duration::from_micros(50);
const HELD_UP: Duration = Duration::from_millis(300);

impl<const VOCAB: usize> HashModel<VOCAB> {
    /// Fails after `steps` steps.
    pub fn failing_after(limits: &Limits, steps: u64) -> Self {
        HashModel {
            states: vec![Digest::default(); limits.slots() + limits.snapshots + limits.drafts],
            recurs: limits.snapshots > 0 && limits.window.is_none(),
            pages: vec![[TokenId::MAX; PAGE]; limits.pages],
            window: limits.window,
            windows: vec![[TokenId::MAX; PAGE]; limits.window.map_or(0, |of| of.pages)],
            rows: Vec::new(),
            predicted: Vec::new(),
            predicted_rows: 0,
            tables: Vec::new(),
            logits: Vec::new(),
            ranked: Vec::new(),
            ranks: 0,
            draws: false,
            drafted: Vec::new(),
            slow: 0.0,
            slow_steps: 0,
            steps_left: steps,
            rows_scored: limits.sequences,
            host: Vec::new(),
            copies: VecDeque::new(),
            copied: 0,
        }
    }

    pub fn new(limits: &Limits) -> Self {
        Self::failing_after(limits, u64::MAX)
    }

    /// Whether a copy is under way of a page or state; where that is only read, one from the host.
    fn is_copied(&self, piece: Piece, is_read: bool) -> bool {
        let mut copies = self.copies.iter();
        copies.any(|(saves, of)| of.piece == piece && !(*saves && is_read))
    }

    /// Checks that rows use nothing that a copy does.
    fn check_copies(&self, rows: &SeqRows<'_>) {
        let last = (rows.start + rows.tokens.len()).div_ceil(PAGE);
        for (index, page) in rows.pages[..last].iter().enumerate() {
            let is_read = index < rows.start / PAGE;
            assert!(!self.is_copied(Piece::Page(*page), is_read), "{page:?}");
        }
        for (index, page) in (rows.window.first..).zip(rows.window.pages) {
            let is_read = index < rows.start / PAGE;
            assert!(!self.is_copied(Piece::Window(*page), is_read), "{page:?}");
        }
        assert!(!self.is_copied(Piece::State(rows.states.from), true));
        for state in rows
            .states
            .written()
            .chain(rows.draft_states.iter().copied())
        {
            assert!(!self.is_copied(Piece::State(state), false), "{state:?}");
        }
    }

    /// A page or a state as it lies on the host.
    fn content(&self, piece: Piece) -> Vec<u8> {
        match piece {
            Piece::Page(page) => bytes_of(&self.pages[page.0 as usize]),
            Piece::Window(page) => bytes_of(&self.windows[page.0 as usize]),
            Piece::State(Slot(state)) => {
                let Digest {
                    hash,
                    first,
                    length,
                } = self.states[state as usize];
                let words = [hash, u64::from(first), length as u64];
                words.iter().flat_map(|word| word.to_le_bytes()).collect()
            }
        }
    }

    fn set_content(&mut self, piece: Piece, bytes: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("8"));
        match piece {
            Piece::Page(page) => set_bytes_of(&mut self.pages[page.0 as usize], bytes),
            Piece::Window(page) => set_bytes_of(&mut self.windows[page.0 as usize], bytes),
            Piece::State(Slot(state)) => {
                self.states[state as usize] = Digest {
                    hash: word(0),
                    first: word(1) as TokenId,
                    length: word(2) as usize,
                };
            }
        }
    }

    fn copy(&mut self, saves: bool, Transfer { piece, at }: Transfer) {
        match saves {
            true => {
                let content = self.content(piece);
                self.host[at..][..content.len()].copy_from_slice(&content);
            }
            false => {
                let bytes = self.host[at..][..self.bytes().of(piece)].to_vec();
                self.set_content(piece, &bytes);
            }
        }
    }

    /// Bytes of pieces.
    fn bytes(&self) -> PieceBytes {
        match self.window {
            Some(window) => PieceBytes {
                state: window.snapshot_pages() * PIECE_ALIGN,
                window: PIECE_ALIGN,
                ..PIECES
            },
            None if self.recurs => PIECES,
            None => PieceBytes { state: 0, ..PIECES },
        }
    }

    /// Checks that the windowed pages of rows up to a position have what its row sees, and all that
    /// device code reads with it.
    fn check_window(&self, rows: &SeqRows<'_>, position: usize) {
        let Some(window) = self.window else { return };
        for seen in window.first_page(position) * PAGE..=position {
            let found = self.windows[rows.window.page(seen).0 as usize][seen % PAGE];
            let wanted = self.pages[rows.pages[seen / PAGE].0 as usize][seen % PAGE];
            assert_eq!(found, wanted, "position {seen} seen from {position}");
        }
    }

    /// Digest of the first `length` tokens of the pages.
    fn digest_of(&self, pages: &[PageId], length: usize) -> Digest {
        let mut digest = Digest::default();
        for position in 0..length {
            let page = pages[position / PAGE].0 as usize;
            digest.push(self.pages[page][position % PAGE]);
        }
        digest
    }

    /// Has a step of so many rows take its time.
    fn take_time(&mut self, rows: usize) {
        let slow = rng::uniform(rows as u64, self.steps_left) < self.slow;
        self.slow_steps += usize::from(slow);
        let more = if slow { HELD_UP } else { Duration::ZERO };
        TAKEN.set(TAKEN.get() + STEP + ROW * rows as u32 + more);
    }

    /// The logits after the tokens that predictions know: those of the model.
    fn predict_logits(&mut self) {
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        for ((digest, after), table) in self.predicted.iter().zip(&self.tables) {
            let (probe, first) = (digest.probe(), digest.length - after.len());
            let probed = match probe.checked_sub(first) {
                Some(at) => after[at],
                None => self.pages[table[probe / PAGE].0 as usize][probe % PAGE],
            };
            digest.logits::<VOCAB>(probed, &mut logits);
        }
        self.logits = logits;
        self.rank();
    }

    /// Ranks the rows of logits, if it does.
    fn rank(&mut self) {
        self.ranked.clear();
        if self.ranks > 0 {
            let rows = self.logits.chunks_exact(VOCAB);
            self.ranked
                .extend(rows.map(|row| ranking::ranked(row, self.ranks)));
        }
    }

    fn run(&mut self, rows: &SeqRows<'_>, logits: &mut Vec<f32>) {
        let states = rows.states;
        let mut state = match rows.start {
            0 => Digest::default(),
            start if !self.recurs => self.digest_of(rows.pages, start),
            _ => self.states[states.from.0 as usize],
        };
        assert_eq!(
            rows.start, state.length,
            "rows do not continue their sequence"
        );
        assert!(!rows.tokens.is_empty());
        for (row, &token) in rows.tokens.iter().enumerate() {
            let page = rows.pages[state.length / PAGE].0 as usize;
            self.pages[page][state.length % PAGE] = token;
            if self.window.is_some() {
                let page = rows.window.page(state.length).0 as usize;
                self.windows[page][state.length % PAGE] = token;
                self.check_window(rows, state.length);
            }
            state.push(token);
            if let Some(snapshot) = states.snapshot
                && state.length == rows.start + snapshot.rows
            {
                self.states[snapshot.slot.0 as usize] = state;
            }
            if let Some(draft_states) = rows.draft_states.get(row) {
                self.states[draft_states.0 as usize] = state;
            }
            let probe = state.probe();
            let page = rows.pages[probe / PAGE].0 as usize;
            self.rows.push((state, self.pages[page][probe % PAGE]));
            self.tables.push(rows.pages.to_vec());
        }
        self.states[states.to.0 as usize] = state;
        for &(digest, probed) in &self.rows[self.rows.len() - rows.logits..] {
            digest.logits::<VOCAB>(probed, logits);
        }
    }
}

impl<const VOCAB: usize> Executor for HashModel<VOCAB> {
    const VOCAB: usize = VOCAB;

    fn pages(&self) -> Option<usize> {
        Some(self.pages.len())
    }

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        let Some(left) = self.steps_left.checked_sub(1) else {
            return Err(DeviceError::Failed("it was told to fail".to_owned()));
        };
        self.steps_left = left;
        rows.iter().for_each(|rows| self.check_copies(rows));
        self.take_time(rows.iter().map(|rows| rows.tokens.len()).sum());
        let draft_states = |rows: &SeqRows<'_>| rows.draft_states.to_vec();
        let written = rows
            .iter()
            .flat_map(|rows| rows.states.written().chain(draft_states(rows)));
        let written: Vec<_> = written.collect();
        let slots: HashSet<_> = written.iter().collect();
        assert_eq!(slots.len(), written.len(), "a state is written twice");
        for rows in rows {
            let states = rows.states;
            let own = states.from == states.to || rows.draft_states.contains(&states.from);
            let read = !own && slots.contains(&states.from);
            assert!(!read, "a state is read that another sequence writes");
        }
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        self.rows.clear();
        self.tables.clear();
        rows.iter().for_each(|rows| self.run(rows, &mut logits));
        self.logits = logits;
        self.rank();
        Ok(())
    }

    fn ranked(&self, index: usize) -> Option<Ranked<'_>> {
        (self.ranks > 0).then(|| Ranked::new(&self.ranked[index]))
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        Ok(&self.logits[index * VOCAB..][..VOCAB])
    }

    fn predict(&mut self, next: &[TokenId], wanted: &[usize]) -> Result<(), DeviceError> {
        assert_eq!(next.len(), self.rows.len(), "a token after each row");
        self.predicted_rows += next.len();
        let tables = wanted.iter().map(|&row| self.tables[row].clone());
        self.tables = tables.collect();
        self.predicted.clear();
        for &row in wanted {
            let mut digest = self.rows[row].0;
            digest.push(next[row]);
            self.predicted.push((digest, vec![next[row]]));
        }
        self.predict_logits();
        Ok(())
    }

    fn predict_on(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        assert_eq!(
            rows.len(),
            self.predicted.len(),
            "a row for each that was wanted"
        );
        for (row, (digest, after)) in rows.iter().zip(&mut self.predicted) {
            let last = row.pages.len() * PAGE - 1;
            assert_eq!(
                row.start,
                (digest.length - 1).min(last),
                "a position is left out"
            );
            digest.push(row.tokens[0]);
            after.extend(row.tokens);
        }
        self.predict_logits();
        Ok(())
    }

    fn step_draft(&mut self, rows: &[SeqRows<'_>], by: &Drafting<'_>) -> Result<bool, DeviceError> {
        assert_eq!((by.rows.len(), by.draws.len()), (rows.len(), rows.len()));
        if !self.draws {
            return Ok(false);
        }
        let mut next = Vec::new();
        self.step(rows)?;
        let logits = self.logits.clone();
        self.drafted.clear();
        let mut wanted = Vec::new();
        for rows in rows {
            let first = next.len();
            assert_eq!(rows.logits, rows.tokens.len());
            let own = logits.chunks_exact(VOCAB).skip(first).take(rows.logits);
            next.extend(own.map(argmax));
            let drafts = next[first..].iter().zip(&rows.tokens[1..]);
            let accepted = drafts.take_while(|(chosen, draft)| chosen == draft).count();
            wanted.push(first + accepted);
            self.drafted.push(Drafted {
                accepted,
                token: next[first + accepted],
                ..Drafted::default()
            });
        }
        self.predict(&next, &wanted)?;
        for draft in 0..by.depth {
            let tokens: Vec<_> = self.logits.chunks_exact(VOCAB).map(argmax).collect();
            let own = self.drafted.iter_mut().zip(&tokens);
            own.for_each(|(drafted, &token)| drafted.drafts[draft] = token);
            if draft + 1 < by.depth {
                let starts: Vec<_> = self
                    .predicted
                    .iter()
                    .map(|known| known.0.length - 1)
                    .collect();
                let on = by.rows.iter().zip(&tokens).zip(starts);
                let on = on.map(|((row, token), start)| {
                    assert!(start <= row.start, "its page table ends before it");
                    SeqRows {
                        start,
                        tokens: slice::from_ref(token),
                        ..*row
                    }
                });
                self.predict_on(&on.collect::<Vec<_>>())?;
            }
        }
        self.logits = logits;
        self.rank();
        Ok(true)
    }

    fn drafted(&mut self, drafted: &mut Vec<Drafted>) -> Result<(), DeviceError> {
        drafted.clear();
        drafted.append(&mut self.drafted);
        Ok(())
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        assert!(!rows.is_empty() && rows.len() <= self.rows_scored);
        assert!(rows.is_sorted_by(|a, b| a < b));
        logits.clear();
        for &row in rows {
            let (digest, probed) = self.rows[row];
            digest.logits::<VOCAB>(probed, logits);
        }
        Ok(())
    }

    fn piece_bytes(&self) -> Option<PieceBytes> {
        Some(self.bytes())
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.host = vec![0; bytes];
        Ok(())
    }

    fn host_memory(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.host[range]
    }

    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.copies.extend(transfers.iter().map(|of| (true, *of)));
        Ok(())
    }

    fn restore(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        for transfer in transfers {
            assert!(!self.is_copied(transfer.piece, false), "{transfer:?}");
            // Nothing of what was there before is of use until it is done.
            self.set_content(transfer.piece, &[0xA5; 4 * PAGE]);
            self.copies.push_back((false, *transfer));
        }
        Ok(())
    }

    /// Some of the copies end, now and then none of them.
    fn transferred(&mut self) -> Result<u64, DeviceError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        for _ in 0..mix(self.steps_left) % COPIES_MAX {
            let Some((saves, transfer)) = self.copies.pop_front() else {
                break;
            };
            self.copy(saves, transfer);
            self.copied += 1;
        }
        Ok(self.copied)
    }
}

fn bytes_of(tokens: &[TokenId; PAGE]) -> Vec<u8> {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    bytes.collect()
}

fn set_bytes_of(tokens: &mut [TokenId; PAGE], bytes: &[u8]) {
    for (token, bytes) in tokens.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *token = TokenId::from_le_bytes(*bytes);
    }
}

/// Limits with a window of so many positions, where something is kept of prompts.
pub fn windowed(limits: Limits, positions: usize) -> Limits {
    let (sequences, prefill) = (limits.sequences, limits.prefill_tokens);
    let window = Window::of(positions, sequences, prefill, limits.snapshots);
    Limits {
        window: (limits.snapshots > 0).then_some(window),
        ..limits
    }
}

/// Copies that end between two looks, at most and one more.
const COPIES_MAX: u64 = 12;

/// A request that can be made again.
#[derive(Clone, Debug)]
pub struct Spec {
    pub prompt: Vec<TokenId>,
    pub max_tokens: usize,
    pub stop_tokens: Vec<TokenId>,
    pub sampling: Sampling,
    pub logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    pub constraint: Option<Toy>,
}

/// A constraint by hashes: some tokens may follow, the reply may end now and then, and is complete
/// after some tokens. Some have no word to say for a while, some break.
#[derive(Clone, Debug)]
pub struct Toy {
    seed: u64,
    taken: u64,
    /// Tokens after which nothing may follow.
    most: u64,
    /// Tokens before which everything may follow.
    free: u64,
    breaks: bool,
    /// Whether masks come late.
    slow: bool,
}

impl Toy {
    fn rule(&self, what: u64) -> u64 {
        mix(self.seed ^ self.taken << 16 ^ what)
    }

    fn may_stop(&self) -> bool {
        self.taken >= self.free && self.rule(1 << 40).is_multiple_of(4)
    }

    fn allows(&self, id: TokenId) -> bool {
        self.taken < self.free || self.rule(u64::from(id)).is_multiple_of(3)
    }

    /// Tokens that a plain loop over the model may take here, stop tokens as the engine treats
    /// them.
    fn allowed(&self, stop_tokens: &[TokenId]) -> Option<Vec<TokenId>> {
        if self.breaks && self.taken == self.most / 2 && self.taken >= self.free {
            return None;
        }
        let allows = |&id: &TokenId| match stop_tokens.contains(&id) {
            true => self.may_stop(),
            false => self.allows(id),
        };
        Some((0..VOCAB as TokenId).filter(allows).collect())
    }
}

const TOY_BROKE: &str = "the toy broke";

impl Constraint for Toy {
    fn next(&self) -> Next {
        match self.taken {
            taken if taken >= self.most => Next::Complete,
            taken if taken < self.free => Next::Free { stop: false },
            _ => Next::Masked,
        }
    }

    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
        if self.breaks && self.taken == self.most / 2 {
            return Err(TOY_BROKE.to_owned());
        }
        if self.slow {
            std::thread::sleep(2 * constraint::GRACE);
        }
        mask.fill(VOCAB);
        (0..VOCAB as TokenId).for_each(|id| mask.set(id, self.allows(id)));
        Ok(self.may_stop())
    }

    fn advance(&mut self, id: TokenId) -> Result<(), String> {
        assert!(self.allows(id), "a token that may not follow");
        self.taken += 1;
        Ok(())
    }
}

impl Spec {
    /// The request, and the end where its events arrive.
    pub fn request(&self, room: usize) -> (Request, EventReceiver) {
        let (events, receiver) = events::channel(&Arc::default(), room);
        let Spec {
            prompt,
            max_tokens,
            stop_tokens,
            sampling,
            logprobs,
            prompt_logprobs,
            constraint,
        } = self.clone();
        (
            Request {
                source: Source::default(),
                domain: 0,
                head: 0,
                prompt,
                max_tokens,
                stop_tokens,
                sampling,
                logprobs,
                prompt_logprobs,
                constraint: constraint.map(|toy| Box::new(toy) as Box<dyn Constraint>),
                admitted: Admitted::default(),
                events,
            },
            receiver,
        )
    }

    /// The scores that the request must give, each as an event, from a plain loop over the model.
    fn expected_scores(&self) -> Vec<Event> {
        let Some(count) = self.prompt_logprobs else {
            return vec![];
        };
        let (mut digest, mut logits, mut events) = (Digest::default(), Vec::new(), vec![]);
        for pair in self.prompt.windows(2) {
            digest.push(pair[0]);
            logits.clear();
            digest.logits::<VOCAB>(self.prompt[digest.probe()], &mut logits);
            if logits.iter().any(|logit| !logit.is_finite()) {
                events.push(Event::Failed(crate::sequence::NOT_FINITE.into()));
                return events;
            }
            let own = logits[pair[1] as usize];
            let above = logits.iter().filter(|&&logit| logit > own);
            let rank = above.count() as u32 + 1;
            let logprobs = sampler::logprobs(&logits, pair[1], count);
            events.push(Event::Prompt([Scored { logprobs, rank }].into()));
        }
        events
    }

    /// The events that the request must give, from a plain loop over the hash model.
    pub fn expected(&self, limits: &Limits) -> Vec<Event> {
        if let Err(text) = limits.check_request(&self.request(2).0, VOCAB) {
            return vec![Event::Failed(text.into())];
        }
        let mut events = self.expected_scores();
        if matches!(events.last(), Some(Event::Failed(_))) {
            return events;
        }
        if self.max_tokens == 0 {
            events.push(Event::Done(FinishReason::Length));
            return events;
        }
        let length_max = self.prompt.len() + self.max_tokens;
        let mut sampler = Sampler::new(
            self.sampling.clone(),
            &self.prompt,
            &self.stop_tokens,
            length_max,
        );
        let (mut tokens, mut digest) = (self.prompt.clone(), Digest::default());
        let (mut logits, mut scratch) = (Vec::new(), Scratch::default());
        let mut toy = self.constraint.clone();
        loop {
            tokens[digest.length..]
                .iter()
                .for_each(|&token| digest.push(token));
            logits.clear();
            digest.logits::<VOCAB>(tokens[digest.probe()], &mut logits);
            if logits.iter().any(|logit| !logit.is_finite()) {
                events.push(Event::Failed(crate::sequence::NOT_FINITE.into()));
                return events;
            }
            if let Some(toy) = &toy {
                let Some(allowed) = toy.allowed(&self.stop_tokens) else {
                    events.push(Event::Refused(TOY_BROKE.into()));
                    return events;
                };
                for id in (0..VOCAB).filter(|id| !allowed.contains(&(*id as TokenId))) {
                    logits[id] = f32::NEG_INFINITY;
                }
            }
            let Some(id) = sampler.next(&logits, tokens.len(), &mut scratch) else {
                events.push(Event::Refused(crate::sequence::NOTHING_LEFT.into()));
                return events;
            };
            let logprobs = self
                .logprobs
                .map(|count| Box::new(sampler::logprobs(&logits, id, count)));
            events.push(Event::Token { id, logprobs });
            tokens.push(id);
            let mut stop = self.stop_tokens.contains(&id);
            if let (Some(toy), false) = (&mut toy, stop) {
                toy.taken += 1;
                stop = toy.taken >= toy.most;
            }
            let stop = stop.then_some(FinishReason::Stop);
            let full = (tokens.len() == length_max).then_some(FinishReason::Length);
            if let Some(reason) = stop.or(full) {
                events.push(Event::Done(reason));
                return events;
            }
        }
    }
}

/// An event with one scored token in each: how many of them one step gives depends on the others.
pub fn singles(event: Event) -> Vec<Event> {
    match event {
        Event::Prompt(scores) => {
            let single = |score| Event::Prompt([score].into());
            scores.into_iter().map(single).collect()
        }
        event => vec![event],
    }
}

impl Spec {
    pub fn drawn(random: &mut Random) -> Spec {
        let prompt_len = match random.below(4) {
            0 => random.pick(&[1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE]),
            1 => random.within(1, 6 * PAGE),
            _ => random.within(1, 40),
        };
        let mut prompt = random.tokens(1..VOCAB, prompt_len);
        if random.chance(0.6) {
            let stem = stem(random);
            prompt.splice(0..0, stem);
        }
        let mut spec = Spec {
            prompt,
            max_tokens: random.within(1, 50),
            stop_tokens: if random.chance(0.5) {
                vec![STOP]
            } else {
                vec![]
            },
            sampling: sampling(random, VOCAB),
            logprobs: random.chance(0.3).then(|| random.below(8)),
            prompt_logprobs: random.chance(0.3).then(|| random.below(8)),
            constraint: random.chance(0.3).then(|| Toy::drawn(random)),
        };
        if spec.constraint.is_some() {
            // This one holds from the first token, inside any reasoning.
            spec.sampling.thinking_budget = None;
        }
        match random.below(24) {
            0 => spec.max_tokens = 0,
            1 => spec.max_tokens = TINY.context,
            2..5 => spec.prompt[0] = POISON,
            _ => {}
        }
        spec
    }
}

impl Toy {
    fn drawn(random: &mut Random) -> Toy {
        Toy {
            seed: random.below(1 << 30) as u64,
            taken: 0,
            most: random.within(1, 30) as u64,
            free: random.pick(&[0, 0, 0, 3]),
            breaks: random.chance(0.1),
            slow: random.chance(0.005),
        }
    }
}

/// A beginning that other prompts have, too.
fn stem(random: &mut Random) -> Vec<TokenId> {
    let whole = random.below(3) as u64;
    let length = match random.below(3) {
        0 => PAGE * random.within(1, 6),
        1 => random.pick(&[PAGE - 1, PAGE + 1, 2 * PAGE - 1, 2 * PAGE + 1]),
        _ => random.within(1, 6 * PAGE),
    };
    let token = |at| mix(whole << 32 | at) % (VOCAB as u64 - 1) + 1;
    (0..length as u64).map(|at| token(at) as TokenId).collect()
}

fn drawn_limits(random: &mut Random) -> Limits {
    let limits = Limits {
        sequences: random.within(1, 8),
        snapshots: random.pick(&[0, 1, 2, 8]),
        window: None,
        drafts: random.pick(&[0, 1, 7, 7, 14]),
        speculate: match random.below(3) {
            0 => Speculate::Auto,
            _ => Speculate::Depth(random.within(0, DEPTH_MAX)),
        },
        queued: random.within(1, 8),
        pages: random.within(2, 40),
        host_bytes: PIECE_ALIGN * random.pick(&[0, 18, 40, 200]),
        prefill_tokens: PAGE * random.within(1, 5),
        ..Limits::of(&TINY)
    };
    match random.pick(&[0, 0, 1, 70, 300]) {
        0 => limits,
        positions => windowed(limits, positions),
    }
}

/// The engine without its thread: each test says when it works.
pub fn engine<E: Executor>(limits: Limits, executor: E) -> (Handle, Engine<E>) {
    let (handle, inbox, shared) = Handle::new(&limits);
    let runtime = runtime().expect("a runtime without I/O starts");
    let mut engine = Engine::new(executor, runtime, limits, inbox, shared);
    engine.open_tier(None).expect("there is room");
    (handle, engine)
}

thread_local! {
    /// Prompts of this thread's test with the replies that they shall get.
    static TOLD: RefCell<Vec<Vec<TokenId>>> = const { RefCell::new(Vec::new()) };
}

/// Has drafters that know what comes know of a reply.
fn tell(spec: &Spec, expected: &[Event]) {
    let token = |event: &Event| match event {
        Event::Token { id, .. } => Some(*id),
        _ => None,
    };
    let reply = expected.iter().filter_map(token);
    let whole = spec.prompt.iter().copied().chain(reply).collect();
    TOLD.with_borrow_mut(|told| told.push(whole));
}

/// Has them know this prompt and its reply alone.
pub fn tell_alone(whole: Vec<TokenId>) {
    TOLD.set(vec![whole]);
}

/// Tokens that come after `known`, mostly: another request may have the same prompt.
pub fn oracle(known: &[TokenId], most: usize) -> Vec<TokenId> {
    TOLD.with_borrow(|told| {
        let whole = told.iter().find(|whole| whole.starts_with(known));
        let rest = whole.map_or(&[][..], |whole| &whole[known.len()..]);
        rest[..most.min(rest.len())].to_vec()
    })
}

/// Never what comes.
pub fn wrong(known: &[TokenId], most: usize) -> Vec<TokenId> {
    let other = |id: TokenId| (id + 1) % VOCAB as TokenId;
    oracle(known, most).into_iter().map(other).collect()
}

/// Anything, as many as it likes.
pub fn random(known: &[TokenId], most: usize) -> Vec<TokenId> {
    let mut random = Random::new(mix(known.len() as u64 ^ u64::from(known[0]) << 32));
    let count = random.within(0, most);
    random.tokens(0..VOCAB, count)
}

/// Tokens that come, up to some place.
fn partly(known: &[TokenId], most: usize) -> Vec<TokenId> {
    let mut drafts = oracle(known, most);
    let place = mix(known.len() as u64) as usize % 8;
    if let Some(draft) = drafts.get_mut(place) {
        *draft = (*draft + 1) % VOCAB as TokenId;
    }
    drafts
}

const DRAFTERS: [Drafter; 6] = [
    Drafter::NGram,
    Drafter::Mtp,
    Drafter::Given(oracle),
    Drafter::Given(wrong),
    Drafter::Given(random),
    Drafter::Given(partly),
];

struct Client {
    expected: Vec<Event>,
    read: usize,
    receiver: Option<EventReceiver>,
    /// Events that it reads per round.
    reads: usize,
    leaves_at: Option<usize>,
}

impl Client {
    /// Reads up to `count` events, each of which must be the next expected one.
    fn read(&mut self, count: usize, device_failed: bool) {
        for _ in 0..count {
            let Some(receiver) = &mut self.receiver else {
                return;
            };
            let Ok(event) = receiver.try_recv() else {
                return;
            };
            if device_failed && event == Event::Failed(DEVICE_FAILED.into()) {
                self.expected.truncate(self.read);
                self.expected.push(event.clone());
            }
            for event in singles(event) {
                let expected = self.expected.get(self.read);
                assert!(
                    expected.is_some_and(|expected| alike(&event, expected)),
                    "event {}: {event:?}, expected {expected:?}",
                    self.read
                );
                self.read += 1;
            }
        }
    }
}

/// Equal, but for the rounding of a device's sum of a row.
fn alike(found: &Event, expected: &Event) -> bool {
    let (
        Event::Token { id, logprobs },
        Event::Token {
            id: other,
            logprobs: wanted,
        },
    ) = (found, expected)
    else {
        return found == expected;
    };
    let near = |a: f32, b: f32| a == b || (a - b).abs() <= 1e-6 * b.abs().max(1.0);
    let same = |a: &TokenLogprobs, b: &TokenLogprobs| {
        let mut tops = a.top.iter().zip(&b.top);
        near(a.logprob, b.logprob)
            && a.top.len() == b.top.len()
            && tops.all(|(a, b)| a.0 == b.0 && near(a.1, b.1))
    };
    id == other
        && match (logprobs, wanted) {
            (Some(a), Some(b)) => same(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
}

struct Simulation {
    random: Random,
    limits: Limits,
    handle: Handle,
    engine: Engine<HashModel<VOCAB>>,
    clients: Vec<Client>,
    rejected: usize,
    round: usize,
    /// Whether replies may have constraints, whose masks come in real time.
    constrained: bool,
    floods: usize,
    /// Rounds that began sequences where each page was used or kept.
    crowded: usize,
    /// A digest of all steps.
    trace: u64,
}

/// Rounds in which requests may arrive.
const ARRIVAL_ROUNDS: usize = 120;
/// Rounds in which the last copies end.
const COPY_ROUNDS: usize = 1000;
/// Requests of a flood, more than wait or run at once.
const BURST: usize = 20;

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = drawn_limits(&mut random);
        let steps = if random.chance(0.1) {
            random.below(200) as u64
        } else {
            u64::MAX
        };
        let mut model = HashModel::failing_after(&limits, steps);
        model.ranks = random.below(2) * random.within(1, VOCAB);
        model.draws = random.chance(0.5);
        model.slow = random.pick(&[0.0, 0.02, 0.3]);
        let (handle, mut engine) = engine(limits, model);
        engine.drafter = random.pick(&DRAFTERS);
        engine.now = simulated;
        TOLD.take();
        Simulation {
            random,
            limits,
            handle,
            engine,
            clients: vec![],
            rejected: 0,
            round: 0,
            constrained: true,
            floods: 0,
            crowded: 0,
            trace: 0,
        }
    }

    /// Many requests of one client at once.
    fn flood(&mut self) {
        let client = self.random.below(3) as u64;
        self.floods += 1;
        (0..BURST).for_each(|_| self.arrive(client));
    }

    fn arrive(&mut self, client: u64) {
        let mut spec = Spec::drawn(&mut self.random);
        spec.constraint = spec.constraint.filter(|_| self.constrained);
        let (mut request, receiver) = spec.request(self.random.within(3, 6));
        request.source = Source {
            client,
            returns: self.random.chance(0.5),
            connection: self.random.below(2) as u64,
            call: (self.clients.len() / 2) as u64,
        };
        request.domain = self.random.pick(&[0, 1, COMMON]);
        request.head = self.random.below(8 * PAGE);
        let tokens = request.prompt.len();
        let full = !self.handle.has_capacity(request.source, tokens);
        match self.handle.submit(request) {
            Ok(()) => assert!(!full, "the queue takes more than it may"),
            Err(Rejected::Full(_)) => {
                assert!(full, "a request is turned away although there is room");
                self.rejected += 1;
                return;
            }
            Err(Rejected::Stopped(_)) => panic!("the engine runs"),
        }
        let stays = self.random.chance(0.7);
        let expected = spec.expected(&self.limits);
        tell(&spec, &expected);
        self.clients.push(Client {
            expected,
            read: 0,
            receiver: Some(receiver),
            reads: self.random.pick(&[0, 1, 1, 2, 9]),
            leaves_at: (!stays).then(|| self.round + self.random.below(40)),
        });
    }

    /// The promises that hold after each round that stepped.
    fn check_step(&self) {
        let Engine {
            candidates,
            plan,
            kv,
            tier,
            running,
            limits,
            prompt_tokens,
            ..
        } = &self.engine;
        assert!(candidates.len() <= limits.slots() && plan.scheduled.len() <= limits.sequences);
        assert!(kv.is_conserved(running.len(), crate::lent(running)));
        assert_eq!(kv.check_integrity(), Ok(()));
        assert!(tier.as_ref().is_none_or(Tier::is_conserved));
        assert!(
            running
                .iter()
                .all(|sequence| sequence.restoring || !sequence.is_abandoned()),
            "a reader has left"
        );
        let rows_of = |index| {
            plan.scheduled
                .iter()
                .find(|of| of.index == index)
                .map(|of| of.tokens)
        };
        let (mut prefill, mut scored, mut drafts) = (0, 0, 0);
        let mut oldest_seen = false;
        for (index, candidate) in candidates.iter().enumerate() {
            let rows = rows_of(index);
            assert!(
                candidate.ready || rows.is_none(),
                "a slow reader's sequence runs"
            );
            if candidate.computed >= candidate.prompt {
                let wanted = candidate.ready.then_some(1 + candidate.drafts);
                assert_eq!(rows, wanted, "a reply waits");
                drafts += candidate.drafts;
                continue;
            }
            if candidate.ready && !oldest_seen {
                oldest_seen = true;
                let left = candidate.prompt - candidate.computed;
                let share = match candidate.scored {
                    true => scheduler::SCORED_TOKENS,
                    false => (prompt_tokens / 2).max(PAGE) / PAGE * PAGE,
                };
                assert!(
                    rows.is_some_and(|rows| rows >= left.min(share).min(candidate.most)),
                    "the oldest prompt waits"
                );
            }
            let end = candidate.computed + rows.unwrap_or(0);
            assert!(
                end == candidate.prompt || end.is_multiple_of(PAGE),
                "a cut off the grid"
            );
            prefill += rows.unwrap_or(0);
            scored += if candidate.scored {
                rows.unwrap_or(0)
            } else {
                0
            };
        }
        assert!(
            scored <= scheduler::SCORED_TOKENS,
            "too many tokens are scored"
        );
        assert!(drafts <= limits.drafts, "too many drafts");
        assert!(
            prefill <= limits.prefill_tokens,
            "the prompt budget is exceeded"
        );
    }

    fn tick(&mut self) -> Result<Round, DeviceError> {
        let (kv, begun) = (&self.engine.kv, self.engine.running.len());
        let full = kv.pages_used() + kv.pages_cached() == self.limits.pages;
        let round = self.engine.round()?;
        self.check_step();
        self.crowded += usize::from(full && self.engine.running.len() > begun);
        for of in &self.engine.plan.scheduled {
            self.trace = mix(self.trace ^ (of.index << 32 | of.tokens) as u64);
        }
        self.round += 1;
        for client in &mut self.clients {
            client.read(client.reads, false);
            if client.leaves_at.is_some_and(|at| at <= self.round) {
                client.receiver = None;
            }
        }
        Ok(round)
    }

    /// Lets everything run to its end, within a bound that starvation would break.
    fn finish(&mut self) -> Result<(), DeviceError> {
        self.clients
            .iter_mut()
            .for_each(|client| client.reads = usize::MAX);
        let work = |client: &Client| client.expected.len() + TINY.context / PAGE;
        let bound = 2 * self.clients.iter().map(work).sum::<usize>() + COPY_ROUNDS;
        self.handle.drain();
        for _ in 0..bound {
            if self.tick()? == Round::Finished {
                return Ok(());
            }
        }
        panic!("the engine does not come to an end within {bound} rounds");
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        let busy = self.random.pick(&[0.1, 0.5, 1.5]);
        for _ in 0..ARRIVAL_ROUNDS {
            for _ in 0..self.random.within(0, 3) {
                if self.random.chance(busy / 2.0) {
                    let client = self.random.below(3) as u64;
                    self.arrive(client);
                }
            }
            if self.random.chance(0.002) {
                self.flood();
            }
            self.tick()?;
        }
        self.finish()
    }

    /// Everybody who stayed got exactly what was expected; everything is back; the counts agree.
    fn check_end(&mut self, device_failed: bool) {
        for client in self.clients.iter_mut() {
            client.read(usize::MAX, device_failed);
            if let Some(receiver) = &mut client.receiver {
                assert_eq!(client.read, client.expected.len(), "events are missing");
                assert_eq!(
                    receiver.try_recv(),
                    Err(mpsc::error::TryRecvError::Disconnected)
                );
            }
        }
        let stats = self.handle.stats();
        let ended = [
            &stats.finished_stop,
            &stats.finished_length,
            &stats.failed,
            &stats.cancelled,
        ];
        let ended: u64 = ended.iter().map(|figure| figure.get()).sum();
        assert_eq!(
            ended,
            self.clients.len() as u64,
            "each accepted request ends once"
        );
        assert_eq!(stats.rejected.get(), self.rejected as u64);
        assert_eq!((stats.waiting.get(), stats.running.get()), (0, 0));
        assert!(device_failed || stats.pages_used.get() == 0);
    }
}

/// Counts of what happened in some simulations, to show that they reach what they shall test.
#[derive(Debug, Default)]
struct Coverage {
    simulations: u64,
    /// Requests that were accepted.
    requests: u64,
    failed_devices: u64,
    rejected: u64,
    cancelled: u64,
    failed: u64,
    finished: u64,
    cached: u64,
    restored: u64,
    floods: u64,
    /// See `Simulation::crowded`.
    crowded: u64,
    steps: u64,
    slow_steps: u64,
    drafted: u64,
    accepted: u64,
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Coverage) {
        self.simulations += other.simulations;
        self.requests += other.requests;
        self.failed_devices += other.failed_devices;
        self.rejected += other.rejected;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.finished += other.finished;
        self.cached += other.cached;
        self.restored += other.restored;
        self.floods += other.floods;
        self.crowded += other.crowded;
        self.steps += other.steps;
        self.slow_steps += other.slow_steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

impl Coverage {
    fn reaches_every_case(&self) -> bool {
        let happened = [
            self.failed_devices,
            self.rejected,
            self.cancelled,
            self.failed,
            self.floods,
            self.crowded,
            self.slow_steps,
        ];
        happened.iter().all(|&count| count > 0)
            && self.finished > 1000
            && self.cached > 10_000
            && self.restored > 1000
            && self.accepted > 1000
            && self.drafted > self.accepted
    }
}

fn simulate(simulation: &mut Simulation) -> Coverage {
    let device_failed = simulation.run().is_err();
    if device_failed {
        simulation.engine.stop(DEVICE_FAILED);
    }
    simulation.check_end(device_failed);
    let stats = simulation.handle.stats();
    Coverage {
        simulations: 1,
        requests: simulation.clients.len() as u64,
        failed_devices: u64::from(device_failed),
        rejected: simulation.rejected as u64,
        cancelled: stats.cancelled.get(),
        failed: stats.failed.get(),
        finished: stats.finished_stop.get() + stats.finished_length.get(),
        cached: stats.cached_tokens.get(),
        restored: stats.restored_tokens.get(),
        floods: simulation.floods as u64,
        crowded: simulation.crowded as u64,
        steps: stats.steps.get(),
        slow_steps: simulation.engine.executor.slow_steps as u64,
        drafted: stats.drafted_tokens.get(),
        accepted: stats.accepted_tokens.get(),
    }
}

/// Simulations, their numbers being their seeds: many where the engine is optimised, and at length
/// a million requests.
const SEEDS: u64 = few_or_many(if cfg!(debug_assertions) { 250 } else { 10_000 }, 36_000);

#[test]
fn every_promise_holds_in_every_simulation() {
    let run = |(): &mut (), seed, coverage: &mut Coverage| {
        *coverage += simulate(&mut Simulation::new(seed));
    };
    let coverage = spread(SEEDS, || (), run);
    println!("{coverage:?}");
    assert!(
        coverage.reaches_every_case(),
        "the simulations no longer reach every case"
    );
    assert!(coverage.requests >= few_or_many(0, 1_000_000));
}

/// A simulation in which copies end after the admission of requests that wait for them. When they
/// do depends on threads, so it runs often.
#[test]
fn a_request_is_not_lost_where_a_copy_ends_after_its_admission() {
    const SEED: u64 = 86;
    for _ in 0..100 {
        simulate(&mut Simulation::new(SEED));
    }
}

#[test]
fn a_seed_gives_the_same_steps_again() {
    let steps = |seed| {
        let mut simulation = Simulation::new(seed);
        simulation.constrained = false;
        simulate(&mut simulation);
        simulation.trace
    };
    for seed in 0..10 {
        assert_eq!(steps(seed), steps(seed), "seed {seed}");
    }
}

/// Runs the specs together to their end; events of each.
pub fn run_together(specs: &[Spec], limits: Limits) -> Vec<Vec<Event>> {
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let mut receivers = Vec::new();
    for spec in specs {
        let scores = spec.prompt.len().div_ceil(PAGE);
        let room = spec.max_tokens.min(TINY.context) + scores + 2;
        let (request, receiver) = spec.request(room);
        handle.submit(request).expect("the queue holds all of them");
        receivers.push(receiver);
    }
    handle.drain();
    while engine.round().expect("this device does not fail") != Round::Finished {}
    let drain = |mut receiver: EventReceiver| {
        std::iter::from_fn(move || receiver.try_recv().ok())
            .flat_map(singles)
            .collect()
    };
    receivers.into_iter().map(drain).collect()
}

#[test]
fn events_are_the_same_alone_and_in_any_batch() {
    let mut random = Random::new(11);
    let specs: Vec<Spec> = (0..40).map(|_| Spec::drawn(&mut random)).collect();
    let limits = |sequences, pages, prefill_pages| Limits {
        sequences,
        snapshots: sequences / 2,
        window: None,
        drafts: 2 * sequences,
        speculate: Speculate::Depth(3),
        queued: specs.len(),
        pages,
        prefill_tokens: prefill_pages * PAGE,
        ..Limits::of(&TINY)
    };
    let alone: Vec<Vec<Event>> = specs
        .iter()
        .map(|spec| run_together(std::slice::from_ref(spec), limits(1, 32, 32)).remove(0))
        .collect();
    for limits in [
        limits(1, 32, 1),
        limits(3, 32, 2),
        limits(16, 32, 3),
        limits(40, 512, 8),
    ] {
        assert_eq!(run_together(&specs, limits), alone, "{limits:?}");
    }
}

#[test]
fn a_prompt_goes_on_after_the_head_of_the_first_that_had_it() {
    let head = 3 * PAGE + 5;
    let limits = Limits {
        snapshots: 4,
        window: None,
        ..drawn_limits(&mut Random::new(13))
    };
    let cached = |told: usize| {
        let pages = limits.pages.max(20);
        let limits = Limits { pages, ..limits };
        let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
        for own in 1..3 {
            let tokens = |position| if position < head { 9 } else { own };
            let mut spec = Spec::drawn(&mut Random::new(14));
            spec.prompt = (0..6 * PAGE).map(tokens).collect();
            (spec.max_tokens, spec.prompt_logprobs) = (1, None);
            let (mut request, _receiver) = spec.request(4);
            request.head = told;
            handle.submit(request).expect("there is room");
            while engine.round().expect("this device does not fail") != Round::Idle {}
        }
        handle.stats().cached_tokens.get()
    };
    assert_eq!([0, head].map(cached), [0, 3 * PAGE as u64]);
}

#[test]
fn pages_of_a_window_stay_few_while_a_sequence_grows_and_prompts_go_on_from_the_last() {
    const LONG: usize = 20 * PAGE;
    let limits = Limits {
        sequences: 1,
        snapshots: 3,
        drafts: 7,
        speculate: Speculate::Depth(5),
        queued: 1,
        pages: 80,
        prefill_tokens: 2 * PAGE,
        spacing: 2 * PAGE,
        ..Limits::of(&TINY)
    };
    let limits = windowed(limits, 100);
    let window = limits.window.expect("there are snapshots");
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let mut spec = Spec::drawn(&mut Random::new(21));
    spec.prompt = (0..LONG).map(|at| (at % 40 + 1) as TokenId).collect();
    (spec.max_tokens, spec.stop_tokens, spec.prompt_logprobs) = (6 * PAGE, vec![], None);
    (spec.constraint, spec.sampling) = (None, Sampling::default());
    let mut most = 0;
    for _ in 0..2 {
        let (request, _receiver) = spec.request(spec.max_tokens + 2);
        handle.submit(request).expect("there is room");
        while engine.round().expect("this device does not fail") != Round::Idle {
            let sequences = engine.running.iter();
            let held = sequences.map(|of| engine.kv.window(of.slot).pages.len());
            most = most.max(held.sum());
        }
    }
    assert!(
        (1..=window.sequence_pages()).contains(&most),
        "{most} pages"
    );
    assert!(engine.kv.window_pages_used() <= 3 * window.snapshot_pages());
    assert_eq!(handle.stats().cached_tokens.get(), (LONG - PAGE) as u64);
}

/// Pages and tokens of prompts that come at once.
const EQUAL: usize = 10;
const EQUAL_TOKENS: usize = EQUAL * PAGE + 20;

/// Tokens that are computed for four equal prompts that come at once, of clients and domains, whose
/// first leaves after so many rounds.
fn computed_of_equals(snapshots: usize, whose: [(u64, u128); 4], leaves: usize) -> u64 {
    let limits = Limits {
        sequences: 8,
        snapshots,
        window: None,
        drafts: 0,
        speculate: Speculate::Off,
        queued: 8,
        pages: 80,
        prefill_tokens: PAGE,
        ..Limits::of(&TINY)
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let mut spec = Spec::drawn(&mut Random::new(18));
    spec.prompt = (0..EQUAL_TOKENS)
        .map(|at| (at % 40 + 1) as TokenId)
        .collect();
    (spec.max_tokens, spec.stop_tokens, spec.prompt_logprobs) = (3, vec![], None);
    (spec.constraint, spec.sampling) = (None, Sampling::default());
    let mut receivers: Vec<_> = whose
        .iter()
        .map(|&(client, domain)| {
            let (mut request, receiver) = spec.request(8);
            (request.source.client, request.domain) = (client, domain);
            handle.submit(request).expect("there is room");
            Some(receiver)
        })
        .collect();
    handle.drain();
    for round in 0.. {
        if round == leaves {
            receivers[0] = None;
        }
        if engine.round().expect("this device does not fail") == Round::Finished {
            break;
        }
    }
    let expected = spec.expected(&limits);
    for mut receiver in receivers.into_iter().flatten() {
        let events: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(events, expected);
    }
    handle.stats().prompt_tokens.get()
}

#[test]
fn equal_prompts_that_come_at_once_are_computed_once() {
    let one = [(1, 1); 4];
    let all = EQUAL_TOKENS as u64;
    for snapshots in [0, 8] {
        let computed = |whose, leaves| computed_of_equals(snapshots, whose, leaves);
        assert_eq!(
            computed(one, usize::MAX),
            all + 3 * 20,
            "{snapshots} states"
        );
        // The first leaves before its end: the next goes on where it was, or from its last state.
        let lost = computed(one, 7);
        assert!(lost < all + 2 * 20 + 4 * PAGE as u64, "{lost}");
        let domains = [(1, 1), (1, 2), (1, 3), (1, 4)];
        assert_eq!(
            computed(domains, usize::MAX),
            4 * all,
            "others learn nothing"
        );
    }
    // A state takes its place from others that are worth less; where there is none, each computes.
    assert!(computed_of_equals(1, one, usize::MAX) >= all);
}

/// Requests of a flood, with prompts and replies of some pages.
const FLOOD: usize = 200;

#[test]
fn a_flood_leaves_another_client_its_working_set() {
    let limits = Limits {
        sequences: 8,
        snapshots: 16,
        window: None,
        drafts: 0,
        speculate: Speculate::Off,
        queued: FLOOD,
        pages: 64,
        prefill_tokens: 4 * PAGE,
        ..Limits::of(&TINY)
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let mut random = Random::new(15);
    let submit = |client: u64, domain: u128, prompt: Vec<TokenId>, max_tokens| {
        let spec = Spec {
            prompt,
            max_tokens,
            stop_tokens: vec![],
            sampling: Sampling::default(),
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
        };
        let (mut request, receiver) = spec.request(max_tokens + 2);
        (request.source.client, request.domain) = (client, domain);
        let admitted = request.admitted.clone();
        handle.submit(request).expect("there is room");
        (admitted, receiver)
    };
    let mut run = |asked: &mut Vec<_>| {
        while engine.round().expect("this device does not fail") != Round::Idle {}
        asked.clear();
    };
    let own: Vec<Vec<TokenId>> = (1..4).map(|first| vec![first; 5 * PAGE]).collect();
    let mut asked: Vec<_> = own.iter().map(|own| submit(1, 1, own.clone(), 1)).collect();
    run(&mut asked);
    for request in 0..FLOOD {
        // A domain for each, as one key may have by its salts.
        let first = random.within(5, VOCAB - 1) as TokenId;
        let prompt = (0..4 * PAGE).map(|at| first.max(at as TokenId % VOCAB as TokenId));
        asked.push(submit(2, 2 + request as u128, prompt.collect(), 2 * PAGE));
    }
    run(&mut asked);
    let mut again: Vec<_> = own.iter().map(|own| submit(1, 1, own.clone(), 1)).collect();
    let admitted: Vec<_> = again.iter().map(|(admitted, _)| admitted.clone()).collect();
    run(&mut again);
    let cached = admitted.iter().map(|of| of.get().expect("it ran").cached);
    assert_eq!(cached.collect::<Vec<_>>(), [4 * PAGE; 3]);
}

#[test]
fn what_the_model_itself_predicts_holds() {
    predictions_hold(false, &[0.0, 1.0]);
}

#[test]
fn what_the_device_draws_holds() {
    predictions_hold(true, &[0.0]);
}

/// Replies at some temperatures, with predictions that the host draws from, or the device.
fn predictions_hold(draws: bool, temperatures: &[f32]) {
    let mut random = Random::new(12);
    let limits = Limits {
        sequences: 6,
        snapshots: 2,
        window: None,
        drafts: 42,
        speculate: Speculate::Depth(5),
        queued: 20,
        pages: 80,
        prefill_tokens: 2 * PAGE,
        ..Limits::of(&TINY)
    };
    let model = HashModel::<VOCAB> {
        draws,
        ..HashModel::new(&limits)
    };
    let (handle, mut engine) = engine(limits, model);
    engine.drafter = Drafter::Mtp;
    let mut receivers = Vec::new();
    for first in 1..20 {
        let prompt = (0..random.within(1, 3 * PAGE)).map(|at| (first + at) as TokenId % 40 + 1);
        let spec = Spec {
            prompt: prompt.collect(),
            max_tokens: 40,
            stop_tokens: vec![],
            sampling: Sampling {
                temperature: random.pick(temperatures),
                seed: first as u64,
                ..Sampling::default()
            },
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
        };
        let (request, receiver) = spec.request(50);
        handle.submit(request).expect("there is room");
        receivers.push(receiver);
    }
    handle.drain();
    while engine.round().expect("this device does not fail") != Round::Finished {}
    let stats = handle.stats();
    let [drafted, accepted] = [&stats.drafted_tokens, &stats.accepted_tokens].map(|of| of.get());
    // Earlier tokens are drafted first, and seldom come again here.
    let holds = accepted * 20 > drafted * 19;
    assert!(drafted > 500 && holds, "{accepted} of {drafted}");
}

/// Rows that the prediction layer runs over for a prompt of some steps and its reply, where a step
/// takes `more_rows` longer for each further row.
fn predicted_rows(
    (speculate, more_rows): (Speculate, Duration),
    prompt: usize,
    reply: usize,
) -> usize {
    let limits = Limits {
        sequences: 1,
        snapshots: 2,
        window: None,
        drafts: 7,
        speculate,
        queued: 1,
        pages: 20,
        prefill_tokens: PAGE,
        ..Limits::of(&TINY)
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    engine.drafter = Drafter::Mtp;
    for rows in [1, 8] {
        engine.costs.note(rows, STEP + more_rows * rows as u32);
    }
    let mut spec = Spec::drawn(&mut Random::new(16));
    spec.prompt = (0..prompt).map(|at| (at % 40 + 1) as TokenId).collect();
    (spec.max_tokens, spec.stop_tokens, spec.prompt_logprobs) = (reply, vec![], None);
    (spec.constraint, spec.sampling) = (None, Sampling::default());
    let (request, _receiver) = spec.request(reply + 2);
    handle.submit(request).expect("there is room");
    handle.drain();
    while engine.round().expect("this device does not fail") != Round::Finished {}
    engine.executor.predicted_rows
}

#[test]
fn the_prediction_layer_knows_prompts_though_no_draft_is_wanted() {
    let prompt = 3 * PAGE + 5;
    let off = (Speculate::Off, ROW);
    assert_eq!(predicted_rows(off, prompt, 1), prompt);
    // After steps of a reply it has nothing to do then.
    assert_eq!(predicted_rows(off, prompt, 9), prompt);
    assert!(predicted_rows((Speculate::Depth(1), ROW), prompt, 9) > prompt);
}

#[test]
fn prompts_are_left_out_where_predictions_cannot_pay() {
    let auto = |more_rows| predicted_rows((Speculate::Auto, more_rows), 3 * PAGE, 1);
    assert_eq!(auto(ROW), 3 * PAGE);
    assert_eq!(auto(100 * STEP), 0);
}

#[test]
fn the_scheduler_is_a_function_of_its_state() {
    let candidates: Vec<_> = (1..20)
        .map(|i| scheduler::Candidate {
            prompt: 37 * i,
            computed: 0,
            most: usize::MAX,
            scored: i % 4 == 0,
            ready: i % 3 != 0,
            drafts: 0,
        })
        .collect();
    let (mut fresh, mut reused) = (scheduler::Plan::new(20), scheduler::Plan::new(0));
    scheduler::plan(&candidates[3..], 4 * PAGE, &mut reused);
    scheduler::plan(&candidates, 4 * PAGE, &mut reused);
    scheduler::plan(&candidates, 4 * PAGE, &mut fresh);
    assert_eq!(fresh.scheduled, reused.scheduled);
}
