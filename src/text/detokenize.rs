//! Streaming decoder of tokens' bytes: only complete UTF-8 is passed on.

use super::spelling::TextStart;

/// Joins byte runs that may split a character. Incomplete characters become U+FFFD as in
/// `String::from_utf8_lossy`, so that the pieces concatenate to the decoding of all bytes.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// Start of an incomplete character, at most three bytes.
    pending: Vec<u8>,
    /// Rule by which the text's start loses blanks.
    start: TextStart,
}

impl Detokenizer {
    /// Decoder of a whole text, whose start loses the blanks that the tokenizer adds. The default
    /// decoder is for the continuation of a text.
    pub fn of_text(start: TextStart) -> Detokenizer {
        Detokenizer {
            start,
            ..Detokenizer::default()
        }
    }

    /// Appends to `out` the text that `bytes` complete.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        match self.start {
            TextStart::Whole => self.append(bytes, out),
            _ => {
                let bytes = self.begun(bytes);
                self.append(&bytes, out);
            }
        }
    }

    /// Bytes of a token without the blanks that the text's start loses.
    fn begun(&mut self, bytes: &[u8]) -> Vec<u8> {
        let is_blank = |byte: &&u8| **byte == b' ';
        match self.start {
            TextStart::Whole => bytes.to_vec(),
            TextStart::Blanks(most) => {
                let blanks = bytes.iter().take(most).take_while(is_blank).count();
                self.start = match blanks == bytes.len() && blanks < most {
                    true => TextStart::Blanks(most - blanks),
                    false => TextStart::Whole,
                };
                bytes[blanks..].to_vec()
            }
            TextStart::FirstToken => {
                self.start = TextStart::Whole;
                let bytes = bytes.iter().copied();
                bytes.filter(|byte| *byte != b' ').collect()
            }
        }
    }

    fn append(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            self.pending = decode(bytes, out);
        } else {
            let mut joined = std::mem::take(&mut self.pending);
            joined.extend_from_slice(bytes);
            self.pending = decode(&joined, out);
        }
    }

    /// Whether `byte` cannot continue the incomplete character.
    pub fn is_broken_by(&self, byte: u8) -> bool {
        let joined = [self.pending.as_slice(), &[byte]].concat();
        let error = std::str::from_utf8(&joined).err();
        !self.pending.is_empty() && error.is_some_and(|error| error.error_len().is_some())
    }

    /// Appends a replacement character for an incomplete character at the end.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Decodes `bytes` into `out` and returns the bytes of an incomplete character at the end.
fn decode(bytes: &[u8], out: &mut String) -> Vec<u8> {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let unfinished =
            std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if unfinished && chunks.peek().is_none() {
            return invalid.to_vec();
        }
        out.push(char::REPLACEMENT_CHARACTER);
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, rechunk};

    fn streamed(pieces: &[&[u8]]) -> String {
        let mut detokenizer = Detokenizer::default();
        let mut out = String::new();
        for piece in pieces {
            detokenizer.push(piece, &mut out);
        }
        detokenizer.finish(&mut out);
        out
    }

    #[test]
    fn a_split_character_waits_for_its_end() {
        let mut detokenizer = Detokenizer::default();
        let mut out = String::new();
        detokenizer.push(&[0xf0, 0x9f], &mut out);
        assert_eq!(out, "");
        detokenizer.push(&[0xa6, 0x80], &mut out);
        assert_eq!(out, "🦀");
    }

    #[test]
    fn a_text_of_its_own_loses_blanks_at_its_start_alone() {
        let shown = |start, pieces: &[&[u8]]| {
            let (mut detokenizer, mut out) = (Detokenizer::of_text(start), String::new());
            pieces
                .iter()
                .for_each(|piece| detokenizer.push(piece, &mut out));
            out
        };
        assert_eq!(shown(TextStart::Blanks(1), &[b"  a", b" b"]), " a b");
        assert_eq!(shown(TextStart::Blanks(2), &[b" ", b" ", b" a"]), " a");
        assert_eq!(shown(TextStart::Blanks(2), &[b"a", b" b"]), "a b");
        assert_eq!(shown(TextStart::FirstToken, &[b"  ", b" a"]), " a");
        assert_eq!(shown(TextStart::Whole, &[b" a"]), " a");
    }

    #[test]
    fn an_unfinished_character_ends_as_one_replacement() {
        assert_eq!(streamed(&[b"a", &[0xe2, 0x82]]), "a\u{fffd}");
    }

    #[test]
    fn a_character_is_broken_by_what_it_cannot_go_on_with() {
        let mut detokenizer = Detokenizer::default();
        assert!(!detokenizer.is_broken_by(0x80), "there is none");
        detokenizer.push(&[0xf0], &mut String::new());
        assert!(!detokenizer.is_broken_by(0x9f));
        assert!(detokenizer.is_broken_by(b'a') && detokenizer.is_broken_by(0x80));
    }

    #[test]
    fn pieces_concatenate_to_the_decoding_of_all_bytes() {
        let mut random = Random::new(1);
        let samples: [&[u8]; 6] = [
            "a👩‍👩‍👧‍👦é漢字".as_bytes(),
            &[0x80, 0xbf, 0xff, b'x'],
            &[0xe2, 0x82, 0xe2, 0x82, 0xac],
            &[0xf0, 0x9f, 0xa6],
            &[0xc0, 0xaf, 0xed, 0xa0, 0x80],
            b"plain",
        ];
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..random.below(5))
                .flat_map(|_| samples[random.below(6)].to_vec())
                .collect();
            let pieces = rechunk(&bytes, &mut random);
            assert_eq!(streamed(&pieces), String::from_utf8_lossy(&bytes));
        }
    }
}
