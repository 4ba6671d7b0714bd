//! Grammars that are made to cost much: each is refused, or compiles, in bounded time.

use super::*;
use crate::grammar::reference_cost::tests::chain;

fn deep_schema(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"items": inner}),
    )
}

/// Expressions of Lark for texts with one word each.
fn containing(count: usize) -> Vec<String> {
    (0..count)
        .map(|at| format!("/(?s:.*)w{at}(?s:.*)/"))
        .collect()
}

/// Rules of Lark of which each leads to the next.
fn rules(count: usize) -> String {
    let one = |at: usize| format!("r{at}: r{}\n", at + 1);
    let rules: String = (0..count).map(one).collect();
    format!("start: r0\n{rules}r{count}: \"a\"\n")
}

/// Texts that hold one of four words.
fn words(at: usize) -> Value {
    let one = |side: usize| json!({"type": "string", "pattern": format!("{at}{side}")});
    json!({"anyOf": (0..4).map(one).collect::<Vec<_>>()})
}

fn bombs() -> Vec<(&'static str, Grammar)> {
    let either = |at: usize| {
        let one = |side: &str| json!({"properties": {format!("{side}{at}"): {"type": "string"}}});
        json!({"anyOf": [one("a"), one("b")]})
    };
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|at| {
            let next = json!({"$ref": format!("#/$defs/a{}", at + 1)});
            (
                format!("a{at}"),
                json!({"allOf": [next, next, {"minLength": at}]}),
            )
        })
        .collect();
    let many = |count: usize| (0..count).map(|at| (format!("p{at}"), json!({"type": "integer"})));
    let patterns = (0..17)
        .map(|at| (format!("^q{at}_(a|b)*$"), json!({})))
        .collect::<Value>();
    vec![
        ("a deep schema", json_grammar(deep_schema(65))),
        (
            "100,000 enum values",
            json_grammar(json!({"enum": (0..100_000).collect::<Vec<_>>()})),
        ),
        (
            "many properties",
            json_grammar(json!({"properties": many(2_000).collect::<Value>()})),
        ),
        (
            "many values",
            json_grammar(json!({"examples": vec![0; 30_000]})),
        ),
        (
            "alternatives to a power",
            json_grammar(json!({"allOf": (0..40).map(either)
            .collect::<Vec<_>>()})),
        ),
        (
            "references that double",
            json_grammar(json!({"$ref": "#/$defs/a0",
            "$defs": doubling})),
        ),
        (
            "references behind each other",
            json_grammar(chain(5_000, |next| json!({"items": next}))),
        ),
        (
            "deep schemas behind each other",
            json_grammar(chain(10, |next| {
                (0..55).fold(next, |inner, _| json!({"items": inner}))
            })),
        ),
        (
            "alternatives of parts that multiply",
            json_grammar(json!({"allOf": (0..7).map(words).collect::<Vec<_>>()})),
        ),
        (
            "alternatives of which one holds",
            json_grammar(json!({"oneOf": (0..300).map(|at| json!({"properties":
                many(20).map(|(name, schema)| (format!("{name}_{at}"), schema))
                    .collect::<Value>()})).collect::<Vec<_>>()})),
        ),
        (
            "rules behind each other in Lark",
            Grammar::Lark(rules(5_000)),
        ),
        (
            "terminals behind each other in Lark",
            Grammar::Lark(rules(2_500).to_uppercase().replace("START", "start")),
        ),
        (
            "optional names in a row in Lark",
            Grammar::Lark(format!("start: {}", "\"a\"? ".repeat(15_000))),
        ),
        (
            "many patterns",
            json_grammar(json!({"patternProperties": patterns})),
        ),
        (
            "a long pattern",
            json_grammar(json!({"pattern": "ab?".repeat(4_000)})),
        ),
        (
            "a large multiple",
            json_grammar(json!({"type": "integer", "multipleOf": 1_000_003})),
        ),
        (
            "multiples that multiply",
            json_grammar(json!({"allOf": [{"multipleOf": 97}, {"multipleOf": 9.1}]})),
        ),
        (
            "a large multiple in Lark",
            Grammar::Lark(r#"start: %json {"multiple\u004ff": 1000003}"#.to_string()),
        ),
        (
            "a deep expression",
            Grammar::Regex(format!("{}{}", "(".repeat(4_000), ")".repeat(4_000))),
        ),
        ("a long expression", Grammar::Regex("(a|b)".repeat(100_000))),
        (
            "a deep Lark grammar",
            Grammar::Lark(format!(
                "start: {}\"a\"{}",
                "(".repeat(100_000),
                ")".repeat(100_000)
            )),
        ),
        (
            "deep JSON in Lark",
            Grammar::Lark(format!("start: %json {}", "[".repeat(100_000))),
        ),
        (
            "conjunctions in Lark",
            Grammar::Lark(format!("start: A\nA: {}", containing(400).join(" & "))),
        ),
        (
            "patterns of one text",
            json_grammar(json!({"allOf": (0..40)
                .map(|at| json!({"type": "string", "pattern": format!("w{at}")}))
                .collect::<Vec<_>>()})),
        ),
        (
            "a text that has no choice",
            Grammar::Regex("((ab){1000000}){1,2}".to_string()),
        ),
        (
            "a pattern that has no choice",
            json_grammar(json!({"pattern": "^((a{50}){50})b$"})),
        ),
        ("optional parts in a row", Grammar::Regex(".*".repeat(400))),
        (
            "rules that are written out",
            Grammar::Lark("start: (\"a\"?){0,20000} \"b\"".to_string()),
        ),
        (
            "rules that are written out in each other",
            Grammar::Lark("start: a ~ 0..50\na: ((\"x\" \"y\"){50} | /z/) ~ 99".to_string()),
        ),
        (
            "many choices",
            Grammar::Choice((0..100_000).map(|at| at.to_string()).collect()),
        ),
        (
            "one long choice",
            Grammar::Choice(vec!["x".repeat(1_000_000)]),
        ),
    ]
}

