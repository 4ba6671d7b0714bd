//! Calls in the form of harmony, whose headers are made of tokens that no text has.

use crate::tools::harmony::{FUNCTIONS, Harmony, TO};

use super::{CallGrammar, Function, Lark, json, quoted};

/// Author at the head of a message that follows another one, reasoning included; the first message
/// of a reply has none.
const AUTHOR: &str = r#"(<|start|> "assistant")?"#;
/// A channel; models call functions in any.
const CHANNEL: &str = r#"(<|channel|> ("commentary" | "analysis" | "final"))?"#;
/// The type of a content that is JSON, as models write it in either way.
const JSON: &str = r#"(" json" | " "? <|constrain|> "json")"#;

impl CallGrammar for Harmony {
    const AROUND: (&'static str, &'static str) = (FUNCTIONS, "");

    fn begin() -> String {
        format!("{AUTHOR} {CHANNEL} {}", quoted(&format!(" {TO}")))
    }

    fn between() -> String {
        "<|end|>".to_string()
    }

    fn answer(answer: String) -> String {
        format!(r#"{AUTHOR} <|channel|> "final" {JSON}? <|message|> {answer}"#)
    }

    fn names(_: &mut Lark, names: &[&str]) -> String {
        let heads: Vec<String> = names.iter().map(|name| header(name)).collect();
        format!("{} ({})", quoted(FUNCTIONS), heads.join(" | "))
    }

    fn head(name: &str) -> String {
        name.to_string()
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let arguments = json::arguments(lark, function)?;
        Ok(format!("{} {arguments}", header(function.name)))
    }
}

/// The rest of a header from a function's name on: the channel stands on either side of it.
fn header(name: &str) -> String {
    format!("{} {CHANNEL} {JSON}? <|message|>", quoted(name))
}
