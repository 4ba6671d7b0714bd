//! Meaning of a schema's keywords in combination, shared by all code that writes grammars of
//! schemas.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::tools::{REFERENCES_MAX, Root, Types};

use super::OVERLAPPING;

/// Keywords, in addition to [`ANNOTATIONS`], that do not restrict a value, or whose schemas are
/// read only through references.
const SILENT: &[&str] = &[
    "$anchor",
    "$defs",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "definitions",
    "discriminator",
    "id",
];
/// Prefix of the names of extensions.
const EXTENSION: &str = "x-";

/// Most alternatives of `oneOf` that are compared with each other.
const COMPARED_MAX: usize = 100;

/// Keywords that do not restrict a value and whose own values have neither schemas nor references.
const ANNOTATIONS: &[&str] = &[
    "$comment",
    "default",
    "deprecated",
    "description",
    "example",
    "examples",
    "externalDocs",
    "markdownDescription",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords whose members are schemas under names that the client chose.
const NAMED: &[&str] = &[
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];

/// The schema without keywords that do not restrict a value: their content is neither read nor
/// counted. Extensions stay if a reference may lead into one. `nullable` of OpenAPI becomes the
/// null type of the standard.
pub fn standard(schema: &Value) -> Value {
    let extensions = schema.to_string().contains("/x-");
    plain(schema, extensions)
}

fn plain(schema: &Value, extensions: bool) -> Value {
    rewritten(schema, &|mut keywords| {
        keywords.retain(|name, _| {
            let extension = name.starts_with(EXTENSION) && !extensions;
            !ANNOTATIONS.contains(&name.as_str()) && !extension
        });
        if keywords.shift_remove("nullable") == Some(Value::Bool(true)) {
            allow_null(&mut keywords);
        }
        keywords
    })
}

/// A schema with each schema in it rewritten, inner ones before the ones around them.
pub fn rewritten(
    schema: &Value,
    write: &impl Fn(Map<String, Value>) -> Map<String, Value>,
) -> Value {
    let inner = |value: &Value| rewritten(value, write);
    match schema {
        Value::Array(items) => items.iter().map(inner).collect(),
        Value::Object(keywords) => {
            let written = keywords.iter().map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("const" | "enum" | "required", _) => value.clone(),
                    (keyword, Value::Object(schemas)) if NAMED.contains(&keyword) => {
                        let schemas = schemas.iter();
                        let schemas = schemas.map(|(name, value)| (name.clone(), inner(value)));
                        Value::Object(schemas.collect())
                    }
                    _ => inner(value),
                };
                (name.clone(), value)
            });
            Value::Object(write(written.collect()))
        }
        other => other.clone(),
    }
}

