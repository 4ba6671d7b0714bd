//! The end of a reply at a stop string, in what its client is told: text, and values in calls.
//!
//! What a client never sees ends nothing: reasoning, the markup of calls, and the braces, names and
//! quotes that make JSON of their arguments. Each stretch of text and each value is looked at by
//! itself, as it reads and not as JSON escapes it.

use std::collections::VecDeque;

use super::reply::{Delta, append};
use super::stop::{Found, StopMatcher};

/// Ends one reply at its stop strings.
#[derive(Debug)]
pub struct StopFilter {
    matcher: StopMatcher,
    /// The arguments of the call at hand.
    arguments: Arguments,
    /// Calls that were told of, and those of them whose arguments are complete.
    begun: usize,
    complete: usize,
    /// Bytes of content that were handed out.
    told: usize,
}

impl StopFilter {
    /// `stops` are non-empty strings.
    pub fn new(stops: &[String]) -> StopFilter {
        StopFilter {
            matcher: StopMatcher::new(stops),
            arguments: Arguments::default(),
            begun: 0,
            complete: 0,
            told: 0,
        }
    }

    /// Appends `delta` to `out` as far as no stop string may have begun in it. Returns which of
    /// them is complete, once one is; it and all that follows are dropped.
    pub fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) -> Option<usize> {
        match delta {
            Delta::Reasoning(_) => append(out, delta),
            Delta::Content(text) => {
                if self.arguments.is_begun() {
                    self.finish(out);
                }
                let mut told = String::new();
                let stopped = self.matcher.push(&text, &mut told);
                self.told += told.len();
                append(out, Delta::Content(told));
                return stopped;
            }
            Delta::ToolCall { .. } => {
                self.finish(out);
                self.begun += 1;
                append(out, delta);
            }
            Delta::Arguments { index, json } => {
                let mut told = String::with_capacity(json.len());
                let stopped = self.arguments.push(&json, &mut self.matcher, &mut told);
                append(out, Delta::Arguments { index, json: told });
                if stopped.is_none() && self.arguments.complete {
                    self.finish(out);
                    self.complete += 1;
                }
                return stopped;
            }
        }
        None
    }

    /// Appends to `out` what was held back for a stop string that never came.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        let mut text = String::new();
        self.matcher.finish(&mut text);
        self.told += text.len();
        append(out, Delta::Content(text));
        let arguments = std::mem::take(&mut self.arguments);
        let json = arguments.held.json + &arguments.escape;
        if let Some(index) = self.begun.checked_sub(1) {
            append(out, Delta::Arguments { index, json });
        }
        self.matcher.restart();
    }

    /// Whether stop strings are passed over from here on.
    pub fn mute(&mut self, muted: bool) {
        self.matcher.mute(muted);
    }

    /// Bytes of content that were handed out, and those that are held back.
    pub fn content(&self) -> (usize, usize) {
        (self.told, self.matcher.held())
    }

    /// Complete calls so far.
    pub fn calls(&self) -> usize {
        self.complete
    }

    /// Calls that were told of so far.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Whether a call was told of whose arguments are not complete.
    pub fn has_half_a_call(&self) -> bool {
        self.begun > self.complete
    }
}

/// Part of an object's JSON that its last character belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Structure,
    Name,
    Text,
    /// A number, a boolean or null.
    Scalar,
}

/// Follows the JSON of the arguments of one call.
#[derive(Debug, Default)]
struct Arguments {
    place: Place,
    /// Objects (true) and lists (false) that the place is in, the innermost last.
    inside: Vec<bool>,
    /// Whether the name of a member begins next.
    name_next: bool,
    complete: bool,
    /// An escape that is not complete.
    escape: String,
    held: Held,
}

impl Arguments {
    fn is_begun(&self) -> bool {
        !self.inside.is_empty()
    }

    /// Appends to `out` the JSON in which no stop string may have begun; returns one that is
    /// complete.
    fn push(&mut self, json: &str, matcher: &mut StopMatcher, out: &mut String) -> Option<usize> {
        for char in json.chars() {
            let found = match self.place {
                Place::Text if char == '\\' || !self.escape.is_empty() => {
                    self.escaped(char, matcher, out)
                }
                Place::Name if char == '\\' || !self.escape.is_empty() => {
                    self.escape = match self.escape.is_empty() {
                        true => char.to_string(),
                        false => String::new(),
                    };
                    out.push(char);
                    None
                }
                _ => self.plain(char, matcher, out),
            };
            if let Some(found) = found {
                return Some(found.which);
            }
        }
        None
    }

