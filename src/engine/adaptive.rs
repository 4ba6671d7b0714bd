//! Adaptive sampling, off unless asked for: a token's temperature follows the section of the reply
//! that the token is in, how long the model has been sure, and how much the reply repeats itself; a
//! nearly certain token is taken without a draw. Every logit of every row is read for this.
//!
//! The rule and its numbers are those of the Atlas of Avarok, so its users get the same results.

use std::collections::{HashSet, VecDeque};

use step::executor::TokenId;

/// Tokens that begin and end a section of a reply.
pub type Marks = [TokenId; 2];

/// Tokens by which the sections of a reply are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// Tokens around reasoning; none if the model has no such tokens.
    pub reasoning: Option<Marks>,
    /// Tokens around calls of tools.
    pub calls: Option<Marks>,
    /// Whether a grammar constrains the text outside of reasoning and calls.
    pub constrained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Text,
    Reasoning,
    Call,
    Constrained,
}

impl Section {
    /// Probability from which on the most likely token is taken without a draw.
    fn certain(self) -> f64 {
        match self {
            Section::Text => 0.9,
            Section::Reasoning => 0.95,
            Section::Call => 0.8,
            Section::Constrained => 0.85,
        }
    }

    fn temperature(self, base: f32) -> f32 {
        match self {
            Section::Text | Section::Reasoning => base,
            Section::Call => base.min(CALL_TEMPERATURE_MAX),
            Section::Constrained => base * CONSTRAINED_FACTOR,
        }
    }
}

const CALL_TEMPERATURE_MAX: f32 = 0.3;
const CONSTRAINED_FACTOR: f32 = 0.6;
/// Entropy of a row, in nats, below which the model counts as sure.
const SURE: f64 = 0.5;
/// Numbers of consecutive rows of which the model was sure, and their additions to the temperature.
const BOOSTS: [(usize, f32); 3] = [(32, 0.3), (16, 0.2), (8, 0.1)];
/// Share of distinct n-grams below which the temperature is multiplied, and the factor.
const FACTORS: [(f32, f32); 3] = [(0.15, 1.8), (0.25, 1.4), (0.35, 1.2)];
/// Number of the reply's last tokens in which repetitions are counted.
const WINDOW: usize = 128;
/// Tokens of a reply from which on repetitions are counted.
const WINDOW_MIN: usize = 32;
/// Tokens of a reply between two counts of repetitions.
const EVERY: usize = 16;
/// Lengths of n-grams, in bytes of little-endian 32-bit token ids.
const RUNS: std::ops::RangeInclusive<usize> = 3..=6;

/// Adaptive sampling of one reply.
#[derive(Debug)]
pub struct Adaptive {
    sections: Sections,
    section: Section,
    /// Consecutive rows, up to now, of which the model was sure.
    sure: usize,
    /// The last `WINDOW` tokens of the reply.
    last: VecDeque<TokenId>,
    /// Number of all tokens of the reply so far.
    came: usize,
    /// Share of distinct n-grams at the last count.
    distinct: f32,
}

impl Adaptive {
    /// Adaptive sampling at the start of a reply; the prompt may end within a section.
    pub fn new(sections: Sections, prompt: &[TokenId]) -> Adaptive {
        let mut state = Adaptive {
            sections,
            section: Section::Text,
            sure: 0,
            last: VecDeque::with_capacity(WINDOW),
            came: 0,
            distinct: 1.0,
        };
        state.section = state.outside();
        prompt.iter().for_each(|&token| state.enter(token));
        state
    }

    /// Section of text outside of reasoning and calls.
    fn outside(&self) -> Section {
        match self.sections.constrained {
            true => Section::Constrained,
            false => Section::Text,
        }
    }

    fn enter(&mut self, token: TokenId) {
        let inner = [
            (self.sections.reasoning, Section::Reasoning),
            (self.sections.calls, Section::Call),
        ];
        for (marks, section) in inner {
            match marks {
                Some([open, _]) if token == open => self.section = section,
                Some([_, close]) if token == close => self.section = self.outside(),
                _ => {}
            }
        }
    }

    /// Notes the row of logits that the next token is chosen from.
    pub fn observe(&mut self, logits: &[f32]) {
        self.sure = match entropy(logits) < SURE {
            true => self.sure + 1,
            false => 0,
        };
    }

    /// Notes the token that was chosen.
    pub fn take(&mut self, token: TokenId) {
        self.enter(token);
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(token);
        self.came += 1;
        if self.came >= WINDOW_MIN && self.came.is_multiple_of(EVERY) {
            self.distinct = distinct(&self.last);
        }
    }

    /// Whether the most likely token of a row is taken without a draw.
    pub fn is_certain(&self, logits: &[f32]) -> bool {
        let (_, sum) = weights(logits);
        1.0 / sum >= self.section.certain()
    }

