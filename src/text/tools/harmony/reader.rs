//! From the text and the marks of a reply to what its client is told.
//!
//! Messages of the channel `analysis` are reasoning, those to a function are calls, the others are
//! content. What is written to a tool that there is not, as those that the model was trained with,
//! is reasoning; so are words that the model puts into others' mouths.

use std::sync::Arc;

use super::header::{Channel, Header};
use super::{FUNCTIONS, Harmony, Mark};
use crate::reply::{Delta, Part, append};
use crate::tools::{Counts, End, Opening, Sink, Step, Syntax, ToolSchemas, is_name};

/// Longest header; what is longer is a message that has none.
const HEADER_BYTES_MAX: usize = 512;
/// Between two messages that are told as one text.
const BETWEEN: &str = "\n\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    Reasoning,
    Content,
    Call,
    /// Behind the arguments of a call, or where no more is wanted.
    Dropped,
}

/// Part of a conversation that the end of a prompt belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Header,
    Reasoning,
    Content,
}

impl Begin {
    /// Beginning behind a prompt that opens the reasoning, or ends amid words of the assistant's.
    pub fn of(reasoning_opened: bool, amid: bool) -> Begin {
        match (reasoning_opened, amid) {
            (true, _) => Begin::Reasoning,
            (false, true) => Begin::Content,
            (false, false) => Begin::Header,
        }
    }
}

/// A text that several messages make.
#[derive(Debug, Default)]
struct Told {
    begun: bool,
    /// The next text is that of another message.
    parted: bool,
}

impl Told {
    /// Takes the next text; returns what stands before it.
    fn next(&mut self, text: &str) -> &'static str {
        if text.is_empty() {
            return "";
        }
        let parted = std::mem::take(&mut self.parted) && self.begun;
        self.begun = true;
        if parted { BETWEEN } else { "" }
    }
}

/// Follows one reply.
#[derive(Debug)]
pub struct HarmonyReader {
    place: Place,
    /// The header so far, or the text of a call that is held.
    held: String,
    /// None where calls are not wanted.
    schemas: Option<Arc<ToolSchemas>>,
    syntax: Harmony,
    counts: Counts,
    calls_max: usize,
    reasoning: Told,
    content: Told,
}

impl HarmonyReader {
    /// `one_call`: what follows the first complete call is dropped.
    pub fn new(begin: Begin, schemas: Option<Arc<ToolSchemas>>, one_call: bool) -> HarmonyReader {
        HarmonyReader {
            place: match begin {
                Begin::Header => Place::Header,
                Begin::Reasoning => Place::Reasoning,
                Begin::Content => Place::Content,
            },
            held: String::new(),
            schemas,
            syntax: Harmony::default(),
            counts: Counts::default(),
            calls_max: if one_call { 1 } else { usize::MAX },
            reasoning: Told::default(),
            content: Told::default(),
        }
    }

    /// Part that the text so far ends in.
    pub fn part(&self) -> Part {
        match self.place {
            Place::Header => Part::Between,
            Place::Reasoning => Part::Reasoning,
            Place::Content => Part::Text,
            Place::Call | Place::Dropped => Part::Call,
        }
    }

    /// Whether no further call is read.
    pub fn has_enough(&self) -> bool {
        self.counts.completed >= self.calls_max
    }

