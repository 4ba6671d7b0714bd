//! Limits on the cost of a grammar. A grammar beyond a limit is refused before it is compiled.

use std::time::Duration;

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::{Grammar, GrammarError, reference_cost};
use crate::past_unescaped;
use step::DEEP_STACKS_BYTES;

/// Longest time of compiling a grammar on one core, which the limits on grammars are set to keep.
pub const COMPILE_TIME: Duration = Duration::from_millis(50);
/// CPU time allowed for a grammar's first mask, any later mask, or one token; longer work is
/// cancelled.
pub const WORK_TIME: Duration = Duration::from_millis(20);
/// Compiled grammars in the cache, of some 100 kB each.
pub const CACHED_MAX: usize = 64;
/// Bytes of the texts of all cached grammars; compiled grammars take some thirty times as much.
pub const CACHED_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a schema as compact JSON, of a Lark grammar, or of all choices.
pub const GRAMMAR_BYTES_MAX: usize = 256 * 1024;
/// Values in a schema, counting keys' values and items.
pub const SCHEMA_VALUES_MAX: usize = 20_000;
/// Objects and lists inside each other in a schema.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Objects and lists inside each other in a schema, with references followed.
pub const LEVELS_MAX: usize = 400;
/// Levels of a schema and of all schemas that it refers to, added up: bounds llguidance's stack.
pub const LEVELS_TOGETHER_MAX: usize = 4_000;
/// Product of the numbers of alternatives that have to hold at once: each combination is compiled.
pub const COMBINATIONS_MAX: usize = 128;
/// Entries of one `oneOf` without fixed values: each pair of entries is compared.
pub const ONE_OF_MAX: usize = 64;
/// Threads that compile grammars, and most grammars that are compiled at once.
pub const COMPILERS: usize = 2;
/// Niceness of a compiling thread relative to the engine, the same as for parsing requests.
pub const COMPILE_NICE: i32 = 10;
/// Bytes of the stack on which a grammar is compiled; only pages in use take memory.
pub const COMPILE_STACK_BYTES: usize = 128 * 1024 * 1024;
const _: () = assert!((COMPILERS * COMPILE_STACK_BYTES) as u64 <= DEEP_STACKS_BYTES);
/// Entries of all `enum`s of a schema together, or of a choice.
pub const ALTERNATIVES_MAX: usize = 4_000;
/// Properties of one object.
pub const PROPERTIES_MAX: usize = 400;
/// `patternProperties` of one object: each pair of patterns is compared.
pub const PATTERN_PROPERTIES_MAX: usize = 16;
/// The least common multiple of all `multipleOf` of a schema, in units of the smallest decimal: the
/// lexer has a state for each remainder.
pub const MULTIPLE_OF_MAX: u64 = 1_000;
/// Schemas inside a Lark grammar.
pub const LARK_SCHEMAS_MAX: usize = 64;
/// Names, strings and expressions in a Lark grammar: recursion may go through all of them.
pub const LARK_PARTS_MAX: usize = 2_000;
/// Brackets inside each other in a Lark grammar.
pub const LARK_DEPTH_MAX: usize = 128;
/// Conjunctions and complements in a Lark grammar, or entries of one `allOf`: each multiplies the
/// lexer's states.
pub const CONJUNCTIONS_MAX: usize = 12;
/// Bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 8 * 1024;
/// Parts in the shortest match of a repetition in a regular expression: repeated parts times the
/// lower bound. The lexer has a state for each.
pub const REPEATED_MAX: usize = 2_000;
/// Parts in the longest match of a repetition in the rules of a Lark grammar, which is written out.
pub const LARK_REPEATED_MAX: usize = 2_000;
/// Repeated or optional parts in a row in a regular expression: states combine all that may follow.
pub const REPETITIONS_IN_A_ROW_MAX: usize = 16;
/// Characters of an error's text.
pub const ERROR_CHARS_MAX: usize = 200;

/// Largest whole number up to which doubles represent each whole number: 2^53.
const EXACT_INTEGER_MAX: u128 = 1 << 53;

/// Bounds on llguidance's own work, where fuel is the unit of lexer work.
pub const PARSER: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 100_000,
    // Fuel for some milliseconds of work on a mask, for which other replies of the step wait.
    step_lexer_fuel: 50_000,
    step_max_items: 50_000,
    // Each state takes some kilobytes in each reply.
    max_lexer_states: 10_000,
    max_grammar_size: 100_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// # Errors
