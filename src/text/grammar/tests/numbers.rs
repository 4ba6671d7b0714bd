//! Numbers under every keyword of them, against a check in whole thousandths that shares nothing
//! with the compiler.

use super::super::calls::CallGrammar;
use super::tool_calls::{forced, with_member, written};
use super::*;
use crate::tools::tests::{Written, for_each_syntax};

/// Bounds in thousandths, in order: whole, in one unit with others, and of both signs.
const BOUNDS: [i64; 15] = [
    -12_000, -2_500, -2_000, -1_250, -1_000, -250, -1, 0, 50, 200, 1_000, 1_500, 2_000, 10_000,
    99_900,
];
const MULTIPLES: [i64; 5] = [250, 500, 1_000, 1_500, 3_000];

/// A decimal number of thousandths.
fn decimal(thousandths: i64) -> String {
    let sign = if thousandths < 0 { "-" } else { "" };
    let (whole, part) = (thousandths.abs() / 1_000, thousandths.abs() % 1_000);
    let part = format!("{part:03}");
    match part.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{part}"),
    }
}

fn number(thousandths: i64) -> Value {
    serde_json::from_str(&decimal(thousandths)).unwrap()
}

/// Range that a number is asked to lie in, in thousandths.
#[derive(Clone, Debug)]
struct Range {
    least: Option<(i64, bool)>,
    most: Option<(i64, bool)>,
    multiple: Option<i64>,
    whole: bool,
}

impl Range {
    fn random(random: &mut Random) -> Range {
        let mut ends = [random.below(BOUNDS.len()), random.below(BOUNDS.len())];
        ends.sort_unstable();
        let mut bound = |at: usize| {
            let kind = random.below(5);
            (kind > 0).then(|| (BOUNDS[at], kind > 2))
        };
        Range {
            least: bound(ends[0]),
            most: bound(ends[1]),
            multiple: (random.below(4) == 0).then(|| MULTIPLES[random.below(MULTIPLES.len())]),
            whole: random.below(3) == 0,
        }
    }

    fn allows(&self, thousandths: i64) -> bool {
        let above =
            |(bound, open): (i64, bool)| thousandths > bound || (!open && thousandths == bound);
        let below =
            |(bound, open): (i64, bool)| thousandths < bound || (!open && thousandths == bound);
        let fits = |unit: i64| thousandths % unit == 0;
        self.least.is_none_or(above)
            && self.most.is_none_or(below)
            && self.multiple.is_none_or(fits)
            && (!self.whole || fits(1_000))
    }

    /// Its keywords one by one, the type among them.
    fn keywords(&self) -> Vec<Value> {
        let bound = |(bound, open): (i64, bool), [closed, excluded]: [&str; 2]| match open {
            true => json!({excluded: number(bound)}),
            false => json!({closed: number(bound)}),
        };
        let kind = if self.whole { "integer" } else { "number" };
        let least = self
            .least
            .map(|least| bound(least, ["minimum", "exclusiveMinimum"]));
        let most = self
            .most
            .map(|most| bound(most, ["maximum", "exclusiveMaximum"]));
        let multiple = self
            .multiple
            .map(|unit| json!({"multipleOf": number(unit)}));
        let all = [Some(json!({"type": kind})), least, most, multiple];
        all.into_iter().flatten().collect()
    }

    /// All keywords in one schema.
    fn together(&self) -> Value {
        let entries = self.keywords().into_iter();
        entries
            .flat_map(|one| one.as_object().unwrap().clone())
            .collect()
    }

    /// Its schema in one of the forms that clients send.
    fn schema(&self, form: usize) -> Value {
        let together = self.together();
        match form {
            0 => together,
            1 => json!({"allOf": self.keywords()}),
            2 => json!({"anyOf": [together, {"type": "null"}]}),
            3 => json!({"$defs": {"n": together}, "$ref": "#/$defs/n"}),
            _ => json!({"allOf": [{"anyOf": [together]}, {"type": "number"}]}),
        }
    }

    /// Whether the compiler may ask for a zero after a text: where a bound begins with all of it
    /// and has more decimals, and where a multiple does.
    fn wants_zero(&self, text: &str) -> bool {
        let ends = [self.least, self.most].into_iter().flatten();
        let mut bounds = ends.map(|(bound, _)| decimal(bound));
        let begun = self.multiple.is_some() || bounds.any(|bound| bound.starts_with(text));
        text.contains('.') && begun
    }

