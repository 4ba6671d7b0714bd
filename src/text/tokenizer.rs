//! Text to token ids and token ids to bytes, from the checkpoint's `tokenizer.json`.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use step::executor::TokenId;

use super::control::ControlTokens;
use super::pieces;
use super::segments::{SEGMENTS_BYTES_MAX, Segments};
use super::spelling::{Spelling, TextStart};
use super::tekken;
use super::work::{self, Stopped};

/// Reason why a tokenizer, or a text, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is no valid tokenizer definition.
    #[error("not a tokenizer definition: {0}")]
    Invalid(String),
    /// The definition is valid but of a kind that this server does not support.
    #[error("unsupported tokenizer: {0}")]
    Unsupported(String),
    /// A token id is outside the model's vocabulary.
    #[error("token {id} is outside the model's vocabulary of {vocabulary}")]
    OutsideVocabulary { id: u32, vocabulary: usize },
    /// The library could not encode a text.
    #[error("cannot encode the text: {0}")]
    Encode(String),
    /// The encoding of a text was cancelled.
    #[error("{0}")]
    Stopped(Stopped),
}

/// A tokenizer, and the bytes of every token.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Tokenizer for text that does not begin a document; None if `inner` does the same.
    further: Option<tokenizers::Tokenizer>,
    text_start: TextStart,
    /// Concatenated bytes of all tokens.
    bytes: Vec<u8>,
    /// `ends[id]`: where token `id` ends in `bytes`; a token starts where the one before ends.
    ends: Vec<u32>,
    /// Whether a token, by its id, structures the prompt and never shows in a reply's text.
    special: Vec<bool>,
    /// Control tokens: those of `special` that have a text, and the template's framing. `inner`
    /// treats their texts as any other text.
    control: ControlTokens,
    /// Tokens that the definition puts before and after a document.
    frame: (Vec<TokenId>, Vec<TokenId>),
    segments: Mutex<Segments>,
    longest_token_bytes: usize,
    /// Whether long texts can be cut into pieces.
    cuts: bool,
}

/// Outcome of encoding a text to a limited number of tokens.
#[derive(Debug, PartialEq)]
pub enum Encoded {
    Whole(Vec<TokenId>),
    /// Lower bound of the number of tokens, which exceeds the limit; the rest was not encoded.
    AtLeast(usize),
}

