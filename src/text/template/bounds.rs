//! What one rendering may take, whatever its template says.
//!
//! minijinja counts instructions, but one instruction doubles a string or joins a list, and what a
//! macro or a `set` block captures passes no writer. So the compiled instructions are rewritten:
//! what makes text or lists is asked for its size first, what was made is counted, and what may
//! take long looks at the clock. The hooks are filters of names that no template can write, which
//! keeps the operators themselves, and their results, those of minijinja.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, TemplateConfig, Token, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ObjectRepr, Rest, Tuple, Value, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use minijinja::{escape_formatter, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::RENDERED_BYTES_MAX;

/// Bytes of text and lists that one rendering may make on its way, those dropped again included.
pub const MADE_BYTES_MAX: usize = 4 * RENDERED_BYTES_MAX;
/// How long one rendering may take; the work of one instruction is bounded by its sizes.
pub const RENDER_TIME_MAX: Duration = Duration::from_secs(2);
/// How deep a value that a template makes may be nested; writing and dropping it recurse.
const NESTING_MAX: usize = 256;
/// Items of one list that a template makes, more than `range` counts; lists that were joined or
/// repeated are slow to walk.
const LIST_MAX: usize = 1 << 17;
/// What a place takes at which a text is replaced, in time: as much as these bytes copied.
const PLACE_BYTES: usize = 16;
/// What a value inside another takes, in time: as much as these bytes copied.
const WALKED_BYTES: usize = 128;
/// What an item of a list takes.
const ITEM_BYTES: usize = size_of::<Value>();
/// The longest replacement of a character in HTML: `&#x27;`.
const ESCAPED_BYTES: usize = 6;
/// The most bytes that a byte becomes in another case.
const CASED_BYTES: usize = 3;

/// Hooks by name. A template cannot write these names.
const PLUS: &str = "+";
const TIMES: &str = "*";
const CONCAT: &str = "~";
const HELD: &str = "<held>";
const MADE: &str = "<made>";
const CLOCK: &str = "<clock>";
const HOOKS: [&str; 6] = [PLUS, TIMES, CONCAT, HELD, MADE, CLOCK];
/// Filters that minijinja remembers by number while it evaluates.
const NUMBERED_MAX: u8 = 50;
/// Hooks that run from one look at the clock to the next.
const CLOCK_HOOKS: u32 = 16;
/// Keeps the compiler from computing a product of literals, unbounded, when a template is loaded.
const UNFOLDED: &str = "unfolded__";

/// Filters that are asked for what they would make before they make it, and counted then: they
/// multiply sizes, or `map` calls them many times in one instruction.
const ASKED: [&str; 21] = [
    "replace",
    "join",
    "indent",
    "format",
    "list",
    "split",
    "lines",
    "sum",
    "string",
    "pprint",
    "trim",
    "reverse",
    "upper",
    "lower",
    "title",
    "capitalize",
    "escape",
    "e",
    "safe",
    "sort",
    "tojson",
];
/// Filters and methods that return what they were given, or part of it.
const PASSING: [&str; 9] = [
    "default", "d", "first", "last", "attr", "min", "max", "get", "length",
];
/// Filters that return a list of what they were given.
const PICKING: [&str; 5] = ["select", "reject", "selectattr", "rejectattr", "unique"];

/// A template that stays within these bounds in an environment of [`install`].
pub(super) fn compile(
    name: &'static str,
    source: &str,
    syntax: SyntaxConfig,
) -> Result<CompiledTemplate<'static>, Error> {
    // Instructions borrow their source. A process loads one template and keeps it to its end.
    let source: &'static str = unfolded(source, &syntax).leak();
    let config = TemplateConfig {
        syntax_config: syntax,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut compiled = CompiledTemplate::new(name, source, &config)?;
    compiled.instructions = hooked(&compiled.instructions);
    for block in compiled.blocks.values_mut() {
        *block = hooked(block);
    }
    Ok(compiled)
}

