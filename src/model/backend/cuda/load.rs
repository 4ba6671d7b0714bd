//! Weights on their way to the device: some threads read and check them, the device repacks them.
//!
//! Bytes that were read are copied as they are to the steps' workspace, which no step uses yet;
//! from there `pack` puts them into panels. So loading takes no device memory for itself. Copies
//! have a stream of their own, and are ahead of the repacking by as much as that memory holds, so
//! that reading does not wait for kernels that are queued on a busy device. Packed weights are
//! copied to their buffers directly; copies of one matrix run while the next one is read.

use std::collections::VecDeque;

use ffi::{CudaError, Device, DeviceBuf, Event, PinnedBuf, Stream, launched, ops};

use super::jobs::{Destination, JOB_ROWS, Job, Wanted};
use super::packed::Extent;
use super::{RECORDS, WIDEST, count, least, memory, most, refused, route};
use crate::weights::{WeightsError, pipeline};
use step::executor::DeviceError;

/// Bytes of codes that are read at once, if slots are large enough.
const CODE_BYTES: usize = 1 << 20;
/// Bytes of a slot with space for scales, an eighth of the codes at most, and factors.
const WANTED_BYTES: usize = CODE_BYTES + CODE_BYTES / 8 + 4096;
/// Bytes of the fewest rows of a job, of the widest matrix in BF16.
const FEWEST_BYTES: usize = JOB_ROWS * most(WIDEST, route::LONGEST) * 2;
/// Bytes of the records that loading needs at least: two slots.
pub const RECORDS_MIN: usize = 2 * most(FEWEST_BYTES, WANTED_BYTES);
/// Bytes of a slot: limited by the records on the device, which hold at least two.
const SLOT_BYTES: usize = most(FEWEST_BYTES, least(WANTED_BYTES, RECORDS));
/// Number of slots that the records on the device hold.
const RECORDED: usize = RECORDS / SLOT_BYTES;
const _: () = assert!(
    RECORDED > 0 && SLOT_BYTES.is_multiple_of(16),
    "copies of slots lie in the records, aligned"
);

/// Largest number of bytes of page-locked memory that loading takes. The system can neither move
/// nor reclaim them: a host that shares its memory with the GPU freezes when too much is locked.
pub const LOCKED_BYTES_MAX: usize = 64 << 20;
/// Largest number of threads that read, however many cores there are: a thread that waits for a
/// disk uses no core, and a disk serves as many reads at once. More threads than cores do not speed
/// up reading from the page cache.
const READERS_MAX: usize = 16;
pub const READERS: usize = least(READERS_MAX, LOCKED_BYTES_MAX / SLOT_BYTES / 2);
/// Number of slots: each reader fills one while another of its slots is copied.
const SLOTS: usize = 2 * READERS;
const _: () = assert!(READERS > 0, "two slots may be locked");

/// Page-locked memory of one job, and the event after its copy to the device.
struct Slot {
    memory: PinnedBuf<u8>,
    copied: Event,
}

/// Loader of weights, reused by all calls until all weights are loaded.
pub struct Loader {
    copies: Stream,
    slots: Vec<Slot>,
    /// Events that mark the end of repacking, one for each slot of the records.
    packed: Vec<Event>,
    /// Slots whose copies may still be running, the oldest first.
    under_way: VecDeque<usize>,
}

impl Loader {
    /// # Errors
    /// Too little page-locked memory for the slots.
    pub fn new(device: &Device) -> Result<Loader, DeviceError> {
        let event = || Event::open(device).map_err(refused);
        let slot = |_| {
            let memory = memory::locked(device, SLOT_BYTES)?;
            let copied = event()?;
            Ok(Slot { memory, copied })
        };
        Ok(Loader {
            copies: Stream::open(device).map_err(refused)?,
            slots: (0..SLOTS).map(slot).collect::<Result<_, _>>()?,
            packed: (0..RECORDED).map(|_| event()).collect::<Result<_, _>>()?,
            under_way: VecDeque::new(),
        })
    }

