//! The batch of a step on the device: one buffer of numbers, filled by one copy.

use std::ops::Range;

use ffi::{CudaError, Device, DeviceBuf, PinnedBuf, Stream};

use super::memory;
use crate::ops::{Batch, CELL, ENDS_MAX, PAGE_GROUPS, ROWS_MAX, SeqSpan};
use crate::shapes::{Attention as _, PageGroup};
use crate::target::{MAX_CONTEXT, MAX_SEQUENCES, PAGE, each_attention};
use step::executor::{DeviceError, Draw, Slot, Snapshot, UNIFORMS};

/// Rows of a chunk of `conv_silu`: as many as a thread loads at once.
const CHUNK_ROWS: usize = 16;
/// Number in lists of slots that means no slot (`cuda/base/types.cuh`).
const NO_SLOT: Slot = Slot(u32::MAX);
/// Largest number of whole cells of a step of `rows` rows.
pub const fn cells_of(rows: usize) -> usize {
    rows / CELL + MAX_SEQUENCES
}
/// Query rows of a tile of `attend`, as many as an instruction has. A token has a query row for
/// each head of its group.
const TILE_ROWS: usize = 16;
/// Query rows of a tile whose tokens are in cells.
const CELL_TILE_ROWS: usize = 128;
/// Number of attention shapes.
pub const SHAPES: usize = each_attention![A => A::GROUP].len();
/// Tokens of a full tile, by attention shape.
const TILE_TOKENS: [usize; SHAPES] = each_attention![A => TILE_ROWS / A::TOGETHER];
/// Tokens of a full tile of cells, by attention shape.
const CELL_TILE_TOKENS: [usize; SHAPES] = each_attention![A => CELL_TILE_ROWS / A::TOGETHER];

/// F32 numbers of a sampling rule by which the device draws a sequence's tokens: five parameters,
/// then uniform random numbers in [0, 1).
const RULE: usize = 5 + UNIFORMS;

/// Position and length, in numbers, of a list in the buffer; 16-byte aligned.
#[derive(Clone, Copy)]
struct Section {
    start: usize,
    len: usize,
}

impl Section {
    const fn after(previous: Section, len: usize) -> Section {
        Section {
            start: previous.start + previous.len,
            len: len.next_multiple_of(4),
        }
    }
}

/// Positions of the tile lists of an attention shape: of rows in cells, and of all other rows.
#[derive(Clone, Copy)]
struct TileSections {
    cells: Section,
    others: Section,
}

impl TileSections {
    /// Positions of the tile lists of attention shape `shape`, in steps of at most `rows` rows.
    const fn after(previous: Section, rows: usize, shape: usize) -> TileSections {
        let cells = rows / CELL_TILE_TOKENS[shape] + MAX_SEQUENCES;
        let cells = Section::after(previous, 4 * cells);
        TileSections {
            cells,
            others: Section::after(cells, 4 * rows),
        }
    }
}

