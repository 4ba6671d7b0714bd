//! The model's vocabulary in the form that llguidance reads.

use std::sync::Arc;

use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::tokenizer::Tokenizer;
use engine::constraint::Mask;
use step::executor::TokenId;

/// Bytes of all tokens, as a trie and by id.
pub struct Vocabulary {
    environment: Arc<Environment>,
    size: usize,
}

struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    stop_tokens: Vec<TokenId>,
}

impl Vocabulary {
    /// Vocabulary of `size` tokens. Tokens that structure the prompt match no text: their bytes
    /// begin with one that does not occur in UTF-8.
    pub fn new(tokenizer: &Arc<Tokenizer>, size: usize, stop_tokens: &[TokenId]) -> Vocabulary {
        let word = |id: TokenId| {
            let bytes = tokenizer.token_bytes(id);
            match tokenizer.is_special(id) && !bytes.is_empty() {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                false => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..size as TokenId).map(word).collect();
        let end = stop_tokens.first().copied().unwrap_or_default();
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, end), &words);
        Vocabulary {
            environment: Arc::new(Environment {
                tokenizer: tokenizer.clone(),
                trie,
                stop_tokens: stop_tokens.to_vec(),
            }),
            size,
        }
    }

    pub fn environment(&self) -> TokEnv {
        self.environment.clone()
    }

    /// All tokens, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + use<> {
        0..self.size as TokenId
    }

    /// Bytes that a token adds to the text; none for a token that structures the prompt.
    pub fn text(&self, id: TokenId) -> &[u8] {
        let tokenizer = &self.environment.tokenizer;
        match tokenizer.is_special(id) {
            true => &[],
            false => tokenizer.token_bytes(id),
        }
    }

    /// Removes the model's own end tokens from a mask.
    pub fn without_end(&self, mask: &mut Mask) {
        let ends = self.environment.stop_tokens.iter();
        ends.for_each(|&id| mask.set(id, false));
    }

    /// Sets the mask to all tokens whose text satisfies a condition.
    pub fn all_with(&self, mask: &mut Mask, condition: impl Fn(&[u8]) -> bool) {
        mask.fill(self.size);
        let others = self.ids().filter(|&id| !condition(self.text(id)));
        others.for_each(|id| mask.set(id, false));
    }

    /// Adds the tokens that are one to `most` newlines.
    pub fn add_newlines(&self, mask: &mut Mask, most: usize) {
        for length in 1..=most {
            if let Some(id) = self.environment.trie.token_id(&b"\n\n\n\n"[..length]) {
                mask.set(id, true);
            }
        }
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokens of a text as the tokenizer makes them, so that the model knows forced text.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let ids = self.tokenizer.encode(text).unwrap_or_default();
            let spelt = ids.iter().flat_map(|&id| self.tokenizer.token_bytes(id));
            let special = ids.iter().any(|&id| self.tokenizer.is_special(id));
            // Texts of special tokens, and texts that a normaliser changes, are spelt byte by byte.
            match !special && spelt.eq(text.as_bytes()) {
                true => ids,
                false => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
