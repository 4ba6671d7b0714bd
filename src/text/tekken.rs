//! Conversion of `tekken.json`, Mistral's own definition of a tokenizer, to the `tokenizer.json` of
//! the `tokenizers` library: byte-level pairs, merged by the ranks of the merged tokens, whose ids
//! come after those of the special tokens.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::spelling::byte_symbol;
use super::tokenizer::TokenizerError;

/// Name of the file in a checkpoint.
pub const FILE: &str = "tekken.json";
/// Special token that begins a document.
const BEGIN: &str = "<s>";

/// Members of `tekken.json` that are read.
#[derive(Deserialize)]
struct Tekken {
    config: Config,
    vocab: Vec<Entry>,
    /// Special tokens; None in early files.
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    /// Expression whose matches are encoded separately.
    pattern: String,
    /// Number of ids: special tokens, then the first entries of the vocabulary.
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Entry {
    rank: usize,
    /// Bytes of the token in base64.
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// Content of `tokenizer.json`.
#[derive(Serialize)]
struct Definition<'a> {
    version: &'static str,
    added_tokens: Vec<Value>,
    pre_tokenizer: Value,
    post_processor: Option<Value>,
    decoder: Value,
    model: Pairs<'a>,
}

#[derive(Serialize)]
struct Pairs<'a> {
    r#type: &'static str,
    /// Whether a match that is a token becomes this token, whatever its merges give.
    ignore_merges: bool,
    vocab: HashMap<&'a str, usize>,
    merges: Vec<[&'a str; 2]>,
}

/// The content of `tokenizer.json` for the content `file` of `tekken.json`.
///
/// # Errors
/// The fault of the file, in words without a fix.
pub fn definition(file: &[u8]) -> Result<Vec<u8>, TokenizerError> {
    let tekken: Tekken = serde_json::from_slice(file).map_err(|error| invalid(&error))?;
    let specials = specials(&tekken)?;
    let words = words(&tekken, specials.len())?;
    let ids = specials.iter().chain(&words).map(String::as_str);
    let vocab: HashMap<&str, usize> = ids.zip(0..).collect();
    if vocab.len() < specials.len() + words.len() {
        return Err(invalid(&"two tokens have one text"));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false});
    let pattern = json!({"type": "Split", "pattern": {"Regex": tekken.config.pattern},
        "behavior": "Isolated", "invert": false});
    let definition = Definition {
        version: "1.0",
        added_tokens: specials.iter().zip(0..).map(added).collect(),
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [pattern, byte_level]}),
        post_processor: vocab.get(BEGIN).map(|id| begun_by(*id)),
        decoder: byte_level,
        model: Pairs {
            r#type: "BPE",
            ignore_merges: true,
            merges: words.iter().flat_map(|word| splits(word, &vocab)).collect(),
            vocab,
        },
    };
    serde_json::to_vec(&definition).map_err(|error| invalid(&error))
}

fn invalid(problem: &dyn std::fmt::Display) -> TokenizerError {
    TokenizerError::Invalid(format!("{FILE}: {problem}"))
}

/// Texts of the special tokens in the order of their ids; ids without a text in the file get one.
fn specials(tekken: &Tekken) -> Result<Vec<String>, TokenizerError> {
    let named = tekken.special_tokens.as_ref();
    let named = named.ok_or_else(|| invalid(&"names no special_tokens"))?;
    let count = tekken.config.default_num_special_tokens;
    let mut texts: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    for Special { rank, token_str } in named {
        let text = texts.get_mut(*rank);
        let text = text.ok_or_else(|| {
            let problem = format!("{token_str} is token {rank} of {count} special ones");
            invalid(&problem)
        })?;
        text.clone_from(token_str);
    }
    Ok(texts)
}

