//! Splits `<think>…</think>` at the head of a reply from what follows it.
//!
//! Models that are to call tools sometimes do so while they think, and never close their reasoning.
//! Where that is looked for, a complete call of a tool that there is ends the reasoning. From an
//! opening tag on reasoning is held back until it shows whether it is such a call.

use std::sync::Arc;

use step::ToolFormat;

use super::held_prefix;
use super::reply::Delta;
use super::tools::{Tags, ToolParser, ToolSchemas, newlines_at_end};

/// Blank text that may precede an opening tag.
const LEADING_BLANK_BYTES_MAX: usize = 64;

/// The two parts of a piece of reply; reasoning comes first.
#[derive(Debug, Default, PartialEq)]
pub struct Split {
    pub reasoning: String,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Nothing but the start of an opening tag so far.
    Undecided,
    /// Inside, before the first character that is no newline.
    Opened,
    Inside,
    /// Behind the closing tag, before the first character that is no newline.
    Closed,
    /// In what follows a call that has ended the reasoning: the model may still close it.
    Called,
    Content,
}

/// Follows one reply. Reasoning is recognised at the head of the reply only; a tag further on is
/// text of the model.
#[derive(Debug)]
pub struct ReasoningSplitter {
    open: &'static str,
    close: &'static str,
    state: State,
    held: String,
    calls: Option<Trial>,
    /// End of calls in the form of the one that has ended the reasoning.
    call_end: &'static str,
    /// The end of what was passed on behind a call.
    tail: String,
}

impl ReasoningSplitter {
    /// `opened`: the prompt already ends with the opening tag.
    pub fn new(open: &'static str, close: &'static str, opened: bool) -> ReasoningSplitter {
        let state = match opened {
            true => State::Opened,
            false => State::Undecided,
        };
        ReasoningSplitter {
            open,
            close,
            state,
            held: String::new(),
            calls: None,
            call_end: "",
            tail: String::new(),
        }
    }

    /// A splitter for a model without reasoning: everything is content.
    pub fn none() -> ReasoningSplitter {
        ReasoningSplitter {
            state: State::Content,
            ..ReasoningSplitter::new("", "", false)
        }
    }

    /// The reasoning that a call of one of these tools, in this form, ends too.
    pub fn ended_by_calls_of(
        mut self,
        tools: Option<(ToolFormat, Arc<ToolSchemas>)>,
    ) -> ReasoningSplitter {
        self.calls = tools.map(|(format, tools)| Trial::new(format, tools));
        self
    }

    /// Whether the text so far ends inside reasoning.
    pub fn is_inside(&self) -> bool {
        matches!(self.state, State::Opened | State::Inside)
    }

    /// Whether the text so far ends behind reasoning, before any content.
    pub fn is_between(&self) -> bool {
        self.state == State::Closed
    }

    /// Bytes so far of which it is open whether they are content.
    pub fn undecided(&self) -> usize {
        match self.state {
            State::Undecided | State::Called => self.held.len(),
            State::Opened | State::Inside | State::Closed | State::Content => 0,
        }
    }

    /// Appends to `out` what `text` settles.
    pub fn push(&mut self, text: &str, out: &mut Split) {
        if self.state == State::Content {
            out.content.push_str(text);
            return;
        }
        self.held.push_str(text);
        if self.state == State::Undecided {
            self.decide();
        }
        if self.state == State::Opened && self.drop_newlines() {
            self.state = State::Inside;
        }
        if self.state == State::Inside {
            self.reason(out);
        }
        if self.state == State::Called {
            self.pass_on(out);
        }
        if self.state == State::Closed && self.drop_newlines() {
            self.state = State::Content;
        }
        if self.state == State::Content {
            out.content.push_str(&std::mem::take(&mut self.held));
        }
    }

