//! Replies that must obey something: schemas, choices, grammars, tools.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Server, question, with};
use crate::schemas::{is_valid, schemas};

/// Longest time that a grammar may be looked at before it is refused. The binary under test may be
/// unoptimised, and the machine busy with other tests.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

fn strict(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": true}}})
}

/// A question that is answered hot, so that the model alone would say anything.
fn hot(text: &str, seed: usize, fields: Value) -> Value {
    let body = with(
        question(text, 300),
        json!({"temperature": 2.0, "top_k": 0, "top_p": 1.0,
        "seed": seed}),
    );
    with(body, fields)
}

fn finish(answer: &Answer) -> Value {
    answer.json()["choices"][0]["finish_reason"].clone()
}

/// Checks a reply that had to follow a schema; returns whether it came to its end.
fn follows(answer: &Answer, schema: &Value, what: &str) -> bool {
    let content = answer.content();
    if finish(answer) == "length" {
        return false;
    }
    assert_eq!(finish(answer), "stop", "{what}: {content}");
    // An exponent may be beyond what this JSON reader holds.
    let value = serde_json::from_str(&content);
    let Ok(value) = value else {
        assert!(content.contains(['e', 'E']), "{what}: {content}");
        return true;
    };
    assert!(is_valid(&value, schema, schema), "{what}: {content}");
    true
}

#[test]
fn every_reply_under_a_strict_schema_is_valid() {
    let server = Server::lent();
    for (name, schema) in schemas() {
        let ask = format!("Fill this JSON schema: {schema}");
        let mut ended = 0;
        for thinking in [false, true] {
            let fields = with(strict(&schema), json!({"enable_thinking": thinking}));
            let answer = server.chat(&with(question(&ask, 300), fields.clone()));
            ended += usize::from(follows(&answer, &schema, name));
            for seed in 0..2 {
                let answer = server.chat(&hot(&ask, seed, fields.clone()));
                ended += usize::from(follows(&answer, &schema, name));
            }
        }
        assert!(ended > 0, "no reply under {name} ends");
    }
}

/// The parameters of a tool for a schema: its own where it describes members, else with one member
/// of it; what it refers to stays at the same place.
fn parameters(schema: &Value) -> Value {
    if schema.get("properties").is_some() {
        return schema.clone();
    }
    let mut schema = schema.clone();
    let definitions = schema.as_object_mut().and_then(|map| map.remove("$defs"));
    let mut parameters = json!({"type": "object", "properties": {"v": schema},
        "required": ["v"], "additionalProperties": false});
    if let Some(definitions) = definitions {
        parameters["$defs"] = definitions;
    }
    parameters
}

/// Schemas of formats that are those of tools, which are written in another form.
#[test]
fn every_call_of_a_strict_tool_is_valid_or_the_tool_is_refused() {
    let server = Server::lent();
    let named = json!({"type": "function", "function": {"name": "fill"}});
    let mut called = 0;
    for (name, schema) in schemas() {
        let parameters = parameters(&schema);
        let tools = json!([{"type": "function", "function": {"name": "fill", "strict": true,
            "parameters": parameters}}]);
        for (seed, choice) in [json!("required"), named.clone()].into_iter().enumerate() {
            let fields = json!({"tools": tools, "tool_choice": choice, "enable_thinking": false,
                "parallel_tool_calls": false});
            let answer = server.chat(&hot("Fill it.", seed, fields));
            if answer.status == 400 {
                let message = answer.error()["message"].to_string();
                let reasons = ["not enforced", "would be taken for another one"];
                let told = reasons.iter().any(|reason| message.contains(reason));
                assert!(told, "{name}: {message}");
                continue;
            }
            if finish(&answer) != "length" {
                called += valid_calls(&answer, &tools).len();
            }
        }
    }
    assert!(called > schemas().len(), "{called} calls come to their end");
}

