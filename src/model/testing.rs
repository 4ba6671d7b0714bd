//! The target's model where the repository holds its weights, for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::cpu::Cpu;
use crate::target::{self, EMBEDDED};
use crate::weights::{self, Progress};
use crate::{Plan, Runner};

/// Folder of the target's model in the repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../targets/_model")
        .join(target::MODEL)
}

/// The model on this host's processor.
pub type Hosted = Runner<Cpu>;

/// The target's model; None when the repository does not hold its weights.
///
/// # Panics
/// If they cannot be used, or golden files are there without them.
pub fn runner(threads: usize) -> Option<Hosted> {
    let progress = Arc::new(Progress::default());
    let stored = ["model.safetensors", "model.safetensors.index.json"];
    let checkpoint = if !EMBEDDED.is_empty() {
        weights::open_embedded(progress)
    } else if stored.iter().any(|name| folder().join(name).exists()) {
        weights::open(&folder(), progress)
    } else {
        let goldens = folder().join("golden");
        assert!(
            !goldens.exists(),
            "{}: there are no weights to it",
            goldens.display()
        );
        return None;
    };
    let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{error}"));
    let plan = Plan::largest::<Cpu>(checkpoint.layout());
    let runner = Runner::load(Cpu::new(threads), &checkpoint, &plan);
    Some(runner.unwrap_or_else(|error| panic!("{error}")))
}
