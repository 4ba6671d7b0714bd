//! The form of Llama 3.1 and later, whose reply is the call itself:
//!
//! ```text
//! {"name": "NAME", "parameters": {JSON}}
//! ```
//!
//! Several stand behind each other, between them `;`, a line break or a blank. `<|python_tag|>`,
//! which the model may put before them, is a control token and never part of the text.
//!
//! Nothing but its name tells a call from other JSON, so that functions of the request alone are
//! called; and an object that is no call holds none. Arguments behind the name are passed on as
//! they come, `arguments` as well as `parameters`; an object in another order is read whole.

use serde_json::{Map, Value};

use super::json::{Arguments, Rest, Scan, arguments_of, parts};
use super::markup::{Named, named};
use super::{BLANK_BYTES_MAX, End, Miss, Opening, Sink, Step, Syntax, either, head, is_name, next};

/// Up to the name, as the template writes it.
pub const NAME: &str = "{\"name\": \"";
/// Between the name and the object of the arguments, as the template writes it.
pub const PARAMETERS: &str = "\", \"parameters\": ";
/// Between the head of an object and its name, where the model says what kind of tool it is.
const KIND: &[&str] = &["\"type\"", ":", "\"function\"", ","];
/// Members that hold arguments.
const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

#[derive(Debug, Default)]
enum State {
    #[default]
    Arguments,
    /// Behind the arguments, in the object around them.
    Rest,
    /// Behind that object.
    Behind,
    /// Behind what separates it from the next.
    Separated,
}

/// The reader of this form.
#[derive(Debug, Default)]
pub struct Llama3Json {
    state: State,
    arguments: Arguments,
    rest: Rest,
    /// Follows an object that is read whole; `scanned` bytes behind its head so far.
    whole: Option<Scan>,
    scanned: usize,
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
                self.state = State::Arguments;
                Opening::Call { length }
            }
            Err(Miss::Unfinished) => Opening::Unfinished,
            Ok(_) | Err(Miss::Other) => self.other(text, sink),
        };
        if opening != Opening::Unfinished {
            let state = std::mem::take(&mut self.state);
            *self = Llama3Json {
                state,
                ..Llama3Json::default()
            };
        }
        opening
    }

    fn step(&mut self, held: &mut String, sink: &mut Sink<'_>, _: End) -> Step {
        match self.state {
            State::Arguments => {
                let done = self.arguments.read(held, sink);
                self.goes_on(done, State::Rest)
            }
            State::Rest => {
                let done = self.rest.read(held);
                self.goes_on(done, State::Behind)
            }
            State::Behind => self.behind(held),
            State::Separated => {
                held.drain(..held.len() - held.trim_start().len());
                match held.is_empty() {
                    true => Step::Wait,
                    false => Step::Closed,
                }
            }
        }
    }
}

impl Llama3Json {
    fn goes_on(&mut self, done: bool, state: State) -> Step {
        if !done {
            return Step::Wait;
        }
        self.state = state;
        Step::Again
    }

    /// Reads what does not begin like a call: it may be one in another order.
    fn other(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match begins(text, sink) {
            Opening::Call { .. } if sink.forgives() => self.whole(text, sink),
            Opening::Call { .. } => Opening::Object,
            other => other,
        }
    }

    /// Reads an object once it is complete.
    fn whole(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        let scan = self.whole.get_or_insert_with(Scan::inside);
        let Some(end) = scan.push(&text[self.scanned..]) else {
            self.scanned = text.len();
            return Opening::Unfinished;
        };
        let length = self.scanned + end;
        let call = call_in(&format!("{{{}", &text[..length]));
        let Some((name, arguments)) = call.filter(|(name, _)| sink.knows(name)) else {
            return Opening::Object;
        };
        sink.announce(&name);
        sink.arguments(arguments);
        sink.complete();
        self.state = State::Behind;
        Opening::Call { length }
    }

    /// Drops what separates a call from the next.
    fn behind(&mut self, held: &mut String) -> Step {
        let blank = held.len() - held.trim_start().len();
        if blank > BLANK_BYTES_MAX {
            return Step::Closed;
        }
        match held[blank..].chars().next() {
            Some(';') => {
                held.drain(..=blank);
                self.goes_on(true, State::Separated)
            }
            Some('{') => {
                held.drain(..blank);
                Step::Closed
            }
            Some(_) => Step::Closed,
            None => Step::Wait,
        }
    }
}

/// Looks for a call as a grammar keeps it, behind its brace.
fn formal(text: &str) -> Named<'_> {
    let start = next(text, &NAME[Llama3Json::OPEN.len()..])?;
    let (name, length) = named(&text[start..], "", PARAMETERS)?;
    let end = start + length;
    Ok((name, end + next(&text[end..], "{")? - 1))
}

/// Looks for `"name": "NAME", "parameters":` before an object.
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

/// Kind of an object by its first member: a call of a function that there is, in some order, an
/// object that is none, or no object at all.
fn begins(text: &str, sink: &Sink<'_>) -> Opening {
    let (key, length) = match named(text, "\"", "\"") {
        Ok(found) => found,
        Err(Miss::Unfinished) => return Opening::Unfinished,
        Err(Miss::Other) => return quoted_or_not(text),
    };
    let value = &text[length..];
    match key {
        "name" => match parts(value, &[":"]) {
            Ok(colon) => named_call(&value[colon..], sink),
            found => as_call(found),
        },
        "type" => as_call(parts(value, &KIND[1..3])),
        key if ARGUMENTS.contains(&key) => as_call(parts(value, &[":"])),
        _ => Opening::Object,
    }
}

fn quoted_or_not(text: &str) -> Opening {
    head(text, "\"").map_or_else(Opening::from, |_| Opening::Object)
}

fn named_call(value: &str, sink: &Sink<'_>) -> Opening {
    match named(value, "\"", "\"") {
        Ok((name, length)) if sink.knows(name) => Opening::Call { length },
        Err(Miss::Unfinished) => Opening::Unfinished,
        Ok(_) | Err(Miss::Other) => Opening::Object,
    }
}

fn as_call(found: Result<usize, Miss>) -> Opening {
    match found {
        Ok(length) => Opening::Call { length },
        Err(Miss::Unfinished) => Opening::Unfinished,
        Err(Miss::Other) => Opening::Object,
    }
}

/// The name and the arguments of an object that is a call.
fn call_in(text: &str) -> Option<(String, String)> {
    let mut call: Map<String, Value> = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str()?.to_string();
    let arguments = ARGUMENTS.iter().find_map(|key| call.remove(*key))?;
    let arguments = Value::Object(arguments_of(arguments)?).to_string();
    is_name(&name).then_some((name, arguments))
}

#[cfg(test)]
mod tests;
