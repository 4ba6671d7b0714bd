//! Identity that the bits of a computed prompt depend on, as one digest: program, processor and
//! weights. Pages on a disk are of use only to processes with the same digest.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use model::target;
use model::weights::{Folder, WeightsError, listed};

use crate::start::boot::Files;

/// Bytes between the starts of two samples of a file of weights, and those of a sample: no large
/// matrix lies between two samples. Reading a whole checkpoint would take longer than loading it; a
/// file that was written to also has another time of modification.
const SAMPLE_EVERY: u64 = 1 << 20;
const SAMPLE_BYTES: usize = 4096;

/// The digest of this process over some weights.
///
/// # Errors
/// Names what cannot be read.
pub fn of(files: &Files) -> Result<[u8; 32], String> {
    let mut digest = Sha256::new().chain_update(target::MANIFEST);
    digest.update(processor());
    let program = PathBuf::from("/proc/self/exe");
    let weights = paths(files).map_err(|error| error.to_string())?;
    let weights = weights.iter().map(|path| (path, SAMPLE_EVERY));
    for (path, every) in [(&program, SAMPLE_BYTES as u64)].into_iter().chain(weights) {
        let read = sample(path, every, &mut digest);
        read.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(digest.finalize().into())
}

/// Adds to `digest` the length of a file and a sample of its content from every `every` bytes on;
/// if that is not all of it, also its time of modification.
fn sample(path: &Path, every: u64, digest: &mut Sha256) -> io::Result<()> {
    let file = File::open(path)?;
    let stat = file.metadata()?;
    digest.update(stat.len().to_le_bytes());
    if every > SAMPLE_BYTES as u64 {
        digest.update(stat.mtime().to_le_bytes());
        digest.update(stat.mtime_nsec().to_le_bytes());
    }
    let mut buffer = [0; SAMPLE_BYTES];
    for at in (0..stat.len()).step_by(every as usize) {
        let part = &mut buffer[..(stat.len() - at).min(SAMPLE_BYTES as u64) as usize];
        file.read_exact_at(part, at)?;
        digest.update(part);
    }
    Ok(())
}

/// Files of the weights; none if the weights are inside the program.
fn paths(files: &Files) -> Result<Vec<PathBuf>, WeightsError> {
    match files {
        Files::Embedded => Ok(vec![]),
        Files::Packed(packed) => Ok(vec![packed.path().to_path_buf()]),
        Files::Directory(directory) => {
            let names = listed(&Folder::open(directory)?)?;
            Ok(names.iter().map(|name| directory.join(name)).collect())
        }
    }
}

/// Name of the processor, by which kernels of a CPU are chosen.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines = info.lines().filter(|line| line.starts_with("model name"));
    lines.next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_every_sampled_part_of_the_weights() {
        let folder = host::testing::Folder::with("model.safetensors", &vec![0; 3 << 20]);
        let files = Files::Directory(folder.0.clone());
        let before = of(&files).unwrap();
        assert_eq!(of(&files).unwrap(), before);
        assert_ne!(of(&Files::Embedded).unwrap(), before);
        let path = folder.0.join("model.safetensors");
        let file = File::options().write(true).open(path).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[1], 2 << 20).unwrap();
        file.set_modified(time).unwrap();
        assert_ne!(of(&files).unwrap(), before, "another byte");
    }
}
