//! JSON of whole completions and of their chunks.

use std::io::Write;

use serde_json::{Value, json};

use crate::call::Usage;
use crate::chat::answer::{Chunks, Identity};
use crate::chat::usage::Tally;
use crate::generate::generation::{Finish, Settled};
use crate::generate::stream::Writer;
use engine::request::{Scored, TokenLogprobs};
use step::executor::TokenId;
use text::chat::ChatModel;
use text::detokenize::Detokenizer;
use text::reply::Delta;

use super::positions::{Positions, prompt_logprobs};

/// Parts of a completions request that shape its response.
#[derive(Debug)]
pub struct Shape {
    pub identity: Identity,
    pub prompts: Vec<Vec<TokenId>>,
    /// Replies to each prompt.
    pub choices: usize,
    /// Whether each text begins with its prompt.
    pub echo: bool,
    pub logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    /// Whether tokens are written as `token_id:` and their number.
    pub tokens_as_ids: bool,
}

impl Shape {
    /// The prompt that reply `index` completes.
    fn prompt(&self, index: usize) -> &[TokenId] {
        &self.prompts[index / self.choices]
    }

    /// Appends the log-probabilities of the next tokens of a reply, if they are requested.
    fn position(
        &self,
        model: &ChatModel,
        index: usize,
        scores: &[Scored],
        logprobs: &[(TokenId, TokenLogprobs)],
        text: &mut Progress,
    ) {
        let Some(count) = self.logprobs else { return };
        let style = (count, self.tokens_as_ids);
        if self.echo {
            let prompt = self.prompt(index);
            let first = (text.scored == 0).then_some(None);
            let others = scores.iter().map(|scored| Some(&scored.logprobs));
            for logprobs in first.into_iter().chain(others) {
                let id = prompt[text.scored];
                text.positions.push(model, id, logprobs, style, true);
                text.scored += 1;
                if text.scored == prompt.len() {
                    text.positions.end_prompt();
                }
            }
        }
        for (id, logprobs) in logprobs {
            let positions = &mut text.positions;
            positions.push(model, *id, Some(logprobs), style, false);
        }
    }
}

/// Progress of the text of one reply.
#[derive(Debug, Default)]
struct Progress {
    /// Number of the prompt's tokens whose log-probabilities were reported.
    scored: usize,
    positions: Positions,
    begun: bool,
}

/// The text of a prompt as the model saw it, control tokens included.
fn prompt_text(model: &ChatModel, prompt: &[TokenId]) -> String {
    let start = model.tokenizer.text_start();
    let (mut detokenizer, mut text) = (Detokenizer::of_text(start), String::new());
    for &id in prompt {
        detokenizer.push(model.tokenizer.token_bytes(id), &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

/// Appends the text of a raw reply, whose deltas are all content.
fn push_text(deltas: &[Delta], text: &mut String) {
    for delta in deltas {
        if let Delta::Content(piece) = delta {
            text.push_str(piece);
        }
    }
}

fn choice_json(model: &ChatModel, shape: &Shape, reply: Settled) -> Value {
    let (index, mut text) = (reply.index, String::new());
    if shape.echo {
        text = prompt_text(model, shape.prompt(index));
    }
    push_text(&reply.deltas, &mut text);
    let mut progress = Progress::default();
    shape.position(model, index, &reply.prompt, &reply.logprobs, &mut progress);
    let empty =
        || json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
    let logprobs = shape.logprobs;
    let logprobs = logprobs.map(|_| progress.positions.take().unwrap_or_else(empty));
    let mut choice = json!({
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": reply.finish.map(Finish::name),
    });
    if let Some(count) = shape.prompt_logprobs {
        let prompt = shape.prompt(index);
        choice["prompt_logprobs"] = prompt_logprobs(model, prompt, &reply.prompt, count);
    }
    choice
}

/// The answer to a request that does not stream.
pub fn whole_answer(
    model: &ChatModel,
    shape: &Shape,
    replies: Vec<Settled>,
    usage: Usage,
) -> Value {
    let choice = |reply| choice_json(model, shape, reply);
    let choices = replies.into_iter().map(choice).collect();
    shape.identity.whole("text_completion", choices, usage)
}

/// Writes the events of a streamed answer.
#[derive(Debug)]
pub struct ChunkWriter {
    shape: Shape,
    chunks: Chunks,
    texts: Vec<Progress>,
}

impl ChunkWriter {
    pub fn new(shape: Shape, tally: Tally) -> ChunkWriter {
        let chunks = Chunks::new(&shape.identity, "text_completion", tally);
        let mut texts = Vec::new();
        texts.resize_with(shape.prompts.len() * shape.choices, Progress::default);
        ChunkWriter {
            shape,
            chunks,
            texts,
        }
    }

    fn chunk(&mut self, index: usize, text: &str, finish: Option<Finish>, out: &mut Vec<u8>) {
        let choice = json!({
            "index": index,
            "text": text,
            "logprobs": self.texts[index].positions.take(),
            "finish_reason": finish.map(Finish::name),
        });
        self.chunks.write(out, |out| {
            // Writing to memory does not fail.
            let _ = write!(out, "{choice}");
        });
    }
}

impl Writer for ChunkWriter {
    fn write_admitted(&mut self, usage: Usage, _: &mut Vec<u8>) {
        self.chunks.tally.admit(usage);
    }

    fn write(&mut self, model: &ChatModel, settled: Settled, out: &mut Vec<u8>) {
        let index = settled.index;
        self.chunks.tally.add(&settled);
        let progress = &mut self.texts[index];
        let (scores, logprobs) = (&settled.prompt, &settled.logprobs);
        self.shape
            .position(model, index, scores, logprobs, progress);
        let mut text = String::new();
        if !std::mem::replace(&mut progress.begun, true) && self.shape.echo {
            text = prompt_text(model, self.shape.prompt(index));
        }
        push_text(&settled.deltas, &mut text);
        if !text.is_empty() || settled.finish.is_some() {
            self.chunk(index, &text, settled.finish, out);
        }
    }

    fn write_end(&mut self, usage: Usage, out: &mut Vec<u8>) {
        self.chunks.write_end(usage, out);
    }
}
