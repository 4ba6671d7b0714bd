//! Folders for tests.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

static FOLDERS: AtomicUsize = AtomicUsize::new(0);

/// A directory that is removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Folder {
        // A folder of an earlier process with this one's number may have been left, by a kill.
        loop {
            let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
            let name = format!("atlas-folder-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.unwrap();
                    return Folder(path);
                }
            }
        }
    }

    /// One with a file.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn with(name: &str, content: &[u8]) -> Folder {
        let folder = Folder::new();
        fs::write(folder.0.join(name), content).unwrap();
        folder
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
