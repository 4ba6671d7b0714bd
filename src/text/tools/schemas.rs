//! What the tools of a request say of the types of their arguments.

use std::collections::HashMap;

use serde_json::Value;

use super::{is_json, quoted};

/// Depth to which a schema's alternatives are looked into.
const SCHEMA_DEPTH_MAX: usize = 8;

/// What the tools of a request say about the types of arguments.
#[derive(Debug, Default)]
pub struct ToolSchemas {
    functions: HashMap<String, HashMap<String, Types>>,
}

impl ToolSchemas {
    /// Reads tools in the form of the chat completions API; what it does not understand is
    /// taken as text.
    pub fn new<'v>(tools: impl IntoIterator<Item = &'v Value>) -> ToolSchemas {
        let functions = tools.into_iter().filter_map(|tool| {
            let function = &tool["function"];
            let root = &function["parameters"];
            let parameters = resolved(root, root)["properties"].as_object();
            let types = parameters
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), Types::of(schema, root)));
            Some((function["name"].as_str()?.to_string(), types.collect()))
        });
        ToolSchemas {
            functions: functions.collect(),
        }
    }

    /// The types of an argument, if they are known.
    pub fn types(&self, function: &str, argument: &str) -> Option<Types> {
        self.functions.get(function)?.get(argument).copied()
    }
}

/// JSON types that an argument may have; none set means that the schema does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    array: bool,
    object: bool,
}

impl Types {
    /// The types that a schema allows; `root` holds what it refers to.
    pub fn of(schema: &Value, root: &Value) -> Types {
        let mut types = Types::default();
        types.add(schema, root, 0);
        types
    }

    /// Whether a value is read as text rather than as JSON.
    pub fn is_text(self) -> bool {
        self.string || self.unsaid()
    }

    /// What is read as text and as nothing else.
    pub const TEXT: Types = Types {
        string: true,
        number: false,
        boolean: false,
        null: false,
        array: false,
        object: false,
    };

    /// Whether the value can only be null.
    pub fn is_null(self) -> bool {
        let others = self.string || self.number || self.boolean || self.array || self.object;
        self.null && !others
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        if depth > SCHEMA_DEPTH_MAX {
            return;
        }
        let schema = resolved(schema, root);
        match &schema["type"] {
            Value::String(name) => self.add_name(name),
            Value::Array(names) => {
                names
                    .iter()
                    .filter_map(Value::as_str)
                    .for_each(|name| self.add_name(name));
            }
            _ => {}
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for alternative in schema[key].as_array().into_iter().flatten() {
                self.add(alternative, root, depth + 1);
            }
        }
        if schema.get("type").is_none() {
            schema
                .get("const")
                .into_iter()
                .for_each(|value| self.add_type_of(value));
            for value in schema["enum"].as_array().into_iter().flatten() {
                self.add_type_of(value);
            }
        }
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => {}
        }
    }

    fn add_type_of(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.boolean = true,
            Value::Number(_) => self.number = true,
            Value::String(_) => self.string = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }

    fn unsaid(self) -> bool {
        !(self.string || self.number || self.boolean || self.null || self.array || self.object)
    }

    /// Whether a value that begins with `start` is a string whatever follows.
    pub fn surely_string(self, start: &str) -> bool {
        self.string && !(self.null && "null".starts_with(start))
    }

    /// The JSON of a complete value: of the schema's type if it can be read so, else a string.
    pub fn to_json(self, text: &str) -> String {
        let trimmed = text.trim();
        let lower = trimmed.to_ascii_lowercase();
        if self.null && (lower == "null" || lower == "none") {
            return "null".to_string();
        }
        if self.string {
            return quoted(text);
        }
        if self.boolean && (lower == "true" || lower == "false") {
            return lower;
        }
        let wanted = match trimmed.as_bytes().first() {
            Some(b'[') => self.array || self.unsaid(),
            Some(b'{') => self.object || self.unsaid(),
            Some(b'-' | b'0'..=b'9') => self.number,
            _ => false,
        };
        if wanted && is_json(trimmed) {
            return trimmed.to_string();
        }
        quoted(text)
    }
}

/// The schema that `schema` refers to inside `root`, or itself.
pub fn resolved<'v>(mut schema: &'v Value, root: &'v Value) -> &'v Value {
    for _ in 0..SCHEMA_DEPTH_MAX {
        let reference = schema["$ref"].as_str();
        let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
        match pointer.and_then(|pointer| root.pointer(pointer)) {
            Some(found) => schema = found,
            None => break,
        }
    }
    schema
}
