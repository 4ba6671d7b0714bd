//! Parser of an output in harmony: text and marks in, deltas out.
//!
//! Messages of the channel `analysis` are reasoning, messages to a function of the request are
//! calls. Messages to tools that the request lacks, such as those of the model's training, and
//! messages of another author are reasoning. All remaining messages are content.

use std::sync::Arc;

use super::header::{Channel, Header};
use super::{FUNCTIONS, Harmony, Mark};
use crate::reply::{Delta, Section, append};
use crate::tools::{Counts, End, Opening, Sink, Step, Syntax, ToolSchemas, is_name};

/// Bytes of the longest header; longer text is read as a message without a header.
const HEADER_BYTES_MAX: usize = 512;
/// Separator of messages that are joined to one text.
const BETWEEN: &str = "\n\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    Header,
    Reasoning,
    Content,
    Call,
    /// Text after the arguments of a call, or after the last wanted call.
    Dropped,
}

/// Region of a message in which the prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Header,
    Reasoning,
    Content,
}

impl Begin {
    /// Region after a prompt that opens the reasoning, or ends `amid` an answer.
    pub fn of(reasoning_opened: bool, amid: bool) -> Begin {
        match (reasoning_opened, amid) {
            (true, _) => Begin::Reasoning,
            (false, true) => Begin::Content,
            (false, false) => Begin::Header,
        }
    }
}

/// State of joining several messages to one text.
#[derive(Debug, Default)]
struct JoinedText {
    begun: bool,
    /// Whether the next text begins another message.
    parted: bool,
}

impl JoinedText {
    /// Separator before the next text.
    fn next(&mut self, text: &str) -> &'static str {
        if text.is_empty() {
            return "";
        }
        let parted = std::mem::take(&mut self.parted) && self.begun;
        self.begun = true;
        if parted { BETWEEN } else { "" }
    }
}

/// Parser of one output in harmony.
#[derive(Debug)]
pub struct HarmonyReader {
    region: Region,
    /// The header so far, or text of a call that is not read yet.
    pending: String,
    /// Schemas of the tools; None if calls are not wanted.
    schemas: Option<Arc<ToolSchemas>>,
    syntax: Harmony,
    counts: Counts,
    calls_max: usize,
    reasoning: JoinedText,
    content: JoinedText,
}

impl HarmonyReader {
    /// Parser of an output; `one_call`: text after the first complete call is dropped.
    pub fn new(begin: Begin, schemas: Option<Arc<ToolSchemas>>, one_call: bool) -> HarmonyReader {
        HarmonyReader {
            region: match begin {
                Begin::Header => Region::Header,
                Begin::Reasoning => Region::Reasoning,
                Begin::Content => Region::Content,
            },
            pending: String::new(),
            schemas,
            syntax: Harmony::default(),
            counts: Counts::default(),
            calls_max: if one_call { 1 } else { usize::MAX },
            reasoning: JoinedText::default(),
            content: JoinedText::default(),
        }
    }

    /// Section in which the text so far ends.
    pub fn section(&self) -> Section {
        match self.region {
            Region::Header => Section::Between,
            Region::Reasoning => Section::Reasoning,
            Region::Content => Section::Text,
            Region::Call | Region::Dropped => Section::Call,
        }
    }

    /// Whether all wanted calls are complete.
    pub fn has_enough(&self) -> bool {
        self.counts.completed >= self.calls_max
    }

