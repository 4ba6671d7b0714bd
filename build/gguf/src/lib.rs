//! Conversion of a GGUF file to the files of a checkpoint, as Hugging Face lays them out.
//!
//! ```text
//! read ── metadata ─┬─ model ───── config.json, generation_config.json
//!      │            └─ tokenizer ─ tokenizer.json, tokenizer_config.json, chat_template.jinja
//!      └─ tensors ─ model (names, order of rows) ─ blocks (numbers) ─ write ─ model.safetensors
//! ```
//!
//! An unknown key, tensor or type is an error, since it could change answers.

mod blocks;
mod config;
mod keys;
mod model;
mod read;
#[cfg(test)]
mod tests;
mod tokenizer;
mod write;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use blocks::Element;

/// Files that [`convert`] writes.
pub const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Bytes of the buffer through which files are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Reason why a file is no GGUF, or cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufError {
    /// Byte of the file at which the problem is.
    pub offset: usize,
    /// Key or tensor with the problem, by name; empty for the whole file.
    pub subject: String,
    pub problem: String,
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.problem)
    }
}

fn fail<T>(
    offset: usize,
    subject: impl Into<String>,
    problem: impl Into<String>,
) -> Result<T, GgufError> {
    let (subject, problem) = (subject.into(), problem.into());
    Err(GgufError {
        offset,
        subject,
        problem,
    })
}

/// Converts a GGUF file, given in `parts`, to the files of a checkpoint in the folder `to`, with
/// matrices of type `element`.
///
/// # Errors
/// The file with the byte, key or tensor that is wrong, or a file that cannot be read or written.
pub fn convert(parts: &[PathBuf], to: &Path, element: Element) -> Result<(), String> {
    let mut bytes = Vec::new();
    for part in parts {
        let read = File::open(part).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|why| format!("{} cannot be read: {why}", part.display()))?;
    }
    let first = parts.first().and_then(|part| part.file_name());
    let name = first.unwrap_or_default().display();
    let wrong = |why: GgufError| format!("{name}: {why}");
    let gguf = read::Gguf::parse(&bytes).map_err(wrong)?;
    let model = model::Model::of(&gguf).map_err(wrong)?;
    let tokens = tokenizer::Tokens::of(&gguf).map_err(wrong)?;
    let tensors = model.tensors(&gguf).map_err(wrong)?;
    let into = |name: &str| to.join(name);
    json(&into(CONFIG), &model.config(&tokens, element))?;
    json(&into(GENERATION_CONFIG), &tokens.generation_config())?;
    json(&into(TOKENIZER), &tokens.definition())?;
    json(&into(TOKENIZER_CONFIG), &tokens.config(model.positions))?;
    if let Some(template) = &tokens.template {
        fs::write(into(TEMPLATE), template).map_err(unwritten(TEMPLATE))?;
    }
    weights(&into(WEIGHTS), &tensors, element)
}

fn unwritten(name: &str) -> impl Fn(io::Error) -> String {
    move |why| format!("{name} cannot be written: {why}")
}

fn json(path: &Path, content: &impl Serialize) -> Result<(), String> {
    let mut text = serde_json::to_string_pretty(content).expect("plain structures serialise");
    text.push('\n');
    fs::write(path, text).map_err(unwritten(&path.display().to_string()))
}

fn weights(path: &Path, tensors: &[write::Tensor<'_>], element: Element) -> Result<(), String> {
    let file = File::create(path).map_err(unwritten(WEIGHTS))?;
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    write::safetensors(&mut file, tensors, element).map_err(unwritten(WEIGHTS))
}
