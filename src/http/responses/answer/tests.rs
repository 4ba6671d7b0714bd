use super::*;
use crate::responses::store::Store;
use crate::settings::Settings;
use crate::state::Loading;
use crate::testing::random_reply;
use step::testing::TINY;
use text::reply::append;
use text::testing::{Random, chat_model};

const USAGE: Usage = Usage {
    prompt: 3,
    cached: 0,
    completion: 9,
    reasoning: 4,
};

fn composer(state: &Arc<ServerState>) -> Composer {
    let body = json!({
        "input": "hi",
        "include": ["reasoning.encrypted_content"],
        "tools": [
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "patch"},
            {"type": "tool_search", "execution": "client"},
        ],
    });
    let request =
        ResponsesRequest::parse(&body, (&Store::default(), &Seal::new(None)), &TINY).unwrap();
    Composer::new(state, None, request)
}

fn state() -> Arc<ServerState> {
    ServerState::new(&TINY, "m", Settings::default(), || Loading {
        stage: "",
        bytes_done: 0,
        bytes_total: 0,
    })
}

fn deltas() -> Vec<Delta> {
    let call = |index, name: &str| Delta::ToolCall {
        index,
        name: name.to_string(),
    };
    let arguments = |index, json: &str| Delta::Arguments {
        index,
        json: json.to_string(),
    };
    vec![
        Delta::Reasoning("wh".to_string()),
        Delta::Reasoning("y".to_string()),
        Delta::Content("So".to_string()),
        call(0, "n.f"),
        arguments(0, "{\"a\":"),
        arguments(0, "1}"),
        call(1, "patch"),
        arguments(1, "{\"input\":\"+x\"}"),
        call(2, "tool_search"),
        arguments(2, "{\"query\":"),
        arguments(2, "\"x\"}"),
    ]
}

fn settled(deltas: Vec<Delta>, finish: Option<Finish>) -> Settled {
    Settled {
        deltas,
        finish,
        ..Settled::default()
    }
}

fn events(bytes: Vec<u8>) -> Vec<Value> {
    let text = String::from_utf8(bytes).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn streamed(state: &Arc<ServerState>, deltas: Vec<Delta>, finish: Finish) -> Vec<Value> {
    streamed_by(&chat_model(), state, deltas, finish)
}

fn streamed_by(
    model: &ChatModel,
    state: &Arc<ServerState>,
    deltas: Vec<Delta>,
    finish: Finish,
) -> Vec<Value> {
    let mut composer = composer(state);
    let mut out = Vec::new();
    composer.write_start(&mut out);
    for delta in deltas {
        composer.write(model, settled(vec![delta], None), &mut out);
    }
    composer.write(model, settled(vec![], Some(finish)), &mut out);
    composer.write_end(USAGE, &mut out);
    events(out)
}

#[test]
fn events_come_in_the_order_of_the_api_and_are_numbered() {
    let found = streamed(&state(), deltas(), Finish::ToolCalls);
    let kinds: Vec<&str> = found
        .iter()
        .map(|event| {
            event["type"]
                .as_str()
                .unwrap()
                .strip_prefix("response.")
                .unwrap()
        })
        .collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds, expected);
    for (at, event) in found.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
}

#[test]
fn the_text_of_a_custom_tool_comes_in_deltas_and_stays_where_it_is_cut() {
    let pieces = ["{\"inp", "ut\":\"+", "x\\", "ny"];
    let call = Delta::ToolCall {
        index: 0,
        name: "patch".to_string(),
    };
    let arguments = pieces.map(|json| Delta::Arguments {
        index: 0,
        json: json.to_string(),
    });
    let deltas = [call].into_iter().chain(arguments).collect();
    let found = streamed(&state(), deltas, Finish::Length);
    let rest = found.iter().filter_map(|event| {
        let delta = event["type"] == "response.custom_tool_call_input.delta";
        delta.then(|| event["delta"].as_str().unwrap())
    });
    assert_eq!(rest.collect::<Vec<&str>>(), ["+", "x", "\ny"]);
    let item = &found.last().unwrap()["response"]["output"][0];
    assert_eq!(
        (&item["input"], &item["status"]),
        (&json!("+x\ny"), &json!("incomplete"))
    );
}

