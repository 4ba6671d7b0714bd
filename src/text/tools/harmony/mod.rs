//! Harmony, the form of GPT-OSS: a reply consists of messages, each with a header.
//!
//! ```text
//! <|channel|>analysis<|message|>TEXT<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{JSON}
//! ```
//!
//! The marks are control tokens: [`reader`] gets marks separately from text, so that text may
//! mention marks. [`header`] reads headers, broken ones too.
//!
//! Source: openai/harmony, `docs/format.md`.

mod header;
pub mod reader;

use step::executor::TokenId;

use super::json::Arguments;
use super::markup::named;
use super::{End, Opening, Sink, Step, Syntax};
use crate::tokenizer::Tokenizer;

/// Texts around reasoning: the header after its author, and the end.
pub const REASONING: (&str, &str) = ("<|channel|>analysis<|message|>", "<|end|>");
/// Prefix of a function's name as the recipient of a message.
pub const FUNCTIONS: &str = "functions.";
/// Text before a recipient.
pub const TO: &str = "to=";

/// A control token of harmony.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Start,
    Channel,
    Constrain,
    Message,
    End,
    Return,
    Call,
}

impl Mark {
    pub const ALL: [Mark; 7] = [
        Mark::Start,
        Mark::Channel,
        Mark::Constrain,
        Mark::Message,
        Mark::End,
        Mark::Return,
        Mark::Call,
    ];

    pub const fn text(self) -> &'static str {
        match self {
            Mark::Start => "<|start|>",
            Mark::Channel => "<|channel|>",
            Mark::Constrain => "<|constrain|>",
            Mark::Message => "<|message|>",
            Mark::End => "<|end|>",
            Mark::Return => "<|return|>",
            Mark::Call => "<|call|>",
        }
    }

    /// Whether the mark ends a message.
    pub fn ends(self) -> bool {
        matches!(self, Mark::End | Mark::Return | Mark::Call)
    }
}

/// Header of an answer that follows another message.
const ANSWER: &str = "<|start|>assistant<|channel|>final<|message|>";
/// Header of an answer in JSON that follows another message.
const JSON_ANSWER: &str = "<|start|>assistant<|channel|>final <|constrain|>json<|message|>";

/// Ids of harmony's marks in a tokenizer, and the tokens of headers of answers.
#[derive(Clone, Debug)]
pub struct Marks {
    ids: [TokenId; Mark::ALL.len()],
    /// Tokens of [`ANSWER`].
    answer: Vec<TokenId>,
    json_answer: Vec<TokenId>,
}

impl Marks {
    /// # Errors
    /// Names the mark that the tokenizer does not have.
    pub fn of(tokenizer: &Tokenizer) -> Result<Marks, String> {
        let mut ids = [0; Mark::ALL.len()];
        for (id, mark) in ids.iter_mut().zip(Mark::ALL) {
            let text = mark.text();
            let found = tokenizer.id_of(text).filter(|id| tokenizer.is_special(*id));
            *id = found.ok_or_else(|| format!("has no special token {text}"))?;
        }
        let encode = |text| tokenizer.encode(text).map_err(|error| error.to_string());
        Ok(Marks {
            ids,
            answer: encode(ANSWER)?,
            json_answer: encode(JSON_ANSWER)?,
        })
    }

    /// Tokens of the header of an answer that follows another message.
    pub fn answer(&self, is_json: bool) -> &[TokenId] {
        match is_json {
            true => &self.json_answer,
            false => &self.answer,
        }
    }

    /// Mark with the token id `id`; None if the token is no mark of harmony.
    pub fn find(&self, id: TokenId) -> Option<Mark> {
        let at = self.ids.iter().position(|known| *known == id)?;
        Some(Mark::ALL[at])
    }

    /// Token id of a mark.
    pub fn id(&self, mark: Mark) -> TokenId {
        self.ids[mark as usize]
    }
}

/// Reader of the body of one call.
#[derive(Debug, Default)]
pub struct Harmony {
    arguments: Arguments,
    /// Whether a part of the arguments has been read.
    begun: bool,
}

impl Syntax for Harmony {
    const OPEN: &'static str = TO;
    /// Empty, since only a header opens calls.
    const FORBIDDEN: &'static str = "";
    const END: &'static str = "}";
    const MARKS: &'static [&'static str] = &[];

    /// Reads the name of the function, and the rest of the header.
    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match named(text, "", Mark::Message.text()) {
            Ok((name, length)) => {
                sink.announce(name);
                *self = Harmony::default();
                Opening::Call { length }
            }
            Err(miss) => miss.into(),
        }
    }

    /// An empty message is a call without arguments.
    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step {
        if !self.begun {
            let blank = pending.len() - pending.trim_start().len();
            pending.drain(..blank);
            self.begun = !pending.is_empty();
        }
        if !self.begun && end == End::Itself {
            pending.push_str("{}");
        }
        match self.arguments.read(pending, sink) {
            true => Step::Closed,
            false => Step::Wait,
        }
    }
}