/// Adds null to the types of a schema, if it has any, and to the values that it lists.
fn allow_null(schema: &mut Map<String, Value>) {
    match schema.get_mut("type") {
        Some(Value::Array(names)) => names.push(Value::from("null")),
        Some(name) => *name = Value::from(vec![name.take(), Value::from("null")]),
        None => {}
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
}

/// Items of a list; another value is its own only item.
pub fn each(value: &Value) -> &[Value] {
    let items = value.as_array().map(Vec::as_slice);
    items.unwrap_or(std::slice::from_ref(value))
}

/// Whole number that a keyword of a schema states; None if the keyword is absent.
///
/// # Errors
/// When the keyword has another value.
pub fn whole(schema: &Value, keyword: &str) -> Result<Option<u64>, String> {
    match schema.get(keyword).map(|value| (value, value.as_u64())) {
        Some((value, None)) => Err(format!("{keyword} must be a whole number, not {value}")),
        Some((_, whole)) => Ok(whole),
        None => Ok(None),
    }
}

/// Fault of `names`, the value of `type`, if it has a name that is no type.
pub fn unknown_type(names: &Value) -> Option<String> {
    let names = each(names);
    let known = |name: &Value| name.as_str().is_some_and(is_type);
    match names.iter().find(|name| !known(name)) {
        Some(name) => Some(format!("the type {name} is not known")),
        None if names.is_empty() => Some("type names none".to_string()),
        None => None,
    }
}

/// Reason why an object's schema is not fully enforced: a reference without target, or alternatives
/// of which a value may fit two.
pub fn object_problem(schema: &Value, root: &Root<'_>) -> Option<String> {
    let leads = |to: &Value| to.as_str().is_some_and(|name| root.target(name).is_some());
    if let Some(reference) = schema.get("$ref")
        && !leads(reference)
    {
        return Some(leads_nowhere(reference));
    }
    let options = schema["oneOf"].as_array()?;
    let options: Vec<&Value> = options.iter().collect();
    check_apart(&options, root).err()
}

/// Whether a keyword with this value does not restrict values.
pub fn is_silent(name: &str, value: &Value) -> bool {
    let silent = SILENT.contains(&name) || ANNOTATIONS.contains(&name);
    silent || name.starts_with(EXTENSION) || allows_all(name, value)
}

/// Whether a keyword that may restrict values does not with this value.
fn allows_all(name: &str, value: &Value) -> bool {
    match name {
        "nullable" | "uniqueItems" => *value == false,
        "propertyNames" => value.as_object().is_some_and(|schema| {
            let says = schema.iter();
            let mut says = says.filter(|(name, value)| !is_silent(name, value));
            says.all(|(name, value)| name == "type" && value == "string")
        }),
        "unevaluatedItems" | "unevaluatedProperties" => *value == true,
        _ => false,
    }
}

/// # Errors
/// Names the first keyword of a schema that is neither silent nor `known`.
pub fn check(schema: &Value, known: &[&str]) -> Result<(), String> {
    match others(schema, known).next() {
        Some(name) => Err(format!("the keyword {name:?} is not enforced")),
        None => Ok(()),
    }
}

/// Keywords of a schema that restrict values, without `type` and those in `known`.
fn others<'v>(schema: &'v Value, known: &[&str]) -> impl Iterator<Item = &'v String> {
    let all = schema.as_object().into_iter().flatten();
    let stated = all.filter(|(name, value)| *name != "type" && !is_silent(name, value));
    stated
        .map(|(name, _)| name)
        .filter(|name| !known.contains(&name.as_str()))
}

/// # Errors
/// Names a keyword that restricts values in addition to `whole`, which must be the only one.
fn check_alone(schema: &Value, whole: &str) -> Result<(), String> {
    match others(schema, &[whole]).next() {
        Some(name) => Err(format!(
            "the keyword {name:?} beside {whole:?} is not enforced"
        )),
        None => Ok(()),
    }
}

/// Schema at the end of a chain of references; without references the schema itself.
///
/// # Errors
/// If a reference has no target, or another keyword beside a reference restricts values.
pub fn followed<'v>(mut schema: &'v Value, root: &Root<'v>) -> Result<&'v Value, String> {
    for _ in 0..REFERENCES_MAX {
        let Some(reference) = schema.get("$ref") else {
            return Ok(schema);
        };
        check_alone(schema, "$ref")?;
        let target = reference.as_str().and_then(|name| root.target(name));
        let target = target.ok_or_else(|| leads_nowhere(reference))?;
        let names = schema.get("type");
        if names.is_some_and(|names| *names != target["type"]) {
            return Err("the keyword \"type\" beside \"$ref\" is not enforced".to_string());
        }
        schema = target;
    }
    Err(format!(
        "more than {REFERENCES_MAX} references in a row are not enforced"
    ))
}

pub fn leads_nowhere(reference: &Value) -> String {
    format!("the reference {reference} leads nowhere in the schema")
}

