//! Manifests of a model from what its checkpoint's repository holds beside the weights: the
//! configuration, and the index that names the tensors.
//!
//! ```text
//! config.json ─ words ─ model ─ understood ─┬─ draft ─ text ─ model.toml, a leaf per hardware
//! model.safetensors.index.json ─ index ─────┤
//!                            stored ─ rules ┘
//! ```
//! Everything that is written here has been parsed and checked by the rules of a build.

mod draft;
mod index;
mod limits;
mod model;
mod rules;
mod stored;
#[cfg(test)]
mod tests;
mod text;
mod understood;
mod words;

use std::fmt;
use std::path::Path;

use serde_json::Value;

use self::draft::drafted;
use self::index::Index;
use self::understood::understood;
use self::words::shown;
use crate::error::ManifestError;
use crate::schema::model::Form;

/// Hardware that a new model has a leaf for beside the reference.
const GPUS: [&str; 2] = ["h200", "gb10"];
/// Name of the hardware whose leaf is the reference of a model.
const CPU: &str = "cpu";

/// A file that was published with a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Path as error messages name it.
    pub path: &'a str,
    /// The file's content; the header alone is enough of a `.safetensors` file.
    pub content: &'a [u8],
}

impl Source<'_> {
    fn json(&self) -> Result<Value, ManifestError> {
        let parsed = serde_json::from_slice(self.content);
        parsed.map_err(|why: serde_json::Error| ManifestError::file(self.path, why.to_string()))
    }
}

/// A model that has no manifests yet.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// Name of the model's folder in `targets/_model`.
    pub name: &'a str,
    /// Name of the leaves; absent: named after the checkpoint's format with the fewest bits.
    pub quant: Option<&'a str>,
    /// `config.json`, or `params.json` of Mistral's own form.
    pub config: Source<'a>,
    /// The index of the weight files, or the only weight file.
    pub index: Source<'a>,
}

impl Published<'_> {
    /// Form of the release, as the configuration's file name tells it.
    fn form(&self) -> Form {
        let name = Path::new(self.config.path).file_name();
        Form::of_config(&name.unwrap_or_default().to_string_lossy())
    }
}

/// Manifests of a model, and the facts that a person has to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Name of the leaves, such as `nvfp4`: the last part of a target's name.
    pub quant: String,
    /// Paths from the repository root, each with the file's text.
    pub files: Vec<(String, String)>,
    /// Facts that none of the published files decides.
    pub open: Vec<Open>,
}

/// A fact that a person has to decide, or a file that was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Path from the repository root.
    pub file: String,
    /// Dotted key and its value so far, or empty where the whole file is meant.
    pub key: String,
    /// Meaning of the fact, or the reason why there is no file.
    pub note: String,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.is_empty() {
            true => write!(f, "{}: {}", self.file, self.note),
            false => write!(f, "{}: {}: {}", self.file, self.key, self.note),
        }
    }
}

/// Makes the manifests of `published`, below the repository `root`; writes nothing.
///
/// # Errors
/// Every reason for refusing the model, each with file, key, value and rule.
pub fn adopt(root: &Path, published: &Published) -> Result<Adopted, Vec<ManifestError>> {
    let mut problems = places(root, published);
    let config = noted(published.config.json(), &mut problems);
    let index = noted(Index::read(&published.index), &mut problems);
    let predicts = index.as_ref().is_some_and(Index::predicts);
    let target = config.as_ref().and_then(|config| {
        let target = understood(root, published, config, predicts);
        target.map_err(|more| problems.extend(more)).ok()
    });
    let (Some(config), Some(index), Some(target)) = (config, index, target) else {
        return Err(problems);
    };
    match drafted(target, published, &config, &index) {
        Ok(adopted) if problems.is_empty() => Ok(adopted),
        Ok(_) => Err(problems),
        Err(more) => Err([problems, more].concat()),
    }
}

/// The value of `result`; none if it is an error, which is added to `problems`.
fn noted<T>(result: Result<T, ManifestError>, problems: &mut Vec<ManifestError>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}

/// Problems of names: those that cannot name files, and files that exist already.
fn places(root: &Path, published: &Published) -> Vec<ManifestError> {
    let wrong = |key, name: &str, rule: &str| {
        let name = shown(format!("{name:?}"));
        ManifestError::key("targets", key, name, rule)
    };
    let mut problems = Vec::new();
    if let Some(quant) = published.quant.filter(|quant| !is_name(quant, b"-_")) {
        let rule = "must be of a-z, 0-9, - and _, the first a letter or digit";
        problems.push(wrong("--quant", quant, rule));
    }
    if !is_name(published.name, b"-_.") {
        let rule = "must be of a-z, 0-9, -, _ and full stops, the first a letter or digit";
        problems.push(wrong("NAME", published.name, rule));
        return problems;
    }
    let folders = ["_model", CPU].into_iter().chain(GPUS);
    let folders = folders.map(|folder| format!("targets/{folder}/{}", published.name));
    let there = folders.filter(|folder| root.join(folder).symlink_metadata().is_ok());
    let rule = "is there, and nothing is overwritten; choose another NAME";
    problems.extend(there.map(|folder| ManifestError::file(folder, rule)));
    problems
}

/// Whether a text can be a part of a target's path and of its binary's name: ASCII letters, digits
/// and `marks`.
fn is_name(name: &str, marks: &[u8]) -> bool {
    let part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let first = name.bytes().next().is_some_and(part);
    first && name.bytes().all(|byte| part(byte) || marks.contains(&byte))
}
