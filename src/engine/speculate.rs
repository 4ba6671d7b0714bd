//! Speculative decoding: draft tokens of a sequence are verified in further rows of its step.
//!
//! A draft is accepted when it is the token that the request's sampler chooses at its position,
//! with the request's own random numbers, from the logits that plain decoding gives there. So a
//! reply has the same tokens and log-probabilities with any drafts. The number of drafts of a step
//! follows from acceptance rates and from the times that steps of so many rows took.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::acceptance_rate::{AcceptanceRate, Proposer, Record, Score};
use step::executor::TokenId;

pub use step::executor::DEPTH_MAX;

/// Number of drafts that a sequence gets in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculate {
    /// No drafts.
    Off,
    /// The number of drafts that pays, by acceptance rates and measured times.
    Auto,
    /// Up to so many drafts in every step: for measurements.
    Depth(usize),
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculate, String> {
        let depth = text.parse().ok();
        let depth = depth.filter(|depth| (1..=DEPTH_MAX).contains(depth));
        match (text, depth) {
            ("off", _) => Ok(Speculate::Off),
            ("auto", _) => Ok(Speculate::Auto),
            (_, Some(depth)) => Ok(Speculate::Depth(depth)),
            _ => Err(format!(
                "`{text}` is none of off, auto and 1 to {DEPTH_MAX}"
            )),
        }
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speculate::Off => f.write_str("off"),
            Speculate::Auto => f.write_str("auto"),
            Speculate::Depth(depth) => depth.fmt(f),
        }
    }
}

/// Number of tokens of an n-gram.
const N: usize = 3;

/// N-grams of a sequence, with the token after the latest occurrence of each.
#[derive(Debug, Default)]
pub struct NGrams {
    /// Position of the token after the latest occurrence of each n-gram.
    follows: HashMap<[TokenId; N], u32>,
    /// Number of leading tokens of the sequence whose n-grams are in the map.
    learned: usize,
}

impl NGrams {
    /// Adds the n-grams of new tokens since the last call; `tokens` is the whole sequence.
    fn learn(&mut self, tokens: &[TokenId]) {
        for follower in self.learned.max(N)..tokens.len() {
            if let Some(ngram) = tokens[..follower].last_chunk() {
                self.follows.insert(*ngram, follower as u32);
            }
        }
        self.learned = tokens.len();
    }

    /// Appends up to `most` tokens that followed an earlier occurrence of the last n-gram of
    /// `tokens`, the latest one; `tokens` are all of the sequence.
    pub fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>) {
        self.learn(tokens);
        let follows = tokens
            .last_chunk()
            .and_then(|ngram| self.follows.get(ngram));
        if let Some(&follows) = follows {
            let follows = &tokens[follows as usize..];
            drafts.extend_from_slice(&follows[..most.min(follows.len())]);
        }
    }
}

/// Weight of the latest measurement in a moving average.
const WEIGHT: f64 = 0.1;
/// Measurements after which an older one is not used any more: contexts grow, clocks change.
const MEMORY: u64 = 1024;
/// Expected speedup from which on a step has drafts.
const GAIN_MIN: f64 = 1.02;

/// Moving averages of times by a count, for example of steps by their rows.
#[derive(Debug, Default)]
struct Times {
    /// Seconds by count, and the number of the latest measurement of that count.
    measured: Vec<Option<(f64, u64)>>,
    /// Number of measurements so far.
    notes: u64,
}

impl Times {
    fn note(&mut self, number: usize, took: Duration) {
        self.notes += 1;
        let took = took.as_secs_f64();
        if self.measured.len() <= number {
            self.measured.resize(number + 1, None);
        }
        let mean = self.known(number).unwrap_or(took);
        self.measured[number] = Some((mean + WEIGHT * (took - mean), self.notes));
    }

    fn known(&self, number: usize) -> Option<f64> {
        let (seconds, at) = (*self.measured.get(number)?)?;
        (self.notes - at < MEMORY).then_some(seconds)
    }

    /// Seconds interpolated between the nearest measured counts; above all measured counts the
    /// seconds of the largest, so that more rows are tried. None if no smaller count was measured.
    fn of(&self, number: usize) -> Option<f64> {
        let known = |number: usize| self.known(number).map(|seconds| (number, seconds));
        let (below, least) = (1..=number).rev().find_map(known)?;
        let above = (number..self.measured.len()).find_map(known);
        Some(match above {
            Some((above, most)) if above > below => {
                let share = (number - below) as f64 / (above - below) as f64;
                least + share * (most - least)
            }
            _ => least,
        })
    }
}

