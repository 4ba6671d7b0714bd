//! Grammars that a reply must obey, compiled to what the engine asks: which tokens may follow.
//!
//! [`Grammar`] says what is wanted, [`Grammars`] compiles it for the vocabulary and keeps the last
//! ones, [`Compiled::guide`] starts one reply. The work is llguidance's: an Earley parser over a
//! lexer of regular-expression derivatives. Compiling takes up to [`limits::COMPILE_TIME`] and
//! belongs beside the parsing of requests, not on the engine's thread.

pub mod calls;
mod guide;
pub mod limits;
mod panics;
mod unopened;
mod vocabulary;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory, TokenParser};
use serde_json::{Value, json};

use crate::engine::constraint::{Constraint, Mask};
use crate::engine::request::TokenId;
use crate::target;

use super::tokenizer::Tokenizer;
use super::tools::Syntax;

use self::guide::Guide;
pub use self::guide::Scope;
use self::unopened::Barrier;
use self::vocabulary::Vocabulary;
use self::watch::Watch;

/// White space between the parts of a JSON text: one line break and an indentation at most. With
/// more, a model that is not sure would never have to go on.
const JSON_WHITESPACE: &str = r"[ \t]{1,40}|\r?\n[ \t]{0,40}";

/// What a text must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// A JSON value that is valid under a schema (draft 2020-12 and those before it).
    Json(JsonGrammar),
    /// A whole match of a regular expression in Rust's syntax.
    Regex(String),
    /// A sentence of a grammar in llguidance's Lark.
    Lark(String),
    /// One of some strings.
    Choice(Vec<String>),
    /// Lark that [`calls`] wrote of schemas within the limits, and what it does not enforce.
    Calls { lark: String, warnings: Vec<String> },
}

/// A JSON schema and how it is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonGrammar {
    pub schema: Value,
    /// Every keyword is enforced or the schema is refused; else what cannot be enforced is a
    /// warning.
    pub strict: bool,
    /// Whether white space may stand between the parts of the text.
    pub whitespace: bool,
}

/// Why a grammar is refused, in words for the client.
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarError(pub String);

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GrammarError {}

impl JsonGrammar {
    /// The schema with llguidance's options in it; those that a client put there are dropped.
    fn with_options(&self) -> Value {
        let mut options = json!({"lenient": !self.strict, "whitespace_flexible": self.whitespace});
        if self.whitespace {
            options["whitespace_pattern"] = Value::from(JSON_WHITESPACE);
        }
        let mut schema = self.schema.clone();
        if let Some(map) = schema.as_object_mut() {
            map.insert("x-guidance".to_string(), options);
        }
        schema
    }
}

impl Grammar {
    /// The grammar in llguidance's form: Lark, or a schema where Lark would only wrap it.
    fn top_level(&self) -> TopLevelGrammar {
        match self {
            Grammar::Json(grammar) => TopLevelGrammar::from_json_schema(grammar.with_options()),
            Grammar::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Grammar::Lark(text) | Grammar::Calls { lark: text, .. } => {
                TopLevelGrammar::from_lark(text.clone())
            }
            Grammar::Choice(choices) => {
                // One terminal: as rules of their own the strings would crowd the parser's rows.
                let quoted = choices.iter().map(|choice| Value::from(choice.as_str()));
                let quoted: Vec<String> = quoted.map(|choice| choice.to_string()).collect();
                let text = format!("start: CHOICE\nCHOICE: {}", quoted.join(" | "));
                TopLevelGrammar::from_lark(text)
            }
        }
    }

    /// What tells one grammar from another.
    fn key(&self) -> String {
        let grammars = self.top_level().grammars.into_iter();
        let texts = grammars.map(
            |grammar| match (grammar.json_schema, grammar.lark_grammar) {
                (Some(schema), _) => schema.to_string(),
                (None, lark) => lark.unwrap_or_default(),
            },
        );
        let warnings = self.warnings().iter().map(String::as_str);
        texts
            .chain(warnings.map(|warning| format!("\n{warning}")))
            .collect()
    }

    /// What the grammar leaves of what was asked for.
    fn warnings(&self) -> &[String] {
        match self {
            Grammar::Calls { warnings, .. } => warnings,
            _ => &[],
        }
    }

    fn is_strict(&self) -> bool {
        matches!(self, Grammar::Json(JsonGrammar { strict: true, .. }))
    }
}

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
    watch: Arc<Watch>,
    /// The last ones, oldest first, by their keys.
    cache: Mutex<VecDeque<(String, Arc<Compiled>)>>,
    /// What keeps replies from opening calls; made when the first one asks.
    barrier: OnceLock<Arc<Barrier>>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammars")
    }
}

