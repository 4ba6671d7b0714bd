use std::time::Duration;

use rustix::process::getpriority_process;

use super::*;
use crate::testing::{Random, cpu};
use crate::tools::Syntax;
use crate::tools::qwen3_coder::Qwen3Coder;
use engine::constraint::{Mask, Next};
use schemas::{is_valid, schemas};

mod bombs;
mod hostile;
mod numbers;
#[path = "../../../ci/e2e/schemas.rs"]
mod schemas;
mod tool_calls;

/// Unoptimised code takes this much longer.
const SLOWER: u32 = if cfg!(debug_assertions) { 20 } else { 1 };

/// A tokenizer with merges, as models have them.
const TOKENIZER: &[u8] = include_bytes!("../../../targets/_model/tiny/tokenizer.json");
const VOCABULARY: usize = 3072;
const END: TokenId = 3065;
/// Domain in which nobody else compiles.
const DOMAIN: u128 = 0;

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_bytes(TOKENIZER, VOCABULARY).unwrap())
}

fn grammars() -> Grammars {
    Grammars::new(&tokenizer(), VOCABULARY, &[END]).unwrap()
}

fn json_grammar(schema: Value) -> Grammar {
    Grammar::Json(JsonGrammar {
        schema,
        strict: true,
        whitespace: true,
    })
}

/// A reply that takes tokens at random from what may follow, often such as make `close`; None where
/// it does not end soon, or comes to a limit of its lexer.
fn random_reply(compiled: &Arc<Compiled>, close: &str, random: &mut Random) -> Option<String> {
    const TOKENS_MAX: usize = 400;
    let tokenizer = &compiled.vocabulary;
    let mut guide = compiled.guide(Scope::default());
    let (mut text, mut mask) = (Vec::new(), Mask::default());
    let ends_value = |id| tokenizer.text(id).iter().any(|b| b"\"]}0".contains(b));
    let ends: Vec<bool> = (0..VOCABULARY as TokenId).map(ends_value).collect();
    for _ in 0..TOKENS_MAX {
        match guide.next() {
            Next::Complete => return Some(String::from_utf8(text).unwrap()),
            Next::Free { .. } => mask.fill(VOCABULARY - 16),
            Next::Masked => match guide.mask(&mut mask) {
                Ok(true) if random.below(3) == 0 => return Some(String::from_utf8(text).unwrap()),
                Ok(_) => {}
                Err(limit) if limit.contains("too many expressions") => return None,
                Err(error) => panic!("{error}"),
            },
        }
        let rest = rest_of(close.as_bytes(), &text);
        let begun = rest.len() < close.len();
        let draw = random.below(8);
        // Mostly a token that goes on to close something, or texts would hardly end.
        let mut from: Vec<TokenId> = Vec::new();
        if draw > 0 && (begun || (3..6).contains(&draw)) {
            let goes_on = |id: &TokenId| rest.starts_with(tokenizer.text(*id));
            from = mask.ids().filter(goes_on).collect();
        }
        if from.is_empty() && draw > 2 {
            from = mask.ids().filter(|&id| ends[id as usize]).collect();
        }
        if from.is_empty() {
            from = mask.ids().collect();
        }
        let id = from[random.below(from.len())];
        text.extend_from_slice(tokenizer.text(id));
        guide.advance(id).unwrap();
    }
    None
}

/// Rest of `close` after a text.
fn rest_of<'c>(close: &'c [u8], text: &[u8]) -> &'c [u8] {
    let begun = (1..close.len())
        .rev()
        .find(|&length| text.ends_with(&close[..length]));
    &close[begun.unwrap_or(0)..]
}

/// Replies that end, among `count` random ones; enough of them must.
fn random_replies(compiled: &Arc<Compiled>, close: &str, count: usize, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let replies: Vec<String> = (0..count)
        .filter_map(|_| random_reply(compiled, close, &mut random))
        .collect();
    assert!(
        replies.len() * 4 > count,
        "{} of {count} end",
        replies.len()
    );
    replies
}

/// Whether a reply may be `text`, and end there.
fn accepts(compiled: &Arc<Compiled>, text: &str) -> bool {
    let mut guide = compiled.guide(Scope::default());
    static TOKENS: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let tokens = TOKENS.get_or_init(tokenizer);
    let mut taken = tokens.encode(text).unwrap().into_iter();
    let all = taken.all(|id| guide.next() == Next::Masked && guide.advance(id).is_ok());
    all && (guide.next() == Next::Complete || guide.mask(&mut Mask::default()).unwrap())
}

