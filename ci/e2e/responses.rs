//! The OpenAI Responses API, with the trained model calling tools through it.

use serde_json::{Value, json};
use step::random::Random;

use crate::harness::{Answer, Server, with};
use crate::malformed::broken;

const PATH: &str = "/v1/responses";

fn question(text: &str) -> Value {
    json!({
        "model": "gpt-any",
        "input": [{"type": "message", "role": "user",
                   "content": [{"type": "input_text", "text": text}]}],
        "temperature": 0,
        "reasoning": {"effort": "none"},
        "max_output_tokens": 200,
    })
}

/// A question that the model answers by a call, and its tool among those of other servers.
fn distance() -> Value {
    let city = |text: &str| json!({"type": "string", "description": text});
    let tool = json!({
        "type": "function",
        "name": "distance_between",
        "description": "How far two places are apart.",
        "strict": false,
        "parameters": {
            "type": "object",
            "properties": {"start": city("First city"), "to": city("Second city")},
            "required": ["start", "to"],
        },
    });
    let tools = json!({"tools": [tool, {"type": "web_search", "external_web_access": false}]});
    with(question("How far is it from Osaka to Niamey?"), tools)
}

/// The response of the one terminal event, once every item of it has been checked against the
/// events of its own.
fn assembled(answer: &Answer) -> Value {
    let events = answer.named_events();
    let mut texts: Vec<String> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
        let index = event["output_index"].as_u64().unwrap_or(0) as usize;
        let kind = event["type"].as_str().unwrap();
        match kind {
            "response.output_item.added" => texts.push(String::new()),
            "response.output_item.done" => {
                let item = &event["item"];
                let text = item["arguments"]
                    .as_str()
                    .or(item["content"][0]["text"].as_str())
                    .or(item["summary"][0]["text"].as_str());
                assert_eq!(text.unwrap(), texts[index]);
            }
            _ if kind.ends_with(".delta") => texts[index] += event["delta"].as_str().unwrap(),
            _ => {}
        }
    }
    let last = events.last().unwrap();
    let response = last["response"].clone();
    assert_eq!(
        last["type"],
        format!("response.{}", response["status"].as_str().unwrap())
    );
    assert_eq!(response["output"].as_array().unwrap().len(), texts.len());
    response
}

/// A response without what is random or the time.
fn without_ids(mut response: Value) -> Value {
    for name in ["id", "created_at"] {
        response[name] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        for name in ["id", "call_id"] {
            item[name] = Value::Null;
        }
    }
    response
}

fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    let response = answer.json();
    let items = response["output"].as_array().unwrap();
    let text = &items.last().unwrap()["content"][0]["text"];
    text.as_str().unwrap().to_string()
}

#[test]
fn a_streamed_response_adds_up_to_the_whole_one() {
    let server = Server::lent();
    let sum = question("What is 347 + 285?");
    let think = json!({"reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"]});
    let cut = json!({"max_output_tokens": 3});
    for body in [
        sum.clone(),
        with(sum.clone(), think),
        with(sum, cut),
        distance(),
    ] {
        // Neither finds a prefix in the cache, of the other or of another test on this server.
        let apart = |salt: &str| with(body.clone(), json!({"cache_salt": salt}));
        let whole = server.post_to(PATH, &apart("whole response"));
        assert_eq!(whole.status, 200, "{whole:?}");
        let streamed = with(apart("streamed response"), json!({"stream": true}));
        let streamed = server.post_to(PATH, &streamed);
        assert_eq!(without_ids(assembled(&streamed)), without_ids(whole.json()));
    }
}

