//! Calls whose arguments stand between tags, as text or as JSON.
//!
//! Values are not escaped, so they may contain the tags that end them. A closing tag counts if the
//! call continues after it, with another argument or with its end, and never inside a string of a
//! JSON value. A value may contain the whole end of a call, as files about calls do: of several
//! ends the last one before another call or the end of the reply counts. A possible tag is held
//! back until that is decided: after the end of a call one token decides it, unless the model
//! writes on.
//!
//! A lenient reader forgives missing closing tags. Unless it contains the opening of a function, a
//! value then also ends at the end of the function or of the call, if no proper end follows; and at
//! the tag, on a line of its own, of an argument that the function has and the call has not yet,
//! with a value of the schema's type. The end of a function may be missing before that of the call,
//! before another function, and at the end of the reply.
//!
//! Two texts in a value stay ambiguous: one that looks like the end of a call and the beginning of
//! another, and one that looks like the end of the value and the beginning of another argument.

use super::json::Scan;
use super::schemas::{ToolSchemas, Types};
use super::{
    End, Miss, NAME_BYTES_MAX, Opening, Sink, Step, Syntax, close, drop_newlines, either, escaped,
    head, name_at, next, quoted, take_front,
};

/// Bytes of the longest name of an argument that no schema has.
pub const UNKNOWN_NAME_BYTES_MAX: usize = 512;

/// Tags of one form of calls.
pub trait Tags: Default + std::fmt::Debug + Send + 'static {
    /// Opening and closing tag of a call.
    const CALL: (&'static str, &'static str);
    /// Texts before the name of a function, after it, and after its arguments.
    const FUNCTION: (&'static str, &'static str, &'static str);
    /// Texts before the name of an argument, after it, and after its value.
    const ARGUMENT: (&'static str, &'static str, &'static str);
    /// Text after the name of an argument that opens the value.
    const VALUE_OPEN: &'static str = "";
    /// Whether a value is on lines of its own.
    const OWN_LINES: bool = false;
    /// Whether a call may have several functions.
    const SEVERAL: bool = false;

    /// Looks for a function's name at the head of a text.
    fn function(text: &str) -> Named<'_> {
        named(text, Self::FUNCTION.0, Self::FUNCTION.1)
    }
}

/// A name, and the number of bytes up to the end of the text that must follow it.
pub type Named<'t> = Result<(&'t str, usize), Miss>;

/// Looks for `before`, a function's name and `after` at the head of a text.
pub fn named<'t>(text: &'t str, before: &str, after: &str) -> Named<'t> {
    let start = head(text, before)?;
    let name = name_at(&text[start..]).ok_or(Miss::Unfinished)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Miss::Other);
    }
    let length = start + name.len();
    Ok((name, length + next(&text[length..], after)?))
}

/// Kind of text after a closing tag.
#[derive(Debug, PartialEq)]
enum Following {
    /// The call goes on, with another argument or function.
    More,
    /// The end of the call, with its number of bytes.
    End(usize),
    /// Possible start of another argument, a function or the call's end.
    Unfinished,
    Other,
}

impl Following {
    /// Kind of a text, from searches for the end of the call and for more of the call.
    fn of<T>(end: Result<usize, Miss>, more: Result<T, Miss>) -> Following {
        match (end, more) {
            (Ok(end), _) => Following::End(end),
            (_, Ok(_)) => Following::More,
            (Err(Miss::Other), Err(Miss::Other)) => Following::Other,
            _ => Following::Unfinished,
        }
    }
}

/// A tag inside a value.
#[derive(Debug, PartialEq)]
enum Tag {
    /// The tag closes the value, depending on the text after it.
    Closing(Following),
    /// The tag shows that the value's closing tag is missing.
    Missing(Following),
    /// The tag opens a function inside the value.
    Opens,
    /// Possible start of a tag.
    Unfinished,
    Other,
}