/// Values of `const` or `enum` that `type` allows; None if a schema has neither keyword.
///
/// # Errors
/// If another keyword restricts values too.
pub fn fixed(schema: &Value) -> Result<Option<Vec<&Value>>, String> {
    let (keyword, values) = match (schema.get("const"), &schema["enum"]) {
        (Some(value), _) => ("const", std::slice::from_ref(value)),
        (None, Value::Array(values)) if values.is_empty() => {
            return Err("enum lists no value, so that nothing fits".to_string());
        }
        (None, Value::Array(values)) => ("enum", values.as_slice()),
        (None, Value::Null) => return Ok(None),
        (None, _) => return Err("enum must be a list".to_string()),
    };
    check_alone(schema, keyword)?;
    let fits = |value: &&Value| match &schema["type"] {
        names @ (Value::String(_) | Value::Array(_)) => is_of(value, names),
        _ => true,
    };
    Ok(Some(values.iter().filter(fits).collect()))
}

/// Whether `name` is the name of a JSON type.
pub fn is_type(name: &str) -> bool {
    Types::of_name(name).is_some()
}

/// Whether the JSON type of `value` is in `names`, the value of a schema's keyword `type`.
pub fn is_of(value: &Value, names: &Value) -> bool {
    Types::named(names).is_some_and(|types| types.has(Types::of(value)))
}

/// The schemas of `anyOf`, or of a `oneOf` whose alternatives do not overlap; None without these
/// keywords. `matters`: whether any value may fit an alternative.
///
/// # Errors
/// If alternatives may overlap, or another keyword restricts values.
pub fn alternatives<'v>(
    schema: &'v Value,
    root: &Root<'v>,
    matters: impl Fn(&'v Value) -> bool,
) -> Result<Option<&'v [Value]>, String> {
    for keyword in ["anyOf", "oneOf"] {
        let options = match &schema[keyword] {
            Value::Array(options) => options,
            Value::Null => continue,
            _ => return Err(format!("{keyword} must be a list")),
        };
        check_alone(schema, keyword)?;
        if keyword == "oneOf" {
            let options: Vec<&Value> = options.iter().filter(|one| matters(one)).collect();
            check_apart(&options, root)?;
        }
        return Ok(Some(options));
    }
    Ok(None)
}

/// # Errors
/// If a value may fit two of `options`, as far as types and fixed members tell.
fn check_apart(options: &[&Value], root: &Root<'_>) -> Result<(), String> {
    let mut values = HashSet::new();
    let mut others = Vec::new();
    for option in options {
        match fixed(root.resolved(option)) {
            Ok(Some(fixed)) => {
                let mut own = HashSet::new();
                own.extend(fixed.into_iter().map(spelt));
                if !values.is_disjoint(&own) {
                    return Err(OVERLAPPING.to_string());
                }
                values.extend(own);
            }
            _ => others.push(*option),
        }
    }
    let compared = others.len() <= COMPARED_MAX;
    let apart = |one: &Value| {
        let mut rest = options.iter().filter(|other| !std::ptr::eq(**other, one));
        rest.all(|other| are_apart(one, other, root))
    };
    match compared && others.into_iter().all(apart) {
        true => Ok(()),
        false => Err(OVERLAPPING.to_string()),
    }
}

/// Whether no value fits both schemas: the types differ, or a member has different fixed values.
fn are_apart(one: &Value, other: &Value, root: &Root<'_>) -> bool {
    let (one, other) = (root.resolved(one), root.resolved(other));
    if root.types(one).excludes(root.types(other)) {
        return true;
    }
    let needed = [one, other].map(|schema| schema["required"].as_array());
    let needed = needed.into_iter().flatten().flatten();
    let told_apart = |name: &str| {
        let [one, other] = [one, other].map(|schema| &schema["properties"][name]);
        let values = |schema| {
            let values = fixed(root.resolved(schema)).ok().flatten()?;
            Some(values.into_iter().map(spelt).collect::<HashSet<_>>())
        };
        matches!((values(one), values(other)), (Some(one), Some(other)) if one.is_disjoint(&other))
    };
    let both_objects = [one, other].iter().all(|schema| schema["type"] == "object");
    both_objects && needed.filter_map(Value::as_str).any(told_apart)
}

/// Text of a value that is the same for equal values.
pub fn spelt(value: &Value) -> String {
    match value.as_f64() {
        Some(number) => number.to_string(),
        None => value.to_string(),
    }
}