    /// Reads more text; appends to `out` the deltas that it completes.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.has_enough() {
            self.region = Region::Dropped;
        }
        match self.region {
            Region::Header => self.head(text, out),
            Region::Reasoning => self.reason(text, out),
            Region::Content => self.say(text, out),
            Region::Call => self.call(text, End::No, out),
            Region::Dropped => {}
        }
    }

    /// Reads a control token; appends to `out` the deltas that it completes.
    pub fn mark(&mut self, mark: Mark, out: &mut Vec<Delta>) {
        if self.has_enough() {
            return;
        }
        match (self.region, mark) {
            (Region::Header, Mark::Message) => self.open(out),
            (Region::Header, Mark::Channel | Mark::Constrain) => self.head_mark(mark, out),
            (_, Mark::Message | Mark::Constrain) => {}
            // A message without an end mark ends where the next one begins.
            (_, Mark::Channel) => {
                self.end(End::Itself, out);
                self.head_mark(mark, out);
            }
            (_, Mark::Start | Mark::End | Mark::Return | Mark::Call) => {
                self.end(End::Itself, out);
            }
        }
    }

    /// Flushes pending text to `out`. `cut`: the output ended at its length, not by itself.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        self.end(if cut { End::Cut } else { End::Itself }, out);
    }

    fn head(&mut self, text: &str, out: &mut Vec<Delta>) {
        let capacity = HEADER_BYTES_MAX - self.pending.len();
        let (head, after) = text.split_at(text.floor_char_boundary(capacity));
        self.pending.push_str(head);
        if !after.is_empty() {
            self.say_rest(out);
            self.say(after, out);
        }
    }

    fn head_mark(&mut self, mark: Mark, out: &mut Vec<Delta>) {
        if self.pending.len() + mark.text().len() > HEADER_BYTES_MAX {
            self.say_rest(out);
            self.end(End::Itself, out);
        }
        self.pending.push_str(mark.text());
    }

    /// Begins a message after its header.
    fn open(&mut self, out: &mut Vec<Delta>) {
        let pending = std::mem::take(&mut self.pending);
        let header = Header::read(&pending);
        self.region = self.region_of(&header);
        match self.region {
            Region::Call => self.announce(header.recipient.unwrap_or_default(), out),
            Region::Reasoning => self.reasoning.parted = true,
            Region::Content => self.content.parted = true,
            Region::Header | Region::Dropped => {}
        }
    }

    fn region_of(&self, header: &Header<'_>) -> Region {
        match (header.recipient, &self.schemas) {
            _ if header.foreign => Region::Reasoning,
            (Some(to), Some(schemas)) if is_call(to, schemas) => Region::Call,
            (Some(to), None) if to.starts_with(FUNCTIONS) => Region::Content,
            (Some(_), _) => Region::Reasoning,
            (None, _) if header.channel == Some(Channel::Analysis) => Region::Reasoning,
            (None, _) => Region::Content,
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
            lenient: true,
            known: false,
            counts: &mut self.counts,
            out,
        };
        read(&mut self.syntax, &mut sink)
    }

    fn call(&mut self, text: &str, end: End, out: &mut Vec<Delta>) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.push_str(text);
        let step = self.with_sink(out, |syntax, sink| syntax.step(&mut pending, sink, end));
        match step {
            Step::Closed => self.region = Region::Dropped,
            _ => self.pending = pending,
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

    /// Passes on text that was read as a header, as a message without a header.
    fn say_rest(&mut self, out: &mut Vec<Delta>) {
        let pending = std::mem::take(&mut self.pending);
        self.content.parted = true;
        self.region = Region::Content;
        self.say(Header::read(&pending).rest, out);
    }

    /// Ends the current message, in whatever region the text so far ends; a header comes next.
    fn end(&mut self, end: End, out: &mut Vec<Delta>) {
        match self.region {
            Region::Header => self.end_header(end, out),
            Region::Call => self.call("", end, out),
            Region::Reasoning | Region::Content | Region::Dropped => {}
        }
        self.pending.clear();
        self.region = Region::Header;
    }

    /// Ends a message inside its header, since refusals leave out the mark after the header.
    fn end_header(&mut self, end: End, out: &mut Vec<Delta>) {
        let begun = self.pending.contains(Mark::Channel.text());
        let header = Header::read(&self.pending);
        let is_text = !header.rest.trim().is_empty() && header.recipient.is_none();
        if is_text && !header.foreign && !(begun && end == End::Cut) {
            self.say_rest(out);
        }
    }
}

/// Whether a recipient is a function, by its prefix, or else by the request's functions.
fn is_call(recipient: &str, schemas: &ToolSchemas) -> bool {
    match recipient.strip_prefix(FUNCTIONS) {
        Some(name) => is_name(name),
        None => is_name(recipient) && schemas.has(recipient),
    }
}

#[cfg(test)]
mod tests;