/// Reader of the tags in calls of one function.
struct Reader<'r, T> {
    tags: std::marker::PhantomData<T>,
    schemas: &'r ToolSchemas,
    function: &'r str,
    /// Whether missing tags are forgiven.
    lenient: bool,
}

impl<T: Tags> Reader<'_, T> {
    /// Text that opens a function, or the call around it.
    const OPENS: &'static str = match T::FUNCTION.0.is_empty() {
        true => T::CALL.0,
        false => T::FUNCTION.0,
    };

    /// Looks for the tag of an argument, up to its value.
    fn argument<'t>(&self, text: &'t str) -> Named<'t> {
        let start = head(text, T::ARGUMENT.0)?;
        let (name, length) = self.name(&text[start..])?;
        let end = start + length;
        match T::VALUE_OPEN {
            "" => Ok((name, end)),
            tag => Ok((name, end + head(&text[end..], tag)?)),
        }
    }

    /// Looks for the name of an argument and the text that must follow the name. A known name may
    /// contain the text that ends other names.
    fn name<'t>(&self, text: &'t str) -> Named<'t> {
        for known in self.schemas.arguments_of(self.function) {
            let found = next(text, known).and_then(|length| {
                let (name, rest) = text.split_at(length);
                Ok((name, length + next(rest, T::ARGUMENT.1)?))
            });
            if found != Err(Miss::Other) {
                return found;
            }
        }
        let found = text.find(T::ARGUMENT.1);
        let name = &text[..found.unwrap_or(text.len())];
        let odd = name.len() > UNKNOWN_NAME_BYTES_MAX || name.contains(['\n', '\r', '<']);
        match found {
            Some(0) => Err(Miss::Other),
            Some(length) if !odd => Ok((name, length + T::ARGUMENT.1.len())),
            // The text that closes a name may itself begin with `<`.
            None if !odd || T::ARGUMENT.1.starts_with('<') => Err(Miss::Unfinished),
            _ => Err(Miss::Other),
        }
    }

    /// Looks for a function's name and, after it, an argument or an end, which prove a call.
    fn function<'t>(&self, text: &'t str) -> Named<'t> {
        let found = T::function(text)?;
        let rest = &text[found.1..];
        let end = || either(head(rest, T::FUNCTION.2), || self.call_end(rest));
        either(head(rest, T::ARGUMENT.0), end)?;
        Ok(found)
    }

    /// Looks for the end of a call in which the end of the function is missing.
    fn call_end(&self, text: &str) -> Result<usize, Miss> {
        match T::CALL.1 {
            tag if self.lenient && !tag.is_empty() => head(text, tag),
            _ => Err(Miss::Other),
        }
    }

    /// Looks for another function in the same call, even if the end of the last one is missing.
    fn other_function<'t>(&self, text: &'t str) -> Named<'t> {
        if T::FUNCTION.0.is_empty() || !(T::SEVERAL || self.lenient) {
            return Err(Miss::Other);
        }
        self.function(text)
    }

    /// Looks for the start of another call.
    fn other_call<'t>(&self, text: &'t str) -> Named<'t> {
        let length = head(text, T::CALL.0)?;
        T::function(&text[length..])
    }

    /// Kind of the text after a tag that may close a value.
    fn following(&self, text: &str) -> Following {
        match self.argument(text) {
            Ok(_) => Following::More,
            Err(Miss::Unfinished) => Following::Unfinished,
            Err(Miss::Other) => self.following_arguments(text),
        }
    }

    /// Kind of the text after all arguments, where the function ends.
    fn following_arguments(&self, text: &str) -> Following {
        let length = match head(text, T::FUNCTION.2) {
            Ok(length) => length,
            Err(Miss::Unfinished) => return Following::Unfinished,
            Err(Miss::Other) if self.lenient => return self.following_unended(text),
            Err(Miss::Other) => return Following::Other,
        };
        let rest = &text[length..];
        // An end without a closing tag of the call counts at once, whatever blanks follow.
        let call = match T::CALL.1 {
            "" => Ok(0),
            tag => head(rest, tag),
        };
        let tag = if T::SEVERAL { T::FUNCTION.0 } else { T::CALL.0 };
        let other = || self.other_function(rest).map(|(_, length)| length);
        let next = either(head(rest, tag), other);
        Following::of(call.map(|end| length + end), next)
    }

    /// [`Reader::following_arguments`] if the end of the function is missing.
    fn following_unended(&self, text: &str) -> Following {
        let next = either(self.other_function(text), || self.other_call(text));
        Following::of(self.call_end(text), next)
    }

    /// Kind of the tag at the start of `rest`, inside the value of `argument`; `said`: names of
    /// earlier arguments; `at_line`: whether the tag begins a line.
    fn tag(&self, rest: &str, argument: &Argument, said: &[String], at_line: bool) -> Tag {
        if let Some(rest) = rest.strip_prefix(T::ARGUMENT.2) {
            return Tag::Closing(self.following(rest));
        }
        let lenient = self.lenient && !argument.opened;
        // Without a mark before names, any word might seem to begin another call after this end.
        let marked = !T::FUNCTION.0.is_empty();
        if lenient && marked && rest.starts_with(T::FUNCTION.2) {
            return Tag::Missing(self.following_arguments(rest));
        }
        if lenient && rest.starts_with(Self::OPENS) {
            return Tag::Opens;
        }
        if lenient && let Ok(length) = self.call_end(rest) {
            return Tag::Missing(Following::End(length));
        }
        if lenient && at_line && rest.starts_with(T::ARGUMENT.0) {
            return self.next_argument(rest, said);
        }
        let tags = [
            T::ARGUMENT.2,
            T::FUNCTION.2,
            Self::OPENS,
            T::CALL.1,
            T::ARGUMENT.0,
        ];
        let may_become = if lenient { &tags[..] } else { &tags[..1] };
        match may_become.iter().any(|tag| tag.starts_with(rest)) {
            true => Tag::Unfinished,
            false => Tag::Other,
        }
    }

    /// Looks for an argument that the function has and the call does not have yet, with a value of
    /// its type.
    fn next_argument(&self, rest: &str, said: &[String]) -> Tag {
        let (name, length) = match self.argument(rest) {
            Ok(found) => found,
            Err(Miss::Unfinished) => return Tag::Unfinished,
            Err(Miss::Other) => return Tag::Other,
        };
        let types = self.schemas.types(self.function, name);
        let Some(types) = types.filter(|_| said.iter().all(|said| said != name)) else {
            return Tag::Other;
        };
        let value = &rest[length..];
        match value.chars().next() {
            None => return Tag::Unfinished,
            Some(first) if T::OWN_LINES && first != '\n' => return Tag::Other,
            Some(_) if types.is_text() => return Tag::Missing(Following::More),
            Some(_) => {}
        }
        let ends = [T::ARGUMENT.2, T::FUNCTION.2, T::ARGUMENT.0];
        let end = ends.iter().filter_map(|tag| value.find(tag)).min();
        match end.map(|end| types.to_json(&value[..end])) {
            None => Tag::Unfinished,
            Some(json) if json.starts_with('"') => Tag::Other,
            Some(_) => Tag::Missing(Following::More),
        }
    }

    /// Searches a text from byte `from`, after the end of a call, for another end before the next
    /// call.
    fn is_last(&self, text: &str, mut from: usize, end: End) -> Last {
        // Only an end without missing tags counts as another end.
        let whole = Reader {
            lenient: false,
            ..*self
        };
        // All tags begin with `<`.
        while let Some(found) = text[from..].find('<') {
            let at = from + found;
            let rest = &text[at..];
            let open = rest.strip_prefix(T::CALL.0);
            let close = rest.strip_prefix(T::ARGUMENT.2);
            let cut = T::CALL.0.starts_with(rest) || T::ARGUMENT.2.starts_with(rest);
            let unfinished = match (
                open.map(T::function),
                close.map(|rest| whole.following(rest)),
            ) {
                (Some(Ok(_)), _) => return Last::Yes,
                (_, Some(Following::More | Following::End(_))) => return Last::No(at),
                // In a reply that was cut off, a value goes on to the last tag.
                (_, Some(Following::Unfinished)) if end.is_end() => return Last::No(at),
                (Some(Err(Miss::Unfinished)), _) | (_, Some(Following::Unfinished)) => true,
                (Some(Err(Miss::Other)), _) | (_, Some(Following::Other)) => false,
                (None, None) => cut,
            };
            if unfinished && !end.is_end() {
                return Last::Unknown(at);
            }
            from = at + 1;
        }
        match end.is_end() {
            true => Last::Yes,
            false => Last::Unknown(text.len()),
        }
    }
}

