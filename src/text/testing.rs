//! Tools that the tests of text stages share: random cuts, a slope check, and a
//! byte-level tokenizer that needs no file.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::chat::ChatModel;
use super::framing;
use super::grammar::Grammars;
use super::template::Template;
use super::template::special::SpecialTokens;
use super::tokenizer::Tokenizer;
use super::tools::harmony::Mark;
pub use super::work::cpu_time as cpu;
pub use step::random::Random;
use step::testing::TINY;
use step::{Facts, ToolFormat};

/// Cuts `bytes` at random places.
pub fn rechunk<'a>(mut bytes: &'a [u8], random: &mut Random) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at((1 + random.below(5)).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// Cuts `text` at random character boundaries.
pub fn rechunk_text<'a>(mut text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let at = text
            .char_indices()
            .nth(1 + random.below(5))
            .map_or(text.len(), |(at, _)| at);
        let (piece, rest) = text.split_at(at);
        pieces.push(piece);
        text = rest;
    }
    pieces
}

/// Asserts that sixteen times the input of repeated `unit` (ASCII) takes no more than a linear
/// share of the CPU time on a machine that is busy with other things; quadratic work takes 256
/// times. What takes more is tried again: work of its own it would take each time.
pub fn assert_linear(unit: &str, mut run: impl FnMut(&str)) {
    const SMALL_BYTES: usize = 16 * 1024;
    const FACTOR_MAX: u32 = 128;
    const GRACE: Duration = Duration::from_millis(20);
    const TRIES: usize = 5;
    let mut time = |bytes: usize| {
        let text = unit.repeat(bytes / unit.len());
        let start = cpu();
        run(&text);
        cpu() - start
    };
    let small = (0..TRIES).map(|_| time(SMALL_BYTES)).min();
    let small = small.expect("it is tried");
    let bound = small * FACTOR_MAX + GRACE;
    assert!(
        (0..TRIES).any(|_| time(16 * SMALL_BYTES) < bound),
        "{unit:?}: {small:?}, and sixteen times as much takes more than {bound:?}"
    );
}

/// The token that ends a turn in [`byte_tokenizer`].
pub const END_OF_TURN: u32 = 257;

/// The `tokenizer.json` of a byte-level tokenizer without merges; token `b` is byte `b`.
pub fn byte_tokenizer() -> Vec<u8> {
    let added = [
        ("<|endoftext|>", true),
        ("<|im_end|>", true),
        ("<|im_start|>", true),
        ("<think>", false),
        ("</think>", false),
        ("<tool_call>", false),
        ("</tool_call>", false),
    ];
    byte_tokenizer_with(&added)
}

/// A byte-level tokenizer with other tokens after those of bytes, and whether each is special.
fn byte_tokenizer_with(added: &[(&str, bool)]) -> Vec<u8> {
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..=255u8 {
        let symbol = super::spelling::byte_symbol(byte).to_string();
        vocabulary.insert(symbol, json!(byte));
    }
    let added = (256..).zip(added).map(|(id, &(content, special))| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": special})
    });
    let added: Vec<Value> = added.collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                          "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                    "use_regex": false},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}
    })
    .to_string()
    .into_bytes()
}

/// Family that a tokenizer of pieces follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PieceKind {
    /// Blanks are replaced before the vocabulary sees them.
    Gemma,
    /// And one is put before each text.
    Llama2,
    /// One is put before the first text of a document.
    Mistral,
}

pub const PIECE_KINDS: [PieceKind; 3] = [PieceKind::Gemma, PieceKind::Llama2, PieceKind::Mistral];

