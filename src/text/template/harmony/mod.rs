//! Prompts in harmony, the format of GPT-OSS, which the server writes itself: no template of a
//! checkpoint is needed.
//!
//! Instructions of the client and its tools are in a message of the developer; the system message
//! is fixed except for a few variables. Reasoning before the last final answer is left out; later
//! reasoning, between calls of tools, is kept. No date is written unless a request sets one: a
//! prompt that changes daily defeats the prefix cache.
//!
//! Source: openai/harmony, `docs/format.md`; a header's parts have the order of OpenAI's renderer.

mod typescript;

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::{Conversation, RENDERED_BYTES_MAX, TemplateError};
use crate::tools::harmony::{FUNCTIONS, REASONING};
use crate::work;

/// Stand-in for the source of a template.
pub const SOURCE: &str = "{#- harmony, which the server writes itself -#}";
/// Names of variables that a request may set.
pub const VARIABLES: [&str; 4] = [EFFORT, IDENTITY, CUTOFF, DATE];

const EFFORT: &str = "reasoning_effort";
const IDENTITY: &str = "model_identity";
const CUTOFF: &str = "knowledge_cutoff";
const DATE: &str = "conversation_start_date";

const IDENTITY_DEFAULT: &str = "You are ChatGPT, a large language model trained by OpenAI.";
const CUTOFF_DEFAULT: &str = "2024-06";
const CHANNELS: &str = "# Valid channels: analysis, commentary, final. Channel must be included \
    for every message.";
const CALLS: &str = "\nCalls to these tools must go to the commentary channel: 'functions'.";
/// Namespace in which the tools are described.
const NAMESPACE: &str = "functions";
/// Name of the tool for a result that belongs to no call.
const NAMELESS: &str = "tool";

#[cfg(test)]
mod tests;

/// Renders a conversation.
///
/// # Errors
/// When the conversation is too large, has an unknown role, or the rendering is cancelled.
pub fn render(conversation: &Conversation) -> Result<String, TemplateError> {
    let mut messages = conversation.messages.as_slice();
    let mut out = String::new();
    message("system", &system(conversation), &mut out);
    let instructions = messages.first().filter(|one| is_instruction(one));
    if instructions.is_some() {
        messages = &messages[1..];
    }
    let developer = developer(instructions.map(content), &conversation.tools);
    if !developer.is_empty() {
        message("developer", &developer, &mut out);
    }
    let mut history = History {
        thinks: conversation.enable_thinking,
        running: messages.iter().rposition(is_final).map_or(0, |at| at + 1),
        calls: HashMap::new(),
    };
    for (at, one) in messages.iter().enumerate() {
        history.turn(at, one, &mut out)?;
        work::step().map_err(TemplateError::Stopped)?;
        if out.len() > RENDERED_BYTES_MAX {
            return Err(TemplateError::TooLarge);
        }
    }
    if conversation.add_generation_prompt {
        out.push_str(&opening(conversation));
    }
    Ok(out)
}

/// Start of the reply. A model cannot be told not to think, so without thinking the reply starts
/// after empty reasoning.
fn opening(conversation: &Conversation) -> String {
    let author = "<|start|>assistant";
    let (open, close) = REASONING;
    match (conversation.enable_thinking, conversation.opens_reasoning) {
        (false, _) => format!("{author}{open}{close}{author}"),
        (true, true) => format!("{author}{open}"),
        (true, false) => author.to_string(),
    }
}

fn message(head: &str, content: &str, out: &mut String) {
    let _ = write!(out, "<|start|>{head}<|message|>{content}<|end|>");
}

fn system(conversation: &Conversation) -> String {
    let set = |name: &str| text_of(&conversation.variables, name);
    let identity = set(IDENTITY).unwrap_or(IDENTITY_DEFAULT);
    let cutoff = set(CUTOFF).unwrap_or(CUTOFF_DEFAULT);
    let date = set(DATE).map_or(String::new(), |date| format!("\nCurrent date: {date}"));
    let effort = effort(set(EFFORT), conversation.enable_thinking);
    let calls = match conversation.tools.is_empty() {
        true => "",
        false => CALLS,
    };
    format!(
        "{identity}\nKnowledge cutoff: {cutoff}{date}\n\nReasoning: {effort}\n\n{CHANNELS}{calls}"
    )
}

