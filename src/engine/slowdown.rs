//! Slowdown of the device: steps take longer than the first ones of the same size did, because of
//! the device's power state or temperature, or of something else that runs on it.
//!
//! Steps have the same size if they have as many rows of as many sequences over nearly as many
//! positions. The fastest of many is compared, so that a delayed step does not count, nor one whose
//! rows chose more experts.

use std::collections::HashMap;
use std::time::Duration;

use super::stats::Figure;
use host::log;
use step::executor::SeqRows;

/// Number of steps of the same size of which the fastest is compared.
const WINDOW: u32 = 128;
/// Slowdown from which on a line is logged.
const REPORTED_FROM: f64 = 1.3;
/// Largest number of sizes of steps whose times are compared.
const SIZES_MAX: usize = 1024;
/// Slowdown, in thousandths, of a window that took as long as the first one.
const AS_FIRST: f64 = 1e3;
/// Parts of an octave into which counts of positions are rounded: counts in one part differ by 9 %
/// at most, which is below the slowdown that is logged.
const PARTS_OF_OCTAVE: f64 = 8.0;

/// Size of a step: sequences, rows, and the logarithm of the positions that all rows read, in parts
/// of an octave.
pub type Size = (usize, usize, u32);

#[derive(Clone, Copy, Debug)]
struct Times {
    /// Fastest step of the first window.
    first: Option<Duration>,
    /// Fastest step of this window so far.
    fastest: Duration,
    /// Number of steps of this window so far.
    steps: u32,
}

/// Slowdown of the steps of one engine.
#[derive(Debug, Default)]
pub struct Slowdown {
    sizes: HashMap<Size, Times>,
    reported: bool,
}

/// Size of a step.
pub fn size(rows: &[SeqRows<'_>]) -> Size {
    let counts = rows.iter().map(|rows| rows.tokens.len());
    let read = rows.iter().map(|rows| {
        let count = rows.tokens.len();
        count * (rows.start + count)
    });
    (rows.len(), counts.sum(), part_of_octave(read.sum()))
}

fn part_of_octave(positions: usize) -> u32 {
    ((positions.max(1) as f64).log2() * PARTS_OF_OCTAVE) as u32
}

impl Slowdown {
    /// Slowdown of an engine that has run no step; sets `slowdown` to a ratio of 1.
    pub fn new(slowdown: &Figure) -> Slowdown {
        slowdown.set(AS_FIRST as usize);
        Slowdown::default()
    }

    /// Adds a step. Where the step ends a window, `slowdown` becomes the window's time over that of
    /// the first one of this size, in thousandths; a large slowdown is logged once.
    pub fn note(&mut self, size: Size, took: Duration, slowdown: &Figure) {
        let Some(ratio) = self.ratio(size, took) else {
            return;
        };
        slowdown.set((ratio * AS_FIRST) as usize);
        if ratio >= REPORTED_FROM && !self.reported {
            self.reported = true;
            log::line(format_args!(
                "steps take {ratio:.1} times as long as the same work did before: the device has \
                 lost speed (power state, temperature) or is shared; `doctor` shows its clocks"
            ));
        }
    }

    /// Time of the fastest step of a window over that of the first window; none inside a window.
    fn ratio(&mut self, size: Size, took: Duration) -> Option<f64> {
        if self.sizes.len() == SIZES_MAX && !self.sizes.contains_key(&size) {
            return None;
        }
        let times = self.sizes.entry(size).or_insert(Times {
            first: None,
            fastest: Duration::MAX,
            steps: 0,
        });
        times.fastest = times.fastest.min(took);
        times.steps += 1;
        if times.steps < WINDOW {
            return None;
        }
        times.steps = 0;
        let fastest = std::mem::replace(&mut times.fastest, Duration::MAX);
        let first = *times.first.get_or_insert(fastest);
        Some(fastest.as_secs_f64() / first.as_secs_f64().max(f64::MIN_POSITIVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use step::executor::Slot;

    const STEP: Duration = Duration::from_millis(10);

    fn of(rows: usize, positions: usize) -> Size {
        (1, rows, part_of_octave(positions))
    }

    /// The slowdown, in thousandths, after a window of such steps.
    fn window(steps: &mut Slowdown, size: Size, took: Duration) -> u64 {
        let slowdown = Figure::default();
        for _ in 0..WINDOW {
            steps.note(size, took, &slowdown);
        }
        slowdown.get()
    }

    #[test]
    fn the_same_work_that_takes_longer_is_reported_once() {
        let mut steps = Slowdown::default();
        assert_eq!(window(&mut steps, of(1, 800), STEP), 1000);
        assert_eq!(window(&mut steps, of(1, 801), STEP.mul_f64(1.2)), 1200);
        assert!(!steps.reported);
        assert_eq!(window(&mut steps, of(1, 802), 2 * STEP), 2000);
        assert!(steps.reported);
        assert_eq!(window(&mut steps, of(1, 803), STEP), 1000);
    }

    #[test]
    fn more_rows_and_longer_contexts_are_other_work() {
        let mut steps = Slowdown::default();
        window(&mut steps, of(1, 800), STEP);
        assert_eq!(window(&mut steps, of(2, 800), 2 * STEP), 1000);
        assert_eq!(window(&mut steps, of(1, 1600), 2 * STEP), 1000);
        assert!(!steps.reported);
    }

    #[test]
    fn delayed_steps_do_not_count() {
        let mut steps = Slowdown::default();
        window(&mut steps, of(1, 800), STEP);
        for step in 0..WINDOW {
            let took = if step == 0 { STEP } else { 9 * STEP };
            steps.note(of(1, 800), took, &Figure::default());
        }
        assert!(!steps.reported);
    }

    #[test]
    fn sizes_of_steps_are_bounded() {
        let mut steps = Slowdown::default();
        for rows in 0..2 * SIZES_MAX {
            steps.note(of(rows, 1), STEP, &Figure::default());
        }
        assert_eq!(steps.sizes.len(), SIZES_MAX);
    }

    #[test]
    fn a_size_counts_the_positions_that_each_row_reads() {
        let rows = SeqRows::of(Slot(0), 10, &[1, 2], &[]);
        assert_eq!(size(&[rows, rows]), (2, 4, part_of_octave(48)));
    }
}
