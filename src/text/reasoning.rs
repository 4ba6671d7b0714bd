//! Splits `<think>…</think>` at the head of a reply from the content after it.
//!
//! Some models call tools inside their reasoning and never close it. If the parser is lenient, a
//! complete call of one of the request's tools ends the reasoning. Text from the opening tag of a
//! call on is held back until it is clear whether it is a call.

use std::sync::Arc;

use step::ToolFormat;

use super::partial_tag;
use super::reply::Delta;
use super::tools::{self, Tags, ToolParser, ToolSchemas, newlines_at_end};

/// Bytes of blank text that may precede the opening tag.
const LEADING_BLANK_BYTES_MAX: usize = 64;

/// Reasoning and content of a piece of a reply, in this order.
#[derive(Debug, Default, PartialEq)]
pub struct Split {
    pub reasoning: String,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The text so far may be a part of the opening tag.
    Undecided,
    /// The text so far ends inside the reasoning, of which only newlines have come.
    Opened,
    Inside,
    /// The text so far ends after the closing tag, or after newlines that follow the tag.
    Closed,
    /// A call has ended the reasoning; a closing tag may still come.
    Called,
    Content,
}

/// Splitter of one reply. Reasoning is recognised only at the reply's start; later tags are text.
#[derive(Debug)]
pub struct ReasoningSplitter {
    open: &'static str,
    close: &'static str,
    phase: Phase,
    pending: String,
    calls: Option<Trial>,
    /// Closing tag of the call that ended the reasoning.
    call_end: &'static str,
    /// Last bytes that were passed on after the call that ended the reasoning.
    tail: String,
}

impl ReasoningSplitter {
    /// Splitter of a reply; `opened`: whether the prompt already ends with the opening tag.
    pub fn new(open: &'static str, close: &'static str, opened: bool) -> ReasoningSplitter {
        let phase = match opened {
            true => Phase::Opened,
            false => Phase::Undecided,
        };
        ReasoningSplitter {
            open,
            close,
            phase,
            pending: String::new(),
            calls: None,
            call_end: "",
            tail: String::new(),
        }
    }

    /// Splitter for a model without reasoning: everything is content.
    pub fn none() -> ReasoningSplitter {
        ReasoningSplitter {
            phase: Phase::Content,
            ..ReasoningSplitter::new("", "", false)
        }
    }

    /// Makes complete calls of `tools`, in the form `format`, end reasoning too.
    pub fn ended_by_calls_of(
        mut self,
        tools: Option<(ToolFormat, Arc<ToolSchemas>)>,
    ) -> ReasoningSplitter {
        self.calls = tools.map(|(format, tools)| Trial::new(format, tools));
        self
    }

    /// Whether the text so far ends inside reasoning.
    pub fn is_inside(&self) -> bool {
        matches!(self.phase, Phase::Opened | Phase::Inside)
    }

