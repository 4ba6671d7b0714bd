//! The target's model where the repository holds its weights, for tests.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::backend::cpu::Cpu;
pub use crate::pools::parts;
use crate::target::{self, EMBEDDED};
use crate::weights::{self, Progress};
use crate::{Plan, Runner};
use step::executor::{DeviceError, Executor, SeqRows, TokenId};
use step::transfer::{PieceBytes, Sum, Transfer};

/// Folder of the target's model in the repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../targets/_model")
        .join(target::MODEL)
}

/// The model on this host's processor, for crates that are not optimised: none of its methods has
/// a parameter of type, so this crate compiles the loops after them.
pub struct Hosted(pub Runner<Cpu>);

impl Executor for Hosted {
    const VOCAB: usize = <Runner<Cpu> as Executor>::VOCAB;

    fn pages(&self) -> Option<usize> {
        self.0.pages()
    }

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.0.step(rows)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        self.0.logits(index)
    }

    fn predicts(&self) -> bool {
        self.0.predicts()
    }

    fn predict(&mut self, next: &[TokenId], wanted: &[usize]) -> Result<(), DeviceError> {
        self.0.predict(next, wanted)
    }

    fn predict_on(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.0.predict_on(rows)
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.0.logits_of(rows, logits)
    }

    fn piece_bytes(&self) -> Option<PieceBytes> {
        self.0.piece_bytes()
    }

    fn take_host_memory(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.0.take_host_memory(bytes)
    }

    fn host_memory(&mut self, range: Range<usize>) -> &mut [u8] {
        self.0.host_memory(range)
    }

    fn sums(&mut self, ranges: Vec<Range<usize>>) -> Receiver<Vec<Sum>> {
        self.0.sums(ranges)
    }

    fn fill(&mut self, range: Range<usize>, bytes: Vec<u8>) -> Receiver<()> {
        self.0.fill(range, bytes)
    }

    fn copy_out(&mut self, range: Range<usize>) -> Receiver<Vec<u8>> {
        self.0.copy_out(range)
    }

    fn save(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.0.save(transfers)
    }

    fn restore(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        self.0.restore(transfers)
    }

    fn transferred(&mut self) -> Result<u64, DeviceError> {
        self.0.transferred()
    }
}

/// The target's model; None when the repository does not hold its weights.
///
/// # Panics
/// If they cannot be used, or golden files are there without them.
pub fn runner(threads: usize) -> Option<Runner<Cpu>> {
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
