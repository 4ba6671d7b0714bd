//! Reader of Gemma 4's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,list:[1,2]}<tool_call|>`.
//!
//! Keys are bare; strings are between marks and have no escapes; other values are as in JSON.

use super::markup::named;
use super::schemas::Types;
use super::{
    End, Miss, Opening, Sink, Step, Syntax, close, escaped, head, is_json, quoted, take_front,
};
use crate::partial_tag;

pub const CALL: (&str, &str) = ("<|tool_call>", "<tool_call|>");
/// Text before a function's name.
pub const FUNCTION: &str = "call:";
/// Mark at both ends of a string.
pub const QUOTE: &str = "<|\"|>";
/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 1024;
/// Depth of objects and lists inside each other.
const DEPTH_MAX: usize = 64;

/// Position in the arguments at which the pending text begins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Position {
    /// A key or the end of the object comes next.
    #[default]
    Key,
    /// A value or the end of the list comes next.
    Value,
    /// The pending text begins inside a string.
    Text,
    /// The pending text begins inside a value that is no string, list or object.
    Bare,
    /// The pending text begins after a value.
    AfterValue,
    /// The pending text begins after all arguments.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Container {
    Object,
    List,
}

/// Reader of the calls of Gemma 4.
#[derive(Debug, Default)]
pub struct Gemma {
    function: String,
    position: Position,
    /// Objects and lists around the position, the innermost last.
    inside: Vec<Container>,
    /// Whether the innermost object or list has an item already.
    has_items: bool,
    /// Types of the current argument; None if unknown, or in an object or list.
    types: Option<Types>,
    bare: String,
}

impl Syntax for Gemma {
    const OPEN: &'static str = CALL.0;
    const END: &'static str = CALL.1;
    const MARKS: &'static [&'static str] = &[CALL.0, CALL.1, QUOTE];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match named(text, FUNCTION, "{") {
            Ok((name, length)) => {
                sink.announce(name);
                sink.arguments("{".to_string());
                *self = Gemma {
                    function: name.to_string(),
                    inside: vec![Container::Object],
                    ..Gemma::default()
                };
                Opening::Call { length }
            }
            Err(miss) => miss.into(),
        }
    }

    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, _: End) -> Step {
        if matches!(
            self.position,
            Position::Key | Position::Value | Position::AfterValue
        ) {
            let blank = pending.len() - pending.trim_start().len();
            pending.drain(..blank);
            if pending.is_empty() {
                return Step::Wait;
            }
        }
        match self.position {
            Position::Key => self.key(pending, sink),
            Position::Value => self.value(pending, sink),
            Position::Text => self.text(pending, sink),
            Position::Bare => self.bare(pending, sink),
            Position::AfterValue => self.after_value(pending, sink),
            Position::Closing => close(pending, CALL.1),
        }
    }
}

impl Gemma {
    fn key(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        if pending.starts_with('}') {
            return self.leave(pending, sink);
        }
        let (start, mark) = match head(pending, QUOTE) {
            Ok(start) => (start, "<|\"|>:"),
            Err(Miss::Unfinished) => return Step::Wait,
            Err(Miss::Other) => (0, ":"),
        };
        let Some(length) = pending[start..].find(mark) else {
            let most = KEY_BYTES_MAX + mark.len();
            let open = pending.len() - start <= most;
            return if open { Step::Wait } else { Step::Broken };
        };
        let key = pending[start..start + length].trim_end();
        let strange = |byte: &u8| b"{}[],".contains(byte);
        if length > KEY_BYTES_MAX || (start == 0 && key.bytes().any(|byte| strange(&byte))) {
            return Step::Broken;
        }
        self.types = match self.inside.len() {
            1 => sink.types(&self.function, key),
            _ => None,
        };
        let comma = if self.has_items { "," } else { "" };
        sink.arguments(format!("{comma}{}:", quoted(key)));
        pending.drain(..start + length + mark.len());
        self.has_items = true;
        self.position = Position::Value;
        Step::Again
    }

    fn value(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        let in_list = self.inside.last() == Some(&Container::List);
        if in_list && pending.starts_with(']') {
            return self.leave(pending, sink);
        }
        let quote = head(pending, QUOTE);
        if quote == Err(Miss::Unfinished) {
            return Step::Wait;
        }
        if in_list && std::mem::replace(&mut self.has_items, true) {
            sink.arguments(",".to_string());
        }
        match (quote, pending.as_bytes()[0]) {
            (Ok(length), _) => {
                pending.drain(..length);
                sink.arguments("\"".to_string());
                self.position = Position::Text;
            }
            (_, b'{') => return self.enter(Container::Object, pending, sink),
            (_, b'[') => return self.enter(Container::List, pending, sink),
            _ => self.position = Position::Bare,
        }
        Step::Again
    }

