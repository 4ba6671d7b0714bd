//! Dimensions of a model, and its tensors in the names and row orders of Hugging Face's classes.

use std::collections::BTreeMap;

use super::read::{Gguf, of_tensor};
use super::write::Tensor;
use super::{GgufError, fail};

const ARCHITECTURE: &str = "general.architecture";
/// Keys after the architecture's name, common to all architectures. Any other key, such as one that
/// scales positions, is an error.
const KNOWN: [&str; 10] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.freq_base",
];
const WINDOW: &str = "attention.sliding_window";
const ROTARY: &str = "rope.dimension_count";
/// Largest dimension: products of two are far from overflow.
const DIMENSION_MAX: usize = 1 << 24;
/// Key of the vocabulary's size, which is not read: it follows from the tensors.
const VOCABULARY: &str = "vocab_size";

/// An architecture of models that can be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    /// Gemma 3, whose norm weights are stored with one added.
    Gemma3,
}

impl Architecture {
    const ALL: [Architecture; 2] = [Architecture::Llama, Architecture::Gemma3];

    /// Name of the architecture, with which its keys begin.
    fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Gemma3 => "gemma3",
        }
    }

    fn own_keys(self) -> &'static [&'static str] {
        match self {
            Architecture::Llama => &[ROTARY, VOCABULARY],
            Architecture::Gemma3 => &[WINDOW],
        }
    }
}

/// Dimensions of a model, from the metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub architecture: Architecture,
    pub layers: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    /// Positions that the model was made for.
    pub positions: usize,
    pub norm_eps: f64,
    pub rope_theta: f64,
    pub tied: bool,
    /// Positions in the window of most of Gemma 3's layers.
    pub window: Option<usize>,
}

impl Model {
    /// Dimensions as the metadata states them.
    ///
    /// # Errors
    /// Another architecture, a key that is missing, unknown or impossible.
    pub fn of(gguf: &Gguf<'_>) -> Result<Model, GgufError> {
        let stated = gguf.text(ARCHITECTURE)?;
        let known = Architecture::ALL.into_iter();
        let Some(architecture) = known.clone().find(|known| known.name() == stated) else {
            let known: Vec<_> = known.map(Architecture::name).collect();
            let rule = format!("`{stated}` is none of {}", known.join(", "));
            return gguf.wrong(ARCHITECTURE, rule);
        };
        let keys = [&KNOWN[..], architecture.own_keys()].concat();
        gguf.only(&format!("{stated}."), &keys)?;
        let of = |key: &str| dimension(gguf, &format!("{stated}.{key}"));
        let (head_dim, window) = match architecture {
            Architecture::Llama => (of(ROTARY)?, None),
            Architecture::Gemma3 => (of("attention.key_length")?, Some(of(WINDOW)?)),
        };
        let model = Model {
            architecture,
            layers: of("block_count")?,
            hidden: of("embedding_length")?,
            intermediate: of("feed_forward_length")?,
            heads: of("attention.head_count")?,
            kv_heads: of("attention.head_count_kv")?,
            head_dim,
            vocabulary: gguf.list("tokenizer.ggml.tokens")?.len(),
            positions: of("context_length")?,
            norm_eps: gguf.decimal(&format!("{stated}.attention.layer_norm_rms_epsilon"))?,
            rope_theta: gguf.decimal(&format!("{stated}.rope.freq_base"))?,
            tied: !gguf.tensors.contains_key("output.weight"),
            window,
        };
        model.check(gguf)?;
        Ok(model)
    }

    fn check(&self, gguf: &Gguf<'_>) -> Result<(), GgufError> {
        let key = |key: &str| format!("{}.{key}", self.architecture.name());
        let same = |name: &str, right: usize| {
            let key = key(name);
            match gguf.metadata.contains_key(&key) && gguf.whole(&key)? != right {
                true => gguf.wrong(&key, format!("is not {right}, which other keys say")),
                false => Ok(()),
            }
        };
        same("attention.key_length", self.head_dim)?;
        same("attention.value_length", self.head_dim)?;
        same(VOCABULARY, self.vocabulary)?;
        if self.layers > gguf.tensors.len() {
            let rule = format!("is more than the {} tensors", gguf.tensors.len());
            return gguf.wrong(&key("block_count"), rule);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("does not divide the {} query heads", self.heads);
            return gguf.wrong(&key("attention.head_count_kv"), rule);
        }
        let width = match self.architecture {
            Architecture::Llama => ROTARY,
            Architecture::Gemma3 => "attention.key_length",
        };
        match self.head_dim.is_multiple_of(2) {
            true => Ok(()),
            false => gguf.wrong(&key(width), "is odd"),
        }
    }

