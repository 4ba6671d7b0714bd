//! From conversations to prompts.

use std::sync::LazyLock;

use ::model::target::FACTS;
use http::chat::request::ChatRequest;
use http::json as body;
use serde_json::{Value, json};
use step::executor::TokenId;
use text::template::Conversation;

use super::choice::Choices;
use super::model;

/// Tokens that a prompt has to stay below.
const PROMPT_TOKENS: usize = 512;

/// A conversation, and how many places a client or a tool fills in it.
#[derive(Clone, Copy)]
struct Shape {
    agent: bool,
    places: usize,
}

const SHAPES: [Shape; 2] = [
    Shape {
        agent: false,
        places: 3,
    },
    Shape {
        agent: true,
        places: 8,
    },
];

impl Shape {
    /// The places of `chosen` hold `text`, the others a plain letter.
    fn conversation(self, chosen: &[usize], text: &str) -> Conversation {
        let at = |place: usize| match chosen.contains(&place) {
            true => text,
            false => "x",
        };
        let user = json!({"role": "user", "content": at(0)});
        let mut said = json!({"role": "assistant", "content": at(1), "reasoning_content": at(2)});
        if !self.agent {
            let next = json!({"role": "user", "content": "x"});
            return conversation(vec![user, said, next], vec![]);
        }
        let arguments = json!({at(3): at(4)});
        said["tool_calls"] = json!([{"type": "function", "function": {"name": "f",
            "arguments": arguments}}]);
        let system = json!({"role": "system", "content": at(5)});
        let result = json!({"role": "tool", "content": at(6)});
        let tool = json!({"type": "function", "function": {"name": "f", "description": at(7)}});
        conversation(vec![system, user, said, result], vec![tool])
    }
}

fn conversation(messages: Vec<Value>, tools: Vec<Value>) -> Conversation {
    Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        enable_thinking: true,
        ..Conversation::default()
    }
}

fn tokens(conversation: &Conversation) -> Option<Vec<TokenId>> {
    let prompt = model::chat().prompt(conversation, 0, usize::MAX);
    prompt.map(|prompt| prompt.tokens).ok()
}

fn controls(tokens: Vec<TokenId>) -> Vec<TokenId> {
    let tokenizer = &model::chat().tokenizer;
    let controls = tokens
        .into_iter()
        .filter(|&id| tokenizer.control().holds(id));
    controls.collect()
}

/// Whatever is said in a conversation, it has the turns that the template gives it; and a text
/// reads the same when it is encoded again from what was remembered. The head chooses which of the
/// two is looked at, the conversation, and two places of the text in it: what stands in two of them
/// could become a token between them.
pub fn forged_turns(input: &[u8]) {
    /// The control tokens of each shape where nothing is forged.
    static HONEST: LazyLock<[Vec<TokenId>; SHAPES.len()]> = LazyLock::new(|| {
        SHAPES.map(|shape| controls(tokens(&shape.conversation(&[], "")).expect("a prompt")))
    });
    let mut choices = Choices::of(input);
    let (again, shape) = (choices.flag(), choices.below(SHAPES.len()));
    let places = SHAPES[shape].places;
    let chosen = [choices.below(places), choices.below(places)];
    let text = String::from_utf8_lossy(choices.rest());
    if again {
        let tokenizer = &model::chat().tokenizer;
        let encoded = || tokenizer.encode_at_most(&text, false, usize::MAX, 0).ok();
        assert_eq!(encoded(), encoded());
    } else if let Some(found) = tokens(&SHAPES[shape].conversation(&chosen, &text)) {
        assert_eq!(controls(found), HONEST[shape]);
    }
}

/// A conversation is refused or becomes a prompt below the limit.
pub fn template(bytes: &[u8]) {
    let Ok(value) = body::parse(bytes) else {
        return;
    };
    let Ok(request) = ChatRequest::parse(&value, &FACTS) else {
        return;
    };
    let model = model::chat();
    let conversation = Conversation {
        enable_thinking: request.ask.thinking,
        ..conversation(
            model.place_system_messages(request.ask.messages),
            request.ask.tools,
        )
    };
    if let Ok(prompt) = model.prompt(&conversation, 0, PROMPT_TOKENS) {
        assert!(!prompt.tokens.is_empty() && prompt.tokens.len() < PROMPT_TOKENS);
    }
}
