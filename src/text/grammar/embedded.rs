//! JSON schemas inside a Lark grammar, after `%json`.
//!
//! The schemas are rewritten as stand-alone schemas are, so that formats, bounds and limits of
//! white space are the same.

use std::iter;
use std::ops::Range;

use serde_json::{Deserializer, Value};

use super::JsonGrammar;
use super::keywords::standard;
use crate::past_unescaped;

const MARK: &str = "%json";

/// A Lark grammar whose schemas are rewritten for llguidance.
///
/// # Errors
/// Names the line of a schema and the part of it that cannot be enforced.
pub fn written(lark: &str) -> Result<String, String> {
    let (mut text, mut copied) = (String::with_capacity(lark.len()), 0);
    for (range, schema) in schemas(lark) {
        let json = JsonGrammar {
            schema: standard(&schema),
            strict: true,
            whitespace: true,
        };
        let (schema, _) = json.written().map_err(|problem| {
            let line = lark[..range.start].matches('\n').count() + 1;
            format!("{MARK} in line {line}: {problem}")
        })?;
        text.push_str(&lark[copied..range.start]);
        text.push_str(&schema.to_string());
        copied = range.end;
    }
    text.push_str(&lark[copied..]);
    Ok(text)
}

/// Schemas of a Lark grammar, with their byte ranges. Text after `%json` that is not JSON is
/// skipped, and llguidance refuses it.
fn schemas(lark: &str) -> impl Iterator<Item = (Range<usize>, Value)> {
    let mut at = 0;
    iter::from_fn(move || {
        while let Some(first) = lark[at..].chars().next() {
            let rest = &lark[at..];
            if let Some(after) = rest.strip_prefix(MARK) {
                let start = at + MARK.len();
                let mut values = Deserializer::from_str(after).into_iter::<Value>();
                let schema = values.next();
                at = start;
                if let Some(Ok(schema)) = schema {
                    at += values.byte_offset();
                    return Some((start..at, schema));
                }
                continue;
            }
            at += skipped(rest).unwrap_or(first.len_utf8());
        }
        None
    })
}

/// Bytes of the comment, string, expression or name at the head of `text`.
fn skipped(text: &str) -> Option<usize> {
    let to_line_end = || text.find('\n').unwrap_or(text.len());
    match text.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => Some(to_line_end()),
        [quote @ (b'"' | b'/'), ..] => past_unescaped(text, |_, char| char == char::from(*quote)),
        [b'<', ..] => {
            let end = text[1..].find(|c: char| c.is_whitespace() || "<>".contains(c))?;
            text[1 + end..].starts_with('>').then_some(end + 2)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_alone_are_written_anew() {
        let text = "start: \"%json {}\" /%json \\/{}\n/ <%json> a // %json {}\n# %json {}\na: b";
        assert_eq!(written(text), Ok(text.to_string()));
        let lark = written("start: %json {\"type\": \"null\"} | \"\\\"\" %json true\n").unwrap();
        assert_eq!(lark.matches("\"x-guidance\"").count(), 2, "{lark}");
        assert!(
            lark.starts_with("start: %json{\"type\":\"null\","),
            "{lark}"
        );
        assert!(lark.ends_with("}\n"), "{lark}");
    }

    #[test]
    fn what_is_not_enforced_is_refused_with_its_line() {
        let refused = written("start: a\na: %json {\"uniqueItems\": true}").unwrap_err();
        assert!(refused.starts_with("%json in line 2: "), "{refused}");
        assert!(refused.contains("uniqueItems"), "{refused}");
        let broken = "start: %json {";
        assert_eq!(written(broken), Ok(broken.to_string()));
    }
}
