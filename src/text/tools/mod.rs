//! Tool calls in a reply's text.
//!
//! A call is announced once its name is complete; its arguments follow in pieces, as JSON. Text
//! that turns out to be no call is passed on as content. A call that the end of the reply cuts off
//! keeps the arguments so far, which are incomplete JSON, so that no client runs half a call; a
//! call cut off in its name is dropped.
//!
//! [`ToolParser`] finds where calls begin; a [`Syntax`] reads a call in the form that the model has
//! learnt, which its manifest names (`ToolFormat`).

pub mod gemma;
pub mod glm;
pub mod harmony;
pub mod hermes;
mod json;
pub mod llama3_json;
pub mod markup;
mod members;
pub mod minimax_xml;
pub mod mistral;
pub mod qwen3_coder;
mod schemas;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(
    not(test),
    allow(dead_code, unused_imports, reason = "tests of other crates need half")
)]
pub mod tests;

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use step::ToolFormat;

use super::partial_tag;
use super::reply::{Delta, append};

use self::json::Scan;

pub use members::{Member, Members};
pub use schemas::{REFERENCES_MAX, Root, SCHEMA_DEPTH_MAX, ToolSchemas, Types};

/// Bytes of the longest name of a function.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of blanks around a tag that belong to the format rather than to the text.
const BLANK_BYTES_MAX: usize = 8;

/// Parser of one form in which models write tool calls. It is in its initial state again after the
/// end of a call, and after an opening tag that began none.
pub trait Syntax: Default + std::fmt::Debug + Send + 'static {
    /// Text that begins a call.
    const OPEN: &'static str;
    /// Text that begins a call whose `OPEN` is missing, and that [`Syntax::open`] reads; empty if
    /// such calls cannot be distinguished from text.
    const BARE: &'static str = "";
    /// Text that begins a call in the grammar of calls.
    const FORMAL: &'static str = Self::OPEN;
    /// Text that a grammar forbids in a reply without calls; empty if nothing is forbidden.
    const FORBIDDEN: &'static str = Self::OPEN;
    /// Text that ends a call.
    const END: &'static str;
    /// Texts of tags that some tokenizers have as control tokens.
    const MARKS: &'static [&'static str];

    /// Reads the text after [`Syntax::OPEN`]; when called again, `text` has more at its end.
    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening;

    /// Reads more of a call, and removes the text that is done from `pending`.
    fn step(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step;
}

/// Evaluates `$value` with `$syntax` as the [`Syntax`] of a format.
macro_rules! with_syntax {
    ($format:expr, $syntax:ident => $value:expr) => {
        with_syntax!(@ $format, $syntax => $value,
            Qwen3Coder in qwen3_coder, Hermes in hermes, Llama3Json in llama3_json,
            Mistral in mistral, Gemma in gemma, MinimaxXml in minimax_xml, Glm in glm,
            Harmony in harmony)
    };
    (@ $format:expr, $syntax:ident => $value:expr, $($name:ident in $module:ident),*) => {
        match $format {
            $(step::ToolFormat::$name => {
                type $syntax = $crate::tools::$module::$name;
                $value
            })*
        }
    };
}
pub(crate) use with_syntax;

/// Constants of a [`Syntax`] as values, since a model's format is chosen at start.
#[derive(Clone, Copy, Debug)]
pub struct Tags {
    pub open: &'static str,
    bare: &'static str,
    pub end: &'static str,
    pub formal: &'static str,
    pub forbidden: &'static str,
    pub marks: &'static [&'static str],
}

impl Tags {
    /// Tags of a format.
    pub fn of(format: ToolFormat) -> Tags {
        with_syntax!(format, S => Tags::of_syntax::<S>())
    }

    const fn of_syntax<S: Syntax>() -> Tags {
        Tags {
            open: S::OPEN,
            bare: S::BARE,
            end: S::END,
            formal: S::FORMAL,
            forbidden: S::FORBIDDEN,
            marks: S::MARKS,
        }
    }
}

