//! The form of Llama 3.1 and later, whose reply is the call itself:
//!
//! ```text
//! {"name": "NAME", "parameters": {JSON}}
//! ```
//!
//! Several calls are separated by `;`, a line break or a blank. `<|python_tag|>`, which the model
//! may put before them, is a control token and never part of the text.
//!
//! Only its name distinguishes a call from other JSON, so functions that the request does not have
//! are not called, and objects inside an object that is no call are not calls either. Arguments
//! after the name, `arguments` or `parameters`, are streamed; an object in another order is read
//! whole.

use super::json::{ObjectCall, Scan, call_in, parts};
use super::markup::{Named, named};
use super::{BLANK_BYTES_MAX, End, Miss, Opening, Sink, Step, Syntax, either, head, next};

/// Text of a call up to the function's name, as the template writes it.
pub const NAME: &str = "{\"name\": \"";
/// Text between the name and the object of the arguments, as the template writes it.
pub const PARAMETERS: &str = "\", \"parameters\": ";
/// Tokens between the opening brace and the key of the name, where the model states the kind of
/// tool.
const KIND: &[&str] = &["\"type\"", ":", "\"function\"", ","];
/// Names of members that have the arguments.
const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Reader of the calls of Llama 3.1 and later.
#[derive(Debug, Default)]
pub struct Llama3Json {
    call: ObjectCall,
    /// Whether the separator after the call has been read.
    separated: bool,
}

impl Syntax for Llama3Json {
    const OPEN: &'static str = "{";
    const FORMAL: &'static str = NAME;
    const FORBIDDEN: &'static str = "";
    const END: &'static str = "}";
    const MARKS: &'static [&'static str] = &[];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        let found = match sink.forgives() {
            true => name_first(text),
            false => formal(text),
        };
        let opening = match found {
            Ok((name, length)) if sink.knows(name) => {
                sink.announce(name);
                self.call = ObjectCall::default();
                Opening::Call { length }
            }
            Err(Miss::Unfinished) => Opening::Unfinished,
            Ok(_) | Err(Miss::Other) => self.other(text, sink),
        };
        self.separated = false;
        opening
    }

    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, _: End) -> Step {
        if !self.call.read(pending, sink) {
            return Step::Wait;
        }
        if !self.separated {
            return self.after_call(pending);
        }
        pending.drain(..pending.len() - pending.trim_start().len());
        match pending.is_empty() {
            true => Step::Wait,
            false => Step::Closed,
        }
    }
}

impl Llama3Json {
    /// Reads an object that does not begin with the name: it may be a call in another order.
    fn other(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match begins(text, sink) {
            Opening::Call { .. } if sink.forgives() => self.whole(text, sink),
            Opening::Call { .. } => Opening::Object,
            other => other,
        }
    }

    /// Reads an object whose members are in another order, once it is complete.
    fn whole(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        let Some(length) = self.call.end(Scan::inside, text) else {
            return Opening::Unfinished;
        };
        let call = call_in(&format!("{{{}", &text[..length]), |call| {
            ARGUMENTS.iter().find_map(|key| call.remove(*key))
        });
        let Some((name, arguments)) = call.filter(|(name, _)| sink.knows(name)) else {
            return Opening::Object;
        };
        self.call.emit(&name, arguments, sink);
        Opening::Call { length }
    }

    /// Drops the separator between a call and the next.
    fn after_call(&mut self, pending: &mut String) -> Step {
        let blank = pending.len() - pending.trim_start().len();
        if blank > BLANK_BYTES_MAX {
            return Step::Closed;
        }
        match pending[blank..].chars().next() {
            Some(';') => {
                pending.drain(..=blank);
                self.separated = true;
                Step::Again
            }
            Some('{') => {
                pending.drain(..blank);
                Step::Closed
            }
            Some(_) => Step::Closed,
            None => Step::Wait,
        }
    }
}

/// Looks for the start of a call after its brace, in the exact form of grammars.
fn formal(text: &str) -> Named<'_> {
    let start = next(text, &NAME[Llama3Json::OPEN.len()..])?;
    let (name, length) = named(&text[start..], "", PARAMETERS)?;
    let end = start + length;
    Ok((name, end + next(&text[end..], "{")? - 1))
}

/// Looks for `"name": "NAME", "parameters":` and the brace of an object.
fn name_first(text: &str) -> Named<'_> {
    let start = match parts(text, KIND) {
        Err(Miss::Other) => 0,
        found => found?,
    };
    let start = start + parts(&text[start..], &["\"name\"", ":"])?;
    let (name, length) = named(&text[start..], "\"", "\"")?;
    let end = start + length;
    let rest = &text[end..];
    let before = |key| parts(rest, &[",", key, ":", "{"]);
    let brace = either(before("\"parameters\""), || before("\"arguments\""))?;
    Ok((name, end + brace - 1))
}

/// Kind of an object by its first member: a call of a known function, in some order of members,
/// another object, or no object at all.
fn begins(text: &str, sink: &Sink<'_>) -> Opening {
    let (key, length) = match named(text, "\"", "\"") {
        Ok(found) => found,
        Err(Miss::Unfinished) => return Opening::Unfinished,
        Err(Miss::Other) => {
            return head(text, "\"").map_or_else(Opening::from, |_| Opening::Object);
        }
    };
    let value = &text[length..];
    match key {
        "name" => {
            match parts(value, &[":"]) {
                Ok(colon) => as_call(named(&value[colon..], "\"", "\"").and_then(
                    |(name, length)| sink.knows(name).then_some(length).ok_or(Miss::Other),
                )),
                found => as_call(found),
            }
        }
        "type" => as_call(parts(value, &KIND[1..3])),
        key if ARGUMENTS.contains(&key) => as_call(parts(value, &[":"])),
        _ => Opening::Object,
    }
}

fn as_call(found: Result<usize, Miss>) -> Opening {
    match found {
        Ok(length) => Opening::Call { length },
        Err(Miss::Unfinished) => Opening::Unfinished,
        Err(Miss::Other) => Opening::Object,
    }
}

#[cfg(test)]
mod tests;
