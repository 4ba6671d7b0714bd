//! Values that a schema lists (`const`, `enum`), as far as its other keywords allow them.

use std::cell::Cell;
use std::collections::HashMap;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::text::{NUMBER_KEYWORDS, TEXT_KEYWORDS};
use crate::grammar::formats::{self, Format};
use crate::grammar::keywords::{is_of, is_silent, spelt, unknown_type};
use crate::grammar::{bounds, ecma};
use crate::tools::{Root, SCHEMA_DEPTH_MAX};

/// Most comparisons of listed values with keywords in a document; later lists are unchanged.
const COMPARED_MAX: usize = 100_000;
/// Bytes of keywords beside alternatives that may be copied into the alternatives of a document.
const WRITTEN_BYTES_MAX: usize = 1 << 18;
/// Largest size of a compiled regular expression in bytes.
const EXPRESSION_BYTES_MAX: usize = 1 << 20;
/// Keywords that restrict lists and objects only.
const OF_CONTAINERS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "dependentRequired",
    "items",
    "maxItems",
    "maxProperties",
    "minItems",
    "minProperties",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Comparison of values with schemas of a document, up to limits on the work.
pub struct Judge<'r, 'v> {
    root: &'r Root<'v>,
    /// Comparisons with keywords that may still be made.
    left: Cell<usize>,
    /// Bytes that may still be copied into alternatives.
    bytes: Cell<usize>,
}

/// Compiled regular expressions by their text in the schema; None for those that cannot be
/// compiled.
type Expressions = HashMap<String, Option<Regex>>;

impl<'r, 'v> Judge<'r, 'v> {
    pub fn new(root: &'r Root<'v>) -> Judge<'r, 'v> {
        Judge {
            root,
            left: Cell::new(COMPARED_MAX),
            bytes: Cell::new(WRITTEN_BYTES_MAX),
        }
    }

    /// Counts `bytes` that are copied into an alternative; None if they exceed the limit.
    pub fn write(&self, bytes: usize) -> Option<()> {
        self.bytes.set(self.bytes.get().checked_sub(bytes)?);
        Some(())
    }

    /// `schema`, which lists values, with only those values that its other keywords allow. None if
    /// it lists no values, has no other keywords, or if this cannot be decided.
    pub fn listed(&self, schema: &Map<String, Value>) -> Option<Map<String, Value>> {
        let (keyword, values) = match (schema.get("const"), schema.get("enum")) {
            (Some(value), _) => ("const", std::slice::from_ref(value)),
            (None, list) => ("enum", list?.as_array()?.as_slice()),
        };
        let mut rest = schema.clone();
        rest.retain(|name, value| name != keyword && !is_silent(name, value));
        let (mut expressions, mut allowed) = (Expressions::new(), Vec::new());
        for value in values {
            if self.all(value, &rest, &mut expressions, 0)? {
                allowed.push(value.clone());
            }
        }
        if allowed.len() == values.len() && rest.keys().all(|name| name == "type") {
            return None;
        }
        let mut one = schema.clone();
        one.retain(|name, value| name == "type" || is_silent(name, value));
        one.insert("enum".to_string(), Value::from(allowed));
        Some(one)
    }

    /// Whether a value is valid under a schema; None if that cannot be decided.
    fn fits(
        &self,
        value: &Value,
        schema: &Value,
        expressions: &mut Expressions,
        depth: usize,
    ) -> Option<bool> {
        match schema {
            Value::Bool(all) => Some(*all),
            Value::Object(keywords) if depth <= SCHEMA_DEPTH_MAX => {
                self.all(value, keywords, expressions, depth)
            }
            _ => None,
        }
    }

    /// Whether a value obeys all of `keywords`; None if that cannot be decided.
    fn all(
        &self,
        value: &Value,
        keywords: &Map<String, Value>,
        expressions: &mut Expressions,
        depth: usize,
    ) -> Option<bool> {
        let mut all = true;
        for (name, said) in keywords {
            if is_silent(name, said) {
                continue;
            }
            let size = said.as_array().map_or(1, Vec::len);
            self.left.set(self.left.get().checked_sub(size)?);
            let mut fits = |schema| self.fits(value, schema, expressions, depth + 1);
            all &= match (name.as_str(), said) {
                ("$ref", Value::String(name)) => fits(self.root.target(name)?)?,
                ("not", _) => !fits(said)?,
                ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => {
                    let fit: Option<Vec<bool>> = parts.iter().map(fits).collect();
                    let fit: Vec<bool> = fit?.into_iter().filter(|fits| *fits).collect();
                    match name.as_str() {
                        "allOf" => fit.len() == parts.len(),
                        "anyOf" => !fit.is_empty(),
                        _ => fit.len() == 1,
                    }
                }
                (name, _) => obeys(value, name, said, expressions)?,
            };
        }
        Some(all)
    }
}

/// Whether a value obeys the keyword `name` with the value `said`; None if that cannot be decided.
fn obeys(value: &Value, name: &str, said: &Value, expressions: &mut Expressions) -> Option<bool> {
    let container = value.is_array() || value.is_object();
    Some(match (name, value) {
        ("type", _) => {
            unknown_type(said).is_none().then_some(())?;
            is_of(value, said)
        }
        ("const", _) => spelt(said) == spelt(value),
        ("enum", _) => {
            let mut listed = said.as_array()?.iter();
            listed.any(|one| spelt(one) == spelt(value))
        }
        ("minLength", Value::String(text)) => text.chars().count() as f64 >= said.as_f64()?,
        ("maxLength", Value::String(text)) => text.chars().count() as f64 <= said.as_f64()?,
        ("pattern", Value::String(text)) => {
            let expression = || ecma::searched(said.as_str()?).ok();
            found(text, said.as_str()?, expression, expressions)?
        }
        ("format", _) => is_of_format(value, said.as_str()?, expressions)?,
        (name, Value::Number(_)) if NUMBER_KEYWORDS.contains(&name) => {
            is_within(value, name, said)?
        }
        (name, _) if TEXT_KEYWORDS.contains(&name) || NUMBER_KEYWORDS.contains(&name) => true,
        (name, _) => (OF_CONTAINERS.contains(&name) && !container).then_some(true)?,
    })
}

