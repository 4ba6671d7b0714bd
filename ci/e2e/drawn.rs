//! Strict schemas that are drawn: every reply and every call under them is valid, or the schema is
//! refused by the name of what cannot be enforced.

use std::sync::Mutex;
use std::thread;

use serde_json::{Map, Value, json};
use step::random::Random;

use crate::harness::{Answer, Server, few_or_many, question, with};
use crate::schemas::is_valid;

/// Schemas, few in the suite.
const SCHEMAS: usize = few_or_many(24, 700);
const CLIENTS: usize = 8;
const SEED: u64 = 12;
/// Tokens of a reply.
const TOKENS: usize = 200;
/// Levels of a schema.
const DEPTH: usize = 3;

/// Names of members, those of sloppy tools among them.
const NAMES: &[&str] = &[
    "a",
    "b",
    "id",
    "name",
    "two words",
    "$top",
    "@type",
    "起点",
    "x-y.z",
    "a\"b",
    "é",
    "type",
    "0",
    "properties",
    "$ref",
    "enum",
];
const PATTERNS: &[&str] = &[
    "^[a-c]{2,4}$",
    "^\\d{3}-\\d{2}$",
    "^(on|off|éé)$",
    "x",
    "^[^\\s\"]+$",
    "^$|^a+$",
    "[0-9]$",
    "^\\w\\.",
];
const TEXTS: &[&str] = &[
    "",
    "a",
    "red",
    "null",
    "1",
    "true",
    "é\n\"\\",
    "<tool_call>",
    "</think>",
];

fn text(random: &mut Random) -> Value {
    let lengths = [
        json!({}),
        json!({"maxLength": 5}),
        json!({"minLength": 2, "maxLength": 9}),
    ];
    let more = match random.below(4) {
        0 => json!({"pattern": random.of(PATTERNS)}),
        1 => json!({"format": random.of(&["date", "uuid"])}),
        _ => random.of(&lengths).clone(),
    };
    with(json!({"type": "string"}), more)
}

fn number(random: &mut Random) -> Value {
    let low = random.below(2000) as i64 - 1000;
    let high = low + random.below(50) as i64;
    let bounds = [
        json!({}),
        json!({"minimum": low}),
        json!({"maximum": high}),
        json!({"minimum": low, "maximum": high}),
        json!({"exclusiveMinimum": low, "exclusiveMaximum": high + 2}),
    ];
    let kind = *random.of(&["integer", "integer", "number"]);
    let number = with(json!({"type": kind}), random.of(&bounds).clone());
    match kind == "integer" && random.below(4) == 0 {
        true => json!({"type": kind, "multipleOf": 1 + random.below(12), "minimum": low,
            "maximum": low + 100}),
        false => number,
    }
}

fn constant(random: &mut Random) -> Value {
    match random.below(6) {
        0 => json!(null),
        1 => json!(random.below(2) == 0),
        2 => json!(random.below(2000) as i64 - 1000),
        3 => json!([random.below(3), "x"]),
        4 => json!({"k": random.of(TEXTS)}),
        _ => json!(random.of(TEXTS)),
    }
}

fn constants(random: &mut Random) -> Value {
    let mut values: Vec<Value> = Vec::new();
    for _ in 0..1 + random.below(5) {
        let value = constant(random);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    json!({"enum": values})
}

fn list(random: &mut Random, depth: usize) -> Value {
    let items = schema(random, depth - 1);
    let bounds = [
        json!({}),
        json!({"minItems": 1}),
        json!({"maxItems": 3}),
        json!({"minItems": 2, "maxItems": 4}),
    ];
    match random.below(4) {
        0 => json!({"type": "array", "prefixItems": [items, schema(random, depth - 1)],
            "items": false, "minItems": random.below(3)}),
        _ => with(
            json!({"type": "array", "items": items}),
            random.of(&bounds).clone(),
        ),
    }
}

fn object(random: &mut Random, depth: usize) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for _ in 0..random.below(5) {
        let name = *random.of(NAMES);
        if properties
            .insert(name.to_string(), schema(random, depth - 1))
            .is_none()
            && random.below(2) == 0
        {
            required.push(name);
        }
    }
    let mut object = json!({"type": "object", "properties": properties, "required": required});
    match random.below(6) {
        0 => {}
        1 => object["additionalProperties"] = schema(random, 0),
        2 => {
            object["patternProperties"] = json!({"^[p-r]$": schema(random, 0)});
            object["additionalProperties"] = json!(false);
        }
        _ => object["additionalProperties"] = json!(false),
    }
    object
}

/// Branches of which no value fits two.
fn union(random: &mut Random, depth: usize) -> Value {
    let keyword = *random.of(&["anyOf", "oneOf"]);
    let kinds = [
        json!({"type": "null"}),
        json!({"type": "boolean"}),
        number(random),
        text(random),
        list(random, depth),
        object(random, depth),
    ];
    let first = random.below(kinds.len());
    let count = 1 + random.below(3);
    let branches: Vec<&Value> = kinds.iter().cycle().skip(first).take(count).collect();
    json!({keyword: branches})
}