#[test]
fn a_tool_that_is_not_strict_is_served_with_warnings() {
    let server = Server::lent();
    for (schema, told) in [
        (json!({"$ref": "#/properties/other"}), None),
        (json!({"$ref": "#"}), None),
        (
            json!({"type": "string", "pattern": "^(?=a)"}),
            Some("look-around"),
        ),
        (
            json!({"type": "array", "uniqueItems": true}),
            Some("uniqueItems"),
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"const": "a"}]}),
            Some("oneOf"),
        ),
    ] {
        let parameters = json!({"type": "object", "properties": {"other": {"type": "integer"},
            "v": schema}});
        let tools = json!([{"type": "function", "function": {"name": "f",
            "parameters": parameters}}]);
        let fields = json!({"tools": tools, "tool_choice": "required"});
        let answer = server.chat(&with(question("Call it.", 5), fields));
        assert_eq!(answer.status, 200, "{answer:?}");
        let warnings = &answer.json()["warnings"];
        match told {
            Some(told) => assert!(warnings.to_string().contains(told), "{warnings}"),
            None => assert_eq!(*warnings, Value::Null),
        }
    }
}

/// Biases that make the model write the bound itself, where it may.
#[test]
fn an_excluded_bound_is_never_written() {
    let server = Server::lent();
    for (schema, bias) in [
        (
            json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.2}),
            json!({}),
        ),
        (
            json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}),
            json!({}),
        ),
        (
            json!({"exclusiveMinimum": 0, "maximum": 0.5}),
            json!({"15": 60}),
        ),
        (
            json!({"minimum": -1.5, "exclusiveMaximum": -1}),
            json!({"12": 60, "16": 50}),
        ),
        (
            json!({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}),
            json!({}),
        ),
    ] {
        let schema = with(schema, json!({"type": "number"}));
        let fields = json!({"temperature": 0, "reasoning_effort": "none", "logit_bias": bias});
        let body = with(question("hi", 80), fields);
        follows(
            &server.chat(&with(body.clone(), strict(&schema))),
            &schema,
            "an answer",
        );
        let parameters = parameters(&schema);
        let tools = json!([{"type": "function", "function": {"name": "f", "strict": true,
            "parameters": parameters}}]);
        let fields = json!({"tools": tools, "tool_choice": "required"});
        let answer = server.chat(&with(body, fields));
        if finish(&answer) != "length" {
            valid_calls(&answer, &tools);
        }
    }
}

#[test]
fn a_schema_that_the_model_knows_is_filled_with_sense() {
    let server = Server::lent();
    let schema = json!({"type": "object", "properties": {"capital": {"type": "string"}},
        "required": ["capital"], "additionalProperties": false});
    let body = question("What is the capital of France?", 60);
    let content = server.chat(&with(body, strict(&schema))).content();
    assert!(content.contains("Paris"), "{content}");
}

#[test]
fn a_reply_that_is_cut_off_says_so() {
    let server = Server::lent();
    let (_, schema) = schemas().swap_remove(0);
    let body = with(question("A person, please.", 3), strict(&schema));
    let answer = server.chat(&with(body, json!({"enable_thinking": false})));
    assert_eq!(finish(&answer), "length", "{}", answer.content());
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
}

/// Fields that make the model write `text`, behind a sign that it is biased to begin with.
fn writes(text: &str) -> Value {
    json!({"structured_outputs": {"choice": [format!("#{text}")]}, "logit_bias": {"2": 100},
        "temperature": 0, "reasoning_effort": "none"})
}

#[test]
fn a_call_that_is_cut_inside_its_closing_tag_shows_none_of_it() {
    let server = Server::lent();
    let call = "<tool_call>\n<function=distance>\n<parameter=from>\nParis\n</parameter>\n\
        </function>\n</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "distance", "parameters":
        {"type": "object", "properties": {"from": {"type": "string"}}, "required": ["from"]}}}]);
    let mut cut = 0;
    for most in 10..24 {
        let body = with(
            with(question("hi", most), writes(call)),
            json!({"tools": tools}),
        );
        let answer = server.chat(&body);
        let message = &answer.json()["choices"][0]["message"];
        let arguments = message["tool_calls"][0]["function"]["arguments"].as_str();
        let told = arguments.unwrap_or_default();
        assert!(r#"{"from":"Paris"}"#.starts_with(told), "{most}: {message}");
        cut += usize::from(finish(&answer) == "length" && !told.is_empty());
        let streamed = server.chat(&with(body, json!({"stream": true})));
        let pieces = streamed.events().into_iter().map(|event| {
            let call = &event["choices"][0]["delta"]["tool_calls"][0];
            let piece = call["function"]["arguments"].as_str();
            piece.unwrap_or_default().to_string()
        });
        assert_eq!(pieces.collect::<String>(), told, "{most}");
    }
    assert!(cut > 3, "{cut} calls are cut");
}

