//! Constraints of replies: from a request's fields to a grammar that the engine applies.

use std::sync::Arc;

use crate::error::ApiError;
use engine::constraint::{Constraint, Next};
use step::executor::TokenId;
use text::chat::{ChatModel, Prompt};
use text::grammar::harmony::Plan;
use text::grammar::{Compiled, Grammar, Scope};
use text::tools::Tags;
use text::tools::harmony::Marks;
use text::tools::harmony::reader::Begin;

/// Constraint of the replies to a request.
#[derive(Debug)]
pub enum Rule {
    /// Each reply is text, and opens no tool call.
    NoCalls,
    Follows(Follows),
}

/// A grammar that the replies follow.
#[derive(Debug)]
pub struct Follows {
    grammar: Grammar,
    /// The request's field that asked for the grammar.
    field: &'static str,
    calls_in_text: bool,
    compiled: Option<Arc<Compiled>>,
    /// Tokens of the message that replies continue, from its first character that is not blank.
    begun: Vec<TokenId>,
}

/// Fields that ask for the form of a whole message; all other fields ask for that of a reply.
const OF_MESSAGES: [&str; 4] = ["output_config", "output_format", "response_format", "text"];

impl Rule {
    /// Rule by which the whole of each reply follows `grammar`.
    pub fn whole(field: &'static str, grammar: Grammar) -> Rule {
        Rule::of(field, grammar, false)
    }

    /// Rule by which replies are text in which calls, after their opening tag, follow `grammar`.
    pub fn calls_in_text(field: &'static str, grammar: Grammar) -> Rule {
        Rule::of(field, grammar, true)
    }

    fn of(field: &'static str, grammar: Grammar, calls_in_text: bool) -> Rule {
        Rule::Follows(Follows {
            grammar,
            field,
            calls_in_text,
            compiled: None,
            begun: Vec::new(),
        })
    }

    /// Compiles the grammar, or finds it compiled by an earlier request of `domain`. Takes long:
    /// not for threads of connections.
    ///
    /// # Errors
    /// Names the field whose grammar is refused.
    pub fn compile(&mut self, chat: &ChatModel, domain: u128) -> Result<(), ApiError> {
        let Rule::Follows(follows) = self else {
            return Ok(());
        };
        let compiled = chat.grammars.compile(domain, &follows.grammar);
        let compiled = compiled.map_err(|error| ApiError::field(follows.field, error.0))?;
        follows.compiled = Some(compiled);
        Ok(())
    }

    /// Makes each reply continue `said`, the beginning of a message.
    ///
    /// # Errors
    /// Names the field whose grammar no message with this beginning follows.
    pub fn go_on(&mut self, chat: &ChatModel, said: &str) -> Result<(), ApiError> {
        let follows = match self {
            Rule::Follows(follows) if OF_MESSAGES.contains(&follows.field) => follows,
            _ => return Ok(()),
        };
        let error = |problem: &str| ApiError::field(follows.field, problem);
        // Blanks may stand before any value of JSON.
        let tokens = chat.tokenizer.encode(said.trim_start());
        let tokens = tokens.map_err(|why| error(&why.to_string()))?;
        let compiled = follows.compiled.as_ref();
        let guide = compiled.map(|compiled| compiled.guide(Scope::default()));
        if let Some(mut guide) = guide {
            if !takes(&mut *guide, &tokens) {
                let problem = "is not what the message begins with that the reply goes on with";
                return Err(error(problem));
            }
            if guide.next() == Next::Complete {
                return Err(error(
                    "is had by the message that the reply goes on with; nothing is left",
                ));
            }
        }
        follows.begun = tokens;
        Ok(())
    }

    /// Warnings about parts of the request that the grammar does not enforce, for the answer.
    pub fn warnings(&self) -> &[String] {
        match self {
            Rule::NoCalls => &[],
            Rule::Follows(follows) => {
                let compiled = follows.compiled.as_deref();
                compiled.map_or(&[], Compiled::warnings)
            }
        }
    }

    /// The constraint of one reply; None before `compile`.
    pub fn start(&self, chat: &ChatModel, prompt: &Prompt) -> Option<Box<dyn Constraint>> {
        if let Some(marks) = &chat.harmony {
            return self.start_harmony(chat, marks, prompt.begin());
        }
        let tags = chat.think.filter(|_| prompt.reasoning_opened);
        let reasoning_close = tags.map(|(_, close)| close);
        let follows = match self {
            Rule::NoCalls => {
                let tag = Tags::of(chat.facts.tool_format?).forbidden;
                return chat.grammars.without_calls(tag, reasoning_close);
            }
            Rule::Follows(follows) => follows,
        };
        let scope = Scope {
            reasoning_close,
            open: chat
                .tool_format
                .filter(|_| follows.calls_in_text)
                .map(|format| Tags::of(format).formal),
        };
        let mut guide = follows.compiled.as_ref()?.guide(scope);
        takes(&mut *guide, &follows.begun);
        Some(guide)
    }

    fn start_harmony(
        &self,
        chat: &ChatModel,
        marks: &Marks,
        begin: Begin,
    ) -> Option<Box<dyn Constraint>> {
        let (compiled, plan) = match self {
            Rule::NoCalls => (None, Plan::CallsInText),
            Rule::Follows(follows) => {
                let plan = match &follows.grammar {
                    _ if follows.calls_in_text => Plan::CallsInText,
                    Grammar::Calls { .. } => Plan::Whole(Vec::new()),
                    answer => {
                        let is_json = matches!(answer, Grammar::Json(_));
                        Plan::Whole(marks.answer(is_json).to_vec())
                    }
                };
                (Some(follows.compiled.clone()?), plan)
            }
        };
        Some(chat.grammars.harmony(compiled, plan, begin, marks))
    }

    /// Whether the whole of each reply follows a grammar.
    pub fn is_whole(&self) -> bool {
        matches!(self, Rule::Follows(follows) if !follows.calls_in_text)
    }
}

/// Whether a reply may begin with `tokens`, past which the guide is advanced.
fn takes(guide: &mut dyn Constraint, tokens: &[TokenId]) -> bool {
    let mut tokens = tokens.iter();
    tokens.all(|id| guide.next() == Next::Masked && guide.advance(*id).is_ok())
}
