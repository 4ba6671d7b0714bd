//! Speculation: tokens that a reply may go on with are tried in rows of one step.
//!
//! A draft holds when it is the token that the request's sampler chooses at its position, with the
//! request's own random numbers, from the logits that plain decoding gives there. So a reply has
//! the same tokens and log-probabilities with any drafts, and none of what decides here shows in
//! it. How many drafts a step has follows from how often they held and from what steps of so many
//! rows took.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::trust::{Maker, Record, Score, Trust};
use step::executor::TokenId;

pub use step::executor::DEPTH_MAX;

/// Rule for how many drafts a reply gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculate {
    /// None.
    Off,
    /// Number that pays, by what was measured.
    Auto,
    /// So many in every step, if there are any: for measuring.
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

/// Tokens before a draft that have to be found earlier in the sequence.
const GRAM: usize = 3;

/// Places behind runs of [`GRAM`] tokens of a sequence, the last of each.
#[derive(Debug, Default)]
pub struct Grams {
    /// Position of the token behind each.
    follows: HashMap<[TokenId; GRAM], u32>,
    /// Tokens that are behind a run of the map.
    learned: usize,
}

impl Grams {
    /// Takes note of what `tokens`, the whole sequence, has behind what is known.
    fn learn(&mut self, tokens: &[TokenId]) {
        for follower in self.learned.max(GRAM)..tokens.len() {
            if let Some(run) = tokens[..follower].last_chunk() {
                self.follows.insert(*run, follower as u32);
            }
        }
        self.learned = tokens.len();
    }

    /// Appends up to `most` tokens that followed the last ones of `tokens`, the whole sequence,
    /// when they were there before.
    pub fn draft(&mut self, tokens: &[TokenId], most: usize, drafts: &mut Vec<TokenId>) {
        self.learn(tokens);
        let follows = tokens.last_chunk().and_then(|run| self.follows.get(run));
        if let Some(&follows) = follows {
            let follows = &tokens[follows as usize..];
            drafts.extend_from_slice(&follows[..most.min(follows.len())]);
        }
    }
}

/// Weight of the last step among those of as many rows.
const WEIGHT: f64 = 0.1;
/// Steps after which what was measured of other numbers of rows counts no more: contexts grow, and
/// clocks change.
const MEMORY: u64 = 1024;
/// Factor by which replies must be expected to come faster before there are drafts.
const GAIN_MIN: f64 = 1.02;

/// Times by a number, as of steps by their rows.
#[derive(Debug, Default)]
struct Times {
    /// Seconds, and when they were last measured; index: the number.
    measured: Vec<Option<(f64, u64)>>,
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

    /// Seconds by the nearest numbers that are known; beyond all of them as long as the largest, so
    /// that more is tried. None if no smaller one is known.
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

/// Times of steps, by their rows, and of a prediction for each reply, by the replies; and what they
/// are for, how often drafts of each maker hold.
#[derive(Debug, Default)]
pub struct Costs {
    steps: Times,
    passes: Times,
    records: [Record; Maker::ALL.len()],
}

impl Costs {
    /// Notes a step of so many rows, none of them of a prompt.
    pub fn note(&mut self, rows: usize, took: Duration) {
        self.steps.note(rows, took);
    }

    /// Notes how long `depth` drafts of each of so many replies took to make, beside the step.
    pub fn note_predictions(&mut self, replies: usize, depth: usize, took: Duration) {
        self.passes.note(replies, took / depth as u32);
    }

    /// Notes which drafts of a reply would have held, by maker.
    pub fn note_drafts(&mut self, scores: Scores) {
        let records = self.records.iter_mut().zip(scores);
        records.for_each(|(record, score)| record.note(score));
    }

    /// Forgets a little of that, in each step.
    pub fn forget(&mut self) {
        self.records.iter_mut().for_each(Record::forget);
    }

    /// Record of the drafts of a maker.
    pub fn record(&self, maker: Maker) -> &Record {
        &self.records[maker as usize]
    }

    /// Seconds that a draft of each of so many replies takes to make; 0 where nothing is known.
    fn pass(&self, replies: usize) -> f64 {
        self.passes.of(replies).unwrap_or(0.0)
    }

