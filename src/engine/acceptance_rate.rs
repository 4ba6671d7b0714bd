//! Acceptance rates of draft tokens, by proposer. Drafts that were not tried count too: the tokens
//! that were sampled show of any draft whether it would have been accepted.

use step::executor::{DEPTH_MAX, TokenId};

/// Proposer of draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposer {
    /// Proposes the tokens that followed the same n-gram earlier in the sequence.
    NGram,
    /// Proposes the predictions of the model's multi-token-prediction layer.
    Mtp,
}

impl Proposer {
    pub const ALL: [Proposer; 2] = [Proposer::NGram, Proposer::Mtp];
}

/// Factor by which a sequence's earlier drafts weigh less with each step that adds drafts.
const FADING: f64 = 0.95;
/// Number of drafts that the prior weighs as much as.
const PRIOR_DRAFTS: f64 = 2.0;
/// Acceptance rate assumed of a proposer that has not been tried. A new sequence starts from the
/// proposer's recent average over all sequences, not from this.
const ACCEPTANCE_PRIOR: f64 = 0.75;
/// Factor by which earlier drafts weigh less with each step, in the average over all sequences.
const FADING_OF_ALL: f64 = 0.998;
/// Largest probability of acceptance that a draft is given: none is certain.
const PROBABILITY_MAX: f64 = 0.99;

/// Draft tokens of one proposer in one step, compared with the tokens that were sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Number of drafts up to and with the first wrong one; later ones cannot be judged.
    pub judged: usize,
    pub accepted: usize,
}

impl Score {
    /// Score of `drafts` where the tokens `came` were sampled.
    pub fn of(drafts: &[TokenId], came: &[TokenId]) -> Score {
        let pairs = drafts.iter().zip(came);
        let accepted = pairs.take_while(|(draft, token)| draft == token).count();
        let judged = drafts.len().min(came.len()).min(accepted + 1);
        Score { judged, accepted }
    }
}

/// Share of judged drafts that were accepted, recent ones weighing more.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptanceRate {
    judged: f64,
    accepted: f64,
}

impl AcceptanceRate {
    /// Acceptance rate, as if `PRIOR_DRAFTS` further drafts had been accepted at the rate `prior`.
    pub fn rate(self, prior: f64) -> f64 {
        (self.accepted + PRIOR_DRAFTS * prior) / (self.judged + PRIOR_DRAFTS)
    }

    /// Adds the drafts of a step, if there were any.
    pub fn note(&mut self, score: Score) {
        if score.judged > 0 {
            self.fade(FADING);
            self.add(score);
        }
    }

    /// Fades earlier drafts in a step without any: the rate of a proposer returns to the prior.
    pub fn forget(&mut self) {
        self.fade(FADING);
    }

    fn add(&mut self, score: Score) {
        self.judged += score.judged as f64;
        self.accepted += score.accepted as f64;
    }

    fn fade(&mut self, fading: f64) {
        self.judged *= fading;
        self.accepted *= fading;
    }
}

/// Acceptance rates of a proposer's drafts over all sequences.
#[derive(Debug, Default)]
pub struct Record {
    all: AcceptanceRate,
    /// Acceptance rate of the first draft of a step, of the second, and so on.
    by_depth: [AcceptanceRate; DEPTH_MAX],
}

impl Record {
    pub fn note(&mut self, score: Score) {
        self.all.add(score);
        for (depth, rate) in self.by_depth.iter_mut().take(score.judged).enumerate() {
            let accepted = usize::from(depth < score.accepted);
            rate.add(Score {
                judged: 1,
                accepted,
            });
        }
    }

    /// Fades earlier drafts a little each step, so that a proposer that did not pay is tried again.
    pub fn forget(&mut self) {
        self.all.fade(FADING_OF_ALL);
        let rates = self.by_depth.iter_mut();
        rates.for_each(|rate| rate.fade(FADING_OF_ALL));
    }

    /// Acceptance rate over all sequences.
    pub fn rate(&self) -> f64 {
        self.all.rate(ACCEPTANCE_PRIOR)
    }

    /// Probability that a sequence's draft at `depth` (from 0) is accepted if all drafts before it
    /// are: the rate of all sequences at that depth, times the sequence's own rate over that of all
    /// sequences.
    pub fn probability(&self, own: AcceptanceRate, depth: usize) -> f64 {
        let all = self.rate();
        let there = self.by_depth[depth.min(DEPTH_MAX - 1)].rate(all);
        (there * own.rate(all) / all).min(PROBABILITY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_of(of: AcceptanceRate, judged: f64, accepted: f64) -> bool {
        (of.judged - judged).abs() < 1e-12 && (of.accepted - accepted).abs() < 1e-12
    }

    const fn score(judged: usize, accepted: usize) -> Score {
        Score { judged, accepted }
    }

    #[test]
    fn drafts_are_judged_up_to_the_first_wrong_one() {
        for (drafts, came, wanted) in [
            (&[][..], &[1, 2][..], score(0, 0)),
            (&[1, 2, 3], &[1, 2, 3, 4], score(3, 3)),
            (&[1, 2, 3], &[1, 2], score(2, 2)),
            (&[1, 9, 3], &[1, 2, 3], score(2, 1)),
            (&[9, 2], &[1], score(1, 0)),
        ] {
            assert_eq!(Score::of(drafts, came), wanted, "{drafts:?} {came:?}");
        }
    }

    #[test]
    fn what_is_older_counts_less_at_each_look() {
        let mut rate = AcceptanceRate::default();
        rate.note(score(2, 2));
        rate.note(score(1, 0));
        assert!(is_of(rate, 2.0 * FADING + 1.0, 2.0 * FADING));
        rate.note(score(0, 0));
        assert!(is_of(rate, 2.0 * FADING + 1.0, 2.0 * FADING));
        rate.forget();
        let faded = 2.0 * FADING * FADING;
        assert!(is_of(rate, faded + FADING, faded));
    }

    #[test]
    fn a_rate_begins_with_the_prior() {
        assert_eq!(AcceptanceRate::default().rate(0.25), 0.25);
        let mut rate = AcceptanceRate::default();
        rate.note(score(4, 1));
        assert_eq!(rate.rate(0.75), 2.5 / 6.0);
    }

    #[test]
    fn the_prior_of_a_sequence_is_the_rate_of_all() {
        let mut record = Record::default();
        assert_eq!(record.rate(), 0.75);
        record.note(score(2, 1));
        assert_eq!(record.rate(), 2.5 / 4.0);
        record.forget();
        assert!(is_of(record.all, 2.0 * FADING_OF_ALL, FADING_OF_ALL));
    }

    #[test]
    fn each_depth_has_a_probability_of_its_own() {
        let mut record = Record::default();
        (0..100).for_each(|_| record.note(score(2, 1)));
        let [first, second] =
            [0, 1].map(|depth| record.probability(AcceptanceRate::default(), depth));
        assert!(first > 0.97 && second < 0.03, "{first} {second}");
        let mut own = AcceptanceRate::default();
        (0..100).for_each(|_| own.note(score(1, 1)));
        assert!(record.probability(own, 1) > second);
        assert_eq!(record.probability(own, 0), PROBABILITY_MAX);
    }
}
