//! Text to token ids and token ids to bytes, from the checkpoint's `tokenizer.json`.

use std::fmt;

use tokenizers::DecoderWrapper;

use crate::engine::request::TokenId;

/// Why a tokenizer cannot be used.
#[derive(Debug)]
pub enum TokenizerError {
    /// The file is no tokenizer definition.
    Invalid(String),
    /// The definition is valid but of a kind that this server does not decode.
    Unsupported(String),
    /// A token id is outside the model's vocabulary.
    OutsideVocabulary { id: u32, vocabulary: usize },
    /// The library could not encode a text.
    Encode(String),
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Invalid(why) => write!(f, "not a tokenizer definition: {why}"),
            TokenizerError::Unsupported(what) => write!(f, "unsupported tokenizer: {what}"),
            TokenizerError::OutsideVocabulary { id, vocabulary } => {
                write!(
                    f,
                    "token {id} is outside the model's vocabulary of {vocabulary}"
                )
            }
            TokenizerError::Encode(why) => write!(f, "cannot encode the text: {why}"),
        }
    }
}

impl std::error::Error for TokenizerError {}

/// A byte-level BPE tokenizer with the bytes of every token at hand.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// `ends[id]`: where token `id` ends in `bytes`; it starts where the one before it ends.
    ends: Vec<u32>,
    /// Tokens that structure the prompt and never show in a reply's text.
    special: Vec<bool>,
    longest_token_bytes: usize,
}

impl Tokenizer {
    /// Reads `tokenizer.json`; `vocabulary` is the number of rows of the model's output.
    ///
    /// # Errors
    /// When the file is malformed, decodes by another rule than `ByteLevel`, or names a token
    /// outside the vocabulary.
    pub fn from_bytes(file: &[u8], vocabulary: usize) -> Result<Tokenizer, TokenizerError> {
        let inner = tokenizers::Tokenizer::from_bytes(file)
            .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        if !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TokenizerError::Unsupported(
                "the decoder is not ByteLevel".to_string(),
            ));
        }
        let (tokens, special) = token_table(&inner, vocabulary)?;
        let longest_token_bytes = tokens.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let ends = tokens
            .iter()
            .scan(0, |end, token| {
                *end += token.len() as u32;
                Some(*end)
            })
            .collect();
        Ok(Tokenizer {
            inner,
            bytes: tokens.concat(),
            ends,
            special,
            longest_token_bytes,
        })
    }

    /// Encodes a rendered prompt; the texts of special tokens become those tokens.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.inner
            .encode_fast(text, false)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// As [`Tokenizer::encode`], for a text that is a whole document: with the tokens that the
    /// definition puts around one, if any.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode_document(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.inner
            .encode_fast(text, true)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// A number of tokens that `text` cannot stay below, known without encoding it.
    pub fn tokens_at_least(&self, text: &str) -> usize {
        text.len().div_ceil(self.longest_token_bytes)
    }

    /// The bytes of a token; none for an id that the tokenizer does not use.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether a token structures the prompt and never shows in a reply's text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id as usize).copied().unwrap_or(true)
    }

    /// The id of a token by its text as the definition spells it.
    pub fn id_of(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }
}

/// Bytes and special flags of all ids below `vocabulary`.
fn token_table(
    inner: &tokenizers::Tokenizer,
    vocabulary: usize,
) -> Result<(Vec<Vec<u8>>, Vec<bool>), TokenizerError> {
    let mut tokens = vec![Vec::new(); vocabulary];
    let mut special = vec![false; vocabulary];
    let added = inner.get_added_tokens_decoder();
    for (token, id) in inner.get_vocab(true) {
        let entry = tokens
            .get_mut(id as usize)
            .ok_or(TokenizerError::OutsideVocabulary { id, vocabulary })?;
        *entry = match added.get(&id) {
            Some(added) => added.content.clone().into_bytes(),
            None => symbol_bytes(&token),
        };
        special[id as usize] = added.get(&id).is_some_and(|added| added.special);
    }
    Ok((tokens, special))
}

/// The bytes that a token's printable symbols stand for.
fn symbol_bytes(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(symbol_byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The printable character that stands for `byte` in a byte-level vocabulary (GPT-2's table):
/// printable Latin-1 stands for itself, the others follow each other from U+0100.
pub fn byte_symbol(byte: u8) -> char {
    let code = u32::from(byte);
    let shifted = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => code,
        0x00..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + code - 0x7f,
        0xad => 0x143,
    };
    char::from_u32(shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn symbol_byte(symbol: char) -> Option<u8> {
    let code = u32::from(symbol);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::{END_OF_TURN, byte_tokenizer};

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(&byte_tokenizer(), 512).unwrap()
    }

    #[test]
    fn byte_symbols_are_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(symbol_byte(byte_symbol(byte)), Some(byte));
        }
        assert_eq!(byte_symbol(b' '), 'Ġ');
        assert_eq!(byte_symbol(b'\n'), 'Ċ');
    }

    #[test]
    fn bytes_of_tokens_give_the_text_back() {
        let tokenizer = tokenizer();
        let text = "Größe 🦀\n";
        let ids = tokenizer.encode(text).unwrap();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| tokenizer.token_bytes(id).to_vec())
            .collect();
        assert_eq!(bytes, text.as_bytes());
    }

    #[test]
    fn special_tokens_in_a_prompt_become_one_token() {
        let ids = tokenizer().encode("a<|im_end|>").unwrap();
        assert_eq!(ids, [u32::from(b'a'), END_OF_TURN]);
    }

    #[test]
    fn tags_are_text_and_turn_marks_are_not() {
        let tokenizer = tokenizer();
        assert!(tokenizer.is_special(END_OF_TURN));
        let think = tokenizer.id_of("<think>").unwrap();
        assert!(!tokenizer.is_special(think));
        assert_eq!(tokenizer.token_bytes(think), b"<think>");
    }

    #[test]
    fn the_lower_bound_never_exceeds_the_count() {
        let tokenizer = tokenizer();
        for text in ["", "a", "<|endoftext|><|endoftext|>", "plain text"] {
            assert!(tokenizer.tokens_at_least(text) <= tokenizer.encode(text).unwrap().len());
        }
    }

    #[test]
    fn a_vocabulary_smaller_than_the_tokenizer_is_refused() {
        let error = Tokenizer::from_bytes(&byte_tokenizer(), 100).err().unwrap();
        assert!(matches!(
            error,
            TokenizerError::OutsideVocabulary {
                vocabulary: 100,
                ..
            }
        ));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(matches!(
            Tokenizer::from_bytes(b"{}", 8),
            Err(TokenizerError::Invalid(_))
        ));
    }
}
