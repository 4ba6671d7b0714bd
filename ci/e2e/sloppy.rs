//! Models that write their calls with slips, schemas that are seldom seen, and requests that other
//! servers are asked: each with the one answer that is right.
//!
//! The trained model writes an exact text where the request leaves it nothing else: the text begins
//! with a sign that calls do not begin with, whose token is favoured.

use serde_json::{Value, json};

use crate::harness::{Answer, Server, with};

/// The token of `#`, and that of `<think>`, in the trained model's vocabulary.
const SIGN: &str = "2";
const THINK: &str = "3070";

fn chat(server: &Server, fields: Value) -> Answer {
    let question = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0, "reasoning_effort": "none"});
    server.post_to("/v1/chat/completions", &with(question, fields))
}

fn tool(parameters: &Value) -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
}

fn strict(parameters: &Value) -> Value {
    let mut tools = tool(parameters);
    tools[0]["function"]["strict"] = json!(true);
    tools
}

/// A request whose reply is `text`, which begins with the text of `token`.
fn writing(token: &str, text: &str, parameters: &Value) -> Value {
    json!({"tools": tool(parameters), "structured_outputs": {"choice": [text]},
           "logit_bias": {token: 100}})
}

fn message(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["message"].clone()
}

/// The arguments of the one call of an answer.
fn arguments(answer: &Answer) -> Value {
    let message = message(answer);
    assert_eq!(
        message["tool_calls"].as_array().map(Vec::len),
        Some(1),
        "{message}"
    );
    let call = &message["tool_calls"][0]["function"];
    assert_eq!(call["name"], "f");
    serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()
}

fn text(properties: &[&str]) -> Value {
    let one = |name: &&str| (name.to_string(), json!({"type": "string"}));
    let properties: Value = properties.iter().map(one).collect();
    json!({"type": "object", "properties": properties})
}

#[test]
fn an_argument_may_have_any_name() {
    let server = Server::lent();
    for name in ["起点", "$top", "@type", "two words", "a>b"] {
        let mut parameters = text(&[name]);
        parameters["required"] = json!([name]);
        for tools in [tool(&parameters), strict(&parameters)] {
            let answer = chat(
                &server,
                json!({"tools": tools, "tool_choice": "required", "max_tokens": 200}),
            );
            assert!(arguments(&answer)[name].is_string(), "{name}");
        }
    }
}

#[test]
fn a_member_that_no_property_names_has_its_type() {
    let server = Server::lent();
    let integer = json!({"type": "integer"});
    for parameters in [
        json!({"type": "object", "required": ["n"], "additionalProperties": integer}),
        json!({"type": "object", "required": ["n"], "patternProperties": {"^n$": integer}}),
        json!({"type": "object", "allOf": [{"properties": {"n": integer}, "required": ["n"]}]}),
        json!({"type": "object", "anyOf": [{"properties": {"n": integer}, "required": ["n"]}]}),
    ] {
        for tools in [tool(&parameters), strict(&parameters)] {
            let answer = chat(
                &server,
                json!({"tools": tools, "tool_choice": "required", "max_tokens": 200}),
            );
            assert!(arguments(&answer)["n"].is_i64(), "{parameters}");
        }
    }
}

#[test]
fn an_argument_of_a_union_is_read_as_the_type_that_its_text_is() {
    let server = Server::lent();
    let list = json!({"type": "array", "items": {"type": "string"}});
    for (schema, written, read) in [
        (
            json!({"anyOf": [list, {"type": "string", "enum": ["all"]}]}),
            "[\"ls\"]",
            json!(["ls"]),
        ),
        (
            json!({"anyOf": [list, {"type": "string"}]}),
            "all",
            json!("all"),
        ),
        (json!({"type": ["string", "number"]}), "1.5", json!(1.5)),
        (json!({"type": ["string", "integer"]}), "1.5", json!("1.5")),
        (
            json!({"type": ["string", "boolean", "null"]}),
            "true",
            json!(true),
        ),
        (
            json!({"type": ["string", "object"]}),
            "{\"a\": 1}",
            json!({"a": 1}),
        ),
        (json!({"type": "string"}), "1", json!("1")),
    ] {
        let reply = format!(
            "#<tool_call>\n<function=f>\n<parameter=v>\n{written}\n</parameter>\n</function>\n\
             </tool_call>"
        );
        let parameters = json!({"type": "object", "properties": {"v": schema}});
        let answer = chat(&server, writing(SIGN, &reply, &parameters));
        assert_eq!(arguments(&answer), json!({"v": read}), "{schema}");
    }
}

