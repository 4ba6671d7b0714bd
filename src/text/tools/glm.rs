//! The form of GLM-4.5 and later; the function's name follows the opening tag:
//!
//! ```text
//! <tool_call>NAME
//! <arg_key>ARGUMENT</arg_key>
//! <arg_value>VALUE</arg_value>
//! </tool_call>
//! ```

use super::markup::{Markup, Named, Tags, named};
use super::{either, head};

/// Tags of the calls of GLM-4.5 and later.
#[derive(Debug, Default)]
pub struct GlmTags;

/// Reader of the calls of GLM-4.5 and later.
pub type Glm = Markup<GlmTags>;

impl Tags for GlmTags {
    const CALL: (&'static str, &'static str) = ("<tool_call>", "");
    const FUNCTION: (&'static str, &'static str, &'static str) = ("", "", "</tool_call>");
    const ARGUMENT: (&'static str, &'static str, &'static str) =
        ("<arg_key>", "</arg_key>", "</arg_value>");
    const VALUE_OPEN: &'static str = "<arg_value>";

    /// Nothing marks the name's end, so an argument or the call's end must follow.
    fn function(text: &str) -> Named<'_> {
        let found = named(text, "", "")?;
        let rest = &text[found.1..];
        let end = || head(rest, Self::FUNCTION.2);
        either(head(rest, Self::ARGUMENT.0), end)?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::{calls, content, streamed};
    use serde_json::json;

    #[test]
    fn blanks_between_tags_may_be_missing_or_be_spaces() {
        for text in [
            "<tool_call>edit\n<arg_key>path</arg_key>\n\
             <arg_value>backend</arg_value>\n</tool_call>",
            "<tool_call>edit <arg_key>path</arg_key> <arg_value>backend</arg_value> </tool_call>",
            "<tool_call>edit<arg_key>path</arg_key><arg_value>backend</arg_value></tool_call>",
        ] {
            let (deltas, completed) = streamed::<Glm>(&[text]);
            let expected = [("edit".to_string(), Some(json!({"path": "backend"})))];
            assert_eq!(
                (calls(&deltas), completed),
                (expected.to_vec(), 1),
                "{text}"
            );
        }
    }

    #[test]
    fn a_name_that_nothing_follows_is_text() {
        for text in [
            "<tool_call>edit me",
            "<tool_call>edit\n<p>",
            "<tool_call>edit",
        ] {
            assert_eq!(streamed::<Glm>(&[text]), (vec![content(text)], 0));
        }
    }
}
