//! Methods of Python's strings, dicts and lists that templates call.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::{is_blank, lines, title};
use super::{refused, too_large};

/// Calls the method `name` of `value`; methods not defined here are the library's.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, name, args)?,
        (None, ValueKind::Map) if name == "copy" => Some(value.clone()),
        (None, ValueKind::Seq) => of_list(value, name, args)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, name, args),
    }
}

fn of_list(list: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "copy" => list.clone(),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let found = list.try_iter()?.position(|item| item == *wanted);
            Value::from(found.ok_or_else(|| refused("the list does not hold this"))?)
        }
        _ => return Ok(None),
    }))
}

fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" => Value::from(stripped(text, args, true, true)?),
        "lstrip" => Value::from(stripped(text, args, true, false)?),
        "rstrip" => Value::from(stripped(text, args, false, true)?),
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            let lines = lines(text, keep_ends.unwrap_or(false));
            lines.into_iter().map(Value::from).collect()
        }
        "partition" => partition(text, args, text.find(from_args::<(&str,)>(args)?.0), false)?,
        "rpartition" => partition(text, args, text.rfind(from_args::<(&str,)>(args)?.0), true)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_blank)),
        "index" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = text.find(wanted);
            let at = at.ok_or_else(|| refused("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => Value::from(title(text, |c| !c.is_alphabetic())),
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => text
            .chars()
            .map(|c| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            })
            .collect::<String>()
            .into(),
        "format" if !text.contains([':', '!']) => {
            let args = args.iter().map(|arg| match arg.is_kwargs() {
                true => Ok(arg.clone()),
                false => Ok(Value::from(super::filters::text(arg)?)),
            });
            let args = args.collect::<Result<Vec<Value>, Error>>()?;
            Value::from(format(FormatStyle::StrFormat, text, &args)?)
        }
        "zfill" => Value::from(zero_filled(text, args)?),
        "ljust" => Value::from(text.to_string() + &padding(text, args)?),
        "rjust" => Value::from(padding(text, args)? + text),
        _ => return Ok(None),
    }))
}

/// `strip`, `lstrip` and `rstrip`: removes blanks, or the given characters.
fn stripped<'a>(text: &'a str, args: &[Value], left: bool, right: bool) -> Result<&'a str, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let goes = |c: char| chars.map_or_else(|| is_blank(c), |chars| chars.contains(c));
    let text = match left {
        true => text.trim_start_matches(goes),
        false => text,
    };
    Ok(match right {
        true => text.trim_end_matches(goes),
        false => text,
    })
}

/// `split` and `rsplit`: at a separator, or at runs of blanks.
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, most): (Option<&Value>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(usize::MAX - 1);
    let separator = separator.filter(|separator| !separator.is_none());
    let parts: Vec<&str> = match separator {
        None => split_blanks(text, most, from_right),
        Some(separator) => {
            let separator = separator.as_str();
            let separator = separator.ok_or_else(|| refused("must be str or None"))?;
            if separator.is_empty() {
                return Err(refused("empty separator"));
            }
            match from_right {
                false => text.splitn(most + 1, separator).collect(),
                true => {
                    let mut parts: Vec<&str> = text.rsplitn(most + 1, separator).collect();
                    parts.reverse();
                    parts
                }
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Parts between runs of blanks. After `most` splits the rest, with blanks at its end, is the last
/// part.
fn split_blanks(text: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let near = |text| match from_right {
        false => str::trim_start_matches(text, is_blank),
        true => str::trim_end_matches(text, is_blank),
    };
    let mut rest = near(text);
    while !rest.is_empty() && parts.len() < most {
        let cut = match from_right {
            false => rest.find(is_blank).map(|at| rest.split_at(at)),
            true => rest.rfind(is_blank).map(|at| {
                let blank = rest[at..].chars().next().map_or(0, char::len_utf8);
                (&rest[at + blank..], &rest[..at])
            }),
        };
        let (part, left) = cut.unwrap_or((rest, ""));
        parts.push(part);
        rest = near(left);
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn partition(text: &str, args: &[Value], at: Option<usize>, last: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(refused("empty separator"));
    }
    let parts = match at {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// Number of characters by which `text` is shorter than `width`.
fn missing(text: &str, width: i64) -> Result<usize, Error> {
    const WIDTH_MAX: i64 = 1 << 16;
    if width > WIDTH_MAX {
        return Err(too_large());
    }
    let width = usize::try_from(width).unwrap_or(0);
    Ok(width.saturating_sub(text.chars().count()))
}

fn padding(text: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    Ok(fill.unwrap_or(" ").repeat(missing(text, width)?))
}

fn zero_filled(text: &str, args: &[Value]) -> Result<String, Error> {
    let (width,): (i64,) = from_args(args)?;
    let zeros = "0".repeat(missing(text, width)?);
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (&text[..1], digits),
        None => ("", text),
    };
    Ok([sign, &zeros, digits].concat())
}
