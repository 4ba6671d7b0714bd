//! Folders and figures of processes for tests.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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

    /// Path of a file in it.
    ///
    /// # Panics
    /// If it is no text.
    pub fn path(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_string()
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

/// Time that processors have spent on a process, which must be there.
pub fn cpu_time(pid: u32) -> Duration {
    /// Ticks of a second, in what the kernel tells.
    const TICKS: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}
