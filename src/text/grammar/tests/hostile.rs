//! Grammars at random from what is known to cost much: whatever they are, compiling ends in time.
//!
//! What the library does before there is a parser cannot be cancelled, and its fuel is no time: of
//! a thousand such grammars one may take up to four times what compiling may.

use super::*;

/// Number of cases of each kind; `ci/README.md` says when there are as many.
const CASES: usize = if cfg!(debug_assertions) { 40 } else { 20_000 };
/// Sizes and bounds, small ones most often.
const COUNTS: [usize; 16] = [
    0, 0, 1, 1, 2, 2, 3, 3, 7, 10, 30, 100, 400, 1_000, 20_000, 1_000_000,
];

/// Factor by which the slowest may take longer, and how many in a thousand may take too long at
/// all.
const WORST: u32 = 4;
const LATE_PER_MILLE: usize = 1;

struct Hostile {
    random: Random,
    /// Parts still to be written, so that grammars end.
    left: usize,
}

impl Hostile {
    fn new(seed: u64) -> Hostile {
        let mut random = Random::new(seed);
        let left = 1 << random.below(9);
        Hostile { random, left }
    }

    fn count(&mut self) -> usize {
        COUNTS[self.random.below(COUNTS.len())]
    }

    /// A number of parts, for which there must be room.
    fn parts(&mut self) -> usize {
        let most = self.count().min(self.left / 2);
        self.left -= most;
        most
    }

    fn pick<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.random.below(texts.len())]
    }

    fn repeat(&mut self) -> String {
        let (least, more) = (self.count(), self.count());
        match self.random.below(8) {
            0 => "*".to_string(),
            1 => "+".to_string(),
            2 => "?".to_string(),
            3 => format!("{{{least}}}"),
            4 => format!("{{{least},}}"),
            5 => format!("{{0,{more}}}"),
            _ => format!("{{{least},{}}}", least + more),
        }
    }

    fn regex(&mut self, depth: usize) -> String {
        const ATOMS: &[&str] = &[
            "a",
            "b",
            "ab",
            ".",
            "\\w",
            "\\d",
            "\\s",
            "[^a]",
            "[a-z]",
            "\\p{L}",
            "\\p{Lu}",
            "é",
            "(?i:straße)",
            "(?s:.)",
            "(?s:.*)",
            "\\x00",
            "\"",
            "\\\\",
            ".*",
            "[^\"\\\\]*",
        ];
        if depth == 0 || self.left == 0 {
            return self.pick(ATOMS).to_string();
        }
        self.left -= 1;
        match self.random.below(6) {
            0 => self.pick(ATOMS).to_string(),
            1 | 2 => format!("({}){}", self.regex(depth - 1), self.repeat()),
            3 => {
                let parts = self.parts().max(2);
                let parts: Vec<_> = (0..parts).map(|_| self.regex(depth - 1)).collect();
                format!("({})", parts.join("|"))
            }
            4 => {
                let times = self.count().min(40);
                self.regex(depth - 1).repeat(times.max(1))
            }
            _ => {
                let parts = self.parts().max(2);
                (0..parts).map(|_| self.regex(depth - 1)).collect()
            }
        }
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 || self.left == 0 {
            let kind = self.pick(&["string", "integer", "number", "boolean", "null", "object"]);
            return json!({"type": kind});
        }
        self.left -= 1;
        let mut made = serde_json::Map::new();
        for _ in 0..=self.random.below(3) {
            let (key, value) = self.keyword(depth - 1);
            made.insert(key.to_string(), value);
        }
        Value::Object(made)
    }

    fn named(&mut self, depth: usize) -> Value {
        let parts = self.parts();
        (0..parts)
            .map(|at| (format!("{}{at}", self.random.below(3)), self.schema(depth)))
            .collect()
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, Value) {
        const FORMATS: &[&str] = &["date-time", "uri", "email", "uuid", "ipv6", "hostname", "x"];
        let count = self.count();
        match self.random.below(24) {
            0 => (
                "type",
                json!(self.pick(&["string", "integer", "number", "array", "object"])),
            ),
            1 => ("pattern", json!(self.regex(4))),
            2 => ("minLength", json!(count)),
            3 => ("maxLength", json!(count)),
            4 => ("format", json!(self.pick(FORMATS))),
            5 => ("minimum", json!(count as f64 * 0.37)),
            6 => ("maximum", json!(count as i64 - 5)),
            7 => (
                "multipleOf",
                json!([3.0, 0.01, 7.0, 9.97, 0.125][self.random.below(5)]),
            ),
            8 => (
                "enum",
                (0..self.parts())
                    .map(|at| json!("x".repeat(at % 9)))
                    .collect(),
            ),
            9 => ("properties", self.named(depth)),
            10 => {
                let parts = self.parts();
                let name = |random: &mut Random| format!("{}{}", random.below(3), random.below(9));
                (
                    "required",
                    (0..parts).map(|_| json!(name(&mut self.random))).collect(),
                )
            }
            11 => ("additionalProperties", self.schema(depth)),
            12 => {
                let parts = self.parts().min(6);
                let made = (0..parts).map(|_| (self.regex(3), self.schema(depth)));
                ("patternProperties", made.collect())
            }
            13 => ("propertyNames", json!({"pattern": self.regex(3)})),
            14 => ("minProperties", json!(count)),
            15 => ("items", self.schema(depth)),
            16 => (
                "prefixItems",
                (0..self.parts()).map(|_| self.schema(depth)).collect(),
            ),
            17 => ("minItems", json!(count)),
            18 => ("maxItems", json!(count)),
            19 => (
                "anyOf",
                (0..self.parts().max(1))
                    .map(|_| self.schema(depth))
                    .collect(),
            ),
            20 => (
                "oneOf",
                (0..self.parts().max(1))
                    .map(|_| self.schema(depth))
                    .collect(),
            ),
            21 => (
                "allOf",
                (0..self.parts().max(1))
                    .map(|_| self.schema(depth))
                    .collect(),
            ),
            22 => ("$ref", json!(self.pick(&["#", "#/$defs/a", "#/$defs/b"]))),
            _ => (
                "$defs",
                json!({"a": self.schema(depth), "b": self.schema(depth)}),
            ),
        }
    }

    fn lark(&mut self) -> String {
        let rules = 1 + self.random.below(4);
        let mut text = String::from("start: r0\n");
        for at in 0..rules {
            text.push_str(&format!("r{at}: {}\n", self.rule(rules, 3)));
        }
        for at in 0..3 {
            text.push_str(&format!("T{at}: {}\n", self.terminal(3)));
        }
        text
    }

    fn rule(&mut self, rules: usize, depth: usize) -> String {
        if depth == 0 || self.left == 0 {
            return match self.random.below(3) {
                0 => format!("r{}", self.random.below(rules)),
                1 => format!("T{}", self.random.below(3)),
                _ => "\"a\"".to_string(),
            };
        }
        self.left -= 1;
        let parts = self.parts().clamp(1, 40);
        let parts: Vec<String> = (0..parts).map(|_| self.rule(rules, depth - 1)).collect();
        match self.random.below(4) {
            0 => parts.join(" | "),
            1 => format!("({}){}", parts.join(" "), self.repeat()),
            2 => format!("({})", parts.join(" | ")),
            _ => parts.join(" "),
        }
    }

    fn terminal(&mut self, depth: usize) -> String {
        if depth == 0 || self.left == 0 || self.random.below(3) == 0 {
            return format!("/{}/", self.regex(3).replace('/', ""));
        }
        self.left -= 1;
        let parts = self.parts().clamp(1, 12);
        let parts: Vec<String> = (0..parts).map(|_| self.terminal(depth - 1)).collect();
        let joined = parts.join(self.pick(&[" | ", " & ", " ", " & ~"]));
        match self.random.below(3) {
            0 => format!("~({joined})"),
            1 => format!("({joined}){}", self.repeat()),
            _ => format!("({joined})"),
        }
    }
}

