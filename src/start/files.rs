//! Files of the checkpoint, and where they are.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::exit::{Exit, Failure};
use host::log;
use model::backend::READER;
use model::target;
use model::weights::{self, Checkpoint, Folder, Packed, Progress, Stage, WeightsError, packed};

/// Bytes of the largest tokenizer or template file.
const TEXT_FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Place of the checkpoint's files.
#[derive(Clone, Debug)]
pub enum Files {
    Embedded,
    Directory(PathBuf),
    Packed(Arc<Packed>),
}

impl Files {
    /// Finds the checkpoint in `directory`, or in the binary if none is given.
    ///
    /// # Errors
    /// When this target needs a directory and none is given, or there are no weights in it.
    pub fn locate(directory: Option<&Path>) -> Result<Files, Failure> {
        match directory {
            None if needs_weights() => Err(Exit::Usage.failure(format!(
                "{} needs the weights of {}: give the directory that holds them, as in \
                     `{} serve WEIGHTS_DIR`; {}",
                target::BINARY,
                target::MODEL_ID,
                target::BINARY,
                weights::download()
            ))),
            None => Ok(Files::Embedded),
            Some(path) => Ok(Files::at(path)?),
        }
    }

    /// The packed file at `path` or in the directory `path`, or the checkpoint in this directory.
    /// If `install` made a folder for this build of the binary in the directory, that folder counts
    /// instead.
    ///
    /// # Errors
    /// When there is neither file nor checkpoint.
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

    /// Content of a small file of the checkpoint.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Failure> {
        match self {
            Files::Embedded => target::EMBEDDED
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, content)| content.to_vec())
                .ok_or_else(|| Exit::Config.failure(format!("{name}: is not in the binary"))),
            Files::Directory(directory) => Ok(read_file(directory, name)?),
            Files::Packed(packed) => packed.file(name)?.ok_or_else(|| {
                let problem = format!("has no {name}; pack the weights again");
                Exit::Config.at(packed.path(), problem)
            }),
        }
    }

    /// Whether the checkpoint has the file `name`.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Files::Embedded => target::EMBEDDED.iter().any(|(known, _)| *known == name),
            Files::Directory(directory) => {
                Folder::open(directory).is_ok_and(|folder| folder.has(name))
            }
            Files::Packed(packed) => packed.table().files.iter().any(|file| file.name == name),
        }
    }

    /// Whether `synth` made these files, with random weights.
    pub fn are_drawn(&self) -> bool {
        match self {
            Files::Embedded => false,
            Files::Directory(directory) => weights::is_drawn(directory),
            Files::Packed(packed) => packed.table().drawn,
        }
    }

    /// Names all files of a release that a directory lacks, before several threads load parts of
    /// the files and each reports another one.
    pub fn require_whole(&self) -> Result<(), WeightsError> {
        match self {
            Files::Directory(directory) if !self.are_drawn() => {
                weights::check_whole(&Folder::open(directory)?)
            }
            _ => Ok(()),
        }
    }

    /// Opens and checks the weights; reads only headers.
    ///
    /// # Errors
    /// The part that differs from the target.
    pub fn open(&self, progress: Arc<Progress>) -> Result<Checkpoint, WeightsError> {
        match self {
            Files::Embedded => weights::open_embedded(progress),
            // Files that `synth` made have other sizes than the release's.
            Files::Directory(directory) if self.are_drawn() => {
                weights::open_layers(directory, target::LAYERS, progress)
            }
            Files::Directory(directory) => weights::open(directory, progress),
            Files::Packed(_) => self.open_layers(target::LAYERS, progress),
        }
    }

    /// [`Files::open`] for the first layers of a checkpoint that need not be the release.
    ///
    /// # Errors
    /// The part that differs from the target.
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
