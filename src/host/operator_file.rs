//! Files that an operator names: keys, certificates, settings, conversations, golden tokens; and
//! files of lines that are written for an operator.
//!
//! Only regular files of a bounded size are read, perhaps through links: a pipe might wait for
//! ever, and a device never ends. Opening a device may already have an effect, so the status of the
//! name is checked first; the opened file is checked again, without waiting for a writer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Take, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

const FLAGS: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Opens the file at `path` to read its current content.
///
/// # Errors
/// The system's errors; a file that is not regular, or has more than `bytes_max` bytes.
pub fn open(path: &Path, bytes_max: u64) -> io::Result<Take<File>> {
    require(path.metadata()?.is_file(), not_regular)?;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(FLAGS.bits() as i32);
    let file = options.open(path)?;
    let found = file.metadata()?;
    require(found.is_file(), not_regular)?;
    require(found.len() <= bytes_max, || {
        format!("has more than {bytes_max} bytes")
    })?;
    Ok(file.take(found.len()))
}

/// Appends `line` to a file opened for appending: all of it or, as on a full disk, nothing.
pub fn append(mut file: &File, line: &[u8]) -> Result<(), NotWritten> {
    let mut rest = line;
    while !rest.is_empty() {
        let failed = match file.write(rest) {
            Ok(0) => ErrorKind::WriteZero.into(),
            Ok(count) => {
                rest = &rest[count..];
                continue;
            }
            Err(why) if why.kind() == ErrorKind::Interrupted => continue,
            Err(why) => why,
        };
        return Err(NotWritten {
            why: failed,
            torn: take_back(file, line.len() - rest.len()).is_err(),
        });
    }
    Ok(())
}

/// Reason why a line was not written, and whether a part of it was.
#[derive(Debug)]
pub struct NotWritten {
    pub why: io::Error,
    pub torn: bool,
}

/// Removes the last `bytes` bytes, which this process wrote, unless another process has appended.
fn take_back(mut file: &File, bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let end = file.stream_position()?;
    let is_last = file.metadata()?.len() == end;
    require(is_last, || "others wrote behind it".to_string())?;
    file.set_len(end - bytes as u64)
}

fn require(holds: bool, problem: impl FnOnce() -> String) -> io::Result<()> {
    match holds {
        true => Ok(()),
        false => Err(io::Error::other(problem())),
    }
}

fn not_regular() -> String {
    "is no regular file; name one, or a link to one".to_string()
}

/// Content of the file at `path`.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path, bytes_max)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Content of the text file at `path`.
///
/// # Errors
/// Errors of [`open`]; a file that is not UTF-8.
pub fn text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path, bytes_max)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_file_and_a_link_to_it_are_read_up_to_their_bound() {
        let folder = Folder::new();
        let (file, link) = (folder.0.join("file"), folder.0.join("link"));
        fs::write(&file, "four").unwrap();
        symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            assert_eq!(text(path, 4).unwrap(), "four");
            let refused = text(path, 3).unwrap_err().to_string();
            assert_eq!(refused, "has more than 3 bytes");
        }
    }

    #[test]
    fn what_is_appended_meanwhile_is_not_read() {
        let folder = Folder::new();
        let path = folder.0.join("file");
        fs::write(&path, "now").unwrap();
        let mut opened = open(&path, 9).unwrap();
        fs::write(&path, "now and then").unwrap();
        let mut text = String::new();
        opened.read_to_string(&mut text).unwrap();
        assert_eq!(text, "now");
    }

    #[test]
    fn pipes_sockets_folders_and_devices_are_refused_at_once() {
        let folder = Folder::new();
        let (pipe, socket) = (folder.0.join("pipe"), folder.0.join("socket"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let link = folder.0.join("link");
        symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &socket, &folder.0, &link] {
            let refused = read(path, 1).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{path:?}: {refused}");
        }
    }
}
