//! Lines of a file with their numbers, each in bounded memory.

use std::io::{self, BufRead, Read};

/// Mark that some editors put before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Lines that are not blank, with their numbers, counted from 1. A line longer than `most` bytes is
/// cut to `most + 1` bytes.
pub fn numbered(
    mut reader: impl BufRead,
    most: usize,
) -> impl Iterator<Item = io::Result<(usize, Vec<u8>)>> {
    let mut number = 0;
    let mut next = move || {
        loop {
            let mut text = bounded(&mut reader, most)?;
            if text.is_empty() {
                return Ok(None);
            }
            number += 1;
            if number == 1 && text.starts_with(BYTE_ORDER_MARK) {
                text.drain(..BYTE_ORDER_MARK.len());
            }
            if !text.trim_ascii().is_empty() {
                return Ok(Some((number, text)));
            }
        }
    };
    std::iter::from_fn(move || next().transpose())
}

/// Reads the next line with its line end, or as many bytes as show that it is too long; empty at
/// the end.
fn bounded(reader: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut line = reader.by_ref().take(most as u64 + 1);
    line.read_until(b'\n', &mut text)?;
    if text.len() > most && !text.ends_with(b"\n") {
        reader.skip_until(b'\n')?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], most: usize) -> Vec<(usize, String)> {
        let lines = numbered(text, most).map(io::Result::unwrap);
        let shown = |(number, line)| (number, String::from_utf8(line).unwrap());
        lines.map(shown).collect()
    }

    fn line(number: usize, text: &str) -> (usize, String) {
        (number, text.to_string())
    }

    #[test]
    fn blank_lines_count_and_are_left_out() {
        let found = lines(b"\xef\xbb\xbfa\n\n \r\nb", 9);
        assert_eq!(found, [line(1, "a\n"), line(4, "b")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_whole() {
        let found = lines(b"12345\n1234567\nnext", 5);
        assert_eq!(
            found,
            [line(1, "12345\n"), line(2, "123456"), line(3, "next")]
        );
    }
}
