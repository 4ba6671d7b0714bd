//! Grammars of tool calls, in the forms that [`crate::tools`] reads back.
//!
//! Arguments that are written one by one come in the order of the schema. Text is free up to its
//! closing tag, or follows a regular expression if the schema restricts it; other values are JSON
//! under their schema.

mod fits;
mod gemma;
mod harmony;
mod json;
mod markup;
mod merge;
mod text;

use llguidance::regex_to_lark;
use serde_json::Value;
use step::ToolFormat;

use crate::tools::{Member, Members, Root, Syntax, Types, with_syntax};

use super::plain::{Subschema, compiled};
use super::{Grammar, keywords, limits};

/// Number of calls in a reply, and text around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The calls after one opening tag, up to the closing one, in a reply that is text.
    AfterTag,
    /// One call and no other text.
    One,
    /// One call or several, and no other text.
    Several,
}

/// Reason why there is no grammar of the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Name of the tool at fault; None if the fault is of all tools together.
    pub tool: Option<String>,
    pub problem: String,
}

impl Refused {
    /// Refusal of all tools together.
    fn of_all(problem: String) -> Refused {
        let tool = None;
        Refused { tool, problem }
    }
}

/// Expression of the blanks that may come between an opening tag and a call.
const BLANK: &str = r"[ \t\r\n]{0,8}";

/// Grammar of calls in a [`Syntax`].
pub trait CallGrammar: Syntax {
    /// Text between two calls.
    const BETWEEN: &'static str = "";
    /// Text between the opening tag and a function, and after the function.
    const AROUND: (&'static str, &'static str);
    /// Text after the opening tag that shows that a call begins; empty if the tag alone shows this.
    const SIGN: &'static str = "";
    /// Whether a function may follow another in one call.
    const SEVERAL: bool = false;

    /// Whether a call is a JSON object, which begins like an answer in JSON.
    const JSON: bool = false;

    /// Expression of the text after an opening tag that opens no call; None if each tag opens one.
    fn other() -> Option<String> {
        None
    }

    /// Rule part that begins a call in a reply of calls only.
    fn begin() -> String {
        literal(Self::FORMAL)
    }

    /// Rule part between two calls in a reply of calls only.
    fn between() -> String {
        literal(Self::BETWEEN)
    }

    /// Rule part of a reply that is the answer `answer`, itself a rule part, instead of calls.
    fn answer(answer: String) -> String {
        answer
    }

    /// Rule part of the text after an opening tag, as far as a call of one of `names` begins there.
    fn names(lark: &mut Lark, names: &[&str]) -> String {
        heads::<Self>(lark, names)
    }

    /// Start of a call of `name`, from the first text of [`CallGrammar::AROUND`] to the arguments.
    fn head(name: &str) -> String;

    /// Writes the rules of a function; returns the rule part of a call of it.
    ///
    /// # Errors
    /// Names the part of the function that must be enforced and cannot.
    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String>;
}

/// Grammar that [`grammar`] writes for calls in the form `format`.
pub fn grammar_of(
    format: ToolFormat,
    tools: &[Value],
    calls: Calls,
    loose: bool,
    answer: Option<&Grammar>,
) -> Result<Grammar, Refused> {
    with_syntax!(format, S => grammar::<S>(tools, calls, loose, answer))
}

