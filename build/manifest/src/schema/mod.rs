//! Schema of manifests. An unknown key is an error; a missing key is an error unless its type is an
//! `Option` or its documentation says otherwise.
//!
//! `targets/README.md` lists every field; a test compares it with these files.

pub mod hardware;
pub mod leaf;
pub mod model;

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::ManifestError;

/// Parses the TOML file at `root/file`.
///
/// # Errors
/// Names the file, the line and its text, and what the parser expected, followed by `hint`.
pub(crate) fn read<T: DeserializeOwned>(
    root: &Path,
    file: &str,
    hint: &str,
) -> Result<T, ManifestError> {
    let text = std::fs::read_to_string(root.join(file)).map_err(ManifestError::unread(file))?;
    parse(&text, file, hint)
}

/// Parses `text`; errors name `file`.
pub(crate) fn parse<T: DeserializeOwned>(
    text: &str,
    file: &str,
    hint: &str,
) -> Result<T, ManifestError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let number = text[..start].matches('\n').count() + 1;
        let line = text.lines().nth(number - 1).unwrap_or("").trim();
        let rule = format!("line {number}: `{line}`: {}{hint}", error.message());
        ManifestError::file(file, rule)
    })
}

#[cfg(test)]
mod tests {
    const README: &str = include_str!("../../../../targets/README.md");
    const SOURCES: [&str; 3] = [
        include_str!("hardware.rs"),
        include_str!("model.rs"),
        include_str!("leaf.rs"),
    ];

    #[test]
    fn the_readme_lists_every_field() {
        let lines = SOURCES.iter().flat_map(|source| source.lines());
        let fields = lines.filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
        let names = fields.map(|(name, _)| format!("`{}`", name.trim_start_matches("r#")));
        let names: Vec<_> = names.collect();
        assert!(names.len() > 70, "{names:?}");
        let absent = names.iter().filter(|name| !README.contains(*name));
        assert_eq!(absent.collect::<Vec<_>>(), Vec::<&String>::new());
    }

    #[test]
    fn the_readme_lists_every_format() {
        for name in [
            "bf16",
            "nvfp4_compressed_tensors",
            "nvfp4_modelopt",
            "fp8_block128",
            "fp8_tensor",
            "f32",
        ] {
            assert!(README.contains(&format!("`{name}`")), "{name}");
        }
    }
}
