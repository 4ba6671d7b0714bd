//! Renders conversations with templates, for `scripts/template_parity.py`: each line of standard
//! input is `{"template", "special", "messages", "tools", "add_generation_prompt",
//! "enable_thinking"}`, each line of standard output `{"text", "seconds"}` or `{"refused"}`.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use serde_json::{Value, json};
use text::template::special::SpecialTokens;
use text::template::{Conversation, Template, TemplateError};

fn main() -> io::Result<()> {
    let mut templates = HashMap::new();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let task: Value = serde_json::from_str(&line?)?;
        let key = (task["template"].to_string(), task["special"].to_string());
        let template = templates.entry(key).or_insert_with(|| load(&task));
        let answer = match template {
            Ok(template) => rendered(template, &task),
            Err(why) => json!({"refused": why}),
        };
        writeln!(out, "{answer}")?;
    }
    out.flush()
}

fn load(task: &Value) -> Result<Template, String> {
    let special = SpecialTokens::parse(task["special"].to_string().as_bytes());
    let special = special.map_err(|error| error.to_string())?;
    let source = task["template"].as_str().unwrap_or_default();
    Template::load(source, special).map_err(|error: TemplateError| error.to_string())
}

fn rendered(template: &Template, task: &Value) -> Value {
    let list = |name: &str| task[name].as_array().cloned().unwrap_or_default();
    let conversation = Conversation {
        messages: list("messages"),
        tools: list("tools"),
        add_generation_prompt: task["add_generation_prompt"] == true,
        enable_thinking: task["enable_thinking"] == true,
        ..Conversation::default()
    };
    let begun = Instant::now();
    match template.render(&conversation) {
        Ok(text) => json!({"text": text, "seconds": begun.elapsed().as_secs_f64()}),
        Err(error) => json!({"refused": error.to_string()}),
    }
}