#[test]
fn arguments_follow_what_several_schemas_say_together() {
    let server = Server::lent();
    let parameters = json!({"type": "object", "additionalProperties": false, "required": ["s"],
        "properties": {"s": {"allOf": [{"$ref": "#/$defs/E"}], "default": "p"}},
        "$defs": {"E": {"enum": ["p", "q"], "title": "E", "type": "string"}}});
    for strict in [false, true] {
        let tools = json!([{"type": "function", "function": {"name": "f", "strict": strict,
            "parameters": parameters}}]);
        let fields = json!({"tools": tools, "tool_choice": "required", "reasoning_effort": "none"});
        let answer = server.chat(&with(question("Call f.", 60), fields));
        assert_eq!(answer.json()["warnings"], Value::Null);
        assert!(!valid_calls(&answer, &tools).is_empty(), "{answer:?}");
    }
}

/// The model knows a tool by another name and would call that.
#[test]
fn no_call_has_a_name_that_no_tool_has() {
    let server = Server::lent();
    let tools = json!([{"type": "function", "function": {"name": "zebra", "parameters":
        {"type": "object", "properties": {"from": {"type": "string"}}}}}]);
    let mut called = 0;
    for text in [
        "What is the distance from Paris to Rome?",
        "What is the weather in Oslo?",
    ] {
        for seed in 0..4 {
            let fields = json!({"tools": tools, "reasoning_effort": "none", "seed": seed,
                "temperature": 0.5});
            let answer = server.chat(&with(question(text, 80), fields));
            let message = &answer.json()["choices"][0]["message"];
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                assert_eq!(call["function"]["name"], "zebra", "{message}");
                called += 1;
            }
        }
    }
    assert!(called > 0, "nothing is called");
}

#[test]
fn one_constraint_may_have_two_names() {
    let server = Server::lent();
    let ask = |new: &str| {
        let fields = json!({"guided_grammar": "start: \"yes\" | \"no\"",
            "structured_outputs": {"grammar": new}, "enable_thinking": false});
        server.chat(&with(question("Is it so?", 8), fields))
    };
    let content = ask("start: \"yes\" | \"no\"").content();
    assert!(["yes", "no"].contains(&content.as_str()), "{content}");
    let refused = ask("start: \"maybe\"");
    assert_eq!(
        (refused.status, &refused.error()["param"]),
        (400, &json!("guided_grammar"))
    );
}

#[test]
fn choices_expressions_and_grammars_are_obeyed() {
    type Check = fn(&str) -> bool;
    let server = Server::lent();
    let sum = "start: N (\"+\" N){0,2}\nN: /[1-9]/";
    let is_sum: Check = |text| text.split('+').all(|part| "123456789".contains(part));
    let is_code: Check = |text| text.len() == 4 && text.bytes().all(|b| (b'a'..=b'f').contains(&b));
    let is_choice: Check = |text| ["Oslo", "Oslo!", "é"].contains(&text);
    let checks: [(Value, Check); 6] = [
        (json!({"structured_outputs": {"grammar": sum}}), is_sum),
        (json!({"guided_grammar": sum}), is_sum),
        (
            json!({"structured_outputs": {"regex": "[a-f]{4}"}}),
            is_code,
        ),
        (json!({"regex": "[a-f]{4}"}), is_code),
        (
            json!({"structured_outputs": {"choice": ["Oslo", "Oslo!", "é"]}}),
            is_choice,
        ),
        (json!({"guided_choice": ["Oslo", "Oslo!", "é"]}), is_choice),
    ];
    for (fields, holds) in checks {
        for seed in 0..8 {
            let answer = server.chat(&hot("Say something.", seed, fields.clone()));
            assert!(holds(&answer.content()), "{fields}: {}", answer.content());
            assert_eq!(finish(&answer), "stop");
        }
    }
}

