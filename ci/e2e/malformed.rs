//! A thousand malformed requests from a seeded generator: each gets a 4xx that names the field at
//! fault, or a valid answer where nothing is wrong; and a stream beside them is not slowed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use step::random::Random;

use crate::harness::{Answer, Server, question, with};

const REQUESTS: usize = 1000;
/// Clients that send them at once.
const CLIENTS: usize = 4;
const SEED: u64 = 20_261_121;

/// Fields with their kinds of right values, to know what is wrong for them.
const FIELDS: &[(&str, Kind)] = &[
    ("temperature", Kind::Number),
    ("top_p", Kind::Number),
    ("min_p", Kind::Number),
    ("presence_penalty", Kind::Number),
    ("frequency_penalty", Kind::Number),
    ("repetition_penalty", Kind::Number),
    ("top_k", Kind::Integer),
    ("seed", Kind::Integer),
    ("max_tokens", Kind::Integer),
    ("max_completion_tokens", Kind::Integer),
    ("n", Kind::Integer),
    ("top_logprobs", Kind::Integer),
    ("stream", Kind::Boolean),
    ("logprobs", Kind::Boolean),
    ("ignore_eos", Kind::Boolean),
    ("parallel_tool_calls", Kind::Boolean),
    ("stop", Kind::Strings),
    ("stop_token_ids", Kind::List),
    ("tools", Kind::List),
    ("messages", Kind::List),
    ("logit_bias", Kind::Object),
    ("stream_options", Kind::Object),
    ("response_format", Kind::Object),
    ("structured_outputs", Kind::Object),
    ("guided_regex", Kind::Strings),
    ("guided_grammar", Kind::Strings),
    ("guided_choice", Kind::List),
    ("regex", Kind::Strings),
    ("chat_template_kwargs", Kind::Object),
    ("tool_choice", Kind::Choice),
    ("reasoning_effort", Kind::Choice),
    ("thinking_budget", Kind::Integer),
    ("reasoning_format", Kind::Choice),
    ("model", Kind::Strings),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Number,
    Integer,
    Boolean,
    Strings,
    List,
    Object,
    Choice,
}

/// Answer that must come back.
#[derive(Debug)]
enum Expected {
    /// A 4xx whose `param` begins with this.
    Field(String),
    /// A 4xx; no field is at fault.
    Refused,
    /// An answer.
    Valid,
}

struct Case {
    body: Vec<u8>,
    expected: Expected,
}

fn field(name: &str, value: Value) -> Case {
    let body = with(question("Hi", 1), json!({name: value}));
    Case {
        body: body.to_string().into_bytes(),
        expected: Expected::Field(name.to_string()),
    }
}

/// A value of a type that the field does not take.
fn wrong_type(random: &mut Random) -> Case {
    let (name, kind) = *random.of(FIELDS);
    let values = [
        json!("text"),
        json!(true),
        json!(0.5),
        json!(-7),
        json!([{}]),
        json!({"x": 1}),
    ];
    let fits = |value: &Value| match kind {
        Kind::Number => value.is_number(),
        Kind::Integer => value.is_i64(),
        Kind::Boolean => value.is_boolean(),
        Kind::Strings => value.is_string(),
        Kind::List => false,
        Kind::Object => value.is_object(),
        Kind::Choice => false,
    };
    let wrong: Vec<&Value> = values.iter().filter(|value| !fits(value)).collect();
    let value = (*random.of(&wrong)).clone();
    field(name, value)
}

/// A number out of the field's range or beyond what an integer holds.
fn wrong_number(random: &mut Random) -> Case {
    let numbers: Vec<_> = FIELDS
        .iter()
        .filter(|(_, kind)| matches!(kind, Kind::Number | Kind::Integer))
        .collect();
    let (name, kind) = **random.of(&numbers);
    let wild = [
        "1e308",
        "-1e308",
        "9223372036854775808",
        "18446744073709551616",
        "-1e-400",
    ];
    let mut text = *random.of(&wild);
    if kind == Kind::Number && text == "-1e-400" {
        text = "123456789012345678901234567890";
    }
    let body = with(question("Hi", 1), json!({name: "@"}))
        .to_string()
        .replace("\"@\"", text);
    Case {
        body: body.into_bytes(),
        expected: Expected::Field(name.to_string()),
    }
}