#[test]
fn small_slips_lose_no_call() {
    let server = Server::lent();
    for reply in [
        "#\n<function=f>\n<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>",
        "#<tool_call>\n<function=f>\n<parameter=b>\nx\n</function>\n</tool_call>",
        "#<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n</tool_call>",
        "#<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n",
    ] {
        let answer = chat(&server, writing(SIGN, reply, &text(&["b"])));
        assert_eq!(arguments(&answer), json!({"b": "x"}), "{reply}");
        assert_eq!(message(&answer)["content"], "#");
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "tool_calls");
    }
    let two = "#<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n</function>\n\
        <function=f>\n<parameter=b>\ny\n</parameter>\n</function>\n</tool_call>";
    let answer = chat(&server, writing(SIGN, two, &text(&["b"])));
    assert_eq!(message(&answer)["tool_calls"].as_array().unwrap().len(), 2);
}

#[test]
fn a_call_in_the_reasoning_ends_it() {
    let server = Server::lent();
    let reply = "<think>\nI act.\n<tool_call>\n<function=f>\n<parameter=b>\nx\n</parameter>\n\
        </function>\n</tool_call>\n</think>\n\n";
    let answer = chat(&server, writing(THINK, reply, &text(&["b"])));
    assert_eq!(arguments(&answer), json!({"b": "x"}));
    let message = message(&answer);
    assert_eq!(message["reasoning_content"], "I act.");
    assert_eq!(message["content"], Value::Null);
}

#[test]
fn what_is_half_a_call_is_not_told_as_a_whole_one() {
    let server = Server::lent();
    let reply = "#<tool_call>\n<function=f>\n<parameter=b>\nx";
    let answer = chat(&server, writing(SIGN, reply, &text(&["b"])));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    let body = json!({"input": "hi", "temperature": 0, "reasoning": {"effort": "none"},
        "structured_outputs": {"choice": [reply]}, "logit_bias": {SIGN: 100},
        "tools": [{"type": "function", "name": "f", "parameters": text(&["b"])}]});
    let response = server.post_to("/v1/responses", &body).json();
    assert_eq!(response["status"], "incomplete", "{response}");
    assert_eq!(response["output"][1]["status"], "incomplete", "{response}");
}

const DISTANCE: &str = "What is the distance from Paris to Rome?";

fn distance(fields: Value) -> Value {
    let parameters = json!({"type": "object", "required": ["from", "to"], "properties": {
        "from": {"type": "string"}, "to": {"type": "string"}}});
    with(
        json!({"messages": [{"role": "user", "content": DISTANCE}],
            "tools": [{"type": "function", "function": {"name": "distance",
                "description": "Distance between two cities", "parameters": parameters}}],
            "tool_choice": "required", "temperature": 0, "reasoning_effort": "none"}),
        fields,
    )
}

#[test]
fn a_stop_string_meets_no_markup() {
    let server = Server::lent();
    let call = |fields: Value| message(&server.post_to("/v1/chat/completions", &distance(fields)));
    let whole = call(json!({}))["tool_calls"][0]["function"].clone();
    for stop in ["\n", ">", "<", "tool_call", "</", "function", "}", "\""] {
        let message = call(json!({"stop": [stop]}));
        assert_eq!(message["tool_calls"][0]["function"], whole, "{stop:?}");
    }
}

#[test]
fn a_stop_string_in_an_argument_says_that_the_call_broke_off() {
    let server = Server::lent();
    let answer = server.post_to("/v1/chat/completions", &distance(json!({"stop": ["Rome"]})));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    let question = DISTANCE;
    let parameters = text(&["from", "to"]);
    let body = json!({"input": question, "temperature": 0, "reasoning": {"effort": "none"},
        "tools": [{"type": "function", "name": "distance", "parameters": parameters,
                   "description": "Distance between two cities"}],
        "tool_choice": "required", "stop": ["Rome"]});
    let response = server.post_to("/v1/responses", &body).json();
    if response["output"].to_string().contains("Paris") {
        assert_eq!(response["status"], "incomplete", "{response}");
        assert_eq!(response["output"][0]["status"], "incomplete", "{response}");
    }
    let body = json!({"max_tokens": 200, "temperature": 0, "stop_sequences": ["Rome"],
        "messages": [{"role": "user", "content": question}], "tool_choice": {"type": "any"},
        "tools": [{"name": "distance", "description": "Distance between two cities",
                   "input_schema": parameters}]});
    let message = server.post_to("/v1/messages", &body).json();
    if message["content"].to_string().contains("Paris") {
        assert_eq!(message["stop_reason"], "stop_sequence", "{message}");
        assert_eq!(message["stop_sequence"], "Rome", "{message}");
    }
}