/// Measurements by which the number of drafts is chosen.
#[derive(Debug, Default)]
pub struct Costs {
    /// Times of steps without prompts, by the steps' rows.
    steps: Times,
    /// Times of one run of the prediction layer, by the number of sequences that get a draft.
    predictions: Times,
    records: [Record; Proposer::ALL.len()],
}

impl Costs {
    /// Adds the time of a step of so many rows, without rows of prompts.
    pub fn note(&mut self, rows: usize, took: Duration) {
        self.steps.note(rows, took);
    }

    /// Adds the time, beside that of the step, in which the prediction layer drafted `depth` tokens
    /// for each of so many sequences.
    pub fn note_predictions(&mut self, sequences: usize, depth: usize, took: Duration) {
        self.predictions.note(sequences, took / depth as u32);
    }

    /// Adds the drafts of a sequence in a step, by proposer.
    pub fn note_drafts(&mut self, scores: Scores) {
        let records = self.records.iter_mut().zip(scores);
        records.for_each(|(record, score)| record.note(score));
    }

    /// Fades the acceptance of earlier drafts; called in each step.
    pub fn forget(&mut self) {
        self.records.iter_mut().for_each(Record::forget);
    }

    /// Acceptance of a proposer's drafts over all sequences.
    pub fn record(&self, proposer: Proposer) -> &Record {
        &self.records[proposer as usize]
    }

    /// Seconds of a run of the prediction layer for so many sequences; 0 if none was measured.
    fn prediction(&self, sequences: usize) -> f64 {
        self.predictions.of(sequences).unwrap_or(0.0)
    }

    /// Whether one sequence alone would be faster with up to `most` drafts of the prediction layer
    /// if all of them were accepted.
    pub fn may_pay(&self, most: usize) -> bool {
        let seconds = |drafts: usize| {
            let step = self.of(1 + drafts)?;
            Some((step + drafts as f64 * self.prediction(1)) / (1 + drafts) as f64)
        };
        let plain = seconds(0);
        (1..=most).any(|drafts| seconds(drafts).map(|with| with * GAIN_MIN) < plain)
    }

    /// Seconds of a step of so many rows; none if no step with as many or fewer was measured.
    fn of(&self, rows: usize) -> Option<f64> {
        self.steps.of(rows)
    }
}

/// Scores of a sequence's drafts in a step, by proposer.
pub type Scores = [Score; Proposer::ALL.len()];

/// Drafts that a sequence may have in a step to come.
#[derive(Clone, Copy, Debug)]
pub struct Proposal {
    pub proposer: Proposer,
    /// Acceptance rate of the proposer in this sequence.
    pub acceptance: AcceptanceRate,
    /// Number of drafts of the proposer; `choose` lowers it to the number that is tried.
    pub drafts: usize,
}

impl Proposal {
    /// Proposal of a proposer that has not been asked yet: no drafts.
    pub fn new(proposer: Proposer, acceptance: AcceptanceRate) -> Proposal {
        Proposal {
            proposer,
            acceptance,
            drafts: 0,
        }
    }
}

/// Time of proposing the drafts, beside that of the step that verifies drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftCost {
    /// The time is spent already: the drafts are there.
    Spent,
    /// The time is still to be spent: a run of the layer makes one draft of each sequence.
    Due,
}

/// Shortens each of `proposals` to as many drafts as pay, `most` in all.
pub fn choose(
    speculate: Speculate,
    costs: &Costs,
    (most, cost): (usize, DraftCost),
    proposals: &mut [Proposal],
) {
    match speculate {
        Speculate::Off => proposals.iter_mut().for_each(|of| of.drafts = 0),
        Speculate::Auto => choose_by_cost(costs, (most, cost), proposals),
        Speculate::Depth(depth) => {
            let mut left = most;
            for proposal in proposals {
                proposal.drafts = proposal.drafts.min(depth).min(left);
                left -= proposal.drafts;
            }
        }
    }
}

