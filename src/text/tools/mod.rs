//! Tool calls in a reply's text.
//!
//! A call is announced once its name is complete and its arguments follow in pieces, as JSON. What
//! is no call is given back as text. A call that breaks off keeps the arguments that came, which
//! are then no complete JSON, so that no client runs half a call; of one that breaks off before its
//! name is complete nothing is told.
//!
//! [`ToolParser`] finds where calls begin; a [`Syntax`] reads one, in the form that the model has
//! learnt, and that its manifest names (`ToolFormat`).

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

use super::held_prefix;
use super::reply::{Delta, append};

use self::json::Scan;

pub use members::{Member, Members};
pub use schemas::{REFERENCES_MAX, Root, SCHEMA_DEPTH_MAX, ToolSchemas, Types};

/// Longest name of a function that is taken for one.
pub const NAME_BYTES_MAX: usize = 128;
/// Blank text around a tag that belongs to the format rather than to the text.
const BLANK_BYTES_MAX: usize = 8;

/// A form in which models write tool calls, and the reader of one call after the other. What ends a
/// call, or its opening, leaves the reader ready for the next.
pub trait Syntax: Default + std::fmt::Debug + Send + 'static {
    /// Beginning of a call.
    const OPEN: &'static str;
    /// Beginning of a call whose `OPEN` was forgotten, which [`Syntax::open`] looks at; empty where
    /// no call can be told from text then.
    const BARE: &'static str = "";
    /// Opening of a call where a grammar keeps it to its form.
    const FORMAL: &'static str = Self::OPEN;
    /// Text that a reply without calls must not hold; empty where it may hold anything.
    const FORBIDDEN: &'static str = Self::OPEN;
    /// End of a call.
    const END: &'static str;
    /// Tokens that calls are made of, where a tokenizer has them as control tokens.
    const MARKS: &'static [&'static str];

    /// Looks at what follows [`Syntax::OPEN`]; `text` is the same as in the last look, or longer.
    fn open(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening;

    /// Reads on in a call, and takes out of `held` what it is done with.
    fn step(&mut self, held: &mut String, sink: &mut Sink<'_>, end: End) -> Step;
}

/// A value of an expression over the syntax of a format, which it calls `$syntax`.
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

/// Texts of a [`Syntax`]: its constants, of a form that is known at start alone.
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

/// A [`Syntax`] that is known at start alone.
trait Reader: std::fmt::Debug + Send {
    fn open_call(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening;
    fn step_on(&mut self, held: &mut String, sink: &mut Sink<'_>, end: End) -> Step;
}

impl<S: Syntax> Reader for S {
    fn open_call(&mut self, text: &str, sink: &mut Sink<'_>) -> Opening {
        self.open(text, sink)
    }

    fn step_on(&mut self, held: &mut String, sink: &mut Sink<'_>, end: End) -> Step {
        self.step(held, sink, end)
    }
}

/// Whether a reply ends behind its text so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    No,
    /// At its length: the model would have gone on.
    Cut,
    /// The model has ended it.
    Itself,
}

impl End {
    pub fn is_end(self) -> bool {
        self != End::No
    }
}

/// Text behind an opening tag.
#[derive(Debug, PartialEq)]
pub enum Opening {
    /// A call, which is announced; so many bytes are read.
    Call {
        length: usize,
    },
    Unfinished,
    /// An object of JSON that is no call and holds none.
    Object,
    Other,
}

/// Find of a step in the held text.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Look again, something was consumed.
    Again,
    /// More text is needed.
    Wait,
    /// The call is over.
    Closed,
    /// This is no call any more: what came stays as it is, the rest is text.
    Broken,
}

/// Where a syntax puts what it reads.
#[derive(Debug)]
pub struct Sink<'a> {
    schemas: &'a ToolSchemas,
    slips: bool,
    /// The function must be one that there is.
    known: bool,
    counts: &'a mut Counts,
    out: &'a mut Vec<Delta>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Calls announced so far.
    announced: usize,
    /// Calls whose arguments are complete.
    completed: usize,
}

