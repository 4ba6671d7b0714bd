//! When a device's work is done: marks between operations, and how quick its memory is.

use step::executor::DeviceError;

/// A backend whose operations can be timed.
pub trait Timed {
    type Clock: Clock;

    /// A clock of the work that is queued from here on.
    fn clock(&self) -> Result<Self::Clock, DeviceError>;
}

/// Marks the device's work, and gives it some to compare with.
pub trait Clock {
    type Mark;

    /// Bytes that the clock takes of the device's memory, which no plan of a model has.
    fn bytes(&self) -> u64;
    /// Gives the device something to do, so that what is queued next waits for nothing but what is
    /// queued before it.
    fn hold(&mut self) -> Result<(), DeviceError>;
    /// The end of all work so far.
    fn mark(&mut self) -> Result<Self::Mark, DeviceError>;
    /// Seconds from one mark to a later one; waits for both.
    fn seconds(&self, from: &Self::Mark, to: &Self::Mark) -> Result<f64, DeviceError>;
    /// Reads that many bytes, which no cache holds, as fast as the device's memory gives them, and
    /// does nothing with them: what an operation that needs them could take at best.
    fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError>;
}
