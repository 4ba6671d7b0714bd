//! Attention of steps of decoding, which a device may do in one launch.
//!
//! Sequences end at the edges of pages and splits. What lies in their pages behind their own rows
//! is not a number, as memory that nobody wrote may be.

use super::cases::Calls;
use super::long::{KV, QUERIES, STORED_ROWS, cut};
use super::{BF16_STORED, Probe, Random};
use crate::engine::executor::{DeviceError, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::ops::{Batch, Qkv};
use crate::shapes::Attention as _;
use crate::target::{Full, MAX_CONTEXT, MAX_SEQUENCES, PAGE};

/// Rows of a step that have a case, if there may be as many sequences.
pub const DECODED_ROWS: [usize; 7] = [1, 2, 3, 7, 8, 9, MAX_SEQUENCES];
/// Positions that a sequence attends from first: those at the edges of pages and splits, and what
/// is left of the splits of several blocks.
const EDGES: [usize; 25] = [
    0, 1, 62, 63, 64, 65, 127, 128, 191, 192, 254, 255, 256, 257, 319, 320, 511, 512, 513, 767,
    768, 1023, 1024, 1025, 2045,
];
/// Steps of a sequence: the second one reads what the first one stored.
const STEPS: usize = 3;
/// Sequences: every edge, and enough for the largest step.
const SEQUENCES: usize = if EDGES.len() < MAX_SEQUENCES {
    MAX_SEQUENCES
} else {
    EDGES.len()
};

/// One sequence, behind whose context a few rows attend.
struct Sequence {
    context: usize,
    /// `[context + STEPS][KV]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[STEPS][QUERIES]`.
    queries: Vec<f32>,
    pages: Vec<PageId>,
}

/// Sequences of random rows.
pub struct Decoding {
    /// Of queries and keys.
    norms: [Vec<f32>; 2],
    sequences: Vec<Sequence>,
    /// Of the cache.
    pages: usize,
}

/// What a case leaves: results of each sequence, `[STEPS][MIXED]`, and the cache.
pub struct Decoded {
    pub results: Vec<Vec<f32>>,
    pub cache: Vec<f32>,
}

impl Decoding {
    /// A sequence at every edge.
    pub fn draw(random: &mut Random) -> Decoding {
        let fits = |edge: &usize| edge + STEPS <= MAX_CONTEXT;
        let edges: Vec<_> = EDGES.into_iter().filter(fits).collect();
        let contexts = edges.iter().copied().cycle().take(SEQUENCES);
        Decoding::behind(random, &contexts.collect::<Vec<_>>())
    }

    /// A sequence behind each of `contexts`.
    fn behind(random: &mut Random, contexts: &[usize]) -> Decoding {
        let each = contexts
            .iter()
            .map(|context| (context + STEPS).div_ceil(PAGE));
        let pages = each.clone().sum();
        // From the last page down, so that no table is a range.
        let mut left = (0..pages as u32).rev().map(PageId);
        let tables: Vec<Vec<_>> = each
            .map(|each| left.by_ref().take(each).collect())
            .collect();
        let mut sequence = |(&context, pages): (&usize, Vec<PageId>)| {
            let rows = context + STEPS;
            Sequence {
                context,
                keys: random.bf16(rows * KV, 2.0),
                values: random.bf16(rows * KV, 2.0),
                queries: random.bf16(STEPS * QUERIES, 2.0),
                pages,
            }
        };
        let sequences = contexts.iter().zip(tables).map(&mut sequence).collect();
        Decoding {
            sequences,
            norms: [random.gains(Full::HEAD_DIM), random.gains(Full::HEAD_DIM)],
            pages,
        }
    }

    /// Largest norm-wise difference: queries, keys and the weights of values are rounded to BF16.
    pub fn limit(&self) -> f64 {
        2.0 * BF16_STORED
    }

    /// Steps of up to `rows` sequences, each of which goes all its steps before others begin.
    ///
    /// # Errors
    /// The backend failed.
    pub fn run<B: Probe>(
        &self,
        b: &mut B,
        rows: usize,
        calls: Calls,
    ) -> Result<Decoded, DeviceError> {
        let mut cache = b.kv_cache(self.pages)?;
        let norms = [b.vector_of(&self.norms[0])?, b.vector_of(&self.norms[1])?];
        let norms = [&norms[0], &norms[1]];
        for sequence in &self.sequences {
            self.store(b, sequence, norms, &mut cache)?;
        }
        let mut results = Vec::new();
        for group in self.sequences.chunks(rows) {
            let mut of_group = vec![Vec::new(); group.len()];
            for step in 0..STEPS {
                let found = self.step(b, group, step, norms, &mut cache, calls)?;
                let found = found.chunks_exact(Full::HEADS * Full::HEAD_DIM);
                for (result, found) in of_group.iter_mut().zip(found) {
                    result.extend_from_slice(found);
                }
            }
            results.extend(of_group);
        }
        Ok(Decoded {
            results,
            cache: b.kept(&cache)?,
        })
    }

    /// Stores a sequence's context, and what is not a number behind it.
    fn store<B: Probe>(
        &self,
        b: &mut B,
        sequence: &Sequence,
        norms: [&B::Vector; 2],
        cache: &mut B::KvCache,
    ) -> Result<(), DeviceError> {
        let end = sequence.pages.len() * PAGE;
        for part in cut(0..end.min(MAX_CONTEXT), STORED_ROWS) {
            let of = |all: &[f32]| -> Vec<f32> {
                let known = &all[..sequence.context * KV];
                let part = part.start * KV..part.end * KV;
                let element = |at| known.get(at).copied().unwrap_or(f32::NAN);
                part.map(element).collect()
            };
            let (mut k, v) = (
                b.given(KV, &of(&sequence.keys))?,
                b.given(KV, &of(&sequence.values))?,
            );
            let mut q = b.room(part.len(), QUERIES)?;
            let batch = self.batch([(sequence, part.start, part.len())])?;
            b.begin(&batch);
            b.store_kv(&mut q, &mut k, &v, Some(norms), cache, &batch);
        }
        Ok(())
    }

    /// One row of each sequence of a group.
    fn step<B: Probe>(
        &self,
        b: &mut B,
        group: &[Sequence],
        step: usize,
        norms: [&B::Vector; 2],
        cache: &mut B::KvCache,
        calls: Calls,
    ) -> Result<Vec<f32>, DeviceError> {
        let row = |all: fn(&Sequence) -> &[f32], width: usize, at: fn(&Sequence) -> usize| {
            let rows = group
                .iter()
                .flat_map(|of| &all(of)[(at(of) + step) * width..][..width]);
            rows.copied().collect::<Vec<_>>()
        };
        let mut q = b.given(QUERIES, &row(|of| &of.queries, QUERIES, |_| 0))?;
        let mut k = b.given(KV, &row(|of| &of.keys, KV, |of| of.context))?;
        let v = b.given(KV, &row(|of| &of.values, KV, |of| of.context))?;
        let mut out = b.room(group.len(), Full::HEADS * Full::HEAD_DIM)?;
        let batch = self.batch(group.iter().map(|of| (of, of.context + step, 1)))?;
        assert!(batch.is_decode());
        b.begin(&batch);
        let input = Qkv {
            q: &mut q,
            k: &mut k,
            v: &v,
            norms: Some(norms),
        };
        calls.attention(b, input, cache, &batch, &mut out);
        b.seen(&out)
    }

    /// Rows of sequences from a position on.
    fn batch<'a>(
        &self,
        parts: impl IntoIterator<Item = (&'a Sequence, usize, usize)>,
    ) -> Result<Batch, DeviceError> {
        let tokens = [TokenId::default(); STORED_ROWS];
        let rows = parts.into_iter().enumerate();
        let rows = rows.map(|(slot, (sequence, start, rows))| Rows {
            slot: Slot(slot as u32),
            start,
            tokens: &tokens[..rows],
            pages: &sequence.pages,
            logits: true,
        });
        let mut batch = Batch::new(self.pages);
        batch.fill(&rows.collect::<Vec<_>>())?;
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::distance;
    use super::*;
    use crate::backend::cpu::Cpu;

    const CONTEXTS: [usize; 5] = [0, PAGE - 1, PAGE, 3, 2 * PAGE - 2];

    fn run(case: &Decoding, rows: usize, calls: Calls) -> Decoded {
        case.run(&mut Cpu::default(), rows, calls).unwrap()
    }

    fn bits(decoded: &Decoded) -> Vec<u32> {
        let all = decoded.results.iter().flatten().chain(&decoded.cache);
        all.map(|value| value.to_bits()).collect()
    }

    #[test]
    fn attention_is_store_kv_and_attend() {
        let case = Decoding::behind(&mut Random::seeded(1), &CONTEXTS);
        let apart = run(&case, CONTEXTS.len(), Calls::Apart);
        let together = run(&case, CONTEXTS.len(), Calls::Together);
        assert_eq!(bits(&together), bits(&apart));
        assert!(
            apart
                .results
                .iter()
                .flatten()
                .all(|value| value.is_finite())
        );
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_step() {
        let case = Decoding::behind(&mut Random::seeded(2), &CONTEXTS);
        let batch = run(&case, CONTEXTS.len(), Calls::Together);
        for rows in [1, 2] {
            assert_eq!(bits(&run(&case, rows, Calls::Together)), bits(&batch));
        }
    }

    #[test]
    fn a_result_without_what_the_step_before_stored_is_too_far() {
        let mut case = Decoding::behind(&mut Random::seeded(3), &[PAGE - 1]);
        let whole = run(&case, 1, Calls::Together).results;
        let sequence = &mut case.sequences[0];
        sequence.values[sequence.context * KV..][..KV].fill(0.0);
        let other = run(&case, 1, Calls::Together).results;
        let last = (STEPS - 1) * Full::HEADS * Full::HEAD_DIM;
        let error = distance(&other[0][last..], &whole[0][last..]).unwrap();
        assert!(error > case.limit(), "{error}");
    }

    #[test]
    fn pages_fit_the_largest_cache_and_sequences_the_largest_step() {
        let case = Decoding::draw(&mut Random::seeded(4));
        assert!(case.pages <= crate::target::KV_PAGES, "{}", case.pages);
        assert!(case.sequences.len() >= *DECODED_ROWS.iter().max().unwrap());
        let pages = case.sequences.iter().flat_map(|of| &of.pages);
        let distinct: HashSet<_> = pages.collect();
        assert_eq!(distinct.len(), case.pages, "no page has two owners");
    }
}