impl Tokenizer {
    /// Reads `tokenizer.json` for a model whose output has `vocabulary` rows.
    ///
    /// # Errors
    /// When the file is malformed, has a decoder that [`Spelling`] does not support, or names a
    /// token outside the vocabulary.
    pub fn from_bytes(file: &[u8], vocabulary: usize) -> Result<Tokenizer, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(file)
            .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        let decoder = serde_json::to_value(inner.get_decoder());
        let decoder = decoder.map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        let spelling = Spelling::of(&decoder).map_err(TokenizerError::Unsupported)?;
        let (tokens, special) = token_table(&inner, &spelling, vocabulary)?;
        let longest_token_bytes = tokens.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let ends = tokens
            .iter()
            .scan(0, |end, token| {
                *end += token.len() as u32;
                Some(*end)
            })
            .collect();
        let control = control_tokens(&inner)?;
        inner.set_encode_special_tokens(true);
        Ok(Tokenizer {
            cuts: is_cut(&inner, "a word", " and")?,
            frame: document_frame(&inner)?,
            further: further(&inner, file)?,
            text_start: spelling.start(),
            control,
            segments: Mutex::new(Segments::new(SEGMENTS_BYTES_MAX)),
            inner,
            bytes: tokens.concat(),
            ends,
            special,
            longest_token_bytes,
        })
    }

    /// [`Tokenizer::from_bytes`] for a file named `name`, which may be [`tekken::FILE`].
    ///
    /// # Errors
    /// Errors of [`Tokenizer::from_bytes`], or a pattern that lets texts forge control tokens.
    pub fn of_file(
        name: &str,
        file: &[u8],
        vocabulary: usize,
    ) -> Result<Tokenizer, TokenizerError> {
        if name != tekken::FILE {
            return Tokenizer::from_bytes(file, vocabulary);
        }
        let tokenizer = Tokenizer::from_bytes(&tekken::definition(file)?, vocabulary)?;
        // A match of the pattern that is a token's text becomes the token, even a control token.
        let inner = &tokenizer.inner;
        let mut added = inner.get_added_tokens_decoder().into_iter();
        let forged = added.find(|(id, token)| {
            let ids = encode_plain(inner, &token.content, false);
            ids.is_ok_and(|ids| ids == [*id])
        });
        match forged {
            None => Ok(tokenizer),
            Some((_, token)) => Err(TokenizerError::Unsupported(format!(
                "by its pattern a text can hold the control token {}",
                token.content
            ))),
        }
    }

    /// Makes added tokens with these texts control tokens, which no message can contain, while
    /// replies still show them. Tokens that depend on the text around stay as they are.
    ///
    /// # Errors
    /// When the library refuses a token.
    pub fn guard(&mut self, texts: &[String]) -> Result<(), TokenizerError> {
        let added = self.inner.get_added_tokens_decoder();
        let added = added.into_values();
        let guarded = added.filter(|token| texts.contains(&token.content));
        let guarded: Vec<_> = guarded
            .filter(|token| !depends_on_text_around(token))
            .map(|token| tokenizers::AddedToken {
                special: true,
                ..token
            })
            .collect();
        for inner in std::iter::once(&mut self.inner).chain(&mut self.further) {
            inner
                .add_special_tokens(guarded.clone())
                .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        }
        self.control = control_tokens(&self.inner)?;
        Ok(())
    }

    /// Sets the control tokens that stay whole in messages of the assistant, where the template
    /// looks for them.
    pub fn look_for(&mut self, texts: &[String]) {
        let ids = texts.iter().filter_map(|text| self.inner.token_to_id(text));
        self.control.look_for(ids.collect());
    }

    /// Texts of added tokens.
    pub fn added(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder();
        added.into_values().map(|token| token.content).collect()
    }

    /// Makes replies show control tokens, for parsers. Messages still cannot forge the tokens.
    pub fn show(&mut self, texts: &[&str]) {
        for id in texts.iter().filter_map(|text| self.inner.token_to_id(text)) {
            self.special[id as usize] = false;
        }
    }

    /// Encodes a text; the texts of control tokens in it become control tokens.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        match self.encode_rendered_at_most(text, None, usize::MAX, None)? {
            Encoded::Whole(ids) => Ok(ids),
            Encoded::AtLeast(_) => unreachable!("no text has so many tokens"),
        }
    }

    /// [`Tokenizer::encode`] for a text that is a whole document: with the tokens that the
    /// definition puts around a document, if any.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode_document(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        Ok(self.framed(&self.encode(text)?))
    }

    fn framed(&self, ids: &[TokenId]) -> Vec<TokenId> {
        let (before, after) = &self.frame;
        [before, ids, after].concat()
    }

    /// [`Tokenizer::encode_document`] if the text is to be `framed` and [`Tokenizer::encode`]
    /// otherwise, up to `most` tokens.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode_at_most(
        &self,
        text: &str,
        framed: bool,
        most: usize,
        domain: u128,
    ) -> Result<Encoded, TokenizerError> {
        let encoded = self.encode_rendered_at_most(text, None, most, Some(domain))?;
        Ok(match encoded {
            Encoded::Whole(ids) if framed => Encoded::Whole(self.framed(&ids)),
            encoded => encoded,
        })
    }

    /// [`Tokenizer::encode`] for a rendered conversation that may have `most` tokens, in which
    /// `mark` breaks texts that must not become control tokens (see [`super::control`]). The marks
    /// are not encoded. Of text beyond `most` only the length is read. Texts are cached for
    /// `domain`, if there is one.
    ///
    /// # Errors
    /// When the library refuses the text.
    pub fn encode_rendered_at_most(
        &self,
        text: &str,
        mark: Option<char>,
        most: usize,
        domain: Option<u128>,
    ) -> Result<Encoded, TokenizerError> {
        let marks = mark.map_or(0, |mark| text.matches(mark).count() * mark.len_utf8());
        let at_least = self.tokens_of_bytes(text.len() - marks);
        if at_least > most {
            return Ok(Encoded::AtLeast(at_least));
        }
        let (mut ids, how) = (Vec::new(), (mark, most, domain));
        let mut from = 0;
        while let Some(found) = self.control.find(text, from) {
            work::step().map_err(TokenizerError::Stopped)?;
            self.encode_segment(&text[from..found.start], from == 0, how, &mut ids)?;
            ids.push(found.id);
            from = found.end;
            if ids.len() > most {
                return Ok(Encoded::AtLeast(ids.len().max(at_least)));
            }
        }
        self.encode_segment(&text[from..], from == 0, how, &mut ids)?;
        Ok(match ids.len() > most {
            true => Encoded::AtLeast(ids.len().max(at_least)),
            false => Encoded::Whole(ids),
        })
    }

    /// Appends the ids of the text between two control tokens; ends early once `out` has more than
    /// `most`. No token crosses a control token, so the ids depend only on the text and on whether
    /// it is the `first` of the document.
    fn encode_segment(
        &self,
        text: &str,
        first: bool,
        (mark, most, domain): (Option<char>, usize, Option<u128>),
        out: &mut Vec<TokenId>,
    ) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let text = match mark {
            Some(mark) if text.contains(mark) => Cow::Owned(text.replace(mark, "")),
            _ => Cow::Borrowed(text),
        };
        // The first text of a document is not cached if it is encoded differently.
        if first && self.further.is_some() {
            out.extend(encode_plain(&self.inner, &text, false)?);
            return Ok(());
        }
        let known = domain.and_then(|domain| self.remembered().get(domain, &text));
        if let Some(ids) = known {
            out.extend_from_slice(&ids);
            return Ok(());
        }
        let inner = self.further.as_ref().unwrap_or(&self.inner);
        let begin = out.len();
        let mut from = 0;
        while from < text.len() && out.len() <= most {
            work::step().map_err(TokenizerError::Stopped)?;
            let end = self.piece_end(&text, from)?;
            out.extend(encode_plain(inner, &text[from..end], false)?);
            from = end;
        }
        if let Some(domain) = domain.filter(|_| from == text.len()) {
            self.remembered().put(domain, &text, &out[begin..].into());
        }
        Ok(())
    }

    /// End of the piece of `text` from `from` on that is encoded in one call.
    fn piece_end(&self, text: &str, from: usize) -> Result<usize, TokenizerError> {
        if !self.cuts {
            return Ok(text.len());
        }
        let holds = |before: &str, after: &str| is_cut(&self.inner, before, after);
        let end = pieces::end(text, from, |before, after| {
            holds(before, after).unwrap_or(false)
        });
        end.ok_or_else(|| {
            let problem = format!(
                "more than {} bytes of it have no space and no end of a word",
                pieces::RUN_BYTES_MAX
            );
            TokenizerError::Encode(problem)
        })
    }

    /// Cache of encoded texts. The lock is held for one look-up, never while encoding.
    fn remembered(&self) -> MutexGuard<'_, Segments> {
        // A panic may lose an entry of the cache, which is harmless.
        let segments = self.segments.lock();
        segments.unwrap_or_else(PoisonError::into_inner)
    }

    /// Control tokens, which messages must not forge.
    pub fn control(&self) -> &ControlTokens {
        &self.control
    }

    /// Lower bound of the number of tokens of a text of `bytes` bytes, without encoding.
    pub fn tokens_of_bytes(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.longest_token_bytes)
    }

    /// Bytes of a token; none for an id that the tokenizer does not use.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Characters that a decoded text loses at its start.
    pub fn text_start(&self) -> TextStart {
        self.text_start
    }

    /// Whether a token structures the prompt and never shows in a reply's text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id as usize).copied().unwrap_or(true)
    }

    /// Id of a token by its text in the definition.
    pub fn id_of(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }
}

