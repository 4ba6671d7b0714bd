//! Random numbers that a seed determines: inputs of checks and tests, and drawn weights. Tokens of
//! replies are drawn by another generator, whose numbers depend on the position.

/// SplitMix64: the state is a counter, so that any number can be drawn first.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Step of the counter: odd, so that the counter takes all values.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Generator of the same numbers without the first `count`.
    pub const fn after(&self, count: u64) -> Random {
        Random(self.0.wrapping_add(STEP.wrapping_mul(count)))
    }

    pub const fn bits(&mut self) -> u64 {
        *self = self.after(1);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    pub const fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 33) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that the authors' program prints for this seed.
    const KNOWN: [u64; 3] = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(KNOWN.map(|_| random.bits()), KNOWN);
    }

    #[test]
    fn any_number_can_be_drawn_first() {
        let random = Random::new(1_234_567);
        assert_eq!([0, 1, 2].map(|count| random.after(count).bits()), KNOWN);
    }
}
