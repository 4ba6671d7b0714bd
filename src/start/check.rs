//! Checks of a model before it serves: golden tokens, if there are any, and a text.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;

use check::{
    GOLDEN_TOLERANCE, Report, TEXT, TEXT_IS_WHOLE, TEXT_TOKENS, TextBound, check_text, draw_tokens,
    selfcheck,
};
use host::log;
use host::operator_file;
use model::target;
use step::executor::{Executor, TokenId};
use text::chat::ChatModel;

use super::exit::{Exit, Failure};
use super::files::Files;

/// Bytes of the largest file of golden tokens.
const GOLDEN_BYTES_MAX: u64 = 64 << 20;

/// All checks of a model at its start.
pub struct Checks {
    /// Tokens that the start check runs as a prompt and then one by one; random ids without a
    /// tokenizer.
    text: Vec<TokenId>,
    bound: TextBound,
    /// Golden tokens: words on their origin for messages, and their file's text.
    golden: Vec<(&'static str, Cow<'static, str>)>,
}

impl Checks {
    /// Checks for the weights of `files`, with the tokenizer of `chat` if there is one, and with
    /// the golden tokens of the binary and of the file `kept`.
    ///
    /// # Errors
    /// When the file `kept` cannot be used, or the tokenizer refuses the text.
    pub fn new(
        files: &Files,
        chat: Option<&ChatModel>,
        recorded: Option<&Path>,
    ) -> Result<Checks, Failure> {
        let encode = |chat: &ChatModel| chat.tokenizer.encode(TEXT);
        let text = chat.map(encode).transpose();
        let text = text.map_err(|error| Exit::Config.failure(error))?;
        let mut text = text.unwrap_or_else(|| draw_tokens(TEXT_TOKENS));
        text.truncate(TEXT_TOKENS);
        let bound = match target::TEXT_NLL {
            _ if chat.is_none() || files.are_drawn() => TextBound::None,
            None => TextBound::Plausible,
            // The known figure is of the whole text, so it is no bound for a part.
            Some(_) if !TEXT_IS_WHOLE => TextBound::None,
            Some(known) => TextBound::Known(known),
        };
        // The binary's golden tokens belong to the released weights.
        let own = (!files.are_drawn()).then_some(("of the binary", target::GOLDEN.into()));
        let recorded = recorded.map(read).transpose()?;
        let recorded = recorded.map(|text| ("that are kept", text.into()));
        Ok(Checks {
            text,
            bound,
            golden: own.into_iter().chain(recorded).collect(),
        })
    }

    /// Tokens that the start check runs as a prompt and then one by one.
    pub fn text(&self) -> &[TokenId] {
        &self.text
    }

    /// Runs all checks on an idle model; returns a line for each that passed.
    pub fn run<E: Executor>(
        &self,
        executor: &mut E,
    ) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        let mut lines = Vec::new();
        for (whose, golden) in &self.golden {
            let report = selfcheck(executor, golden, GOLDEN_TOLERANCE)?;
            lines.extend((report.tokens > 0).then(|| agreed(whose, &report)));
        }
        lines.push(check_text(executor, &self.text, self.bound)?.to_string());
        Ok(lines)
    }
}

/// Line for people about golden tokens that the model reproduced.
fn agreed(whose: &str, report: &Report) -> String {
    format!(
        "{} golden tokens {whose}, of {} sequences, agree (log-probabilities within {:.1e})",
        report.tokens, report.sequences, report.logprob_difference_max
    )
}

fn read(path: &Path) -> Result<String, Failure> {
    let fail = |problem: String| {
        let text = format!(
            "--golden {}: {problem}; `verify --oracle --golden FILE` writes one",
            path.display()
        );
        Exit::Config.failure(text)
    };
    operator_file::text(path, GOLDEN_BYTES_MAX).map_err(|error| fail(error.to_string()))
}

/// Warns if the weights are random.
pub fn log_drawn(files: &Files) {
    if files.are_drawn() {
        log::line(format_args!(
            "THE WEIGHTS {files} ARE DRAWN AT RANDOM, by `{} synth`: every answer is noise, good \
             for measurements alone",
            target::BINARY
        ));
    }
}
