//! Ranking of a row of logits: the largest of them, and what all weigh.

use crate::executor::TokenId;

/// Whether every logit of a row is finite; anything else means that the row cannot be trusted.
pub fn all_finite(logits: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7F80_0000;
    // No early exit, so that the compiler vectorises it: broken rows are the exception.
    logits.iter().fold(true, |finite, logit| {
        finite & (logit.to_bits() & EXPONENT != EXPONENT)
    })
}

/// The largest logit of a finite row.
pub fn maximum(logits: &[f32]) -> f32 {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    // Independent lanes, so that the compiler vectorises it: one chain waits for each comparison.
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
        let place = top.partition_point(|&(_, larger)| larger >= logit);
        top.insert(place, (id as u32, logit));
        top.truncate(count);
    }
    top
}

/// Ranking that `ops::Dense::top_k` leaves of a row, for its `count` largest logits.
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
    fn all_finite_sees_each_kind_at_each_place() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 7, 32] {
                let mut logits = vec![f32::MAX; 33];
                assert!(all_finite(&logits));
                logits[place] = bad;
                assert!(!all_finite(&logits), "{bad} at {place}");
            }
        }
    }
}
