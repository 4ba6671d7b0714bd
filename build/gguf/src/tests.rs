//! Conversion of files that are built by hand.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::blocks::{Element, Kind};
use super::read::{Gguf, Value};
use super::{CONFIG, TEMPLATE, TOKENIZER, WEIGHTS, convert};

const ALIGNMENT: usize = 32;
/// Type numbers of the format.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const LIST: u32 = 9;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn list(kind: u32, items: Vec<Vec<u8>>) -> Vec<u8> {
    let count = (items.len() as u64).to_le_bytes();
    [&kind.to_le_bytes()[..], &count, &items.concat()].concat()
}

/// A file before it is written: keys with type and bytes; tensors with dimensions, type and data.
#[derive(Clone)]
struct Draft {
    version: u32,
    keys: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Draft {
    fn key(&mut self, key: &str, kind: u32, value: Vec<u8>) {
        self.keys.retain(|(known, _, _)| known != key);
        self.keys.push((key.to_string(), kind, value));
    }

    fn whole(&mut self, key: &str, value: u32) {
        self.key(key, U32, value.to_le_bytes().to_vec());
    }

    /// A matrix whose elements in F32 are 0, 1, 2 and so on.
    fn counting(&mut self, name: &str, dimensions: &[u64]) {
        let count = dimensions.iter().product::<u64>();
        let data = (0..count).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let name = format!("{name}.weight");
        self.tensors.push((name, dimensions.to_vec(), 0, data));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = [&b"GGUF"[..], &self.version.to_le_bytes()].concat();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.keys {
            file.extend([&text(key)[..], &kind.to_le_bytes(), value].concat());
        }
        let mut data = Vec::new();
        for (name, dimensions, kind, own) in &self.tensors {
            file.extend(text(name));
            file.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|n| file.extend(n.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(own);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        [file, data].concat()
    }

    fn parse_error(&self) -> String {
        Gguf::parse(&self.bytes()).unwrap_err().to_string()
    }
}

/// A Llama of one layer, 8 wide, with two query heads of four, one KV head, six tokens.
fn llama() -> Draft {
    let (keys, tensors) = (vec![], vec![]);
    let mut draft = Draft {
        version: 3,
        keys,
        tensors,
    };
    draft.key("general.architecture", TEXT, text("llama"));
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("rope.dimension_count", 4),
        ("vocab_size", 6),
    ] {
        draft.whole(&format!("llama.{key}"), value);
    }
    let eps = 1e-5f32.to_le_bytes().to_vec();
    draft.key("llama.attention.layer_norm_rms_epsilon", F32, eps);
    draft.key("llama.rope.freq_base", F32, 1e5f32.to_le_bytes().to_vec());
    draft.key("tokenizer.ggml.model", TEXT, text("gpt2"));
    draft.key("tokenizer.ggml.pre", TEXT, text("smollm"));
    draft.key("tokenizer.ggml.add_bos_token", BOOL, vec![0]);
    let tokens = ["<|end|>", "a", "b", "ab", "1", "Ġ"].map(text);
    draft.key("tokenizer.ggml.tokens", LIST, list(TEXT, tokens.to_vec()));
    let types = [3i32, 1, 1, 1, 1, 1].map(|kind| kind.to_le_bytes().to_vec());
    draft.key("tokenizer.ggml.token_type", LIST, list(I32, types.to_vec()));
    draft.key("tokenizer.ggml.merges", LIST, list(TEXT, vec![text("a b")]));
    for name in ["bos", "eos", "padding", "unknown"] {
        draft.whole(&format!("tokenizer.ggml.{name}_token_id"), 0);
    }
    draft.key("tokenizer.chat_template", TEXT, text("{{ messages }}"));
    draft.counting("token_embd", &[8, 6]);
    draft.counting("output_norm", &[8]);
    for (name, dimensions) in [
        ("attn_norm", vec![8]),
        ("ffn_norm", vec![8]),
        ("attn_q", vec![8, 8]),
        ("attn_k", vec![8, 4]),
        ("attn_v", vec![8, 4]),
        ("attn_output", vec![8, 8]),
        ("ffn_gate", vec![8, 12]),
        ("ffn_up", vec![8, 12]),
        ("ffn_down", vec![12, 8]),
    ] {
        draft.counting(&format!("blk.0.{name}"), &dimensions);
    }
    draft
}

/// A Gemma 3 of the same dimensions in seven layers, with a SentencePiece tokenizer.
fn gemma3() -> Draft {
    let mut draft = llama();
    draft.tensors.truncate(2);
    draft.keys.retain(|(key, ..)| !key.starts_with("llama."));
    draft
        .keys
        .retain(|(key, ..)| key != "tokenizer.ggml.merges");
    draft
        .keys
        .retain(|(key, ..)| key != "tokenizer.chat_template");
    draft.key("general.architecture", TEXT, text("gemma3"));
    for (key, value) in [
        ("block_count", 7),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 6),
        ("attention.value_length", 6),
        ("attention.sliding_window", 5),
    ] {
        draft.whole(&format!("gemma3.{key}"), value);
    }
    let eps = 1e-6f32.to_le_bytes().to_vec();
    draft.key("gemma3.attention.layer_norm_rms_epsilon", F32, eps);
    draft.key("gemma3.rope.freq_base", F32, 1e6f32.to_le_bytes().to_vec());
    draft.key("tokenizer.ggml.model", TEXT, text("llama"));
    draft.key("tokenizer.ggml.add_bos_token", BOOL, vec![1]);
    let tokens = ["<bos>", "a", "b", "ab", "<0x0A>", "aab"].map(text);
    draft.key("tokenizer.ggml.tokens", LIST, list(TEXT, tokens.to_vec()));
    let types = [3i32, 1, 1, 1, 6, 1].map(|kind| kind.to_le_bytes().to_vec());
    draft.key("tokenizer.ggml.token_type", LIST, list(I32, types.to_vec()));
    let scores = [0f32, -8.0, -9.0, -1.0, 0.0, -2.0].map(|score| score.to_le_bytes().to_vec());
    draft.key("tokenizer.ggml.scores", LIST, list(F32, scores.to_vec()));
    for layer in 0..7 {
        for (name, dimensions) in [
            ("attn_norm", vec![8]),
            ("post_attention_norm", vec![8]),
            ("ffn_norm", vec![8]),
            ("post_ffw_norm", vec![8]),
            ("attn_q_norm", vec![6]),
            ("attn_k_norm", vec![6]),
            ("attn_q", vec![8, 12]),
            ("attn_k", vec![8, 6]),
            ("attn_v", vec![8, 6]),
            ("attn_output", vec![12, 8]),
            ("ffn_gate", vec![8, 12]),
            ("ffn_up", vec![8, 12]),
            ("ffn_down", vec![12, 8]),
        ] {
            draft.counting(&format!("blk.{layer}.{name}"), &dimensions);
        }
    }
    draft
}

/// A folder that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("atlas-gguf-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    fn convert(&self, draft: &Draft, element: Element) -> Result<(), String> {
        let from = self.0.join("m.gguf");
        std::fs::write(&from, draft.bytes()).unwrap();
        convert(&[from], &self.0, element)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    fn json(&self, name: &str) -> Json {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// Shape and elements of an F32 tensor.
    fn tensor(&self, name: &str) -> (Vec<u64>, Vec<f32>) {
        let file = self.read(WEIGHTS);
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(length % 8, 0);
        let header: Json = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let described = &header[name];
        let offset = |i: usize| described["data_offsets"][i].as_u64().unwrap() as usize;
        let data = &file[8 + length..][offset(0)..offset(1)];
        let numbers = data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        let shape = described["shape"].as_array().unwrap().iter();
        (
            shape.map(|n| n.as_u64().unwrap()).collect(),
            numbers.collect(),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn converted(name: &str, draft: &Draft) -> Scratch {
    let scratch = Scratch::new(name);
    scratch.convert(draft, Element::F32).unwrap();
    scratch
}

/// Error for which the file of a draft is refused.
fn refused(name: &str, draft: &Draft) -> String {
    Scratch::new(name).convert(draft, Element::F32).unwrap_err()
}

#[test]
fn dimensions_become_a_configuration() {
    let config = converted("config", &llama()).json(CONFIG);
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    let whole = |name: &str| config[name].as_u64().unwrap();
    assert_eq!((whole("hidden_size"), whole("intermediate_size")), (8, 12));
    assert_eq!(
        (whole("num_attention_heads"), whole("num_key_value_heads")),
        (2, 1)
    );
    assert_eq!((whole("head_dim"), whole("num_hidden_layers")), (4, 1));
    assert_eq!(
        (whole("vocab_size"), whole("max_position_embeddings")),
        (6, 64)
    );
    assert_eq!(config["tie_word_embeddings"], true);
    // The shortest decimal of the F32 number, not its exact value.
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["rope_parameters"]["rope_theta"], 1e5);
}

#[test]
fn rows_of_queries_and_keys_are_put_in_halves() {
    let scratch = converted("rows", &llama());
    let first = |name: &str| {
        let (shape, numbers) = scratch.tensor(name);
        let columns = shape[1] as usize;
        numbers
            .chunks(columns)
            .map(|row| row[0] as usize / columns)
            .collect::<Vec<_>>()
    };
    let layer = "model.layers.0.self_attn";
    assert_eq!(
        first(&format!("{layer}.q_proj.weight")),
        [0, 2, 1, 3, 4, 6, 5, 7]
    );
    assert_eq!(first(&format!("{layer}.k_proj.weight")), [0, 2, 1, 3]);
    assert_eq!(first(&format!("{layer}.v_proj.weight")), [0, 1, 2, 3]);
}

#[test]
fn every_tensor_has_its_name_and_shape() {
    let scratch = converted("names", &llama());
    let shape = |name: &str| scratch.tensor(&format!("{name}.weight")).0;
    assert_eq!(shape("model.embed_tokens"), [6, 8]);
    assert_eq!(shape("model.norm"), [8]);
    let layer = |name: &str| shape(&format!("model.layers.0.{name}"));
    assert_eq!(layer("input_layernorm"), [8]);
    assert_eq!(layer("post_attention_layernorm"), [8]);
    assert_eq!(layer("self_attn.o_proj"), [8, 8]);
    assert_eq!(layer("mlp.gate_proj"), [12, 8]);
    assert_eq!(layer("mlp.up_proj"), [12, 8]);
    assert_eq!(layer("mlp.down_proj"), [8, 12]);
}

#[test]
fn a_head_of_its_own_unties_it() {
    let mut draft = llama();
    draft.counting("output", &[8, 6]);
    let scratch = converted("untied", &draft);
    assert_eq!(scratch.json(CONFIG)["tie_word_embeddings"], false);
    assert_eq!(scratch.tensor("lm_head.weight").0, [6, 8]);
}

#[test]
fn tokens_become_a_byte_level_definition() {
    let scratch = converted("tokens", &llama());
    let definition = scratch.json(TOKENIZER);
    assert_eq!(definition["model"]["vocab"]["ab"], 3);
    assert_eq!(
        definition["model"]["merges"],
        serde_json::json!([["a", "b"]])
    );
    let cutters = &definition["pre_tokenizer"]["pretokenizers"];
    assert_eq!(
        (&cutters[0]["type"], &cutters[1]["type"]),
        (&"Digits".into(), &"ByteLevel".into())
    );
    assert_eq!(definition["added_tokens"].as_array().unwrap().len(), 1);
    assert_eq!(definition["added_tokens"][0]["content"], "<|end|>");
    assert_eq!(definition["added_tokens"][0]["special"], true);
    assert_eq!(scratch.read(TEMPLATE), b"{{ messages }}");
}

#[test]
fn what_could_change_answers_and_is_not_known_is_refused() {
    let mut draft = llama();
    draft.key("llama.rope.scaling.type", TEXT, text("yarn"));
    let why = refused("scaling", &draft);
    assert!(why.starts_with("m.gguf: byte "), "{why}");
    assert!(
        why.ends_with("key `llama.rope.scaling.type`: nobody here knows this key"),
        "{why}"
    );
    let mut draft = llama();
    draft.counting("rope_freqs", &[2]);
    let why = refused("tensor", &draft);
    assert!(
        why.ends_with("tensor `rope_freqs.weight`: a llama has no such tensor"),
        "{why}"
    );
    let mut draft = llama();
    draft.key("tokenizer.ggml.add_bos_token", BOOL, vec![1]);
    let why = refused("bos", &draft);
    assert!(
        why.contains("key `tokenizer.ggml.add_bos_token`: is set"),
        "{why}"
    );
}

#[test]
fn another_kind_is_refused_by_name() {
    for (key, name) in [
        ("general.architecture", "`qwen2` is none of llama, gemma3"),
        (
            "tokenizer.ggml.model",
            "`qwen2` is not `gpt2`, byte-level BPE, or `llama`, pieces",
        ),
        ("tokenizer.ggml.pre", "`qwen2` is none of gpt-2, smollm"),
    ] {
        let mut draft = llama();
        draft.key(key, TEXT, text("qwen2"));
        let why = refused(key, &draft);
        assert!(why.ends_with(&format!("key `{key}`: {name}")), "{why}");
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    for (key, value, rule) in [
        ("llama.vocab_size", 7, "is not 6, which other keys say"),
        (
            "llama.attention.key_length",
            8,
            "is not 4, which other keys say",
        ),
        (
            "llama.attention.head_count_kv",
            3,
            "does not divide the 2 query heads",
        ),
        ("llama.rope.dimension_count", 3, "is odd"),
        ("llama.block_count", 0, "is zero"),
        ("llama.block_count", 12, "is more than the 11 tensors"),
        ("llama.context_length", 1 << 25, "is above 16777216"),
        ("tokenizer.ggml.eos_token_id", 6, "6 is no token of 6"),
    ] {
        let mut draft = llama();
        draft.whole(key, value);
        let why = refused(&key.replace('.', "-"), &draft);
        assert!(why.ends_with(&format!("key `{key}`: {rule}")), "{why}");
    }
    let mut draft = llama();
    draft.whole("llama.feed_forward_length", 16);
    let why = refused("shape", &draft);
    let rule = "tensor `blk.0.ffn_gate.weight`: has dimensions [8, 12], the metadata says [8, 16]";
    assert!(why.ends_with(rule), "{why}");
}

#[test]
fn merges_and_types_fit_the_tokens() {
    let mut draft = llama();
    draft.key("tokenizer.ggml.merges", LIST, list(TEXT, vec![text("a 1")]));
    let why = refused("merge", &draft);
    assert!(
        why.ends_with("\"a 1\" is no pair of tokens that make one"),
        "{why}"
    );
    let mut draft = llama();
    draft.key(
        "tokenizer.ggml.token_type",
        LIST,
        list(I32, vec![vec![1, 0, 0, 0]]),
    );
    let why = refused("types", &draft);
    assert!(
        why.ends_with("key `tokenizer.ggml.token_type`: has 1 items, of 6 tokens"),
        "{why}"
    );
    let mut draft = llama();
    let tokens = ["a", "a", "b", "ab", "1", "Ġ"].map(text);
    draft.key("tokenizer.ggml.tokens", LIST, list(TEXT, tokens.to_vec()));
    let why = refused("twice", &draft);
    assert!(
        why.ends_with("key `tokenizer.ggml.tokens`: \"a\" comes twice"),
        "{why}"
    );
}

#[test]
fn what_is_missing_is_named() {
    for key in llama().keys.iter().map(|(key, _, _)| key) {
        let optional = [
            "vocab_size",
            "add_bos_token",
            "unknown_token_id",
            "chat_template",
        ];
        let mut draft = llama();
        draft.keys.retain(|(known, _, _)| known != key);
        match optional.iter().any(|end| key.ends_with(end)) {
            true => Scratch::new("optional")
                .convert(&draft, Element::F32)
                .unwrap(),
            false => {
                let why = refused("missing", &draft);
                assert_eq!(why, format!("m.gguf: byte 0: key `{key}`: is missing"));
            }
        }
    }
    for at in 0..llama().tensors.len() {
        let mut draft = llama();
        let (name, ..) = draft.tensors.remove(at);
        let why = refused("missing-tensor", &draft);
        assert_eq!(why, format!("m.gguf: byte 0: tensor `{name}`: is missing"));
    }
}

#[test]
fn versions_two_and_three_are_read() {
    for (version, is_read) in [
        (1, false),
        (2, true),
        (3, true),
        (4, false),
        (3 << 24, false),
    ] {
        let draft = Draft { version, ..llama() };
        assert_eq!(Gguf::parse(&draft.bytes()).is_ok(), is_read, "{version}");
    }
}

#[test]
fn a_value_of_each_type_is_read() {
    let mut draft = llama();
    for (kind, bytes, value) in [
        (0, vec![200], Value::Unsigned(200)),
        (1, vec![200], Value::Signed(-56)),
        (2, vec![0, 200], Value::Unsigned(51_200)),
        (3, vec![0, 200], Value::Signed(-14_336)),
        (4, vec![0, 0, 0, 200], Value::Unsigned(200 << 24)),
        (5, vec![255; 4], Value::Signed(-1)),
        (6, 0.5f32.to_le_bytes().to_vec(), Value::Single(0.5)),
        (7, vec![1], Value::Bool(true)),
        (8, text("é"), Value::Text("é".to_string())),
        (
            9,
            list(0, vec![vec![7]]),
            Value::List(vec![Value::Unsigned(7)]),
        ),
        (10, vec![255; 8], Value::Unsigned(u64::MAX)),
        (11, vec![255; 8], Value::Signed(-1)),
        (12, 0.5f64.to_le_bytes().to_vec(), Value::Double(0.5)),
    ] {
        draft.key("general.x", kind, bytes);
        let file = draft.bytes();
        assert_eq!(
            Gguf::parse(&file).unwrap().metadata["general.x"].value,
            value
        );
    }
}

#[test]
fn malformed_files_are_refused_with_the_place() {
    let at = |draft: &Draft| draft.parse_error();
    let mut draft = llama();
    draft.key("general.x", 13, vec![]);
    assert!(at(&draft).ends_with("key `general.x`: a value has the type 13, of 0 to 12"));
    draft.key("general.x", BOOL, vec![2]);
    assert!(at(&draft).ends_with("key `general.x`: a truth value is 2"));
    draft.key("general.x", TEXT, list(0, vec![])[4..].to_vec());
    assert!(Gguf::parse(&draft.bytes()).is_ok());
    draft.key(
        "general.x",
        TEXT,
        [&1u64.to_le_bytes()[..], &[0xff]].concat(),
    );
    assert!(
        at(&draft).contains("key `general.x`: a text is no UTF-8"),
        "{}",
        at(&draft)
    );
    let deep = (0..5).fold(list(0, vec![]), |inner, _| list(LIST, vec![inner]));
    draft.key("general.x", LIST, deep);
    assert!(at(&draft).ends_with("key `general.x`: lists are nested more than 4 deep"));
    let mut draft = llama();
    draft.keys.push(draft.keys[0].clone());
    assert!(at(&draft).ends_with("key `general.architecture`: comes twice"));
    let mut draft = llama();
    draft.tensors.push(draft.tensors[0].clone());
    assert!(at(&draft).ends_with("tensor `token_embd.weight`: comes twice"));
    draft.tensors.pop();
    draft.tensors[0].2 = 99;
    assert!(at(&draft).contains("tensor `token_embd.weight`: the type 99, not one of 0 (F32)"));
    draft.tensors[0].2 = 8;
    assert!(
        at(&draft).ends_with("tensor `token_embd.weight`: rows of 8 elements are no blocks of 32")
    );
}

/// A count is compared with the bytes that are left before anything of its size is reserved.
#[test]
fn a_huge_count_takes_no_memory() {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0xff; 16]);
    let why = Gguf::parse(&file).unwrap_err().to_string();
    let rule = "byte 8: a count of 18446744073709551615, with 8 bytes left in the file";
    assert_eq!(why, rule);
}

#[test]
fn any_beginning_of_a_file_is_refused() {
    let file = llama().bytes();
    for end in 0..file.len() - ALIGNMENT {
        assert!(
            Gguf::parse(&file[..end]).is_err(),
            "{end} of {}",
            file.len()
        );
    }
}

/// Files with random changes.
const CHANGES: usize = 500;

/// Pseudo-random numbers, equal in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// Files of any bytes are read or refused, and files that are read are converted or refused.
#[test]
fn no_change_of_bytes_is_a_panic() {
    let (file, scratch) = (llama().bytes(), Scratch::new("changed"));
    let (from, mut random) = (scratch.0.join("m.gguf"), Random(1));
    let mut read = 0;
    for _ in 0..CHANGES {
        let mut changed = file.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(changed.len());
            changed[at] = [0, 1, 0x7f, 0xff, changed[at] ^ 1 << random.below(8)][random.below(5)];
        }
        if Gguf::parse(&changed).is_ok() {
            read += 1;
            std::fs::write(&from, &changed).unwrap();
            let _ = convert(std::slice::from_ref(&from), &scratch.0, Element::Bf16);
        }
    }
    assert!((CHANGES / 10..CHANGES).contains(&read), "{read}");
}

/// Value of an F16, from its sign, exponent and mantissa.
fn f16(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let magnitude = match exponent {
        0 => mantissa * f64::powi(2.0, -14),
        _ => (1.0 + mantissa) * f64::powi(2.0, exponent - 15),
    };
    if bits & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[test]
fn every_f16_number_is_exact() {
    for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
        let mut found = vec![];
        Kind::F16.dequantise(&bits.to_le_bytes(), &mut found);
        assert_eq!(f64::from(found[0]), f16(bits), "{bits:#06x}");
    }
}

/// A block of random codes after random finite F16 numbers.
fn block(random: &mut Random, numbers: usize, codes: usize) -> (Vec<u16>, Vec<u8>) {
    let numbers = (0..numbers).map(|_| (random.below(0x7c00) | random.below(2) << 15) as u16);
    let numbers: Vec<u16> = numbers.collect();
    (
        numbers,
        (0..codes).map(|_| random.below(256) as u8).collect(),
    )
}

fn dequantised(kind: Kind, numbers: &[u16], codes: &[u8]) -> Vec<f32> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(codes);
    let mut found = vec![];
    kind.dequantise(&bytes, &mut found);
    found
}