    fn plain(&mut self, char: char, matcher: &mut StopMatcher, out: &mut String) -> Option<Found> {
        self.step(char);
        let in_value = match self.place {
            Place::Text => char != '"',
            Place::Scalar => true,
            Place::Structure | Place::Name => false,
        };
        if in_value {
            let mut bytes = [0; 4];
            let raw = &*char.encode_utf8(&mut bytes);
            return self.held.push(raw, raw, matcher, out);
        }
        self.held.release(0, out);
        matcher.restart();
        out.push(char);
        None
    }

    /// Enters the place of `char`; quotes belong to no text.
    fn step(&mut self, char: char) {
        match (self.place, char) {
            (Place::Name | Place::Text, '"') => self.place = Place::Structure,
            (Place::Name | Place::Text, _) => {}
            (Place::Scalar, char) if !is_structure(char) => {}
            (_, char) => self.structure(char),
        }
    }

    fn structure(&mut self, char: char) {
        self.place = Place::Structure;
        match char {
            '"' if self.name_next => self.place = Place::Name,
            '"' => self.place = Place::Text,
            '{' | '[' => {
                self.inside.push(char == '{');
                self.name_next = char == '{';
            }
            '}' | ']' => {
                self.inside.pop();
                self.name_next = false;
                self.complete = self.inside.is_empty();
            }
            ',' => self.name_next = self.inside.last() == Some(&true),
            ':' => self.name_next = false,
            char if !is_structure(char) && !self.name_next => self.place = Place::Scalar,
            _ => {}
        }
    }

    /// Takes a character of an escape in a text. One beyond the first plane is two escapes.
    fn escaped(
        &mut self,
        char: char,
        matcher: &mut StopMatcher,
        out: &mut String,
    ) -> Option<Found> {
        let lone = match self.escape.len() {
            UNIT => char != '\\',
            PREFIXED => char != 'u',
            _ => false,
        };
        if lone {
            let rest = self.escape.split_off(UNIT);
            let alone = std::mem::replace(&mut self.escape, rest);
            let found = self.held.push(UNREADABLE, &alone, matcher, out);
            if found.is_some() {
                return found;
            }
            if self.escape.is_empty() {
                return self.plain(char, matcher, out);
            }
        }
        self.escape.push(char);
        if !is_whole(&self.escape) {
            return None;
        }
        let raw = std::mem::take(&mut self.escape);
        let read = serde_json::from_str(&format!("\"{raw}\""));
        let read = read.unwrap_or_else(|_| UNREADABLE.to_string());
        self.held.push(&read, &raw, matcher, out)
    }
}

/// Bytes of an escape by number, and of one with the backslash of a second behind it.
const UNIT: usize = "\\u0000".len();
const PREFIXED: usize = UNIT + 1;
/// Stands for an escape of no character.
const UNREADABLE: &str = "\u{fffd}";

/// Whether an escape is complete.
fn is_whole(escape: &str) -> bool {
    let by_number = escape.starts_with("\\u");
    match escape.len() {
        0 | 1 => false,
        UNIT => !by_number || !is_high_surrogate(&escape[..UNIT]),
        length => !by_number || length >= 2 * UNIT,
    }
}

fn is_high_surrogate(escape: &str) -> bool {
    let number = escape.get(2..);
    let number = number.map(|digits| u16::from_str_radix(digits, 16));
    matches!(number, Some(Ok(0xd800..=0xdbff)))
}

fn is_structure(char: char) -> bool {
    "{}[],:\"".contains(char) || char.is_ascii_whitespace()
}

/// JSON of the characters with which a stop string may have begun.
#[derive(Debug, Default)]
struct Held {
    json: String,
    /// Bytes of each character as it reads and as it is written.
    lengths: VecDeque<(usize, usize)>,
    /// Bytes of all of them as they read.
    read: usize,
}

impl Held {
    /// Takes a character; appends to `out` those in which no stop string may have begun, or all up
    /// to the one that is complete.
    fn push(
        &mut self,
        read: &str,
        raw: &str,
        matcher: &mut StopMatcher,
        out: &mut String,
    ) -> Option<Found> {
        if matcher.is_empty() {
            out.push_str(raw);
            return None;
        }
        self.json.push_str(raw);
        self.lengths.push_back((read.len(), raw.len()));
        self.read += read.len();
        let found = read.bytes().find_map(|byte| matcher.advance(byte));
        match found {
            Some(found) => {
                self.release(found.length, out);
                *self = Held::default();
            }
            None => self.release(matcher.begun(), out),
        }
        found
    }

    /// Appends to `out` all but the last characters, which have at least `kept` bytes.
    fn release(&mut self, kept: usize, out: &mut String) {
        let mut length = 0;
        while let Some(&(read, raw)) = self.lengths.front()
            && self.read - read >= kept
        {
            self.lengths.pop_front();
            self.read -= read;
            length += raw;
        }
        out.push_str(&self.json[..length]);
        self.json.drain(..length);
    }
}

#[cfg(test)]
mod tests;
