//! Types of the arguments of a request's tools.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Number, Value};

use crate::grammar::calls::without_annotations;
use crate::grammar::each;

use super::members::Members;
use super::{is_json, quoted};

/// Depth to which a schema's alternatives are read.
pub const SCHEMA_DEPTH_MAX: usize = 8;
/// Longest chain of references that is followed.
pub const REFERENCES_MAX: usize = 8;

/// Types of the arguments of a request's tools.
#[derive(Debug, Default)]
pub struct ToolSchemas {
    functions: HashMap<String, Function>,
}

#[derive(Debug, Default)]
struct Function {
    members: Members<Types>,
    /// Names of the described arguments, the longest first.
    names: Vec<String>,
}

impl ToolSchemas {
    /// Reads tools in the form of the chat completions API; arguments of unknown schemas are text.
    pub fn new<'v>(tools: impl IntoIterator<Item = &'v Value>) -> ToolSchemas {
        let tools = tools.into_iter().map(without_annotations);
        let functions = tools.filter_map(|tool| {
            let function = &tool["function"];
            let root = Root::new(&function["parameters"]);
            let members = Members::of(&root, root.value).typed(&root);
            let mut names = members.names();
            names.sort_by_key(|name| std::cmp::Reverse(name.len()));
            let name = function["name"].as_str()?.to_string();
            Some((name, Function { members, names }))
        });
        let functions = functions.collect();
        ToolSchemas { functions }
    }

    /// Whether the request has the function `function`.
    pub fn has(&self, function: &str) -> bool {
        self.functions.contains_key(function)
    }

    /// Names of the arguments that a function is known to have, the longest first.
    pub fn arguments_of(&self, function: &str) -> &[String] {
        let function = self.functions.get(function);
        function.map_or(&[], |function| &function.names)
    }

    /// Types of an argument; None if unknown.
    pub fn types(&self, function: &str, argument: &str) -> Option<Types> {
        self.functions.get(function)?.members.types(argument)
    }
}