#[test]
fn blocks_are_what_their_formula_says() {
    let mut random = Random(2);
    for _ in 0..500 {
        let (numbers, codes) = block(&mut random, 2, 32);
        let nibble = |at: usize| f64::from(codes[at % 16] >> (at / 16 * 4) & 15);
        let (d, m) = (f16(numbers[0]), f16(numbers[1]));
        for at in 0..32 {
            let q4_0 = dequantised(Kind::Q4_0, &numbers[..1], &codes[..16])[at];
            assert_eq!(f64::from(q4_0), d * (nibble(at) - 8.0));
            let q8_0 = dequantised(Kind::Q8_0, &numbers[..1], &codes)[at];
            assert_eq!(f64::from(q8_0), d * f64::from(codes[at] as i8));
            let q4_1 = dequantised(Kind::Q4_1, &numbers, &codes[..16])[at];
            assert_eq!(q4_1, (d * nibble(at) + m) as f32);
        }
    }
}

#[test]
fn bf16_is_the_nearest_number_and_the_even_one_of_two() {
    for (number, bits) in [
        (1.0, 0x3f80u16),
        (-2.5, 0xc020),
        (f32::from_bits(0x3f80_7fff), 0x3f80),
        (f32::from_bits(0x3f80_8000), 0x3f80),
        (f32::from_bits(0x3f81_8000), 0x3f82),
        (f32::from_bits(0x3f80_8001), 0x3f81),
    ] {
        let mut found = vec![];
        Element::Bf16.push(number, &mut found);
        assert_eq!(found, bits.to_le_bytes(), "{number}");
    }
}