#[test]
fn bombs_are_refused_in_time() {
    let grammars = grammars();
    for (name, grammar) in bombs() {
        let begun = cpu();
        let refused = grammars.compile(DOMAIN, &grammar).is_err();
        let took = cpu() - begun;
        assert!(refused, "{name} was taken");
        assert!(took < limits::COMPILE_TIME * SLOWER, "{name} took {took:?}");
    }
}

/// The largest number of conjunctions is taken.
#[test]
fn conjunctions_up_to_their_limit_cost_bounded_time() {
    let grammars = grammars();
    for count in [2, 4, 8, limits::CONJUNCTIONS_MAX] {
        let text = format!("start: A\nA: {}", containing(count).join(" & "));
        let begun = cpu();
        let taken = grammars.compile(DOMAIN, &Grammar::Lark(text)).is_ok();
        let took = cpu() - begun;
        println!("{count} conjunctions: taken {taken}, {took:?}");
        assert!(took < limits::COMPILE_TIME * SLOWER, "{count}: {took:?}");
    }
}

/// A grammar within all limits may be large, and is then compiled in time.
#[test]
fn large_grammars_compile_in_time() {
    let grammars = grammars();
    let required: Vec<String> = (0..400).map(|at| format!("p{at}")).collect();
    let properties = || {
        required
            .iter()
            .map(|name| (name.clone(), json!({"type": "integer"})))
    };
    let words = |count: usize| (0..count).map(|at| format!("value number {at}"));
    for (name, grammar) in [
        (
            "enum",
            json_grammar(json!({"enum": words(4_000).collect::<Vec<_>>()})),
        ),
        ("choice", Grammar::Choice(words(4_000).collect())),
        (
            "required",
            json_grammar(json!({"required": required,
            "properties": properties().collect::<Value>()})),
        ),
        (
            "optional",
            json_grammar(json!({"properties": properties().collect::<Value>()})),
        ),
        ("deep", json_grammar(deep_schema(60))),
        (
            "multiple",
            json_grammar(json!({"type": "number", "multipleOf": 9.97})),
        ),
        (
            "patterns",
            json_grammar(json!({"patternProperties": (0..16).map(|at|
            (format!("^q{at}_(a|b)*$"), json!({}))).collect::<Value>()})),
        ),
        ("long expression", Grammar::Regex("ab?".repeat(2_700))),
        (
            "repeats",
            Grammar::Regex("(((((a{0,99}){0,99}){0,99}){0,99}){0,99}){0,99}".into()),
        ),
    ] {
        limits::check(&grammar).unwrap();
        // The least of some: a cache that other processes fill makes the same work take longer.
        let took = (0..3).map(|_| {
            let begun = cpu();
            let compiled = grammars.compiler.compile_new(&grammar);
            let took = cpu() - begun;
            assert!(compiled.is_ok(), "{name}: {compiled:?}");
            took
        });
        let took = took.min().unwrap();
        println!("{name}: {took:?}");
        assert!(took < limits::COMPILE_TIME * SLOWER, "{name} took {took:?}");
    }
}

