//! Parser of one output: tokens in, deltas of reasoning, content and tool calls out.

use std::ops::ControlFlow;
use std::sync::Arc;

use step::executor::TokenId;

use super::chat::ChatModel;
use super::detokenize::Detokenizer;
use super::reasoning::{ReasoningSplitter, Split};
use super::stopping::StopFilter;
use super::tools::harmony::Mark;
use super::tools::harmony::reader::{Begin, HarmonyReader};
use super::tools::{ToolParser, ToolSchemas};

/// A piece of an output; adjacent pieces of one kind are one text.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Reasoning(String),
    Content(String),
    /// Call `index` of function `name` begins.
    ToolCall {
        index: usize,
        name: String,
    },
    /// More JSON of the arguments of call `index`.
    Arguments {
        index: usize,
        json: String,
    },
}

/// Appends `delta`, joined to the last one if both are of one kind; empty deltas are dropped.
pub fn append(out: &mut Vec<Delta>, delta: Delta) {
    match (out.last_mut(), delta) {
        (_, Delta::Reasoning(text) | Delta::Content(text)) if text.is_empty() => {}
        (_, Delta::Arguments { json, .. }) if json.is_empty() => {}
        (Some(Delta::Reasoning(last)), Delta::Reasoning(text))
        | (Some(Delta::Content(last)), Delta::Content(text)) => last.push_str(&text),
        (
            Some(Delta::Arguments {
                index: at,
                json: last,
            }),
            Delta::Arguments { index, json },
        ) if *at == index => {
            last.push_str(&json);
        }
        (_, delta) => out.push(delta),
    }
}

/// Settings that shape the text of one reply.
#[derive(Debug, Default)]
pub struct ReplyFormat {
    /// Whether the prompt ends inside the reasoning.
    pub reasoning_opened: bool,
    /// Whether the prompt ends in a message of the assistant that the output continues.
    pub amid: bool,
    /// Whether all text is content: neither reasoning nor calls are looked for.
    pub raw: bool,
    /// Strings that end the output, of which they are no part. Only content and values in calls are
    /// searched.
    pub stops: Vec<String>,
    /// Number of first tokens of the reply in which `stops` do not count.
    pub min_tokens: usize,
    /// Tokens that end the reply and are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Schemas of the tools; None if calls are not wanted.
    pub tools: Option<Arc<ToolSchemas>>,
    /// Whether the first tool call ends the output.
    pub one_call: bool,
    /// Whether calls are read that deviate from their form or are inside the reasoning.
    pub lenient: bool,
}

/// Section of an output in which its text so far ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Reasoning,
    /// Blanks after reasoning, which are dropped.
    Between,
    Text,
    /// Text, or the start of a call.
    Opening,
    Call,
}

/// Whether the reply goes on. A break means that a stop string or the only wanted tool call is
/// complete, so that no more tokens are needed.
pub type Flow = ControlFlow<()>;

/// Parser of one output: bytes, reasoning, tool calls, stop strings, in this order.
#[derive(Debug)]
pub struct OutputParser {
    stop_tokens: Vec<TokenId>,
    raw: bool,
    detokenizer: Detokenizer,
    reasoning: ReasoningSplitter,
    tools: Option<ToolParser>,
    /// Reader in place of `reasoning` and `tools`, for models that use harmony.
    harmony: Option<HarmonyReader>,
    stops: StopFilter,
    /// Number of tokens until stop strings count.
    unending: usize,
    stopped_by: Option<usize>,
}

