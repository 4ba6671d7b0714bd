//! Ranking of a row of logits: the largest logits, and the sum of all logits' exponentials.

use std::f32::consts::{LN_2, LOG2_E};

use crate::executor::TokenId;

/// Whether every logit of a row is finite. Tokens are sampled only from rows that are.
pub fn all_finite(logits: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7F80_0000;
    // Without an early exit the compiler vectorises the loop: broken rows are the exception.
    logits.iter().fold(true, |finite, logit| {
        finite & (logit.to_bits() & EXPONENT != EXPONENT)
    })
}

/// The largest logit of a finite row.
pub fn maximum(logits: &[f32]) -> f32 {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    // Independent lanes let the compiler vectorise: a single chain would wait for each comparison.
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        lanes
            .iter_mut()
            .zip(chunk)
            .for_each(|(lane, &logit)| *lane = larger(*lane, logit));
    }
    lanes
        .into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, larger)
}

/// The most likely token of finite logits; the lowest id on a tie.
///
/// # Panics
/// If a logit is not a number.
pub fn argmax(logits: &[f32]) -> TokenId {
    let max = maximum(logits);
    logits
        .iter()
        .position(|&logit| logit == max)
        .expect("a finite row has a maximum") as TokenId
}

/// The `count` largest logits, descending; lower id first on a tie.
pub fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        if top.len() == count && top.last().is_none_or(|&(_, least)| logit <= least) {
            continue;
        }
        let index = top.partition_point(|&(_, larger)| larger >= logit);
        top.insert(index, (id as u32, logit));
        top.truncate(count);
    }
    top
}

/// Ranking of a row's `count` largest logits, in the layout that `Ranked::new` reads.
pub fn ranked(logits: &[f32], count: usize) -> Vec<f32> {
    let top = most_likely(logits, count);
    let sum = match all_finite(logits) {
        true => weight_of(logits, f64::from(top[0].1)),
        false => f64::NAN,
    };
    let ids = top.iter().map(|&(id, _)| id as f32);
    let ranked = ids.chain(top.iter().map(|&(_, logit)| logit));
    ranked.chain([sum as f32]).collect()
}

/// `sum_i exp(logits[i] - max)`, in double precision over ascending ids.
pub fn weight_of(logits: &[f32], max: f64) -> f64 {
    let weights = logits.iter().map(|&logit| (f64::from(logit) - max).exp());
    weights.sum()
}

/// `sum_i exp((logits[i] - max) / temperature)` over the logits from `least` on, none of which is
/// above `max`; a function of the row alone, with a relative error below 1e-5. Terms are F32, of
/// which the compiler makes vectors.
pub fn weight_at(logits: &[f32], max: f32, least: f32, temperature: f32) -> f64 {
    const LANES: usize = 16;
    // Number of a lane's terms that are added in F32.
    const RUN: usize = 64;
    let scale = (LOG2_E / temperature).min(f32::MAX);
    let term = |logit: f32| match logit >= least {
        true => power_of_two((logit - max) * scale),
        false => 0.0,
    };
    let runs = logits.chunks(RUN * LANES).map(|run| {
        let (chunks, rest) = run.as_chunks::<LANES>();
        let mut lanes = [0.0f32; LANES];
        for chunk in chunks {
            let terms = lanes.iter_mut().zip(chunk);
            terms.for_each(|(lane, &logit)| *lane += term(logit));
        }
        let rest: f32 = rest.iter().map(|&logit| term(logit)).sum();
        f64::from(lanes.iter().sum::<f32>() + rest)
    });
    runs.sum()
}

/// `2^x` for `x <= 0`, with a relative error below 1e-6; 0 where the result is no normal number.
fn power_of_two(x: f32) -> f32 {
    // Number whose addition rounds to a whole number: the last bit of the sum is worth 1.
    const WHOLE: f32 = 12_582_912.0;
    const BIAS: u32 = 127;
    const LEAST: f32 = -126.0;
    let bounded = if x > LEAST { x } else { LEAST };
    let shifted = bounded + WHOLE;
    let part = bounded - (shifted - WHOLE);
    // Taylor series of 2^part, |part| <= 1/2: the next term is below 2e-7.
    let factors = [
        1.333_355_8e-3,
        9.618_129e-3,
        5.550_411e-2,
        2.402_265e-1,
        LN_2,
        1.0,
    ];
    let fraction = factors.iter().fold(0.0, |sum, factor| sum * part + factor);
    let exponent = shifted
        .to_bits()
        .wrapping_sub(WHOLE.to_bits())
        .wrapping_add(BIAS)
        << 23;
    match x > LEAST {
        true => fraction * f32::from_bits(exponent),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_ranked_by_its_largest_and_their_sum() {
        let found = ranked(&[0.0, 2.0, -0.0, 2.0, 1.0], 4);
        let sum = 2.0 + (-1.0f64).exp() + 2.0 * (-2.0f64).exp();
        assert_eq!(found, [1.0, 3.0, 4.0, 0.0, 2.0, 2.0, 1.0, 0.0, sum as f32]);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(ranked(&[0.0, broken], 1)[2].is_nan(), "{broken}");
        }
    }

    #[test]
    fn the_most_likely_are_those_of_a_sort() {
        for seed in 0..200 {
            // Few values, so that many logits are equal.
            let logit = |id: u64| ((seed * 31 + id * id * 7 + id) % 17) as f32 - 8.0;
            let logits: Vec<f32> = (0..100).map(logit).collect();
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            let count = 1 + seed as usize % 100;
            assert_eq!(most_likely(&logits, count), sorted[..count]);
        }
    }

    #[test]
    fn a_row_weighs_at_a_temperature_as_in_double_precision() {
        for seed in 0..40u32 {
            let width = [1, 17, 1024, 5000][seed as usize % 4];
            let spread = [0.1, 3.0, 30.0, 300.0][seed as usize / 4 % 4];
            let logit = |id: u32| ((id * 7919 + seed * 104_729) % 10_007) as f32 / 10_007.0;
            let mut logits: Vec<f32> = (0..width).map(|id| spread * (logit(id) - 0.5)).collect();
            logits[width as usize / 2] = f32::NEG_INFINITY;
            logits.push(spread);
            for temperature in [f32::MIN_POSITIVE, 0.2, 1.0, 1.7] {
                for least in [f32::NEG_INFINITY, 0.1 * spread] {
                    let candidates = logits.iter().filter(|&&logit| logit >= least);
                    let weights = candidates.map(|&logit| {
                        let below = f64::from(logit) - f64::from(spread);
                        (below / f64::from(temperature)).exp()
                    });
                    let exact: f64 = weights.sum();
                    let found = weight_at(&logits, spread, least, temperature);
                    assert!(
                        (found - exact).abs() <= 1e-5 * exact,
                        "{found} for {exact}: {seed} at {temperature}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_finite_sees_each_kind_at_each_index() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for index in [0, 7, 32] {
                let mut logits = vec![f32::MAX; 33];
                assert!(all_finite(&logits));
                logits[index] = bad;
                assert!(!all_finite(&logits), "{bad} at {index}");
            }
        }
    }
}
