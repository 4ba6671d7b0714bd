//! How often the multi-token-prediction layer guesses the next token, over given conversations.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::engine::request::TokenId;
use crate::model::{Acceptance, acceptance};
use crate::target;
use crate::text::chat::ChatModel;
use crate::text::template::Conversation;
use crate::weights::Progress;

use super::boot::{self, Files};
use super::{Exit, Failure};

/// Largest file of conversations that is read.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Tokens of each reply at most.
const REPLY_TOKENS: usize = 64;

/// Answers every conversation of `file` greedily and prints the share of right first drafts.
/// `file` has a JSON object per line, with `messages` and perhaps `tools`.
///
/// # Errors
/// Names the line that cannot be used, or what the model lacks.
pub fn run(file: &Path, weights: Option<&Path>) -> Result<(), Failure> {
    if target::MTP_LAYERS == 0 {
        let message = format!("{} has no multi-token-prediction layer", target::MODEL_ID);
        return Err(Failure::new(Exit::Config, message));
    }
    boot::require_serving()?;
    let files = Files::locate(weights)?;
    let prompts = prompts(&boot::chat_model(&files)?, file)?;
    let progress = Arc::new(Progress::default());
    let (mut runner, _) =
        boot::runner(&files, &progress).map_err(|error| boot::start_failure(error.as_ref()))?;
    let found = acceptance(&mut runner, &prompts, REPLY_TOKENS)
        .map_err(|error| Failure::new(Exit::Internal, error))?;
    boot::print(&line(prompts.len(), found))
}

fn line(conversations: usize, found: Acceptance) -> String {
    format!(
        "first drafts: {} of {} accepted ({:.1} %) in {conversations} conversations\n",
        found.accepted,
        found.drafted,
        100.0 * found.rate()
    )
}

fn prompts(chat: &ChatModel, file: &Path) -> Result<Vec<Vec<TokenId>>, Failure> {
    let io = |error| Failure::new(Exit::Io, format!("{}: {error}", file.display()));
    if fs::metadata(file).map_err(io)?.len() > FILE_BYTES_MAX {
        let message = format!("{}: has more than {FILE_BYTES_MAX} bytes", file.display());
        return Err(Failure::new(Exit::Usage, message));
    }
    let text = fs::read_to_string(file).map_err(io)?;
    let lines = text.lines().enumerate();
    lines
        .map(|(index, line)| {
            prompt(chat, line).map_err(|problem| {
                let place = format!("{}, line {}", file.display(), index + 1);
                Failure::new(Exit::Usage, format!("{place}: {problem}"))
            })
        })
        .collect()
}

fn prompt(chat: &ChatModel, line: &str) -> Result<Vec<TokenId>, String> {
    let record: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let list = |name: &str| record[name].as_array().cloned();
    let messages = list("messages").ok_or("messages: must be a list")?;
    let conversation = Conversation {
        messages: chat.place_system_messages(messages),
        tools: list("tools").unwrap_or_default(),
        add_generation_prompt: true,
        enable_thinking: target::THINKING_DEFAULT,
    };
    let limit = target::MAX_CONTEXT - REPLY_TOKENS;
    let prompt = chat.prompt(&conversation, limit);
    prompt
        .map(|prompt| prompt.tokens)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::chat_model;

    #[test]
    fn a_line_becomes_a_prompt_or_an_error_that_says_why() {
        let chat = chat_model();
        let good = r#"{"messages": [{"role": "user", "content": "hi"}], "id": 3}"#;
        assert!(!prompt(&chat, good).unwrap().is_empty());
        assert_eq!(prompt(&chat, "{}").unwrap_err(), "messages: must be a list");
        assert!(prompt(&chat, "{").is_err());
    }

    #[test]
    fn the_share_is_told_in_percent() {
        let found = Acceptance {
            drafted: 8,
            accepted: 6,
        };
        let expected = "first drafts: 6 of 8 accepted (75.0 %) in 2 conversations\n";
        assert_eq!(line(2, found), expected);
    }
}
