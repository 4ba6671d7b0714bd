//! Rewriting of JSON schemas for llguidance.
//!
//! llguidance follows only references whose pointers have no escapes, and ignores keywords that it
//! does not know. A rewritten schema contains all schemas that it refers to; parts that cannot be
//! enforced are reported with their paths.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;

use llguidance::panic_utils::catch_unwind;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};

use crate::tools::Root;

use super::formats::{self, FAR, Format};
use super::limits::{self, GRAMMAR_BYTES_MAX, SCHEMA_VALUES_MAX};
use super::{JSON_WHITESPACE, bounds, ecma, explained, keywords, panics};

/// Keywords that are enforced in every schema.
const ENFORCED: &[&str] = &[
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "required",
    "type",
];

/// Keywords whose values are schemas, contain schemas, or decide how the keyword is rewritten.
const PARTS: &[&str] = &[
    "$ref",
    "allOf",
    "anyOf",
    "format",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
];

/// Escapes allowed in strings. `\u` is not: with it, a member's name could be written so that the
/// grammar takes it for another name.
const ESCAPES_BY_NAME: &str = "nrbtf\\\"";

/// A schema, or a part of one, to be rewritten and compiled to a grammar of JSON.
pub struct Subschema<'r, 'v> {
    pub root: &'r Root<'v>,
    pub schema: &'v Value,
    /// Path of the schema in its document, for errors; may be empty.
    pub path: &'r str,
    /// Whether each keyword must be enforced; else keywords that are not enforced give warnings.
    pub strict: bool,
    /// Whether white space may stand between the parts of the text.
    pub whitespace: bool,
    /// Types that the value must have in addition to its schema; empty if unknown.
    pub of_types: &'r [&'r str],
}

impl<'v> Subschema<'_, 'v> {
    /// The rewritten schema with llguidance's options, and warnings about parts not enforced.
    ///
    /// # Errors
    /// States what must be enforced and cannot, or that the result is too large.
    pub fn written(&self) -> Result<(Value, Vec<String>), String> {
        let mut writer = Writer::new(self.root, self.schema);
        let (mut schema, problems) = writer.document(self.path)?;
        if self.strict && !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let mut options = json!({"lenient": !self.strict, "whitespace_flexible": self.whitespace});
        if self.whitespace {
            options["whitespace_pattern"] = Value::from(JSON_WHITESPACE);
        }
        if self.strict && writer.open_names {
            options["json_allowed_escapes"] = Value::from(ESCAPES_BY_NAME);
        }
        if schema == true {
            schema = json!({});
        }
        match self.of_types {
            [] => {}
            [name] => schema["type"] = Value::from(*name),
            names => schema["type"] = Value::from(names),
        }
        if let Some(map) = schema.as_object_mut() {
            map.insert("x-guidance".to_string(), options);
        }
        Ok((schema, problems))
    }
}

/// Warnings of llguidance about parts of a rewritten schema that it does not enforce.
///
/// # Errors
/// The reason why llguidance refuses the schema.
pub fn compiled(schema: &Value) -> Result<Vec<String>, String> {
    let build = || {
        let builder = GrammarBuilder::new(None, limits::PARSER);
        let options = JsonCompileOptions::default();
        options.json_to_llg_with_overrides(builder, schema.clone())
    };
    let built = panics::inside(|| catch_unwind(AssertUnwindSafe(build)));
    let built = built.map_err(|error| explained(&error.to_string()))?;
    let warnings = built.builder.get_warnings();
    Ok(warnings.iter().map(|(text, _)| explained(text)).collect())
}

/// Path of a schema in its document.
#[derive(Clone, Copy)]
struct SchemaPath<'p> {
    outer: Option<&'p SchemaPath<'p>>,
    name: &'p str,
}

impl SchemaPath<'_> {
    fn inner<'p>(&'p self, name: &'p str) -> SchemaPath<'p> {
        SchemaPath {
            outer: Some(self),
            name,
        }
    }
}

impl fmt::Display for SchemaPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outer {
            Some(outer) if outer.outer.is_some() || !outer.name.is_empty() => {
                write!(f, "{outer}.{}", self.name)
            }
            _ => f.write_str(self.name),
        }
    }
}

/// Rewriter of a schema and of all schemas that it refers to.
struct Writer<'r, 'v> {
    root: &'r Root<'v>,
    start: &'v Value,
    /// Number of each schema that references lead to, by the schema's address.
    numbers: HashMap<*const Value, usize>,
    targets: Vec<(&'v str, &'v Value)>,
    problems: Vec<String>,
    /// Values that may still be written: each reference writes its target again.
    values: usize,
    bytes: usize,
    /// Whether some object may have members other than its named ones.
    open_names: bool,
}

