//! The tokenizer of a GGUF as Hugging Face's `tokenizer.json`: byte-level BPE.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::GgufError;
use super::read::{Gguf, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TEMPLATE: &str = "tokenizer.chat_template";
/// Keys that begin with `tokenizer.ggml.`.
const KNOWN: [&str; 11] = [
    "add_bos_token",
    "add_eos_token",
    "add_space_prefix",
    "bos_token_id",
    "eos_token_id",
    "merges",
    "model",
    "padding_token_id",
    "pre",
    "token_type",
    "tokens",
];
const UNKNOWN: &str = "unknown_token_id";

/// Types of tokens, of `enum llama_token_type`.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How a text is cut before pairs are merged, by the name that llama.cpp has for it: whether each
/// digit stands alone. GPT-2's expression cuts the rest.
const PRE_TOKENIZERS: [(&str, bool); 2] = [("gpt-2", false), ("smollm", true)];

/// Everything that is known of the tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// Text of each token, by id.
    texts: Vec<String>,
    /// Ids and whether the token structures a prompt, ascending.
    added: Vec<(usize, bool)>,
    merges: Vec<(String, String)>,
    single_digits: bool,
    pub bos: usize,
    pub eos: usize,
    pub pad: usize,
    unknown: Option<usize>,
    /// Chat template.
    pub template: String,
}

impl Tokens {
    /// The tokenizer that the metadata describes.
    ///
    /// # Errors
    /// Another kind of tokenizer, or lists that do not fit each other.
    pub fn of(gguf: &Gguf<'_>) -> Result<Tokens, GgufError> {
        gguf.only("tokenizer.ggml.", &[&KNOWN[..], &[UNKNOWN]].concat())?;
        for flag in ["add_bos_token", "add_eos_token", "add_space_prefix"] {
            gguf.unset(&format!("tokenizer.ggml.{flag}"))?;
        }
        let model = gguf.text(MODEL)?;
        if model != "gpt2" {
            return gguf.wrong(MODEL, format!("`{model}` is not `gpt2`, byte-level BPE"));
        }
        let texts = texts(gguf)?;
        let special = |name: &str| special(gguf, name, texts.len());
        let has_unknown = gguf
            .metadata
            .contains_key(&format!("tokenizer.ggml.{UNKNOWN}"));
        Ok(Tokens {
            added: added(gguf, texts.len())?,
            merges: merges(gguf, &texts)?,
            single_digits: single_digits(gguf)?,
            bos: special("bos_token_id")?,
            eos: special("eos_token_id")?,
            pad: special("padding_token_id")?,
            unknown: has_unknown.then(|| special(UNKNOWN)).transpose()?,
            template: gguf.text(TEMPLATE)?.to_string(),
            texts,
        })
    }

    /// `tokenizer.json`.
    pub fn definition(&self) -> Definition<'_> {
        let added = self.added.iter().map(|&(id, special)| Added {
            id,
            content: &self.texts[id],
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special,
        });
        let digits = self.single_digits.then_some(Cutter::Digits {
            individual_digits: true,
        });
        let pretokenizers = digits.into_iter().chain([BYTE_LEVEL]).collect();
        Definition {
            version: "1.0",
            truncation: None,
            padding: None,
            added_tokens: added.collect(),
            normalizer: None,
            pre_tokenizer: Cutter::Sequence { pretokenizers },
            post_processor: None,
            decoder: BYTE_LEVEL,
            model: Model {
                kind: "BPE",
                dropout: None,
                unk_token: None,
                continuing_subword_prefix: None,
                end_of_word_suffix: None,
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: false,
                vocab: Vocabulary(&self.texts),
                merges: &self.merges,
            },
        }
    }

    /// `tokenizer_config.json`.
    pub fn config(&self, positions: usize) -> TokenizerConfig<'_> {
        TokenizerConfig {
            add_bos_token: false,
            add_prefix_space: false,
            bos_token: &self.texts[self.bos],
            clean_up_tokenization_spaces: false,
            eos_token: &self.texts[self.eos],
            model_max_length: positions,
            pad_token: &self.texts[self.pad],
            tokenizer_class: "PreTrainedTokenizerFast",
            unk_token: self.unknown.map(|id| self.texts[id].as_str()),
        }
    }

    /// `generation_config.json`.
    pub fn generation_config(&self) -> GenerationConfig {
        GenerationConfig {
            bos_token_id: self.bos,
            eos_token_id: self.eos,
            pad_token_id: self.pad,
        }
    }
}

fn texts(gguf: &Gguf<'_>) -> Result<Vec<String>, GgufError> {
    let texts = gguf.texts(TOKENS)?;
    let mut sorted = texts.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => gguf.wrong(TOKENS, format!("{:?} comes twice", pair[0])),
        None => Ok(texts.into_iter().map(String::from).collect()),
    }
}

