//! Bound on the reasoning at the start of a reply: once the budget is used up, the tokens that end
//! the reasoning are written instead of sampled ones.

use step::executor::TokenId;

/// Thinking budget of a reply that begins inside its reasoning. The end of reasoning is forced
/// whatever a constraint says, so a constraint must leave reasoning free.
#[derive(Clone, Debug, PartialEq)]
pub struct ThinkingBudget {
    /// Number of tokens of reasoning.
    pub tokens: usize,
    /// Tag that ends reasoning, as the tokenizer encodes it; not empty. The tag is not recognised
    /// in other tokens.
    pub close: Vec<TokenId>,
    /// Tokens that are forced once the budget is used up; not empty.
    pub ending: Vec<TokenId>,
}

/// Part of the reply that the next token is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reasoning of `written` tokens so far; the last `closing` tokens are a prefix of the tag.
    Reasoning {
        written: usize,
        closing: usize,
    },
    /// The next token is `ending[at]`.
    Ending {
        at: usize,
    },
    Over,
}

/// The rest of the thinking budget of one running reply.
#[derive(Debug)]
pub(super) struct Countdown {
    budget: ThinkingBudget,
    phase: Phase,
}

impl Countdown {
    pub fn new(budget: ThinkingBudget) -> Countdown {
        debug_assert!(!budget.close.is_empty() && !budget.ending.is_empty());
        let phase = match budget.tokens {
            0 => Phase::Ending { at: 0 },
            _ => Phase::Reasoning {
                written: 0,
                closing: 0,
            },
        };
        Countdown { budget, phase }
    }

    /// The token that must come next, if one must.
    pub fn forced(&self) -> Option<TokenId> {
        match self.phase {
            Phase::Ending { at } => self.budget.ending.get(at).copied(),
            Phase::Reasoning { .. } | Phase::Over => None,
        }
    }

    /// Counts the reply's next token.
    pub fn advance(&mut self, id: TokenId) {
        self.phase = match self.phase {
            Phase::Reasoning { written, closing } => self.reason(written + 1, closing, id),
            Phase::Ending { at } if at + 1 < self.budget.ending.len() => {
                Phase::Ending { at: at + 1 }
            }
            Phase::Ending { .. } | Phase::Over => Phase::Over,
        };
    }

    fn reason(&self, written: usize, closing: usize, id: TokenId) -> Phase {
        let close = &self.budget.close;
        // No prefix of a tag recurs within the tag: a mismatch can only start anew.
        let closing = match close[closing] == id {
            true => closing + 1,
            false => usize::from(close[0] == id),
        };
        if closing == close.len() {
            Phase::Over
        } else if written == self.budget.tokens {
            Phase::Ending { at: 0 }
        } else {
            Phase::Reasoning { written, closing }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE: [TokenId; 2] = [8, 9];

    /// The reply of a model that would write `wanted`.
    fn reply(tokens: usize, wanted: &[TokenId]) -> Vec<TokenId> {
        let mut countdown = Countdown::new(ThinkingBudget {
            tokens,
            close: CLOSE.to_vec(),
            ending: vec![7, 8, 9, 7],
        });
        let mut wanted = wanted.iter();
        std::iter::from_fn(|| {
            let id = countdown.forced().or_else(|| wanted.next().copied())?;
            countdown.advance(id);
            Some(id)
        })
        .collect()
    }

    #[test]
    fn a_used_up_budget_writes_the_ending_once() {
        assert_eq!(reply(2, &[1, 2, 3, 4]), [1, 2, 7, 8, 9, 7, 3, 4]);
        assert_eq!(reply(0, &[1, 2]), [7, 8, 9, 7, 1, 2]);
    }

    #[test]
    fn reasoning_that_ends_in_time_is_left_alone() {
        assert_eq!(reply(3, &[1, 8, 9, 2, 3]), [1, 8, 9, 2, 3]);
        assert_eq!(reply(4, &[8, 8, 9, 2, 3]), [8, 8, 9, 2, 3]);
    }

    #[test]
    fn half_a_tag_ends_nothing() {
        assert_eq!(reply(2, &[1, 8, 2]), [1, 8, 7, 8, 9, 7, 2]);
        assert_eq!(reply(3, &[8, 1, 9, 2]), [8, 1, 9, 7, 8, 9, 7, 2]);
    }
}
