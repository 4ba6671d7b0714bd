//! Control tokens structure a prompt, and no message may forge one. Control tokens are the special
//! tokens of the tokenizer and those that [`super::framing`] finds in the template.
//!
//! A template writes control tokens as text, and so may the author of a message. Before rendering,
//! texts of control tokens inside the conversation are broken by a mark, a character that the
//! conversation does not have: each control token in the rendered text was then written by the
//! template. The marks are removed before the text between control tokens is encoded, and no
//! control token is recognised in that text.
//!
//! Control tokens that the template itself looks for in messages of the assistant, such as the end
//! of reasoning, are left whole there.
//!
//! A part of a control token at an end of a message is also broken, since the template could
//! complete it; the middle of one is not: a template that writes `<|`, a role and `|>` means the
//! token.

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use serde_json::{Map, Value};

use step::executor::TokenId;

use super::template::Conversation;

/// Candidates for marks: characters that Unicode reserves for use inside a program.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Control tokens of a tokenizer, with a search for their texts.
pub struct ControlTokens {
    /// Automaton that finds the texts in linear time, as the tokenizer's library does; None without
    /// tokens.
    finder: Option<DoubleArrayAhoCorasick<TokenId>>,
    /// Texts of the tokens, the longest first.
    texts: Vec<String>,
    ids: Vec<TokenId>,
    /// Control tokens that the template looks for in messages of the assistant.
    looked_for: Vec<TokenId>,
    /// Whether a byte is the first one of a control token.
    begins: [bool; 256],
    ends: [bool; 256],
}

/// A control token that was found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub start: usize,
    pub end: usize,
    pub id: TokenId,
}

impl ControlTokens {
    /// Control tokens with these texts and ids.
    ///
    /// # Errors
    /// When the tokens are too many for one automaton.
    pub fn new(mut tokens: Vec<(String, TokenId)>) -> Result<ControlTokens, String> {
        tokens.retain(|(text, _)| !text.is_empty());
        tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let (mut begins, mut ends) = ([false; 256], [false; 256]);
        for (text, _) in &tokens {
            begins[usize::from(text.as_bytes()[0])] = true;
            ends[usize::from(text.as_bytes()[text.len() - 1])] = true;
        }
        let builder = DoubleArrayAhoCorasickBuilder::new().match_kind(MatchKind::LeftmostLongest);
        let patterns = tokens.iter().map(|(text, id)| (text, *id));
        let finder = match tokens.is_empty() {
            true => None,
            false => Some(builder.build_with_values(patterns)),
        };
        Ok(ControlTokens {
            finder: finder.transpose().map_err(|error| error.to_string())?,
            ids: tokens.iter().map(|(_, id)| *id).collect(),
            texts: tokens.into_iter().map(|(text, _)| text).collect(),
            looked_for: Vec::new(),
            begins,
            ends,
        })
    }

    /// First control token of `text` from byte `from` on; the longest of several at one byte.
    pub fn find(&self, text: &str, from: usize) -> Option<Found> {
        let finder = self.finder.as_ref()?;
        let rest = text.as_bytes().get(from..)?;
        // Most text has no byte that a token could begin with; looking for such a byte is quicker.
        let begins = |byte: &u8| self.begins[usize::from(*byte)];
        let skipped = rest.iter().position(begins)?;
        let found = finder.leftmost_find_iter(&rest[skipped..]).next()?;
        Some(Found {
            start: from + skipped + found.start(),
            end: from + skipped + found.end(),
            id: found.value(),
        })
    }

    /// Sets the tokens that stay whole in messages of the assistant.
    pub fn look_for(&mut self, tokens: Vec<TokenId>) {
        self.looked_for = tokens;
    }

    /// Whether `id` is a control token.
    pub fn holds(&self, id: TokenId) -> bool {
        self.ids.contains(&id)
    }

    fn longest(&self) -> usize {
        self.texts.first().map_or(0, String::len)
    }