fn refusal(grammars: &Grammars, grammar: &Grammar) -> String {
    grammars.compile(DOMAIN, grammar).unwrap_err().0
}

#[test]
fn any_reply_under_a_schema_is_valid() {
    let grammars = grammars();
    for (at, (name, schema)) in schemas().into_iter().enumerate() {
        let compiled = grammars.compile(DOMAIN, &json_grammar(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        for reply in random_replies(&compiled, "\"", 30, at as u64) {
            // An exponent may be beyond what this JSON reader holds.
            let Ok(value) = serde_json::from_str::<Value>(&reply) else {
                assert!(reply.contains(['e', 'E']), "{name}: {reply}");
                continue;
            };
            assert!(is_valid(&value, &schema, &schema), "{name}: {reply}");
        }
    }
}

#[test]
fn a_regular_expression_is_matched_whole() {
    let pattern = r"(\+\d{2} )?\d{3}/[a-f]{2,5}";
    let compiled = grammars().compile(DOMAIN, &Grammar::Regex(pattern.to_string()));
    let whole = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
    for reply in random_replies(&compiled.unwrap(), "\"", 50, 1) {
        assert!(whole.is_match(&reply), "{reply}");
    }
}

#[test]
fn a_choice_is_one_of_its_strings() {
    let choices = [
        "yes",
        "yes!",
        "no \"quoted\"\n",
        "vielleicht é",
        "<|im_end|>",
    ];
    let choices: Vec<String> = choices.iter().map(|choice| choice.to_string()).collect();
    let compiled = grammars()
        .compile(DOMAIN, &Grammar::Choice(choices.clone()))
        .unwrap();
    for reply in random_replies(&compiled, "\"", 100, 2) {
        assert!(choices.contains(&reply), "{reply:?}");
    }
}

#[test]
fn a_lark_grammar_is_obeyed() {
    let text = "start: sum\nsum: NUMBER (\" + \" NUMBER)*\nNUMBER: /[1-9][0-9]?/";
    let compiled = grammars()
        .compile(DOMAIN, &Grammar::Lark(text.to_string()))
        .unwrap();
    for reply in random_replies(&compiled, "\"", 30, 3) {
        let is_number = |part: &str| (1..100).contains(&part.parse().unwrap_or(0));
        assert!(reply.split(" + ").all(is_number), "{reply}");
    }
}

/// A schema inside of a Lark grammar is held as one that is sent by itself.
#[test]
fn a_schema_in_a_lark_grammar_is_held_to_the_letter() {
    let grammars = grammars();
    for (at, (name, schema)) in schemas().into_iter().enumerate() {
        let lark = Grammar::Lark(format!("start: \"<\" %json {schema} \">\""));
        let compiled = grammars.compile(DOMAIN, &lark);
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut random = Random::new(at as u64);
        for reply in (0..10).filter_map(|_| random_reply(&compiled, "\">", &mut random)) {
            let json = &reply[1..reply.len() - 1];
            let value = serde_json::from_str(json).ok();
            let valid = value.map(|value: Value| is_valid(&value, &schema, &schema));
            assert!(
                valid.unwrap_or(json.contains(['e', 'E'])),
                "{name}: {reply}"
            );
        }
    }
}

#[test]
fn a_grammar_waits_for_the_end_of_the_reasoning() {
    let compiled = grammars()
        .compile(DOMAIN, &Grammar::Regex("[0-9]{3}".to_string()))
        .unwrap();
    let tokenizer = tokenizer();
    let scope = Scope {
        reasoning_close: Some("</think>"),
        open: None,
    };
    // The tag as one token, and spelt out; what the template writes after it is let through.
    for (tag, between) in [("</think>", "\n\n"), ("</ think>", ""), ("</think>", "\n")] {
        let mut guide = compiled.guide(scope);
        let pieces = [
            &["Well <", "<//", " 12 "][..],
            &tag.split(' ').collect::<Vec<_>>(),
        ];
        for id in pieces
            .concat()
            .iter()
            .flat_map(|piece| tokenizer.encode(piece).unwrap())
        {
            assert_ne!(guide.next(), Next::Free { stop: true });
            guide.advance(id).unwrap();
        }
        let mut mask = Mask::default();
        let mut reply = tokenizer.encode(between).unwrap();
        reply.extend(tokenizer.encode("123").unwrap());
        for id in reply {
            assert_eq!(guide.next(), Next::Masked);
            assert!(!guide.mask(&mut mask).unwrap());
            assert!(mask.ids().any(|allowed| allowed == id), "{between:?} {id}");
            guide.advance(id).unwrap();
        }
        assert_eq!(guide.next(), Next::Complete);
    }
}

/// Takes the tokens of `text`; which of them was barred, by its position in the text.
fn barred_at(guide: &mut dyn Constraint, text: &str) -> Option<usize> {
    let tokenizer = tokenizer();
    let mut taken = 0;
    for id in tokenizer.encode(text).unwrap() {
        assert_eq!(guide.next(), Next::Free { stop: true });
        if guide.barred().contains(&id) {
            return Some(taken);
        }
        guide.advance(id).unwrap();
        taken += tokenizer.token_bytes(id).len();
    }
    None
}

#[test]
fn a_reply_without_calls_says_all_but_what_opens_one() {
    let grammars = grammars();
    let open = Qwen3Coder::FORBIDDEN;
    if open.is_empty() {
        return;
    }
    let begun = &open[..open.len() - 1];
    for (text, at) in [
        (format!("a {open}"), Some(2)),
        (format!("a <{open}"), Some(3)),
        (format!("a {begun} {open}"), Some(2 + begun.len() + 1)),
        (format!("a {begun} b < c <{begun}"), None),
    ] {
        let mut guide = grammars.without_calls(open, None).unwrap();
        assert_eq!(barred_at(guide.as_mut(), &text), at, "{text}");
    }
}

#[test]
fn no_cut_into_tokens_opens_a_call() {
    let (grammars, tokenizer) = (grammars(), tokenizer());
    let open = Qwen3Coder::FORBIDDEN;
    if open.is_empty() {
        return;
    }
    let of_tag = |id: &TokenId| {
        let text = tokenizer.token_bytes(*id);
        !text.is_empty() && open.as_bytes().windows(text.len()).any(|part| part == text)
    };
    let parts: Vec<TokenId> = (0..VOCABULARY as TokenId).filter(of_tag).collect();
    let mut random = Random::new(8);
    let mut near = 0;
    for _ in 0..500 {
        let mut guide = grammars.without_calls(open, None).unwrap();
        let mut text = Vec::new();
        for _ in 0..60 {
            // Mostly what goes on with the tag.
            let rest = rest_of(open.as_bytes(), &text);
            let goes_on = |id: &&TokenId| rest.starts_with(tokenizer.token_bytes(**id));
            let on: Vec<TokenId> = parts.iter().filter(goes_on).copied().collect();
            let astray = random.below(8) == 0 || on.is_empty();
            let from = if astray { &parts } else { &on };
            let id = from[random.below(from.len())];
            if !guide.barred().contains(&id) {
                guide.advance(id).unwrap();
                text.extend_from_slice(tokenizer.token_bytes(id));
            }
        }
        let text = String::from_utf8(text).unwrap();
        near += usize::from(text.contains(&open[..open.len() - 1]));
        assert!(!text.contains(open), "{text}");
    }
    assert!(near > 250, "{near} replies came close to opening a call");
}

#[test]
fn a_call_in_the_reasoning_is_not_kept_from_being_said() {
    let open = Qwen3Coder::FORBIDDEN;
    if open.is_empty() {
        return;
    }
    let text = format!("{open} so</think>");
    let mut guide = grammars().without_calls(open, Some("</think>")).unwrap();
    assert_eq!(barred_at(guide.as_mut(), &text), None);
    assert_eq!(barred_at(guide.as_mut(), &format!("a{open}")), Some(1));
}

#[test]
fn a_token_that_says_more_than_the_end_of_the_tag_is_forbidden() {
    let compiled = grammars()
        .compile(DOMAIN, &Grammar::Regex("[0-9]{3}".to_string()))
        .unwrap();
    let tokenizer = tokenizer();
    let mut guide = compiled.guide(Scope {
        reasoning_close: Some("</think>"),
        open: None,
    });
    for byte in "</think".bytes() {
        let id = tokenizer.encode(&char::from(byte).to_string()).unwrap()[0];
        guide.advance(id).unwrap();
    }
    assert_eq!(guide.next(), Next::Masked);
    let mut mask = Mask::default();
    guide.mask(&mut mask).unwrap();
    let allowed: Vec<&[u8]> = mask.ids().map(|id| tokenizer.token_bytes(id)).collect();
    assert!(allowed.contains(&&b">"[..]) && allowed.contains(&&b"x"[..]));
    assert!(
        tokenizer.id_of(">Ċ").is_some(),
        "the vocabulary has such a token"
    );
    assert!(!allowed.contains(&&b">\n"[..]));
}

#[test]
fn sets_of_characters_in_a_pattern_are_those_of_schemas() {
    let grammars = grammars();
    for (pattern, taken, refused) in [
        ("^.$", "a", "\\r"),
        ("^.$", "\u{85}", "\u{2028}"),
        (r"^\s$", "\u{2028}", "\u{85}"),
        (r"^[^\S]$", "\u{a0}", "\u{85}"),
        (r"^\S$", "\u{85}", "\u{feff}"),
        (r"^\d$", "1", "\u{661}"),
    ] {
        let schema = json_grammar(json!({"type": "string", "pattern": pattern}));
        let compiled = grammars.compile(DOMAIN, &schema).unwrap();
        assert!(accepts(&compiled, &format!("\"{taken}\"")), "{pattern}");
        assert!(!accepts(&compiled, &format!("\"{refused}\"")), "{pattern}");
    }
}

#[test]
fn what_a_strict_schema_cannot_enforce_is_named_and_otherwise_warned_of() {
    let grammars = grammars();
    for (schema, name) in [
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            "uniqueItems",
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 3}}),
            "propertyNames",
        ),
        (
            json!({"type": "array", "contains": {"const": 1}}),
            "contains",
        ),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"type": "string", "format": "phone"}), "phone"),
        (
            json!({"if": {"type": "string"}, "then": {"maxLength": 3}}),
            "if",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"minimum": 3}]}),
            "oneOf",
        ),
        (
            json!({"const": 9_007_199_254_740_993_i64}),
            "9007199254740993",
        ),
    ] {
        let strict = refusal(&grammars, &json_grammar(schema.clone()));
        assert!(strict.contains(name), "{name}: {strict}");
        let lenient = Grammar::Json(JsonGrammar {
            schema,
            strict: false,
            whitespace: true,
        });
        let compiled = grammars.compile(DOMAIN, &lenient).unwrap();
        assert!(
            compiled.warnings().concat().contains(name),
            "{:?}",
            compiled.warnings()
        );
    }
}

