//! Choices of drawn requests, computed alone without drafts and again beside others: the same bits,
//! whole and streamed, with drafts of any depth, with prompts that are kept and such that are not.
//! Beside each are others of them, and clients that leave amid a reply.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use engine::request::Sampling;
use engine::testing::sampling;
use model::target::VOCAB;
use serde_json::{Map, Value, json};
use step::random::Random;

use crate::harness::{Answer, Server, few_or_many, with};

/// Choices for each rule of drafts, few in the suite.
const CHOICES: usize = few_or_many(80, 5_000);
/// Times that each request is asked beside others.
const TIMES: usize = 4;
/// Clients that ask at once: more choices than there are slots.
const CLIENTS: usize = 8;
/// Between two asks where the queue is full.
const RETRY: Duration = Duration::from_millis(50);
const SEED: u64 = 42;
const DRAFTS: &str = "atlas_draft_tokens_total";
const ACCEPTED: &str = "atlas_draft_tokens_accepted_total";

/// A request, and the choices that it got alone.
struct Recorded {
    path: &'static str,
    body: Value,
    choices: Vec<Value>,
}

/// Words that take about so many tokens: below, at and beyond the grid on which prompts are cut.
fn prompt(random: &mut Random) -> String {
    const WORDS: [&str; 6] = ["Rome ", "the sum ", "of 3 ", "é ", "colour ", "\n"];
    let count = *random.of(&[1, 5, 5, 20, 40, 63, 64, 65, 130, 400]);
    (0..count).map(|_| *random.of(&WORDS)).collect()
}

/// Rules of sampling as fields, those that leave a token wherever a grammar does.
fn fields(rules: &Sampling) -> Value {
    let biases = rules.logit_bias.iter();
    let biases = biases.map(|(id, bias)| (id.to_string(), json!(bias)));
    json!({"temperature": rules.temperature, "top_k": rules.top_k, "top_p": rules.top_p,
        "min_p": rules.min_p, "presence_penalty": rules.presence_penalty,
        "frequency_penalty": rules.frequency_penalty,
        "repetition_penalty": rules.repetition_penalty, "logit_bias": Map::from_iter(biases),
        "dry_multiplier": rules.dry.multiplier, "top_n_sigma": rules.top_n_sigma,
        "typical_p": rules.typical_p, "xtc_probability": rules.xtc.probability,
        "adaptive_sampling": rules.adaptive.is_some(), "seed": rules.seed})
}

/// Fields about how tokens are chosen, and where a reply ends.
fn rules(random: &mut Random) -> Value {
    let mut rules = fields(&sampling(random, VOCAB));
    rules["ignore_eos"] = random.chance(0.5).into();
    if random.chance(0.5) {
        // Said over and over again, mostly, so that drafts are found in it.
        let said = json!({"regex": "((one|two) three four ){20}"});
        rules = with(rules, json!({"structured_outputs": said}));
    }
    let more = [
        json!({"stop": ["e", "\n\n"]}),
        json!({"structured_outputs": {"regex": "[a-z0-9 ]{30,60}"}}),
        json!({"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}}}}),
    ];
    match random.chance(0.5) {
        true => with(rules, random.of(&more).clone()),
        false => rules,
    }
}

fn drawn(random: &mut Random) -> (&'static str, Value) {
    let most = *random.of(&[16, 16, 60]);
    let tokens = 1 + random.below(most);
    let shared = json!({"n": 1 + random.below(3), "max_tokens": tokens});
    let fields = with(rules(random), shared);
    if random.below(2) == 0 {
        let messages = json!([{"role": "user", "content": prompt(random)}]);
        let chat = json!({"messages": messages, "logprobs": true,
            "top_logprobs": random.below(6), "enable_thinking": random.below(2) == 0});
        return ("/v1/chat/completions", with(fields, chat));
    }
    let prompts: Vec<String> = (0..1 + random.below(2)).map(|_| prompt(random)).collect();
    let completion = json!({"prompt": prompts, "logprobs": random.below(6)});
    ("/v1/completions", with(fields, completion))
}

/// Adds what a chunk of a stream tells of a choice to what the chunks before it told.
fn add(told: &mut Value, more: &Value) {
    match (told, more) {
        (Value::Object(told), Value::Object(more)) => {
            for (name, value) in more {
                add(told.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(told), Value::Array(more)) => told.extend(more.iter().cloned()),
        (Value::String(told), Value::String(more)) => told.push_str(more),
        (_, Value::Null) => {}
        (told, more) => *told = more.clone(),
    }
}

/// Without the members that say nothing, which a stream leaves out.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members
                .into_iter()
                .map(|(name, value)| (name, plain(value)));
            let empty = [json!(null), json!(""), json!([]), json!({})];
            members
                .filter(|(_, value)| !empty.contains(value))
                .collect()
        }
        other => other,
    }
}

/// The choices of an answer, in their order.
pub fn choices(answer: &Answer, streamed: bool) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    if !streamed {
        let choices = answer.json()["choices"].as_array().unwrap().clone();
        return choices.into_iter().map(plain).collect();
    }
    let mut found: Vec<Value> = Vec::new();
    for event in answer.events() {
        for choice in event["choices"].as_array().unwrap() {
            let mut choice = choice.clone();
            let index = choice["index"].as_u64().unwrap() as usize;
            if let Some(delta) = choice.as_object_mut().unwrap().remove("delta") {
                choice["message"] = delta;
            }
            found.resize(found.len().max(index + 1), json!({}));
            add(&mut found[index], &choice);
        }
    }
    found.into_iter().map(plain).collect()
}