/// Compiles grammars, or has them refused; returns how many were taken, and the slowest.
fn run(kind: &str, make: fn(&mut Hostile) -> Grammar) {
    let grammars = grammars();
    let most = limits::COMPILE_TIME * SLOWER;
    let (mut taken, mut late, mut slowest) = (0, 0, (Duration::ZERO, 0));
    for seed in 0..CASES as u64 {
        let grammar = make(&mut Hostile::new(seed));
        let begun = cpu();
        let compiled =
            limits::check(&grammar).and_then(|()| grammars.compiler.compile_new(&grammar));
        let took = cpu() - begun;
        taken += usize::from(compiled.is_ok());
        late += usize::from(took >= most);
        slowest = slowest.max((took, seed));
        assert!(
            took < most * WORST,
            "{kind} {seed} took {took:?}: {grammar:?}"
        );
    }
    println!("{kind}: {taken} of {CASES} taken, {late} late, the slowest {slowest:?}");
    assert!(
        late * 1000 <= CASES * LATE_PER_MILLE,
        "{kind}: {late} of {CASES} took too long"
    );
    assert!(
        taken > CASES / 10,
        "{kind}: most are refused, which shows nothing"
    );
}

#[test]
fn hostile_schemas_are_compiled_or_refused_in_time() {
    run("schema", |hostile| {
        let mut schema = hostile.schema(5);
        schema["$defs"] = json!({"a": hostile.schema(3), "b": hostile.schema(3)});
        json_grammar(schema)
    });
}

#[test]
fn hostile_expressions_are_compiled_or_refused_in_time() {
    run("regex", |hostile| Grammar::Regex(hostile.regex(6)));
}

#[test]
fn hostile_grammars_are_compiled_or_refused_in_time() {
    run("lark", |hostile| Grammar::Lark(hostile.lark()));
}

/// CVE-2025-32381: schemas that are all different, until the memory is full.
#[test]
fn a_hundred_thousand_schemas_leave_no_more_than_the_cache_holds() {
    const SCHEMAS: usize = if cfg!(debug_assertions) { 500 } else { 100_000 };
    let grammars = grammars();
    let mut last = VecDeque::new();
    for at in 0..SCHEMAS {
        let schema = json!({"type": "object", "properties": {format!("p{at}"): {}}});
        let compiled = grammars.compile(DOMAIN, &json_grammar(schema)).unwrap();
        last.push_back(Arc::downgrade(&compiled));
        drop(compiled);
        if last.len() > limits::CACHED_MAX {
            assert!(
                last.pop_front().unwrap().upgrade().is_none(),
                "{at} is kept"
            );
        }
    }
    let cache = grammars.cache.lock().unwrap();
    let bytes: usize = cache.iter().map(|((_, text), _)| text.len()).sum();
    assert_eq!(cache.len(), limits::CACHED_MAX);
    assert!(bytes <= limits::CACHED_BYTES_MAX);
}