impl<'r, 'v> Writer<'r, 'v> {
    fn new(root: &'r Root<'v>, start: &'v Value) -> Writer<'r, 'v> {
        Writer {
            root,
            start,
            numbers: HashMap::new(),
            targets: Vec::new(),
            problems: Vec::new(),
            values: SCHEMA_VALUES_MAX,
            bytes: GRAMMAR_BYTES_MAX,
            open_names: false,
        }
    }

    fn document(&mut self, path: &str) -> Result<(Value, Vec<String>), String> {
        let path = SchemaPath {
            outer: None,
            name: path,
        };
        let mut schema = self.schema(self.start, &path)?;
        let mut definitions = Map::new();
        while let Some(&(reference, target)) = self.targets.get(definitions.len()) {
            let path = SchemaPath {
                outer: None,
                name: reference,
            };
            let written = self.schema(target, &path)?;
            definitions.insert(definitions.len().to_string(), written);
        }
        if let (Some(map), false) = (schema.as_object_mut(), definitions.is_empty()) {
            map.insert("$defs".to_string(), Value::Object(definitions));
        }
        Ok((schema, std::mem::take(&mut self.problems)))
    }

    fn schema(&mut self, schema: &'v Value, path: &SchemaPath<'_>) -> Result<Value, String> {
        let Some(keywords) = schema.as_object() else {
            self.count(schema)?;
            return Ok(schema.clone());
        };
        let closed = keywords.get("additionalProperties") == Some(&Value::Bool(false));
        let mut named = ["properties", "patternProperties"].iter();
        self.open_names |= !closed && named.any(|name| keywords.contains_key(*name));
        let mut written = Map::new();
        for (keyword, value) in keywords {
            // Below the root, `$id` would change the targets of references.
            let names_all = keyword == "$id" && std::ptr::eq(schema, self.root.value());
            if names_all || keywords::is_silent(keyword, value) {
                continue;
            }
            self.spend(1, keyword.len())?;
            if let Some(value) = self.keyword(keyword, value, keywords, path)? {
                written.insert(keyword.clone(), value);
            }
        }
        if let Some(format) = keywords.get("format") {
            self.format(format, &mut written, path)?;
        }
        bounds::include(&mut written);
        Ok(Value::Object(written))
    }

    /// The rewritten value of a keyword; None if the keyword is left out.
    fn keyword(
        &mut self,
        keyword: &'v str,
        value: &'v Value,
        beside: &Map<String, Value>,
        path: &SchemaPath<'_>,
    ) -> Result<Option<Value>, String> {
        let problem = match (keyword, value) {
            ("$ref", Value::String(reference)) => match self.reference(reference) {
                Some(name) => return Ok(Some(Value::from(name))),
                None => keywords::leads_nowhere(value),
            },
            ("prefixItems", _) if beside.get("items").is_some_and(Value::is_array) => {
                "prefixItems beside a list of items is not enforced".to_string()
            }
            // `additionalItems` restricts the items after a list of schemas in `items`.
            ("additionalItems", _) if !beside.get("items").is_some_and(Value::is_array) => {
                return Ok(None);
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(items)) => {
                let path = &path.inner(keyword);
                let items = items.iter().map(|item| self.schema(item, path));
                return Ok(Some(Value::Array(items.collect::<Result<_, _>>()?)));
            }
            ("properties" | "patternProperties", Value::Object(members)) => {
                let path = &path.inner(keyword);
                let loose = keyword != "properties";
                return self.members(members, loose, path).map(Some);
            }
            ("items" | "additionalItems" | "additionalProperties", _) => {
                return Ok(Some(self.schema(value, &path.inner(keyword))?));
            }
            ("pattern", Value::String(pattern)) => match ecma::searched(pattern) {
                Ok(pattern) => return self.copied(&Value::from(pattern)).map(Some),
                Err(problem) => not_enforced(pattern, &problem),
            },
            // A format is replaced by the keywords that express it.
            ("format", _) => return Ok(None),
            ("uniqueItems", Value::Bool(true)) if at_most_one(beside) => return Ok(None),
            ("enum", Value::Array(values)) if values.is_empty() => {
                "enum lists no value, so that nothing fits".to_string()
            }
            (keyword, value) if let Some(problem) = misfit(keyword, value) => problem,
            ("minProperties", _) if may_repeat(value, beside) => {
                "minProperties is not enforced where names may repeat".to_string()
            }
            _ if ENFORCED.contains(&keyword) => return self.copied(value).map(Some),
            _ if PARTS.contains(&keyword) => format!("{keyword} has no value that it may have"),
            _ => format!("the keyword {keyword:?} is not enforced"),
        };
        self.report(path, &problem);
        Ok(None)
    }

