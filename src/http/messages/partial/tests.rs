use serde_json::json;

use super::*;

#[test]
fn what_is_complete_stays() {
    for (cut, expected) in [
        ("", json!({})),
        ("{", json!({})),
        (r#"{"a"#, json!({})),
        (r#"{"a":"#, json!({})),
        (r#"{"a":"b"#, json!({})),
        (r#"{"a":"b""#, json!({"a": "b"})),
        (r#"{"a":12"#, json!({})),
        (r#"{"a":12,"#, json!({"a": 12})),
        (r#"{"a":{"b":[1,{"c":"\"}]"#, json!({"a": {"b": [1, {}]}})),
        (
            r#"{"a":{"b":[1,{"c":"\""}],"d"#,
            json!({"a": {"b": [1, {"c": "\""}]}}),
        ),
        ("[1", json!({})),
        (r#"{"a" "b"}}"#, json!({})),
    ] {
        assert_eq!(complete_part(cut), expected, "{cut}");
    }
}

/// However it comes in pieces, and wherever it ends.
#[test]
fn what_is_passed_on_piece_by_piece_is_what_comes_at_once() {
    let text = json!({"a": "b\"c", "n": [1, -2.5e3, {}], "t": true}).to_string();
    for end in 0..=text.len() {
        let mut input = Input::default();
        let passed_on: String = text[..end]
            .chars()
            .map(|piece| input.push(&piece.to_string()))
            .collect();
        assert!(text[..end].starts_with(&passed_on));
        assert_eq!(
            complete_part(&passed_on),
            complete_part(&text[..end]),
            "{passed_on}"
        );
        assert_eq!(Input::default().push(&passed_on), passed_on);
    }
}

/// Whatever is passed on stands in the whole as well, and with more text there is no less.
#[test]
fn every_cut_passes_on_a_part_of_the_whole() {
    let whole =
        json!({"p": "a\"\\{[,:", "n": -1.5e3, "t": [true, null, {"x": []}], "é": {"y": "🦀"}});
    let text = whole.to_string();
    let mut before = 0;
    for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
        let passed_on = complete_part(&text[..at]);
        assert!(is_part(&passed_on, &whole), "{passed_on}");
        let size = passed_on.to_string().len();
        assert!(size >= before, "{passed_on}");
        before = size;
    }
    assert_eq!(complete_part(&text), whole);
}

fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|whole| is_part(value, whole))),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() <= whole.len()
                && part
                    .iter()
                    .zip(whole)
                    .all(|(part, whole)| is_part(part, whole))
        }
        (part, whole) => part == whole,
    }
}
