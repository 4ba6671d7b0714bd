//! Clock of a device: marks between operations, and the speed of its memory.

use step::executor::DeviceError;

/// A backend whose operations can be timed.
pub trait Timed {
    type Clock: Clock;

    /// A clock of the work that is queued from here on.
    fn clock(&self) -> Result<Self::Clock, DeviceError>;
}

/// Clock of the device's work.
pub trait Clock {
    type Mark;

    /// Bytes that the clock takes of the device's memory, which no plan of a model has.
    fn bytes(&self) -> u64;
    /// Keeps the device busy, so that operations queued next wait only for those before them and
    /// not for the host.
    fn hold(&mut self) -> Result<(), DeviceError>;
    /// Mark at the end of all work so far.
    fn mark(&mut self) -> Result<Self::Mark, DeviceError>;
    /// Seconds from one mark to a later one; waits for both.
    fn seconds(&self, from: &Self::Mark, to: &Self::Mark) -> Result<f64, DeviceError>;
    /// Reads so many bytes, which no cache has, at the speed of the device's memory: the shortest
    /// time of an operation that needs them.
    fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError>;
}