/// Adds the hooks, and the filters and methods that are asked first.
pub(super) fn install(
    environment: &mut Environment<'static>,
    to_json: fn(&Value, Kwargs) -> Result<Value, Error>,
) {
    environment.set_formatter(emit);
    environment.set_unknown_method_callback(method);
    environment.add_filter(PLUS, plus);
    environment.add_filter(TIMES, times);
    environment.add_filter(CONCAT, concat);
    environment.add_filter(HELD, held);
    environment.add_filter(MADE, made);
    environment.add_filter(CLOCK, clock);
    environment.add_filter(UNFOLDED, |value: Value| value);
    macro_rules! asked {
        ($($name:literal $filter:expr;)*) => {$(
            environment.add_filter(concat!("<", $name, ">"), $filter);
            environment.add_filter($name, |state: &mut State, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                let bytes = expected($name, &args)?;
                charge(state, bytes)?;
                state.apply_filter(concat!("<", $name, ">"), &args)
            });
        )*};
    }
    asked! {
        "replace" filters::replace;
        "join" filters::join;
        "indent" filters::indent;
        "format" filters::format;
        "list" filters::list;
        "split" filters::split;
        "lines" filters::lines;
        "batch" filters::batch;
        "slice" filters::slice;
        "sum" filters::sum;
        "string" filters::string;
        "pprint" filters::pprint;
        "trim" filters::trim;
        "reverse" filters::reverse;
        "upper" filters::upper;
        "lower" filters::lower;
        "title" filters::title;
        "capitalize" filters::capitalize;
        "escape" filters::escape;
        "e" filters::escape;
        "safe" filters::safe;
        "sort" filters::sort;
        "tojson" to_json;
    }
}

/// What the limits say, in the words of [`super::TemplateError::TooLarge`].
pub(super) fn too_large() -> Error {
    Error::from(ErrorKind::OutOfFuel)
}

/// `source` with every left operand of `*` behind a filter that changes nothing.
fn unfolded(source: &str, syntax: &SyntaxConfig) -> String {
    let mut text = String::with_capacity(source.len());
    let mut copied = 0;
    let mut behind_operand = false;
    // What cannot be read is left for the compiler to refuse.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        let start = span.start_offset as usize;
        if matches!(token, Token::Mul) && behind_operand {
            text.push_str(&source[copied..start]);
            let _ = write!(text, "|{UNFOLDED} ");
            copied = start;
        }
        behind_operand = matches!(
            token,
            Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::ParenClose
                | Token::BracketClose
                | Token::BraceClose
        );
    }
    text.push_str(&source[copied..]);
    text
}