/// Takes the likeliest drafts as long as the expected tokens per second grow.
fn choose_by_cost(costs: &Costs, (most, cost): (usize, DraftCost), proposals: &mut [Proposal]) {
    let has: Vec<usize> = proposals.iter().map(|of| of.drafts).collect();
    proposals.iter_mut().for_each(|of| of.drafts = 0);
    let rows = proposals.len();
    let Some(plain) = costs.of(rows) else {
        return;
    };
    // Number of drafts taken of each sequence, and the probability that all of them are accepted.
    let (mut taken, mut accepted) = (vec![0; rows], vec![1.0; rows]);
    let (mut tokens, mut best) = (rows as f64, GAIN_MIN * rows as f64 / plain);
    for drafts in 1..=most {
        let with_next = |of: usize| {
            let record = costs.record(proposals[of].proposer);
            accepted[of] * record.probability(proposals[of].acceptance, taken[of])
        };
        let open = (0..rows).filter(|&of| taken[of] < has[of]);
        let Some(next) = open.max_by(|&a, &b| with_next(a).total_cmp(&with_next(b))) else {
            break;
        };
        accepted[next] = with_next(next);
        tokens += accepted[next];
        taken[next] += 1;
        let Some(step) = costs.of(rows + drafts) else {
            break;
        };
        let depth = taken.iter().max().map_or(0, |&most| most);
        let seconds = match cost {
            DraftCost::Spent => step,
            DraftCost::Due => step + depth as f64 * costs.prediction(rows),
        };
        if tokens / seconds > best {
            best = tokens / seconds;
            let chosen = proposals.iter_mut().zip(&taken);
            chosen.for_each(|(proposal, &taken)| proposal.drafts = taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(ngrams: &mut NGrams, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        let mut drafts = Vec::new();
        ngrams.draft(tokens, most, &mut drafts);
        drafts
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in ["off", "auto", "1", "7"] {
            assert_eq!(text.parse::<Speculate>().unwrap().to_string(), text);
        }
        for text in ["", "0", "8", "-1", "Off"] {
            let refused = text.parse::<Speculate>().unwrap_err();
            assert_eq!(refused, format!("`{text}` is none of off, auto and 1 to 7"));
        }
    }

    #[test]
    fn what_followed_before_is_drafted_again() {
        let mut ngrams = NGrams::default();
        assert_eq!(drafted(&mut ngrams, &[1, 2, 3], 7), [0; 0]);
        assert_eq!(drafted(&mut ngrams, &[1, 2, 3, 4, 5, 1, 2], 7), [0; 0]);
        let tokens = [1, 2, 3, 4, 5, 1, 2, 3];
        assert_eq!(drafted(&mut ngrams, &tokens, 7), [4, 5, 1, 2, 3]);
        assert_eq!(drafted(&mut ngrams, &tokens, 2), [4, 5]);
    }

    #[test]
    fn the_last_time_counts() {
        let tokens = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3];
        assert_eq!(drafted(&mut NGrams::default(), &tokens, 1), [5]);
    }

    #[test]
    fn an_n_gram_that_is_there_once_does_not_follow_itself() {
        let mut ngrams = NGrams::default();
        for length in 0..20 {
            let tokens: Vec<TokenId> = (0..length).collect();
            assert_eq!(drafted(&mut ngrams, &tokens, 7), [0; 0]);
        }
    }

    /// A wrong draft, and an accepted one.
    const ONE: [Score; 2] = [
        Score {
            judged: 1,
            accepted: 0,
        },
        Score {
            judged: 1,
            accepted: 1,
        },
    ];

    fn proposal(acceptance: AcceptanceRate, drafts: usize) -> Proposal {
        Proposal {
            proposer: Proposer::NGram,
            acceptance,
            drafts,
        }
    }

    /// Drafts that are chosen where so many of 100 were accepted, where a row takes `row` of the
    /// time that a step takes beside them.
    fn depth(accepted: usize, row: f64) -> usize {
        let mut acceptance = AcceptanceRate::default();
        for draft in 0..100 {
            let is_accepted = draft * accepted / 100 != (draft + 1) * accepted / 100;
            acceptance.note(ONE[usize::from(is_accepted)]);
        }
        let mut costs = Costs::default();
        for rows in 1..=8 {
            costs.note(rows, Duration::from_secs_f64(1.0 + row * rows as f64));
        }
        let mut proposals = [proposal(acceptance, 7)];
        choose(
            Speculate::Auto,
            &costs,
            (7, DraftCost::Spent),
            &mut proposals,
        );
        proposals[0].drafts
    }

    #[test]
    fn drafts_are_taken_as_long_as_they_pay() {
        assert_eq!(depth(100, 0.0), 7);
        assert_eq!(depth(100, 0.05), 7);
        assert_eq!(depth(0, 0.05), 0);
        // Rows that cost all that there is: a row for a token is plain decoding.
        assert_eq!(depth(100, 1e6), 0);
        let some = depth(60, 0.1);
        assert!((1..5).contains(&some), "{some}");
    }

    #[test]
    fn predictions_are_made_as_long_as_they_pay() {
        let mut acceptance = AcceptanceRate::default();
        (0..100).for_each(|draft| acceptance.note(ONE[usize::from(draft % 10 != 0)]));
        let depth = |seconds| {
            let mut costs = Costs::default();
            costs.note(1, Duration::from_millis(10));
            costs.note(8, Duration::from_millis(11));
            costs.note_predictions(1, 7, Duration::from_secs_f64(7.0 * seconds));
            let mut proposals = [proposal(acceptance, 7)];
            choose(Speculate::Auto, &costs, (7, DraftCost::Due), &mut proposals);
            let predicted = proposals[0].drafts;
            proposals[0].drafts = 7;
            choose(
                Speculate::Auto,
                &costs,
                (7, DraftCost::Spent),
                &mut proposals,
            );
            assert_eq!(
                proposals[0].drafts, 7,
                "drafts that are there cost no prediction"
            );
            (predicted, costs.may_pay(7))
        };
        assert_eq!(depth(0.0001), (7, true));
        let (some, pays) = depth(0.005);
        assert!((1..7).contains(&some) && pays, "{some}");
        assert_eq!(depth(0.01), (0, false));
    }

    #[test]
    fn predictions_for_more_sequences_take_as_long_as_they_did() {
        let mut costs = Costs::default();
        costs.note_predictions(1, 2, Duration::from_secs(2));
        assert_eq!(
            [1, 8].map(|sequences| costs.prediction(sequences)),
            [1.0, 1.0]
        );
        costs.note_predictions(8, 2, Duration::from_secs(16));
        assert_eq!(
            [1, 8].map(|sequences| costs.prediction(sequences)),
            [1.0, 8.0]
        );
    }

    #[test]
    fn drafts_that_are_likeliest_to_be_accepted_come_first() {
        let (mut good, mut bad) = (AcceptanceRate::default(), AcceptanceRate::default());
        (0..50).for_each(|_| good.note(ONE[1]));
        (0..50).for_each(|_| bad.note(ONE[0]));
        let mut proposals = [bad, good].map(|acceptance| proposal(acceptance, 7));
        let mut costs = Costs::default();
        costs.note(2, Duration::from_millis(10));
        choose(
            Speculate::Auto,
            &costs,
            (5, DraftCost::Spent),
            &mut proposals,
        );
        assert_eq!(proposals.map(|of| of.drafts), [0, 5]);
    }

    #[test]
    fn a_depth_that_is_asked_for_is_given_within_the_bounds() {
        let acceptance = AcceptanceRate::default();
        let mut proposals = [7, 1, 7].map(|drafts| proposal(acceptance, drafts));
        choose(
            Speculate::Depth(3),
            &Costs::default(),
            (5, DraftCost::Spent),
            &mut proposals,
        );
        assert_eq!(proposals.map(|of| of.drafts), [3, 1, 1]);
        choose(
            Speculate::Off,
            &Costs::default(),
            (5, DraftCost::Spent),
            &mut proposals,
        );
        assert_eq!(proposals.map(|of| of.drafts), [0, 0, 0]);
    }

    #[test]
    fn nothing_is_drafted_before_a_step_was_measured() {
        let mut proposals = [proposal(AcceptanceRate::default(), 7)];
        choose(
            Speculate::Auto,
            &Costs::default(),
            (7, DraftCost::Spent),
            &mut proposals,
        );
        assert_eq!(proposals[0].drafts, 0);
    }

    #[test]
    fn what_was_not_measured_lies_between_its_neighbours() {
        let mut costs = Costs::default();
        costs.note(2, Duration::from_secs(2));
        costs.note(6, Duration::from_secs(4));
        let times = [1, 2, 3, 6, 9].map(|rows| costs.of(rows));
        assert_eq!(times, [None, Some(2.0), Some(2.5), Some(4.0), Some(4.0)]);
    }

    #[test]
    fn what_was_measured_long_ago_is_tried_again() {
        let mut costs = Costs::default();
        costs.note(8, Duration::from_secs(9));
        costs.note(1, Duration::from_secs(1));
        assert_eq!(costs.of(8), Some(9.0));
        (0..MEMORY).for_each(|_| costs.note(1, Duration::from_secs(1)));
        assert_eq!(costs.of(8), Some(1.0));
    }
}
