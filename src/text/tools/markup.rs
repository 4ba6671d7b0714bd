//! Calls whose arguments stand between tags, as text or as JSON.
//!
//! Nothing in a value is escaped, so it may hold the very tags that end it. A closing tag counts
//! where the call goes on behind it, with another argument or with its end; and not inside a string
//! of a value that is JSON. A value may even hold the whole end of a call, as files about calls do:
//! of several ends the last one before another call or the end of the reply counts. What may be
//! such a tag is held back until that is known: behind the end of a call one token shows it, unless
//! the model writes on.
//!
//! What stays ambiguous: text in a value that looks like the end of a call and the beginning of
//! another, or like the end of this value and the beginning of another argument.

use super::json::Scan;
use super::schemas::Types;
use super::{
    Head, NAME_BYTES_MAX, Opening, Sink, Step, Syntax, close, drop_newlines, escaped, head,
    name_at, quoted, take_front,
};
use crate::text::held_prefix;

/// The tags of one syntax.
pub trait Tags: Default + std::fmt::Debug + Send + 'static {
    /// Around all.
    const CALL: (&'static str, &'static str);
    /// Before the name of a function, behind it, and behind its arguments.
    const FUNCTION: (&'static str, &'static str, &'static str);
    /// Before the name of an argument, behind it, and behind the value.
    const ARGUMENT: (&'static str, &'static str, &'static str);
    /// What opens a value behind all that.
    const VALUE_OPEN: &'static str = "";
    /// Whether a value stands on lines of its own.
    const OWN_LINES: bool = false;
    /// Whether a function may follow another between the tags around all.
    const SEVERAL: bool = false;

    /// Looks for a function's name at the head of a text.
    fn function(text: &str) -> Named<'_> {
        named(text, Self::FUNCTION.0, Self::FUNCTION.1)
    }
}

/// What stands where a tag with a name is expected.
#[derive(Debug, PartialEq)]
pub enum Named<'t> {
    Found { name: &'t str, length: usize },
    Unfinished,
    Other,
}

/// Looks for `before`, a name and `behind`.
pub fn named<'t>(text: &'t str, before: &str, behind: &str) -> Named<'t> {
    let start = match head(text, before) {
        Head::Found(start) => start,
        Head::Unfinished => return Named::Unfinished,
        Head::Other => return Named::Other,
    };
    let Some(name) = name_at(&text[start..]) else {
        return Named::Unfinished;
    };
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Named::Other;
    }
    let rest = &text[start + name.len()..];
    if rest.starts_with(behind) {
        let length = start + name.len() + behind.len();
        Named::Found { name, length }
    } else if behind.starts_with(rest) {
        Named::Unfinished
    } else {
        Named::Other
    }
}

/// Looks for the tag of an argument, up to its value.
fn argument<T: Tags>(text: &str) -> Named<'_> {
    let found = named(text, T::ARGUMENT.0, T::ARGUMENT.1);
    let Named::Found { name, length } = found else {
        return found;
    };
    if T::VALUE_OPEN.is_empty() {
        return found;
    }
    match head(&text[length..], T::VALUE_OPEN) {
        Head::Found(more) => Named::Found {
            name,
            length: length + more,
        },
        Head::Unfinished => Named::Unfinished,
        Head::Other => Named::Other,
    }
}

/// What stands behind a closing tag.
#[derive(Debug, PartialEq)]
enum Behind {
    /// The call goes on, with another argument or function.
    More,
    /// The end of the call, so many bytes long.
    End(usize),
    /// It may be one of them once more text is.
    Unfinished,
    Other,
}

/// Looks behind a closing tag, with which a value may end.
fn behind<T: Tags>(text: &str) -> Behind {
    match argument::<T>(text) {
        Named::Found { .. } => return Behind::More,
        Named::Unfinished => return Behind::Unfinished,
        Named::Other => {}
    }
    let length = match head(text, T::FUNCTION.2) {
        Head::Found(length) => length,
        Head::Unfinished => return Behind::Unfinished,
        Head::Other => return Behind::Other,
    };
    let rest = &text[length..];
    let next = if T::SEVERAL { T::FUNCTION.0 } else { T::CALL.0 };
    // Blanks that are still to come must not undo an end that is told by nothing more.
    let call = match T::CALL.1 {
        "" => Head::Found(0),
        tag => head(rest, tag),
    };
    match (call, head(rest, next)) {
        (Head::Found(end), _) => Behind::End(length + end),
        (_, Head::Found(_)) => Behind::More,
        (Head::Unfinished, _) | (_, Head::Unfinished) => Behind::Unfinished,
        (Head::Other, Head::Other) => Behind::Other,
    }
}

/// Whether the end of a call is the one that counts.
#[derive(Debug, PartialEq)]
enum Last {
    Yes,
    /// Another closing tag stands at this place: what looked like the end is part of the value.
    No(usize),
    /// Known once there is more text; nothing stands before this place.
    Unknown(usize),
}

