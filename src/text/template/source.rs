//! Rewriting of a template's source for the engine.
//!
//! The engine reads nearly all of Jinja as Python's library does. Parts that the engine reads
//! differently are rewritten before compiling:
//!
//! - `{% generation %}`, a tag of Hugging Face's renderer around text of the model, becomes a block
//!   with a scope of variables;
//! - operands of `~` are made texts by a filter of this server, as Python makes them, and bind as
//!   tightly as in Jinja;
//! - loops over a text get its length.

use super::filters::{SIZED, STRING};
use crate::past_unescaped;

/// Operators of two characters.
const PAIRS: [&str; 6] = ["==", "!=", "<=", ">=", "//", "**"];

/// Rewrites a chat template into the engine's dialect of Jinja. Syntax errors are kept for the
/// compiler.
pub(super) fn rewritten(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() * 2);
    let mut rest = source.as_str();
    while let Some(at) = rest.find('{') {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => past(tag, "#}"),
            Some(b'{') => rewrite_tag(tag, "}}", &mut out),
            Some(b'%') => rewrite_tag(tag, "%}", &mut out),
            _ => Some(1),
        };
        // Comments and lone braces are copied here; `rewrite_tag` has written tags and raw blocks.
        let Some(length) = length else {
            out.push_str(tag);
            return out;
        };
        let copied = matches!(tag.as_bytes().get(1), Some(b'{' | b'%'));
        if !copied {
            out.push_str(&tag[..length]);
        }
        rest = &tag[length..];
    }
    out.push_str(rest);
    out
}

/// Bytes of `text` up to and including the first `end`.
fn past(text: &str, end: &str) -> Option<usize> {
    text.find(end).map(|at| at + end.len())
}

/// A token inside a tag.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Token<'a> {
    text: &'a str,
    start: usize,
    /// Number of brackets around the token; a bracket itself lies outside.
    depth: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Writes the tag at the start of `text`, rewritten, or a raw block as it is; returns its length.
/// None if the end is missing.
fn rewrite_tag(text: &str, end: &str, out: &mut String) -> Option<usize> {
    let (tokens, length) = tokens(text, end)?;
    let word = tokens.first().map_or("", |token| token.text);
    if end == "%}" && word == "raw" {
        let length = length + past_raw(&text[length..])?;
        out.push_str(&text[..length]);
        return Some(length);
    }
    let mut edits = Vec::new();
    let is_statement = end == "%}";
    concatenations(&tokens, usize::from(is_statement), &mut edits);
    match word {
        "generation" if is_statement => edits.push(Edit::replace(tokens[0], "with")),
        "endgeneration" if is_statement => edits.push(Edit::replace(tokens[0], "endwith")),
        "for" if is_statement => size_loop(&tokens, &mut edits),
        _ => {}
    }
    apply(&text[..length], edits, out);
    Some(length)
}

/// Bytes up to and including the tag that ends a raw block.
fn past_raw(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("{%")?;
        let inner = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        if let Some(rest) = inner.strip_prefix("endraw") {
            let close = past(rest, "%}")?;
            return Some(text.len() - rest.len() + close);
        }
        from = at + 2;
    }
}

/// Tokens of the tag at the start of `text`, and its length; `end` closes it outside of brackets.
fn tokens<'a>(text: &'a str, end: &str) -> Option<(Vec<Token<'a>>, usize)> {
    let mut tokens = Vec::new();
    let mut depth = 0;
    let mut at = 2 + usize::from(text[2..].starts_with(['-', '+']));
    loop {
        let rest = &text[at..];
        let signed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if depth == 0 && signed.starts_with(end) {
            return Some((tokens, at + rest.len() - signed.len() + end.len()));
        }
        let first = rest.chars().next()?;
        let length = match first {
            '\'' | '"' => string_length(rest)?,
            c if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                end.unwrap_or(rest.len())
            }
            _ if PAIRS.iter().any(|pair| rest.starts_with(pair)) => 2,
            c => c.len_utf8(),
        };
        if matches!(first, ')' | ']' | '}') {
            depth = usize::checked_sub(depth, 1)?;
        }
        if !first.is_whitespace() {
            tokens.push(Token {
                text: &rest[..length],
                start: at,
                depth,
            });
        }
        if matches!(first, '(' | '[' | '{') {
            depth += 1;
        }
        at += length;
    }
}

