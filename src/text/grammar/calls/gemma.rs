//! Calls in Gemma's form, whose values resemble JSON.

use std::collections::HashMap;

use serde_json::Value;

use crate::grammar::keywords;
use crate::tools::gemma::{CALL, FUNCTION, Gemma, QUOTE};
use crate::tools::{Member, Root, Types};

use super::text::{ANY_TEXT, NUMBER_KEYWORDS, TEXT_KEYWORDS, text_of};
use super::{
    ANY, Argument, CallGrammar, Described, Form, Function, Lark, Members, at, literal, quoted,
};

/// Largest depth of nested schemas.
const DEPTH_MAX: usize = 64;
/// Most items of a list whose number of items is bounded.
const ITEMS_MAX: u64 = 1_000;
/// Keywords of objects inside the arguments that are enforced.
const NESTED_KEYWORDS: &[&str] = &["additionalProperties", "properties", "required"];
/// Keywords of lists that are enforced.
const LIST_KEYWORDS: &[&str] = &["items", "maxItems", "minItems"];

/// Name of the rule for a value without a schema.
const ANY_VALUE: &str = "any_value";
/// Name of the rule for an object without a schema.
const ANY_OBJECT: &str = "any_object";
/// Expression of a key without a schema.
const ANY_KEY: &str = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/";
/// Expression of a number, a boolean or null without a schema.
const SCALAR: &str = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?|true|false|null/";

impl CallGrammar for Gemma {
    const AROUND: (&'static str, &'static str) = (FUNCTION, CALL.1);
    const SIGN: &'static str = FUNCTION;

    fn head(name: &str) -> String {
        format!("{name}{{")
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let name = quoted(function.name);
        if function.free {
            any_value(lark);
            return Ok(format!("{name} {ANY_OBJECT}"));
        }
        let alternatives = function.arguments(lark)?;
        let mut values = Values {
            lark,
            function,
            rules: 0,
            known: HashMap::new(),
        };
        let objects = alternatives.iter();
        let objects = objects.map(|arguments| values.object("", arguments, 0));
        let objects = objects.collect::<Result<Vec<String>, Stop>>();
        let objects = objects.map_err(|(Stop::Here(problem) | Stop::All(problem))| problem)?;
        Ok(format!("{name} ({})", objects.join(" | ")))
    }
}