/// Looks from byte `from` of a text on, somewhere behind the end of a call, for another end before
/// the next call begins. `end`: there will be no more text.
fn is_last<T: Tags>(text: &str, mut from: usize, end: bool) -> Last {
    // All tags begin so.
    while let Some(found) = text[from..].find('<') {
        let at = from + found;
        let rest = &text[at..];
        let (open, close) = (
            rest.strip_prefix(T::CALL.0),
            rest.strip_prefix(T::ARGUMENT.2),
        );
        let cut = T::CALL.0.starts_with(rest) || T::ARGUMENT.2.starts_with(rest);
        let unfinished = match (open.map(T::function), close.map(behind::<T>)) {
            (Some(Named::Found { .. }), _) => return Last::Yes,
            (_, Some(Behind::More | Behind::End(_))) => return Last::No(at),
            // Of a reply that was cut short the value goes on to the last tag there is.
            (_, Some(Behind::Unfinished)) if end => return Last::No(at),
            (Some(Named::Unfinished), _) | (_, Some(Behind::Unfinished)) => true,
            (Some(Named::Other), _) | (_, Some(Behind::Other)) => false,
            (None, None) => cut,
        };
        if unfinished && !end {
            return Last::Unknown(at);
        }
        from = at + 1;
    }
    match end {
        true => Last::Yes,
        false => Last::Unknown(text.len()),
    }
}

#[derive(Debug, Default)]
enum State {
    /// Between the arguments of a call.
    #[default]
    Arguments,
    /// In the value of an argument.
    Value(Argument),
    /// Behind a function.
    Closing,
}

#[derive(Debug)]
struct Argument {
    types: Types,
    /// Said before in this call: its value is dropped.
    repeated: bool,
    /// The line break behind the tag has been seen to.
    started: bool,
    /// The value is being streamed as a string.
    streaming: bool,
    /// The value so far, while it is not streamed.
    value: String,
    /// Behind an end of the call that is held: where the search for another one goes on.
    searched: usize,
    /// Follows a value that is JSON.
    scan: Option<Scan>,
}

/// Reads calls between tags.
#[derive(Debug, Default)]
pub struct Markup<T> {
    tags: std::marker::PhantomData<T>,
    state: State,
    function: String,
    /// Names of the arguments so far.
    arguments: Vec<String>,
    /// A value was not the JSON that it should be: tags count wherever they stand.
    plain: bool,
}

impl<T: Tags> Syntax for Markup<T> {
    const OPEN: &'static str = T::CALL.0;
    const MARKS: &'static [&'static str] = &[T::CALL.0, T::CALL.1];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match T::function(text) {
            Named::Found { name, length } => {
                self.begin(name, sink);
                Opening::Call { length }
            }
            Named::Unfinished => Opening::Unfinished,
            Named::Other => Opening::Other,
        }
    }

    fn step(&mut self, held: &mut String, sink: &mut Sink<'_>, end: bool) -> Step {
        match std::mem::take(&mut self.state) {
            State::Arguments => self.between(held, sink),
            State::Value(argument) => self.value(argument, held, sink, end),
            State::Closing => self.closing(held, sink),
        }
    }
}

impl<T: Tags> Markup<T> {
    fn begin(&mut self, name: &str, sink: &mut Sink<'_>) {
        sink.announce(name);
        self.state = State::Arguments;
        self.function = name.to_string();
        self.arguments.clear();
    }

    /// Reads the next argument's tag or the end of the function.
    fn between(&mut self, held: &mut String, sink: &mut Sink<'_>) -> Step {
        let blank = held.len() - held.trim_start().len();
        held.drain(..blank);
        if held.starts_with(T::FUNCTION.2) {
            held.drain(..T::FUNCTION.2.len());
            let end = if self.arguments.is_empty() { "{}" } else { "}" };
            sink.arguments(end.to_string());
            sink.complete();
            self.state = State::Closing;
            return Step::Again;
        }
        match argument::<T>(held) {
            Named::Found { name, length } => {
                let argument = self.open_argument(name.to_string(), sink);
                held.drain(..length);
                self.state = State::Value(argument);
                Step::Again
            }
            Named::Other if !T::FUNCTION.2.starts_with(held.as_str()) => Step::Broken,
            Named::Unfinished | Named::Other => Step::Wait,
        }
    }

    fn open_argument(&mut self, name: String, sink: &mut Sink<'_>) -> Argument {
        let types = sink.types(&self.function, &name).unwrap_or(Types::TEXT);
        let repeated = self.arguments.contains(&name);
        if !repeated {
            let opening = if self.arguments.is_empty() { '{' } else { ',' };
            sink.arguments(format!("{opening}{}:", quoted(&name)));
            self.arguments.push(name);
        }
        Argument {
            types,
            repeated,
            started: !T::OWN_LINES,
            streaming: false,
            value: String::new(),
            searched: 0,
            scan: (!types.is_text() && !self.plain).then(Scan::default),
        }
    }