#[test]
fn the_trained_model_calls_a_tool_and_reads_its_result() {
    let server = Server::lent();
    let body = with(distance(), json!({"store": false}));
    let first = server.post_to(PATH, &body).json();
    let call = first["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("distance_between"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"start": "Osaka", "to": "Niamey"}));

    let mut second = body;
    let input = second["input"].as_array_mut().unwrap();
    input.extend(first["output"].as_array().unwrap().iter().cloned());
    input.push(
        json!({"type": "function_call_output", "call_id": call["call_id"],
        "output": "{\"km\": 5023}"}),
    );
    let answer = server.post_to(PATH, &second);
    assert!(text(&answer).contains("5023"), "{answer:?}");
}

#[test]
fn a_stored_response_carries_its_conversation() {
    let server = Server::lent();
    let body = distance();
    let first = server.post_to(PATH, &body).json();
    let call = first["output"].as_array().unwrap().last().unwrap().clone();
    let output = json!([{"type": "function_call_output", "call_id": call["call_id"],
        "output": "{\"km\": 5023}"}]);
    let fields = json!({"previous_response_id": first["id"], "input": output});
    let answer = server.post_to(PATH, &with(body, fields));
    assert!(text(&answer).contains("5023"), "{answer:?}");
    let path = format!("{PATH}/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), first);
}

/// The question's reply goes on until the context is full: its end is the least likely token.
fn endless() -> Value {
    const END_OF_TURN: &str = "3065";
    let body = question("What is the capital of France?");
    let fields = json!({"max_output_tokens": null, "stream": true,
        "logit_bias": {END_OF_TURN: -100}});
    with(body, fields)
}

#[test]
fn a_running_response_is_cancelled_by_its_id() {
    let server = Server::start();
    let mut stream = server.open_post(PATH, endless().to_string().as_bytes());
    stream.read_until("output_text.delta");
    let id = stream.after("\"id\":\"");
    let path = format!("{PATH}/{id}");
    assert_eq!(server.get(&path).json()["status"], "in_progress");
    let cancelled = server.post_to(&format!("{path}/cancel"), &json!({}));
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let end = assembled(&stream.answer());
    assert_eq!(end["status"], "cancelled");
    server.wait_for_metric("atlas_requests_finished_total{reason=\"cancelled\"}", 1.0);
    assert_eq!(server.get(&path).json(), end);
    assert_eq!(server.ask("DELETE", &path, "", "").status, 200);
    let unknown = server.post_to(&format!("{path}/cancel"), &json!({}));
    assert_eq!(unknown.status, 404, "{unknown:?}");
}

#[test]
fn a_call_can_be_forced() {
    let server = Server::lent();
    let patch = json!({"type": "custom", "name": "patch", "description": "Takes text."});
    let mut body = with(distance(), question("What is the capital of France?"));
    body["tools"].as_array_mut().unwrap().push(patch);
    for (choice, kind) in [
        (json!("required"), "_call"),
        (
            json!({"type": "function", "name": "distance_between"}),
            "function_call",
        ),
        (
            json!({"type": "custom", "name": "patch"}),
            "custom_tool_call",
        ),
    ] {
        let fields = json!({"tool_choice": choice, "parallel_tool_calls": false});
        let answer = server.post_to(PATH, &with(body.clone(), fields));
        let response = answer.json();
        let call = &response["output"][0];
        assert!(call["type"].as_str().unwrap().contains(kind), "{answer:?}");
        assert_eq!(response["status"], "completed");
    }
}

#[test]
fn an_answer_obeys_its_schema() {
    let server = Server::lent();
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}},
        "required": ["sum"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "s", "schema": schema, "strict": true});
    let body = with(
        question("What is 3 + 4?"),
        json!({"text": {"format": format}}),
    );
    let answer = server.post_to(PATH, &body);
    let value: Value = serde_json::from_str(&text(&answer)).unwrap();
    assert!(value["sum"].is_i64(), "{answer:?}");
    assert_eq!(answer.json()["text"]["format"], format);
}

/// A coding agent's usual request, in miniature.
#[test]
fn a_coding_agents_request_is_answered() {
    let server = Server::lent();
    let message = |role: &str, text: &str| {
        json!({"type": "message", "role": role,
               "content": [{"type": "input_text", "text": text}]})
    };
    let spawn = json!({"type": "function", "name": "spawn_agent", "strict": false,
        "parameters": {"type": "object", "properties": {"task": {"type": "string"}}}});
    let body = json!({
        "model": "gpt-5-codex",
        "instructions": "Answer briefly.",
        "input": [
            message("developer", "Be kind."),
            message("developer", "Be correct."),
            message("user", "How far is it from Osaka to Niamey?"),
        ],
        "tools": [
            distance()["tools"][0],
            {"type": "namespace", "name": "multi_agent_v1", "tools": [spawn]},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
        "temperature": 0,
    });
    let response = assembled(&server.post_to(PATH, &body));
    assert_eq!(response["status"], "completed", "{response}");
    let used = response["usage"]["input_tokens"].clone();
    let counted = server.post_to("/v1/responses/input_tokens", &body);
    assert_eq!(counted.json()["input_tokens"], used);
    // Its items come back as they are.
    let mut next = body;
    let input = next["input"].as_array_mut().unwrap();
    input.extend(response["output"].as_array().unwrap().iter().cloned());
    input.push(message("user", "What is the capital of France?"));
    assembled(&server.post_to(PATH, &next));
}

#[test]
fn what_does_not_fit_is_refused_with_the_code_that_clients_know() {
    let server = Server::lent();
    let error = server
        .post_to(PATH, &question(&"word ".repeat(4000)))
        .error();
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["param"], "input");
}

