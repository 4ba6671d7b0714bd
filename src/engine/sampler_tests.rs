use super::super::adaptive::Sections;
use super::*;
use crate::constraint::Mask;
use crate::request::{Dry, Xtc};
use step::ranking::ranked;

fn sample(rule: &Sampling, logits: &[f32], position: usize) -> TokenId {
    Sampler::new(rule.clone(), &[], &[], 8)
        .next(logits, position, &mut Scratch::new(logits.len()))
        .unwrap()
}

fn drawn(rule: &Sampling, logits: &[f32]) -> Vec<f64> {
    const DRAWS: usize = 20_000;
    let mut shares = vec![0.0; logits.len()];
    let mut scratch = Scratch::new(logits.len());
    for position in 0..DRAWS {
        let mut sampler = Sampler::new(rule.clone(), &[], &[], 8);
        shares[sampler.next(logits, position, &mut scratch).unwrap() as usize] +=
            1.0 / DRAWS as f64;
    }
    shares
}

/// Standard deviation of a share over 20,000 draws is at most 0.0036.
fn assert_shares(shares: &[f64], expected: &[f64]) {
    let near = shares
        .iter()
        .zip(expected)
        .all(|(a, b)| (a - b).abs() < 0.015);
    assert!(near, "{shares:?}, expected {expected:?}");
}

fn logits_of(shares: &[f64]) -> Vec<f32> {
    shares.iter().map(|share| share.ln() as f32).collect()
}

fn warm() -> Sampling {
    Sampling {
        temperature: 1.0,
        seed: 3,
        ..Sampling::default()
    }
}

#[test]
fn greedy_takes_the_lowest_id_on_a_tie() {
    assert_eq!(sample(&Sampling::default(), &[1.0, 3.0, 2.0, 3.0], 0), 1);
    assert_eq!(sample(&Sampling::default(), &[-0.0, 0.0], 0), 0);
}

#[test]
fn greedy_finds_the_maximum_at_any_index() {
    for index in 0..40 {
        let mut logits = [-2.0; 40];
        logits[index] = -1.0;
        assert_eq!(sample(&Sampling::default(), &logits, 0), index as TokenId);
    }
}

#[test]
fn draws_follow_the_softmax() {
    let shares = [0.5, 0.3, 0.2];
    assert_shares(&drawn(&warm(), &logits_of(&shares)), &shares);
}

#[test]
fn temperature_sharpens() {
    let rule = Sampling {
        temperature: 0.5,
        ..warm()
    };
    // Squares of the shares, normalised.
    let expected = [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38];
    assert_shares(&drawn(&rule, &logits_of(&[0.5, 0.3, 0.2])), &expected);
}

#[test]
fn a_tiny_temperature_is_greedy_and_finite() {
    let rule = Sampling {
        temperature: f32::MIN_POSITIVE,
        ..warm()
    };
    assert_eq!(sample(&rule, &[-300.0, 5.0, 4.999], 1), 1);
}