/// Texts of the tokens after the `specials`, with a symbol for each byte.
fn words(tekken: &Tekken, specials: usize) -> Result<Vec<String>, TokenizerError> {
    let size = tekken.config.default_vocab_size;
    let count = size.checked_sub(specials);
    let entries = count.and_then(|count| tekken.vocab.get(..count));
    let entries = entries.ok_or_else(|| {
        let problem = format!(
            "has {specials} special tokens and {} others, not the {size} of default_vocab_size",
            tekken.vocab.len()
        );
        invalid(&problem)
    })?;
    let word = |(at, entry): (usize, &Entry)| {
        let bytes = base64::decode(&entry.token_bytes).map_err(|error| invalid(&error))?;
        match entry.rank == at {
            true => Ok(bytes.into_iter().map(byte_symbol).collect()),
            false => Err(invalid(&format!("entry {at} has rank {}", entry.rank))),
        }
    };
    entries.iter().enumerate().map(word).collect()
}

fn added((text, id): (&String, usize)) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

/// Pairs of tokens that together are `word`; each of these pairs may be merged to `word`.
fn splits<'a>(word: &'a str, vocab: &HashMap<&str, usize>) -> impl Iterator<Item = [&'a str; 2]> {
    let cuts = word.char_indices().skip(1).map(|(at, _)| word.split_at(at));
    let cuts: Vec<[&str; 2]> = cuts
        .map(|(left, right)| [left, right])
        .filter(|pair| pair.iter().all(|part| vocab.contains_key(part)))
        .collect();
    cuts.into_iter()
}