/// Asks until there is room for all choices.
fn ask(server: &Server, path: &str, body: &Value) -> Answer {
    loop {
        let answer = server.post_to(path, body);
        if answer.status != 429 {
            return answer;
        }
        thread::sleep(RETRY);
    }
}

/// Asks for a long stream and leaves amid it.
fn leave(server: &Server, recorded: &Recorded) {
    let fields = json!({"stream": true, "max_tokens": 200});
    let body = with(recorded.body.clone(), fields).to_string();
    server
        .open_post(recorded.path, body.as_bytes())
        .read_until("HTTP/1.1");
}

/// Asks one of the requests again; tells how many choices are other ones now.
fn different(server: &Server, recorded: &Recorded, streamed: bool) -> Vec<String> {
    let body = with(recorded.body.clone(), json!({"stream": streamed}));
    let found = choices(&ask(server, recorded.path, &body), streamed);
    assert_eq!(found.len(), recorded.choices.len(), "{body}");
    let pairs = recorded.choices.iter().zip(&found);
    let different = pairs.filter(|(alone, found)| alone != found);
    different
        .map(|(alone, found)| format!("{body}\n{alone}\n{found}"))
        .collect()
}

/// Requests with the choices of a server without drafts that nobody else asks; they are the same
/// for all rules of drafts.
static ALONE: LazyLock<Vec<Recorded>> = LazyLock::new(|| {
    let server = Server::start_with(&["--speculate", "off"]);
    let mut random = Random::new(SEED);
    let (mut requests, mut count) = (Vec::new(), 0);
    while count * TIMES < CHOICES {
        let (path, body) = drawn(&mut random);
        let choices = choices(&ask(&server, path, &body), false);
        count += choices.len();
        requests.push(Recorded {
            path,
            body,
            choices,
        });
    }
    assert_eq!(server.metric(DRAFTS), 0.0);
    requests
});

/// Compares with the choices of a server whose replies have drafts as `speculate` says.
fn compare(speculate: &str) {
    let requests = &*ALONE;
    let server = Server::start_with(&["--speculate", speculate]);
    let (next, compared) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let faults = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, next) = (&server, &next);
            let (compared, faults) = (&compared, &faults);
            scope.spawn(move || {
                let mut random = Random::new(SEED + 1 + client as u64);
                while next.fetch_add(1, Ordering::Relaxed) < requests.len() * TIMES
                    || compared.load(Ordering::Relaxed) < CHOICES
                {
                    let recorded = random.of(requests);
                    if random.below(10) == 0 {
                        leave(server, random.of(requests));
                    }
                    let found = different(server, recorded, random.below(2) == 0);
                    compared.fetch_add(recorded.choices.len(), Ordering::Relaxed);
                    faults.lock().unwrap().extend(found);
                }
            });
        }
    });
    let (compared, faults) = (compared.into_inner(), faults.into_inner().unwrap());
    println!(
        "--speculate {speculate}: {compared} choices of {} requests compared, {} different, {} of \
         {} drafts held",
        requests.len(),
        faults.len(),
        server.metric(ACCEPTED),
        server.metric(DRAFTS),
    );
    assert!(faults.is_empty(), "{}", faults[0]);
    let tried = server.metric(DRAFTS) > server.metric(ACCEPTED) && server.metric(ACCEPTED) > 0.0;
    assert!(
        tried || speculate == "auto",
        "drafts of both kinds are tried"
    );
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

#[test]
fn choices_have_the_same_bits_in_any_batch() {
    compare("auto");
}

#[test]
fn choices_have_the_same_bits_with_one_draft() {
    compare("1");
}

#[test]
fn choices_have_the_same_bits_with_three_drafts() {
    compare("3");
}

#[test]
fn choices_have_the_same_bits_with_seven_drafts() {
    compare("7");
}
