//! Removal of outputs from the store that were not used for long, or that exceed its size.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::digest::Digest;
use super::store::{Store, files_below, remove_others};

/// Number of actions' records, and bytes of their outputs.
pub struct Amount {
    pub actions: usize,
    pub bytes: u64,
}

impl Store {
    /// Removes outputs of actions that were last used before `since`, then the least recently used
    /// until `bytes` are left. Outputs of the keys `needed` stay, whatever their age and size.
    /// Returns the amounts removed and left.
    ///
    /// # Errors
    /// If a folder of the store cannot be read or changed.
    pub fn sweep(
        &self,
        needed: &BTreeSet<Digest>,
        since: SystemTime,
        bytes: u64,
    ) -> io::Result<[Amount; 2]> {
        let store = self.atlas().join("store");
        let before = bytes_below(&store)?;
        let mut records = self.records(needed)?;
        let count = records.len();
        records.sort_by_key(|(is_needed, used, _)| std::cmp::Reverse((*is_needed, *used)));
        let (mut sum, mut actions, mut kept) = (0, 0, BTreeSet::new());
        for (is_needed, used, key) in records {
            let mut outputs = self.sizes(&key)?;
            outputs.retain(|(path, _)| !kept.contains(path));
            let more: u64 = outputs.iter().map(|(_, bytes)| bytes).sum();
            if is_needed || used >= since && sum + more <= bytes {
                (sum, actions) = (sum + more, actions + 1);
                kept.insert(self.record_path(&key));
                kept.extend(outputs.into_iter().map(|(path, _)| path));
            }
        }
        remove_others(&store, &kept)?;
        let left = bytes_below(&store)?;
        let amount = |actions, bytes| Amount { actions, bytes };
        let gone = amount(count - actions, before - left);
        Ok([gone, amount(actions, left)])
    }

    /// For all records: whether the key is needed, when a build last used it, and the key.
    fn records(&self, needed: &BTreeSet<Digest>) -> io::Result<Vec<(bool, SystemTime, Digest)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.atlas().join("store/action"))? {
            let entry = entry?;
            let key = entry.file_name().to_str().and_then(Digest::parse);
            if let Some(key) = key {
                found.push((needed.contains(&key), entry.metadata()?.modified()?, key));
            }
        }
        Ok(found)
    }

    /// Paths and bytes of a key's outputs.
    fn sizes(&self, key: &Digest) -> io::Result<Vec<(PathBuf, u64)>> {
        let outputs = self.outputs(key).unwrap_or_default().into_iter();
        let paths = outputs.map(|stored| self.path(&stored));
        let paths = paths.filter(|path| path.exists());
        let sizes = paths.map(|path| Ok((path.clone(), bytes_below(&path)?)));
        sizes.collect()
    }
}

fn bytes_below(path: &Path) -> io::Result<u64> {
    let files = files_below(path)?;
    let sizes = files.iter();
    sizes
        .map(|file| Ok(fs::symlink_metadata(file)?.len()))
        .sum()
}
