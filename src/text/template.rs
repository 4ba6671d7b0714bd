//! The checkpoint's chat template (Jinja) as Hugging Face renders it.
//!
//! A template comes from the model's files or from the binary, never from a request. The cost of a
//! request is bounded: the size of a conversation by the routes, and here the instructions of a
//! rendering and the bytes that it prints. [`source`] rewrites a template for the engine;
//! [`filters`], [`methods`] and [`python`] add functions of Python that the engine lacks; [`trial`]
//! finds the abilities of a template, and [`special`] the tokens that templates name.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, Output, State};

use host::calendar::strftime;

use self::special::SpecialTokens;
pub use self::trial::{Abilities, CallIds};
use super::tools::harmony::Mark;
use super::work::{self, Stopped};

mod context;
pub mod digits;
mod filters;
pub mod harmony;
mod methods;
mod python;
mod source;
pub mod special;
pub mod stated;
mod trial;

/// Most template instructions of one rendering, some seconds' worth. Published templates whose
/// loops are quadratic take a third of this limit for a request with the most messages.
pub const FUEL_MAX: u64 = 200_000_000;
/// Bytes that one rendering may produce.
pub const RENDERED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes that one rendering may print, including text captured by variables and macros.
pub const PRINTED_BYTES_MAX: usize = 8 * RENDERED_BYTES_MAX;
/// Bytes of a template file.
pub const TEMPLATE_BYTES_MAX: usize = 1024 * 1024;

const NAME: &str = "chat_template";

/// Reason why a template cannot be used or a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is malformed or fails on an ordinary conversation.
    #[error("chat template: {0}")]
    Load(String),
    /// The template refuses this conversation; the text is fit for the client.
    #[error("the chat template refuses: {0}")]
    Refused(String),
    /// The conversation takes more instructions or bytes than the limits allow.
    #[error("the conversation is too large for the template")]
    TooLarge,
    /// The rendering was cancelled.
    #[error("{0}")]
    Stopped(Stopped),
}

/// Input of a template. Messages and tools are in the form of the chat completions API, with
/// `arguments` of tool calls as objects.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<serde_json::Value>,
    pub tools: Vec<serde_json::Value>,
    /// Whether the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    pub enable_thinking: bool,
    /// Variables of the template that the request sets.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Whether the prompt opens the reasoning, even if the model usually opens it.
    pub opens_reasoning: bool,
    /// Whether the reply continues the last message, which is the assistant's.
    pub goes_on: bool,
}

/// A compiled chat template, or a format that the server writes itself.
pub struct Template {
    source: String,
    special: SpecialTokens,
    /// Compiled template; None for [`harmony`], which has no template.
    environment: Option<Environment<'static>>,
    abilities: Abilities,
    /// Names of the variables that the template reads.
    variables: HashSet<String>,
    /// Text of the conversations that were rendered at loading.
    tried: String,
}

