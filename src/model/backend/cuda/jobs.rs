//! Jobs in which matrices are read: rows of the checkpoint, and their destination in the panels of
//! `cuda/ops/pack`.

use std::ops::Range;

use super::storage::{BLOCK_ROWS, Order, PANEL_ROWS, Storage};
use crate::target::BIASED;
use crate::weights::{MatrixSource, Stored, WeightsError};

/// Rows that are read together, such as those that share FP8 scales: a job's rows are a multiple of
/// this number, or end with the last row of a part.
pub const JOB_ROWS: usize = BLOCK_ROWS;
/// Adjacent rows of one matrix in a panel where two matrices are interleaved, as gate and up are.
const GROUP_ROWS: usize = PANEL_ROWS / 2;

/// A matrix to be loaded, made from matrices of the checkpoint.
pub struct Wanted<'a> {
    pub parts: Vec<MatrixSource<'a>>,
    pub order: Order,
    pub storage: Storage,
    /// Index of the destination among the call's buffers, and offset in that buffer in bytes.
    pub to: (usize, usize),
}

/// Some rows of one of a matrix's parts, read at once.
pub struct Job<'a> {
    source: MatrixSource<'a>,
    pub rows: Range<usize>,
    pub destination: Destination,
}

/// Rows of a matrix's panels that receive a job's rows: row `r` goes to row `first + r / 8 * stride
/// + r % 8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub first: usize,
    pub stride: usize,
    /// Number of rows and, in `k`, of columns of the matrix.
    pub n: usize,
    pub k: usize,
    pub storage: Storage,
}

impl Order {
    /// `first` and `stride` of a [`Destination`] for rows of part `index` from its row `start` on.
    /// `rows`: number of rows of each part.
    pub fn destination(self, rows: &[usize], index: usize, start: usize) -> (usize, usize) {
        match self {
            Order::Stacked => (rows[..index].iter().sum::<usize>() + start, GROUP_ROWS),
            Order::Interleaved => {
                assert!(rows.len() == 2 && rows[0] == rows[1]);
                assert!(rows[0].is_multiple_of(GROUP_ROWS) && start.is_multiple_of(GROUP_ROWS));
                (2 * start + index * GROUP_ROWS, PANEL_ROWS)
            }
        }
    }
}

impl<'a> Wanted<'a> {
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.shape().0).sum()
    }

    pub fn columns(&self) -> usize {
        self.parts[0].shape().1
    }

    pub fn bytes(&self) -> usize {
        self.storage.bytes(self.rows(), self.columns()) as usize
    }

    /// Jobs that together read every row of every part once, each at most `most` bytes unless
    /// `JOB_ROWS` rows have more.
    pub fn jobs(&self, most: usize) -> Vec<Job<'a>> {
        let rows: Vec<usize> = self.parts.iter().map(|part| part.shape().0).collect();
        let mut jobs = Vec::new();
        for (index, &source) in self.parts.iter().enumerate() {
            // Rounding takes longer than reading, so small jobs let all readers take part.
            let blocks = match source.is_rounded() {
                true => 1,
                false => (most / bytes(&source, self.storage, JOB_ROWS)).max(1),
            };
            let step = JOB_ROWS * blocks;
            for start in (0..rows[index]).step_by(step) {
                let (first, stride) = self.order.destination(&rows, index, start);
                jobs.push(Job {
                    source,
                    rows: start..rows[index].min(start + step),
                    destination: Destination {
                        first,
                        stride,
                        n: self.rows(),
                        k: self.columns(),
                        storage: self.storage,
                    },
                });
            }
        }
        jobs
    }
}

/// Bytes of `rows` rows with their scales and factors.
fn bytes(source: &MatrixSource<'_>, storage: Storage, rows: usize) -> usize {
    let [codes, scales] = source.sections(rows);
    codes + scales + storage.factors(rows, source.shape().1) * size_of::<f32>()
}

