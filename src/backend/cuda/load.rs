//! Weights on their way to the device: many threads read and repack, one has copies under way.

use std::collections::VecDeque;
use std::ops::Range;
use std::thread;

use ffi::{CudaError, Device, DeviceBuf, Event, PinnedBuf, Stream};

use super::panels::{self, Order, PANEL_ROWS, Storage};
use super::refused;
use crate::weights::{MatrixSource, Stored, WeightsError, pipeline};

/// Bytes of codes that a job reads, unless its fewest rows have more.
const JOB_BYTES: usize = 1 << 20;
/// Fewest rows of a matrix of a job: rows that share FP8 scales stay together.
const JOB_ROWS: usize = 128;
/// Bytes of a slot beside its codes: scales take an eighth at most.
const SLOT_SCALES: usize = JOB_BYTES / 8 + 4096;
/// Threads at most; more do not read faster.
const THREADS_MAX: usize = 32;
/// Slots for each thread: one that it fills, one that is copied.
const SLOTS_PER_THREAD: usize = 2;

/// A matrix to be loaded, made of some of the checkpoint.
pub struct Wanted<'a> {
    pub parts: Vec<MatrixSource<'a>>,
    pub order: Order,
    pub storage: Storage,
    /// Which buffer of the call, and where in it, in bytes.
    pub to: (usize, usize),
}

impl Wanted<'_> {
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.shape().0).sum()
    }

    pub fn columns(&self) -> usize {
        self.parts[0].shape().1
    }

    pub fn bytes(&self) -> usize {
        self.storage.bytes(self.rows(), self.columns()) as usize
    }

    /// Rows of the result that are loaded at once.
    fn step(&self) -> usize {
        let part_rows = match self.order {
            // Equal parts of both, for whole panels of the result.
            Order::Interleaved => 2 * JOB_ROWS,
            Order::Stacked => JOB_ROWS,
        };
        let is_even = |part: &MatrixSource<'_>| part.shape().0.is_multiple_of(JOB_ROWS);
        if self.parts.len() > 1 && !self.parts.iter().all(is_even) {
            return self.rows();
        }
        let [codes, ..] = self.storage.sections(part_rows, self.columns());
        part_rows * (JOB_BYTES / codes).max(1)
    }

    /// Reads the parts of the result's `rows`.
    fn read(&self, rows: Range<usize>) -> Result<Vec<Stored>, WeightsError> {
        match self.order {
            Order::Interleaved => {
                let half = rows.start / 2..rows.end / 2;
                let parts = self.parts.iter();
                parts.map(|part| part.read_rows(half.clone())).collect()
            }
            Order::Stacked => {
                let (mut start, mut read) = (0, Vec::new());
                for part in &self.parts {
                    let end = start + part.shape().0;
                    let here = rows.start.max(start)..rows.end.min(end);
                    if !here.is_empty() {
                        read.push(part.read_rows(here.start - start..here.end - start)?);
                    }
                    start = end;
                }
                Ok(read)
            }
        }
    }
}

/// Some rows of a matrix.
struct Job {
    matrix: usize,
    rows: Range<usize>,
}

/// Page-locked memory, and when the device has read it.
struct Slot {
    memory: PinnedBuf<u8>,
    copied: Event,
}

/// What loads: kept from call to call, until all weights are there.
pub struct Loader {
    device: Device,
    threads: usize,
    slots: Vec<Slot>,
}

