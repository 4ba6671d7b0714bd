//! DRY ("don't repeat yourself"): a penalty for the token that would continue a repetition.
//!
//! Source: p-e-w, "DRY: A modern repetition penalty", text-generation-webui pull request 5677. A
//! token that followed an earlier copy of the last `n` tokens would make the copy one longer; from
//! `allowed` on its logit loses `multiplier * base^(n - allowed)`.

use std::collections::HashMap;

use super::request::Dry;
use step::executor::TokenId;

/// Largest exponent of the penalty; the penalty is far beyond any logit there.
const EXPONENT_MAX: usize = 64;

/// Penalties of the next tokens of one sequence.
#[derive(Debug)]
pub struct Repetitions {
    rule: Dry,
    /// Tokens of prompt and reply.
    tokens: Vec<TokenId>,
    penalties: HashMap<TokenId, f32>,
    /// Length of the copy that ends at each position, counted from the end; reused for its memory.
    lengths: Vec<usize>,
}

impl Repetitions {
    /// Penalties of the first token after a prompt; none if the rule is off.
    pub fn new(rule: &Dry, prompt: &[TokenId]) -> Option<Repetitions> {
        if rule.multiplier == 0.0 {
            return None;
        }
        let mut found = Repetitions {
            rule: rule.clone(),
            tokens: prompt.to_vec(),
            penalties: HashMap::new(),
            lengths: Vec::new(),
        };
        found.look();
        Some(found)
    }

    /// Penalty that is subtracted from the logit of a token.
    pub fn penalty(&self, id: TokenId) -> f32 {
        self.penalties.get(&id).copied().unwrap_or(0.0)
    }

    /// Tokens with a penalty, and their penalties.
    pub fn penalties(&self) -> impl Iterator<Item = (TokenId, f32)> {
        self.penalties.iter().map(|(&id, &penalty)| (id, penalty))
    }

    /// Remembers the token that was chosen.
    pub fn advance(&mut self, id: TokenId) {
        self.tokens.push(id);
        self.look();
    }

    /// Computes for each earlier position the length of the copy of the last tokens that ends
    /// there: the Z-function of the tokens in reverse.
    fn look(&mut self) {
        self.penalties.clear();
        let window = match self.rule.last {
            Some(last) => &self.tokens[self.tokens.len() - last.min(self.tokens.len())..],
            None => &self.tokens[..],
        };
        let count = window.len();
        let back = |at: usize| window[count - 1 - at];
        let breaks = |at: &usize| self.rule.breakers.binary_search(&back(*at)).is_ok();
        let longest = (0..count).find(breaks).unwrap_or(count);
        if longest < self.rule.allowed {
            return;
        }
        let lengths = &mut self.lengths;
        lengths.clear();
        lengths.resize(count, 0);
        let (mut left, mut right) = (0, 0);
        for at in 1..count {
            let mut same = match at < right {
                true => lengths[at - left].min(right - at),
                false => 0,
            };
            while at + same < count && back(same) == back(at + same) {
                same += 1;
            }
            lengths[at] = same;
            if at + same > right {
                (left, right) = (at, at + same);
            }
            // The token after this position continued the copy, so that token is penalised.
            let same = same.min(longest);
            if same >= self.rule.allowed {
                let exponent = (same - self.rule.allowed).min(EXPONENT_MAX);
                let penalty = self.rule.multiplier * self.rule.base.powi(exponent as i32);
                let known = self.penalties.entry(back(at - 1)).or_default();
                *known = known.max(penalty);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Dry {
        Dry {
            multiplier: 0.5,
            base: 2.0,
            allowed: 2,
            ..Dry::default()
        }
    }

    /// By trying every earlier position.
    fn plainly(rule: &Dry, tokens: &[TokenId]) -> HashMap<TokenId, f32> {
        let mut found = HashMap::new();
        let breaks = |id: &&TokenId| rule.breakers.contains(id);
        let longest = tokens.iter().rev().position(|id| breaks(&id));
        for end in 1..tokens.len() {
            let ahead = tokens[..end].iter().rev();
            let same = ahead.zip(tokens.iter().rev()).take_while(|(a, b)| a == b);
            let same = same.count().min(longest.unwrap_or(tokens.len()));
            if same >= rule.allowed {
                let penalty = rule.multiplier * rule.base.powi((same - rule.allowed) as i32);
                let known: &mut f32 = found.entry(tokens[end]).or_default();
                *known = known.max(penalty);
            }
        }
        found
    }

    #[test]
    fn a_token_that_continues_a_copy_is_penalised_by_its_length() {
        let found = Repetitions::new(&rule(), &[1, 2, 3, 4, 1, 2, 3]).unwrap();
        assert_eq!(found.penalty(4), 0.5 * 2.0);
        assert_eq!(found.penalties().count(), 1);
    }

    #[test]
    fn a_breaker_ends_a_copy() {
        let rule = Dry {
            breakers: vec![2],
            ..rule()
        };
        let found = Repetitions::new(&rule, &[1, 2, 3, 4, 1, 2, 3]).unwrap();
        assert_eq!(found.penalties().count(), 0);
    }

    #[test]
    fn tokens_before_the_window_do_not_count() {
        let rule = Dry {
            last: Some(4),
            ..rule()
        };
        let found = Repetitions::new(&rule, &[1, 2, 3, 4, 1, 2, 3]).unwrap();
        assert_eq!(found.penalties().count(), 0);
    }

    #[test]
    fn every_earlier_occurrence_is_found() {
        let mut random = 1_u32;
        for trial in 0..300 {
            let mut next = |end: u32| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((random >> 16) & 0x7fff) % end.max(1)
            };
            let rule = Dry {
                breakers: if trial % 3 == 0 { vec![0] } else { Vec::new() },
                ..rule()
            };
            let tokens: Vec<TokenId> = (0..next(40) + 1).map(|_| next(3)).collect();
            let mut found = Repetitions::new(&rule, &tokens[..1]).unwrap();
            tokens[1..].iter().for_each(|&id| found.advance(id));
            let known: HashMap<_, _> = found.penalties().collect();
            assert_eq!(known, plainly(&rule, &tokens), "{tokens:?}");
        }
    }

    #[test]
    fn a_rule_without_a_multiplier_is_off() {
        assert!(Repetitions::new(&Dry::default(), &[1, 1, 1, 1]).is_none());
    }
}
