//! Log-probabilities in the form of the completions API: four lists, one entry per token.

use serde_json::{Map, Value, json};

use crate::chat::answer::LOGPROB_LEAST;
use engine::request::{Scored, TokenLogprobs};
use step::executor::TokenId;
use text::chat::ChatModel;
use text::detokenize::Detokenizer;

/// Written form of a token. A token that is no valid text is written as its bytes, so that no two
/// tokens of a position look alike.
pub fn token_text(model: &ChatModel, id: TokenId, as_id: bool) -> String {
    let bytes = model.tokenizer.token_bytes(id);
    if as_id || bytes.is_empty() {
        return format!("token_id:{id}");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => {
            let escaped = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", escaped.collect::<String>())
        }
    }
}

/// Log-probabilities of one text by token. The pieces that `take` returns concatenate to the whole.
#[derive(Debug, Default)]
pub struct Positions {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    /// Offset of each token in characters of the text.
    text_offset: Vec<usize>,
    /// Number of complete characters of the text so far.
    characters: usize,
    detokenizer: Detokenizer,
}

impl Positions {
    /// Ends the prompt's text: a character that is incomplete here counts as replaced by U+FFFD.
    pub fn end_prompt(&mut self) {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.characters += text.chars().count();
    }

    /// Appends a token of the prompt or of the reply. In replies, special tokens have no text.
    /// `logprobs` is None for the first token of a text.
    pub fn push(
        &mut self,
        model: &ChatModel,
        id: TokenId,
        logprobs: Option<&TokenLogprobs>,
        (count, as_id): (usize, bool),
        in_prompt: bool,
    ) {
        self.tokens.push(token_text(model, id, as_id));
        self.text_offset.push(self.next(model, id));
        if in_prompt || !model.tokenizer.is_special(id) {
            self.advance(model, id);
        }
        let Some(logprobs) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        let mut top = Map::new();
        let likely = logprobs.top.iter().take(count).copied();
        for (id, logprob) in likely.chain([(id, logprobs.logprob)]) {
            let text = token_text(model, id, as_id);
            top.entry(text).or_insert(json!(logprob.max(LOGPROB_LEAST)));
        }
        let own = logprobs.logprob.max(LOGPROB_LEAST);
        self.token_logprobs.push(json!(own));
        self.top_logprobs.push(Value::Object(top));
    }

    /// Offset of token `id`: after the incomplete character before, if `id` does not continue it.
    fn next(&self, model: &ChatModel, id: TokenId) -> usize {
        let first = model.tokenizer.token_bytes(id).first();
        let breaks = first.is_some_and(|&byte| self.detokenizer.is_broken_by(byte));
        self.characters + usize::from(breaks)
    }

    fn advance(&mut self, model: &ChatModel, id: TokenId) {
        let mut text = String::new();
        self.detokenizer
            .push(model.tokenizer.token_bytes(id), &mut text);
        self.characters += text.chars().count();
    }

    /// Takes the positions appended since the last call; None if there are none.
    pub fn take(&mut self) -> Option<Value> {
        if self.tokens.is_empty() {
            return None;
        }
        Some(json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
            "text_offset": std::mem::take(&mut self.text_offset),
        }))
    }
}

/// The answer's `prompt_logprobs`: null for the first token, then for each token an object by token
/// id with the `count` most likely tokens and the prompt's own.
pub fn prompt_logprobs(
    model: &ChatModel,
    prompt: &[TokenId],
    scores: &[Scored],
    count: usize,
) -> Value {
    let position = |(id, scored): (&TokenId, &Scored)| {
        let entry = |id: TokenId, logprob: f32, rank: usize| {
            let entry = json!({
                "logprob": logprob.max(LOGPROB_LEAST),
                "rank": rank,
                "decoded_token": token_text(model, id, false),
            });
            (id.to_string(), entry)
        };
        let top = scored.logprobs.top.iter().take(count);
        let likely = (1..).zip(top);
        let likely = likely.map(|(rank, &(id, logprob))| entry(id, logprob, rank));
        let mut likely: Map<String, Value> = likely.collect();
        let own = entry(*id, scored.logprobs.logprob, scored.rank as usize);
        likely.insert(own.0, own.1);
        Value::Object(likely)
    };
    let positions = prompt.iter().skip(1).zip(scores).map(position);
    std::iter::once(Value::Null).chain(positions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::testing::{END_OF_TURN, chat_model};

    fn logprobs(own: f32, top: &[(TokenId, f32)]) -> TokenLogprobs {
        TokenLogprobs {
            logprob: own,
            top: top.to_vec(),
        }
    }

    #[test]
    fn offsets_count_characters_of_the_text() {
        let model = chat_model();
        let mut positions = Positions::default();
        let ids = model.tokenizer.encode("a🦀b").unwrap();
        for id in ids {
            positions.push(&model, id, None, (0, false), true);
        }
        positions.push(
            &model,
            END_OF_TURN,
            Some(&logprobs(-1.0, &[])),
            (0, false),
            false,
        );
        let reported = positions.take().unwrap();
        assert_eq!(reported["text_offset"], json!([0, 1, 1, 1, 1, 2, 3]));
        assert_eq!(reported["tokens"][1], "bytes:\\xf0");
        assert_eq!(reported["tokens"][6], "<|im_end|>");
        assert_eq!(positions.take(), None);
    }

    #[test]
    fn an_offset_is_after_what_is_never_completed() {
        let (model, mut positions) = (chat_model(), Positions::default());
        let any = logprobs(-1.0, &[]);
        for id in [0xf0, 97, 0xe2, 0x82] {
            positions.push(&model, id, None, (0, false), true);
        }
        // The end of the prompt is no beginning of the reply.
        positions.end_prompt();
        for id in [0xac, 0xf0, 0x9f, 98] {
            positions.push(&model, id, Some(&any), (0, false), false);
        }
        let reported = positions.take().unwrap();
        assert_eq!(reported["text_offset"], json!([0, 1, 2, 2, 3, 4, 4, 5]));
    }

    #[test]
    fn the_likeliest_tokens_include_the_one_that_stands_there() {
        let model = chat_model();
        let mut positions = Positions::default();
        positions.push(&model, 97, None, (1, false), true);
        let unlikely = logprobs(-7.0, &[(99, -0.5), (100, -1.0)]);
        positions.push(&model, 98, Some(&unlikely), (1, false), true);
        let likely = logprobs(f32::NEG_INFINITY, &[(98, -0.25)]);
        positions.push(&model, 255, Some(&likely), (1, true), false);
        let reported = positions.take().unwrap();
        assert_eq!(reported["token_logprobs"], json!([null, -7.0, -9999.0]));
        let top =
            json!([null, {"c": -0.5, "b": -7.0}, {"token_id:98": -0.25, "token_id:255": -9999.0}]);
        assert_eq!(reported["top_logprobs"], top);
    }

    #[test]
    fn prompt_logprobs_have_ranks() {
        let scored = Scored {
            logprobs: logprobs(-3.0, &[(99, -0.5), (100, -1.0)]),
            rank: 9,
        };
        let reported = prompt_logprobs(&chat_model(), &[97, 98], &[scored], 1);
        let entry = json!({
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
            "98": {"logprob": -3.0, "rank": 9, "decoded_token": "b"},
        });
        assert_eq!(reported, json!([null, entry]));
    }
}