/// The instructions with their hooks between them.
fn hooked(old: &Instructions<'static>) -> Instructions<'static> {
    let all: Vec<_> = (0..).map_while(|at| old.get(at)).collect();
    let unused = all.iter().filter_map(|part| numbered(part)).max();
    let unused = unused.map_or(0, |last| last + 1);
    let all: Vec<_> = all
        .into_iter()
        .map(|part| with_hooks(part, unused))
        .collect();
    let mut starts = vec![0];
    for parts in &all {
        starts.push(starts[starts.len() - 1] + parts.len() as u32);
    }
    let mut new = Instructions::new(old.name(), old.source());
    for (at, parts) in (0..).zip(all) {
        for mut part in parts {
            retarget(&mut part, &starts);
            match (old.get_span(at), old.get_line(at)) {
                (Some(span), _) => new.add_with_span(part, span),
                (None, Some(line)) => new.add_with_line(part, line as u16),
                (None, None) => new.add(part),
            };
        }
    }
    new
}

/// The number of a filter that is remembered by it.
fn numbered(instruction: &Instruction<'static>) -> Option<u8> {
    match *instruction {
        Instruction::ApplyFilter(_, _, number) if number < NUMBERED_MAX => Some(number),
        _ => None,
    }
}

/// The call of a hook, whose number is behind those of the template's own filters.
fn hook(name: &'static str, args: u16, unused: u8) -> Instruction<'static> {
    let number = HOOKS.iter().position(|&hook| hook == name);
    let number = number.map(|number| number as u8 + unused);
    let number = number.filter(|&number| number < NUMBERED_MAX);
    Instruction::ApplyFilter(name, Some(args), number.unwrap_or(!0))
}

/// Where an instruction jumps, it jumps to the new place of the same instruction.
fn retarget(instruction: &mut Instruction<'static>, starts: &[u32]) {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => *target = starts[*target as usize],
        _ => {}
    }
}

/// An instruction with what has to run before and behind it.
fn with_hooks(instruction: &Instruction<'static>, unused: u8) -> Vec<Instruction<'static>> {
    let this = instruction.clone();
    let before = |name| {
        let asked = hook(name, 2, unused);
        vec![asked, Instruction::UnpackList(2), this.clone()]
    };
    let behind = |name| vec![this.clone(), hook(name, 1, unused)];
    match instruction {
        // Through the formatter, which counts it.
        Instruction::EmitRaw(text) => {
            let text = Value::from_safe_string(text.to_string());
            vec![Instruction::LoadConst(text), Instruction::Emit]
        }
        Instruction::Add => before(PLUS),
        Instruction::Mul => before(TIMES),
        Instruction::StringConcat => before(CONCAT),
        Instruction::ApplyFilter(name, ..) if ASKED.contains(name) => behind(CLOCK),
        Instruction::ApplyFilter(name, ..) | Instruction::CallMethod(name, _)
            if PASSING.contains(name) =>
        {
            behind(CLOCK)
        }
        Instruction::ApplyFilter(name, ..) if PICKING.contains(name) => behind(MADE),
        Instruction::Slice => behind(MADE),
        Instruction::ApplyFilter(..)
        | Instruction::CallMethod(..)
        | Instruction::CallFunction(..)
        | Instruction::CallObject(_)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_) => behind(HELD),
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
        | Instruction::PerformTest(..)
        | Instruction::Iterate(_)
        | Instruction::UnpackLists(_) => behind(CLOCK),
        _ => vec![this],
    }
}

/// What a rendering has left.
struct Meter {
    bytes: usize,
    hooks: u32,
    begun: Instant,
}

/// Takes `bytes` from what this rendering may make, and looks at the clock now and then.
fn charge(state: &mut State, bytes: usize) -> Result<(), Error> {
    let meter = state.get_or_insert_extension_with(|| Meter {
        bytes: MADE_BYTES_MAX,
        hooks: 0,
        begun: Instant::now(),
    });
    take(&mut meter.bytes, bytes)?;
    meter.hooks = meter.hooks.wrapping_add(1);
    let looks = meter.hooks.is_multiple_of(CLOCK_HOOKS);
    match looks && meter.begun.elapsed() > RENDER_TIME_MAX {
        true => Err(too_large()),
        false => Ok(()),
    }
}

fn take(left: &mut usize, bytes: usize) -> Result<(), Error> {
    *left = left.checked_sub(bytes).ok_or_else(too_large)?;
    Ok(())
}

/// Takes a text that no output could hold as one that is too large.
fn capped(bytes: usize) -> Result<usize, Error> {
    match bytes > RENDERED_BYTES_MAX {
        true => Err(too_large()),
        false => Ok(bytes),
    }
}

/// What is written of `value`, into the output or a capture.
fn emit(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let bytes = text_bytes(value)?;
    charge(state, bytes)?;
    escape_formatter(out, state, value)
}

/// Two operands as [`Instruction::UnpackList`] puts them back on the stack.
fn operands(left: Value, right: Value) -> Value {
    Value::from(Tuple::from([right, left]))
}

fn plus(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(one), Some(other)) = (left.as_str(), right.as_str()) {
        charge(state, capped(one.len() + other.len())?)?;
    } else if left.as_object().is_some() && right.as_object().is_some() {
        charge(state, appended(&left, &right)?)?;
    }
    Ok(operands(left, right))
}

/// What a list counts that is appended to another. Joined lists share what they are made of, and
/// the longer one was counted before: a list that grows by items counts each of them once, and one
/// that is doubled all of them again.
fn appended(left: &Value, right: &Value) -> Result<usize, Error> {
    let (Some(one), Some(other)) = (left.len(), right.len()) else {
        return Ok(weight(left)? + weight(right)?);
    };
    if one + other > LIST_MAX {
        return Err(too_large());
    }
    weight(if one < other { left } else { right })
}

