//! The form of MiniMax-M2, with one function or several between the outer tags:
//!
//! ```text
//! <minimax:tool_call>
//! <invoke name="NAME">
//! <parameter name="ARGUMENT">VALUE</parameter>
//! </invoke>
//! </minimax:tool_call>
//! ```

use super::markup::{Markup, Tags};

/// Tags of the calls of MiniMax-M2.
#[derive(Debug, Default)]
pub struct MinimaxXmlTags;

/// Reader of the calls of MiniMax-M2.
pub type MinimaxXml = Markup<MinimaxXmlTags>;

impl Tags for MinimaxXmlTags {
    const CALL: (&'static str, &'static str) = ("<minimax:tool_call>", "</minimax:tool_call>");
    const FUNCTION: (&'static str, &'static str, &'static str) =
        ("<invoke name=\"", "\">", "</invoke>");
    const ARGUMENT: (&'static str, &'static str, &'static str) =
        ("<parameter name=\"", "\">", "</parameter>");
    const SEVERAL: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Delta;
    use crate::tools::tests::{calls, content, streamed};
    use serde_json::json;

    #[test]
    fn several_functions_stand_in_one_call() {
        let text = "Both:\n<minimax:tool_call>\n<invoke name=\"edit\">\n\
            <parameter name=\"tags\">[\"technology\", \"events\"]</parameter>\n\
            <parameter name=\"path\">San Francisco, CA</parameter>\n</invoke>\n\
            <invoke name=\"now\">\n</invoke>\n</minimax:tool_call>\nDone.";
        let (deltas, completed) = streamed::<MinimaxXml>(&[text]);
        assert_eq!(completed, 2);
        let edit = json!({"tags": ["technology", "events"], "path": "San Francisco, CA"});
        let expected = [
            ("edit".to_string(), Some(edit)),
            ("now".to_string(), Some(json!({}))),
        ];
        assert_eq!(calls(&deltas), expected);
        assert_eq!(
            (&deltas[0], deltas.last()),
            (&content("Both:"), Some(&content("Done.")))
        );
    }

    #[test]
    fn a_tag_in_a_value_does_not_end_it() {
        let text = "<minimax:tool_call>\n<invoke name=\"edit\">\n<parameter name=\"path\">\
            a</parameter> b</invoke>\n</minimax:tool_call>c</parameter>\n</invoke>\n\
            </minimax:tool_call>";
        let (deltas, _) = streamed::<MinimaxXml>(&[text]);
        let json = json!({"path": "a</parameter> b</invoke>\n</minimax:tool_call>c"}).to_string();
        assert_eq!(deltas[1], Delta::Arguments { index: 0, json });
    }

    #[test]
    fn functions_follow_each_other_after_any_number_of_newlines() {
        let between = "\n".repeat(20);
        let text = format!(
            "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>{between}<invoke name=\"g\">\n\
             </invoke>\n</minimax:tool_call>"
        );
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (whole, cut) = (
            streamed::<MinimaxXml>(&[&text]),
            streamed::<MinimaxXml>(&pieces),
        );
        assert_eq!(whole.0, cut.0);
        let calls = whole.0.iter();
        let calls = calls.filter(|delta| matches!(delta, Delta::ToolCall { .. }));
        assert_eq!(calls.count(), 2);
    }
}
