//! Prefill budget of a step that also has replies: as many prompt tokens as keep the time between
//! two tokens of a reply within a bound.
//!
//! The time that a step takes beyond a step of replies alone is that of its prompt tokens. By that
//! time the next step gets as many tokens as fit into the rest of the bound. No result depends on
//! the budget: prompts have the same bits however they are cut.

use std::time::Duration;

use step::PAGE;

/// Smallest budget, tokens: a page for the oldest prompt, and one for another prompt.
const LEAST: usize = 2 * PAGE;
/// Weight of the latest step in the mean time of steps of replies alone.
const WEIGHT: f64 = 0.1;
/// Share of the bound that prompts get even if replies alone take nearly the whole bound.
const SHARE: f64 = 0.25;

/// Prefill budget of one engine, by the steps that it has run.
#[derive(Clone, Copy, Debug)]
pub struct PrefillBudget {
    /// Time that a step is to stay within, seconds.
    bound: f64,
    /// Mean time of a step of replies alone, seconds.
    alone: Option<f64>,
    /// Prompt tokens of a step with replies that fit the bound, by the latest measurement.
    tokens: usize,
    /// Largest number of prompt tokens of any step.
    most: usize,
}

impl PrefillBudget {
    /// Budget before the first step, of an engine whose steps have at most `most` prompt tokens.
    pub fn new(bound: Duration, most: usize) -> PrefillBudget {
        PrefillBudget {
            bound: bound.as_secs_f64(),
            alone: None,
            tokens: LEAST,
            most: most.max(LEAST),
        }
    }

    /// The budget of the next step, in whole pages, `most` at most.
    pub fn tokens(&self, most: usize) -> usize {
        (self.tokens / PAGE * PAGE).min(most)
    }

    /// Adds the time of a step with replies and so many prompt tokens.
    pub fn note(&mut self, prompt_tokens: usize, took: Duration) {
        let took = took.as_secs_f64();
        match prompt_tokens {
            0 => {
                let alone = self.alone.unwrap_or(took);
                self.alone = Some(alone + WEIGHT * (took - alone));
            }
            tokens => self.fit(tokens, took),
        }
    }

