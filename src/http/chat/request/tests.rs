use serde_json::json;
use step::testing::TINY;

use super::*;
use crate::limits::{
    CHOICES_MAX, LOGIT_BIAS_MAX, STOP_BYTES_MAX, STOP_TOKENS_MAX, STOPS_MAX, TOOLS_MAX,
};

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[name] = value;
    body
}

fn parsed(name: &str, value: Value) -> Ask {
    ChatRequest::parse(&with(name, value), &TINY).unwrap().ask
}

fn refused(name: &str, value: Value) -> ApiError {
    match ChatRequest::parse(&with(name, value.clone()), &TINY) {
        Err(error) => error,
        Ok(_) => panic!("{name}: {value} was taken"),
    }
}

#[test]
fn a_plain_request_takes_the_defaults_of_the_target() {
    let request = parsed("user", json!("someone"));
    assert_eq!(request.sampling.temperature, TINY.temperature);
    assert_eq!(request.sampling.top_k, TINY.top_k);
    assert_eq!((request.choices, request.logprobs), (1, None));
    assert_eq!(request.thinking, TINY.thinking);
}

#[test]
fn numbers_outside_their_range_or_type_are_refused_by_name() {
    let fields = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "top_logprobs",
    ];
    let values = [
        json!(1e308),
        json!(u64::MAX),
        json!("1"),
        json!([]),
        json!({}),
        json!(true),
    ];
    for field in fields {
        for value in &values {
            assert_eq!(
                refused(field, value.clone()).param.as_deref(),
                Some(field),
                "{value}"
            );
        }
    }
}

#[test]
fn each_numeric_range_ends_at_its_limit() {
    for (field, inside, outside) in [
        ("temperature", json!(2), json!(2.01)),
        ("temperature", json!(0), json!(-0.1)),
        ("top_p", json!(1), json!(1.1)),
        ("top_p", json!(0), json!(-0.1)),
        ("min_p", json!(0), json!(1.1)),
        ("top_k", json!(-1), json!(-2)),
        ("presence_penalty", json!(-2), json!(-2.1)),
        ("repetition_penalty", json!(0.5), json!(0)),
        ("max_tokens", json!(1), json!(0)),
        ("n", json!(CHOICES_MAX), json!(CHOICES_MAX + 1)),
        ("n", json!(1), json!(0)),
    ] {
        parsed(field, inside);
        assert_eq!(refused(field, outside).param.as_deref(), Some(field));
    }
}

#[test]
fn minus_one_is_no_limit() {
    for field in ["max_tokens", "max_completion_tokens", "n_predict"] {
        assert_eq!(parsed(field, json!(-1)).max_tokens, None);
        for none in [json!(0), json!(-2)] {
            assert_eq!(refused(field, none).param.as_deref(), Some(field));
        }
    }
}

#[test]
fn unknown_fields_are_ignored() {
    parsed("metadata", json!({"a": [1, 2, 3]}));
    parsed("some_future_field", json!(5));
}

/// Any value keeps prompts apart, and changes nothing else.
#[test]
fn keys_of_caches_are_any_values() {
    let salts = ["", "\0", "é\r\n", &"x".repeat(1 << 20)].map(Value::from);
    for salt in salts.into_iter().chain([json!(-1), json!([null])]) {
        for field in ["cache_salt", "prompt_cache_key", "mm_hashes"] {
            let ask = parsed(field, salt.clone());
            assert_eq!(ask.salt.is_empty(), field != "cache_salt");
        }
    }
}

#[test]
fn any_name_of_a_model_is_taken() {
    for name in ["gpt-any", "../../etc/passwd", ""] {
        parsed("model", json!(name));
    }
    let error = refused("model", json!(5));
    assert_eq!(error.param.as_deref(), Some("model"));
}

#[test]
fn stops_are_a_string_or_a_bounded_list() {
    assert_eq!(parsed("stop", json!("a")).stops, ["a"]);
    assert_eq!(
        parsed("stop", json!(vec!["a"; STOPS_MAX])).stops.len(),
        STOPS_MAX
    );
    assert_eq!(
        refused("stop", json!(vec!["a"; STOPS_MAX + 1]))
            .param
            .unwrap(),
        "stop"
    );
    assert_eq!(refused("stop", json!([""])).param.unwrap(), "stop[0]");
    parsed("stop", json!("x".repeat(STOP_BYTES_MAX)));
    assert_eq!(
        refused("stop", json!("x".repeat(STOP_BYTES_MAX + 1)))
            .param
            .unwrap(),
        "stop"
    );
}

#[test]
fn stop_tokens_are_a_bounded_list_of_ids() {
    assert_eq!(
        parsed("stop_token_ids", json!(vec![1; STOP_TOKENS_MAX])).stop_tokens[0],
        1
    );
    let error = refused("stop_token_ids", json!(vec![1; STOP_TOKENS_MAX + 1]));
    assert_eq!(error.param.unwrap(), "stop_token_ids");
    let error = refused("stop_token_ids", json!([TINY.vocab]));
    assert_eq!(error.param.unwrap(), "stop_token_ids[0]");
}

