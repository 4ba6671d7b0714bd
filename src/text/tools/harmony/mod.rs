//! The form of GPT-OSS, harmony: a reply is messages, each with a header that says what it is.
//!
//! ```text
//! <|channel|>analysis<|message|>TEXT<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{JSON}
//! ```
//!
//! The marks are control tokens: [`reader`] gets them apart from the text, so that a text may
//! mention them. [`header`] reads headers as models write them, broken ones too.
//!
//! Source: openai/harmony, `docs/format.md`.

mod header;
pub mod reader;

use step::executor::TokenId;

use super::json::Arguments;
use super::markup::named;
use super::{End, Opening, Sink, Step, Syntax};
use crate::tokenizer::Tokenizer;

/// Around a message of reasoning, from after its author on.
pub const REASONING: (&str, &str) = ("<|channel|>analysis<|message|>", "<|end|>");
/// Before the name of a function, as the recipient of a message.
pub const FUNCTIONS: &str = "functions.";
/// Before a recipient.
pub const TO: &str = "to=";

/// A control token of the form.
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

    /// Whether it ends a message.
    pub fn ends(self) -> bool {
        matches!(self, Mark::End | Mark::Return | Mark::Call)
    }
}

/// Header of an answer after another message, and that of one in JSON.
const ANSWER: &str = "<|start|>assistant<|channel|>final<|message|>";
const JSON_ANSWER: &str = "<|start|>assistant<|channel|>final <|constrain|>json<|message|>";

/// Ids of harmony's marks in a tokenizer, and the tokens of headers of answers.
#[derive(Clone, Debug)]
pub struct Marks {
    ids: [TokenId; Mark::ALL.len()],
    /// Headers of answers.
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

    /// The header of an answer after another message.
    pub fn answer(&self, is_json: bool) -> &[TokenId] {
        match is_json {
            true => &self.json_answer,
            false => &self.answer,
        }
    }

    /// The mark that a token is.
    pub fn find(&self, id: TokenId) -> Option<Mark> {
        let at = self.ids.iter().position(|known| *known == id)?;
        Some(Mark::ALL[at])
    }

    /// The token of a mark.
    pub fn id(&self, mark: Mark) -> TokenId {
        self.ids[mark as usize]
    }
}

/// The reader of one call.
#[derive(Debug, Default)]
pub struct Harmony {
    arguments: Arguments,
    /// Whether a part of the arguments has been read.
    begun: bool,
}

impl Syntax for Harmony {
    const OPEN: &'static str = TO;
    /// Never asked: only a header opens calls.
    const FORBIDDEN: &'static str = "";
    const END: &'static str = "}";
    const MARKS: &'static [&'static str] = &[];

    /// Reads the name, and the rest of the header.
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
