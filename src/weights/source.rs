//! Where a checkpoint's bytes come from: a directory, the binary itself, or a seed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::WeightsError;
use super::seeded::Seeded;

/// An open file of the checkpoint. Reads are positioned, so a file that shrinks is an error.
pub enum Source {
    File {
        name: String,
        file: File,
        bytes: u64,
    },
    Embedded {
        name: String,
        content: &'static [u8],
    },
    Seeded(Seeded),
}

impl Source {
    /// Opens `name` in `directory`.
    ///
    /// # Errors
    /// `Escapes` for a name or link that leaves the directory (the hub cache's `blobs` folder is
    /// allowed), `NotRegular` for anything but a regular file, `Io` otherwise.
    pub fn open(directory: &Path, name: &str) -> Result<Source, WeightsError> {
        check_name(name)?;
        let path = directory.join(name);
        let io = |error| WeightsError::Io {
            file: path.display().to_string(),
            error,
        };
        let real = path.canonicalize().map_err(io)?;
        if !is_inside(directory, &real).map_err(io)? {
            return Err(WeightsError::Escapes {
                file: path.display().to_string(),
            });
        }
        // Before opening: opening a FIFO would wait for a writer.
        if !real.metadata().map_err(io)?.is_file() {
            return Err(WeightsError::NotRegular { path });
        }
        let file = File::open(&real).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        Ok(Source::File {
            name: name.to_string(),
            file,
            bytes,
        })
    }

    pub fn name(&self) -> &str {
        match self {
            Source::File { name, .. } | Source::Embedded { name, .. } => name,
            Source::Seeded(_) => "(drawn)",
        }
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Source::File { bytes, .. } => *bytes,
            Source::Embedded { content, .. } => content.len() as u64,
            Source::Seeded(seeded) => seeded.bytes(),
        }
    }

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// `Io`, also when the file ends before `out` is full.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), WeightsError> {
        let result = match self {
            Source::File { file, .. } => file.read_exact_at(out, offset),
            Source::Embedded { content, .. } => read_slice(content, offset, out),
            Source::Seeded(seeded) => {
                seeded.read(offset, out);
                Ok(())
            }
        };
        result.map_err(|error| WeightsError::Io {
            file: self.name().to_string(),
            error,
        })
    }
}

fn read_slice(content: &[u8], offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    let end = usize::try_from(offset)
        .ok()
        .and_then(|start| start.checked_add(out.len()));
    let slice = end.and_then(|end| content.get(end - out.len()..end));
    out.copy_from_slice(slice.ok_or(std::io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// A plain file name: no separator, no `..`.
fn check_name(name: &str) -> Result<(), WeightsError> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    if plain {
        Ok(())
    } else {
        Err(WeightsError::Escapes {
            file: format!("{name:?}"),
        })
    }
}

/// Whether `real` lies in `directory` or in the `blobs` folder of the hub cache around it
/// (`blobs/<digest>` beside `snapshots/<revision>/<file>`).
fn is_inside(directory: &Path, real: &Path) -> std::io::Result<bool> {
    let directory = directory.canonicalize()?;
    let hub = directory
        .parent()
        .filter(|parent| parent.ends_with("snapshots"))
        .and_then(Path::parent)
        .map(|model| model.join("blobs"));
    Ok(real.starts_with(&directory) || hub.is_some_and(|blobs| real.starts_with(blobs)))
}
