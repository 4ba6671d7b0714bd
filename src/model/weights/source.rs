//! Sources of a checkpoint's bytes: a directory, the binary itself, or a seed.

use std::io;

use super::error::WeightsError;
use super::file::WeightsFile;
use super::folder::Folder;
use super::seeded::Seeded;
use super::sniff;

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
    /// Opens the file `name`, a plain name, in `folder`.
    ///
    /// # Errors
    /// `Escapes` for any other name, and the errors of [`Folder`] for a missing file or one that
    /// another user may have chosen.
    pub fn open(folder: &Folder, name: &str) -> Result<Source, WeightsError> {
        Ok(Source::open_named(folder, name)?.0)
    }

    /// `open`, with the name of the blob in the hub's cache, if the file's link leads to one.
    pub fn open_named(
        folder: &Folder,
        name: &str,
    ) -> Result<(Source, Option<String>), WeightsError> {
        check_name(name)?;
        let opened = folder.file(name)?;
        let file = WeightsFile::of(opened.file, opened.direct)
            .map_err(|error| WeightsError::of_path(&folder.path().join(name), error))?;
        let name = name.to_string();
        Ok((Source::File { name, file }, opened.blob))
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

    /// Fills `out` from `offset` on; returns how many bytes came past the page cache.
    ///
    /// # Errors
    /// `Truncated` if the file ends before `out` is full, `Io` otherwise.
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

    /// Reason for which the file is read through the page cache alone; None if it is not.
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

/// Checks that a name is plain: no separator, no `..`.
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

impl Source {
    /// Reason for which the file is no file of a checkpoint, by its first bytes, with the fix; None
    /// if it may be one.
    pub fn foreign(&self) -> Option<&'static str> {
        let mut start = vec![0; self.bytes().min(sniff::BYTES as u64) as usize];
        self.read(0, &mut start).ok()?;
        sniff::foreign(&start)
    }
}