    /// Loads `matrices` into `buffers`, which are complete after `finish`. `staging`: the backend's
    /// records, whose content is lost.
    ///
    /// # Errors
    /// The first matrix that cannot be read, or the first failure of the device.
    pub fn load(
        &mut self,
        matrices: &[Wanted<'_>],
        buffers: &mut [&mut DeviceBuf<u8>],
        staging: &mut DeviceBuf<u8>,
        stream: &Stream,
    ) -> Result<(), WeightsError> {
        let packed = matrices
            .iter()
            .map(|wanted| Extent::all(wanted, SLOT_BYTES));
        let packed: Vec<_> = packed.collect::<Result<_, _>>()?;
        // Either all matrices of a checkpoint are packed, or none.
        let packed: Vec<_> = packed.into_iter().flatten().flatten().collect();
        if !packed.is_empty() {
            return self.copy(&packed, buffers);
        }
        let jobs_of = |wanted| {
            let jobs = Wanted::jobs(wanted, SLOT_BYTES).into_iter();
            jobs.map(move |job| (wanted, job))
        };
        let jobs: Vec<_> = matrices.iter().flat_map(jobs_of).collect();
        let (events, slots) = split(&mut self.slots);
        let fill = |job: usize, slot: &mut (usize, &mut [u8])| {
            let job = &jobs[job].1;
            job.read(&mut slot.1[..job.bytes()])
        };
        let (copies, packed) = (&self.copies, &self.packed);
        // Unfinished work in the stream may use the records.
        for event in packed {
            event.record(stream).map_err(failed)?;
        }
        let mut indices = (0..RECORDED).cycle();
        let mut under_way = VecDeque::new();
        let loaded = pipeline::run(jobs.len(), slots, READERS, fill, |job, slot| {
            let (wanted, job) = &jobs[job];
            let index = indices.next().expect("a cycle has no end");
            let (rows, start) = (&slot.1[..job.bytes()], index * SLOT_BYTES);
            packed[index].hold(copies).map_err(failed)?;
            // SAFETY: the slot is filled again after its event, and freed after a wait for the
            // stream.
            let copied = unsafe { staging.upload_part_unwaited(start, rows, copies) };
            copied.map_err(failed)?;
            events[slot.0].record(copies).map_err(failed)?;
            events[slot.0].hold(stream).map_err(failed)?;
            queue(wanted, job, (staging, start), buffers, stream).map_err(failed)?;
            packed[index].record(stream).map_err(failed)?;
            under_way.push_back(slot);
            free(&mut under_way, &events)
        });
        // The waits follow an error, too: running copies read the slots.
        let copied = copies.synchronize().map_err(failed);
        let packed = stream.synchronize().map_err(failed);
        loaded.and(copied).and(packed)
    }

    /// Waits until all loaded weights are in their buffers.
    pub fn finish(&mut self) -> Result<(), CudaError> {
        self.under_way.clear();
        self.copies.synchronize()
    }

    /// Reads packed weights, and queues their copies into `buffers`.
    fn copy(
        &mut self,
        parts: &[Extent<'_>],
        buffers: &mut [&mut DeviceBuf<u8>],
    ) -> Result<(), WeightsError> {
        let (events, slots) = split(&mut self.slots);
        let mut slots: Vec<_> = slots.into_iter().map(Some).collect();
        let left = self.under_way.drain(..);
        let left = left.map(|slot| slots[slot].take().expect("a slot is under way once"));
        let mut under_way: VecDeque<_> = left.collect();
        let slots = slots.into_iter().flatten().collect();
        let copies = &self.copies;
        let fill = |part: usize, slot: &mut Filled<'_>| parts[part].read(slot.1);
        let loaded = pipeline::run(
            parts.len(),
            slots,
            READERS,
            fill,
            |part, slot: Filled<'_>| {
                let (part, (buffer, start)) = (&parts[part], parts[part].to);
                let bytes = &slot.1[..part.bytes()];
                // SAFETY: the slot is filled again after its event, and freed after a wait for the
                // stream.
                let copied = unsafe { buffers[buffer].upload_part_unwaited(start, bytes, copies) };
                copied.map_err(failed)?;
                events[slot.0].record(copies).map_err(failed)?;
                under_way.push_back(slot);
                free(&mut under_way, &events)
            },
        );
        self.under_way.extend(under_way.iter().map(|slot| slot.0));
        loaded
    }
}

impl Drop for Loader {
    /// Waits for running copies, which read the slots.
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// A slot's number, and its memory.
type Filled<'a> = (usize, &'a mut [u8]);

/// Splits slots into the events after copies, and the slots' numbers and memory.
fn split(slots: &mut [Slot]) -> (Vec<&Event>, Vec<Filled<'_>>) {
    let numbered = slots.iter_mut().enumerate();
    let both = numbered.map(|(index, slot)| (&slot.copied, (index, &mut slot.memory[..])));
    both.unzip()
}

/// The oldest slot, after its copy has ended, if so many copies run that readers wait for a slot.
fn free<'a>(
    under_way: &mut VecDeque<Filled<'a>>,
    events: &[&Event],
) -> Result<Option<Filled<'a>>, WeightsError> {
    if under_way.len() < SLOTS - READERS {
        return Ok(None);
    }
    let oldest = under_way.pop_front().expect("one was pushed");
    events[oldest.0].wait().map_err(failed)?;
    Ok(Some(oldest))
}

/// Queues the repacking of a job's rows, which begin at byte `rows` of `staging`.
fn queue(
    wanted: &Wanted<'_>,
    job: &Job<'_>,
    (staging, rows): (&DeviceBuf<u8>, usize),
    buffers: &mut [&mut DeviceBuf<u8>],
    stream: &Stream,
) -> Result<(), CudaError> {
    let stored = staging.as_ptr().wrapping_add(rows);
    let (buffer, start) = wanted.to;
    let buffer = &mut *buffers[buffer];
    assert!(start + wanted.bytes() <= buffer.len());
    let weight = buffer.as_mut_ptr().wrapping_add(start);
    // SAFETY: the stream waits for the rows' copy, and later rows are copied there after the
    // repacking; the matrix is as large as its shape says.
    unsafe { pack(stored, job.rows.len(), &job.destination, weight, stream) }
}

/// Queues the repacking of `rows` rows.
///
/// # Safety
/// `stored` points to the codes, scales and factors of the rows, as `Job::read` leaves them, and
/// `weight` to memory for the matrix of `to`. Neither may be freed or written until the
/// stream has run the repacking.
pub unsafe fn pack(
    stored: *const u8,
    rows: usize,
    to: &Destination,
    weight: *mut u8,
    stream: &Stream,
) -> Result<(), CudaError> {
    let numbers = [rows, to.first, to.stride, to.n, to.k].map(count);
    let ([rows, first, stride, n, k], format) = (numbers, to.storage.number());
    // SAFETY: the contract of this function.
    let code = unsafe {
        ops::atlas_pack(
            stored,
            weight,
            rows,
            first,
            stride,
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