    /// Whether one reply would come faster with up to `most` drafts of the prediction layer if all
    /// of them held.
    pub fn may_pay(&self, most: usize) -> bool {
        let seconds = |drafts: usize| {
            let step = self.of(1 + drafts)?;
            Some((step + drafts as f64 * self.pass(1)) / (1 + drafts) as f64)
        };
        let plain = seconds(0);
        (1..=most).any(|drafts| seconds(drafts).map(|with| with * GAIN_MIN) < plain)
    }

    /// Seconds that a step of so many rows takes. None if that of no smaller one is known.
    fn of(&self, rows: usize) -> Option<f64> {
        self.steps.of(rows)
    }
}

/// Drafts of a reply beside the tokens that came, by maker.
pub type Scores = [Score; Maker::ALL.len()];

/// A reply of a step to come.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Who drafts for it.
    pub maker: Maker,
    /// Trust in that.
    pub trust: Trust,
    /// Drafts that it has, and then those that it gets.
    pub drafts: usize,
}

impl Reply {
    /// One that nothing is known of.
    pub fn new(maker: Maker) -> Reply {
        Reply {
            maker,
            trust: Trust::default(),
            drafts: 0,
        }
    }
}

/// Whether drafts are there, or have to be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Already,
    ByPredictions,
}

/// Leaves each of `replies` as many drafts as pay, `most` in all.
pub fn choose(
    speculate: Speculate,
    costs: &Costs,
    (most, made): (usize, Made),
    replies: &mut [Reply],
) {
    match speculate {
        Speculate::Off => replies.iter_mut().for_each(|reply| reply.drafts = 0),
        Speculate::Auto => choose_by_cost(costs, (most, made), replies),
        Speculate::Depth(depth) => {
            let mut left = most;
            for reply in replies {
                reply.drafts = reply.drafts.min(depth).min(left);
                left -= reply.drafts;
            }
        }
    }
}

