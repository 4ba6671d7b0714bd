//! Sequences run through an executor without an engine: golden replay, checks and measurements.

use model::target::{KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, WINDOW};
use step::Window;
use step::executor::{BlockTable, DeviceError, Executor, PageId, SeqRows, Slot, States, TokenId};

/// A sequence with a slot and pages of its own. Only sessions may use the executor meanwhile.
pub struct Session {
    /// State that the next step reads.
    from: Slot,
    slot: Slot,
    pages: Vec<PageId>,
    window: Vec<PageId>,
    len: usize,
}

impl Session {
    /// A session in slot 0, on the first pages.
    pub fn new() -> Session {
        Session::beside(0, MAX_CONTEXT.min(KV_PAGES * PAGE))
    }

    /// The `index`-th of several sessions side by side, each with pages for `tokens` tokens.
    pub fn beside(index: usize, tokens: usize) -> Session {
        let each = tokens.div_ceil(PAGE);
        let pages = index * each..(index + 1) * each;
        Session {
            from: Slot(index as u32),
            slot: Slot(index as u32),
            pages: pages.map(|page| PageId(page as u32)).collect(),
            window: window_ring(index, tokens, PREFILL_TOKENS),
            len: 0,
        }
    }

    /// A session that continues this one in another slot, on the same pages. When the other has
    /// ended, this one may continue from its own state, and overwrites the other's keys and values.
    pub fn fork(&self, slot: Slot) -> Session {
        Session {
            from: self.slot,
            slot,
            pages: self.pages.clone(),
            window: self.window.clone(),
            len: self.len,
        }
    }

    /// The next rows of the sequence, with logits of the last one.
    fn rows<'a>(&'a self, tokens: &'a [TokenId]) -> SeqRows<'a> {
        let used = (self.len + tokens.len())
            .div_ceil(PAGE)
            .min(self.pages.len());
        SeqRows {
            states: States {
                from: self.from,
                ..States::own(self.slot)
            },
            window: BlockTable::whole(&self.window),
            ..SeqRows::of(self.slot, self.len, tokens, &self.pages[..used])
        }
    }

    /// Appends `tokens`, at most one step's worth, and computes the logits after the last one.
    pub fn step<E: Executor>(
        &mut self,
        executor: &mut E,
        tokens: &[TokenId],
    ) -> Result<(), DeviceError> {
        executor.step(&[self.rows(tokens)])?;
        self.went_on(tokens.len());
        Ok(())
    }

    fn went_on(&mut self, rows: usize) {
        (self.from, self.len) = (self.slot, self.len + rows);
    }
}

/// Number of sequences of `tokens` tokens that fit side by side.
pub fn fitting<E: Executor>(executor: &E, tokens: usize) -> usize {
    let pages = executor.pages().unwrap_or(usize::MAX);
    let fit = MAX_SEQUENCES.min(pages / tokens.div_ceil(PAGE));
    fit.min(rings_fitting(tokens, PREFILL_TOKENS))
}

/// Block table of the windowed group for the `index`-th of several sequences outside of an engine,
/// each of `tokens` tokens and at most `rows` rows in a step: a few pages of its own, reused in
/// turn. Empty if the model has no windowed group.
pub fn window_ring(index: usize, tokens: usize, rows: usize) -> Vec<PageId> {
    let Some(window) = WINDOW else { return vec![] };
    let pages = ring_pages(&window, tokens, rows);
    let page = |at: usize| PageId((index * pages + at % pages) as u32);
    (0..tokens.div_ceil(PAGE)).map(page).collect()
}

/// Number of block tables of [`window_ring`] for `tokens` and `rows` that there are pages for.
pub fn rings_fitting(tokens: usize, rows: usize) -> usize {
    let rings = |window: Window| window.pages / ring_pages(&window, tokens, rows);
    WINDOW.map_or(usize::MAX, rings)
}

fn ring_pages(window: &Window, tokens: usize, rows: usize) -> usize {
    let most = window.sequence_pages() + rows.div_ceil(PAGE);
    most.min(tokens.div_ceil(PAGE))
}

/// Appends a token to each session in one step; the logits are in the order of `sessions`.
pub fn step_together<E: Executor>(
    executor: &mut E,
    sessions: &mut [&mut Session],
    tokens: &[TokenId],
) -> Result<(), DeviceError> {
    let rows = sessions.iter().zip(tokens);
    let rows: Vec<_> = rows
        .map(|(session, token)| session.rows(std::slice::from_ref(token)))
        .collect();
    executor.step(&rows)?;
    sessions.iter_mut().for_each(|session| session.went_on(1));
    Ok(())
}

/// The most likely token, the lowest id on a tie.
pub fn most_likely(logits: &[f32]) -> TokenId {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (1..logits.len()).fold(0, better) as TokenId
}