impl Job<'_> {
    /// Bytes that `read` fills: codes, E4M3 scales, factors.
    pub fn bytes(&self) -> usize {
        bytes(&self.source, self.destination.storage, self.rows.len())
    }

    /// Fills `slot`, which has `bytes()` bytes, with checked rows of the checkpoint.
    pub fn read(&self, slot: &mut [u8]) -> Result<(), WeightsError> {
        let [codes, scales] = self.source.sections(self.rows.len());
        let (codes, rest) = slot.split_at_mut(codes);
        let (scales, to) = rest.split_at_mut(scales);
        let stored = self.source.read_rows_to(self.rows.clone(), codes, scales)?;
        let factors = factors(&stored);
        assert_eq!(to.len(), factors.len() * size_of::<f32>());
        for (to, factor) in to.as_chunks_mut().0.iter_mut().zip(factors) {
            *to = factor.to_le_bytes();
        }
        Ok(())
    }
}

/// Factors of codes and scales: one for the matrix, or one for each block or row; then biases of
/// rows, if matrices of the target have biases.
pub fn factors<Bytes>(stored: &Stored<Bytes>) -> Vec<f32> {
    let all = &stored.bits.factors;
    let mut factors: Vec<f32> = (0..all.numbers.len()).map(|at| all.of(at)).collect();
    if BIASED {
        let end = factors.len() + stored.n;
        factors.extend(&stored.bias);
        factors.resize(end, 0.0);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Role, Site};
    use crate::weights::open_seeded;

    /// Memory for the fewest rows of every matrix of the test's targets, and for no whole table.
    const MOST: usize = 600 << 10;

    fn wanted<'a>(parts: Vec<MatrixSource<'a>>, order: Order) -> Wanted<'a> {
        let storage = Storage::of_format(parts[0].format());
        Wanted {
            parts,
            order,
            storage,
            to: (0, 0),
        }
    }

    /// The rows that a job's rows become.
    fn rows_of(job: &Job<'_>) -> Vec<usize> {
        let Destination { first, stride, .. } = job.destination;
        let to = |row| first + row / GROUP_ROWS * stride + row % GROUP_ROWS;
        (0..job.rows.len()).map(to).collect()
    }

    #[test]
    fn jobs_fill_every_row_once_and_their_slots_at_most() {
        let checkpoint = open_seeded(Default::default());
        let (whole, layer) = (Site::Whole, Site::Layer(0));
        let gate_up = [Role::SharedGate, Role::SharedUp];
        let cases: [(&[Role], Site, Order); 4] = [
            (&[Role::Embedding], whole, Order::Stacked),
            (&gate_up, layer, Order::Interleaved),
            (&gate_up, layer, Order::Stacked),
            (&[Role::Router, Role::SharedRouter], layer, Order::Stacked),
        ];
        for (roles, site, order) in cases {
            let parts = roles.iter().map(|role| checkpoint.matrix(*role, site));
            let parts = parts.collect();
            let wanted = wanted(parts, order);
            let jobs = wanted.jobs(MOST);
            assert!(jobs.iter().all(|job| job.bytes() <= MOST));
            let mut rows: Vec<_> = jobs.iter().flat_map(rows_of).collect();
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..wanted.rows()), "{roles:?}");
        }
    }

    #[test]
    fn rows_of_gate_and_up_alternate() {
        let rows = [256, 256];
        let destination = |index, start| Order::Interleaved.destination(&rows, index, start);
        assert_eq!([destination(0, 0), destination(1, 0)], [(0, 16), (8, 16)]);
        assert_eq!(
            [destination(0, 128), destination(1, 128)],
            [(256, 16), (264, 16)]
        );
        assert_eq!(Order::Stacked.destination(&[256, 1], 1, 0), (256, 8));
    }

    #[test]
    fn a_job_reads_what_its_rows_are() {
        let checkpoint = open_seeded(Default::default());
        for matrix in checkpoint.layout().matrices() {
            let source = checkpoint.source(matrix);
            for job in wanted(vec![source], Order::Stacked).jobs(MOST) {
                let mut slot = vec![0x55; job.bytes()];
                job.read(&mut slot).unwrap();
                let stored = source.read_rows(job.rows.clone()).unwrap();
                let (codes, scales) = (&stored.bits.codes, &stored.bits.scales);
                let factors = factors(&stored).into_iter().flat_map(f32::to_le_bytes);
                let factors: Vec<u8> = factors.collect();
                let whole = [&codes[..], scales, &factors].concat();
                assert!(slot == whole, "{} {:?}", matrix.name(), job.rows);
            }
        }
    }
}