/// Takes the drafts that are likeliest to hold, as long as tokens are expected to come faster.
fn choose_by_cost(costs: &Costs, (most, made): (usize, Made), replies: &mut [Reply]) {
    let has: Vec<usize> = replies.iter().map(|reply| reply.drafts).collect();
    replies.iter_mut().for_each(|reply| reply.drafts = 0);
    let rows = replies.len();
    let Some(plain) = costs.of(rows) else {
        return;
    };
    let (mut taken, mut held) = (vec![0; rows], vec![1.0; rows]);
    let (mut tokens, mut best) = (rows as f64, GAIN_MIN * rows as f64 / plain);
    for drafts in 1..=most {
        let hope = |reply: usize| {
            let Reply { maker, trust, .. } = replies[reply];
            held[reply] * costs.record(maker).chance(trust, taken[reply])
        };
        let open = (0..rows).filter(|&reply| taken[reply] < has[reply]);
        let Some(next) = open.max_by(|&a, &b| hope(a).total_cmp(&hope(b))) else {
            break;
        };
        held[next] = hope(next);
        tokens += held[next];
        taken[next] += 1;
        let Some(step) = costs.of(rows + drafts) else {
            break;
        };
        let predicted = match made {
            Made::Already => 0.0,
            Made::ByPredictions => {
                taken.iter().max().map_or(0, |&most| most) as f64 * costs.pass(rows)
            }
        };
        let seconds = step + predicted;
        if tokens / seconds > best {
            best = tokens / seconds;
            let chosen = replies.iter_mut().zip(&taken);
            chosen.for_each(|(reply, &taken)| reply.drafts = taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(grams: &mut Grams, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        let mut drafts = Vec::new();
        grams.draft(tokens, most, &mut drafts);
        drafts
    }

    #[test]
    fn it_is_told_as_it_is_asked_for() {
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
        let mut grams = Grams::default();
        assert_eq!(drafted(&mut grams, &[1, 2, 3], 7), [0; 0]);
        assert_eq!(drafted(&mut grams, &[1, 2, 3, 4, 5, 1, 2], 7), [0; 0]);
        let tokens = [1, 2, 3, 4, 5, 1, 2, 3];
        assert_eq!(drafted(&mut grams, &tokens, 7), [4, 5, 1, 2, 3]);
        assert_eq!(drafted(&mut grams, &tokens, 2), [4, 5]);
    }

    #[test]
    fn the_last_time_counts() {
        let tokens = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3];
        assert_eq!(drafted(&mut Grams::default(), &tokens, 1), [5]);
    }

    #[test]
    fn a_run_that_is_there_once_is_not_behind_itself() {
        let mut grams = Grams::default();
        for length in 0..20 {
            let tokens: Vec<TokenId> = (0..length).collect();
            assert_eq!(drafted(&mut grams, &tokens, 7), [0; 0]);
        }
    }

    /// A draft that does not hold, and one that does.
    const ONE: [Score; 2] = [Score { known: 1, held: 0 }, Score { known: 1, held: 1 }];

    fn reply(trust: Trust, drafts: usize) -> Reply {
        Reply {
            maker: Maker::Grams,
            trust,
            drafts,
        }
    }

    /// Drafts of a reply whose earlier ones held so often of 100, where a row takes `row` of the
    /// time that a step takes beside them.
    fn depth(held: usize, row: f64) -> usize {
        let mut trust = Trust::default();
        for draft in 0..100 {
            let holds = draft * held / 100 != (draft + 1) * held / 100;
            trust.note(ONE[usize::from(holds)]);
        }
        let mut costs = Costs::default();
        for rows in 1..=8 {
            costs.note(rows, Duration::from_secs_f64(1.0 + row * rows as f64));
        }
        let mut replies = [reply(trust, 7)];
        choose(Speculate::Auto, &costs, (7, Made::Already), &mut replies);
        replies[0].drafts
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
        let mut trust = Trust::default();
        (0..100).for_each(|draft| trust.note(ONE[usize::from(draft % 10 != 0)]));
        let depth = |pass| {
            let mut costs = Costs::default();
            costs.note(1, Duration::from_millis(10));
            costs.note(8, Duration::from_millis(11));
            costs.note_predictions(1, 7, Duration::from_secs_f64(7.0 * pass));
            let mut replies = [reply(trust, 7)];
            choose(
                Speculate::Auto,
                &costs,
                (7, Made::ByPredictions),
                &mut replies,
            );
            let predicted = replies[0].drafts;
            replies[0].drafts = 7;
            choose(Speculate::Auto, &costs, (7, Made::Already), &mut replies);
            assert_eq!(
                replies[0].drafts, 7,
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
    fn predictions_for_more_replies_take_as_long_as_they_did() {
        let mut costs = Costs::default();
        costs.note_predictions(1, 2, Duration::from_secs(2));
        assert_eq!([1, 8].map(|replies| costs.pass(replies)), [1.0, 1.0]);
        costs.note_predictions(8, 2, Duration::from_secs(16));
        assert_eq!([1, 8].map(|replies| costs.pass(replies)), [1.0, 8.0]);
    }

    #[test]
    fn those_that_are_likeliest_to_hold_come_first() {
        let (mut good, mut bad) = (Trust::default(), Trust::default());
        (0..50).for_each(|_| good.note(ONE[1]));
        (0..50).for_each(|_| bad.note(ONE[0]));
        let mut replies = [bad, good].map(|trust| reply(trust, 7));
        let mut costs = Costs::default();
        costs.note(2, Duration::from_millis(10));
        choose(Speculate::Auto, &costs, (5, Made::Already), &mut replies);
        assert_eq!(replies.map(|reply| reply.drafts), [0, 5]);
    }

    #[test]
    fn a_depth_that_is_asked_for_is_given_within_the_bounds() {
        let trust = Trust::default();
        let mut replies = [7, 1, 7].map(|drafts| reply(trust, drafts));
        choose(
            Speculate::Depth(3),
            &Costs::default(),
            (5, Made::Already),
            &mut replies,
        );
        assert_eq!(replies.map(|reply| reply.drafts), [3, 1, 1]);
        choose(
            Speculate::Off,
            &Costs::default(),
            (5, Made::Already),
            &mut replies,
        );
        assert_eq!(replies.map(|reply| reply.drafts), [0, 0, 0]);
    }

    #[test]
    fn nothing_is_drafted_before_a_step_was_measured() {
        let mut replies = [reply(Trust::default(), 7)];
        choose(
            Speculate::Auto,
            &Costs::default(),
            (7, Made::Already),
            &mut replies,
        );
        assert_eq!(replies[0].drafts, 0);
    }

    #[test]
    fn what_was_not_measured_lies_between_its_neighbours() {
        let mut costs = Costs::default();
        costs.note(2, Duration::from_secs(2));
        costs.note(6, Duration::from_secs(4));
        let told = [1, 2, 3, 6, 9].map(|rows| costs.of(rows));
        assert_eq!(told, [None, Some(2.0), Some(2.5), Some(4.0), Some(4.0)]);
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