    fn enter(&mut self, kind: Container, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        if self.inside.len() == DEPTH_MAX {
            return Step::Broken;
        }
        sink.arguments(take_front(pending, 1));
        self.inside.push(kind);
        self.has_items = false;
        self.position = match kind {
            Container::Object => Position::Key,
            Container::List => Position::Value,
        };
        self.types = None;
        Step::Again
    }

    /// Ends the innermost object or list, whose bracket is at the start of `pending`.
    fn leave(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        sink.arguments(take_front(pending, 1));
        self.inside.pop();
        self.has_items = true;
        self.position = Position::AfterValue;
        if self.inside.is_empty() {
            sink.complete();
            self.position = Position::Closing;
        }
        Step::Again
    }

    fn text(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        let found = pending.find(QUOTE);
        let end = found.unwrap_or_else(|| pending.len() - partial_tag(pending, QUOTE));
        let piece = take_front(pending, end);
        sink.arguments(escaped(&piece));
        if found.is_none() {
            return Step::Wait;
        }
        pending.drain(..QUOTE.len());
        sink.arguments("\"".to_string());
        self.position = Position::AfterValue;
        Step::Again
    }

    /// Gathers a value that is no string, list or object, up to its end.
    fn bare(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        let end = pending.find([',', '}', ']']);
        let length = end.unwrap_or(pending.len());
        self.bare.push_str(&pending[..length]);
        pending.drain(..length);
        if end.is_none() {
            return Step::Wait;
        }
        let text = std::mem::take(&mut self.bare);
        let text = text.trim();
        let is_value = is_json(text) && self.types != Some(Types::TEXT);
        sink.arguments(match is_value {
            true => text.to_string(),
            false => quoted(text),
        });
        self.position = Position::AfterValue;
        Step::Again
    }

    fn after_value(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        match (pending.as_bytes()[0], self.inside.last()) {
            (b',', Some(kind)) => {
                self.position = match kind {
                    Container::Object => Position::Key,
                    Container::List => Position::Value,
                };
                pending.drain(..1);
                Step::Again
            }
            (b'}', Some(Container::Object)) | (b']', Some(Container::List)) => {
                self.leave(pending, sink)
            }
            _ => Step::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::tests::{calls, content, streamed};
    use serde_json::{Value, json};

    fn read(arguments: &str) -> Option<Value> {
        let text = format!("<|tool_call>call:edit{arguments}<tool_call|>");
        let (deltas, completed) = streamed::<Gemma>(&[&text]);
        let found = calls(&deltas).remove(0).1;
        assert_eq!(completed, usize::from(found.is_some()), "{deltas:?}");
        found
    }

    #[test]
    fn values_become_json() {
        let text = "{path:<|\"|>a \"b\", {c}\n<|\"|>,line:-1,\
            all:true,ratio:0.5,tags:[<|\"|>x<|\"|>,\
            <|\"|>y<|\"|>],at:{x:{y:[1,[],{}]},<|\"|>odd: key<|\"|>:null}}";
        let expected = json!({"path": "a \"b\", {c}\n", "line": -1, "all": true, "ratio": 0.5,
            "tags": ["x", "y"], "at": {"x": {"y": [1, [], {}]}, "odd: key": null}});
        assert_eq!(read(text), Some(expected));
    }

    #[test]
    fn a_value_without_marks_takes_the_type_of_the_schema_where_it_can() {
        let expected = json!({"path": "42", "line": "many", "free": 3, "new": 4, "note": "a b"});
        let text = "{path: 42, line:many, free:3, new:4, note:a b}";
        assert_eq!(read(text), Some(expected));
    }

    #[test]
    fn a_comma_too_many_is_forgiven() {
        assert_eq!(
            read("{tags:[1,],line:2,}"),
            Some(json!({"tags": [1], "line": 2}))
        );
    }

    #[test]
    fn a_call_out_of_form_breaks_off() {
        for text in ["{a:[1}", "{a:<|\"|>b<|\"|>c}", "{a{b:1}}", "{[1]}"] {
            assert_eq!(read(text), None, "{text}");
        }
        let deep = format!("{{a:{}1{}}}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert_eq!(read(&deep), None);
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "<|tool_call>edit{}",
            "<|tool_call>call:a b{}",
            "<|tool_call>call:",
        ] {
            assert_eq!(streamed::<Gemma>(&[text]), (vec![content(text)], 0));
        }
    }
}
