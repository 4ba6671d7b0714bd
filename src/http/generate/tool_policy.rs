//! Tools that replies may call and the form that calls must have, in every dialect.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::limits::TOOLS_MAX;
use step::{Facts, ToolFormat};
use text::grammar::Grammar;
use text::grammar::calls::{self, Calls};

use super::constraint::Rule;
use super::tools::needs_tools;

/// Tools that the model is shown, with the choice among them: which may or must be called.
#[derive(Debug, Default)]
pub struct ToolPolicy {
    pub tools: Vec<Value>,
    pub choice: ToolChoice,
    /// Indices of the tools that may be called; None if all may be.
    pub allowed: Option<Vec<usize>>,
}

impl ToolPolicy {
    /// A policy by which every tool may be called.
    pub fn of(tools: Vec<Value>, choice: ToolChoice) -> ToolPolicy {
        ToolPolicy {
            tools,
            choice,
            allowed: None,
        }
    }

    /// Reads `tool_choice` of OpenAI's APIs. `left_out`: warnings about tools omitted from `tools`.
    /// `chosen` reads a choice that is an object; `otherwise` describes one in errors.
    ///
    /// # Errors
    /// Names the field that is no valid choice.
    pub fn read(
        object: &Object<'_>,
        (tools, left_out): (Vec<Value>, &[String]),
        otherwise: &str,
        chosen: impl FnOnce(&Object<'_>, Vec<Value>) -> Result<ToolPolicy, ApiError>,
    ) -> Result<ToolPolicy, ApiError> {
        let Some(choice) = object.get("tool_choice") else {
            return Ok(ToolPolicy::of(tools, ToolChoice::Auto));
        };
        match choice.value.as_str() {
            Some("auto") => Ok(ToolPolicy::of(tools, ToolChoice::Auto)),
            Some("none") => Ok(ToolPolicy::withheld(&tools)),
            Some("required") if tools.is_empty() => Err(choice.error(needs_tools(left_out))),
            Some("required") => Ok(ToolPolicy::of(tools, ToolChoice::Required)),
            Some(_) => Err(choice.error(format!("must be auto, none, required or {otherwise}"))),
            None => chosen(&choice.object()?, tools),
        }
    }

    /// Policy under which no tool may be called, so that the model is shown none. Without tools, no
    /// call needs to be forbidden.
    pub fn withheld(tools: &[Value]) -> ToolPolicy {
        let choice = match tools.is_empty() {
            true => ToolChoice::Auto,
            false => ToolChoice::Never,
        };
        ToolPolicy::of(Vec::new(), choice)
    }

    /// Whether calls that deviate from their form may be read: only if no grammar enforces the
    /// form, as a grammar does for required calls, allowed subsets of the tools and strict schemas.
    pub fn is_lenient(&self) -> bool {
        let free = self.choice == ToolChoice::Auto && self.allowed.is_none();
        free && !self.tools.iter().any(is_strict)
    }

    fn callable(&self) -> Vec<Value> {
        match &self.allowed {
            Some(indices) => indices.iter().map(|&at| self.tools[at].clone()).collect(),
            None => self.tools.clone(),
        }
    }
}

/// Policy of `{"mode": …, "tools": […]}`: the model is shown all tools, and may or must call a tool
/// of that list. `index` finds an item of the list among `tools`.
///
/// # Errors
/// Names the field that is no valid choice.
pub fn allowed(
    choice: &Object<'_>,
    tools: Vec<Value>,
    index: impl Fn(&Object<'_>, &[Value]) -> Result<usize, ApiError>,
) -> Result<ToolPolicy, ApiError> {
    let mode = choice.require("mode")?;
    let must = match mode.string()? {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => return Err(mode.error("must be auto or required")),
    };
    let list = choice.require("tools")?;
    let mut indices = Vec::new();
    for item in list.list(TOOLS_MAX)? {
        let at = index(&item.object()?, &tools)?;
        if !indices.contains(&at) {
            indices.push(at);
        }
    }
    if indices.is_empty() {
        return Err(list.error("must name at least one tool; send none to have none called"));
    }
    Ok(ToolPolicy {
        allowed: Some(indices),
        ..ToolPolicy::of(tools, must)
    })
}

/// Index of the tool `wanted` in `tools`; `name` is the field that names this tool.
///
/// # Errors
/// When there is no such tool.
pub fn index_of(name: &Field<'_>, wanted: &str, tools: &[Value]) -> Result<usize, ApiError> {
    let mut names = tools.iter().map(|tool| &tool["function"]["name"]);
    let index = names.position(|name| name == wanted);
    index.ok_or_else(|| name.error("is the name of no tool"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    #[default]
    Auto,
    /// No tool may be called.
    Never,
    /// At least one tool must be called.
    Required,
    /// The tool of this index must be called, exactly once.
    Named(usize),
}

/// Constraint of replies that follows from the tools and from the form of the answer, which comes
/// with the field that asks for it.
pub fn combined(
    policy: &ToolPolicy,
    answer: Option<(&'static str, Grammar)>,
    parallel: bool,
    facts: &Facts,
) -> Result<Option<Rule>, ApiError> {
    // Models without a tool format are refused in `encoded`, more clearly; any format will do here.
    let format = facts.tool_format.unwrap_or(ToolFormat::Qwen3Coder);
    let whole = |field, tools: &[Value], calls, answer| {
        let grammar = call_grammar((field, format), tools, calls, answer)?;
        Ok(Some(Rule::whole(field, grammar)))
    };
    let tools = &policy.callable();
    let several = if parallel { Calls::Several } else { Calls::One };
    match (policy.choice, answer) {
        (ToolChoice::Required, _) => whole("tool_choice", tools, several, None),
        (ToolChoice::Named(at), _) => {
            let chosen = std::slice::from_ref(&policy.tools[at]);
            whole("tool_choice", chosen, Calls::One, None)
        }
        (ToolChoice::Auto, Some((field, answer))) if !tools.is_empty() => {
            whole(field, tools, several, Some(&answer))
        }
        (ToolChoice::Auto | ToolChoice::Never, Some((field, answer))) => {
            Ok(Some(Rule::whole(field, answer)))
        }
        (ToolChoice::Never, None) => Ok(Some(Rule::NoCalls)),
        (ToolChoice::Auto, None) if policy.allowed.is_some() || tools.iter().any(is_strict) => {
            let grammar = call_grammar(("tools", format), tools, Calls::AfterTag, None)?;
            Ok(Some(Rule::calls_in_text("tools", grammar)))
        }
        (ToolChoice::Auto, None) if tools.is_empty() => Ok(None),
        (ToolChoice::Auto, None) => {
            let grammar = calls::names_of(format, tools);
            Ok(Some(Rule::calls_in_text("tools", grammar)))
        }
    }
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

/// Forced calls follow the schemas of their tools even if these are not strict.
fn call_grammar(
    (field, format): (&str, ToolFormat),
    tools: &[Value],
    calls: Calls,
    answer: Option<&Grammar>,
) -> Result<Grammar, ApiError> {
    let loose = calls == Calls::AfterTag || answer.is_some();
    let grammar = calls::grammar_of(format, tools, calls, loose, answer);
    grammar.map_err(|refused| match refused.tool {
        Some(name) => ApiError::field("tools", format!("function {name}: {}", refused.problem)),
        None => ApiError::field(field, refused.problem),
    })
}
