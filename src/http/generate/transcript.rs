//! Builder of a conversation, which binds results of tools to their calls by id.
//!
//! Many templates print no ids, so the model can assign a result to its call only by the order,
//! while clients send results as they finish.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Field;

/// Builder of a conversation, message by message, in the form that templates read.
#[derive(Debug, Default)]
pub struct Transcript {
    turns: Vec<Turn>,
    /// Turn of the latest call with each id, and the index of the call in its turn.
    calls: HashMap<String, (usize, usize)>,
    /// Field of the first reasoning that could not be read, and how many such fields there are.
    unread: Option<(String, usize)>,
}

/// A conversation that was read to its end.
#[derive(Debug, Default)]
pub struct Read {
    /// Messages; results follow the message of their calls, in the order of the calls.
    pub messages: Vec<Value>,
    /// Warnings for the answer about parts that are left out.
    pub left_out: Vec<String>,
}

/// A message, and the results of the tool calls in it.
#[derive(Debug)]
struct Turn {
    message: Value,
    /// Result of each call, once it has come.
    results: Vec<Option<Value>>,
    /// Results that name no call: they go to the calls without a result, in their order.
    nameless: Vec<Value>,
}

/// Reason why a result belongs to no call.
enum Unbound {
    NoCall,
    Answered,
}