    /// Numbers about the bounds and zero, in thousandths.
    fn near(&self) -> Vec<i64> {
        let ends = [self.least, self.most]
            .into_iter()
            .flatten()
            .map(|(bound, _)| bound);
        let steps = [0, 1, 10, 100, 250, 500, 1_000, 1_500, 11_000];
        ends.chain([0])
            .flat_map(|end| steps.iter().flat_map(move |step| [end + step, end - step]))
            .collect()
    }
}

/// Ways to write a number, of which the first has nothing that could be left out.
fn spellings(thousandths: i64) -> Vec<String> {
    let plain = decimal(thousandths);
    let more = match plain.contains('.') {
        true => vec![format!("{plain}0"), format!("{plain}e0")],
        false => vec![
            format!("{plain}.0"),
            format!("{plain}.000"),
            format!("{plain}E0"),
        ],
    };
    let negative_zeros = ["-0", "-0.0", "-0e1"].map(String::from);
    let zeros = negative_zeros.into_iter().filter(|_| thousandths == 0);
    [plain].into_iter().chain(more).chain(zeros).collect()
}

/// Checks a compiled range with texts around a number.
fn check(range: &Range, compiled: &Arc<Compiled>, around: impl Fn(&str) -> String) {
    for near in range.near() {
        for (at, text) in spellings(near).iter().enumerate() {
            let taken = accepts(compiled, &around(text));
            let wrong = taken && !range.allows(near);
            let missing = at == 0 && !taken && range.allows(near) && !range.wants_zero(text);
            assert!(!wrong && !missing, "{range:?}: {text} is taken: {taken}");
        }
    }
}

fn is_empty(range: &Range) -> bool {
    !(-200_000..200_000)
        .step_by(10)
        .any(|number| range.allows(number))
}

#[test]
fn every_number_under_a_strict_schema_is_valid() {
    const RANGES: usize = if cfg!(debug_assertions) { 150 } else { 1_000 };
    let (grammars, mut random) = (grammars(), Random::new(40));
    for at in 0..RANGES {
        let range = Range::random(&mut random);
        match grammars.compile(DOMAIN, &json_grammar(range.schema(at % 5))) {
            Ok(compiled) => check(&range, &compiled, str::to_string),
            Err(error) => assert!(is_empty(&range), "{range:?}: {error}"),
        }
    }
}

/// Numbers that a reader of doubles takes for the bound.
#[test]
fn no_digits_lead_back_to_an_excluded_bound() {
    let grammars = grammars();
    for (schema, bound) in [
        (
            json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.2}),
            "0.",
        ),
        (json!({"exclusiveMinimum": 0.3, "maximum": 0.4}), "0.3"),
        (json!({"exclusiveMaximum": -1, "minimum": -1.1}), "-1."),
        (json!({"exclusiveMaximum": 0, "minimum": -3}), "-0."),
    ] {
        let compiled = json_grammar(json!({"type": "number", "allOf": [schema]}));
        let compiled = grammars.compile(DOMAIN, &compiled).unwrap();
        for zeros in [0, 1, 20, 50] {
            for last in ["", "1", "9"] {
                let text = format!("{bound}{}{last}", "0".repeat(zeros));
                let apart = text.parse::<f64>() != bound.parse::<f64>();
                assert!(apart || !accepts(&compiled, &text), "{schema}: {text}");
            }
        }
    }
}

#[test]
fn every_number_in_a_strict_call_is_valid() {
    const RANGES: usize = if cfg!(debug_assertions) { 20 } else { 100 };
    fn run<S: CallGrammar + Written>(grammars: &Grammars) {
        let mut random = Random::new(41);
        for at in 0..RANGES {
            let range = Range::random(&mut random);
            let parameters = with_member(&range.schema(at % 5));
            match forced::<S>(grammars, &parameters, true) {
                Ok(compiled) => check(&range, &compiled, |text| {
                    written::<S>(&json!({"v": 424_242})).replace("424242", text)
                }),
                Err(_) if is_empty(&range) => {}
                Err(error) => assert!(error.contains("not enforced"), "{range:?}: {error}"),
            }
        }
    }
    for_each_syntax!(run(&grammars()));
}

#[test]
fn bounds_beyond_what_is_held_are_refused_by_name() {
    let grammars = grammars();
    for (keyword, bound) in [("minimum", 1e300), ("exclusiveMaximum", -2e18)] {
        let refused = refusal(
            &grammars,
            &json_grammar(json!({"type": "integer", keyword: bound})),
        );
        assert!(refused.contains(keyword), "{refused}");
    }
}