impl OutputParser {
    pub fn new(model: &ChatModel, format: ReplyFormat) -> OutputParser {
        let harmony = model.harmony.is_some() && !format.raw;
        let tags = model.think.filter(|_| !format.raw && !harmony);
        let reasoning = match tags {
            Some((open, close)) => ReasoningSplitter::new(open, close, format.reasoning_opened),
            None => ReasoningSplitter::none(),
        };
        let harmony = harmony.then(|| {
            let begin = Begin::of(format.reasoning_opened, format.amid);
            HarmonyReader::new(begin, format.tools.clone(), format.one_call)
        });
        let calls = model.tool_format.zip(format.tools);
        let calls = calls.filter(|_| harmony.is_none());
        let called = calls.clone().filter(|_| format.lenient);
        let one_call = format.one_call;
        let mut stops = StopFilter::new(&format.stops);
        stops.mute(format.min_tokens > 0);
        OutputParser {
            stop_tokens: format.stop_tokens,
            raw: format.raw,
            // Raw text continues the prompt, so the first token keeps its blank.
            detokenizer: match format.raw {
                true => Detokenizer::default(),
                false => Detokenizer::of_text(model.tokenizer.text_start()),
            },
            reasoning: reasoning.ended_by_calls_of(called),
            tools: calls.map(|(form, schemas)| {
                ToolParser::new(form, schemas, one_call).forgiving(format.lenient)
            }),
            harmony,
            stops,
            unending: format.min_tokens,
            stopped_by: None,
        }
    }

    /// Whether special and stop tokens are reported as parts of the output, as in raw output.
    pub fn reports_all(&self) -> bool {
        self.raw
    }

    /// Whether `id` adds to the text: neither a stop token nor one that structures the prompt.
    pub fn is_text(&self, model: &ChatModel, id: TokenId) -> bool {
        !self.stop_tokens.contains(&id) && !model.tokenizer.is_special(id)
    }

    /// Takes the next token and appends to `out` the deltas that are decided by it.
    pub fn push(&mut self, model: &ChatModel, id: TokenId, out: &mut Vec<Delta>) -> Flow {
        match self.unending {
            0 => self.stops.mute(false),
            _ => self.unending -= 1,
        }
        if self.harmony.is_some()
            && let Some(mark) = model.harmony.as_ref().and_then(|marks| marks.find(id))
        {
            return self.push_mark(mark, out);
        }
        if !self.is_text(model, id) {
            return Flow::Continue(());
        }
        let mut text = String::new();
        self.detokenizer
            .push(model.tokenizer.token_bytes(id), &mut text);
        self.push_text(&text, out)
    }

