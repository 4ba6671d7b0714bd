//! Values as Python writes them: `str`, `repr`, and `json.dumps`.

use std::fmt::{self, Write};
use std::sync::LazyLock;

use minijinja::Value;
use minijinja::value::{Tuple, ValueKind};
use regex::Regex;

use super::digits::Digits;

/// Deepest nesting of values that are written, since writing recurses.
pub(super) const NESTING_MAX: usize = 256;

/// `str(value)` of Python; empty for an undefined value.
pub(super) fn text(value: &Value) -> Result<String, fmt::Error> {
    let mut out = String::new();
    write_text(&mut out, value)?;
    Ok(out)
}

/// Writes `str(value)` of Python; nothing for an undefined value.
///
/// # Errors
/// When the writer fails, or the value is nested deeper than [`NESTING_MAX`].
pub(super) fn write_text(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match value.as_str() {
        Some(text) => out.write_str(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value, NESTING_MAX),
    }
}

/// Writes `repr(value)` of Python.
fn write_repr(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    let depth = depth.checked_sub(1).ok_or(fmt::Error)?;
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if is_float(value) => {
            out.write_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)))
        }
        ValueKind::Map if value.as_object().is_some() => {
            out.write_str("{")?;
            for (at, (key, value)) in pairs(value).enumerate() {
                out.write_str(if at > 0 { ", " } else { "" })?;
                write_repr(out, &key, depth)?;
                out.write_str(": ")?;
                write_repr(out, &value, depth)?;
            }
            out.write_str("}")
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            let tuple = value.downcast_object_ref::<Tuple>();
            let (open, close) = match tuple.map(|tuple| tuple.len()) {
                Some(1) => ("(", ",)"),
                Some(_) => ("(", ")"),
                None => ("[", "]"),
            };
            out.write_str(open)?;
            for (at, item) in items(value).enumerate() {
                out.write_str(if at > 0 { ", " } else { "" })?;
                write_repr(out, &item, depth)?;
            }
            out.write_str(close)
        }
        _ => write!(out, "{value}"),
    }
}

fn is_float(value: &Value) -> bool {
    value.is_number() && !value.is_integer() && value.kind() == ValueKind::Number
}

fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    let object = value.as_object();
    let pairs = object.and_then(|object| object.try_iter_pairs());
    pairs.into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}

/// `repr` of a float: shortest digits, exponent form from 1e16 on and below 1e-4.
pub(super) fn float(value: f64) -> String {
    let magnitude = value.abs();
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

/// `repr` of a text: in quotes that the text does not contain, if possible, with escapes for
/// unprintable characters.
fn quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c if c <= '\u{ff}' => write!(out, "\\x{:02x}", u32::from(c))?,
            c if c <= '\u{ffff}' => write!(out, "\\u{:04x}", u32::from(c))?,
            c => write!(out, "\\U{:08x}", u32::from(c))?,
        }
    }
    out.write_char(quote)
}

/// Python's `str.isprintable` of one character: false in Unicode's categories of separators, except
/// for the blank, and in its categories "other", such as control characters.
fn is_printable(c: char) -> bool {
    static OTHER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").expect("classes of Unicode"));
    match c.is_ascii() {
        true => !c.is_ascii_control(),
        false => !OTHER.is_match(c.encode_utf8(&mut [0; 4])),
    }
}

/// Options of `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct Json {
    pub ensure_ascii: bool,
    /// Indentation of a level; one line without it.
    pub indent: Option<String>,
    /// Text between items, and between a key and its value; Python's own if None.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
}

/// Reason why a value cannot be written as JSON.
pub(super) enum JsonError {
    /// The value has a type, of this name, that JSON does not have.
    Kind(String),
    /// The text is longer than the limit, or the value nested too deep.
    TooLarge,
}

impl From<fmt::Error> for JsonError {
    fn from(_: fmt::Error) -> JsonError {
        JsonError::TooLarge
    }
}

impl Json {
    /// `json.dumps(value, …)` into a writer, whose failure means that the limit is reached.
    pub fn write(&self, out: &mut dyn Write, value: &Value) -> Result<(), JsonError> {
        self.value(out, value, 0)
    }