    /// Breaks the control tokens inside the strings of a conversation. Returns the conversation to
    /// render and the mark that breaks the tokens; None without tokens to break.
    ///
    /// # Errors
    /// When the conversation uses up all characters that could be marks.
    pub fn hide(
        &self,
        conversation: &Conversation,
    ) -> Result<Option<(Conversation, char)>, &'static str> {
        let values = || conversation.messages.iter().chain(&conversation.tools);
        if !values().any(|value| any_string(value, &|text| self.is_forged(text))) {
            return Ok(None);
        }
        let unused =
            |mark: &char| !values().any(|value| any_string(value, &|text| text.contains(*mark)));
        let mark = MARKS.into_iter().find(unused);
        let mark = mark.ok_or("it holds every character that this server needs one of")?;
        let hidden = |value: &Value| self.hidden_value(value, mark);
        let message = |message: &Value| self.hidden_message(message, mark);
        let hidden = Conversation {
            messages: conversation.messages.iter().map(message).collect(),
            tools: conversation.tools.iter().map(hidden).collect(),
            ..conversation.clone()
        };
        Ok(Some((hidden, mark)))
    }

    /// Whether `text` contains a control token, or could become part of one together with text that
    /// the template writes around it.
    pub fn is_forged(&self, text: &str) -> bool {
        self.find(text, 0).is_some() || self.is_continued(text) || self.continues(text)
    }

    /// Whether `text`, without blanks at its end, ends with the start of a control token.
    fn is_continued(&self, text: &str) -> bool {
        let bytes = text.trim_end().as_bytes();
        let from = bytes.len().saturating_sub(self.longest());
        (from..bytes.len()).any(|at| {
            let end = &bytes[at..];
            self.begins[usize::from(end[0])]
                && self.has_part(end.len(), |token| &token[..end.len()] == end)
        })
    }

    /// Whether `text`, without blanks at its start, begins with the end of a control token.
    fn continues(&self, text: &str) -> bool {
        let bytes = text.trim_start().as_bytes();
        let until = bytes.len().min(self.longest());
        (0..until).any(|at| {
            let start = &bytes[..=at];
            let ended = |token: &[u8]| token.ends_with(start);
            self.ends[usize::from(bytes[at])] && self.has_part(start.len(), ended)
        })
    }

    /// Whether `holds` is true of the text of any control token longer than `bytes`.
    fn has_part(&self, bytes: usize, holds: impl Fn(&[u8]) -> bool) -> bool {
        let texts = self.texts.iter().map(String::as_bytes);
        texts.take_while(|text| text.len() > bytes).any(holds)
    }

    fn hidden_message(&self, message: &Value, mark: char) -> Value {
        let mut hidden = self.hidden_value(message, mark);
        if message["role"] == "assistant"
            && let Some(said) = message["content"].as_str()
        {
            hidden["content"] = Value::String(self.hidden(said, mark, &self.looked_for));
        }
        hidden
    }

    fn hidden_value(&self, value: &Value, mark: char) -> Value {
        match value {
            Value::String(text) => Value::String(self.hidden(text, mark, &[])),
            Value::Array(items) => {
                let hidden = items.iter().map(|item| self.hidden_value(item, mark));
                Value::Array(hidden.collect())
            }
            Value::Object(map) => {
                let hidden = |(key, value): (&String, &Value)| {
                    (self.hidden(key, mark, &[]), self.hidden_value(value, mark))
                };
                Value::Object(map.iter().map(hidden).collect::<Map<_, _>>())
            }
            value => value.clone(),
        }
    }

    /// `text` with a mark after the first character of each control token but the `whole` ones, and
    /// at its ends if the template could complete a control token there.
    fn hidden(&self, text: &str, mark: char, whole: &[TokenId]) -> String {
        let mut out = String::with_capacity(text.len() + mark.len_utf8());
        let body = text.trim_end();
        if body.is_empty() {
            return text.to_string();
        }
        let lead = text.len() - text.trim_start().len();
        out.push_str(&text[..lead]);
        if self.continues(text) {
            out.push(mark);
        }
        let mut from = lead;
        while let Some(found) = self.find(body, from) {
            if whole.contains(&found.id) {
                out.push_str(&body[from..found.end]);
                from = found.end;
                continue;
            }
            let first = body[found.start..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&body[from..found.start + first]);
            out.push(mark);
            // Another token may begin inside this one: the search goes on after its first
            // character.
            from = found.start + first;
        }
        out.push_str(&body[from..]);
        if self.is_continued(text) {
            out.push(mark);
        }
        out.push_str(&text[body.len()..]);
        out
    }
}