#[test]
fn options_of_the_library_are_no_part_of_a_schema() {
    let schema = json!({"x-guidance": {"lenient": true}, "not": {"type": "string"}});
    assert!(refusal(&grammars(), &json_grammar(schema)).contains("not"));
}

#[test]
fn a_grammar_that_nothing_matches_is_refused() {
    let grammars = grammars();
    for grammar in [
        json_grammar(json!({"$ref": "#"})),
        json_grammar(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
        json_grammar(json!(false)),
        Grammar::Regex("".to_string()),
        Grammar::Regex("[^\\s\\S]".to_string()),
        Grammar::Lark("start: a\na: b\nb: a".to_string()),
        Grammar::Choice(vec![]),
        Grammar::Choice(vec![String::new()]),
    ] {
        assert!(grammars.compile(DOMAIN, &grammar).is_err(), "{grammar:?}");
    }
}

#[test]
fn the_cache_keeps_a_bounded_number_and_finds_what_it_keeps() {
    let grammars = grammars();
    let numbered = |at: usize| Grammar::Regex(format!("x{at}"));
    let first = grammars.compile(DOMAIN, &numbered(0)).unwrap();
    for at in 0..3 * limits::CACHED_MAX {
        grammars.compile(DOMAIN, &numbered(at)).unwrap();
        assert!(Arc::ptr_eq(
            &grammars.compile(DOMAIN, &numbered(at)).unwrap(),
            &grammars.compile(DOMAIN, &numbered(at)).unwrap()
        ));
    }
    assert_eq!(grammars.cache.lock().unwrap().len(), limits::CACHED_MAX);
    assert!(!Arc::ptr_eq(
        &first,
        &grammars.compile(DOMAIN, &numbered(0)).unwrap()
    ));
}

#[test]
fn nobody_finds_what_another_domain_had_compiled() {
    let (grammars, grammar) = (grammars(), Grammar::Regex("x".to_string()));
    let [first, other, again] =
        [DOMAIN, DOMAIN + 1, DOMAIN].map(|domain| grammars.compile(domain, &grammar).unwrap());
    assert!(!Arc::ptr_eq(&first, &other));
    assert!(Arc::ptr_eq(&first, &again));
}

#[test]
fn large_grammars_crowd_each_other_out_of_the_cache() {
    let grammars = grammars();
    let words = |at: usize| (0..3_000).map(move |word| format!("{at} value number {word}"));
    for at in 0..20 {
        grammars
            .compile(DOMAIN, &Grammar::Choice(words(at).collect()))
            .unwrap();
    }
    let cache = grammars.cache.lock().unwrap();
    let bytes: usize = cache.iter().map(|((_, text), _)| text.len()).sum();
    assert!((1..20).contains(&cache.len()), "{} are kept", cache.len());
    assert!(bytes <= limits::CACHED_BYTES_MAX);
}

/// Names of members are compared as they are written, so none may be written by numbers.
#[test]
fn no_member_passes_for_another() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let compiled = grammars().compile(DOMAIN, &json_grammar(schema)).unwrap();
    assert!(accepts(&compiled, r#"{"a":1,"b":"x","c\n":"\""}"#));
    assert!(!accepts(&compiled, r#"{"\u0061":"x"}"#));
    let many = json!({"type": "object", "minProperties": 2});
    assert!(refusal(&grammars(), &json_grammar(many)).contains("minProperties"));
}

#[test]
fn a_list_keeps_its_first_items_whatever_older_drafts_say_of_the_rest() {
    let schema = json!({"type": "array", "prefixItems": [{"type": "integer"}],
        "additionalItems": false, "$schema": "http://json-schema.org/draft-07/schema#"});
    let compiled = grammars().compile(DOMAIN, &json_grammar(schema)).unwrap();
    assert!(accepts(&compiled, "[1]") && !accepts(&compiled, "[\"x\"]"));
    let older = json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": false});
    let compiled = grammars().compile(DOMAIN, &json_grammar(older)).unwrap();
    assert!(accepts(&compiled, "[1]") && !accepts(&compiled, "[1,2]"));
}

#[test]
fn what_is_not_enforced_is_reported_with_its_path() {
    let schema = json!({"properties": {"a": {"items": {"$ref": "#/$defs/b"}}},
        "$defs": {"b": {"type": "string", "pattern": "x(?=y)"}}});
    let reported = refusal(&grammars(), &json_grammar(schema));
    assert_eq!(
        reported,
        "#/$defs/b: the pattern \"x(?=y)\" is not enforced: the regular expression is wrong at \
         character 2, \"(?=y)\": look-around, including look-ahead and look-behind, is not \
         supported"
    );
    let schema = json!({"properties": {"a": {"items": {"maxLenght": 3}}}});
    let reported = refusal(&grammars(), &json_grammar(schema));
    assert_eq!(
        reported,
        "properties.a.items: the keyword \"maxLenght\" is not enforced"
    );
}

#[test]
fn what_is_wrong_with_an_expression_is_reported_in_a_line() {
    let reported = refusal(&grammars(), &Grammar::Regex("ab/[c".to_string()));
    assert!(
        reported.contains("at character 5") || reported.contains("[c"),
        "{reported}"
    );
    assert!(reported.ends_with("unclosed character class"), "{reported}");
}

#[test]
fn the_compiler_makes_way_and_its_panics_are_the_callers() {
    let threads = Threads::new();
    let work = || -> () { std::panic::panic_any("gone wrong") };
    for _ in 0..=limits::COMPILERS {
        let run = std::panic::AssertUnwindSafe(|| threads.run(work));
        let panic = std::panic::catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"gone wrong"));
    }
    let niceness = || getpriority_process(None).unwrap();
    let lowest = 19;
    let wanted = (niceness() + limits::COMPILE_NICE).min(lowest);
    assert_eq!(threads.run(niceness), wanted);
}
