//! KV pages and states on the GPU, and their copies in page-locked memory of the host.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};

use ffi::{CopyBatch, CudaError, Device, DeviceBuf, Event, Parts, PinnedBuf, Stream};

use super::{Cuda, count, refused};
use crate::backend::budget::Budget;
use crate::ops::{Copied, PoolRegion, Side};
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

    /// Copies all bytes of all pieces to the host.
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

impl PoolRegion<Pieces> {
    /// Address of the first element of the layer's part in the first piece; it never changes.
    pub fn first<T>(&self) -> *mut T {
        let start = self.pool.memory.borrow_mut().as_mut_ptr();
        start.wrapping_add(self.at).cast()
    }

    /// Elements from the layer's part in one piece to its part in the next.
    pub fn stride<T>(&self) -> u32 {
        count(self.stride / size_of::<T>())
    }
}

/// Smallest number of threads that hash, read or write bytes of host memory: fewer do not keep up
/// with the copies.
const ROOM_THREADS_MIN: usize = 4;

/// Number of threads that hash, read or write bytes of host memory. A prompt waits for its
/// checksums before it is copied, and most cores are idle.
pub fn copy_threads() -> usize {
    ROOM_THREADS_MIN.max(threads::cores() / 2)
}

/// Host memory for copies of pieces, and threads that work on ranges of it meanwhile.
struct HostCopies {
    /// Threads; declared before the bytes, so that they end before the bytes are freed.
    threads: Pool<()>,
    bytes: PinnedBuf<u8>,
}

impl HostCopies {
    /// Has a thread work on ranges of the memory. The caller of the executor does not touch these
    /// ranges until it has the result.
    fn with<T: Send + 'static>(
        &mut self,
        ranges: &[Range<usize>],
        work: impl FnOnce(Vec<*mut [u8]>) -> T + Send + 'static,
    ) -> Receiver<T> {
        let parts = ranges.iter().map(|range| {
            let bytes = &mut self.bytes[range.clone()];
            (bytes.as_mut_ptr().expose_provenance(), bytes.len())
        });
        let parts: Vec<(usize, usize)> = parts.collect();
        let (give, come) = mpsc::channel();
        // Results arrive by another channel, so finished jobs are dropped here.
        while self.threads.take().is_some() {}
        self.threads.run(move || {
            let start = ptr::with_exposed_provenance_mut::<u8>;
            let parts = parts.into_iter();
            let parts = parts.map(|(at, len)| ptr::slice_from_raw_parts_mut(start(at), len));
            // The receiver may be gone.
            let _ = give.send(work(parts.collect()));
        });
        come
    }
}

impl Drop for HostCopies {
    /// Waits for all threads, since the memory that they use is freed afterwards.
    fn drop(&mut self) {
        while self.threads.wait().is_some() {}
    }
}

/// Regions whose parts of a piece are moved by one copy: adjacent in host memory, of equal length
/// and at equal distances in a pool.
struct InOrder<'a>(&'a [PoolRegion<Pieces>]);

impl<'a> Iterator for InOrder<'a> {
    type Item = (&'a Pieces, Parts);

    fn next(&mut self) -> Option<(&'a Pieces, Parts)> {
        let (first, after) = self.0.split_first()?;
        let bytes = first.stride;
        let apart = |region: &PoolRegion<Pieces>| {
            let is_alike =
                region.stride == bytes && Rc::ptr_eq(&region.pool.memory, &first.pool.memory);
            let apart = region.at.checked_sub(first.at)?;
            (is_alike && apart > 0 && apart.is_multiple_of(bytes)).then_some(apart)
        };
        let step = after.first().and_then(apart).unwrap_or(0);
        let are_of_run =
            |&(i, region): &(usize, &PoolRegion<Pieces>)| apart(region) == Some((i + 1) * step);
        let count = 1 + after.iter().enumerate().take_while(are_of_run).count();
        self.0 = &self.0[count..];
        let parts = Parts {
            start: first.at,
            bytes,
            apart: step,
            count,
        };
        Some((&first.pool, parts))
    }
}

/// Copies of pieces in a stream of their own, which operations do not wait for.
pub struct Copies {
    host: Option<HostCopies>,
    stream: Stream,
    /// Event in the stream of operations, which copies queued after it wait for.
    made: Event,
    /// Events after running copies, the oldest first, and the number of copies complete by each.
    ends: VecDeque<(Event, u64)>,
    /// Events to be reused.
    spare: Vec<Event>,
    /// Batch of copies that is queued next.
    batch: CopyBatch,
    started: u64,
    done: u64,
}

impl Copies {
    pub fn new(device: &Device) -> Result<Copies, DeviceError> {
        Ok(Copies {
            host: None,
            stream: Stream::open(device).map_err(refused)?,
            made: Event::open(device).map_err(refused)?,
            ends: VecDeque::new(),
            spare: Vec::new(),
            batch: CopyBatch::default(),
            started: 0,
            done: 0,
        })
    }