/// Whether an end of a call is the last one, which counts.
#[derive(Debug, PartialEq)]
enum Last {
    Yes,
    /// Another closing tag follows at this byte, so the end is part of the value.
    No(usize),
    /// Undecided until more text comes; the search goes on at this byte.
    Unknown(usize),
}

#[derive(Debug, Default)]
enum CallState {
    /// The text read so far ends between arguments.
    #[default]
    Arguments,
    /// The text read so far ends inside the value of an argument.
    Value(Argument),
    /// The text read so far ends after the end of a function.
    Closing,
}

#[derive(Debug)]
struct Argument {
    types: Types,
    /// Whether the call has this argument already, so that the value is dropped.
    repeated: bool,
    /// Whether the line break after the opening tag has been handled.
    started: bool,
    /// Whether the value is streamed as a string.
    streaming: bool,
    /// The value so far, while it is not streamed.
    value: String,
    /// Whether the next text begins a line of the value.
    at_line: bool,
    /// Whether the value contains the opening of a function.
    opened: bool,
    /// Byte at which the search for another end of the call goes on, after a possible end.
    searched: usize,
    /// Scanner of a value that is JSON; None for other values.
    scan: Option<Scan>,
}

/// Outcome of a search for the end of a value.
#[derive(Debug, PartialEq)]
enum Found {
    /// The value's end, and the length of its closing tag.
    End { at: usize, length: usize },
    /// No end so far; this many bytes contain no possible tag.
    Free(usize),
    /// The value is not the JSON that it should be.
    NotJson,
}