/// Name of the rule for values without a schema, which is written at first use.
fn any_value(lark: &mut Lark) -> String {
    if lark.has_rule(ANY_VALUE) {
        return ANY_VALUE.to_string();
    }
    let quote = literal(QUOTE);
    lark.line(&format!(
        "{ANY_VALUE}: {quote} any_text | {SCALAR} | any_list | {ANY_OBJECT}"
    ));
    lark.text_rule("any_text", ANY_TEXT, QUOTE, QUOTE);
    lark.line(&format!(
        r#"any_list: "[" ({ANY_VALUE} ("," {ANY_VALUE})*)? "]""#
    ));
    lark.line(&format!(
        r#"{ANY_OBJECT}: "{{" (any_member ("," any_member)*)? "}}""#
    ));
    lark.line(&format!(r#"any_member: {ANY_KEY} ":" {ANY_VALUE}"#));
    ANY_VALUE.to_string()
}

/// Reason why a value has no rule.
enum Stop {
    /// The value's schema cannot be enforced, for this reason.
    Here(String),
    /// No further rule can be written, for this reason.
    All(String),
}

impl From<String> for Stop {
    fn from(problem: String) -> Stop {
        Stop::Here(problem)
    }
}

/// Writer of rules for the values in the arguments of one function.
struct Values<'l, 'v> {
    lark: &'l mut Lark,
    function: &'l Function<'v>,
    /// Number of rules written so far.
    rules: usize,
    /// Names of rules by the addresses of their schemas: many values may have the same schema, and
    /// schemas may refer to each other.
    known: HashMap<*const Value, String>,
}

impl<'v> Values<'_, 'v> {
    fn new_rule(&mut self) -> Result<String, Stop> {
        self.rules += 1;
        self.lark.check_size(0).map_err(Stop::All)?;
        Ok(format!("value_{}_{}", self.function.at, self.rules))
    }

    /// Rule of a value, as far as its schema can be enforced.
    fn value(&mut self, path: &str, schema: &'v Value, depth: usize) -> Result<String, Stop> {
        let followed = keywords::followed(schema, &self.function.root);
        let in_memory: *const Value = *followed.as_ref().unwrap_or(&schema);
        if let Some(rule) = self.known.get(&in_memory) {
            return Ok(rule.clone());
        }
        let rule = self.new_rule()?;
        self.known.insert(in_memory, rule.clone());
        let written = followed.map_err(Stop::Here);
        let written = match written.and_then(|schema| self.exact(path, schema, depth)) {
            Ok(written) => written,
            Err(Stop::Here(problem)) => {
                let tolerated = self.function.tolerate(self.lark, at(path, problem));
                tolerated.map_err(Stop::All)?;
                any_value(self.lark)
            }
            Err(stop) => return Err(stop),
        };
        self.lark.line(&format!("{rule}: {written}"));
        Ok(rule)
    }

    fn exact(&mut self, path: &str, schema: &'v Value, depth: usize) -> Result<String, Stop> {
        if depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} levels are not enforced").into());
        }
        if *schema == true {
            return Ok(any_value(self.lark));
        }
        if !schema.is_object() {
            let problem = "a schema that allows nothing is not enforced";
            return Err(problem.to_string().into());
        }
        if let Some(values) = keywords::fixed(schema)? {
            let texts: Result<Vec<String>, String> = values.into_iter().map(spelt).collect();
            return match texts?.as_slice() {
                [] => Err("has no value to choose".to_string().into()),
                texts => Ok(super::one_of(texts)),
            };
        }
        let root = &self.function.root;
        if let Some(options) = keywords::alternatives(schema, root, |_| true)? {
            let within = |option| root.types(option) == root.types(schema);
            if schema.get("type").is_some() && !options.iter().all(within) {
                let problem = "type beside alternatives is not enforced";
                return Err(problem.to_string().into());
            }
            let values = options.iter().map(|one| self.value(path, one, depth + 1));
            let values = values.collect::<Result<Vec<String>, Stop>>()?;
            return Ok(format!("({})", values.join(" | ")));
        }
        if let Some(problem) = schema.get("type").and_then(keywords::unknown_type) {
            return Err(problem.into());
        }
        let mut values = Vec::new();
        let names = match &schema["type"] {
            Value::String(name) => vec![name.as_str()],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ if schema.get("properties").is_some() => vec!["object"],
            _ => {
                let any = any_value(self.lark);
                if keywords::check(schema, &[]).is_ok() {
                    return Ok(any);
                }
                check_scalars(schema, root)?;
                values.push(format!("any_list | {ANY_OBJECT}"));
                vec!["boolean", "null", "number", "string"]
            }
        };
        for name in names {
            values.push(self.typed(path, name, schema, depth)?);
        }
        Ok(format!("({})", values.join(" | ")))
    }

    fn typed(
        &mut self,
        path: &str,
        name: &str,
        schema: &'v Value,
        depth: usize,
    ) -> Result<String, Stop> {
        match name {
            "string" => {
                let text = text_of(schema, &self.function.root, QUOTE, Types::TEXT)?;
                let rule = self.new_rule()?;
                let text = text.expression(self.lark, &rule);
                self.lark.text_rule(&rule, &text, QUOTE, QUOTE);
                Ok(format!("{} {rule}", literal(QUOTE)))
            }
            "array" => {
                keywords::check(schema, LIST_KEYWORDS)?;
                self.list(path, schema, depth)
            }
            "object" => {
                keywords::check(schema, NESTED_KEYWORDS)?;
                let members = Members::of(&self.function.root, schema);
                let members: Vec<Argument<'v>> = match members.alternatives.as_slice() {
                    [layers] => Members::members(layers).into_iter().map(inner).collect(),
                    _ => Vec::new(),
                };
                match members.is_empty() {
                    true => self.map(path, schema, depth),
                    false => self.object(path, &members, depth),
                }
            }
            _ => {
                let form = Form {
                    whitespace: false,
                    of_types: &[name],
                    call: None,
                };
                let written = self.function.json(self.lark, path, schema, form);
                written.map_err(Stop::All)
            }
        }
    }

    fn list(&mut self, path: &str, schema: &'v Value, depth: usize) -> Result<String, Stop> {
        let items = schema.get("items").unwrap_or(&ANY);
        let item = self.value(&inside(path, "items"), items, depth + 1)?;
        let bound = |name| keywords::whole(schema, name);
        let (least, most) = (bound("minItems")?.unwrap_or(0), bound("maxItems")?);
        if least.max(most.unwrap_or(0)) > ITEMS_MAX {
            return Err(format!("more than {ITEMS_MAX} items are not enforced").into());
        }
        if most.is_some_and(|most| most < least) {
            return Err(format!("no list has at least {least} and fewer items").into());
        }
        if most == Some(0) {
            return Ok(r#""[]""#.to_string());
        }
        let more = most.map_or(String::new(), |most| (most - 1).to_string());
        let others = least.saturating_sub(1);
        let items = format!(r#"{item} ("," {item}){{{others},{more}}}"#);
        Ok(match least {
            0 => format!(r#""[" ({items})? "]""#),
            _ => format!(r#""[" {items} "]""#),
        })
    }

    /// Rule of an object with members of any name, whose values have a schema.
    fn map(&mut self, path: &str, schema: &'v Value, depth: usize) -> Result<String, Stop> {
        let value = match schema.get("additionalProperties").unwrap_or(&ANY) {
            Value::Bool(false) => return Ok(r#""{}""#.to_string()),
            schema => self.value(&inside(path, "additionalProperties"), schema, depth + 1)?,
        };
        let member = format!(r#"{ANY_KEY} ":" {value}"#);
        Ok(format!(r#""{{" ({member} ("," {member})*)? "}}""#))
    }

    /// Rule of an object with its members in order; a comma precedes all but the first one present.
    fn object(
        &mut self,
        path: &str,
        members: &[Argument<'v>],
        depth: usize,
    ) -> Result<String, Stop> {
        let rule = self.new_rule()?;
        // Rule parts for the members from `at` on, with and without a member before.
        let (mut first, mut next) = (String::new(), String::new());
        for (at, member) in members.iter().enumerate().rev() {
            let key = member.name.as_str();
            if key.contains(QUOTE) {
                return Err(format!("the name {key:?} does not fit the model's calls").into());
            }
            let path = inside(path, &format!("properties.{key}"));
            let value = match member.schema {
                Described::By(schema) => self.value(&path, schema, depth + 1)?,
                Described::Of(_) => any_value(self.lark),
            };
            let key = quoted(&written_key(key));
            self.lark.line(&format!("{rule}_{at}: {key} {value}"));
            let with_first = format!("{rule}_{at} {next}");
            let with_next = format!("\",\" {with_first}");
            (first, next) = match (member.required, first.is_empty()) {
                (true, _) => (with_first, with_next),
                (false, true) => (format!("({with_first})?"), format!("({with_next})?")),
                (false, false) => (
                    format!("({with_first} | {first})"),
                    format!("(\",\" {rule}_{at})? {next}"),
                ),
            };
            self.lark.line(&format!("{rule}_first_{at}: {first}"));
            self.lark.line(&format!("{rule}_next_{at}: {next}"));
            (first, next) = (format!("{rule}_first_{at}"), format!("{rule}_next_{at}"));
        }
        Ok(format!(r#""{{" {first} "}}""#))
    }
}

/// # Errors
/// Names a keyword of a schema that is neither for texts nor for numbers.
fn check_scalars(schema: &Value, root: &Root<'_>) -> Result<(), String> {
    let known = [TEXT_KEYWORDS, NUMBER_KEYWORDS].concat();
    keywords::check(schema, &[&known[..], &["allOf"]].concat())?;
    let mut parts = schema["allOf"].as_array().into_iter().flatten();
    parts.try_for_each(|part| keywords::check(keywords::followed(part, root)?, &known))
}

/// A member of an object inside the arguments, as an argument with one schema.
fn inner(member: Member<&Value>) -> Argument<'_> {
    Argument {
        schema: Described::By(member.said.first().copied().unwrap_or(&ANY)),
        name: member.name,
        required: member.required,
    }
}

/// A key and its colon. A key with other than plain characters is put between [`QUOTE`]s, since it
/// might end early otherwise.
fn written_key(key: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "_-.$@".contains(char);
    match key.chars().all(is_plain) && !key.is_empty() {
        true => format!("{key}:"),
        false => format!("{QUOTE}{key}{QUOTE}:"),
    }
}

fn inside(path: &str, name: &str) -> String {
    match path {
        "" => name.to_string(),
        path => format!("{path}.{name}"),
    }
}

/// Text of a value in the model's form.
fn spelt(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.contains(QUOTE) => {
            Err(format!("the text {text:?} does not fit the model's calls"))
        }
        Value::String(text) => Ok(format!("{QUOTE}{text}{QUOTE}")),
        Value::Array(items) => {
            let items: Result<Vec<String>, String> = items.iter().map(spelt).collect();
            Ok(format!("[{}]", items?.join(",")))
        }
        Value::Object(map) => {
            let member = |(key, value): (&String, &Value)| Ok(format!("{key}:{}", spelt(value)?));
            let members: Result<Vec<String>, String> = map.iter().map(member).collect();
            Ok(format!("{{{}}}", members?.join(",")))
        }
        scalar => Ok(scalar.to_string()),
    }
}