    /// Moves the budget to the number of tokens that would have taken the bound, to half or the
    /// double at most, since one step may have been delayed. A step with less than half the
    /// budget's tokens only lowers the budget: the time of few tokens says little about many.
    fn fit(&mut self, tokens: usize, took: f64) {
        let alone = self.alone.unwrap_or(0.0);
        let left = (self.bound - alone).max(SHARE * self.bound);
        let fits = tokens as f64 * left / (took - alone).max(f64::MIN_POSITIVE);
        let fits = fits.min((2 * self.tokens) as f64) as usize;
        if 2 * tokens >= self.tokens || fits < tokens {
            self.tokens = fits.max(self.tokens / 2).clamp(LEAST, self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(20);
    const MOST: usize = 64 * PAGE;
    const PREFILL_TOKENS: usize = 4 * PAGE;

    /// Runs steps of `cost` a prompt of `PAGE` tokens beside replies of 3 ms; the longest of the
    /// last ones.
    fn settled(budget: &mut PrefillBudget, cost: Duration, steps: usize) -> Duration {
        let alone = Duration::from_millis(3);
        let mut longest = Duration::ZERO;
        for step in 0..steps {
            budget.note(0, alone);
            let tokens = budget.tokens(PREFILL_TOKENS);
            let took = alone + cost * (tokens / PAGE) as u32;
            budget.note(tokens, took);
            longest = if step + 4 > steps {
                longest.max(took)
            } else {
                longest
            };
        }
        longest
    }

    #[test]
    fn prompts_begin_with_two_pages() {
        assert_eq!(
            PrefillBudget::new(BOUND, PREFILL_TOKENS).tokens(MOST),
            2 * PAGE
        );
        assert_eq!(PrefillBudget::new(BOUND, PREFILL_TOKENS).tokens(PAGE), PAGE);
    }

    #[test]
    fn steps_come_to_take_the_bound_and_no_more() {
        for cost in [6, 4, 1].map(Duration::from_millis) {
            let longest = settled(&mut PrefillBudget::new(BOUND, PREFILL_TOKENS), cost, 40);
            assert!(longest <= BOUND, "{cost:?} a page: {longest:?}");
        }
    }

    #[test]
    fn prompts_that_cost_nothing_get_all() {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        settled(&mut budget, Duration::ZERO, 40);
        assert_eq!(budget.tokens(usize::MAX), PREFILL_TOKENS);
    }

    #[test]
    fn a_delayed_step_halves_them_at_most() {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        settled(&mut budget, Duration::ZERO, 40);
        let before = budget.tokens(usize::MAX);
        budget.note(before, Duration::from_secs(60));
        assert_eq!(
            budget.tokens(usize::MAX),
            (before / 2 / PAGE * PAGE).max(LEAST)
        );
    }

    #[test]
    fn replies_that_take_the_bound_alone_leave_two_pages() {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        for _ in 0..100 {
            budget.note(0, 2 * BOUND);
            budget.note(2 * PAGE, 3 * BOUND);
        }
        assert_eq!(budget.tokens(MOST), 2 * PAGE);
    }

    /// Tokens that a step aims at, after replies that take `alone` and a step of `tokens`.
    fn fitted(alone: Duration, tokens: usize, took: Duration) -> usize {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        budget.note(0, alone);
        budget.note(tokens, took);
        budget.tokens
    }

    /// Tokens that a step takes of a prompt.
    fn most(tokens: usize) -> usize {
        tokens.min(PREFILL_TOKENS.max(LEAST))
    }

    #[test]
    fn a_step_of_replies_moves_the_mean_by_its_weight() {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        let alone = [10, 20, 1].map(|took| {
            budget.note(0, Duration::from_millis(took));
            (budget.alone.unwrap() * 1e6).round()
        });
        assert_eq!(alone, [10_000.0, 11_000.0, 10_000.0]);
    }

    #[test]
    fn prompts_get_the_tokens_that_would_have_taken_the_rest_of_the_bound() {
        let ms = Duration::from_millis;
        // Two pages took 12 ms beside replies of 4: 16 ms fit four thirds of that.
        assert_eq!(fitted(ms(4), LEAST, ms(16)), most(LEAST * 4 / 3));
        assert_eq!(fitted(ms(4), LEAST, ms(5)), most(2 * LEAST), "the double");
        // A quarter of the bound is theirs beside replies that take more than it.
        assert_eq!(fitted(ms(30), LEAST, ms(33)), most(LEAST * 5 / 3));
        assert_eq!(fitted(ms(16), LEAST, ms(19)), most(LEAST * 5 / 3));
        assert_eq!(fitted(ms(4), LEAST, ms(200)), LEAST);
    }

    #[test]
    fn few_tokens_count_where_they_are_half_or_took_too_long() {
        let with = |before: usize, tokens, took| {
            let mut budget = PrefillBudget {
                tokens: before,
                ..PrefillBudget::new(BOUND, PREFILL_TOKENS)
            };
            budget.note(tokens, Duration::from_millis(took));
            budget.tokens
        };
        let before = 4 * LEAST;
        assert_eq!(with(before, before / 2 - 1, 10), before, "it says nothing");
        assert_eq!(with(before, before / 2, 20), most(before / 2));
        assert_eq!(with(before, before / 2 - 1, 40), most(before / 2));
    }

    #[test]
    fn a_step_has_whole_pages() {
        let tokens = |tokens, most| {
            let budget = PrefillBudget {
                tokens,
                ..PrefillBudget::new(BOUND, PREFILL_TOKENS)
            };
            budget.tokens(most)
        };
        assert_eq!(tokens(3 * PAGE - 1, MOST), 2 * PAGE);
        assert_eq!(tokens(3 * PAGE, MOST), 3 * PAGE);
        assert_eq!(tokens(3 * PAGE, PAGE), PAGE);
    }

    #[test]
    fn a_short_prompt_says_nothing_about_long_ones() {
        let mut budget = PrefillBudget::new(BOUND, PREFILL_TOKENS);
        budget.note(3, Duration::ZERO);
        assert_eq!(budget.tokens(MOST), 2 * PAGE);
    }
}
