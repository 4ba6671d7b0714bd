//! Completions: texts without parts, with their prompts and the positions of all tokens.

use serde_json::{Value, json};

use crate::chat::answer::Identity;
use crate::chat::usage::{Tally, UsageReport};
use crate::completions::answer::{ChunkWriter, Shape, whole_answer};
use crate::completions::tests::assembled;
use crate::generate::generation::Settled;
use engine::request::Scored;
use step::executor::TokenId;
use text::chat::ChatModel;
use text::reply::ReplyFormat;
use text::testing::{END_OF_TURN, Random};

use super::{STOP, USAGE, events, gathered, logprobs, settled};

/// A text that goes on after a prompt, and how it is reported.
pub struct Continued<'a> {
    pub tokens: &'a [TokenId],
    prompt: Vec<TokenId>,
    echo: bool,
    scored: bool,
    tokens_as_ids: bool,
}

impl Continued<'_> {
    /// After any prompt: a character may begin in it and never end.
    pub fn new<'a>(tokens: &'a [TokenId], scored: bool, random: &mut Random) -> Continued<'a> {
        let any = |random: &mut Random| match random.below(4) {
            0 => random.below(263) as TokenId,
            _ => 97 + random.below(26) as TokenId,
        };
        let mut prompt: Vec<TokenId> = (0..1 + random.below(6)).map(|_| any(random)).collect();
        if random.below(4) == 0 {
            prompt.push(0xe2);
        }
        Continued {
            tokens,
            prompt,
            echo: random.below(2) == 0,
            scored,
            tokens_as_ids: random.below(8) == 0,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            identity: Identity::new("cmpl", "m", Vec::new()),
            prompts: vec![self.prompt.clone()],
            choices: 1,
            echo: self.echo,
            logprobs: self.scored.then_some(1),
            prompt_logprobs: None,
            tokens_as_ids: self.tokens_as_ids,
        }
    }

    /// Settled parts of groups of scores and tokens; a group ends where `cut` says so.
    fn settled(&self, model: &ChatModel, cut: &mut dyn FnMut() -> bool) -> Vec<Settled> {
        let format = ReplyFormat {
            raw: true,
            stops: vec![STOP.to_string()],
            min_tokens: 0,
            stop_tokens: vec![END_OF_TURN],
            ..ReplyFormat::default()
        };
        let mut pieces = vec![Settled::default()];
        let positions = self.prompt.iter().enumerate().skip(1);
        for (at, &id) in positions.filter(|_| self.scored && self.echo) {
            let scored = Scored {
                logprobs: logprobs(at, id),
                rank: 1,
            };
            pieces.last_mut().unwrap().prompt.push(scored);
            if cut() {
                pieces.push(Settled::default());
            }
        }
        let mut reply = settled(model, self.tokens, self.scored, format, &mut *cut);
        // The last scores may come with the first tokens.
        if !cut() {
            reply[0].prompt = pieces.pop().unwrap().prompt;
        }
        pieces.append(&mut reply);
        pieces
    }

    /// The chunks of groups that `cut` ends add up to the whole answer.
    pub fn check(&self, model: &ChatModel, mut cut: impl FnMut() -> bool) {
        let whole = gathered(self.settled(model, &mut || false));
        let answer = whole_answer(model, &self.shape(), vec![whole], USAGE);
        let mut expected = answer["choices"].clone();
        self.check_offsets(model, &expected[0]);
        // No chunk carries positions where there are none.
        if expected[0]["logprobs"]["tokens"] == json!([]) {
            expected[0]["logprobs"] = Value::Null;
        }
        let pieces = self.settled(model, &mut cut);
        let writer = ChunkWriter::new(self.shape(), Tally::new(UsageReport::Never, 0));
        let found = assembled(&events(model, Box::new(writer), pieces), 1);
        assert_eq!(Value::from(found), expected);
    }

    /// Each token that is text by itself stands where its offset says, or after the text's cut.
    fn check_offsets(&self, model: &ChatModel, choice: &Value) {
        let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
        let offsets = choice["logprobs"]["text_offset"].as_array();
        let prompt = self.prompt.iter().filter(|_| self.echo);
        let shown = prompt
            .map(|&id| (id, true))
            .chain(self.tokens.iter().map(|&id| (id, false)));
        for ((id, of_prompt), offset) in shown.zip(offsets.into_iter().flatten()) {
            let Ok(token) = std::str::from_utf8(model.tokenizer.token_bytes(id)) else {
                continue;
            };
            if of_prompt || !model.tokenizer.is_special(id) {
                let rest = text.iter().skip(offset.as_u64().unwrap() as usize);
                let same = rest.zip(token.chars()).all(|(there, own)| *there == own);
                assert!(same, "{token:?} is not at {offset} of {choice}");
            }
        }
    }
}