fn tools(strict: bool) -> Value {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false}}})
    };
    json!([
        tool(
            "get_weather",
            json!({"city": {"type": "string"}, "days": {"type": "integer",
            "minimum": 1, "maximum": 7}, "unit": {"enum": ["celsius", "fahrenheit"]}}),
            json!(["city", "days", "unit"])
        ),
        tool(
            "set_alarm",
            json!({"time": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            "tags": {"type": "array", "items": {"enum": ["home", "work"]}, "maxItems": 2}}),
            json!(["time"])
        )
    ])
}

/// The calls of a reply: offered tools with valid arguments, or the test fails.
fn valid_calls(answer: &Answer, tools: &Value) -> Vec<String> {
    let message = answer.json()["choices"][0]["message"].clone();
    let calls = message["tool_calls"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let check = |call: &Value| {
        let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
        let tools = tools.as_array().unwrap();
        let tool = tools
            .iter()
            .find(|tool| tool["function"]["name"] == *name)
            .unwrap();
        let schema = &tool["function"]["parameters"];
        let arguments = arguments.as_str().unwrap();
        match serde_json::from_str(arguments) {
            Ok(value) => assert!(is_valid(&value, schema, schema), "{message}"),
            // An exponent may be beyond what this JSON reader holds.
            Err(_) => assert!(arguments.contains(['e', 'E']), "{message}"),
        }
        name.as_str().unwrap().to_string()
    };
    calls.iter().map(check).collect()
}

#[test]
fn a_required_call_is_one_of_an_offered_tool_with_valid_arguments() {
    let server = Server::lent();
    let mut called = 0;
    for strict in [true, false] {
        let tools = tools(strict);
        let fields = json!({"tools": tools, "tool_choice": "required",
            "parallel_tool_calls": false});
        for seed in 0..8 {
            let thinking = json!({"enable_thinking": seed % 2 == 0});
            let body = hot("Tell me a joke.", seed, with(fields.clone(), thinking));
            let answer = server.chat(&body);
            if finish(&answer) == "length" {
                continue;
            }
            assert_eq!(finish(&answer), "tool_calls", "{answer:?}");
            assert_eq!(valid_calls(&answer, &tools).len(), 1, "{answer:?}");
            assert_eq!(
                answer.json()["choices"][0]["message"]["content"],
                Value::Null
            );
            called += 1;
        }
    }
    assert!(called > 8, "{called} of 16 replies end");
}

#[test]
fn a_named_call_is_of_that_tool_and_finishes_with_stop() {
    let server = Server::lent();
    for (at, name) in ["get_weather", "set_alarm"].into_iter().enumerate() {
        let tools = tools(at == 0);
        let choice = json!({"type": "function", "function": {"name": name}});
        let body = question("Weather in Paris for 3 days in celsius?", 200);
        let body = with(body, json!({"tools": tools, "tool_choice": choice}));
        let answer = server.chat(&body);
        assert_eq!(valid_calls(&answer, &tools), [name]);
        assert_eq!(finish(&answer), "stop");
        let streamed = server.chat(&with(body, json!({"stream": true})));
        let last = streamed.events().pop().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn calls_of_strict_tools_are_valid_where_the_model_may_also_just_answer() {
    let server = Server::lent();
    let tools = tools(true);
    let mut called = 0;
    for seed in 0..6 {
        let body = hot(
            "What is the weather in Paris?",
            seed,
            json!({"tools": tools}),
        );
        let answer = server.chat(&with(body, json!({"temperature": 0.3 * seed as f64})));
        if finish(&answer) != "length" {
            called += valid_calls(&answer, &tools).len();
        }
    }
    assert!(called > 0, "the model calls no tool");
}

#[test]
fn a_streamed_reply_under_a_rule_equals_the_whole_one() {
    let server = Server::lent();
    for (name, schema) in schemas().into_iter().step_by(5) {
        let body = hot("Fill the schema.", 5, strict(&schema));
        let whole = server.chat(&body);
        let streamed = server.chat(&with(body, json!({"stream": true})));
        assert_eq!(streamed.streamed(0, "content"), whole.content(), "{name}");
    }
    let body = hot(
        "Wake me.",
        3,
        json!({"tools": tools(true), "tool_choice": "required"}),
    );
    let whole = server.chat(&body).json()["choices"][0]["message"]["tool_calls"].clone();
    let streamed = server.chat(&with(body, json!({"stream": true})));
    let mut calls: Vec<(Value, String)> = Vec::new();
    for event in streamed.events() {
        let delta = &event["choices"][0]["delta"]["tool_calls"][0];
        if delta["id"].is_string() {
            calls.push((delta["function"]["name"].clone(), String::new()));
        }
        if let (Some((_, all)), Some(piece)) =
            (calls.last_mut(), delta["function"]["arguments"].as_str())
        {
            all.push_str(piece);
        }
    }
    let whole: Vec<(Value, String)> = whole
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            (call["function"]["name"].clone(), arguments.to_string())
        })
        .collect();
    assert_eq!(calls, whole);
}

#[test]
fn replies_under_rules_and_without_leave_each_others_bits_alone() {
    let server = Server::lent();
    let fields = json!({"logprobs": true, "top_logprobs": 5, "temperature": 1.0, "seed": 3});
    let (_, schema) = schemas().swap_remove(3);
    let bodies = [
        with(
            question("Tell me about Rome.", 24),
            with(fields.clone(), json!({"ignore_eos": true})),
        ),
        with(
            question("A person, please.", 24),
            with(fields.clone(), strict(&schema)),
        ),
        with(
            question("A code.", 24),
            with(fields, json!({"regex": "[a-z0-9]{40}"})),
        ),
    ];
    let choice = |body: &Value| server.chat(body).json()["choices"].clone();
    let alone: Vec<Value> = bodies.iter().map(choice).collect();
    thread::scope(|scope| {
        for at in 0..12 {
            let (bodies, alone, choice) = (&bodies, &alone, &choice);
            scope.spawn(move || assert_eq!(choice(&bodies[at % 3]), alone[at % 3]));
        }
    });
}

#[test]
fn bombs_are_refused_by_name_and_in_time() {
    let server = Server::lent();
    server.chat(&question("hi", 1));
    let numbers: Vec<usize> = (0..100_000).collect();
    let nested = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    let either = |at: usize| {
        let one = |side: &str| json!({"properties": {format!("{side}{at}"): {"type": "string"}}});
        json!({"anyOf": [one("a"), one("b")]})
    };
    let power: Vec<Value> = (0..40).map(either).collect();
    let link = |at: usize| {
        let next = json!({"$ref": format!("#/$defs/{}", at + 1)});
        (at.to_string(), json!({"type": "array", "items": next}))
    };
    let links: Value = (0..600).map(link).collect();
    let rules: String = (0..5000)
        .map(|at| format!("r{at}: r{}\n", at + 1))
        .collect();
    for (fields, field) in [
        (
            strict(&json!({"$ref": "#/$defs/0", "$defs": links})),
            "response_format",
        ),
        (
            json!({"guided_grammar": format!("start: r0\n{rules}r5000: \"a\"")}),
            "guided_grammar",
        ),
        (strict(&json!({"enum": numbers})), "response_format"),
        (strict(&json!({"allOf": power})), "response_format"),
        (strict(&json!({"$ref": "#"})), "response_format"),
        (json!({"guided_json": nested}), "guided_json"),
        (
            json!({"guided_regex": "(".repeat(1_000_000)}),
            "guided_regex",
        ),
        (
            json!({"guided_regex": format!("{}{}", "(".repeat(4_000), ")".repeat(4_000))}),
            "guided_regex",
        ),
        (
            json!({"guided_grammar": format!("start: {}", "(".repeat(200_000))}),
            "guided_grammar",
        ),
        (json!({"guided_choice": numbers}), "guided_choice"),
    ] {
        let body = with(question("hi", 5), fields).to_string();
        let begun = Instant::now();
        let answer = server.post(body.as_bytes()).answer();
        let took = begun.elapsed();
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.error()["param"], field, "{}", answer.body);
        assert!(took < REFUSAL_TIME, "{field} took {took:?}");
    }
    assert_eq!(server.chat(&question("hi", 1)).status, 200);
}

