//! Formats that are read byte by byte: HTTP's framing, the headers of safetensors files, and heads
//! and tables of packed weights.

use http::wire::Framing;
use model::weights::header;
use model::weights::packed::table::{ALIGN, HEAD_BYTES, Head, Table};

use super::choice::Choices;

/// Bytes of tensors behind the header.
const DATA_BYTES: u64 = 4096;

/// A refusal does not depend on how the bytes of a connection arrive. The head chooses how they do.
pub fn http_head(input: &[u8]) {
    let mut choices = Choices::of(input);
    let cut = choices.cut();
    let expected = Framing::default().scan(choices.rest());
    let mut framing = Framing::default();
    let (mut found, mut start) = (None, 0);
    cut.bytes(choices.rest(), |piece| {
        if found.is_none() {
            found = framing.scan(piece).map(|at| start + at);
            start += piece.len();
        }
    });
    assert_eq!(found, expected);
}

/// A header is refused, or its tensors cover the file without hole or overlap.
pub fn safetensors_header(bytes: &[u8]) {
    let start = header::LENGTH_BYTES + bytes.len() as u64;
    let file = start + DATA_BYTES;
    let Ok(tensors) = header::parse(bytes, file) else {
        return;
    };
    let mut ranges: Vec<_> = tensors.into_values().map(|tensor| tensor.bytes).collect();
    ranges.sort_by_key(|range| range.start);
    let end = ranges.iter().fold(start, |end, range| {
        assert_eq!(range.start, end);
        range.end
    });
    assert_eq!(end, file);
}

/// A head of packed weights is refused or what was written; so is a table, all of whose places lie
/// between it and the head.
pub fn packed_table(bytes: &[u8]) {
    let mut page = bytes.to_vec();
    page.resize(HEAD_BYTES, 0);
    let end = bytes
        .get(24..32)
        .map_or(0, |end| u64::from_le_bytes(end.try_into().unwrap()));
    if let Ok(head) = Head::parse(&page, end) {
        assert_eq!((head.table.end, head.bytes()), (end, page));
    }
    let start = HEAD_BYTES as u64 + ALIGN;
    let head = Head::of(start, bytes);
    let Ok(table) = Table::parse(bytes, &head) else {
        return;
    };
    let weights = table.weights.iter().map(|entry| entry.range());
    for range in weights.chain(table.files.iter().map(|file| file.range())) {
        assert!(range.start >= HEAD_BYTES as u64 && range.start <= range.end && range.end <= start);
    }
    assert_eq!(table.pieces.len(), Table::pieces(start).count());
}
