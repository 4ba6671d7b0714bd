//! Grammars that constrain replies, compiled to masks of the tokens that may follow.
//!
//! [`Grammar`] is the request, [`Grammars`] compiles it for the vocabulary and caches the result,
//! [`Compiled::guide`] starts one reply. llguidance does the work: an Earley parser over a lexer of
//! regular-expression derivatives. Compiling takes up to [`limits::COMPILE_TIME`] and runs on
//! parsing threads, not on the engine's.

mod bounds;
pub mod calls;
mod ecma;
mod embedded;
mod expression;
mod forbidden_tag;
mod formats;
pub mod gbnf;
mod guide;
pub mod harmony;
mod keywords;
pub mod limits;
mod panics;
mod plain;
mod reference_cost;
mod vocabulary;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::iter;
use std::panic;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory, TokenParser};
use rustix::process::nice;
use serde_json::{Value, json};

use engine::constraint::{Constraint, Mask};
use host::allocator;
use step::executor::TokenId;

use super::tokenizer::Tokenizer;
use super::tools::Root;
use super::work;

use self::calls::CallSchema;
use self::forbidden_tag::ForbiddenTag;
use self::guide::Guide;
pub use self::guide::Scope;
pub use self::keywords::{each, standard};
use self::plain::Subschema;
use self::vocabulary::Vocabulary;
use self::watch::Watch;

/// White space between the tokens of a JSON text: at most one line break and an indentation.
/// Without a bound a model could write blanks for ever.
const JSON_WHITESPACE: &str = r"[ \t]{1,40}|\r?\n[ \t]{0,40}";

/// Form that a text must have, as a request states it.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// A JSON value that is valid under a schema (draft 2020-12 and earlier drafts).
    Json(JsonGrammar),
    /// A whole match of a regular expression in Rust's syntax.
    Regex(String),
    /// A sentence of a Lark grammar in llguidance's dialect.
    Lark(String),
    /// One of several strings.
    Choice(Vec<String>),
    /// Lark that [`calls`] wrote from schemas within the limits, with warnings about parts that the
    /// grammar does not enforce.
    Calls {
        lark: String,
        warnings: Vec<String>,
        schemas: Vec<CallSchema>,
    },
}

/// A JSON schema, and how strictly it is enforced.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonGrammar {
    pub schema: Value,
    /// Whether a schema that cannot be enforced in full is refused; else the answer has warnings.
    pub strict: bool,
    /// Whether white space may stand between the parts of the text.
    pub whitespace: bool,
}

/// Reason why a grammar is refused, in words for the client.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[error("{0}")]
pub struct GrammarError(pub String);

impl JsonGrammar {
    /// The schema as rewritten for llguidance, and warnings about parts that are not enforced.
    ///
    /// # Errors
    /// Names a keyword of a strict schema that cannot be enforced.
    pub fn written(&self) -> Result<(Value, Vec<String>), String> {
        if let (true, Some(problem)) = (self.strict, limits::inexact_number(&self.schema)) {
            return Err(problem);
        }
        let subschema = Subschema {
            root: &Root::new(&self.schema),
            schema: &self.schema,
            path: "",
            strict: self.strict,
            whitespace: self.whitespace,
            of_types: &[],
        };
        let (schema, mut problems) = subschema.written()?;
        problems.extend(limits::inexact_number(&self.schema));
        Ok((schema, problems))
    }
}

impl Grammar {
    /// The grammar in llguidance's form: Lark, or a JSON schema as such; and warnings about parts
    /// that are not enforced.
    fn top_level(&self) -> Result<(TopLevelGrammar, Vec<String>), String> {
        let lark = match self {
            Grammar::Json(grammar) => {
                let (schema, problems) = grammar.written()?;
                return Ok((TopLevelGrammar::from_json_schema(schema), problems));
            }
            Grammar::Regex(pattern) => {
                return Ok((TopLevelGrammar::from_regex(pattern), Vec::new()));
            }
            Grammar::Lark(text) => embedded::written(text)?,
            Grammar::Calls { lark, .. } => lark.clone(),
            Grammar::Choice(choices) => {
                // All choices become one terminal: as rules, they would be too many items in the
                // parser's rows.
                let quoted = choices.iter().map(|choice| Value::from(choice.as_str()));
                let quoted: Vec<String> = quoted.map(|choice| choice.to_string()).collect();
                format!("start: CHOICE\nCHOICE: {}", quoted.join(" | "))
            }
        };
        Ok((TopLevelGrammar::from_lark(lark), self.warnings().to_vec()))
    }