/// Object-safe part of [`Syntax`], since a model's format is chosen at start.
trait Reader: std::fmt::Debug + Send {
    fn open_call(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening;
    fn step_on(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step;
}

impl<S: Syntax> Reader for S {
    fn open_call(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        self.open(text, sink)
    }

    fn step_on(&mut self, pending: &mut String, sink: &mut Sink<'_>, end: End) -> Step {
        self.step(pending, sink, end)
    }
}

/// Whether the reply ends after the text so far, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    No,
    /// The reply was cut off at its length: the model would have gone on.
    Cut,
    /// The model ended the reply.
    Itself,
}

impl End {
    pub fn is_end(self) -> bool {
        self != End::No
    }
}

/// Kind of the text after an opening tag.
#[derive(Debug, PartialEq)]
pub enum Opening {
    /// Head of a call, of `length` bytes, which has been announced.
    Call {
        length: usize,
    },
    Unfinished,
    /// A JSON object that is content, not a call, with all its inner objects.
    Object,
    Other,
}

/// Outcome of reading pending text.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Some text was read, and the reader is to be called again.
    Again,
    /// More text is needed.
    Wait,
    /// The call is over.
    Closed,
    /// The call breaks its form: the arguments so far are kept, the rest is content.
    Broken,
}

/// Receiver of calls from a [`Syntax`].
#[derive(Debug)]
pub struct Sink<'a> {
    schemas: &'a ToolSchemas,
    lenient: bool,
    /// Whether calls of functions that the request does not have are content.
    known: bool,
    counts: &'a mut Counts,
    out: &'a mut Vec<Delta>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of calls announced so far.
    announced: usize,
    /// Number of calls whose arguments are complete.
    completed: usize,
}

impl Sink<'_> {
    /// Whether calls that deviate from their form in known ways are read.
    pub fn forgives(&self) -> bool {
        self.lenient
    }

    /// Whether calls of `function` are read as calls, not as content.
    pub fn takes(&self, function: &str) -> bool {
        !self.known || self.schemas.has(function)
    }

    /// Whether the request has `function`.
    pub fn knows(&self, function: &str) -> bool {
        self.schemas.has(function)
    }

    /// Appends the start of a call of `name`.
    pub fn announce(&mut self, name: &str) {
        let index = self.counts.announced;
        let name = name.to_string();
        append(self.out, Delta::ToolCall { index, name });
        self.counts.announced += 1;
    }

    /// Appends JSON to the arguments of the current call.
    pub fn arguments(&mut self, json: String) {
        let index = self.counts.announced - 1;
        append(self.out, Delta::Arguments { index, json });
    }

    /// Marks the arguments of the current call as a complete JSON object.
    pub fn complete(&mut self) {
        self.counts.completed += 1;
    }

    /// Types that an argument may have; None if unknown.
    pub fn types(&self, function: &str, argument: &str) -> Option<Types> {
        self.schemas.types(function, argument)
    }
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// The text so far ends outside of calls; `after_call`: newlines before more text are dropped.
    Text { after_call: bool },
    /// After an opening tag: the pending text starts with blanks and the tag, together `tag_end`
    /// bytes. `bare`: the tag is missing, and [`Syntax::BARE`] follows the blanks.
    Opening { tag_end: usize, bare: bool },
    /// The text so far ends inside a JSON object that is no call and is passed on as content.
    Object,
    /// The text so far ends inside a call.
    Call,
    /// All wanted calls are complete: the text after the calls is dropped.
    Enough,
}

/// Parser of one reply.
#[derive(Debug)]
pub struct ToolParser {
    schemas: Arc<ToolSchemas>,
    tags: Tags,
    syntax: Box<dyn Reader>,
    mode: Mode,
    /// Scanner of a JSON object that is content.
    object: Scan,
    pending: String,
    counts: Counts,
    /// Most calls that are read.
    calls_max: usize,
    /// Whether calls that deviate from their form in known ways are read.
    lenient: bool,
    /// Whether calls of functions that the request does not have are content.
    known: bool,
}

impl ToolParser {
    /// Lenient parser of calls in a format; `one_call`: drops text after the first complete call.
    pub fn new(format: ToolFormat, schemas: Arc<ToolSchemas>, one_call: bool) -> ToolParser {
        with_syntax!(format, S => ToolParser::of::<S>(schemas, one_call))
    }

    /// Lenient parser of calls in the form `S`; `one_call`: drops text after the first complete
    /// call.
    pub fn of<S: Syntax>(schemas: impl Into<Arc<ToolSchemas>>, one_call: bool) -> ToolParser {
        ToolParser {
            schemas: schemas.into(),
            tags: Tags::of_syntax::<S>(),
            syntax: Box::new(S::default()),
            mode: Mode::Text { after_call: false },
            object: Scan::default(),
            pending: String::new(),
            counts: Counts::default(),
            calls_max: if one_call { 1 } else { usize::MAX },
            lenient: true,
            known: false,
        }
    }

    /// Makes calls of functions that the request does not have content.
    pub fn of_known(mut self) -> ToolParser {
        self.known = true;
        self
    }