    /// Adds the keywords that express a format.
    fn format(
        &mut self,
        format: &Value,
        written: &mut Map<String, Value>,
        path: &SchemaPath<'_>,
    ) -> Result<(), String> {
        let Some(name) = format.as_str() else {
            self.report(path, "format must be a string");
            return Ok(());
        };
        let allowed = match formats::find(name) {
            None => {
                self.report(path, &format!("the format {name:?} is not enforced"));
                return Ok(());
            }
            Some(Format::Anything) => return Ok(()),
            Some(Format::Number(least, most)) => json!({"minimum": least, "maximum": most}),
            Some(Format::Text(texts)) => json!({"pattern": format!("^(?:{texts})$")}),
        };
        let all = written.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(parts) = all {
            parts.push(self.copied(&allowed)?);
        }
        Ok(())
    }

    fn members(
        &mut self,
        members: &'v Map<String, Value>,
        patterns: bool,
        path: &SchemaPath<'_>,
    ) -> Result<Value, String> {
        let mut written = Map::new();
        for (name, schema) in members {
            let called = match patterns {
                true => ecma::searched(name),
                false => Ok(name.clone()),
            };
            match called {
                Ok(called) if written.contains_key(&called) => {
                    self.report(path, &not_enforced(name, "another one says the same"));
                }
                Ok(called) => {
                    self.spend(1, called.len())?;
                    let schema = self.schema(schema, &path.inner(name))?;
                    written.insert(called, schema);
                }
                Err(problem) => self.report(path, &not_enforced(name, &problem)),
            }
        }
        Ok(Value::Object(written))
    }

    /// A reference in the form that llguidance follows.
    fn reference(&mut self, reference: &'v str) -> Option<String> {
        let target = self.root.target(reference)?;
        if std::ptr::eq(target, self.start) {
            return Some("#".to_string());
        }
        let next = self.targets.len();
        let number = *self.numbers.entry(target).or_insert(next);
        if number == next {
            self.targets.push((reference, target));
        }
        Some(format!("#/$defs/{number}"))
    }

    fn report(&mut self, path: &SchemaPath<'_>, problem: &str) {
        let path = path.to_string();
        let separator = if path.is_empty() { "" } else { ": " };
        self.problems.push(format!("{path}{separator}{problem}"));
    }

    fn copied(&mut self, value: &Value) -> Result<Value, String> {
        self.count(value)?;
        Ok(value.clone())
    }

    fn count(&mut self, value: &Value) -> Result<(), String> {
        let bytes = value.as_str().map_or(0, str::len);
        self.spend(1, bytes)?;
        let items = value.as_array().into_iter().flatten();
        let members = value.as_object().into_iter().flat_map(|map| map.values());
        items.chain(members).try_for_each(|inner| self.count(inner))
    }

    fn spend(&mut self, values: usize, bytes: usize) -> Result<(), String> {
        let bytes = self.bytes.checked_sub(bytes);
        let left = self.values.checked_sub(values).zip(bytes);
        (self.values, self.bytes) = left.ok_or_else(|| {
            format!(
                "with what it refers to it has more than {SCHEMA_VALUES_MAX} values or \
                 {GRAMMAR_BYTES_MAX} bytes"
            )
        })?;
        Ok(())
    }
}

fn not_enforced(pattern: &str, problem: &str) -> String {
    format!("the pattern {pattern:?} is not enforced: {problem}")
}

/// Fault of a keyword's value, as far as it can be seen without the other keywords.
fn misfit(keyword: &str, value: &Value) -> Option<String> {
    let wanted = match keyword {
        "exclusiveMaximum" | "exclusiveMinimum" | "maximum" | "minimum"
            if bounds::is_far(value) =>
        {
            return Some(format!(
                "{keyword} {value} is not enforced: it is beyond {FAR}"
            ));
        }
        "exclusiveMaximum" | "exclusiveMinimum" | "maximum" | "minimum" | "multipleOf"
            if !value.is_number() =>
        {
            "a number"
        }
        "maxItems" | "maxLength" | "maxProperties" | "minItems" | "minLength" | "minProperties"
            if value
                .as_f64()
                .is_none_or(|found| found < 0.0 || found.fract() != 0.0) =>
        {
            "a whole number from 0"
        }
        "required"
            if !value
                .as_array()
                .is_some_and(|names| names.iter().all(Value::is_string)) =>
        {
            "a list of names"
        }
        "type" if keywords::unknown_type(value).is_some() => {
            return keywords::unknown_type(value);
        }
        _ => return None,
    };
    Some(format!("{keyword} must be {wanted}, not {value}"))
}

fn at_most_one(beside: &Map<String, Value>) -> bool {
    let most = beside.get("maxItems").and_then(Value::as_u64);
    most.is_some_and(|most| most <= 1)
}

/// Whether a reply could reach `least` members by writing an unnamed member several times.
fn may_repeat(least: &Value, beside: &Map<String, Value>) -> bool {
    let list = |keyword| beside.get(keyword).and_then(Value::as_array);
    let required = list("required").map_or(0, Vec::len) as u64;
    let closed = beside.get("additionalProperties") == Some(&Value::Bool(false));
    let open = !closed || beside.contains_key("patternProperties");
    open && least.as_u64().is_some_and(|least| least > required + 1)
}
