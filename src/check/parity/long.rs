//! Attention after long contexts.
//!
//! A reference that attends from each of 131,072 positions takes too long, so most positions are
//! only stored; a few rows attend near the ends of contexts, where pages and splits end too.
//!
//! A single position is a small part of a result. Values are therefore large where mistakes are
//! likely: at both edges of every page, and at the rows that attend. A result that lacks one such
//! position is off by `LOUD / sqrt(positions + large positions * LOUD^2)`, 1.5 % after 131,072
//! positions. Queries are short, for scores that spread by a half: if a few positions outweighed
//! the others, their rounding would be most of a result's error, and now and then too large.

use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use super::attention::{Calls, LIMIT, ProbeAttention, shortened};
use super::head_norms::{Norms, beside, short_norms};
use super::probe::as_factors;
use super::rows::gathered;
use super::sequences::dealt;
use super::{ALONE, APART, DEVICE_CPU, RUNS, Random, Report, nearest, same_bits};
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::ops::{Batch, CELL, Qkv, ROWS_MAX};
use model::shapes;
use model::target::{KV_PAGES, MAX_CONTEXT, PAGE, PREFILL_TOKENS};
use step::executor::{DeviceError, SeqRows, Slot, TokenId};

/// Context lengths near whose ends rows attend, if sequences may be as long.
const ENDS: [usize; 4] = [2048, 8192, 32_768, 131_072];
/// Factor of values at the positions that no result may lack.
const LOUD: f32 = 32.0;
/// Rows that one step stores.
pub(super) const STORED_ROWS: usize = if PREFILL_TOKENS < 2048 {
    PREFILL_TOKENS
} else {
    2048
};

/// A sequence of the largest length, of which a few rows attend.
struct LongContext<A> {
    norms: Norms<Vec<f32>>,
    /// Keys, `[position][KEYS]`.
    keys: Rc<Vec<f32>>,
    values: Rc<Vec<f32>>,
    /// Queries of the rows that attend, `[rows of all steps][QUERIES]`.
    queries: Vec<f32>,
    /// Positions of the rows that attend in each step, ascending.
    steps: Vec<Range<usize>>,
    shape: PhantomData<A>,
}

impl<A: shapes::Attention> LongContext<A> {
    /// Random rows of a sequence of the largest length.
    fn draw(random: &mut Random) -> LongContext<A> {
        let ends = ENDS.into_iter().filter(|&end| end <= MAX_CONTEXT);
        LongContext::near(random, &ends.collect::<Vec<_>>())
    }

    /// Random rows, of which those near `ends` attend.
    fn near(random: &mut Random, ends: &[usize]) -> LongContext<A> {
        let longest = ends.last().copied().unwrap_or(0);
        let steps = ends.iter().flat_map(|&end| steps_near(end));
        let steps: Vec<_> = steps.filter(|step| step.end <= longest).collect();
        let keys = random.bf16(longest * A::KEYS, 2.0);
        let mut values = random.bf16(longest * A::KEYS, 2.0);
        let attends = |position| steps.iter().any(|step| step.contains(&position));
        for (position, value) in values.chunks_exact_mut(A::KEYS).enumerate() {
            if [0, PAGE - 1].contains(&(position % PAGE)) || attends(position) {
                value.iter_mut().for_each(|value| *value *= LOUD);
            }
        }
        let rows: usize = steps.iter().map(Range::len).sum();
        LongContext {
            norms: short_norms::<A>(random),
            keys: keys.into(),
            values: values.into(),
            queries: random.bf16(rows * A::QUERIES, query_scale::<A>()),
            steps,
            shape: PhantomData,
        }
    }