/// Names the limit that a grammar exceeds.
pub fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    match grammar {
        Grammar::Json(json) => check_schemas([&json.schema]),
        Grammar::Regex(pattern) => check_expression(pattern),
        Grammar::Lark(text) => {
            at_most(text.len(), GRAMMAR_BYTES_MAX, "bytes")?;
            let depth = depth_of_lark(text);
            at_most(depth, LARK_DEPTH_MAX, "brackets in each other")?;
            let conjunctions = text.matches(['&', '~']).count();
            let what = "conjunctions and complements";
            at_most(conjunctions, CONJUNCTIONS_MAX, what)?;
            let repetitions = lark_repetitions(text);
            check_repetitions(&repetitions, LARK_REPEATED_MAX, "parts of one repetition")?;
            at_most(repetitions.count, LARK_PARTS_MAX, "names and texts")?;
            check_schemas(&schemas_in_lark(text)?)
        }
        Grammar::Calls { lark, .. } => at_most(lark.len(), GRAMMAR_BYTES_MAX, "bytes"),
        Grammar::Choice(choices) => {
            at_most(choices.len(), ALTERNATIVES_MAX, "choices")?;
            let bytes = choices.iter().map(String::len).sum();
            at_most(bytes, GRAMMAR_BYTES_MAX, "bytes")
        }
    }
}

fn check_expression(pattern: &str) -> Result<(), GrammarError> {
    at_most(pattern.len(), REGEX_BYTES_MAX, "bytes in one expression")?;
    let what = "repeated parts in one expression";
    check_repetitions(&repetitions(pattern), REPEATED_MAX, what)
}

fn check_repetitions(found: &Repetitions, most: usize, what: &str) -> Result<(), GrammarError> {
    at_most(found.most, most, what)?;
    let what = "repetitions in a row in one expression";
    at_most(found.row_most, REPETITIONS_IN_A_ROW_MAX, what)
}

/// # Errors
/// States how many there are of `what`, if more than `most`.
pub fn at_most(found: usize, most: usize, what: &str) -> Result<(), GrammarError> {
    match found <= most {
        true => Ok(()),
        false => Err(GrammarError(format!(
            "has {found} {what}, at most {most} are taken"
        ))),
    }
}

/// # Errors
/// Names the limit that the schemas exceed together.
pub fn check_schemas<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Result<(), GrammarError> {
    let mut size = Size::default();
    for schema in schemas {
        size.add(schema, 0)?;
        reference_cost::check(schema)?;
    }
    at_most(size.bytes, GRAMMAR_BYTES_MAX, "bytes")?;
    at_most(size.alternatives, ALTERNATIVES_MAX, "enum values")?;
    match common_multiple(&size.multiples) {
        Some(_) => Ok(()),
        None => Err(GrammarError(format!(
            "has multipleOf whose common multiple is above {MULTIPLE_OF_MAX}"
        ))),
    }
}

/// Sizes of repetitions in an expression or a grammar, counted while it is read.
#[derive(Default)]
struct Repetitions {
    open: Vec<Group>,
    group: Group,
    /// Parts of the largest repetition.
    most: usize,
    /// Largest number of repeated or optional items that follow each other within one group.
    row_most: usize,
    /// Number of parts as they are written, not repeated.
    count: usize,
}

/// A group in brackets, as far as the group has been read.
#[derive(Default)]
struct Group {
    parts: usize,
    /// Number of parts in the last item of the group.
    last: usize,
    /// Number of repetitions or optional parts in a row at the group's end.
    row: usize,
    /// Value of `row` before the last item.
    row_before: usize,
    /// Whether the group has an item that is neither repeated nor optional.
    plain: bool,
    /// Value of `plain` before the last item.
    plain_before: bool,
}

impl Repetitions {
    fn part(&mut self, size: usize) {
        self.count += 1;
        let group = &mut self.group;
        group.parts = group.parts.saturating_add(size);
        group.last = size;
        group.row_before = std::mem::take(&mut group.row);
        group.plain_before = std::mem::replace(&mut group.plain, true);
    }

    fn open(&mut self) {
        self.open.push(std::mem::take(&mut self.group));
    }

    fn close(&mut self) {
        let outer = self.open.pop().unwrap_or_default();
        let inner = std::mem::replace(&mut self.group, outer);
        self.part(inner.parts);
        if !inner.plain && inner.parts > 0 {
            self.in_a_row();
        }
    }

    /// Begins another alternative of the group.
    fn alternative(&mut self) {
        self.group.row = 0;
    }