    /// Passes a value on, or gathers it, up to its closing tag.
    fn value(
        &mut self,
        mut argument: Argument,
        held: &mut String,
        sink: &mut Sink<'_>,
        end: bool,
    ) -> Step {
        if !argument.started && !held.is_empty() {
            argument.started = true;
            if held.starts_with('\n') {
                held.remove(0);
            }
        }
        let tag = T::ARGUMENT.2;
        let mut scan = argument.scan.clone();
        let (mut from, mut scanned) = (0, 0);
        let free = loop {
            let Some(found) = held[from..].find(tag) else {
                break held.len() - held_prefix(&held[from..], tag);
            };
            let at = from + found;
            let after = at + tag.len();
            if let Some(scan) = &mut scan {
                scan.push(&held[scanned..at]);
                scanned = at;
                if scan.is_in_string() {
                    from = after;
                    continue;
                }
            }
            let length = match behind::<T>(&held[after..]) {
                Behind::Other => {
                    from = after;
                    continue;
                }
                Behind::Unfinished if !end => break at,
                Behind::End(length) => Some(length),
                Behind::More | Behind::Unfinished => None,
            };
            // An object without an end is no JSON: its tags count wherever they stand.
            if scan.as_ref().is_some_and(Scan::is_open) {
                return self.read_again(argument, held);
            }
            // JSON is complete here; its strings, where such tags may stand, were passed over.
            if let Some(length) = length.filter(|_| scan.is_none()) {
                let searched = argument.searched.max(after + length);
                match is_last::<T>(held, searched, end) {
                    Last::Yes => {}
                    Last::No(next) => {
                        argument.searched = 0;
                        from = next;
                        continue;
                    }
                    Last::Unknown(searched) => {
                        argument.searched = searched;
                        break at;
                    }
                }
            }
            let piece = held[..without_line_break::<T>(&held[..at])].to_string();
            held.drain(..after);
            argument.close(piece, sink);
            self.state = State::Arguments;
            return Step::Again;
        };
        if end && argument.ends_in_string(held) {
            return self.read_again(argument, held);
        }
        let free = without_line_break::<T>(&held[..free]);
        argument.searched = argument.searched.saturating_sub(free);
        argument.extend(take_front(held, free), sink);
        self.state = State::Value(argument);
        Step::Wait
    }

    /// Reads a value from its beginning as what is not JSON.
    fn read_again(&mut self, mut argument: Argument, held: &mut String) -> Step {
        self.plain = true;
        argument.scan = None;
        argument.searched = 0;
        held.insert_str(0, &std::mem::take(&mut argument.value));
        self.state = State::Value(argument);
        Step::Again
    }

    /// Drops the end of a call, or begins its next function; a missing end is forgiven.
    fn closing(&mut self, held: &mut String, sink: &mut Sink<'_>) -> Step {
        if T::SEVERAL {
            // However many come, and whether together or one by one.
            drop_newlines(held);
            match T::function(held) {
                Named::Found { name, length } => {
                    self.begin(name, sink);
                    held.drain(..length);
                    return Step::Again;
                }
                Named::Unfinished => {
                    self.state = State::Closing;
                    return Step::Wait;
                }
                Named::Other => {}
            }
        }
        let step = close(held, T::CALL.1);
        if step == Step::Wait {
            self.state = State::Closing;
        }
        step
    }
}

/// The end of a value, before the line break that belongs to the tag behind it.
fn without_line_break<T: Tags>(text: &str) -> usize {
    text.len() - usize::from(T::OWN_LINES && text.ends_with('\n'))
}

impl Argument {
    /// Whether the value, with `more` behind it, ends inside a string of its JSON.
    fn ends_in_string(&self, more: &str) -> bool {
        self.scan.clone().is_some_and(|mut scan| {
            scan.push(more);
            scan.is_in_string()
        })
    }

    fn extend(&mut self, piece: String, sink: &mut Sink<'_>) {
        if let Some(scan) = &mut self.scan {
            scan.push(&piece);
        }
        if self.streaming && !self.repeated {
            sink.arguments(escaped(&piece));
            return;
        }
        if self.repeated && self.scan.is_none() {
            return;
        }
        self.value.push_str(&piece);
        if !self.value.is_empty() && self.types.surely_string(&self.value) && !self.repeated {
            self.streaming = true;
            let start = std::mem::take(&mut self.value);
            sink.arguments(format!("\"{}", escaped(&start)));
        }
    }

    fn close(mut self, piece: String, sink: &mut Sink<'_>) {
        if self.repeated {
            return;
        }
        if self.streaming {
            sink.arguments(format!("{}\"", escaped(&piece)));
            return;
        }
        self.value.push_str(&piece);
        sink.arguments(self.types.to_json(&self.value));
    }
}