impl Sink<'_> {
    /// Whether slips of the model are forgiven.
    pub fn forgives(&self) -> bool {
        self.slips
    }

    /// Whether what looks like a call of `function` is one.
    pub fn takes(&self, function: &str) -> bool {
        !self.known || self.schemas.has(function)
    }

    /// Whether the request has `function`.
    pub fn knows(&self, function: &str) -> bool {
        self.schemas.has(function)
    }

    /// A call begins.
    pub fn announce(&mut self, name: &str) {
        let index = self.counts.announced;
        let name = name.to_string();
        append(self.out, Delta::ToolCall { index, name });
        self.counts.announced += 1;
    }

    /// More arguments of the call at hand.
    pub fn arguments(&mut self, json: String) {
        let index = self.counts.announced - 1;
        append(self.out, Delta::Arguments { index, json });
    }

    /// The arguments of the call at hand are a complete JSON object.
    pub fn complete(&mut self) {
        self.counts.completed += 1;
    }

    /// The types that an argument may have, if they are known.
    pub fn types(&self, function: &str, argument: &str) -> Option<Types> {
        self.schemas.types(function, argument)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Outside a call. `after_call`: newlines are dropped until text comes.
    Text { after_call: bool },
    /// Behind an opening tag; the held text starts with it and the blank before, `tag_end` bytes.
    /// `bare`: there is none, and the held text goes on with [`Syntax::BARE`].
    Opening { tag_end: usize, bare: bool },
    /// Inside an object that is text.
    Object,
    /// In a call.
    Call,
    /// All wanted calls are complete: what follows is dropped.
    Enough,
}

/// Follows one reply.
#[derive(Debug)]
pub struct ToolParser {
    schemas: Arc<ToolSchemas>,
    tags: Tags,
    syntax: Box<dyn Reader>,
    state: State,
    /// Follows an object that is text.
    object: Scan,
    held: String,
    counts: Counts,
    /// Calls that are read at most.
    calls_max: usize,
    /// Whether slips of the model are forgiven.
    slips: bool,
    /// Functions that there are not are not called.
    known: bool,
}

impl ToolParser {
    /// A reader of calls in a format.
    pub fn new(format: ToolFormat, schemas: Arc<ToolSchemas>, one_call: bool) -> ToolParser {
        with_syntax!(format, S => ToolParser::of::<S>(schemas, one_call))
    }

    /// A reader of calls as models write them, small slips among them. `one_call`: what follows the
    /// first complete call is dropped.
    pub fn of<S: Syntax>(schemas: impl Into<Arc<ToolSchemas>>, one_call: bool) -> ToolParser {
        ToolParser {
            schemas: schemas.into(),
            tags: Tags::of_syntax::<S>(),
            syntax: Box::new(S::default()),
            state: State::Text { after_call: false },
            object: Scan::default(),
            held: String::new(),
            counts: Counts::default(),
            calls_max: if one_call { 1 } else { usize::MAX },
            slips: true,
            known: false,
        }
    }

    /// The parser of calls of known functions alone: calls of others are text.
    pub fn of_known(mut self) -> ToolParser {
        self.known = true;
        self
    }

    /// The parser with its leniency; where slips are not `forgiven`, as where a grammar keeps calls
    /// to their form, only what has that form is a call.
    pub fn forgiving(mut self, forgiven: bool) -> ToolParser {
        self.slips = forgiven;
        self
    }

    /// Calls whose arguments are complete.
    pub fn completed(&self) -> usize {
        self.counts.completed
    }

    /// Whether the text so far ends inside a call, or what may be one.
    pub fn is_inside(&self) -> bool {
        !matches!(self.state, State::Text { .. } | State::Object)
    }