    /// Whether the text so far ends after reasoning, before any content.
    pub fn is_between(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Bytes of the pending text that may turn out to be content.
    pub fn undecided(&self) -> usize {
        match self.phase {
            Phase::Undecided | Phase::Called => self.pending.len(),
            Phase::Opened | Phase::Inside | Phase::Closed | Phase::Content => 0,
        }
    }

    /// Reads more text; appends to `out` the text whose kind is decided.
    pub fn push(&mut self, text: &str, out: &mut Split) {
        if self.phase == Phase::Content {
            out.content.push_str(text);
            return;
        }
        self.pending.push_str(text);
        if self.phase == Phase::Undecided {
            self.decide();
        }
        if self.phase == Phase::Opened && self.drop_newlines() {
            self.phase = Phase::Inside;
        }
        if self.phase == Phase::Inside {
            self.reason(out);
        }
        if self.phase == Phase::Called {
            self.pass_on(out);
        }
        if self.phase == Phase::Closed && self.drop_newlines() {
            self.phase = Phase::Content;
        }
        if self.phase == Phase::Content {
            out.content.push_str(&std::mem::take(&mut self.pending));
        }
    }

    /// Appends the text held back to `out`. `cut`: the reply ended at its length, not by itself.
    pub fn finish(&mut self, cut: bool, out: &mut Split) {
        if self.phase == Phase::Inside
            && let Some(calls) = &mut self.calls
            && let Some(at) = calls.ended(&self.pending, cut)
        {
            self.end_by_call(at, out);
        }
        let pending = std::mem::take(&mut self.pending);
        match self.phase {
            Phase::Undecided | Phase::Called | Phase::Content => out.content.push_str(&pending),
            Phase::Opened | Phase::Inside => out.reasoning.push_str(&pending),
            Phase::Closed => {}
        }
    }

    /// Looks for the opening tag at the start of the reply.
    fn decide(&mut self) {
        let head = self.pending.trim_start();
        if self.pending.len() - head.len() > LEADING_BLANK_BYTES_MAX {
            self.phase = Phase::Content;
        } else if let Some(rest) = head.strip_prefix(self.open) {
            self.pending = rest.to_string();
            self.phase = Phase::Opened;
        } else if !self.open.starts_with(head) {
            self.phase = Phase::Content;
        }
    }

    /// Drops newlines at the start of `pending`; returns whether text follows.
    fn drop_newlines(&mut self) -> bool {
        tools::drop_newlines(&mut self.pending);
        !self.pending.is_empty()
    }

    /// Releases reasoning up to the closing tag, up to its possible start, or up to a call.
    fn reason(&mut self, out: &mut Split) {
        let (text, tag) = (&self.pending, self.close);
        let close = text.find(tag);
        let end = close.unwrap_or_else(|| text.len() - partial_tag(text, tag));
        let mut free = end;
        if let Some(calls) = &mut self.calls {
            let found = match close {
                Some(_) => calls.ended(&self.pending[..end], false),
                None => calls.follow(&self.pending[..end]),
            };
            if let Some(at) = found {
                return self.end_by_call(at, out);
            }
            free = if close.is_some() { end } else { calls.settled };
        }
        self.release(free, out);
        if close.is_some() {
            let close = self.pending.find(self.close);
            let rest = close.map_or(0, |at| at + self.close.len());
            self.pending.drain(..rest);
            self.phase = Phase::Closed;
        }
    }

    /// Releases the first `free` bytes as reasoning, without newlines at their end.
    fn release(&mut self, free: usize, out: &mut Split) {
        let free = free - newlines_at_end(&self.pending[..free]);
        out.reasoning.push_str(&self.pending[..free]);
        self.pending.drain(..free);
        if let Some(calls) = &mut self.calls {
            calls.released(free);
        }
    }

    /// Ends the reasoning at the call that begins at byte `at` of the pending text.
    fn end_by_call(&mut self, at: usize, out: &mut Split) {
        self.release(at, out);
        let called = self.calls.take();
        self.call_end = called.map_or("", |trial| Tags::of(trial.format).end);
        self.phase = Phase::Called;
    }

    /// Passes on text after a call; a closing tag of the reasoning right after the call is dropped.
    fn pass_on(&mut self, out: &mut Split) {
        let (text, tag) = (&self.pending, self.close);
        let close = text.find(tag);
        let end = close.unwrap_or_else(|| text.len() - partial_tag(text, tag));
        let text: String = self.pending.drain(..end).collect();
        self.tail.push_str(&text);
        out.content.push_str(&text);
        if close.is_some() && self.tail.trim_end().ends_with(self.call_end) {
            self.pending.drain(..self.close.len());
            self.phase = Phase::Closed;
        } else if close.is_some() {
            self.phase = Phase::Content;
        }
        let long = self.tail.len().saturating_sub(TAIL_BYTES);
        let long = self.tail.ceil_char_boundary(long);
        self.tail.drain(..long);
    }
}

/// Bytes that are remembered after a call: its closing tag and some blanks.
const TAIL_BYTES: usize = 128;

/// Trial reader of reasoning as if it were content, to find a complete call in the reasoning.
#[derive(Debug)]
struct Trial {
    format: ToolFormat,
    tools: Arc<ToolSchemas>,
    parser: ToolParser,
    /// Bytes of the pending reasoning that the parser has read.
    read: usize,
    /// Bytes of the pending reasoning that are surely no part of a call.
    settled: usize,
    /// Whether a possible call begins after the `settled` bytes.
    called: bool,
}

impl Trial {
    fn new(format: ToolFormat, tools: Arc<ToolSchemas>) -> Trial {
        Trial {
            parser: ToolParser::new(format, tools.clone(), true)
                .forgiving(false)
                .of_known(),
            format,
            tools,
            read: 0,
            settled: 0,
            called: false,
        }
    }

