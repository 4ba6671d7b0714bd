//! `target.rs`: the constants that `src/model/target.rs` includes.

use std::fmt::Write;

use crate::config::{config_facts, generation_facts};
use crate::constants::{Constant, Value, constants, gpu_constants};
use crate::facts::Fact;
use crate::files::sha256;
use crate::schema::model::{AddedTokens, Chat, File};
use crate::target::{DerivedFile, Target};

/// Writes items of rows: comment, name and type of each, and its value as `format!` makes it.
macro_rules! items {
    ($out:expr; $(
        #[doc = $doc:literal] $name:ident: $type:ty = $form:literal $(, $value:expr)*;
    )*) => {
        $({
            let declared = concat!(stringify!($name), ": ", stringify!($type));
            let value = format!($form $(, $value)*);
            item($out, $doc.trim_ascii(), &format!("{declared} = {value}"));
        })*
    };
}

impl Target {
    /// Rust text of every constant of the target, for `include!` in `src/model/target.rs`.
    ///
    /// `derived` are the files of [`Target::derived_files`]; the text expects each in `OUT_DIR`.
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
        let partition = self.hardware.gpu.as_ref().filter(|gpu| gpu.partition);
        items! { out;
            /// Hardware, the first part of the target's name.
            HARDWARE: &str = "{:?}", self.leaf.hw;
            /// Model, the second part of the target's name.
            MODEL: &str = "{:?}", self.leaf.model;
            /// Quantisation, the third part of the target's name.
            QUANT: &str = "{:?}", self.quant;
            /// Name of the binary.
            BINARY: &str = "{:?}", self.binary();
            /// Model id that the API reports.
            MODEL_ID: &str = "{:?}", self.model.id;
            /// Whether requests can be answered.
            SERVES: bool = "{}", self.serves();
            /// Bytes of host memory that are left to others, if the model is in this memory.
            HOST_RESERVE: Option<u64> = "{:?}", self.hardware.host_reserve_bytes;
            /// SMs that this binary keeps to on a larger GPU; absent: all.
            PARTITION: Option<u32> = "{:?}", partition.map(|gpu| gpu.sms);
            /// The expanded manifest (TOML), as `show` prints it.
            MANIFEST: &str = "r##\"{}\"##", self.expanded();
        }
    }

    fn write_sampling(&self, out: &mut String) {
        let sampling = &self.model.sampling;
        items! { out;
            /// Temperature of requests that state none.
            DEFAULT_TEMPERATURE: f32 = "{:?}", sampling.temperature;
            /// Top-k of requests that state none; 0 turns it off.
            DEFAULT_TOP_K: u32 = "{}", sampling.top_k;
            /// Top-p of requests that state none.
            DEFAULT_TOP_P: f32 = "{:?}", sampling.top_p;
        }
    }

    fn write_chat(&self, out: &mut String) {
        let chat = self.model.chat.as_ref();
        let text = |field: fn(&Chat) -> &str| chat.map_or("", field);
        let format = chat.and_then(|chat| chat.tool_format);
        let format = format.map(|format| format!("Some(ToolFormat::{format:?})"));
        let own = self.own_template();
        let template = text(|chat| &chat.template);
        items! { out;
            /// Tokens that end a turn.
            STOP_TOKENS: &[u32] = "&{:?}", chat.map_or(&[][..], |chat| &chat.stop_ids);
            /// Tokens of the tokenizer that no merge makes.
            ADDED_TOKENS: &[(u32, &str)] = "&[\n{}]", chat.map_or(String::new(), added_tokens);
            /// Syntax of the model's tool calls, if it makes any.
            TOOL_FORMAT: Option<ToolFormat> = "{}", format.as_deref().unwrap_or("None");
            /// Whether the model reasons when a request does not say.
            THINKING_DEFAULT: bool = "{}", chat.is_some_and(|chat| chat.thinking);
            /// Text that opens reasoning.
            THINK_OPEN: &str = "{:?}", text(|chat| &chat.think_open);
            /// Text that closes reasoning.
            THINK_CLOSE: &str = "{:?}", text(|chat| &chat.think_close);
            /// Tokenizer in the weights directory; empty where the model has none.
            TOKENIZER_FILE: &str = "{:?}", text(|chat| &chat.tokenizer);
            /// Chat template in the weights directory; empty where the model has none there.
            TEMPLATE_FILE: &str = "{:?}", if own.is_some() { "" } else { template };
            /// Chat template that is compiled in; empty where the checkpoint's is used.
            TEMPLATE: &str = "{}", included(own);
        }
    }

    fn write_ops(&self, out: &mut String) {
        let Some(gpu) = &self.hardware.gpu else {
            return;
        };
        let (major, minor) = (gpu.capability() / 10, gpu.capability() % 10);
        items! { out;
            /// Compute capability that kernels are compiled for (major, minor).
            COMPUTE_CAPABILITY: (i32, i32) = "({major}, {minor})";
            /// SMs that grids are sized for.
            SMS: u32 = "{}", gpu.sms;
        }
        for constant in gpu_constants(self, gpu) {
            write_constant(out, &constant);
        }
    }

    fn write_files(&self, out: &mut String, derived: &[DerivedFile]) {
        let files = self.files(derived);
        let list = files.iter().map(checkpoint_file).collect::<String>();
        let prefix = match self.model.vision {
            Some(_) => "model.language_model.",
            None => "model.",
        };
        let scales = self.input_scales().iter();
        let scales: Vec<_> = scales.map(|format| format!("Format::{format:?}")).collect();
        items! { out;
            /// Files of the checkpoint; empty when their digests are unknown.
            CHECKPOINT: &[CheckpointFile] = "&[\n{list}]";
            /// Beginning of the names of the decoder's tensors in the checkpoint.
            NAME_PREFIX: &str = "{prefix:?}";
            /// Formats whose matrices have a scale of their input in the checkpoint.
            INPUT_SCALES: &[Format] = "&[{}]", scales.join(", ");
        }
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
        // A static, as a constant would be copied into every codegen unit that reads it.
        let _ = writeln!(out, "/// {doc}\npub static {text}];");
        let golden = Some(self.golden_file()).filter(|_| self.has_golden_arithmetic());
        // Figures of an outside reference hold for the checkpoint's weights, not for rounded ones.
        let checkpoint = self.checkpoint().filter(|_| !self.rounds());
        items! { out;
            /// Prompts and their tokens by another implementation (JSON).
            GOLDEN: &str = "{}", included(golden.filter(|file| self.root.join(file).is_file()));
            /// Nats per token of the text that a start is checked with, by an outside reference.
            TEXT_NLL: Option<f64> = "{:?}", checkpoint.and_then(|checkpoint| checkpoint.text_nll);
        }
    }

    /// Writes the facts by which a directory of weights is identified.
    fn write_identity(&self, out: &mut String) {
        let checkpoint = self.checkpoint();
        let repository = checkpoint.and_then(|checkpoint| checkpoint.repository.as_ref());
        let revision = checkpoint.and_then(|checkpoint| checkpoint.revision.as_ref());
        let vision = self.model.vision.as_ref();
        let (towers, tower) = vision.map_or((0, 0), |vision| (vision.tensors, vision.bytes));
        let [tensors, bytes] = self.sums();
        let (config, weights) = (self.form().config(), self.form().weights());
        let index = format!("{weights}.index.json");
        items! { out;
            /// Repository in which the weights are published, `owner/name`.
            REPOSITORY: Option<&str> = "{repository:?}";
            /// Commit of [`REPOSITORY`].
            REVISION: Option<&str> = "{revision:?}";
            /// Number of the checkpoint's tensors but for the vision tower: the least, the most.
            TENSORS: std::ops::RangeInclusive<u64> = "{tensors:?}";
            /// Bytes of the checkpoint's tensors but for the vision tower: the least, the most.
            TENSOR_BYTES: std::ops::RangeInclusive<u64> = "{bytes:?}";
            /// Number and bytes of the vision tower's tensors.
            VISION_TENSORS: [u64; 2] = "[{towers}, {tower}]";
            /// File of the model's dimensions, as the release has it.
            CONFIG_FILE: &str = "{config:?}";
            /// File of all tensors, where there is no index.
            WEIGHTS_FILE: &str = "{weights:?}";
            /// Index: the file of each tensor.
            INDEX_FILE: &str = "{index:?}";
            /// Facts that [`CONFIG_FILE`] must not contradict.
            CONFIG: &[Fact] = "&[\n{}]", facts(&config_facts(self));
            /// Facts that `generation_config.json` must not contradict.
            GENERATION: &[Fact] = "&[\n{}]", facts(&generation_facts(&self.model));
        }
    }

    /// The checkpoint's files, with derived ones in place of their sources.
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