    /// Counts the last item as repeated at least `times` times.
    fn repeat(&mut self, times: usize) {
        if times > 1 {
            let group = &mut self.group;
            let size = group.last.saturating_mul(times);
            group.parts = group.parts.saturating_sub(group.last).saturating_add(size);
            group.last = size;
            self.most = self.most.max(size);
        }
    }

    /// Counts the last item as a repetition or as optional.
    fn in_a_row(&mut self) {
        let group = &mut self.group;
        group.row = group.row_before + 1;
        group.plain = group.plain_before;
        self.row_most = self.row_most.max(group.row);
    }
}

/// Numbers of `{m}`, `{m,}` or `{m,n}` at the head of a text.
fn bounds(text: &str) -> Option<(usize, usize)> {
    let (inside, _) = text.strip_prefix('{')?.split_once('}')?;
    let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
    // A number too large for its type counts as the largest one.
    let number = |digits: &str| {
        let digits = digits.trim();
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse().unwrap_or(usize::MAX))
    };
    let least = number(least)?;
    Some((least, number(most).unwrap_or(least)))
}

/// Repetitions of a regular expression, counted by lower bounds.
fn repetitions(pattern: &str) -> Repetitions {
    let mut found = Repetitions::default();
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        let mut length = char.len_utf8();
        match char {
            '\\' => {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
                found.part(1);
            }
            '[' => {
                length = class(rest);
                found.part(1);
            }
            '(' => {
                length = opening(rest);
                found.open();
            }
            ')' => found.close(),
            '|' => found.alternative(),
            '*' | '+' | '?' => found.in_a_row(),
            '{' => match bounds(rest) {
                Some((least, most)) => {
                    length = rest.find('}').map_or(1, |at| at + 1);
                    found.repeat(least);
                    if least != most {
                        found.in_a_row();
                    }
                }
                None => found.part(1),
            },
            _ => found.part(1),
        }
        rest = &rest[length..];
    }
    found
}

/// Bytes of a class of characters, brackets included. A nested class seems to end the outer one
/// early: the rest then counts as parts, which is too strict.
fn class(text: &str) -> usize {
    // A closing bracket at the start of a class is one of its characters.
    let head = 1 + usize::from(text[1..].starts_with('^'));
    let end = past_unescaped(text, |at, char| at > head && char == ']');
    end.unwrap_or(text.len())
}

/// Bytes that open a group, including its flags or its name.
fn opening(text: &str) -> usize {
    let end = |text: &str| {
        let end = text.find([':', '>', ')']);
        end.filter(|_| text.starts_with("(?"))
    };
    match end(text) {
        Some(at) if text[at..].starts_with(')') => at,
        Some(at) => at + 1,
        None => 1,
    }
}

/// Repetitions of the rules of a Lark grammar, by upper bounds, and of its expressions, by lower
/// ones.
fn lark_repetitions(text: &str) -> Repetitions {
    let mut found = Repetitions::default();
    let mut at = 0;
    while let Some(char) = text[at..].chars().next() {
        let rest = &text[at..];
        let mut length = char.len_utf8();
        match char {
            '"' => {
                length = literal(rest);
                found.part(1);
            }
            '/' => {
                length = literal(rest);
                let inside = repetitions(rest[..length].trim_matches('/'));
                found.most = found.most.max(inside.most);
                found.row_most = found.row_most.max(inside.row_most);
                found.part(inside.most.max(1));
            }
            '(' | '[' => found.open(),
            ')' | ']' => found.close(),
            '{' => {
                if let Some((least, most)) = bounds(rest) {
                    length = rest.find('}').map_or(1, |at| at + 1);
                    found.repeat(least.max(most));
                }
            }
            '~' => found.repeat(tilde(&rest[1..])),
            _ if char.is_alphanumeric() || char == '_' => {
                let name = |char: char| char.is_alphanumeric() || char == '_';
                length = rest.find(|char| !name(char)).unwrap_or(rest.len());
                found.part(1);
            }
            // Operators and blanks are skipped: all parts of a line count as one group.
            _ => {}
        }
        at += length;
    }
    found
}

/// Bytes of the string or expression at the head of a text, with its closing sign or line break.
fn literal(text: &str) -> usize {
    let quote = text.chars().next();
    let end = past_unescaped(text, |_, char| Some(char) == quote || char == '\n');
    end.unwrap_or(text.len())
}

