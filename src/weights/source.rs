//! Where a checkpoint's bytes come from: a directory, the binary itself, or a seed.

use std::io;
use std::path::Path;

use super::error::WeightsError;
use super::file::WeightsFile;
use super::seeded::Seeded;

/// An open file of the checkpoint. Reads are positioned, so a file that shrinks is an error.
pub enum Source {
    File {
        name: String,
        file: WeightsFile,
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
        let (name, file) = (name.to_string(), WeightsFile::open(&real).map_err(io)?);
        Ok(Source::File { name, file })
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
            Source::File { file, .. } => file.bytes(),
            Source::Embedded { content, .. } => content.len() as u64,
            Source::Seeded(seeded) => seeded.bytes(),
        }
    }

    /// Fills `out` from `offset` on; how many bytes of it came past the page cache.
    ///
    /// # Errors
    /// `Truncated` when the file ends before `out` is full, `Io` otherwise.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<u64, WeightsError> {
        let result = match self {
            Source::File { file, .. } => file.read(offset, out),
            Source::Embedded { content, .. } => read_slice(content, offset, out).map(|()| 0),
            Source::Seeded(seeded) => {
                seeded.read(offset, out);
                Ok(0)
            }
        };
        result.map_err(|error| self.refused(error))
    }

    /// Refuses a file that was written to since it was opened.
    ///
    /// # Errors
    /// `Changed`, or `Io`.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        let Source::File { name, file } = self else {
            return Ok(());
        };
        match file.is_unchanged() {
            Ok(true) => Ok(()),
            Ok(false) => Err(WeightsError::Changed { file: name.clone() }),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Why the file is read through the page cache alone, if it is.
    pub fn detour(&self) -> Option<&'static str> {
        match self {
            Source::File { file, .. } => file.detour(),
            _ => None,
        }
    }

    fn refused(&self, error: io::Error) -> WeightsError {
        let (file, bytes) = (self.name().to_string(), self.bytes());
        match error.kind() {
            io::ErrorKind::UnexpectedEof => WeightsError::Truncated { file, bytes },
            _ => WeightsError::Io { file, error },
        }
    }
}

fn read_slice(content: &[u8], offset: u64, out: &mut [u8]) -> io::Result<()> {
    let end = usize::try_from(offset)
        .ok()
        .and_then(|start| start.checked_add(out.len()));
    let slice = end.and_then(|end| content.get(end - out.len()..end));
    out.copy_from_slice(slice.ok_or(io::ErrorKind::UnexpectedEof)?);
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
fn is_inside(directory: &Path, real: &Path) -> io::Result<bool> {
    let directory = directory.canonicalize()?;
    let hub = directory
        .parent()
        .filter(|parent| parent.ends_with("snapshots"))
        .and_then(Path::parent)
        .map(|model| model.join("blobs"));
    Ok(real.starts_with(&directory) || hub.is_some_and(|blobs| real.starts_with(blobs)))
}