/// Post-processor that puts the token `id` before a document.
fn begun_by(id: usize) -> Value {
    let begin = json!({"SpecialToken": {"id": BEGIN, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    json!({"type": "TemplateProcessing", "single": [begin, text("A")],
        "pair": [begin, text("A"), text("B")],
        "special_tokens": {BEGIN: {"id": BEGIN, "ids": [id], "tokens": [BEGIN]}}})
}

#[cfg(test)]
mod tests {
    use step::testing::TINY;
    use step::{Facts, ToolFormat};

    use super::*;
    use crate::chat::ChatModel;
    use crate::template::special::SpecialTokens;
    use crate::template::{Conversation, Template};
    use crate::testing::{Random, rechunk_text};
    use crate::tokenizer::{Encoded, Tokenizer};

    /// A small vocabulary with texts, conversations and their ids, by `mistral_common`.
    const GOLDEN: &str = include_str!("tekken/golden.json");

    const MARK: char = '\u{fdd0}';

    fn golden() -> Value {
        serde_json::from_str(GOLDEN).unwrap()
    }

    fn tokenizer(tekken: &Value) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::of_file(FILE, tekken.to_string().as_bytes(), 1 << 17)
    }

    #[test]
    fn texts_have_the_ids_of_the_publisher_s_library() {
        let golden = golden();
        let tokenizer = tokenizer(&golden["tekken"]).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            // The library knows no control tokens in texts: they are broken, as in messages.
            let broken: String = text
                .chars()
                .flat_map(|c| [Some(c), "[<".contains(c).then_some(MARK)])
                .flatten()
                .collect();
            let mut ids = tokenizer.encode_document("").unwrap();
            let found = tokenizer.encode_rendered_at_most(&broken, Some(MARK), usize::MAX, None);
            let Encoded::Whole(found) = found.unwrap() else {
                panic!("no text has so many tokens");
            };
            ids.extend(found);
            assert_eq!(json!(ids), case["ids"], "{text:?}");
        }
    }

    const TEMPLATE: &str =
        include_str!("../../targets/_model/mistral-small-4-119b/chat_template.jinja");
    static FACTS: Facts = Facts {
        vocab: 1 << 17,
        stop_tokens: &[2],
        tool_format: Some(ToolFormat::Mistral),
        think_open: "[THINK]",
        think_close: "[/THINK]",
        added_tokens: &[(2, "</s>"), (34, "[THINK]"), (35, "[/THINK]")],
        ..TINY
    };

    #[test]
    fn conversations_have_the_ids_of_the_publisher_s_library() {
        let golden = golden();
        let template = Template::load(TEMPLATE, SpecialTokens::default()).unwrap();
        let tokenizer = tokenizer(&golden["tekken"]).unwrap();
        let chat = ChatModel::new(&FACTS, tokenizer, template).unwrap();
        for talk in golden["talks"].as_array().unwrap() {
            let list = |name: &str| talk[name].as_array().unwrap().clone();
            let conversation = Conversation {
                messages: list("messages"),
                tools: list("tools"),
                add_generation_prompt: true,
                enable_thinking: talk["thinking"] == true,
                ..Conversation::default()
            };
            let prompt = chat.prompt(&conversation, 0, usize::MAX).unwrap();
            assert_eq!(json!(prompt.tokens), talk["ids"], "{}", talk["messages"]);
        }
        let counted = Conversation {
            messages: vec![json!({"role": "user", "content": "Hi"})],
            add_generation_prompt: true,
            enable_thinking: true,
            opens_reasoning: true,
            ..Conversation::default()
        };
        let prompt = chat.prompt(&counted, 0, usize::MAX).unwrap();
        assert!(prompt.reasoning_opened && prompt.tokens.ends_with(&[4, 34]));
        let abilities = chat.template.abilities();
        assert!(abilities.system && abilities.tools && chat.tool_format.is_some());
    }

    /// Merges by the ranks of bytes, the lowest and then the first pair, as the file means it.
    fn merged(text: &str, ranks: &HashMap<Vec<u8>, usize>) -> Vec<usize> {
        let mut parts: Vec<Vec<u8>> = text.bytes().map(|byte| vec![byte]).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, pair)| Some((*ranks.get(&pair.concat())?, at)));
            let Some((_, at)) = ranked.min() else {
                return parts.iter().map(|part| ranks[part]).collect();
            };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
    }

    #[test]
    fn a_token_may_come_of_any_pair() {
        let mut tekken = golden()["tekken"].take();
        let count = tekken["vocab"].as_array().unwrap().len();
        tekken["config"] = json!({"pattern": "(?s).+", "default_vocab_size": count,
            "default_num_special_tokens": 0});
        tekken["special_tokens"] = json!([]);
        let entries = tekken["vocab"].as_array().unwrap().iter().enumerate();
        let bytes = |entry: &Value| base64::decode(entry["token_bytes"].as_str().unwrap()).unwrap();
        let ranks = entries.map(|(at, entry)| (bytes(entry), at)).collect();
        let tokenizer = tokenizer(&tekken).unwrap();
        let mut random = Random::new(5);
        for case in golden()["cases"].as_array().unwrap() {
            for text in rechunk_text(case["text"].as_str().unwrap(), &mut random) {
                let ids = tokenizer.encode(text).unwrap();
                let expected = merged(text, &ranks);
                // A text that is a token is that one.
                let whole = ranks.get(text.as_bytes()).map(|rank| vec![*rank]);
                let expected = whole.unwrap_or(expected);
                let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
                assert_eq!(ids, expected, "{text:?}");
            }
        }
    }

    #[test]
    fn a_special_token_is_text_in_a_text_and_has_its_id_elsewhere() {
        let tokenizer = tokenizer(&golden()["tekken"]).unwrap();
        assert_eq!(tokenizer.id_of("[THINK]"), Some(34));
        assert_eq!(tokenizer.id_of("<SPECIAL_20>"), Some(20));
        assert_eq!(tokenizer.encode("[INST][/INST]").unwrap(), [3, 4]);
        assert!(tokenizer.is_special(3) && !tokenizer.is_special(1000));
    }

    #[test]
    fn what_is_no_such_definition_is_refused_in_words() {
        type Edit = fn(&mut Value);
        let edits: [(Edit, &str); 7] = [
            (
                |tekken| tekken["config"]["pattern"] = json!("(?s).+"),
                "can hold the control token",
            ),
            (|tekken| drop(tekken["config"].take()), "Config"),
            (
                |tekken| drop(tekken["special_tokens"].take()),
                "special_tokens",
            ),
            (
                |tekken| tekken["config"]["default_vocab_size"] = json!(99_999),
                "default_vocab_size",
            ),
            (
                |tekken| tekken["vocab"][7]["rank"] = json!(8),
                "entry 7 has rank 8",
            ),
            (
                |tekken| tekken["vocab"][300]["token_bytes"] = json!("AA=="),
                "two tokens have one text",
            ),
            (
                |tekken| tekken["special_tokens"][1]["rank"] = json!(4000),
                "<s> is token 4000",
            ),
        ];
        for (edit, words) in edits {
            let mut tekken = golden()["tekken"].take();
            edit(&mut tekken);
            let said = tokenizer(&tekken).err().unwrap().to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