    /// Temperature of the next token, where the request's own temperature is `base`.
    pub fn temperature(&self, base: f32) -> f32 {
        let temperature = self.section.temperature(base);
        if self.section == Section::Call {
            return temperature;
        }
        let boost = BOOSTS.into_iter().find(|&(rows, _)| self.sure >= rows);
        let mut factors = FACTORS.into_iter();
        let factor = factors.find(|&(share, _)| self.distinct < share);
        let (boost, factor) = (boost.map_or(0.0, |of| of.1), factor.map_or(1.0, |of| of.1));
        (temperature + boost) * factor
    }
}

/// Largest logit of a row, and the sum of `exp(logit - largest)` over the row.
fn weights(logits: &[f32]) -> (f64, f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest);
    let weight = |&logit: &f32| (f64::from(logit) - largest).exp();
    (largest, logits.iter().map(weight).sum())
}

/// Entropy of a row, nats.
fn entropy(logits: &[f32]) -> f64 {
    let (largest, sum) = weights(logits);
    let surprise = |&logit: &f32| {
        let share = (f64::from(logit) - largest).exp() / sum;
        match share > 0.0 {
            true => -share * share.ln(),
            false => 0.0,
        }
    };
    logits.iter().map(surprise).sum()
}

/// Share of distinct n-grams among all n-grams of the tokens' bytes, lengths of [`RUNS`].
fn distinct(tokens: &VecDeque<TokenId>) -> f32 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    let bytes: Vec<u8> = bytes.collect();
    let runs = || RUNS.flat_map(|length| bytes.windows(length));
    let distinct: HashSet<&[u8]> = runs().collect();
    distinct.len() as f32 / runs().count() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Sections = Sections {
        reasoning: Some([1, 2]),
        calls: Some([3, 4]),
        constrained: false,
    };

    /// Logits of so many tokens, the first of which has such a probability.
    fn row(first: f64, tokens: usize) -> Vec<f32> {
        let other = (1.0 - first) / (tokens - 1) as f64;
        let shares = (0..tokens).map(|token| if token == 0 { first } else { other });
        shares.map(|share| share.ln() as f32).collect()
    }

    #[test]
    fn a_section_has_its_temperature_and_certainty() {
        for (prompt, constrained, temperature, certain) in [
            (&[9][..], false, 1.0, 0.9),
            (&[9, 1], false, 1.0, 0.95),
            (&[1, 2], false, 1.0, 0.9),
            (&[9, 3], false, 0.3, 0.8),
            (&[3, 4], true, 0.6, 0.85),
            (&[9], true, 0.6, 0.85),
            (&[1], true, 1.0, 0.95),
        ] {
            let sections = Sections {
                constrained,
                ..PARTS
            };
            let state = Adaptive::new(sections, prompt);
            assert_eq!(state.temperature(1.0), temperature, "{prompt:?}");
            assert!(state.is_certain(&row(certain + 0.01, 9)), "{prompt:?}");
            assert!(!state.is_certain(&row(certain - 0.01, 9)), "{prompt:?}");
        }
        assert_eq!(Adaptive::new(PARTS, &[3]).temperature(0.2), 0.2);
    }

    #[test]
    fn rows_of_which_the_model_is_sure_raise_the_temperature() {
        let mut state = Adaptive::new(PARTS, &[9]);
        let mut temperatures = Vec::new();
        for _ in 0..33 {
            temperatures.push(state.temperature(1.0));
            state.observe(&row(0.95, 9));
        }
        for (rows, wanted) in [
            (0, 1.0),
            (7, 1.0),
            (8, 1.1),
            (15, 1.1),
            (16, 1.2),
            (32, 1.3),
        ] {
            assert_eq!(temperatures[rows], wanted, "after {rows}");
        }
        state.observe(&row(0.3, 9));
        assert_eq!(state.temperature(1.0), 1.0);
    }

    #[test]
    fn repetitions_raise_the_temperature() {
        let after = |token: fn(u32) -> TokenId, count| {
            let mut state = Adaptive::new(PARTS, &[9]);
            (0..count).for_each(|at| state.take(token(at)));
            state.temperature(1.0)
        };
        assert_eq!(after(|_| 77, 31), 1.0, "too few");
        assert_eq!(after(|_| 77, 64), 1.8);
        assert_eq!(after(|at| at.wrapping_mul(0x9E37_79B9), 128), 1.0);
    }

    #[test]
    fn nothing_raises_the_temperature_of_calls() {
        let mut state = Adaptive::new(PARTS, &[9]);
        (0..64).for_each(|_| {
            state.observe(&row(0.99, 9));
            state.take(77);
        });
        state.take(3);
        assert_eq!(state.temperature(1.0), 0.3);
        state.take(4);
        assert!(state.temperature(1.0) > 1.0);
    }
}
