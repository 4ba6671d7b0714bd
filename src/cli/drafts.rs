//! Comparison of the multi-token-prediction layer's first drafts with served replies.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use check::{Acceptance, Exchange, acceptance};
use host::operator_file;
use model::target;
use model::weights::Progress;
use step::executor::TokenId;

use super::{Exit, Failure};
use crate::start::boot::{self, Drafting, Files};
use crate::start::check::Checks;

/// Bytes of the largest file of served replies.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Members of a line of the file that are read.
#[derive(Deserialize)]
struct Line {
    prompt_tokens: Vec<TokenId>,
    reply_tokens: Vec<TokenId>,
}

/// Prints the share of first drafts that equal the token that was served, over all replies of
/// `file`, which has a JSON object per line, with the token ids `prompt_tokens` and `reply_tokens`.
///
/// # Errors
/// Names the line that cannot be used, or the part that the model lacks.
pub fn run(file: &Path, weights: Option<&Path>) -> Result<(), Failure> {
    boot::require_prediction()?;
    boot::require_serving()?;
    let exchanges = exchanges(file)?;
    let files = Files::locate(weights)?;
    let progress = Arc::new(Progress::default());
    let checks = Checks::new(&files, Some(&boot::chat_model(&files)?), None)?;
    let runner = boot::runner(&files, &progress, Drafting::Yes, || Ok(checks));
    let mut runner = runner?;
    let found =
        acceptance(&mut runner, &exchanges).map_err(|error| Exit::Internal.failure(error))?;
    boot::print(&line(exchanges.len(), found))
}

fn line(replies: usize, found: Acceptance) -> String {
    format!(
        "first drafts: {} of {} equal the token that was served ({:.1} %) in {replies} replies\n",
        found.accepted,
        found.drafted,
        100.0 * found.rate()
    )
}

fn exchanges(file: &Path) -> Result<Vec<Exchange>, Failure> {
    let text = operator_file::text(file, FILE_BYTES_MAX).map_err(|why| Exit::Io.at(file, why))?;
    let read = |(index, line)| {
        exchange(line).map_err(|problem| {
            let line = format!("{}, line {}", file.display(), index + 1);
            Exit::Usage.failure(format!("{line}: {problem}"))
        })
    };
    text.lines().enumerate().map(read).collect()
}

fn exchange(line: &str) -> Result<Exchange, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if line.prompt_tokens.is_empty() {
        return Err("prompt_tokens: must not be empty".to_string());
    }
    let mut tokens = line.prompt_tokens.iter().chain(&line.reply_tokens);
    if let Some(token) = tokens.find(|token| **token as usize >= target::VOCAB) {
        return Err(format!("{token} is no token of this model"));
    }
    let count = line.prompt_tokens.len() + line.reply_tokens.len();
    if count > target::MAX_CONTEXT {
        let most = target::MAX_CONTEXT;
        return Err(format!("{count} tokens; the context is {most}"));
    }
    Ok(Exchange {
        prompt: line.prompt_tokens,
        reply: line.reply_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_an_exchange_or_an_error_that_says_why() {
        let good = r#"{"id": 3, "prompt_tokens": [1, 2], "reply_tokens": [3]}"#;
        let expected = Exchange {
            prompt: vec![1, 2],
            reply: vec![3],
        };
        assert_eq!(exchange(good).unwrap(), expected);
        let problem = |prompt: &[usize], reply: &[usize]| {
            let line = serde_json::json!({"prompt_tokens": prompt, "reply_tokens": reply});
            exchange(&line.to_string()).unwrap_err()
        };
        assert_eq!(problem(&[], &[1]), "prompt_tokens: must not be empty");
        assert!(problem(&[1], &[target::VOCAB]).ends_with("no token of this model"));
        assert!(problem(&[1], &vec![1; target::MAX_CONTEXT]).contains("the context is"));
        assert!(exchange("{}").unwrap_err().contains("prompt_tokens"));
    }

    #[test]
    fn the_share_is_shown_in_percent() {
        let found = Acceptance {
            drafted: 8,
            accepted: 6,
        };
        let expected =
            "first drafts: 6 of 8 equal the token that was served (75.0 %) in 2 replies\n";
        assert_eq!(line(2, found), expected);
    }
}