    /// The sequence with a subset of the rows that attend, each in a step of its own: every eighth
    /// row of each step, one per instruction tile, and the last. Also these rows' indices in
    /// `queries`.
    fn some(&self) -> (LongContext<A>, Vec<usize>) {
        let (mut steps, mut numbers, mut before) = (Vec::new(), Vec::new(), 0);
        for step in &self.steps {
            let rows = (0..step.len()).filter(|row| row % 8 == 0 || row + 1 == step.len());
            for row in rows {
                steps.push(step.start + row..step.start + row + 1);
                numbers.push(before + row);
            }
            before += step.len();
        }
        let some = LongContext {
            norms: self.norms.clone(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            queries: gathered(&self.queries, before, &numbers),
            steps,
            shape: PhantomData,
        };
        (some, numbers)
    }

    /// The results of each step, for each of `copies` of the sequence on other pages. Steps of more
    /// than `most` rows are cut; steps with one row of each copy are decode steps.
    fn run<B: ProbeAttention<A>>(
        &self,
        b: &mut B,
        (copies, most): (usize, usize),
        calls: Calls,
    ) -> Result<Vec<Vec<Vec<f32>>>, DeviceError> {
        let mut cache = b.kv_cache(KV_PAGES)?;
        let norms = self.norms.load(b)?;
        let mut results = vec![vec![Vec::new(); copies]; self.steps.len()];
        let (mut stored, mut queries) = (0, &self.queries[..]);
        for (step, results) in self.steps.iter().zip(&mut results) {
            for part in cut(stored..step.start, STORED_ROWS / copies) {
                let batch = batch(&part, copies)?;
                let mut q = b.empty(batch.rows(), A::QUERIES)?;
                let (mut k, v) = self.keys_and_values(b, &batch)?;
                b.begin(&batch);
                let v = beside::<A, _>(&v);
                b.store_kv(&mut q, &mut k, v, norms.each(), &mut cache, &batch);
                b.rows_seen(&q, &[])?;
            }
            for part in cut(step.clone(), most.min(most_of_copy(copies))) {
                let (own, rest) = queries.split_at(part.len() * A::QUERIES);
                queries = rest;
                let batch = batch(&part, copies)?;
                let mut q = b.given(A::QUERIES, &own.repeat(copies))?;
                let (mut k, v) = self.keys_and_values(b, &batch)?;
                let mut out = b.empty(batch.rows(), A::MIXED)?;
                b.begin(&batch);
                let input = Qkv {
                    q: &mut q,
                    k: &mut k,
                    v: beside::<A, _>(&v),
                    norms: norms.each(),
                    sinks: norms.sinks(),
                };
                calls.attention::<A, B>(b, input, &mut cache, &batch, &mut out);
                let found = as_factors(b.seen(&out)?);
                let copies = found.chunks_exact(found.len() / copies);
                for (result, found) in results.iter_mut().zip(copies) {
                    result.extend_from_slice(found);
                }
            }
            stored = step.end;
        }
        Ok(results)
    }

    /// Keys and values of the rows at these positions.
    fn keys_and_values<B: ProbeAttention<A>>(
        &self,
        b: &mut B,
        batch: &Batch,
    ) -> Result<(B::Tensor, B::Tensor), DeviceError> {
        let of = |all: &[f32]| -> Vec<f32> {
            let rows = batch.positions().iter();
            let rows = rows.map(|position| &all[position * A::KEYS..][..A::KEYS]);
            rows.collect::<Vec<_>>().concat()
        };
        Ok((
            b.given(A::KEYS, &of(&self.keys))?,
            b.given(A::KEYS, &of(&self.values))?,
        ))
    }
}

/// Largest magnitude of a query's elements: without norms, the magnitude by which scores with keys
/// of up to 2 spread by a half.
fn query_scale<A: shapes::Attention>() -> f32 {
    shortened::<A>() * if A::NORMED { 2.0 } else { 0.75 }
}

/// Positions of rows near the end of a context: many rows across the end of a page; two cells; few
/// rows; and single rows before, at and after `end`.
fn steps_near(end: usize) -> [Range<usize>; 6] {
    let many = end - 4 * CELL - 3;
    [
        many..many + CELL + 1,
        end - 3 * CELL..end - CELL,
        end - 9..end - 2,
        end - 2..end - 1,
        end - 1..end,
        end..end + 1,
    ]
}

/// Number of rows of each copy that a step can have, in whole cells.
fn most_of_copy(copies: usize) -> usize {
    ROWS_MAX / copies / CELL * CELL
}

/// Pieces of `rows` of length `most`; the last one may be shorter.
pub(super) fn cut(rows: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(most)
        .map(move |start| start..end.min(start + most))
}

/// The batch of `part`'s rows of each copy of the sequence.
fn batch(part: &Range<usize>, copies: usize) -> Result<Batch, DeviceError> {
    let tables: Vec<_> = (0..copies)
        .map(|copy| dealt(copy, copies, part.end))
        .collect();
    let tokens = vec![TokenId::default(); part.len()];
    let rows = tables
        .iter()
        .enumerate()
        .map(|(copy, pages)| SeqRows::of(Slot(copy as u32), part.start, &tokens, pages));
    let mut batch = Batch::new(KV_PAGES);
    batch.fill(&rows.collect::<Vec<_>>())?;
    Ok(batch)
}

/// Compares few rows after contexts up to the longest, bit by bit: beside a copy on other pages,
/// cut on the grid or into few rows, and by `store_kv` and `attend`.
pub(super) fn compare<A: shapes::Attention>(
    report: &mut Report,
    random: &mut Random,
    (device, cpu): (&mut Backend, &mut Cpu),
) where
    Backend: ProbeAttention<A>,
{
    let (op, case) = ("attention", LongContext::<A>::draw(random));
    let longest = format!("to {MAX_CONTEXT}");
    let whole = (1, MAX_CONTEXT);
    let (some, numbers) = case.some();
    let wanted = some.run(cpu, whole, Calls::Together);
    let wanted = wanted.expect("the CPU runs every case");
    let found = match case.run(device, whole, Calls::Together) {
        Ok(found) => found,
        Err(why) => return report.push(op, &longest, RUNS, why.to_string(), false),
    };
    let (mut before, mut wanted) = (0, numbers.iter().zip(wanted).peekable());
    for (step, found) in case.steps.iter().zip(&found) {
        let (mut rows, mut of_rows) = (Vec::new(), Vec::new());
        while let Some((row, result)) = wanted.next_if(|(row, _)| **row < before + step.len()) {
            rows.push(row - before);
            of_rows.extend(result.concat());
        }
        before += step.len();
        let shape = format!("{}..{}", step.start, step.end);
        let found = gathered(&found[0], step.len(), &rows);
        let both = (&[found][..], &[of_rows][..]);
        nearest(report, op, (&shape, DEVICE_CPU), both, LIMIT);
    }
    for (copies, most, calls, check) in [
        (2, MAX_CONTEXT, Calls::Together, ALONE),
        (1, CELL, Calls::Together, "chunks of 64 = whole"),
        (1, MAX_CONTEXT, Calls::Apart, APART),
    ] {
        let other = case.run(device, (copies, most), calls);
        let is_same = other.is_ok_and(|other| {
            let mut pairs = other.iter().zip(&found);
            pairs.all(|(other, found)| {
                let same = |copy: &Vec<f32>| same_bits(copy, &found[0]);
                other.len() == copies && other.iter().all(same)
            })
        });
        report.same((op, &longest, check), "rows", is_same);
    }
}

#[cfg(test)]
mod tests {
    use super::super::distance;
    use super::*;
    use model::shapes::Attention as _;
    use model::target::Full;

