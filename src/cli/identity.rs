//! Digest of all that the bits of a computed prompt depend on: program, processor and weights.
//! Cached pages on a disk are used only by processes with the same digest.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use model::target;
use model::weights::{Folder, WeightsError, listed};

use crate::start::boot::Files;

/// Bytes between the starts of two samples of a file of weights: less than a large matrix has.
/// Reading a whole checkpoint would take longer than loading it; changes between samples show in
/// the file's time of modification.
const SAMPLE_EVERY: u64 = 1 << 20;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 4096;

/// The digest for this process with the weights in `files`.
///
/// # Errors
/// Names the file that cannot be read.
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

/// Adds to `digest` the length of a file and samples of its content every `every` bytes; also the
/// time of modification, unless the samples are the whole content.
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

/// Paths of the files of weights; none if the weights are inside the program.
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

/// Name of the processor, on which the choice of CPU kernels depends.
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
