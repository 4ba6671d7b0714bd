//! Constraint of a reply in which a tag never becomes complete: it is text, and opens no call.

use std::sync::Arc;

use engine::constraint::{Constraint, Mask, Next};
use step::executor::TokenId;

use super::guide::{Follow, follow};
use super::vocabulary::Vocabulary;

/// A tag, and the tokens that would complete it.
pub struct ForbiddenTag {
    vocabulary: Arc<Vocabulary>,
    tag: &'static str,
    /// Tokens that complete the tag after a text that ends with its first `index` bytes, by
    /// `index`.
    completing: Vec<Vec<TokenId>>,
}

impl ForbiddenTag {
    /// Finds the completing tokens in the vocabulary, once for all replies.
    pub fn new(vocabulary: Arc<Vocabulary>, tag: &'static str) -> ForbiddenTag {
        let mut completing = vec![Vec::new(); tag.len()];
        for id in vocabulary.ids() {
            let text = vocabulary.text(id);
            for (matched, ids) in completing.iter_mut().enumerate() {
                if matches!(follow(tag, matched, text), Follow::Closed { .. }) {
                    ids.push(id);
                }
            }
        }
        ForbiddenTag {
            vocabulary,
            tag,
            completing,
        }
    }

    /// Constraint of one reply. A reply that begins inside reasoning is free up to the tag
    /// `reasoning_close`, since text before that is no call.
    pub fn guide(self: &Arc<Self>, reasoning_close: Option<&'static str>) -> Box<dyn Constraint> {
        Box::new(WithoutTag {
            forbidden: self.clone(),
            reasoning_close,
            matched: 0,
        })
    }
}

/// State of one reply in which the tag is forbidden.
struct WithoutTag {
    forbidden: Arc<ForbiddenTag>,
    /// Tag that ends the reasoning, while the reply is still in it.
    reasoning_close: Option<&'static str>,
    /// Bytes at the text's end that begin a tag: `reasoning_close` if set, else the forbidden tag.
    matched: usize,
}

impl Constraint for WithoutTag {
    fn next(&self) -> Next {
        Next::Free { stop: true }
    }

    fn barred(&self) -> &[TokenId] {
        match self.reasoning_close {
            Some(_) => &[],
            None => &self.forbidden.completing[self.matched],
        }
    }

    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
        self.forbidden.vocabulary.all_with(mask, |_| true);
        self.barred().iter().for_each(|&id| mask.set(id, false));
        Ok(true)
    }

    fn advance(&mut self, id: TokenId) -> Result<(), String> {
        let mut text = self.forbidden.vocabulary.text(id);
        if let Some(close) = self.reasoning_close {
            match follow(close, self.matched, text) {
                Follow::Open(matched) => {
                    self.matched = matched;
                    return Ok(());
                }
                Follow::Closed { rest } => {
                    (self.reasoning_close, self.matched) = (None, 0);
                    text = &text[text.len() - rest..];
                }
            }
        }
        match follow(self.forbidden.tag, self.matched, text) {
            Follow::Open(matched) => self.matched = matched,
            Follow::Closed { .. } => {
                return Err(format!("a token completes {}", self.forbidden.tag));
            }
        }
        Ok(())
    }
}