    /// All tensors, in the alphabetical order of Hugging Face's names.
    pub fn tensors<'a>(&self, gguf: &Gguf<'a>) -> Result<Vec<Tensor<'a>>, GgufError> {
        let mut left: Vec<_> = gguf.tensors.keys().collect();
        let mut found = BTreeMap::new();
        for wanted in self.wanted() {
            left.retain(|name| **name != wanted.from);
            found.insert(wanted.to.clone(), wanted.find(gguf, self.architecture)?);
        }
        match left.first() {
            Some(name) => fail(
                gguf.tensors[*name].offset,
                of_tensor(name),
                format!("a {} has no such tensor", self.architecture.name()),
            ),
            None => Ok(found.into_values().collect()),
        }
    }

    fn wanted(&self) -> Vec<Wanted> {
        let hidden = self.hidden;
        let mut wanted = vec![
            matrix("token_embd", "model.embed_tokens", self.vocabulary, hidden),
            vector("output_norm", "model.norm", hidden),
        ];
        if !self.tied {
            wanted.push(matrix("output", "lm_head", self.vocabulary, hidden));
        }
        for layer in 0..self.layers {
            let own = self.layer().into_iter();
            wanted.extend(own.map(|wanted| wanted.of_layer(layer)));
        }
        wanted
    }

    fn layer(&self) -> Vec<Wanted> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let query = matrix("attn_q", "self_attn.q_proj", q, hidden);
        let key = matrix("attn_k", "self_attn.k_proj", kv, hidden);
        let mut wanted = vec![
            vector("attn_norm", "input_layernorm", hidden),
            matrix("attn_v", "self_attn.v_proj", kv, hidden),
            matrix("attn_output", "self_attn.o_proj", hidden, q),
            matrix("ffn_gate", "mlp.gate_proj", inner, hidden),
            matrix("ffn_up", "mlp.up_proj", inner, hidden),
            matrix("ffn_down", "mlp.down_proj", hidden, inner),
        ];
        wanted.extend(match self.architecture {
            Architecture::Llama => vec![
                query.interleaved(self.heads),
                key.interleaved(self.kv_heads),
                vector("ffn_norm", "post_attention_layernorm", hidden),
            ],
            Architecture::Gemma3 => vec![
                query,
                key,
                vector("attn_q_norm", "self_attn.q_norm", self.head_dim),
                vector("attn_k_norm", "self_attn.k_norm", self.head_dim),
                vector("post_attention_norm", "post_attention_layernorm", hidden),
                vector("ffn_norm", "pre_feedforward_layernorm", hidden),
                vector("post_ffw_norm", "post_feedforward_layernorm", hidden),
            ],
        });
        wanted
    }
}

fn dimension(gguf: &Gguf<'_>, key: &str) -> Result<usize, GgufError> {
    match gguf.whole(key)? {
        0 => gguf.wrong(key, "is zero"),
        number if number > DIMENSION_MAX => gguf.wrong(key, format!("is above {DIMENSION_MAX}")),
        number => Ok(number),
    }
}

/// A tensor by its names and shape.
struct Wanted {
    from: String,
    to: String,
    /// Rows of a matrix; none for a vector.
    rows: Option<usize>,
    columns: usize,
    interleaved: Option<usize>,
}

fn vector(from: &str, to: &str, columns: usize) -> Wanted {
    Wanted {
        from: format!("{from}.weight"),
        to: format!("{to}.weight"),
        rows: None,
        columns,
        interleaved: None,
    }
}

fn matrix(from: &str, to: &str, rows: usize, columns: usize) -> Wanted {
    Wanted {
        rows: Some(rows),
        ..vector(from, to, columns)
    }
}

impl Wanted {
    /// Marks rows of `heads` heads as stored for a RoPE that rotates neighbouring rows.
    fn interleaved(self, heads: usize) -> Wanted {
        Wanted {
            interleaved: Some(heads),
            ..self
        }
    }

    fn of_layer(self, layer: usize) -> Wanted {
        Wanted {
            from: format!("blk.{layer}.{}", self.from),
            to: format!("model.layers.{layer}.{}", self.to),
            ..self
        }
    }

    fn find<'a>(
        &self,
        gguf: &Gguf<'a>,
        architecture: Architecture,
    ) -> Result<Tensor<'a>, GgufError> {
        let Some(found) = gguf.tensors.get(&self.from) else {
            return fail(0, of_tensor(&self.from), "is missing");
        };
        let dimensions: Vec<usize> = [self.columns].into_iter().chain(self.rows).collect();
        if found.dimensions != dimensions {
            return fail(
                found.offset,
                of_tensor(&self.from),
                format!(
                    "has dimensions {:?}, the metadata says {dimensions:?}",
                    found.dimensions
                ),
            );
        }
        Ok(Tensor {
            name: self.to.clone(),
            shape: self.rows.into_iter().chain([self.columns]).collect(),
            kind: found.kind,
            data: found.data,
            interleaved: self.interleaved,
            plus_one: architecture == Architecture::Gemma3 && self.rows.is_none(),
        })
    }
}
