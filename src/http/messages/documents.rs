//! Blocks of texts from elsewhere: documents, and results of a search.

use std::borrow::Cow;

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::limits::CONTENT_PARTS_MAX;

/// Separator of the lines of one document or search result.
const LINE_GAP: &str = "\n";

/// Text of a document or search result, title and source included; None if it has more than text.
///
/// # Errors
/// Names the field that is malformed.
pub fn text(field: &Field<'_>) -> Result<Option<String>, ApiError> {
    let object = field.object()?;
    match field.value["type"].as_str() {
        Some("search_result") => {
            let lines = lines(&object, &["title", "source"], &object.require("content")?)?;
            Ok(Some(lines))
        }
        Some("document") => document(&object),
        _ => Ok(None),
    }
}

fn document(object: &Object<'_>) -> Result<Option<String>, ApiError> {
    let Some(source) = object.get("source") else {
        return Ok(None);
    };
    let text = match source.value["type"].as_str() {
        Some("text") => source.object()?.require("data")?,
        Some("content") => source.object()?.require("content")?,
        _ => return Ok(None),
    };
    lines(object, &["title", "context"], &text).map(Some)
}

/// The fields `names` of a block, then `text`: a string or a list of blocks of text.
fn lines(object: &Object<'_>, names: &[&str], text: &Field<'_>) -> Result<String, ApiError> {
    let named = names.iter().filter_map(|name| object.get(name));
    let mut lines: Vec<Cow<'_, str>> = Vec::new();
    for field in named {
        lines.push(field.string()?.into());
    }
    match text.value.is_array() {
        true => {
            for part in text.list(CONTENT_PARTS_MAX)? {
                lines.push(part.object()?.require("text")?.string()?.into());
            }
        }
        false => lines.push(text.string()?.into()),
    }
    Ok(lines.join(LINE_GAP))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(block: &Value) -> Result<Option<String>, String> {
        let field = Field {
            value: block,
            path: "block".to_string(),
        };
        text(&field).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn texts_follow_their_names() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        for (block, expected) in [
            (
                json!({"type": "search_result", "title": "T", "source": "u", "content": parts}),
                "T\nu\na\nb",
            ),
            (
                json!({"type": "document", "source": {"type": "text", "data": "d",
                    "media_type": "text/plain"}, "title": "T", "context": "c"}),
                "T\nc\nd",
            ),
            (
                json!({"type": "document", "source": {"type": "content", "content": parts}}),
                "a\nb",
            ),
        ] {
            assert_eq!(read(&block).unwrap().unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_text_is_left_to_others() {
        let file = json!({"type": "document", "source": {"type": "base64", "data": "AA"}});
        assert_eq!(read(&file), Ok(None));
        assert_eq!(read(&json!({"type": "image"})), Ok(None));
        let odd = json!({"type": "search_result", "source": "u", "content": [{"text": 5}]});
        assert_eq!(read(&odd), Err("block.content[0].text".to_string()));
        assert_eq!(
            read(&json!({"type": "search_result"})),
            Err("block.content".to_string())
        );
    }
}