/// Fields with values that are wrong for them, and the path at fault.
fn wrong(random: &mut Random) -> (Value, &'static str) {
    let item = |item: Value| json!({"input": ["x", item]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let cases = [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (item(json!({"role": "user", "content": "x"})), "input[0]"),
        (
            json!({"input": [{"role": "wizard", "content": "x"}]}),
            "input[0].role",
        ),
        (
            json!({"input": [{"type": "message", "role": "user"}]}),
            "input[0].content",
        ),
        (json!({"input": [{"type": "wild"}]}), "input[0].type"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input[0].id",
        ),
        (
            json!({"input": [{"type": "function_call", "name": "f"}]}),
            "input[0].call_id",
        ),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}),
            "input[0].output",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"type": "reasoning", "encrypted_content": 5}]}),
            "input[0].encrypted_content",
        ),
        (json!({"instructions": ["x"]}), "instructions"),
        (
            json!({"previous_response_id": "resp_0"}),
            "previous_response_id",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"stream": 1}), "stream"),
        (json!({"store": "yes"}), "store"),
        (json!({"metadata": []}), "metadata"),
        (json!({"include": "x"}), "include"),
        (json!({"include": [5]}), "include[0]"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (
            json!({"context_management": [{"type": "compaction"}]}),
            "context_management",
        ),
        (json!({"max_tool_calls": -1}), "max_tool_calls"),
        (json!({"think": "loudly"}), "think"),
        (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
        (json!({"reasoning": {"effort": "wild"}}), "reasoning.effort"),
        (json!({"text": {"format": {}}}), "text.format.type"),
        (json!({"parallel_tool_calls": 0}), "parallel_tool_calls"),
        (tool(json!({"type": "function"})), "tools[0].name"),
        (
            tool(json!({"type": "function", "name": "f", "parameters": 1})),
            "tools[0].parameters",
        ),
        (
            tool(json!({"type": "namespace", "name": "n"})),
            "tools[0].tools",
        ),
        (
            tool(json!({"type": "tool_search", "execution": "both"})),
            "tools[0].execution",
        ),
    ];
    random.of(&cases).clone()
}

#[test]
fn malformed_requests_are_told_what_is_wrong() {
    const COUNT: &str = "/v1/responses/input_tokens";
    let server = Server::lent();
    let mut random = Random::new(0x7265_7370);
    for number in 0..300 {
        let (fields, at) = wrong(&mut random);
        let context = format!("case {number}: {fields}");
        let answer = server.post_to(PATH, &with(question("Hi"), fields));
        // A response that is not stored, or is somebody else's, is not found.
        let status = if at == "previous_response_id" {
            404
        } else {
            400
        };
        assert_eq!(answer.status, status, "{context}: {answer:?}");
        assert_eq!(answer.error()["param"], at, "{context}");
        let path = *random.of(&[PATH, COUNT]);
        let body = broken(&mut random);
        let answer = server.open_post(path, &body).answer();
        assert_eq!(answer.status, 400, "case {number}, broken: {answer:?}");
        answer.error();
    }
    assert_eq!(server.get("/health").status, 200);
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

#[test]
fn a_custom_tools_text_stays_where_it_is_cut() {
    let server = Server::lent();
    let call = "#<tool_call>\n<function=apply_patch>\n<parameter=input>\n*** Begin Patch\n\
        +line one\n+line two\n*** End Patch\n</parameter>\n</function>\n</tool_call>";
    let body = json!({"input": "hi", "temperature": 0, "reasoning": {"effort": "none"},
        "tools": [{"type": "custom", "name": "apply_patch", "description": "d"}],
        "structured_outputs": {"choice": [call]}, "logit_bias": {"2": 100},
        "max_output_tokens": 30, "stream": true});
    let answer = server.post_to("/v1/responses", &body);
    let events = answer.named_events();
    let told = events.iter().filter_map(|event| {
        let delta = event["type"] == "response.custom_tool_call_input.delta";
        delta.then(|| event["delta"].as_str().unwrap().to_string())
    });
    let told: Vec<String> = told.collect();
    let output = &events.last().unwrap()["response"]["output"];
    let item = output.as_array().unwrap().last().unwrap();
    assert_eq!(item["status"], "incomplete", "{item}");
    assert!(told.len() > 2, "{told:?}");
    assert_eq!(told.concat(), item["input"].as_str().unwrap());
    assert!(told.concat().starts_with("*** Begin Patch"), "{told:?}");
}