#[test]
fn a_grammar_that_becomes_too_large_for_a_mask_ends_its_own_reply_as_a_bad_request() {
    let server = Server::lent();
    // The lexer keeps each of them alive, so that it grows with the reply.
    let parts: Vec<String> = (1..350)
        .map(|at| format!("/[a-z]{{1,{at}}}{at}/"))
        .collect();
    let grammar = format!("start: ({})*", parts.join(" | "));
    let answer = server.chat(&hot("Go on.", 1, json!({"guided_grammar": grammar})));
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(answer.error()["code"], "constraint_failed");
    assert_eq!(server.chat(&question("hi", 1)).status, 200);
}

const MARKUP: &str = "<tool_call>";

/// One question in each dialect that the model answers by a call, with its tool told in words and
/// offered by the field, and calls forbidden.
fn may_not_call() -> [(&'static str, Value); 3] {
    let text = "How far is it from Osaka to Niamey?";
    let name = "distance_between";
    let city = |text: &str| json!({"type": "string", "description": text});
    let schema = json!({"type": "object", "required": ["start", "to"],
        "properties": {"start": city("First city"), "to": city("Second city")}});
    let function = json!({"name": name, "description": "How far two places are apart.",
        "parameters": schema});
    let tool = json!({"type": "function", "function": function});
    let told = format!(
        "# Tools\n\nYou have access to the following functions:\n\n<tools>\n{tool}\n</tools>"
    );
    let user = json!({"role": "user", "content": text});
    let flat = json!({"type": "function", "name": name, "parameters": schema});
    [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "system", "content": told}, user], "tools": [tool],
                "tool_choice": "none", "reasoning_effort": "none", "max_tokens": 80}),
        ),
        (
            "/v1/messages",
            json!({"system": told, "messages": [user], "tool_choice": {"type": "none"},
                "tools": [{"name": name, "input_schema": schema}], "max_tokens": 80}),
        ),
        (
            "/v1/responses",
            json!({"instructions": told, "input": [user], "tools": [flat], "tool_choice": "none",
                "reasoning": {"effort": "none"}, "max_output_tokens": 80}),
        ),
    ]
}

