//! Whether a reply thinks, and for how long: one set of rules for the fields of all dialects.
//!
//! Thinking is on or off by the first field that is present:
//! 1. `thinking.type`: `enabled` or `adaptive`, `disabled`;
//! 2. `chat_template_kwargs.enable_thinking` or `.thinking`, then `enable_thinking`, then `think`
//!    where it is true or false;
//! 3. `reasoning.enabled`, then the effort of `reasoning.effort`, `reasoning_effort`, `think` or
//!    `chat_template_kwargs.reasoning_effort`: off for `none`;
//! 4. the default of the route.
//!
//! The most tokens of reasoning, by the first field that is present: `thinking.budget_tokens`,
//! `thinking_token_budget`, `thinking_budget`, `chat_template_kwargs.thinking_budget`,
//! `reasoning.max_tokens`, then the effort (`output_config.effort`, whose `none` is 0, then the
//! fields of point 3) by [`EFFORTS`]. A budget of 0 is off; any other leaves thinking on or off as
//! above. When its budget is used up, the reasoning ends with a sentence about that.

use super::error::ApiError;
use super::fields::{Field, Object};

/// Levels of effort above `none`, and the tokens of reasoning that each allows.
pub const EFFORTS: &[(&str, Option<usize>)] = &[
    ("minimal", Some(512)),
    ("low", Some(2048)),
    ("medium", Some(8192)),
    ("high", None),
    ("xhigh", None),
    ("max", None),
];

/// Whether a reply thinks, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinking {
    pub on: bool,
    /// Most tokens of reasoning; None for no such limit.
    pub budget: Option<usize>,
}

/// Level of reasoning effort that a request states.
#[derive(Clone, Copy)]
enum Effort {
    None,
    Budget(Option<usize>),
}

/// Reads all fields of a body about thinking; `default`: whether a reply thinks if none says so.
pub fn read(object: &Object<'_>, default: bool) -> Result<Thinking, ApiError> {
    let thinking = object.optional_object("thinking")?;
    let template = object.optional_object("chat_template_kwargs")?;
    let reasoning = object.optional_object("reasoning")?;
    let output = object.optional_object("output_config")?;
    let boolean = |object: &Option<Object<'_>>, name| {
        let field = object.as_ref().and_then(|object| object.get(name));
        field.map(|field| field.boolean()).transpose()
    };
    let budget = |object: Option<&Object<'_>>, name| {
        let tokens = object.map(|object| object.integer(name, 0..=i64::MAX));
        let tokens = tokens.transpose()?.flatten();
        Ok(tokens.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)))
    };
    let effort = |object: Option<&Object<'_>>, name| {
        let field = object.and_then(|object| object.get(name));
        field.map(|field| level(&field)).transpose()
    };

    let nested = effort(reasoning.as_ref(), "effort")?;
    let flat = effort(Some(object), "reasoning_effort")?;
    let (think, by_think) = think(object)?;
    let by_template = effort(template.as_ref(), "reasoning_effort")?;
    let asked = nested.or(flat).or(by_think).or(by_template);
    let flag = object.get("enable_thinking");
    let switches = [
        thinking.as_ref().map(switch).transpose()?,
        boolean(&template, "enable_thinking")?,
        boolean(&template, "thinking")?,
        flag.map(|field| field.boolean()).transpose()?,
        think,
        boolean(&reasoning, "enabled")?,
        asked.map(|effort| !matches!(effort, Effort::None)),
    ];
    let budgets = [
        budget(thinking.as_ref(), "budget_tokens")?,
        budget(Some(object), "thinking_token_budget")?,
        budget(Some(object), "thinking_budget")?,
        budget(template.as_ref(), "thinking_budget")?,
        budget(reasoning.as_ref(), "max_tokens")?,
    ];
    let by_effort = match (effort(output.as_ref(), "effort")?, asked) {
        // `none` in `output_config.effort` does not switch thinking off, but leaves it no tokens.
        (Some(Effort::None), _) => Some(0),
        (Some(Effort::Budget(tokens)), _) | (None, Some(Effort::Budget(tokens))) => tokens,
        (None, _) => None,
    };
    let budget = budgets.into_iter().flatten().next().or(by_effort);
    let on = switches.into_iter().flatten().next().unwrap_or(default);
    Ok(Thinking {
        on: on && budget != Some(0),
        budget: budget.filter(|_| on),
    })
}

fn switch(thinking: &Object<'_>) -> Result<bool, ApiError> {
    let kind = thinking.require("type")?;
    match kind.string()? {
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        _ => Err(kind.error("must be enabled, adaptive or disabled")),
    }
}

/// Ollama's `think`: a switch or a level of effort.
fn think(object: &Object<'_>) -> Result<(Option<bool>, Option<Effort>), ApiError> {
    match object.get("think") {
        None => Ok((None, None)),
        Some(field) if field.value.is_string() => Ok((None, Some(level(&field)?))),
        Some(field) => Ok((Some(field.boolean()?), None)),
    }
}