/// Upper bound of `~ m` or `~ m..n`, where `text` follows the tilde; 1 for a complement.
fn tilde(text: &str) -> usize {
    let text = text.trim_start();
    let numbers = text.trim_start_matches(|char: char| char.is_ascii_digit() || char == '.');
    let last = text[..text.len() - numbers.len()].rsplit("..").next();
    let digits = last.filter(|digits| !digits.is_empty());
    digits.map_or(1, |digits| digits.parse().unwrap_or(usize::MAX))
}

/// Depth of nested brackets; brackets in strings count as well, which is too strict.
fn depth_of_lark(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The values after each `%json` in a Lark grammar; text there that is not JSON is skipped, since
/// llguidance refuses it.
fn schemas_in_lark(text: &str) -> Result<Vec<Value>, GrammarError> {
    let mut schemas = Vec::new();
    let mut rest = text;
    let mut marks = 0;
    while let Some((_, after)) = rest.split_once("%json") {
        marks += 1;
        at_most(marks, LARK_SCHEMAS_MAX, "schemas")?;
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        rest = match values.next() {
            Some(Ok(schema)) => {
                schemas.push(schema);
                &after[values.byte_offset()..]
            }
            _ => after,
        };
    }
    Ok(schemas)
}

/// Least common multiple of decimal numbers in units of the smallest decimal; None above the limit.
fn common_multiple(numbers: &[String]) -> Option<u64> {
    let decimals = |number: &String| number.split_once('.').map_or(0, |(_, part)| part.len());
    let most = numbers.iter().map(decimals).max().unwrap_or(0);
    let mut multiple = 1_u64;
    for number in numbers {
        let zeros = u32::try_from(most - decimals(number)).ok()?;
        let digits: u64 = number.replace(['.', '-'], "").parse().ok()?;
        let scaled = digits.checked_mul(10_u64.checked_pow(zeros)?)?.max(1);
        multiple = scaled.checked_mul(multiple / common_divisor(scaled, multiple))?;
        if multiple > MULTIPLE_OF_MAX {
            return None;
        }
    }
    Some(multiple)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Sums over all parts of a schema.
#[derive(Debug, Default)]
struct Size {
    values: usize,
    bytes: usize,
    alternatives: usize,
    /// Values of all `multipleOf`, as they are written.
    multiples: Vec<String>,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), GrammarError> {
        self.values += 1;
        at_most(self.values, SCHEMA_VALUES_MAX, "values")?;
        at_most(depth, SCHEMA_DEPTH_MAX, "levels")?;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => {
                for item in items {
                    self.add(item, depth + 1)?;
                }
            }
            Value::Object(entries) => {
                for (key, value) in entries {
                    self.bytes += key.len();
                    self.check_keyword(key, value)?;
                    self.add(value, depth + 1)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    /// Checks the limits of one keyword of a schema. A property whose name is a keyword is checked
    /// too, which may refuse more than necessary.
    fn check_keyword(&mut self, key: &str, value: &Value) -> Result<(), GrammarError> {
        match (key, value) {
            ("enum", Value::Array(items)) => self.alternatives += items.len(),
            ("allOf", Value::Array(items)) => {
                at_most(items.len(), CONJUNCTIONS_MAX, "entries in one allOf")?;
            }
            ("oneOf", Value::Array(items)) => {
                let fixed = |item: &Value| item.get("const").or(item.get("enum")).is_some();
                let others = items.iter().filter(|item| !fixed(item)).count();
                at_most(others, ONE_OF_MAX, "entries in one oneOf")?;
            }
            ("multipleOf", Value::Number(number)) => self.multiples.push(number.to_string()),
            ("properties", Value::Object(names)) => {
                at_most(names.len(), PROPERTIES_MAX, "properties in one object")?;
            }
            ("patternProperties", Value::Object(names)) => {
                at_most(names.len(), PATTERN_PROPERTIES_MAX, "patternProperties")?;
                for pattern in names.keys() {
                    check_expression(pattern)?;
                }
            }
            ("pattern", Value::String(pattern)) => check_expression(pattern)?,
            _ => {}
        }
        Ok(())
    }
}

/// Problem with the first whole number of a schema that doubles do not represent exactly.
pub fn inexact_number(schema: &Value) -> Option<String> {
    match schema {
        Value::Number(number) => {
            let far = number.as_i128()?.unsigned_abs() > EXACT_INTEGER_MAX;
            far.then(|| format!("the number {number} is not enforced exactly"))
        }
        Value::Array(items) => items.iter().find_map(inexact_number),
        Value::Object(entries) => entries.values().find_map(inexact_number),
        _ => None,
    }
}