fn text_of<'v>(variables: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
    variables.get(name).and_then(Value::as_str)
}

/// The nearest level of effort that the model has learnt.
fn effort(asked: Option<&str>, thinks: bool) -> &'static str {
    match asked {
        Some("none" | "minimal" | "low") => "low",
        Some("high" | "xhigh" | "max") => "high",
        None if !thinks => "low",
        _ => "medium",
    }
}

fn developer(instructions: Option<&str>, tools: &[Value]) -> String {
    let mut out = instructions.map_or(String::new(), instructed);
    if !tools.is_empty() {
        let between = if out.is_empty() { "" } else { "\n\n" };
        let _ = write!(out, "{between}# Tools\n\n");
        typescript::namespace(NAMESPACE, tools, &mut out);
    }
    out
}

fn instructed(instructions: &str) -> String {
    format!("# Instructions\n\n{instructions}")
}

fn is_instruction(message: &Value) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

fn content(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a message is a final answer of the assistant.
fn is_final(message: &Value) -> bool {
    message["role"] == "assistant" && calls(message).is_empty() && !content(message).is_empty()
}

/// State of rendering the messages after instructions.
struct History<'c> {
    thinks: bool,
    /// Index of the first message after the last final answer.
    running: usize,
    /// Names of called functions by the ids of the calls.
    calls: HashMap<&'c str, &'c str>,
}

impl<'c> History<'c> {
    fn turn(&mut self, at: usize, one: &'c Value, out: &mut String) -> Result<(), TemplateError> {
        match one["role"].as_str().unwrap_or_default() {
            "user" => message("user", content(one), out),
            "system" | "developer" => message("developer", &instructed(content(one)), out),
            "assistant" => self.assistant(at >= self.running, one, out),
            "tool" => {
                let name = self.of(one);
                let head = format!("{FUNCTIONS}{name} to=assistant<|channel|>commentary");
                message(&head, content(one), out);
            }
            role => {
                let why = format!("the role {role:?} is none of this model's conversations");
                return Err(TemplateError::Refused(why));
            }
        }
        Ok(())
    }

    /// Name of the function that gave a result.
    fn of(&self, result: &'c Value) -> &'c str {
        let id = result["tool_call_id"].as_str();
        let called = id.and_then(|id| self.calls.get(id).copied());
        let named = called.or(result["name"].as_str());
        named.unwrap_or(NAMELESS)
    }

    /// Writes reasoning, text and calls of a message in the order in which models write them.
    fn assistant(&mut self, running: bool, one: &'c Value, out: &mut String) {
        let calls = calls(one);
        let reasoning = ["reasoning_content", "thinking"].map(|name| one[name].as_str());
        let mut reasoning = reasoning.into_iter().flatten();
        let reasoning = reasoning.find(|text| !text.is_empty());
        // Empty reasoning, with which a reply without thinking began.
        let none = (!self.thinks && !calls.is_empty()).then_some("");
        if let Some(reasoning) = reasoning.or(none).filter(|_| running) {
            message("assistant<|channel|>analysis", reasoning, out);
        }
        let channel = match calls.is_empty() {
            true => "final",
            false => "commentary",
        };
        if !content(one).is_empty() {
            message(&format!("assistant<|channel|>{channel}"), content(one), out);
        }
        for call in calls {
            self.call(call, out);
        }
    }

    fn call(&mut self, call: &'c Value, out: &mut String) {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        if let Some(id) = call["id"].as_str() {
            self.calls.insert(id, name);
        }
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        };
        let _ = write!(
            out,
            "<|start|>assistant to={FUNCTIONS}{name}<|channel|>commentary json\
             <|message|>{arguments}<|call|>"
        );
    }
}