/// Tokens that are found before pairs are merged.
fn added(gguf: &Gguf<'_>, count: usize) -> Result<Vec<(usize, bool)>, GgufError> {
    let types = gguf.list(TYPES)?;
    if types.len() != count {
        let rule = format!("has {} items, of {count} tokens", types.len());
        return gguf.wrong(TYPES, rule);
    }
    let mut added = Vec::new();
    for (id, kind) in types.iter().enumerate() {
        let number = match kind {
            Value::Signed(number) => number.cast_unsigned(),
            Value::Unsigned(number) => *number,
            _ => 0,
        };
        match number {
            NORMAL => {}
            CONTROL | USER_DEFINED => added.push((id, number == CONTROL)),
            _ => {
                let rule = format!(
                    "token {id} is of {kind:?}, not of {NORMAL}, {CONTROL} or {USER_DEFINED}"
                );
                return gguf.wrong(TYPES, rule);
            }
        }
    }
    Ok(added)
}

/// Pairs that become one token, the first ones first.
fn merges(gguf: &Gguf<'_>, texts: &[String]) -> Result<Vec<(String, String)>, GgufError> {
    let known: std::collections::HashSet<&str> = texts.iter().map(String::as_str).collect();
    let pair = |merge: &str| {
        let (left, right) = merge
            .split_once(' ')
            .filter(|(_, right)| !right.contains(' '))?;
        let whole = format!("{left}{right}");
        let all = [left, right, &whole]
            .iter()
            .all(|part| known.contains(part));
        all.then(|| (left.to_string(), right.to_string()))
    };
    let merges = gguf
        .texts(MERGES)?
        .into_iter()
        .map(|merge| match pair(merge) {
            Some(pair) => Ok(pair),
            None => gguf.wrong(
                MERGES,
                format!("{merge:?} is no pair of tokens that make one"),
            ),
        });
    merges.collect()
}

fn single_digits(gguf: &Gguf<'_>) -> Result<bool, GgufError> {
    let name = gguf.text(PRE)?;
    let known = PRE_TOKENIZERS.iter().find(|(known, _)| *known == name);
    match known {
        Some((_, digits)) => Ok(*digits),
        None => {
            let known = PRE_TOKENIZERS.map(|(known, _)| known).join(", ");
            gguf.wrong(PRE, format!("`{name}` is none of {known}"))
        }
    }
}

fn special(gguf: &Gguf<'_>, name: &str, count: usize) -> Result<usize, GgufError> {
    let key = format!("tokenizer.ggml.{name}");
    match gguf.whole(&key)? {
        id if id < count => Ok(id),
        id => gguf.wrong(&key, format!("{id} is no token of {count}")),
    }
}

/// `tokenizer.json`.
#[derive(serde::Serialize)]
pub struct Definition<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<Added<'a>>,
    normalizer: Option<()>,
    pre_tokenizer: Cutter,
    post_processor: Option<()>,
    decoder: Cutter,
    model: Model<'a>,
}

#[derive(serde::Serialize)]
struct Added<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// A part of the definition that cuts texts; the last one joins them as well.
#[derive(serde::Serialize)]
#[serde(tag = "type")]
enum Cutter {
    Sequence {
        pretokenizers: Vec<Cutter>,
    },
    Digits {
        individual_digits: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
}

const BYTE_LEVEL: Cutter = Cutter::ByteLevel {
    add_prefix_space: false,
    trim_offsets: true,
    use_regex: true,
};

#[derive(serde::Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<()>,
    /// None: bytes without a token of their own are left out, as llama.cpp leaves them out.
    unk_token: Option<()>,
    continuing_subword_prefix: Option<()>,
    end_of_word_suffix: Option<()>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocabulary<'a>,
    merges: &'a [(String, String)],
}

/// Texts and ids, in the order of ids.
struct Vocabulary<'a>(&'a [String]);

impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (id, text) in self.0.iter().enumerate() {
            map.serialize_entry(text, &id)?;
        }
        map.end()
    }
}

/// `tokenizer_config.json`.
#[derive(serde::Serialize)]
pub struct TokenizerConfig<'a> {
    add_bos_token: bool,
    add_prefix_space: bool,
    bos_token: &'a str,
    clean_up_tokenization_spaces: bool,
    eos_token: &'a str,
    model_max_length: usize,
    pad_token: &'a str,
    tokenizer_class: &'static str,
    unk_token: Option<&'a str>,
}

/// `generation_config.json`.
#[derive(serde::Serialize)]
pub struct GenerationConfig {
    bos_token_id: usize,
    eos_token_id: usize,
    pad_token_id: usize,
}