#[test]
fn top_k_keeps_the_k_most_likely_and_lower_ids_on_a_tie() {
    let rule = Sampling { top_k: 2, ..warm() };
    assert_shares(
        &drawn(&rule, &logits_of(&[0.2, 0.2, 0.4, 0.2])),
        &[1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0],
    );
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    let logits = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    let rule = |top_p| Sampling { top_p, ..warm() };
    assert_shares(
        &drawn(&rule(0.7), &logits),
        &[0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0],
    );
    assert_shares(
        &drawn(&rule(0.8), &logits),
        &[0.0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9],
    );
    assert_shares(&drawn(&rule(1e-6), &logits), &[0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn top_p_counts_over_what_top_k_left() {
    // After top-k the shares are 0.5, 0.25, 0.25: the first reaches one half alone.
    let rule = Sampling {
        top_k: 3,
        top_p: 0.499,
        ..warm()
    };
    assert_shares(
        &drawn(&rule, &logits_of(&[0.4, 0.2, 0.2, 0.2])),
        &[1.0, 0.0, 0.0, 0.0],
    );
}

#[test]
fn min_p_is_relative_to_the_most_likely() {
    let rule = Sampling {
        min_p: 0.5,
        ..warm()
    };
    let expected = [0.4 / 0.65, 0.0, 0.25 / 0.65, 0.0];
    assert_shares(
        &drawn(&rule, &logits_of(&[0.4, 0.19, 0.25, 0.16])),
        &expected,
    );
}

#[test]
fn the_top_p_set_of_a_flat_row_is_found_beyond_the_first_try() {
    // 1024 equal tokens: 90 % of them are more than are ranked at first.
    let logits = vec![0.0; 1024];
    let rule = Sampling {
        top_p: 0.9,
        ..warm()
    };
    for id in 0..922 {
        let uniform = (f64::from(id) + 0.5) / 922.0;
        assert_eq!(
            draw(
                &logits,
                (&rule, rule.temperature),
                &[uniform, 0.0],
                &mut Vec::new()
            ),
            id as TokenId
        );
    }
}

#[test]
fn draws_are_the_shares_of_a_full_sort() {
    let logits: Vec<f32> = (0..3000).map(|i| rng::uniform(9, i) as f32 * 8.0).collect();
    let mut sorted: Vec<usize> = (0..logits.len()).collect();
    sorted.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let weights = sorted.iter().map(|&id| f64::from(logits[id]).exp());
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    for top_p in [0.05, 0.5, 0.9, 0.999, 1.0] {
        let rule = Sampling { top_p, ..warm() };
        let mass = f64::from(top_p) * sums[sums.len() - 1];
        let candidates = sums[sums.partition_point(|&sum| sum < mass).min(sums.len() - 1)];
        for uniform in (0..50).map(|i| (f64::from(i) + 0.5) / 50.0) {
            let expected = sorted[sums.partition_point(|&sum| sum <= uniform * candidates)];
            let found = draw(
                &logits,
                (&rule, rule.temperature),
                &[uniform, 0.0],
                &mut Vec::new(),
            );
            assert_eq!(found as usize, expected, "top_p {top_p} at {uniform}");
        }
    }
}

/// A row of which many logits are equal, and what it is ranked by.
fn row(seed: u64, count: usize) -> (Vec<f32>, Vec<f32>) {
    let logit = |id| (rng::uniform(seed, id) * 32.0).floor() as f32 / 4.0;
    let logits: Vec<f32> = (0..300).map(logit).collect();
    let ranked = ranked(&logits, count);
    (logits, ranked)
}

#[test]
fn what_is_ranked_gives_the_token_of_the_whole_row_or_none() {
    let (mut chosen, mut left) = (0, 0);
    for seed in 0..2000 {
        let (logits, row) = row(seed, 24);
        let rule = Sampling {
            temperature: [0.0, 0.7, 1.0, 1.0][seed as usize % 4],
            top_k: [0, 20, 24, 25][seed as usize / 4 % 4],
            top_p: [1.0, 0.3, 0.9][seed as usize / 16 % 3],
            min_p: [0.0, 0.2, 0.001][seed as usize / 48 % 3],
            seed,
            ..Sampling::default()
        };
        match Sampler::new(rule.clone(), &[], &[], 8).choose_ranked(
            &Ranked::new(&row),
            Allowed::All,
            3,
        ) {
            Some(id) => assert_eq!(id, sample(&rule, &logits, 3), "{rule:?}"),
            None => left += 1,
        }
        chosen += usize::from(rule.temperature == 0.0 || [20, 24].contains(&rule.top_k));
    }
    // All that need no more than is ranked are chosen, and some of the others.
    assert!(
        left > 100 && left < 2000 - chosen,
        "{left} left, {chosen} chosen"
    );
}

#[test]
fn what_only_lowers_logits_is_applied_to_what_is_ranked() {
    let mut chosen = 0;
    for seed in 0..2000 {
        let (mut logits, _) = row(seed, 1);
        // Logits of either sign, for a repetition penalty divides one and multiplies the other.
        logits.iter_mut().for_each(|logit| *logit -= 7.0);
        let likely = most_likely(&logits, 60);
        let (one, other) = (likely[0].0, likely[seed as usize % 30].0);
        let rule = Sampling {
            temperature: [0.0, 0.7, 1.0][seed as usize % 3],
            top_k: 5,
            presence_penalty: [0.0, 1.5][seed as usize / 3 % 2],
            frequency_penalty: [0.0, 0.5][seed as usize / 6 % 2],
            repetition_penalty: [1.0, 1.3][seed as usize / 12 % 2],
            logit_bias: [vec![], vec![(one, -0.5), (other, -1.0), (one, 0.0)]]
                [seed as usize / 24 % 2]
                .clone(),
            seed,
            ..Sampling::default()
        };
        let seen: Vec<_> = likely.iter().step_by(3).map(|&(id, _)| id).collect();
        let mut sampler = Sampler::new(rule.clone(), &seen[..10], &[], 64);
        seen[5..].iter().for_each(|&id| sampler.take(id));
        sampler.take(one);
        let ranked = ranked(&logits, [64, 6][seed as usize / 48 % 2]);
        if let Some(id) = sampler.choose_ranked(&Ranked::new(&ranked), Allowed::All, 3) {
            let expected = sampler.next(&logits, 3, &mut Scratch::default()).unwrap();
            assert_eq!(id, expected, "{rule:?}");
            chosen += 1;
        }
    }
    assert!((1000..1900).contains(&chosen), "{chosen} chosen");
}

#[test]
fn a_logit_that_is_lowered_to_those_that_are_not_ranked_needs_the_whole_row() {
    let rule = Sampling {
        temperature: 1.0,
        top_k: 2,
        presence_penalty: 2.5,
        ..Sampling::default()
    };
    // Token 3 sinks from 3.0 to 0.5; then token 2, which the device does not rank, is before it.
    let row = ranked(&[0.0, 0.5, 0.5, 3.0], 2);
    let mut sampler = Sampler::new(rule, &[], &[], 8);
    sampler.take(3);
    assert_eq!(
        sampler.choose_ranked(&Ranked::new(&row), Allowed::All, 0),
        None
    );
}

#[test]
fn what_lifts_a_logit_needs_the_whole_row() {
    let (_, row) = row(1, 24);
    let lifting = [
        ("logit_bias", 0.1, 0.0, 0.0, 1.0),
        ("presence_penalty", 0.0, -0.1, 0.0, 1.0),
        ("frequency_penalty", 0.0, 0.0, -0.1, 1.0),
        ("repetition_penalty", 0.0, 0.0, 0.0, 0.9),
    ];
    for (name, bias, presence, frequency, repetition) in lifting {
        let rule = Sampling {
            temperature: 0.0,
            logit_bias: vec![(1, bias)],
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            ..Sampling::default()
        };
        let sampler = Sampler::new(rule, &[7], &[], 8);
        assert_eq!(
            sampler.choose_ranked(&Ranked::new(&row), Allowed::All, 0),
            None,
            "{name}"
        );
    }
}

/// A row as models give it: few likely tokens, and a long tail after them.
fn peaked(seed: u64) -> Vec<f32> {
    const VOCAB: u64 = 20_000;
    let height = 6.0 + 6.0 * rng::uniform(seed, VOCAB) as f32;
    let logit = |id| {
        let rank = 1.0 + rng::uniform(seed, id) as f32 * VOCAB as f32;
        height - 2.5 * rank.ln()
    };
    (0..VOCAB).map(logit).collect()
}

#[test]
fn cold_draws_from_many_tokens_mostly_need_the_ranked_ones_alone() {
    let mut masked = Mask::default();
    masked.fill(20_000);
    (0..20_000).step_by(3).for_each(|id| masked.set(id, false));
    let mut left = 0;
    for seed in 0..600 {
        let logits = peaked(seed);
        let rule = Sampling {
            temperature: [0.3, 0.7, 1.0][seed as usize % 3],
            top_p: [1.0, 0.95, 0.9][seed as usize / 3 % 3],
            top_k: [0, 200][seed as usize / 9 % 2],
            presence_penalty: [0.0, 0.5][seed as usize / 18 % 2],
            seed,
            ..Sampling::default()
        };
        let allowed = match seed / 36 % 3 {
            0 => Allowed::All,
            1 => Allowed::Except(&[1, 2, 3]),
            _ => Allowed::Only(&masked),
        };
        let sampler = || Sampler::new(rule.clone(), &[5, 6, 7], &[], 8);
        let row = ranked(&logits, 64);
        match sampler().choose_ranked(&Ranked::new(&row), allowed, 3) {
            None => left += 1,
            Some(id) => {
                let mut restricted = Vec::new();
                let logits = restrict(&logits, allowed, &mut restricted);
                let whole = sampler().next(logits, 3, &mut Scratch::default());
                assert_eq!(Some(id), whole, "{rule:?}, {allowed:?}");
            }
        }
    }
    assert!(left < 60, "{left} of 600 need the whole row");
}

#[test]
fn logprobs_of_what_is_ranked_are_those_of_the_row_or_none() {
    let (logits, row) = row(5, 24);
    let ranked = Ranked::new(&row);
    let top = most_likely(&logits, 25);
    let (likely, beyond) = (top[23].0, top[24].0);
    let found = logprobs_ranked(&ranked, likely, 24).unwrap();
    let expected = logprobs(&logits, likely, 24);
    assert!((found.logprob - expected.logprob).abs() < 1e-6);
    let pairs = found.top.iter().zip(&expected.top);
    assert_eq!(found.top.len(), 24);
    assert!(
        pairs
            .clone()
            .all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6)
    );
    assert_eq!(logprobs_ranked(&ranked, beyond, 1), None);
    assert_eq!(logprobs_ranked(&ranked, likely, 25), None);
}

#[test]
fn draws_depend_on_seed_and_position_alone() {
    let logits = vec![0.0; 500];
    let reply = |seed| -> Vec<TokenId> {
        let rule = Sampling { seed, ..warm() };
        (0..8)
            .map(|position| sample(&rule, &logits, position))
            .collect()
    };
    assert_eq!(reply(1), reply(1));
    assert_ne!(reply(1), reply(2));
    let first = reply(1);
    assert!(first.iter().any(|id| *id != first[0]), "positions differ");
}

#[test]
fn logit_bias_moves_the_choice_and_ignores_unknown_tokens() {
    let rule = Sampling {
        logit_bias: vec![(2, 10.0), (99, 100.0)],
        ..Sampling::default()
    };
    assert_eq!(sample(&rule, &[1.0, 3.0, 0.0], 0), 2);
}

#[test]
fn presence_is_subtracted_once_and_frequency_per_occurrence() {
    let logits = [1.0, 0.0];
    let run = |rule: Sampling| -> Vec<TokenId> {
        let mut sampler = Sampler::new(rule, &[], &[], 8);
        (0..4)
            .map(|at| sampler.next(&logits, at, &mut Scratch::default()).unwrap())
            .collect()
    };
    let presence = Sampling {
        presence_penalty: 0.9,
        ..Sampling::default()
    };
    assert_eq!(
        run(presence),
        [0, 0, 0, 0],
        "0.9 once never reaches the gap of 1"
    );
    let frequency = Sampling {
        frequency_penalty: 0.4,
        ..Sampling::default()
    };
    assert_eq!(run(frequency), [0, 0, 0, 1], "1 - 3 * 0.4 is below 0");
}

#[test]
fn repetition_counts_the_prompt_and_weakens_either_sign() {
    let rule = Sampling {
        repetition_penalty: 2.0,
        ..Sampling::default()
    };
    let next = |logits: &[f32]| {
        Sampler::new(rule.clone(), &[0], &[], 8)
            .next(logits, 1, &mut Scratch::default())
            .unwrap()
    };
    assert_eq!(next(&[3.0, 2.0]), 1);
    assert_eq!(next(&[-1.0, -1.5]), 1);
    assert_eq!(next(&[4.5, 2.0]), 0);
}

#[test]
fn presence_and_frequency_leave_the_prompt_alone() {
    let rule = Sampling {
        presence_penalty: 2.0,
        frequency_penalty: 2.0,
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(rule, &[0], &[], 8);
    assert_eq!(
        sampler
            .next(&[1.0, 0.5], 1, &mut Scratch::default())
            .unwrap(),
        0
    );
}

#[test]
fn an_extreme_penalty_stays_finite() {
    let rule = Sampling {
        repetition_penalty: 1e-38,
        ..warm()
    };
    let mut sampler = Sampler::new(rule, &[0, 1], &[], 8);
    assert_eq!(
        sampler
            .next(&[1e10, -5.0, 2.0], 2, &mut Scratch::default())
            .unwrap(),
        0
    );
}

#[test]
fn scratch_carries_nothing_over() {
    let penalised = Sampling {
        presence_penalty: 2.0,
        ..Sampling::default()
    };
    let mut scratch = Scratch::default();
    let mut other = Sampler::new(penalised, &[], &[], 8);
    other.next(&[9.0, 1.0, 0.0], 0, &mut scratch).unwrap();
    let mut plain = Sampler::new(Sampling::default(), &[], &[], 8);
    assert_eq!(plain.next(&[1.0, 0.5], 0, &mut scratch).unwrap(), 0);
}

#[test]
fn logprobs_are_a_log_softmax() {
    let logits: Vec<f32> = (0..997)
        .map(|i| rng::uniform(5, i) as f32 * 20.0 - 400.0)
        .collect();
    let sum: f64 = (0..997)
        .map(|id| f64::from(logprobs(&logits, id, 0).logprob).exp())
        .sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    assert!((0..997).all(|id| logprobs(&logits, id, 0).logprob <= 0.0));
}

#[test]
fn top_logprobs_are_sorted_with_the_lower_id_first() {
    let top = logprobs(&[1.0, 2.0, 2.0, 0.0, 2.0, 3.0], 0, 4).top;
    assert_eq!(
        top.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
        [5, 1, 2, 4]
    );
    assert!(top.is_sorted_by(|a, b| a.1 >= b.1));
}

#[test]
fn a_logprob_does_not_depend_on_how_many_are_asked_for() {
    let logits: Vec<f32> = (0..50).map(|i| rng::uniform(6, i) as f32).collect();
    let full = logprobs(&logits, 13, 50);
    for count in 0..50 {
        let some = logprobs(&logits, 13, count);
        assert_eq!(some.logprob, full.logprob);
        assert_eq!(some.top, full.top[..count]);
    }
    assert!(full.top.contains(&(13, full.logprob)));
}

#[test]
fn a_forbidden_token_is_never_taken_however_likely() {
    let mut mask = Mask::default();
    mask.copy_from(&[0b1010]);
    let logits = [50.0, 1.0, 60.0, 0.5];
    let hot = Sampling {
        temperature: 2.0,
        repetition_penalty: 1.3,
        logit_bias: vec![(0, 100.0)],
        ..warm()
    };
    for (allowed, forbidden) in [
        (Allowed::Only(&mask), [0, 2]),
        (Allowed::Except(&[0, 2, 99]), [0, 2]),
    ] {
        let mut row = Vec::new();
        let row = restrict(&logits, allowed, &mut row);
        for rule in [hot.clone(), Sampling::default()] {
            let mut sampler = Sampler::new(rule, &[2], &[], 300);
            for position in 0..200 {
                let id = sampler
                    .next(row, position, &mut Scratch::default())
                    .unwrap();
                assert!(!forbidden.contains(&id), "{allowed:?}");
            }
        }
        let logprobs = logprobs(row, 1, 4);
        let shares: f64 = logprobs.top.iter().map(|top| f64::from(top.1).exp()).sum();
        assert!((shares - 1.0).abs() < 1e-6, "{logprobs:?}");
        assert_eq!(logprobs.top[2].1, f32::NEG_INFINITY);
    }
}

/// Shares of tokens under a rule that narrows `[0.4, 0.3, 0.2, 0.1]`.
fn narrowed(rule: Sampling) -> Vec<f64> {
    drawn(&rule, &logits_of(&[0.4, 0.3, 0.2, 0.1]))
}

#[test]
fn typical_p_keeps_what_is_as_surprising_as_expected() {
    // Surprises 0.92, 1.20, 1.61 and 2.30; 1.28 is expected.
    let rule = |typical_p| Sampling {
        typical_p,
        ..warm()
    };
    assert_shares(&narrowed(rule(0.25)), &[0.0, 1.0, 0.0, 0.0]);
    assert_shares(&narrowed(rule(0.45)), &[0.0, 0.6, 0.4, 0.0]);
    assert_shares(
        &narrowed(rule(0.85)),
        &[4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0, 0.0],
    );
}

#[test]
fn top_n_sigma_keeps_what_is_near_the_largest_logit() {
    let rule = |top_n_sigma| Sampling {
        top_n_sigma,
        ..warm()
    };
    // Logits have a standard deviation of 0.52: the others are 0.29, 0.69 and 1.39 below.
    assert_shares(&narrowed(rule(0.5)), &[1.0, 0.0, 0.0, 0.0]);
    assert_shares(&narrowed(rule(1.0)), &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0]);
    assert_shares(&narrowed(rule(100.0)), &[0.4, 0.3, 0.2, 0.1]);
    let with_forbidden = [1.0, f32::NEG_INFINITY, 0.9];
    assert_eq!(sample(&rule(0.1), &with_forbidden, 0), 0);
}

#[test]
fn xtc_drops_the_most_likely_of_what_is_likely() {
    let rule = |probability, threshold| Sampling {
        xtc: Xtc {
            probability,
            threshold,
        },
        ..warm()
    };
    assert_shares(
        &narrowed(rule(1.0, 0.15)),
        &[0.0, 0.0, 2.0 / 3.0, 1.0 / 3.0],
    );
    assert_shares(&narrowed(rule(1.0, 0.35)), &[0.4, 0.3, 0.2, 0.1]);
    assert_shares(&narrowed(rule(0.5, 0.15)), &[0.2, 0.15, 0.433, 0.217]);
}

#[test]
fn dry_takes_from_what_continues_a_repetition() {
    let rule = Sampling {
        dry: Dry {
            multiplier: 1.0,
            ..Dry::default()
        },
        ..Sampling::default()
    };
    let logits = [0.0, 0.0, 0.6, 0.0];
    let next = |prompt: &[TokenId]| {
        let mut sampler = Sampler::new(rule.clone(), prompt, &[], 8);
        sampler
            .next(&logits, prompt.len(), &mut Scratch::default())
            .unwrap()
    };
    assert_eq!(next(&[0, 1, 2, 3]), 2);
    assert_eq!(next(&[0, 1, 2, 3, 0, 1]), 0);
}

#[test]
fn forbidden_tokens_are_not_chosen_and_no_token_left_is_reported() {
    let rule = |allowed: &[TokenId]| Sampling {
        allowed: allowed.to_vec(),
        min_tokens: 1,
        ..warm()
    };
    let logits = [9.0, 1.0, 5.0];
    let next =
        |rule, row: &[f32]| Sampler::new(rule, &[0], &[2], 8).next(row, 1, &mut Scratch::default());
    assert_eq!(next(rule(&[1, 2]), &logits), Some(1), "2 ends the reply");
    assert_eq!(next(rule(&[2]), &logits), None);
    let restricted = [9.0, f32::NEG_INFINITY, 5.0];
    assert_eq!(next(rule(&[1]), &restricted), None);
}

/// A device's ranking gives the same token as the row, or none.
#[test]
fn a_ranking_agrees_with_its_row_under_every_rule() {
    let logits: Vec<f32> = (0..200)
        .map(|id| ((id * 7919 % 200) as f32).sqrt())
        .collect();
    let mut rules = vec![
        Sampling {
            allowed: (0..200).step_by(3).collect(),
            ..warm()
        },
        Sampling {
            bad_words: vec![vec![1], vec![5, 6]],
            top_k: 20,
            ..warm()
        },
        Sampling {
            min_tokens: 3,
            ..Sampling::default()
        },
        Sampling {
            typical_p: 0.5,
            ..warm()
        },
    ];
    rules.push(Sampling {
        dry: Dry {
            multiplier: 2.0,
            ..Dry::default()
        },
        top_k: 10,
        ..warm()
    });
    let row = ranked(&logits, 64);
    for rule in rules {
        for position in 10..60 {
            let prompt: Vec<TokenId> = (0..10).map(|at| (at % 3) as TokenId).collect();
            let mut sampler = Sampler::new(rule.clone(), &prompt, &[7], 64);
            if let Some(early) = sampler.choose_ranked(&Ranked::new(&row), Allowed::All, position) {
                let chosen = sampler.next(&logits, position, &mut Scratch::default());
                assert_eq!(chosen, Some(early), "{rule:?}");
            }
        }
    }
}

/// Tokens that a request chooses of rows at the same position.
fn chosen_of(sampling: &Sampling, rows: &[Vec<f32>]) -> Vec<TokenId> {
    let mut sampler = Sampler::new(sampling.clone(), &[1], &[], 100);
    let mut scratch = Scratch::default();
    let chosen = rows.iter().map(|row| sampler.next(row, 7, &mut scratch));
    chosen
        .map(|token| token.expect("a token is left"))
        .collect()
}

#[test]
fn adaptive_sampling_takes_what_is_certain_and_draws_the_rest() {
    // The most likely of four has nine tenths and more, or a half.
    let rows = |first: f32| vec![vec![0.0, 0.0, first, 0.0]; 40];
    let certain: usize = (0..200)
        .map(|seed| {
            let sampling = |adaptive| Sampling {
                temperature: 1.0,
                seed,
                adaptive,
                ..Sampling::default()
            };
            let plain = chosen_of(&sampling(None), &rows(4.0));
            let adaptive = chosen_of(&sampling(Some(Sections::default())), &rows(4.0));
            assert!(adaptive.iter().all(|&token| token == 2));
            let drawn = chosen_of(&sampling(Some(Sections::default())), &rows(1.1)[..8]);
            assert_eq!(drawn, chosen_of(&sampling(None), &rows(1.1)[..8]));
            plain.iter().filter(|&&token| token != 2).count()
        })
        .sum();
    assert!(certain > 0, "plain sampling draws others too");
}

#[test]
fn adaptive_sampling_needs_the_whole_row_and_leaves_greedy_requests_alone() {
    let row = [0.0, 3.0, 2.0, 1.0];
    let ranked = step::ranking::ranked(&row, 2);
    for (temperature, wanted) in [(1.0, None), (0.0, Some(1))] {
        let sampling = Sampling {
            temperature,
            top_k: 2,
            adaptive: Some(Sections::default()),
            ..Sampling::default()
        };
        let sampler = Sampler::new(sampling, &[1], &[], 10);
        let chosen = sampler.choose_ranked(&Ranked::new(&ranked), Allowed::All, 3);
        assert_eq!(chosen, wanted, "at {temperature}");
        assert_eq!(sampler.draw(3).is_some(), temperature == 0.0);
    }
}

#[test]
fn a_row_of_the_lower_ids_drafts_among_them() {
    let rule = Sampling {
        logit_bias: vec![(7, 9.0), (2, 5.0)],
        presence_penalty: 1.0,
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(rule, &[], &[6], 8);
    sampler.take(7);
    let draft = sampler.draft(&[1.0, 0.0, 0.5, 2.0], 1, &mut Scratch::new(8));
    assert_eq!(draft, Some(2));
}

#[test]
fn a_row_whose_ids_are_all_forbidden_drafts_none() {
    let rule = Sampling {
        allowed: vec![5, 6],
        ..Sampling::default()
    };
    let sampler = Sampler::new(rule, &[], &[], 8);
    let mut scratch = Scratch::new(8);
    assert_eq!(sampler.draft(&[1.0, 2.0, 3.0], 0, &mut scratch), None);
    assert_eq!(sampler.draft(&[0.0; 8], 0, &mut scratch), Some(5));
}