fn messages(at: &str, value: Value) -> Case {
    let body = with(question("Hi", 1), json!({"messages": value}));
    Case {
        body: body.to_string().into_bytes(),
        expected: Expected::Field(at.to_string()),
    }
}

/// Messages with something wrong in them.
fn wrong_message(random: &mut Random) -> Case {
    let fine = json!({"role": "user", "content": "Hi"});
    match random.below(10) {
        0 => messages("messages", json!([])),
        1 => messages("messages[1]", json!([fine, "text"])),
        2 => messages("messages[1].role", json!([fine, {"content": "x"}])),
        3 => messages(
            "messages[1].role",
            json!([fine, {"role": 5, "content": "x"}]),
        ),
        4 => messages(
            "messages[0].role",
            json!([{"role": "wizard", "content": "x"}]),
        ),
        5 => messages("messages[1].content", json!([fine, {"role": "user"}])),
        6 => messages(
            "messages[0].content",
            json!([{"role": "user", "content": 7}]),
        ),
        7 => messages(
            "messages[0].content[1].type",
            json!([{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]),
        ),
        8 => messages(
            "messages[1].tool_calls[0].function.name",
            json!([fine, {"role": "assistant",
            "tool_calls": [{"function": {"name": ["f"]}}]}]),
        ),
        _ => messages(
            "messages[0].content[0].text",
            json!([{"role": "user", "content": [
            {"type": "text", "text": null}]}]),
        ),
    }
}

/// A schema that calls of a strict tool cannot obey, or that is none.
fn wrong_parameters(random: &mut Random) -> Value {
    let property = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    match random.below(8) {
        0 => json!({"type": "strange"}),
        1 => json!({"type": "object", "properties": [1]}),
        2 => json!({"type": "object", "required": 5}),
        3 => json!({"$ref": "#/nowhere"}),
        4 => property(json!({"type": "strange"})),
        5 => property(json!({"type": "string", "pattern": "("})),
        6 => property(json!({"enum": 3})),
        _ => property(json!({"type": "integer", "minimum": "x"})),
    }
}

/// Tools with something wrong in them.
fn wrong_tool(random: &mut Random) -> Case {
    let mut case = match random.below(6) {
        0 => field("tools", json!([{"type": "function"}])),
        1 => field("tools", json!([{"type": "web_search"}])),
        2 => field(
            "tools",
            json!([{"type": "function", "function": {"name": "a b"}}]),
        ),
        3 => field(
            "tools",
            json!([{"type": "function", "function": {"name": "f",
            "parameters": "none"}}]),
        ),
        4 => field(
            "tools",
            json!([{"type": "function", "function": {"name": "f", "strict": true,
            "parameters": wrong_parameters(random)}}]),
        ),
        _ => field(
            "tools",
            json!(vec![
                json!({"type": "function", "function": {"name": "f"}});
                2
            ]),
        ),
    };
    if random.below(3) == 0 {
        case = field("tool_choice", json!("required"));
    }
    case
}

/// Something to obey that nothing can obey, or that nobody can read.
fn wrong_grammar(random: &mut Random) -> Case {
    let mangled = |random: &mut Random| -> String {
        let parts = [
            "(", ")*", "[", "{9,", "\\", "start:", " | ", "\"", "/", "%json {", "~", "é",
        ];
        (0..1 + random.below(12))
            .map(|_| *random.of(&parts))
            .collect()
    };
    match random.below(9) {
        0 => field("response_format", json!({"type": "json_schema"})),
        1 => field("response_format", json!({"type": "xml"})),
        2 => field("structured_outputs", json!({"json": "{"})),
        3 => field(
            "structured_outputs",
            json!({"regex": "a", "json_object": true}),
        ),
        4 => field("guided_json", json!({"type": "strange"})),
        5 => field("guided_json", json!({"$ref": "#/nowhere"})),
        6 => field("guided_choice", json!([])),
        7 => field(
            "guided_grammar",
            json!(format!("start: missing {}", mangled(random))),
        ),
        _ => {
            let open = format!("({}", mangled(random).replace(')', ""));
            field("guided_regex", json!(open))
        }
    }
}

/// A whole request cut off somewhere.
fn truncated(random: &mut Random) -> Case {
    let mut body = question("Hello there", 1).to_string().into_bytes();
    let kept = random.below(body.len());
    body.truncate(kept);
    Case {
        body,
        expected: Expected::Refused,
    }
}

/// Bytes that are no UTF-8 in a place where any character could be.
fn wrong_encoding(random: &mut Random) -> Case {
    let bad: [&[u8]; 5] = [
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
        b"\xe2\x82",
    ];
    let text = question("Hi", 1).to_string();
    let at = text.find("Hi").unwrap();
    let body = [
        &text.as_bytes()[..at],
        *random.of(&bad),
        &text.as_bytes()[at..],
    ]
    .concat();
    Case {
        body,
        expected: Expected::Refused,
    }
}

/// Characters that JSON does not allow, or not so.
fn wrong_json(random: &mut Random) -> Case {
    let text = question("Hi", 1).to_string();
    let body = match random.below(8) {
        0 => text.replace("Hi", "\\ud800"),
        1 => text.replace("Hi", "a\nb"),
        2 => text.replace(":0", ":NaN"),
        3 => text.replace(":0", ":1e999"),
        4 => text.replace(":0", ":01"),
        5 => format!("{text}{text}"),
        6 => text.replace('"', "'"),
        _ => text.replace("}]", "},]"),
    };
    Case {
        body: body.into_bytes(),
        expected: Expected::Refused,
    }
}

/// A key that stands twice, at some depth.
fn doubled_key(random: &mut Random) -> Case {
    let text = question("Hi", 1).to_string();
    let body = match random.below(3) {
        0 => text.replacen('{', "{\"temperature\":1,", 1),
        1 => text.replace("\"role\":", "\"role\":\"system\",\"role\":"),
        _ => text.replacen('{', "{\"x\":{\"y\":{\"z\":1,\"z\":1}},", 1),
    };
    Case {
        body: body.into_bytes(),
        expected: Expected::Refused,
    }
}

/// Brackets, up to a million of them.
fn deep(random: &mut Random) -> Case {
    let depth = *random.of(&[65, 128, 1000, 100_000, 1_000_000]);
    let opening = *random.of(&["[", "{\"a\":"]);
    let body = format!("{{\"x\":{}", opening.repeat(depth));
    Case {
        body: body.into_bytes(),
        expected: Expected::Refused,
    }
}

fn garbage(random: &mut Random) -> Case {
    let length = random.below(300);
    let mut body: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
    body.insert(0, b'#');
    Case {
        body,
        expected: Expected::Refused,
    }
}

/// A body that is no JSON object of any kind, whatever the route.
pub fn broken(random: &mut Random) -> Vec<u8> {
    const MAKERS: [fn(&mut Random) -> Case; 6] = [
        truncated,
        wrong_encoding,
        wrong_json,
        doubled_key,
        garbage,
        deep,
    ];
    random.of(&MAKERS)(random).body
}

/// Names that no server knows, and fields that are known to change nothing.
fn unknown_field(random: &mut Random) -> Case {
    let name = match random.below(4) {
        0 => "metadata".to_string(),
        1 => "user".to_string(),
        2 => "é\u{0}\u{202e}".to_string(),
        _ => format!("x_{}", random.bits()),
    };
    let value = random
        .of(&[json!(1), json!("a"), json!({"b": [null]}), json!(1e300)])
        .clone();
    let body = with(question("Hi", 1), json!({name: value}));
    Case {
        body: body.to_string().into_bytes(),
        expected: Expected::Valid,
    }
}

/// Texts that are strange and allowed.
fn strange_text(random: &mut Random) -> Case {
    let text: String = (0..random.below(40))
        .map(|_| char::from_u32((random.bits() % 0x11_0000) as u32).unwrap_or('\u{fffd}'))
        .collect();
    let tags = [
        "",
        "<|im_end|>",
        "</think>",
        "<tool_call>",
        "{{ x }}",
        "{% for %}",
        "\0",
    ];
    let content = format!("{}{text}", random.of(&tags));
    let body = question(&content, 1).to_string();
    Case {
        body: body.into_bytes(),
        expected: Expected::Valid,
    }
}

/// Fields that are known and not served.
fn not_served(random: &mut Random) -> Case {
    let fields = [
        ("functions", json!([{"name": "f"}])),
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("ebnf", json!("root ::= (")),
        ("chat_template", json!("{{ x }}")),
        ("min_new_tokens", json!(3)),
        ("audio", json!({"voice": "a"})),
        ("grammar", json!("root ::= missing")),
        ("prompt_logprobs", json!(21)),
    ];
    let (name, value) = random.of(&fields).clone();
    field(name, value)
}

fn case(random: &mut Random) -> Case {
    const MAKERS: [fn(&mut Random) -> Case; 14] = [
        wrong_type,
        wrong_type,
        wrong_number,
        wrong_message,
        wrong_tool,
        wrong_grammar,
        truncated,
        wrong_encoding,
        wrong_json,
        doubled_key,
        garbage,
        unknown_field,
        strange_text,
        not_served,
    ];
    // Few, since each is up to six million bytes.
    if random.below(50) == 0 {
        deep(random)
    } else {
        random.of(&MAKERS)(random)
    }
}

/// Marks of the machine that no answer may hold: addresses, lines of source, folders.
const LEAKS: [&str; 4] = ["0x", ".rs:", "panicked", env!("CARGO_MANIFEST_DIR")];

fn check(number: usize, case: &Case, answer: &Answer) {
    let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(300)]).to_string();
    let context = format!("case {number}: {shown} -> {answer:?}");
    let sent = String::from_utf8_lossy(&case.body);
    let mut leaks = LEAKS.iter().filter(|leak| !sent.contains(**leak));
    assert!(leaks.all(|leak| !answer.body.contains(leak)), "{context}");
    match &case.expected {
        Expected::Valid => assert_eq!(answer.status, 200, "{context}"),
        Expected::Refused => {
            assert!((400..500).contains(&answer.status), "{context}");
            answer.error();
        }
        Expected::Field(name) => {
            assert!((400..500).contains(&answer.status), "{context}");
            let param = answer.error()["param"].as_str().map(str::to_string);
            assert!(
                param.is_some_and(|param| param.starts_with(name.as_str())),
                "{context}"
            );
        }
    }
}

