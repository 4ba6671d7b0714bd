//! Weights on their way to the device: some threads read and check them, the device repacks them.
//!
//! What is read is copied as it is to memory that steps work in, which there are none of yet; from
//! there `pack` puts it in its place. So loading takes no memory of the device for itself.

use std::collections::VecDeque;

use ffi::{CudaError, Device, DeviceBuf, Event, PinnedBuf, Stream, launched, ops};

use super::jobs::{JOB_ROWS, Job, Place, Wanted};
use super::step::RECORDS;
use super::{WIDEST, count, least, most, refused};
use crate::target::EXPERT_INTERMEDIATE;
use crate::weights::{WeightsError, pipeline};

/// Bytes of codes that are read at once, where slots have the room.
const CODE_BYTES: usize = 1 << 20;
/// Beside them lie scales, an eighth at most, and factors.
const WANTED_BYTES: usize = CODE_BYTES + CODE_BYTES / 8 + 4096;
/// The fewest rows of the widest matrix, in BF16.
const FEWEST_BYTES: usize = JOB_ROWS * most(WIDEST, EXPERT_INTERMEDIATE) * 2;
/// Bytes of a slot, for which there is room in what is lent on the device.
const SLOT_BYTES: usize = most(FEWEST_BYTES, least(WANTED_BYTES, RECORDS));
const _: () = assert!(SLOT_BYTES <= RECORDS, "a slot's copy lies in the records");

/// Threads that read, however many cores there are: one that waits for a disk needs none, and the
/// disk is asked for as many parts at once. To read from the page cache is to copy, which more
/// threads than there are cores do not hasten.
const READERS: usize = 16;
/// One that each reader fills, and one that is copied.
const SLOTS: usize = 2 * READERS;

/// Page-locked memory, and when the device has copied it.
struct Slot {
    memory: PinnedBuf<u8>,
    copied: Event,
}

/// What loads: kept from call to call, until all weights are there.
pub struct Loader {
    slots: Vec<Slot>,
}

impl Loader {
    /// # Errors
    /// Too little page-locked memory.
    pub fn new(device: &Device) -> Result<Loader, CudaError> {
        let slot = |_| {
            let memory = PinnedBuf::zeroed(device, SLOT_BYTES)?;
            let copied = Event::open(device)?;
            Ok(Slot { memory, copied })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, _>>()?;
        Ok(Loader { slots })
    }

    /// Loads `matrices` into `buffers` and waits until they are there. `staging` is the `RECORDS`
    /// of the backend; what lies there is lost.
    ///
    /// # Errors
    /// The first matrix that cannot be read, or call that failed.
    pub fn load(
        &mut self,
        matrices: &[Wanted<'_>],
        buffers: &mut [&mut DeviceBuf<u8>],
        staging: &mut DeviceBuf<u8>,
        stream: &Stream,
    ) -> Result<(), WeightsError> {
        let jobs_of = |wanted| {
            let jobs = Wanted::jobs(wanted, SLOT_BYTES).into_iter();
            jobs.map(move |job| (wanted, job))
        };
        let jobs: Vec<_> = matrices.iter().flat_map(jobs_of).collect();
        let (events, slots): (Vec<_>, Vec<_>) = self
            .slots
            .iter_mut()
            .enumerate()
            .map(|(index, slot)| (&slot.copied, (index, &mut slot.memory[..])))
            .unzip();
        let fill = |job: usize, slot: &mut (usize, &mut [u8])| {
            let job = &jobs[job].1;
            job.read(&mut slot.1[..job.bytes()])
        };
        let mut under_way = VecDeque::new();
        let loaded = pipeline::run(jobs.len(), slots, READERS, fill, |job, slot| {
            let (wanted, job) = &jobs[job];
            // SAFETY: the slot is filled again behind its event, and freed behind a wait for the
            // stream.
            let copied = unsafe { staging.upload_part_unwaited(0, &slot.1[..job.bytes()], stream) };
            copied.map_err(failed)?;
            events[slot.0].record(stream).map_err(failed)?;
            queue(wanted, job, staging, buffers, stream).map_err(failed)?;
            under_way.push_back(slot);
            if under_way.len() < SLOTS - READERS {
                return Ok(None);
            }
            let oldest = under_way.pop_front().expect("one was pushed");
            events[oldest.0].wait().map_err(failed)?;
            Ok(Some(oldest))
        });
        // Also after an error: copies read the slots until they are done.
        let packed = stream.synchronize().map_err(failed);
        loaded.and(packed)
    }
}

/// Queues the repacking of a job's rows, which `staging` holds.
fn queue(
    wanted: &Wanted<'_>,
    job: &Job<'_>,
    staging: &DeviceBuf<u8>,
    buffers: &mut [&mut DeviceBuf<u8>],
    stream: &Stream,
) -> Result<(), CudaError> {
    let (buffer, start) = wanted.to;
    let buffer = &mut *buffers[buffer];
    assert!(start + wanted.bytes() <= buffer.len());
    let weight = buffer.as_mut_ptr().wrapping_add(start);
    // SAFETY: the rows were copied in the same stream, and the next ones are copied behind this;
    // the matrix has the room.
    unsafe { pack(staging.as_ptr(), job.rows.len(), &job.place, weight, stream) }
}

/// Queues the repacking of `rows` rows.
///
/// # Safety
/// From `stored` on lie the codes, scales and factors of the rows, as `Job::read` leaves them; from
/// `weight` on there is room for the matrix of `place`. Both are the device's until the stream has
/// passed this.
///
/// # Errors
/// The launch failed.
pub unsafe fn pack(
    stored: *const u8,
    rows: usize,
    place: &Place,
    weight: *mut u8,
    stream: &Stream,
) -> Result<(), CudaError> {
    let numbers = [rows, place.first, place.turn, place.n, place.k].map(count);
    let ([rows, first, turn, n, k], format) = (numbers, place.storage as u32);
    // SAFETY: as above.
    let code = unsafe {
        ops::atlas_pack(
            stored,
            weight,
            rows,
            first,
            turn,
            n,
            k,
            format,
            stream.launcher(),
        )
    };
    launched("pack", code)
}

fn failed(error: CudaError) -> WeightsError {
    WeightsError::Device(refused(error))
}
