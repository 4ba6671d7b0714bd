//! The tokenizer of a GGUF as Hugging Face's `tokenizer.json`: byte-level BPE, or SentencePiece,
//! whose scores give the order of merges.

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use super::GgufError;
use super::read::{Gguf, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TEMPLATE: &str = "tokenizer.chat_template";
/// Keys with the prefix `tokenizer.ggml.` that any tokenizer may have.
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
/// Keys that only a SentencePiece tokenizer may have, in addition to `KNOWN`.
const OF_PIECES: [&str; 2] = ["add_sep_token", "scores"];
/// Character for a space in SentencePiece's tokens.
const SPACE: &str = "\u{2581}";

/// Types of tokens, numbered as in `enum llama_token_type`.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const BYTE: u64 = 6;

/// Pre-tokenizers by llama.cpp's name; the flag: each digit is a part of its own. Other text is cut
/// by GPT-2's regular expression.
const PRE_TOKENIZERS: [(&str, bool); 2] = [("gpt-2", false), ("smollm", true)];

/// Tokens and rules of a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// Text of each token, by id.
    texts: Vec<String>,
    /// Added tokens by id, ascending; the flag: the token is a special one.
    added: Vec<(usize, bool)>,
    merges: Vec<(String, String)>,
    kind: Kind,
    pub bos: usize,
    pub eos: usize,
    pub pad: usize,
    unknown: Option<usize>,
    /// Chat template, if the model has one.
    pub template: Option<String>,
}

/// Algorithm by which a text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// BPE of bytes.
    ByteLevel { single_digits: bool },
    /// BPE of characters, of bytes where characters have no token. Texts begin with token `bos`.
    Pieces,
}

impl Tokens {
    /// The tokenizer that the metadata describes.
    ///
    /// # Errors
    /// Another kind of tokenizer, or lists that do not fit each other.
    pub fn of(gguf: &Gguf<'_>) -> Result<Tokens, GgufError> {
        let model = gguf.text(MODEL)?;
        let (own, unset): (&[&str], &[&str]) = match model {
            "gpt2" => (&[UNKNOWN], &["add_bos_token"]),
            "llama" => (&[UNKNOWN, OF_PIECES[0], OF_PIECES[1]], &["add_sep_token"]),
            _ => {
                let rule = format!("`{model}` is not `gpt2`, byte-level BPE, or `llama`, pieces");
                return gguf.wrong(MODEL, rule);
            }
        };
        gguf.only("tokenizer.ggml.", &[&KNOWN[..], own].concat())?;
        for flag in [unset, &["add_eos_token", "add_space_prefix"]].concat() {
            gguf.unset(&format!("tokenizer.ggml.{flag}"))?;
        }
        let texts = texts(gguf)?;
        let (kind, merges) = match model {
            "gpt2" => {
                let single_digits = single_digits(gguf)?;
                (Kind::ByteLevel { single_digits }, merges(gguf, &texts)?)
            }
            _ => (Kind::Pieces, merges_of_pieces(gguf, &texts)?),
        };
        let special = |name: &str| special(gguf, name, texts.len());
        let has_unknown = gguf
            .metadata
            .contains_key(&format!("tokenizer.ggml.{UNKNOWN}"));
        Ok(Tokens {
            added: added(gguf, texts.len())?,
            merges,
            kind,
            bos: special("bos_token_id")?,
            eos: special("eos_token_id")?,
            pad: special("padding_token_id")?,
            unknown: has_unknown.then(|| special(UNKNOWN)).transpose()?,
            template: match gguf.metadata.contains_key(TEMPLATE) {
                true => Some(gguf.text(TEMPLATE)?.to_string()),
                false => None,
            },
            texts,
        })
    }