/// Gaps between the pieces of a streamed reply, sorted.
fn gaps(server: &Server) -> Vec<Duration> {
    let pieces = server.reply("Go on.", 200).pieces;
    let pairs = pieces.windows(2);
    let mut gaps: Vec<_> = pairs.map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort();
    gaps
}

fn at(gaps: &[Duration], share: f64) -> Duration {
    gaps[((gaps.len() - 1) as f64 * share) as usize]
}

#[test]
fn a_thousand_malformed_requests_are_told_what_is_wrong() {
    let server = Server::lent();
    let mut random = Random::new(SEED);
    let cases: Vec<Case> = (0..REQUESTS).map(|_| case(&mut random)).collect();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, cases) = (&server, &cases);
            scope.spawn(move || {
                for (number, case) in cases.iter().enumerate().skip(client).step_by(CLIENTS) {
                    let sent = Instant::now();
                    check(number, case, &server.post(&case.body).answer());
                    // A valid one waits for the model, a refused one for nothing.
                    let prompt = matches!(case.expected, Expected::Valid)
                        || sent.elapsed() < Duration::from_secs(10);
                    assert!(prompt, "case {number} took {:?}", sent.elapsed());
                }
            });
        }
    });
    assert_eq!(server.get("/health").status, 200);
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

