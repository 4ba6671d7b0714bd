//! JSON of a whole chat completion and of its chunks.

use std::io::Write;

use serde_json::{Value, json};

use engine::request::TokenLogprobs;
use host::calendar::seconds;
use step::executor::TokenId;
use text::chat::ChatModel;
use text::reply::Delta;

use crate::call::Usage;
use crate::generate::generation::{Finish, Settled};
use crate::generate::stream::Writer;
use crate::random;

use super::usage::{Tally, usage_json};

/// Log-probability reported for a token that cannot be chosen, since JSON has no infinity.
pub const LOGPROB_LEAST: f32 = -9999.0;

/// Members that a whole answer and each chunk of a stream repeat.
#[derive(Clone, Debug)]
pub struct Identity {
    pub id: String,
    /// Time at which the answer was created, seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Whether the request names the function to call: a reply with that call finishes with "stop",
    /// as it does in OpenAI's API and in vLLM. Replies with other calls finish with "tool_calls".
    pub call_named: bool,
    /// Warnings for the client about parts of the request that are not enforced.
    warnings: Vec<String>,
}

impl Identity {
    /// Identity of a new answer, whose id is `prefix` and random digits.
    pub fn new(prefix: &str, model: &str, warnings: Vec<String>) -> Identity {
        Identity {
            id: format!("{prefix}-{}", random::hex()),
            created: seconds(),
            model: model.to_string(),
            call_named: false,
            warnings,
        }
    }

    /// A whole answer of the kind `object`, such as `chat.completion`.
    pub fn whole(&self, object: &str, choices: Vec<Value>, usage: Usage) -> Value {
        let mut answer = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage_json(usage),
        });
        if !self.warnings.is_empty() {
            answer["warnings"] = json!(self.warnings);
        }
        answer
    }

    fn finish_name(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::ToolCalls if self.call_named => Finish::Stop.name(),
            other => other.name(),
        }
    }
}

/// An id for a call, in the form that the model's template takes.
fn call_id(model: &ChatModel) -> String {
    let id = format!("call_{}", &random::hex()[..24]);
    model.call_ids().shaped(&id).into_owned()
}

/// Log-probabilities of one token in the form of the API.
pub fn logprob_json(model: &ChatModel, id: TokenId, logprobs: &TokenLogprobs) -> Value {
    let entry = |id: TokenId, logprob: f32| {
        let bytes = model.tokenizer.token_bytes(id);
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": logprob.max(LOGPROB_LEAST),
            "bytes": bytes,
        })
    };
    let mut position = entry(id, logprobs.logprob);
    let top = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob));
    position["top_logprobs"] = top.collect();
    position
}

/// One reply, complete, in the form of the API.
fn choice_json(
    model: &ChatModel,
    identity: &Identity,
    reply: Settled,
    logprobs_wanted: bool,
) -> Value {
    let mut content = String::new();
    let mut reasoning = String::new();
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in reply.deltas {
        match delta {
            Delta::Reasoning(text) => reasoning.push_str(&text),
            Delta::Content(text) => content.push_str(&text),
            Delta::ToolCall { name, .. } => calls.push((name, String::new())),
            Delta::Arguments { index, json } => calls[index].1.push_str(&json),
        }
    }
    let content = Some(content).filter(|content| !content.is_empty() || calls.is_empty());
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = Value::from(reasoning);
    }
    if !calls.is_empty() {
        let call = |(name, arguments)| {
            json!({"id": call_id(model), "type": "function",
                   "function": {"name": name, "arguments": arguments}})
        };
        message["tool_calls"] = calls.into_iter().map(call).collect();
    }
    let logprobs = logprobs_wanted.then(|| {
        let mut all = Waiting::default();
        all.add(model, &reply.logprobs, &reply.reasoning_logprobs);
        all.json()
    });
    let finish = reply.finish.map(|finish| identity.finish_name(finish));
    json!({"index": reply.index, "message": message, "logprobs": logprobs, "finish_reason": finish})
}

/// The answer to a request that does not stream.
pub fn whole_answer(
    model: &ChatModel,
    identity: &Identity,
    replies: Vec<Settled>,
    usage: Usage,
    logprobs_wanted: bool,
) -> Value {
    let choice = |reply| choice_json(model, identity, reply, logprobs_wanted);
    let choices = replies.into_iter().map(choice).collect();
    identity.whole("chat.completion", choices, usage)
}