#[test]
fn reasoning_is_not_ended_by_a_stop_string() {
    let server = Server::lent();
    let body = json!({"messages": [{"role": "user", "content": "What is the capital of Italy?"}],
        "temperature": 0, "stop": ["fact", "know", "Italy: "]});
    let whole = with(body.clone(), json!({"stop": []}));
    let [stopped, whole] =
        [&body, &whole].map(|body| message(&server.post_to("/v1/chat/completions", body)));
    assert_eq!(stopped["reasoning_content"], whole["reasoning_content"]);
}

#[test]
fn log_probabilities_are_of_the_content() {
    let server = Server::lent();
    let body = json!({"messages": [{"role": "user", "content": "What is the capital of Italy?"}],
        "temperature": 0, "logprobs": true, "reasoning_logprobs": true, "max_tokens": 200});
    for stream in [false, true] {
        let answer = server.post_to(
            "/v1/chat/completions",
            &with(body.clone(), json!({"stream": stream})),
        );
        let (told, content, reasoning) = match stream {
            false => {
                let choice = &answer.json()["choices"][0];
                let text = |name: &str| choice["message"][name].as_str().unwrap_or("").to_string();
                (
                    vec![choice["logprobs"].clone()],
                    text("content"),
                    text("reasoning_content"),
                )
            }
            true => {
                let events = answer.events();
                let choices = events.iter().filter_map(|event| event["choices"].get(0));
                let told = choices.map(|choice| choice["logprobs"].clone()).collect();
                (told, answer.streamed(0, "content"), String::new())
            }
        };
        let joined = |name: &str| -> String {
            let positions = told
                .iter()
                .flat_map(|told| told[name].as_array().into_iter().flatten());
            positions
                .map(|position| position["token"].as_str().unwrap())
                .collect()
        };
        assert_eq!(joined("content").trim_start_matches('\n'), content);
        let thought = joined("reasoning_content");
        assert!(
            thought.contains(&reasoning) && !content.contains("</think>"),
            "{thought}"
        );
    }
}

fn format(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema",
        "json_schema": {"name": "x", "strict": true, "schema": schema}}})
}

#[test]
fn days_that_do_not_exist_are_no_dates() {
    let server = Server::lent();
    for (format_name, pattern, status) in [
        ("date", "^2023-02-29$", 400),
        ("date", "^2024-02-29$", 200),
        ("date-time", "^2023-02-29T00:00:00Z$", 400),
        ("time", "^12:00:60Z$", 400),
        ("time", "^23:59:60Z$", 200),
    ] {
        let schema = json!({"type": "string", "format": format_name, "pattern": pattern});
        let answer = chat(&server, format(&schema));
        assert_eq!(answer.status, status, "{schema}: {}", answer.body);
    }
}

#[test]
fn a_strict_argument_may_have_a_format() {
    let server = Server::lent();
    for name in ["date", "date-time", "email", "uuid", "ipv4"] {
        let parameters = json!({"type": "object", "required": ["day"],
            "properties": {"day": {"type": "string", "format": name}},
            "additionalProperties": false});
        let fields =
            json!({"tools": strict(&parameters), "tool_choice": "required", "max_tokens": 200});
        let answer = chat(&server, fields);
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
    }
    let parameters =
        json!({"type": "object", "properties": {"day": {"type": "string", "format": "color"}}});
    let answer = chat(&server, json!({"tools": strict(&parameters)}));
    assert!(
        answer.status == 400 && answer.body.contains("color"),
        "{}",
        answer.body
    );
}