/// Fields of the completions route with values that are wrong for them, and the path at fault.
fn wrong_completion(random: &mut Random) -> (Value, String) {
    let cases = [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt[0]"),
        (json!({"prompt": {"text": "a"}}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": ["a", 1]}), "prompt[1]"),
        (json!({"prompt": [[1, 2], [3, -1]]}), "prompt[1][1]"),
        (json!({"prompt": [1e9]}), "prompt[0]"),
        (json!({"prompt": [4_294_967_296_u64]}), "prompt[0]"),
        (json!({"prompt": vec!["a"; 1000]}), "prompt"),
        (json!({"prompt": vec![1; 5000]}), "prompt"),
        (json!({"prompt": "x ".repeat(200_000)}), "prompt"),
        (json!({"logprobs": -1}), "logprobs"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (
            json!({"prompt_logprobs": 0, "stream": true}),
            "prompt_logprobs",
        ),
        (json!({"echo": "yes"}), "echo"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"n": 0}), "n"),
        (json!({"stop": [5]}), "stop[0]"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"model": 4}), "model"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
        (json!({"add_special_tokens": 1}), "add_special_tokens"),
        (json!({"guided_json": {"type": "strange"}}), "guided_json"),
    ];
    let (fields, at) = random.of(&cases).clone();
    (
        with(json!({"prompt": "a", "max_tokens": 1}), fields),
        at.to_string(),
    )
}