impl Loader {
    /// # Errors
    /// Too little page-locked memory.
    pub fn new(device: &Device) -> Result<Loader, CudaError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(THREADS_MAX);
        let slot = |_| {
            let memory = PinnedBuf::zeroed(device, JOB_BYTES + SLOT_SCALES)?;
            let copied = Event::open(device)?;
            Ok(Slot { memory, copied })
        };
        let slots = (0..threads * SLOTS_PER_THREAD).map(slot);
        Ok(Loader {
            device: device.clone(),
            threads,
            slots: slots.collect::<Result<_, _>>()?,
        })
    }

    /// Loads `matrices` into `buffers` and waits until they are there.
    ///
    /// # Errors
    /// The first matrix that cannot be read, or copy that failed.
    pub fn load(
        &mut self,
        matrices: &[Wanted<'_>],
        buffers: &mut [&mut DeviceBuf<u8>],
        stream: &Stream,
    ) -> Result<(), WeightsError> {
        let jobs: Vec<Job> = matrices.iter().enumerate().flat_map(jobs).collect();
        let room = |job: &Job| {
            let wanted = &matrices[job.matrix];
            wanted.storage.bytes(job.rows.len(), wanted.columns()) as usize
        };
        let most = jobs.iter().map(room).max().unwrap_or(0);
        self.widen(most).map_err(failed)?;
        // Some are copied while every thread fills one.
        let copied_at_once = self.slots.len() - self.threads;
        let (events, slots): (Vec<_>, Vec<_>) = self
            .slots
            .iter_mut()
            .enumerate()
            .map(|(index, slot)| (&slot.copied, (index, &mut slot.memory[..])))
            .unzip();
        let fill = |job: usize, slot: &mut (usize, &mut [u8])| {
            let (job, bytes) = (&jobs[job], room(&jobs[job]));
            let wanted = &matrices[job.matrix];
            let stored = wanted.read(job.rows.clone())?;
            panels::fill(&stored, wanted.order, wanted.storage, &mut slot.1[..bytes]);
            Ok(())
        };
        let mut under_way = VecDeque::new();
        let loaded = pipeline::run(jobs.len(), slots, self.threads, fill, |job, slot| {
            let job = &jobs[job];
            copy(&matrices[job.matrix], &job.rows, slot.1, buffers, stream)?;
            events[slot.0].record(stream).map_err(failed)?;
            under_way.push_back(slot);
            if under_way.len() < copied_at_once {
                return Ok(None);
            }
            let oldest = under_way.pop_front().expect("one was pushed");
            events[oldest.0].wait().map_err(failed)?;
            Ok(Some(oldest))
        });
        // Also after an error: copies read the slots until they are done.
        let copied = stream.synchronize().map_err(failed);
        loaded.and(copied)
    }

    /// Makes room for `bytes` in every slot; none is in use.
    fn widen(&mut self, bytes: usize) -> Result<(), CudaError> {
        for slot in &mut self.slots {
            if slot.memory.len() < bytes {
                slot.memory = PinnedBuf::zeroed(&self.device, bytes)?;
            }
        }
        Ok(())
    }
}

fn jobs<'a>((matrix, wanted): (usize, &'a Wanted<'_>)) -> impl Iterator<Item = Job> + 'a {
    let (rows, step) = (wanted.rows(), wanted.step());
    let starts = (0..rows).step_by(step);
    starts.map(move |start| Job {
        matrix,
        rows: start..rows.min(start + step),
    })
}

/// Queues the copies of some rows: their part of each section of the matrix.
fn copy(
    wanted: &Wanted<'_>,
    rows: &Range<usize>,
    slot: &[u8],
    buffers: &mut [&mut DeviceBuf<u8>],
    stream: &Stream,
) -> Result<(), WeightsError> {
    let (buffer, start) = wanted.to;
    for (from, to) in places(wanted, rows) {
        // SAFETY: the slot is filled again behind its event, and freed behind a wait for the
        // stream.
        let queued =
            unsafe { buffers[buffer].upload_part_unwaited(start + to, &slot[from], stream) };
        queued.map_err(failed)?;
    }
    Ok(())
}

