//! Attention of decode steps, for which a device may use a single launch.
//!
//! Sequences end at the edges of pages and splits. After their own rows, pages contain NaN, as
//! memory that was never written may.

use std::marker::PhantomData;

use super::attention::{Calls, LIMIT, ProbeAttention, shortened};
use super::head_norms::{Norms, beside, short_norms};
use super::long::{STORED_ROWS, cut};
use super::{ALONE, APART, DEVICE_CPU, RUNS, Random, Report, nearest, same_bits};
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::ops::{Batch, Qkv};
use model::shapes;
use model::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE};
use step::executor::{DeviceError, PageId, SeqRows, Slot, TokenId};

/// Numbers of rows of the decode steps that are compared, up to the most sequences.
const DECODED_ROWS: [usize; 7] = [1, 2, 3, 7, 8, 9, MAX_SEQUENCES];
/// Context lengths at the first step: at the edges of pages and splits, and with remainders of the
/// splits of several blocks.
const EDGES: [usize; 25] = [
    0, 1, 62, 63, 64, 65, 127, 128, 191, 192, 254, 255, 256, 257, 319, 320, 511, 512, 513, 767,
    768, 1023, 1024, 1025, 2045,
];
/// Number of decode steps of a sequence: each reads keys and values that earlier ones stored.
const STEPS: usize = 3;
/// Number of sequences: one at every edge, and enough for the largest step.
const SEQUENCES: usize = if EDGES.len() < MAX_SEQUENCES {
    MAX_SEQUENCES
} else {
    EDGES.len()
};

/// A sequence with a stored context, after which a few rows attend.
struct Sequence {
    context: usize,
    /// Keys of the context and of all steps, `[context + STEPS][KEYS]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Queries of all steps, `[STEPS][QUERIES]`.
    queries: Vec<f32>,
    pages: Vec<PageId>,
}

/// Sequences of random rows, with pages of one cache.
struct Decoding<A> {
    norms: Norms<Vec<f32>>,
    sequences: Vec<Sequence>,
    /// Number of pages of the cache.
    pages: usize,
    shape: PhantomData<A>,
}

/// Results of a run: for each sequence `[STEPS][MIXED]`, and the cache's content.
struct Decoded {
    results: Vec<Vec<f32>>,
    cache: Vec<f32>,
}

impl<A: shapes::Attention> Decoding<A> {
    /// One sequence for every edge.
    fn draw(random: &mut Random) -> Decoding<A> {
        let fits = |edge: &usize| edge + STEPS <= MAX_CONTEXT;
        let edges: Vec<_> = EDGES.into_iter().filter(fits).collect();
        let contexts = edges.iter().copied().cycle().take(SEQUENCES);
        Decoding::after(random, &contexts.collect::<Vec<_>>())
    }

    /// One sequence for each length in `contexts`.
    fn after(random: &mut Random, contexts: &[usize]) -> Decoding<A> {
        let each = contexts
            .iter()
            .map(|context| (context + STEPS).div_ceil(PAGE));
        let pages = each.clone().sum();
        // Pages are given from the last one down, so that no block table is ascending.
        let mut left = (0..pages as u32).rev().map(PageId);
        let tables: Vec<Vec<_>> = each
            .map(|each| left.by_ref().take(each).collect())
            .collect();
        let mut sequence = |(&context, pages): (&usize, Vec<PageId>)| {
            let rows = context + STEPS;
            Sequence {
                context,
                keys: random.bf16(rows * A::KEYS, 2.0),
                values: random.bf16(rows * A::KEYS, 2.0),
                queries: random.bf16(STEPS * A::QUERIES, 2.0 * shortened::<A>()),
                pages,
            }
        };
        let sequences = contexts.iter().zip(tables).map(&mut sequence).collect();
        Decoding {
            sequences,
            norms: short_norms::<A>(random),
            pages,
            shape: PhantomData,
        }
    }

