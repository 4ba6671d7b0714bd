//! The chat template in `tokenizer_config.json`: older checkpoints have no file for it.

use serde_json::Value;

pub use super::special::FILE;

/// Key of the template in `tokenizer_config.json`.
const KEY: &str = "chat_template";
/// Name of the template that is used if several are stated.
const DEFAULT: &str = "default";

/// The template in the content of [`FILE`]; None if there is none.
///
/// # Errors
/// When the content is no JSON.
pub fn template(file: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let config: Value = serde_json::from_slice(file)?;
    let stated = match &config[KEY] {
        Value::Array(named) => named
            .iter()
            .find(|one| one["name"] == DEFAULT)
            .map_or(&Value::Null, |one| &one["template"]),
        one => one,
    };
    Ok(stated.as_str().map(str::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_stated_alone_or_by_name() {
        for (file, stated) in [
            (r#"{"chat_template": "a"}"#, Some("a")),
            (
                r#"{"chat_template": [{"name": "tool_use", "template": "b"},
                    {"name": "default", "template": "a"}]}"#,
                Some("a"),
            ),
            (
                r#"{"chat_template": [{"name": "rag", "template": "b"}]}"#,
                None,
            ),
            (r#"{"chat_template": [7]}"#, None),
            (r#"{"chat_template": null}"#, None),
            (r#"{"bos_token": "<s>"}"#, None),
        ] {
            let found = template(file.as_bytes()).unwrap();
            assert_eq!(found.as_deref(), stated, "{file}");
        }
        assert!(template(b"{").is_err());
    }
}
