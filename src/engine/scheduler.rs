//! Scheduler: the rows of the next step, as a pure function of the sequences, without clock or I/O.
//!
//! - Every reply that is ready gets its next row, and those of its drafts.
//! - Prompts share `prefill_tokens`, fewer beside replies (`prefill_budget`). Half goes to the
//!   oldest prompt, the rest to those with the fewest tokens left, older ones first on a tie. So a
//!   short prompt does not wait for a long one, and a flood of short ones does not hold the oldest
//!   back: the oldest takes `tokens / (prefill_tokens / 2)` steps, rounded up, and is left out of
//!   every other step at most, while its reader keeps up.
//! - Scored prompts share `SCORED_TOKENS` of these tokens: scoring takes host time, for which
//!   replies of the same step wait.
//! - A prompt is cut at multiples of `PAGE` from its start only, and so that a chunk has one
//!   snapshot at most.

use step::PAGE;

/// Largest number of scored prompt tokens of a step: one page, the smallest chunk of a prompt.
pub const SCORED_TOKENS: usize = PAGE;

/// A running sequence, as far as the plan of a step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// Number of tokens already in the KV cache.
    pub computed: usize,
    /// Largest number of prompt tokens of this step: whole pages, with at most one snapshot.
    pub most: usize,
    /// Whether the tokens of the prompt are scored.
    pub scored: bool,
    /// Whether the sequence may be in the step: not if its reader is slow, its mask is late, its
    /// pages are being restored, or an owner with fewer slots comes first.
    pub ready: bool,
    /// Number of drafts of a reply that are tried in this step.
    pub drafts: usize,
}

impl Candidate {
    pub fn is_prompt(&self) -> bool {
        self.computed < self.prompt
    }

    /// Whether the sequence is in its reply, and may be in the step.
    pub fn is_reply(&self) -> bool {
        self.ready && !self.is_prompt()
    }

    fn remaining(&self) -> usize {
        self.prompt - self.computed
    }
}

/// Rows that a step has of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Index of the sequence among the candidates.
    pub index: usize,
    /// Number of the sequence's rows, at least one.
    pub tokens: usize,
}

/// Rows of one step: first rows of replies, then of prompts. Reused for its memory.
#[derive(Debug, Default)]
pub struct Plan {
    pub scheduled: Vec<Scheduled>,
    /// Indices of candidates with prompt tokens left, in the order in which they are served.
    prompts: Vec<usize>,
}

impl Plan {
    pub fn new(sequences: usize) -> Self {
        Plan {
            scheduled: Vec::with_capacity(sequences),
            prompts: Vec::with_capacity(sequences),
        }
    }
}

/// Fills `plan` with the next step of `candidates`, which are in the order of their admission, with
/// at most `prefill_tokens` prompt tokens; `plan` stays empty when no sequence can run.
pub fn plan(candidates: &[Candidate], prefill_tokens: usize, plan: &mut Plan) {
    plan.scheduled.clear();
    plan.prompts.clear();
    let indexed = candidates.iter().enumerate();
    for (index, candidate) in indexed.filter(|(_, candidate)| candidate.ready) {
        match candidate.is_prompt() {
            true => plan.prompts.push(index),
            false => plan.scheduled.push(Scheduled {
                index,
                tokens: 1 + candidate.drafts,
            }),
        }
    }
    plan_prompts(candidates, prefill_tokens, plan);
}

fn plan_prompts(candidates: &[Candidate], prefill_tokens: usize, plan: &mut Plan) {
    let Some(&oldest) = plan.prompts.first() else {
        return;
    };
    let mut budget = Budget {
        tokens: oldest_share(prefill_tokens),
        scored: SCORED_TOKENS,
    };
    let share = budget.take(&candidates[oldest], 0);
    plan.prompts.sort_unstable_by_key(|&index| {
        let served = if index == oldest { share } else { 0 };
        (candidates[index].remaining() - served, index)
    });
    budget.tokens = prefill_tokens - share;
    for &index in &plan.prompts {
        let served = if index == oldest { share } else { 0 };
        let tokens = served + budget.take(&candidates[index], served);
        if tokens > 0 {
            plan.scheduled.push(Scheduled { index, tokens });
        }
    }
}

/// Prompt tokens that are left to hand out in a step.
struct Budget {
    tokens: usize,
    /// Part of the tokens left that may be scored.
    scored: usize,
}

impl Budget {
    /// Hands out as many tokens as the budget allows to a prompt that has `served` tokens already.
    fn take(&mut self, prompt: &Candidate, served: usize) -> usize {
        let most = match prompt.scored {
            true => self.tokens.min(self.scored),
            false => self.tokens,
        };
        let taken = chunk(prompt.remaining() - served, most).min(prompt.most - served);
        self.tokens -= taken;
        self.scored -= if prompt.scored { taken } else { 0 };
        taken
    }
}

/// Tokens for the oldest prompt: half of the budget, in whole pages, at least one.
fn oldest_share(prefill_tokens: usize) -> usize {
    (prefill_tokens / 2).next_multiple_of(PAGE)
}

