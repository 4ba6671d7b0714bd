//! Constraint of one reply in harmony: which of its messages follow the grammar.
//!
//! Reasoning is free. A grammar of the whole reply begins after the reasoning and includes the
//! headers of calls, or begins after the header of an answer, which is forced here. A grammar of
//! calls in text begins after each `to=` in a header, so that only existing functions are called.
//! Tokens may have both a full stop and the start of a name, so the grammar includes `functions.`.

use std::sync::Arc;

use engine::constraint::{Constraint, Mask, Next};
use step::executor::TokenId;

use super::guide::{Follow, Guide, Scope, follow};
use super::vocabulary::Vocabulary;
use super::{Compiled, Grammars};
use crate::tools::harmony::reader::Begin;
use crate::tools::harmony::{Mark, Marks, TO};

/// Part of a reply that follows a grammar.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// The reply after its reasoning. The tokens, the header of an answer from the mark that begins
    /// a message, are forced at its start.
    Whole(Vec<TokenId>),
    /// Calls in a reply that otherwise is text.
    CallsInText,
}

enum Stage {
    Reasoning,
    /// Header of a message; the text so far ends with `matched` first bytes of `to=`.
    Header {
        matched: usize,
    },
    Content,
    /// Header of the answer, whose tokens from this index on are still to be forced.
    Forced(usize),
    Bound(Box<Guide>),
    Complete,
}

/// State of one reply in harmony that follows a grammar.
struct HarmonyGuide {
    /// Compiled grammar; None if the reply may not call tools.
    compiled: Option<Arc<Compiled>>,
    vocabulary: Arc<Vocabulary>,
    marks: Marks,
    plan: Plan,
    stage: Stage,
}

impl Grammars {
    /// Starts a reply in harmony that follows `compiled` by `plan`; if `compiled` is None, the
    /// reply has no calls.
    pub fn harmony(
        &self,
        compiled: Option<Arc<Compiled>>,
        plan: Plan,
        begin: Begin,
        marks: &Marks,
    ) -> Box<dyn Constraint> {
        let mut guide = HarmonyGuide {
            compiled,
            vocabulary: self.compiler.vocabulary.clone(),
            marks: marks.clone(),
            plan,
            stage: Stage::Content,
        };
        guide.stage = match (&guide.plan, begin) {
            (Plan::Whole(_), Begin::Reasoning) => Stage::Reasoning,
            (Plan::Whole(_), Begin::Content) => guide.bound(),
            (Plan::Whole(header), Begin::Header) => {
                let author = header.iter().position(|id| *id == marks.id(Mark::Channel));
                guide.forced(author.unwrap_or(header.len()))
            }
            (Plan::CallsInText, Begin::Header) => Stage::Header { matched: 0 },
            (Plan::CallsInText, _) => Stage::Content,
        };
        Box::new(guide)
    }
}

impl HarmonyGuide {
    fn bound(&self) -> Stage {
        match &self.compiled {
            Some(compiled) => {
                Stage::Bound(Box::new(Guide::new(compiled.clone(), Scope::default())))
            }
            None => Stage::Complete,
        }
    }

    /// Stage that forces the answer's header from the token `at` on.
    fn forced(&self, at: usize) -> Stage {
        match &self.plan {
            Plan::Whole(header) if at < header.len() => Stage::Forced(at),
            _ => self.bound(),
        }
    }

    fn header(&self) -> &[TokenId] {
        match &self.plan {
            Plan::Whole(header) => header,
            Plan::CallsInText => &[],
        }
    }

    /// Ends the reasoning if `id` is a mark that ends it; marks that begin a message belong to the
    /// next message.
    fn leave_reasoning(&mut self, id: TokenId) -> Result<(), String> {
        let begun = self.header().iter().position(|known| *known == id);
        match (self.marks.find(id), begun) {
            (Some(Mark::End), _) => self.stage = self.forced(0),
            (Some(Mark::Start | Mark::Channel), Some(at)) => self.stage = self.forced(at + 1),
            (Some(Mark::Start | Mark::Channel), None) => {
                self.stage = self.bound();
                return self.advance_bound(id);
            }
            _ => {}
        }
        Ok(())
    }

    fn advance_bound(&mut self, id: TokenId) -> Result<(), String> {
        let Stage::Bound(guide) = &mut self.stage else {
            return Err("the reply is complete".to_string());
        };
        guide.advance(id)?;
        if guide.next() == Next::Complete {
            self.stage = match self.plan {
                Plan::Whole(_) => Stage::Complete,
                Plan::CallsInText => Stage::Content,
            };
        }
        Ok(())
    }

    /// Advances by a token of a header, in a reply that is text.
    fn advance_header(&mut self, matched: usize, id: TokenId) -> Result<(), String> {
        self.stage = match self.marks.find(id) {
            Some(Mark::Message) => Stage::Content,
            Some(_) => Stage::Header { matched: 0 },
            None => match follow(TO, matched, self.vocabulary.text(id)) {
                Follow::Open(matched) => Stage::Header { matched },
                Follow::Closed { rest: 0 } if self.compiled.is_some() => self.bound(),
                Follow::Closed { .. } => return Err(format!("a token holds more than {TO}")),
            },
        };
        Ok(())
    }
}

impl Constraint for HarmonyGuide {
    fn next(&self) -> Next {
        match &self.stage {
            Stage::Reasoning => Next::Free { stop: false },
            Stage::Content | Stage::Header { matched: 0 } => Next::Free { stop: true },
            Stage::Header { .. } | Stage::Forced(_) => Next::Masked,
            Stage::Bound(guide) => guide.next(),
            Stage::Complete => Next::Complete,
        }
    }

    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
        match &mut self.stage {
            Stage::Forced(at) => {
                let at = *at;
                self.vocabulary.all_with(mask, |_| false);
                if let Some(id) = self.header().get(at) {
                    mask.set(*id, true);
                }
                Ok(false)
            }
            Stage::Header { matched } => {
                let (matched, may_call) = (*matched, self.compiled.is_some());
                let fits = |text: &[u8]| match follow(TO, matched, text) {
                    Follow::Open(_) => true,
                    Follow::Closed { rest } => may_call && rest == 0,
                };
                self.vocabulary.all_with(mask, fits);
                Ok(true)
            }
            Stage::Bound(guide) => guide.mask(mask),
            Stage::Reasoning | Stage::Content | Stage::Complete => Ok(true),
        }
    }

    fn advance(&mut self, id: TokenId) -> Result<(), String> {
        match &self.stage {
            Stage::Reasoning => self.leave_reasoning(id),
            Stage::Header { matched } => self.advance_header(*matched, id),
            Stage::Forced(at) if self.header().get(*at) == Some(&id) => {
                self.stage = self.forced(at + 1);
                Ok(())
            }
            Stage::Forced(_) => Err("the header of the answer must come first".to_string()),
            Stage::Content => {
                if matches!(self.marks.find(id), Some(Mark::Start | Mark::Channel)) {
                    self.stage = Stage::Header { matched: 0 };
                }
                Ok(())
            }
            Stage::Bound(_) | Stage::Complete => self.advance_bound(id),
        }
    }
}

#[cfg(test)]
mod tests;