fn times(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    for (many, count) in [(&left, &right), (&right, &left)] {
        let bytes = match many.as_str() {
            Some(text) => text.len(),
            None if many.as_object().is_some() => weight(many)?,
            None => continue,
        };
        let count = count.as_usize().unwrap_or(0);
        charge(state, capped(bytes.saturating_mul(count))?)?;
    }
    Ok(operands(left, right))
}

fn concat(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    charge(state, capped(text_bytes(&left)? + text_bytes(&right)?)?)?;
    Ok(operands(left, right))
}

/// A value that was made and may hold others.
fn held(state: &mut State, value: ValueOrKwargs) -> Result<Value, Error> {
    let value = Value::from(value);
    let bytes = weight(&value)?;
    charge(state, bytes)?;
    Ok(value)
}

/// A text, or a list of values that were there before.
fn made(state: &mut State, value: ValueOrKwargs) -> Result<Value, Error> {
    let value = Value::from(value);
    let bytes = match (value.as_str(), value.as_object()) {
        (Some(text), _) => text.len(),
        (None, Some(_)) => value.len().unwrap_or(0) * ITEM_BYTES,
        (None, None) => 0,
    };
    charge(state, bytes)?;
    Ok(value)
}

fn clock(state: &mut State, value: ValueOrKwargs) -> Result<Value, Error> {
    charge(state, 0)?;
    Ok(value.into())
}

/// A method of Python, asked for what it would make; [`held`] counts what it has made.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, args) {
        ("join", [list, ..]) => expected("join", &[list.clone(), value.clone()])?,
        ("splitlines", _) => expected("lines", std::slice::from_ref(value))?,
        ("replace" | "split" | "format", _) => {
            let all: Vec<_> = [value].into_iter().chain(args).cloned().collect();
            expected(name, &all)?
        }
        _ => 0,
    };
    unknown_method_callback(state, value, name, args)
}

/// Bytes of a value to its last leaf: at least what comparing or walking it takes. Text that is
/// held twice counts twice.
fn weight(value: &Value) -> Result<usize, Error> {
    let mut left = MADE_BYTES_MAX;
    weigh(value, &mut left, NESTING_MAX)?;
    Ok(MADE_BYTES_MAX - left)
}

fn weigh(value: &Value, left: &mut usize, depth: usize) -> Result<(), Error> {
    take(left, WALKED_BYTES + value.as_str().map_or(0, str::len))?;
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    let depth = depth.checked_sub(1).ok_or_else(too_large)?;
    if value.len().is_some_and(|items| items > LIST_MAX) {
        return Err(too_large());
    }
    if object.repr() == ObjectRepr::Map {
        for (key, value) in object.try_iter_pairs().into_iter().flatten() {
            weigh(&key, left, depth)?;
            weigh(&value, left, depth)?;
        }
        return Ok(());
    }
    for item in object.try_iter().into_iter().flatten() {
        weigh(&item, left, depth)?;
    }
    Ok(())
}

/// Bytes of a value as text.
fn text_bytes(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    if value.as_object().is_none() {
        return Ok(ITEM_BYTES);
    }
    // Writing recurses, so its depth is looked at first.
    weight(value)?;
    let mut counted = Counted(0);
    write!(counted, "{value}").map_err(|_| too_large())?;
    Ok(counted.0)
}

/// Counts what is written, up to the limit.
struct Counted(usize);

impl Write for Counted {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        match self.0 > RENDERED_BYTES_MAX {
            true => Err(fmt::Error),
            false => Ok(()),
        }
    }
}