/// Expression that includes a file of the repository, or an empty text.
fn included(path: Option<String>) -> String {
    let include =
        |path| format!("include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../../{path}\"))");
    path.map_or("\"\"".into(), include)
}

fn added_tokens(chat: &Chat) -> String {
    let AddedTokens { first, texts } = &chat.added_tokens;
    let known = (*first..).zip(texts).filter(|(_, text)| !text.is_empty());
    known
        .map(|(id, token)| format!("    ({id}, {token:?}),\n"))
        .collect()
}

fn checkpoint_file(file: &File) -> String {
    let File {
        name,
        bytes,
        sha256,
    } = file;
    format!("    CheckpointFile {{ name: {name:?}, bytes: {bytes}, sha256: {sha256:?} }},\n")
}

fn facts(facts: &[Fact]) -> String {
    let mut text = String::new();
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
    text
}

pub(crate) fn item(out: &mut String, doc: &str, text: &str) {
    let _ = writeln!(out, "/// {doc}\npub const {text};");
}

fn write_constant(out: &mut String, constant: &Constant) {
    let name = constant.name;
    let text = match &constant.value {
        Value::Size(value) => format!("{name}: usize = {value}"),
        Value::Single(value) => format!("{name}: f32 = {value:?}"),
        Value::Bool(value) => format!("{name}: bool = {value}"),
        Value::Format(value) => format!("{name}: Format = Format::{value:?}"),
        Value::Kv(value) => format!("{name}: KvFormat = KvFormat::{value:?}"),
    };
    item(out, constant.doc, &text);
}
