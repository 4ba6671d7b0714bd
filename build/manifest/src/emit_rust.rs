//! `target.rs`: the constants that `src/model/target.rs` includes.

use std::fmt::Write;

use crate::config::{beside_facts, config_facts, generation_facts};
use crate::constants::{Constant, Value, constants};
use crate::facts::Fact;
use crate::files::sha256;
use crate::kernels::{top_k_chunks, top_k_parts};
use crate::schema::leaf::KvFormat;
use crate::schema::model::{AddedTokens, Chat, File};
use crate::target::{DerivedFile, Target};

impl Target {
    /// Rust text of every constant of the target, for `include!` in `src/model/target.rs`.
    ///
    /// `derived` is what [`Target::derived_files`] made; the text expects each in `OUT_DIR`.
    pub fn emit_rust(&self, derived: &[DerivedFile]) -> String {
        let mut out = format!("// Generated from {}; edit that.\n\n", self.leaf_file());
        self.write_names(&mut out);
        for constant in constants(self) {
            write_constant(&mut out, &constant);
        }
        self.write_shapes(&mut out);
        self.write_table(&mut out);
        self.write_sampling(&mut out);
        self.write_chat(&mut out);
        self.write_ops(&mut out);
        self.write_files(&mut out, derived);
        self.write_identity(&mut out);
        out
    }

    fn write_names(&self, out: &mut String) {
        line(
            out,
            "Hardware, the first part of the target's name.",
            "HARDWARE",
            &self.leaf.hw,
        );
        line(
            out,
            "Model, the second part of the target's name.",
            "MODEL",
            &self.leaf.model,
        );
        line(
            out,
            "Quantisation, the third part of the target's name.",
            "QUANT",
            &self.quant,
        );
        line(out, "Name of the binary.", "BINARY", &self.binary());
        line(
            out,
            "Model id that the API reports.",
            "MODEL_ID",
            &self.model.id,
        );
        item(
            out,
            "Whether requests can be answered.",
            &format!("SERVES: bool = {}", self.serves()),
        );
        let gpu = self.hardware.gpu.as_ref();
        let reserve = self.hardware.host_reserve_bytes;
        item(
            out,
            "What is left to others of the host's memory, bytes, if the model lies in it.",
            &format!("HOST_RESERVE: Option<u64> = {reserve:?}"),
        );
        let partition = gpu.filter(|gpu| gpu.partition).map(|gpu| gpu.sms);
        item(
            out,
            "Of a larger GPU the SMs that this binary keeps to; all of it if none.",
            &format!("PARTITION: Option<u32> = {partition:?}"),
        );
        item(
            out,
            "The expanded manifest (TOML), as `show` prints it.",
            &format!("MANIFEST: &str = r##\"{}\"##", self.expanded()),
        );
    }

    fn write_sampling(&self, out: &mut String) {
        let sampling = &self.model.sampling;
        let temperature = format!("DEFAULT_TEMPERATURE: f32 = {:?}", sampling.temperature);
        item(out, "Temperature of requests that name none.", &temperature);
        let top_k = format!("DEFAULT_TOP_K: u32 = {}", sampling.top_k);
        item(
            out,
            "Top-k of requests that name none; 0 keeps all.",
            &top_k,
        );
        let top_p = format!("DEFAULT_TOP_P: f32 = {:?}", sampling.top_p);
        item(out, "Top-p of requests that name none.", &top_p);
    }

    fn write_chat(&self, out: &mut String) {
        let chat = self.model.chat.as_ref();
        let stop = chat.map_or(&[][..], |chat| &chat.stop_ids);
        item(
            out,
            "Tokens that end a turn.",
            &format!("STOP_TOKENS: &[u32] = &{stop:?}"),
        );
        self.write_added_tokens(out);
        self.write_tools(out);
        let thinking = chat.is_some_and(|chat| chat.thinking);
        let text = format!("THINKING_DEFAULT: bool = {thinking}");
        item(
            out,
            "Whether the model reasons when a request does not say.",
            &text,
        );
        let text = |field: fn(&Chat) -> &str| chat.map_or("", field).to_owned();
        line(
            out,
            "Opens reasoning.",
            "THINK_OPEN",
            &text(|chat| &chat.think_open),
        );
        line(
            out,
            "Closes reasoning.",
            "THINK_CLOSE",
            &text(|chat| &chat.think_close),
        );
        let name = "TOKENIZER_FILE";
        line(
            out,
            "Tokenizer in the weights directory; empty where the model has none.",
            name,
            &text(|chat| &chat.tokenizer),
        );
        let own = self.own_template();
        let file = match own {
            Some(_) => String::new(),
            None => text(|chat| &chat.template),
        };
        let doc = "Chat template in the weights directory; empty where the model has none there.";
        line(out, doc, "TEMPLATE_FILE", &file);
        let doc = "Chat template of a model whose checkpoint has none to be used; empty: it has.";
        item(out, doc, &format!("TEMPLATE: &str = {}", included(own)));
    }

