//! Grammars of tool calls in the `qwen3_coder` format, which [`crate::text::tools`] reads back.
//!
//! Arguments stand in the order of the schema. A string is plain text up to the closing tag, where
//! the schema says more of it as a regular expression; other values are JSON under their schema.

use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use crate::text::tools::{CALL_CLOSE, CALL_OPEN, Types, is_name, resolved};

use super::{Grammar, JsonGrammar, limits};

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

/// The grammar of calls of `tools`, which are in the form of the chat completions API.
///
/// `loose`: the arguments of tools that are not strict are free; else they follow their schemas as
/// far as these can be enforced. `answer`: what the reply may be instead of calls.
///
/// # Errors
/// What of a tool cannot be enforced, or what cannot stand beside calls.
pub fn grammar(
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
        let written = function.and_then(|function| lark.function(&function));
        written.map_err(|problem| Refused {
            tool: tool["function"]["name"].as_str().map(str::to_string),
            problem,
        })?;
        functions.push(format!("function_{at}"));
    }
    let start = match (calls, answer) {
        (Calls::BehindTag, _) => "body".to_string(),
        (Calls::One, None) => "call".to_string(),
        (Calls::Several, None) => r#"call ("\n" call)*"#.to_string(),
        (Calls::One, Some(answer)) => format!("{} | call", alternative(answer)?),
        (Calls::Several, Some(answer)) => {
            format!(r#"{} | call ("\n" call)*"#, alternative(answer)?)
        }
    };
    lark.line(&format!("start: {start}"));
    lark.line(&format!("call: {} body", quoted(CALL_OPEN)));
    let close = quoted(CALL_CLOSE);
    lark.line(&format!(r#"body: "\n" function {close}"#));
    lark.line(&format!("function: {}", functions.join(" | ")));
    Ok(Grammar::Calls(lark.text))
}

/// A grammar as part of a Lark rule.
fn alternative(grammar: &Grammar) -> Result<String, Refused> {
    match grammar {
        Grammar::Json(json) => Ok(format!("%json {}", json.with_options())),
        Grammar::Regex(pattern) => Ok(format!("/{}/", regex_to_lark(pattern, ""))),
        Grammar::Choice(choices) => Ok(one_of(choices)),
        Grammar::Lark(_) | Grammar::Calls(_) => Err(Refused {
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

/// One tool as the grammar sees it.
struct Function<'v> {
    at: usize,
    name: &'v str,
    parameters: &'v Value,
    /// Nothing is known of the arguments.
    free: bool,
    strict: bool,
}

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
            free: loose && !strict,
            strict,
        })
    }

    fn required(&self) -> impl Iterator<Item = &'v str> {
        let names = self.parameters["required"].as_array();
        names.into_iter().flatten().filter_map(Value::as_str)
    }
}

/// A Lark grammar that is being written.
#[derive(Default)]
struct Lark {
    text: String,
}

/// Text that cannot be taken for the end of its argument.
const NO_CLOSE: &str = r"~/(?s:.*)<\/parameter>(?s:.*)/";

impl Lark {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes the rule `function_AT`.
    fn function(&mut self, function: &Function<'_>) -> Result<(), String> {
        let mut arguments = String::new();
        if function.free {
            arguments.push_str(" free_argument*");
            self.free_argument();
        } else {
            self.arguments(function, &mut arguments)?;
        }
        let open = quoted(&format!("<function={}>\n", function.name));
        let at = function.at;
        self.line(&format!(
            r#"function_{at}: {open}{arguments} "</function>\n""#
        ));
        Ok(())
    }

