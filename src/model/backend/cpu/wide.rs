//! Sixteen F32 values in the host's widest registers.
//!
//! Products and sums are rounded separately, so the width changes speed and no bit. The registers
//! are named explicitly because left to itself the compiler turns the loops inside out.

use std::array::from_fn;

use super::lanes::{LANES, Lanes};

/// Sixteen F32 values.
pub trait Vector: Copy {
    /// Number of F32 values in one register, for the choice of tiles.
    const WIDTH: usize;

    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    /// Loads sixteen BF16 numbers.
    fn load_halves(values: &[u16; LANES]) -> Self;
    fn lanes(self) -> Lanes;
    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
}

/// A loop over vectors.
pub trait Kernel {
    /// Runs the loop. Implementations are `#[inline(always)]`, and so is all that they call, so
    /// that they are compiled for the registers of `V`.
    fn run<V: Vector>(self);
}

impl Vector for Lanes {
    const WIDTH: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Lanes {
        Lanes([value; LANES])
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Lanes {
        Lanes(*values)
    }

    #[inline(always)]
    fn load_halves(values: &[u16; LANES]) -> Lanes {
        Lanes(values.map(|half| f32::from_bits(u32::from(half) << 16)))
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        self
    }

    #[inline(always)]
    fn add(self, b: Lanes) -> Lanes {
        Lanes(from_fn(|lane| self.0[lane] + b.0[lane]))
    }

    #[inline(always)]
    fn mul(self, b: Lanes) -> Lanes {
        Lanes(from_fn(|lane| self.0[lane] * b.0[lane]))
    }
}

/// Runs `kernel` with the host's widest registers.
#[cfg(target_arch = "x86_64")]
pub use x86_64::widest;

/// Runs `kernel` with the registers that every processor of the host's architecture has.
#[cfg(not(target_arch = "x86_64"))]
pub fn widest<K: Kernel>(kernel: K) {
    kernel.run::<Lanes>();
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::*;

    use super::*;

    pub fn widest<K: Kernel>(kernel: K) {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected.
            return unsafe { avx512(kernel) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected.
            return unsafe { avx2(kernel) };
        }
        kernel.run::<Lanes>();
    }

    #[target_feature(enable = "avx512f")]
    fn avx512<K: Kernel>(kernel: K) {
        kernel.run::<Avx512>();
    }

    #[target_feature(enable = "avx2")]
    fn avx2<K: Kernel>(kernel: K) {
        kernel.run::<Avx2>();
    }

    /// Sixteen values in one AVX-512 register; made by `avx512` only.
    #[derive(Clone, Copy)]
    struct Avx512(__m512);

    impl Vector for Avx512 {
        const WIDTH: usize = 16;

        #[inline(always)]
        fn splat(value: f32) -> Avx512 {
            // SAFETY: `avx512` detected the feature.
            Avx512(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Avx512 {
            // SAFETY: `avx512` detected the feature; `values` has sixteen numbers.
            Avx512(unsafe { _mm512_loadu_ps(values.as_ptr()) })
        }

        #[inline(always)]
        fn load_halves(values: &[u16; LANES]) -> Avx512 {
            // SAFETY: `avx512` detected the feature; `values` has sixteen numbers.
            Avx512(unsafe {
                let halves = _mm256_loadu_si256(values.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))
            })
        }

        #[inline(always)]
        fn lanes(self) -> Lanes {
            let mut lanes = Lanes::ZERO;
            // SAFETY: `avx512` detected the feature; `lanes` has space for sixteen numbers.
            unsafe { _mm512_storeu_ps(lanes.0.as_mut_ptr(), self.0) };
            lanes
        }

        #[inline(always)]
        fn add(self, b: Avx512) -> Avx512 {
            // SAFETY: `avx512` detected the feature.
            Avx512(unsafe { _mm512_add_ps(self.0, b.0) })
        }

        #[inline(always)]
        fn mul(self, b: Avx512) -> Avx512 {
            // SAFETY: `avx512` detected the feature.
            Avx512(unsafe { _mm512_mul_ps(self.0, b.0) })
        }
    }

    /// Sixteen values in two AVX2 registers; made by `avx2` only.
    #[derive(Clone, Copy)]
    struct Avx2(__m256, __m256);

    impl Vector for Avx2 {
        const WIDTH: usize = 8;

        #[inline(always)]
        fn splat(value: f32) -> Avx2 {
            // SAFETY: `avx2` detected the feature.
            let value = unsafe { _mm256_set1_ps(value) };
            Avx2(value, value)
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Avx2 {
            let start = values.as_ptr();
            // SAFETY: `avx2` detected the feature; `values` has sixteen numbers.
            unsafe {
                Avx2(
                    _mm256_loadu_ps(start),
                    _mm256_loadu_ps(start.add(LANES / 2)),
                )
            }
        }

        #[inline(always)]
        fn load_halves(values: &[u16; LANES]) -> Avx2 {
            // SAFETY: `avx2` detected the feature; `values` has sixteen numbers.
            unsafe {
                let start = values.as_ptr().cast::<__m128i>();
                let wide = |half| _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
                let (low, high) = (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1)));
                Avx2(
                    _mm256_castsi256_ps(wide(low)),
                    _mm256_castsi256_ps(wide(high)),
                )
            }
        }

        #[inline(always)]
        fn lanes(self) -> Lanes {
            let mut lanes = Lanes::ZERO;
            let (low, high) = lanes.0.split_at_mut(LANES / 2);
            // SAFETY: `avx2` detected the feature; each half has space for eight numbers.
            unsafe {
                _mm256_storeu_ps(low.as_mut_ptr(), self.0);
                _mm256_storeu_ps(high.as_mut_ptr(), self.1);
            }
            lanes
        }

        #[inline(always)]
        fn add(self, b: Avx2) -> Avx2 {
            // SAFETY: `avx2` detected the feature.
            unsafe { Avx2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        }

        #[inline(always)]
        fn mul(self, b: Avx2) -> Avx2 {
            // SAFETY: `avx2` detected the feature.
            unsafe { Avx2(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use step::random::Random;

        struct Arithmetic<'a>(
            &'a [f32; LANES],
            &'a [f32; LANES],
            &'a mut Vec<[u32; LANES]>,
        );

        impl Kernel for Arithmetic<'_> {
            #[inline(always)]
            fn run<V: Vector>(self) {
                let (a, b) = (V::load(self.0), V::load(self.1));
                let halves = self.0.map(|value| (value.to_bits() >> 16) as u16);
                let results = [
                    a.add(b),
                    a.mul(b),
                    V::load_halves(&halves),
                    V::splat(self.1[3]),
                ];
                self.2
                    .extend(results.map(|vector| vector.lanes().0.map(f32::to_bits)));
            }
        }

        #[test]
        fn every_width_computes_the_same_bits() {
            let mut random = Random::new(5);
            for _ in 0..100 {
                let values = random.normal(2 * LANES);
                let (a, b) = values.split_at(LANES);
                let (a, b) = (a.try_into().unwrap(), b.try_into().unwrap());
                let (mut expected, mut found) = (Vec::new(), Vec::new());
                Arithmetic(a, b, &mut expected).run::<Lanes>();
                widest(Arithmetic(a, b, &mut found));
                assert_eq!(found, expected);
                found.clear();
                if std::is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature was detected.
                    unsafe { avx2(Arithmetic(a, b, &mut found)) };
                    assert_eq!(found, expected);
                }
            }
        }
    }
}
