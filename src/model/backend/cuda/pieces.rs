//! KV pages and states on the GPU, and their copies in page-locked memory of the host.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};
use std::{ptr, slice};

use ffi::{CopyBatch, CudaError, Device, DeviceBuf, Event, PinnedBuf, Stream};

use super::{Cuda, count, refused};
use crate::backend::budget::Budget;
use crate::ops::{Copied, Place, Side};
use host::pool::Pool;
use host::threads;
use step::executor::DeviceError;
use step::transfer::{Sum, sum};

/// Memory of pieces of one size.
#[derive(Clone, Debug)]
pub struct Pieces {
    memory: Rc<RefCell<DeviceBuf<u8>>>,
    /// Bytes of a piece.
    bytes: usize,
}

impl Pieces {
    pub fn new(memory: DeviceBuf<u8>, bytes: usize) -> Pieces {
        Pieces {
            memory: Rc::new(RefCell::new(memory)),
            bytes,
        }
    }

    /// All bytes of all pieces.
    pub fn download(&self, stream: &Stream) -> Result<Vec<u8>, CudaError> {
        let memory = self.memory.borrow();
        let mut all = vec![0; memory.len()];
        memory.download(0, &mut all, stream)?;
        Ok(all)
    }

    pub fn count(&self) -> usize {
        self.memory.borrow().len() / self.bytes
    }
}

impl Place<Pieces> {
    /// Address of the layer's elements of the first piece. It stays as it is.
    pub fn first<T>(&self) -> *mut T {
        let start = self.pool.memory.borrow_mut().as_mut_ptr();
        start.wrapping_add(self.at).cast()
    }

    /// Elements from there to those of the next piece.
    pub fn stride<T>(&self) -> u32 {
        count(self.stride / size_of::<T>())
    }
}

/// Threads that sum bytes of the room, at least: fewer do not keep up with the copies.
const SUM_THREADS_MIN: usize = 4;

/// Threads that sum bytes of the room. A prompt waits for its sums before it is copied, and most
/// cores have nothing else to do.
pub fn sum_threads() -> usize {
    SUM_THREADS_MIN.max(threads::cores() / 2)
}

/// Checksums of the room, beside everything else.
struct Summing(Pool<()>);

impl Summing {
    /// Starts those of ranges that nobody writes to until they have come.
    fn start(&mut self, room: &PinnedBuf<u8>, ranges: &[Range<usize>]) -> Receiver<Vec<Sum>> {
        let places = ranges.iter().map(|range| {
            let bytes = &room[range.clone()];
            (bytes.as_ptr().expose_provenance(), bytes.len())
        });
        let places: Vec<(usize, usize)> = places.collect();
        let (give, sums) = mpsc::channel();
        // Ends are told by the other channel.
        while self.0.take().is_some() {}
        self.0.run(move || {
            let sums = places.into_iter().map(|(at, len)| {
                // SAFETY: the room lives until `drop` has seen this job end, and the caller of the
                // executor leaves the range alone until it has the sums.
                sum(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(at), len) })
            });
            // Whoever asked may want them no more.
            let _ = give.send(sums.collect());
        });
        sums
    }
}

impl Drop for Summing {
    /// Waits for all sums under way: the host memory that they read may be freed behind this.
    fn drop(&mut self) {
        while self.0.wait().is_some() {}
    }
}

/// Copies beside the operations, which do not wait for them.
pub struct Copies {
    /// It goes before the room.
    summing: Option<Summing>,
    room: Option<PinnedBuf<u8>>,
    stream: Stream,
    /// Mark in the stream of operations behind those that copies wait for.
    made: Event,
    /// Marks behind copies under way, the oldest first, and how many copies are done by each.
    ends: VecDeque<(Event, u64)>,
    /// Marks to be used again.
    spare: Vec<Event>,
    /// Parts of what is queued next.
    batch: CopyBatch,
    started: u64,
    done: u64,
}

impl Copies {
    pub fn new(device: &Device) -> Result<Copies, DeviceError> {
        Ok(Copies {
            summing: None,
            room: None,
            stream: Stream::open(device).map_err(refused)?,
            made: Event::open(device).map_err(refused)?,
            ends: VecDeque::new(),
            spare: Vec::new(),
            batch: CopyBatch::default(),
            started: 0,
            done: 0,
        })
    }

    /// Takes the room, although the plan is closed: it has no page-locked memory of a GPU with
    /// memory of its own, and the owner's wish is checked against what the host has.
    pub fn take_room(&mut self, device: &Device, bytes: usize) -> Result<(), DeviceError> {
        assert!(self.room.is_none(), "the room is taken once");
        Budget::default().check(bytes as u64)?;
        self.room = Some(PinnedBuf::beside_plan(device, bytes).map_err(refused)?);
        self.summing = Some(Summing(Pool::new("sums", sum_threads())));
        Ok(())
    }

    pub fn room(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.room.as_mut().expect("the room is taken")[range]
    }

    pub fn sums(&mut self, ranges: &[Range<usize>]) -> Receiver<Vec<Sum>> {
        let (summing, room) = (self.summing.as_mut(), self.room.as_ref());
        let (summing, room) = summing.zip(room).expect("the room is taken");
        summing.start(room, ranges)
    }

    /// Queues copies behind what is in the stream of operations.
    fn queue(
        &mut self,
        device: &Device,
        operations: &Stream,
        copies: &[Copied<'_, Pieces>],
        to: Side,
    ) -> Result<(), CudaError> {
        self.made.record(operations)?;
        self.made.hold(&self.stream)?;
        let room = self.room.as_mut().expect("the room is taken");
        for Copied { places, piece, at } in copies {
            let mut room = &mut room[*at..];
            for place in *places {
                let (part, rest) = room.split_at_mut(place.stride);
                let (start, mut memory) =
                    (place.range(*piece).start, place.pool.memory.borrow_mut());
                match to {
                    Side::Host => self.batch.download(&memory, start, part),
                    Side::Device => self.batch.upload(part, &mut memory, start),
                }
                room = rest;
            }
        }
        // SAFETY: the caller of the executor leaves the room's ranges and the pieces alone until it
        // is told that the copies are done; they live until `Cuda` waits for the stream.
        unsafe { self.batch.queue(&self.stream)? };
        self.started += copies.len() as u64;
        let end = match self.spare.pop() {
            Some(event) => event,
            None => Event::open(device)?,
        };
        end.record(&self.stream)?;
        self.ends.push_back((end, self.started));
        Ok(())
    }

    /// Copies that are done, without waiting.
    fn done(&mut self) -> Result<u64, CudaError> {
        while let Some((end, by)) = self.ends.front() {
            if !end.is_passed()? {
                break;
            }
            self.done = *by;
            self.spare.extend(self.ends.pop_front().map(|(end, _)| end));
        }
        Ok(self.done)
    }

    /// Waits for all of them.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }
}

impl Cuda {
    pub(super) fn queue_copies(
        &mut self,
        copies: &[Copied<'_, Pieces>],
        to: Side,
    ) -> Result<(), DeviceError> {
        if !self.queue.failures.any() {
            let (device, operations) = (&self.device, &self.queue.stream);
            let queued = self.copies.queue(device, operations, copies, to);
            self.queue.failures.queued(queued);
        }
        self.queue.failures.told().map_err(refused)
    }

    pub(super) fn copies_done(&mut self) -> Result<u64, DeviceError> {
        self.copies.done().map_err(|error| {
            self.queue.failures.waited(Err(error.clone()));
            refused(error)
        })
    }
}
