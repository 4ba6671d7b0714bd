//! Schemas of requests from what their parsers ask for, of answers from recorded ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::fields::record::Note;

/// Objects whose keys clients choose.
const FREE: [&str; 2] = ["metadata", "logit_bias"];

/// Facts known of a value.
#[derive(Debug, Default)]
pub struct Schema {
    types: BTreeSet<&'static str>,
    /// The values that are taken, and the bounds of a number.
    facts: BTreeMap<&'static str, Value>,
    required: bool,
    properties: BTreeMap<String, Schema>,
    items: Option<Box<Schema>>,
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Schema {
    /// An object.
    pub fn root() -> Schema {
        Schema {
            types: ["object"].into(),
            required: true,
            ..Schema::default()
        }
    }

    /// The schema at `path`, as in `messages[0].role`; none inside of what clients name.
    fn at(&mut self, path: &str) -> Option<&mut Schema> {
        let mut schema = self;
        for step in path.split('.') {
            let (name, indices) = step.split_once('[').unwrap_or((step, ""));
            schema = schema.properties.entry(name.to_string()).or_default();
            for _ in indices.split_terminator('[') {
                schema = schema.items.get_or_insert_default();
            }
            if FREE.contains(&name) && path.len() > name.len() {
                return None;
            }
        }
        Some(schema)
    }

    /// Adds what a parser asked.
    pub fn add(&mut self, (path, facts): &Note) {
        let Some(schema) = self.at(path) else { return };
        for (name, fact) in facts {
            match *name {
                "required" => schema.required = true,
                "type" => {
                    let names = ["string", "boolean", "integer", "number", "array", "object"];
                    let known = names.into_iter().find(|known| fact == known);
                    schema.types.extend(known);
                }
                name => {
                    schema.facts.insert(name, fact.clone());
                }
            }
        }
    }

    /// Adds the types of a value that was taken, where the parser asked for its parts.
    pub fn add_taken(&mut self, value: &Value) {
        match value {
            Value::Null => return,
            Value::Object(fields) => {
                for (name, schema) in &mut self.properties {
                    schema.add_taken(fields.get(name).unwrap_or(&Value::Null));
                }
            }
            Value::Array(values) => {
                if let Some(items) = &mut self.items {
                    values.iter().for_each(|value| items.add_taken(value));
                }
            }
            _ => {}
        }
        self.types.insert(type_of(value));
    }

    /// In the words of JSON Schema. `optional` values may be null.
    pub fn json(&self, optional: bool) -> Value {
        if let Some(values) = self.facts.get("enum") {
            return json!({"enum": values});
        }
        let mut types = self.types.clone();
        if types.contains("number") {
            types.remove("integer");
        }
        let mut schema = Map::new();
        if !types.is_empty() {
            let null = optional.then_some("null");
            schema.insert("type".into(), types.iter().copied().chain(null).collect());
        }
        for (name, fact) in &self.facts {
            schema.insert(name.to_string(), fact.clone());
        }
        if !self.properties.is_empty() {
            let property =
                |(name, schema): (&String, &Schema)| (name.clone(), schema.json(!schema.required));
            let properties: Map<String, Value> = self.properties.iter().map(property).collect();
            schema.insert("properties".into(), Value::Object(properties));
        }
        // Below the root it depends on other fields what must be there.
        let required = self.properties.iter().filter(|(_, schema)| schema.required);
        let required: Vec<&String> = required.map(|(name, _)| name).collect();
        if self.required && !required.is_empty() {
            schema.insert("required".into(), json!(required));
        }
        if let Some(items) = &self.items {
            schema.insert("items".into(), items.json(false));
        }
        Value::Object(schema)
    }

    /// Fields of which nothing is known but that a parser asks for them.
    pub fn unknown(&self) -> Vec<&str> {
        let unknown = |schema: &Schema| schema.types.is_empty() && schema.facts.is_empty();
        let fields = self.properties.iter().filter(|(_, schema)| unknown(schema));
        fields.map(|(name, _)| name.as_str()).collect()
    }
}

/// The schema that all of `answers` obey. A type is stated where one was seen beside null.
pub fn answered(answers: &[&Value]) -> Value {
    let mut types: BTreeSet<&str> = answers.iter().map(|answer| type_of(answer)).collect();
    if types.contains("number") {
        types.remove("integer");
    }
    if types.iter().all(|name| *name == "null") {
        return json!({});
    }
    let mut schema = json!({"type": types});
    let objects: Vec<&Map<String, Value>> = answers.iter().filter_map(|a| a.as_object()).collect();
    let mut fields: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (name, value) in objects.iter().copied().flatten() {
        fields.entry(name).or_default().push(value);
    }
    if !fields.is_empty() {
        let all = fields
            .iter()
            .filter(|(_, values)| values.len() == objects.len());
        schema["required"] = all.map(|(name, _)| *name).collect();
        let properties = fields
            .iter()
            .map(|(name, values)| (name.to_string(), answered(values)));
        schema["properties"] = Value::Object(properties.collect());
    }
    let items: Vec<&Value> = answers
        .iter()
        .filter_map(|a| a.as_array())
        .flatten()
        .collect();
    if !items.is_empty() {
        schema["items"] = answered(&items);
    }
    schema
}