fn schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 6 } else { 12 };
    match random.below(kinds) {
        0 | 1 => text(random),
        2 => number(random),
        3 => constants(random),
        4 => json!({"const": constant(random)}),
        5 => json!({"type": random.of(&["boolean", "null", "string"])}),
        6 => json!({"type": ["integer", "null"], "minimum": random.below(9)}),
        7 | 8 => list(random, depth),
        9 => union(random, depth),
        _ => object(random, depth),
    }
}

/// A schema whose root is an object, which the parameters of a tool must be; some have parts that
/// are referred to, themselves among them.
fn root(random: &mut Random) -> Value {
    let mut root = object(random, DEPTH);
    match random.below(4) {
        0 => {
            root["$defs"] = json!({"part": schema(random, 1)});
            root["properties"]["part"] = json!({"$ref": "#/$defs/part"});
        }
        1 => root["properties"]["self"] = json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        2 => {
            let low = random.below(100);
            root["properties"]["both"] = json!({"allOf": [{"type": "integer", "minimum": low},
                {"maximum": low + 5}]});
        }
        _ => {}
    }
    root
}

/// Outcomes of the requests.
#[derive(Debug, Default)]
struct Counts {
    valid: usize,
    cut: usize,
    refused: usize,
    invalid: Vec<String>,
}

impl Counts {
    /// Looks at the texts that an answer holds where it came to its end.
    fn judge(&mut self, answer: &Answer, schema: &Value, texts: impl Fn(&Value) -> Vec<String>) {
        if answer.status == 400 {
            let message = answer.error()["message"].to_string();
            let reasons = ["not enforced", "would be taken for another one", "strict"];
            let told = reasons.iter().any(|reason| message.contains(reason));
            match told {
                true => self.refused += 1,
                false => self.invalid.push(format!("{schema}\n{message}")),
            }
            return;
        }
        assert_eq!(answer.status, 200, "{schema}: {answer:?}");
        let choice = answer.json()["choices"][0].clone();
        if choice["finish_reason"] == "length" {
            self.cut += 1;
            return;
        }
        let texts = texts(&choice["message"]);
        let fits = |text: &String| match serde_json::from_str::<Value>(text) {
            Ok(value) => is_valid(&value, schema, schema),
            // An exponent may be beyond what this JSON reader holds.
            Err(_) => text.contains(['e', 'E']) && text.len() > 300,
        };
        match !texts.is_empty() && texts.iter().all(fits) {
            true => self.valid += 1,
            false => self.invalid.push(format!("{schema}\n{choice}")),
        }
    }
}

/// Asks for a reply and for a call under one schema, as a model that would say anything.
fn ask(server: &Server, schema: &Value, seed: usize, counts: &mut Counts) {
    let hot = json!({"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": seed,
        "enable_thinking": false});
    let body = with(question("Fill it.", TOKENS), hot);
    let format = json!({"response_format": {"type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": true}}});
    counts.judge(
        &server.chat(&with(body.clone(), format)),
        schema,
        |message| vec![message["content"].as_str().unwrap_or_default().to_string()],
    );
    let tool = json!({"tool_choice": "required", "parallel_tool_calls": false, "tools": [{
        "type": "function", "function": {"name": "fill", "strict": true, "parameters": schema}}]});
    counts.judge(&server.chat(&with(body, tool)), schema, |message| {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let arguments = calls.map(|call| call["function"]["arguments"].as_str().unwrap());
        arguments.map(str::to_string).collect()
    });
}

fn obey(count: usize) {
    let server = Server::lent();
    let mut random = Random::new(SEED);
    let schemas: Vec<Value> = (0..count).map(|_| root(&mut random)).collect();
    let all = Mutex::new(Counts::default());
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, schemas, all) = (&server, &schemas, &all);
            scope.spawn(move || {
                let mut counts = Counts::default();
                for (seed, schema) in schemas.iter().enumerate().skip(client).step_by(CLIENTS) {
                    ask(server, schema, seed, &mut counts);
                }
                let mut all = all.lock().unwrap();
                all.valid += counts.valid;
                all.cut += counts.cut;
                all.refused += counts.refused;
                all.invalid.extend(counts.invalid);
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!(
        "{count} schemas, asked for a reply and a call each: {} valid, {} cut off, {} refused, \
              {} invalid",
        all.valid,
        all.cut,
        all.refused,
        all.invalid.len()
    );
    let shown = &all.invalid[..all.invalid.len().min(8)];
    assert!(shown.is_empty(), "{}", shown.join("\n\n"));
    assert!(all.valid > count, "{all:?}");
}

#[test]
fn replies_and_calls_obey_drawn_schemas() {
    obey(SCHEMAS);
}