#[test]
fn logit_bias_is_bounded_and_names_tokens() {
    let biases = |count: usize| -> Value {
        (0..count)
            .map(|id| (id.to_string(), json!(1)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    assert_eq!(
        parsed("logit_bias", biases(LOGIT_BIAS_MAX))
            .sampling
            .logit_bias
            .len(),
        LOGIT_BIAS_MAX
    );
    for bad in [
        biases(LOGIT_BIAS_MAX + 1),
        json!({"-1": 1}),
        json!({"+1": 1}),
        json!({"x": 1}),
        json!({TINY.vocab.to_string(): 1}),
        json!({"1": 1, "01": 1}),
        json!([]),
    ] {
        assert_eq!(refused("logit_bias", bad).param.unwrap(), "logit_bias");
    }
    assert_eq!(
        refused("logit_bias", json!({"1": 101})).param.unwrap(),
        "logit_bias.1"
    );
}

#[test]
fn rules_of_sampling_have_bounds() {
    let sampling = |name, value| parsed(name, value).sampling;
    assert_eq!(sampling("top_n_sigma", json!(-1)).top_n_sigma, 0.0);
    assert_eq!(sampling("typical_p", json!(0.5)).typical_p, 0.5);
    assert_eq!(sampling("min_tokens", json!(7)).min_tokens, 7);
    assert_eq!(sampling("allowed_token_ids", json!([5, 3])).allowed, [5, 3]);
    assert_eq!(sampling("dry_penalty_last_n", json!(-1)).dry.last, None);
    assert_eq!(sampling("dry_penalty_last_n", json!(64)).dry.last, Some(64));
    assert_eq!(sampling("xtc_probability", json!(1)).xtc.probability, 1.0);
    for (name, value) in [
        ("top_n_sigma", json!(101)),
        ("typical_p", json!(1.1)),
        ("min_tokens", json!(-1)),
        ("allowed_token_ids", json!([])),
        ("xtc_probability", json!(-0.1)),
        ("xtc_threshold", json!(2)),
        ("dry_multiplier", json!(-1)),
        ("dry_base", json!(0.5)),
        ("dry_allowed_length", json!(0)),
        ("bad_words", json!("no list")),
        ("dry_sequence_breakers", json!("\n")),
    ] {
        assert_eq!(refused(name, value).param.unwrap(), name);
    }
    assert_eq!(
        refused("bad_words", json!([""])).param.unwrap(),
        "bad_words[0]"
    );
    let unknown = refused("allowed_token_ids", json!([TINY.vocab]));
    assert_eq!(unknown.param.unwrap(), "allowed_token_ids[0]");
}

#[test]
fn thinking_follows_the_most_specific_switch() {
    assert!(!parsed("reasoning_effort", json!("none")).thinking);
    assert!(parsed("reasoning_effort", json!("low")).thinking);
    assert!(parsed("chat_template_kwargs", json!({"enable_thinking": true})).thinking);
    let budget = json!({"thinking_budget": 7});
    let budget = parsed("chat_template_kwargs", budget).thinking_budget;
    assert_eq!(budget, Some(7));
}

#[test]
fn tools_count_only_when_they_may_be_called() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let mut body = with("tools", json!([tool]));
    assert_eq!(ChatRequest::parse(&body, &TINY).unwrap().ask.tools.len(), 1);
    body["tool_choice"] = json!("none");
    assert!(
        ChatRequest::parse(&body, &TINY)
            .unwrap()
            .ask
            .tools
            .is_empty()
    );
}

#[test]
fn the_number_of_tools_is_bounded_at_the_limit() {
    let tools = |count: usize| -> Value {
        let tool = |at| json!({"type": "function", "function": {"name": format!("f{at}")}});
        (0..count).map(tool).collect::<Vec<_>>().into()
    };
    assert_eq!(parsed("tools", tools(TOOLS_MAX)).tools.len(), TOOLS_MAX);
    assert_eq!(
        refused("tools", tools(TOOLS_MAX + 1)).param.unwrap(),
        "tools"
    );
}

#[test]
fn prompt_logprobs_are_for_whole_answers() {
    assert_eq!(
        parsed("prompt_logprobs", json!(20)).prompt_logprobs,
        Some(20)
    );
    assert_eq!(
        refused("prompt_logprobs", json!(21)).param.unwrap(),
        "prompt_logprobs"
    );
    let mut body = with("prompt_logprobs", json!(0));
    body["stream"] = json!(true);
    let error = ChatRequest::parse(&body, &TINY).unwrap_err();
    assert_eq!(error.param.unwrap(), "prompt_logprobs");
}

#[test]
fn options_that_need_another_field_say_so() {
    assert_eq!(
        refused("top_logprobs", json!(3)).param.unwrap(),
        "top_logprobs"
    );
    let error = refused("stream_options", json!({"include_usage": true}));
    assert_eq!(error.param.unwrap(), "stream_options");
}