#[test]
fn what_a_schema_only_notes_refuses_nothing() {
    let server = Server::lent();
    for note in [
        json!({"default": 9_007_199_254_740_993_i64}),
        json!({"examples": [{"pattern": "("}, 1e300]}),
        json!({"x-order": [[[1]]], "title": "t", "description": "d"}),
    ] {
        let answer = chat(&server, format(&with(json!({"type": "boolean"}), note)));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

#[test]
fn what_is_wrong_in_a_schema_is_told_with_its_place() {
    let server = Server::lent();
    for (schema, told) in [
        (json!({"enum": []}), "enum"),
        (json!({"type": "integer", "minimum": "3"}), "minimum"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (
            json!({"if": {"type": "string"}, "then": {"minLength": 2}}),
            "if",
        ),
        (json!({"type": "string", "format": "color"}), "color"),
    ] {
        let schema = json!({"type": "object", "properties": {"p": schema}, "required": ["p"],
            "additionalProperties": false});
        let answer = chat(&server, format(&schema));
        let message = &answer.body;
        assert!(
            answer.status == 400 && message.contains(told),
            "{schema}: {message}"
        );
        assert!(message.contains("properties.p"), "{schema}: {message}");
    }
}

#[test]
fn numbers_come_back_as_they_were_sent() {
    let server = Server::lent();
    let body = json!({"input": "Hi", "temperature": 0.7, "top_p": 0.9, "max_output_tokens": 16});
    let answer = server.post_to("/v1/responses", &body);
    let body = &answer.body;
    assert!(
        body.contains("\"temperature\":0.7,") && body.contains("\"top_p\":0.9,"),
        "{body}"
    );
}

#[test]
fn a_share_of_nothing_leaves_the_likeliest_token() {
    let server = Server::lent();
    let reply = |fields: Value| message(&chat(&server, with(json!({"max_tokens": 5}), fields)));
    let greedy = reply(json!({"temperature": 0}));
    assert_eq!(reply(json!({"temperature": 2, "top_p": 0})), greedy);
    let answer = chat(&server, json!({"top_p": -1}));
    assert!(
        answer.status == 400 && answer.body.len() < 200,
        "{}",
        answer.body
    );
}

#[test]
fn what_is_left_out_is_told_once() {
    let server = Server::lent();
    let names: Vec<String> = (0..100).map(|at| format!("field_{at}")).collect();
    let field = |name: &String| (name.clone(), json!({"type": "string", "format": "color"}));
    let properties: Value = names.iter().map(field).collect();
    let schema = json!({"type": "object", "properties": properties, "required": ["field_0"],
        "additionalProperties": false});
    let answer = chat(
        &server,
        json!({"stream": true, "max_tokens": 50, "response_format":
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
    );
    assert_eq!(answer.body.matches("\"warnings\"").count(), 1);
    assert!(answer.body.len() < 40_000, "{}", answer.body.len());
    let tools = json!([{"type": "file_search", "vector_store_ids": ["v"]}]);
    let body = json!({"input": "Hi", "tools": tools, "max_output_tokens": 8});
    let response = server.post_to("/v1/responses", &body).json();
    assert!(
        response["warnings"][0]
            .as_str()
            .unwrap()
            .contains("file_search"),
        "{response}"
    );
    let misspelt = json!([tools[0], {"type": "fucntion", "name": "f", "parameters": {}}]);
    let refused = server.post_to("/v1/responses", &with(body, json!({"tools": misspelt})));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "tools[1].type");
}

#[test]
fn equal_prompts_and_neighbouring_seeds_have_replies_of_their_own() {
    let server = Server::lent();
    let texts = |fields: Value| -> Vec<String> {
        let body = with(
            json!({"max_tokens": 12, "temperature": 1.5, "ignore_eos": true}),
            fields,
        );
        let answer = server.post_to("/v1/completions", &body);
        let choices = answer.json()["choices"].as_array().unwrap().clone();
        let text = |choice: &Value| choice["text"].as_str().unwrap().to_string();
        choices.iter().map(text).collect()
    };
    let distinct = |texts: &[String]| -> usize {
        let set: std::collections::HashSet<&String> = texts.iter().collect();
        set.len()
    };
    // Some may meet by chance, but neither all of them nor all but one.
    assert!(distinct(&texts(json!({"prompt": vec!["What"; 8]}))) > 4);
    let first = texts(json!({"prompt": "What", "n": 8, "seed": 77}));
    let second = texts(json!({"prompt": "What", "n": 8, "seed": 78}));
    assert!(distinct(&[first.clone(), second].concat()) > 9);
    assert_eq!(first, texts(json!({"prompt": "What", "n": 8, "seed": 77})));
}

#[test]
fn grammars_of_other_servers_are_obeyed() {
    let server = Server::lent();
    let gbnf = "root ::= \"(\" [a-c]+ root? \")\"";
    for name in ["grammar", "ebnf", "guided_grammar"] {
        let answer = chat(
            &server,
            json!({name: gbnf, "max_tokens": 60, "temperature": 1, "seed": 5}),
        );
        let content = message(&answer)["content"].as_str().unwrap().to_string();
        assert!(content.starts_with('('), "{name}: {content}");
        assert!(
            content.chars().all(|char| "(abc)".contains(char)),
            "{name}: {content}"
        );
    }
    let refused = chat(&server, json!({"grammar": "root ::= <think>"}));
    assert!(
        refused.status == 400 && refused.body.contains("tokens"),
        "{}",
        refused.body
    );
}

#[test]
fn a_path_that_leads_nowhere_says_what_was_meant() {
    let server = Server::lent();
    for (path, told) in [
        ("/chat/completions", "add /v1"),
        ("/v1/v1/chat/completions", "drop the second /v1"),
        ("/v1/models/", "drop the slash"),
        ("/v1/health", "drop /v1"),
    ] {
        let answer = server.post_to(path, &json!({}));
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains(told), "{path}: {}", answer.body);
    }
}