/// Where the sections of some rows' panels lie, and where they go in the whole matrix.
fn places(wanted: &Wanted<'_>, rows: &Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
    let (k, storage) = (wanted.columns(), wanted.storage);
    let panels = wanted.rows().div_ceil(PANEL_ROWS);
    let first = rows.start / PANEL_ROWS;
    let (whole, part) = (
        storage.sections(wanted.rows(), k),
        storage.sections(rows.len(), k),
    );
    let (mut from, mut to) = (0, 0);
    let sections = whole.into_iter().zip(part).map(move |(whole, part)| {
        let place = (from..from + part, to + whole / panels * first);
        (from, to) = (from + part, to + whole);
        place
    });
    sections.filter(|(from, _)| !from.is_empty())
}

fn failed(error: CudaError) -> WeightsError {
    WeightsError::Device(refused(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::panels::Panels;
    use crate::weights::{Checkpoint, MatrixSpec, open_seeded};

    /// What the jobs of a matrix leave on the device.
    fn in_jobs(wanted: &Wanted<'_>, rows_at_once: usize) -> Vec<u8> {
        let mut matrix = vec![0xaa; wanted.bytes()];
        for start in (0..wanted.rows()).step_by(rows_at_once) {
            let rows = start..wanted.rows().min(start + rows_at_once);
            let bytes = wanted.storage.bytes(rows.len(), wanted.columns());
            let mut slot = vec![0x55; bytes as usize];
            let read = wanted.read(rows.clone()).unwrap();
            panels::fill(&read, wanted.order, wanted.storage, &mut slot);
            for (from, to) in places(wanted, &rows) {
                matrix[to..][..from.len()].copy_from_slice(&slot[from]);
            }
        }
        matrix
    }

    fn wanted<'a>(
        checkpoint: &'a Checkpoint,
        parts: &[&'a MatrixSpec],
        order: Order,
    ) -> Wanted<'a> {
        let parts: Vec<_> = parts.iter().map(|spec| checkpoint.matrix(spec)).collect();
        let storage = Storage::of_format(parts[0].format());
        let storage = match order {
            Order::Interleaved => storage.of_experts(),
            Order::Stacked => storage,
        };
        Wanted {
            parts,
            order,
            storage,
            to: (0, 0),
        }
    }

    #[test]
    fn a_matrix_in_jobs_equals_the_whole() {
        let checkpoint = open_seeded(Default::default());
        let spec = checkpoint.spec();
        for matrix in spec.matrices() {
            let wanted = wanted(&checkpoint, &[matrix], Order::Stacked);
            let whole = Panels::stacked(&[checkpoint.matrix(matrix).read().unwrap()]);
            assert!(
                in_jobs(&wanted, wanted.step()) == whole.bytes,
                "{}",
                matrix.name
            );
            assert!(in_jobs(&wanted, JOB_ROWS) == whole.bytes, "{}", matrix.name);
        }
    }

    #[test]
    fn gate_and_up_in_jobs_equal_the_whole() {
        let checkpoint = open_seeded(Default::default());
        let moe = &checkpoint.spec().layers[0].moe;
        for [gate, up, down] in moe.experts.iter().chain([&moe.shared]) {
            let expert = [gate, up, down].map(|spec| checkpoint.matrix(spec).read().unwrap());
            let mixed = wanted(&checkpoint, &[gate, up], Order::Interleaved);
            let [whole, _] = Panels::of_expert(&expert);
            assert!(
                in_jobs(&mixed, 2 * JOB_ROWS) == whole.bytes,
                "{}",
                gate.name
            );
            let below = wanted(&checkpoint, &[gate, up], Order::Stacked);
            let whole = Panels::stacked(&expert[..2]);
            assert!(in_jobs(&below, JOB_ROWS) == whole.bytes, "{}", gate.name);
        }
    }

    #[test]
    fn jobs_cover_every_row_once() {
        let checkpoint = open_seeded(Default::default());
        for matrix in checkpoint.spec().matrices() {
            let wanted = wanted(&checkpoint, &[matrix], Order::Stacked);
            let rows: Vec<_> = jobs((0, &wanted)).flat_map(|job| job.rows).collect();
            assert!(rows.into_iter().eq(0..matrix.n), "{}", matrix.name);
        }
    }
}
