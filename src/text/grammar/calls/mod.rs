//! Grammars of tool calls, in the forms that [`crate::text::tools`] reads back.
//!
//! Where arguments stand one by one, they stand in the order of the schema. Text is plain up to
//! what closes it, where the schema says more of it as a regular expression; other values are JSON
//! under their schema.

mod gemma;
mod json;
mod markup;
mod text;

use llguidance::regex_to_lark;
use serde_json::Value;

use crate::text::tools::{Syntax, is_name, resolved};

use self::text::check_keywords;
use super::{Grammar, limits};

/// Which calls a reply is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// What follows one opening tag, up to the closing one.
    BehindTag,
    /// One call and nothing else.
    One,
    /// One call or several, and nothing else.
    Several,
}

/// Why there is no grammar of the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The tool at fault, if it is one.
    pub tool: Option<String>,
    pub problem: String,
}

/// How a call is written in a syntax.
pub trait CallGrammar: Syntax {
    /// Between two calls.
    const BETWEEN: &'static str = "";
    /// Between the opening tag and a function, and behind it.
    const AROUND: (&'static str, &'static str);
    /// Whether a function may follow another in one call.
    const SEVERAL: bool = false;

    /// Writes the rules of a function; returns what it is made of.
    ///
    /// # Errors
    /// What of the function cannot be enforced and has to be.
    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String>;
}

/// The grammar of calls of `tools`, which are in the form of the chat completions API.
///
/// `loose`: the arguments of tools that are not strict are free; else they follow their schemas as
/// far as these can be enforced. `answer`: what the reply may be instead of calls.
///
/// # Errors
/// What of a tool cannot be enforced, or what cannot stand beside calls.
pub fn grammar<S: CallGrammar>(
    tools: &[Value],
    calls: Calls,
    loose: bool,
    answer: Option<&Grammar>,
) -> Result<Grammar, Refused> {
    let schemas = tools.iter().map(|tool| &tool["function"]["parameters"]);
    limits::check_schemas(schemas).map_err(|error| Refused {
        tool: None,
        problem: format!("the schemas of the tools: {error}"),
    })?;
    let mut lark = Lark::default();
    let mut functions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let function = Function::read(at, &tool["function"], loose);
        let written = function.and_then(|function| S::function(&mut lark, &function));
        let written = written.map_err(|problem| Refused {
            tool: tool["function"]["name"].as_str().map(str::to_string),
            problem,
        })?;
        lark.line(&format!("function_{at}: {written}"));
        functions.push(format!("function_{at}"));
    }
    let several = format!("call ({} call)*", literal(S::BETWEEN));
    let forced = match calls {
        Calls::BehindTag => "body".to_string(),
        Calls::One => "call".to_string(),
        Calls::Several => several,
    };
    let start = match answer {
        Some(answer) => format!("{} | {forced}", alternative(answer)?),
        None => forced,
    };
    lark.line(&format!("start: {start}"));
    lark.line(&format!("call: {} body", literal(S::OPEN)));
    let repeats = if S::SEVERAL && calls != Calls::One {
        "+"
    } else {
        ""
    };
    let (before, behind) = (literal(S::AROUND.0), literal(S::AROUND.1));
    lark.line(&format!("body: {before} function{repeats} {behind}"));
    lark.line(&format!("function: {}", functions.join(" | ")));
    Ok(Grammar::Calls {
        lark: lark.text,
        warnings: lark.warnings,
    })
}

/// A grammar as part of a Lark rule.
fn alternative(grammar: &Grammar) -> Result<String, Refused> {
    match grammar {
        Grammar::Json(json) => Ok(format!("%json {}", json.with_options())),
        Grammar::Regex(pattern) => Ok(format!("/{}/", regex_to_lark(pattern, ""))),
        Grammar::Choice(choices) => Ok(one_of(choices)),
        Grammar::Lark(_) | Grammar::Calls { .. } => Err(Refused {
            tool: None,
            problem: "a grammar beside tools is not served; leave one of them out".to_string(),
        }),
    }
}

fn one_of(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("({})", texts.join(" | "))
}

/// A string of Lark, which are those of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A string as part of a rule; nothing where it is empty.
fn literal(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    quoted(text)
}