    fn write_added_tokens(&self, out: &mut String) {
        let mut text = String::from("ADDED_TOKENS: &[(u32, &str)] = &[\n");
        if let Some(chat) = &self.model.chat {
            let AddedTokens { first, texts } = &chat.added_tokens;
            let known = (*first..).zip(texts).filter(|(_, text)| !text.is_empty());
            for (id, token) in known {
                let _ = writeln!(text, "    ({id}, {token:?}),");
            }
        }
        let doc = "Tokens that the tokenizer has beside those of its merges.";
        item(out, doc, &format!("{text}]"));
    }

    fn write_tools(&self, out: &mut String) {
        let format = self.model.chat.as_ref().and_then(|chat| chat.tool_format);
        let name = format.map(|format| format!("ToolFormat::{format:?}"));
        let name = name.map_or("None".to_owned(), |name| format!("Some({name})"));
        let text = format!("TOOL_FORMAT: Option<ToolFormat> = {name}");
        item(out, "Syntax of its tool calls, if it calls any.", &text);
    }

    fn write_ops(&self, out: &mut String) {
        if let Some(gpu) = &self.hardware.gpu {
            let (major, minor) = (gpu.capability() / 10, gpu.capability() % 10);
            let text = format!("COMPUTE_CAPABILITY: (i32, i32) = ({major}, {minor})");
            item(
                out,
                "The one that kernels are compiled for (major, minor).",
                &text,
            );
            let text = format!("SMS: u32 = {}", gpu.sms);
            item(out, "SMs that grids are sized for.", &text);
            let rows = self.moe_rows(gpu.shared_bytes_per_block);
            let text = format!("MOE_ROWS: usize = {rows}");
            item(out, "Most rows of `moe` in one launch.", &text);
            let chunks = top_k_chunks(&self.model, gpu.sms.into());
            let text = format!("TOP_K_CHUNKS: usize = {chunks}");
            let doc = "Chunks of a row of logits: what each block of the head makes.";
            item(out, doc, &text);
            let parts = top_k_parts(&self.model, gpu.sms.into());
            let text = format!("TOP_K_PARTS: usize = {parts}");
            item(out, "Parts of a chunk, which a warp ranks.", &text);
        }
        if self.hardware.gpu.is_some() {
            let operands = self.kernels().iter().any(|choice| choice.operands);
            let doc = "Whether kernels lay rows out as operands of warpgroup instructions.";
            item(out, doc, &format!("OPERANDS: bool = {operands}"));
        }
    }

    fn write_files(&self, out: &mut String, derived: &[DerivedFile]) {
        let files = self.files(derived);
        let mut text = String::from("CHECKPOINT: &[CheckpointFile] = &[\n");
        for File {
            name,
            bytes,
            sha256,
        } in &files
        {
            let _ = writeln!(
                text,
                "    CheckpointFile {{ name: {name:?}, bytes: {bytes}, sha256: {sha256:?} }},"
            );
        }
        item(
            out,
            "Files of the checkpoint; empty when their digests are unknown.",
            &(text + "]"),
        );
        let prefix = match self.model.vision {
            Some(_) => "model.language_model.",
            None => "model.",
        };
        let doc = "What names of the decoder's tensors begin with in the checkpoint.";
        line(out, doc, "NAME_PREFIX", prefix);
        let scales = self.input_scales().iter();
        let scales: Vec<_> = scales.map(|format| format!("Format::{format:?}")).collect();
        item(
            out,
            "Formats whose matrices carry a scale of their input as well.",
            &format!("INPUT_SCALES: &[Format] = &[{}]", scales.join(", ")),
        );
        let mut text = String::from("EMBEDDED: &[(&str, &[u8])] = &[\n");
        for File { name, .. } in files.iter().filter(|_| self.leaf.embed) {
            let path = match derived.iter().any(|file| file.name == *name) {
                true => format!("env!(\"OUT_DIR\"), \"/{name}\""),
                false => format!(
                    "env!(\"CARGO_MANIFEST_DIR\"), \"/../../{}\"",
                    self.model_path(name)
                ),
            };
            let _ = writeln!(text, "    ({name:?}, include_bytes!(concat!({path}))),");
        }
        let doc = "Files compiled into the binary: name and content.";
        // A constant would be copied into every unit of code that reads it.
        let _ = writeln!(out, "/// {doc}\npub static {text}];");
        let golden = Some(self.golden_file()).filter(|_| self.has_golden_arithmetic());
        let golden = included(golden.filter(|file| self.root.join(file).is_file()));
        let doc = "Prompts with the tokens that another implementation makes of them (JSON).";
        item(out, doc, &format!("GOLDEN: &str = {golden}"));
        // A figure of an outside reference is of the checkpoint's own weights.
        let checkpoint = self.checkpoint().filter(|_| !self.rounds());
        let known = checkpoint.and_then(|checkpoint| checkpoint.text_nll);
        let doc = "Nats per token that an outside reference gives the text of the start's check.";
        item(out, doc, &format!("TEXT_NLL: Option<f64> = {known:?}"));
    }

