//! Tokenizer, chat template and sampling defaults for a checkpoint of random weights.
//!
//! The tokenizer has the model's vocabulary and its added tokens at their ids. A text becomes one
//! token per byte: there are no merges, and other ids are filler words that only random replies
//! have.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::spelling::byte_symbol;
use super::tekken;
use step::Facts;

/// Template that frames conversations as ChatML, tools and reasoning included.
const TEMPLATE: &str = include_str!("drawn/chat_template.jinja");
/// Mark after each turn in `TEMPLATE`, which is replaced by the model's own end of turn.
const END_OF_TURN: &str = "<|im_end|>";
const GENERATION: &str = "generation_config.json";
/// Regular expression of one character, so that no token has several.
const CHARACTER: &str = "(?s).";
/// Blank before a filler, as byte-level tokenizers write it.
const BLANK: char = 'Ġ';
const LETTERS: u32 = 26;
/// Number of tokens that are single bytes.
const BYTES: usize = u8::MAX as usize + 1;

/// Name and content of a file.
type Named = (&'static str, String);

/// Files of a model; without tokenizer and template if the target names none.
pub fn files(facts: &Facts) -> Vec<Named> {
    named([
        (facts.tokenizer_file, definition(facts).to_string()),
        (facts.template_file, template(facts)),
        (GENERATION, format!("{:#}\n", generation(facts))),
    ])
}

/// Files whose name is not empty: a target names no file that its model lacks.
fn named(files: [Named; 3]) -> Vec<Named> {
    let files = files.into_iter();
    files.filter(|(name, _)| !name.is_empty()).collect()
}

/// The template with the model's own end of turn and tags of reasoning.
fn template(facts: &Facts) -> String {
    let mut added = facts.added_tokens.iter();
    let stop = added.find(|(id, _)| facts.stop_tokens.first() == Some(id));
    let text = TEMPLATE.replace(END_OF_TURN, stop.map_or(END_OF_TURN, |(_, text)| text));
    match facts.think_open {
        "" => text,
        open => text
            .replace("<think>", open)
            .replace("</think>", facts.think_close),
    }
}

fn generation(facts: &Facts) -> Value {
    json!({
        "do_sample": facts.temperature > 0.0,
        "eos_token_id": facts.stop_tokens,
        "temperature": decimal(facts.temperature),
        "top_k": facts.top_k,
        "top_p": decimal(facts.top_p),
    })
}

/// Number in JSON with the shortest decimal text of `value`.
fn decimal(value: f32) -> Value {
    let text = format!("{value:?}");
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

/// Tokenizer in the format that its file name implies.
fn definition(facts: &Facts) -> Value {
    match facts.tokenizer_file {
        tekken::FILE => ranked(facts),
        _ => tokenizer(facts),
    }
}

/// Tokenizer in Mistral's format, where the added tokens are the special ones.
fn ranked(facts: &Facts) -> Value {
    let special = facts.added_tokens.iter();
    let special = special.map(|&(id, text)| json!({"rank": id, "token_str": text}));
    let fillers = free_ids(facts).skip(BYTES);
    let fillers = fillers.map(|id| filler(id).replace(BLANK, " ").into_bytes());
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]).chain(fillers);
    let entry =
        |(rank, bytes)| json!({"rank": rank, "token_bytes": base64::encode::<Vec<u8>>(bytes)});
    json!({
        "config": {
            "pattern": CHARACTER,
            "default_vocab_size": facts.vocab,
            "default_num_special_tokens": free_ids(facts).start,
        },
        "vocab": (0..).zip(bytes).map(entry).collect::<Vec<_>>(),
        "special_tokens": special.collect::<Vec<_>>(),
    })
}

/// Tokenizer in the format of the `tokenizers` library.
fn tokenizer(facts: &Facts) -> Value {
    let added = facts.added_tokens.iter().map(|&(id, content)| {
        json!({
            "id": id,
            "content": content,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": content.starts_with("<|") || facts.stop_tokens.contains(&id),
        })
    });
    let byte_level = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": false,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocabulary(facts),
            "merges": [],
        },
    })
}

