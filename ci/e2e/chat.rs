//! Chat completions.

use std::thread;

use serde_json::{Value, json};

use crate::harness::{Answer, Server, question, with};

const STORY: &str = "Tell me about the capital of France.";

fn logprobs(answer: &Answer) -> Value {
    answer.json()["choices"][0]["logprobs"]["content"].clone()
}

#[test]
fn the_trained_model_knows_the_capital_of_france() {
    let server = Server::lent();
    let answer = server.chat(&question("What is the capital of France?", 40));
    assert!(answer.content().contains("Paris"), "{}", answer.content());
}

#[test]
fn a_streamed_answer_equals_the_whole_one() {
    let server = Server::lent();
    let body = with(question(STORY, 24), json!({"ignore_eos": true}));
    let whole = server.chat(&body);
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = server.chat(&with(body, options));
    assert_eq!(streamed.streamed(0, "content"), whole.content());
    assert_eq!(
        streamed.events().last().unwrap()["usage"],
        whole.json()["usage"]
    );
}

#[test]
fn a_stream_tells_running_counts_where_asked() {
    let server = Server::lent();
    let told = json!({"include_usage": true, "continuous_usage_stats": true});
    let fields = json!({"ignore_eos": true, "n": 2, "stream": true, "stream_options": told});
    let events = server.chat(&with(question(STORY, 12), fields)).events();
    let counts = |name: &str| -> Vec<u64> {
        let usages = events.iter().map(|event| &event["usage"]);
        usages.map(|usage| usage[name].as_u64().unwrap()).collect()
    };
    let (prompt, completion) = (counts("prompt_tokens"), counts("completion_tokens"));
    assert!(completion.is_sorted(), "{completion:?}");
    assert_eq!((completion[0], completion.last()), (0, Some(&24)));
    // The last chunk has no choice; the one before it ends the last reply.
    assert_eq!(completion[completion.len() - 2], 24);
    // Both replies count. A chunk may bring several tokens at once, so any number may be skipped.
    assert!(
        completion.iter().any(|count| (13..24).contains(count)),
        "{completion:?}"
    );
    let total = prompt.iter().zip(&completion).map(|(a, b)| a + b);
    assert_eq!(counts("total_tokens"), total.collect::<Vec<u64>>());
    assert!(prompt.iter().all(|count| *count == prompt[0]));
}

#[test]
fn usage_counts_every_token() {
    let server = Server::lent();
    let body = with(
        question(STORY, 17),
        json!({"ignore_eos": true, "logprobs": true}),
    );
    let answer = server.chat(&body);
    let usage = answer.json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 17);
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + 17
    );
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
}