/// JSON types that an argument may have; none set means that the schema does not state any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    const STRING: Types = Types(1);
    /// Numbers that are not whole.
    const FRACTION: Types = Types(1 << 1);
    const INTEGER: Types = Types(1 << 2);
    const BOOLEAN: Types = Types(1 << 3);
    const NULL: Types = Types(1 << 4);
    const ARRAY: Types = Types(1 << 5);
    const OBJECT: Types = Types(1 << 6);
    const NUMBER: Types = Types::FRACTION.or(Types::INTEGER);
    /// Values that are read only as text.
    pub const TEXT: Types = Types::STRING;
    /// Lists and objects.
    pub const CONTAINERS: Types = Types::ARRAY.or(Types::OBJECT);

    /// Types by their names in the keyword `type`.
    const NAMED: [(&str, Types); 7] = [
        ("string", Types::STRING),
        ("boolean", Types::BOOLEAN),
        ("null", Types::NULL),
        ("array", Types::ARRAY),
        ("object", Types::OBJECT),
        ("number", Types::NUMBER),
        ("integer", Types::INTEGER),
    ];

    /// Whether a value may be text, so that it is read as text rather than as JSON.
    pub fn is_text(self) -> bool {
        self.has(Types::STRING) || self.unsaid()
    }

    /// The type of a value.
    pub fn of(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(number) if is_whole(number) => Types::INTEGER,
            Value::Number(_) => Types::FRACTION,
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }

    /// Whether `self` and `others` have a type in common.
    pub fn has(self, others: Types) -> bool {
        !self.and(others).unsaid()
    }

    /// Whether no value has a type of `self` and one of `other`; unstated types may be any.
    pub fn excludes(self, other: Types) -> bool {
        !self.unsaid() && !other.unsaid() && !self.has(other)
    }

    /// Whether the value can only be null.
    pub fn is_null(self) -> bool {
        self == Types::NULL
    }

    /// The types without that of strings.
    pub fn without_text(self) -> Types {
        self.without(Types::STRING)
    }

    /// The types of `self` that `other` does not have.
    pub fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    /// The types of numbers, booleans and null.
    pub fn scalars(self) -> Types {
        self.without(Types::STRING).without(Types::CONTAINERS)
    }

    /// The types as names for the keyword `type`.
    pub fn names(self) -> Vec<&'static str> {
        let has = |types| match types {
            Types::NUMBER => self.has(Types::FRACTION),
            Types::INTEGER => self.and(Types::NUMBER) == Types::INTEGER,
            types => self.has(types),
        };
        let names = Types::NAMED.iter().filter(|(_, types)| has(*types));
        names.map(|(name, _)| *name).collect()
    }

    /// Expression of the texts that a reader might take for a value of one of these types although
    /// text is allowed; None if the reader takes all texts as text.
    pub fn lookalikes(self) -> Option<String> {
        let texts = [
            (Types::ARRAY, r"\[(?s:.*)"),
            (Types::OBJECT, r"\{(?s:.*)"),
            (Types::NUMBER, "[0-9-](?s:.*)"),
            (Types::BOOLEAN, r"(?:true|false)\s*"),
            (Types::NULL, r"(?i:null|none)\s*"),
        ];
        let texts = texts.iter().filter(|(types, _)| self.has(*types));
        let texts: Vec<&str> = texts.map(|(_, text)| *text).collect();
        (!texts.is_empty()).then(|| format!(r"\s*(?:{})", texts.join("|")))
    }

    /// Types that `names`, the value of the keyword `type`, has; None if there are none.
    pub fn named(names: &Value) -> Option<Types> {
        let names = each(names).iter().filter_map(Value::as_str);
        names.filter_map(Types::of_name).reduce(Types::or)
    }

    /// Types of one name in the keyword `type`; None if there is no such name.
    pub fn of_name(name: &str) -> Option<Types> {
        let named = Types::NAMED.iter().find(|(known, _)| *known == name);
        named.map(|(_, types)| *types)
    }

    /// Types of the values that `const` and `enum` list; None if a schema lists none.
    fn listed(schema: &Value) -> Option<Types> {
        let fixed = schema.get("const").into_iter();
        let listed = schema["enum"].as_array().into_iter().flatten();
        fixed.chain(listed).map(Types::of).reduce(Types::or)
    }

    pub(super) fn said(self) -> Option<Types> {
        Some(self).filter(|types| !types.unsaid())
    }

    /// Union of the types of `self` and of `other`.
    pub const fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    /// Intersection of the types of `self` and of `other`.
    pub fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    /// Whether no type is stated.
    pub fn unsaid(self) -> bool {
        self == Types::default()
    }

    /// Whether a value that begins with `start` is a string, however it goes on.
    pub fn surely_string(self, start: &str) -> bool {
        if !self.has(Types::STRING) {
            return false;
        }
        let text = start.trim_start();
        let lower = text.to_ascii_lowercase();
        let begins = |name: &str, text: &str| name.starts_with(text.trim_end());
        let other = match text.chars().next() {
            None => !self.without_text().unsaid(),
            Some('[') => self.has(Types::ARRAY),
            Some('{') => self.has(Types::OBJECT),
            Some('-' | '0'..='9') => self.has(Types::NUMBER),
            Some(_) => false,
        };
        let null = self.has(Types::NULL) && (begins("null", &lower) || begins("none", &lower));
        let boolean = self.has(Types::BOOLEAN) && (begins("true", text) || begins("false", text));
        !(other || null || boolean)
    }

    /// JSON of a complete value: of one of these types if the text can be read so, else a string.
    pub fn to_json(self, text: &str) -> String {
        let trimmed = text.trim();
        let lower = trimmed.to_ascii_lowercase();
        if self.has(Types::NULL) && (lower == "null" || lower == "none") {
            return "null".to_string();
        }
        let is_boolean = |text: &str| text == "true" || text == "false";
        if self.has(Types::BOOLEAN)
            && (is_boolean(trimmed) || (!self.has(Types::STRING) && is_boolean(&lower)))
        {
            return lower;
        }
        let wanted = match trimmed.as_bytes().first() {
            Some(b'[') => self.has(Types::ARRAY) || self.unsaid(),
            Some(b'{') => self.has(Types::OBJECT) || self.unsaid(),
            Some(b'-' | b'0'..=b'9') => self.takes_number(trimmed),
            _ => false,
        };
        if wanted && is_json(trimmed) {
            return trimmed.to_string();
        }
        quoted(text)
    }

    /// Whether the text of a number is read as a number. If the schema allows no strings, a number
    /// of the wrong kind is passed on as it is.
    fn takes_number(self, text: &str) -> bool {
        let whole = || serde_json::from_str(text).is_ok_and(|number| is_whole(&number));
        match [Types::FRACTION, Types::INTEGER].map(|of| self.has(of)) {
            [true, true] => true,
            [false, false] => false,
            [fraction, _] => !self.has(Types::STRING) || fraction != whole(),
        }
    }
}

fn is_whole(number: &Number) -> bool {
    number.as_f64().is_none_or(|number| number.fract() == 0.0)
}

/// Root of one document: resolves references in its schemas and finds the types that they allow.
#[derive(Debug)]
pub struct Root<'v> {
    value: &'v Value,
    /// Types by the address of a schema: references share schemas and may be circular.
    types: RefCell<HashMap<*const Value, Option<Types>>>,
}

