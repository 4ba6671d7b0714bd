//! Where the checkpoint is, and its files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::exit::{Exit, Failure, start_failure};
use host::log;
use model::backend::READER;
use model::target;
use model::weights::{self, Checkpoint, Folder, Packed, Progress, Stage, WeightsError, packed};

/// Largest tokenizer or template file that is read.
const TEXT_FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Where the checkpoint is.
#[derive(Clone, Debug)]
pub enum Files {
    Embedded,
    Directory(PathBuf),
    Packed(Arc<Packed>),
}

impl Files {
    /// Settles where the weights come from.
    ///
    /// # Errors
    /// When this target needs a directory and none is given, or what is given is none.
    pub fn locate(directory: Option<&Path>) -> Result<Files, Failure> {
        match directory {
            None if needs_weights() => Err(Failure::new(
                Exit::Usage,
                format!(
                    "{} needs the weights of {}: give the directory that holds them, as in \
                     `{} serve WEIGHTS_DIR`; {}",
                    target::BINARY,
                    target::MODEL_ID,
                    target::BINARY,
                    weights::download()
                ),
            )),
            None => Ok(Files::Embedded),
            Some(path) => Files::at(path).map_err(|error| start_failure(&error)),
        }
    }

    /// The packed file at `path` or in that directory, or the directory of a checkpoint; where
    /// `install` keeps a folder for each build of the binary, those in that of this one.
    ///
    /// # Errors
    /// When there is neither.
    pub fn at(path: &Path) -> Result<Files, WeightsError> {
        let own = path.join(packed::folder_name(READER.layout));
        let path = if own.is_dir() { &own } else { path };
        let inside = path.join(packed::file_name());
        let mut folders = [path, &inside].into_iter();
        let found = folders.find(|path| weights::is_packed(path));
        if let Some(file) = found {
            return Ok(Files::Packed(Arc::new(Packed::open(file, READER)?)));
        }
        let located = weights::locate(path)?;
        located.choice.iter().for_each(log::line);
        Ok(Files::Directory(located.directory))
    }

    /// The content of a small file of the checkpoint.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Failure> {
        match self {
            Files::Embedded => target::EMBEDDED
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, content)| content.to_vec())
                .ok_or_else(|| Failure::new(Exit::Config, format!("{name}: is not in the binary"))),
            Files::Directory(directory) => {
                read_file(directory, name).map_err(|error| start_failure(&error))
            }
            Files::Packed(packed) => {
                let found = packed.file(name).map_err(|error| start_failure(&error))?;
                found.ok_or_else(|| {
                    let message = format!(
                        "{}: has no {name}; pack the weights again",
                        packed.path().display()
                    );
                    Failure::new(Exit::Config, message)
                })
            }
        }
    }

    /// Whether there is a file of this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Files::Embedded => target::EMBEDDED.iter().any(|(known, _)| *known == name),
            Files::Directory(directory) => {
                Folder::open(directory).is_ok_and(|folder| folder.has(name))
            }
            Files::Packed(packed) => packed.table().files.iter().any(|file| file.name == name),
        }
    }

    /// Whether `synth` has written them.
    pub fn are_drawn(&self) -> bool {
        match self {
            Files::Embedded => false,
            Files::Directory(directory) => weights::is_drawn(directory),
            Files::Packed(packed) => packed.table().drawn,
        }
    }

    /// Names all files of a release that a directory lacks, before parts of them are loaded by
    /// several threads, each of which would find another one missing.
    pub fn require_whole(&self) -> Result<(), WeightsError> {
        match self {
            Files::Directory(directory) if !self.are_drawn() => {
                weights::check_whole(&Folder::open(directory)?)
            }
            _ => Ok(()),
        }
    }

    /// Opens and checks the weights; reads headers only.
    ///
    /// # Errors
    /// Parts that differ from the target.
    pub fn open(&self, progress: Arc<Progress>) -> Result<Checkpoint, WeightsError> {
        match self {
            Files::Embedded => weights::open_embedded(progress),
            // Its files are of other sizes than the release's.
            Files::Directory(directory) if self.are_drawn() => {
                weights::open_layers(directory, target::LAYERS, progress)
            }
            Files::Directory(directory) => weights::open(directory, progress),
            Files::Packed(_) => self.open_layers(target::LAYERS, progress),
        }
    }

    /// `open` for the first layers of a checkpoint that need not be the release.
    ///
    /// # Errors
    /// Parts that differ from the target.
    pub fn open_layers(
        &self,
        layers: usize,
        progress: Arc<Progress>,
    ) -> Result<Checkpoint, WeightsError> {
        match self {
            Files::Embedded => weights::open_embedded(progress),
            Files::Directory(directory) => weights::open_layers(directory, layers, progress),
            Files::Packed(packed) => {
                progress.enter(Stage::Checking);
                Ok(Checkpoint::of_packed(packed.clone(), layers, progress))
            }
        }
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Files::Embedded => f.write_str("inside the binary"),
            Files::Directory(directory) => write!(f, "in {}", directory.display()),
            Files::Packed(packed) => write!(f, "packed in {}", packed.path().display()),
        }
    }
}

fn read_file(directory: &Path, name: &str) -> Result<Vec<u8>, WeightsError> {
    let folder = Folder::open(directory)?;
    if !folder.has(name) {
        return Err(weights::incomplete(&folder, &[name.to_string()]));
    }
    let content = folder.read(name, TEXT_FILE_BYTES_MAX)?;
    match weights::foreign(&content) {
        None => Ok(content),
        Some(problem) => Err(WeightsError::Foreign {
            file: name.to_string(),
            problem,
        }),
    }
}

/// Whether the weights come from a directory rather than from the binary.
pub fn needs_weights() -> bool {
    target::EMBEDDED.is_empty()
}