/// The grammar of calls of `tools`, which are in the form of the chat completions API.
///
/// `loose`: the arguments of tools that are not strict are free; else all arguments follow their
/// schemas as far as possible. `answer`: grammar of a reply without calls.
///
/// # Errors
/// Names the part of a tool or of the answer that must be enforced and cannot.
pub fn grammar<S: CallGrammar>(
    tools: &[Value],
    calls: Calls,
    loose: bool,
    answer: Option<&Grammar>,
) -> Result<Grammar, Refused> {
    let tools: Vec<Value> = tools.iter().map(without_annotations).collect();
    let schemas = tools.iter().map(|tool| &tool["function"]["parameters"]);
    limits::check_schemas(schemas)
        .map_err(|error| Refused::of_all(format!("the schemas of the tools: {error}")))?;
    let mut lark = Lark::default();
    let whole = S::JSON && answer.is_some();
    let mut functions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let mut function = Function::read(at, &tool["function"], loose);
        function.whole = whole;
        let written = function.write::<S>(&mut lark).map_err(|problem| Refused {
            tool: Some(function.name.to_string()),
            problem,
        })?;
        lark.line(&format!("function_{at}: {written}"));
        functions.push(format!("function_{at}"));
    }
    let several = format!("call ({} call)*", S::between());
    let forced = match calls {
        Calls::AfterTag => lark.or_other::<S>("body"),
        Calls::One => "call".to_string(),
        Calls::Several => several,
    };
    let start = match answer {
        Some(answer) => {
            let answer = lark.answer(answer).map_err(Refused::of_all)?;
            format!("{} | {forced}", S::answer(answer))
        }
        None => forced,
    };
    lark.line(&format!("start: {start}"));
    let (open, (before, after)) = match whole {
        true => (String::new(), ("", "")),
        false => (S::begin(), S::AROUND),
    };
    lark.line(&format!("call: {open} body"));
    let repeats = match S::SEVERAL && calls != Calls::One {
        true => "+",
        false => "",
    };
    let (before, after) = (literal(before), literal(after));
    lark.line(&format!("body: {before} function{repeats} {after}"));
    lark.line(&format!("function: {}", functions.join(" | ")));
    Ok(Grammar::Calls {
        lark: lark.text,
        warnings: lark.warnings,
        schemas: lark.schemas,
    })
}

/// Grammar that [`names`] writes for calls in the form `format`.
pub fn names_of(format: ToolFormat, tools: &[Value]) -> Grammar {
    with_syntax!(format, S => names::<S>(tools))
}

/// Grammar of the text after an opening tag that only restricts called functions to `tools`.
pub fn names<S: CallGrammar>(tools: &[Value]) -> Grammar {
    let mut lark = Lark::default();
    let names = tools.iter().map(|tool| &tool["function"]["name"]);
    let names: Vec<&str> = names.filter_map(Value::as_str).collect();
    let start = S::names(&mut lark, &names);
    lark.line(&format!("start: {start}"));
    Grammar::Calls {
        lark: lark.text,
        warnings: Vec::new(),
        schemas: Vec::new(),
    }
}

/// Rule part for the starts of calls, and for the text that may come instead.
fn heads<S: CallGrammar>(lark: &mut Lark, names: &[&str]) -> String {
    let blank = if S::SIGN.is_empty() { "" } else { BLANK };
    let heads = names.iter().map(|name| {
        let head = format!("{}{}", S::AROUND.0, S::head(name));
        let sign = head.find(S::SIGN).unwrap_or_default();
        regex_literal(&head[sign..]).replace('\n', "\\n")
    });
    // Any text may follow a start, since a token may contain the start's end and more text.
    let heads = heads.collect::<Vec<String>>().join("|");
    lark.line(&format!("HEAD: /{blank}({heads})(?s:.*)/"));
    match S::SIGN {
        "" => lark.or_other::<S>("HEAD"),
        sign => {
            let text = format!("{BLANK}{}(?s:.*)", differs(sign));
            lark.line(&format!("TEXT: /{}/", regex_to_lark(&text, "")));
            "HEAD | TEXT".to_string()
        }
    }
}

/// Expression of texts that differ from `text`, each up to the first difference; none begins with a
/// blank.
fn differs(text: &str) -> String {
    let one = |rest: String, char: char| match rest.is_empty() {
        true => format!("[^{char}]"),
        false => format!("([^{char}]|{char}{rest})"),
    };
    let (first, rest) = text.split_at(1);
    let rest = rest.chars().rev().fold(String::new(), one);
    match rest.is_empty() {
        true => format!(r"[^{first}\s]"),
        false => format!(r"([^{first}\s]|{first}{rest})"),
    }
}

