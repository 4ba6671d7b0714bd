//! Start of a reply: a message of its own, or the continuation of the last message.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Object;

/// Text at the end of the prompt that a reply continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Header of a new message of the assistant.
    #[default]
    Turn,
    /// End of the last message, without a header for the reply.
    Messages,
    /// Words of the last message, the assistant's; holds the field that asks for the continuation.
    Amid(String),
}

impl Start {
    /// Reads `continue_final_message` and `add_generation_prompt`.
    ///
    /// # Errors
    /// When both are true.
    pub fn read(object: &Object<'_>) -> Result<Start, ApiError> {
        const GOES_ON: &str = "continue_final_message";
        let goes_on = object.boolean(GOES_ON, false)?;
        let begins = object.boolean("add_generation_prompt", !goes_on)?;
        match (goes_on, begins) {
            (true, true) => {
                let problem = "cannot be true where add_generation_prompt is true; send one";
                Err(ApiError::field(GOES_ON, problem))
            }
            (true, false) => Ok(Start::Amid(object.path_of(GOES_ON))),
            (false, true) => Ok(Start::Turn),
            (false, false) => Ok(Start::Messages),
        }
    }

    pub fn is_amid(&self) -> bool {
        matches!(self, Start::Amid(_))
    }

    /// Text of the message that the reply continues; None if the reply is a new message.
    pub fn words(&self, messages: &[Value]) -> Option<String> {
        let content = &messages.last().filter(|_| self.is_amid())?["content"];
        let parts = content.as_array().into_iter().flatten();
        let parts = parts.filter_map(|part| part["text"].as_str());
        let text = content.as_str().map(str::to_string);
        Some(text.unwrap_or_else(|| parts.collect()))
    }

    /// Checks that the reply can continue the last of `messages`, if the request asks for that.
    ///
    /// # Errors
    /// Names the field that asks for the continuation.
    pub fn check(&self, messages: &[Value], thinks: bool) -> Result<(), ApiError> {
        let Start::Amid(path) = self else {
            return Ok(());
        };
        let last = messages.last().unwrap_or(&Value::Null);
        let problem = if last["role"] != "assistant" {
            "the last message must be the assistant's, or there is nothing to go on with"
        } else if last.get("tool_calls").is_some() {
            "a message with calls is complete; send their results behind it"
        } else if thinks {
            "a reply that goes on with a message cannot think before it; turn thinking off"
        } else {
            return Ok(());
        };
        Err(ApiError::field(path.clone(), problem))
    }
}