impl Template {
    /// Compiles `source`, which may name `special` tokens, and renders conversations to check that
    /// the template works, and to find its abilities.
    ///
    /// # Errors
    /// `Load` when the template does not compile or fails on a plain conversation.
    pub fn load(source: &str, special: SpecialTokens) -> Result<Template, TemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::Load(format!(
                "larger than {TEMPLATE_BYTES_MAX} bytes"
            )));
        }
        let mut template = Template::compile(source, special)?;
        template.abilities = trial::abilities(&mut template)
            .map_err(|error| TemplateError::Load(format!("fails when tried: {error}")))?;
        template.tried = trial::of_everything(&template);
        Ok(template)
    }

    /// Stand-in for a template, for models whose prompts [`harmony`] writes; needs no file.
    pub fn harmony() -> Template {
        Template {
            source: harmony::SOURCE.to_string(),
            special: SpecialTokens::default(),
            environment: None,
            abilities: Abilities {
                system: true,
                late_system: true,
                tools: true,
                ..Abilities::default()
            },
            variables: harmony::VARIABLES.map(str::to_string).into(),
            tried: Mark::ALL.map(Mark::text).concat(),
        }
    }

    fn compile(source: &str, special: SpecialTokens) -> Result<Template, TemplateError> {
        let mut environment = environment(syntax()?);
        for (name, text) in special.iter() {
            environment.add_global(name, Value::from(text));
        }
        // The engine borrows the source, which is leaked: a process loads one template.
        let compiled: &'static str = source::rewritten(source).leak();
        let added = environment.add_template(NAME, compiled);
        added.map_err(load_error)?;
        let template = environment.get_template(NAME).map_err(load_error)?;
        Ok(Template {
            variables: template.undeclared_variables(false),
            source: source.to_string(),
            special,
            environment: Some(environment),
            abilities: Abilities::default(),
            tried: String::new(),
        })
    }

    /// Kinds of conversations that the template supports.
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Whether the template may write `text`: the source or a trial rendering has it.
    pub fn writes(&self, text: &str) -> bool {
        self.source.contains(text) || self.tried.contains(text)
    }

    /// Whether the template reads the variable `name`.
    pub fn reads(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether the variable `name` is set for every conversation, as a token or a function.
    pub fn sets(&self, name: &str) -> bool {
        let environment = self.environment.iter();
        let mut globals = environment.flat_map(Environment::globals);
        globals.any(|(known, _)| known == name)
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
    /// `Refused` with the template's own words, `TooLarge` or `Stopped`.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let Some(environment) = &self.environment else {
            return harmony::render(conversation);
        };
        let mut out = Capped::default();
        let template = environment.get_template(NAME).map_err(load_error)?;
        let rendered =
            template.render_captured_to(context::of(conversation, &self.abilities), &mut out);
        let rendered = rendered.map(|_| ());
        if out.is_full {
            return Err(TemplateError::TooLarge);
        }
        // After a cancellation every later step fails, so this step reports the cancellation.
        work::step().map_err(TemplateError::Stopped)?;
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => TemplateError::TooLarge,
            _ => TemplateError::Refused(
                error
                    .detail()
                    .map_or_else(|| error.kind().to_string(), str::to_string),
            ),
        })?;
        Ok(out.text)
    }
}

/// Output buffer of up to [`RENDERED_BYTES_MAX`].
#[derive(Default)]
struct Capped {
    text: String,
    is_full: bool,
}

impl fmt::Write for Capped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.is_full |= self.text.len() + text.len() > RENDERED_BYTES_MAX;
        if self.is_full {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

impl io::Write for Capped {
    /// The engine writes whole characters, so `bytes` are UTF-8.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        fmt::Write::write_str(self, text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn load_error(error: Error) -> TemplateError {
    let line = error.line();
    let line = line.map_or(String::new(), |line| format!(" (line {line})"));
    TemplateError::Load(format!("{error}{line}"))
}

/// Error of a template that refuses a conversation, in the template's words.
fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.to_string())
}

/// Ends a step of a rendering: printing, or the start of a loop.
fn step() -> Result<(), Error> {
    work::step().map_err(|why| refused(&why.to_string()))
}

/// Error of a limit, reported as [`TemplateError::TooLarge`].
fn too_large() -> Error {
    Error::from(ErrorKind::OutOfFuel)
}

/// Syntax of Hugging Face's renderer, in which a block tag removes the rest of its line.
fn syntax() -> Result<SyntaxConfig, TemplateError> {
    let mut syntax = SyntaxConfig::builder();
    let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(load_error)
}

/// Environment with the functions of Hugging Face's renderer.
fn environment(syntax: SyntaxConfig) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL_MAX));
    environment.set_formatter(print);
    environment.set_unknown_method_callback(methods::call);
    filters::install(&mut environment);
    environment.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> { Err(refused(&filters::text(message)?)) },
    );
    environment.add_function("strftime_now", |format: String| {
        strftime(&format, SystemTime::now())
    });
    environment
}

/// Number of bytes that a rendering has printed.
struct Printed(usize);

/// Writes `value` as Python does, to the output or to text captured by a variable or a macro.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let counted = match value.as_str() {
        Some(text) => {
            out.write_str(text)?;
            text.len()
        }
        None => {
            let text = filters::text(value)?;
            out.write_str(&text)?;
            text.len()
        }
    };
    step()?;
    let printed = state.get_or_insert_extension_with(|| Printed(0));
    printed.0 += counted;
    match printed.0 > PRINTED_BYTES_MAX {
        true => Err(too_large()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
