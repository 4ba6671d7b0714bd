//! Clock of the GPU: events in the stream of operations.

use ffi::{Device, DeviceBuf, Event, Stream, launched, ops};

use super::{Cuda, count, memory, refused};
use crate::backend::clock::{Clock, Timed};
use step::executor::DeviceError;

/// Bytes of a line that `atlas_read_bytes` counts.
const LINE: usize = 1024;
/// Number of lines that reads go through in turn: several times the largest second-level cache.
const LINES: usize = (256 << 20) / LINE;
/// Number of lines of which the start of a read is a multiple.
const PIECE: usize = 4;
/// Bytes whose reading keeps the device busy while the host queues a step: some 15 ms on an H200.
const OCCUPYING_BYTES: u64 = 64 << 30;

pub struct DeviceClock {
    device: Device,
    stream: Stream,
    lines: DeviceBuf<u8>,
    /// Line at which the next read starts: the least recently read one.
    next: usize,
}

impl Timed for Cuda {
    type Clock = DeviceClock;

    fn clock(&self) -> Result<DeviceClock, DeviceError> {
        let (device, stream) = (self.device.clone(), self.queue.stream.clone());
        let mut lines = memory::buffer(&device, LINES * LINE)?;
        lines.fill_bytes(0, &stream).map_err(refused)?;
        Ok(DeviceClock {
            device,
            stream,
            lines,
            next: 0,
        })
    }
}

impl Clock for DeviceClock {
    type Mark = Event;

    fn bytes(&self) -> u64 {
        ffi::buffer_bytes(self.lines.bytes())
    }

    fn occupy(&mut self) -> Result<(), DeviceError> {
        self.read_bytes(OCCUPYING_BYTES)
    }

    fn mark(&mut self) -> Result<Event, DeviceError> {
        let event = Event::open(&self.device).map_err(refused)?;
        event.record(&self.stream).map_err(refused)?;
        Ok(event)
    }

    fn seconds(&self, from: &Event, to: &Event) -> Result<f64, DeviceError> {
        Ok(f64::from(to.since_ms(from).map_err(refused)?) / 1e3)
    }

    fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let lines = usize::try_from(bytes).expect("64 bits").div_ceil(LINE);
        let (from, all, first) = (self.lines.as_ptr(), count(LINES), count(self.next));
        let lines_read = count(lines);
        // SAFETY: the buffer has `all` lines; the launcher checks the rest.
        let code =
            unsafe { ops::atlas_read_bytes(from, all, first, lines_read, self.stream.launcher()) };
        self.next = (self.next + lines).next_multiple_of(PIECE) % LINES;
        launched("read_bytes", code).map_err(refused)
    }
}
