//! Seeded numbers for tests.

/// A 64-bit linear congruential generator with an xorshift output.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    /// `count` values of about unit variance.
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        let mut uniform = || (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
        (0..count)
            .map(|_| (uniform() + uniform() + uniform() + uniform()) * 1.732)
            .collect()
    }
}
