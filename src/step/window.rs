//! Pages of layers with sliding-window attention: how many there are, and which of them a sequence
//! still reads. Pages that the window of its next row has left are freed.

use crate::PAGE;
use crate::executor::DEPTH_MAX;

/// Positions that kernels read together, from multiples of `SPLIT` on: a page is freed only with
/// all others of its split.
pub const SPLIT: usize = 256;

/// Window of a model, and the number of pages of the group of layers with that window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of positions that a row sees, its own included.
    pub positions: usize,
    /// Pages for the layers with this window: enough for all sequences at once, so that no step
    /// waits for a free page.
    pub pages: usize,
}

impl Window {
    /// Window of so many positions, with pages for so many sequences, prompt tokens of a step, and
    /// snapshots at once.
    pub const fn of(
        positions: usize,
        sequences: usize,
        prefill: usize,
        snapshots: usize,
    ) -> Window {
        let window = Window {
            positions,
            pages: 0,
        };
        // An engine has one slot more than a step has sequences.
        let sequences = (sequences + 1) * window.sequence_pages();
        Window {
            positions,
            pages: sequences + prefill / PAGE + snapshots * window.snapshot_pages(),
        }
    }

    /// First page that a row at `position`, or a later one, reads.
    pub const fn first_page(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.positions) / SPLIT * (SPLIT / PAGE)
    }

    /// Largest number of pages of a snapshot: those that rows after a page boundary read before it.
    pub const fn snapshot_pages(&self) -> usize {
        (self.positions + SPLIT - 2) / PAGE
    }

    /// Most pages of a replying sequence: those that its next row reads, and those of drafts.
    pub const fn sequence_pages(&self) -> usize {
        (self.positions + SPLIT - 2 + DEPTH_MAX + PAGE) / PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: [usize; 6] = [1, 63, 100, 128, 512, 1024];

    #[test]
    fn what_a_row_sees_is_there_and_no_split_more() {
        for positions in WINDOWS {
            let window = Window::of(positions, 1, PAGE, 1);
            for position in 0_usize..3000 {
                let seen = (position + 1).saturating_sub(positions);
                let first = window.first_page(position) * PAGE;
                assert!(
                    first <= seen && seen < first + SPLIT,
                    "{positions} {position}"
                );
                assert!(first.is_multiple_of(SPLIT));
            }
        }
    }

    #[test]
    fn sequences_and_snapshots_have_as_many_pages_as_the_longest_needs() {
        for positions in WINDOWS {
            let window = Window::of(positions, 1, PAGE, 1);
            let pages =
                |position: usize, end: usize| end.div_ceil(PAGE) - window.first_page(position);
            let cached = (0..3000)
                .step_by(PAGE)
                .map(|position| pages(position, position));
            assert_eq!(cached.max(), Some(window.snapshot_pages()), "{positions}");
            let own = (0..3000).map(|next| pages(next, next + DEPTH_MAX));
            assert_eq!(own.max(), Some(window.sequence_pages()), "{positions}");
        }
    }
}
