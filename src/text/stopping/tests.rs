use super::*;
use crate::testing::{Random, rechunk_text};
use serde_json::{Value, json};

fn call(name: &str) -> Delta {
    let name = name.to_string();
    Delta::ToolCall { index: 0, name }
}

fn arguments(json: &str) -> Delta {
    let json = json.to_string();
    Delta::Arguments { index: 0, json }
}

fn content(text: &str) -> Delta {
    Delta::Content(text.to_string())
}

fn filtered(stops: &[&str], deltas: &[Delta]) -> (Vec<Delta>, Option<usize>, usize) {
    let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
    let (mut filter, mut out) = (StopFilter::new(&stops), Vec::new());
    for delta in deltas {
        if let Some(stopped) = filter.push(delta.clone(), &mut out) {
            return (out, Some(stopped), filter.calls());
        }
    }
    filter.finish(&mut out);
    (out, None, filter.calls())
}

#[test]
fn what_is_no_value_ends_nothing() {
    let json = r#"{"name": "a\\b", "list": [1, true, {"x": null}], "e": {}}"#;
    let deltas = [content("Sure."), call("f"), arguments(json), content("x")];
    let stops = [
        "{", "}", "\"", ":", ",", "name", "list", "f", "\n", "[", ".S", "b,", "1,",
    ];
    assert_eq!(filtered(&stops, &deltas), (deltas.to_vec(), None, 1));
}

#[test]
fn a_value_is_looked_at_as_it_reads() {
    for (stop, before) in [
        ("Rome", r#"{"a":"Paris and "#),
        ("\n", r#"{"a":"Paris and Rome"#),
        ("é", r#"{"a":"Paris and Rome\n\"and "#),
        ("\"and \u{e9}", r#"{"a":"Paris and Rome\n"#),
        ("🦀", r#"{"a":"Paris and Rome\n\"and \u00e9 "#),
        (
            "25",
            r#"{"a":"Paris and Rome\n\"and \u00e9 \ud83e\udd80","b":["#,
        ),
        (
            "rue",
            r#"{"a":"Paris and Rome\n\"and \u00e9 \ud83e\udd80","b":[25,t"#,
        ),
    ] {
        let json = r#"{"a":"Paris and Rome\n\"and \u00e9 \ud83e\udd80","b":[25,true]}"#;
        let (deltas, stopped, calls) = filtered(&["never", stop], &[call("f"), arguments(json)]);
        assert_eq!((stopped, calls), (Some(1), 0), "{stop}");
        assert_eq!(deltas[1], arguments(before), "{stop}");
    }
}

#[test]
fn text_around_a_call_does_not_meet_in_one_stop_string() {
    let deltas = [
        content("ab"),
        call("f"),
        arguments(r#"{"a":"b"}"#),
        content("c"),
    ];
    assert_eq!(filtered(&["bc", "bb"], &deltas).1, None);
    let half = [
        content("a"),
        call("f"),
        arguments(r#"{"a":"b"#),
        content("c"),
    ];
    assert_eq!(filtered(&["bc"], &half), (half.to_vec(), None, 0));
}

/// Any JSON, escaped in any way, with any stop strings, in any pieces.
#[test]
fn the_cut_of_arguments_never_changes_what_is_passed_on() {
    let mut random = Random::new(17);
    let parts = ["a", "b", "\n", "\"", "\\", "é", "🦀", "\u{1}"];
    for _ in 0..2000 {
        let mut word = |most: usize| -> String {
            let length = 1 + random.below(most);
            (0..length).map(|_| parts[random.below(8)]).collect()
        };
        let texts = [word(9), word(9), word(9)];
        let stops: Vec<String> = (0..3).map(|_| word(3)).collect();
        let value = json!({"b": texts[0], "a": [texts[1], 12, {"ab": texts[2]}]});
        let mut json = value.to_string();
        if random.below(2) == 0 {
            json = escape_all(&json);
        }
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let whole = filtered(&stops, &[call("f"), arguments(&json)]);
        let mut pieces = vec![call("f")];
        pieces.extend(rechunk_text(&json, &mut random).into_iter().map(arguments));
        assert_eq!(filtered(&stops, &pieces), whole, "{json} {stops:?}");
        let stopped = texts
            .iter()
            .any(|text| stops.iter().any(|stop| text.contains(stop)));
        assert_eq!(whole.1.is_some(), stopped, "{json} {stops:?}");
        assert_eq!(whole.2, usize::from(!stopped));
    }
}

/// JSON whose characters beyond ASCII are written by their numbers.
fn escape_all(json: &str) -> String {
    let escape = |char: char| match char.is_ascii() {
        true => char.to_string(),
        false => {
            let units = char.encode_utf16(&mut [0; 2]).to_vec();
            units.iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
    };
    json.chars().map(escape).collect()
}