/// Reader of calls whose arguments are between tags.
#[derive(Debug, Default)]
pub struct Markup<T> {
    tags: std::marker::PhantomData<T>,
    state: CallState,
    function: String,
    /// Names of the call's arguments so far.
    arguments: Vec<String>,
    /// Whether a value was not the JSON that it should be, so that tags count even in its strings.
    plain: bool,
}

impl<T: Tags> Syntax for Markup<T> {
    const OPEN: &'static str = T::CALL.0;
    const BARE: &'static str = T::FUNCTION.0;
    const END: &'static str = match T::CALL.1.is_empty() {
        true => T::FUNCTION.2,
        false => T::CALL.1,
    };
    const MARKS: &'static [&'static str] = &[T::CALL.0, T::CALL.1];

    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        match reader::<T>("", sink).function(text) {
            Ok((name, length)) if sink.takes(name) => {
                self.begin(name, sink);
                Opening::Call { length }
            }
            found => found.err().unwrap_or(Miss::Other).into(),
        }
    }

    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step {
        match std::mem::take(&mut self.state) {
            CallState::Arguments => self.between(pending, sink, end),
            CallState::Value(argument) => self.value(argument, pending, sink, end),
            CallState::Closing => self.closing(pending, sink),
        }
    }
}

/// Reader of the tags in calls of `function`.
fn reader<'s, T>(function: &'s str, sink: &Sink<'s>) -> Reader<'s, T> {
    Reader {
        tags: std::marker::PhantomData,
        schemas: sink.schemas,
        function,
        lenient: sink.forgives(),
    }
}

