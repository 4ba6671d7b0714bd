//! Drafts of one reply: tokens, and the recurrent states behind them.

use super::kv::Kv;
use super::speculate::{Grams, Reply, Trust};
use crate::executor::{Slot, TokenId};

/// Who drafts.
#[derive(Clone, Copy, Debug)]
pub enum Drafter {
    /// Earlier tokens of the sequence.
    Grams,
    /// Those; where they have none, the model's prediction layer.
    Prediction,
    /// A function of the sequence, which appends to it.
    #[cfg(test)]
    Told(fn(&[TokenId], usize) -> Vec<TokenId>),
}

/// Tokens that a reply tries in its next rows.
#[derive(Debug, Default)]
pub struct Drafts {
    grams: Grams,
    trust: Trust,
    /// Tokens of the sequence behind which the prediction layer drafted, and its drafts.
    predicted: (usize, Vec<TokenId>),
    /// Tokens of the next rows, if there are drafts: the last known one, then those.
    rows: Vec<TokenId>,
    /// States behind those rows but the last, if the model has states.
    behind: Vec<Slot>,
    /// The state of a draft that the sequence goes on from.
    held: Option<Slot>,
}

impl Drafts {
    /// Drafts up to `most` tokens behind `known`, the whole sequence; tells how many there are, and
    /// how often they held.
    pub fn draft(&mut self, drafter: Drafter, known: &[TokenId], most: usize) -> Reply {
        self.rows.clear();
        self.rows.extend(known.last());
        match drafter {
            Drafter::Grams => self.grams.draft(known, most, &mut self.rows),
            Drafter::Prediction => {
                self.grams.draft(known, most, &mut self.rows);
                let (behind, predicted) = &self.predicted;
                if self.rows.len() == 1 && *behind == known.len() {
                    self.rows.extend(predicted.iter().take(most));
                }
            }
            #[cfg(test)]
            Drafter::Told(told) => self.rows.extend(told(known, most)),
        }
        self.reply()
    }

    /// Number of them, and trust in them.
    pub fn reply(&self) -> Reply {
        Reply {
            trust: self.trust,
            drafts: self.rows.len().saturating_sub(1),
        }
    }

    /// Forgets what was predicted, for predictions behind so many tokens.
    pub fn begin_prediction(&mut self, known: usize) {
        self.predicted.0 = known;
        self.predicted.1.clear();
    }

    /// Adds what the prediction layer drafts next.
    pub fn add_predicted(&mut self, token: TokenId) {
        self.predicted.1.push(token);
    }

    /// Drafts of the prediction layer.
    pub fn predicted(&self) -> &[TokenId] {
        &self.predicted.1
    }

    /// Keeps as many as `chosen` has.
    pub fn choose(&mut self, chosen: Reply) {
        self.trust = chosen.faded(self.rows.len() - 1);
        match chosen.drafts {
            0 => self.rows.clear(),
            drafts => self.rows.truncate(1 + drafts),
        }
    }

    /// Takes the states that they need.
    pub fn lend(&mut self, kv: &mut Kv) {
        if self.rows.is_empty() || !kv.recurs() {
            return;
        }
        self.behind.extend(self.held.take());
        while self.behind.len() + 1 < self.rows.len() {
            self.behind.push(kv.lend_draft());
        }
    }

    /// Tokens of the next rows and the states behind those but the last; none without drafts.
    pub fn rows(&self) -> (&[TokenId], &[Slot]) {
        (&self.rows, &self.behind)
    }

    /// Whether draft `index` is `token`.
    pub fn is(&self, index: usize, token: TokenId) -> bool {
        self.rows.get(1 + index) == Some(&token)
    }

    /// Gives back the states but the one behind the last draft that held, `count` in all. That is
    /// the one to go on from, if it is not the sequence's own.
    pub fn settle(&mut self, count: usize, kv: &mut Kv) -> Option<Slot> {
        if self.rows.is_empty() {
            self.release(kv);
            return None;
        }
        self.trust.note(self.rows.len() - 1, count);
        self.rows.clear();
        self.held = self.behind.get(count).copied();
        for state in self.behind.drain(..) {
            if Some(state) != self.held {
                kv.give_back_draft(state);
            }
        }
        self.held
    }

    /// Gives back the state that it holds.
    pub fn release(&mut self, kv: &mut Kv) {
        if let Some(state) = self.held.take() {
            kv.give_back_draft(state);
        }
    }

    /// States that it holds between steps.
    pub fn held(&self) -> usize {
        usize::from(self.held.is_some())
    }
}