/// Tokens of the next chunk of a prompt: all `remaining` ones if `budget` allows, else whole pages.
fn chunk(remaining: usize, budget: usize) -> usize {
    match remaining <= budget {
        true => remaining,
        false => budget / PAGE * PAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(prompt: usize, computed: usize) -> Candidate {
        Candidate {
            prompt,
            computed,
            most: usize::MAX,
            scored: false,
            ready: true,
            drafts: 0,
        }
    }

    fn scored(tokens: usize) -> Candidate {
        Candidate {
            scored: true,
            ..prompt(tokens, 0)
        }
    }

    fn reply(computed: usize) -> Candidate {
        Candidate {
            prompt: 1,
            computed,
            most: usize::MAX,
            scored: false,
            ready: true,
            drafts: 0,
        }
    }

    fn planned(candidates: &[Candidate], prefill_tokens: usize) -> Vec<(usize, usize)> {
        let mut step = Plan::default();
        plan(candidates, prefill_tokens, &mut step);
        let scheduled = step.scheduled.iter();
        scheduled.map(|of| (of.index, of.tokens)).collect()
    }

    #[test]
    fn every_reply_runs_beside_a_prompt() {
        let candidates = [reply(5), prompt(10 * PAGE, 0), reply(9)];
        assert_eq!(planned(&candidates, PAGE), [(0, 1), (2, 1), (1, PAGE)]);
    }

    #[test]
    fn drafts_are_rows_of_a_reply_and_take_none_from_prompts() {
        let drafted = Candidate {
            drafts: 7,
            ..reply(5)
        };
        let candidates = [drafted, prompt(10 * PAGE, 0)];
        assert_eq!(planned(&candidates, PAGE), [(0, 8), (1, PAGE)]);
    }

    #[test]
    fn nothing_to_do_is_an_empty_plan() {
        assert_eq!(planned(&[], PAGE), []);
    }

    #[test]
    fn a_slow_reader_is_left_out() {
        let slow = |candidate: Candidate| Candidate {
            ready: false,
            ..candidate
        };
        let candidates = [slow(reply(5)), slow(prompt(70, 0)), prompt(3, 0)];
        assert_eq!(planned(&candidates, PAGE), [(2, 3)]);
    }

    #[test]
    fn a_lone_prompt_gets_the_whole_budget() {
        assert_eq!(planned(&[prompt(1000, 0)], 4 * PAGE), [(0, 4 * PAGE)]);
    }

    #[test]
    fn a_short_prompt_overtakes_a_long_one() {
        let candidates = [prompt(1000, 0), prompt(20, 0)];
        assert_eq!(planned(&candidates, 4 * PAGE), [(1, 20), (0, 3 * PAGE)]);
    }

    #[test]
    fn short_prompts_leave_half_to_the_oldest() {
        let candidates = [
            prompt(1000, 0),
            prompt(PAGE, 0),
            prompt(PAGE, 0),
            prompt(PAGE, 0),
        ];
        assert_eq!(
            planned(&candidates, 4 * PAGE),
            [(1, PAGE), (2, PAGE), (0, 2 * PAGE)]
        );
    }

    #[test]
    fn equal_prompts_are_served_in_order() {
        let candidates = [prompt(200, 0), prompt(200, 0), prompt(200, 0)];
        // 56 tokens are left after the first prompt: less than a page, and no whole prompt.
        assert_eq!(planned(&candidates, 4 * PAGE), [(0, 200)]);
        assert_eq!(
            planned(&candidates, 8 * PAGE),
            [(0, 200), (1, 200), (2, PAGE)]
        );
    }

    #[test]
    fn scored_prompts_share_one_page_and_leave_the_rest_to_others() {
        let candidates = [scored(1000), scored(1000), prompt(1000, 0)];
        assert_eq!(planned(&candidates[..2], 8 * PAGE), [(0, PAGE)]);
        assert_eq!(planned(&candidates, 8 * PAGE), [(0, PAGE), (2, 7 * PAGE)]);
        let candidates = [prompt(1000, 0), scored(30), scored(30), scored(30)];
        assert_eq!(
            planned(&candidates, 8 * PAGE),
            [(1, 30), (2, 30), (0, 7 * PAGE)]
        );
        // Sequences that are scored and reply are replies.
        let replying = Candidate {
            computed: 31,
            ..scored(30)
        };
        assert_eq!(planned(&[replying], PAGE), [(0, 1)]);
    }

    #[test]
    fn a_prompt_that_may_have_less_leaves_the_rest_to_others() {
        let less = Candidate {
            most: PAGE,
            ..prompt(1000, 0)
        };
        let candidates = [less, prompt(1000, 0)];
        assert_eq!(planned(&candidates, 8 * PAGE), [(0, PAGE), (1, 7 * PAGE)]);
        assert_eq!(planned(&candidates[..1], PAGE), [(0, PAGE)]);
    }

    #[test]
    fn a_budget_of_one_page_still_moves_the_oldest() {
        assert_eq!(planned(&[prompt(100, 0), prompt(5, 0)], PAGE), [(0, PAGE)]);
    }

    #[test]
    fn cuts_lie_on_the_grid_and_the_budget_holds() {
        for budget in [PAGE, 2 * PAGE, 3 * PAGE, 8 * PAGE] {
            for a in [1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 7] {
                for b in [1, PAGE - 1, PAGE, PAGE + 1, 9 * PAGE] {
                    let candidates = [prompt(a, 0), prompt(b, 0), prompt(a + b, PAGE.min(a))];
                    let step = planned(&candidates[..2], budget);
                    assert!(step.iter().map(|scheduled| scheduled.1).sum::<usize>() <= budget);
                    for (index, tokens) in step {
                        let end = candidates[index].computed + tokens;
                        assert!(end == candidates[index].prompt || end.is_multiple_of(PAGE));
                    }
                }
            }
        }
    }
}
