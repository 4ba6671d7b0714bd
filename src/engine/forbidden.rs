//! Tokens that a request forbids whatever their logits: tokens outside a given set, stop tokens
//! before a minimum length, and the last tokens of sequences that must not appear.

use super::request::Sampling;
use step::executor::TokenId;

/// The forbidden tokens of one sequence, as its reply grows.
#[derive(Debug, Default)]
pub struct Forbidden {
    /// The only tokens that may be chosen, ascending; empty if all may.
    allowed: Vec<TokenId>,
    /// Number of tokens that the reply must have before one of `stops` may be chosen.
    least: usize,
    stops: Vec<TokenId>,
    /// Sequences of tokens that the reply must not have.
    sequences: Vec<Vec<TokenId>>,
    /// The reply so far if one of `sequences` is longer than a token; else only its length counts.
    reply: Vec<TokenId>,
    replied: usize,
}

impl Forbidden {
    /// Forbidden tokens at the start of a reply under `sampling`; `stops` end the reply.
    pub fn new(sampling: &Sampling, stops: &[TokenId]) -> Forbidden {
        let mut allowed = sampling.allowed.clone();
        allowed.sort_unstable();
        Forbidden {
            allowed,
            least: sampling.min_tokens,
            stops: stops.to_vec(),
            sequences: sampling.bad_words.clone(),
            reply: Vec::new(),
            replied: 0,
        }
    }

    /// Whether any token is forbidden next.
    pub fn any(&self) -> bool {
        !self.allowed.is_empty() || self.replied < self.least || !self.sequences.is_empty()
    }

    /// Whether a token must not be chosen next.
    pub fn has(&self, id: TokenId) -> bool {
        let is_other = !self.allowed.is_empty() && self.allowed.binary_search(&id).is_err();
        let ends_early = self.replied < self.least && self.stops.contains(&id);
        is_other || ends_early || self.sequences.iter().any(|one| self.completes(one, id))
    }

    fn completes(&self, sequence: &[TokenId], id: TokenId) -> bool {
        let Some((last, before)) = sequence.split_last() else {
            return false;
        };
        *last == id && self.reply.ends_with(before)
    }

    /// Makes the logits of forbidden tokens minus infinity.
    pub fn take_out(&self, logits: &mut [f32]) {
        if self.any() {
            let tokens = (0..).zip(logits);
            let forbidden = tokens.filter(|(id, _)| self.has(*id));
            forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
    }

    /// Remembers the token that was chosen.
    pub fn advance(&mut self, id: TokenId) {
        self.replied += 1;
        if !self.sequences.is_empty() {
            self.reply.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sampling: Sampling) -> Forbidden {
        Forbidden::new(&sampling, &[9])
    }

    #[test]
    fn a_stop_token_is_forbidden_before_the_least_length() {
        let mut forbidden = of(Sampling {
            min_tokens: 2,
            ..Sampling::default()
        });
        for _ in 0..2 {
            assert!(forbidden.any() && forbidden.has(9) && !forbidden.has(1));
            forbidden.advance(1);
        }
        assert!(!forbidden.any() && !forbidden.has(9));
    }

    #[test]
    fn a_sequence_is_forbidden_where_it_would_be_complete() {
        let mut forbidden = of(Sampling {
            bad_words: vec![vec![5], vec![1, 2, 3]],
            ..Sampling::default()
        });
        assert!(forbidden.has(5) && !forbidden.has(3));
        [1, 2].into_iter().for_each(|id| forbidden.advance(id));
        assert!(forbidden.has(3) && forbidden.has(5) && !forbidden.has(2));
        forbidden.advance(7);
        assert!(!forbidden.has(3));
    }

    #[test]
    fn all_but_the_allowed_ones_leave_a_row() {
        let forbidden = of(Sampling {
            allowed: vec![3, 1],
            ..Sampling::default()
        });
        let mut logits = [0.0; 5];
        forbidden.take_out(&mut logits);
        let left: Vec<usize> = (0..5).filter(|&id| logits[id] == 0.0).collect();
        assert_eq!(left, [1, 3]);
    }
}
