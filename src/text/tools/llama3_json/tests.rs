use super::*;
use crate::reply::Delta;
use crate::tools::ToolParser;
use crate::tools::tests::{calls, content, schemas, streamed};
use serde_json::{Value, json};

const CALL: &str = r#"{"name": "edit", "parameters": {"path": "a"}}"#;

/// Arguments of the calls of `edit` in a text, and what else it says.
fn read(text: &str) -> (Vec<Option<Value>>, String) {
    let (deltas, completed) = streamed::<Llama3Json>(&[text]);
    let found = calls(&deltas);
    let whole = found.iter().filter(|(_, arguments)| arguments.is_some());
    assert_eq!(whole.count(), completed, "{deltas:?}");
    assert!(found.iter().all(|(name, _)| name == "edit"), "{deltas:?}");
    let said = deltas.into_iter().map(|delta| match delta {
        Delta::Content(text) => text,
        _ => String::new(),
    });
    let arguments = found.into_iter().map(|(_, arguments)| arguments);
    (arguments.collect(), said.collect())
}

fn one() -> Vec<Option<Value>> {
    vec![Some(json!({"path": "a"}))]
}

#[test]
fn a_call_may_be_written_in_several_ways() {
    for text in [
        CALL,
        r#"{"name":"edit","arguments":{"path":"a"}}"#,
        "{\n    \"name\": \"edit\",\n    \"parameters\": {\n        \"path\": \"a\"\n    }\n}",
        r#"{"type": "function", "name": "edit", "parameters": {"path": "a"}}"#,
        r#"{"name": "edit", "type": "function", "parameters": {"path": "a"}}"#,
        r#"{"parameters": {"path": "a"}, "name": "edit"}"#,
        r#"{"name": "edit", "parameters": {"path": "a"}, "id": "}"}"#,
        r#"{"name": "edit", "parameters": "{\"path\": \"a\"}"}"#,
        r#"{"name": "edit", "parameters": {"path": "a"}"#,
    ] {
        assert_eq!(read(text), (one(), String::new()), "{text}");
    }
}

#[test]
fn what_separates_calls_is_not_passed_on() {
    for between in ["", ";", "; ", " ; ", "\n", ";\n", " ", "\n\n"] {
        let text = format!("{CALL}{between}{CALL}");
        let twice = [one(), one()].concat();
        assert_eq!(read(&text), (twice, String::new()), "{between:?}");
    }
    assert_eq!(read(&format!("{CALL};\n")), (one(), String::new()));
    assert_eq!(read(&format!("{CALL}. So.")), (one(), ". So.".to_string()));
}

#[test]
fn json_that_is_no_call_stays_text() {
    for text in [
        r#"{"name": "Bob", "parameters": {"path": "a"}}"#,
        r#"{"name": "Bob Smith", "age": 3}"#,
        r#"{"name": "edit"}"#,
        r#"{"name": "edit", "parameters": [1]}"#,
        r#"{"name": 7, "parameters": {}}"#,
        r#"{"type": "function", "function": {"name": "edit", "parameters": {}}}"#,
        r#"{"type": "object", "name": "edit", "parameters": {}}"#,
        r#"{"calls": [{"name": "edit", "parameters": {"path": "a"}}]}"#,
        r#"{"a b": {"name": "edit", "parameters": {}}}"#,
        r#"{"parameters": {"name": "edit", "parameters": {}}}"#,
        "fn main() { println!(\"{x}\") }",
        "{}",
        "{",
        "{\"name\": \"edit\", \"param",
    ] {
        assert_eq!(streamed::<Llama3Json>(&[text]), (vec![content(text)], 0));
    }
}

#[test]
fn text_that_is_no_call_is_not_held_back() {
    for text in [
        r#"{"items": [{"n"#,
        r#"{"name": "Bob", "x"#,
        r#"{"type": "object","#,
        "{ x",
    ] {
        let mut parser = ToolParser::of::<Llama3Json>(schemas(), false);
        let mut deltas = Vec::new();
        parser.push(text, &mut deltas);
        assert_eq!(deltas, [content(text)]);
    }
}

#[test]
fn a_call_after_json_that_is_none_is_read() {
    let text = format!("As {{\"a\": \"}}\"}}:\n{CALL}");
    assert_eq!(read(&text), (one(), "As {\"a\": \"}\"}:".to_string()));
}

#[test]
fn without_slips_the_form_of_the_template_counts_alone() {
    for (text, calls) in [
        (CALL, 1),
        (r#"{"name":"edit","parameters":{"path":"a"}}"#, 0),
        (r#"{"name": "edit", "arguments": {"path": "a"}}"#, 0),
        (r#"{"name": "edit", "parameters":  {"path": "a"}}"#, 0),
        (r#"{"parameters": {"path": "a"}, "name": "edit"}"#, 0),
        (r#"{"calls": [{"name": "edit", "parameters": {}}]}"#, 0),
    ] {
        let mut parser = ToolParser::of::<Llama3Json>(schemas(), false).forgiving(false);
        let mut deltas = Vec::new();
        parser.push(text, &mut deltas);
        parser.finish(false, &mut deltas);
        assert_eq!(parser.completed(), calls, "{text}");
        assert!(calls == 1 || deltas == [content(text)], "{deltas:?}");
    }
}

#[test]
fn a_cut_reply_keeps_a_brace_at_its_end() {
    let mut parser = ToolParser::of::<Llama3Json>(schemas(), false);
    let mut deltas = Vec::new();
    parser.push("fn main() {", &mut deltas);
    parser.finish(true, &mut deltas);
    assert_eq!(deltas, [content("fn main() {")]);
}
