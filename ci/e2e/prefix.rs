//! Prompts that begin as one before: what is computed of them, and that no reply tells.

use serde_json::{Value, json};

use crate::harness::{Server, few_or_many, with};
use crate::keys::KeyFile;

/// Turns of the conversation.
const TURNS: usize = 10;
/// Tokens of a page, and of a cell of a prompt.
pub const PAGE: u64 = 64;
/// Tokens before a prompt's end from which on the next turn may differ.
pub const OPENING: u64 = 8;
/// Tokens that frame a message of one letter and the beginning of a reply, at most.
const FRAMES: u64 = 24;

pub fn body(messages: &[Value]) -> Value {
    json!({"messages": messages, "max_tokens": 24, "temperature": 0.8, "seed": 3,
        "logprobs": true, "top_logprobs": 3, "enable_thinking": false})
}

/// A user's message of a turn, of about a page.
pub fn question(turn: usize) -> Value {
    let text = format!("In turn {turn}: {}", "what is 2 and 3? ".repeat(8));
    json!({"role": "user", "content": text})
}

/// Tokens of the prompt and those that were cached, as an answer tells them.
pub fn used(answer: &Value) -> (u64, u64) {
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    (usage["prompt_tokens"].as_u64().unwrap(), cached.unwrap())
}

#[test]
fn a_turn_pays_for_what_is_new_in_it() {
    let (server, fresh) = (Server::start(), Server::start());
    let mut messages = vec![json!({"role": "system", "content": "Answer briefly. ".repeat(20)})];
    let mut before = 0;
    for turn in 0..TURNS {
        messages.push(question(turn));
        let computed = server.metric("atlas_prompt_tokens_total") as u64;
        let answer = server.chat(&body(&messages)).json();
        let computed = server.metric("atlas_prompt_tokens_total") as u64 - computed;
        let (prompt, cached) = used(&answer);
        assert_eq!(cached + computed, prompt, "turn {turn}");
        let new = prompt - before;
        assert!(
            computed <= new + PAGE + OPENING,
            "turn {turn}: {computed} for {new}"
        );
        before = prompt;
        let message = &answer["choices"][0]["message"];
        messages.push(json!({"role": "assistant", "content": message["content"]}));
    }
    messages.pop();
    let [warm, cold] = [&server, &fresh].map(|server| server.chat(&body(&messages)).json());
    assert!(used(&warm).1 > 0 && used(&cold).1 == 0);
    assert_eq!(
        warm["choices"], cold["choices"],
        "the same bits, cached or computed"
    );
}

#[test]
fn every_dialect_tells_what_was_cached() {
    let server = Server::start();
    let text = "Name the sum of 2 and 3. ".repeat(12);
    let user = json!([{"role": "user", "content": text}]);
    for (path, body, whole, cached) in [
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 2}),
            "prompt_tokens",
            "/usage/prompt_tokens_details/cached_tokens",
        ),
        (
            "/v1/messages",
            json!({"model": "m", "messages": user, "max_tokens": 2}),
            "input_tokens",
            "/usage/cache_read_input_tokens",
        ),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 2, "store": false}),
            "input_tokens",
            "/usage/input_tokens_details/cached_tokens",
        ),
    ] {
        let [first, again] = [0; 2].map(|_| server.post_to(path, &body).json());
        let told = |answer: &Value| answer.pointer(cached).and_then(Value::as_u64);
        assert!(told(&again) > Some(0), "{path}: {}", again["usage"]);
        let prompt = |answer: &Value| {
            let apart = path == "/v1/messages";
            let rest = answer["usage"][whole].as_u64().unwrap();
            rest + if apart { told(answer).unwrap() } else { 0 }
        };
        assert_eq!(prompt(&first), prompt(&again), "{path}");
    }
}

#[test]
fn salts_keep_prompts_apart() {
    let server = Server::start();
    let ask = |salt: Value| {
        let fields = json!({"max_tokens": 1, "cache_salt": salt});
        used(
            &server
                .chat(&with(body(&[question(0), question(1)]), fields))
                .json(),
        )
        .1
    };
    assert_eq!([ask(Value::Null), ask(json!("a")), ask(json!("b"))], [0; 3]);
    assert!(ask(json!("a")) > 0 && ask(Value::Null) > 0);
}

#[test]
fn keys_share_no_prompts() {
    let keys = ["one-0123456789abcdef", "two-0123456789abcdef"];
    let file = KeyFile::new("prefix", &keys.join("\n"));
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let body = with(body(&[question(0), question(1)]), json!({"max_tokens": 1}));
    let ask = |key: &str| used(&server.chat_as(key, &body).json()).1;
    assert_eq!(ask(keys[0]), 0);
    assert_eq!(ask(keys[1]), 0, "another key's prompt");
    assert!(ask(keys[0]) > 0 && ask(keys[1]) > 0);
}

