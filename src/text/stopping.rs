//! End of an output at a stop string, in its content and in the values of its calls.
//!
//! Reasoning, the markup of calls, and the braces, names and quotes of their JSON contain no stop
//! string. Each stretch of content and each value is searched separately, in unescaped form.

use std::collections::VecDeque;

use super::reply::{Delta, append};
use super::stop::{Found, StopMatcher};

/// Filter that ends one output at its stop strings.
#[derive(Debug)]
pub struct StopFilter {
    matcher: StopMatcher,
    /// Parser of the current call's arguments.
    arguments: Arguments,
    /// Number of calls announced.
    begun: usize,
    /// Number of calls whose arguments are complete.
    complete: usize,
    /// Bytes of content passed on.
    sent: usize,
}

impl StopFilter {
    /// Filter for `stops`, which are not empty.
    pub fn new(stops: &[String]) -> StopFilter {
        StopFilter {
            matcher: StopMatcher::new(stops),
            arguments: Arguments::default(),
            begun: 0,
            complete: 0,
            sent: 0,
        }
    }

    /// Appends `delta` to `out` up to a possible start of a stop string. Returns the index of a
    /// complete stop string, from which on all text is dropped.
    pub fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) -> Option<usize> {
        match delta {
            Delta::Reasoning(_) => append(out, delta),
            Delta::Content(text) => {
                if self.arguments.is_begun() {
                    self.finish(out);
                }
                let mut sent = String::new();
                let stopped = self.matcher.push(&text, &mut sent);
                self.sent += sent.len();
                append(out, Delta::Content(sent));
                return stopped;
            }
            Delta::ToolCall { .. } => {
                self.finish(out);
                self.begun += 1;
                append(out, delta);
            }
            Delta::Arguments { index, json } => {
                let mut sent = String::with_capacity(json.len());
                let stopped = self.arguments.push(&json, &mut self.matcher, &mut sent);
                append(out, Delta::Arguments { index, json: sent });
                if stopped.is_none() && self.arguments.complete {
                    self.finish(out);
                    self.complete += 1;
                }
                return stopped;
            }
        }
        None
    }

    /// Appends to `out` the text held back for a stop string that did not come.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        let mut text = String::new();
        self.matcher.finish(&mut text);
        self.sent += text.len();
        append(out, Delta::Content(text));
        let arguments = std::mem::take(&mut self.arguments);
        let json = arguments.partial.json + &arguments.escape;
        if let Some(index) = self.begun.checked_sub(1) {
            append(out, Delta::Arguments { index, json });
        }
        self.matcher.restart();
    }

    /// Sets whether stop strings are ignored.
    pub fn mute(&mut self, muted: bool) {
        self.matcher.mute(muted);
    }

    /// Bytes of content passed on, and bytes of content held back.
    pub fn content(&self) -> (usize, usize) {
        (self.sent, self.matcher.pending())
    }

    /// Number of complete calls so far.
    pub fn calls(&self) -> usize {
        self.complete
    }

    /// Number of calls announced so far.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Whether the last announced call has incomplete arguments.
    pub fn has_half_a_call(&self) -> bool {
        self.begun > self.complete
    }
}

/// Kind of the JSON token that has the last character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JsonToken {
    #[default]
    Structure,
    Name,
    Text,
    /// A number, a boolean or null.
    Scalar,
}

/// Streaming scanner of the JSON of one call's arguments.
#[derive(Debug, Default)]
struct Arguments {
    token: JsonToken,
    /// Objects (true) and lists (false) around the current token, the innermost last.
    inside: Vec<bool>,
    /// Whether a member's name comes next in an object.
    name_next: bool,
    complete: bool,
    /// Start of an incomplete escape.
    escape: String,
    partial: PartialMatch,
}

impl Arguments {
    fn is_begun(&self) -> bool {
        !self.inside.is_empty()
    }

    /// Appends to `out` the JSON before a possible start of a stop string; returns the index of a
    /// stop string that `json` completes.
    fn push(&mut self, json: &str, matcher: &mut StopMatcher, out: &mut String) -> Option<usize> {
        for char in json.chars() {
            let found = match self.token {
                JsonToken::Text if char == '\\' || !self.escape.is_empty() => {
                    self.escaped(char, matcher, out)
                }
                JsonToken::Name if char == '\\' || !self.escape.is_empty() => {
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
        let in_value = match self.token {
            JsonToken::Text => char != '"',
            JsonToken::Scalar => true,
            JsonToken::Structure | JsonToken::Name => false,
        };
        if in_value {
            let mut bytes = [0; 4];
            let raw = &*char.encode_utf8(&mut bytes);
            return self.partial.push(raw, raw, matcher, out);
        }
        self.partial.release(0, out);
        matcher.restart();
        out.push(char);
        None
    }

    /// Sets the kind of the JSON token that has `char`; quotes belong to the structure.
    fn step(&mut self, char: char) {
        match (self.token, char) {
            (JsonToken::Name | JsonToken::Text, '"') => self.token = JsonToken::Structure,
            (JsonToken::Name | JsonToken::Text, _) => {}
            (JsonToken::Scalar, char) if !is_structure(char) => {}
            (_, char) => self.structure(char),
        }
    }

    fn structure(&mut self, char: char) {
        self.token = JsonToken::Structure;
        match char {
            '"' if self.name_next => self.token = JsonToken::Name,
            '"' => self.token = JsonToken::Text,
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
            char if !is_structure(char) && !self.name_next => self.token = JsonToken::Scalar,
            _ => {}
        }
    }

    /// Takes a character of an escape in a string. Characters beyond U+FFFF are two escapes.
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
            let found = self.partial.push(UNREADABLE, &alone, matcher, out);
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
        self.partial.push(&read, &raw, matcher, out)
    }
}

/// Bytes of an escape `\uXXXX`.
const UNIT: usize = "\\u0000".len();
/// Bytes of an escape `\uXXXX` and the backslash of a second one.
const PREFIXED: usize = UNIT + 1;
/// Text of an escape that is no character.
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

/// JSON at the end of a value that may begin a stop string.
#[derive(Debug, Default)]
struct PartialMatch {
    json: String,
    /// Bytes of each character in `json`, unescaped and as written.
    lengths: VecDeque<(usize, usize)>,
    /// Bytes of all characters in `json`, unescaped.
    read: usize,
}

impl PartialMatch {
    /// Takes a character; appends to `out` the characters that begin no stop string, or precede a
    /// complete one.
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
                *self = PartialMatch::default();
            }
            None => self.release(matcher.begun(), out),
        }
        found
    }

    /// Appends to `out` all characters but the last, which have `withheld` or more unescaped bytes.
    fn release(&mut self, withheld: usize, out: &mut String) {
        let mut length = 0;
        while let Some(&(read, raw)) = self.lengths.front()
            && self.read - read >= withheld
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