/// A message of the assistant in the form of templates, without absent reasoning and calls.
pub fn assistant(text: &str, reasoning: Option<String>, calls: Vec<Value>) -> Value {
    let mut message = json!({"role": "assistant", "content": text});
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = Value::from(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

impl Transcript {
    /// A conversation that continues `messages`, which an earlier request sent.
    pub fn after(messages: Vec<Value>) -> Transcript {
        let mut transcript = Transcript::default();
        messages.into_iter().for_each(|one| transcript.push(one));
        transcript
    }

    /// Adds the next message.
    pub fn push(&mut self, message: Value) {
        let id = message["tool_call_id"].as_str().map(str::to_string);
        let unbound = match id.and_then(|id| self.open(&id).ok()) {
            Some(result) => result.replace(message),
            None => Some(message),
        };
        self.turns.extend(unbound.map(Turn::of));
        if let Some(calls) = self.turns.last().map(Turn::ids) {
            let turn = self.turns.len() - 1;
            let placed = calls.into_iter().enumerate();
            let placed = placed.filter_map(|(index, id)| Some((id?, (turn, index))));
            self.calls.extend(placed);
        }
    }

    /// Adds `message`, the result of the call `id`; without an id, of a call without result in the
    /// last turn.
    ///
    /// # Errors
    /// Names the field of an id that no call has, or whose call has a result.
    pub fn push_result(&mut self, id: Option<&Field<'_>>, message: Value) -> Result<(), ApiError> {
        let id = id.filter(|id| id.value != "");
        let Some(id) = id else {
            match self.turns.last_mut().filter(|turn| turn.has_calls()) {
                Some(turn) => turn.nameless.push(message),
                None => self.turns.push(Turn::of(message)),
            }
            return Ok(());
        };
        let result = self.open(id.string()?).map_err(|unbound| {
            id.error(match unbound {
                Unbound::NoCall => "is the id of no call before this result; send the call too",
                Unbound::Answered => "is the id of a call that has its result; send one for each",
            })
        })?;
        *result = Some(message);
        Ok(())
    }

    /// Adds `text` as the result of the call that has `id`, as [`Transcript::push_result`].
    pub fn push_output(&mut self, id: &Field<'_>, text: &str) -> Result<(), ApiError> {
        let message = json!({"role": "tool", "tool_call_id": id.string()?, "content": text});
        self.push_result(Some(id), message)
    }

    /// Slot for the result of the last call with `id`.
    fn open(&mut self, id: &str) -> Result<&mut Option<Value>, Unbound> {
        let (turn, index) = *self.calls.get(id).ok_or(Unbound::NoCall)?;
        match &mut self.turns[turn].results[index] {
            Some(_) => Err(Unbound::Answered),
            open => Ok(open),
        }
    }

    /// Records that reasoning in the field `at`, which this server did not seal, is left out.
    pub fn leave_out_reasoning(&mut self, at: String) {
        self.unread.get_or_insert((at, 0)).1 += 1;
    }

    pub fn end(self) -> Read {
        let unread = self.unread.map(|(at, count)| {
            format!(
                "{at}: {count} pieces of reasoning are left out: this server did not seal them, or \
                 with another key, and cannot read them"
            )
        });
        let mut messages = Vec::with_capacity(self.turns.len());
        for turn in self.turns {
            let mut nameless = turn.nameless.into_iter();
            messages.push(turn.message);
            let results = turn.results.into_iter();
            messages.extend(results.filter_map(|result| result.or_else(|| nameless.next())));
            messages.extend(nameless);
        }
        Read {
            messages,
            left_out: unread.into_iter().collect(),
        }
    }
}

impl Turn {
    fn of(message: Value) -> Turn {
        let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
        Turn {
            message,
            results: vec![None; calls],
            nameless: Vec::new(),
        }
    }

    fn has_calls(&self) -> bool {
        !self.results.is_empty()
    }

    /// Ids of the turn's calls.
    fn ids(&self) -> Vec<Option<String>> {
        let calls = self.message["tool_calls"].as_array();
        let ids = calls.into_iter().flatten().map(|call| call["id"].as_str());
        ids.map(|id| id.map(str::to_string)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn calls(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
        json!({"role": "assistant", "tool_calls": calls})
    }

    fn result(text: &str) -> Value {
        json!({"role": "tool", "content": text})
    }

    fn push(transcript: &mut Transcript, id: &str) -> Result<(), String> {
        let value = json!(id);
        let field = Field {
            value: &value,
            path: "at".to_string(),
        };
        let pushed = transcript.push_result(Some(&field), result(id));
        pushed.map_err(|error| error.message)
    }

    /// Contents of the messages; those of calls have none.
    fn rendered(transcript: Transcript) -> String {
        let messages = transcript.end().messages;
        let contents = messages.iter().map(|one| one["content"].as_str());
        contents.map(|text| text.unwrap_or("|")).collect()
    }

    #[test]
    fn results_stand_in_the_order_of_their_calls() {
        let mut transcript = Transcript::default();
        transcript.push(calls(&["a", "b", "c"]));
        for id in ["c", "a", "b"] {
            push(&mut transcript, id).unwrap();
        }
        transcript.push(json!({"role": "user", "content": "?"}));
        assert_eq!(rendered(transcript), "|abc?");
    }

    #[test]
    fn a_late_result_stands_with_the_others_of_its_turn() {
        let mut transcript = Transcript::default();
        transcript.push(calls(&["a", "b"]));
        push(&mut transcript, "b").unwrap();
        transcript.push(json!({"role": "user", "content": "?"}));
        transcript.push(calls(&["c"]));
        push(&mut transcript, "a").unwrap();
        push(&mut transcript, "c").unwrap();
        assert_eq!(rendered(transcript), "|ab?|c");
    }

    #[test]
    fn an_id_that_comes_again_names_the_last_call() {
        let mut transcript = Transcript::default();
        for _ in 0..2 {
            transcript.push(calls(&["a", "b"]));
            push(&mut transcript, "b").unwrap();
            push(&mut transcript, "a").unwrap();
        }
        assert_eq!(rendered(transcript), "|ab|ab");
    }

    #[test]
    fn a_result_without_an_id_belongs_to_a_call_without_a_result() {
        let mut transcript = Transcript::default();
        transcript.push_result(None, result("x")).unwrap();
        transcript.push(calls(&["a", "b"]));
        for nameless in ["y", "z"] {
            transcript.push_result(None, result(nameless)).unwrap();
        }
        push(&mut transcript, "a").unwrap();
        assert_eq!(rendered(transcript), "x|ayz");
    }

    #[test]
    fn what_was_taken_before_is_bound_too() {
        let mut one = result("b");
        one["tool_call_id"] = json!("b");
        let mut transcript = Transcript::after(vec![calls(&["a", "b"]), one]);
        push(&mut transcript, "a").unwrap();
        assert!(push(&mut transcript, "b").unwrap_err().contains("has its"));
        assert_eq!(rendered(transcript), "|ab");
    }

    #[test]
    fn an_id_of_no_call_and_a_second_result_are_refused_by_name() {
        let mut transcript = Transcript::default();
        let error = push(&mut transcript, "a").unwrap_err();
        assert!(error.starts_with("at: is the id of no call"), "{error}");
        transcript.push(calls(&["a"]));
        push(&mut transcript, "a").unwrap();
        let error = push(&mut transcript, "a").unwrap_err();
        assert!(error.contains("has its result"), "{error}");
    }
}
