//! Calls in the form of harmony, whose headers have tokens that no text contains.

use crate::tools::harmony::{FUNCTIONS, Harmony, TO};

use super::{CallGrammar, Function, Lark, json, quoted};

/// Author at the head of a message; the first message of a reply, reasoning included, has none.
const AUTHOR: &str = r#"(<|start|> "assistant")?"#;
/// Channel of a call; models use any of them.
const CHANNEL: &str = r#"(<|channel|> ("commentary" | "analysis" | "final"))?"#;
/// Content type JSON, in the two forms that models write.
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

/// Rule of a header from a function's name on; the channel may come after the name, too.
fn header(name: &str) -> String {
    format!("{} {CHANNEL} {JSON}? <|message|>", quoted(name))
}
