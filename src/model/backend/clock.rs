//! Clock of a device: marks between operations, and the speed of its memory.

use step::executor::DeviceError;

/// A backend whose operations can be timed on its device.
pub trait Timed {
    type Clock: Clock;

    /// A clock for work that is queued from now on.
    fn clock(&self) -> Result<Self::Clock, DeviceError>;
}

/// Clock of the work that a device has queued.
pub trait Clock {
    type Mark;

    /// Bytes of the device's memory that the clock takes, which plans of a model do not include.
    fn bytes(&self) -> u64;
    /// Keeps the device busy, so that operations queued next wait only for earlier ones and not for
    /// the host.
    fn occupy(&mut self) -> Result<(), DeviceError>;
    /// Mark at the end of all work so far.
    fn mark(&mut self) -> Result<Self::Mark, DeviceError>;
    /// Seconds from one mark to a later one; waits for both.
    fn seconds(&self, from: &Self::Mark, to: &Self::Mark) -> Result<f64, DeviceError>;
    /// Reads `bytes` that no cache holds, at full memory speed: a lower bound for the time of an
    /// operation that needs as many bytes.
    fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError>;
}