#[test]
fn a_second_conversation_pays_for_nothing_of_system_and_tools() {
    let server = Server::start();
    let system = json!({"role": "system", "content": "Answer briefly. ".repeat(30)});
    let tool = json!({"type": "function", "function": {"name": "look_up",
        "description": "Looks a word up. ".repeat(20), "parameters": {"type": "object"}}});
    let user = |said: &str| json!({"role": "user", "content": said});
    let long = |begin: &str| user(&format!("{begin} {}", "what is 2 and 3? ".repeat(20)));
    for (head, tools) in [
        (vec![system.clone()], json!([])),
        (vec![system], json!([tool])),
        (vec![], json!([tool])),
    ] {
        let ask = |message: Value| {
            let messages: Vec<Value> = head.iter().cloned().chain([message]).collect();
            let fields = json!({"max_tokens": 1, "tools": tools});
            used(&server.chat(&with(body(&messages), fields)).json())
        };
        // This prompt is as long as the head but for the few tokens that frame a message.
        let (short, _) = ask(user("a"));
        ask(long("First"));
        let (_, cached) = ask(long("second"));
        assert!(
            cached >= (short - FRAMES) / PAGE * PAGE,
            "{cached} of {short}"
        );
    }
}

/// Agents that take turns, and tokens of the prompt of each: at length their states in the middle
/// and at the ends are more than there are, and their tokens nearly all.
const AGENTS: usize = few_or_many(2, 40);
const AGENT_TOKENS: usize = few_or_many(330, 707);

#[test]
fn agents_that_take_turns_find_their_prompts_again() {
    let server = Server::start();
    let turn = |agent: usize, round: usize| {
        let token = |at| match at + 1 == AGENT_TOKENS {
            true => round + 1,
            false => 1 + (61 * agent + at) % 3000,
        };
        let prompt: Vec<usize> = (0..AGENT_TOKENS).map(token).collect();
        let body = json!({"prompt": prompt, "max_tokens": 1});
        used(&server.post_to("/v1/completions", &body).json())
    };
    for round in 0..3 {
        let turns = (0..AGENTS).map(|agent| turn(agent, round));
        let (asked, cached) = turns.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        println!("round {round}: {cached} of {asked} tokens were cached");
        assert!(
            round == 0 || cached * 10 >= asked * 9,
            "{cached} of {asked}"
        );
    }
    assert!(server.metric("atlas_prefix_cache_saved_seconds_total") > 0.0);
}

/// Agents whose prompts are more than the device has places for, tokens and states, and the tokens
/// of each.
const CROWD: usize = few_or_many(48, 150);
const CROWD_TOKENS: usize = 720;

/// Prompts that the host's room gives back have the bits of what was computed.
#[test]
fn agents_of_more_than_fits_find_their_prompts_in_the_hosts_room() {
    let server = Server::start_with(&["--cache-host", "2GB"]);
    let turn = |agent: usize| {
        let token = |at| 1 + (61 * agent + 7 * at) % 3000;
        let prompt: Vec<usize> = (0..CROWD_TOKENS).map(token).collect();
        let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 3});
        server.post_to("/v1/completions", &body).json()
    };
    let rounds = [0, 1].map(|_| (0..CROWD).map(turn).collect::<Vec<_>>());
    for (computed, restored) in rounds[0].iter().zip(&rounds[1]) {
        assert_eq!(computed["choices"], restored["choices"]);
    }
    let found = rounds[1].iter().map(used);
    let (asked, cached) = found.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    assert!(cached * 10 >= asked * 9, "{cached} of {asked}");
    let restored = server.metric("atlas_prefix_cache_host_restored_bytes_total");
    assert!(restored > 0.0, "everything was still on the device");
}

/// Requests of a flood and clients that send them: together they leave more states than there are.
const FLOOD: usize = 40;
const FLOODERS: usize = 8;

#[test]
fn a_flood_of_another_key_leaves_a_key_what_it_keeps() {
    let keys = ["own-0123456789abcdef", "flood-0123456789abcdef"];
    let file = KeyFile::new("flood", &keys.join("\n"));
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let own = || {
        let ask = |turn| {
            let fields = json!({"max_tokens": 1});
            let body = with(body(&[question(turn), question(turn)]), fields);
            used(&server.chat_as(keys[0], &body).json())
        };
        [1, 2, 3].map(ask)
    };
    own();
    let flood = |flooder: usize| {
        for request in (flooder..FLOOD).step_by(FLOODERS) {
            let messages: Vec<Value> = (0..5).map(|turn| question(10 * request + turn)).collect();
            let fields = json!({"max_tokens": 4, "cache_salt": format!("salt {request}")});
            let answer = server.chat_as(keys[1], &with(body(&messages), fields));
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    };
    std::thread::scope(|scope| {
        for flooder in 0..FLOODERS {
            let flood = &flood;
            scope.spawn(move || flood(flooder));
        }
    });
    for (prompt, cached) in own() {
        assert_eq!(cached, (prompt - OPENING) / PAGE * PAGE, "of {prompt}");
    }
}