    /// Takes host memory after the plan is closed: the plan of a GPU with its own memory has no
    /// page-locked memory, and the amount that the operator asks for is checked against the host's.
    pub fn take_host_memory(&mut self, device: &Device, bytes: usize) -> Result<(), DeviceError> {
        assert!(self.host.is_none(), "host memory is taken once");
        Budget::default().check(bytes as u64)?;
        self.host = Some(HostCopies {
            bytes: PinnedBuf::beside_plan(device, bytes).map_err(refused)?,
            threads: Pool::new("room", copy_threads()),
        });
        Ok(())
    }

    fn taken(&mut self) -> &mut HostCopies {
        self.host.as_mut().expect("host memory is taken")
    }

    pub fn host_memory(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.taken().bytes[range]
    }

    pub fn sums(&mut self, ranges: &[Range<usize>]) -> Receiver<Vec<Sum>> {
        self.taken().with(ranges, |parts| {
            // SAFETY: the memory lives until `drop` has waited for this work, and nobody writes to
            // a range before its checksum has arrived.
            let sums = parts.into_iter().map(|part| sum(unsafe { &*part }));
            sums.collect()
        })
    }

    pub fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.taken().with(&[range], move |parts| {
            for part in parts {
                // SAFETY: the memory lives until `drop` has waited for this work; nobody else uses
                // the range before the result has arrived.
                unsafe { &mut *part }.copy_from_slice(&bytes);
            }
        })
    }

    pub fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.taken().with(&[range], |parts| {
            let mut bytes = vec![];
            // SAFETY: the memory lives until `drop` has waited for this; nobody writes meanwhile.
            let parts = parts.into_iter().map(|part| unsafe { &*part });
            parts.for_each(|part| bytes.extend_from_slice(part));
            bytes
        })
    }

    /// Queues copies after all work in the stream of operations.
    fn queue(
        &mut self,
        device: &Device,
        operations: &Stream,
        copies: &[Copied<'_, Pieces>],
        to: Side,
    ) -> Result<(), CudaError> {
        self.made.record(operations)?;
        self.made.hold(&self.stream)?;
        let host = &mut self.host.as_mut().expect("host memory is taken").bytes;
        for Copied { regions, piece, at } in copies {
            let mut host = &mut host[*at..];
            for (pool, parts) in InOrder(regions) {
                let parts = Parts {
                    start: parts.start + piece * parts.bytes,
                    ..parts
                };
                let (these, rest) = host.split_at_mut(parts.bytes * parts.count);
                let mut memory = pool.memory.borrow_mut();
                match to {
                    Side::Host => self.batch.download(&memory, parts, these),
                    Side::Device => self.batch.upload(these, &mut memory, parts),
                }
                host = rest;
            }
        }
        // SAFETY: the caller of the executor leaves the ranges of host memory and the pieces alone
        // until it learns that the copies are done; both live until `Cuda` waits for the stream.
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

    /// Number of complete copies, without waiting.
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

    /// Waits for all copies.
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
        self.queue.failures.reported().map_err(refused)
    }

    pub(super) fn copies_done(&mut self) -> Result<u64, DeviceError> {
        self.copies.done().map_err(|error| {
            self.queue.failures.waited(Err(error.clone()));
            refused(error)
        })
    }
}
