//! Draft tokens of one sequence, and the recurrent states after these tokens.

use super::acceptance_rate::{AcceptanceRate, Proposer, Score};
use super::kv::Kv;
use super::speculate::{Costs, NGrams, Proposal, Scores};
use step::executor::{Slot, TokenId};

/// Proposers of draft tokens that an engine asks.
#[derive(Clone, Copy, Debug)]
pub enum Drafter {
    /// The n-gram proposer alone.
    NGram,
    /// The n-gram proposer, and the prediction layer where it saves time; each step tries the
    /// drafts of the proposer with the higher acceptance rate.
    Mtp,
    /// A function of the sequence's tokens and the largest number of drafts to return.
    #[cfg(any(test, feature = "testing"))]
    Given(fn(&[TokenId], usize) -> Vec<TokenId>),
}

/// Draft tokens of a proposer, and the number of the sequence's tokens before the drafts.
#[derive(Debug, Default)]
struct Proposed {
    after: usize,
    drafts: Vec<TokenId>,
}

impl Proposed {
    /// Drops the drafts and returns the list for new ones, which follow the first `after` tokens.
    fn restart(&mut self, after: usize) -> &mut Vec<TokenId> {
        self.after = after;
        self.drafts.clear();
        &mut self.drafts
    }
}

/// Draft tokens of a sequence.
#[derive(Debug, Default)]
pub struct Drafts {
    ngrams: NGrams,
    /// Acceptance rate of each proposer in this sequence.
    acceptance: [AcceptanceRate; Proposer::ALL.len()],
    /// Proposer of the drafts in the sequence's next rows.
    proposer: Option<Proposer>,
    /// Latest drafts of each proposer, whether tried or not.
    proposed: [Proposed; Proposer::ALL.len()],
    /// Tokens of the next rows if there are drafts: the last known token, then the drafts.
    rows: Vec<TokenId>,
    /// Recurrent states after `rows` but the last, if the model has states.
    states: Vec<Slot>,
    /// State after the last accepted draft, which the next row starts from; none if the sequence
    /// continues from the state of its slot.
    resume_from: Option<Slot>,
}

impl Drafts {
    /// Proposes up to `most` tokens after `known`, all tokens of the sequence: the drafts of the
    /// proposer with the highest acceptance rate.
    pub fn draft(
        &mut self,
        drafter: Drafter,
        known: &[TokenId],
        most: usize,
        costs: &Costs,
    ) -> Proposal {
        self.rows.clear();
        self.rows.extend(known.last());
        let repeated = self.proposed[Proposer::NGram as usize].restart(known.len());
        match drafter {
            Drafter::NGram | Drafter::Mtp => self.ngrams.draft(known, most, repeated),
            #[cfg(any(test, feature = "testing"))]
            Drafter::Given(given) => repeated.extend(given(known, most)),
        }
        self.proposer = self.better(known.len(), costs);
        let proposer = self.proposer.unwrap_or(Proposer::NGram);
        let drafts = &self.proposed[proposer as usize].drafts;
        self.rows.extend(drafts.iter().take(most));
        self.proposal()
    }

    /// Proposer with the highest acceptance rate among proposers with drafts after `known` tokens.
    fn better(&self, known: usize, costs: &Costs) -> Option<Proposer> {
        let rate = |of| self.acceptance[of as usize].rate(costs.record(of).rate());
        let drafts = |of: &Proposer| {
            let proposed = &self.proposed[*of as usize];
            proposed.after == known && !proposed.drafts.is_empty()
        };
        let proposers = Proposer::ALL.into_iter().filter(drafts);
        proposers.max_by(|&a, &b| rate(a).total_cmp(&rate(b)))
    }

    /// Number of drafts in the sequence's next rows, and the acceptance rate of their proposer.
    pub fn proposal(&self) -> Proposal {
        let proposer = self.proposer.unwrap_or(Proposer::NGram);
        Proposal {
            drafts: self.rows.len().saturating_sub(1),
            ..self.proposal_of(proposer)
        }
    }

    /// Proposal of a proposer that has not been asked yet.
    pub fn proposal_of(&self, proposer: Proposer) -> Proposal {
        Proposal::new(proposer, self.acceptance[proposer as usize])
    }

    /// Fades the prediction layer's acceptance rate in a step in which the layer drafts nothing.
    pub fn predict_nothing(&mut self) {
        self.acceptance[Proposer::Mtp as usize].forget();
    }

    /// Drops earlier predictions, for new ones after the first `known` tokens.
    pub fn begin_prediction(&mut self, known: usize) {
        self.proposed[Proposer::Mtp as usize].restart(known);
    }

    /// Adds the next draft of the prediction layer.
    pub fn add_predicted(&mut self, token: TokenId) {
        self.proposed[Proposer::Mtp as usize].drafts.push(token);
    }

