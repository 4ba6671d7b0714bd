//! Stop strings in streamed text; text that may begin a stop string is held back.

/// Finder of the first complete stop string, in time linear in the text.
#[derive(Debug, Default)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text held back, since it may be the start of a stop string.
    pending: String,
    /// Whether stop strings do not count yet, as before the minimum of tokens.
    muted: bool,
}

impl StopMatcher {
    /// Finder of `stops`, which are not empty.
    pub fn new(stops: &[String]) -> StopMatcher {
        debug_assert!(stops.iter().all(|stop| !stop.is_empty()));
        StopMatcher {
            patterns: stops.iter().map(|stop| Pattern::new(stop)).collect(),
            pending: String::new(),
            muted: false,
        }
    }

    /// Stops or resumes the search. The search may stop only before any text has come.
    pub fn mute(&mut self, muted: bool) {
        debug_assert!(!muted || self.pending.is_empty());
        self.muted = muted;
    }

    /// Appends to `out` the text that can no longer be part of a stop string. Returns the index of
    /// a complete stop string, from which on all text is dropped. Of several stop strings that one
    /// character completes, the longest counts.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.is_empty() {
            out.push_str(text);
            return None;
        }
        let scanned = self.pending.len();
        self.pending.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            if let Some(found) = self.advance(byte) {
                out.push_str(&self.pending[..scanned + offset + 1 - found.length]);
                self.pending.clear();
                return Some(found.which);
            }
        }
        let free = self.pending.len() - self.begun();
        out.push_str(&self.pending[..free]);
        self.pending.drain(..free);
        None
    }

    /// Takes one byte of text that the caller holds back; returns the longest stop string that it
    /// completes.
    pub fn advance(&mut self, byte: u8) -> Option<Found> {
        if self.muted {
            return None;
        }
        let patterns = self.patterns.iter_mut().enumerate();
        let lengths = patterns.map(|(which, pattern)| Found {
            length: pattern.advance(byte),
            which,
        });
        // The first of several stop strings of one length counts.
        let longest = lengths.rev().max_by_key(|found| found.length);
        longest.filter(|found| found.length > 0)
    }

    /// Bytes at the end of the text that a stop string may begin with.
    pub fn begun(&self) -> usize {
        let begun = self.patterns.iter().map(|pattern| pattern.matched);
        begun.max().unwrap_or(0)
    }

    /// Bytes of text held back.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether there is a stop string to look for.
    pub fn is_empty(&self) -> bool {
        self.muted || self.patterns.is_empty()
    }

    /// Begins another text, independent of the last one; no text may be held back.
    pub fn restart(&mut self) {
        debug_assert!(self.pending.is_empty());
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
    }

    /// Appends to `out` the text held back for a stop string that did not come.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.pending));
    }
}

/// A complete stop string: its length in bytes, and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub length: usize,
    pub which: usize,
}

/// One stop string as a Knuth-Morris-Pratt automaton over bytes.
#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `borders[i]`: length of the longest proper border of the first `i + 1` bytes.
    borders: Vec<usize>,
    /// Number of bytes matched so far.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let bytes = text.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut border = borders[i - 1];
            while border > 0 && bytes[border] != bytes[i] {
                border = borders[border - 1];
            }
            borders[i] = border + usize::from(bytes[border] == bytes[i]);
        }
        Pattern {
            bytes,
            borders,
            matched: 0,
        }
    }

    /// Takes one byte; returns the pattern's length if the byte completes it, else 0.
    fn advance(&mut self, byte: u8) -> usize {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        match self.matched == self.bytes.len() {
            true => self.matched,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, rechunk_text};

    fn streamed(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            if matcher.push(piece, &mut out).is_some() {
                return (out, true);
            }
        }
        matcher.finish(&mut out);
        (out, false)
    }

    #[test]
    fn a_stop_string_across_pieces_does_not_leak() {
        assert_eq!(
            streamed(&["END"], &["abcE", "N", "Dxyz"]),
            ("abc".to_string(), true)
        );
    }

    #[test]
    fn text_held_back_in_vain_is_released() {
        assert_eq!(
            streamed(&["END"], &["abcE", "N", "x", "EN"]),
            ("abcENxEN".to_string(), false)
        );
    }

    /// Every text of two letters, with every stop string: those that begin inside themselves too.
    #[test]
    fn a_stop_string_is_found_at_its_first_position() {
        let words = |length: u32| {
            (0..1 << length).map(move |bits: u32| -> String {
                (0..length)
                    .map(|at| if bits >> at & 1 == 0 { 'a' } else { 'b' })
                    .collect()
            })
        };
        for stop in (1..=4).flat_map(words) {
            for text in words(8) {
                let found = text.find(&stop);
                let expected = (text[..found.unwrap_or(8)].to_string(), found.is_some());
                let letters: Vec<&str> = text.split("").collect();
                assert_eq!(streamed(&[&stop], &[&text]), expected, "{stop} in {text}");
                assert_eq!(streamed(&[&stop], &letters), expected, "{stop} in {text}");
            }
        }
    }

    #[test]
    fn the_longest_of_several_is_named() {
        let stops = ["b", "ab", "cab"].map(str::to_string);
        let mut out = String::new();
        assert_eq!(StopMatcher::new(&stops).push("xab", &mut out), Some(1));
        assert_eq!(out, "x");
    }

    #[test]
    fn text_leaves_as_soon_as_no_stop_can_begin_in_it() {
        let mut matcher = StopMatcher::new(&["STOP".to_string()]);
        let mut out = String::new();
        matcher.push("hello S", &mut out);
        assert_eq!(out, "hello ");
    }

    #[test]
    fn rechunking_never_changes_the_result() {
        let mut random = Random::new(2);
        let alphabet = ["a", "b", "é", "\n", "🦀"];
        for _ in 0..2000 {
            let word = |random: &mut Random, most: usize| -> String {
                (0..1 + random.below(most))
                    .map(|_| alphabet[random.below(5)])
                    .collect()
            };
            let text = word(&mut random, 40);
            let stops: Vec<String> = (0..1 + random.below(4))
                .map(|_| word(&mut random, 4))
                .collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = streamed(&stops, &[&text]);
            assert_eq!(whole, streamed(&stops, &rechunk_text(&text, &mut random)));
            assert!(text.starts_with(&whole.0));
            let stopped_at = stops.iter().any(|stop| text.contains(stop));
            assert_eq!(whole.1, stopped_at, "{text:?} {stops:?}");
            assert!(stops.iter().all(|stop| !whole.0.contains(stop)));
        }
    }
}
