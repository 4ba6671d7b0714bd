//! `config.json` of a model, with the keys of Hugging Face's classes in alphabetical order.

use serde_json::{Value, json};

use super::blocks::Element;
use super::model::{Architecture, Model};
use super::tokenizer::Tokens;

/// Period of Gemma 3's layers: the last one in each sees all positions, the others a window.
const PERIOD: usize = 6;
/// Base of RoPE in the layers with a window.
const LOCAL_THETA: f64 = 10_000.0;

impl Model {
    /// Content of `config.json`, for weights of type `element`.
    pub fn config(&self, tokens: &Tokens, element: Element) -> Value {
        match self.architecture {
            Architecture::Llama => self.llama(tokens, element),
            Architecture::Gemma3 => self.gemma3(tokens, element),
        }
    }

    fn llama(&self, tokens: &Tokens, element: Element) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": false,
            "bos_token_id": tokens.bos,
            "dtype": element.torch(),
            "eos_token_id": tokens.eos,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "mlp_bias": false,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": tokens.pad,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": turns(self.rope_theta),
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocabulary,
        })
    }

    fn gemma3(&self, tokens: &Tokens, element: Element) -> Value {
        let kinds = (1..=self.layers).map(|layer| match layer.is_multiple_of(PERIOD) {
            true => "full_attention",
            false => "sliding_attention",
        });
        json!({
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": false,
            "bos_token_id": tokens.bos,
            "dtype": element.torch(),
            "eos_token_id": tokens.eos,
            "head_dim": self.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "layer_types": kinds.collect::<Vec<_>>(),
            "max_position_embeddings": self.positions,
            "model_type": "gemma3_text",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": tokens.pad,
            "query_pre_attn_scalar": self.head_dim,
            "rms_norm_eps": self.norm_eps,
            "rope_parameters": {
                "full_attention": turns(self.rope_theta),
                "sliding_attention": turns(LOCAL_THETA),
            },
            "sliding_window": self.window,
            "tie_word_embeddings": self.tied,
            "vocab_size": self.vocabulary,
        })
    }
}

fn turns(theta: f64) -> Value {
    json!({"rope_theta": theta, "rope_type": "default"})
}