    /// Appends to `out` what `text` settles.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.has_enough() {
            self.place = Place::Dropped;
        }
        match self.place {
            Place::Header => self.head(text, out),
            Place::Reasoning => self.reason(text, out),
            Place::Content => self.say(text, out),
            Place::Call => self.call(text, End::No, out),
            Place::Dropped => {}
        }
    }

    /// Appends to `out` what a token of the frame settles.
    pub fn mark(&mut self, mark: Mark, out: &mut Vec<Delta>) {
        if self.has_enough() {
            return;
        }
        match (self.place, mark) {
            (Place::Header, Mark::Message) => self.open(out),
            (Place::Header, Mark::Channel | Mark::Constrain) => self.head_mark(mark, out),
            (_, Mark::Message | Mark::Constrain) => {}
            // A message whose end is missing ends where the next one begins.
            (_, Mark::Channel) => {
                self.end(End::Itself, out);
                self.head_mark(mark, out);
            }
            (_, Mark::Start | Mark::End | Mark::Return | Mark::Call) => {
                self.end(End::Itself, out);
            }
        }
    }

    /// Appends to `out` what was held back. `cut`: the reply was to go on.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        self.end(if cut { End::Cut } else { End::Itself }, out);
    }

    fn head(&mut self, text: &str, out: &mut Vec<Delta>) {
        let room = HEADER_BYTES_MAX - self.held.len();
        let (head, behind) = text.split_at(text.floor_char_boundary(room));
        self.held.push_str(head);
        if !behind.is_empty() {
            self.say_rest(out);
            self.say(behind, out);
        }
    }

    fn head_mark(&mut self, mark: Mark, out: &mut Vec<Delta>) {
        if self.held.len() + mark.text().len() > HEADER_BYTES_MAX {
            self.say_rest(out);
            self.end(End::Itself, out);
        }
        self.held.push_str(mark.text());
    }

    /// A message begins behind its header.
    fn open(&mut self, out: &mut Vec<Delta>) {
        let held = std::mem::take(&mut self.held);
        let header = Header::read(&held);
        self.place = self.place_of(&header);
        match self.place {
            Place::Call => self.announce(header.recipient.unwrap_or_default(), out),
            Place::Reasoning => self.reasoning.parted = true,
            Place::Content => self.content.parted = true,
            Place::Header | Place::Dropped => {}
        }
    }

    fn place_of(&self, header: &Header<'_>) -> Place {
        match (header.recipient, &self.schemas) {
            _ if header.foreign => Place::Reasoning,
            (Some(to), Some(schemas)) if is_call(to, schemas) => Place::Call,
            (Some(to), None) if to.starts_with(FUNCTIONS) => Place::Content,
            (Some(_), _) => Place::Reasoning,
            (None, _) if header.channel == Some(Channel::Analysis) => Place::Reasoning,
            (None, _) => Place::Content,
        }
    }

    fn announce(&mut self, recipient: &str, out: &mut Vec<Delta>) {
        let name = recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient);
        let head = format!("{name}{}", Mark::Message.text());
        let opened = self.with_sink(out, |syntax, sink| syntax.open(&head, sink));
        debug_assert!(matches!(opened, Opening::Call { .. }), "{head}");
    }

    fn with_sink<T>(
        &mut self,
        out: &mut Vec<Delta>,
        read: impl FnOnce(&mut Harmony, &mut Sink<'_>) -> T,
    ) -> T {
        let none = ToolSchemas::default();
        let mut sink = Sink {
            schemas: self.schemas.as_deref().unwrap_or(&none),
            slips: true,
            known: false,
            counts: &mut self.counts,
            out,
        };
        read(&mut self.syntax, &mut sink)
    }

    fn call(&mut self, text: &str, end: End, out: &mut Vec<Delta>) {
        let mut held = std::mem::take(&mut self.held);
        held.push_str(text);
        let step = self.with_sink(out, |syntax, sink| syntax.step(&mut held, sink, end));
        match step {
            Step::Closed => self.place = Place::Dropped,
            _ => self.held = held,
        }
    }

    fn reason(&mut self, text: &str, out: &mut Vec<Delta>) {
        let before = self.reasoning.next(text);
        append(out, Delta::Reasoning(format!("{before}{text}")));
    }

    fn say(&mut self, text: &str, out: &mut Vec<Delta>) {
        let before = self.content.next(text);
        append(out, Delta::Content(format!("{before}{text}")));
    }

    /// Text that was taken for a header is a message without one.
    fn say_rest(&mut self, out: &mut Vec<Delta>) {
        let held = std::mem::take(&mut self.held);
        self.content.parted = true;
        self.place = Place::Content;
        self.say(Header::read(&held).rest, out);
    }

    /// The message at hand is over, and another may begin.
    fn end(&mut self, end: End, out: &mut Vec<Delta>) {
        match self.place {
            Place::Header => self.end_header(end, out),
            Place::Call => self.call("", end, out),
            Place::Reasoning | Place::Content | Place::Dropped => {}
        }
        self.held.clear();
        self.place = Place::Header;
    }

    /// A message ends in its header: refusals leave out the mark behind it.
    fn end_header(&mut self, end: End, out: &mut Vec<Delta>) {
        let begun = self.held.contains(Mark::Channel.text());
        let header = Header::read(&self.held);
        let is_text = !header.rest.trim().is_empty() && header.recipient.is_none();
        if is_text && !header.foreign && !(begun && end == End::Cut) {
            self.say_rest(out);
        }
    }
}

/// Whether a recipient is a function: one that there is, where it is not said.
fn is_call(recipient: &str, schemas: &ToolSchemas) -> bool {
    match recipient.strip_prefix(FUNCTIONS) {
        Some(name) => is_name(name),
        None => is_name(recipient) && schemas.has(recipient),
    }
}

#[cfg(test)]
mod tests;
