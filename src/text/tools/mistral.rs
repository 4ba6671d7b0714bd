//! The form of Mistral Small 4 and of other models with version 13 or later of Mistral's tokenizer:
//! `[TOOL_CALLS]NAME[ARGS]{JSON}`, one call after the other.

use super::json::Arguments;
use super::markup::named;
use super::{End, Opening, Sink, Step, Syntax, head};

pub const CALL: &str = "[TOOL_CALLS]";
pub const ARGUMENTS: &str = "[ARGS]";

/// Reader of the calls of Mistral.
#[derive(Debug, Default)]
pub struct Mistral {
    arguments: Arguments,
}

impl Syntax for Mistral {
    const OPEN: &'static str = CALL;
    const END: &'static str = "}";
    const MARKS: &'static [&'static str] = &[CALL, ARGUMENTS];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        let found = named(text, "", ARGUMENTS)
            .and_then(|(name, length)| Ok((name, length + head(&text[length..], "{")?)));
        match found {
            Ok((name, length)) => {
                sink.announce(name);
                self.arguments = Arguments::default();
                let length = length - 1;
                Opening::Call { length }
            }
            Err(miss) => miss.into(),
        }
    }

    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, _: End) -> Step {
        match self.arguments.read(pending, sink) {
            true => Step::Closed,
            false => Step::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::{calls, content, streamed};
    use serde_json::json;

    #[test]
    fn calls_stand_one_after_the_other() {
        let text = "I look.[TOOL_CALLS]edit[ARGS]{\"path\": \"[TOOL_CALLS]}\"}\
            [TOOL_CALLS]now[ARGS]{}";
        let (deltas, completed) = streamed::<Mistral>(&[text]);
        let expected = [
            ("edit".to_string(), Some(json!({"path": "[TOOL_CALLS]}"}))),
            ("now".to_string(), Some(json!({}))),
        ];
        assert_eq!((calls(&deltas), completed), (expected.to_vec(), 2));
        assert_eq!(deltas[0], content("I look."));
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "[TOOL_CALLS]a b[ARGS]{}",
            "[TOOL_CALLS]a[ARGS]7",
            "[TOOL_CALLS][ARGS]{}",
        ] {
            assert_eq!(streamed::<Mistral>(&[text]), (vec![content(text)], 0));
        }
    }
}