    /// Drafts of the prediction layer.
    pub fn predicted(&self) -> &[TokenId] {
        &self.proposed[Proposer::Mtp as usize].drafts
    }

    /// Shortens the drafts of the next rows to the number that `chosen` has.
    pub fn choose(&mut self, chosen: Proposal) {
        match chosen.drafts {
            0 => self.rows.clear(),
            drafts => self.rows.truncate(1 + drafts),
        }
    }

    /// Takes states from `kv`, which the next rows are to write.
    pub fn lend(&mut self, kv: &mut Kv) {
        if self.rows.is_empty() || !kv.recurs() {
            return;
        }
        self.states.extend(self.resume_from.take());
        while self.states.len() + 1 < self.rows.len() {
            self.states.push(kv.lend_draft());
        }
    }

    /// Tokens of the sequence's next rows, and the states after each of these rows but the last; no
    /// tokens without drafts, and no states in a model without recurrent ones.
    pub fn rows(&self) -> (&[TokenId], &[Slot]) {
        (&self.rows, &self.states)
    }

    /// Whether the draft with this index is `token`.
    pub fn is(&self, index: usize, token: TokenId) -> bool {
        self.rows.get(1 + index) == Some(&token)
    }

    /// Scores the latest drafts of each proposer by `known`, all tokens of the sequence.
    pub fn score(&mut self, known: &[TokenId]) -> Scores {
        Proposer::ALL.map(|proposer| {
            let Proposed { after, drafts } = &self.proposed[proposer as usize];
            let score = Score::of(drafts, known.get(*after..).unwrap_or_default());
            self.acceptance[proposer as usize].note(score);
            score
        })
    }

    /// Gives back all draft states but the one after the last of the `accepted` drafts; returns
    /// that state for the next row. None if the next row starts from the slot's state.
    pub fn settle(&mut self, accepted: usize, kv: &mut Kv) -> Option<Slot> {
        if self.rows.is_empty() {
            self.release(kv);
            return None;
        }
        self.rows.clear();
        self.resume_from = self.states.get(accepted).copied();
        for state in self.states.drain(..) {
            if Some(state) != self.resume_from {
                kv.give_back_draft(state);
            }
        }
        self.resume_from
    }

    /// Gives back the draft state that is kept between steps.
    pub fn release(&mut self, kv: &mut Kv) {
        if let Some(state) = self.resume_from.take() {
            kv.give_back_draft(state);
        }
    }

    /// Number of draft states that are kept between steps.
    pub fn states_kept(&self) -> usize {
        usize::from(self.resume_from.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts after 1, 2, 3, which 4 followed before, where 9 is predicted.
    fn drafted(drafts: &mut Drafts, costs: &Costs) -> (Proposer, TokenId) {
        let known = [1, 2, 3, 4, 1, 2, 3];
        drafts.begin_prediction(known.len());
        drafts.add_predicted(9);
        let proposal = drafts.draft(Drafter::Mtp, &known, 1, costs);
        (proposal.proposer, drafts.rows().0[1])
    }

    #[test]
    fn the_proposer_with_the_higher_acceptance_rate_drafts() {
        let (mut drafts, costs) = (Drafts::default(), Costs::default());
        drafted(&mut drafts, &costs);
        // Both are scored, whoever's draft was tried.
        let scores = drafts.score(&[1, 2, 3, 4, 1, 2, 3, 9]);
        assert_eq!(
            scores.map(|score| (score.judged, score.accepted)),
            [(1, 0), (1, 1)]
        );
        assert_eq!(drafted(&mut drafts, &costs), (Proposer::Mtp, 9));
        for _ in 0..9 {
            drafts.score(&[1, 2, 3, 4, 1, 2, 3, 4]);
        }
        assert_eq!(drafted(&mut drafts, &costs), (Proposer::NGram, 4));
    }

    #[test]
    fn a_new_sequence_starts_from_the_acceptance_rates_of_others() {
        let mut costs = Costs::default();
        let (rejected, accepted) = (Score::of(&[1], &[2]), Score::of(&[1], &[1]));
        costs.note_drafts([rejected, accepted]);
        let (proposer, _) = drafted(&mut Drafts::default(), &costs);
        assert_eq!(proposer, Proposer::Mtp);
        costs.note_drafts([accepted, rejected]);
        costs.note_drafts([accepted, rejected]);
        let (proposer, _) = drafted(&mut Drafts::default(), &costs);
        assert_eq!(proposer, Proposer::NGram);
    }

    #[test]
    fn predictions_after_other_tokens_are_no_drafts() {
        let (mut drafts, costs) = (Drafts::default(), Costs::default());
        drafts.begin_prediction(2);
        drafts.add_predicted(9);
        let proposal = drafts.draft(Drafter::Mtp, &[1, 2, 3], 7, &costs);
        assert_eq!(proposal.drafts, 0);
    }
}
