//! Whole numbers beyond 64 bits, which `serde_json` values cannot represent. Such numbers become
//! strings with a mark, and numbers again in the template, as in Python.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};

/// Mark of strings that are numbers: a character that Unicode reserves for use in programs.
const SIGN: char = '\u{fdef}';
/// Digits of numbers that surely fit into 64 bits.
const DIGITS_SAFE: usize = 18;

/// A whole number of any size, as text.
#[derive(Debug)]
pub(super) struct Digits(String);

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// JSON text in which whole numbers beyond 64 bits are replaced by strings with a mark.
pub fn quoted(json: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    let bytes = json.as_bytes();
    while at < bytes.len() {
        let start = at;
        at = match bytes[at] {
            b'"' => past_string(bytes, at),
            b'-' | b'0'..=b'9' => past_number(bytes, at),
            _ => at + 1,
        };
        // Steps outside of numbers may end inside a character, where `json` cannot be cut.
        let is_number = matches!(bytes[start], b'-' | b'0'..=b'9');
        if is_number && is_beyond(&json[start..at]) {
            out.push_str(&json[copied..start]);
            out.extend(['"', SIGN]);
            out.push_str(&json[start..at]);
            out.push('"');
            copied = at;
        }
    }
    match copied {
        0 => Cow::Borrowed(json),
        _ => Cow::Owned(out + &json[copied..]),
    }
}

fn past_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn past_number(bytes: &[u8], start: usize) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let number = bytes[start..].iter();
    let length = number.take_while(|byte| is_part(byte)).count();
    start + length
}

/// Whether `number` is a whole number of JSON that does not fit into 64 bits.
fn is_beyond(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    let fits = || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
    digits.len() > DIGITS_SAFE && is_whole && !fits()
}

/// The number from which [`quoted`] made `text`; None for other texts.
pub(super) fn value(text: &str) -> Option<Value> {
    let number = text.strip_prefix(SIGN).filter(|number| is_beyond(number))?;
    Some(match number.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(Digits(number.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_64_bits_become_texts() {
        let long = "123456789012345678901234567890";
        for (json, expected) in [
            ("[1, -2.5e30, 18446744073709551615]", None),
            (
                "{\"a\": \"18446744073709551616\\\" 99999999999999999999\"}",
                None,
            ),
            (
                "99999999999999999999.5 00000000000000000000 1e99999999999999999999",
                None,
            ),
            (
                "[18446744073709551616]",
                Some("[\"\u{fdef}18446744073709551616\"]"),
            ),
            (
                "{\"é\":-9223372036854775809}",
                Some("{\"é\":\"\u{fdef}-9223372036854775809\"}"),
            ),
            ("\"\\", None),
            ("é\"\\é 起点", None),
            (
                "起99999999999999999999",
                Some("起\"\u{fdef}99999999999999999999\""),
            ),
        ] {
            assert_eq!(quoted(json), expected.unwrap_or(json));
        }
        let shown = |number: &str| value(&format!("{SIGN}{number}")).unwrap().to_string();
        assert_eq!(shown(long), long);
        assert_eq!(shown(&long.repeat(3)), long.repeat(3));
        assert!(value(long).is_none() && value("\u{fdef}12").is_none());
    }
}