fn level(field: &Field<'_>) -> Result<Effort, ApiError> {
    let name = field.string()?;
    if name == "none" {
        return Ok(Effort::None);
    }
    let known = EFFORTS.iter().find(|(level, _)| *level == name);
    let known = known.map(|&(_, tokens)| Effort::Budget(tokens));
    known.ok_or_else(|| field.error("must be none, minimal, low, medium, high, xhigh or max"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn thinking(body: Value) -> (bool, Option<usize>) {
        let found = read(&Object::root(&body).unwrap(), true).unwrap();
        (found.on, found.budget)
    }

    fn refused(body: Value) -> String {
        let error = read(&Object::root(&body).unwrap(), true).unwrap_err();
        error.param.unwrap()
    }

    #[test]
    fn each_switch_counts_before_those_after_it() {
        let mut body = json!({
            "thinking": {"type": "disabled"},
            "chat_template_kwargs": {"thinking": true},
            "enable_thinking": false,
            "think": true,
            "reasoning": {"enabled": false},
            "reasoning_effort": "high",
        });
        let fields = [
            ("thinking", false),
            ("chat_template_kwargs", true),
            ("enable_thinking", false),
            ("think", true),
            ("reasoning", false),
            ("reasoning_effort", true),
        ];
        for (name, on) in fields {
            assert_eq!(thinking(body.clone()).0, on, "{name}");
            body.as_object_mut().unwrap().remove(name);
        }
        let absent = read(&Object::root(&body).unwrap(), false).unwrap();
        assert!(!absent.on);
    }

    #[test]
    fn each_budget_counts_before_those_after_it() {
        let mut body = json!({
            "thinking": {"type": "enabled", "budget_tokens": 1},
            "thinking_token_budget": 2,
            "thinking_budget": 3,
            "chat_template_kwargs": {"thinking_budget": 4},
            "reasoning": {"max_tokens": 5},
            "output_config": {"effort": "low"},
            "reasoning_effort": "minimal",
            "think": "medium",
        });
        let fields = [
            ("thinking", 1),
            ("thinking_token_budget", 2),
            ("thinking_budget", 3),
            ("chat_template_kwargs", 4),
            ("reasoning", 5),
            ("output_config", 2048),
            ("reasoning_effort", 512),
            ("think", 8192),
        ];
        for (name, tokens) in fields {
            assert_eq!(thinking(body.clone()), (true, Some(tokens)), "{name}");
            body.as_object_mut().unwrap().remove(name);
        }
        assert_eq!(thinking(body), (true, None));
    }

    #[test]
    fn a_level_of_thinking_is_a_switch_too() {
        assert_eq!(thinking(json!({"think": "none"})), (false, None));
        let on = read(&Object::root(&json!({"think": "low"})).unwrap(), false).unwrap();
        assert_eq!((on.on, on.budget), (true, Some(2048)));
        let before = json!({"reasoning_effort": "none", "think": "high"});
        assert_eq!(thinking(before), (false, None));
    }

    #[test]
    fn an_effort_of_none_leaves_nothing_to_think_with() {
        let adaptive = json!({"thinking": {"type": "adaptive"},
            "output_config": {"effort": "none"}});
        assert!(!thinking(adaptive).0);
        let bounded = json!({"thinking": {"type": "enabled", "budget_tokens": 9},
            "output_config": {"effort": "none"}});
        assert_eq!(thinking(bounded), (true, Some(9)));
    }

    #[test]
    fn a_budget_of_nothing_is_off_and_one_without_thinking_is_none() {
        assert!(!thinking(json!({"thinking_token_budget": 0})).0);
        let both = json!({"thinking": {"type": "disabled"}, "thinking_token_budget": 9});
        assert_eq!(thinking(both), (false, None));
    }

    #[test]
    fn what_is_not_served_is_named() {
        assert_eq!(refused(json!({"thinking": {}})), "thinking.type");
        let between = json!({"thinking": {"type": "between_tools"}});
        assert_eq!(refused(between), "thinking.type");
        let negative = json!({"thinking": {"type": "enabled", "budget_tokens": -1}});
        assert_eq!(refused(negative), "thinking.budget_tokens");
        assert_eq!(
            refused(json!({"reasoning": {"effort": "huge"}})),
            "reasoning.effort"
        );
        assert_eq!(refused(json!({"reasoning_effort": 3})), "reasoning_effort");
        assert_eq!(refused(json!({"think": "loudly"})), "think");
        assert_eq!(refused(json!({"think": 1})), "think");
        assert_eq!(refused(json!({"thinking_budget": -1})), "thinking_budget");
        let template = |name: &str| json!({"chat_template_kwargs": {name: "x"}});
        for name in ["enable_thinking", "thinking", "reasoning_effort"] {
            assert_eq!(
                refused(template(name)),
                format!("chat_template_kwargs.{name}")
            );
        }
    }
}
