//! Helpers that several tests of this crate share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::error::ManifestError;
use crate::facts::Fact;
use crate::target::{Target, load};

/// The root of this repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A target of this repository, by its leaf.
pub(crate) fn repository(leaf: &str) -> Target {
    load(&root(), leaf).unwrap_or_else(|error| panic!("{error}"))
}

/// A configuration that states the usual value of every fact, at each of its pointers.
pub(crate) fn usual(facts: &[Fact]) -> Value {
    let mut config = Value::Null;
    for fact in facts {
        let right: Value = serde_json::from_str(&fact.right).unwrap();
        for pointer in fact.places().filter(|place| !place.contains('*')) {
            let names = pointer.split('/').skip(1);
            let place = names.fold(&mut config, |place, name| &mut place[name]);
            *place = right[0].clone();
        }
    }
    config
}

/// A folder of manifests that a test may break; removed when dropped.
pub(crate) struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// The manifests that `leaf` of this repository is made of, without checkpoint files.
    pub(crate) fn of(leaf: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("atlas-manifest-{}-{number}", std::process::id());
        let scratch = Scratch {
            root: std::env::temp_dir().join(name),
        };
        let [hw, model, _] = leaf.split('/').collect::<Vec<_>>().try_into().unwrap();
        for file in [
            format!("targets/_hw/{hw}.toml"),
            format!("targets/_model/{model}/model.toml"),
            format!("targets/{leaf}.toml"),
        ] {
            let text = fs::read_to_string(root().join(&file)).unwrap();
            scratch.write(&file, text.as_bytes());
        }
        scratch
    }

    /// Writes a file, its folders included.
    pub(crate) fn write(&self, file: &str, content: &[u8]) {
        let path = self.root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Replaces the one occurrence of `from` in `file`.
    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {file}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Replaces the last `files = [...]` of `file`, which ends it.
    pub(crate) fn state_files(&self, file: &str, line: &str) {
        let path = self.root.join(file);
        let text = fs::read_to_string(&path).unwrap();
        let start = text.rfind("files = [").unwrap();
        fs::write(path, format!("{}{line}\n", &text[..start])).unwrap();
    }

    /// Loads a target of this folder.
    pub(crate) fn load(&self, leaf: &str) -> Result<Target, ManifestError> {
        load(&self.root, leaf)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