/// A token and its log-probabilities.
type Scores = (TokenId, TokenLogprobs);

/// Log-probabilities in JSON for the next chunk, or for the whole answer.
#[derive(Clone, Debug, Default)]
struct Waiting {
    content: Vec<Value>,
    reasoning: Vec<Value>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty()
    }

    fn add(&mut self, model: &ChatModel, content: &[Scores], reasoning: &[Scores]) {
        let position = |(id, logprobs): &Scores| logprob_json(model, *id, logprobs);
        self.content.extend(content.iter().map(position));
        self.reasoning.extend(reasoning.iter().map(position));
    }

    fn json(self) -> Value {
        let mut reported = json!({"content": self.content});
        if !self.reasoning.is_empty() {
            reported["reasoning_content"] = Value::Array(self.reasoning);
        }
        reported
    }
}

/// Writer of the chunks of a stream, each of which repeats the same head.
#[derive(Debug)]
pub struct Chunks {
    /// Text of a chunk from `data: {` to the opening of `choices`.
    head: String,
    /// Head of the first chunk, which also has the warnings; None once that is written.
    first: Option<String>,
    pub tally: Tally,
}

impl Chunks {
    /// Writer of chunks whose `object` member is `object`.
    pub fn new(identity: &Identity, object: &str, tally: Tally) -> Chunks {
        let (id, model) = (json!(identity.id), json!(identity.model));
        let created = identity.created;
        let warnings = match identity.warnings.is_empty() {
            true => String::new(),
            false => format!("\"warnings\":{},", json!(identity.warnings)),
        };
        let head = |warnings: &str| {
            format!(
                "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\
                 \"model\":{model},{warnings}\"choices\":["
            )
        };
        Chunks {
            head: head(""),
            first: Some(head(&warnings)),
            tally,
        }
    }

    /// Appends one chunk with the choice that `write_choice` writes.
    pub fn write(&mut self, out: &mut Vec<u8>, write_choice: impl FnOnce(&mut Vec<u8>)) {
        let first = self.first.take();
        out.extend_from_slice(first.as_ref().unwrap_or(&self.head).as_bytes());
        write_choice(out);
        self.tally.end_chunk(out);
    }

    /// Appends the last events of a stream: the usage if it is reported, and the end mark.
    pub fn write_end(&self, usage: Usage, out: &mut Vec<u8>) {
        self.tally.end_stream(&self.head, usage, out);
    }
}

/// Writes the events of a streamed answer.
#[derive(Debug)]
pub struct ChunkWriter {
    identity: Identity,
    chunks: Chunks,
    replies: usize,
    /// Log-probabilities for the next chunk of each reply; None if they are not requested.
    logprobs: Option<Vec<Waiting>>,
}

impl ChunkWriter {
    pub fn new(
        identity: &Identity,
        replies: usize,
        logprobs_wanted: bool,
        tally: Tally,
    ) -> ChunkWriter {
        ChunkWriter {
            identity: identity.clone(),
            chunks: Chunks::new(identity, "chat.completion.chunk", tally),
            replies,
            logprobs: logprobs_wanted.then(|| vec![Waiting::default(); replies]),
        }
    }

    /// Appends one chunk with the delta's fields that `write_fields` writes.
    fn chunk(
        &mut self,
        index: usize,
        finish: Option<Finish>,
        out: &mut Vec<u8>,
        write_fields: impl FnOnce(&mut Vec<u8>),
    ) {
        let logprobs = self.logprobs.as_mut();
        let waiting = logprobs.map(|logprobs| std::mem::take(&mut logprobs[index]));
        let identity = &self.identity;
        self.chunks.write(out, |out| {
            let _ = write!(out, "{{\"index\":{index},\"delta\":{{");
            write_fields(out);
            out.extend_from_slice(b"},\"logprobs\":");
            match waiting {
                Some(waiting) if !waiting.is_empty() => {
                    let _ = write!(out, "{}", waiting.json());
                }
                _ => out.extend_from_slice(b"null"),
            }
            match finish {
                Some(finish) => {
                    let name = identity.finish_name(finish);
                    let _ = write!(out, ",\"finish_reason\":\"{name}\"}}");
                }
                None => out.extend_from_slice(b",\"finish_reason\":null}"),
            }
        });
    }
}