#[test]
fn norms_of_gemma_lose_the_one_that_was_added_and_rows_keep_their_order() {
    let scratch = converted("gemma", &gemma3());
    let norm = |name: &str| scratch.tensor(&format!("{name}.weight")).1;
    let counted: Vec<f32> = (0..8).map(|n| n as f32 - 1.0).collect();
    assert_eq!(norm("model.norm"), counted);
    for name in [
        "pre_feedforward",
        "post_feedforward",
        "post_attention",
        "input",
    ] {
        assert_eq!(norm(&format!("model.layers.6.{name}_layernorm")), counted);
    }
    assert_eq!(norm("model.layers.0.self_attn.k_norm"), counted[..6]);
    let (shape, rows) = scratch.tensor("model.layers.0.self_attn.q_proj.weight");
    assert_eq!((shape, rows[8]), (vec![12, 8], 8.0));
}

#[test]
fn every_sixth_layer_of_gemma_sees_all_positions() {
    let scratch = converted("gemma-config", &gemma3());
    let config = scratch.json(CONFIG);
    let kinds = config["layer_types"].as_array().unwrap().iter();
    let full: Vec<_> = kinds.map(|kind| kind == "full_attention").collect();
    assert_eq!(full, [false, false, false, false, false, true, false]);
    assert_eq!(
        (&config["sliding_window"], &config["head_dim"]),
        (&5.into(), &6.into())
    );
    assert_eq!(
        config["rope_parameters"]["sliding_attention"]["rope_theta"],
        1e4
    );
    assert_eq!(
        config["rope_parameters"]["full_attention"]["rope_theta"],
        1e6
    );
    assert!(!scratch.0.join(TEMPLATE).exists());
}

