//! Calls under the schemas of their tools, in every form of calls.

use super::super::calls::{CallGrammar, Calls, grammar, names};
use super::*;
use crate::reply::Delta;
use crate::tools::Syntax;
use crate::tools::llama3_json::Llama3Json;
use crate::tools::qwen3_coder::Qwen3Coder;
use crate::tools::tests::{Written, for_each_syntax};
use crate::tools::{ToolParser, ToolSchemas};

fn tools(strict: bool) -> Vec<Value> {
    let tool = |name: &str, parameters: Value| {
        json!({"type": "function", "function": {
            "name": name, "strict": strict, "parameters": parameters}})
    };
    let open = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties, "required": required,
               "additionalProperties": false,
               "$defs": {"level": {"type": "integer", "minimum": 1, "maximum": 3}}})
    };
    vec![
        tool(
            "edit",
            open(
                json!({
                    "path": {"type": "string", "pattern": "^/(a|b)+$"},
                    "text": {"type": "string"},
                    "short": {"type": "string", "minLength": 2, "maxLength": 5},
                    "mode": {"enum": ["read", "write", "rea"]},
                    "line": {"type": "integer", "minimum": 0, "maximum": 99},
                    "level": {"$ref": "#/$defs/level"},
                    "all": {"type": "boolean"},
                    "note": {"type": ["string", "null"]},
                    "ratio": {"type": ["number", "null"]},
                    "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1},
                    "at": {"type": "object", "properties": {"x": {"type": "integer"}},
                           "required": ["x"], "additionalProperties": false}
                }),
                json!(["path", "mode", "line", "level", "tags", "at"]),
            ),
        ),
        tool(
            "look.up",
            open(json!({"q": {"type": "string"}}), json!(["q"])),
        ),
        tool("now", json!({"type": "object", "properties": {}})),
    ]
}

/// The calls of a reply, by name and arguments; all of it must be calls.
fn calls<S: CallGrammar>(tools: &[Value], reply: &str) -> Vec<(String, String)> {
    let mut parser = ToolParser::of::<S>(ToolSchemas::new(tools), false);
    let mut deltas = Vec::new();
    parser.push(reply, &mut deltas);
    parser.finish(false, &mut deltas);
    let mut calls = Vec::new();
    for delta in deltas {
        match delta {
            Delta::ToolCall { name, .. } => calls.push((name, String::new())),
            Delta::Arguments { index, json } => calls[index].1.push_str(&json),
            other => panic!("{other:?} in {reply}"),
        }
    }
    assert_eq!(parser.completed(), calls.len(), "{reply}");
    calls
}

fn check<S: CallGrammar>(tools: &[Value], reply: &str) -> usize {
    let calls = calls::<S>(tools, reply);
    for (name, arguments) in &calls {
        let tool = tools.iter().find(|tool| tool["function"]["name"] == **name);
        let schema = &tool.expect("an offered tool")["function"]["parameters"];
        // An exponent may be beyond what this JSON reader holds.
        let Ok(value) = serde_json::from_str::<Value>(arguments) else {
            assert!(arguments.contains(['e', 'E']), "{arguments}");
            continue;
        };
        assert!(
            is_valid(&value, schema, schema),
            "{name} {arguments}\n{reply}"
        );
    }
    calls.len()
}

