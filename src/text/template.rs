//! The checkpoint's chat template (Jinja) with the extensions that Hugging Face renders it with.
//!
//! A template comes from the model's files or from the binary, never from a request. Execution is
//! bounded in instructions, in output bytes, and in time and memory ([`bounds`]). A conversation of
//! every role is rendered when the template is loaded. It knows the [`special`] tokens by name.

use std::fmt;
use std::io;
use std::time::SystemTime;

use minijinja::machinery::{self, CompiledTemplate};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::json;

use crate::calendar::strftime;

use self::special::SpecialTokens;

mod bounds;
pub mod special;

/// Template instructions that one rendering may take.
pub const FUEL_MAX: u64 = 20_000_000;
/// Bytes that one rendering may produce.
pub const RENDERED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a template file.
pub const TEMPLATE_BYTES_MAX: usize = 1024 * 1024;

const NAME: &str = "chat_template";

/// Why a template cannot be used or a conversation not be rendered.
#[derive(Debug)]
pub enum TemplateError {
    /// The template is malformed or fails on an ordinary conversation.
    Load(String),
    /// The template refuses this conversation; the text is fit for the client.
    Refused(String),
    /// The conversation takes more instructions or bytes than the limits allow.
    TooLarge,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Load(why) => write!(f, "chat template: {why}"),
            TemplateError::Refused(why) => write!(f, "the chat template refuses: {why}"),
            TemplateError::TooLarge => write!(f, "the conversation is too large for the template"),
        }
    }
}

impl std::error::Error for TemplateError {}

/// What a template sees. Messages and tools are in the form of the chat completions API, with
/// `arguments` of tool calls as objects.
#[derive(Debug, Serialize)]
pub struct Conversation {
    pub messages: Vec<serde_json::Value>,
    /// Absent when empty, since templates ask whether it is defined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<serde_json::Value>,
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    pub enable_thinking: bool,
}

/// A compiled chat template.
pub struct Template {
    source: String,
    special: SpecialTokens,
    environment: Environment<'static>,
    compiled: CompiledTemplate<'static>,
    accepts_late_system: bool,
}

impl Template {
    /// Compiles `source`, which may name `special` tokens, and renders conversations with it to see
    /// that it works.
    ///
    /// # Errors
    /// `Load` when it does not compile or fails on a plain conversation.
    pub fn load(source: &str, special: SpecialTokens) -> Result<Template, TemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::Load(format!(
                "larger than {TEMPLATE_BYTES_MAX} bytes"
            )));
        }
        let mut template = Template::compile(source, special)?;
        for conversation in [plain_conversation(), tool_conversation()] {
            template
                .render(&conversation)
                .map_err(|error| TemplateError::Load(format!("fails when tried: {error}")))?;
        }
        template.accepts_late_system = template.render(&late_system_conversation()).is_ok();
        Ok(template)
    }

    fn compile(source: &str, special: SpecialTokens) -> Result<Template, TemplateError> {
        let syntax = syntax()?;
        let mut environment = environment(syntax.clone());
        for (name, text) in special.iter() {
            environment.add_global(name, Value::from(text));
        }
        Ok(Template {
            source: source.to_string(),
            special,
            environment,
            compiled: bounds::compile(NAME, source, syntax).map_err(load_error)?,
            accepts_late_system: false,
        })
    }

    /// Whether a system message may follow other messages.
    pub fn accepts_late_system(&self) -> bool {
        self.accepts_late_system
    }

    /// The special tokens of the checkpoint.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The template as the checkpoint has it.
    pub fn source(&self) -> String {
        self.source.clone()
    }

    /// Renders a conversation to the text that is encoded.
    ///
    /// # Errors
    /// `Refused` with the template's own words, or `TooLarge`.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let mut text = String::new();
        let rendered = machinery::eval(
            &self.environment,
            &self.compiled.instructions,
            Value::from(Serde(conversation)),
            &self.compiled.blocks,
            &mut machinery::make_string_output(&mut text),
            self.compiled.initial_auto_escape.clone(),
        )
        .map(|_| ());
        if text.len() > RENDERED_BYTES_MAX {
            return Err(TemplateError::TooLarge);
        }
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => TemplateError::TooLarge,
            _ => TemplateError::Refused(
                error
                    .detail()
                    .map_or_else(|| error.kind().to_string(), str::to_string),
            ),
        })?;
        Ok(text)
    }
}

/// Bytes up to a limit.
#[derive(Default)]
struct CappedOutput {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl io::Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_BYTES_MAX {
            self.overflowed = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn load_error(error: Error) -> TemplateError {
    let line = error
        .line()
        .map_or(String::new(), |line| format!(" (line {line})"));
    TemplateError::Load(format!("{error}{line}"))
}

/// Block tags take their line with them, as in Hugging Face's renderer.
fn syntax() -> Result<SyntaxConfig, TemplateError> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    syntax.map_err(load_error)
}

/// The environment of Hugging Face's renderer: Python methods work, and `tojson` writes what
/// Python's `json.dumps` writes.
fn environment(syntax: SyntaxConfig) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL_MAX));
    bounds::install(&mut environment, to_json);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        strftime(&format, SystemTime::now())
    });
    environment
}

