//! A GGUF of the architecture `llama`: dimensions, names and order of rows as in Hugging Face's
//! `LlamaForCausalLM`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::blocks::Element;
use super::read::{Gguf, of_tensor};
use super::tokenizer::Tokens;
use super::write::Tensor;
use super::{GgufError, fail};

const ARCHITECTURE: &str = "general.architecture";
/// Keys that begin with `llama.`. Any other, such as one that scales positions, is an error.
const KNOWN: [&str; 11] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
];
/// A dimension, at most: products of two are far from overflow.
const DIMENSION_MAX: usize = 1 << 24;
/// Stated beside them; it follows from the tensors.
const VOCABULARY: &str = "vocab_size";

/// Dimensions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama {
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    /// Positions that the model was made for.
    pub positions: usize,
    norm_eps: f64,
    rope_theta: f64,
    tied: bool,
}

impl Llama {
    /// Dimensions as the metadata states them.
    ///
    /// # Errors
    /// Another architecture, a key that is missing, unknown or impossible.
    pub fn of(gguf: &Gguf<'_>) -> Result<Llama, GgufError> {
        let architecture = gguf.text(ARCHITECTURE)?;
        if architecture != "llama" {
            return gguf.wrong(ARCHITECTURE, format!("`{architecture}` is not `llama`"));
        }
        gguf.only("llama.", &[&KNOWN[..], &[VOCABULARY]].concat())?;
        let of = |key: &str| dimension(gguf, &format!("llama.{key}"));
        let (hidden, heads) = (of("embedding_length")?, of("attention.head_count")?);
        let model = Llama {
            layers: of("block_count")?,
            hidden,
            intermediate: of("feed_forward_length")?,
            heads,
            kv_heads: of("attention.head_count_kv")?,
            head_dim: of("rope.dimension_count")?,
            vocabulary: gguf.list("tokenizer.ggml.tokens")?.len(),
            positions: of("context_length")?,
            norm_eps: gguf.decimal("llama.attention.layer_norm_rms_epsilon")?,
            rope_theta: gguf.decimal("llama.rope.freq_base")?,
            tied: !gguf.tensors.contains_key("output.weight"),
        };
        model.check(gguf)?;
        Ok(model)
    }

    fn check(&self, gguf: &Gguf<'_>) -> Result<(), GgufError> {
        let same = |key: &str, right: usize| {
            let key = format!("llama.{key}");
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
            return gguf.wrong("llama.block_count", rule);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("does not divide the {} query heads", self.heads);
            return gguf.wrong("llama.attention.head_count_kv", rule);
        }
        if !self.head_dim.is_multiple_of(2) {
            return gguf.wrong("llama.rope.dimension_count", "is odd");
        }
        Ok(())
    }

    /// All tensors by the names of Hugging Face, in alphabetical order.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or that the architecture does not have.
    pub fn tensors<'a>(&self, gguf: &Gguf<'a>) -> Result<Vec<Tensor<'a>>, GgufError> {
        let mut left: Vec<_> = gguf.tensors.keys().collect();
        let mut found = BTreeMap::new();
        for wanted in self.wanted() {
            left.retain(|name| **name != wanted.from);
            found.insert(wanted.to.clone(), wanted.find(gguf)?);
        }
        match left.first() {
            Some(name) => fail(
                gguf.tensors[*name].offset,
                of_tensor(name),
                "a llama has no such tensor",
            ),
            None => Ok(found.into_values().collect()),
        }
    }

    fn wanted(&self) -> Vec<Wanted> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut wanted = vec![
            matrix("token_embd", "model.embed_tokens", self.vocabulary, hidden),
            vector("output_norm", "model.norm", hidden),
        ];
        if !self.tied {
            wanted.push(matrix("output", "lm_head", self.vocabulary, hidden));
        }
        for layer in 0..self.layers {
            let own = [
                vector("attn_norm", "input_layernorm", hidden),
                vector("ffn_norm", "post_attention_layernorm", hidden),
                matrix("attn_q", "self_attn.q_proj", q, hidden).interleaved(self.heads),
                matrix("attn_k", "self_attn.k_proj", kv, hidden).interleaved(self.kv_heads),
                matrix("attn_v", "self_attn.v_proj", kv, hidden),
                matrix("attn_output", "self_attn.o_proj", hidden, q),
                matrix("ffn_gate", "mlp.gate_proj", inner, hidden),
                matrix("ffn_up", "mlp.up_proj", inner, hidden),
                matrix("ffn_down", "mlp.down_proj", hidden, inner),
            ];
            wanted.extend(own.map(|wanted| wanted.of_layer(layer)));
        }
        wanted
    }

    /// `config.json`.
    pub fn config(&self, tokens: &Tokens, element: Element) -> Config {
        Config {
            architectures: ["LlamaForCausalLM"],
            attention_bias: false,
            bos_token_id: tokens.bos,
            dtype: element.torch(),
            eos_token_id: tokens.eos,
            head_dim: self.head_dim,
            hidden_act: "silu",
            hidden_size: self.hidden,
            intermediate_size: self.intermediate,
            max_position_embeddings: self.positions,
            mlp_bias: false,
            model_type: "llama",
            num_attention_heads: self.heads,
            num_hidden_layers: self.layers,
            num_key_value_heads: self.kv_heads,
            pad_token_id: tokens.pad,
            rms_norm_eps: self.norm_eps,
            rope_parameters: Rope {
                rope_theta: self.rope_theta,
                rope_type: "default",
            },
            tie_word_embeddings: self.tied,
            vocab_size: self.vocabulary,
        }
    }
}

fn dimension(gguf: &Gguf<'_>, key: &str) -> Result<usize, GgufError> {
    match gguf.whole(key)? {
        0 => gguf.wrong(key, "is zero"),
        number if number > DIMENSION_MAX => gguf.wrong(key, format!("is above {DIMENSION_MAX}")),
        number => Ok(number),
    }
}

/// A tensor by its names and its shape.
struct Wanted {
    from: String,
    to: String,
    /// First dimension of a matrix; none for a vector.
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
    /// Rows of so many heads are stored for a rotary embedding that turns neighbours.
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

    fn find<'a>(&self, gguf: &Gguf<'a>) -> Result<Tensor<'a>, GgufError> {
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
        })
    }
}

/// `config.json` of a `LlamaForCausalLM`.
#[derive(Serialize)]
pub struct Config {
    architectures: [&'static str; 1],
    attention_bias: bool,
    bos_token_id: usize,
    dtype: &'static str,
    eos_token_id: usize,
    head_dim: usize,
    hidden_act: &'static str,
    hidden_size: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    mlp_bias: bool,
    model_type: &'static str,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    pad_token_id: usize,
    rms_norm_eps: f64,
    rope_parameters: Rope,
    tie_word_embeddings: bool,
    vocab_size: usize,
}

#[derive(Serialize)]
struct Rope {
    rope_theta: f64,
    rope_type: &'static str,
}