fn one_of(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("({})", texts.join(" | "))
}

/// `text` as a string of Lark, which writes strings as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `text` as a string in a rule; nothing if it is empty.
fn literal(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    quoted(text)
}

/// `tool` whose parameters have only keywords that restrict a call, in as few schemas as possible.
/// Writers of grammars and readers of calls both use this form.
pub fn without_annotations(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(parameters) = tool["function"].get_mut("parameters") {
        *parameters = keywords::standard(parameters);
        if limits::check_schemas([&*parameters]).is_ok() {
            *parameters = merge::merged(parameters);
        }
    }
    tool
}

/// One tool, prepared for its grammar.
pub struct Function<'v> {
    at: usize,
    name: &'v str,
    /// Schema of the parameters, in which references are resolved.
    root: Root<'v>,
    /// Arguments that the parameters describe.
    members: Members<&'v Value>,
    types: Members<Types>,
    /// Whether the arguments are not constrained.
    free: bool,
    strict: bool,
    /// Whether a call is written as one JSON value.
    whole: bool,
}

/// One argument of a function.
struct Argument<'v> {
    name: String,
    schema: Described<'v>,
    required: bool,
}

/// Schema or types of an argument.
enum Described<'v> {
    By(&'v Value),
    /// Types of an argument for which several schemas hold at once, which is not enforced.
    Of(Types),
}

/// Keywords of the parameters' schema that are enforced where arguments are written one by one.
/// `additionalProperties` always holds, since no other arguments are written.
const OBJECT_KEYWORDS: &[&str] = &[
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "patternProperties",
    "properties",
    "required",
];

/// Options for a JSON value in a rule.
#[derive(Clone, Copy)]
struct Form<'f> {
    whitespace: bool,
    /// Types that the value must have in addition to its schema; empty if unknown.
    of_types: &'f [&'f str],
    /// Function that makes the schema of a call from the function's name and the schema of its
    /// arguments; None for a value by itself.
    call: Option<fn(&str, Value) -> Value>,
}

/// Schema of an argument without a schema: any value.
static ANY: Value = Value::Bool(true);

impl<'v> Function<'v> {
    fn read(at: usize, function: &'v Value, loose: bool) -> Function<'v> {
        let strict = function["strict"] == true;
        let root = Root::new(&function["parameters"]);
        let members = Members::of(&root, root.value());
        Function {
            at,
            name: function["name"].as_str().unwrap_or_default(),
            types: members.typed(&root),
            members,
            root,
            free: loose && !strict,
            strict,
            whole: false,
        }
    }

    /// Types as which the reader of calls takes an argument.
    fn types(&self, argument: &str) -> Types {
        self.types.types(argument).unwrap_or(Types::TEXT)
    }

    fn write<S: CallGrammar>(&self, lark: &mut Lark) -> Result<String, String> {
        let problem = limits::inexact_number(self.root.value());
        if let Some(problem) = problem.filter(|_| !self.free) {
            self.tolerate(lark, problem)?;
        }
        let written = S::function(lark, self)?;
        lark.check_size(written.len())?;
        Ok(written)
    }

    /// Records a problem as a warning, unless the function is strict.
    ///
    /// # Errors
    /// The problem, if the function is strict.
    fn tolerate(&self, lark: &mut Lark, problem: String) -> Result<(), String> {
        if self.strict {
            return Err(problem);
        }
        lark.warnings
            .push(format!("function {}: {problem}", self.name));
        Ok(())
    }

    /// Arguments that the schema of the parameters describes: a list for each alternative.
    ///
    /// # Errors
    /// Names the part of the schema that cannot be enforced, if the function is strict.
    fn arguments(&self, lark: &mut Lark) -> Result<Vec<Vec<Argument<'v>>>, String> {
        for problem in object_problems(&self.members, &self.root) {
            self.tolerate(lark, problem)?;
        }
        let alternatives = self.members.alternatives.iter();
        let arguments = alternatives.map(|layers| {
            let members = Members::members(layers).into_iter();
            let arguments = members.map(|member| self.argument(lark, member));
            arguments.filter_map(Result::transpose).collect()
        });
        arguments.collect()
    }

