//! The form of Qwen3-Coder, Qwen3.5, Qwen3.6 and Nemotron 3:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=ARGUMENT>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```

use super::markup::{Markup, Tags};

/// Tags of the calls of Qwen3-Coder, Qwen3.5, Qwen3.6 and Nemotron 3.
#[derive(Debug, Default)]
pub struct Qwen3CoderTags;

/// Reader of the calls of Qwen3-Coder, Qwen3.5, Qwen3.6 and Nemotron 3.
pub type Qwen3Coder = Markup<Qwen3CoderTags>;

impl Tags for Qwen3CoderTags {
    const CALL: (&'static str, &'static str) = ("<tool_call>", "</tool_call>");
    const FUNCTION: (&'static str, &'static str, &'static str) = ("<function=", ">", "</function>");
    const ARGUMENT: (&'static str, &'static str, &'static str) =
        ("<parameter=", ">", "</parameter>");
    const OWN_LINES: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Delta;
    use crate::tools::tests::{calls, content, schemas, streamed};
    use crate::tools::{ToolParser, ToolSchemas};
    use serde_json::{Value, json};

    fn call(arguments: &[(&str, &str)]) -> String {
        let body: String = arguments
            .iter()
            .map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>")
    }

    fn arguments(text: &str) -> Value {
        let (deltas, completed) = streamed::<Qwen3Coder>(&[text]);
        assert_eq!((completed, deltas.len()), (1, 2), "{deltas:?}");
        calls(&deltas)[0].1.clone().unwrap()
    }

    #[test]
    fn values_take_the_types_of_the_schema() {
        let text = call(&[
            ("path", "42"),
            ("line", "42"),
            ("all", "True"),
            ("ratio", "null"),
            ("note", "null"),
            ("tags", "[\"a\", \"b\"]"),
            ("mode", "2"),
            ("free", "{\"a\": 1}"),
        ]);
        let expected = json!({"path": "42", "line": 42, "all": true, "ratio": null, "note": null,
            "tags": ["a", "b"], "mode": 2, "free": {"a": 1}});
        assert_eq!(arguments(&text), expected);
    }

    #[test]
    fn a_value_that_misses_its_type_stays_text() {
        let text = call(&[
            ("line", "many"),
            ("tags", "[1"),
            ("all", "maybe"),
            ("note", "nullable"),
        ]);
        let expected = json!({"line": "many", "tags": "[1", "all": "maybe", "note": "nullable"});
        assert_eq!(arguments(&text), expected);
    }

    #[test]
    fn a_value_keeps_its_inner_newlines_and_markup() {
        let text = call(&[("path", "\n a\n</p> \"é\"\n")]);
        assert_eq!(arguments(&text), json!({"path": "\n a\n</p> \"é\"\n"}));
    }

    #[test]
    fn a_long_integer_keeps_all_digits() {
        let text = call(&[("line", "123456789012345678901234567890")]);
        let (deltas, _) = streamed::<Qwen3Coder>(&[&text]);
        let json = "{\"line\":123456789012345678901234567890}".to_string();
        assert_eq!(deltas[1], Delta::Arguments { index: 0, json });
    }

    #[test]
    fn a_repeated_argument_counts_once() {
        let text = call(&[("path", "a"), ("path", "b")]);
        assert_eq!(arguments(&text), json!({"path": "a"}));
    }

    #[test]
    fn what_is_no_call_is_given_back_as_text() {
        for text in [
            "<tool_call>",
            "\n<tool_call>\n{\"name\": \"edit\"}\n</tool_call>",
            "<tool_call><tool_call>\n<function=>",
            "a <tool_cal",
            "<tool_call>\n<function=na me>\n</function>",
        ] {
            assert_eq!(streamed::<Qwen3Coder>(&[text]), (vec![content(text)], 0));
        }
    }

    #[test]
    fn tags_in_a_value_do_not_end_it() {
        let page = "<p>\n</parameter> and </function>\n</tool_call>\n</parameter>\n<p>";
        let list =
            "[\"</parameter>\\n</function>\\n</tool_call>\", \"</parameter>\n<parameter=line>\"]";
        let text = call(&[
            ("path", page),
            ("line", "7"),
            ("tags", list),
            ("note", page),
        ]);
        let tags = [
            "</parameter>\n</function>\n</tool_call>",
            "</parameter>\n<parameter=line>",
        ];
        let list = list.replace("\"</parameter>\n<", "\"</parameter>\\n<");
        let text = text.replace("\"</parameter>\n<", "\"</parameter>\\n<");
        assert!(serde_json::from_str::<Value>(&list).is_ok());
        let expected = json!({"path": page, "line": 7, "tags": tags, "note": page});
        assert_eq!(arguments(&text), expected);
    }

    /// Models leave out what they have written a thousand times.
    #[test]
    fn small_slips_lose_no_call() {
        let whole = "<tool_call>\n<function=edit>\n<parameter=path>\nx\n</parameter>\n\
            <parameter=line>\n7\n</parameter>\n</function>\n</tool_call>";
        for missing in [
            "<tool_call>\n",
            "\n</parameter>\n</function>",
            "\n</parameter>\n<parameter=line>",
            "</function>\n",
            "\n</tool_call>",
            "</function>\n</tool_call>",
            "\n</function>\n</tool_call>",
        ] {
            let left = match missing.split_once("\n</parameter>") {
                Some((_, rest)) => whole.replace(missing, rest),
                None => whole.replace(missing, ""),
            };
            assert_ne!(left, whole);
            for (before, after) in [("", ""), ("I edit.", ""), ("I edit.\n", "\n")] {
                let (deltas, completed) =
                    streamed::<Qwen3Coder>(&[&format!("{before}{left}{after}")]);
                let expected = [("edit".to_string(), Some(json!({"path": "x", "line": 7})))];
                assert_eq!(
                    (calls(&deltas), completed),
                    (expected.to_vec(), 1),
                    "{left}"
                );
            }
        }
        let text = call(&[("path", "x")]).replace("\n</parameter>", "");
        assert_eq!(arguments(&text), json!({"path": "x"}));
        let text = text.replace("\n</function>", "");
        assert_eq!(arguments(&text), json!({"path": "x"}));
    }

    #[test]
    fn several_functions_in_one_call_are_several_calls() {
        let two =
            call(&[("path", "a")]).replace("\n</tool_call>", "") + &call(&[("line", "1")])[11..];
        for between in ["</function>\n", "\n</parameter>"] {
            let text = two.replacen(between, "", 1);
            for text in [&two, &text] {
                let (deltas, completed) = streamed::<Qwen3Coder>(&[text]);
                assert_eq!((calls(&deltas).len(), completed), (2, 2), "{text}");
            }
        }
    }

    #[test]
    fn a_value_that_writes_of_calls_is_not_read_as_slips() {
        let inside = "<function=edit>\n</function>\n</tool_call>";
        for value in [
            inside.to_string(),
            format!("{inside}\n<tool_call>\n{inside}"),
            "the end: </function>\n</tool_call>\n".to_string(),
            "as in <parameter=line> or\n<parameter=path>\nor\n<parameter=new>\n".to_string(),
            "or\n<parameter=line>\nno number\n".to_string(),
        ] {
            let text = call(&[("path", &value), ("note", "n")]);
            assert_eq!(arguments(&text), json!({"path": value, "note": "n"}));
        }
    }

    /// Where a grammar holds the reply to the form, what looks like a slip is part of a value.
    #[test]
    fn slips_are_not_looked_for_where_they_are_not_forgiven() {
        let bare = &call(&[("path", "a")])["<tool_call>".len()..];
        for text in [bare, "<tool_call>\n<function=edit>\n</tool_call>"] {
            let mut parser = ToolParser::of::<Qwen3Coder>(schemas(), false).forgiving(false);
            let mut deltas = Vec::new();
            parser.push(text, &mut deltas);
            parser.finish(false, &mut deltas);
            assert_eq!(deltas, [content(text)]);
        }
    }

    #[test]
    fn text_about_calls_is_text() {
        for text in [
            "Write `<function=edit>` first.",
            "<function=unheard>\n<parameter=a>\nx\n</parameter>\n</function>",
            "<function=edit>\n<parameter",
            "<tool_call>\n<function=edit>\nSee?",
        ] {
            assert_eq!(streamed::<Qwen3Coder>(&[text]), (vec![content(text)], 0));
        }
    }

    #[test]
    fn an_argument_may_have_any_name_of_the_schema_and_unknown_ones_of_one_line() {
        let names = [
            "起点",
            "$top",
            "@type",
            "a b",
            "x>y",
            "<z>",
            "two\nlines",
            "\"q\"",
            "",
        ];
        let one = |name: &&str| (name.to_string(), json!({"type": "integer"}));
        let properties: Value = names.iter().map(one).collect();
        let tool = json!({"function": {"name": "edit", "parameters": {"properties": properties}}});
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (*name, "1")).collect();
        let text = call(&[&pairs[..], &[("new one", "2"), ("も", "3")]].concat());
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let mut parser = ToolParser::of::<Qwen3Coder>(ToolSchemas::new([&tool]), false);
        let mut deltas = Vec::new();
        for piece in pieces {
            parser.push(&piece, &mut deltas);
        }
        parser.finish(false, &mut deltas);
        let mut expected: Value = names.iter().map(|name| (*name, json!(1))).collect();
        (expected["new one"], expected["も"]) = (json!("2"), json!("3"));
        assert_eq!(calls(&deltas), [("edit".to_string(), Some(expected))]);
    }

    #[test]
    fn a_value_that_is_never_closed_breaks_the_call_off() {
        let open = "<tool_call><function=edit><parameter=path>a</parameter>oops";
        let (deltas, completed) = streamed::<Qwen3Coder>(&[open]);
        assert_eq!(completed, 0);
        let json = "{\"path\":\"a</parameter>oops".to_string();
        assert_eq!(deltas[1], Delta::Arguments { index: 0, json });
    }

    #[test]
    fn json_with_a_string_that_never_ends_is_text() {
        let text = call(&[("tags", "[\"a"), ("line", "3"), ("at", "{\"b")]);
        let expected = json!({"tags": "[\"a", "line": 3, "at": "{\"b"});
        assert_eq!(arguments(&text), expected);
    }

    #[test]
    fn the_end_of_a_call_may_be_missing() {
        let text = call(&[("path", "a")]);
        for end in ["\n</tool_call>", "</tool_call>"] {
            assert_eq!(
                arguments(text.strip_suffix(end).unwrap()),
                json!({"path": "a"})
            );
        }
        let second = text.replace("\n</tool_call>", "\n<tool_call>") + &text[11..];
        assert_eq!(streamed::<Qwen3Coder>(&[&second]).1, 2);
    }
}