    /// Reads more reasoning; returns the byte at which a call begins, once one is complete.
    fn follow(&mut self, pending: &str) -> Option<usize> {
        let mut deltas = Vec::new();
        self.parser.push(&pending[self.read..], &mut deltas);
        self.read = pending.len();
        self.judge(deltas)
    }

    /// Ends the trial with the reasoning and starts a new one; returns the byte at which a call
    /// begins, if one is complete. `cut`: the reply was cut off.
    fn ended(&mut self, pending: &str, cut: bool) -> Option<usize> {
        let mut deltas = Vec::new();
        self.parser.push(&pending[self.read..], &mut deltas);
        self.parser.finish(cut, &mut deltas);
        let found = self.judge(deltas);
        *self = Trial::new(self.format, self.tools.clone());
        found
    }

    fn judge(&mut self, deltas: Vec<Delta>) -> Option<usize> {
        for delta in deltas {
            match delta {
                Delta::Content(text) if !self.called => self.settled += text.len(),
                Delta::ToolCall { .. } => self.called = true,
                _ => {}
            }
        }
        if self.parser.completed() > 0 {
            return Some(self.settled);
        }
        if self.called && !self.parser.is_inside() {
            // The parser has found that this is no call, but text.
            self.called = false;
            self.settled = self.read - self.parser.pending();
        }
        None
    }

    /// Forgets the first `length` bytes, which are no longer pending.
    fn released(&mut self, length: usize) {
        self.read = self.read.saturating_sub(length);
        self.settled = self.settled.saturating_sub(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_linear, rechunk_text};
    use crate::tools::tests::schemas;

    fn streamed(opened: bool, pieces: &[&str]) -> (String, String) {
        let splitter = ReasoningSplitter::new("<think>", "</think>", opened);
        streamed_by(splitter, pieces)
    }

    fn streamed_by(mut splitter: ReasoningSplitter, pieces: &[&str]) -> (String, String) {
        let mut out = Split::default();
        for piece in pieces {
            splitter.push(piece, &mut out);
        }
        splitter.finish(false, &mut out);
        (out.reasoning, out.content)
    }

    fn pair(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.to_string(), content.to_string())
    }

    /// The name of a channel is a part of the tag, and calls are of the other form.
    #[test]
    fn thoughts_of_a_channel_are_split_from_a_call_after_them() {
        let call = "<|tool_call>call:edit{path:<|\"|>x<|\"|>}<tool_call|>";
        let thoughts = "<|channel>thought\nI see.\n<channel|>";
        let splitter = || ReasoningSplitter::new("<|channel>thought", "<channel|>", false);
        for content in ["Done.", call] {
            let text = format!("{thoughts}{content}");
            for at in text.char_indices().map(|(at, _)| at) {
                let (first, second) = text.split_at(at);
                let found = streamed_by(splitter(), &[first, second]);
                assert_eq!(found, pair("I see.", content), "{at}");
            }
        }
        let empty = format!("<|channel>thought\n<channel|>{call}");
        assert_eq!(streamed_by(splitter(), &[&empty]), pair("", call));
    }

    const CALL: &str = "<tool_call>\n<function=edit>\n<parameter=path>\nx\n</parameter>\n\
        </function>\n</tool_call>";

    fn called(text: &str) -> (String, String) {
        called_by(&[text])
    }

    fn called_by(pieces: &[&str]) -> (String, String) {
        let splitter = ReasoningSplitter::new("<think>", "</think>", true);
        streamed_by(
            splitter.ended_by_calls_of(Some((ToolFormat::Qwen3Coder, schemas().into()))),
            pieces,
        )
    }

    #[test]
    fn a_complete_call_ends_the_reasoning() {
        for (text, reasoning, content) in [
            ("I act.\nCALL", "I act.", "\nCALL"),
            ("I act.\nCALL\n</think>\n\n", "I act.", "\nCALL\n"),
            ("CALL\nCALL</think>\nDone.", "", "CALL\nCALLDone."),
            ("a CALL b</think>c", "a ", "CALL b</think>c"),
            ("a\n\nCALL</think>b</think>", "a", "\n\nCALLb</think>"),
        ] {
            let [text, content] = [text, content].map(|text| text.replace("CALL", CALL));
            assert_eq!(called(&text), pair(reasoning, &content), "{text}");
        }
    }