    /// Appends to `out` what was held back. `cut`: the reply ends at its length and not by itself.
    pub fn finish(&mut self, cut: bool, out: &mut Split) {
        if self.state == State::Inside
            && let Some(calls) = &mut self.calls
            && let Some(at) = calls.ended(&self.held, cut)
        {
            self.end_by_call(at, out);
        }
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Undecided | State::Called | State::Content => out.content.push_str(&held),
            State::Opened | State::Inside => out.reasoning.push_str(&held),
            State::Closed => {}
        }
    }

    /// Looks for the opening tag at the head of the reply.
    fn decide(&mut self) {
        let head = self.held.trim_start();
        if self.held.len() - head.len() > LEADING_BLANK_BYTES_MAX {
            self.state = State::Content;
        } else if let Some(rest) = head.strip_prefix(self.open) {
            self.held = rest.to_string();
            self.state = State::Opened;
        } else if !self.open.starts_with(head) {
            self.state = State::Content;
        }
    }

    /// Drops newlines at the head of `held`; returns whether text follows them.
    fn drop_newlines(&mut self) -> bool {
        let kept = self.held.trim_start_matches('\n').len();
        self.held.drain(..self.held.len() - kept);
        !self.held.is_empty()
    }

    /// Releases reasoning up to the closing tag, or up to what may be its start, or a call.
    fn reason(&mut self, out: &mut Split) {
        let close = self.held.find(self.close);
        let end = close.unwrap_or_else(|| self.held.len() - held_prefix(&self.held, self.close));
        let mut free = end;
        if let Some(calls) = &mut self.calls {
            let found = match close {
                Some(_) => calls.ended(&self.held[..end], false),
                None => calls.follow(&self.held[..end]),
            };
            if let Some(at) = found {
                return self.end_by_call(at, out);
            }
            free = if close.is_some() { end } else { calls.settled };
        }
        self.release(free, out);
        if close.is_some() {
            let close = self.held.find(self.close);
            let rest = close.map_or(0, |at| at + self.close.len());
            self.held.drain(..rest);
            self.state = State::Closed;
        }
    }

    /// Releases the first `free` bytes as reasoning, without the newlines at their end.
    fn release(&mut self, free: usize, out: &mut Split) {
        let free = free - newlines_at_end(&self.held[..free]);
        out.reasoning.push_str(&self.held[..free]);
        self.held.drain(..free);
        if let Some(calls) = &mut self.calls {
            calls.released(free);
        }
    }

    /// A call begins at byte `at`, and what is held from there on is content.
    fn end_by_call(&mut self, at: usize, out: &mut Split) {
        self.release(at, out);
        let called = self.calls.take();
        self.call_end = called.map_or("", |trial| Tags::of(trial.format).end);
        self.state = State::Called;
    }

    /// Passes on what follows a call; the tag that closes the reasoning is dropped behind a call.
    fn pass_on(&mut self, out: &mut Split) {
        let close = self.held.find(self.close);
        let end = close.unwrap_or_else(|| self.held.len() - held_prefix(&self.held, self.close));
        let text: String = self.held.drain(..end).collect();
        self.tail.push_str(&text);
        out.content.push_str(&text);
        if close.is_some() && self.tail.trim_end().ends_with(self.call_end) {
            self.held.drain(..self.close.len());
            self.state = State::Closed;
        } else if close.is_some() {
            self.state = State::Content;
        }
        let long = self.tail.len().saturating_sub(TAIL_BYTES);
        let long = self.tail.ceil_char_boundary(long);
        self.tail.drain(..long);
    }
}

/// Bytes that are remembered behind a call: its closing tag and some blanks.
const TAIL_BYTES: usize = 128;

/// Reads reasoning as if it were content, to find a complete call in it.
#[derive(Debug)]
struct Trial {
    format: ToolFormat,
    tools: Arc<ToolSchemas>,
    parser: ToolParser,
    /// Bytes of the held reasoning that the parser has read, and those of them that are no call.
    read: usize,
    settled: usize,
    /// Whether a possible call begins behind those that are settled.
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

    /// Reads on in the reasoning so far; returns where a call begins, once one is complete.
    fn follow(&mut self, held: &str) -> Option<usize> {
        let mut deltas = Vec::new();
        self.parser.push(&held[self.read..], &mut deltas);
        self.read = held.len();
        self.judge(deltas)
    }

    /// `settled` where the reasoning ends; the next one is another one.
    fn ended(&mut self, held: &str, cut: bool) -> Option<usize> {
        let mut deltas = Vec::new();
        self.parser.push(&held[self.read..], &mut deltas);
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
            // It has broken off.
            self.called = false;
            self.settled = self.read - self.parser.held();
        }
        None
    }

    /// The first bytes are held no more.
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
    fn thoughts_of_a_channel_are_split_from_a_call_behind_them() {
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
    fn reasoning_behind_what_is_no_call_is_told_at_once() {
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
