//! The check of a model before it serves: golden tokens where they are, and always a text.

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

/// Largest file of recorded golden tokens that is read.
const GOLDEN_BYTES_MAX: u64 = 64 << 20;

/// Everything that a model is checked with.
pub struct Checks {
    /// Tokens of the text.
    text: Vec<TokenId>,
    bound: TextBound,
    /// Golden tokens: whose they are, and their text.
    golden: Vec<(&'static str, Cow<'static, str>)>,
}

impl Checks {
    /// Checks for the weights of `files`, whose text side is `chat`, if the model has one, and for
    /// the golden tokens in the file `recorded`.
    ///
    /// # Errors
    /// When that file cannot be used, or the tokenizer refuses the text.
    pub fn new(
        files: &Files,
        chat: Option<&ChatModel>,
        recorded: Option<&Path>,
    ) -> Result<Checks, Failure> {
        let encode = |chat: &ChatModel| chat.tokenizer.encode(TEXT);
        let text = chat.map(encode).transpose();
        let text = text.map_err(|error| Failure::new(Exit::Config, error))?;
        let mut text = text.unwrap_or_else(|| draw_tokens(TEXT_TOKENS));
        text.truncate(TEXT_TOKENS);
        let bound = match target::TEXT_NLL {
            _ if chat.is_none() || files.are_drawn() => TextBound::None,
            None => TextBound::Plausible,
            // The figure is of the whole text.
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

    /// Tokens of the text.
    pub fn text(&self) -> &[TokenId] {
        &self.text
    }

    /// Runs all of them on an idle model; a line about each that passed.
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

/// Findings of a replay of golden tokens, for people.
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
        Failure::new(Exit::Config, text)
    };
    operator_file::text(path, GOLDEN_BYTES_MAX).map_err(|error| fail(error.to_string()))
}

/// Warns that the weights are drawn.
pub fn log_drawn(files: &Files) {
    if files.are_drawn() {
        log::line(format_args!(
            "THE WEIGHTS {files} ARE DRAWN AT RANDOM, by `{} synth`: every answer is noise, good \
             for measurements alone",
            target::BINARY
        ));
    }
}