    /// Content of `tokenizer.json`.
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
        let (pieces, digits) = match self.kind {
            Kind::ByteLevel { single_digits } => (false, single_digits),
            Kind::Pieces => (true, false),
        };
        let digits = digits.then_some(Cutter::Digits {
            individual_digits: true,
        });
        let pretokenizers = digits.into_iter().chain([BYTE_LEVEL]).collect();
        let unknown = self.unknown.map(|id| self.texts[id].as_str());
        Definition {
            version: "1.0",
            truncation: None,
            padding: None,
            added_tokens: added.collect(),
            normalizer: pieces.then(|| replace(" ", SPACE)),
            pre_tokenizer: (!pieces).then_some(Cutter::Sequence { pretokenizers }),
            post_processor: pieces.then(|| self.beginning()),
            decoder: match pieces {
                true => Decoder::Pieces(joined()),
                false => Decoder::Bytes(BYTE_LEVEL),
            },
            model: Model {
                kind: "BPE",
                dropout: None,
                unk_token: unknown.filter(|_| pieces),
                continuing_subword_prefix: None,
                end_of_word_suffix: None,
                fuse_unk: pieces,
                byte_fallback: pieces,
                ignore_merges: false,
                vocab: Vocabulary(&self.texts),
                merges: &self.merges,
            },
        }
    }

    /// Post-processor that adds the beginning token to a text.
    fn beginning(&self) -> Json {
        let text = &self.texts[self.bos];
        let first = json!({"SpecialToken": {"id": text, "type_id": 0}});
        let of = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        json!({
            "type": "TemplateProcessing",
            "single": [first, of("A")],
            "pair": [first, of("A"), first, of("B")],
            "special_tokens": {text: {"id": text, "ids": [self.bos], "tokens": [text]}},
        })
    }

    /// Content of `tokenizer_config.json`, for a model of `positions` positions.
    pub fn config(&self, positions: usize) -> Json {
        json!({
            "add_bos_token": self.kind == Kind::Pieces,
            "add_prefix_space": false,
            "bos_token": self.texts[self.bos],
            "clean_up_tokenization_spaces": false,
            "eos_token": self.texts[self.eos],
            "model_max_length": positions,
            "pad_token": self.texts[self.pad],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": self.unknown.map(|id| &self.texts[id]),
        })
    }

    /// Content of `generation_config.json`.
    pub fn generation_config(&self) -> Json {
        json!({"bos_token_id": self.bos, "eos_token_id": self.eos, "pad_token_id": self.pad})
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

/// Added tokens, which are found in a text before merges.
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
            NORMAL | BYTE => {}
            CONTROL | USER_DEFINED => added.push((id, number == CONTROL)),
            _ => {
                let rule = format!(
                    "token {id} is of {kind:?}, none of {NORMAL}, {CONTROL}, {USER_DEFINED}, {BYTE}"
                );
                return gguf.wrong(TYPES, rule);
            }
        }
    }
    Ok(added)
}

/// Merges of byte-level BPE, the first ones first.
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

/// Merges of SentencePiece, highest score first.
fn merges_of_pieces(gguf: &Gguf<'_>, texts: &[String]) -> Result<Vec<(String, String)>, GgufError> {
    let (scores, types) = (gguf.list(SCORES)?, gguf.list(TYPES)?);
    if scores.len() != texts.len() || types.len() != texts.len() {
        let rule = format!("has {} items, of {} tokens", scores.len(), texts.len());
        return gguf.wrong(SCORES, rule);
    }
    let is_piece = |kind: &Value| matches!(kind, Value::Signed(1) | Value::Unsigned(NORMAL));
    let ids: std::collections::HashMap<&str, usize> = texts
        .iter()
        .zip(types)
        .enumerate()
        .filter(|(_, (_, kind))| is_piece(kind))
        .map(|(id, (text, _))| (text.as_str(), id))
        .collect();
    let mut pairs = Vec::new();
    for (text, &id) in &ids {
        let Value::Single(score) = scores[id] else {
            return gguf.wrong(SCORES, format!("{:?} is no number of F32", scores[id]));
        };
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                pairs.push((score, [*first, *second]));
            }
        }
    }
    // Among merges to one token, the one with the longest left part is first.
    let length = |[left, _]: &[usize; 2]| texts[*left].len();
    pairs.sort_by(|(a, of_a), (b, of_b)| b.total_cmp(a).then(length(of_b).cmp(&length(of_a))));
    let pair = |(_, [left, right]): (f32, [usize; 2])| (texts[left].clone(), texts[right].clone());
    Ok(pairs.into_iter().map(pair).collect())
}

fn replace(from: &str, to: &str) -> Json {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// Decoder of SentencePiece's tokens to text.
fn joined() -> Json {
    let [bytes, fuse] = ["ByteFallback", "Fuse"].map(|kind| json!({"type": kind}));
    json!({"type": "Sequence", "decoders": [replace(SPACE, " "), bytes, fuse]})
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

/// Structure of `tokenizer.json`.
#[derive(Serialize)]
pub struct Definition<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<Added<'a>>,
    normalizer: Option<Json>,
    pre_tokenizer: Option<Cutter>,
    post_processor: Option<Json>,
    decoder: Decoder,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Added<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// A step that turns tokens into text.
#[derive(Serialize)]
#[serde(untagged)]
enum Decoder {
    Bytes(Cutter),
    Pieces(Json),
}

/// A step that cuts texts into parts; `ByteLevel` also turns tokens into text.
#[derive(Serialize)]
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

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<()>,
    /// Token for unknown characters; none in byte-level BPE, where bytes without a token are left
    /// out, as in llama.cpp.
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<()>,
    end_of_word_suffix: Option<()>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocabulary<'a>,
    merges: &'a [(String, String)],
}

/// Texts of tokens in the order of ids, written as a map to ids.
struct Vocabulary<'a>(&'a [String]);

impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().zip(0_usize..))
    }
}
