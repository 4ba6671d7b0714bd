//! Drafts of one reply: tokens, and the recurrent states behind them.

use super::kv::Kv;
use super::speculate::{Costs, Grams, Reply, Scores};
use super::trust::{Maker, Score, Trust};
use step::executor::{Slot, TokenId};

/// Who drafts.
#[derive(Clone, Copy, Debug)]
pub enum Drafter {
    /// Earlier tokens of the sequence.
    Grams,
    /// Tokens of earlier text or of the model's prediction layer, whichever holds more often.
    Prediction,
    /// A function of the sequence, which appends to it.
    #[cfg(any(test, feature = "testing"))]
    Told(fn(&[TokenId], usize) -> Vec<TokenId>),
}

/// Tokens that a reply tries in its next rows.
#[derive(Debug, Default)]
pub struct Drafts {
    grams: Grams,
    /// Trust in each maker.
    trust: [Trust; Maker::ALL.len()],
    /// Who drafts for the next rows.
    maker: Option<Maker>,
    /// Tokens of the sequence behind which the prediction layer drafted, and its drafts.
    predicted: (usize, Vec<TokenId>),
    /// Tokens of the sequence behind which earlier ones drafted, and those drafts.
    repeated: (usize, Vec<TokenId>),
    /// Tokens of the next rows, if there are drafts: the last known one, then those.
    rows: Vec<TokenId>,
    /// States behind those rows but the last, if the model has states.
    states: Vec<Slot>,
    /// The state of a draft that the sequence goes on from.
    held: Option<Slot>,
}

impl Drafts {
    /// Drafts up to `most` tokens behind `known`, the whole sequence: those of the maker that holds
    /// more often. Tells how many there are, and how often they held.
    pub fn draft(
        &mut self,
        drafter: Drafter,
        known: &[TokenId],
        most: usize,
        costs: &Costs,
    ) -> Reply {
        self.rows.clear();
        self.rows.extend(known.last());
        self.repeated.0 = known.len();
        self.repeated.1.clear();
        match drafter {
            Drafter::Grams | Drafter::Prediction => {
                self.grams.draft(known, most, &mut self.repeated.1);
            }
            #[cfg(any(test, feature = "testing"))]
            Drafter::Told(told) => self.repeated.1.extend(told(known, most)),
        }
        self.maker = self.better(known.len(), costs);
        let drafts = match self.maker {
            Some(Maker::Predictions) => &self.predicted.1,
            _ => &self.repeated.1,
        };
        self.rows.extend(drafts.iter().take(most));
        self.reply()
    }

    /// Who drafts behind `known` tokens: of two sources the one that is trusted more.
    fn better(&self, known: usize, costs: &Costs) -> Option<Maker> {
        let rate = |maker| self.trust[maker as usize].rate(costs.record(maker).rate());
        let drafts = |maker: &Maker| !self.drafts_of(*maker, known).is_empty();
        let sources = Maker::ALL.into_iter().filter(drafts);
        sources.max_by(|&a, &b| rate(a).total_cmp(&rate(b)))
    }

    /// Drafts of a maker behind `known` tokens.
    fn drafts_of(&self, maker: Maker, known: usize) -> &[TokenId] {
        let (behind, drafts) = match maker {
            Maker::Grams => &self.repeated,
            Maker::Predictions => &self.predicted,
        };
        if *behind == known { drafts } else { &[] }
    }

    /// Number of them, and trust in them.
    pub fn reply(&self) -> Reply {
        let maker = self.maker.unwrap_or(Maker::Grams);
        Reply {
            drafts: self.rows.len().saturating_sub(1),
            ..self.reply_of(maker)
        }
    }

    /// A reply that a maker may draft for.
    pub fn reply_of(&self, maker: Maker) -> Reply {
        Reply {
            maker,
            trust: self.trust[maker as usize],
            drafts: 0,
        }
    }

    /// Forgets a little of how often predictions held, when none are made.
    pub fn predict_nothing(&mut self) {
        self.trust[Maker::Predictions as usize].forget();
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
        self.states.extend(self.held.take());
        while self.states.len() + 1 < self.rows.len() {
            self.states.push(kv.lend_draft());
        }
    }

    /// Tokens of the next rows and the states behind those but the last; none without drafts.
    pub fn rows(&self) -> (&[TokenId], &[Slot]) {
        (&self.rows, &self.states)
    }

    /// Whether draft `index` is `token`.
    pub fn is(&self, index: usize, token: TokenId) -> bool {
        self.rows.get(1 + index) == Some(&token)
    }

    /// Scores what each maker drafted, beside the tokens that came behind it in `known`, the whole
    /// sequence.
    pub fn score(&mut self, known: &[TokenId]) -> Scores {
        Maker::ALL.map(|maker| {
            let behind = match maker {
                Maker::Grams => self.repeated.0,
                Maker::Predictions => self.predicted.0,
            };
            let drafts = self.drafts_of(maker, behind);
            let score = Score::of(drafts, known.get(behind..).unwrap_or_default());
            self.trust[maker as usize].note(score);
            score
        })
    }

    /// Gives back the states but the one behind the last draft that held, `count` in all. That is
    /// the one to go on from, if it is not the sequence's own.
    pub fn settle(&mut self, count: usize, kv: &mut Kv) -> Option<Slot> {
        if self.rows.is_empty() {
            self.release(kv);
            return None;
        }
        self.rows.clear();
        self.held = self.states.get(count).copied();
        for state in self.states.drain(..) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts behind 1, 2, 3, which 4 followed before, where 9 is predicted.
    fn drafted(drafts: &mut Drafts, costs: &Costs) -> (Maker, TokenId) {
        let known = [1, 2, 3, 4, 1, 2, 3];
        drafts.begin_prediction(known.len());
        drafts.add_predicted(9);
        let reply = drafts.draft(Drafter::Prediction, &known, 1, costs);
        (reply.maker, drafts.rows().0[1])
    }

    #[test]
    fn the_maker_that_is_trusted_more_drafts() {
        let (mut drafts, costs) = (Drafts::default(), Costs::default());
        drafted(&mut drafts, &costs);
        // Both are scored, whoever's draft was tried.
        let scores = drafts.score(&[1, 2, 3, 4, 1, 2, 3, 9]);
        assert_eq!(
            scores.map(|score| (score.known, score.held)),
            [(1, 0), (1, 1)]
        );
        assert_eq!(drafted(&mut drafts, &costs), (Maker::Predictions, 9));
        for _ in 0..9 {
            drafts.score(&[1, 2, 3, 4, 1, 2, 3, 4]);
        }
        assert_eq!(drafted(&mut drafts, &costs), (Maker::Grams, 4));
    }

    #[test]
    fn a_new_reply_trusts_what_held_of_others() {
        let mut costs = Costs::default();
        let (fails, holds) = (Score { known: 1, held: 0 }, Score { known: 1, held: 1 });
        costs.note_drafts([fails, holds]);
        let (maker, _) = drafted(&mut Drafts::default(), &costs);
        assert_eq!(maker, Maker::Predictions);
        costs.note_drafts([holds, fails]);
        costs.note_drafts([holds, fails]);
        let (maker, _) = drafted(&mut Drafts::default(), &costs);
        assert_eq!(maker, Maker::Grams);
    }

    #[test]
    fn what_was_predicted_behind_other_tokens_is_no_draft() {
        let (mut drafts, costs) = (Drafts::default(), Costs::default());
        drafts.begin_prediction(2);
        drafts.add_predicted(9);
        let reply = drafts.draft(Drafter::Prediction, &[1, 2, 3], 7, &costs);
        assert_eq!(reply.drafts, 0);
    }
}
