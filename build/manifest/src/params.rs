//! `params.json`, in which releases of Mistral's own form state the facts of `config.json`.

use serde_json::{Value, json};

use crate::config::{KIND, fact};
use crate::facts::Fact;
use crate::schema::model::{Model, Yarn};

/// Pointers into `config.json`, each with the pointer into `params.json` to the same value.
const WORDS: [[&str; 2]; 31] = [
    ["/max_position_embeddings", "/max_position_embeddings"],
    ["/hidden_size", "/dim"],
    ["/num_hidden_layers", "/n_layers"],
    ["/vocab_size", "/vocab_size"],
    ["/rms_norm_eps", "/norm_eps"],
    ["/tie_word_embeddings", "/tied_embeddings"],
    ["/hidden_act", "/activation"],
    ["/sliding_window", "/sliding_window"],
    ["/num_attention_heads", "/n_heads"],
    ["/num_key_value_heads", "/n_kv_heads"],
    ["/head_dim", "/head_dim"],
    ["/q_lora_rank", "/q_lora_rank"],
    ["/kv_lora_rank", "/kv_lora_rank"],
    ["/qk_nope_head_dim", "/qk_nope_head_dim"],
    ["/qk_rope_head_dim", "/qk_rope_head_dim"],
    ["/v_head_dim", "/v_head_dim"],
    ["/rope_parameters/rope_theta", "/rope_theta"],
    ["/rope_parameters/factor", "/yarn/factor"],
    ["/rope_parameters/beta_fast", "/yarn/beta"],
    ["/rope_parameters/beta_slow", "/yarn/alpha"],
    [
        "/rope_parameters/original_max_position_embeddings",
        "/yarn/original_max_position_embeddings",
    ],
    [
        "/rope_parameters/llama_4_scaling_beta",
        "/llama_4_scaling/beta",
    ],
    ["/n_routed_experts", "/moe/num_experts"],
    ["/num_experts_per_tok", "/moe/num_experts_per_tok"],
    ["/moe_intermediate_size", "/moe/expert_hidden_dim"],
    ["/n_shared_experts", "/moe/num_shared_experts"],
    ["/routed_scaling_factor", "/moe/routed_scale"],
    ["/n_group", "/moe/num_expert_groups"],
    ["/topk_group", "/moe/num_expert_groups_per_tok"],
    ["/first_k_dense_replace", "/moe/first_k_dense_replace"],
    ["/decoder_sparse_step", "/moe/route_every_n"],
];
/// `model_type` of the only family with releases in Mistral's own form.
const TYPE: &str = "mistral4";
/// Pointer to the description of stored weights, equal in both files.
const QUANTISATION: &str = "/quantization_config";

/// Facts that `params.json` states: some of `usual`, those of `config.json`, and some of its own.
pub(crate) fn facts(model: &Model, usual: Vec<Fact>) -> Vec<Fact> {
    let mut facts: Vec<Fact> = usual.into_iter().filter_map(renamed).collect();
    facts.extend(model.attention.yarn.iter().flat_map(slowed));
    facts
}

/// `config.json` with the values of `params`.
pub(crate) fn usual(params: &Value) -> Value {
    let mut config = json!({"model_type": TYPE});
    let mut set = |pointer: &str, value: &Value| {
        let names = pointer.split('/').skip(1);
        let place = names.fold(&mut config, |place, name| &mut place[name]);
        place.clone_from(value);
    };
    for [usual, own] in WORDS {
        if let Some(value) = params.pointer(own) {
            set(usual, value);
        }
    }
    if params.pointer("/yarn").is_some() {
        set(KIND[0], &json!("yarn"));
    }
    if params.pointer(GROWS) == Some(&json!(false)) {
        set("/rope_parameters/attention_factor", &json!(1.0));
    }
    config
}

/// Pointer into `params.json` to the value at a pointer into `config.json`.
pub(crate) fn own(usual: &str) -> &str {
    let word = WORDS.iter().find(|[word, _]| *word == usual);
    word.map_or(usual, |[_, own]| own)
}

fn renamed(fact: Fact) -> Option<Fact> {
    if fact.pointer.starts_with(QUANTISATION) {
        return Some(fact);
    }
    let word = |place: &str| WORDS.iter().find(|[usual, _]| *usual == place);
    let [_, pointer] = fact.places().find_map(word)?;
    Some(Fact {
        pointer,
        elsewhere: &[],
        ..fact
    })
}

/// Pointer to whether YaRN scales queries and keys.
const GROWS: &str = "/yarn/apply_scale";

/// Facts of YaRN's scale of queries and keys, and of where the queries' temperature starts.
fn slowed(yarn: &Yarn) -> [Fact; 2] {
    let grows = yarn.attention_factor != Some(1.0);
    let grown = fact("attention.yarn.attention_factor", grows, GROWS);
    [
        Fact {
            required: true,
            ..grown
        },
        fact(
            "attention.yarn.original_max_position",
            yarn.original_max_position,
            "/llama_4_scaling/original_max_position_embeddings",
        ),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use crate::config::check_config;
    use crate::testing::repository;

    /// The configuration of the release, as published.
    pub(crate) fn published() -> Value {
        json!({
            "dim": 4096, "n_layers": 36, "head_dim": 128, "hidden_dim": 12288, "n_heads": 32,
            "n_kv_heads": 32, "rope_theta": 10000.0, "norm_eps": 1e-6, "vocab_size": 131072,
            "tied_embeddings": false, "max_position_embeddings": 1048576,
            "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 64, "v_head_dim": 128,
            "yarn": {"factor": 128.0, "original_max_position_embeddings": 8192, "beta": 32.0,
                "alpha": 1.0, "apply_scale": false},
            "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192},
            "moe": {"num_experts": 128, "num_experts_per_tok": 4, "num_shared_experts": 1,
                "expert_hidden_dim": 2048, "routed_scale": 1.0, "first_k_dense_replace": 0,
                "route_every_n": 1, "num_expert_groups": 1, "num_expert_groups_per_tok": 1},
            "vision_encoder": {"hidden_size": 1024, "num_hidden_layers": 24},
            "quantization_config": {"quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized"},
        })
    }

    fn compared(config: &Value) -> Result<(), String> {
        let target = repository("h200/mistral-small-4-119b/nvfp4");
        let compared = check_config(&target, "params.json", config.to_string().as_bytes());
        compared.map_err(|error| error.to_string())
    }

    #[test]
    fn the_release_s_own_configuration_is_right() {
        compared(&published()).unwrap();
    }

    #[test]
    fn every_number_of_the_text_model_is_compared() {
        let unread = ["/hidden_dim"];
        for parent in ["", "/yarn", "/llama_4_scaling", "/moe"] {
            let config = published();
            let members = config.pointer(parent).unwrap().as_object().unwrap();
            for (name, value) in members.iter().filter(|(_, value)| !value.is_object()) {
                let pointer = format!("{parent}/{name}");
                let mut other = published();
                *other.pointer_mut(&pointer).unwrap() = match value.as_f64() {
                    Some(number) => json!(number + 1.0),
                    None => json!(!value.as_bool().unwrap()),
                };
                let message = compared(&other).err().unwrap_or_default();
                assert_eq!(
                    message.contains(&pointer),
                    !unread.contains(&&*pointer),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn what_shapes_do_not_show_must_be_stated() {
        for name in ["norm_eps", "yarn", "llama_4_scaling", "moe"] {
            let mut config = published();
            config[name].take();
            let message = compared(&config).unwrap_err();
            assert!(message.contains("does not state"), "{message}");
        }
    }
}
