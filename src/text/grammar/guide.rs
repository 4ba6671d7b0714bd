//! Constraint of one reply under a grammar: where the grammar begins, and which tokens it allows.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;

use engine::constraint::{Constraint, Mask, Next};
use step::executor::TokenId;

use super::Compiled;
use super::panics;
use super::vocabulary::Vocabulary;

/// Newlines allowed between reasoning and reply, part of neither: templates write two.
const NEWLINES_MAX: usize = 2;

/// Part of a reply that follows the grammar, delimited by tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Tag that ends the reasoning in which the reply begins; the grammar starts after the tag.
    pub reasoning_close: Option<&'static str>,
    /// Tag after each of which the grammar starts, in a reply that is text; if None, the whole
    /// reply follows the grammar.
    pub open: Option<&'static str>,
}

enum Stage {
    /// Free text up to a tag; the text so far ends with the first `matched` bytes of the tag.
    Free {
        tag: &'static str,
        matched: usize,
        reasoning: bool,
    },
    /// Text under the grammar, which may still begin with `newlines` newlines.
    Bound {
        matcher: Box<Matcher>,
        newlines: usize,
    },
    Complete,
}

/// State of one reply that follows a grammar.
pub struct Guide {
    compiled: Arc<Compiled>,
    scope: Scope,
    stage: Stage,
}

impl Guide {
    pub fn new(compiled: Arc<Compiled>, scope: Scope) -> Guide {
        let stage = match scope.reasoning_close {
            Some(tag) => Stage::Free {
                tag,
                matched: 0,
                reasoning: true,
            },
            None => begin(&compiled, scope, 0),
        };
        Guide {
            compiled,
            scope,
            stage,
        }
    }

    fn vocabulary(&self) -> &Vocabulary {
        &self.compiled.vocabulary
    }

    /// Whether a reply may end in free text: not in reasoning, if the grammar must follow.
    fn may_stop(&self, reasoning: bool) -> bool {
        !reasoning || self.scope.open.is_some()
    }

    /// Advances by a token of free text.
    fn advance_free(&mut self, id: TokenId) -> Result<(), String> {
        let Stage::Free {
            tag,
            matched,
            reasoning,
        } = &mut self.stage
        else {
            return Ok(());
        };
        match follow(tag, *matched, self.compiled.vocabulary.text(id)) {
            Follow::Open(now) => *matched = now,
            Follow::Closed { rest: 0 } if *reasoning => {
                self.stage = begin(&self.compiled, self.scope, NEWLINES_MAX);
            }
            Follow::Closed { rest: 0 } => self.stage = Stage::bound(&self.compiled, 0),
            Follow::Closed { .. } => return Err(format!("a token holds more than {tag}")),
        }
        Ok(())
    }
}

/// Stage at the start of the reply after its reasoning.
fn begin(compiled: &Compiled, scope: Scope, newlines: usize) -> Stage {
    match scope.open {
        Some(tag) => Stage::Free {
            tag,
            matched: 0,
            reasoning: false,
        },
        None => Stage::bound(compiled, newlines),
    }
}

impl Stage {
    fn bound(compiled: &Compiled, newlines: usize) -> Stage {
        let matcher = Box::new(compiled.matcher());
        Stage::Bound { matcher, newlines }
    }
}

impl Constraint for Guide {
    fn next(&self) -> Next {
        match &self.stage {
            // A token may complete the tag and contain more, which the grammar could not check:
            // after a part of the tag, such tokens are masked.
            Stage::Free { matched, .. } if *matched > 0 => Next::Masked,
            Stage::Free { reasoning, .. } => Next::Free {
                stop: self.may_stop(*reasoning),
            },
            Stage::Bound { .. } => Next::Masked,
            Stage::Complete => Next::Complete,
        }
    }

    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
        match &mut self.stage {
            Stage::Free {
                tag,
                matched,
                reasoning,
            } => {
                let (tag, matched, reasoning) = (*tag, *matched, *reasoning);
                let fits = |text: &[u8]| match follow(tag, matched, text) {
                    Follow::Open(_) => true,
                    Follow::Closed { rest } => rest == 0,
                };
                self.vocabulary().all_with(mask, fits);
                Ok(self.may_stop(reasoning))
            }
            Stage::Bound { matcher, newlines } => {
                let handle = matcher.cancellation_handle();
                let watched = handle.map(|handle| self.compiled.watch.over(handle));
                let allowed = panics::inside(|| matcher.compute_mask());
                let allowed = allowed.map_err(|error| failed(&error))?;
                let may_stop = panics::inside(|| matcher.is_accepting());
                let may_stop = may_stop.map_err(|error| failed(&error))?;
                drop(watched);
                mask.copy_from(allowed.as_slice());
                self.compiled.vocabulary.without_end(mask);
                self.compiled.vocabulary.add_newlines(mask, *newlines);
                Ok(may_stop)
            }
            Stage::Complete => Ok(true),
        }
    }

    fn advance(&mut self, id: TokenId) -> Result<(), String> {
        let Stage::Bound { matcher, newlines } = &mut self.stage else {
            return self.advance_free(id);
        };
        let text = self.compiled.vocabulary.text(id);
        if *newlines > 0 && text.len() <= *newlines && text.iter().all(|byte| *byte == b'\n') {
            *newlines -= text.len();
            return Ok(());
        }
        *newlines = 0;
        let handle = matcher.cancellation_handle();
        let watched = handle.map(|handle| self.compiled.watch.over(handle));
        let taken = panics::inside(|| matcher.consume_token(id));
        taken.map_err(|error| failed(&error))?;
        drop(watched);
        if !matcher.is_stopped() {
            // Free text goes on once nothing more has to follow in the grammar.
            let open = self.scope.open.is_some();
            if open && panics::inside(|| matcher.is_accepting()).is_ok_and(|accepting| accepting) {
                self.stage = begin(&self.compiled, self.scope, 0);
            }
            return Ok(());
        }
        match (matcher.stop_reason(), self.scope.open) {
            (StopReason::NoExtension | StopReason::EndOfSentence, None) => {
                self.stage = Stage::Complete;
            }
            (StopReason::NoExtension | StopReason::EndOfSentence, Some(_)) => {
                self.stage = begin(&self.compiled, self.scope, 0);
            }
            (reason, _) => return Err(failed(&reason)),
        }
        Ok(())
    }
}

fn failed(error: &dyn std::fmt::Display) -> String {
    format!(
        "the reply cannot follow its grammar any further: {}",
        super::explained(&error.to_string())
    )
}

/// Effect of text on the search for a tag.
pub(super) enum Follow {
    /// The text ends with this many first bytes of the tag.
    Open(usize),
    /// The tag is complete, and `rest` bytes follow it.
    Closed { rest: usize },
}

/// Looks for `tag` in `text`, before which `matched` bytes of the tag were found. The first byte of
/// a tag occurs only once in it, so after a mismatch the search starts anew.
pub(super) fn follow(tag: &str, mut matched: usize, text: &[u8]) -> Follow {
    let tag = tag.as_bytes();
    for (at, &byte) in text.iter().enumerate() {
        if byte == tag[matched] {
            matched += 1;
        } else {
            matched = usize::from(byte == tag[0]);
        }
        if matched == tag.len() {
            let rest = text.len() - at - 1;
            return Follow::Closed { rest };
        }
    }
    Follow::Open(matched)
}
