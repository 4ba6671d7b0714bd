//! Readers of arguments that a model writes as JSON, which are passed on as they come.

use serde_json::{Map, Value};

use super::{Miss, Sink, head, is_json, is_name, take_front};

/// Scanner of one JSON object or list, which finds its end.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the text is no object or list, or is over, so that the rest is not scanned.
    other: bool,
}

impl Scan {
    /// A scan that begins inside an object.
    pub fn inside() -> Scan {
        Scan {
            depth: 1,
            ..Scan::default()
        }
    }

    /// Whether the text so far ends inside an object or list.
    pub fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Whether the text so far ends inside a string.
    pub fn is_in_string(&self) -> bool {
        self.in_string
    }

    /// Reads more text; returns how many of its bytes belong to the object or list, once that ends.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            if self.other {
                return None;
            }
            if self.take(byte) {
                self.other = true;
                return Some(at + 1);
            }
        }
        None
    }

    /// Takes one byte; returns whether it ends the object or list.
    fn take(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => self.other = self.depth == 0 && !byte.is_ascii_whitespace(),
        }
        false
    }
}

/// The arguments of one call, as the model writes them.
#[derive(Debug, Default)]
pub struct Arguments {
    scan: Scan,
    text: String,
}

impl Arguments {
    /// Passes on the arguments in `pending`; returns whether they are at their end. Arguments that
    /// are no JSON lose their last bracket, so that no client takes them for complete.
    pub fn read(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> bool {
        let end = self.scan.push(pending);
        let mut piece = take_front(pending, end.unwrap_or(pending.len()));
        self.text.push_str(&piece);
        let complete = end.is_some() && is_json(&self.text);
        if end.is_some() && !complete {
            piece.pop();
        }
        sink.arguments(piece);
        if complete {
            sink.complete();
        }
        end.is_some()
    }
}

/// Reader of the members after the arguments, in the call's object.
#[derive(Debug, Default)]
pub struct Rest {
    scan: Option<Scan>,
}

impl Rest {
    /// Drops the members after the arguments from `pending`; returns whether the object has ended,
    /// perhaps without its closing bracket.
    pub fn read(&mut self, pending: &mut String) -> bool {
        if self.scan.is_none() {
            match (head(pending, ","), head(pending, "}")) {
                (Ok(_), _) => {}
                (_, Ok(length)) => {
                    pending.drain(..length);
                    return true;
                }
                found => return found == (Err(Miss::Other), Err(Miss::Other)),
            }
        }
        let end = self.scan.get_or_insert_with(Scan::inside).push(pending);
        pending.drain(..end.unwrap_or(pending.len()));
        end.is_some()
    }
}

/// Members of a call's object that are still to be read.
#[derive(Debug, Default, PartialEq)]
enum Remaining {
    /// The arguments and the members after them.
    #[default]
    Arguments,
    /// The members after the arguments.
    Members,
    Nothing,
}

/// Reader of an object that is a call: passes on arguments as they come, or reads all at once.
#[derive(Debug, Default)]
pub struct ObjectCall {
    remaining: Remaining,
    arguments: Arguments,
    rest: Rest,
    /// Scanner of an object that is read at once, and number of bytes scanned.
    whole: Option<(Scan, usize)>,
}

impl ObjectCall {
    /// Passes on the arguments in `pending` and drops the members after them; returns whether the
    /// object is at its end.
    pub fn read(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> bool {
        if self.remaining == Remaining::Arguments && self.arguments.read(pending, sink) {
            self.remaining = Remaining::Members;
        }
        if self.remaining == Remaining::Members && self.rest.read(pending) {
            self.remaining = Remaining::Nothing;
        }
        self.remaining == Remaining::Nothing
    }

    /// Looks for the end of an object that is read at once. `text` is the object so far: it begins
    /// with the `text` given before. The first scan begins in the state `start`.
    pub fn end(&mut self, start: fn() -> Scan, text: &str) -> Option<usize> {
        let (mut scan, scanned) = self.whole.take().unwrap_or((start(), 0));
        let end = scan.push(&text[scanned..]);
        if end.is_none() {
            self.whole = Some((scan, text.len()));
        }
        end.map(|end| scanned + end)
    }

    /// Passes on a call that was read at once.
    pub fn emit(&mut self, name: &str, arguments: Map<String, Value>, sink: &mut Sink<'_>) {
        sink.announce(name);
        sink.arguments(Value::Object(arguments).to_string());
        sink.complete();
        self.remaining = Remaining::Nothing;
    }
}

/// Bytes up to the end of `parts`, which must follow each other, with blanks before each.
pub fn parts(text: &str, parts: &[&str]) -> Result<usize, Miss> {
    let mut at = 0;
    for remaining in parts {
        at += head(&text[at..], remaining)?;
    }
    Ok(at)
}

/// The name and the arguments of an object that is a call: `take` removes the arguments, an object
/// or the text of one, from the call; null counts as empty.
pub fn call_in(
    text: &str,
    take: impl FnOnce(&mut Map<String, Value>) -> Option<Value>,
) -> Option<(String, Map<String, Value>)> {
    let mut call: Map<String, Value> = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str()?.to_string();
    let arguments = match take(&mut call)? {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments,
        Value::String(text) => serde_json::from_str(&text).ok()?,
        _ => return None,
    };
    is_name(&name).then_some((name, arguments))
}
