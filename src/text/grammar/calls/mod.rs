//! Grammars of tool calls, in the forms that [`crate::tools`] reads back.
//!
//! Where arguments stand one by one, they stand in the order of the schema. Text is plain up to
//! what closes it, where the schema says more of it as a regular expression; other values are JSON
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

/// Calls that a reply is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Text after one opening tag, up to the closing one.
    AfterTag,
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

impl Refused {
    /// Refusal of all tools together.
    fn of_all(problem: String) -> Refused {
        let tool = None;
        Refused { tool, problem }
    }
}

/// Blanks that may stand between an opening tag and a call, as an expression.
const BLANK: &str = r"[ \t\r\n]{0,8}";

/// Grammar of calls in a syntax.
pub trait CallGrammar: Syntax {
    /// Between two calls.
    const BETWEEN: &'static str = "";
    /// Text between the opening tag and a function, and after the function.
    const AROUND: (&'static str, &'static str);
    /// Text after the opening tag that shows that it opens a call; empty where any text does.
    const SIGN: &'static str = "";
    /// Whether a function may follow another in one call.
    const SEVERAL: bool = false;

    /// Whether a call is an object of JSON, which begins like an answer that is one.
    const JSON: bool = false;

    /// Text that may follow an opening which opens no call, as an expression; none where the
    /// opening is a mark of calls alone.
    fn other() -> Option<String> {
        None
    }

    /// Beginning of a call where a reply is made of calls, as part of a rule.
    fn begin() -> String {
        literal(Self::FORMAL)
    }

    /// Text between two such calls, as part of a rule.
    fn between() -> String {
        literal(Self::BETWEEN)
    }

    /// A whole reply that is an answer, which is part of a rule, instead of calls.
    fn answer(answer: String) -> String {
        answer
    }

    /// Rule of what follows an opening tag, as far as it begins a call of one of `names`.
    fn names(lark: &mut Lark, names: &[&str]) -> String {
        heads::<Self>(lark, names)
    }

    /// Text of a call of `name` between the first text of [`CallGrammar::AROUND`] and the
    /// arguments.
    fn head(name: &str) -> String;

    /// Writes the rules of a function; returns what a call of it consists of, as part of a rule.
    ///
    /// # Errors
    /// Names what of the function must be enforced and cannot.
    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String>;
}

/// [`grammar`] in the form of a model.
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
/// `loose`: the arguments of tools that are not strict are free; else they follow their schemas as
/// far as these can be enforced. `answer`: grammar of a reply without calls.
///
/// # Errors
/// Names what of a tool must be enforced and cannot, or cannot be offered beside calls.
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

/// [`names`] in the form of a model.
pub fn names_of(format: ToolFormat, tools: &[Value]) -> Grammar {
    with_syntax!(format, S => names::<S>(tools))
}

/// The grammar of what follows an opening tag, as far as it begins a call: a call has the name of
/// one of `tools`, and all else is left to the model.
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

/// The heads of calls, and what may stand where there is none.
fn heads<S: CallGrammar>(lark: &mut Lark, names: &[&str]) -> String {
    let blank = if S::SIGN.is_empty() { "" } else { BLANK };
    let heads = names.iter().map(|name| {
        let head = format!("{}{}", S::AROUND.0, S::head(name));
        let sign = head.find(S::SIGN).unwrap_or_default();
        regex_literal(&head[sign..]).replace('\n', "\\n")
    });
    // A token may hold more than the end of a head.
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

/// Expression of texts that differ from `text`, each up to the first character that differs, which
/// is no blank at the head.
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

/// `text` as a string of Lark, whose strings are written as those of JSON.
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

/// `tool` with what restricts a call alone in its parameters, in as few schemas as possible.
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

/// One tool as the grammar sees it.
pub struct Function<'v> {
    at: usize,
    name: &'v str,
    /// The parameters; references in schemas are resolved here.
    root: Root<'v>,
    /// Arguments that the parameters describe, and the types as which the reader takes them.
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

/// Facts known of an argument.
enum Described<'v> {
    By(&'v Value),
    /// Several schemas apply at once, which is not enforced; the value has one of these types.
    Of(Types),
}

/// Keywords of the schema of all arguments that are honoured where arguments stand one by one.
/// `additionalProperties` is met: no other arguments are written.
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

/// Options for writing a JSON value.
#[derive(Clone, Copy)]
struct Form<'f> {
    whitespace: bool,
    /// Types that the value has whatever its schema says; empty if unknown.
    of_types: &'f [&'f str],
    /// Makes the schema of a call from the function's name and the schema of its arguments; None
    /// for a value that stands alone.
    call: Option<fn(&str, Value) -> Value>,
}

/// Schema of an argument that no schema describes.
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

    /// Types of an argument as the reader of calls takes it.
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

    /// Records a problem as a warning.
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

    /// Arguments that the schema of the parameters describes: one list for each of its
    /// alternatives.
    ///
    /// # Errors
    /// Names what of them cannot be enforced, if the function is strict.
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

    /// A schema of the parameters as part of a rule: any value of its type where it cannot be
    /// enforced.
    ///
    /// # Errors
    /// Names what of it must be enforced and cannot.
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
    /// Path in the request.
    path: String,
    strict: bool,
    /// Schema as it was written for the compiler.
    json: Value,
    /// Schema of any value, used if the compiler refuses `json`.
    any: Value,
}

/// Looks at each schema of a grammar of calls alone, where the compiler does not take all of them
/// as they are; the grammar without those that it refuses, and with warnings that have a path.
///
/// # Errors
/// What the compiler does not enforce of a strict function.
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

/// A problem after the path that it is about.
fn at(path: &str, problem: String) -> String {
    match path {
        "" => problem,
        path => format!("{path}: {problem}"),
    }
}

/// Keywords of an object's schemas that cannot be enforced where its members are written one by
/// one.
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
    /// Parts that are not enforced.
    warnings: Vec<String>,
    /// The schemas in it.
    schemas: Vec<CallSchema>,
}

impl Lark {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// `rule`, or other text that may follow an opening tag.
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
    /// If the rules, with `more` bytes, are too long. They may be even where the tools are not:
    /// rules repeat the schemas that they share.
    fn check_size(&self, more: usize) -> Result<(), String> {
        let most = limits::GRAMMAR_BYTES_MAX;
        match self.text.len() + more > most {
            true => Err(format!("the tools take more than {most} bytes")),
            false => Ok(()),
        }
    }

    /// A schema that was written for the compiler as part of a rule.
    fn json(&self, schema: &Value) -> Result<String, String> {
        let rule = json_rule(schema);
        self.check_size(rule.len())?;
        Ok(rule)
    }

    /// Rule of a reply without calls.
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

    /// A rule for text and what closes it, as one lexeme: else the text would swallow the beginning
    /// of `close`. The text does not hold `tag`.
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