    /// Text by which the cache finds an equal grammar.
    fn key(&self) -> String {
        match self {
            Grammar::Json(json) => {
                format!("json {} {} {}", json.strict, json.whitespace, json.schema)
            }
            Grammar::Regex(pattern) => format!("regex {pattern}"),
            Grammar::Lark(text) => format!("lark {text}"),
            Grammar::Choice(choices) => format!("choice {}", Value::from(choices.as_slice())),
            Grammar::Calls { lark, warnings, .. } => {
                format!("calls {} {lark}", Value::from(warnings.as_slice()))
            }
        }
    }

    /// Warnings about parts of the request that the grammar does not enforce.
    fn warnings(&self) -> &[String] {
        match self {
            Grammar::Calls { warnings, .. } => warnings,
            _ => &[],
        }
    }
}

/// Key of a compiled grammar in the cache: its domain, and its text.
type Key = (u128, String);

/// Number of threads of [`Grammars`]: the watchdog and the compilers.
pub const THREADS: usize = 1 + limits::COMPILERS;

/// Compiler and cache of grammars for one vocabulary.
pub struct Grammars {
    compiler: Arc<Compiler>,
    threads: Threads,
    /// Compiled grammars, the least recently used first.
    cache: Mutex<VecDeque<(Key, Arc<Compiled>)>>,
    /// Constraint that keeps replies from opening calls; made when first needed.
    forbidden: OnceLock<Arc<ForbiddenTag>>,
}

impl Grammars {
    /// Grammars for a model whose output has `vocabulary` rows.
    ///
    /// # Errors
    /// When llguidance does not support the vocabulary.
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
        // The first mask takes long, since it fills a table that later masks share.
        let any = Grammar::Json(JsonGrammar {
            schema: json!({"type": "object"}),
            strict: false,
            whitespace: true,
        });
        let (any, _) = any.top_level().map_err(GrammarError)?;
        let first = factory
            .create_parser(any)
            .and_then(|parser| Matcher::new(Ok(parser)).compute_mask());
        first.map_err(|error| GrammarError(error.to_string()))?;
        panics::without_stacks();
        Ok(Grammars {
            compiler: Arc::new(Compiler {
                factory,
                vocabulary,
                watch: Arc::new(Watch::new()),
            }),
            threads: Threads::new(),
            cache: Mutex::new(VecDeque::with_capacity(limits::CACHED_MAX)),
            forbidden: OnceLock::new(),
        })
    }

    /// Compiles a grammar, or takes it from the cache of `domain`. Clients do not share entries:
    /// the time of a request would show that others use the same schema.
    ///
    /// # Errors
    /// States which part cannot be enforced, is malformed, exceeds a limit or matches nothing.
    pub fn compile(&self, domain: u128, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        limits::check(grammar)?;
        let key = (domain, grammar.key());
        if let Some(found) = self.cached(&key) {
            return Ok(found);
        }
        work::step().map_err(|why| GrammarError(why.to_string()))?;
        let (compiler, grammar) = (self.compiler.clone(), grammar.clone());
        let compiled = self.threads.run(move || compiler.compile(&grammar))?;
        let compiled = Arc::new(compiled);
        self.store(key, compiled.clone());
        Ok(compiled)
    }

    /// Constraint of a reply that must not contain `tag`, which opens calls. Reasoning in which the
    /// reply begins is free. None if calls have no opening tag.
    pub fn without_calls(
        &self,
        tag: &'static str,
        reasoning_close: Option<&'static str>,
    ) -> Option<Box<dyn Constraint>> {
        let make = || Arc::new(ForbiddenTag::new(self.compiler.vocabulary.clone(), tag));
        (!tag.is_empty()).then(|| self.forbidden.get_or_init(make).guide(reasoning_close))
    }

    /// Adds a grammar to the cache, and removes the oldest ones if the cache is full.
    fn store(&self, key: Key, compiled: Arc<Compiled>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_back((key, compiled));
        let mut bytes: usize = cache.iter().map(|((_, text), _)| text.len()).sum();
        while cache.len() > limits::CACHED_MAX || bytes > limits::CACHED_BYTES_MAX {
            bytes -= cache.pop_front().map_or(0, |((_, text), _)| text.len());
        }
    }

    fn cached(&self, key: &Key) -> Option<Arc<Compiled>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(known, _)| known == key)?;
        let entry = cache.remove(at)?;
        let compiled = entry.1.clone();
        cache.push_back(entry);
        Some(compiled)
    }
}

/// Compiler of grammars for one vocabulary.
struct Compiler {
    factory: ParserFactory,
    vocabulary: Arc<Vocabulary>,
    watch: Arc<Watch>,
}