/// One tool as the grammar sees it.
pub struct Function<'v> {
    at: usize,
    name: &'v str,
    /// What references are resolved in.
    parameters: &'v Value,
    /// The schema of all arguments, which `parameters` may refer to.
    object: &'v Value,
    /// Nothing is known of the arguments.
    free: bool,
    strict: bool,
}

/// One argument of a function.
struct Argument<'v> {
    name: &'v str,
    schema: &'v Value,
    required: bool,
}

/// Keywords of the schema of all arguments that are honoured where they stand one by one.
/// `additionalProperties` allows more than is written, or nothing.
const OBJECT_KEYWORDS: &[&str] = &["additionalProperties", "properties", "required"];

impl<'v> Function<'v> {
    fn read(at: usize, function: &'v Value, loose: bool) -> Result<Function<'v>, String> {
        let strict = function["strict"] == true;
        let parameters = &function["parameters"];
        if let (true, Some(problem)) = (strict, limits::inexact_number(parameters)) {
            return Err(problem);
        }
        Ok(Function {
            at,
            name: function["name"].as_str().unwrap_or_default(),
            parameters,
            object: resolved(parameters, parameters),
            free: loose && !strict,
            strict,
        })
    }

    /// Keeps a problem as a warning.
    ///
    /// # Errors
    /// The problem, where the function is strict.
    fn tolerate(&self, lark: &mut Lark, problem: String) -> Result<(), String> {
        if self.strict {
            return Err(problem);
        }
        lark.warnings
            .push(format!("function {}: {problem}", self.name));
        Ok(())
    }

    /// The arguments that the schema describes, where they stand one by one.
    ///
    /// # Errors
    /// What of them cannot be enforced and has to be.
    fn arguments(&self, lark: &mut Lark) -> Result<Vec<Argument<'v>>, String> {
        if let Err(problem) = check_keywords(self.object, OBJECT_KEYWORDS) {
            self.tolerate(lark, problem)?;
        }
        let mut found = Vec::new();
        for argument in members(self.object)? {
            if is_name(argument.name) {
                found.push(argument);
                continue;
            }
            let name = argument.name;
            let problem = format!("the name {name:?} does not fit the model's calls");
            if argument.required {
                return Err(problem);
            }
            self.tolerate(lark, problem)?;
        }
        Ok(found)
    }
}

/// What an object's schema describes, in its order.
///
/// # Errors
/// When it requires what it does not describe.
fn members(schema: &Value) -> Result<Vec<Argument<'_>>, String> {
    let properties = schema["properties"].as_object();
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    if let Some(name) = required
        .iter()
        .find(|name| !properties.is_some_and(|map| map.contains_key(**name)))
    {
        return Err(format!(
            "requires {name:?}, which properties do not describe"
        ));
    }
    let members = properties.into_iter().flatten();
    Ok(members
        .map(|(name, schema)| Argument {
            name,
            schema,
            required: required.contains(&name.as_str()),
        })
        .collect())
}

/// A Lark grammar that is being written.
#[derive(Default)]
pub struct Lark {
    text: String,
    /// What is not enforced.
    warnings: Vec<String>,
}

impl Lark {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn has_rule(&self, rule: &str) -> bool {
        let start = format!("{rule}:");
        self.text.lines().any(|line| line.starts_with(&start))
    }

    /// A schema as part of a rule.
    ///
    /// # Errors
    /// When all schemas together are too long; each may repeat what they share, so this may grow
    /// where they do not.
    fn json(&self, schema: super::JsonGrammar) -> Result<String, String> {
        let json = schema.with_options().to_string();
        let most = limits::GRAMMAR_BYTES_MAX;
        match self.text.len() + json.len() > most {
            true => Err(format!("the tools take more than {most} bytes")),
            false => Ok(format!("%json {json}")),
        }
    }

    /// A rule for text with what closes it behind: both are one lexeme, or the text would swallow
    /// the beginning of what closes it. The text does not hold `tag`.
    fn text_rule(&mut self, rule: &str, value: &str, close: &str, tag: &str) {
        let tag = regex_literal(tag);
        let close = quoted(close);
        self.line(&format!(
            r"{rule}[suffix={close}]: {value} & ~/(?s:.*){tag}(?s:.*)/"
        ));
    }
}

/// A text as part of a regular expression of Lark.
fn regex_literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for char in text.chars() {
        if r"/\|.+*?()[]{}^$".contains(char) {
            out.push('\\');
        }
        out.push(char);
    }
    out
}
