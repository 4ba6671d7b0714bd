//! Times of plain memory reads, for comparison with operations.

use std::collections::BTreeMap;

use model::backend::clock::Clock;
use step::executor::DeviceError;

/// Bytes of a read so large that its start and end take no notable part of the time.
const LARGE: u64 = 1 << 30;
/// Timed reads, after one to warm up; the median counts.
const TIMED: usize = 9;

/// Times of reads by size, each measured once.
pub struct Reads<C> {
    clock: C,
    seconds: BTreeMap<u64, f64>,
}

impl<C: Clock> Reads<C> {
    pub fn new(clock: C) -> Reads<C> {
        Reads {
            clock,
            seconds: BTreeMap::new(),
        }
    }

    /// Bytes a second of a large read.
    pub fn rate(&mut self) -> Result<f64, DeviceError> {
        Ok(LARGE as f64 / self.seconds(LARGE)?)
    }

    /// Seconds of a plain read of `bytes` bytes.
    pub fn seconds(&mut self, bytes: u64) -> Result<f64, DeviceError> {
        if let Some(&seconds) = self.seconds.get(&bytes) {
            return Ok(seconds);
        }
        self.clock.occupy()?;
        self.clock.read_bytes(bytes)?;
        let mut marks = vec![self.clock.mark()?];
        for _ in 0..TIMED {
            self.clock.read_bytes(bytes)?;
            marks.push(self.clock.mark()?);
        }
        let pairs = marks.windows(2);
        let spans = pairs.map(|pair| self.clock.seconds(&pair[0], &pair[1]));
        let mut times = spans.collect::<Result<Vec<_>, _>>()?;
        times.sort_by(f64::total_cmp);
        let seconds = times[TIMED / 2];
        self.seconds.insert(bytes, seconds);
        Ok(seconds)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Memory of a byte a second; the first read of each size takes longer.
    #[derive(Default)]
    pub(in crate::bench::steps) struct Slow {
        now: f64,
        reads: usize,
    }

    impl Clock for Slow {
        type Mark = f64;

        fn bytes(&self) -> u64 {
            0
        }

        fn occupy(&mut self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn mark(&mut self) -> Result<f64, DeviceError> {
            Ok(self.now)
        }

        fn seconds(&self, from: &f64, to: &f64) -> Result<f64, DeviceError> {
            Ok(to - from)
        }

        fn read_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
            self.now += bytes as f64 * if self.reads == 0 { 100.0 } else { 1.0 };
            self.reads += 1;
            Ok(())
        }
    }

    #[test]
    fn a_size_is_measured_once_and_warm() {
        let mut reads = Reads::new(Slow::default());
        assert_eq!([7, 7].map(|bytes| reads.seconds(bytes).unwrap()), [7.0; 2]);
        assert_eq!(reads.clock.reads, 1 + TIMED);
    }
}