    /// An argument of any name, taken as text.
    fn free_argument(&mut self) {
        if self.text.contains("free_argument:") {
            return;
        }
        self.line(r#"free_argument: "<parameter=" /[A-Za-z0-9_.:\-]{1,64}/ ">\n" free_text "\n""#);
        self.text_rule("free_text", ANY_TEXT);
    }

    fn arguments(&mut self, function: &Function<'_>, out: &mut String) -> Result<(), String> {
        let nothing = Map::new();
        let properties = function.parameters["properties"].as_object();
        let properties = properties.unwrap_or(&nothing);
        if let Some(name) = function
            .required()
            .find(|name| !properties.contains_key(*name))
        {
            return Err(format!(
                "requires {name:?}, which properties do not describe"
            ));
        }
        for (index, (name, schema)) in properties.iter().enumerate() {
            let required = function.required().any(|known| known == name);
            match is_name(name) {
                true => {}
                false if required || function.strict => {
                    return Err(format!("the name {name:?} does not fit the model's calls"));
                }
                false => continue,
            }
            let rule = format!("argument_{}_{index}", function.at);
            self.argument(&rule, name, schema, function)
                .map_err(|problem| format!("properties.{name}: {problem}"))?;
            out.push_str(&format!(" {rule}{}", if required { "" } else { "?" }));
        }
        Ok(())
    }

    /// Writes the rule of one argument.
    fn argument(
        &mut self,
        rule: &str,
        name: &str,
        schema: &Value,
        function: &Function<'_>,
    ) -> Result<(), String> {
        let open = quoted(&format!("<parameter={name}>\n"));
        let root = function.parameters;
        if Types::of(schema, root).is_text() {
            let value = match text_of(resolved(schema, root), root) {
                Ok(value) => value,
                Err(problem) if function.strict => return Err(problem),
                Err(_) => ANY_TEXT.to_string(),
            };
            self.line(&format!(r#"{rule}: {open} {rule}_text "\n""#));
            self.text_rule(&format!("{rule}_text"), &value);
            return Ok(());
        }
        let mut schema = schema.clone();
        let refers = schema.to_string().contains("\"$ref\"");
        for definitions in ["$defs", "definitions"] {
            if let (true, Some(map), Some(defined)) =
                (refers, schema.as_object_mut(), root.get(definitions))
            {
                map.insert(definitions.to_string(), defined.clone());
            }
        }
        let json = JsonGrammar {
            schema,
            strict: function.strict,
            whitespace: true,
        };
        let json = json.with_options().to_string();
        // Each argument repeats what the schemas share, so this may grow where they do not.
        if self.text.len() + json.len() > limits::GRAMMAR_BYTES_MAX {
            let most = limits::GRAMMAR_BYTES_MAX;
            return Err(format!("the tools take more than {most} bytes"));
        }
        self.line(&format!(
            r#"{rule}: {open} %json {json} "\n</parameter>\n""#
        ));
        Ok(())
    }

    /// A rule for text with the closing tag behind it: text and tag are one lexeme, or the text
    /// would swallow the tag's beginning.
    fn text_rule(&mut self, rule: &str, value: &str) {
        self.line(&format!(
            r#"{rule}[suffix="\n</parameter>"]: {value} & {NO_CLOSE}"#
        ));
    }
}

/// Any text, with its line breaks.
const ANY_TEXT: &str = r"/(?s:.*)/";

/// What a schema says of an argument that is read as text, as an expression of Lark.
///
/// # Errors
/// What cannot be said.
fn text_of(schema: &Value, root: &Value) -> Result<String, String> {
    if let Some(fixed) = schema.get("const") {
        return texts(std::slice::from_ref(fixed));
    }
    if let Some(values) = schema["enum"].as_array() {
        return texts(values);
    }
    if schema.get("allOf").is_some() {
        return Err("allOf of text is not enforced".to_string());
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(options) = schema[keyword].as_array() {
            return any_text_of(options, root);
        }
    }
    if let Some(format) = schema["format"].as_str() {
        return Err(format!("the format {format:?} of text is not enforced"));
    }
    let mut parts = Vec::new();
    if let Some(pattern) = schema["pattern"].as_str() {
        let whole = whole_match(pattern)
            .ok_or_else(|| format!("the pattern {pattern:?} is not enforced in text"))?;
        parts.push(format!("/{}/", regex_to_lark(&whole, "dw")));
    }
    let least = schema["minLength"].as_u64().unwrap_or(0);
    let most = schema["maxLength"].as_u64();
    if least > 0 || most.is_some() {
        let most = most.map_or(String::new(), |most| most.to_string());
        parts.push(format!("/(?s:.{{{least},{most}}})/"));
    }
    Ok(match parts.is_empty() {
        true => ANY_TEXT.to_string(),
        false => parts.join(" & "),
    })
}

/// Text of one of several schemas; those of other types are left out, since the value will be read
/// as text.
fn any_text_of(options: &[Value], root: &Value) -> Result<String, String> {
    let mut texts = Vec::new();
    for option in options {
        let types = Types::of(option, root);
        if types.is_text() {
            texts.push(text_of(resolved(option, root), root)?);
        } else if types.is_null() {
            texts.push(quoted("null"));
        }
    }
    match texts.iter().any(|text| text == ANY_TEXT) {
        true => Ok(ANY_TEXT.to_string()),
        // A conjunction is no operand of an alternative.
        false if texts.iter().any(|text| text.contains(" & ")) => {
            Err("alternatives of text with several keywords are not enforced".to_string())
        }
        false => Ok(format!("({})", texts.join(" | "))),
    }
}

/// The strings among some values, and null by its name.
fn texts(values: &[Value]) -> Result<String, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => Some("null".to_string()),
        _ => None,
    };
    let texts: Vec<String> = values.iter().filter_map(text).collect();
    match texts.is_empty() {
        true => Err("has no text to choose".to_string()),
        false => Ok(one_of(&texts)),
    }
}

/// A pattern that is searched for as one that is matched whole; None where its anchors are
/// elsewhere than at its ends.
fn whole_match(pattern: &str) -> Option<String> {
    let begins = pattern.starts_with('^');
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let ends = inner.ends_with('$') && !inner.ends_with("\\$");
    let inner = if ends {
        &inner[..inner.len() - 1]
    } else {
        inner
    };
    let (mut depth, mut escaped, mut class) = (0_usize, false, false);
    for char in inner.chars() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '^' | '$' => return None,
            '|' if depth == 0 && (begins || ends) => return None,
            _ => {}
        }
    }
    let anything = |anchored: bool| if anchored { "" } else { "(?s:.*)" };
    Some(format!("{}(?:{inner}){}", anything(begins), anything(ends)))
}
