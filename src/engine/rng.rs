//! Philox4x32-10, a counter-based generator: the random number of a position needs no state.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Weyl increments of the key: the golden ratio and the square root of three minus one.
const INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for one counter value under one key.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let (high0, low0) = multiply(MULTIPLIERS[0], counter[0]);
        let (high1, low1) = multiply(MULTIPLIERS[1], counter[2]);
        let mixed = [high1 ^ counter[1] ^ key[0], high0 ^ counter[3] ^ key[1]];
        counter = [mixed[0], low1, mixed[1], low0];
        key[0] = key[0].wrapping_add(INCREMENTS[0]);
        key[1] = key[1].wrapping_add(INCREMENTS[1]);
    }
    counter
}

/// Uniform number in [0, 1) with 53 random bits: a function of seed and position alone.
pub fn uniform(seed: u64, position: u64) -> f64 {
    uniform_of(seed, position, 0)
}

/// One of several uniform numbers of a position, by index; the first is [`uniform`].
pub fn uniform_of(seed: u64, position: u64, index: u32) -> f64 {
    let [low, high, ..] = philox4x32(
        [low_word(position), high_word(position), index, 0],
        [low_word(seed), high_word(seed)],
    );
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

/// Seed of one reply to a request with the seed `seed`: a hash of the three arguments, so that no
/// two replies share a seed, nor do replies to requests with neighbouring seeds. The first reply to
/// the first prompt has the request's seed itself.
pub fn seed_of(seed: u64, prompt: u64, choice: u64) -> u64 {
    if (prompt, choice) == (0, 0) {
        return seed;
    }
    let [low, high, ..] = philox4x32(
        [
            low_word(prompt),
            high_word(prompt),
            low_word(choice),
            // The counters of `uniform` never have this bit set.
            high_word(choice) | 1 << 31,
        ],
        [low_word(seed), high_word(seed)],
    );
    u64::from(high) << 32 | u64::from(low)
}

fn multiply(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    (high_word(product), low_word(product))
}

fn low_word(value: u64) -> u32 {
    value as u32
}

fn high_word(value: u64) -> u32 {
    (value >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers that the authors publish with the Random123 library.
    #[test]
    fn philox_matches_the_published_vectors() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(
                philox4x32(counter, key),
                words,
                "counter {counter:x?} key {key:x?}"
            );
        }
    }

    #[test]
    fn uniform_uses_the_whole_seed_and_the_whole_position() {
        let at = uniform(1, 1);
        assert_ne!(at, uniform(1 | 1 << 40, 1));
        assert_ne!(at, uniform(1, 1 | 1 << 40));
        assert_eq!(at, uniform(1, 1));
    }

    #[test]
    fn replies_share_no_seed_whatever_the_seeds_of_their_requests() {
        let mut seeds = std::collections::HashSet::new();
        for seed in 70..80 {
            assert_eq!(seed_of(seed, 0, 0), seed);
            for prompt in 0..20 {
                for choice in 0..20 {
                    assert_eq!(seed_of(seed, prompt, choice), seed_of(seed, prompt, choice));
                    assert!(seeds.insert(seed_of(seed, prompt, choice)));
                }
            }
        }
    }

    #[test]
    fn uniform_fills_the_unit_interval_evenly() {
        let mut cells = [0_u32; 16];
        for position in 0..16_000 {
            cells[(uniform(7, position) * 16.0) as usize] += 1;
        }
        // 1000 expected in each, standard deviation 31.
        assert!(cells.iter().all(|&n| (850..1150).contains(&n)), "{cells:?}");
    }
}