/// Bytes that filter `name` makes of `args` at most.
fn expected(name: &str, args: &[Value]) -> Result<usize, Error> {
    let Some((value, rest)) = args.split_first() else {
        return Ok(0);
    };
    let bytes = match name {
        "replace" => replaced(value, rest)?,
        "join" => joined(value, rest)?,
        "indent" => text_bytes(value)? + lines(value).saturating_mul(numbers(rest)),
        "format" => formatted(value, rest)?,
        "reverse" if value.as_str().is_none() => items(value.len()),
        "list" | "sort" => items(value.len()),
        "split" => items(Some(parts(value, rest))) + text_bytes(value)?,
        "lines" => items(Some(lines(value))) + text_bytes(value)?,
        "batch" | "slice" => items(value.len()).saturating_add(items(Some(numbers(rest)))),
        "sum" => summed(value)?,
        "tojson" => weight(value)?,
        "escape" | "e" => text_bytes(value)?.saturating_mul(ESCAPED_BYTES),
        "upper" | "lower" | "title" | "capitalize" => text_bytes(value)? * CASED_BYTES,
        _ => text_bytes(value)?,
    };
    capped(bytes)
}

fn items(count: Option<usize>) -> usize {
    count.unwrap_or(0).saturating_mul(ITEM_BYTES)
}

fn replaced(value: &Value, rest: &[Value]) -> Result<usize, Error> {
    let bytes = text_bytes(value)?;
    let [from, to, ..] = rest else {
        return Ok(bytes);
    };
    let places = match (value.as_str(), from.as_str()) {
        (Some(text), Some(from)) => text.matches(from).count(),
        _ => bytes + 1,
    };
    let each = text_bytes(to)? + PLACE_BYTES;
    Ok(places.saturating_mul(each).saturating_add(bytes))
}

fn joined(list: &Value, rest: &[Value]) -> Result<usize, Error> {
    let between = rest.iter().map(text_bytes).sum::<Result<usize, _>>()?;
    let Ok(list) = list.try_iter() else {
        return Ok(0);
    };
    let mut bytes: usize = 0;
    for item in list {
        bytes = capped(bytes.saturating_add(between + text_bytes(&item)?))?;
    }
    Ok(bytes)
}

/// Every conversion may repeat every argument, and every number may be a width.
fn formatted(format: &Value, rest: &[Value]) -> Result<usize, Error> {
    let text = format.as_str().unwrap_or("");
    let conversions = text.matches(['%', '{']).count();
    let each = rest.iter().map(text_bytes).sum::<Result<usize, _>>()?;
    let digits = text.split(|c: char| !c.is_ascii_digit());
    let widths = digits.filter(|digits| !digits.is_empty());
    let widths = widths.map(|digits| digits.parse().unwrap_or(usize::MAX));
    let widths = widths.fold(0, usize::saturating_add);
    let starred = match text.contains('*') {
        true => numbers(rest),
        false => 0,
    };
    let each = each.saturating_add(starred);
    let repeated = conversions.saturating_mul(each);
    Ok(repeated.saturating_add(widths).saturating_add(text.len()))
}

/// A sum of what is no number copies all that was summed before, for each item.
fn summed(value: &Value) -> Result<usize, Error> {
    let Ok(mut list) = value.try_iter() else {
        return Ok(0);
    };
    match list.all(|item| item.is_number()) {
        true => Ok(0),
        false => Ok(weight(value)?.saturating_mul(value.len().unwrap_or(0))),
    }
}

/// The sum of all counts among the arguments.
fn numbers(args: &[Value]) -> usize {
    let of_options = |arg: &Value| {
        let pairs = arg.as_object().and_then(|object| object.try_iter_pairs());
        let values = pairs.into_iter().flatten();
        values
            .map(|(_, value)| value.as_usize().unwrap_or(0))
            .fold(0, usize::saturating_add)
    };
    let of = |arg: &Value| arg.as_usize().unwrap_or_else(|| of_options(arg));
    args.iter().map(of).fold(0, usize::saturating_add)
}

fn lines(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.matches('\n').count()) + 2
}

fn parts(value: &Value, rest: &[Value]) -> usize {
    let text = value.as_str().unwrap_or("");
    1 + match rest.first().and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.matches(char::is_whitespace).count(),
    }
}

#[cfg(test)]
mod tests;
