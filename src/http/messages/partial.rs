//! Inputs of calls, which the end of the reply may cut off.

use serde_json::{Map, Value};

/// What a JSON object that breaks off tells of itself for sure: the members and items that are
/// complete, as the clients' libraries read it from a stream. Anything else is the empty object.
pub fn complete_part(json: &str) -> Value {
    let mut input = Input::default();
    let mut whole = input.push(json);
    whole.truncate(input.complete);
    whole.extend(input.open.iter().rev().map(|&close| char::from(close)));
    let object = serde_json::from_str::<Map<String, Value>>(&whole);
    Value::Object(object.unwrap_or_default())
}

/// JSON of an input as it comes, which is told as far as its values are complete: however the call
/// ends, a stream has told no more of it than a whole answer.
#[derive(Debug, Default)]
pub struct Input {
    /// Bytes so far, and the last of them that are not told.
    length: usize,
    held: String,
    in_string: bool,
    escaped: bool,
    /// A string that ends here is a member's name.
    in_name: bool,
    /// What closes the objects and lists that are open, here as behind the last complete value.
    open: Vec<u8>,
    /// Where the last value that is complete ends, or one begins that may be empty.
    complete: usize,
    /// The same, with the comma behind it.
    separated: usize,
}

impl Input {
    /// What is complete with `json` and was not told yet, and a comma behind it.
    pub fn push(&mut self, json: &str) -> String {
        self.held.push_str(json);
        json.bytes().for_each(|byte| self.take(byte));
        let told = self.length - self.held.len();
        let rest = self.held.split_off(self.separated - told);
        std::mem::replace(&mut self.held, rest)
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
            // A number is complete once something stands behind it.
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_complete_stays() {
        for (cut, expected) in [
            ("", json!({})),
            ("{", json!({})),
            (r#"{"a"#, json!({})),
            (r#"{"a":"#, json!({})),
            (r#"{"a":"b"#, json!({})),
            (r#"{"a":"b""#, json!({"a": "b"})),
            (r#"{"a":12"#, json!({})),
            (r#"{"a":12,"#, json!({"a": 12})),
            (r#"{"a":{"b":[1,{"c":"\"}]"#, json!({"a": {"b": [1, {}]}})),
            (
                r#"{"a":{"b":[1,{"c":"\""}],"d"#,
                json!({"a": {"b": [1, {"c": "\""}]}}),
            ),
            ("[1", json!({})),
            (r#"{"a" "b"}}"#, json!({})),
        ] {
            assert_eq!(complete_part(cut), expected, "{cut}");
        }
    }

    /// However it comes in pieces, and wherever it ends.
    #[test]
    fn what_is_told_piece_by_piece_is_what_is_told_at_once() {
        let text = json!({"a": "b\"c", "n": [1, -2.5e3, {}], "t": true}).to_string();
        for end in 0..=text.len() {
            let mut input = Input::default();
            let told: String = text[..end]
                .chars()
                .map(|piece| input.push(&piece.to_string()))
                .collect();
            assert!(text[..end].starts_with(&told));
            assert_eq!(complete_part(&told), complete_part(&text[..end]), "{told}");
            assert_eq!(Input::default().push(&told), told);
        }
    }

    /// Whatever is told stands in the whole as well, and with more text there is no less.
    #[test]
    fn every_cut_tells_a_part_of_the_whole() {
        let whole =
            json!({"p": "a\"\\{[,:", "n": -1.5e3, "t": [true, null, {"x": []}], "é": {"y": "🦀"}});
        let text = whole.to_string();
        let mut before = 0;
        for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let told = complete_part(&text[..at]);
            assert!(is_part(&told, &whole), "{told}");
            let size = told.to_string().len();
            assert!(size >= before, "{told}");
            before = size;
        }
        assert_eq!(complete_part(&text), whole);
    }

    fn is_part(part: &Value, whole: &Value) -> bool {
        match (part, whole) {
            (Value::Object(part), Value::Object(whole)) => part
                .iter()
                .all(|(name, value)| whole.get(name).is_some_and(|whole| is_part(value, whole))),
            (Value::Array(part), Value::Array(whole)) => {
                part.len() <= whole.len()
                    && part
                        .iter()
                        .zip(whole)
                        .all(|(part, whole)| is_part(part, whole))
            }
            (part, whole) => part == whole,
        }
    }
}
