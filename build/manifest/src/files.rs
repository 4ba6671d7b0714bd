//! Checkpoint files in this repository: their digests, and the `files` lines of manifests.

use std::fmt::Write;
use std::fs::DirEntry;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::config::{check_config, check_generation, check_tokenizer};
use crate::error::ManifestError;
use crate::safetensors;
use crate::schema::model::{Checkpoint, File};
use crate::target::Target;

/// File of sampling defaults and of the tokens that end a reply.
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";

/// SHA-256 in lower-case hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Whether a file of this name in a model's folder is part of its checkpoint.
fn is_checkpoint_file(name: &str) -> bool {
    let kinds = [".safetensors", ".json", ".jinja"];
    kinds.iter().any(|kind| name.ends_with(kind))
}

/// Names of all files in `folder`, which problems call `shown`.
pub(crate) fn names_in(folder: &Path, shown: &str) -> Result<Vec<String>, ManifestError> {
    let name = |entry: io::Result<DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = std::fs::read_dir(folder).and_then(|entries| entries.map(name).collect());
    names.map_err(ManifestError::unread(shown))
}

/// The `files` lines of a checkpoint whose files are in `folder`, ready to paste.
pub fn checkpoint_block(folder: &Path) -> Result<String, ManifestError> {
    let shown = folder.display().to_string();
    let mut names = names_in(folder, &shown)?;
    names.retain(|name| is_checkpoint_file(name));
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let content = std::fs::read(folder.join(&name)).map_err(ManifestError::unread(&shown))?;
        files.push(File {
            bytes: content.len() as u64,
            sha256: sha256(&content),
            name,
        });
    }
    Ok(block(&files))
}

/// `files = [...]` of a manifest.
pub fn block(files: &[File]) -> String {
    if files.is_empty() {
        return "files = []\n".into();
    }
    let mut text = String::from("files = [\n");
    for File {
        name,
        bytes,
        sha256,
    } in files
    {
        let _ = writeln!(
            text,
            "    {{ name = {name:?}, bytes = {bytes}, sha256 = {sha256:?} }},"
        );
    }
    text + "]\n"
}

/// Compares the checkpoint's files that lie in the model's folder with what the manifest states:
/// digests, then tensors and configuration. A target that embeds its checkpoint needs every file.
///
/// # Errors
/// Names the first file that is missing or differs; where its digest differs, shows the block that
/// would be right.
pub(crate) fn verify(target: &Target) -> Result<(), ManifestError> {
    let Some(checkpoint) = target.checkpoint() else {
        return Ok(());
    };
    verify_inside(target)?;
    let mut found = Tally::default();
    for file in &checkpoint.files {
        let path = target.model_path(&file.name);
        let content = match std::fs::read(target.root.join(&path)) {
            Ok(content) => content,
            Err(_) if !target.leaf.embed => return Ok(()),
            Err(error) => return Err(ManifestError::unread(&path)(error)),
        };
        verify_digest(target, file, &content)?;
        if file.name.ends_with(".safetensors") {
            found.add(&path, &content)?;
        }
    }
    match found.files {
        0 => Ok(()),
        _ => found.compare(target, checkpoint),
    }
}

/// Compares configuration and tokenizer in the model's folder with the facts of the model, whether
/// the manifest lists the files or not.
fn verify_inside(target: &Target) -> Result<(), ManifestError> {
    type Check = fn(&Target, &str, &[u8]) -> Result<(), ManifestError>;
    let tokenizer = target
        .model
        .chat
        .as_ref()
        .map(|chat| chat.tokenizer.as_str());
    let checks: [(&str, Check); 3] = [
        (target.form().config(), check_config),
        (GENERATION_CONFIG, check_generation),
        (tokenizer.unwrap_or_default(), check_tokenizer),
    ];
    for (name, check) in checks.into_iter().filter(|(name, _)| !name.is_empty()) {
        let path = target.model_path(name);
        if let Ok(content) = std::fs::read(target.root.join(&path)) {
            check(target, &path, &content)?;
        }
    }
    Ok(())
}

fn verify_digest(target: &Target, file: &File, content: &[u8]) -> Result<(), ManifestError> {
    let (bytes, digest) = (content.len() as u64, sha256(content));
    if (bytes, &digest) == (file.bytes, &file.sha256) {
        return Ok(());
    }
    let right = checkpoint_block(&target.root.join(target.model_path("")))?;
    let rule = format!(
        "is {bytes} bytes with sha256 {digest}, not as model.toml states; if the file is right, \
         state\n{right}"
    );
    Err(ManifestError::file(target.model_path(&file.name), rule))
}