    /// Sets whether the parser is lenient. A strict parser reads only the exact form, which
    /// grammars enforce.
    pub fn forgiving(mut self, forgiven: bool) -> ToolParser {
        self.lenient = forgiven;
        self
    }

    /// Number of calls whose arguments are complete.
    pub fn completed(&self) -> usize {
        self.counts.completed
    }

    /// Whether the text so far ends inside a call, or a possible call.
    pub fn is_inside(&self) -> bool {
        !matches!(self.mode, Mode::Text { .. } | Mode::Object)
    }

    /// Whether the text so far ends in the possible start of a call.
    pub fn is_opening(&self) -> bool {
        matches!(self.mode, Mode::Opening { .. })
    }

    /// Bytes of the text so far that have been passed on neither as content nor as calls.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether all wanted calls are complete.
    pub fn has_enough(&self) -> bool {
        self.counts.completed >= self.calls_max
    }

    /// Reads more text; appends to `out` the deltas that it completes.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.pending.push_str(text);
        self.run(out, End::No);
    }

    /// Flushes the pending text at the end of the reply. `cut`: the model would have gone on, so
    /// that a whole or partial opening tag at the end may begin a call and is dropped.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        self.run(out, if cut { End::Cut } else { End::Itself });
        let pending = std::mem::take(&mut self.pending);
        match self.mode {
            Mode::Text { .. } | Mode::Opening { .. } if cut && begins_tag(&pending) => {}
            Mode::Text { .. } | Mode::Opening { .. } | Mode::Object => {
                append(out, Delta::Content(pending));
            }
            // Text that an incomplete call holds back may be markup.
            Mode::Call | Mode::Enough => {}
        }
        self.mode = Mode::Text { after_call: false };
    }

    fn parts<'a>(
        &'a mut self,
        out: &'a mut Vec<Delta>,
        bare: bool,
    ) -> (&'a mut dyn Reader, Sink<'a>) {
        let sink = Sink {
            schemas: &self.schemas,
            lenient: self.lenient,
            known: self.known || bare,
            counts: &mut self.counts,
            out,
        };
        (&mut *self.syntax, sink)
    }

    fn run(&mut self, out: &mut Vec<Delta>, end: End) {
        loop {
            if self.has_enough() {
                self.mode = Mode::Enough;
                self.pending.clear();
            }
            let goes_on = match self.mode {
                Mode::Text { after_call } => self.text(after_call, out),
                Mode::Opening { tag_end, bare } => self.opening(tag_end, bare, out),
                Mode::Object => self.object(out),
                Mode::Call => self.call(out, end),
                Mode::Enough => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Passes on content up to the possible start of a call; returns whether there is one.
    fn text(&mut self, after_call: bool, out: &mut Vec<Delta>) -> bool {
        if after_call {
            drop_newlines(&mut self.pending);
        }
        let found = self.next_tag();
        let partial = |tag| partial_tag(&self.pending, tag);
        let begun = || partial(self.tags.open).max(self.bare().map_or(0, partial));
        let end = found.map_or_else(|| self.pending.len() - begun(), |(at, _)| at);
        let free = end - newlines_at_end(&self.pending[..end]);
        let text = take_front(&mut self.pending, free);
        let after_call = after_call && text.is_empty();
        append(out, Delta::Content(text));
        self.mode = match found {
            Some((_, bare)) => Mode::Opening {
                tag_end: end - free + if bare { 0 } else { self.tags.open.len() },
                bare,
            },
            None => Mode::Text { after_call },
        };
        found.is_some()
    }

    /// Position of the next tag that may open a call, and whether the tag is [`Syntax::BARE`].
    fn next_tag(&self) -> Option<(usize, bool)> {
        let open = self.pending.find(self.tags.open).map(|at| (at, false));
        let bare = self.bare().and_then(|bare| self.pending.find(bare));
        open.into_iter().chain(bare.map(|at| (at, true))).min()
    }

    /// [`Syntax::BARE`], if a missing tag is forgiven.
    fn bare(&self) -> Option<&'static str> {
        Some(self.tags.bare).filter(|bare| self.lenient && !bare.is_empty())
    }

    /// Reads up to the end of the call's name, and announces it; or passes the tag on as text.
    fn opening(&mut self, tag_end: usize, bare: bool, out: &mut Vec<Delta>) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let (syntax, mut sink) = self.parts(out, bare);
        let opening = syntax.open_call(&pending[tag_end..], &mut sink);
        self.pending = pending;
        self.mode = match opening {
            Opening::Call { length } => {
                self.pending.drain(..tag_end + length);
                Mode::Call
            }
            Opening::Unfinished => return false,
            Opening::Object => {
                let start = tag_end - if bare { 0 } else { self.tags.open.len() };
                append(out, Delta::Content(take_front(&mut self.pending, start)));
                self.object = Scan::default();
                Mode::Object
            }
            Opening::Other => {
                let tag_end = tag_end + if bare { self.tags.bare.len() } else { 0 };
                let text = take_front(&mut self.pending, tag_end);
                append(out, Delta::Content(text));
                Mode::Text { after_call: false }
            }
        };
        true
    }

    /// Passes on a JSON object that is content.
    fn object(&mut self, out: &mut Vec<Delta>) -> bool {
        let end = self.object.push(&self.pending);
        let length = end.unwrap_or(self.pending.len());
        let text = take_front(&mut self.pending, length);
        append(out, Delta::Content(text));
        if end.is_some() {
            self.mode = Mode::Text { after_call: false };
        }
        end.is_some()
    }

    fn call(&mut self, out: &mut Vec<Delta>, end: End) -> bool {
        let mut pending = std::mem::take(&mut self.pending);
        let (syntax, mut sink) = self.parts(out, false);
        let step = syntax.step_on(&mut pending, &mut sink, end);
        self.pending = pending;
        if matches!(step, Step::Closed | Step::Broken) {
            let after_call = step == Step::Closed;
            self.mode = Mode::Text { after_call };
        }
        step != Step::Wait
    }
}

