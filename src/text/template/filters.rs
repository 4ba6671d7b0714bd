//! Filters and tests of Python's Jinja that the engine lacks or defines differently.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python::{self, Json, JsonError};
use super::{Capped, RENDERED_BYTES_MAX, refused, too_large};

/// Name of the filter `str` of Python, through which operands of `~` pass.
pub(super) const STRING: &str = "string";
/// Name of the filter that gives the sequence of a loop a known length. No template uses this name.
pub(super) const SIZED: &str = "sized__";
/// Name of the engine's own filter `format`. No template uses this name.
const FORMAT: &str = "format__";
/// Widest indentation that a template may ask for.
const INDENT_MAX: usize = 64;

/// Adds the filters and tests of this file to an environment.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(STRING, |value: &Value| text(value));
    environment.add_filter(SIZED, sized);
    environment.add_filter("tojson", to_json);
    environment.add_filter("indent", indent);
    environment.add_filter("items", items);
    environment.add_filter("join", join);
    environment.add_filter(FORMAT, minijinja::filters::format);
    environment.add_filter("format", format);
    environment.add_filter("trim", trim);
    for name in ["upper", "lower", "capitalize", "replace"] {
        environment.add_filter(
            name,
            move |state: &mut State, value: &Value, args: Rest<Value>| {
                Value::from(text(value)?).call_method(state, name, &args)
            },
        );
    }
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("title", |value: &Value| {
        Ok::<_, Error>(python::title(&text(value)?, begins_word))
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_test("sequence", |value: &Value| {
        let kinds = [
            ValueKind::Seq,
            ValueKind::String,
            ValueKind::Map,
            ValueKind::Undefined,
        ];
        kinds.contains(&value.kind())
    });
}

/// `str(value)` of Python.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    python::text(value).map_err(|_| too_large())
}

fn sized(value: Value) -> Result<Value, Error> {
    super::step()?;
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(text.chars().map(Value::from).collect()),
        (None, ValueKind::None) => Err(refused("'NoneType' object is not iterable")),
        (None, ValueKind::Iterable) if value.len().is_none() => Ok(value.try_iter()?.collect()),
        _ => Ok(value),
    }
}

/// `pattern % args` of Python; if all fields are `%s`, the arguments become texts as in Python.
fn format(state: &mut State, pattern: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let shape = pattern.as_str().unwrap_or_default().replace("%%", "");
    let all = std::iter::once(Ok(pattern.clone()));
    let texts = shape.matches('%').count() == shape.matches("%s").count();
    let args = args.iter().map(|arg| match texts && !arg.is_kwargs() {
        true => Ok(Value::from(text(arg)?)),
        false => Ok(arg.clone()),
    });
    let all = all.chain(args).collect::<Result<Vec<Value>, Error>>()?;
    state.apply_filter(FORMAT, &all)
}

/// Number of items or characters of a value; 0 for an undefined one.
fn length(value: &Value) -> Result<usize, Error> {
    match value.is_undefined() {
        true => Ok(0),
        false => minijinja::filters::length(value),
    }
}

/// Whether a letter after `c` begins a word.
fn begins_word(c: char) -> bool {
    python::is_blank(c) || "-({[<".contains(c)
}

/// Filter `trim` of Jinja, `soft_str(value).strip(chars)`.
fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = text(value)?;
    let trimmed = match chars {
        None => text.trim_matches(python::is_blank),
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
    };
    Ok(trimmed.to_string())
}

/// Filter `items` of Jinja: pairs of a map; none for an undefined value.
fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => {
            let object = value.as_object();
            let pairs = object.and_then(|object| object.try_iter_pairs());
            Ok(pairs.into_iter().flatten().map(Value::from).collect())
        }
        _ => Err(refused("Can only get item pairs from a mapping.")),
    }
}

fn join(
    value: &Value,
    between: Option<&Value>,
    attribute: Option<&Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let option = |name| options.get::<Option<&Value>>(name);
    let named = (option("d")?, option("attribute")?);
    options.assert_all_used()?;
    let between = between.or(named.0).map_or(Ok(String::new()), text)?;
    let attribute = attribute.or(named.1);
    let mut out = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            out.push_str(&between);
        }
        let item = match attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        out.push_str(&text(&item)?);
        if out.len() > RENDERED_BYTES_MAX {
            return Err(too_large());
        }
    }
    Ok(out)
}

/// Filter `indent` of Jinja: puts `width` blanks, or the text `width`, before each line; before the
/// first line only if `first`, before empty lines only if `blank`.
fn indent(
    value: &Value,
    width: Option<&Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<&Value> = options.get("width")?;
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let indentation = match width.or(named) {
        None => " ".repeat(4),
        Some(width) => indentation(width)?,
    };
    let text = text(value)? + "\n";
    let mut out = String::with_capacity(text.len());
    for (at, line) in python::lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if at > 0 && (blank || !line.is_empty()) || at == 0 && first {
            out.push_str(&indentation);
        }
        out.push_str(line);
        if out.len() > RENDERED_BYTES_MAX {
            return Err(too_large());
        }
    }
    Ok(out)
}

fn indentation(width: &Value) -> Result<String, Error> {
    match (width.as_str(), width.as_usize()) {
        (Some(text), _) if text.len() <= INDENT_MAX => Ok(text.to_string()),
        (None, Some(width)) if width <= INDENT_MAX => Ok(" ".repeat(width)),
        _ => Err(refused(&format!("cannot indent by {width}"))),
    }
}

/// Filter `tojson` of Hugging Face's renderer: `json.dumps(value, ensure_ascii=False, indent=None,
/// separators=None, sort_keys=False)`.
fn to_json(value: &Value, args: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let option = |at: usize, name: &str| -> Result<Value, Error> {
        let named: Option<Value> = options.get(name)?;
        Ok(args.get(at).cloned().or(named).unwrap_or(Value::from(())))
    };
    let json = Json {
        ensure_ascii: option(0, "ensure_ascii")?.is_true(),
        indent: match option(1, "indent")? {
            none if none.is_none() => None,
            width => Some(indentation(&width)?),
        },
        separators: separators(&option(2, "separators")?)?,
        sort_keys: option(3, "sort_keys")?.is_true(),
    };
    options.assert_all_used()?;
    let mut out = Capped::default();
    match json.write(&mut out, value) {
        Ok(()) => Ok(out.text),
        Err(JsonError::TooLarge) => Err(too_large()),
        Err(JsonError::Kind(kind)) => Err(refused(&format!("cannot write {kind} as JSON"))),
    }
}

fn separators(value: &Value) -> Result<Option<(String, String)>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    let parts: Vec<Value> = value.try_iter()?.collect();
    match &parts[..] {
        [comma, colon] => Ok(Some((text(comma)?, text(colon)?))),
        _ => {
            let problem = "separators of JSON are two";
            Err(Error::new(ErrorKind::InvalidOperation, problem))
        }
    }
}
