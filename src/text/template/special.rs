//! Special tokens that a checkpoint names in `tokenizer_config.json`: published templates write
//! these tokens by name, and fail if a name is undefined.

use serde_json::Value;

/// File of a checkpoint that names special tokens.
pub const FILE: &str = "tokenizer_config.json";

/// Names under which Hugging Face's renderer passes special tokens to templates.
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Texts of special tokens by name; only tokens that the checkpoint has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpecialTokens {
    texts: Vec<(&'static str, String)>,
}

/// Reason why special tokens cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SpecialTokensError {
    #[error("{0}")]
    Json(serde_json::Error),
    /// The token of this name is neither a text nor an object that has one.
    #[error("{0} has no text")]
    NoText(&'static str),
}

impl SpecialTokens {
    /// Reads the content of [`FILE`].
    ///
    /// # Errors
    /// When the content is no JSON, or a token has no text.
    pub fn parse(file: &[u8]) -> Result<SpecialTokens, SpecialTokensError> {
        let config: Value = serde_json::from_slice(file).map_err(SpecialTokensError::Json)?;
        let mut texts = Vec::new();
        for name in NAMES {
            let token = match &config[name] {
                Value::Null => continue,
                Value::Object(added) => added.get("content").and_then(Value::as_str),
                token => token.as_str(),
            };
            let text = token.ok_or(SpecialTokensError::NoText(name))?;
            texts.push((name, text.to_string()));
        }
        Ok(SpecialTokens { texts })
    }

    /// Text of the token `name`, such as `bos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| text)
    }

    /// Name and text of each special token that the checkpoint names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.texts.iter().map(|(name, text)| (*name, text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(file: &str) -> Result<SpecialTokens, SpecialTokensError> {
        SpecialTokens::parse(file.as_bytes())
    }

    #[test]
    fn a_token_is_a_text_or_an_object_that_holds_one() {
        let file = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
            "pad_token": null, "model_max_length": 7}"#;
        let special = parsed(file).unwrap();
        assert_eq!(special.get("bos_token"), Some("<s>"));
        assert_eq!(special.get("eos_token"), Some("</s>"));
        assert_eq!(special.iter().count(), 2);
    }

    #[test]
    fn a_token_without_a_text_is_reported() {
        for file in [
            r#"{"unk_token": 3}"#,
            r#"{"unk_token": {}}"#,
            r#"{"unk_token": []}"#,
        ] {
            let error = parsed(file).unwrap_err();
            assert_eq!(error.to_string(), "unk_token has no text");
        }
        assert!(parsed("{").is_err());
        assert_eq!(parsed("[]").unwrap(), SpecialTokens::default());
    }
}
