//! Text on the way to tokens and back: chat template, tokenizer, and parsers of a reply's text.
//!
//! Prompt: [`control`] keeps messages from forging the structure, which [`framing`] finds,
//! [`template`] renders messages, [`tokenizer`] (or [`tekken`]) encodes texts that [`segments`] has
//! not cached. Reply: [`reply`] chains [`detokenize`] (complete UTF-8, with [`spelling`] of
//! tokens), [`reasoning`], [`tools`] and [`stopping`] (stop strings, by [`stop`]). Every stage is
//! incremental, and cutting its input elsewhere never changes the concatenation of its output.
//! [`grammar`] compiles the constraints of a reply. Long computations are cut in steps by [`work`].

pub mod chat;
pub mod control;
pub mod detokenize;
pub mod drawn;
pub mod framing;
pub mod grammar;
pub mod identity;
pub mod pieces;
pub mod reasoning;
pub mod reply;
pub mod segments;
pub mod spelling;
pub mod stop;
pub mod stopping;
pub mod tekken;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tokenizer;
pub mod tools;
pub mod work;

/// Length of `text` up to and including the first character that `ends` accepts; the first
/// character of the text and characters after a backslash do not count.
fn past_unescaped(text: &str, ends: impl Fn(usize, char) -> bool) -> Option<usize> {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if ends(at, char) => return Some(at + char.len_utf8()),
            _ => {}
        }
    }
    None
}

/// Length of the longest suffix of `text` that is a proper prefix of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1))
        .rev()
        .find(|&len| text.as_bytes().ends_with(&tag.as_bytes()[..len]))
        .unwrap_or(0)
}