/// Whether `holds` is true of any string in `value`, keys included.
fn any_string(value: &Value, holds: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => holds(text),
        Value::Array(items) => items.iter().any(|item| any_string(item, holds)),
        Value::Object(map) => map
            .iter()
            .any(|(key, value)| holds(key) || any_string(value, holds)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_linear};
    use serde_json::json;

    fn control() -> ControlTokens {
        let token = |text: &str, id| (text.to_string(), id);
        ControlTokens::new(vec![
            token("<|end|>", 1),
            token("<|end|>x", 2),
            token("<s>", 3),
        ])
        .unwrap()
    }

    fn conversation(messages: Value, tools: Value) -> Conversation {
        Conversation {
            messages: messages.as_array().unwrap().clone(),
            tools: tools.as_array().unwrap().clone(),
            add_generation_prompt: true,
            enable_thinking: true,
            ..Conversation::default()
        }
    }

    #[test]
    fn the_longest_token_at_the_first_place_is_found() {
        let found = |text| control().find(text, 0).map(|found| (found.start, found.id));
        assert_eq!(found("a<|end|>b"), Some((1, 1)));
        assert_eq!(found("é<|end|>x<s>"), Some((2, 2)));
        assert_eq!(found("<|end|<s>"), Some((6, 3)));
        assert_eq!(found("<|end|"), None);
        assert_eq!(control().find("<s>", 1), None);
        let none = ControlTokens::new(vec![]).unwrap();
        assert_eq!(none.find("<s>", 0), None);
        assert!(!none.is_forged("<s>"));
    }

    #[test]
    fn hiding_takes_time_linear_in_the_text() {
        let control = control();
        for unit in ["<|end|>", "<|end", "<", ">", "<|", "a"] {
            assert_linear(unit, |text| drop(control.hidden(text, '\u{fdd0}', &[])));
        }
    }

    #[test]
    fn ordinary_conversations_are_left_alone() {
        let plain = conversation(json!([{"role": "user", "content": "a < b\n"}]), json!([]));
        assert!(control().hide(&plain).unwrap().is_none());
    }

    #[test]
    fn what_the_template_looks_for_is_left_to_what_the_assistant_has_said() {
        let mut control = control();
        control.look_for(vec![3]);
        let text = "a<s>b<|end|>c";
        let talk =
            json!([{"role": "user", "content": text}, {"role": "assistant", "content": text}]);
        let (hidden, _) = control
            .hide(&conversation(talk, json!([])))
            .unwrap()
            .unwrap();
        assert_eq!(
            hidden.messages[0]["content"],
            "a<\u{fdd0}s>b<\u{fdd0}|end|>c"
        );
        assert_eq!(hidden.messages[1]["content"], "a<s>b<\u{fdd0}|end|>c");
    }

    #[test]
    fn a_mark_that_is_in_use_is_not_taken() {
        let taken = json!([{"role": "user", "content": "\u{fdd0}<s>", "\u{fdd1}": 1}]);
        let hidden = control().hide(&conversation(taken, json!([]))).unwrap();
        let (hidden, mark) = hidden.unwrap();
        assert_eq!(mark, '\u{fdd2}');
        assert_eq!(hidden.messages[0]["content"], "\u{fdd0}<\u{fdd2}s>");
        let all: String = MARKS.collect::<String>() + "<s>";
        let all = conversation(json!([{"role": "user", "content": all}]), json!([]));
        assert!(control().hide(&all).is_err());
    }

    /// Whatever a template writes before or after a string, no control token comes of it.
    #[test]
    fn no_control_token_is_completed_at_the_ends_of_a_string() {
        const PARTS: [&str; 11] = [
            "<|end|>x", "<s>", "<", "|", "end", ">", "s", "x", " ", "\n", "é",
        ];
        const AROUND: [&str; 8] = ["", "<", "<|", "<|end|", "|>", ">", "s>", "\n"];
        let control = control();
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let parts = 0..random.below(6);
            let text: String = parts.map(|_| PARTS[random.below(11)]).collect();
            let hidden = control.hidden(&text, '\u{fdd0}', &[]);
            assert_eq!(hidden.replace('\u{fdd0}', ""), text);
            let trimmed = random.below(2) == 0;
            let shown = if trimmed { hidden.trim() } else { &hidden };
            let around = AROUND[random.below(8)];
            for rendered in [format!("{around}{shown}"), format!("{shown}{around}")] {
                let found = control.find(&rendered, 0);
                assert_eq!(found, None, "{text:?} and {around:?}");
            }
        }
    }
}