impl Compiler {
    /// Compiles a grammar. Parts of calls' schemas that llguidance refuses or does not enforce
    /// are reported with paths.
    fn compile(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        let compiled = self.compile_new(grammar);
        let Grammar::Calls {
            lark,
            warnings,
            schemas,
        } = grammar
        else {
            return compiled;
        };
        match compiled {
            Ok(compiled) if compiled.warnings.len() == warnings.len() => Ok(compiled),
            refused => {
                let looked = calls::looked_through(lark.clone(), warnings.clone(), schemas);
                let looked = looked.map_err(GrammarError)?;
                // If this fails too no schema is at fault, and the first error is reported.
                let mut compiled = self.compile_new(&looked).or(refused)?;
                compiled.warnings = looked.warnings().to_vec();
                Ok(compiled)
            }
        }
    }

    fn compile_new(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        let refused = |error: &dyn fmt::Display| GrammarError(explained(&error.to_string()));
        let (top_level, mut warnings) = grammar.top_level().map_err(GrammarError)?;
        let parser = panics::inside(|| self.factory.create_parser(top_level));
        let mut parser = parser.map_err(|error| refused(&error))?;
        let found = parser.grammar_warnings();
        warnings.extend(found.iter().map(|text| explained(text)));
        // A grammar that allows no first token is refused here, before the engine gets it.
        let mut matcher = Matcher::new(Ok(parser.deep_clone())).into_cancellable();
        let handle = matcher.cancellation_handle();
        let watched = handle.map(|handle| self.watch.over(handle));
        let first = panics::inside(|| matcher.compute_mask());
        drop(watched);
        let mut mask = Mask::default();
        mask.copy_from(first.map_err(|error| refused(&error))?.as_slice());
        self.vocabulary.without_end(&mut mask);
        if mask.is_empty() {
            let problem = "nothing but the empty text matches it";
            return Err(GrammarError(problem.to_string()));
        }
        Ok(Compiled {
            parser,
            vocabulary: self.vocabulary.clone(),
            watch: self.watch.clone(),
            warnings,
        })
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads for llguidance, whose recursion needs deeper stacks than other threads have. The
/// threads end when the value is dropped.
struct Threads {
    jobs: mpsc::Sender<Job>,
}

impl Threads {
    /// # Panics
    /// If the system refuses a thread.
    fn new() -> Threads {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..limits::COMPILERS {
            let inbox = inbox.clone();
            let builder = thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(limits::COMPILE_STACK_BYTES);
            let take = move || inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let work = move || {
                // On an error the thread keeps its priority.
                let _ = nice(limits::COMPILE_NICE);
                for job in iter::from_fn(|| take().ok()) {
                    job();
                    allocator::trim_stack();
                }
            };
            builder.spawn(work).expect("the system refuses a thread");
        }
        Threads { jobs }
    }

    /// Runs `work` on one of the threads. A panic is passed on, since it is no fault of a request.
    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::sync_channel(1);
        let job = move || drop(sender.send(panic::catch_unwind(panic::AssertUnwindSafe(work))));
        let sent = self.jobs.send(Box::new(job));
        sent.expect("the threads are there");
        let done = receiver.recv().expect("each job sends its end");
        done.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

/// A compiled grammar, from which constraints of replies are made.
pub struct Compiled {
    /// Parser as compiled; each reply uses a copy, so that replies share no states.
    parser: TokenParser,
    vocabulary: Arc<Vocabulary>,
    watch: Arc<Watch>,
    /// Warnings about parts that are not enforced.
    warnings: Vec<String>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Compiled {
    /// Warnings about parts of a lenient schema that are not enforced.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Constraint of one reply, of which the part `scope` follows the grammar.
    pub fn guide(self: &Arc<Self>, scope: Scope) -> Box<dyn Constraint> {
        Box::new(Guide::new(self.clone(), scope))
    }

    fn matcher(&self) -> Matcher {
        Matcher::new(Ok(self.parser.deep_clone())).into_cancellable()
    }
}

const OVERLAPPING: &str = "oneOf whose alternatives may overlap is not enforced; send anyOf";

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Text of an llguidance error for the client: the first line, shortened, in terms of the API.
fn explained(text: &str) -> String {
    // Errors about a part of a schema begin with the path of the part.
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| first_line(rest));
    if let Some(keys) = after("Unimplemented keys: ") {
        return format!("the keywords {keys} are not enforced");
    }
    if let Some(name) = after("Unknown format: ") {
        return format!("the format {name:?} is not enforced");
    }
    if let Some(error) = expression::one_line(text) {
        return error;
    }
    if text.contains("oneOf constraints are not supported") || text.contains("oneOf not fully") {
        return OVERLAPPING.to_string();
    }
    if text.starts_with("panic: ") {
        return "it cannot be compiled".to_string();
    }
    let line = first_line(text);
    if text.contains("operation cancelled") {
        return "it takes too long to find what may come next".to_string();
    }
    // Masks allow every token that comes here, so the lexer has exceeded a limit at this token.
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
