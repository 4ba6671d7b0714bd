//! Grammars that replies must obey.

use std::time::Duration;

use engine::constraint::{Mask, Next};
use http::json as body;
use serde_json::{Value, json};
use step::executor::TokenId;
use text::grammar::calls::{self, Calls};
use text::grammar::limits;
use text::grammar::{Grammar, JsonGrammar, Scope};
use text::tools::ToolSchemas;
use text::tools::gemma::Gemma;
use text::tools::glm::Glm;
use text::tools::hermes::Hermes;
use text::tools::llama3_json::Llama3Json;
use text::tools::minimax_xml::MinimaxXml;
use text::tools::mistral::Mistral;
use text::tools::qwen3_coder::Qwen3Coder;

use super::choice::Choices;
use super::model;

/// CPU time far above what compiling takes without optimisation, or under a fuzzer.
const COMPILE_PATIENCE: Duration = Duration::from_secs(2);
/// Tokens of a reply under a grammar, most.
const TOKENS_MAX: usize = 12;
/// Factor by which the tokens of a reply are picked.
const PICK_FACTOR: usize = 31;

/// Maker of a grammar of a text.
type Make = fn(text: &str, syntax: usize) -> Option<Grammar>;

const MAKES: [Make; 5] = [
    |text, _| schema(text, false),
    |text, _| schema(text, true),
    |text, syntax| forced_calls(body::parse(text.as_bytes()).ok()?.as_array()?, syntax),
    |text, _| Some(Grammar::Regex(text.to_string())),
    |text, _| Some(Grammar::Lark(text.to_string())),
];

fn schema(text: &str, strict: bool) -> Option<Grammar> {
    let schema = body::parse(text.as_bytes()).ok()?;
    Some(Grammar::Json(json_grammar(schema, strict)))
}

fn json_grammar(schema: Value, strict: bool) -> JsonGrammar {
    JsonGrammar {
        schema,
        strict,
        whitespace: true,
    }
}

/// Calls that a reply must make, in one of the syntaxes.
fn forced_calls(tools: &[Value], syntax: usize) -> Option<Grammar> {
    let write = [
        calls::grammar::<Qwen3Coder>,
        calls::grammar::<MinimaxXml>,
        calls::grammar::<Glm>,
        calls::grammar::<Hermes>,
        calls::grammar::<Mistral>,
        calls::grammar::<Gemma>,
        calls::grammar::<Llama3Json>,
    ];
    write[syntax % write.len()](tools, Calls::Several, false, None).ok()
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let nanos = text.split(' ').next().expect("a first number");
    Duration::from_nanos(nanos.parse().expect("nanoseconds"))
}

/// A grammar and, if it compiles, the beginning of a reply under it: compiling takes a bounded
/// time, and each token that is allowed can follow. The head chooses the kind of the grammar, the
/// syntax of calls, the length of the reply and the tokens in it.
pub fn grammar(input: &[u8]) {
    let mut choices = Choices::of(input);
    let make = MAKES[choices.below(MAKES.len())];
    let (syntax, tokens) = (choices.below(256), choices.below(TOKENS_MAX + 1));
    let pick = usize::from(choices.number());
    let Ok(text) = str::from_utf8(choices.rest()) else {
        return;
    };
    let Some(grammar) = make(text, syntax) else {
        return;
    };
    let begun = cpu();
    let compiled = model::chat().grammars.compile(0, &grammar);
    let took = cpu() - begun;
    assert!(took < COMPILE_PATIENCE, "{took:?}");
    let Ok(compiled) = compiled else {
        return;
    };
    let mut guide = compiled.guide(Scope::default());
    let mut mask = Mask::default();
    for step in 0..tokens {
        // Running into a limit later is an answer too.
        if guide.next() != Next::Masked || guide.mask(&mut mask).is_err() {
            return;
        }
        let allowed: Vec<TokenId> = mask.ids().collect();
        let at = (pick + step) * PICK_FACTOR % allowed.len().max(1);
        let Some(&id) = allowed.get(at) else {
            return;
        };
        if let Err(problem) = guide.advance(id) {
            let said = problem.to_lowercase();
            assert!(said.contains("row") || said.contains("too"), "{problem}");
            return;
        }
    }
}

/// A schema as it is read before anything is compiled, of an answer or of a tool: what is written
/// for the compiler stands alone, and is written so again. The head chooses whether all of it must
/// be enforced, and the syntax of calls.
pub fn schemas(input: &[u8]) {
    let mut choices = Choices::of(input);
    let (strict, syntax) = (choices.flag(), choices.below(256));
    let Ok(schema) = body::parse(choices.rest()) else {
        return;
    };
    let tool = json!({"function": {"name": "f", "strict": strict, "parameters": schema}});
    ToolSchemas::new([&tool]);
    let _ = forced_calls(&[tool], syntax);
    let grammar = json_grammar(schema, strict);
    if limits::check(&Grammar::Json(grammar.clone())).is_err() {
        return;
    }
    let Ok((written, problems)) = grammar.written() else {
        return;
    };
    assert!(problems.is_empty() || !strict, "{problems:?}");
    check_references(&written, &written["$defs"]);
    let again = json_grammar(written, true).written();
    assert!(again.is_ok() || !problems.is_empty(), "{again:?}");
}

/// Follows the schemas in a schema, and fails where one refers to what is not there.
fn check_references(schema: &Value, definitions: &Value) {
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                let number = reference.strip_prefix("#/$defs/");
                let known = number.is_some_and(|number| definitions.get(number).is_some());
                assert!(known || reference == "#", "{reference}");
            }
            ("properties" | "patternProperties" | "$defs", Value::Object(members)) => members
                .values()
                .for_each(|member| check_references(member, definitions)),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(items)) => items
                .iter()
                .for_each(|item| check_references(item, definitions)),
            ("items" | "additionalItems" | "additionalProperties", inner) => {
                check_references(inner, definitions);
            }
            _ => {}
        }
    }
}
