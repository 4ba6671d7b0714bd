//! The host's clock.

use std::hint::black_box;
use std::time::Instant;

use super::pool::Pool;
use super::{Cpu, split};
use crate::backend::clock::{Clock, Timed};
use crate::engine::executor::DeviceError;

/// What reads go round: more than caches hold, bytes.
const ROOM: usize = 256 << 20;
/// What a thread sums up at once, words.
const BLOCK: usize = 1 << 12;

pub struct HostClock {
    pool: Pool,
    words: Vec<u64>,
    /// Block that the next read starts with.
    next: usize,
}

impl Timed for Cpu {
    type Clock = HostClock;

    fn clock(&self) -> Result<HostClock, DeviceError> {
        Ok(HostClock {
            pool: Pool::new(self.pool.threads()),
            words: vec![1; ROOM / size_of::<u64>()],
            next: 0,
        })
    }
}

impl Clock for HostClock {
    type Mark = Instant;

    /// Nothing: an operation is done when it returns.
    fn hold(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn mark(&mut self) -> Result<Instant, DeviceError> {
        Ok(Instant::now())
    }

    fn seconds(&self, from: &Instant, to: &Instant) -> Result<f64, DeviceError> {
        Ok(to.duration_since(*from).as_secs_f64())
    }

    fn read(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let bytes = usize::try_from(bytes).expect("64 bits");
        let (blocks, count) = (
            self.words.len() / BLOCK,
            bytes.div_ceil(BLOCK * size_of::<u64>()),
        );
        let (words, next) = (&self.words, self.next);
        split(&mut self.pool, count, BLOCK, |range| {
            let block = |at: usize| &words[(next + at) % blocks * BLOCK..][..BLOCK];
            let sum = |at| {
                block(at)
                    .iter()
                    .fold(0, |sum: u64, word| sum.wrapping_add(*word))
            };
            black_box(range.map(sum).fold(0, u64::wrapping_add));
        });
        self.next = (next + count) % blocks;
        Ok(())
    }
}