    /// Argument of one member of a schema; None if the schema forbids the member.
    fn argument(
        &self,
        lark: &mut Lark,
        member: Member<&'v Value>,
    ) -> Result<Option<Argument<'v>>, String> {
        let (name, required) = (member.name, member.required);
        if member.forbidden && required {
            let problem = format!("{name:?} is required and has no place");
            self.tolerate(lark, problem)?;
        }
        if member.forbidden {
            return Ok(None);
        }
        let schema = match member.said.as_slice() {
            [] => Described::By(&ANY),
            [one, more @ ..] if more.iter().all(|more| more == one) => Described::By(one),
            _ => {
                let problem = "what several schemas say of one value is not enforced";
                self.tolerate(lark, at(&format!("properties.{name}"), problem.to_string()))?;
                Described::Of(self.types(&name))
            }
        };
        Ok(Some(Argument {
            name,
            schema,
            required,
        }))
    }

    /// Rule part for a schema in the parameters: any value of its type if it cannot be enforced.
    ///
    /// # Errors
    /// Names the part of the schema that must be enforced and cannot.
    fn json(
        &self,
        lark: &mut Lark,
        path: &str,
        schema: &'v Value,
        form: Form<'_>,
    ) -> Result<String, String> {
        let subschema = Subschema {
            root: &self.root,
            schema,
            path,
            strict: self.strict,
            whitespace: form.whitespace,
            of_types: form.of_types,
        };
        let name = schema["type"].as_str();
        let name = name.filter(|name| keywords::is_type(name));
        let any = Subschema {
            root: &Root::new(&ANY),
            schema: &ANY,
            of_types: match (form.of_types, &name) {
                ([], Some(name)) => std::slice::from_ref(name),
                (names, _) => names,
            },
            ..subschema
        };
        let (any, _) = any.written()?;
        let (json, problems) = match subschema.written() {
            Ok(written) => written,
            Err(problem) => (any.clone(), vec![problem]),
        };
        for problem in problems {
            self.tolerate(lark, problem)?;
        }
        let [json, any] = [json, any].map(|schema| match form.call {
            Some(call) => call(self.name, schema),
            None => schema,
        });
        let written = lark.json(&json)?;
        lark.schemas.push(CallSchema {
            path: match path {
                "" => format!("function {}", self.name),
                path => format!("function {}: {path}", self.name),
            },
            strict: self.strict,
            json,
            any,
        });
        Ok(written)
    }
}

/// A schema inside the grammar of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSchema {
    /// Path of the schema in the request, for messages.
    path: String,
    strict: bool,
    /// The schema as it was rewritten for llguidance.
    json: Value,
    /// Schema of any value, which replaces `json` if llguidance refuses `json`.
    any: Value,
}

/// Compiles each schema of a grammar of calls alone, after llguidance refused a part of the
/// grammar. Returns the grammar with refused schemas replaced, and with warnings that have paths.
///
/// # Errors
/// The part of a strict function that llguidance does not enforce.
pub fn looked_through(
    mut lark: String,
    mut warnings: Vec<String>,
    schemas: &[CallSchema],
) -> Result<Grammar, String> {
    for schema in schemas {
        let compiled = compiled(&schema.json);
        let refused = compiled.is_err();
        for problem in compiled.unwrap_or_else(|problem| vec![problem]) {
            let problem = at(&schema.path, problem);
            if schema.strict {
                return Err(problem);
            }
            warnings.push(problem);
        }
        if refused {
            lark = lark.replace(&json_rule(&schema.json), &json_rule(&schema.any));
        }
    }
    Ok(Grammar::Calls {
        lark,
        warnings,
        schemas: Vec::new(),
    })
}