impl<'v> Root<'v> {
    pub fn new(value: &'v Value) -> Root<'v> {
        Root {
            value,
            types: RefCell::default(),
        }
    }

    pub fn value(&self) -> &'v Value {
        self.value
    }

    /// Target of a reference; None if the document does not have it.
    pub fn target(&self, reference: &str) -> Option<&'v Value> {
        self.value.pointer(&decoded(reference.strip_prefix('#')?)?)
    }

    /// Schema at the end of the chain of references from `schema`, or `schema` itself.
    pub fn resolved(&self, mut schema: &'v Value) -> &'v Value {
        for _ in 0..REFERENCES_MAX {
            let target = schema["$ref"].as_str().and_then(|name| self.target(name));
            match target {
                Some(found) => schema = found,
                None => break,
            }
        }
        schema
    }

    /// The types that a schema allows.
    pub fn types(&self, schema: &'v Value) -> Types {
        self.said(schema, 0).unwrap_or_default()
    }

    fn said(&self, schema: &'v Value, depth: usize) -> Option<Types> {
        if depth > SCHEMA_DEPTH_MAX {
            return None;
        }
        let schema = self.resolved(schema);
        let address = std::ptr::from_ref(schema);
        if let Some(known) = self.types.borrow().get(&address) {
            return *known;
        }
        // A circular reference adds no types.
        self.types.borrow_mut().insert(address, None);
        let types = self.read(schema, depth);
        self.types.borrow_mut().insert(address, types);
        types
    }

    fn read(&self, schema: &'v Value, depth: usize) -> Option<Types> {
        let parts = |key: &str| schema[key].as_array().into_iter().flatten();
        let inside = |part| self.said(part, depth + 1);
        // An alternative that states no types allows all.
        let either = |key| {
            let types: Option<Vec<Types>> = parts(key).map(inside).collect();
            types?.into_iter().reduce(Types::or)
        };
        let all = [
            Types::named(&schema["type"]),
            either("anyOf"),
            either("oneOf"),
            Types::listed(schema),
        ];
        let all = all.into_iter().flatten();
        let mut said = all.chain(parts("allOf").filter_map(inside));
        let first = said.next()?;
        // If no type fits all statements, the first one counts.
        let types = said.fold(first, |types, more| types.and(more).said().unwrap_or(types));
        Some(match schema["nullable"] == true {
            true => types.or(Types::NULL),
            false => types,
        })
    }
}

/// The text of a fragment without percent escapes; None if these are broken.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut parts = fragment.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let digits = part.get(..2)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| plain)?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_may_be_escaped() {
        let document = json!({"$defs": {"a/b": 1, "a~b": 2, "a b": 3, "a%b": 4}, "list": [5]});
        let root = Root::new(&document);
        for (reference, value) in [
            ("#/$defs/a~1b", 1),
            ("#/$defs/a~0b", 2),
            ("#/%24defs/a%20b", 3),
            ("#/$defs/a%25b", 4),
            ("#/list/0", 5),
        ] {
            assert_eq!(root.target(reference), Some(&json!(value)), "{reference}");
        }
        assert_eq!(root.target("#"), Some(&document));
        for reference in [
            "",
            "#x",
            "#/$defs/c",
            "#/%2",
            "#/%zz",
            "#/%+1",
            "#/%ff",
            "http://a/#",
        ] {
            assert_eq!(root.target(reference), None, "{reference}");
        }
    }

    #[test]
    fn types_are_those_that_all_of_a_schema_allows() {
        let types = |schema: &Value| Root::new(schema).types(schema);
        let nullable = json!({"type": ["string", "null"]});
        assert!(types(&nullable).is_text() && !types(&nullable).is_null());
        for text in [
            json!({"type": ["string", "null"], "enum": ["none", "null"]}),
            json!({"type": "string", "anyOf": [nullable, {"type": "null"}]}),
            json!({"allOf": [nullable, {"type": "string"}]}),
        ] {
            assert_eq!(types(&text), Types::TEXT, "{text}");
        }
        assert!(!types(&json!({"type": "integer", "enum": ["a"]})).is_text());
    }

    /// Each refers to the next several times, or to itself.
    #[test]
    fn references_that_multiply_are_read_once() {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{}", at % 40)});
        let one = |at: usize| (at.to_string(), json!({"anyOf": vec![next(at + 1); 100]}));
        let mut document = json!({"$defs": (0..40).map(one).collect::<Value>()});
        document["properties"] = json!({"a": next(0)});
        let tool = json!({"function": {"name": "f", "parameters": document}});
        assert_eq!(
            ToolSchemas::new([&tool]).types("f", "a"),
            Some(Types::default())
        );
    }
}
