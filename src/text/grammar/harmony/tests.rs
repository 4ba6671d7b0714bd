use serde_json::{Value, json};

use super::*;
use crate::chat::ChatModel;
use crate::grammar::calls::{self, Calls};
use crate::grammar::{Grammar, JsonGrammar};
use crate::testing::harmony_model;
use step::ToolFormat;

fn tools() -> Vec<Value> {
    let tool = |name: &str, strict: bool| {
        json!({"type": "function", "function": {"name": name, "strict": strict,
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
                "required": ["a"], "additionalProperties": false}}})
    };
    vec![tool("f", true), tool("bash", false)]
}

fn calls(which: Calls, loose: bool) -> Grammar {
    calls::grammar_of(ToolFormat::Harmony, &tools(), which, loose, None).unwrap()
}

fn answer() -> Grammar {
    Grammar::Json(JsonGrammar {
        schema: json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"], "additionalProperties": false}),
        strict: true,
        whitespace: false,
    })
}

/// Number of characters of a reply that a guide takes, and whether the reply may end there.
fn taken(model: &ChatModel, guide: &mut dyn Constraint, reply: &str) -> (usize, bool) {
    let ids = model.tokenizer.encode(reply).unwrap();
    let mut mask = Mask::default();
    let mut bytes = 0;
    for id in ids {
        let fits = match guide.next() {
            Next::Free { .. } => true,
            Next::Masked => {
                guide.mask(&mut mask).unwrap();
                mask.ids().any(|allowed| allowed == id)
            }
            Next::Complete => false,
        };
        if !fits {
            break;
        }
        guide.advance(id).unwrap();
        bytes += model.tokenizer.token_bytes(id).len();
    }
    let may_stop = match guide.next() {
        Next::Free { stop } => stop,
        Next::Masked => guide.mask(&mut mask).unwrap(),
        Next::Complete => true,
    };
    (bytes, may_stop)
}

/// Whether a reply is taken whole, and may end there.
fn takes(grammar: Option<&Grammar>, plan: Plan, begin: Begin, reply: &str) -> bool {
    let model = harmony_model();
    let compiled = grammar.map(|grammar| model.grammars.compile(0, grammar).unwrap());
    let marks = model.harmony.as_ref().unwrap();
    let mut guide = model.grammars.harmony(compiled, plan, begin, marks);
    taken(&model, &mut *guide, reply) == (reply.len(), true)
}

fn header(is_json: bool) -> Plan {
    Plan::Whole(harmony_model().harmony.unwrap().answer(is_json).to_vec())
}

#[test]
fn an_answer_has_its_header_and_follows_its_schema() {
    let takes = |begin, reply: &str| takes(Some(&answer()), header(true), begin, reply);
    let head = "<|channel|>final <|constrain|>json<|message|>";
    assert!(takes(Begin::Header, &format!("{head}{{\"a\":1}}")));
    assert!(!takes(Begin::Header, &format!("{head}{{\"b\":1}}")));
    assert!(!takes(Begin::Header, &format!("{head}{{\"a\":1")));
    assert!(!takes(Begin::Header, "<|channel|>analysis<|message|>"));
    assert!(takes(Begin::Content, "{\"a\":1}"));
    let thought = "any {\"b\" to=functions.x<|end|><|start|>assistant";
    assert!(takes(
        Begin::Reasoning,
        &format!("{thought}{head}{{\"a\":1}}")
    ));
    assert!(takes(
        Begin::Reasoning,
        &format!("thought{head}{{\"a\":1}}")
    ));
    assert!(!takes(Begin::Reasoning, "thought<|end|>"));
}

#[test]
fn calls_that_must_come_are_written_in_either_order() {
    let grammar = calls(Calls::Several, false);
    let takes = |begin, reply: &str| takes(Some(&grammar), Plan::Whole(Vec::new()), begin, reply);
    for head in [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        " to=functions.f<|channel|>commentary json",
        "<|channel|>analysis to=functions.f<|constrain|>json",
        " to=functions.f",
    ] {
        let call = format!("{head}<|message|>{{\"a\":1}}");
        assert!(takes(Begin::Header, &call), "{call}");
        let after = format!("why<|end|><|start|>assistant{call}");
        assert!(takes(Begin::Reasoning, &after), "{after}");
        assert!(takes(
            Begin::Header,
            &format!("{call}<|end|><|start|>assistant{call}")
        ));
    }
    for reply in [
        "<|channel|>final<|message|>no",
        "<|channel|>commentary to=functions.g<|message|>{}",
        "<|channel|>commentary to=functions.f<|message|>{\"b\":1}",
    ] {
        assert!(!takes(Begin::Header, reply), "{reply}");
    }
}

#[test]
fn calls_in_text_are_bound_in_headers_alone() {
    let grammar = calls(Calls::AfterTag, true);
    let takes = |reply: &str| takes(Some(&grammar), Plan::CallsInText, Begin::Header, reply);
    let text = "<|channel|>analysis<|message|> to=functions.g{}<|end|><|start|>assistant";
    assert!(takes(&format!(
        "{text}<|channel|>final<|message|> to=functions.g"
    )));
    let call = "<|channel|>commentary to=functions.f json<|message|>";
    assert!(takes(&format!("{text}{call}{{\"a\":1}}")));
    assert!(!takes(&format!("{text}{call}{{\"b\":1}}")));
    assert!(takes(
        "<|channel|>commentary to=functions.bash<|message|>{\"b\":1}"
    ));
    assert!(!takes("<|channel|>commentary to=functions.g<|message|>{}"));
    assert!(!takes("<|channel|>commentary to=python code<|message|>1"));
}

#[test]
fn names_are_those_of_the_tools() {
    let grammar = calls::names_of(ToolFormat::Harmony, &tools());
    let takes = |reply: &str| takes(Some(&grammar), Plan::CallsInText, Begin::Header, reply);
    assert!(takes(
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>any"
    ));
    assert!(takes(
        " to=functions.bash<|channel|>commentary json<|message|>{"
    ));
    assert!(!takes(" to=functions.ba<|channel|>"));
    assert!(!takes(" to=functions.g"));
}

#[test]
fn a_reply_without_calls_opens_none() {
    let takes = |reply: &str| takes(None, Plan::CallsInText, Begin::Header, reply);
    assert!(!takes("<|channel|>commentary to=functions.f"));
    assert!(takes("<|channel|>final<|message|> to=functions.f"));
}

#[test]
fn an_answer_may_stand_instead_of_calls() {
    let answer = answer();
    let tools = tools();
    let grammar = calls::grammar_of(
        ToolFormat::Harmony,
        &tools,
        Calls::Several,
        true,
        Some(&answer),
    );
    let grammar = grammar.unwrap();
    let takes = |reply: &str| {
        takes(
            Some(&grammar),
            Plan::Whole(Vec::new()),
            Begin::Reasoning,
            reply,
        )
    };
    let after = "why<|end|><|start|>assistant";
    assert!(takes(&format!(
        "{after}<|channel|>final json<|message|>{{\"a\":1}}"
    )));
    assert!(takes(&format!(
        "{after} to=functions.f<|message|>{{\"a\":1}}"
    )));
    assert!(!takes(&format!("{after}<|channel|>final<|message|>text")));
}