fn depends_on_text_around(token: &tokenizers::AddedToken) -> bool {
    token.single_word || token.lstrip || token.rstrip
}

/// The control tokens of a definition.
fn control_tokens(inner: &tokenizers::Tokenizer) -> Result<ControlTokens, TokenizerError> {
    let added = inner.get_added_tokens_decoder();
    let mut tokens = Vec::new();
    for (id, token) in added.into_iter().filter(|(_, token)| token.special) {
        if depends_on_text_around(&token) {
            let text = &token.content;
            let problem = format!("the control token {text:?} depends on the text around it");
            return Err(TokenizerError::Unsupported(problem));
        }
        tokens.push((token.content, id));
    }
    ControlTokens::new(tokens).map_err(TokenizerError::Invalid)
}

/// Tokens that the definition puts before and after a document, found by encoding one.
fn document_frame(
    inner: &tokenizers::Tokenizer,
) -> Result<(Vec<TokenId>, Vec<TokenId>), TokenizerError> {
    let bare = encode_plain(inner, "a", false)?;
    let framed = encode_plain(inner, "a", true)?;
    let mut windows = framed.windows(bare.len().max(1));
    let at = windows.position(|window| window == bare);
    let at = at.ok_or_else(|| {
        TokenizerError::Unsupported("documents are changed when they are framed".to_string())
    })?;
    Ok((framed[..at].to_vec(), framed[at + bare.len()..].to_vec()))
}

