//! Clock of the host's processor.

use std::hint::black_box;
use std::time::Instant;

use super::pool::Pool;
use super::{Cpu, split};
use crate::backend::clock::{Clock, Timed};
use step::executor::DeviceError;

/// Words that a thread sums up in one task of a timed read.
const BLOCK: usize = 1 << 12;
/// Blocks that timed reads go through in turn: 256 MiB, more than caches hold.
const BLOCKS: usize = (256 << 20) / (BLOCK * size_of::<u64>());

pub struct HostClock {
    pool: Pool,
    /// Words to be read, allocated by the first read: a clock that only sets marks needs no words.
    words: Vec<u64>,
    /// Index of the block that the next read starts with.
    next: usize,
}

impl Timed for Cpu {
    type Clock = HostClock;

    fn clock(&self) -> Result<HostClock, DeviceError> {
        Ok(HostClock {
            pool: Pool::new(self.pool.threads()),
            words: Vec::new(),
            next: 0,
        })
    }
}

impl Clock for HostClock {
    type Mark = Instant;

    fn bytes(&self) -> u64 {
        size_of_val(&self.words[..]) as u64
    }

    /// Nothing to do: an operation is complete when it returns.
    fn occupy(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn mark(&mut self) -> Result<Instant, DeviceError> {
        Ok(Instant::now())
    }

    fn seconds(&self, from: &Instant, to: &Instant) -> Result<f64, DeviceError> {
        Ok(to.duration_since(*from).as_secs_f64())
    }

    fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let bytes = usize::try_from(bytes).expect("64 bits");
        let count = bytes.div_ceil(BLOCK * size_of::<u64>());
        self.words.resize(BLOCKS * BLOCK, 1);
        let (words, next) = (&self.words, self.next);
        split(&mut self.pool, count, BLOCK, |range| {
            let block = |at: usize| &words[(next + at) % BLOCKS * BLOCK..][..BLOCK];
            let sum = |at| {
                block(at)
                    .iter()
                    .fold(0, |sum: u64, word| sum.wrapping_add(*word))
            };
            black_box(range.map(sum).fold(0, u64::wrapping_add));
        });
        self.next = (next + count) % BLOCKS;
        Ok(())
    }
}
