//! The index of a checkpoint's shards.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::error::WeightsError;
use super::folder::Folder;
use super::header::TENSORS_MAX;
use super::names::INDEX;
use super::sniff;

/// Largest index in bytes; ten times that of the largest checkpoint known.
const BYTES_MAX: u64 = 200_000_000;

/// Name of the shard of each tensor, from the checkpoint's index.
pub fn read(folder: &Folder) -> Result<BTreeMap<String, String>, WeightsError> {
    let text = folder.read(INDEX, BYTES_MAX)?;
    let file = INDEX.to_string();
    if let Some(problem) = sniff::foreign(&text) {
        return Err(WeightsError::Foreign { file, problem });
    }
    let index: Result<Index, _> = serde_json::from_slice(&text);
    let index = index.map_err(|error| WeightsError::Index {
        file,
        problem: error.to_string(),
    })?;
    Ok(index.weight_map.0)
}

/// The shard index; its keys beside `weight_map` are ignored.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Shard by tensor; a duplicate key is an error.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut names = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if names.len() == TENSORS_MAX {
                return Err(A::Error::custom(format!(
                    "more than {} tensors",
                    TENSORS_MAX
                )));
            }
            if names.insert(tensor.clone(), file).is_some() {
                return Err(A::Error::custom(format!("tensor {tensor} is given twice")));
            }
        }
        Ok(WeightMap(names))
    }
}
