//! Adoption of this repository's models from their own files, and of files that are broken.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::limits::cpu;
use super::rules::rules;
use super::stored::Named;
use super::{Adopted, Published, Source, adopt, text};
use crate::config::config_facts;
use crate::error::ManifestError;
use crate::family::{Mixers, Traits};
use crate::formats::Formatted;
use crate::params::tests::published;
use crate::schema::model::{Family, FeedForward, Mixer, Mlp, Model, Sampling};
use crate::schema::parse;
use crate::table::{Format, Row};
use crate::target::{Target, leaves};
use crate::testing::{Scratch, repository, root, usual};

/// Name of models that tests make.
const NAME: &str = "fresh";
/// Experts of a layer in tests, as many as any model visits.
const EXPERTS: u64 = 22;
const CONFIG: &str = "a/config.json";
const INDEX: &str = "a/index.json";

type Problems = Vec<ManifestError>;

fn adopted(config: &Value, index: &Value) -> Result<Adopted, Problems> {
    adopted_of(CONFIG, config, index)
}

/// Manifests of a configuration at `path`.
fn adopted_of(path: &str, config: &Value, index: &Value) -> Result<Adopted, Problems> {
    let (config, index) = (config.to_string(), index.to_string());
    of_sources([(path, config.as_bytes()), (INDEX, index.as_bytes())])
}

fn of_text(config: &[u8], index: &[u8]) -> Result<Adopted, Problems> {
    of_sources([(CONFIG, config), (INDEX, index)])
}

fn of_sources(sources: [(&str, &[u8]); 2]) -> Result<Adopted, Problems> {
    let [config, index] = sources.map(|(path, content)| Source { path, content });
    let published = Published {
        name: NAME,
        quant: None,
        config,
        index,
    };
    adopt(&root(), &published)
}

/// The leaves of an adopted model as a build loads them.
fn loaded(adopted: &Adopted) -> Vec<Target> {
    let scratch = Scratch::of("cpu/tiny/nvfp4");
    for hw in ["h200", "gb10"] {
        let file = format!("targets/_hw/{hw}.toml");
        scratch.write(&file, &fs::read(root().join(&file)).unwrap());
    }
    let files = adopted.files.iter();
    files.for_each(|(file, text)| scratch.write(file, text.as_bytes()));
    let leaves = adopted.files.iter().skip(1);
    let names = leaves.map(|(file, _)| &file["targets/".len()..file.len() - ".toml".len()]);
    names.map(|name| scratch.load(name).unwrap()).collect()
}

/// A model without the facts that a published repository does not state.
fn decided(target: &Target) -> Model {
    let mut model = target.model.clone();
    (model.title, model.id, model.licence) = Default::default();
    (model.chat, model.vision) = (None, None);
    model.mtp.draft_ids = None;
    model.sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
    };
    let mut checkpoint = target.checkpoint().unwrap().clone();
    (checkpoint.repository, checkpoint.revision) = (None, None);
    (checkpoint.text_nll, checkpoint.source) = (None, None);
    checkpoint.tensors = Some(target.checkpoint_tensors());
    checkpoint.tensor_bytes = Some(target.checkpoint_bytes());
    checkpoint.files.clear();
    model.checkpoint = [(String::new(), checkpoint)].into();
    model
}

/// Rows with the formats of a leaf, sorted.
fn table(target: &Target) -> Vec<Row> {
    let mut rows = target.table();
    rows.sort_by_key(|row| (row.name.to_string(), row.role, row.sites.iter().next()));
    rows
}