    /// Runs decode steps of up to `rows` sequences; a group runs all its steps before the next one.
    fn run<B: ProbeAttention<A>>(
        &self,
        b: &mut B,
        rows: usize,
        calls: Calls,
    ) -> Result<Decoded, DeviceError> {
        let mut cache = b.kv_cache(self.pages)?;
        let norms = self.norms.load(b)?;
        for sequence in &self.sequences {
            self.store(b, sequence, &norms, &mut cache)?;
        }
        let mut results = Vec::new();
        for group in self.sequences.chunks(rows) {
            let mut of_group = vec![Vec::new(); group.len()];
            for step in 0..STEPS {
                let found = self.step(b, group, step, &norms, &mut cache, calls)?;
                let found = found.chunks_exact(A::MIXED);
                for (result, found) in of_group.iter_mut().zip(found) {
                    result.extend_from_slice(found);
                }
            }
            results.extend(of_group);
        }
        Ok(Decoded {
            results,
            cache: b.cached(&cache)?,
        })
    }

    /// Stores a sequence's context, and NaN in the rest of its last page.
    fn store<B: ProbeAttention<A>>(
        &self,
        b: &mut B,
        sequence: &Sequence,
        norms: &Norms<B::Vector>,
        cache: &mut B::KvCache,
    ) -> Result<(), DeviceError> {
        let end = sequence.pages.len() * PAGE;
        for part in cut(0..end.min(MAX_CONTEXT), STORED_ROWS) {
            let of = |all: &[f32]| -> Vec<f32> {
                let known = part.start..part.end.min(sequence.context).max(part.start);
                let mut rows = all[known.start * A::KEYS..known.end * A::KEYS].to_vec();
                rows.resize(part.len() * A::KEYS, f32::NAN);
                rows
            };
            let (mut k, v) = (
                b.given(A::KEYS, &of(&sequence.keys))?,
                b.given(A::KEYS, &of(&sequence.values))?,
            );
            let mut q = b.empty(part.len(), A::QUERIES)?;
            let batch = self.batch([(sequence, part.start, part.len())])?;
            b.begin(&batch);
            let v = beside::<A, _>(&v);
            b.store_kv(&mut q, &mut k, v, norms.each(), cache, &batch);
        }
        Ok(())
    }

    /// Runs one row of each sequence of a group.
    fn step<B: ProbeAttention<A>>(
        &self,
        b: &mut B,
        group: &[Sequence],
        step: usize,
        norms: &Norms<B::Vector>,
        cache: &mut B::KvCache,
        calls: Calls,
    ) -> Result<Vec<f32>, DeviceError> {
        let row = |all: fn(&Sequence) -> &[f32], width: usize, at: fn(&Sequence) -> usize| {
            let rows = group
                .iter()
                .flat_map(|of| &all(of)[(at(of) + step) * width..][..width]);
            rows.copied().collect::<Vec<_>>()
        };
        let mut q = b.given(A::QUERIES, &row(|of| &of.queries, A::QUERIES, |_| 0))?;
        let mut k = b.given(A::KEYS, &row(|of| &of.keys, A::KEYS, |of| of.context))?;
        let v = b.given(A::KEYS, &row(|of| &of.values, A::KEYS, |of| of.context))?;
        let mut out = b.empty(group.len(), A::MIXED)?;
        let batch = self.batch(group.iter().map(|of| (of, of.context + step, 1)))?;
        assert!(batch.is_decode());
        b.begin(&batch);
        let input = Qkv {
            q: &mut q,
            k: &mut k,
            v: beside::<A, _>(&v),
            norms: norms.each(),
            sinks: norms.sinks(),
        };
        calls.attention::<A, B>(b, input, cache, &batch, &mut out);
        b.seen(&out)
    }

    /// The batch of these sequences' rows from a position on.
    fn batch<'a>(
        &self,
        parts: impl IntoIterator<Item = (&'a Sequence, usize, usize)>,
    ) -> Result<Batch, DeviceError> {
        let tokens = [TokenId::default(); STORED_ROWS];
        let rows = parts.into_iter().enumerate();
        let rows = rows.map(|(slot, (sequence, start, rows))| {
            SeqRows::of(Slot(slot as u32), start, &tokens[..rows], &sequence.pages)
        });
        let mut batch = Batch::new(self.pages);
        batch.fill(&rows.collect::<Vec<_>>())?;
        Ok(batch)
    }
}