/// Each of its texts has so many readings that fuel does not end the work in time.
#[test]
fn what_is_read_in_many_ways_ends_in_time() {
    let grammars = grammars();
    let parts = ["r0", "T0", "\"a\"", "r1", "r0", "T1"]
        .repeat(20)
        .join(" | ");
    let text = format!("start: r0\nr0: {parts} | r0 r0 r0\nr1: T0\nT0: /[a-z]/\nT1: /\\w/\n");
    let begun = cpu();
    let _ = grammars.compile(DOMAIN, &Grammar::Lark(text));
    let took = cpu() - begun;
    assert!(took < limits::COMPILE_TIME * SLOWER, "{took:?}");
}

/// The library panics over it; a stack in the error's text would cost the first of them 60 ms.
#[test]
fn a_panic_of_the_library_is_an_error_without_a_stack() {
    let grammars = grammars();
    let grammar = Grammar::Regex(r"(\p{Lu}|()\w)|()\p{L}".to_string());
    let refused = grammars.compile(DOMAIN, &grammar).unwrap_err();
    assert_eq!(refused.0, "it cannot be compiled");
    let create = || {
        grammars
            .compiler
            .factory
            .create_parser(grammar.top_level().unwrap().0)
    };
    let error = panics::inside(create).err().unwrap().to_string();
    assert!(error.starts_with("panic: "), "{error}");
    assert!(!error.contains("backtrace"), "{error}");
}

#[test]
fn repetitions_in_a_row_are_counted() {
    let taken = |pattern: &str| limits::check(&Grammar::Regex(pattern.to_string())).is_ok();
    let most = limits::REPETITIONS_IN_A_ROW_MAX;
    for part in ["a*", "(ab)?", "(?s:.*)", "[a-z]{0,9}", "(a*b?)", "\\w+"] {
        assert!(taken(&part.repeat(most)), "{part}");
        assert!(!taken(&part.repeat(most + 1)), "{part}");
        assert!(taken(&format!("{part}x").repeat(most + 1)), "{part}");
        assert!(taken(&vec![part; most + 1].join("|")), "{part}");
    }
}

#[test]
fn repetitions_are_counted_as_they_are_written() {
    let count = |text: &str| limits::check(&Grammar::Regex(text.to_string())).is_ok();
    for taken in [
        "a{2000}",
        "[abc]{300}",
        "(ab){1000}",
        "\\(a{2}\\){9}",
        "(a{0,99}){0,999}",
        "a{x}",
        "(ab?)*(c+d)*",
    ] {
        assert!(count(taken), "{taken}");
    }
    for refused in [
        "a{2001}",
        "(ab){1001}",
        "((a{9}){30}){9}",
        "a{99999999999999999999}",
        "(a|b){1500}",
    ] {
        assert!(!count(refused), "{refused}");
    }
    let count = |text: &str| limits::check(&Grammar::Lark(text.to_string())).is_ok();
    for taken in [
        "start: \"a{9999}\"",
        "start: /a{1,9999}/",
        "start: (\"a\" b){0,1000}",
        "A: /a/ & ~/b/",
    ] {
        assert!(count(taken), "{taken}");
    }
    for refused in [
        "start: (\"a\" b){0,1001}",
        "start: (a ~ 3..60)~60",
        "start: (/a{99}/){99}",
    ] {
        assert!(!count(refused), "{refused}");
    }
}

/// The deepest grammar is compiled: the compiler has the stack for it.
#[test]
fn the_deepest_grammars_compile() {
    let grammars = grammars();
    for link in [
        |next| json!({"type": "array", "items": next}),
        |next| json!({"allOf": [next]}),
        |next| json!({"anyOf": [next, {"type": "null"}]}),
    ] {
        let deepest = (1..=limits::LEVELS_MAX)
            .rev()
            .map(|count| json_grammar(chain(count, link)))
            .find(|grammar| limits::check(grammar).is_ok());
        assert!(grammars.compile(DOMAIN, &deepest.unwrap()).is_ok());
    }
    let most = (limits::LARK_PARTS_MAX - 4) / 2;
    grammars
        .compile(DOMAIN, &Grammar::Lark(rules(most)))
        .unwrap();
}