/// Makes the layout of the lists of rows: comment, name (also of the method that returns the list's
/// address on the device), and the count of the list's numbers in steps of at most `rows` rows.
macro_rules! lists {
    ($rows:ident; $($(#[doc = $doc:literal])* $name:ident: $numbers:expr,)*) => {
        /// Positions of the lists of a step.
        #[derive(Clone, Copy)]
        struct Layout {
            $($name: Section,)*
            /// Indices in `pages` of the block tables of rows' sequences, less the pages left out
            /// before the table; a list for each page group.
            tables: [Section; PAGE_GROUPS],
            /// Tile lists of each attention shape.
            tiles: [TileSections; SHAPES],
            /// List of pages, the last one, because a copy ends with the pages in use.
            pages: Section,
        }

        impl Layout {
            /// Layout of steps of at most `rows` rows.
            const fn of($rows: usize) -> Layout {
                let end = Section { start: 0, len: 0 };
                $(let $name = Section::after(end, $numbers);
                let end = $name;)*
                let (mut tables, mut group) = ([Section::after(end, $rows); PAGE_GROUPS], 1);
                while group < PAGE_GROUPS {
                    tables[group] = Section::after(tables[group - 1], $rows);
                    group += 1;
                }
                let end = tables[PAGE_GROUPS - 1];
                let (mut tiles, mut shape) = ([TileSections::after(end, $rows, 0); SHAPES], 1);
                while shape < SHAPES {
                    tiles[shape] = TileSections::after(tiles[shape - 1].others, $rows, shape);
                    shape += 1;
                }
                let pages = PAGE_GROUPS * MAX_SEQUENCES * MAX_CONTEXT.div_ceil(PAGE);
                let pages = Section::after(tiles[SHAPES - 1].others, pages);
                Layout { $($name,)* tables, tiles, pages }
            }
        }

        impl Step {
            $($(#[doc = $doc])* pub fn $name(&self) -> *const u32 {
                self.at(self.layout.$name)
            })*
        }
    };
}

lists! { rows;
    tokens: rows,
    positions: rows,
    /// State that each row reads; for the rows of a cell, the one that the cell's first row reads.
    source_slots: rows,
    slots: rows,
    /// Number of rows before the snapshot of each row's sequence; 0 if there is no snapshot.
    snapshot_rows: rows,
    snapshot_slots: rows,
    /// State that is written after each row but the last of its sequence; `NO_SLOT` if none.
    draft_states: rows,
    /// Whether each row is in a cell.
    in_cells: rows,
    wanted_rows: ENDS_MAX,
    /// Flag, one number: whether the device draws the tokens of predictions.
    accepts: 1,
    span_list: 2 * ENDS_MAX,
    cell_list: 2 * cells_of(rows),
    run_list: 2 * MAX_SEQUENCES,
    chunk_list: 4 * (rows / CHUNK_ROWS + ENDS_MAX),
    /// Position of each row of a draft batch before predictions advance `positions`.
    starts: ENDS_MAX,
    /// Sampling rules of the rows of a draft batch, `RULE` numbers each, bits of F32.
    rules: RULE * ENDS_MAX,
}

impl Layout {
    /// Smallest layout for a step of `rows` rows: a step of replies copies less.
    const fn least(rows: usize) -> &'static Layout {
        match rows {
            ..=ENDS_MAX => &REPLIES,
            _ => &LARGEST,
        }
    }

    /// Count of the numbers in all lists.
    const fn numbers(&self) -> usize {
        self.pages.start + self.pages.len
    }
}

const REPLIES: Layout = Layout::of(ENDS_MAX);
const LARGEST: Layout = Layout::of(ROWS_MAX);

/// Counts of a batch's rows, sequences and wanted rows.
type Shape = [usize; 3];

fn shape_of(batch: &Batch) -> Shape {
    [batch.rows(), batch.spans().len(), batch.wanted().len()]
}

/// Counts of the tiles of an attention shape.
#[derive(Clone, Copy, Default)]
struct TileCounts {
    cells: usize,
    others: usize,
}

/// Tiles of a step's rows, for an attention shape.
pub struct Tiles {
    /// Tiles of the rows that are in cells.
    pub cells: TileList,
    /// Tokens of a full tile in `cells`.
    pub cell_tokens: usize,
    /// Tiles of the rows outside of cells.
    pub others: TileList,
}

/// List of tiles on the device.
pub struct TileList {
    pub list: *const u32,
    pub count: usize,
}

/// Batches that operations read: that of a step, and that of the predictions after the first one.
pub struct Steps {
    pub now: Step,
    pub drafts: Step,
}

impl Steps {
    /// Bytes of each batch on the device.
    pub const BYTES: [usize; 2] = [
        LARGEST.numbers() * size_of::<u32>(),
        REPLIES.numbers() * size_of::<u32>(),
    ];

    pub fn new(device: &Device) -> Result<Steps, DeviceError> {
        Ok(Steps {
            now: Step::new(device, &LARGEST)?,
            drafts: Step::new(device, &REPLIES)?,
        })
    }

    /// The device's copy of `batch`.
    ///
    /// # Panics
    /// If the last begun batch of its kind had another shape.
    pub fn of(&self, batch: &Batch) -> &Step {
        let step = match batch.is_of_drafts() {
            true => &self.drafts,
            false => &self.now,
        };
        let same = step.lost || step.shape == Some(shape_of(batch));
        assert!(same, "operations get the batch that a step was begun with");
        step
    }

    /// Step that `batch` is to be copied to.
    pub fn to_begin(&mut self, batch: &Batch) -> &mut Step {
        match batch.is_of_drafts() {
            true => &mut self.drafts,
            false => &mut self.now,
        }
    }

    /// Notes that the copies of both batches, `now` and `drafts`, to the device have ended.
    pub fn passed(&mut self) {
        (self.now.begun, self.drafts.begun) = (false, false);
    }
}

/// A batch on the device.
pub struct Step {
    device: DeviceBuf<u32>,
    host: PinnedBuf<u32>,
    layout: &'static Layout,
    /// Shape of the batch that was begun last, if there was one.
    shape: Option<Shape>,
    /// Whether the device is lost, so that nothing is launched any more.
    lost: bool,
    /// Whether the copy of the batch may still be running.
    pub begun: bool,
    /// Number of spans whose rows `gated_delta` takes one by one.
    pub spans: usize,
    pub cells: usize,
    /// Number of sequences that have cells.
    pub runs: usize,
    pub chunks: usize,
    tiles: [TileCounts; SHAPES],
    /// Number of rows that are in no cell.
    pub one_by_one: usize,
}

impl Step {
    /// Buffers for the lists of `layout`.
    fn new(device: &Device, layout: &'static Layout) -> Result<Step, DeviceError> {
        Ok(Step {
            device: memory::buffer(device, layout.numbers())?,
            host: memory::locked(device, layout.numbers())?,
            layout,
            shape: None,
            lost: false,
            begun: false,
            spans: 0,
            cells: 0,
            runs: 0,
            chunks: 0,
            tiles: [TileCounts::default(); SHAPES],
            one_by_one: 0,
        })
    }

    /// Converts the batch to lists, and starts their copy to the device.
    ///
    /// # Safety
    /// The stream has passed the copy of the previous batch.
    pub unsafe fn begin(&mut self, batch: &Batch, stream: &Stream) -> Result<(), CudaError> {
        self.shape = Some(shape_of(batch));
        let layout = Layout::least(batch.rows());
        self.layout = layout;
        self.put(layout.tokens, batch.tokens().iter().copied());
        self.put(layout.positions, numbers(batch.positions()));
        self.put(layout.wanted_rows, numbers(batch.wanted()));
        self.put(layout.accepts, [u32::from(batch.accepts())].into_iter());
        let spans = batch.spans().iter();
        self.spans = self.put(layout.span_list, spans.clone().flat_map(one_by_one)) / 2;
        self.cells = self.put(layout.cell_list, spans.clone().flat_map(cells)) / 2;
        self.runs = self.put(layout.run_list, runs(batch.spans())) / 2;
        self.chunks = self.put(layout.chunk_list, spans.clone().flat_map(chunks)) / 4;
        self.one_by_one = spans.map(|span| span.one_by_one().len()).sum();
        for shape in 0..SHAPES {
            self.tiles[shape] = self.put_tiles(shape, batch.spans());
        }
        if batch.is_short() && batch.rows() <= ENDS_MAX {
            self.pad(batch.rows());
        }
        if batch.is_of_drafts() {
            self.put(layout.starts, numbers(batch.positions()));
            self.put(layout.rules, batch.draws().iter().flat_map(rule));
        }
        let pages = self.put_pages(batch);
        // SAFETY: the host's numbers are not written again before the stream has passed this copy.
        unsafe {
            self.device
                .upload_unwaited(&self.host, layout.pages.start + pages, stream)
        }
    }

    /// Takes no more batches, since the device is lost, and nothing is launched any more.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// Notes which rows `batch` wants; the device has listed these rows itself.
    pub fn want(&mut self, batch: &Batch) {
        self.shape = Some(shape_of(batch));
    }

    /// Writes the numbers of a list; returns their count.
    fn put(&mut self, section: Section, values: impl Iterator<Item = u32>) -> usize {
        let list = &mut self.host[section.start..][..section.len];
        let mut count = 0;
        for value in values {
            list[count] = value;
            count += 1;
        }
        count
    }

    /// Pads lists with entries without rows to the lengths of a step of `rows` sequences with one
    /// row each, so that operations recorded for `rows` rows fit any such step. The list of wanted
    /// rows is padded with row 0.
    fn pad(&mut self, rows: usize) {
        let layout = self.layout;
        let wanted = self.shape.expect("a batch was taken over")[2];
        self.clear(layout.wanted_rows, wanted..rows);
        self.clear(layout.span_list, 2 * self.spans..2 * rows);
        self.clear(layout.chunk_list, 4 * self.chunks..4 * rows);
        (self.spans, self.chunks) = (rows, rows);
        for shape in 0..SHAPES {
            let others = self.tiles[shape].others;
            self.clear(layout.tiles[shape].others, 4 * others..4 * rows);
            self.tiles[shape].others = rows;
        }
    }

    fn clear(&mut self, section: Section, numbers: Range<usize>) {
        self.host[section.start..][..section.len][numbers].fill(0);
    }

    /// Writes the tiles of an attention shape.
    fn put_tiles(&mut self, shape: usize, spans: &[SeqSpan]) -> TileCounts {
        let TileSections { cells, others } = self.layout.tiles[shape];
        let in_cells = spans.iter().map(|span| (span.in_cells(), span.start));
        let in_cells = tiles(in_cells, CELL_TILE_TOKENS[shape]);
        let others_of = spans.iter().map(|span| (span.one_by_one(), span.start));
        TileCounts {
            cells: self.put(cells, in_cells) / 4,
            others: self.put(others, tiles(others_of, TILE_TOKENS[shape])) / 4,
        }
    }

    /// Writes the pages in use of every sequence, and the numbers that its rows share.
    fn put_pages(&mut self, batch: &Batch) -> usize {
        let mut end = 0;
        for span in batch.spans() {
            end += self.put_table(batch, span, PageGroup::Whole, end);
            self.put_states(span);
            self.put_draft_states(span, batch.draft_states(span));
            self.fill(self.layout.in_cells, &span.in_cells(), 1);
            self.fill(self.layout.in_cells, &span.one_by_one(), 0);
        }
        if PAGE_GROUPS > 1 {
            // Windowed tables come after those of whole contexts: a windowed table begins, by the
            // pages left out, in front of its list, which must not be before the buffer.
            for span in batch.spans() {
                end += self.put_table(batch, span, PageGroup::Window, end);
            }
        }
        end
    }

    /// Writes the pages of a sequence in a group, from number `at` on; returns their count.
    fn put_table(&mut self, batch: &Batch, span: &SeqSpan, group: PageGroup, at: usize) -> usize {
        let table = batch.table(span, group);
        let used = (span.start + span.rows.len()).div_ceil(PAGE) - table.first;
        let list = &mut self.host[self.layout.pages.start + at..][..used];
        list.iter_mut()
            .zip(&table.pages[..used])
            .for_each(|(to, page)| *to = page.0);
        let start = (at - table.first) as u32;
        self.fill(self.layout.tables[group as usize], &span.rows, start);
        used
    }

    /// Writes the states that the rows of a sequence read and write. Rows after cells start from
    /// the state that the cells write.
    fn put_states(&mut self, span: &SeqSpan) {
        let (layout, states, rows) = (self.layout, span.states, &span.rows);
        self.fill(layout.slots, rows, states.to.0);
        self.fill(layout.source_slots, rows, states.from.0);
        if !span.in_cells().is_empty() {
            self.fill(layout.source_slots, &span.one_by_one(), states.to.0);
        }
        let snapshot = states.snapshot.unwrap_or(Snapshot {
            rows: 0,
            slot: states.to,
        });
        self.fill(layout.snapshot_rows, rows, snapshot.rows as u32);
        self.fill(layout.snapshot_slots, rows, snapshot.slot.0);
    }

    /// Writes the states after each row of a sequence but the last, if the rows are drafts.
    fn put_draft_states(&mut self, span: &SeqSpan, draft_states: &[Slot]) {
        self.fill(self.layout.draft_states, &span.rows, NO_SLOT.0);
        let list = &mut self.host[self.layout.draft_states.start + span.rows.start..];
        list.iter_mut()
            .zip(draft_states)
            .for_each(|(to, slot)| *to = slot.0);
    }

    fn fill(&mut self, section: Section, rows: &Range<usize>, value: u32) {
        self.host[section.start..][rows.clone()].fill(value);
    }

    fn at(&self, section: Section) -> *const u32 {
        self.device.as_ptr().wrapping_add(section.start)
    }

    /// Address of the list of a group that has the index in `pages` of each row's block table.
    pub fn table_starts(&self, group: PageGroup) -> *const u32 {
        self.at(self.layout.tables[group as usize])
    }

    /// Whether a row is computed in a cell, together with its neighbours.
    pub fn is_in_cell(&self, row: usize) -> bool {
        self.host[self.layout.in_cells.start..][row] != 0
    }

    /// Tiles of the attention shape with index `shape`.
    pub fn tiles(&self, shape: usize) -> Tiles {
        let (sections, counts) = (self.layout.tiles[shape], self.tiles[shape]);
        Tiles {
            cells: TileList {
                list: self.at(sections.cells),
                count: counts.cells,
            },
            cell_tokens: CELL_TILE_TOKENS[shape],
            others: TileList {
                list: self.at(sections.others),
                count: counts.others,
            },
        }
    }

    pub fn pages(&self) -> *const u32 {
        self.at(self.layout.pages)
    }

    /// Addresses of tokens and wanted rows of a step, which predictions after it overwrite.
    pub fn replaced(&mut self) -> [*mut u32; 2] {
        let layout = self.layout;
        [layout.tokens, layout.wanted_rows].map(|list| self.at_mut(list))
    }

    /// Starts, tokens, positions and tiles of a draft batch, which predictions advance.
    pub fn moved_on(&mut self) -> [*mut u32; 4] {
        let layout = self.layout;
        let others = layout.tiles[0].others;
        let lists = [layout.starts, layout.tokens, layout.positions, others];
        lists.map(|list| self.at_mut(list))
    }

    fn at_mut(&mut self, section: Section) -> *mut u32 {
        self.device.as_mut_ptr().wrapping_add(section.start)
    }
}

/// Numbers of a sampling rule of the device, as bits of F32.
fn rule(draw: &Draw) -> impl Iterator<Item = u32> {
    let (top_k, position) = (draw.top_k as f32, draw.position as f32);
    let narrowed = [draw.temperature, top_k, draw.top_p, draw.min_p, position];
    let numbers = narrowed.into_iter().chain(draw.uniforms);
    numbers.map(f32::to_bits)
}

fn numbers(values: &[usize]) -> impl Iterator<Item = u32> {
    values.iter().map(|&value| value as u32)
}

/// First row of a span outside of cells, and the number of such rows, if there are any.
fn one_by_one(span: &SeqSpan) -> impl Iterator<Item = u32> {
    let rows = span.one_by_one();
    let left = (!rows.is_empty()).then(|| [rows.start, rows.len()]);
    left.into_iter().flatten().map(|number| number as u32)
}

/// First row and number of rows of each cell.
fn cells(span: &SeqSpan) -> impl Iterator<Item = u32> {
    let rows = span.in_cells();
    let starts = rows.clone().step_by(CELL);
    starts.flat_map(move |start| [start as u32, CELL.min(rows.end - start) as u32])
}

/// First cell and number of cells of each span that has any.
fn runs(spans: &[SeqSpan]) -> impl Iterator<Item = u32> {
    let counts = spans
        .iter()
        .map(|span| span.in_cells().len().div_ceil(CELL));
    let run = |first: &mut usize, count: usize| {
        let run = [*first, count];
        *first += count;
        Some(run)
    };
    let runs = counts.scan(0, run).filter(|run| run[1] > 0);
    runs.flatten().map(|number| number as u32)
}

/// First row and number of rows of each chunk, then first row and number of rows of its sequence.
fn chunks(span: &SeqSpan) -> impl Iterator<Item = u32> {
    let (first, end) = (span.rows.start, span.rows.end);
    let starts = span.rows.clone().step_by(CHUNK_ROWS);
    starts.flat_map(move |start| {
        let rows = CHUNK_ROWS.min(end - start);
        [start, rows, first, end - first].map(|number| number as u32)
    })
}

/// Numbers of each tile: first row, number of rows, index of the first row among all rows, and
/// first position of its sequence in the step.
fn tiles(
    parts: impl Iterator<Item = (Range<usize>, usize)>,
    tokens: usize,
) -> impl Iterator<Item = u32> {
    let with_offsets = parts.scan(0, |offset, (rows, written)| {
        let first = *offset;
        *offset += rows.len();
        Some((first, rows, written))
    });
    with_offsets.flat_map(move |(first, rows, written)| {
        let starts = rows.clone().step_by(tokens);
        starts.flat_map(move |start| {
            let live = tokens.min(rows.end - start);
            let index = first + start - rows.start;
            [start, live, index, written].map(|number| number as u32)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::ONE_BY_ONE;

    fn pairs(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
        let numbers: Vec<_> = numbers.collect();
        numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect()
    }

    #[test]
    fn a_prompt_is_taken_in_cells_but_for_a_short_end() {
        let span = SeqSpan::without_pages(CELL, 3..3 + 2 * CELL + ONE_BY_ONE);
        assert_eq!(pairs(cells(&span)), [(3, 64), (67, 64)]);
        assert_eq!(pairs(one_by_one(&span)), [(131, 8)]);
    }

    #[test]
    fn an_end_that_is_long_enough_is_a_cell() {
        let span = SeqSpan::without_pages(0, 0..CELL + ONE_BY_ONE + 1);
        assert_eq!(pairs(cells(&span)), [(0, 64), (64, 9)]);
        assert_eq!(pairs(one_by_one(&span)), []);
    }

    #[test]
    fn what_begins_off_the_grid_goes_row_by_row() {
        let span = SeqSpan::without_pages(5, 0..100);
        assert_eq!(pairs(cells(&span)), []);
        assert_eq!(pairs(one_by_one(&span)), [(0, 100)]);
    }

    #[test]
    fn tiles_know_their_index_among_all_rows_and_what_the_step_writes() {
        let parts = [(3..8, 70), (9..9, 0), (20..21, 5)];
        let tiles: Vec<_> = tiles(parts.into_iter(), 4).collect();
        let found: Vec<_> = tiles.chunks(4).collect();
        assert_eq!(found, [[3, 4, 0, 70], [7, 1, 4, 70], [20, 1, 5, 5]]);
    }

    #[test]
    fn lists_of_a_step_of_replies_are_a_short_copy() {
        let (replies, largest) = (Layout::least(ENDS_MAX), Layout::least(ROWS_MAX));
        assert!(3 * replies.pages.start < largest.pages.start);
        assert!(replies.numbers() <= largest.numbers());
        let of_shapes = replies.tiles.iter();
        assert!(of_shapes.map(|tiles| tiles.others.len).min() >= Some(4 * ENDS_MAX));
    }

    #[test]
    fn sequences_without_cells_have_no_run() {
        let spans = [(0, 0..130), (7, 130..131), (64, 131..160)]
            .map(|(start, rows)| SeqSpan::without_pages(start, rows));
        assert_eq!(pairs(runs(&spans)), [(0, 2), (2, 1)]);
    }
}
