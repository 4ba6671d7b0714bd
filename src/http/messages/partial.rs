//! Arguments of tool calls (`input`), which the end of the reply may cut off.

use serde_json::{Map, Value};

/// Complete members and items of a JSON object that was cut off, as clients' libraries read it from
/// a stream. Other JSON gives the empty object.
pub fn complete_part(json: &str) -> Value {
    let mut input = Input::default();
    let mut whole = input.push(json);
    whole.truncate(input.complete);
    whole.extend(input.open.iter().rev().map(|&close| char::from(close)));
    let object = serde_json::from_str::<Map<String, Value>>(&whole);
    Value::Object(object.unwrap_or_default())
}

/// Streamed JSON of a call's arguments, passed on up to its last complete value, so that the events
/// of a stream never add up to more than a whole answer of the same reply.
#[derive(Debug, Default)]
pub struct Input {
    /// Bytes of JSON that have been read.
    length: usize,
    pending: String,
    in_string: bool,
    escaped: bool,
    /// Whether the next string to end is a member's name.
    in_name: bool,
    /// Brackets that close the objects and lists open here, and also after the last complete value.
    open: Vec<u8>,
    /// Length up to the end of the last complete value, or to the start of a possibly empty one.
    complete: usize,
    /// Length up to the comma after the last complete value.
    separated: usize,
}

impl Input {
    /// Reads more of the JSON. Returns new text up to the last complete value and its comma.
    pub fn push(&mut self, json: &str) -> String {
        self.pending.push_str(json);
        json.bytes().for_each(|byte| self.take(byte));
        let passed_on = self.length - self.pending.len();
        let rest = self.pending.split_off(self.separated - passed_on);
        std::mem::replace(&mut self.pending, rest)
    }

    fn take(&mut self, byte: u8) {
        let at = self.length;
        self.length += 1;
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => {
                self.in_string = !self.in_string;
                if !self.in_string && !self.in_name {
                    self.complete_at(at + 1);
                }
            }
            _ if self.in_string => {}
            b'{' | b'[' => {
                self.open.push(byte + 2);
                self.in_name = byte == b'{';
                self.complete_at(at + 1);
            }
            b'}' | b']' => {
                self.open.pop();
                self.complete_at(at + 1);
            }
            // A number is complete once another character follows it.
            b',' => {
                self.complete_at(at);
                self.separated = at + 1;
                self.in_name = self.open.last() == Some(&b'}');
            }
            b':' => self.in_name = false,
            _ => {}
        }
    }

    fn complete_at(&mut self, at: usize) {
        (self.complete, self.separated) = (at, at);
    }
}

#[cfg(test)]
mod tests;
