//! Comparisons of the device's operations with the CPU's, on all cases.

use std::collections::BTreeSet;

use super::matrices::once;
use super::rows::{ROWS, RowCase, RowOpOn, Rowwise, sampled};
use super::sequences::{CAN_DRAFT, SequenceCase, Sequences, schedules};
use super::{
    ALONE, DEVICE_CPU, DRAFTED, GROUPS, Group, RUNS, Random, Report, decode, long, nearest,
    same_bits,
};
use model::backend::Backend;
use model::backend::cpu::Cpu;
use model::ops::CELL;
use model::target::{MAX_CONTEXT, PREFILL_TOKENS, each_attention};
use step::executor::DeviceError;

/// Compares every operation of the device with the CPU's on every case.
pub fn compare(report: &mut Report, random: &mut Random, device: &mut Backend) {
    let cpu = &mut Cpu::default();
    let mut both = Both { device, cpu };
    for group in GROUPS {
        both.by_row(report, random, group);
    }
    for group in GROUPS {
        both.by_sequence(report, random, group);
    }
    if report.wants("attention") {
        each_attention![A => {
            decode::compare::<A>(report, random, (both.device, both.cpu));
            long::compare::<A>(report, random, (both.device, both.cpu));
        }];
    }
}

/// A case, the numbers of its compared rows, and the CPU's results for them.
struct Reference<'a> {
    case: Rowwise<'a>,
    looked_at: Vec<usize>,
    wanted: Vec<Vec<f32>>,
}

impl<'a> Reference<'a> {
    fn new(case: Rowwise<'a>, looked_at: Vec<usize>, wanted: Vec<Vec<f32>>) -> Reference<'a> {
        Reference {
            case,
            looked_at,
            wanted,
        }
    }

    /// The reference of the case's first `rows` rows.
    fn first(&self, rows: usize) -> Reference<'a> {
        let count = self.looked_at.partition_point(|row| *row < rows);
        let first = |of: &Vec<f32>| of[..of.len() / self.looked_at.len() * count].to_vec();
        let wanted = self.wanted.iter().map(first).collect();
        Reference::new(
            self.case.first(rows),
            self.looked_at[..count].to_vec(),
            wanted,
        )
    }
}

/// The device, and the CPU as its reference.
struct Both<'a> {
    device: &'a mut Backend,
    cpu: &'a mut Cpu,
}

impl Both<'_> {
    /// Compares the operations of a group whose cases are independent rows.
    fn by_row(&mut self, report: &mut Report, random: &mut Random, group: &Group) {
        if !report.wants_any(group.by_row) {
            return;
        }
        for op in (group.rows)(random) {
            if report.wants(op.op())
                && let Err(why) = self.all_rows(report, random, op.as_ref(), &ROWS)
            {
                let check = "the GPU holds the weights";
                report.push("", "", check, why.to_string(), false);
            }
        }
    }

    /// Compares an operation on every number of rows.
    fn all_rows(
        &mut self,
        report: &mut Report,
        random: &mut Random,
        op: &dyn RowCase,
        rows: &[usize],
    ) -> Result<(), DeviceError> {
        let on_device = RowOpOn::<Backend>::load(op, self.device)?;
        let on_cpu = RowOpOn::<Cpu>::load(op, self.cpu)?;
        let counts = once(rows.iter().copied().filter(|rows| op.takes(*rows)));
        let most = counts.iter().copied().max().unwrap_or(0);
        // Inputs of independent rows are drawn, and computed by the CPU, once for all cases.
        let shared = match op.is_by_row() && !op.is_placed() && op.wanted(most).is_none() {
            true => {
                let case = Rowwise::draw(random, op, most);
                let ends = counts.iter().map(|count| count - 1);
                let sample = sampled(random, most).into_iter().chain(ends);
                let looked_at: BTreeSet<usize> = match report.all {
                    true => (0..most).collect(),
                    false => sample.collect(),
                };
                let looked_at: Vec<usize> = looked_at.into_iter().collect();
                let wanted = case.some(&looked_at).run(self.cpu, &on_cpu, None)?;
                Some(Reference::new(case, looked_at, wanted))
            }
            false => None,
        };
        for rows in counts {
            let reference = match &shared {
                Some(shared) => shared.first(rows),
                None => {
                    let case = Rowwise::draw(random, op, rows);
                    let wanted = case.run(self.cpu, &on_cpu, None)?;
                    let looked_at = case.with_results();
                    Reference::new(case, looked_at, wanted)
                }
            };
            let Reference {
                case,
                looked_at,
                wanted,
            } = &reference;
            let shape = case.case();
            let seen = shared.is_some().then_some(&looked_at[..]);
            let found = match case.run(self.device, &on_device, seen) {
                Ok(found) => found,
                Err(why) => {
                    report.push(op.op(), &shape, RUNS, why.to_string(), false);
                    continue;
                }
            };
            let both = (&found[..], &wanted[..]);
            nearest(report, op.op(), (&shape, DEVICE_CPU), both, op.limit());
            if op.is_by_row() {
                let alone = |case: &Rowwise<'_>| case.run(self.device, &on_device, None);
                rows_alone(report, op.op(), case, (looked_at, &found), alone);
            }
        }
        Ok(())
    }

    /// Compares the operations of a group whose cases are sequences.
    fn by_sequence(&mut self, report: &mut Report, random: &mut Random, group: &Group) {
        if !report.wants_any(group.by_sequence) {
            return;
        }
        for op in (group.sequences)(random) {
            if !report.wants(op.op()) {
                continue;
            }
            for steps in schedules() {
                self.sequences(report, &Sequences::draw(random, op.as_ref(), steps));
            }
            self.chunkings(report, random, op.as_ref());
        }
    }

    /// Compares the results of a case of sequences in one or several steps.
    fn sequences(&mut self, report: &mut Report, case: &Sequences<'_>) {
        let (op, shape) = (case.op(), case.case());
        let wanted = case.on_cpu(self.cpu).expect("the CPU runs every case");
        let found = match case.on_device(self.device) {
            Ok(found) => found,
            Err(why) => return report.push(op, &shape, RUNS, why.to_string(), false),
        };
        let both = (&found[..], &wanted[..]);
        nearest(report, op, (&shape, DEVICE_CPU), both, case.limit());
        self.equal(report, case, &found, ALONE, &case.alone());
        if CAN_DRAFT {
            self.equal(report, case, &found, DRAFTED, &case.with_drafts());
        }
    }

    /// Compares a prompt cut into random chunks of the grid with the whole prompt, bit by bit, and
    /// a prompt cut into rows within the op's limit. The prompt ends within a cell.
    fn chunkings(&mut self, report: &mut Report, random: &mut Random, op: &dyn SequenceCase) {
        let rows = PREFILL_TOKENS.min(MAX_CONTEXT).min(1024) - CELL / 3;
        let whole = Sequences::draw(random, op, vec![vec![(0, rows)]]);
        let (op, shape) = (whole.op(), whole.case());
        let found = match whole.on_device(self.device) {
            Ok(found) => found,
            Err(why) => return report.push(op, "", RUNS, why.to_string(), false),
        };
        for (chunk, check) in [
            (CELL, "chunks of 64 = whole"),
            (2 * CELL, "chunks of 128 = whole"),
        ] {
            self.equal(report, &whole, &found, check, &whole.cut(rows, chunk));
        }
        match whole.cut(rows, 1).on_device(self.device) {
            Ok(by_row) => {
                let (about, both) = (
                    (&shape[..], "row by row = whole"),
                    (&found[..], &by_row[..]),
                );
                nearest(report, op, about, both, whole.limit());
            }
            Err(why) => report.push(op, &shape, RUNS, why.to_string(), false),
        }
    }

    fn equal(
        &mut self,
        report: &mut Report,
        case: &Sequences<'_>,
        found: &[Vec<f32>],
        check: &'static str,
        other: &Sequences<'_>,
    ) {
        let is_same = other.on_device(self.device).is_ok_and(|other| {
            let mut pairs = other.iter().zip(found);
            other.len() == found.len() && pairs.all(|(a, b)| same_bits(a, b))
        });
        report.same((case.op(), &case.case(), check), "rows", is_same);
    }
}

