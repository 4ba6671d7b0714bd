//! Archives whose bytes depend on their members alone: tar with fixed owner and time, ar, gzip.

use std::io::Write;

use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Path from the root of the installed tree, without a leading `/`.
    pub path: String,
    /// Permissions, such as 0o755.
    pub mode: u32,
    pub content: Vec<u8>,
}

impl Member {
    /// A file that everyone may read.
    pub fn text(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Member {
        Member {
            path: path.into(),
            mode: 0o644,
            content: content.into(),
        }
    }

    /// A file that everyone may run.
    pub fn program(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Member {
        Member {
            mode: 0o755,
            ..Member::text(path, content)
        }
    }
}

/// A tar of the members, sorted, below `prefix` (`./` or a folder), with entries for their folders.
/// All belong to root, with modification time `time`, seconds since 1970.
///
/// # Errors
/// If a path is too long for the format.
pub fn tar(members: &[Member], prefix: &str, time: u64) -> Result<Vec<u8>, String> {
    let mut members: Vec<&Member> = members.iter().collect();
    members.sort_by(|a, b| a.path.cmp(&b.path));
    let mut builder = Builder::new(Vec::new());
    let mut folders: Vec<String> = Vec::new();
    for member in members {
        let path = format!("{prefix}{}", member.path);
        for (at, _) in path.match_indices('/') {
            let folder = &path[..=at];
            if !folders.iter().any(|known| known == folder) {
                append(&mut builder, folder, EntryType::Directory, 0o755, time, &[])?;
                folders.push(folder.to_string());
            }
        }
        let (kind, mode) = (EntryType::Regular, member.mode);
        append(&mut builder, &path, kind, mode, time, &member.content)?;
    }
    builder.into_inner().map_err(|why| format!("tar: {why}"))
}

fn append(
    builder: &mut Builder<Vec<u8>>,
    path: &str,
    kind: EntryType,
    mode: u32,
    time: u64,
    content: &[u8],
) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("tar: {path}: {why}");
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root").map_err(failed)?;
    header.set_groupname("root").map_err(failed)?;
    let appended = builder.append_data(&mut header, path, content);
    appended.map_err(failed)
}

/// A Unix archive of `members` (name, content), in the form that `deb(5)` requires.
pub fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let (owner, group, mode, bytes) = (0, 0, 100644, content.len());
        let header = format!("{name:<16}{time:<12}{owner:<6}{group:<6}{mode:<8}{bytes:<10}`\n");
        out.extend(header.bytes());
        out.extend(content);
        if content.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

/// `content` compressed by gzip, without name and time.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    let written = writer.write_all(content).and_then(|()| writer.finish());
    written.expect("memory takes every byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_members_does_not_matter() {
        let (a, b) = (Member::text("usr/a", "1"), Member::program("usr/b/c", "2"));
        let one = tar(&[a.clone(), b.clone()], "./", 7).unwrap();
        assert_eq!(one, tar(&[b, a], "./", 7).unwrap());
        let mut archive = tar::Archive::new(one.as_slice());
        let names = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            (
                path,
                entry.header().mode().unwrap(),
                entry.header().mtime().unwrap(),
            )
        });
        let names: Vec<_> = names.collect();
        let found: Vec<_> = names
            .iter()
            .map(|(path, mode, _)| (path.as_str(), *mode))
            .collect();
        let expected = [("./", 0o755), ("usr/", 0o755), ("usr/a", 0o644)];
        assert_eq!(found[..3], expected);
        assert_eq!(found[3..], [("usr/b/", 0o755), ("usr/b/c", 0o755)]);
        assert!(names.iter().all(|(_, _, time)| *time == 7));
    }

    #[test]
    fn members_of_ar_begin_at_even_bytes() {
        let made = ar(&[("a", vec![1]), ("b", vec![2, 3])], 0);
        assert_eq!(made.len(), 8 + 60 + 2 + 60 + 2);
        assert_eq!(&made[68..70], &[1, b'\n']);
        assert_eq!(made[70], b'b');
    }

    #[test]
    fn gzip_tells_no_time() {
        assert_eq!(gzip(b"x")[4..8], [0; 4]);
    }
}