    fn value(&self, out: &mut dyn Write, value: &Value, depth: usize) -> Result<(), JsonError> {
        if depth > NESTING_MAX {
            return Err(JsonError::TooLarge);
        }
        match value.kind() {
            ValueKind::None => out.write_str("null")?,
            ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" })?,
            ValueKind::Number => out.write_str(&number(value))?,
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default())?,
            ValueKind::Map if value.as_object().is_some() => self.map(out, value, depth)?,
            ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
                self.list(out, value, depth)?
            }
            _ if value.downcast_object_ref::<Digits>().is_some() => write!(out, "{value}")?,
            kind => return Err(JsonError::Kind(kind.to_string())),
        }
        Ok(())
    }

    fn list(&self, out: &mut dyn Write, value: &Value, depth: usize) -> Result<(), JsonError> {
        out.write_char('[')?;
        for (at, item) in items(value).enumerate() {
            self.before(out, at == 0, depth + 1)?;
            self.value(out, &item, depth + 1)?;
        }
        self.close(out, "]", value.len() == Some(0), depth)
    }

    fn map(&self, out: &mut dyn Write, value: &Value, depth: usize) -> Result<(), JsonError> {
        let mut pairs: Vec<(Value, Value)> = pairs(value).collect();
        if self.sort_keys {
            pairs.sort_by(|one, other| one.0.cmp(&other.0));
        }
        out.write_char('{')?;
        for (at, (key, value)) in pairs.iter().enumerate() {
            self.before(out, at == 0, depth + 1)?;
            self.key(out, key)?;
            let colon = self.separators.as_ref().map_or(": ", |(_, colon)| colon);
            out.write_str(colon)?;
            self.value(out, value, depth + 1)?;
        }
        self.close(out, "}", pairs.is_empty(), depth)
    }

    fn key(&self, out: &mut dyn Write, key: &Value) -> Result<(), JsonError> {
        let text = match key.kind() {
            ValueKind::String => return Ok(self.string(out, key.as_str().unwrap_or_default())?),
            ValueKind::None => "null".to_string(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
            ValueKind::Number => number(key),
            kind => return Err(JsonError::Kind(format!("{kind} as a key"))),
        };
        Ok(write!(out, "\"{text}\"")?)
    }

    /// Writes the comma and line break before an item.
    fn before(&self, out: &mut dyn Write, first: bool, depth: usize) -> fmt::Result {
        let comma = match (&self.separators, &self.indent) {
            _ if first => "",
            (Some((comma, _)), _) => comma,
            (None, None) => ", ",
            (None, Some(_)) => ",",
        };
        out.write_str(comma)?;
        self.line(out, depth)
    }

    fn close(
        &self,
        out: &mut dyn Write,
        bracket: &str,
        empty: bool,
        depth: usize,
    ) -> Result<(), JsonError> {
        if !empty {
            self.line(out, depth)?;
        }
        Ok(out.write_str(bracket)?)
    }

    fn line(&self, out: &mut dyn Write, depth: usize) -> fmt::Result {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        out.write_char('\n')?;
        (0..depth).try_for_each(|_| out.write_str(indent))
    }

    fn string(&self, out: &mut dyn Write, text: &str) -> fmt::Result {
        out.write_char('"')?;
        let mut from = 0;
        for (at, c) in text.char_indices() {
            let plain = match c {
                '"' | '\\' => false,
                c if c.is_ascii() => !c.is_ascii_control() || c == '\u{7f}' && !self.ensure_ascii,
                _ => !self.ensure_ascii,
            };
            if plain {
                continue;
            }
            out.write_str(&text[from..at])?;
            from = at + c.len_utf8();
            escape(out, c)?;
        }
        out.write_str(&text[from..])?;
        out.write_char('"')
    }
}

fn escape(out: &mut dyn Write, c: char) -> fmt::Result {
    match c {
        '"' => out.write_str("\\\""),
        '\\' => out.write_str("\\\\"),
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        '\u{8}' => out.write_str("\\b"),
        '\u{c}' => out.write_str("\\f"),
        c => {
            let mut units = [0; 2];
            let mut units = c.encode_utf16(&mut units).iter();
            units.try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        }
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if is_float(value) && float.is_nan() => "NaN".to_string(),
        Ok(float) if is_float(value) && float.is_infinite() => {
            if float > 0.0 { "Infinity" } else { "-Infinity" }.to_string()
        }
        Ok(number) if is_float(value) => float(number),
        _ => value.to_string(),
    }
}

/// Python's `str.isspace` of one character: blank in Unicode, or one of four control characters.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Text with words in title case; `begins` tells whether a word begins after a character.
pub(super) fn title(text: &str, begins: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut upper = true;
    for c in text.chars() {
        match upper {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        upper = begins(c);
    }
    out
}

/// Python's `str.splitlines`; `keep_ends` keeps line ends.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    const ENDS: [char; 10] = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ENDS) {
        let length = match &rest[at..] {
            end if end.starts_with("\r\n") => 2,
            end => end.chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..at + if keep_ends { length } else { 0 }]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