/// Schemas as coding agents' tools have them.
#[test]
fn the_keywords_of_a_coding_agents_tools_are_enforced_or_reported() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let mut tool = json!({"type": "function", "function": {"name": "f", "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "d", "minLength": 1},
                "mode": {"enum": ["a", "b"], "default": "a"},
                "kind": {"const": "x"},
                "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 100},
                "url": {"type": "string", "format": "uri"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
                "edits": {"type": "array", "minItems": 1, "maxItems": 3, "items": {
                    "type": "object", "properties": {"old": {"type": "string"}},
                    "required": ["old"], "additionalProperties": false}},
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "env": {"type": "object", "propertyNames": {"pattern": "^[A-Z]+$"},
                    "additionalProperties": {"type": "string"}}
            },
            "required": ["path", "kind"],
            "additionalProperties": false
        }}});
        let calls =
            |tool: &Value, loose| grammar::<S>(std::slice::from_ref(tool), Calls::One, loose, None);
        let forced = grammars
            .compile(DOMAIN, &calls(&tool, false).unwrap())
            .unwrap();
        let reported = forced.warnings().concat();
        assert!(
            reported.contains("propertyNames"),
            "{}: {reported}",
            S::NAME
        );
        for reply in random_replies(&forced, S::CLOSE, 30, 5) {
            assert!(reply.starts_with(S::OPEN), "{reply}");
        }
        assert!(
            grammars
                .compile(DOMAIN, &calls(&tool, true).unwrap())
                .is_ok()
        );
        tool["function"]["strict"] = json!(true);
        let strict = calls(&tool, false).map_err(|refused| refused.problem);
        let strict =
            strict.and_then(|grammar| grammars.compile(DOMAIN, &grammar).map_err(|error| error.0));
        assert!(strict.is_err(), "{}", S::NAME);
    }
    for_each_syntax!(run(&grammars()));
}

#[test]
fn arguments_may_be_described_where_the_schema_refers_to() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "strict": true,
            "parameters": {"$ref": "#/$defs/p", "$defs": {"p": {"type": "object",
                "properties": {"city": {"enum": ["Paris"]}, "days": {"type": "integer"}},
                "required": ["city", "days"], "additionalProperties": false}}}}}),
        ];
        let forced = grammar::<S>(&tools, Calls::One, false, None).unwrap();
        let forced = grammars.compile(DOMAIN, &forced).unwrap();
        for reply in random_replies(&forced, S::CLOSE, 3, 7) {
            let calls = calls::<S>(&tools, &reply);
            let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
            assert_eq!(arguments["city"], "Paris", "{reply}");
            assert!(arguments["days"].is_number(), "{reply}");
        }
    }
    for_each_syntax!(run(&grammars()));
}