    #[test]
    fn what_is_no_complete_call_of_a_tool_stays_reasoning() {
        let half = &CALL[..CALL.len() / 2];
        let unknown = CALL.replace("edit", "unheard");
        for text in [
            half.to_string(),
            unknown,
            format!("{half}<tool_call> is how it begins"),
            "<tool_call> or <function=edit> <tool".to_string(),
            CALL.replace("<tool_call>\n", ""),
        ] {
            let reasoning = format!("a\n{text}");
            assert_eq!(called(&reasoning), pair(&reasoning, ""));
            let closed = format!("{reasoning}\n</think>\nb");
            assert_eq!(called(&closed), pair(&reasoning, "b"));
        }
    }

    #[test]
    fn reasoning_after_what_is_no_call_is_passed_on_at_once() {
        let splitter = ReasoningSplitter::new("<think>", "</think>", true);
        let mut splitter =
            splitter.ended_by_calls_of(Some((ToolFormat::Qwen3Coder, schemas().into())));
        let mut out = Split::default();
        splitter.push("a <tool_call> b <", &mut out);
        assert_eq!(out.reasoning, "a <tool_call> b ");
    }

    #[test]
    fn the_cut_never_changes_where_calls_end_the_reasoning() {
        let mut random = Random::new(6);
        let parts = [
            CALL,
            "</think>",
            "\n",
            "a",
            "<tool_call>",
            "\n<function=edit>\n",
            "<parameter=path>\n",
            "</parameter>",
            "\n</function>",
            "</tool_call>",
            "<",
        ];
        for _ in 0..3000 {
            let text: String = (0..random.below(12))
                .map(|_| parts[random.below(11)])
                .collect();
            let whole = called(&text);
            let cut = called_by(&rechunk_text(&text, &mut random));
            assert_eq!(cut, whole, "{text:?}");
        }
    }

    #[test]
    fn a_prompt_that_opened_the_tag_starts_inside() {
        assert_eq!(
            streamed(true, &["hm\n</think>\n\nParis"]),
            pair("hm", "Paris")
        );
    }

    #[test]
    fn a_reply_may_open_the_tag_itself() {
        assert_eq!(
            streamed(false, &["\n<think>\nhm</think>Paris"]),
            pair("hm", "Paris")
        );
    }

    #[test]
    fn a_reply_without_tags_is_content() {
        assert_eq!(
            streamed(false, &["<thi", "s is text"]),
            pair("", "<this is text")
        );
    }

    #[test]
    fn a_tag_inside_the_content_is_text() {
        assert_eq!(
            streamed(true, &["a</think>b<think>c</think>"]),
            pair("a", "b<think>c</think>")
        );
    }

    #[test]
    fn reasoning_that_never_ends_stays_reasoning() {
        assert_eq!(streamed(true, &["hm </thi"]), pair("hm </thi", ""));
    }

    #[test]
    fn rechunking_never_changes_the_result() {
        let mut random = Random::new(3);
        let parts = [
            "\n",
            "<think>",
            "</think>",
            "<",
            "</thi",
            "é",
            "word ",
            "\n\n\n\n\n\n\n\n\n",
        ];
        for _ in 0..2000 {
            let text: String = (0..random.below(12))
                .map(|_| parts[random.below(8)])
                .collect();
            let opened = random.below(2) == 0;
            let whole = streamed(opened, &[&text]);
            assert_eq!(
                whole,
                streamed(opened, &rechunk_text(&text, &mut random)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn time_is_linear_in_the_reply() {
        for unit in ["\n", "<", "</think", "</thin>"] {
            assert_linear(unit, |text| {
                let mut splitter = ReasoningSplitter::new("<think>", "</think>", true);
                let mut out = Split::default();
                for at in (0..text.len()).step_by(4) {
                    splitter.push(&text[at..(at + 4).min(text.len())], &mut out);
                }
            });
        }
    }
}
