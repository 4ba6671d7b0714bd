//! The commit of a git checkout, found as `gitrepository-layout(5)` describes.

use super::folder::Folder;
use super::hex::is_commit;

/// Largest file in bytes that is read: a few lines, or all references.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The commit that is checked out, if the folder is a checkout of `repository`.
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

/// Commit of the reference `name` in the text of `packed-refs`.
fn packed(references: &str, name: &str) -> Option<String> {
    let mut lines = references.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(_, known)| *known == name)
        .map(|(commit, _)| commit.to_string())
}

#[cfg(test)]
#[path = "git_tests.rs"]
mod tests;