/// Checks that adopting a model's own files results in the model.
fn assert_same(found: &Adopted, target: &Target) {
    let leaves = loaded(found);
    assert_eq!(decided(&leaves[0]), decided(target), "{}", target.name);
    assert_eq!(table(&leaves[0]), table(target), "{}", target.name);
    let patterns = leaves[0].leaf.format.iter();
    let patterns = patterns.map(|rule| rule.r#match.patterns().len());
    let before = target.leaf.format.iter();
    let before = before.map(|rule| rule.r#match.patterns().len());
    assert!(
        patterns.sum::<usize>() <= before.sum(),
        "{}",
        found.files[1].1
    );
}

/// The names in the files of a model's folder, as an index has them.
fn index_of(folder: &Path) -> Value {
    let (mut names, mut bytes) = (serde_json::Map::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let content = fs::read(&path).unwrap();
            let (header, data) = crate::safetensors::split(&content).unwrap();
            names.extend(
                header
                    .into_keys()
                    .map(|name| (name, json!("a.safetensors"))),
            );
            bytes += data.len();
        }
    }
    json!({"metadata": {"total_size": bytes}, "weight_map": names})
}

fn config_of(model: &str) -> Value {
    let path = root().join(format!("targets/_model/{model}/config.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The two files of a model whose weights lie in this repository.
fn files_of(model: &str) -> (Value, Value) {
    let folder = root().join("targets/_model").join(model);
    (config_of(model), index_of(&folder))
}

/// The configuration and the index of a target as its manifest describes them.
fn described(target: &Target) -> (Value, Value) {
    let mut config = usual(&config_facts(target));
    config["max_position_embeddings"] = json!(target.model.max_position);
    let mut names = serde_json::Map::new();
    for row in target.tensors() {
        for piece in target.pieces(&row) {
            for site in row.sites.iter() {
                let name = |copy| row.name_at(site, copy) + piece.suffix;
                let copies = 0..row.tensors_of_site();
                names.extend(copies.map(|copy| (name(copy), json!("a.safetensors"))));
            }
        }
    }
    let tower = target
        .model
        .vision
        .as_ref()
        .map_or(0, |vision| vision.tensors);
    names.extend((0..tower).map(|at| (format!("model.visual.{at}"), json!("b.safetensors"))));
    let index = json!({"metadata": {"total_size": target.checkpoint_bytes()}, "weight_map": names});
    (config, index)
}

/// A target of each model whose weights are published as they are.
fn references() -> Vec<Target> {
    let names = leaves(&root()).unwrap();
    let targets = names.iter().map(|name| repository(name));
    // No published configuration has layers of any form.
    let is_any =
        |it: &Target| it.traits().mixers != Mixers::Mamba && it.mixers().contains(&Mixer::None);
    let mut seen = BTreeSet::new();
    let published = targets.filter(|it| {
        let made = it.leaf.derive.is_some() || it.leaf.checkpoint.is_some();
        let is_new = seen.insert((it.leaf.model.clone(), it.quant.clone()));
        !made && !is_any(it) && is_new
    });
    published.collect()
}

#[test]
fn models_with_files_are_made_of_them_again() {
    let targets = references();
    let with_files = |target: &&Target| target.name.starts_with("cpu/random-");
    let targets: Vec<_> = targets.iter().filter(with_files).collect();
    assert!(targets.len() > 20);
    for target in targets {
        let folder = root().join("targets/_model").join(&target.leaf.model);
        let (config, index) = files_of(&target.leaf.model);
        let found = match fs::read(folder.join("model.safetensors")) {
            // With the header, which states the matrices in F32.
            Ok(only) => of_sources([
                (CONFIG, config.to_string().as_bytes()),
                ("a/model.safetensors", &only),
            ]),
            Err(_) => adopted(&config, &index),
        };
        assert_same(&found.unwrap_or_else(|why| panic!("{why:#?}")), target);
    }
}

/// The target with few experts: comparing their names takes most of the time.
fn with_few_experts(mut target: Target) -> Target {
    let Some(moe) = &mut target.model.moe else {
        return target;
    };
    moe.experts = moe.experts.min(EXPERTS);
    for checkpoint in target.model.checkpoint.values_mut() {
        (checkpoint.tensors, checkpoint.tensor_bytes) = (None, None);
    }
    target
}

#[test]
fn models_of_known_facts_are_made_of_what_these_describe() {
    // An index of names does not state the matrices in F32.
    let in_names = |target: &Target| {
        let rows = target.table();
        rows.iter().all(|row| row.format() != Some(Format::F32))
    };
    let targets = references().into_iter().filter(in_names);
    for target in targets.map(with_few_experts) {
        let (config, index) = described(&target);
        let path = format!("a/{}", target.form().config());
        let found = adopted_of(&path, &config, &index);
        let found = found.unwrap_or_else(|why| panic!("{}: {why:#?}", target.name));
        assert_same(&found, &target);
        let tower = |target: &Target| target.model.vision.as_ref().map(|vision| vision.tensors);
        assert_eq!(tower(&loaded(&found)[0]), tower(&target));
    }
}

#[test]
fn a_release_of_mistral_s_own_form_is_made_of_its_params() {
    let target = repository("h200/mistral-small-4-119b/nvfp4");
    let (_, index) = described(&target);
    let found = adopted_of("a/params.json", &published(), &index);
    assert_same(&found.unwrap_or_else(|why| panic!("{why:#?}")), &target);
}

/// The configuration of a release whose layers are one block each.
fn nemotron_3_super() -> Value {
    json!({
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": 131072,
        "hidden_size": 4096, "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEM\
            EMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": false, "max_position_embeddings": 262144,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
        "conv_kernel": 4, "use_conv_bias": true, "mlp_hidden_act": "relu2",
        "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_latent_size": 1024,
        "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
        "routed_scaling_factor": 5.0, "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
        "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    })
}

#[test]
fn a_release_of_blocks_in_three_formats_is_made_of_its_facts() {
    let target = repository("h200/nemotron-3-super-120b-a12b/nvfp4");
    let (_, index) = described(&target);
    let found = adopted(&nemotron_3_super(), &index).unwrap_or_else(|why| panic!("{why:#?}"));
    assert_same(&found, &target);
}

/// Kernels that a leaf chooses in place of the hardware's, by table.
fn kernels(target: &Target) -> Vec<(&String, &String, u64)> {
    let ops = target.leaf.op.iter();
    ops.map(|(table, op)| (table, &op.kernel, op.threads))
        .collect()
}

#[test]
fn a_leaf_names_a_kernel_that_takes_the_model_where_the_usual_one_does_not() {
    for model in [
        "mistral-small-4-119b/nvfp4",
        "random-gemma4-4/bf16",
        "random-nemotron-4/bf16",
    ] {
        let target = with_few_experts(repository(&format!("h200/{model}")));
        let (config, index) = described(&target);
        let path = format!("a/{}", target.form().config());
        let found = adopted_of(&path, &config, &index).unwrap_or_else(|why| panic!("{why:#?}"));
        let leaves = loaded(&found);
        let leaf = leaves.iter().find(|leaf| leaf.leaf.hw == "h200");
        assert_eq!(kernels(leaf.expect(model)), kernels(&target), "{model}");
        let message = found.open.iter().filter(|open| open.key.starts_with("op."));
        assert!(message.count() >= target.leaf.op.len(), "{model}");
    }
}

#[test]
fn blocks_may_be_words_and_a_prediction_of_others_is_refused() {
    let (mut config, index) = files_of("random-nemotron-6");
    config["hybrid_override_pattern"].take();
    let words = [
        "linear_attention",
        "moe",
        "linear_attention",
        "full_attention",
        "moe",
    ];
    config["layers_block_type"] = json!(words);
    let found = adopted(&config, &index).unwrap_or_else(|why| panic!("{why:#?}"));
    assert_same(&found, &repository("cpu/random-nemotron-6/nvfp4"));
    config["mtp_hybrid_override_pattern"] = json!("*E*E");
    let message = adopted(&config, &index).unwrap_err()[0].to_string();
    assert!(
        message.contains("states \"*E*E\" at /mtp_hybrid_override_pattern"),
        "{message}"
    );
}

#[test]
fn params_are_told_in_their_own_words() {
    let message = |pointer: &str, value: Value| {
        let mut params = published();
        *params.pointer_mut(pointer).unwrap() = value;
        let problems = adopted_of("a/params.json", &params, &json!({"weight_map": {"a": "b"}}));
        let problems = problems.unwrap_err();
        problems
            .iter()
            .map(ManifestError::to_string)
            .collect::<String>()
    };
    for (pointer, value, said) in [
        (
            "/dim",
            json!(0),
            "a/params.json: dim = 0: must be a whole number",
        ),
        (
            "/moe/num_experts",
            json!("many"),
            "moe.num_experts = \"many\": must be",
        ),
        ("/yarn/beta", Value::Null, "yarn.beta = absent: must be"),
        (
            "/yarn/apply_scale",
            Value::Null,
            "does not state /yarn/apply_scale",
        ),
        (
            "/moe/num_expert_groups",
            json!(8),
            "states 8 at /moe/num_expert_groups",
        ),
        (
            "/llama_4_scaling/original_max_position_embeddings",
            json!(4096),
            "states 4096 at /llama_4_scaling/original_max_position_embeddings",
        ),
    ] {
        let message = message(pointer, value);
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_text_model_is_found_within_its_multimodal_configuration() {
    for (model, kind, class) in [
        (
            "random-mistral4-1",
            "mistral3",
            "Mistral3ForConditionalGeneration",
        ),
        (
            "random-mistral4-3",
            "mistral3",
            "Mistral3ForConditionalGeneration",
        ),
    ] {
        let (config, index) = files_of(model);
        let around = json!({"model_type": kind, "architectures": [class], "text_config": config,
            "vision_config": {"model_type": "pixtral", "hidden_size": 9}});
        let found = adopted(&around, &index).unwrap_or_else(|why| panic!("{why:#?}"));
        assert_same(&found, &repository(&format!("cpu/{model}/bf16")));
    }
}

#[test]
fn layers_without_experts_are_the_first_ones_or_listed() {
    let mut target = repository("cpu/random-qwen3_moe-1/bf16");
    target.model.layers.count = 4;
    target.model.mlp = Some(Mlp { intermediate: 40 });
    for checkpoint in target.model.checkpoint.values_mut() {
        (checkpoint.tensors, checkpoint.tensor_bytes) = (None, None);
    }
    for dense in [vec![0], vec![1, 2], vec![0, 3]] {
        let part = |layer| match dense.contains(&layer) {
            true => FeedForward::Mlp,
            false => FeedForward::Moe,
        };
        target.model.layers.feed_forward = (0..4).map(part).collect();
        let (config, index) = described(&target);
        let found = adopted(&config, &index).unwrap_or_else(|why| panic!("{why:#?}"));
        assert_same(&found, &target);
    }
}

#[test]
fn a_header_is_as_good_as_an_index() {
    let folder = root().join("targets/_model/random-llama-2");
    let config = fs::read(folder.join("config.json")).unwrap();
    let weights = fs::read(folder.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let published = Published {
        name: NAME,
        quant: Some("bf16"),
        config: Source {
            path: CONFIG,
            content: &config,
        },
        index: Source {
            path: "a/model.safetensors",
            content: &weights[..header],
        },
    };
    let found = adopt(&root(), &published).unwrap();
    assert_same(&found, &repository("cpu/random-llama-2/bf16"));
}

#[test]
fn what_nobody_knows_of_the_maths_is_left_to_decide() {
    let (mut config, index) = files_of("random-qwen3_moe-2");
    config["text_config"]["attn_scale_layers"] = json!([1, 2]);
    config["logits_multiplier"] = json!(0.5);
    config["vision_config"]["embed_scale"] = json!(3);
    let found = adopted(&config, &index).unwrap();
    let of_config = found.open.iter().filter(|open| open.file == CONFIG);
    let mut keys: Vec<&str> = of_config.map(|open| open.key.as_str()).collect();
    keys.sort_unstable();
    let expected = [
        "/logits_multiplier = 0.5",
        "/text_config/attn_scale_layers = [1,2]",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn experts_are_read_under_either_name() {
    for (model, name, other) in [
        ("random-qwen3_moe-1", "num_experts", "num_local_experts"),
        ("random-mixtral-1", "num_local_experts", "num_experts"),
        ("random-qwen3_next-1", "num_experts", "num_local_experts"),
    ] {
        let (mut config, index) = files_of(model);
        let found = |config: &Value| adopted(config, &index).map(|found| found.files);
        let before = found(&config).unwrap();
        config[other] = config[name].clone();
        assert_eq!(found(&config).as_ref(), Ok(&before), "{model}");
        config[name].take();
        assert_eq!(found(&config).as_ref(), Ok(&before), "{model}");
        config[name] = json!(99);
        assert!(found(&config).is_err(), "{model}");
    }
}

/// A model of `llama` as its files would describe it, with one fact of a kernel's changed.
fn llama_with(edit: impl Fn(&mut Model)) -> Adopted {
    let mut target = repository("cpu/random-llama-4/bf16");
    edit(&mut target.model);
    for checkpoint in target.model.checkpoint.values_mut() {
        (checkpoint.tensors, checkpoint.tensor_bytes) = (None, None);
    }
    let (config, index) = described(&target);
    adopted(&config, &index).unwrap_or_else(|why| panic!("{why:#?}"))
}

#[test]
fn no_leaf_is_written_that_no_kernel_takes_and_the_fact_is_named() {
    let head = |width| {
        move |model: &mut Model| {
            (model.attention.head_dim, model.attention.rotary_dim) = (width, width);
        }
    };
    for (found, key) in [
        (
            llama_with(head(96)),
            "attention.head_dim = 96: must be 64, 128, 256 or 512",
        ),
        (
            llama_with(head(80)),
            "attention.head_dim = 80: must be 64, 128, 256 or 512",
        ),
        (
            llama_with(|model| model.hidden = 36),
            "hidden = 36: makes 36 columns of ",
        ),
        (
            llama_with(|model| model.attention.heads = 34),
            "attention.kv_heads = 2: must leave at most 16 query heads",
        ),
    ] {
        let leaves: Vec<&str> = found.files.iter().map(|(file, _)| file.as_str()).collect();
        let expected = [
            "targets/_model/fresh/model.toml",
            "targets/cpu/fresh/bf16.toml",
        ];
        assert_eq!(leaves, expected);
        for hw in ["h200", "gb10"] {
            let start = format!(
                "targets/{hw}/{NAME}/bf16.toml: is not written: targets/_model/{NAME}/model.toml: \
                 {key}"
            );
            let notes = found.open.iter().map(|open| open.to_string());
            assert!(
                notes.into_iter().any(|note| note.starts_with(&start)),
                "{start}"
            );
        }
    }
}

/// The problems of a model whose only file has another header than its own.
fn of_header(edit: impl Fn(&mut serde_json::Map<String, Value>)) -> Result<Adopted, Problems> {
    let folder = root().join("targets/_model/random-llama-2");
    let config = fs::read(folder.join("config.json")).unwrap();
    let weights = fs::read(folder.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&weights[8..end]).unwrap();
    edit(&mut header);
    let header = serde_json::to_string(&header).unwrap();
    let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let source = |path, content| Source { path, content };
    adopt(
        &root(),
        &Published {
            name: NAME,
            quant: None,
            config: source(CONFIG, &config),
            index: source("a/model.safetensors", &content),
        },
    )
}

#[test]
fn shapes_and_types_of_an_only_file_are_compared() {
    let key = "model.layers.1.self_attn.k_proj.weight";
    for (name, edited, said) in [
        (
            "shape",
            json!([128, 136]),
            "BF16 [128, 136], not BF16 [256, 68]",
        ),
        (
            "shape",
            json!([256, 68, 1]),
            "BF16 [256, 68, 1], not BF16 [256, 68]",
        ),
        ("dtype", json!("F16"), "F16 [256, 68], not BF16 [256, 68]"),
    ] {
        let found = of_header(|header| header[key][name] = edited.clone()).unwrap_err();
        let expected = format!(
            "a/model.safetensors: tensors = {key} is {said}: must have the types and shapes that \
             config.json gives"
        );
        assert_eq!(
            found
                .iter()
                .map(ManifestError::to_string)
                .collect::<Vec<_>>(),
            [expected]
        );
    }
}

#[test]
fn a_tower_in_an_only_file_has_its_own_bytes() {
    let found = of_header(|header| {
        let ends = header
            .values()
            .filter_map(|entry| entry["data_offsets"][1].as_u64());
        let end = ends.max().unwrap();
        for (at, name) in ["visual.a", "model.visual.b"].into_iter().enumerate() {
            let start = end + 48 * at as u64;
            let entry =
                json!({"dtype": "BF16", "shape": [24], "data_offsets": [start, start + 48]});
            header.insert(name.to_string(), entry);
        }
    });
    let leaves = loaded(&found.unwrap());
    let vision = leaves[0].model.vision.as_ref().unwrap();
    assert_eq!((vision.tensors, vision.bytes), (2, 96));
}

#[test]
fn bytes_that_leave_nothing_to_a_tower_are_told_with_its_tensors() {
    let with_tower = |size: Value| {
        messages("random-llama-2", |_, index| {
            let map = index["weight_map"].as_object_mut().unwrap();
            map.insert("visual.blocks.0.weight".to_string(), json!("a"));
            index["metadata"]["total_size"] = size.clone();
        })
    };
    let bytes = repository("cpu/random-llama-2/bf16").checkpoint_bytes();
    for size in [json!(12), json!(bytes)] {
        let expected = format!(
            "a/index.json: metadata.total_size = {size}: leaves no byte to the 1 tensors of a \
             vision tower, as visual.blocks.0.weight: the others have {bytes}, as the facts give"
        );
        assert_eq!(with_tower(size), [expected]);
    }
    let found = with_tower(Value::Null);
    let start = "a/index.json: metadata.total_size = absent: must be stated: nothing else says the \
                 bytes of the 1 tensors of a vision tower, as visual.blocks.0.weight";
    assert!(found[0].starts_with(start), "{found:?}");
}

#[test]
fn a_share_of_a_head_is_told_as_it_is_stated() {
    for (share, turned) in [(0.5, 64), (0.25, 32), (0.75, 96)] {
        let found = messages("random-llama-2", |config, _| {
            config["partial_rotary_factor"] = json!(share);
        });
        let expected = format!(
            "a/config.json: partial_rotary_factor = {share}: gives attention.rotary_dim = \
             {turned}: family = \"llama\" turns the whole head, attention.head_dim = 128"
        );
        assert_eq!(found, [expected]);
    }
}

#[test]
fn pages_take_what_the_memory_leaves() {
    let (config, index) = described(&repository("cpu/qwen3-8b/bf16"));
    let leaves = loaded(&adopted(&config, &index).unwrap());
    let pools: Vec<u64> = leaves
        .iter()
        .map(|leaf| leaf.leaf.limits.kv_tokens)
        .collect();
    assert_eq!(pools, [65_536, 655_360, 524_288]);
}

#[test]
fn a_model_without_room_on_a_gpu_has_no_leaf_there() {
    let mut target = repository("cpu/mixtral-8x7b/bf16");
    target.model.layers.count *= 2;
    let (config, index) = described(&target);
    let found = adopted(&config, &index).unwrap();
    assert_eq!(found.files.len(), 2);
    let notes: Vec<String> = found.open.iter().map(|open| open.to_string()).collect();
    let said = |hw: &str| {
        let file = format!("targets/{hw}/{NAME}/bf16.toml: is not written: ");
        notes.iter().any(|note| note.starts_with(&file))
    };
    assert!(said("h200") && said("gb10"), "{notes:#?}");
}

/// Messages for the files of `model` after one edit of each.
fn messages(model: &str, edit: impl Fn(&mut Value, &mut Value)) -> Vec<String> {
    let (mut config, mut index) = files_of(model);
    edit(&mut config, &mut index);
    let problems = adopted(&config, &index).unwrap_err();
    problems.iter().map(ManifestError::to_string).collect()
}

#[test]
fn an_unknown_family_is_refused_by_name() {
    let found = messages("random-qwen3_moe-2", |config, _| {
        config["text_config"]["model_type"] = json!("gemma2");
    });
    let types = Family::ALL.iter().map(|family| {
        let Traits { name, types, .. } = family.traits();
        match types.len() {
            1 if types[0] == *name => name.to_string(),
            _ => format!("{name} ({})", types.join(", ")),
        }
    });
    let types: Vec<_> = types.collect();
    assert_eq!(types[0], "gemma3 (gemma3_text)");
    let expected = format!(
        "a/config.json: text_config.model_type = \"gemma2\": is no type of a known family; known \
         are {}",
        types.join(", ")
    );
    assert_eq!(found, [expected]);
}

#[test]
fn all_problems_of_a_configuration_are_told_at_once() {
    let found = messages("random-llama-1", |config, _| {
        config["hidden_size"] = json!(-32);
        config["vocab_size"] = json!(u64::MAX);
        config["num_hidden_layers"] = json!("two");
        config["hidden_act"] = json!("gelu");
        config.as_object_mut().unwrap().remove("rms_norm_eps");
    });
    let expected = [
        "a/config.json: hidden_size = -32: must be a whole number, 1 ..= 131072",
        "a/config.json: vocab_size = 18446744073709551615: must be a whole number, 1 ..= 4194304",
        "a/config.json: rms_norm_eps = absent: must be a number above 0",
        "a/config.json: num_hidden_layers = \"two\": must be a whole number, 1 ..= 512",
        "a/config.json: states \"gelu\" at /hidden_act; the layer math of family = \"llama\" has \
         \"silu\"",
    ];
    assert_eq!(found, expected);
}

#[test]
fn numbers_that_contradict_each_other_are_told_by_their_words() {
    let found = messages("random-qwen3_5-1", |config, _| {
        config["num_key_value_heads"] = json!(5);
        config["linear_num_value_heads"] = json!(7);
        config["sliding_window"] = json!(128);
    });
    let expected = [
        "a/config.json: num_key_value_heads = 5: must divide attention.heads = 2",
        "a/config.json: linear_num_value_heads = 7: must be a multiple of gdn.key_heads = 2",
        "a/config.json: states 128 at /sliding_window; the layer math of family = \"qwen3_5\" has \
         none",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_configuration_must_state_what_the_library_would_not_do() {
    let found = messages("random-qwen3_moe-1", |config, _| {
        config.as_object_mut().unwrap().remove("norm_topk_prob");
    });
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("does not state /norm_topk_prob"),
        "{found:?}"
    );
}

#[test]
fn tensors_that_are_missing_or_nobody_knows_are_named() {
    let found = messages("random-llama-2", |_, index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        for name in ["lm_head.weight", "model.norm.weight"] {
            map.remove(name).unwrap();
        }
        for at in 0..5 {
            map.insert(
                format!("model.layers.{at}.self_attn.q_proj.bias"),
                json!("a"),
            );
        }
    });
    let bias = |layer| format!("model.layers.{layer}.self_attn.q_proj.bias");
    let expected = [
        "a/index.json: weight_map = model.norm.weight, lm_head.weight: are missing; family = \
         \"llama\" has them by config.json"
            .to_string(),
        format!(
            "a/index.json: weight_map = {}, {}, {} and 2 more: are not described; family = \
             \"llama\" has no such tensors",
            bias(0),
            bias(1),
            bias(2)
        ),
    ];
    assert_eq!(found, expected);
}

#[test]
fn experts_in_several_formats_are_refused() {
    let found = messages("random-modelopt", |_, index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        let base = "model.layers.0.mlp.experts.2.up_proj";
        for end in ["weight_scale", "weight_scale_2", "input_scale"] {
            map.remove(&format!("{base}.{end}")).unwrap();
        }
    });
    let expected = "a/index.json: weight_map = model.layers.0.mlp.experts.*.up_proj: must have one \
                    format for all experts of a layer";
    assert_eq!(found, [expected]);
}

#[test]
fn bytes_that_shapes_do_not_give_are_refused() {
    let found = messages("random-llama-2", |_, index| {
        index["metadata"]["total_size"] = json!(12);
    });
    assert_eq!(found.len(), 1);
    let start = "a/index.json: metadata.total_size = 12: must be ";
    assert!(found[0].starts_with(start), "{found:?}");
}

#[test]
fn another_quantisation_than_the_tensors_have_is_refused() {
    let found = messages("random-fp8", |config, _| {
        config["quantization_config"] = json!({"quant_method": "awq"});
    });
    let expected = "a/config.json: states \"awq\" at /quantization_config/quant_method; format has \
                    \"fp8\"";
    assert_eq!(found, [expected]);
}

#[test]
fn names_are_checked_and_nothing_is_overwritten() {
    let (config, index) = files_of("random-llama-1");
    let (config, index) = (config.to_string(), index.to_string());
    let message = |name, quant| {
        let published = Published {
            name,
            quant,
            config: Source {
                path: CONFIG,
                content: config.as_bytes(),
            },
            index: Source {
                path: INDEX,
                content: index.as_bytes(),
            },
        };
        let problems = adopt(&root(), &published).unwrap_err();
        problems
            .iter()
            .map(ManifestError::to_string)
            .collect::<Vec<_>>()
    };
    let there = message("tiny", None);
    assert_eq!(there.len(), 4, "{there:?}");
    assert!(there[0].starts_with("targets/_model/tiny: is there, and nothing is overwritten"));
    for name in ["", "..", "_a", "A", "a/b", "a b", "ä", "-a"] {
        let found = message(name, None);
        assert!(found[0].starts_with("targets: NAME = "), "{found:?}");
    }
    let dotted = message(NAME, Some("bf16.a"));
    assert!(dotted[0].starts_with("targets: --quant = \"bf16.a\": must be"));
    let quant = message(NAME, Some("nvfp4"));
    let expected = "targets: --quant = \"nvfp4\": must have the part \"bf16\", which the tensors \
                    are stored in";
    assert_eq!(quant, [expected]);
}

/// Pseudo-random numbers.
struct Draws(u64);

impl Draws {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

#[test]
fn rules_say_any_formats_that_layers_have() {
    let base = repository("cpu/random-packed/nvfp4");
    for seed in 1..16 {
        let mut draws = Draws(seed << 32 | seed);
        let kinds = 1 + draws.below(Format::ALL.len());
        let matrices = base
            .tensors()
            .into_iter()
            .filter(|row| row.format().is_some());
        let matrices = matrices.map(|row| {
            let usual = Format::ALL[draws.below(kinds)];
            let sites = row.sites.iter();
            let at = sites.map(|site| match draws.below(8) {
                0 => (site, Format::ALL[draws.below(kinds)]),
                _ => (site, usual),
            });
            let at = at.collect();
            Named {
                name: row.name.into_owned(),
                at,
            }
        });
        let matrices: Vec<Named> = matrices.collect();
        let text = text::leaf(["cpu", NAME, "f32"], &rules(&matrices), &cpu(&base.model));
        let mut target = base.clone();
        target.leaf = parse(&text, "leaf", "").unwrap();
        Formatted::of(&target).check("leaf").unwrap();
        let rows = target.table();
        for named in matrices {
            for (site, format) in named.at {
                let stands = |row: &&Row| row.name == named.name && row.sites.contains(site);
                let mut found = rows.iter().filter(stands).map(Row::format);
                assert!(found.all(|found| found == Some(format)), "{text}");
            }
        }
    }
}

/// Every pointer into a value.
fn pointers(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            pointers(value, format!("{path}/{key}"), found);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(at, value)| {
            pointers(value, format!("{path}/{at}"), found);
        }),
        _ => {}
    }
    found.push(path);
}

/// Values that no right configuration has, and some that it has in another place.
fn garbage() -> Vec<Value> {
    let huge = json!(u64::MAX);
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let kinds = [
        json!(null),
        json!(true),
        json!("ä\u{0}"),
        json!([]),
        json!({}),
        deep,
    ];
    let numbers = [
        json!(0),
        json!(1),
        json!(-1),
        json!(1e300),
        json!(1e-300),
        json!(0.5),
        huge,
    ];
    kinds.into_iter().chain(numbers).collect()
}

#[test]
fn no_value_of_a_configuration_or_an_index_ends_in_a_panic() {
    let (config, index) = files_of("random-qwen3_5-2");
    let mut places = Vec::new();
    pointers(&config, String::new(), &mut places);
    let of_index = ["", "/metadata", "/metadata/total_size", "/weight_map"];
    for value in garbage() {
        for place in &places {
            let mut config = config.clone();
            *config.pointer_mut(place).unwrap() = value.clone();
            assert_told(adopted(&config, &index));
        }
        for place in of_index {
            let mut index = index.clone();
            *index.pointer_mut(place).unwrap() = value.clone();
            assert_told(adopted(&config, &index));
        }
    }
}

#[test]
fn a_key_that_is_left_out_is_told_or_not_needed() {
    let (config, index) = files_of("random-packed");
    for key in config.as_object().unwrap().keys() {
        let mut config = config.clone();
        config.as_object_mut().unwrap().remove(key);
        assert_told(adopted(&config, &index));
    }
}

#[test]
fn text_that_is_cut_is_refused() {
    let (config, index) = files_of("random-llama-1");
    let (config, index) = (config.to_string(), index.to_string());
    let (config, index) = (config.as_bytes(), index.as_bytes());
    for at in (0..config.len()).step_by(7) {
        of_text(&config[..at], index).unwrap_err();
    }
    for at in (0..index.len()).step_by(97) {
        of_text(config, &index[..at]).unwrap_err();
    }
    assert_eq!(of_text(b"\xff", b"[]").unwrap_err().len(), 2);
}

/// Checks that the result is a model, or problems with file and key.
fn assert_told(result: Result<Adopted, Problems>) {
    let Err(problems) = result else {
        return;
    };
    let whole = |why: &ManifestError| !why.file.is_empty() && !why.rule.is_empty();
    assert!(
        !problems.is_empty() && problems.iter().all(whole),
        "{problems:?}"
    );
}