#[test]
fn pieces_of_the_highest_score_are_merged_first() {
    let definition = converted("pieces", &gemma3()).json(TOKENIZER);
    let model = &definition["model"];
    assert_eq!(
        model["merges"],
        serde_json::json!([["a", "b"], ["a", "ab"]])
    );
    assert_eq!(model["byte_fallback"], true);
    assert_eq!(definition["added_tokens"].as_array().unwrap().len(), 1);
    assert_eq!(
        definition["post_processor"]["special_tokens"]["<bos>"]["ids"][0],
        0
    );
}

#[test]
fn a_score_for_each_piece_is_needed() {
    let mut draft = gemma3();
    draft.key("tokenizer.ggml.scores", LIST, list(F32, vec![]));
    let why = refused("scores", &draft);
    assert!(
        why.ends_with("key `tokenizer.ggml.scores`: has 0 items, of 6 tokens"),
        "{why}"
    );
}

/// Elements of a block that is zero but for some bytes.
fn decoded(kind: Kind, bytes: &[(usize, u8)]) -> Vec<f32> {
    let mut block = vec![0; kind.bytes()];
    bytes.iter().for_each(|&(at, byte)| block[at] = byte);
    let mut numbers = Vec::new();
    kind.dequantise(&block, &mut numbers);
    assert_eq!(numbers.len(), kind.elements());
    numbers
}