/// Encodes a text without control tokens.
fn encode_plain(
    inner: &tokenizers::Tokenizer,
    text: &str,
    framed: bool,
) -> Result<Vec<TokenId>, TokenizerError> {
    inner
        .encode_fast(text, framed)
        .map(|encoding| encoding.get_ids().to_vec())
        .map_err(|error| TokenizerError::Encode(error.to_string()))
}

/// Tokenizer for text that does not begin a document, if different: a definition may put a blank
/// only before the first word of a document.
fn further(
    inner: &tokenizers::Tokenizer,
    file: &[u8],
) -> Result<Option<tokenizers::Tokenizer>, TokenizerError> {
    let invalid = |error: String| TokenizerError::Invalid(error);
    let rule = serde_json::to_value(inner.get_pre_tokenizer());
    let mut rule = rule.map_err(|error| invalid(error.to_string()))?;
    if !begin_no_document(&mut rule) {
        return Ok(None);
    }
    let mut further =
        tokenizers::Tokenizer::from_bytes(file).map_err(|e| invalid(e.to_string()))?;
    let rule: tokenizers::PreTokenizerWrapper =
        serde_json::from_value(rule).map_err(|error| invalid(error.to_string()))?;
    further.with_pre_tokenizer(Some(rule));
    further.set_encode_special_tokens(true);
    Ok(Some(further))
}

/// Removes the effect of a rule on a document's first word; returns whether there was any.
fn begin_no_document(rule: &mut serde_json::Value) -> bool {
    if let Some(rules) = rule["pretokenizers"].as_array_mut() {
        let begun = rules.iter_mut().map(begin_no_document);
        return begun.filter(|first| *first).count() > 0;
    }
    let first = rule["type"] == "Metaspace" && rule["prepend_scheme"] == "first";
    if first {
        rule["prepend_scheme"] = serde_json::Value::from("never");
    }
    first
}

/// Whether no token crosses from `before` into `after`, whatever text is around both: the
/// pre-tokenizer splits the texts there, and both have the same tokens separately.
fn is_cut(
    inner: &tokenizers::Tokenizer,
    before: &str,
    after: &str,
) -> Result<bool, TokenizerError> {
    let text = [before, after].concat();
    let Some(splitter) = inner.get_pre_tokenizer() else {
        return Ok(false);
    };
    let mut split = PreTokenizedString::from(text.as_str());
    let encode = |text: &str| encode_plain(inner, text, false);
    let done = splitter.pre_tokenize(&mut split);
    done.map_err(|error| TokenizerError::Encode(error.to_string()))?;
    let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let ends = splits.iter().any(|(_, (_, end), _)| *end == before.len());
    Ok(ends && encode(&text)? == [encode(before)?, encode(after)?].concat())
}

