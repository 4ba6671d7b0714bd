//! Writes a packed file from start to end. The head is written last, so that an incomplete file is
//! no packed file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

use super::manifest;
use super::table::{self, ALIGN, Entry, HEAD_BYTES, Head, PIECE_BYTES, Table, Text};
use crate::target;

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 8 << 20;

/// A packed file that is being written.
pub struct Writer {
    out: BufWriter<File>,
    at: u64,
    /// Digest of the current piece so far.
    piece: Sha256,
    table: Table,
}

impl Writer {
    /// Starts to write into `file`, which is empty; `layout` is the version that the backend's
    /// kernels read.
    pub fn new(file: File, layout: u32, drawn: bool) -> io::Result<Writer> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        out.write_all(&[0; HEAD_BYTES])?;
        Ok(Writer {
            out,
            at: HEAD_BYTES as u64,
            piece: Sha256::new(),
            table: Table {
                target: target::BINARY.to_string(),
                manifest: manifest(),
                layout,
                drawn,
                ..Table::default()
            },
        })
    }

    /// Appends a vector, or matrices that lie together, `[n, k]` in all. `# Errors` as `new`.
    pub fn weight(
        &mut self,
        name: String,
        [n, k]: [usize; 2],
        storage: &str,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.align()?;
        self.table.weights.push(Entry {
            name,
            n,
            k,
            storage: storage.to_string(),
            start: self.at,
            bytes: bytes.len() as u64,
        });
        self.put(bytes)
    }

    /// Appends a small file. `# Errors` as `new`.
    pub fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.table.files.push(Text {
            name: name.to_string(),
            start: self.at,
            bytes: content.len() as u64,
        });
        self.put(content)
    }

    /// Completes the file and flushes it to the disk; returns its bytes. `# Errors` as `new`.
    pub fn finish(mut self) -> io::Result<u64> {
        self.align()?;
        if !(self.at - HEAD_BYTES as u64).is_multiple_of(PIECE_BYTES) {
            self.end_piece();
        }
        let table = self.table.bytes();
        let head = Head::of(self.at, &table);
        self.out.write_all(&table)?;
        let file = self.out.into_inner().map_err(|error| error.into_error())?;
        // The head points to table and weights, so both are flushed before it is written.
        file.sync_all()?;
        file.write_all_at(&head.bytes(), 0)?;
        file.sync_all()?;
        Ok(head.table.end)
    }

    fn align(&mut self) -> io::Result<()> {
        let gap = self.at.next_multiple_of(ALIGN) - self.at;
        self.put(&[0; ALIGN as usize][..gap as usize])
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let done = (self.at - HEAD_BYTES as u64) % PIECE_BYTES;
            let count = bytes.len().min((PIECE_BYTES - done) as usize);
            let (now, rest) = bytes.split_at(count);
            self.out.write_all(now)?;
            self.piece.update(now);
            self.at += count as u64;
            if done + count as u64 == PIECE_BYTES {
                self.end_piece();
            }
            bytes = rest;
        }
        Ok(())
    }

    fn end_piece(&mut self) {
        let digest = table::digest(std::mem::take(&mut self.piece));
        self.table.pieces.push(digest);
    }
}
