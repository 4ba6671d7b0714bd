//! A small target for tests of what serves any, and what tests draw beside numbers.

use std::ops::Range;
use std::time::Duration;

use crate::executor::TokenId;
use crate::random::Random;
use crate::{Facts, ToolFormat};

/// Facts of `cpu/tiny/nvfp4`, with the files that texts are made by.
pub static TINY: Facts = Facts {
    hardware: "cpu",
    model: "tiny",
    quant: "nvfp4",
    binary: "atlas-cpu-tiny-nvfp4",
    model_id: "tiny",
    vocab: 3072,
    context: 2048,
    sequences: 16,
    states: 74,
    snapshots: 44,
    window: None,
    drafts: 14,
    queued: 64,
    prefill_tokens: 256,
    kv_pages: 512,
    reply_gap: Duration::from_millis(100),
    stop_tokens: &[3065, 3063],
    added_tokens: &[
        (3063, "<|endoftext|>"),
        (3064, "<|im_start|>"),
        (3065, "<|im_end|>"),
        (3066, "<tool_call>"),
        (3067, "</tool_call>"),
        (3068, "<tool_response>"),
        (3069, "</tool_response>"),
        (3070, "<think>"),
        (3071, "</think>"),
    ],
    tool_format: Some(ToolFormat::Qwen3Coder),
    thinking: true,
    think_open: "<think>",
    think_close: "</think>",
    tokenizer_file: "tokenizer.json",
    template_file: "chat_template.jinja",
    temperature: 0.7,
    top_k: 20,
    top_p: 0.8,
    embedded: &[
        (
            "chat_template.jinja",
            include_bytes!("../../targets/_model/tiny/chat_template.jinja"),
        ),
        (
            "tokenizer.json",
            include_bytes!("../../targets/_model/tiny/tokenizer.json"),
        ),
    ],
}
.checked();

/// Trials of a test: `few` in the suite, `many` where the tests are compiled for that.
pub const fn few_or_many(few: u64, many: u64) -> u64 {
    match option_env!("ATLAS_AT_LENGTH") {
        Some(_) => many,
        None => few,
    }
}

impl Random {
    /// From `least` to `most`, both included.
    pub fn within(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    pub fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        *self.of(items)
    }

    /// Any `count` tokens of a range of ids.
    pub fn tokens(&mut self, ids: Range<usize>, count: usize) -> Vec<TokenId> {
        let token = |_| (ids.start + self.below(ids.len())) as TokenId;
        (0..count).map(token).collect()
    }

    /// `count` values of about unit variance.
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        let mut uniform = || self.unit() as f32 - 0.5;
        let value = |_| (uniform() + uniform() + uniform() + uniform()) * 1.732;
        (0..count).map(value).collect()
    }
}