/// Compares rows alone, bit by bit, with the same rows in `batch`.
fn rows_alone(
    report: &mut Report,
    op: &'static str,
    case: &Rowwise<'_>,
    (rows, batch): (&[usize], &[Vec<f32>]),
    mut run: impl FnMut(&Rowwise<'_>) -> Result<Vec<Vec<f32>>, DeviceError>,
) {
    let mut differ = Vec::new();
    for index in [0, rows.len() / 2, rows.len() - 1] {
        let row = rows[index];
        let same = run(&case.some(&[row])).is_ok_and(|alone| {
            let mut pairs = alone.iter().zip(batch);
            pairs.all(|(alone, batch)| {
                let width = alone.len();
                same_bits(alone, &batch[index * width..][..width])
            })
        });
        if !same {
            differ.push(row);
        }
    }
    let check = "a row alone = the row in the batch";
    let differing = format!("{differ:?}");
    report.same((op, &case.case(), check), &differing, differ.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::backend;
    use model::target::MAX_SEQUENCES;

    fn compared(fill: impl FnOnce(&mut Both<'_>, &mut Report, &mut Random)) -> Report {
        let (device, cpu) = (&mut backend::open().unwrap(), &mut Cpu::default());
        let (mut report, mut random) = (Report::default(), Random::seeded(1));
        fill(&mut Both { device, cpu }, &mut report, &mut random);
        report
    }

    #[test]
    fn operations_with_cases_by_row_are_those_of_the_list() {
        let report = compared(|both, report, random| {
            for group in GROUPS {
                for case in (group.rows)(random) {
                    let rows = [1, MAX_SEQUENCES];
                    both.all_rows(report, random, case.as_ref(), &rows).unwrap();
                }
            }
        });
        assert!(report.passed(), "{report}");
        let listed = GROUPS.iter().flat_map(|group| group.by_row);
        let mut listed = once(listed.copied());
        let mut compared = once(report.lines.iter().map(|line| line.op));
        listed.sort_unstable();
        compared.sort_unstable();
        assert_eq!(compared, listed);
    }

    #[test]
    fn operations_that_keep_something_are_those_of_the_list() {
        let steps = vec![
            vec![(0, CELL + 1), (1, 2)],
            vec![(1, 1), (0, 1)],
            vec![(1, 3), (0, 1)],
        ];
        let report = compared(|both, report, random| {
            for group in GROUPS {
                let cases = (group.sequences)(random);
                let drawn = once(cases.iter().map(|case| case.op()));
                assert_eq!(drawn, group.by_sequence);
                for case in &cases {
                    let case = Sequences::draw(random, case.as_ref(), steps.clone());
                    both.sequences(report, &case);
                }
            }
        });
        assert!(report.passed() && !report.lines.is_empty(), "{report}");
    }
}