/// Bytes of the string literal at the start of `text`.
fn string_length(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    past_unescaped(text, |_, c| c == quote)
}

/// A change of a tag: `text` replaces the bytes of a range.
struct Edit {
    start: usize,
    end: usize,
    text: String,
}

impl Edit {
    fn replace(token: Token<'_>, text: &str) -> Edit {
        Edit {
            start: token.start,
            end: token.end(),
            text: text.to_string(),
        }
    }

    fn insert(at: usize, text: String) -> Edit {
        Edit {
            start: at,
            end: at,
            text,
        }
    }
}

/// Puts tokens into brackets, and `filter` after the brackets.
fn wrap(tokens: &[Token<'_>], filter: &str, edits: &mut Vec<Edit>) {
    if let (Some(first), Some(last)) = (tokens.first(), tokens.last()) {
        edits.push(Edit::insert(first.start, "(".to_string()));
        edits.push(Edit::insert(last.end(), format!("){filter}")));
    }
}

/// Applies edits, which do not overlap, to `text`. Edits at one position keep their order.
fn apply(text: &str, mut edits: Vec<Edit>, out: &mut String) {
    edits.sort_by_key(|edit| edit.start);
    let mut copied = 0;
    for edit in edits {
        out.push_str(&text[copied..edit.start]);
        out.push_str(&edit.text);
        copied = edit.end;
    }
    out.push_str(&text[copied..]);
}

/// Passes the sequence that a `for` tag runs over through the filter [`SIZED`].
fn size_loop(tokens: &[Token<'_>], edits: &mut Vec<Edit>) {
    let top = |word: &str, from: usize| {
        let is_word = |token: &Token<'_>| token.depth == 0 && token.text == word;
        let found = tokens[from..].iter().position(is_word);
        found.map(|at| from + at)
    };
    let Some(start) = top("in", 1) else { return };
    let end = [top("if", start), top("recursive", start)];
    let end = end.into_iter().flatten().min().unwrap_or(tokens.len());
    wrap(&tokens[start + 1..end], &format!("|{SIZED}"), edits);
}

/// Passes the operands of each `~` through the filter [`STRING`].
fn concatenations(tokens: &[Token<'_>], first: usize, edits: &mut Vec<Edit>) {
    for at in first..tokens.len() {
        if tokens[at].text == "~" {
            concatenation(tokens, first, at, edits);
        }
    }
}

/// Passes the operands of the `~` at `at`, and of each `~` joined with it, through [`STRING`],
/// unless an earlier `~` has done so.
fn concatenation(tokens: &[Token<'_>], first: usize, at: usize, edits: &mut Vec<Edit>) {
    let depth = tokens[at].depth;
    let ends = |index: &usize| tokens[*index].depth < depth || is_end(tokens, first, *index, depth);
    let before = (first..at).rev().find(ends);
    if before.is_some_and(|index| tokens[index].depth == depth && tokens[index].text == "~") {
        return;
    }
    let start = before.map_or(first, |index| index + 1);
    let mut from = start;
    loop {
        let end = (from..tokens.len()).find(ends).unwrap_or(tokens.len());
        wrap(&tokens[from..end], &format!("|{STRING}"), edits);
        let goes_on = |token: &Token<'_>| token.text == "~" && token.depth == depth;
        if !tokens.get(end).is_some_and(goes_on) {
            wrap(&tokens[start..end], "", edits);
            return;
        }
        from = end + 1;
    }
}

/// Whether the token at `index` ends an operand of a `~` at the depth `depth`.
fn is_end(tokens: &[Token<'_>], first: usize, index: usize, depth: usize) -> bool {
    let token = tokens[index];
    let before = (index > first).then(|| tokens[index - 1].text);
    if token.depth != depth {
        return false;
    }
    match token.text {
        "~" | "+" | "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" | "and" | "or"
        | "if" | "else" | "recursive" => true,
        // A minus belongs to a number unless a value precedes; `is not` and `is in` are tests.
        "-" => before.is_some_and(is_value),
        "not" | "in" => before != Some("is"),
        _ => false,
    }
}

/// Whether a token ends a value, so that a minus after it is an operator.
fn is_value(token: &str) -> bool {
    let word = token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let keyword = ["and", "or", "not", "in", "is", "if", "else"].contains(&token);
    word && !keyword || token.starts_with(['\'', '"']) || [")", "]", "}"].contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_linear};

    #[test]
    fn operands_of_a_tilde_become_texts() {
        for (source, expected) in [
            ("{{ a~b }}", "{{ ((a)|string~(b)|string) }}"),
            (
                "{{- a ~ b ~ 'c' -}}",
                "{{- ((a)|string ~ (b)|string ~ ('c')|string) -}}",
            ),
            (
                "{{ x + a ~ b == c }}",
                "{{ x + ((a)|string ~ (b)|string) == c }}",
            ),
            (
                "{{ a * b ~ -c|f }}",
                "{{ ((a * b)|string ~ (-c|f)|string) }}",
            ),
            ("{{ a - b ~ c }}", "{{ a - ((b)|string ~ (c)|string) }}"),
            (
                "{{ f(a ~ b)[c] ~ d }}",
                "{{ ((f(((a)|string ~ (b)|string))[c])|string ~ (d)|string) }}",
            ),
            (
                "{% if not a ~ b in c %}",
                "{% if not ((a)|string ~ (b)|string) in c %}",
            ),
            (
                "{% set x = a ~ b if c else d %}",
                "{% set x = ((a)|string ~ (b)|string) if c else d %}",
            ),
            (
                "{{ {'~': a ~ '}}'} }}",
                "{{ {'~': ((a)|string ~ ('}}')|string)} }}",
            ),
            (
                "~{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}~",
                "~{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}~",
            ),
        ] {
            assert_eq!(rewritten(source), expected);
        }
    }

    #[test]
    fn loops_run_over_what_has_a_length() {
        for (source, expected) in [
            ("{% for x in y %}", "{% for x in (y)|sized__ %}"),
            (
                "{%- for k, v in y.items() if k in v -%}",
                "{%- for k, v in (y.items())|sized__ if k in v -%}",
            ),
            (
                "{% for x in y recursive %}",
                "{% for x in (y)|sized__ recursive %}",
            ),
            (
                "{% for x in a ~ b %}",
                "{% for x in (((a)|string ~ (b)|string))|sized__ %}",
            ),
        ] {
            assert_eq!(rewritten(source), expected);
        }
    }

    #[test]
    fn what_is_no_template_is_left_alone() {
        for source in [
            "{",
            "{{",
            "{% for",
            "{{ 'a ~ b",
            "{{ a ~ b )",
            "{% raw %}{{ a ~ b }}",
            "{# a",
            "é{é}",
        ] {
            assert_eq!(rewritten(source), source);
        }
    }

    /// Nothing panics, and a source without what is rewritten stays as it is.
    #[test]
    fn any_source_is_read() {
        const PARTS: [&str; 24] = [
            "{{",
            "}}",
            "{%",
            "%}",
            "{#",
            "#}",
            "-",
            "+",
            "~",
            "for ",
            " in ",
            " if ",
            "raw",
            "endraw",
            "generation",
            "'",
            "\\",
            "(",
            ")",
            "[",
            "}",
            "é",
            " is not ",
            "x",
        ];
        let mut random = Random::new(12);
        for _ in 0..20_000 {
            let parts = 0..random.below(16);
            let source: String = parts.map(|_| PARTS[random.below(24)]).collect();
            let found = rewritten(&source);
            if !["~", "for", "generation"]
                .iter()
                .any(|word| source.contains(word))
            {
                assert_eq!(found, source);
            }
        }
    }

    #[test]
    fn rewriting_takes_time_linear_in_the_source() {
        for unit in ["{{ a }}", "{% raw %}", "{{", "{{ a ~ b }}", "{# "] {
            assert_linear(unit, |text| drop(rewritten(text)));
        }
    }
}