impl<T: Tags> Markup<T> {
    fn begin(&mut self, name: &str, sink: &mut Sink<'_>) {
        sink.announce(name);
        self.state = CallState::Arguments;
        self.function = name.to_string();
        self.arguments.clear();
    }

    /// Reads the next argument's opening tag or the end of the function.
    fn between(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step {
        let blank = pending.len() - pending.trim_start().len();
        pending.drain(..blank);
        let reader = reader::<T>(&self.function, sink);
        if pending.starts_with(T::FUNCTION.2) {
            pending.drain(..T::FUNCTION.2.len());
            return self.complete(sink);
        }
        match reader.argument(pending) {
            Ok((name, length)) => {
                let argument = self.open_argument(name.to_string(), sink);
                pending.drain(..length);
                self.state = CallState::Value(argument);
                return Step::Again;
            }
            Err(Miss::Unfinished) if !(pending.is_empty() && end == End::Itself) => {
                return Step::Wait;
            }
            Err(_) => {}
        }
        // Whether the model ended its reply after an argument.
        let unended = pending.is_empty() && !self.arguments.is_empty();
        let unknown = match T::FUNCTION.2.starts_with(pending.as_str()) {
            true => Step::Wait,
            false => Step::Broken,
        };
        if !reader.lenient {
            return unknown;
        }
        match reader.following_unended(pending) {
            Following::More | Following::End(_) => self.complete(sink),
            _ if unended && end == End::Itself => self.complete(sink),
            Following::Other => unknown,
            Following::Unfinished => Step::Wait,
        }
    }

    /// Ends the arguments as complete JSON.
    fn complete(&mut self, sink: &mut Sink<'_>) -> Step {
        let end = if self.arguments.is_empty() { "{}" } else { "}" };
        sink.arguments(end.to_string());
        sink.complete();
        self.state = CallState::Closing;
        Step::Again
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
            at_line: true,
            opened: false,
            searched: 0,
            scan: (!types.is_text() && !self.plain).then(Scan::default),
        }
    }

    /// Passes on a value, or gathers it, up to its closing tag.
    fn value(
        &mut self,
        mut argument: Argument,
        pending: &mut String,
        sink: &mut Sink<'_>,
        end: End,
    ) -> Step {
        if !argument.started && !pending.is_empty() {
            argument.started = true;
            if pending.starts_with('\n') {
                pending.remove(0);
            }
        }
        let reader = reader::<T>(&self.function, sink);
        match self.look(&mut argument, pending, &reader, end) {
            Found::NotJson => self.read_again(argument, pending),
            Found::End { at, length } => {
                let piece = pending[..without_line_break::<T>(&pending[..at])].to_string();
                pending.drain(..at + length);
                argument.close(piece, sink);
                self.state = CallState::Arguments;
                Step::Again
            }
            Found::Free(_) if end.is_end() && argument.ends_in_string(pending) => {
                self.read_again(argument, pending)
            }
            Found::Free(free) => {
                let free = without_line_break::<T>(&pending[..free]);
                argument.searched = argument.searched.saturating_sub(free);
                argument.extend(take_front(pending, free), sink);
                self.state = CallState::Value(argument);
                Step::Wait
            }
        }
    }