/// Tensors seen in safetensors files.
#[derive(Default)]
struct Tally {
    files: u64,
    tensors: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, path: &str, content: &[u8]) -> Result<(), ManifestError> {
        let (header, data) = safetensors::split(content)
            .map_err(|error| ManifestError::file(path, error.to_string()))?;
        self.files += 1;
        self.tensors += header.len() as u64;
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Compares the tally with the figures that the checkpoint states, or with derived ones; files
    /// that a target derives say nothing of its source.
    fn compare(&self, target: &Target, checkpoint: &Checkpoint) -> Result<(), ManifestError> {
        let only = |stated| stated..=stated;
        let follows = |range| match target.leaf.derive {
            Some(_) => 0..=u64::MAX,
            None => range,
        };
        let tensors = checkpoint.tensors.map(only);
        let tensors = tensors.unwrap_or_else(|| follows(only(target.checkpoint_tensors())));
        let bytes = checkpoint.tensor_bytes.map(only);
        let bytes = bytes.unwrap_or_else(|| follows(target.checkpoint_bytes_range()));
        let file = target.model_path("model.toml");
        for (key, range, found) in [
            ("tensors", tensors, self.tensors),
            ("tensor_bytes", bytes, self.bytes),
        ] {
            if !range.contains(&found) {
                let rule = format!("the safetensors files hold {found}");
                return Err(ManifestError::key(&file, key, range.start(), &rule));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{checkpoint_block, sha256};
    use crate::testing::{Scratch, root};

    const LEAF: &str = "cpu/tiny/nvfp4";
    const FILE: &str = "targets/_model/tiny/a.json";
    const DIGEST_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// `LEAF` whose checkpoint states the file `a.json` with the content `abc`, not yet written.
    fn stated() -> Scratch {
        let scratch = Scratch::of(LEAF);
        let line =
            format!("files = [{{ name = \"a.json\", bytes = 3, sha256 = \"{DIGEST_ABC}\" }}]");
        scratch.state_files("targets/_model/tiny/model.toml", &line);
        scratch
    }

    #[test]
    fn the_stated_file_is_accepted() {
        let scratch = stated();
        scratch.write(FILE, b"abc");
        let target = scratch.load(LEAF).unwrap();
        assert!(target.files_read().contains(&FILE.into()));
    }

    #[test]
    fn a_file_with_other_bytes_is_refused_with_the_right_block() {
        let scratch = stated();
        scratch.write(FILE, b"abcd");
        let digest = "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589";
        let expected = format!(
            "{FILE}: is 4 bytes with sha256 {digest}, not as model.toml states; if the file is \
             right, state\nfiles = [\n    {{ name = \"a.json\", bytes = 4, sha256 = \
             \"{digest}\" }},\n]\n"
        );
        assert_eq!(scratch.load(LEAF).unwrap_err().to_string(), expected);
    }

    #[test]
    fn an_embedded_file_must_be_there() {
        let error = stated().load(LEAF).unwrap_err();
        assert_eq!(error.file, FILE);
        assert!(error.rule.starts_with("cannot be read: "), "{error}");
    }

    #[test]
    fn another_number_of_tensors_is_refused() {
        let scratch = Scratch::of(LEAF);
        let empty = [&2u64.to_le_bytes()[..], b"{}"].concat();
        let digest = sha256(&empty);
        let line =
            format!("files = [{{ name = \"a.safetensors\", bytes = 10, sha256 = \"{digest}\" }}]");
        scratch.state_files("targets/_model/tiny/model.toml", &line);
        scratch.write("targets/_model/tiny/a.safetensors", &empty);
        assert_eq!(
            scratch.load(LEAF).unwrap_err().to_string(),
            "targets/_model/tiny/model.toml: tensors = 487: the safetensors files hold 0"
        );
    }

    #[test]
    fn the_block_of_a_folder_is_what_its_manifest_states() {
        let folder = root().join("targets/_model/tiny");
        let manifest = std::fs::read_to_string(folder.join("model.toml")).unwrap();
        assert!(manifest.ends_with(&checkpoint_block(&folder).unwrap()));
    }
}
