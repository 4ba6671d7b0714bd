//! Free text of a custom tool, extracted from the JSON of a call's arguments as it is streamed.

use crate::generate::tools::CUSTOM_ARGUMENT;

/// Bytes of a JSON escape of one letter, such as `\n`.
const ESCAPE: usize = 2;
/// Bytes of a JSON escape of a UTF-16 unit, such as `\u00e9`.
const BY_NUMBER: usize = 6;
/// Bytes of a surrogate pair, two escapes for one character.
const PAIR: usize = 2 * BY_NUMBER;

/// Extractor of the free text of one call.
#[derive(Debug, Default)]
pub struct FreeText {
    /// Free text that has been extracted so far.
    text: String,
    /// Bytes of the arguments that are read; 0 until the text begins.
    read: usize,
    /// Whether the text has ended, or cannot come.
    ended: bool,
}

impl FreeText {
    /// Text added to `arguments`, which only grow at the end, since the last call.
    pub fn more(&mut self, arguments: &str) -> String {
        if self.read == 0 {
            self.read = beginning(arguments).unwrap_or_default();
        }
        if self.read == 0 || self.ended {
            return String::new();
        }
        let rest = &arguments[self.read..];
        let length = sure(rest);
        self.ended = rest[length..].starts_with('"');
        let read = serde_json::from_str::<String>(&format!("\"{}\"", &rest[..length]));
        let more = read.unwrap_or_else(|_| {
            self.ended = true;
            String::new()
        });
        self.read += length;
        self.text.push_str(&more);
        more
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Offset at which the text begins; None while that is unknown, or if another member comes first.
fn beginning(arguments: &str) -> Option<usize> {
    let rest = arguments.trim_start().strip_prefix('{')?.trim_start();
    let rest = rest.strip_prefix('"')?.strip_prefix(CUSTOM_ARGUMENT)?;
    let rest = rest.strip_prefix('"')?.trim_start().strip_prefix(':')?;
    let rest = rest.trim_start().strip_prefix('"')?;
    Some(arguments.len() - rest.len())
}

/// Bytes of a JSON string up to its end, or to an incomplete escape.
fn sure(json: &str) -> usize {
    let mut at = 0;
    while let Some(&byte) = json.as_bytes().get(at) {
        let length = match byte {
            b'"' => break,
            b'\\' => escape(&json[at..]),
            _ => 1,
        };
        if at + length > json.len() {
            break;
        }
        at += length;
    }
    at
}

/// Bytes of the escape at the start of `json`.
fn escape(json: &str) -> usize {
    let high = |digits: &str| {
        matches!(
            digits.as_bytes(),
            [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]
        )
    };
    match json.as_bytes().get(1) {
        Some(b'u') if json.get(2..).is_some_and(high) => PAIR,
        Some(b'u') => BY_NUMBER,
        _ => ESCAPE,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn however_the_arguments_come_the_text_is_the_same() {
        let text = "*** \"Begin\" \\n\n\té🦀\u{1}\\";
        let plain = json!({"input": text}).to_string();
        let escaped = r#" { "input" : "*** \"Begin\" \\n\n\t\u00e9\ud83e\udd80\u0001\\" }"#;
        for arguments in [plain.as_str(), escaped] {
            let (mut passed_on, mut follower) = (String::new(), FreeText::default());
            for (at, _) in arguments.char_indices() {
                passed_on.push_str(&follower.more(&arguments[..at]));
                assert!(text.starts_with(&passed_on), "{passed_on}");
            }
            passed_on.push_str(&follower.more(arguments));
            assert_eq!((passed_on.as_str(), follower.text()), (text, text));
        }
    }

    #[test]
    fn what_is_cut_is_passed_on_up_to_there() {
        let mut follower = FreeText::default();
        assert_eq!(follower.more(r#"{"input":"a\u00e"#), "a");
        assert_eq!(follower.text(), "a");
        for none in ["", "{\"inp", "{\"other\":\"a", "{\"input\":3", "[\"input"] {
            assert_eq!(FreeText::default().more(none), "", "{none}");
        }
        assert_eq!(FreeText::default().more(r#"{"input":"a\q"#), "");
    }
}
