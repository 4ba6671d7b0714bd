//! The form of Hermes, Qwen3, Qwen3-Next and Qwen3-VL:
//!
//! ```text
//! <tool_call>
//! {"name": "NAME", "arguments": {JSON}}
//! </tool_call>
//! ```
//!
//! Arguments after the name are streamed; an object in another order is read whole.

use super::json::{ObjectCall, Scan, call_in, parts};
use super::markup::{Named, named};
use super::{End, Miss, Opening, Sink, Step, Syntax, close, head};

pub const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");

/// Reader of the calls of Hermes and Qwen3.
#[derive(Debug, Default)]
pub struct Hermes {
    call: ObjectCall,
}

impl Syntax for Hermes {
    const OPEN: &'static str = CALL.0;
    const END: &'static str = CALL.1;
    const MARKS: &'static [&'static str] = &[CALL.0, CALL.1];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match name_first(text) {
            Ok((name, length)) => {
                sink.announce(name);
                self.call = ObjectCall::default();
                Opening::Call { length }
            }
            Err(Miss::Unfinished) => Opening::Unfinished,
            Err(Miss::Other) => self.whole(text, sink),
        }
    }

    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, _: End) -> Step {
        match self.call.read(pending, sink) {
            true => close(pending, CALL.1),
            false => Step::Wait,
        }
    }
}

impl Hermes {
    /// Reads an object whose members are in another order, once it is complete.
    fn whole(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        if let Err(miss) = head(text, "{") {
            return miss.into();
        }
        let Some(length) = self.call.end(Scan::default, text) else {
            return Opening::Unfinished;
        };
        // Models may leave out `arguments`.
        let call = call_in(&text[..length], |call| {
            Some(call.remove("arguments").unwrap_or_default())
        });
        let Some((name, arguments)) = call else {
            return Opening::Other;
        };
        self.call.emit(&name, arguments, sink);
        Opening::Call { length }
    }
}

/// Looks for `{"name": "NAME", "arguments":` before an object.
fn name_first(text: &str) -> Named<'_> {
    let start = parts(text, &["{", "\"name\"", ":"])?;
    let (name, length) = named(&text[start..], "\"", "\"")?;
    let end = start + length;
    let after = parts(&text[end..], &[",", "\"arguments\"", ":", "{"])?;
    Ok((name, end + after - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Delta;
    use crate::tools::tests::{calls, content, streamed};
    use serde_json::{Value, json};

    fn read(text: &str) -> Option<Value> {
        let (deltas, completed) = streamed::<Hermes>(&[text]);
        let mut found = calls(&deltas);
        assert_eq!((found.len(), completed), (1, 1), "{deltas:?}");
        found.remove(0).1
    }

    #[test]
    fn an_object_in_any_order_is_a_call() {
        for text in [
            "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>",
            "<tool_call>{\"name\":\"edit\",\
             \"arguments\":{\"path\":\"a\"},\"id\":\"}\"}</tool_call>",
            "<tool_call>\n{\"arguments\": {\"path\": \"a\"}, \"name\": \"edit\"}\n</tool_call>",
            "<tool_call>{\"name\": \"edit\", \
             \"arguments\": \"{\\\"path\\\": \\\"a\\\"}\"}</tool_call>",
            "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a\"}\n</tool_call>",
        ] {
            assert_eq!(read(text), Some(json!({"path": "a"})), "{text}");
            let after = format!("{text}\nThen.");
            assert_eq!(
                streamed::<Hermes>(&[&after]).0.last(),
                Some(&content("Then."))
            );
        }
        assert_eq!(
            read("<tool_call>{\"name\": \"now\"}</tool_call>"),
            Some(json!({}))
        );
    }

    #[test]
    fn arguments_are_passed_on_as_they_were_written() {
        let text = "<tool_call>\n{\"name\": \"edit\", \
             \"arguments\": {\"line\": 1.50, \"n\": \"\\u00e9\"}}";
        let json = "{\"line\": 1.50, \"n\": \"\\u00e9\"}".to_string();
        assert_eq!(
            streamed::<Hermes>(&[text]).0[1],
            Delta::Arguments { index: 0, json }
        );
    }

    #[test]
    fn an_object_that_is_no_call_is_text() {
        for text in [
            "<tool_call>{\"a\": 1}</tool_call>",
            "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"edit\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"edit\", \"arguments\"",
        ] {
            assert_eq!(streamed::<Hermes>(&[text]), (vec![content(text)], 0));
        }
    }

    #[test]
    fn arguments_that_are_no_json_do_not_count() {
        let text = "<tool_call>{\"name\": \"edit\", \"arguments\": {path: 1}}</tool_call>";
        assert_eq!(streamed::<Hermes>(&[text]).1, 0);
    }
}