impl Grammars {
    /// `vocabulary` is the number of rows of the model's output.
    ///
    /// # Errors
    /// When the vocabulary is of a kind that llguidance cannot walk.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        vocabulary: usize,
        stop_tokens: &[TokenId],
    ) -> Result<Grammars, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, vocabulary, stop_tokens));
        let mut factory = ParserFactory::new_simple(&vocabulary.environment())
            .map_err(|error| GrammarError(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            ..limits::PARSER
        };
        let grammars = Grammars {
            factory,
            vocabulary,
            watch: Arc::new(Watch::new()),
            cache: Mutex::new(VecDeque::with_capacity(limits::CACHED_MAX)),
            barrier: OnceLock::new(),
        };
        // The first mask of all fills what later ones share.
        grammars.compile(&Grammar::Json(JsonGrammar {
            schema: json!({"type": "object"}),
            strict: false,
            whitespace: true,
        }))?;
        panics::without_stacks();
        Ok(grammars)
    }

    /// Compiles a grammar, or finds it compiled.
    ///
    /// # Errors
    /// Says what cannot be enforced, is malformed, is over a limit or matches nothing.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        limits::check(grammar)?;
        let key = grammar.key();
        if let Some(found) = self.cached(&key) {
            return Ok(found);
        }
        let mut compiled = self.compile_new(grammar)?;
        compiled.warnings.extend_from_slice(grammar.warnings());
        if let Grammar::Json(json) = grammar {
            compiled
                .warnings
                .extend(limits::inexact_number(&json.schema));
        }
        if grammar.is_strict() && !compiled.warnings.is_empty() {
            return Err(GrammarError(compiled.warnings.join("; ")));
        }
        let compiled = Arc::new(compiled);
        self.keep(key, compiled.clone());
        Ok(compiled)
    }

    /// Starts a reply that opens no call, behind its reasoning where it begins inside of that.
    pub fn without_calls(&self, reasoning_close: Option<&'static str>) -> Box<dyn Constraint> {
        let make = || Barrier::new(self.vocabulary.clone(), target::ToolSyntax::OPEN);
        let barrier = self.barrier.get_or_init(|| Arc::new(make()));
        barrier.guide(reasoning_close)
    }

    /// Puts a grammar into the cache, for which the oldest ones go.
    fn keep(&self, key: String, compiled: Arc<Compiled>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_back((key, compiled));
        let mut bytes: usize = cache.iter().map(|(key, _)| key.len()).sum();
        while cache.len() > limits::CACHED_MAX || bytes > limits::CACHED_BYTES_MAX {
            bytes -= cache.pop_front().map_or(0, |(key, _)| key.len());
        }
    }

    fn cached(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(known, _)| known == key)?;
        let entry = cache.remove(at)?;
        let compiled = entry.1.clone();
        cache.push_back(entry);
        Some(compiled)
    }

    fn compile_new(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        let refused = |error: &dyn fmt::Display| GrammarError(explained(&error.to_string()));
        let create = || self.factory.create_parser(grammar.top_level());
        let parser = panics::inside(create);
        let mut parser = parser.map_err(|error| refused(&error))?;
        let warnings = parser.grammar_warnings();
        // A grammar without a first token is known here rather than in the engine.
        let mut matcher = Matcher::new(Ok(parser.deep_clone())).into_cancellable();
        let watched = matcher
            .cancellation_handle()
            .map(|handle| self.watch.over(handle));
        let first = panics::inside(|| matcher.compute_mask());
        drop(watched);
        let mut mask = Mask::default();
        mask.copy_from(first.map_err(|error| refused(&error))?.as_slice());
        self.vocabulary.without_end(&mut mask);
        if mask.is_empty() {
            return Err(GrammarError(
                "nothing but the empty text matches it".to_string(),
            ));
        }
        Ok(Compiled {
            parser,
            vocabulary: self.vocabulary.clone(),
            watch: self.watch.clone(),
            warnings: warnings.iter().map(|text| explained(text)).collect(),
        })
    }
}

/// A grammar that replies can follow.
pub struct Compiled {
    /// As compiled; each reply works on a copy of its own, so that nothing of one reply, its
    /// lexer's states included, is seen by another.
    parser: TokenParser,
    vocabulary: Arc<Vocabulary>,
    watch: Arc<Watch>,
    /// What is not enforced.
    warnings: Vec<String>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// What of a schema that is not strict is not enforced.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Starts a reply.
    pub fn guide(self: &Arc<Self>, scope: Scope) -> Box<dyn Constraint> {
        Box::new(Guide::new(self.clone(), scope))
    }

    fn matcher(&self) -> Matcher {
        Matcher::new(Ok(self.parser.deep_clone())).into_cancellable()
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// llguidance's words for the client: the first line, shortened, in terms of the API.
fn explained(text: &str) -> String {
    // Errors of a part begin with the place of the part.
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| first_line(rest));
    if let Some(keys) = after("Unimplemented keys: ") {
        return format!("the keywords {keys} are not enforced");
    }
    if let Some(name) = after("Unknown format: ") {
        return format!("the format {name:?} is not enforced");
    }
    if text.contains("oneOf constraints are not supported") || text.contains("oneOf not fully") {
        return "oneOf whose alternatives may overlap is not enforced; send anyOf".to_string();
    }
    if text.starts_with("panic: ") {
        return "it cannot be compiled".to_string();
    }
    let line = first_line(text);
    if text.contains("operation cancelled") {
        return "it takes too long to find what may come next".to_string();
    }
    // Masks allow what is taken: the lexer has run into a limit while it took the token.
    if text.contains("doesn't satisfy the grammar") {
        return "its lexer has too many states".to_string();
    }
    if line.starts_with("NoExtension") {
        return "nothing matches it".to_string();
    }
    line.chars().take(limits::ERROR_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