/// Wrong requests to the tokenizer's routes.
fn wrong_tokens(random: &mut Random) -> (&'static str, Value, String) {
    let cases = [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": ["a"]}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "a", "add_special_tokens": 0}),
            "add_special_tokens",
        ),
        (
            "/tokenize",
            json!({"prompt": "a", "return_token_strs": 0}),
            "return_token_strs",
        ),
        ("/tokenize", json!({"messages": "hi"}), "messages"),
        ("/tokenize", json!({"messages": []}), "messages"),
        (
            "/tokenize",
            json!({"messages": [{"role": 5}]}),
            "messages[0].role",
        ),
        (
            "/tokenize",
            json!({"prompt": "a", "chat_template": "{{ x }}"}),
            "chat_template",
        ),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": 5}), "tokens"),
        ("/detokenize", json!({"tokens": [1, "2"]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [1, 1e9]}), "tokens[1]"),
    ];
    let (path, body, at) = random.of(&cases).clone();
    (path, body, at.to_string())
}

#[test]
fn malformed_requests_of_other_routes_are_told_what_is_wrong() {
    let server = Server::lent();
    let mut random = Random::new(SEED + 2);
    for number in 0..300 {
        let (path, body, at) = match random.below(3) {
            0 => wrong_tokens(&mut random),
            _ => {
                let (body, at) = wrong_completion(&mut random);
                ("/v1/completions", body, at)
            }
        };
        let answer = server.post_to(path, &body);
        let shown: String = body.to_string().chars().take(200).collect();
        let context = format!("case {number}: {path} {shown} -> {answer:?}");
        assert!((400..500).contains(&answer.status), "{context}");
        assert_eq!(answer.error()["param"], at, "{context}");
        let mut cut = body.to_string().into_bytes();
        cut.truncate(random.below(cut.len()));
        let answer = server.open_post(path, &cut).answer();
        assert_eq!(answer.status, 400, "case {number}, cut: {answer:?}");
    }
    assert_eq!(server.get("/health").status, 200);
    server.wait_for_metric("atlas_kv_pages_used", 0.0);
}

/// Bounds for a machine that runs other tests as well: a stream that waited for a malformed
/// request of a million brackets, or for a lock, would miss them.
#[test]
fn a_stream_beside_malformed_requests_is_not_slowed() {
    let server = Server::lent();
    let alone = gaps(&server);
    let done = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(SEED + 1);
            while !done.load(Ordering::Relaxed) {
                let case = case(&mut random);
                if !matches!(case.expected, Expected::Valid) {
                    server.post(&case.body).answer();
                }
            }
        });
        let beside = gaps(&server);
        done.store(true, Ordering::Relaxed);
        beside
    });
    for (share, factor, grace) in [(0.5, 3, 5), (0.99, 5, 50)] {
        let bound = at(&alone, share) * factor + Duration::from_millis(grace);
        let found = at(&beside, share);
        assert!(
            found <= bound,
            "{share}: {found:?} beside, {:?} alone",
            at(&alone, share)
        );
    }
}