/// The `tokenizer.json` of a small vocabulary of pieces, with tokens for single bytes: ids 3 to 258
/// are bytes, 32 pieces and some of [`byte_tokenizer`]'s added tokens follow.
pub fn piece_tokenizer(kind: PieceKind) -> Vec<u8> {
    const PIECES: [&str; 32] = [
        "▁",
        "t",
        "h",
        "e",
        "c",
        "a",
        "p",
        "i",
        "l",
        "o",
        "f",
        "x",
        "1",
        "2",
        "é",
        "<",
        ">",
        "/",
        "k",
        "n",
        "▁▁",
        "▁▁▁▁",
        "th",
        "the",
        "▁t",
        "▁the",
        "ca",
        "▁o",
        "▁of",
        "12",
        "in",
        "▁x",
    ];
    const MERGES: [[&str; 2]; 12] = [
        ["▁", "▁"],
        ["▁▁", "▁▁"],
        ["t", "h"],
        ["th", "e"],
        ["▁", "t"],
        ["▁", "the"],
        ["c", "a"],
        ["▁", "o"],
        ["▁o", "f"],
        ["1", "2"],
        ["i", "n"],
        ["▁", "x"],
    ];
    let added = |id: usize, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": special})
    };
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let special = ["<unk>", "<s>", "</s>"].map(str::to_string);
    let all = special
        .into_iter()
        .chain(bytes)
        .chain(PIECES.map(str::to_string));
    let vocabulary: serde_json::Map<_, _> =
        all.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    let next = vocabulary.len();
    let replace = |from: &str, to: &str| {
        let pattern = json!({"String": from});
        json!({"type": "Replace", "pattern": pattern, "content": to})
    };
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
        "split": false});
    let normalizer = match kind {
        PieceKind::Gemma => replace(" ", "▁"),
        PieceKind::Llama2 => json!({"type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}),
        PieceKind::Mistral => serde_json::Value::Null,
    };
    let mut decoders = vec![
        replace("▁", " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if kind != PieceKind::Gemma {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({
        "version": "1.0",
        "added_tokens": [
            added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true),
            added(next, "<|im_end|>", true), added(next + 1, "<|im_start|>", true),
            added(next + 2, "<think>", false), added(next + 3, "</think>", false)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": (kind == PieceKind::Mistral).then_some(metaspace),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary, "merges": MERGES}
    })
    .to_string()
    .into_bytes()
}

/// A ChatML template that takes every conversation.
pub const TEMPLATE: &str = "\
{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{%- for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n\
{% endfor %}\
{%- if tools %}{{ tools | tojson }}{% endif %}\
{%- if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n\
{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

/// A template that refuses system messages after the first.
pub const STRICT_TEMPLATE: &str = "\
{%- for m in messages %}{% if m.role == 'system' and not loop.first %}\
{{ raise_exception('System message must be at the beginning.') }}{% endif %}\
<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

/// A model of bytes with [`TEMPLATE`].
pub fn chat_model() -> ChatModel {
    chat_model_with(TEMPLATE)
}

/// A model of bytes with a template.
pub fn chat_model_with(template: &str) -> ChatModel {
    let template = Template::load(template, SpecialTokens::default()).unwrap();
    let mut tokenizer = Tokenizer::from_bytes(&byte_tokenizer(), TINY.vocab).unwrap();
    framing::apply(&mut tokenizer, &template).unwrap();
    let tokenizer = Arc::new(tokenizer);
    ChatModel {
        grammars: Grammars::new(&tokenizer, TINY.vocab, &[END_OF_TURN]).unwrap(),
        tokenizer,
        harmony: None,
        template,
        think: Some(("<think>", "</think>")),
        facts: &TINY,
        tool_format: Some(ToolFormat::Qwen3Coder),
        stop_tokens: vec![END_OF_TURN],
    }
}

/// Facts of a model that speaks harmony: its marks are the tokens after those of bytes.
static HARMONY: Facts = Facts {
    stop_tokens: &[261, 262],
    added_tokens: &[
        (256, Mark::Start.text()),
        (257, Mark::Channel.text()),
        (258, Mark::Constrain.text()),
        (259, Mark::Message.text()),
        (260, Mark::End.text()),
        (261, Mark::Return.text()),
        (262, Mark::Call.text()),
    ],
    tool_format: Some(ToolFormat::Harmony),
    think_open: "",
    think_close: "",
    ..TINY
};

/// A model of bytes that speaks harmony.
pub fn harmony_model() -> ChatModel {
    let marks = Mark::ALL.map(|mark| (mark.text(), true));
    let tokenizer = Tokenizer::from_bytes(&byte_tokenizer_with(&marks), HARMONY.vocab).unwrap();
    ChatModel::new(&HARMONY, tokenizer, Template::harmony()).unwrap()
}

/// Facts of a model that speaks as Gemma 4: its marks are the tokens after those of bytes.
static GEMMA: Facts = Facts {
    stop_tokens: &[257, 265],
    added_tokens: &[
        (256, "<|turn>"),
        (257, "<turn|>"),
        (258, "<|channel>"),
        (259, "<channel|>"),
        (260, "<|tool>"),
        (261, "<tool|>"),
        (262, "<|tool_call>"),
        (263, "<tool_call|>"),
        (264, "<|\"|>"),
        (265, "<|tool_response>"),
        (266, "<tool_response|>"),
    ],
    tool_format: Some(ToolFormat::Gemma),
    thinking: false,
    think_open: "<|channel>thought",
    think_close: "<channel|>",
    ..TINY
};

/// A template that frames as that of Gemma 4: a call and its result are in the turn of the model,
/// which opens its thoughts itself.
const GEMMA_TEMPLATE: &str = "\
{%- macro value(of) -%}\
    {%- if of is string -%}{{ '<|\"|>' + of + '<|\"|>' }}\
    {%- elif of is boolean -%}{{ 'true' if of else 'false' }}\
    {%- elif of is mapping -%}{{ '{' }}{{- members(of) -}}{{ '}' }}\
    {%- elif of is sequence -%}{{ '[' }}\
        {%- for item in of -%}{{ value(item) }}{{ ',' if not loop.last }}{%- endfor -%}{{ ']' }}\
    {%- else -%}{{ of }}{%- endif -%}\
{%- endmacro -%}\
{%- macro members(of) -%}\
    {%- for key, item in of | dictsort -%}\
        {{ key }}:{{ value(item) }}{{ ',' if not loop.last }}\
    {%- endfor -%}\
{%- endmacro -%}\
{%- set last = namespace(role='', calls=[]) -%}\
{%- for tool in tools or [] -%}<|tool>{{ value(tool.function) }}<tool|>{%- endfor -%}\
{%- for m in messages -%}\
    {%- if m.role == 'tool' -%}\
        {%- for call in last.calls if call.id == m.tool_call_id -%}\
            {{- '<|tool_response>response:' + call.function.name + '{value:' -}}\
            {{- value(m.content) + '}<tool_response|>' -}}\
        {%- endfor -%}\
    {%- else -%}\
        {%- if last.role != 'tool' -%}\
            {{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}\
        {%- endif -%}\
        {%- if m.tool_calls and m.reasoning_content -%}\
            {{- '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' -}}\
        {%- endif -%}\
        {%- for call in m.tool_calls or [] -%}\
            {{- '<|tool_call>call:' + call.function.name + '{' -}}\
            {{- members(call.function.arguments) + '}<tool_call|>' -}}\
        {%- endfor -%}\
        {{- m.content | trim -}}\
        {%- if not m.tool_calls -%}{{ '<turn|>\n' }}{%- endif -%}\
        {%- set last.calls = m.tool_calls or [] -%}\
    {%- endif -%}\
    {%- set last.role = m.role -%}\
{%- endfor -%}\
{%- if add_generation_prompt -%}\
    {{- '<|turn>model\n' if last.role != 'tool' -}}\
    {{- '<|channel>thought\n<channel|>' if not enable_thinking -}}\
{%- endif -%}";

/// A model of bytes that speaks as Gemma 4.
pub fn gemma_model() -> ChatModel {
    let marks: Vec<(&str, bool)> = GEMMA
        .added_tokens
        .iter()
        .map(|(_, mark)| (*mark, true))
        .collect();
    let tokenizer = Tokenizer::from_bytes(&byte_tokenizer_with(&marks), GEMMA.vocab).unwrap();
    let template = Template::load(GEMMA_TEMPLATE, SpecialTokens::default()).unwrap();
    ChatModel::new(&GEMMA, tokenizer, template).unwrap()
}