#[test]
fn every_forced_call_is_one_of_an_offered_tool_with_valid_arguments() {
    const REPLIES: usize = if cfg!(debug_assertions) { 10 } else { 300 };
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        for (at, strict) in [true, false].into_iter().enumerate() {
            let tools = tools(strict);
            for (calls, several) in [(Calls::One, false), (Calls::Several, true)] {
                let grammar = grammar::<S>(&tools, calls, false, None).unwrap();
                let compiled = grammars.compile(DOMAIN, &grammar).unwrap();
                assert_eq!(compiled.warnings(), [""; 0], "{}", S::OPEN);
                let replies = random_replies(&compiled, S::CLOSE, REPLIES, 70 + at as u64);
                let counts = replies.iter().map(|reply| check::<S>(&tools, reply));
                assert_eq!(counts.max() > Some(1), several, "{}", S::OPEN);
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

/// A request's tools, each with one of some schemas as its parameters.
fn tool(parameters: &Value, strict: bool) -> [Value; 1] {
    [
        json!({"type": "function", "function": {"name": "f", "strict": strict,
        "parameters": parameters}}),
    ]
}

/// The grammar of a forced call, or why there is none.
pub fn forced<S: CallGrammar>(
    grammars: &Grammars,
    parameters: &Value,
    strict: bool,
) -> Result<Arc<Compiled>, String> {
    let grammar = grammar::<S>(&tool(parameters, strict), Calls::One, false, None);
    let grammar = grammar.map_err(|refused| refused.problem)?;
    grammars.compile(DOMAIN, &grammar).map_err(|error| error.0)
}

/// Parameters whose member `v` has a schema; what it refers to stays at the same path.
pub fn with_member(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let definitions = schema.as_object_mut().and_then(|map| map.remove("$defs"));
    let mut parameters = json!({"type": "object", "properties": {"v": schema},
        "required": ["v"], "additionalProperties": false});
    if let Some(definitions) = definitions {
        parameters["$defs"] = definitions;
    }
    parameters
}

/// Parameters for each schema: as a member, and as they are where they describe members.
fn all_parameters() -> Vec<(&'static str, Value)> {
    let schemas = schemas();
    let members = schemas
        .iter()
        .filter(|(_, schema)| schema.get("properties").is_some());
    let whole = members.cloned();
    let inside = schemas
        .iter()
        .filter(|(_, schema)| !schema.to_string().contains("\"#/properties"))
        .map(|(name, schema)| (*name, with_member(schema)));
    whole.chain(inside).collect()
}

/// A call as it is written under a grammar.
pub fn written<S: Written>(arguments: &Value) -> String {
    let call = S::write("f", arguments.as_object().unwrap());
    // The grammar takes those blanks that the model has learnt, of all that this form may have.
    call.replace(
        r#"{"name":"f","arguments":"#,
        r#"{"name": "f", "arguments": "#,
    )
}

/// Values of every kind, near to what the schemas ask for.
fn values() -> Vec<Value> {
    json!([
        null, true, 0, 1, 3, 7, -1, 500, 1201, 2.25, 2.5, "", "a", "b", "ab", "abc", "red", "x",
        "null", "none", "None", "5", "AB-123", "xabbcx", "2024-02-29", "say \"é\" <|im_end|>\n",
        "123e4567-e89b-12d3-a456-426614174000", [], ["x"], ["x", "y"], ["x", 3], ["x", 3, 1], [2],
        [0, 1], [1, -1], {}, {"a": 1}, {"a": "1"}, {"a": true, "b": null}, {"t": "a"}, {"k": 3},
        {"kind": "fixed", "n": -4}, {"name": "n", "age": 3}, {"name": "n"}, {"x": 1},
        {"city": "c", "country": "d"}, {"city": "c", "country": "d", "e": 1},
        {"v": 1, "left": null}, {"v": 1, "left": {"v": 2, "left": null}}, {"v": 1, "left": 2},
        {"low": 1, "high": 2}, {"low": 1, "high": 0}, {"kind": "a", "n": 1}, {"kind": "b", "n": 1}
    ])
    .as_array()
    .unwrap()
    .clone()
}

/// Whatever a strict tool asks for is kept to, or it is refused; in any form of calls.
#[test]
fn calls_of_a_strict_tool_are_valid_or_it_is_refused() {
    const REPLIES: usize = if cfg!(debug_assertions) { 2 } else { 8 };
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let (mut taken, mut accepted) = (0, 0);
        for (name, parameters) in all_parameters() {
            let Ok(compiled) = forced::<S>(grammars, &parameters, true) else {
                continue;
            };
            taken += 1;
            let tools = tool(&parameters, true);
            let mut random = Random::new(taken);
            for _ in 0..REPLIES {
                if let Some(reply) = random_reply(&compiled, S::CLOSE, &mut random) {
                    assert_eq!(
                        check::<S>(&tools, &reply),
                        1,
                        "{}: {name}: {reply}",
                        S::NAME
                    );
                }
            }
            for value in values() {
                let inside = json!({"v": value});
                for arguments in [&inside, &value].into_iter().filter(|one| one.is_object()) {
                    let reply = written::<S>(arguments);
                    if accepts(&compiled, &reply) {
                        check::<S>(&tools, &reply);
                        accepted += 1;
                    }
                }
            }
        }
        assert!(accepted > 40, "{}: {accepted} values are taken", S::NAME);
        assert!(taken > 25, "{}: {taken} schemas are taken", S::NAME);
    }
    for_each_syntax!(run(&grammars()));
}

/// Schemas of two keywords each, beside each other and together.
fn pairs() -> Vec<Value> {
    let keywords = json!([
        {"enum": ["p", "q", "pq", 5, null]},
        {"const": "pq"},
        {"pattern": "^p"},
        {"pattern": "q$|^z"},
        {"minLength": 2},
        {"maxLength": 2},
        {"type": "string"},
        {"type": ["string", "null"]},
        {"type": ["integer", "string"]},
        {"anyOf": [{"enum": ["p", "pz", 7]}, {"type": "null"}]},
        {"anyOf": [{"type": "string", "pattern": "p", "minLength": 2},
            {"type": "string", "pattern": "^z", "maxLength": 3}]},
        {"oneOf": [{"const": "pq"}, {"type": "integer", "minimum": 3}]},
        {"allOf": [{"minLength": 2}, {"pattern": "p"}]},
        {"$ref": "#/$defs/e"},
        {"$ref": "#/$defs/s"},
        {"minimum": 3},
        {"multipleOf": 5},
        {"exclusiveMaximum": 6}
    ]);
    let keywords = keywords.as_array().unwrap();
    let definitions = json!({"e": {"enum": ["p", "q", "zp", 5]},
        "s": {"type": "string", "minLength": 2}});
    let mut all = Vec::new();
    for (at, one) in keywords.iter().enumerate() {
        for other in &keywords[at + 1..] {
            let mut beside = one.clone();
            beside
                .as_object_mut()
                .unwrap()
                .extend(other.as_object().unwrap().clone());
            let together = json!({"allOf": [one, other]});
            for mut schema in [beside, together] {
                schema["$defs"] = definitions.clone();
                all.push(schema);
            }
        }
    }
    all
}

/// An argument is held to two keywords wherever an answer is.
#[test]
fn pairs_of_keywords_are_enforced_in_arguments_as_in_answers() {
    const REPLIES: usize = if cfg!(debug_assertions) { 1 } else { 8 };
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let (mut enforced, mut refused) = (0, Vec::new());
        // Others write arguments as these do, or leave them to the compiler of answers.
        let all = matches!(S::NAME, "gemma" | "qwen3_coder");
        let pairs = pairs().into_iter().enumerate();
        for (at, schema) in pairs.filter(|(at, _)| all || at % 9 == 0) {
            let answer = grammars.compile(DOMAIN, &json_grammar(schema.clone()));
            let parameters = with_member(&schema);
            let strict = forced::<S>(grammars, &parameters, true);
            // Both are written alike: some of them show that nothing is reported.
            let reported = (at % 5 == 0).then(|| {
                let loose = forced::<S>(grammars, &parameters, false).unwrap();
                loose.warnings().join("; ")
            });
            let silent = reported.as_ref().is_none_or(String::is_empty);
            if answer.is_ok() && (strict.is_err() || !silent) {
                refused.push(format!(
                    "{schema}: {:?}, {reported:?}",
                    strict.as_ref().err()
                ));
            }
            let Ok(compiled) = strict else { continue };
            enforced += 1;
            let tools = tool(&parameters, true);
            let mut random = Random::new(at as u64);
            for _ in 0..REPLIES {
                if let Some(reply) = random_reply(&compiled, S::CLOSE, &mut random) {
                    assert_eq!(
                        check::<S>(&tools, &reply),
                        1,
                        "{}: {schema}: {reply}",
                        S::NAME
                    );
                }
            }
        }
        assert!(refused.is_empty(), "{}: {}", S::NAME, refused.join("\n"));
        assert!(enforced > 10, "{}: {enforced}", S::NAME);
    }
    for_each_syntax!(run(&grammars()));
}

/// Parts of a tool that is not strict that cannot be enforced are reported: the request is served.
#[test]
fn what_is_not_enforced_is_reported_with_its_path_or_refused_once() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        for (schema, reported) in [
            (
                json!({"type": "string", "pattern": "^(?=a)b"}),
                "look-around",
            ),
            (json!({"type": "string", "pattern": "a("}), "unclosed group"),
            (json!({"type": "string", "format": "phone"}), "phone"),
            (
                json!({"oneOf": [{"type": "string"}, {"const": "a"}]}),
                "oneOf",
            ),
            (
                json!({"oneOf": [{"type": "integer"}, {"minimum": 3, "type": "number"}]}),
                "oneOf",
            ),
            (
                json!({"enum": ["a", "bc"], "maxLength": 1, "not": {"const": "a"}}),
                "not enforced",
            ),
            (
                json!({"type": "array", "items": {"type": "integer"}, "contains": {}}),
                "contains",
            ),
            (
                json!({"type": "array", "items": {"type": "string", "pattern": "(?!a)"}}),
                "look",
            ),
            (
                json!({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}),
                "atternProp",
            ),
            (json!({"type": "integer", "not": {"const": 1}}), "not"),
            (json!({"$ref": "#/$defs/absent"}), "#/$defs/absent"),
            (
                json!({"$ref": "https://example.org/a.json"}),
                "https://example.org/a.json",
            ),
            (json!({"type": ["integer", "whole"]}), "whole"),
            (json!({"enum": []}), "enum"),
            (json!({"type": "integer", "minimum": "3"}), "minimum"),
            (json!({"type": "integer", "minimum": 3, "maximum": 2}), ""),
        ] {
            let parameters = with_member(&schema);
            let lenient = forced::<S>(grammars, &parameters, false);
            let lenient = lenient.unwrap_or_else(|error| panic!("{}: {schema}: {error}", S::NAME));
            let warnings = lenient.warnings().join("\n");
            assert!(
                warnings.contains(reported),
                "{}: {schema}: {warnings:?}",
                S::NAME
            );
            assert!(
                warnings.starts_with("function f: "),
                "{}: {schema}: {warnings}",
                S::NAME
            );
            let refused = forced::<S>(grammars, &parameters, true).unwrap_err();
            assert!(
                refused.contains(reported),
                "{}: {schema}: {refused}",
                S::NAME
            );
            let paths = refused.matches("properties.v").count();
            let free = matches!(S::NAME, "hermes" | "llama3_json" | "mistral");
            assert!(paths == 1 || (free && paths == 0), "{}: {refused}", S::NAME);
        }
    }
    for_each_syntax!(run(&grammars()));
}