    /// Flushes pending text to `out`. `cut`: the output ended at its length, not by itself. Must
    /// not be called after a break.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) -> Flow {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.push_text(&text, out)?;
        let mut split = Split::default();
        self.reasoning.finish(cut, &mut split);
        self.push_split(split, out)?;
        let mut deltas = Vec::new();
        if let Some(tools) = &mut self.tools {
            tools.finish(cut, &mut deltas);
        }
        if let Some(harmony) = &mut self.harmony {
            harmony.finish(cut, &mut deltas);
        }
        self.push_deltas(deltas, out)?;
        self.stops.finish(out);
        Flow::Continue(())
    }

    /// Index in `ReplyFormat::stops` of the text that ended the reply.
    pub fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }

    /// Section in which the text so far ends.
    pub fn section(&self) -> Section {
        if let Some(harmony) = &self.harmony {
            return harmony.section();
        }
        match &self.tools {
            _ if self.reasoning.is_inside() => Section::Reasoning,
            _ if self.reasoning.is_between() => Section::Between,
            Some(tools) if tools.is_opening() => Section::Opening,
            Some(tools) if tools.is_inside() => Section::Call,
            _ => Section::Text,
        }
    }

    /// Whether the text so far ends inside reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.section() == Section::Reasoning
    }

    /// Bytes of content that were passed on so far.
    pub fn passed_on(&self) -> usize {
        self.stops.content().0
    }

    /// Bytes of content before the next token's text, if all pending text is content.
    pub fn content_ahead(&self) -> usize {
        let (passed_on, pending) = self.stops.content();
        let calls = self.tools.as_ref().map_or(0, ToolParser::pending);
        passed_on + pending + calls + self.reasoning.undecided()
    }

    /// Number of complete tool calls so far.
    pub fn calls(&self) -> usize {
        self.stops.calls()
    }

    /// Number of tool calls announced so far.
    pub fn begun_calls(&self) -> usize {
        self.stops.begun()
    }

    /// Whether the last announced call is incomplete.
    pub fn has_half_a_call(&self) -> bool {
        self.stops.has_half_a_call()
    }

    /// Takes a control token of harmony; no character continues across one.
    fn push_mark(&mut self, mark: Mark, out: &mut Vec<Delta>) -> Flow {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.push_harmony(
            |harmony, deltas| {
                harmony.push(&text, deltas);
                harmony.mark(mark, deltas);
            },
            out,
        )
    }

    fn push_harmony(
        &mut self,
        push: impl FnOnce(&mut HarmonyReader, &mut Vec<Delta>),
        out: &mut Vec<Delta>,
    ) -> Flow {
        let mut deltas = Vec::new();
        if let Some(harmony) = &mut self.harmony {
            push(harmony, &mut deltas);
        }
        self.push_deltas(deltas, out)?;
        match &self.harmony {
            Some(harmony) if harmony.has_enough() => Flow::Break(()),
            _ => Flow::Continue(()),
        }
    }

    fn push_text(&mut self, text: &str, out: &mut Vec<Delta>) -> Flow {
        if self.harmony.is_some() {
            return self.push_harmony(|harmony, deltas| harmony.push(text, deltas), out);
        }
        let mut split = Split::default();
        self.reasoning.push(text, &mut split);
        self.push_split(split, out)
    }

    fn push_split(&mut self, split: Split, out: &mut Vec<Delta>) -> Flow {
        append(out, Delta::Reasoning(split.reasoning));
        let mut deltas = Vec::new();
        match &mut self.tools {
            Some(tools) => tools.push(&split.content, &mut deltas),
            None => append(&mut deltas, Delta::Content(split.content)),
        }
        self.push_deltas(deltas, out)?;
        match &self.tools {
            Some(tools) if tools.has_enough() => Flow::Break(()),
            _ => Flow::Continue(()),
        }
    }

    /// Appends `deltas` to `out` up to a stop string.
    fn push_deltas(&mut self, deltas: Vec<Delta>, out: &mut Vec<Delta>) -> Flow {
        for delta in deltas {
            self.stopped_by = self.stops.push(delta, out);
            if self.stopped_by.is_some() {
                return Flow::Break(());
            }
        }
        Flow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Conversation;
    use crate::testing::{END_OF_TURN, Random, chat_model, gemma_model, rechunk};
    use serde_json::{Value, json};

    fn ids(text: &str) -> Vec<TokenId> {
        chat_model().tokenizer.encode(text).unwrap()
    }

    fn format(stops: &[&str]) -> ReplyFormat {
        let tool = json!({"function": {"name": "f", "parameters": {"properties": {}}}});
        ReplyFormat {
            reasoning_opened: true,
            stops: stops.iter().map(|stop| stop.to_string()).collect(),
            stop_tokens: vec![END_OF_TURN],
            tools: Some(ToolSchemas::new(&[tool]).into()),
            lenient: true,
            ..ReplyFormat::default()
        }
    }

    /// The deltas of a reply and the number of tokens that it took.
    fn run(format: ReplyFormat, tokens: &[TokenId]) -> (Vec<Delta>, usize) {
        read(&chat_model(), format, tokens)
    }

    fn read(model: &ChatModel, format: ReplyFormat, tokens: &[TokenId]) -> (Vec<Delta>, usize) {
        let mut reply = OutputParser::new(model, format);
        let mut out = Vec::new();
        for (at, &id) in tokens.iter().enumerate() {
            if reply.push(model, id, &mut out) == Flow::Break(()) {
                return (out, at + 1);
            }
        }
        let _ = reply.finish(false, &mut out);
        (out, tokens.len())
    }

    const REPLY: &str = "why\n</think>\n\nBecause é.\n<tool_call>\n<function=f>\n<parameter=a>\n\
        1\n</parameter>\n</function>\n</tool_call>";

    #[test]
    fn a_reply_is_passed_on_in_its_parts() {
        let (deltas, _) = run(format(&[]), &ids(REPLY));
        let expected = [
            Delta::Reasoning("why".to_string()),
            Delta::Content("Because é.".to_string()),
            Delta::ToolCall {
                index: 0,
                name: "f".to_string(),
            },
            Delta::Arguments {
                index: 0,
                json: "{\"a\":\"1\"}".to_string(),
            },
        ];
        assert_eq!(deltas, expected);
    }

    /// Thoughts of a channel, then calls whose texts hold what JSON escapes: each call is rendered
    /// as the model has written it.
    #[test]
    fn a_reply_of_gemma_comes_back_as_it_was_written() {
        let model = gemma_model();
        let calls = "<|tool_call>call:f{a:<|\"|>\"é\", {x}:[\\n]\n<|\"|>,\
            b:{c:[1,{d:true}],e:{}}}<tool_call|>\
            <|tool_call>call:f{list:[<|\"|>,<|\"|>,-0.5]}<tool_call|>";
        let text = format!("<|channel>thought\nwhy\n<channel|>{calls}");
        let tokens = model.tokenizer.encode(&text).unwrap();
        let of = |reasoning_opened| ReplyFormat {
            reasoning_opened,
            stop_tokens: model.stop_tokens.clone(),
            ..format(&[])
        };
        let tool_response = model.tokenizer.encode("<|tool_response>").unwrap();
        let (deltas, _) = read(&model, of(false), &[tokens.clone(), tool_response].concat());
        let opening = model.tokenizer.encode("<|channel>thought\n").unwrap();
        assert_eq!(read(&model, of(true), &tokens[opening.len()..]).0, deltas);
        assert_eq!(deltas[0], Delta::Reasoning("why".to_string()));
        let arguments = deltas.iter().filter_map(|delta| match delta {
            Delta::Arguments { json, .. } => Some(serde_json::from_str::<Value>(json).unwrap()),
            _ => None,
        });
        let called: Vec<Value> = arguments
            .map(|arguments| json!({"function": {"name": "f", "arguments": arguments}}))
            .collect();
        assert_eq!(called.len(), 2, "{deltas:?}");
        let message = json!({"role": "assistant", "content": "", "reasoning_content": "why",
            "tool_calls": called});
        let conversation = Conversation {
            messages: vec![json!({"role": "user", "content": "hi"}), message],
            ..Conversation::default()
        };
        let rendered = model.template.render(&conversation).unwrap();
        assert_eq!(
            rendered,
            format!("<|turn>user\nhi<turn|>\n<|turn>model\n{text}")
        );
    }

    #[test]
    fn a_call_in_the_reasoning_ends_it() {
        let call = &REPLY[REPLY.find("<tool_call>").unwrap()..];
        let text = format!("why\n{call}\n</think>\n\nDone.");
        let (deltas, _) = run(format(&[]), &ids(&text));
        let whole = &run(format(&[]), &ids(REPLY)).0;
        let expected = [
            &whole[..1],
            &whole[2..],
            &[Delta::Content("Done.".to_string())],
        ];
        assert_eq!(deltas, expected.concat());
        let strict = ReplyFormat {
            lenient: false,
            ..format(&[])
        };
        let (deltas, _) = run(strict, &ids(&text));
        let reasoning = format!("why\n{call}");
        assert_eq!(deltas[0], Delta::Reasoning(reasoning));
        assert_eq!(deltas[1..], [Delta::Content("Done.".to_string())]);
    }

    #[test]
    fn a_stop_string_ends_no_reply_before_its_least_length() {
        let tokens = ids("</think>\n\nab ab ab ab");
        let of = |min_tokens| ReplyFormat {
            min_tokens,
            ..format(&["b"])
        };
        let passed_on = |min_tokens| run(of(min_tokens), &tokens);
        assert_eq!(passed_on(0).0, [Delta::Content("a".to_string())]);
        let (deltas, taken) = passed_on(tokens.len() - 1);
        assert_eq!(taken, tokens.len());
        assert_eq!(deltas, [Delta::Content("ab ab ab a".to_string())]);
        assert_eq!(
            passed_on(tokens.len()).0,
            [Delta::Content("ab ab ab ab".to_string())]
        );
    }

    /// The markup of a call is never seen, so that nothing in it ends a reply.
    #[test]
    fn stop_strings_are_looked_for_in_what_is_passed_on() {
        let stops = ["\n<", ">", "tool_call", "function", "=", "\"", "}", "1\n"];
        let (deltas, _) = run(format(&stops), &ids(REPLY));
        assert_eq!(deltas, run(format(&[]), &ids(REPLY)).0);
        let mut reply = OutputParser::new(&chat_model(), format(&["1"]));
        let mut out = Vec::new();
        let mut tokens = ids(REPLY).into_iter();
        let stopped = tokens.any(|id| reply.push(&chat_model(), id, &mut out) == Flow::Break(()));
        let stopped = stopped || reply.finish(false, &mut out) == Flow::Break(());
        assert!(stopped && reply.has_half_a_call() && reply.calls() == 0);
        let json = "{\"a\":\"".to_string();
        assert_eq!(out.last(), Some(&Delta::Arguments { index: 0, json }));
    }

    #[test]
    fn stop_tokens_and_turn_marks_leave_no_text() {
        let (deltas, _) = run(format(&[]), &[u32::from(b'a'), 258, END_OF_TURN]);
        assert_eq!(deltas, [Delta::Reasoning("a".to_string())]);
    }

    #[test]
    fn stop_strings_count_in_the_content_only() {
        let (deltas, used) = run(format(&["h"]), &ids("hm</think>ahem"));
        assert_eq!(used, 2 + 1 + 2);
        let expected = [
            Delta::Reasoning("hm".to_string()),
            Delta::Content("a".to_string()),
        ];
        assert_eq!(deltas, expected);
    }

    #[test]
    fn one_call_ends_the_reply() {
        let (_, call) = REPLY.split_once("<tool_call>").unwrap();
        let second = format!("\n<tool_call>{call}").repeat(2);
        let tokens = ids(&format!("{REPLY}{second}"));
        let wanted = ReplyFormat {
            one_call: true,
            ..format(&[])
        };
        let (deltas, used) = run(wanted, &tokens);
        // Text after the first call shows that it has ended.
        assert!(used < ids(REPLY).len() + ids("\n<tool_call>\n<function=f>\n").len());
        assert_eq!(deltas.len(), 4);
    }

    /// Equal bytes in other tokens: the sequence of deltas stays the same.
    #[test]
    fn the_cut_into_tokens_never_changes_the_reply() {
        let mut random = Random::new(5);
        let model = chat_model();
        let parts = [
            "why",
            "\n",
            "</think>",
            "é🦀",
            "STOP",
            "ST",
            "<tool_call>",
            "<function=f>",
            "<parameter=a>",
            "</parameter>",
            "</function>",
            "</tool_call>",
        ];
        for _ in 0..2000 {
            let text: String = (0..random.below(30))
                .map(|_| parts[random.below(12)])
                .collect();
            let tokens = model.tokenizer.encode(&text).unwrap();
            let whole = read(&model, format(&["STOP"]), &tokens).0;
            let mut reply = OutputParser::new(&model, format(&["STOP"]));
            let mut out = Vec::new();
            let mut complete = false;
            let mut detokenizer = Detokenizer::default();
            for piece in rechunk(text.as_bytes(), &mut random) {
                let mut decoded = String::new();
                detokenizer.push(piece, &mut decoded);
                complete = complete || reply.push_text(&decoded, &mut out) == Flow::Break(());
            }
            if !complete {
                let _ = reply.finish(false, &mut out);
            }
            if !text.contains("STOP") {
                assert_eq!(out, whole, "{text:?}");
            }
        }
    }
}