#[test]
fn the_items_of_the_events_are_those_of_the_response() {
    let state = state();
    let found = streamed(&state, deltas(), Finish::ToolCalls);
    let done: Vec<&Value> = found
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    let response = &found.last().unwrap()["response"];
    assert_eq!(json!(done), response["output"]);
    let of = |at: usize, name: &str| response["output"][at][name].clone();
    assert_eq!(of(0, "content")[0]["text"], "why");
    assert_eq!(of(0, "encrypted_content"), state.seal.close("why"));
    assert_eq!(of(1, "content")[0]["text"], "So");
    assert_eq!(
        (of(2, "namespace"), of(2, "name")),
        (json!("n"), json!("f"))
    );
    assert_eq!(of(2, "arguments"), "{\"a\":1}");
    assert_eq!(
        (of(3, "type"), of(3, "input")),
        (json!("custom_tool_call"), json!("+x"))
    );
    assert_eq!(
        (of(4, "type"), of(4, "execution")),
        (json!("tool_search_call"), json!("client"))
    );
    assert_eq!(of(4, "arguments"), json!({"query": "x"}));
    assert_eq!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"],
        4
    );
}

/// Ids are random.
fn without_ids(mut response: Value) -> Value {
    response["id"] = Value::Null;
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        item["call_id"] = Value::Null;
    }
    response
}

#[test]
fn a_streamed_response_equals_the_whole_one() {
    for finish in [Finish::ToolCalls, Finish::Length] {
        let mut piece = Settled {
            finish: Some(finish),
            ..Settled::default()
        };
        deltas()
            .into_iter()
            .for_each(|delta| append(&mut piece.deltas, delta));
        let state = state();
        let mut whole = composer(&state)
            .whole(&chat_model(), vec![piece], Ok(USAGE))
            .unwrap();
        let streamed = streamed(&state, deltas(), finish);
        let last = streamed.last().unwrap()["response"].clone();
        whole["created_at"] = last["created_at"].clone();
        assert_eq!(without_ids(last), without_ids(whole));
    }
}

#[test]
fn the_cut_into_pieces_never_changes_the_response() {
    let mut random = Random::new(12);
    let (state, model) = (state(), chat_model());
    for _ in 0..500 {
        let pieces = random_reply(&mut random);
        let mut piece = Settled {
            finish: Some(Finish::Stop),
            ..Settled::default()
        };
        for delta in pieces.clone() {
            append(&mut piece.deltas, delta);
        }
        let mut whole = composer(&state)
            .whole(&model, vec![piece], Ok(USAGE))
            .unwrap();
        let streamed = streamed_by(&model, &state, pieces, Finish::Stop);
        let last = streamed.last().unwrap()["response"].clone();
        whole["created_at"] = last["created_at"].clone();
        assert_eq!(without_ids(last), without_ids(whole));
    }
}

#[test]
fn a_cut_reply_is_incomplete() {
    let found = streamed(
        &state(),
        vec![Delta::Content("a".to_string())],
        Finish::Length,
    );
    let last = found.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    let response = &last["response"];
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[test]
fn a_failure_is_the_one_terminal_event() {
    let mut composer = composer(&state());
    let mut out = Vec::new();
    composer.write_start(&mut out);
    composer.write_error(&ApiError::full(), &mut out);
    let found = events(out);
    assert_eq!(found.len(), 3);
    let response = &found[2]["response"];
    assert_eq!(found[2]["type"], "response.failed");
    assert_eq!(response["error"]["code"], "server_error");
}

#[test]
fn what_is_stored_continues_the_conversation() {
    let state = state();
    let found = streamed(&state, deltas(), Finish::ToolCalls);
    let response = &found.last().unwrap()["response"];
    let stored = state
        .responses
        .get(response["id"].as_str().unwrap())
        .unwrap();
    assert_eq!(
        &serde_json::from_str::<Value>(&stored.response).unwrap(),
        response
    );
    let history: Value = serde_json::from_str(&stored.history).unwrap();
    assert_eq!(history[0], json!({"role": "user", "content": "hi"}));
    assert_eq!(history[1]["reasoning_content"], "why");
    assert_eq!(history[1]["tool_calls"][0]["function"]["name"], "n.f");
}