    /// Looks for the end of a value in `pending`.
    fn look(
        &self,
        argument: &mut Argument,
        pending: &str,
        reader: &Reader<'_, T>,
        end: End,
    ) -> Found {
        let mut scan = argument.scan.clone();
        // Up to `inside` all text is surely part of the value.
        let (mut from, mut scanned, mut inside) = (0, 0, 0);
        // Byte of a possible tag at the end of the reply, which may also be part of the value.
        let mut unsure = None;
        while let Some(found) = pending[from..].find('<') {
            let at = from + found;
            from = at + 1;
            if let Some(scan) = &mut scan {
                scan.push(&pending[scanned..at]);
                scanned = at;
                if scan.is_in_string() {
                    continue;
                }
            }
            let open = scan.as_ref().is_some_and(Scan::is_open);
            let at_line = match at {
                0 => argument.at_line,
                _ => pending[..at].ends_with('\n'),
            };
            let tag = reader.tag(&pending[at..], argument, &self.arguments, at_line);
            let is_unsure = match tag {
                Tag::Unfinished => end.is_end(),
                Tag::Missing(Following::Unfinished) => end == End::Cut,
                _ => false,
            };
            if is_unsure {
                unsure.get_or_insert(at);
                continue;
            }
            let (following, length) = match tag {
                Tag::Unfinished => return Found::Free(at),
                Tag::Closing(following) => (following, T::ARGUMENT.2.len()),
                Tag::Missing(following) if at >= inside && !open => (following, 0),
                Tag::Opens => {
                    argument.opened = true;
                    continue;
                }
                Tag::Missing(_) | Tag::Other => continue,
            };
            let call_end = match following {
                Following::Other => continue,
                Following::Unfinished if !end.is_end() => return Found::Free(at),
                Following::End(more) => Some(at + length + more),
                Following::More | Following::Unfinished => None,
            };
            // An object without an end is no JSON, so tags count even in its strings.
            if open {
                return Found::NotJson;
            }
            // The argument's JSON is complete here, so this end tag is not part of a JSON string.
            if let Some(call_end) = call_end.filter(|_| scan.is_none()) {
                match reader.is_last(pending, argument.searched.max(call_end), end) {
                    Last::Yes => {}
                    Last::No(next) => {
                        (argument.searched, inside, unsure) = (0, next, None);
                        continue;
                    }
                    Last::Unknown(searched) => {
                        argument.searched = searched;
                        return Found::Free(at);
                    }
                }
            }
            return Found::End { at, length };
        }
        Found::Free(unsure.unwrap_or(pending.len()))
    }

    /// Reads a value again from its start, as text rather than JSON.
    fn read_again(&mut self, mut argument: Argument, pending: &mut String) -> Step {
        self.plain = true;
        argument.scan = None;
        (argument.searched, argument.opened, argument.at_line) = (0, false, true);
        pending.insert_str(0, &std::mem::take(&mut argument.value));
        self.state = CallState::Value(argument);
        Step::Again
    }

    /// Drops the end of a call, or begins the call's next function; the end may be missing.
    fn closing(&mut self, pending: &mut String, sink: &mut Sink<'_>) -> Step {
        let reader = reader::<T>("", sink);
        // Newlines are dropped whether they come together or one by one.
        drop_newlines(pending);
        let step = match reader.other_function(pending) {
            Ok((name, length)) => {
                self.begin(name, sink);
                pending.drain(..length);
                return Step::Again;
            }
            Err(Miss::Unfinished) => Step::Wait,
            Err(Miss::Other) => close(pending, T::CALL.1),
        };
        if step == Step::Wait {
            self.state = CallState::Closing;
        }
        step
    }
}

/// Bytes of a value without the line break that belongs to the tag after it.
fn without_line_break<T: Tags>(text: &str) -> usize {
    text.len() - usize::from(T::OWN_LINES && text.ends_with('\n'))
}

impl Argument {
    /// Whether the value, followed by `more`, ends inside a string of JSON.
    fn ends_in_string(&self, more: &str) -> bool {
        self.scan.clone().is_some_and(|mut scan| {
            scan.push(more);
            scan.is_in_string()
        })
    }

    fn extend(&mut self, piece: String, sink: &mut Sink<'_>) {
        if let Some(last) = piece.chars().last() {
            self.at_line = last == '\n';
        }
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