/// Vocabulary of bytes, then fillers, and the added tokens, since the library would give other ids
/// to added tokens that the vocabulary lacks.
fn vocabulary(facts: &Facts) -> Map<String, Value> {
    let bytes = (0..=u8::MAX).map(|byte| byte_symbol(byte).to_string());
    let bytes = bytes.zip(free_ids(facts));
    let bytes = bytes.map(|(word, id)| (word, id.into()));
    let others = free_ids(facts).skip(BYTES);
    let fillers = others.map(|id| (filler(id), id.into()));
    let added = facts.added_tokens.iter();
    let added = added.map(|&(id, text)| (text.to_string(), id.into()));
    bytes.chain(fillers).chain(added).collect()
}

/// Ids of bytes and fillers: those before the added tokens, or after them if they come first.
fn free_ids(facts: &Facts) -> Range<u32> {
    let end = facts.added_tokens.last().map_or(0, |(last, _)| last + 1);
    match facts.added_tokens.first() {
        Some((0, _)) | None => end..facts.vocab as u32,
        Some(&(first, _)) => 0..first,
    }
}

/// Filler word of an id: the id's digits as letters.
fn filler(id: u32) -> String {
    let mut word = vec![BLANK];
    let mut rest = id;
    while rest > 0 {
        let letter = b'a' + (rest % LETTERS) as u8;
        word.push(char::from(letter));
        rest /= LETTERS;
    }
    word.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;
    use crate::template::special::SpecialTokens;
    use crate::tokenizer::Tokenizer;
    use step::testing::TINY;

    fn drawn(facts: &Facts) -> Tokenizer {
        let (name, file) = (facts.tokenizer_file, definition(facts).to_string());
        Tokenizer::of_file(name, file.as_bytes(), facts.vocab).unwrap()
    }

    /// Facts of a model whose special tokens come first, one of them without a text.
    const SPECIAL_FIRST: Facts = Facts {
        added_tokens: &[(0, "<unk>"), (1, "<s>"), (3, "[INST]")],
        tokenizer_file: tekken::FILE,
        ..TINY
    };

    #[test]
    fn a_text_has_a_token_per_byte_and_comes_back() {
        for facts in [&TINY, &SPECIAL_FIRST] {
            let (tokenizer, text) = (drawn(facts), "No merges: héllo wk,\n\t漢字.");
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(ids.len(), text.len());
            let bytes = ids.iter().flat_map(|&id| tokenizer.token_bytes(id));
            assert_eq!(bytes.copied().collect::<Vec<_>>(), text.as_bytes());
        }
    }

    #[test]
    fn added_tokens_have_the_ids_of_the_manifest() {
        let before = Facts {
            added_tokens: &[(0, "<s>"), (1, "</s>")],
            ..TINY
        };
        for facts in [&TINY, &before, &SPECIAL_FIRST] {
            let tokenizer = drawn(facts);
            for &(id, text) in facts.added_tokens {
                assert_eq!(tokenizer.id_of(text), Some(id), "{text}");
            }
        }
    }

    #[test]
    fn a_model_without_a_tokenizer_gets_no_file_for_it() {
        let file = |name| (name, String::new());
        let chosen = named([file(""), file(""), file(GENERATION)]);
        assert_eq!(chosen, [file(GENERATION)]);
    }

    #[test]
    fn the_template_loads() {
        let template = Template::load(&template(&TINY), SpecialTokens::default()).unwrap();
        assert!(crate::identity::check_template(&TINY, &template).is_ok());
    }

    #[test]
    fn fillers_are_distinct_words() {
        let added = TINY.added_tokens.len();
        assert_eq!(vocabulary(&TINY).len(), free_ids(&TINY).len() + added);
        assert_eq!(filler(256 + 26), "Ġwk");
    }
}