#[test]
fn a_reply_that_may_not_call_shows_no_markup() {
    let server = Server::lent();
    for (path, body) in may_not_call() {
        let body = with(body, json!({"temperature": 0}));
        let answer = server.post_to(path, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.body.contains(MARKUP), "{path}: {}", answer.body);
        // Without the list there is nothing to forbid, and the model does what it was told.
        let mut unlisted = body;
        unlisted.as_object_mut().unwrap().remove("tools");
        let answer = server.post_to(path, &unlisted);
        assert!(answer.body.contains(MARKUP), "{path}: {}", answer.body);
    }
}

/// Wherever a call is cut off, what came of it is a call or nothing.
#[test]
fn a_call_that_is_cut_off_shows_no_markup() {
    let server = Server::lent();
    for (path, body) in may_not_call() {
        let (choice, length, call) = match path {
            "/v1/messages" => (json!({"type": "any"}), "max_tokens", "tool_use"),
            "/v1/responses" => (json!("required"), "max_output_tokens", "function_call"),
            _ => (json!("required"), "max_tokens", "tool_calls"),
        };
        let call = format!("\"{call}\"");
        let mut named = 0;
        for tokens in 1..=8 {
            for stream in [false, true] {
                let fields = json!({"tool_choice": choice, length: tokens, "stream": stream});
                let answer = server.post_to(path, &with(body.clone(), fields));
                assert_eq!(answer.status, 200, "{answer:?}");
                for markup in [MARKUP, "<function"] {
                    assert!(
                        !answer.body.contains(markup),
                        "{path} {tokens}: {}",
                        answer.body
                    );
                }
                named += usize::from(answer.body.contains(&call));
            }
        }
        assert!(named > 0, "{path}: no cut is long enough for a name");
    }
}