#[test]
fn references_lead_anywhere_in_the_parameters() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let parameters = json!({"type": "object", "required": ["a", "b"],
        "additionalProperties": false,
        "$defs": {"c/d": {"enum": [7]}, "e f~": {"const": "g"}},
        "properties": {
            "a": {"type": "integer", "enum": [5]},
            "b": {"$ref": "#/properties/a"},
            "c": {"$ref": "#/$defs/c~1d"},
            "d": {"$ref": "#/%24defs/e%20f~0"},
            "e": {"anyOf": [{"$ref": "#"}, {"type": "boolean"}]}
        }});
        for strict in [false, true] {
            let compiled = forced::<S>(grammars, &parameters, strict);
            let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", S::NAME));
            assert_eq!(compiled.warnings(), [""; 0], "{}", S::NAME);
            let accepted = |arguments: Value| accepts(&compiled, &written::<S>(&arguments));
            assert!(
                accepted(json!({"a": 5, "b": 5, "c": 7, "d": "g"})),
                "{}",
                S::NAME
            );
            assert!(accepted(json!({"a": 5, "b": 5, "e": true})), "{}", S::NAME);
            for wrong in [
                json!({"a": 5, "b": 6}),
                json!({"a": 5, "b": 5, "c": 8}),
                json!({"a": 5, "b": 5, "d": "h"}),
                json!({"a": 5, "b": 5, "e": {"a": 5}}),
            ] {
                assert!(!accepted(wrong.clone()), "{}: {wrong}", S::NAME);
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

/// Each schema refers to the next several times, or to itself; that is read in time by all forms.
#[test]
fn references_that_multiply_end() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{}", at % 12)});
        for last in ["string", "integer"] {
            let one = |at: usize| {
                let mut options = vec![next(at + 1); 12];
                options.push(json!({"type": last}));
                (at.to_string(), json!({"anyOf": options}))
            };
            let parameters = json!({"type": "object", "properties": {"v": next(0)},
                "$defs": (0..12).map(one).collect::<Value>()});
            for strict in [false, true] {
                let begun = cpu();
                let _ = forced::<S>(grammars, &parameters, strict);
                let took = cpu() - begun;
                assert!(
                    took < 2 * limits::COMPILE_TIME * SLOWER,
                    "{}: {took:?}",
                    S::NAME
                );
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

#[test]
fn what_is_required_and_not_described_may_be_anything() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let parameters = json!({"type": "object", "required": ["q"]});
        let compiled = forced::<S>(grammars, &parameters, true).unwrap();
        let arguments = json!({"q": "x"});
        let reply = written::<S>(&arguments);
        assert!(accepts(&compiled, &reply), "{}: {reply}", S::NAME);
        assert!(
            !accepts(&compiled, &written::<S>(&json!({}))),
            "{}",
            S::NAME
        );
    }
    for_each_syntax!(run(&grammars()));
}

/// The answer that may stand beside calls is bounded like one without.
#[test]
fn an_answer_beside_calls_keeps_to_the_limits() {
    fn run<S: CallGrammar + Written>() {
        let tools = tool(&json!({"type": "object"}), false);
        let numbers: Vec<usize> = (0..limits::ALTERNATIVES_MAX + 1).collect();
        let far = json!({"const": 9_007_199_254_740_993_i64});
        for answer in [
            json_grammar(json!({"enum": numbers})),
            json_grammar(json!({"type": "array", "uniqueItems": true})),
            json_grammar(far),
            Grammar::Regex("(ab?){3000}".to_string()),
        ] {
            let refused = grammar::<S>(&tools, Calls::Several, true, Some(&answer));
            assert!(refused.is_err(), "{}: {answer:?}", S::NAME);
        }
    }
    for_each_syntax!(run());
}

/// Whatever an answer has in common with the beginning of a call, it may be either.
#[test]
fn an_answer_of_json_may_stand_where_calls_do() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let parameters = json!({"type": "object", "$defs": {"seven": {"enum": [7]}},
            "properties": {"v": {"$ref": "#/$defs/seven"}}, "additionalProperties": false});
        let tools = tool(&parameters, true);
        for answer in [
            json!({"name": "f", "n": 1}),
            json!({"name": {"a": null}}),
            json!({"n": [1]}),
            json!({}),
        ] {
            let answers = [json!({"type": "object"}), json!({"const": answer})];
            for (schema, any) in answers.into_iter().zip([true, false]) {
                let schema = json_grammar(schema);
                let grammar = grammar::<S>(&tools, Calls::Several, true, Some(&schema)).unwrap();
                let compiled = grammars.compile(DOMAIN, &grammar).unwrap();
                let [call, wrong] = [7, 8].map(|v| written::<S>(&json!({"v": v})));
                assert!(!accepts(&compiled, &wrong) || any, "{}: {wrong}", S::NAME);
                let two = format!("{call}{}{call}", S::BETWEEN);
                for reply in [answer.to_string(), format!("{answer:#}"), call, two] {
                    assert!(accepts(&compiled, &reply), "{}: {reply}", S::NAME);
                }
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

/// Text that begins like a call is distinguished from calls where they differ.
#[test]
fn what_opens_a_call_without_a_mark_may_be_text() {
    let tools = tool(&json!({"type": "object"}), true);
    let after = grammar::<Llama3Json>(&tools, Calls::AfterTag, true, None).unwrap();
    let after = grammars().compile(DOMAIN, &after).unwrap();
    for (text, taken) in [
        (r#"f", "parameters": {}}"#, true),
        (r#"g", "parameters": {"#, false),
        (r#"g", "parameters": []"#, false),
        (r#"g", "parameters": ["#, true),
        (r#"f", "parameters": ["#, true),
        (r#"Bob"}"#, true),
        (r#"Bob \"B\" \\", "a"#, true),
        (r#"f"}"#, true),
        ("f\"\n", true),
        (r#"f", "param:"#, true),
    ] {
        assert_eq!(accepts(&after, text), taken, "{text}");
        let text = format!("{}{text}", Llama3Json::FORMAL);
        let mut parser = ToolParser::of::<Llama3Json>(ToolSchemas::new(&tools), false);
        parser = parser.forgiving(false);
        let mut deltas = Vec::new();
        parser.push(&text, &mut deltas);
        parser.finish(false, &mut deltas);
        let called = deltas
            .iter()
            .any(|delta| !matches!(delta, Delta::Content(_)));
        assert_eq!(called, text.ends_with("{}}"), "{deltas:?}");
    }
}

/// The grammar and the reader know of a member by the same paths, and types that differ between
/// alternatives are told apart.
#[test]
fn a_member_is_written_as_it_is_read_wherever_the_schema_speaks_of_it() {
    const REPLIES: usize = if cfg!(debug_assertions) { 6 } else { 100 };
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let integer = json!({"type": "integer"});
        let text = json!({"type": "string"});
        let object = |properties: Value, required: Value| {
            json!({"type": "object", "properties": properties, "required": required,
                   "additionalProperties": false})
        };
        for parameters in [
            json!({"type": "object", "required": ["n"], "additionalProperties": integer}),
            json!({"type": "object", "required": ["n1", "x"], "additionalProperties": text,
                   "patternProperties": {"^n": integer}}),
            json!({"type": "object", "allOf": [
                {"properties": {"a": integer}, "required": ["a"]},
                {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}),
            json!({"type": "object", "anyOf": [
                object(json!({"kind": {"const": "a"}, "v": integer}), json!(["kind", "v"])),
                object(json!({"kind": {"const": "b"}, "v": text}), json!(["kind", "v"])),
                object(json!({"kind": {"const": "c"}, "v": {"type": "array", "items": text}}),
                       json!(["kind", "v"]))]}),
            json!({"type": "object", "oneOf": [
                object(json!({"kind": {"const": "a"}, "v": integer}), json!(["kind", "v"])),
                object(json!({"kind": {"const": "b"}, "v": {"type": "boolean"}}),
                       json!(["kind"]))]}),
            object(
                json!({"v": {"anyOf": [{"type": "array", "items": integer}, {"const": "all"}]},
                       "w": {"type": ["string", "number", "boolean", "null"]},
                       "x": {"anyOf": [text, {"type": "integer", "minimum": 3}]},
                       "y": {"anyOf": [{"type": "string", "format": "date"}, {"type": "object"}]},
                       "z": {"anyOf": [{"type": "string", "pattern": "^[a-z0-9]+$"}, {"const": 5},
                                       {"type": "boolean"}]}}),
                json!(["v", "w", "x", "y", "z"]),
            ),
            object(
                json!({"起点": integer, "$top": {"type": "boolean"}, "@type": text, "a b": integer,
                       "c>d": text, "": integer}),
                json!(["起点", "$top", "@type", "a b", "c>d", ""]),
            ),
        ] {
            let compiled = forced::<S>(grammars, &parameters, true);
            let Ok(compiled) = compiled else {
                let json = matches!(S::NAME, "hermes" | "llama3_json" | "mistral");
                assert!(
                    json || S::NAME == "gemma",
                    "{}: {parameters}: {compiled:?}",
                    S::NAME
                );
                continue;
            };
            let replies = random_replies(&compiled, S::CLOSE, REPLIES, 3);
            assert!(!replies.is_empty(), "{}: {parameters}", S::NAME);
            for reply in replies {
                assert_eq!(check::<S>(&tool(&parameters, true), &reply), 1);
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

/// All branches of a union can be written, by a strict tool as well.
#[test]
fn a_union_with_text_is_written_in_each_of_its_types() {
    let schema = json!({"anyOf": [{"type": "array", "items": {"type": "string"}},
        {"type": "string"}, {"type": "integer", "minimum": 3}, {"type": "null"}]});
    let grammars = grammars();
    let parameters = with_member(&schema);
    let compiled = forced::<Qwen3Coder>(&grammars, &parameters, true).unwrap();
    let tools = tool(&parameters, true);
    for (value, taken) in [
        (json!(["ls"]), true),
        (json!("all"), true),
        (json!("a\nb"), true),
        (json!(7), true),
        (Value::Null, true),
        (json!(2), false),
        (json!([1]), false),
    ] {
        let reply = written::<Qwen3Coder>(&json!({"v": value}));
        assert_eq!(accepts(&compiled, &reply), taken, "{reply}");
        if taken {
            let read = &calls::<Qwen3Coder>(&tools, &reply)[0].1;
            let read: Value = serde_json::from_str(read).unwrap();
            assert_eq!(read, json!({"v": value}));
        }
    }
}

/// Whether a reply may go on with the tokens of a text.
fn takes(guide: &mut dyn Constraint, text: &str, tag: &str) -> bool {
    let tokenizer = tokenizer();
    // Models have the tag as one token, so that none holds its end and more.
    let parts = text.split_inclusive(tag);
    let mut ids = parts.flat_map(|part| tokenizer.encode(part).unwrap());
    ids.all(|id| {
        let mut mask = Mask::default();
        let allowed = match guide.next() {
            Next::Free { .. } => !guide.barred().contains(&id),
            Next::Masked => guide.mask(&mut mask).is_ok() && mask.ids().any(|other| other == id),
            Next::Complete => false,
        };
        allowed && guide.advance(id).is_ok()
    })
}

/// A call that has begun has the name of a tool, and whatever arguments the model writes.
#[test]
fn no_call_has_the_name_of_no_tool() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let tools = tools(false);
        let compiled = grammars.compile(DOMAIN, &names::<S>(&tools)).unwrap();
        let scope = Scope {
            open: Some(S::FORMAL),
            ..Scope::default()
        };
        let arguments = json!({"x": "a</parameter> b", "y": [1, {"z": null}]});
        for (name, called) in [
            ("edit", true),
            ("look.up", true),
            ("now", true),
            ("edi", false),
            ("edits", false),
            ("Edit", false),
            ("other", false),
        ] {
            let call = S::write(name, arguments.as_object().unwrap());
            let call = match S::NAME {
                "hermes" => call
                    .replace("\"name\":", "\"name\": ")
                    .replace(",\"arguments\":", ", \"arguments\": "),
                _ => call,
            };
            let text = format!("I call {name}.{call} and{call}");
            let taken = takes(&mut *compiled.guide(scope), &text, S::FORMAL);
            assert_eq!(taken, called, "{}: {text}", S::NAME);
        }
        let opened = [S::FORMAL, " is a tag, and so is ", S::FORMAL, "\n\n<b>"].concat();
        let taken = takes(&mut *compiled.guide(scope), &opened, S::FORMAL);
        assert_eq!(taken, !S::SIGN.is_empty(), "{}", S::NAME);
    }
    for_each_syntax!(run(&grammars()));
}

/// Names of tools do not bind text that begins like a call.
#[test]
fn an_answer_that_begins_like_a_call_is_no_call() {
    let compiled = grammars()
        .compile(DOMAIN, &names::<Llama3Json>(&tools(false)))
        .unwrap();
    for (text, taken) in [
        (r#"now", "parameters": {"#, true),
        (r#"Bob"}"#, true),
        (r#"Bob", "parameters": ["#, true),
        (r#"Bob", "parameters": {"#, false),
    ] {
        assert_eq!(accepts(&compiled, text), taken, "{text}");
    }
}

/// Arguments that are text follow `allOf` as an answer does.
#[test]
fn arguments_hold_what_several_schemas_say_together() {
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let e = json!({"$ref": "#/$defs/E"});
        let two =
            json!({"allOf": [{"minLength": 2}, {"$ref": "#/$defs/short"}, {"type": "string"}]});
        let patterns = json!({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]});
        for (schema, right, wrong) in [
            (
                json!({"allOf": [e], "default": "p", "description": "which"}),
                "q",
                "fellar",
            ),
            (
                json!({"type": "string", "allOf": [{"enum": ["p", "q"]}]}),
                "p",
                "fellar",
            ),
            (
                json!({"anyOf": [{"allOf": [e]}, {"type": "null"}]}),
                "p",
                "fellar",
            ),
            (json!({"allOf": [e, {"enum": ["q", "r"]}]}), "q", "p"),
            (two, "abc", "a"),
            (patterns, "a b", "a c"),
        ] {
            let mut schema = schema;
            schema["$defs"] = json!({"E": {"enum": ["p", "q"], "title": "E", "type": "string"},
                "short": {"maxLength": 3, "type": "string"}});
            let compiled = forced::<S>(grammars, &with_member(&schema), true);
            let compiled =
                compiled.unwrap_or_else(|error| panic!("{}: {schema}: {error}", S::NAME));
            for (value, taken) in [(right, true), (wrong, false)] {
                let reply = written::<S>(&json!({"v": value}));
                assert_eq!(accepts(&compiled, &reply), taken, "{schema}: {reply}");
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}