impl Writer for ChunkWriter {
    fn write_admitted(&mut self, usage: Usage, _: &mut Vec<u8>) {
        self.chunks.tally.admit(usage);
    }

    fn write_start(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.replies {
            self.chunk(index, None, out, |out| {
                out.extend(br#""role":"assistant","content":"""#)
            });
        }
    }

    fn write(&mut self, model: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
        let index = settled.index;
        self.chunks.tally.add(&settled);
        if let Some(logprobs) = &mut self.logprobs {
            logprobs[index].add(model, &settled.logprobs, &settled.reasoning_logprobs);
        }
        for delta in &settled.deltas {
            self.chunk(index, None, out, |out| write_delta(model, delta, out));
        }
        let held_back = settled.deltas.is_empty() && settled.tokens > 0;
        if held_back && settled.finish.is_none() && self.chunks.tally.is_running() {
            self.chunk(index, None, out, |_| {});
        }
        if let Some(finish) = settled.finish {
            self.chunk(index, Some(finish), out, |_| {});
        }
    }

    fn write_end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        self.chunks.write_end(usage, out);
    }
}

/// Writes the fields of a chunk's member `delta`.
fn write_delta(model: &ChatModel, delta: &Delta, out: &mut Vec<u8>) {
    let text = |out: &mut Vec<u8>, name: &str, text: &str| {
        let _ = write!(out, "\"{name}\":");
        let _ = serde_json::to_writer(out, text);
    };
    match delta {
        Delta::Reasoning(piece) => text(out, "reasoning_content", piece),
        Delta::Content(piece) => text(out, "content", piece),
        Delta::ToolCall { index, name } => {
            let call = json!([{"index": index, "id": call_id(model), "type": "function",
                               "function": {"name": name, "arguments": ""}}]);
            let _ = write!(out, "\"tool_calls\":{call}");
        }
        Delta::Arguments { index, json } => {
            let _ = write!(out, "\"tool_calls\":[{{\"index\":{index},\"function\":{{");
            text(out, "arguments", json);
            out.extend_from_slice(b"}}]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::usage::UsageReport;
    use text::testing::chat_model;

    fn identity() -> Identity {
        Identity {
            id: "chatcmpl-1".to_string(),
            created: 7,
            model: "m\"".to_string(),
            call_named: false,
            warnings: Vec::new(),
        }
    }

    fn at_end() -> Tally {
        Tally::new(UsageReport::AtEnd, 3)
    }

    fn never() -> Tally {
        Tally::new(UsageReport::Never, 3)
    }

    fn settled(deltas: Vec<Delta>, finish: Option<Finish>) -> Settled {
        let logprobs = TokenLogprobs {
            logprob: f32::NEG_INFINITY,
            top: vec![(97, -0.5)],
        };
        Settled {
            deltas,
            logprobs: vec![(98, logprobs)],
            finish,
            ..Settled::default()
        }
    }

    fn events(writer: &mut ChunkWriter, settled: Settled) -> Vec<Value> {
        let mut out = Vec::new();
        writer.write(&chat_model(), settled, &mut out);
        parsed(out)
    }

    fn parsed(out: Vec<u8>) -> Vec<Value> {
        let text = String::from_utf8(out).unwrap();
        let event = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap());
        text.split_terminator("\n\n")
            .map(|text| event(text).unwrap())
            .collect()
    }

    #[test]
    fn each_reply_begins_with_its_role() {
        let mut out = Vec::new();
        ChunkWriter::new(&identity(), 2, true, at_end()).write_start(&mut out);
        let chunks = parsed(out);
        for (index, chunk) in chunks.iter().enumerate() {
            let choice = json!({"index": index, "delta": {"role": "assistant", "content": ""},
                "logprobs": null, "finish_reason": null});
            assert_eq!(chunk["choices"], json!([choice]));
        }
        assert_eq!(chunks.len(), 2);
    }

    #[test]
    fn chunks_carry_all_kinds_of_deltas() {
        let mut writer = ChunkWriter::new(&identity(), 1, false, at_end());
        let deltas = vec![
            Delta::Reasoning("r\n".to_string()),
            Delta::Content("\"c\"".to_string()),
            Delta::ToolCall {
                index: 0,
                name: "f".to_string(),
            },
            Delta::Arguments {
                index: 0,
                json: "{\"a\":1}".to_string(),
            },
        ];
        let chunks = events(&mut writer, settled(deltas, Some(Finish::ToolCalls)));
        let delta = |at: usize| &chunks[at]["choices"][0]["delta"];
        assert_eq!(delta(0), &json!({"reasoning_content": "r\n"}));
        assert_eq!(delta(1), &json!({"content": "\"c\""}));
        assert_eq!(
            delta(2)["tool_calls"][0]["function"],
            json!({"name": "f", "arguments": ""})
        );
        let arguments = json!([{"index": 0, "function": {"arguments": "{\"a\":1}"}}]);
        assert_eq!(delta(3)["tool_calls"], arguments);
        assert_eq!(chunks[4]["choices"][0]["finish_reason"], "tool_calls");
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk["model"] == "m\"" && chunk["usage"].is_null())
        );
        assert_eq!(
            events(&mut writer, settled(vec![], None)),
            Vec::<Value>::new()
        );
    }

    #[test]
    fn running_counts_include_a_token_whose_text_is_held_back() {
        let held_back = || Settled {
            tokens: 1,
            ..Settled::default()
        };
        let running = Tally::new(UsageReport::Running, 3);
        let mut writer = ChunkWriter::new(&identity(), 1, false, running);
        let chunks = events(&mut writer, held_back());
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({}));
        assert_eq!(chunks[0]["usage"]["completion_tokens"], 1);
        let mut writer = ChunkWriter::new(&identity(), 1, false, at_end());
        assert!(events(&mut writer, held_back()).is_empty());
    }

    #[test]
    fn positions_wait_for_a_chunk_to_carry_them() {
        let mut writer = ChunkWriter::new(&identity(), 1, true, never());
        assert!(events(&mut writer, settled(vec![], None)).is_empty());
        let mut last = settled(vec![], Some(Finish::Stop));
        last.reasoning_logprobs = last.logprobs.clone();
        let chunks = events(&mut writer, last);
        let reasoning = &chunks[0]["choices"][0]["logprobs"]["reasoning_content"];
        assert_eq!(reasoning.as_array().unwrap().len(), 1);
        let positions = chunks[0]["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap();
        assert_eq!(positions.len(), 2);
        let expected = json!({"token": "b", "logprob": -9999.0, "bytes": [98],
            "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]});
        assert_eq!(positions[0], expected);
    }

    #[test]
    fn what_is_not_enforced_is_reported() {
        let identity = Identity {
            warnings: vec!["the keyword \"x\"".to_string()],
            ..identity()
        };
        let mut writer = ChunkWriter::new(&identity, 1, false, never());
        let chunks = events(&mut writer, settled(vec![], Some(Finish::Stop)));
        assert_eq!(chunks[0]["warnings"], json!(identity.warnings));
        let more = events(&mut writer, settled(vec![], Some(Finish::Stop)));
        assert_eq!(more[0].get("warnings"), None, "they are reported once");
        let usage = Usage {
            prompt: 1,
            cached: 0,
            completion: 1,
            reasoning: 0,
        };
        let whole = whole_answer(&chat_model(), &identity, vec![], usage, false);
        assert_eq!(whole["warnings"], json!(identity.warnings));
    }

    #[test]
    fn a_whole_reply_concatenates_its_pieces() {
        let mut reply = Settled::default();
        for text in ["a", "b"] {
            reply.add(settled(vec![Delta::Content(text.to_string())], None));
        }
        reply.add(settled(vec![], Some(Finish::Length)));
        let answer = whole_answer(
            &chat_model(),
            &identity(),
            vec![reply],
            Usage {
                prompt: 1,
                cached: 0,
                completion: 2,
                reasoning: 0,
            },
            false,
        );
        let choice = json!({"index": 0, "message": {"role": "assistant", "content": "ab"},
            "logprobs": null, "finish_reason": "length"});
        assert_eq!(answer["choices"], json!([choice]));
        assert_eq!(answer["usage"]["total_tokens"], 3);
    }
}
