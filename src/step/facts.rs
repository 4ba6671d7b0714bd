//! Constants of a target that the server must know.

use std::time::Duration;

use crate::executor::TokenId;
use crate::{PAGE, Window};

/// Syntax in which a model calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    Qwen3Coder,
    Hermes,
    Llama3Json,
    Mistral,
    Gemma,
    MinimaxXml,
    Glm,
    Harmony,
}

/// Constants of one target, which the model fills in and hands over at start.
#[derive(Debug)]
pub struct Facts {
    /// Parts of the target's name.
    pub hardware: &'static str,
    pub model: &'static str,
    pub quant: &'static str,
    /// Name of the binary.
    pub binary: &'static str,
    /// Model id that the API reports.
    pub model_id: &'static str,
    /// Number of tokens of the vocabulary, padding among them.
    pub vocab: usize,
    /// Longest sequence, prompt and reply, in tokens.
    pub context: usize,
    /// Largest number of sequences of a step.
    pub sequences: usize,
    /// Number of slots of recurrent states: of sequences, then of snapshots, then of drafts.
    pub states: usize,
    /// Number of snapshots for later prompts: recurrent states, or the last pages of a window.
    pub snapshots: usize,
    /// Pages of the windowed group, if the model has one.
    pub window: Option<Window>,
    /// Largest number of draft tokens, of all sequences, that one step verifies.
    pub drafts: usize,
    /// Largest number of requests that wait for a slot.
    pub queued: usize,
    /// Largest number of prompt tokens of a step; a multiple of [`PAGE`].
    pub prefill_tokens: usize,
    /// Largest number of KV pages of the server: fewer where memory has no more.
    pub kv_pages: usize,
    /// Time between two tokens of a reply that a step with prompt chunks is to stay within.
    pub reply_gap: Duration,
    /// Tokens that end a turn of the conversation.
    pub stop_tokens: &'static [TokenId],
    /// Special tokens, which the tokenizer has in addition to its merges.
    pub added_tokens: &'static [(TokenId, &'static str)],
    /// Syntax of tool calls; none if the model calls no tools.
    pub tool_format: Option<ToolFormat>,
    /// Whether the model reasons by default.
    pub thinking: bool,
    /// Texts around reasoning; empty where the model does not reason.
    pub think_open: &'static str,
    pub think_close: &'static str,
    /// Files in the weights directory; empty where the model has none.
    pub tokenizer_file: &'static str,
    pub template_file: &'static str,
    /// Sampling of requests that state no parameters; a top-k of 0 keeps all tokens.
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    /// Files compiled into the binary: name and content.
    pub embedded: &'static [(&'static str, &'static [u8])],
}

/// Number of agents with prompts of `tokens` tokens that can ask in turn and each find the prompt
/// cached, in so many KV pages and snapshots. One snapshot is left to the agent that runs.
pub fn agents(pages: usize, snapshots: usize, tokens: usize) -> usize {
    let states = match snapshots {
        0 => usize::MAX,
        snapshots => snapshots - 1,
    };
    (pages / tokens.div_ceil(PAGE)).min(states)
}

impl Facts {
    /// Checks the facts, those of a constant when it is compiled.
    ///
    /// # Panics
    /// If an engine cannot run with these facts.
    pub const fn checked(self) -> Facts {
        assert!(self.prefill_tokens >= PAGE, "a prompt must make progress");
        assert!(
            self.prefill_tokens.is_multiple_of(PAGE),
            "prompts are cut on the grid"
        );
        assert!(
            self.context.is_multiple_of(PAGE),
            "page tables have whole pages"
        );
        if let Some(Window { positions, pages }) = self.window {
            let needed = Window::of(
                positions,
                self.sequences,
                self.prefill_tokens,
                self.snapshots,
            );
            assert!(pages >= needed.pages, "a step never waits for a page");
            assert!(self.snapshots > 0, "prompts go on from snapshots");
        }
        assert!(
            self.kv_pages * PAGE >= self.context,
            "the longest request that is accepted must fit"
        );
        self
    }

    /// Content of a file that is compiled into the binary.
    pub fn embedded_file(&self, name: &str) -> Option<&'static [u8]> {
        let mut files = self.embedded.iter();
        files
            .find(|(known, _)| *known == name)
            .map(|(_, content)| *content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_fit_are_those_of_whole_prompts_and_of_states_but_one() {
        assert_eq!(agents(1025, 0, 512 * PAGE), 2);
        assert_eq!(agents(1024, 0, 512 * PAGE + 1), 1);
        assert_eq!(agents(1024, 4, PAGE), 3);
        assert_eq!(agents(2, 4, 3 * PAGE), 0);
    }
}