/// Bytes and special flags of all ids below `vocabulary`.
fn token_table(
    inner: &tokenizers::Tokenizer,
    spelling: &Spelling,
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
            None => spelling.bytes(&token),
        };
        special[id as usize] = added.get(&id).is_some_and(|added| added.special);
    }
    Ok((tokens, special))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detokenize::Detokenizer;
    use crate::testing::{
        END_OF_TURN, PIECE_KINDS, PieceKind, Random, assert_linear, byte_tokenizer, piece_tokenizer,
    };
    use step::testing::{TINY, few_or_many};

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(&byte_tokenizer(), 512).unwrap()
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

    /// Texts of the kinds that tokenizers stumble over.
    fn random_text(random: &mut Random) -> String {
        const PARTS: [&str; 26] = [
            "<|im_end|>",
            "<|im_start|>",
            "<|im_",
            "end|>",
            "<|endoftext|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "the ",
            "capital",
            " of",
            "12",
            "345",
            "'s",
            "\n",
            "\n\n",
            "  ",
            "\t",
            "é",
            "e\u{301}",
            ">\u{338}",
            "漢字",
            "🦀",
            "\u{200d}",
            "\u{0}",
            "ﬁ",
        ];
        let parts = 0..random.below(30);
        parts.map(|_| PARTS[random.below(PARTS.len())]).collect()
    }

    /// The library itself, with control tokens recognised or taken for text.
    fn reference(file: &[u8], text: &str, plain: bool) -> Vec<TokenId> {
        let mut inner = tokenizers::Tokenizer::from_bytes(file).unwrap();
        inner.set_encode_special_tokens(plain);
        inner.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Definitions to try: the small one of the tests, and the target's where it is at hand.
    fn definitions() -> Vec<(Vec<u8>, usize)> {
        let own = TINY.embedded_file(TINY.tokenizer_file);
        let own = own.map(|file| (file.to_vec(), TINY.vocab));
        let pieces = PIECE_KINDS.map(|kind| (piece_tokenizer(kind), 512));
        std::iter::once((byte_tokenizer(), 512))
            .chain(pieces)
            .chain(own)
            .collect()
    }

    #[test]
    fn remembered_and_new_texts_encode_as_the_library_does() {
        for (file, vocabulary) in definitions() {
            let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
            let inner = tokenizers::Tokenizer::from_bytes(&file[..]).unwrap();
            let mut random = Random::new(8);
            for _ in 0..3000 {
                let text = random_text(&mut random);
                let expected = inner.encode_fast(text.as_str(), false).unwrap();
                for _ in 0..2 {
                    let found = tokenizer.encode_at_most(&text, false, usize::MAX, 0);
                    let expected = Encoded::Whole(expected.get_ids().to_vec());
                    assert_eq!(found.unwrap(), expected, "{text:?}");
                }
            }
        }
    }

    /// In pieces of many sizes, with all that could reach over a cut.
    #[test]
    fn a_long_text_has_the_tokens_of_the_whole() {
        for (file, vocabulary) in definitions() {
            let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
            let mut random = Random::new(11);
            for _ in 0..3 {
                let mut text = String::new();
                while text.len() < 4 * pieces::PIECE_BYTES {
                    text.push_str(&random_text(&mut random).replace("<|", "< |"));
                }
                let whole = encode_plain(&tokenizer.inner, &text, false).unwrap();
                assert!(tokenizer.encode(&text).unwrap() == whole);
            }
        }
    }

    /// Units that tell no words apart, or seem to, and those of which a tokenizer merges many.
    const HOSTILE: [&str; 12] = [
        "e\u{301}",
        "q\u{301}\u{323}",
        "\u{301}",
        "a",
        "ab1'",
        "漢",
        "🦀\u{200d}",
        " ",
        "\n \n",
        "=-",
        "it's",
        "x1\u{3000}",
    ];

    /// A text with long stretches of one unit each.
    fn hostile_text(random: &mut Random, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            let unit = HOSTILE[random.below(HOSTILE.len())];
            text.push_str(&unit.repeat(1 + random.below(bytes / 4 / unit.len())));
            text.push_str(&random_text(random).replace("<|", "< |"));
        }
        text
    }

    #[test]
    fn hostile_texts_have_the_tokens_of_the_whole_or_are_refused() {
        let (mut encoded, texts) = (0, few_or_many(2, 200));
        for (file, vocabulary) in definitions() {
            let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
            let mut random = Random::new(12);
            for _ in 0..texts {
                let text = hostile_text(&mut random, 4 * pieces::PIECE_BYTES);
                let Ok(ids) = tokenizer.encode(&text) else {
                    assert!(tokenizer.cuts);
                    continue;
                };
                encoded += 1;
                assert!(ids == encode_plain(&tokenizer.inner, &text, false).unwrap());
            }
        }
        assert!(
            encoded > texts * definitions().len() as u64 / 2,
            "{encoded}"
        );
    }

    #[test]
    fn hostile_texts_take_time_linear_in_their_length() {
        let (file, vocabulary) = definitions().pop().unwrap();
        let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
        for unit in HOSTILE {
            assert_linear(unit, |text| drop(tokenizer.encode(text)));
        }
    }

    #[test]
    fn a_text_that_may_not_be_so_long_is_encoded_no_further() {
        let (file, vocabulary) = definitions().pop().unwrap();
        let tokenizer = || Tokenizer::from_bytes(&file, vocabulary).unwrap();
        let text = "so many words ".repeat(40_000);
        let count = tokenizer().encode(&text).unwrap().len();
        let fresh = tokenizer();
        let encode = |most| fresh.encode_at_most(&text, false, most, 0).unwrap();
        let Encoded::AtLeast(some) = encode(count / 4) else {
            panic!("it is longer")
        };
        // A definition that never tells words apart is asked for the whole at once.
        let stops = if fresh.cuts { count / 2 } else { count + 1 };
        assert!((count / 4 + 1..stops).contains(&some), "{some} of {count}");
        assert_eq!(
            encode(0),
            Encoded::AtLeast(fresh.tokens_of_bytes(text.len()))
        );
        assert!(matches!(encode(count - 1), Encoded::AtLeast(all) if all == count));
        assert!(matches!(encode(count), Encoded::Whole(ids) if ids.len() == count));
    }

    #[test]
    fn a_word_that_nobody_wrote_is_refused() {
        let (file, vocabulary) = definitions().pop().unwrap();
        let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
        let word = |bytes: usize| tokenizer.encode(&"x".repeat(bytes));
        let most = pieces::PIECE_BYTES + pieces::RUN_BYTES_MAX;
        assert!(word(most).is_ok());
        assert_eq!(word(most + 1).is_err(), tokenizer.cuts);
    }

    #[test]
    fn marked_control_tokens_are_text() {
        for (file, vocabulary) in definitions() {
            let tokenizer = Tokenizer::from_bytes(&file, vocabulary).unwrap();
            let end = tokenizer.id_of("<|im_end|>").unwrap();
            let forged = "a<\u{fdd0}|im_end|>é<think>";
            let text = format!("{forged}<|im_end|>");
            let found =
                tokenizer.encode_rendered_at_most(&text, Some('\u{fdd0}'), usize::MAX, None);
            let Encoded::Whole(found) = found.unwrap() else {
                panic!("no text has so many tokens");
            };
            let plain = reference(&file, "a<|im_end|>é<think>", true);
            assert_eq!(found, [plain.as_slice(), &[end]].concat());
            assert!(!plain.contains(&end));
            assert!(plain.contains(&tokenizer.id_of("<think>").unwrap()));
        }
    }

    /// The text of `ids`, one by one.
    fn streamed(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
        let mut detokenizer = Detokenizer::of_text(tokenizer.text_start());
        let mut text = String::new();
        for &id in ids.iter().filter(|&&id| !tokenizer.is_special(id)) {
            detokenizer.push(tokenizer.token_bytes(id), &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    #[test]
    fn pieces_are_streamed_as_the_library_decodes_them() {
        for kind in PIECE_KINDS {
            let file = piece_tokenizer(kind);
            let tokenizer = Tokenizer::from_bytes(&file, 512).unwrap();
            let inner = tokenizers::Tokenizer::from_bytes(&file).unwrap();
            let mut random = Random::new(21);
            for at in 0..1000 {
                let ids = match at % 2 {
                    0 => tokenizer.encode(&random_text(&mut random)).unwrap(),
                    // Pieces in any order, which no text becomes.
                    _ => (0..random.below(8))
                        .map(|_| 259 + random.below(32) as TokenId)
                        .collect(),
                };
                let whole = inner.decode(&ids, true).unwrap();
                assert_eq!(streamed(&tokenizer, &ids), whole, "{kind:?} {ids:?}");
            }
        }
    }

    #[test]
    fn pieces_of_a_character_wait_for_each_other() {
        let file = piece_tokenizer(PieceKind::Gemma);
        let tokenizer = Tokenizer::from_bytes(&file, 512).unwrap();
        let ids = tokenizer.encode("🦀").unwrap();
        assert_eq!(ids.len(), 4, "one token a byte");
        let (mut detokenizer, mut out) = (Detokenizer::default(), String::new());
        for (at, &id) in ids.iter().enumerate() {
            assert_eq!(out.is_empty(), at < 4);
            detokenizer.push(tokenizer.token_bytes(id), &mut out);
        }
        assert_eq!(out, "🦀");
    }

    #[test]
    fn the_first_text_of_a_document_alone_is_given_a_blank() {
        let encode = |kind, text: &str| {
            let tokenizer = Tokenizer::from_bytes(&piece_tokenizer(kind), 512).unwrap();
            let ids = tokenizer.encode(text).unwrap();
            let bytes = ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).to_vec());
            String::from_utf8(bytes.collect()).unwrap()
        };
        let text = "the<|im_end|>the";
        assert_eq!(encode(PieceKind::Gemma, text), text);
        assert_eq!(encode(PieceKind::Llama2, text), " the<|im_end|> the");
        assert_eq!(encode(PieceKind::Mistral, text), " the<|im_end|>the");
    }

    #[test]
    fn a_control_token_that_takes_in_blanks_is_refused() {
        let file = String::from_utf8(byte_tokenizer()).unwrap();
        let file = file.replacen("\"lstrip\":false", "\"lstrip\":true", 1);
        let error = Tokenizer::from_bytes(file.as_bytes(), 512).err().unwrap();
        assert!(matches!(error, TokenizerError::Unsupported(_)), "{error}");
    }

    #[test]
    fn a_document_has_the_frame_of_its_definition() {
        let plain = tokenizer();
        assert_eq!(plain.encode_document("ab").unwrap(), [97, 98]);
        let mut file: serde_json::Value = serde_json::from_slice(&byte_tokenizer()).unwrap();
        file["post_processor"] = serde_json::json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256],
                                                 "tokens": ["<|endoftext|>"]}}});
        let framed = Tokenizer::from_bytes(file.to_string().as_bytes(), 512).unwrap();
        assert_eq!(framed.encode_document("ab").unwrap(), [256, 97, 98]);
        assert_eq!(framed.encode("ab").unwrap(), [97, 98]);
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
    fn a_control_token_that_is_shown_cannot_be_forged_either() {
        let mut tokenizer = tokenizer();
        tokenizer.show(&["<|im_end|>", "no such token"]);
        assert!(!tokenizer.is_special(END_OF_TURN));
        assert!(tokenizer.is_special(END_OF_TURN + 1));
        assert!(tokenizer.control().find("a<|im_end|>", 0).is_some());
    }

    #[test]
    fn the_lower_bound_never_exceeds_the_count() {
        let tokenizer = tokenizer();
        for text in ["", "a", "<|endoftext|><|endoftext|>", "plain text"] {
            assert!(tokenizer.tokens_of_bytes(text.len()) <= tokenizer.encode(text).unwrap().len());
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
