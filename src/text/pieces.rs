//! Cuts of a long text at which encoding in pieces gives the same tokens.
//!
//! The tokenizer library takes some hundred bytes of memory for each byte of a call, and cannot be
//! interrupted. So long texts are encoded in pieces, cut at borders of words, which no token
//! crosses in the tokenizers that this server supports. Merges differ, so the tokenizer is asked
//! about each cut.

/// Bytes of a piece; more if no cut follows at once.
pub const PIECE_BYTES: usize = 32 * 1024;
/// Longest distance of two cuts in bytes: nobody writes longer words or runs of marks.
pub const RUN_BYTES_MAX: usize = 128 * 1024;
/// Bytes before and after a cut with which it is checked: more than the longest token has.
const AROUND_BYTES: usize = 160;
/// Bytes from a rejected cut to the next cut of the same kind that is checked, so that checks stay
/// cheaper than encoding even in a text without cuts.
const ASKED_EVERY_BYTES: usize = 8 * AROUND_BYTES;

/// Class of a character; runs of one class form words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Line,
    Blank,
    Mark,
}

impl Class {
    fn of(char: char) -> Class {
        match char {
            '\n' | '\r' => Class::Line,
            _ if char.is_alphabetic() => Class::Letter,
            _ if char.is_numeric() => Class::Digit,
            _ if char.is_whitespace() => Class::Blank,
            _ => Class::Mark,
        }
    }
}

/// The end of the piece of `text` that begins at `from`: the text's end, or the first cut after
/// [`PIECE_BYTES`] for which `holds`, given the texts around the cut, says that no token crosses
/// it. None if there is no such cut within [`RUN_BYTES_MAX`].
pub fn end(text: &str, from: usize, holds: impl Fn(&str, &str) -> bool) -> Option<usize> {
    let rest = &text[from..];
    if rest.len() <= PIECE_BYTES {
        return Some(text.len());
    }
    let begin = rest.floor_char_boundary(PIECE_BYTES);
    let until = rest.floor_char_boundary(PIECE_BYTES + RUN_BYTES_MAX);
    let mut classes = rest[..begin].chars().next_back().map(Class::of);
    let mut asked_from = [begin; 2];
    let mut chars = rest[begin..until].char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        let class = Class::of(char);
        let before = classes.replace(class);
        let next = chars.peek().map(|(_, char)| Class::of(*char));
        let cut = begin + at;
        let Some(found) = before.and_then(|before| border(before, class, next)) else {
            continue;
        };
        let asked_from = &mut asked_from[found as usize];
        if cut < *asked_from {
            continue;
        }
        *asked_from = cut + ASKED_EVERY_BYTES;
        let start = rest.ceil_char_boundary(cut.saturating_sub(AROUND_BYTES));
        let stop = rest.floor_char_boundary(cut + AROUND_BYTES);
        if holds(&rest[start..cut], &rest[cut..stop]) {
            return Some(from + cut);
        }
    }
    (until == rest.len()).then_some(text.len())
}

/// Kinds of cuts: mostly all cuts of a kind are possible, or none.
#[derive(Clone, Copy, Debug)]
enum Border {
    /// Cut before the blank that precedes a word.
    Blank,
    /// Cut between a word and a character that touches it.
    Touching,
}

/// Kind of the cut before a character of `class`; None if no word begins or ends there.
fn border(before: Class, class: Class, next: Option<Class>) -> Option<Border> {
    use Class::{Blank, Digit, Letter, Line, Mark};
    match (before, class) {
        (Letter | Digit | Mark, Blank) if next == Some(Letter) => Some(Border::Blank),
        (Letter, Digit | Mark) | (Digit | Line, Letter) => Some(Border::Touching),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_words_and_nothing_is_lost() {
        let text = "Größe 12, and 漢字。\n".repeat(20_000);
        let (mut at, mut pieces) = (0, 0);
        while at < text.len() {
            let next = end(&text, at, |_, _| true).unwrap();
            assert!(next - at <= PIECE_BYTES + 64);
            assert!(text[..next].ends_with(|char: char| !char.is_whitespace() || char == '\n'));
            (at, pieces) = (next, pieces + 1);
        }
        assert_eq!(pieces, text.len().div_ceil(PIECE_BYTES + 64));
    }

    #[test]
    fn a_text_without_a_cut_has_a_bound() {
        let word = |bytes: usize| end(&"x".repeat(bytes), 0, |_, _| true);
        assert_eq!(word(PIECE_BYTES), Some(PIECE_BYTES));
        let most = PIECE_BYTES + RUN_BYTES_MAX;
        assert_eq!((word(most), word(most + 1)), (Some(most), None));
    }

    #[test]
    fn who_cuts_is_asked_about_cuts_of_both_kinds_at_a_distance() {
        let text = "ab.c ".repeat(2 * PIECE_BYTES);
        let asked = std::cell::RefCell::new(Vec::new());
        let none = end(&text, 0, |before, after| {
            assert!(before.len() <= AROUND_BYTES && after.len() <= AROUND_BYTES);
            asked.borrow_mut().push(after.chars().next());
            false
        });
        assert_eq!(none, None);
        let asked = asked.into_inner();
        for first in [' ', '.'] {
            let count = asked.iter().filter(|found| **found == Some(first)).count();
            let most = RUN_BYTES_MAX / ASKED_EVERY_BYTES + 1;
            assert!((most / 2..=most).contains(&count), "{first:?}: {count}");
        }
        let second = std::cell::Cell::new(0);
        let found = end(&text, 0, |_, _| second.replace(second.get() + 1) == 2);
        assert!(found.is_some_and(|found| found > PIECE_BYTES + ASKED_EVERY_BYTES));
    }
}
