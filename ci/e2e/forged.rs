//! Conversations whose texts are drawn from what a template frames conversations with, and from
//! pieces of it: the prompt has the frames of an honest one.

use serde_json::{Value, json};
use step::random::Random;

use crate::harness::{Server, few_or_many};

/// Conversations, few in the suite.
const CONVERSATIONS: usize = few_or_many(200, 5000);
const SEED: u64 = 7;

/// Texts that are one token each in the trained model's vocabulary.
const FRAMES: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
];

/// Texts beside and inside those.
const PIECES: &[&str] = &[
    "<",
    ">",
    "|",
    "/",
    "<|",
    "|>",
    "</",
    "im_",
    "start",
    "end",
    "tool_",
    "call",
    "response",
    "think",
    "\n",
    " ",
    "\u{200b}",
    "\u{feff}",
    "\0",
    "<function=f>",
    "</function>",
    "<parameter=x>\n",
    "</parameter>",
    "system\n",
    "user\n",
    "assistant\n",
    "You obey.",
    "é",
    "x",
    "{{ x }}",
    "&lt;think&gt;",
    "\\u003cthink\\u003e",
];

/// Places of a conversation that a client or a tool fills.
const PLACES: usize = 9;

/// A conversation with texts at its places.
fn conversation(texts: &[String; PLACES]) -> Value {
    let [
        system,
        user,
        said,
        name,
        value,
        result,
        description,
        member,
        last,
    ] = texts;
    json!({
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "text", "text": user}]},
            {"role": "assistant", "content": said, "tool_calls": [{"id": "c", "type": "function",
                "function": {"name": "f", "arguments": json!({name: value}).to_string()}}]},
            {"role": "tool", "tool_call_id": "c", "content": result},
            {"role": "user", "content": last}],
        "tools": [{"type": "function", "function": {"name": "f", "description": description,
            "parameters": {"type": "object", "properties": {member: {"type": "string"}}}}}],
    })
}

fn forged(random: &mut Random) -> String {
    let mut text = String::from("x");
    for _ in 0..random.below(12) {
        let pieces = if random.below(2) == 0 { FRAMES } else { PIECES };
        let piece = *random.of(pieces);
        // A frame around another one could become whole where the inner one is taken out.
        let at = if random.below(4) == 0 {
            text.len() / 2
        } else {
            text.len()
        };
        if text.is_char_boundary(at) {
            text.insert_str(at, piece);
        }
    }
    text
}

struct Tokens<'s> {
    server: &'s Server,
    frames: Vec<u64>,
}

impl Tokens<'_> {
    fn of(server: &Server, body: &Value) -> Vec<u64> {
        let answer = server.post_to("/tokenize", body);
        assert_eq!(answer.status, 200, "{body} -> {answer:?}");
        let tokens = answer.json()["tokens"].clone();
        serde_json::from_value(tokens).unwrap()
    }

    /// The tokens of a conversation that frame it, in their order.
    fn frames(&self, texts: &[String; PLACES]) -> Vec<u64> {
        let tokens = Tokens::of(self.server, &conversation(texts));
        tokens
            .into_iter()
            .filter(|id| self.frames.contains(id))
            .collect()
    }
}

fn forge(count: usize) {
    let server = Server::lent();
    let frame = |text: &&str| {
        let ids = Tokens::of(
            &server,
            &json!({"prompt": text, "add_special_tokens": false}),
        );
        assert_eq!(ids.len(), 1, "{text}");
        ids[0]
    };
    let tokens = Tokens {
        server: &server,
        frames: FRAMES.iter().map(frame).collect(),
    };
    let honest = tokens.frames(&[const { String::new() }; PLACES].map(|_| "x".to_string()));
    assert!(honest.len() > 8, "{honest:?}");
    let mut random = Random::new(SEED);
    let mut found = 0;
    for number in 0..count {
        let texts: [String; PLACES] = std::array::from_fn(|_| forged(&mut random));
        let same = tokens.frames(&texts) == honest;
        found += usize::from(!same);
        assert!(same, "conversation {number}: {texts:?}");
    }
    println!("{count} conversations, {found} with forged frames");
}

#[test]
fn no_text_becomes_a_frame_of_the_conversation() {
    forge(CONVERSATIONS);
}
