//! Names of a checkpoint's tensors: from the index of its files, or a single file's header.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Source;
use super::words::shown;
use crate::error::ManifestError;
use crate::facts::is_vision;
use crate::safetensors::{self, Entry};
use crate::schema::model::StackedIn;

/// End of the name of a file of tensors.
pub(super) const TENSORS_FILE: &str = ".safetensors";
/// Start of tensor names in multimodal releases; others start with `model.`.
const MULTIMODAL: &str = "model.language_model.";
/// Start of the names of tensors of multi-token prediction.
const PREDICTION: &str = "mtp.";

/// The tensors of a checkpoint, by name.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Canonical names of tensors, without those of a vision tower.
    pub names: BTreeSet<String>,
    /// Number of tensors of a vision tower, and the name of one.
    pub tower: u64,
    pub tower_name: String,
    /// Bytes of all tensors; absent where the file does not say.
    pub bytes: Option<u64>,
    /// Type and shape of each tensor, by canonical name, and bytes of the tower; none where the
    /// source is an index.
    pub header: Option<Header>,
}

/// Facts that the header of a file of tensors has and an index lacks.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub shapes: BTreeMap<String, (String, Vec<usize>)>,
    pub tower_bytes: u64,
}

impl Index {
    /// Reads an index, or the header of a safetensors file.
    ///
    /// # Errors
    /// Text that is no JSON, or JSON of another form than an index or a header.
    pub fn read(source: &Source) -> Result<Index, ManifestError> {
        match source.path.ends_with(TENSORS_FILE) {
            true => Index::of_header(source),
            false => Index::of_map(source),
        }
    }

    fn of_header(source: &Source) -> Result<Index, ManifestError> {
        let split = safetensors::split(source.content);
        let (header, _) = split.map_err(|why| ManifestError::file(source.path, why.to_string()))?;
        let end = header
            .values()
            .map(|entry| entry.data_offsets[1] as u64)
            .max();
        let mut index = Index {
            bytes: end,
            ..Index::default()
        };
        index.add(source.path, header.keys())?;
        let bytes = |entry: &Entry| (entry.data_offsets[1] - entry.data_offsets[0]) as u64;
        let tower = header.iter().filter(|(name, _)| is_vision(name));
        let tower_bytes = tower.map(|(_, entry)| bytes(entry)).sum();
        let shapes = header.into_iter();
        let shapes = shapes.map(|(name, entry)| (canonical(&name), (entry.dtype, entry.shape)));
        index.header = Some(Header {
            shapes: shapes.collect(),
            tower_bytes,
        });
        Ok(index)
    }

    /// Name of the list of tensors in problems.
    pub fn key(&self) -> &'static str {
        match &self.header {
            Some(_) => "tensors",
            None => "weight_map",
        }
    }

    fn of_map(source: &Source) -> Result<Index, ManifestError> {
        let file: Value = source.json()?;
        let wrong = |key: &str, value: Option<&Value>, rule| {
            let value = value.map_or("absent".to_string(), shown);
            ManifestError::key(source.path, key, value, rule)
        };
        let map = file.get("weight_map");
        let names = map.and_then(Value::as_object).filter(|map| !map.is_empty());
        let rule = "must name the file of each tensor";
        let names = names.ok_or_else(|| wrong("weight_map", map, rule))?;
        let stated = file.pointer("/metadata/total_size");
        let bytes = match stated {
            None | Some(Value::Null) => None,
            Some(size) => Some(size.as_u64().ok_or_else(|| {
                let rule = "must be the bytes of all tensors";
                wrong("metadata.total_size", stated, rule)
            })?),
        };
        let mut index = Index {
            bytes,
            ..Index::default()
        };
        index.add(source.path, names.keys())?;
        Ok(index)
    }

    fn add<'a>(
        &mut self,
        file: &str,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<(), ManifestError> {
        for name in names {
            if is_vision(name) {
                self.tower += 1;
                self.tower_name.clone_from(name);
            } else if !self.names.insert(canonical(name)) {
                let rule = "stands there under both names, with and without language_model";
                return Err(ManifestError::key(file, "weight_map", shown(name), rule));
            }
        }
        Ok(())
    }

    /// Whether there are tensors of multi-token prediction.
    pub fn predicts(&self) -> bool {
        self.begins(PREDICTION)
    }

    /// Whether any name begins with `prefix`.
    fn begins(&self, prefix: &str) -> bool {
        let mut names = self.names.range(prefix.to_string()..);
        names.next().is_some_and(|name| name.starts_with(prefix))
    }

    /// Parts of the model in which one tensor has a matrix of all experts of a layer.
    pub fn stacked_experts(&self) -> Vec<StackedIn> {
        let stacked = |part: &StackedIn| {
            let mut names = self.names.iter();
            names.any(|name| {
                let is_of_mtp = name.starts_with(PREDICTION);
                name.ends_with(".experts.gate_up_proj") && is_of_mtp == (*part == StackedIn::Mtp)
            })
        };
        let parts = [StackedIn::Layers, StackedIn::Mtp];
        parts.into_iter().filter(stacked).collect()
    }
}

/// A name as the tables of families have it.
fn canonical(name: &str) -> String {
    match name.strip_prefix(MULTIMODAL) {
        Some(rest) => format!("model.{rest}"),
        None => name.to_string(),
    }
}
