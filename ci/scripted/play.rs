//! An executor that computes no model: it plays replies from a script, which it chooses by what
//! the prompt says and by how many turns the assistant has had.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use model::target;
use serde::Deserialize;
use step::executor::{DeviceError, Executor, SeqRows, TokenId};
use text::chat::ChatModel;
use text::tokenizer::Tokenizer;

/// Time of a step unless another is wished: replies come token by token, as those of a model do.
pub const STEP: Duration = Duration::from_micros(200);
/// Logit of the token that comes next; all others have 0.
const CERTAIN: f32 = 40.0;
/// Text behind the reasoning of a reply.
const REASONING_END: &str = "</think>\n\n";
/// Beginning of the assistant's turns in a prompt.
const TURN: &str = "<|im_start|>assistant";

/// Replies to the prompts of one conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scene {
    /// A prompt is of this conversation when it holds all of these texts.
    pub when: Vec<String>,
    /// By turn, in the model's own form. The last one is repeated. Reasoning up to `</think>` is
    /// left out where the prompt has ended it.
    pub replies: Vec<String>,
}

/// Contents of one slot.
#[derive(Clone, Default)]
struct Slot {
    prompt: Vec<TokenId>,
    reply: Option<Vec<TokenId>>,
    /// Tokens of the reply so far.
    said: usize,
}

/// Plays the first scene that fits a prompt; a prompt that none fits gets an empty reply.
pub struct Play {
    scenes: Vec<Scene>,
    /// Time of a step.
    step: Duration,
    tokenizer: Arc<Tokenizer>,
    end_of_turn: TokenId,
    slots: Vec<Slot>,
    /// Tokens of the rows of the last step.
    rows: Vec<TokenId>,
    /// Logits of the last step.
    logits: Vec<f32>,
}

impl Play {
    pub fn new(scenes: Vec<Scene>, step: Duration, model: &ChatModel) -> Play {
        Play {
            scenes,
            step,
            tokenizer: model.tokenizer.clone(),
            end_of_turn: model.stop_tokens[0],
            slots: vec![Slot::default(); target::STATES],
            rows: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Has the states that a sequence's rows read and write hold what they are behind.
    fn begin(&mut self, row: &SeqRows<'_>) {
        let states = row.states;
        let [from, to] = [states.from, states.to].map(|slot| slot.0 as usize);
        if row.start == 0 {
            self.slots[to] = Slot::default();
        } else if from != to {
            self.slots[to] = self.slots[from].clone();
        }
        if let Some(snapshot) = states.snapshot {
            let mut slot = self.slots[to].clone();
            slot.prompt.extend(&row.tokens[..snapshot.rows]);
            self.slots[snapshot.slot.0 as usize] = slot;
        }
    }

    fn reply_to(&self, prompt: &[TokenId]) -> Result<Vec<TokenId>, DeviceError> {
        let bytes = prompt.iter().flat_map(|&id| self.tokenizer.token_bytes(id));
        let bytes: Vec<u8> = bytes.copied().collect();
        let prompt = String::from_utf8_lossy(&bytes);
        let reply = reply_to(&self.scenes, &prompt);
        let encoded = self.tokenizer.encode(reply);
        encoded.map_err(|error| DeviceError::Failed(error.to_string()))
    }
}

/// The reply that the scenes have for a prompt.
fn reply_to<'s>(scenes: &'s [Scene], prompt: &str) -> &'s str {
    let fits = |scene: &&Scene| scene.when.iter().all(|text| prompt.contains(text));
    let scene = scenes.iter().find(fits);
    // The last turn of a prompt is the one that is to be said.
    let turn = prompt.matches(TURN).count().saturating_sub(1);
    let reply = scene.and_then(|scene| scene.replies.get(turn).or(scene.replies.last()));
    let reply = reply.map_or("", String::as_str);
    match reply.split_once(REASONING_END) {
        Some((_, answer)) if prompt.ends_with(REASONING_END) => answer,
        _ => reply,
    }
}

impl Executor for Play {
    const VOCAB: usize = target::VOCAB;

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        thread::sleep(self.step);
        self.logits.clear();
        self.rows.clear();
        for row in rows {
            self.rows.extend(row.tokens);
            let slot = row.states.to.0 as usize;
            self.begin(row);
            if self.slots[slot].reply.is_none() {
                self.slots[slot].prompt.extend(row.tokens);
            }
            if row.logits == 0 {
                continue;
            }
            if self.slots[slot].reply.is_none() {
                self.slots[slot].reply = Some(self.reply_to(&self.slots[slot].prompt)?);
            }
            let slot = &mut self.slots[slot];
            let reply = slot.reply.as_deref().unwrap_or_default();
            let next = reply.get(slot.said).copied().unwrap_or(self.end_of_turn);
            slot.said += 1;
            certain(next, &mut self.logits);
        }
        Ok(())
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        Ok(&self.logits[index * Self::VOCAB..][..Self::VOCAB])
    }

    /// Inside a prompt each token is followed by itself.
    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        for &row in rows {
            certain(self.rows[row], logits);
        }
        Ok(())
    }
}

/// Appends a row of logits.
fn certain(token: TokenId, logits: &mut Vec<f32>) {
    let first = logits.len();
    logits.resize(first + target::VOCAB, 0.0);
    logits[first + token as usize] = CERTAIN;
}