/// `json.dumps(value, ensure_ascii=False, indent=…, sort_keys=…)`.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let fail = |error: serde_json::Error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("cannot write as JSON: {error}"),
        )
    };
    let mut value = serde_json::to_value(value).map_err(fail)?;
    if sorted == Some(true) {
        value.sort_all_objects();
    }
    let mut output = CappedOutput::default();
    let indent = indent.map(|width| " ".repeat(width.min(16)));
    let style = PythonStyle {
        indent,
        depth: 0,
        empty: true,
    };
    let mut serializer = serde_json::Serializer::with_formatter(&mut output, style);
    let written = value.serialize(&mut serializer);
    if output.overflowed {
        return Err(bounds::too_large());
    }
    written.map_err(fail)?;
    let text = String::from_utf8(output.bytes).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("cannot write as JSON: {error}"),
        )
    })?;
    Ok(Value::from_safe_string(text))
}

/// The layout of Python's `json.dumps`: `", "` and `": "`, or one item a line.
struct PythonStyle {
    indent: Option<String>,
    depth: usize,
    /// Whether the container at hand has no item yet.
    empty: bool,
}

impl PythonStyle {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.newline(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        match (first, &self.indent) {
            (true, _) => {}
            (false, None) => writer.write_all(b", ")?,
            (false, Some(_)) => writer.write_all(b",")?,
        }
        self.newline(writer)
    }

    fn newline<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        writer.write_all(b"\n")?;
        writer.write_all(indent.repeat(self.depth).as_bytes())
    }
}

impl serde_json::ser::Formatter for PythonStyle {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }
}

/// Python's `repr` of a finite float: shortest digits, exponent form from 1e16 on and below 1e-4.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

fn conversation(messages: serde_json::Value, tools: Vec<serde_json::Value>) -> Conversation {
    let messages = messages.as_array().cloned().unwrap_or_default();
    Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        enable_thinking: false,
    }
}

fn plain_conversation() -> Conversation {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"}
    ]);
    conversation(messages, Vec::new())
}

fn tool_conversation() -> Conversation {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Paris", "days": 2}}}]},
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"}
    ]);
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    conversation(messages, vec![tool])
}

fn late_system_conversation() -> Conversation {
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Bye"}
    ]);
    conversation(messages, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

    fn rendered(source: &str, messages: serde_json::Value) -> Result<String, TemplateError> {
        let template = Template::compile(source, SpecialTokens::default())?;
        template.render(&conversation(messages, Vec::new()))
    }

    fn loaded(source: &str) -> Result<Template, TemplateError> {
        Template::load(source, SpecialTokens::default())
    }

    #[test]
    fn messages_are_rendered_in_order() {
        let text = rendered(PLAIN, json!([{"role": "user", "content": "<a&b>"}])).unwrap();
        assert_eq!(text, "[user]<a&b>");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let source = "{{ messages[0] | tojson }}";
        let message = json!({"z": "é<\"", "a": [1, 1.0, 1e16, 1e-5, true, null], "e": {}});
        assert_eq!(
            rendered(source, json!([message])).unwrap(),
            r#"{"z": "é<\"", "a": [1, 1.0, 1e+16, 1e-05, true, null], "e": {}}"#
        );
    }

    #[test]
    fn indented_json_is_written_as_python_writes_it() {
        let text = rendered(
            "{{ messages | tojson(indent=2) }}",
            json!([{"a": [], "b": 1}]),
        );
        assert_eq!(
            text.unwrap(),
            "[\n  {\n    \"a\": [],\n    \"b\": 1\n  }\n]"
        );
    }

    #[test]
    fn python_methods_loop_controls_and_namespaces_work() {
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}\
            {% if m.content.startswith('skip') %}{% continue %}{% endif %}\
            {% set ns.n = ns.n + 1 %}{{ m.content.strip().split(' ')[-1] }}\
            {% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}";
        let messages =
            json!([{"content": "skip"}, {"content": " a b "}, {"content": "c"}, {"content": "d"}]);
        assert_eq!(rendered(source, messages).unwrap(), "bc");
    }

    #[test]
    fn an_exception_of_the_template_is_reported_in_its_words() {
        let error = rendered("{{ raise_exception('No user query.') }}", json!([])).unwrap_err();
        assert!(matches!(error, TemplateError::Refused(why) if why == "No user query."));
    }

    #[test]
    fn special_tokens_are_known_by_their_names() {
        let source = "{{ bos_token + messages[0].content + eos_token }}\
            {% if pad_token is defined %}{{ pad_token }}{% endif %}";
        assert!(
            loaded(source).is_err(),
            "nothing is added to a token that is not there"
        );
        let file = br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}"#;
        let template = Template::load(source, SpecialTokens::parse(file).unwrap()).unwrap();
        let text = template.render(&plain_conversation()).unwrap();
        assert_eq!(text, "<s>Be brief.</s>");
    }

    #[test]
    fn endless_work_is_cut_off() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}\
            {% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(matches!(
            rendered(source, json!([])),
            Err(TemplateError::TooLarge)
        ));
    }

    #[test]
    fn endless_output_is_cut_off() {
        let source = "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}";
        assert!(matches!(
            rendered(source, json!([])),
            Err(TemplateError::TooLarge)
        ));
    }

    #[test]
    fn a_template_that_fails_on_a_plain_conversation_is_not_loaded() {
        let error = loaded("{{ messages[0].missing.deeper }}").err().unwrap();
        assert!(error.to_string().contains("fails when tried"), "{error}");
    }

    #[test]
    fn late_system_messages_are_tried_at_load() {
        assert!(loaded(PLAIN).unwrap().accepts_late_system());
        let strict = format!(
            "{PLAIN}{{% for m in messages %}}{{% if m.role == 'system' and not loop.first %}}\
             {{{{ raise_exception('first') }}}}{{% endif %}}{{% endfor %}}"
        );
        assert!(!loaded(&strict).unwrap().accepts_late_system());
    }
}