/// Whether an expression matches somewhere in a text.
fn found(
    text: &str,
    name: &str,
    expression: impl FnOnce() -> Option<String>,
    expressions: &mut Expressions,
) -> Option<bool> {
    let ready = expressions.entry(name.to_string()).or_insert_with(|| {
        let mut builder = RegexBuilder::new(&expression()?);
        builder.size_limit(EXPRESSION_BYTES_MAX).build().ok()
    });
    Some(ready.as_ref()?.is_match(text))
}

fn is_of_format(value: &Value, name: &str, expressions: &mut Expressions) -> Option<bool> {
    match (formats::find(name)?, value) {
        (Format::Text(whole), Value::String(text)) => {
            let expression = || Some(format!("^(?:{whole})$"));
            found(text, whole, expression, expressions)
        }
        (Format::Number(least, most), Value::Number(number)) => {
            let number = number.as_f64()?;
            Some(least as f64 <= number && number <= most as f64)
        }
        _ => Some(true),
    }
}

/// Whether a number keeps to a bound, or is a multiple of a whole number; None if undecidable.
fn is_within(value: &Value, name: &str, said: &Value) -> Option<bool> {
    if bounds::is_far(value) || bounds::is_far(said) {
        return None;
    }
    let (number, bound) = (value.as_f64()?, said.as_f64()?);
    Some(match name {
        "minimum" => number >= bound,
        "exclusiveMinimum" => number > bound,
        "maximum" => number <= bound,
        "exclusiveMaximum" => number < bound,
        // Only whole numbers are divided, since fractions are not exact in binary.
        _ if number.fract() == 0.0 && bound.fract() == 0.0 && bound > 0.0 => number % bound == 0.0,
        _ if bound.fract() == 0.0 && bound > 0.0 => false,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn left(schema: Value) -> Option<Value> {
        let document = json!({"$defs": {"s": {"minLength": 2}, "o": {"$ref": "#/$defs/s"}}});
        let root = Root::new(&document);
        let left = Judge::new(&root).listed(schema.as_object().unwrap());
        left.map(|mut left| left["enum"].take())
    }

    #[test]
    fn values_are_left_that_obey_all_else() {
        let values = json!(["a", "bb", "ccc", 2, 3.5, null]);
        for (rest, expected) in [
            (
                json!({"pattern": "^.b|c$"}),
                json!(["bb", "ccc", 2, 3.5, null]),
            ),
            (
                json!({"minLength": 2, "type": "string"}),
                json!(["bb", "ccc"]),
            ),
            (
                json!({"maxLength": 1.0, "minimum": 3}),
                json!(["a", 3.5, null]),
            ),
            (
                json!({"multipleOf": 2, "type": ["number", "string"]}),
                json!(["a", "bb", "ccc", 2]),
            ),
            (
                json!({"exclusiveMaximum": 2, "not": {"type": "null"}}),
                json!(["a", "bb", "ccc"]),
            ),
            (json!({"const": 2.0}), json!([2.0])),
            (
                json!({"$ref": "#/$defs/o"}),
                json!(["bb", "ccc", 2, 3.5, null]),
            ),
            (
                json!({"anyOf": [{"const": "a"}, {"maximum": 2, "type": "integer"}]}),
                json!(["a", 2]),
            ),
            (
                json!({"oneOf": [{"type": "string"}, {"maxLength": 2}]}),
                json!(["ccc", 2, 3.5, null]),
            ),
            (
                json!({"allOf": [{"type": "string"}, {"maxLength": 2}]}),
                json!(["a", "bb"]),
            ),
            (
                json!({"format": "date", "required": ["x"]}),
                json!([2, 3.5, null]),
            ),
            (json!({"format": "uint8", "type": "integer"}), json!([2])),
            (json!({"minLength": 9, "type": "string"}), json!([])),
        ] {
            let mut schema = rest.clone();
            schema["enum"] = values.clone();
            assert_eq!(left(schema), Some(expected), "{rest}");
        }
    }

    #[test]
    fn what_nobody_knows_is_left_to_others() {
        for schema in [
            json!({"enum": ["a"]}),
            json!({"enum": ["a"], "type": "string", "title": "t"}),
            json!({"enum": ["a"], "pattern": "(?=a)"}),
            json!({"enum": ["a"], "if": {}}),
            json!({"enum": ["a"], "format": "phone"}),
            json!({"enum": [0.3], "multipleOf": 0.1}),
            json!({"enum": [{}], "required": ["a"]}),
            json!({"enum": ["a"], "$ref": "#/$defs/absent"}),
            json!({"enum": "a", "minLength": 2}),
        ] {
            assert_eq!(left(schema.clone()), None, "{schema}");
        }
        let many: Vec<Value> = (0..COMPARED_MAX).map(Value::from).collect();
        assert!(left(json!({"enum": many, "minimum": 1})).is_some());
        let one_more: Vec<Value> = (0..=COMPARED_MAX).map(Value::from).collect();
        assert_eq!(left(json!({"enum": one_more, "minimum": 1})), None);
    }
}