    /// Facts that a directory of weights must state of itself.
    fn write_identity(&self, out: &mut String) {
        let checkpoint = self.checkpoint();
        let repository = checkpoint.and_then(|checkpoint| checkpoint.repository.as_ref());
        let text = format!("REPOSITORY: Option<&str> = {repository:?}");
        item(out, "Where the weights are published, `owner/name`.", &text);
        let revision = checkpoint.and_then(|checkpoint| checkpoint.revision.as_ref());
        let text = format!("REVISION: Option<&str> = {revision:?}");
        item(out, "Commit of that repository.", &text);
        let vision = self.model.vision.as_ref();
        let (towers, tower) = vision.map_or((0, 0), |vision| (vision.tensors, vision.bytes));
        let docs = [
            "Tensors of the checkpoint without the vision tower, the least and the most.",
            "Their bytes.",
        ];
        for ((name, doc), sum) in ["TENSORS", "TENSOR_BYTES"]
            .into_iter()
            .zip(docs)
            .zip(self.sums())
        {
            let text = format!("{name}: std::ops::RangeInclusive<u64> = {sum:?}");
            item(out, doc, &text);
        }
        let text = format!("VISION_TENSORS: [u64; 2] = [{towers}, {tower}]");
        item(out, "Tensors of the vision tower, and their bytes.", &text);
        let (config, weights) = (self.form().config(), self.form().weights());
        let doc = "The model's dimensions, in the words of the release.";
        line(out, doc, "CONFIG_FILE", config);
        line(
            out,
            "All tensors, where there is no index.",
            "WEIGHTS_FILE",
            weights,
        );
        let index = format!("{weights}.index.json");
        line(out, "Shard of each tensor.", "INDEX_FILE", &index);
        let doc = "Facts that [`CONFIG_FILE`] must not contradict.";
        write_facts(out, doc, "CONFIG", &config_facts(self));
        let doc = "Facts that a `config.json` beside another form of it must not contradict.";
        write_facts(out, doc, "BESIDE", &beside_facts(self));
        let doc = "Facts that its `generation_config.json` must not contradict.";
        write_facts(out, doc, "GENERATION", &generation_facts(&self.model));
    }

    /// The checkpoint's files, those that this target derives in place of their sources.
    fn files(&self, derived: &[DerivedFile]) -> Vec<File> {
        let mut files = self
            .checkpoint()
            .map_or(Vec::new(), |checkpoint| checkpoint.files.clone());
        for file in &mut files {
            if let Some(made) = derived.iter().find(|made| made.name == file.name) {
                file.bytes = made.content.len() as u64;
                file.sha256 = sha256(&made.content);
            }
        }
        files
    }
}

/// Text of a file of the repository, or none.
fn included(path: Option<String>) -> String {
    let include =
        |path| format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../../{path}\"))");
    path.map_or("\"\"".into(), include)
}

fn write_facts(out: &mut String, doc: &str, name: &str, facts: &[Fact]) {
    let mut text = format!("{name}: &[Fact] = &[\n");
    for Fact {
        key,
        pointer,
        elsewhere,
        right,
        required,
        switch,
    } in facts
    {
        let _ = writeln!(
            text,
            "    Fact {{ key: {key:?}, pointer: {pointer:?}, elsewhere: &{elsewhere:?}, \
             right: Cow::Borrowed(r#\"{right}\"#), required: {required}, switch: {switch:?} }},"
        );
    }
    item(out, doc, &(text + "]"));
}

pub(crate) fn item(out: &mut String, doc: &str, text: &str) {
    let _ = writeln!(out, "/// {doc}\npub const {text};");
}

fn line(out: &mut String, doc: &str, name: &str, text: &str) {
    item(out, doc, &format!("{name}: &str = {text:?}"));
}

fn write_constant(out: &mut String, constant: &Constant) {
    let name = constant.name;
    let text = match &constant.value {
        Value::Size(value) => format!("{name}: usize = {value}"),
        Value::Single(value) => format!("{name}: f32 = {value:?}"),
        Value::Bool(value) => format!("{name}: bool = {value}"),
        Value::Format(value) => format!("{name}: Format = Format::{value:?}"),
        Value::Kv(value) => format!("{name}: KvFormat = KvFormat::{}", kv_name(*value)),
    };
    item(out, constant.doc, &text);
}

fn kv_name(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F32 => "F32",
        KvFormat::Bf16 => "Bf16",
        KvFormat::Fp8 => "Fp8",
    }
}