    /// Whether the text so far ends in what may be the beginning of a call.
    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening { .. })
    }

    /// Bytes of the text so far of which nothing is told yet.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether no further call is read.
    pub fn has_enough(&self) -> bool {
        self.counts.completed >= self.calls_max
    }

    /// Appends to `out` what `text` settles.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.held.push_str(text);
        self.run(out, End::No);
    }

    /// Appends to `out` what was held back. `cut`: the reply was to go on, and an opening tag at
    /// its end, or the beginning of one, may have been that of a call.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        self.run(out, if cut { End::Cut } else { End::Itself });
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text { .. } | State::Opening { .. } if cut && begins_tag(&held) => {}
            State::Text { .. } | State::Opening { .. } | State::Object => {
                append(out, Delta::Content(held));
            }
            // All that a call holds back may be markup.
            State::Call | State::Enough => {}
        }
        self.state = State::Text { after_call: false };
    }

    fn parts<'a>(
        &'a mut self,
        out: &'a mut Vec<Delta>,
        bare: bool,
    ) -> (&'a mut dyn Reader, Sink<'a>) {
        let sink = Sink {
            schemas: &self.schemas,
            slips: self.slips,
            known: self.known || bare,
            counts: &mut self.counts,
            out,
        };
        (&mut *self.syntax, sink)
    }

    fn run(&mut self, out: &mut Vec<Delta>, end: End) {
        loop {
            if self.has_enough() {
                self.state = State::Enough;
            }
            let goes_on = match self.state {
                State::Text { after_call } => self.text(after_call, out),
                State::Opening { tag_end, bare } => self.opening(tag_end, bare, out),
                State::Object => self.object(out),
                State::Call => self.call(out, end),
                State::Enough => {
                    self.held.clear();
                    false
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Passes text on up to what may be the start of a call.
    fn text(&mut self, after_call: bool, out: &mut Vec<Delta>) -> bool {
        if after_call {
            let kept = self.held.trim_start_matches('\n').len();
            self.held.drain(..self.held.len() - kept);
        }
        let found = self.next_tag();
        let end = found.map_or_else(
            || self.held.len() - held_prefix(&self.held, self.tags.open).max(self.held_bare()),
            |(at, _)| at,
        );
        let free = end - newlines_at_end(&self.held[..end]);
        let text = take_front(&mut self.held, free);
        let after_call = after_call && text.is_empty();
        append(out, Delta::Content(text));
        self.state = match found {
            Some((_, bare)) => State::Opening {
                tag_end: end - free + if bare { 0 } else { self.tags.open.len() },
                bare,
            },
            None => State::Text { after_call },
        };
        found.is_some()
    }

    /// The place of the next tag that may open a call, and whether it is [`Syntax::BARE`].
    fn next_tag(&self) -> Option<(usize, bool)> {
        let open = self.held.find(self.tags.open).map(|at| (at, false));
        let bare = self.forgives_bare().then(|| self.held.find(self.tags.bare));
        let bare = bare.flatten().map(|at| (at, true));
        open.into_iter().chain(bare).min()
    }

    fn held_bare(&self) -> usize {
        match self.forgives_bare() {
            true => held_prefix(&self.held, self.tags.bare),
            false => 0,
        }
    }

    fn forgives_bare(&self) -> bool {
        self.slips && !self.tags.bare.is_empty()
    }

    /// Reads up to the call's name, and announces the call; or gives the tag back as text.
    fn opening(&mut self, tag_end: usize, bare: bool, out: &mut Vec<Delta>) -> bool {
        let held = std::mem::take(&mut self.held);
        let (syntax, mut sink) = self.parts(out, bare);
        let opening = syntax.open_call(&held[tag_end..], &mut sink);
        self.held = held;
        match opening {
            Opening::Call { length } => {
                self.held.drain(..tag_end + length);
                self.state = State::Call;
                true
            }
            Opening::Unfinished => false,
            Opening::Object => {
                let start = tag_end - if bare { 0 } else { self.tags.open.len() };
                append(out, Delta::Content(take_front(&mut self.held, start)));
                self.object = Scan::default();
                self.state = State::Object;
                true
            }
            Opening::Other => {
                let tag_end = tag_end + if bare { self.tags.bare.len() } else { 0 };
                let text = take_front(&mut self.held, tag_end);
                append(out, Delta::Content(text));
                self.state = State::Text { after_call: false };
                true
            }
        }
    }

    /// Passes an object on that is text.
    fn object(&mut self, out: &mut Vec<Delta>) -> bool {
        let end = self.object.push(&self.held);
        let length = end.unwrap_or(self.held.len());
        let text = take_front(&mut self.held, length);
        append(out, Delta::Content(text));
        if end.is_some() {
            self.state = State::Text { after_call: false };
        }
        end.is_some()
    }

    fn call(&mut self, out: &mut Vec<Delta>, end: End) -> bool {
        let mut held = std::mem::take(&mut self.held);
        let (syntax, mut sink) = self.parts(out, false);
        let step = syntax.step_on(&mut held, &mut sink, end);
        self.held = held;
        match step {
            Step::Again => true,
            Step::Wait => false,
            Step::Closed | Step::Broken => {
                let after_call = step == Step::Closed;
                self.state = State::Text { after_call };
                true
            }
        }
    }
}

/// Whether a text that was held back begins a tag: one sign of it shows little.
fn begins_tag(held: &str) -> bool {
    held.trim_start_matches('\n').len() > 1
}

/// Whether calls can name a function so.
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

/// Why something that is expected at the beginning of a text was not found there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Miss {
    /// It may be there once more text is.
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

/// Looks for `expected` behind blank text; bytes up to its end.
fn head(text: &str, expected: &str) -> Result<usize, Miss> {
    let rest = text.trim_start();
    let blank = text.len() - rest.len();
    match blank > BLANK_BYTES_MAX {
        true => Err(Miss::Other),
        false => Ok(blank + next(rest, expected)?),
    }
}

/// Looks for `expected` at the very head of a text.
fn next(text: &str, expected: &str) -> Result<usize, Miss> {
    if text.starts_with(expected) {
        Ok(expected.len())
    } else if expected.starts_with(text) {
        Err(Miss::Unfinished)
    } else {
        Err(Miss::Other)
    }
}

/// The first of two looks that finds something; else whether one of them may.
fn either(
    first: Result<usize, Miss>,
    second: impl FnOnce() -> Result<usize, Miss>,
) -> Result<usize, Miss> {
    match first {
        Err(Miss::Unfinished) => second().map_err(|_| Miss::Unfinished),
        Err(Miss::Other) => second(),
        found => found,
    }
}

/// The name at the head of a text; None while it may go on.
fn name_at(text: &str) -> Option<&str> {
    let length = text.bytes().take_while(is_name_byte).count();
    let ends = length < text.len() || length > NAME_BYTES_MAX;
    ends.then(|| &text[..length])
}

/// Takes out the first `length` bytes, which are most often all.
fn take_front(held: &mut String, length: usize) -> String {
    if length == held.len() {
        return std::mem::take(held);
    }
    let front = held[..length].to_string();
    held.drain(..length);
    front
}

/// Drops the newlines at the front.
fn drop_newlines(held: &mut String) {
    let blank = held.len() - held.trim_start_matches('\n').len();
    held.drain(..blank);
}

/// Drops the newlines and the tag that end a call, of which the tag may be missing.
fn close(held: &mut String, tag: &str) -> Step {
    drop_newlines(held);
    if held.starts_with(tag) {
        held.drain(..tag.len());
    } else if tag.starts_with(held.as_str()) {
        return Step::Wait;
    }
    Step::Closed
}

/// Newlines at the end of a text that belong to the tag behind it rather than to the text.
pub fn newlines_at_end(text: &str) -> usize {
    let last = text.bytes().rev().take(BLANK_BYTES_MAX);
    last.take_while(|byte| *byte == b'\n').count()
}
