//! Sequences driven straight through an executor: golden replay, checks and measurements.

use crate::target::{KV_PAGES, MAX_CONTEXT, PAGE};
use step::executor::{DeviceError, Executor, PageId, Rows, Slot, States, TokenId};

/// A sequence in a slot on pages of its own. Nothing but sessions may use the executor meanwhile.
pub struct Session {
    slot: Slot,
    pages: Vec<PageId>,
    len: usize,
}

impl Session {
    /// The only one: in slot 0 on the first pages.
    pub fn new() -> Session {
        Session::beside(0, MAX_CONTEXT.min(KV_PAGES * PAGE))
    }

    /// The `index`-th of sessions side by side, each with room for `tokens`.
    pub fn beside(index: usize, tokens: usize) -> Session {
        let each = tokens.div_ceil(PAGE);
        let pages = index * each..(index + 1) * each;
        Session {
            slot: Slot(index as u32),
            pages: pages.map(|page| PageId(page as u32)).collect(),
            len: 0,
        }
    }

    /// The next rows of the sequence. The logits of the last one are wanted.
    fn rows<'a>(&'a self, tokens: &'a [TokenId]) -> Rows<'a> {
        let held = (self.len + tokens.len()).div_ceil(PAGE);
        Rows {
            states: States::own(self.slot),
            start: self.len,
            tokens,
            pages: &self.pages[..held.min(self.pages.len())],
            behind: &[],
            logits: 1,
        }
    }

    /// Appends `tokens`, at most one step's worth, and computes the logits after the last one.
    ///
    /// # Errors
    /// `DeviceError` of the step.
    pub fn step<E: Executor>(
        &mut self,
        executor: &mut E,
        tokens: &[TokenId],
    ) -> Result<(), DeviceError> {
        executor.step(&[self.rows(tokens)])?;
        self.len += tokens.len();
        Ok(())
    }
}

/// Appends a token to each session in one step; the logits are in the order of `sessions`.
///
/// # Errors
/// `DeviceError` of the step.
pub fn step_together<E: Executor>(
    executor: &mut E,
    sessions: &mut [Session],
    tokens: &[TokenId],
) -> Result<(), DeviceError> {
    let rows = sessions.iter().zip(tokens);
    let rows: Vec<_> = rows
        .map(|(session, token)| session.rows(std::slice::from_ref(token)))
        .collect();
    executor.step(&rows)?;
    sessions.iter_mut().for_each(|session| session.len += 1);
    Ok(())
}

/// The most likely token, the lowest id on a tie.
pub fn most_likely(logits: &[f32]) -> TokenId {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (1..logits.len()).fold(0, better) as TokenId
}