#[test]
fn logprobs_are_sorted_and_do_not_depend_on_how_many_are_asked_for() {
    let server = Server::lent();
    let ask = |top: usize| {
        let fields = json!({"ignore_eos": true, "logprobs": true, "top_logprobs": top});
        logprobs(&server.chat(&with(question(STORY, 8), fields)))
    };
    let (none, five, most) = (ask(0), ask(5), ask(20));
    for (at, position) in most.as_array().unwrap().iter().enumerate() {
        assert_eq!(position["logprob"], none[at]["logprob"]);
        assert_eq!(position["logprob"], five[at]["logprob"]);
        let top: Vec<f64> = position["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!(top.len(), 20);
        assert!(top.is_sorted_by(|a, b| a >= b) && top[0] <= 0.0, "{top:?}");
        assert_eq!(position["top_logprobs"][0]["logprob"], position["logprob"]);
    }
}

#[test]
fn a_request_gives_the_same_bits_alone_and_in_any_batch() {
    let server = Server::lent();
    let fields = json!({"ignore_eos": true, "logprobs": true, "top_logprobs": 5});
    let body = with(question(STORY, 12), fields);
    let alone = logprobs(&server.chat(&body));
    thread::scope(|scope| {
        for index in 0..8 {
            let (server, body, alone) = (&server, &body, &alone);
            scope.spawn(move || {
                if index % 2 == 0 {
                    assert_eq!(&logprobs(&server.chat(body)), alone);
                } else {
                    let other = "x ".repeat(20 * index);
                    server.chat(&with(question(&other, 10), json!({"ignore_eos": true})));
                }
            });
        }
    });
}

#[test]
fn a_seed_gives_the_same_reply_again() {
    let server = Server::lent();
    let fields = json!({"temperature": 1.5, "seed": 7, "ignore_eos": true});
    let body = with(question(STORY, 16), fields);
    let first = server.chat(&body).content();
    assert_eq!(server.chat(&body).content(), first);
    let other = server.chat(&with(body, json!({"seed": 8}))).content();
    assert_ne!(other, first);
}

#[test]
fn a_stop_string_cuts_the_reply_before_it() {
    let server = Server::lent();
    let body = with(question(STORY, 24), json!({"ignore_eos": true}));
    let whole = server.chat(&body).content();
    let middle = whole
        .char_indices()
        .nth(whole.chars().count() / 2)
        .unwrap()
        .0;
    let stop: String = whole[middle..].chars().take(3).collect();
    let cut = &whole[..whole.find(&stop).unwrap()];
    for stream in [false, true] {
        let answer = server.chat(&with(
            body.clone(),
            json!({"stop": [stop], "stream": stream}),
        ));
        let content = if stream {
            answer.streamed(0, "content")
        } else {
            answer.content()
        };
        assert_eq!(content, cut);
    }
}

/// Words that a reply has are not in one that must not have them, a reply of a least length has it,
/// and of one token alone there is nothing else.
#[test]
fn rules_of_sampling_are_kept() {
    let server = Server::lent();
    let body = with(
        question(STORY, 24),
        json!({"ignore_eos": true, "enable_thinking": false}),
    );
    let whole = server.chat(&body).content();
    let word = whole
        .split_whitespace()
        .max_by_key(|word| word.len())
        .unwrap();
    let without = server.chat(&with(body.clone(), json!({"bad_words": [word]})));
    assert!(!without.content().contains(word), "{word}");
    let least = json!({"ignore_eos": false, "min_tokens": 24, "stop": [word]});
    let answer = server.chat(&with(body.clone(), least));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 24);
    let narrowed = json!({
        "temperature": 1.0, "seed": 3, "typical_p": 0.9, "top_n_sigma": 2, "xtc_probability": 0.5,
        "dry_multiplier": 0.8,
    });
    let narrowed = with(body.clone(), narrowed);
    assert_eq!(
        server.chat(&narrowed).content(),
        server.chat(&narrowed).content()
    );
    let adaptive = json!({"temperature": 1.0, "seed": 3, "adaptive_sampling": true});
    let adaptive = with(body.clone(), adaptive);
    assert_eq!(
        server.chat(&adaptive).content(),
        server.chat(&adaptive).content()
    );
    let refused = server.chat(&with(body.clone(), json!({"adaptive_sampling": "on"})));
    assert_eq!(refused.error()["param"], "adaptive_sampling");
    let tokens = server.post_to("/tokenize", &json!({"prompt": "a"})).json();
    let allowed = &tokens["tokens"];
    let one = json!({"allowed_token_ids": allowed, "logprobs": true});
    let told = logprobs(&server.chat(&with(body.clone(), one)));
    let told = told.as_array().unwrap();
    assert_eq!(told.len(), 24);
    assert!(told.iter().all(|token| token["token"] == told[0]["token"]));
    let choice = json!({"allowed_token_ids": allowed, "structured_outputs": {"choice": ["Paris"]}});
    let refused = server.chat(&with(body, choice));
    assert!(
        refused.error()["message"]
            .as_str()
            .unwrap()
            .contains("allowed_token_ids")
    );
}

#[test]
fn greedy_choices_are_all_the_same() {
    let server = Server::lent();
    let choices = server
        .chat(&with(question(STORY, 8), json!({"n": 3})))
        .json()["choices"]
        .clone();
    assert_eq!(choices.as_array().unwrap().len(), 3);
    assert!((1..3).all(|index| choices[index]["message"] == choices[0]["message"]));
}

#[test]
fn what_does_not_fit_is_refused_with_the_limit() {
    let server = Server::lent();
    let long = server.chat(&question(&"word ".repeat(4000), 1));
    let error = long.error();
    assert_eq!(
        (long.status, &error["code"]),
        (400, &json!("context_length_exceeded"))
    );
    assert_eq!(error["param"], "messages");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("maximum context length is 2048 tokens"),
        "{message}"
    );
}

#[test]
fn conversations_of_every_role_are_taken() {
    let server = Server::lent();
    let body = json!({"max_tokens": 4, "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": [1]}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "system", "content": "A late reminder."},
        {"role": "user", "content": "And tomorrow?"}
    ], "tools": [{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]});
    assert_eq!(server.chat(&body).status, 200);
}