/// Compares decode steps of every number of rows, bit by bit: `attention` with `store_kv` and
/// `attend`, with a second run of itself, and with each sequence alone.
pub(super) fn compare<A: shapes::Attention>(
    report: &mut Report,
    random: &mut Random,
    (device, cpu): (&mut Backend, &mut Cpu),
) where
    Backend: ProbeAttention<A>,
{
    let (op, case) = ("attention", Decoding::<A>::draw(random));
    let wanted = case.run(cpu, MAX_SEQUENCES, Calls::Together);
    let wanted = wanted.expect("the CPU runs every case").results;
    let mut alone: Option<Decoded> = None;
    let rows = DECODED_ROWS.into_iter();
    for rows in rows.filter(|&rows| rows <= MAX_SEQUENCES) {
        let shape = format!("{rows} decoded");
        let found = match case.run(device, rows, Calls::Together) {
            Ok(found) => found,
            Err(why) => {
                report.push(op, &shape, RUNS, why.to_string(), false);
                continue;
            }
        };
        let both = (&found.results[..], &wanted[..]);
        nearest(report, op, (&shape, DEVICE_CPU), both, LIMIT);
        for (calls, check) in [(Calls::Apart, APART), (Calls::Together, "again = at first")] {
            match case.run(device, rows, calls) {
                Ok(other) => same_decoded(report, (op, &shape, check), &other, &found),
                Err(why) => report.push(op, &shape, check, why.to_string(), false),
            }
        }
        match &alone {
            Some(alone) => same_decoded(report, (op, &shape, ALONE), alone, &found),
            None => alone = Some(found),
        }
    }
}

/// Reports whether two runs left equal results and equal caches.
fn same_decoded(
    report: &mut Report,
    about: (&'static str, &str, &'static str),
    other: &Decoded,
    found: &Decoded,
) {
    let mut pairs = other.results.iter().zip(&found.results);
    let same_rows = pairs.all(|(other, found)| same_bits(other, found));
    let same_pages = same_bits(&other.cache, &found.cache);
    let differing = match (same_rows, same_pages) {
        (false, false) => "rows and pages",
        (true, false) => "pages",
        _ => "rows",
    };
    report.same(about, differing, same_rows && same_pages);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::distance;
    use super::*;
    use model::shapes::Attention as _;
    use model::target::Full;

    const CONTEXTS: [usize; 5] = [0, PAGE - 1, PAGE, 3, 2 * PAGE - 2];

    fn run(case: &Decoding<Full>, rows: usize, calls: Calls) -> Decoded {
        case.run(&mut Cpu::default(), rows, calls).unwrap()
    }

    fn bits(decoded: &Decoded) -> Vec<u32> {
        let all = decoded.results.iter().flatten().chain(&decoded.cache);
        all.map(|value| value.to_bits()).collect()
    }

    #[test]
    fn attention_is_store_kv_and_attend() {
        let case = Decoding::<Full>::after(&mut Random::seeded(1), &CONTEXTS);
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
        let case = Decoding::<Full>::after(&mut Random::seeded(2), &CONTEXTS);
        let batch = run(&case, CONTEXTS.len(), Calls::Together);
        for rows in [1, 2] {
            assert_eq!(bits(&run(&case, rows, Calls::Together)), bits(&batch));
        }
    }

    #[test]
    fn a_result_without_what_the_step_before_stored_is_too_far() {
        let mut case = Decoding::<Full>::after(&mut Random::seeded(3), &[PAGE - 1]);
        let whole = run(&case, 1, Calls::Together).results;
        let sequence = &mut case.sequences[0];
        sequence.values[sequence.context * Full::KEYS..][..Full::KEYS].fill(0.0);
        let other = run(&case, 1, Calls::Together).results;
        let last = (STEPS - 1) * Full::MIXED;
        let error = distance(&other[0][last..], &whole[0][last..]).unwrap();
        assert!(error > LIMIT, "{error}");
    }

    #[test]
    fn pages_fit_the_largest_cache_and_sequences_the_largest_step() {
        let case = Decoding::<Full>::draw(&mut Random::seeded(4));
        assert!(case.pages <= model::target::KV_PAGES, "{}", case.pages);
        assert!(case.sequences.len() >= *DECODED_ROWS.iter().max().unwrap());
        let pages = case.sequences.iter().flat_map(|of| &of.pages);
        let distinct: HashSet<_> = pages.collect();
        assert_eq!(distinct.len(), case.pages, "no page has two owners");
    }
}