/// Whether pending text surely begins a tag; one character of a tag does not suffice.
fn begins_tag(pending: &str) -> bool {
    pending.trim_start_matches('\n').len() > 1
}

/// Whether a function can have the name `name` in calls.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| is_name_byte(&byte))
}

fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:".contains(byte)
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Escapes a piece of a JSON string, without the quotes.
fn escaped(text: &str) -> String {
    let mut json = quoted(text);
    json.pop();
    json.remove(0);
    json
}

/// Reason why an expected text was not found at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Miss {
    /// The expected text may be there once more text comes.
    Unfinished,
    Other,
}

impl From<Miss> for Opening {
    fn from(miss: Miss) -> Opening {
        match miss {
            Miss::Unfinished => Opening::Unfinished,
            Miss::Other => Opening::Other,
        }
    }
}

/// Bytes up to the end of `expected`, which `text` must begin with, after blanks.
fn head(text: &str, expected: &str) -> Result<usize, Miss> {
    let rest = text.trim_start();
    let blank = text.len() - rest.len();
    match blank > BLANK_BYTES_MAX {
        true => Err(Miss::Other),
        false => Ok(blank + next(rest, expected)?),
    }
}

/// Bytes of `expected`, which `text` must begin with.
fn next(text: &str, expected: &str) -> Result<usize, Miss> {
    if text.starts_with(expected) {
        Ok(expected.len())
    } else if expected.starts_with(text) {
        Err(Miss::Unfinished)
    } else {
        Err(Miss::Other)
    }
}

/// The first of two searches with a success; else whether one of them may still succeed.
fn either<T>(first: Result<T, Miss>, second: impl FnOnce() -> Result<T, Miss>) -> Result<T, Miss> {
    match first {
        Err(Miss::Unfinished) => second().map_err(|_| Miss::Unfinished),
        Err(Miss::Other) => second(),
        found => found,
    }
}

/// The name at the start of a text; None while it may go on.
fn name_at(text: &str) -> Option<&str> {
    let length = text.bytes().take_while(is_name_byte).count();
    let ends = length < text.len() || length > NAME_BYTES_MAX;
    ends.then(|| &text[..length])
}

/// Removes and returns the first `length` bytes, usually all.
fn take_front(pending: &mut String, length: usize) -> String {
    if length == pending.len() {
        return std::mem::take(pending);
    }
    let front = pending[..length].to_string();
    pending.drain(..length);
    front
}

/// Drops newlines at the start of `pending`.
pub fn drop_newlines(pending: &mut String) {
    let blank = pending.len() - pending.trim_start_matches('\n').len();
    pending.drain(..blank);
}

/// Drops the newlines and the tag that end a call; the tag may be missing.
fn close(pending: &mut String, tag: &str) -> Step {
    drop_newlines(pending);
    if pending.starts_with(tag) {
        pending.drain(..tag.len());
    } else if tag.starts_with(pending.as_str()) {
        return Step::Wait;
    }
    Step::Closed
}

/// Number of newlines at the end of a text that belong to the tag after the text.
pub fn newlines_at_end(text: &str) -> usize {
    let last = text.bytes().rev().take(BLANK_BYTES_MAX);
    last.take_while(|byte| *byte == b'\n').count()
}
