//! Texts of sampling rules (`bad_words`, `dry_sequence_breakers`), as tokens of the model.

use crate::error::ApiError;
use crate::fields::Object;
use crate::limits::{BAD_WORDS_MAX, BREAKERS_MAX, WORD_BYTES_MAX};
use engine::request::Dry;
use step::executor::TokenId;
use text::chat::ChatModel;

/// Breakers of the DRY rule, which end repetitions, if a request names none; as in llama-server.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Texts that must not be in a reply, and breakers of the DRY rule, at which a repetition ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wordings {
    bad_words: Vec<String>,
    /// Texts at which a repetition ends; empty if the request does not use the DRY rule.
    breakers: Vec<String>,
}

/// The texts of [`Wordings`] as tokens.
#[derive(Debug, Default)]
pub struct WordTokens {
    pub bad: Vec<Vec<TokenId>>,
    /// Tokens whose text contains a sequence breaker of the DRY penalty, ascending.
    pub breakers: Vec<TokenId>,
}

impl Wordings {
    /// `bad_words` and `dry_sequence_breakers`; breakers are read only if `dry` is on.
    ///
    /// # Errors
    /// Names the field that is no valid text.
    pub fn read(object: &Object<'_>, dry: &Dry) -> Result<Wordings, ApiError> {
        let texts = |name: &str, most: usize| {
            let texts = object.get(name);
            let texts = texts.map(|field| field.texts(most, WORD_BYTES_MAX));
            texts.transpose()
        };
        let bad_words = texts("bad_words", BAD_WORDS_MAX)?.unwrap_or_default();
        let named = texts("dry_sequence_breakers", BREAKERS_MAX)?;
        let named = named.unwrap_or_else(|| BREAKERS.map(str::to_string).to_vec());
        let is_used = dry.multiplier > 0.0;
        Ok(Wordings {
            bad_words,
            breakers: if is_used { named } else { Vec::new() },
        })
    }

    /// Tokens of each bad word, alone and after a blank; and each token whose text has a breaker.
    ///
    /// # Errors
    /// Names a word that has no tokens.
    pub fn tokens(&self, model: &ChatModel) -> Result<WordTokens, ApiError> {
        let mut bad = Vec::new();
        for word in &self.bad_words {
            for written in [word.clone(), format!(" {}", word.trim_start())] {
                let ids = model.tokenizer.encode_document(&written);
                let ids = ids.map_err(|error| ApiError::field("bad_words", error.to_string()))?;
                if !ids.is_empty() && !bad.contains(&ids) {
                    bad.push(ids);
                }
            }
        }
        let breaks = |id: &TokenId| {
            let text = model.tokenizer.token_bytes(*id);
            let has = |breaker: &String| {
                let breaker = breaker.as_bytes();
                text.windows(breaker.len()).any(|part| part == breaker)
            };
            self.breakers.iter().any(has)
        };
        let breakers = match self.breakers.is_empty() {
            true => Vec::new(),
            false => (0..model.facts.vocab as TokenId).filter(breaks).collect(),
        };
        Ok(WordTokens { bad, breakers })
    }
}