fn json_rule(schema: &Value) -> String {
    format!("%json {schema}")
}

/// The text of a problem after the path of its schema.
fn at(path: &str, problem: String) -> String {
    match path {
        "" => problem,
        path => format!("{path}: {problem}"),
    }
}

/// Problems with keywords of an object's schemas that cannot be enforced with members one by one.
fn object_problems(members: &Members<&Value>, root: &Root<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    if !members.exact {
        problems.push("it has more alternatives, or parts of them, than are enforced".to_string());
    }
    let mut seen = Vec::new();
    for layer in members.alternatives.iter().flatten() {
        let address = std::ptr::from_ref(layer.schema);
        if seen.contains(&address) {
            continue;
        }
        seen.push(address);
        problems.extend(keywords::check(layer.schema, OBJECT_KEYWORDS).err());
        problems.extend(keywords::object_problem(layer.schema, root));
    }
    problems
}

/// A Lark grammar that is being written.
#[derive(Default)]
pub struct Lark {
    text: String,
    /// Warnings about parts of schemas that the grammar does not enforce.
    warnings: Vec<String>,
    /// Schemas in the grammar.
    schemas: Vec<CallSchema>,
}

impl Lark {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Rule part for `rule`, or for other text that may follow an opening tag.
    fn or_other<S: CallGrammar>(&mut self, rule: &str) -> String {
        let Some(other) = S::other() else {
            return rule.to_string();
        };
        self.line(&format!("other: /{}/", regex_to_lark(&other, "")));
        format!("{rule} | other")
    }

    fn has_rule(&self, rule: &str) -> bool {
        let start = format!("{rule}:");
        self.text.lines().any(|line| line.starts_with(&start))
    }

    /// # Errors
    /// If the rules, with `more` bytes, are too long. Rules repeat shared schemas, so they can be
    /// long even if the tools are not.
    fn check_size(&self, more: usize) -> Result<(), String> {
        let most = limits::GRAMMAR_BYTES_MAX;
        match self.text.len() + more > most {
            true => Err(format!("the tools take more than {most} bytes")),
            false => Ok(()),
        }
    }

    /// Rule part for a schema that was rewritten for llguidance.
    fn json(&self, schema: &Value) -> Result<String, String> {
        let rule = json_rule(schema);
        self.check_size(rule.len())?;
        Ok(rule)
    }

    /// Rule part for a reply without calls.
    fn answer(&mut self, grammar: &Grammar) -> Result<String, String> {
        limits::check(grammar).map_err(|error| error.0)?;
        match grammar {
            Grammar::Json(json) => {
                let (schema, problems) = json.written()?;
                self.warnings.extend(problems);
                let written = self.json(&schema)?;
                self.schemas.push(CallSchema {
                    path: "the answer's schema".to_string(),
                    strict: json.strict,
                    any: schema.clone(),
                    json: schema,
                });
                Ok(written)
            }
            Grammar::Regex(pattern) => Ok(format!("/{}/", regex_to_lark(pattern, ""))),
            Grammar::Choice(choices) => Ok(one_of(choices)),
            Grammar::Lark(_) | Grammar::Calls { .. } => {
                Err("a grammar beside tools is not served; leave one of them out".to_string())
            }
        }
    }

    /// Writes a rule for text and `close` after it as one lexeme, since the text alone would
    /// swallow the start of `close`. The text does not contain `tag`.
    fn text_rule(&mut self, rule: &str, value: &str, close: &str, tag: &str) {
        let tag = regex_literal(tag);
        let close = quoted(close);
        self.line(&format!(
            r"{rule}[suffix={close}]: {value} & ~/(?s:.*){tag}(?s:.*)/"
        ));
    }
}

/// A text as part of a regular expression of Lark, with special characters escaped.
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
