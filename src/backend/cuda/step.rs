//! A step's batch on the device: one buffer of numbers, filled by one copy.

use std::ops::Range;

use ffi::{CudaError, Device, DeviceBuf, PinnedBuf, Stream};

use super::FEW_ROWS;
use crate::model::ROWS_MAX;
use crate::ops::{Batch, Span};
use crate::target::{HEADS, KV_HEADS, MAX_CONTEXT, MAX_SEQUENCES, PAGE};

/// Rows of a chunk of `conv_silu`.
const CHUNK_ROWS: usize = 64;
/// Query rows of a tile of `attend`, for few rows and for many; heads of a group are rows.
const TILE_ROWS: [usize; 2] = [16, 32];

/// Where a list lies in the buffer, in numbers; 16-byte aligned.
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

const TOKENS: Section = Section::after(Section { start: 0, len: 0 }, ROWS_MAX);
const POSITIONS: Section = Section::after(TOKENS, ROWS_MAX);
const SLOTS: Section = Section::after(POSITIONS, ROWS_MAX);
const TABLES: Section = Section::after(SLOTS, ROWS_MAX);
const WANTED: Section = Section::after(TABLES, MAX_SEQUENCES);
const SPANS: Section = Section::after(WANTED, 2 * MAX_SEQUENCES);
const CHUNKS: Section = Section::after(SPANS, 4 * (ROWS_MAX / CHUNK_ROWS + MAX_SEQUENCES));
const TILES: Section = Section::after(CHUNKS, 2 * ROWS_MAX);
/// Last, because a copy ends with the pages in use.
const PAGES: Section = Section::after(TILES, MAX_SEQUENCES * MAX_CONTEXT.div_ceil(PAGE));

/// The batch that operations read.
pub struct Step {
    device: DeviceBuf<u32>,
    host: PinnedBuf<u32>,
    pub rows: usize,
    pub wanted: usize,
    pub spans: usize,
    pub chunks: usize,
    pub tiles: usize,
    /// Tokens of a full tile.
    pub tile_tokens: usize,
}

impl Step {
    /// What a step takes of the device.
    pub const BYTES: usize = (PAGES.start + PAGES.len) * size_of::<u32>();

    pub fn new(device: &Device) -> Result<Step, CudaError> {
        let numbers = PAGES.start + PAGES.len;
        Ok(Step {
            device: DeviceBuf::uninit(device, numbers)?,
            host: PinnedBuf::zeroed(device, numbers)?,
            rows: 0,
            wanted: 0,
            spans: 0,
            chunks: 0,
            tiles: 0,
            tile_tokens: 0,
        })
    }

    /// Takes the batch over, and starts its copy.
    ///
    /// # Safety
    /// The stream has passed the copy of the batch before.
    pub unsafe fn begin(&mut self, batch: &Batch, stream: &Stream) -> Result<(), CudaError> {
        self.rows = batch.rows();
        self.tile_tokens = TILE_ROWS[usize::from(self.rows > FEW_ROWS)] / (HEADS / KV_HEADS);
        self.put(TOKENS, batch.tokens.iter().copied());
        self.put(POSITIONS, numbers(&batch.positions));
        self.wanted = self.put(WANTED, numbers(&batch.wanted));
        let spans = batch.spans.iter();
        let pair = |span: &Span| [span.rows.start as u32, span.rows.len() as u32];
        self.spans = self.put(SPANS, spans.clone().flat_map(pair)) / 2;
        self.chunks = self.put(CHUNKS, spans.clone().flat_map(chunks)) / 4;
        let tokens = self.tile_tokens;
        let tiles = spans.clone().flat_map(|span| tiles(span, tokens));
        self.tiles = self.put(TILES, tiles) / 2;
        let pages = self.put_pages(batch);
        // SAFETY: the host's numbers are next written when the stream has passed this copy.
        unsafe {
            self.device
                .upload_unwaited(&self.host, PAGES.start + pages, stream)
        }
    }

    /// Writes a list; returns its length.
    fn put(&mut self, section: Section, values: impl Iterator<Item = u32>) -> usize {
        let room = &mut self.host[section.start..][..section.len];
        let mut count = 0;
        for value in values {
            room[count] = value;
            count += 1;
        }
        count
    }

    /// Writes the pages in use of every sequence, and for its rows where they start.
    fn put_pages(&mut self, batch: &Batch) -> usize {
        let mut end = 0;
        for span in &batch.spans {
            let used = (span.start + span.rows.len()).div_ceil(PAGE);
            let pages = &batch.pages[span.pages.clone()][..used];
            let room = &mut self.host[PAGES.start + end..][..used];
            room.iter_mut()
                .zip(pages)
                .for_each(|(to, page)| *to = page.0);
            self.fill(SLOTS, &span.rows, span.slot.0);
            self.fill(TABLES, &span.rows, end as u32);
            end += used;
        }
        end
    }

    fn fill(&mut self, section: Section, rows: &Range<usize>, value: u32) {
        self.host[section.start..][rows.clone()].fill(value);
    }

    fn at(&self, section: Section) -> *const u32 {
        self.device.as_ptr().wrapping_add(section.start)
    }

    pub fn tokens(&self) -> *const u32 {
        self.at(TOKENS)
    }

    pub fn positions(&self) -> *const u32 {
        self.at(POSITIONS)
    }

    pub fn slots(&self) -> *const u32 {
        self.at(SLOTS)
    }

    pub fn table_starts(&self) -> *const u32 {
        self.at(TABLES)
    }

    pub fn wanted_rows(&self) -> *const u32 {
        self.at(WANTED)
    }

    pub fn span_list(&self) -> *const u32 {
        self.at(SPANS)
    }

    pub fn chunk_list(&self) -> *const u32 {
        self.at(CHUNKS)
    }

    pub fn tile_list(&self) -> *const u32 {
        self.at(TILES)
    }

    pub fn pages(&self) -> *const u32 {
        self.at(PAGES)
    }
}

fn numbers(values: &[usize]) -> impl Iterator<Item = u32> {
    values.iter().map(|&value| value as u32)
}

/// First row and rows of each chunk, first row and rows of its sequence.
fn chunks(span: &Span) -> impl Iterator<Item = u32> {
    let (first, end) = (span.rows.start, span.rows.end);
    let starts = span.rows.clone().step_by(CHUNK_ROWS);
    starts.flat_map(move |start| {
        let rows = CHUNK_ROWS.min(end - start);
        [start, rows, first, end - first].map(|number| number as u32)
    })
}

/// First row and rows of each tile.
fn tiles(span: &Span, tokens: usize) -> impl Iterator<Item = u32> {
    let end = span.rows.end;
    let starts = span.rows.clone().step_by(tokens);
    starts.flat_map(move |start| [start as u32, tokens.min(end - start) as u32])
}
