//! Formats that are read byte by byte: HTTP's framing, and the headers of safetensors files.

use atlas::http::wire::Framing;
use atlas::weights::header;

use super::choice::Choices;

/// Bytes of tensors behind the header.
const DATA_BYTES: u64 = 4096;

/// What is refused does not depend on how the bytes of a connection arrive. The head chooses how
/// they do.
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
