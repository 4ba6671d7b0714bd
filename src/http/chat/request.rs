//! `POST /v1/chat/completions`: parses the JSON of a request, and checks it.
//!
//! The table of `generate::field_support` says how each field is treated.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Object;
use crate::generate::Ask;
use crate::generate::field_support::{Api, check};
use crate::generate::generation::ScoredPart;
use crate::generate::parameters::{
    Length, check_model, choices, prompt_logprobs, stop_tokens, stops,
};
use crate::generate::response_format;
use crate::generate::start::Start;
use crate::generate::template_variables;
use crate::generate::tool_policy::{self, ToolChoice};
use crate::thinking;
use engine::request::MAX_TOP_LOGPROBS;
use step::Facts;

use super::constraint;
use super::messages;
use super::usage::UsageReport;

/// Fields that state the length of a reply; the last one of these that is present counts.
const LENGTHS: &[&str] = &["n_predict", "max_tokens", "max_completion_tokens"];

/// A checked request for a chat completion.
#[derive(Debug)]
pub struct ChatRequest {
    pub ask: Ask,
    /// Whether the request names the function to call.
    pub call_named: bool,
    pub stream: bool,
    pub usage: UsageReport,
}

impl ChatRequest {
    /// Reads the body of a request.
    pub fn parse(body: &Value, facts: &Facts) -> Result<ChatRequest, ApiError> {
        let object = Object::root(body)?;
        check_model(&object)?;
        check(&object, Api::Chat)?;
        let messages = messages::messages(&object.require("messages")?)?;
        let policy = constraint::policy(&object)?;
        let parallel_tool_calls = object.boolean("parallel_tool_calls", true)?;
        // If calls are required `response_format` does not apply; else it is the form of an answer.
        let format = response_format::asked(&object)?;
        let rule = tool_policy::combined(&policy, format, parallel_tool_calls, facts)?;
        let stream = object.boolean("stream", false)?;
        let start = Start::read(&object)?;
        // A reply that continues an answer is past its reasoning.
        let thinking = thinking::read(&object, facts.thinking && !start.is_amid())?;
        let ask = Ask {
            lenient: policy.is_lenient(),
            messages,
            messages_field: "messages",
            start,
            variables: template_variables::read(&object)?,
            tools: policy.tools,
            parallel_tool_calls,
            rule,
            thinking: thinking.on,
            thinking_budget: thinking.budget,
            max_tokens: Length::read(&object, LENGTHS, 1)?.most(),
            stops: stops(&object)?,
            stop_tokens: stop_tokens(&object, facts.vocab)?,
            ignore_eos: object.boolean("ignore_eos", false)?,
            logprobs: logprobs(&object)?,
            scored: match object.boolean("reasoning_logprobs", false)? {
                true => ScoredPart::TextAndReasoning,
                false => ScoredPart::Text,
            },
            prompt_logprobs: prompt_logprobs(&object, stream)?,
            choices: choices(&object)?,
            ..Ask::read(&object, facts)?
        };
        let usage = UsageReport::read(&object, stream)?;
        object.report_unknown();
        Ok(ChatRequest {
            ask,
            call_named: matches!(policy.choice, ToolChoice::Named(_)),
            stream,
            usage,
        })
    }
}

fn logprobs(object: &Object<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = object.boolean("logprobs", false)?;
    let top = object.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "needs logprobs to be true")),
    }
}

#[cfg(test)]
mod tests;