    const END: usize = 8 * CELL;

    fn run(case: &LongContext<Full>, copies: usize, most: usize) -> Vec<Vec<Vec<f32>>> {
        case.run(&mut Cpu::default(), (copies, most), Calls::Together)
            .unwrap()
    }

    #[test]
    fn steps_are_apart_and_end_with_the_longest_context() {
        let case = LongContext::<Full>::draw(&mut Random::seeded(1));
        let mut pairs = case.steps.windows(2);
        assert!(pairs.all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(case.steps.last().unwrap().end, MAX_CONTEXT);
    }

    #[test]
    fn a_copy_and_cuts_change_nothing_on_the_cpu() {
        let case = LongContext::<Full>::near(&mut Random::seeded(2), &[END]);
        let found = run(&case, 2, CELL);
        for (found, alone) in found.iter().zip(run(&case, 1, END)) {
            assert_eq!((&found[0], &found[1]), (&alone[0], &alone[0]));
        }
    }

    #[test]
    fn some_rows_have_the_results_that_they_have_among_all() {
        let case = LongContext::<Full>::near(&mut Random::seeded(4), &[END]);
        let all: Vec<f32> = run(&case, 1, END).into_iter().flatten().flatten().collect();
        let (some, numbers) = case.some();
        let found: Vec<f32> = run(&some, 1, END).into_iter().flatten().flatten().collect();
        assert!(numbers.len() < all.len() / Full::MIXED);
        assert_eq!(found, gathered(&all, all.len() / Full::MIXED, &numbers));
    }

    #[test]
    fn a_result_without_one_edge_of_a_page_is_too_far() {
        let mut case = LongContext::<Full>::near(&mut Random::seeded(3), &[END]);
        let last = |case: &LongContext<Full>| run(case, 1, END).pop().unwrap().pop().unwrap();
        let whole = last(&case);
        let values = Rc::get_mut(&mut case.values).unwrap();
        values[(END / 2 - 1) * Full::KEYS..][..Full::KEYS].fill(0.0);
        let error = distance(&last(&case), &whole).unwrap();
        assert!(error > LIMIT, "{error}");
    }
}
