//! What a git checkout says of its files; formats as in `gitformat-index(5)` and
//! `gitrepository-layout(5)`.

use std::collections::BTreeMap;

use super::folder::Folder;
use super::origin::is_commit;

/// List of the files of a checkout.
pub(super) const INDEX: &str = ".git/index";
/// Largest file of a few lines, or of all references.
const TEXT_BYTES_MAX: u64 = 16 << 20;
const SIGNATURE: &[u8] = b"DIRC";
/// Bytes of an entry before the digest: times, device, inode, mode, owner, size.
const STAT_BYTES: usize = 40;
const DIGEST_BYTES: usize = 20;
/// Entries of versions 2 and 3 are filled up to a multiple of this.
const ENTRY_ALIGN: usize = 8;
/// Bit of an entry's flags that says that more flags follow.
const EXTENDED: u16 = 0x4000;
/// Bits of the flags that tell a merge's side; 0 where there is no conflict.
const STAGE: u16 = 0x3000;

/// The commit that is checked out, if the checkout is one of `repository`.
pub(super) fn head(folder: &Folder, repository: &str) -> Option<String> {
    let text = |name: &str| {
        let content = folder.read(&format!(".git/{name}"), TEXT_BYTES_MAX).ok()?;
        String::from_utf8(content).ok()
    };
    if !text("config")?.contains(repository) {
        return None;
    }
    let head = text("HEAD")?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_string(),
        Some(name) => match text(name) {
            Some(commit) => commit.trim().to_string(),
            None => packed(&text("packed-refs")?, name)?,
        },
    };
    is_commit(&commit).then_some(commit)
}

/// The commit of the reference `name` in the file of all of them.
fn packed(references: &str, name: &str) -> Option<String> {
    let mut lines = references.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(_, known)| *known == name)
        .map(|(commit, _)| commit.to_string())
}

/// Path and digest, in hexadecimal, of each file in an index of version 2 to 4; None where it
/// cannot be read.
pub(super) fn entries(index: &[u8]) -> Option<BTreeMap<String, String>> {
    let rest = index.strip_prefix(SIGNATURE)?;
    let (version, rest) = number(rest)?;
    let (count, mut rest) = number(rest)?;
    let mut found = BTreeMap::new();
    let mut name = Vec::new();
    for _ in 0..count {
        let start = rest;
        let (digest, flags);
        (digest, rest) = rest
            .get(STAT_BYTES..)?
            .split_first_chunk::<DIGEST_BYTES>()?;
        (flags, rest) = flags_of(rest)?;
        rest = match version {
            2 | 3 => {
                let length = rest.iter().position(|&byte| byte == 0)?;
                name = rest[..length].to_vec();
                let used = start.len() - rest.len() + length;
                start.get((used / ENTRY_ALIGN + 1) * ENTRY_ALIGN..)?
            }
            4 => {
                let (cut, behind) = varint(rest)?;
                let length = behind.iter().position(|&byte| byte == 0)?;
                name.truncate(name.len().checked_sub(cut)?);
                name.extend_from_slice(&behind[..length]);
                &behind[length + 1..]
            }
            _ => return None,
        };
        if flags & STAGE == 0 {
            let path = String::from_utf8(name.clone()).ok()?;
            found.insert(path, super::digests::hex(digest));
        }
    }
    Some(found)
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// The flags of an entry; what follows them.
fn flags_of(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (flags, rest) = bytes.split_first_chunk()?;
    let flags = u16::from_be_bytes(*flags);
    let more = if flags & EXTENDED == 0 { 0 } else { 2 };
    Some((flags, rest.get(more..)?))
}

/// A number of seven bits a byte, the first byte the highest; each further byte adds one.
fn varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    let (mut value, mut byte) = (usize::from(first & 0x7f), first);
    while byte & 0x80 != 0 {
        (byte, rest) = rest.split_first().map(|(&byte, rest)| (byte, rest))?;
        value = value.checked_add(1)?.checked_mul(128)? + usize::from(byte & 0x7f);
    }
    Some((value, rest))
}

#[cfg(test)]
#[path = "git_tests.rs"]
mod tests;
