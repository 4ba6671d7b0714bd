//! Abilities of a template, found by rendering conversations when it is loaded.

use std::borrow::Cow;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Conversation, Template, TemplateError};

/// Text to look for in renderings, which no template contains.
const SAID: &str = "heliotrope marmalade";

/// Kinds of conversations that a template supports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Abilities {
    /// Whether a system message may begin the conversation, and is shown.
    pub system: bool,
    /// Whether a system message may come later, and is shown.
    pub late_system: bool,
    /// Whether tools may be offered, called and answered.
    pub tools: bool,
    pub call_ids: CallIds,
    /// Whether contents must be lists of parts, since a plain string is not rendered.
    pub parts: bool,
}

/// Form of the ids of tool calls that a template accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallIds {
    /// Any id.
    #[default]
    Any,
    /// Nine letters and digits, as Mistral's templates require.
    Nine,
}

impl CallIds {
    /// `id` if it has this form, else an id derived from it: the same each time, so that calls and
    /// their results still share an id.
    pub fn shaped(self, id: &str) -> Cow<'_, str> {
        const LENGTH: usize = 9;
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let fits = id.len() == LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if self == CallIds::Any || fits {
            return Cow::Borrowed(id);
        }
        let digest = Sha256::digest(id.as_bytes());
        let digits = digest.iter().take(LENGTH);
        let digits = digits.map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]));
        Cow::Owned(digits.collect())
    }

    /// An id of this form, for the trial.
    fn example(self) -> &'static str {
        match self {
            CallIds::Any => "call_0123456789abcdef01234567",
            CallIds::Nine => "a1B2c3D4e",
        }
    }
}

/// Abilities of a template, found by rendering conversations of every kind.
///
/// # Errors
/// The template's own words, when even a user's question is refused.
pub(super) fn abilities(template: &mut Template) -> Result<Abilities, TemplateError> {
    let user = json!({"role": "user", "content": SAID});
    let said = json!({"role": "assistant", "content": "Hello"});
    let greeting = json!({"role": "user", "content": "Hi"});
    let system = json!({"role": "system", "content": SAID});
    let takes = |template: &Template, messages: &[&Value]| {
        let messages = messages.iter().map(|message| (*message).clone()).collect();
        template.render(&conversation(messages, Vec::new()))
    };
    let shows = |template: &Template, messages: &[&Value]| {
        takes(template, messages).is_ok_and(|text| text.contains(SAID))
    };
    if !shows(template, &[&user]) {
        template.abilities.parts = true;
        template.abilities.parts = shows(template, &[&user]);
    }
    // A template that needs a system message is tried with one.
    takes(template, &[&user])
        .or_else(|error| takes(template, &[&system, &user]).map_err(|_| error))?;
    let call_ids = [CallIds::Any, CallIds::Nine]
        .into_iter()
        .find(|ids| shows_calls(template, *ids));
    Ok(Abilities {
        system: shows(template, &[&system, &greeting]),
        late_system: shows(template, &[&greeting, &said, &system, &greeting])
            || shows(template, &[&greeting, &system, &greeting]),
        tools: call_ids.is_some(),
        call_ids: call_ids.unwrap_or_default(),
        parts: template.abilities.parts,
    })
}

/// Renderings of a call and its result, with thinking and without.
pub(super) fn of_everything(template: &Template) -> String {
    let (messages, tools) = called(template.abilities.call_ids);
    let rendered = [true, false].map(|enable_thinking| {
        template.render(&Conversation {
            enable_thinking,
            ..conversation(messages.clone(), tools.clone())
        })
    });
    rendered.into_iter().flatten().collect()
}

/// Whether a tool may be offered, called with ids of this form, and answered, and all is shown.
fn shows_calls(template: &Template, ids: CallIds) -> bool {
    let (messages, tools) = called(ids);
    let rendered = template.render(&conversation(messages, tools));
    rendered.is_ok_and(|text| text.matches(SAID).count() >= 2 && text.contains("Paris"))
}

/// Messages with a call and its result, and the called tool.
fn called(ids: CallIds) -> (Vec<Value>, Vec<Value>) {
    let id = ids.example();
    let messages = vec![
        json!({"role": "user", "content": "Weather?"}),
        json!({"role": "assistant", "content": "", "reasoning_content": "I look.",
            "tool_calls": [{"id": id, "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Paris", "days": 2}}}]}),
        json!({"role": "tool", "tool_call_id": id, "name": "weather", "content": SAID}),
    ];
    let tool = json!({"type": "function", "function": {"name": "weather", "description": SAID,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    (messages, vec![tool])
}

fn conversation(messages: Vec<Value>, tools: Vec<Value>) -> Conversation {
    Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        enable_thinking: false,
        ..Conversation::default()
    }
}