/// High byte of the F16 number 1.
const ONE: u8 = 0x3c;

#[test]
fn fifth_bits_lie_in_a_word_of_their_own() {
    let found = decoded(
        Kind::Q5_0,
        &[(1, ONE), (2, 1), (5, 0x80), (6, 0x21), (21, 0xf0)],
    );
    assert_eq!(
        [0, 1, 16, 31].map(|at| found[at]),
        [1.0, -16.0, -14.0, 15.0]
    );
}

#[test]
fn scales_of_parts_are_six_bits() {
    let (d, m, scales, codes) = (1, 3, 4, 16);
    let found = decoded(
        Kind::Q4K,
        &[
            (d, ONE),
            (m, ONE),
            (scales, 0x42),
            (scales + 1, 1),
            (scales + 4, 0x83),
            (scales + 8, 0x21),
            (codes, 0x54),
            (codes + 64, 0x01),
        ],
    );
    // 2 * 4 - 3, 1 * 5 - 0, (1 | 1 << 4) * 1 - (2 | 2 << 4).
    assert_eq!([0, 32, 128].map(|at| found[at]), [5.0, 5.0, -17.0]);
}

#[test]
fn upper_bits_of_six_lie_behind_the_nibbles() {
    let (high, scales, d) = (128, 192, 209);
    let bytes = [
        (d, ONE),
        (0, 0x21),
        (high, 0x03),
        (scales, 0xff),
        (scales + 4, 2),
        (scales + 8, 1),
        (64, 0x05),
    ];
    let found = decoded(Kind::Q6K, &bytes);
    assert_eq!(
        [0, 1, 64, 128].map(|at| found[at]),
        [-17.0, 32.0, -60.0, -27.0]
    );
}
