//! Translation of schemas of arguments that are read as text to expressions of Lark.

use std::collections::HashSet;

use llguidance::regex_to_lark;
use serde_json::Value;

use crate::grammar::formats::{self, Format};
use crate::grammar::{ecma, expression, keywords};
use crate::tools::{Root, SCHEMA_DEPTH_MAX, Types};

use super::{Lark, quoted};

/// Expression of any text, line breaks included.
pub const ANY_TEXT: &str = r"/(?s:.*)/";

/// Keywords of text that are enforced, or refused with an error of their own.
pub const TEXT_KEYWORDS: &[&str] = &["format", "maxLength", "minLength", "pattern"];
/// Keywords of numbers.
pub const NUMBER_KEYWORDS: &[&str] = &[
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maximum",
    "minimum",
    "multipleOf",
];

/// Expression of a number as JSON writes it.
const NUMBER: &str = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/";
/// Expression of a whole number as JSON writes it.
const INTEGER: &str = "/-?(0|[1-9][0-9]*)/";

/// Written form of an argument that may be text.
#[derive(Debug, Default, PartialEq)]
pub struct Text {
    /// Expressions of texts by length, pattern or format, one for each alternative of the schema.
    pub free: Vec<String>,
    /// Expressions of texts in a fixed form: listed strings, and scalars of JSON.
    pub fixed: Vec<String>,
    /// Types whose values are written as JSON.
    pub json: Types,
    /// Types as which the reader could take a text although the schema forbids them: no free text
    /// may look like a value of these types.
    pub lookalikes: Types,
}

/// Expression of an argument that may be text, by its schema. The text cannot contain `tag`, and
/// the reader takes it for a value of one of the types `read`.
pub fn text_of<'v>(
    schema: &'v Value,
    root: &Root<'v>,
    tag: &str,
    read: Types,
) -> Result<Text, String> {
    let mut texts = Texts {
        root,
        tag,
        read,
        plain: Types::default(),
        found: Text::default(),
        seen: HashSet::new(),
        open: Vec::new(),
    };
    texts.of(schema, 0)?;
    let Texts {
        mut found, plain, ..
    } = texts;
    if found.free.is_empty() && found.fixed.is_empty() {
        return Err("has no text to choose".to_string());
    }
    let others = read.without_text();
    found.lookalikes = match read.unsaid() && !root.types(schema).unsaid() {
        true => Types::CONTAINERS,
        false => others.without(plain),
    };
    Ok(found)
}

impl Text {
    /// Form of an argument that may be any text, and nothing else.
    pub fn any() -> Text {
        Text {
            free: vec![ANY_TEXT.to_string()],
            ..Text::default()
        }
    }

    /// Expression of Lark for the argument in the rule `rule`. `free` texts exclude texts that the
    /// reader would take for a value of another type.
    pub fn expression(&self, lark: &mut Lark, rule: &str) -> String {
        let lookalikes = self.lookalikes.lookalikes();
        let free = self.free.iter().map(|free| match &lookalikes {
            Some(others) => format!("{free} & ~/{}/", regex_to_lark(others, "")),
            None => free.clone(),
        });
        let mut parts: Vec<String> = free.collect();
        let any = parts.iter().any(|part| part == ANY_TEXT);
        if parts.len() == 1 && (any || self.fixed.is_empty()) {
            return parts.remove(0);
        }
        for (at, part) in parts.iter_mut().enumerate() {
            // Lark allows a conjunction inside an expression only under the name of a rule.
            let name = format!("{}_{at}", rule.to_uppercase());
            lark.line(&format!("{name}: {part}"));
            *part = name;
        }
        parts.extend_from_slice(&self.fixed);
        format!("({})", parts.join(" | "))
    }
}

struct Texts<'r, 'v> {
    root: &'r Root<'v>,
    /// Closing tag of the argument, which no text may contain.
    tag: &'r str,
    /// Types as which the reader takes the argument.
    read: Types,
    /// Types of which all JSON values are allowed.
    plain: Types,
    found: Text,
    /// Schemas whose texts have been added; reading a shared schema again would take exponential
    /// time.
    seen: HashSet<*const Value>,
    /// Schemas around the one that is being read.
    open: Vec<*const Value>,
}

impl<'v> Texts<'_, 'v> {
    /// Adds the texts that a schema allows.
    fn of(&mut self, schema: &'v Value, depth: usize) -> Result<(), String> {
        let schema = keywords::followed(schema, self.root)?;
        // A schema that refers to itself has unknown types.
        if self.open.contains(&std::ptr::from_ref(schema)) {
            return Err("text that refers to itself is not enforced".to_string());
        }
        if !self.seen.insert(schema) {
            return Ok(());
        }
        self.open.push(schema);
        let read = self.read(schema, depth);
        self.open.pop();
        read
    }

    fn read(&mut self, schema: &'v Value, depth: usize) -> Result<(), String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!(
                "more than {SCHEMA_DEPTH_MAX} levels are not enforced"
            ));
        }
        check_type(schema)?;
        if let Some(values) = keywords::fixed(schema)? {
            return self.listed(&values);
        }
        let read = self.read;
        let root = self.root;
        let matters = |option| {
            let types = root.types(option);
            types.is_text() || !read.excludes(types)
        };
        if let Some(options) = keywords::alternatives(schema, self.root, matters)? {
            let mut options = options.iter();
            return options.try_for_each(|option| self.option(option, depth));
        }
        let types = self.root.types(schema);
        if types.is_text() {
            self.free(pattern_of(schema, self.root)?);
        } else {
            keywords::check(schema, &[])?;
        }
        self.others(types);
        Ok(())
    }

    /// Adds the texts that one alternative of the argument's schema allows.
    fn option(&mut self, option: &'v Value, depth: usize) -> Result<(), String> {
        let types = self.root.types(option);
        let followed = keywords::followed(option, self.root)?;
        let plain = types.scalars() == types && keywords::check(followed, &[]).is_ok();
        let fixed = || matches!(keywords::fixed(followed), Ok(Some(_)));
        if types.is_text() || plain || fixed() {
            return self.of(option, depth + 1);
        }
        self.found.json = self.found.json.or(types.and(self.read));
        Ok(())
    }

    /// Adds all JSON values of `types`, as far as the reader of calls takes texts for such values.
    fn others(&mut self, types: Types) {
        let types = types.without_text().and(self.read);
        self.plain = self.plain.or(types.scalars());
        self.found.json = self.found.json.or(types.without(types.scalars()));
        for name in types.scalars().names() {
            self.found.fixed.extend(match name {
                "number" => vec![NUMBER.to_string()],
                "integer" => vec![INTEGER.to_string()],
                "boolean" => vec![quoted("true"), quoted("false")],
                _ => vec![quoted("null")],
            });
        }
    }

    /// Adds an expression of texts, unless any text is allowed already.
    fn free(&mut self, texts: String) {
        let free = &mut self.found.free;
        if texts == ANY_TEXT {
            free.clear();
        }
        let known = |known: &String| *known == texts || known == ANY_TEXT;
        if !free.iter().any(known) {
            free.push(texts);
        }
    }

    /// Adds listed values, in the form in which the reader of calls takes them.
    ///
    /// # Errors
    /// Names a value that contains the closing tag, or that the reader takes for another.
    fn listed(&mut self, values: &[&Value]) -> Result<(), String> {
        let tag = self.tag;
        for value in values {
            let text = match value {
                Value::String(text) => text.clone(),
                other if self.read.excludes(Types::of(other)) => continue,
                other => other.to_string(),
            };
            if text.contains(tag) {
                return Err(format!(
                    "the value {text:?} holds {tag:?}, which ends a value in the model's calls"
                ));
            }
            let read = serde_json::from_str::<Value>(&self.read.to_json(&text));
            if read.ok().as_ref() != Some(value) {
                return Err(format!("the value {value} would be taken for another one"));
            }
            let text = quoted(&text);
            if !self.found.fixed.contains(&text) {
                self.found.fixed.push(text);
            }
        }
        Ok(())
    }
}

/// # Errors
/// States why `schema` is no schema, or allows no value.
fn check_type(schema: &Value) -> Result<(), String> {
    if *schema == false {
        return Err("a schema that allows nothing is not enforced".to_string());
    }
    if !schema.is_object() && *schema != true {
        return Err("a schema must be an object or a boolean".to_string());
    }
    let unknown = schema.get("type").and_then(keywords::unknown_type);
    unknown.map_or(Ok(()), Err)
}

/// Expression of the texts of a schema without alternatives, including its `allOf`. A schema
/// without a type has numbers read as texts, so keywords of numbers do not restrict these.
fn pattern_of<'v>(schema: &'v Value, root: &Root<'v>) -> Result<String, String> {
    let numbers = match root.types(schema).unsaid() {
        true => NUMBER_KEYWORDS,
        false => &[],
    };
    let known = [TEXT_KEYWORDS, numbers].concat();
    keywords::check(schema, &[&known[..], &["allOf"]].concat())?;
    let mut parts = parts_of(schema)?;
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let part = keywords::followed(part, root)?;
        check_type(part)?;
        if !root.types(part).is_text() {
            return Err("allOf leaves no text".to_string());
        }
        keywords::check(part, &known)?;
        parts.extend(parts_of(part)?);
    }
    Ok(match parts.is_empty() {
        true => ANY_TEXT.to_string(),
        false => parts.join(" & "),
    })
}

/// Expressions of the texts that each of a schema's keywords allows.
fn parts_of(schema: &Value) -> Result<Vec<String>, String> {
    let mut parts = Vec::new();
    match &schema["pattern"] {
        Value::Null => {}
        Value::String(pattern) => parts.push(searched(pattern)?),
        _ => return Err("pattern must be a string".to_string()),
    }
    parts.extend(of_format(schema)?);
    parts.extend(length(schema)?);
    Ok(parts)
}

/// Expression of the texts of a schema's `format`, if it has one that restricts text.
fn of_format(schema: &Value) -> Result<Option<String>, String> {
    let Some(format) = schema.get("format") else {
        return Ok(None);
    };
    match format.as_str().map(formats::find) {
        None => Err("format must be a string".to_string()),
        Some(None) => Err(format!("the format {format} is not enforced")),
        Some(Some(Format::Text(texts))) => Ok(Some(format!("/{}/", regex_to_lark(texts, "")))),
        Some(Some(Format::Number(..) | Format::Anything)) => Ok(None),
    }
}

/// Expression of the texts in which `pattern` is found.
fn searched(pattern: &str) -> Result<String, String> {
    let whole = whole_match(
        &ecma::searched(pattern)
            .map_err(|problem| format!("the pattern {pattern:?} is not enforced: {problem}"))?,
    );
    let whole = whole.ok_or_else(|| format!("the pattern {pattern:?} is not enforced in text"))?;
    Ok(format!("/{}/", regex_to_lark(&whole, "")))
}

/// Expression of the texts of the lengths that a schema allows, if it restricts them.
fn length(schema: &Value) -> Result<Option<String>, String> {
    let bound = |name| keywords::whole(schema, name);
    let (least, most) = (bound("minLength")?.unwrap_or(0), bound("maxLength")?);
    if least == 0 && most.is_none() {
        return Ok(None);
    }
    let most = most.map_or(String::new(), |most| most.to_string());
    let texts = format!("(?s:.{{{least},{most}}})");
    expression::check_whole(&texts)
        .map_err(|_| format!("a length from {least} to {most} is not enforced"))?;
    Ok(Some(format!("/{texts}/")))
}

/// Position of an end of a pattern in the text that is searched.
#[derive(Clone, Copy, PartialEq)]
enum Edge {
    Anywhere,
    /// The pattern's end must be at the end of the text.
    Anchored,
    /// The pattern is a part of a larger one, and its end touches another part.
    Inside,
}

impl Edge {
    fn anything(self) -> &'static str {
        match self {
            Edge::Anywhere => "(?s:.*)",
            Edge::Anchored | Edge::Inside => "",
        }
    }
}

/// Pattern that matches a whole text if `pattern` is found in it; None if `pattern` has an anchor
/// elsewhere than at its ends.
fn whole_match(pattern: &str) -> Option<String> {
    between(pattern, Edge::Anywhere, Edge::Anywhere)
}

/// Pattern that matches a whole text if `pattern` is found in it. `begin` and `end`: where the
/// pattern's ends may lie, so that other text may precede or follow.
fn between(pattern: &str, begin: Edge, end: Edge) -> Option<String> {
    if !signs(pattern).any(|(_, sign, _)| "^$".contains(sign)) {
        let (before, after) = (begin.anything(), end.anything());
        return Some(format!("{before}(?:{pattern}){after}"));
    }
    let parts = alternatives(pattern).into_iter();
    let parts: Option<Vec<String>> = parts.map(|one| one_between(one, begin, end)).collect();
    Some(parts?.join("|"))
}

/// [`between`] for a pattern without alternatives. A group at an end may contain an anchor.
fn one_between(pattern: &str, begin: Edge, end: Edge) -> Option<String> {
    let signs: Vec<(usize, char, usize)> = signs(pattern).collect();
    let last = signs.last().filter(|(at, ..)| at + 1 == pattern.len());
    let outer = |sign: char| {
        let signs = signs.iter();
        signs.filter(move |(_, one, depth)| *one == sign && *depth == 0)
    };
    match (pattern.chars().next(), last.map(|(_, sign, _)| *sign)) {
        (Some('^'), _) if begin != Edge::Inside => one_between(&pattern[1..], Edge::Anchored, end),
        (_, Some('$')) if end != Edge::Inside => {
            one_between(&pattern[..pattern.len() - 1], begin, Edge::Anchored)
        }
        _ if !signs.iter().any(|(_, sign, _)| "^$".contains(*sign)) => between(pattern, begin, end),
        (Some('('), _)
            if let Some((close, ..)) = outer(')').next()
                && !pattern[close + 1..].starts_with(['*', '+', '?', '{']) =>
        {
            let (group, rest) = (inner(&pattern[..=*close])?, &pattern[close + 1..]);
            if rest.is_empty() {
                return Some(format!("(?:{})", between(group, begin, end)?));
            }
            let group = between(group, begin, Edge::Inside)?;
            let rest = one_between(rest, Edge::Inside, end)?;
            Some(format!("(?:{group}){rest}"))
        }
        (_, Some(')')) if let Some((open, ..)) = outer('(').next_back() => {
            let group = between(inner(&pattern[*open..])?, Edge::Inside, end)?;
            let before = one_between(&pattern[..*open], begin, Edge::Inside)?;
            Some(format!("{before}(?:{group})"))
        }
        _ => None,
    }
}

/// Contents of a group; None if it has flags, a name or a look-around.
fn inner(group: &str) -> Option<&str> {
    let inner = group.strip_prefix('(')?.strip_suffix(')')?;
    match inner.strip_prefix('?') {
        None => Some(inner),
        Some(more) => more.strip_prefix(':'),
    }
}

/// Alternatives of a pattern, which `|` outside of groups and classes separates.
fn alternatives(pattern: &str) -> Vec<&str> {
    let ends = signs(pattern).filter(|(_, sign, depth)| *sign == '|' && *depth == 0);
    let ends: Vec<usize> = ends.map(|(at, ..)| at).collect();
    let begins = std::iter::once(0).chain(ends.iter().map(|at| at + 1));
    let ends = ends.iter().copied().chain([pattern.len()]);
    let parts = begins.zip(ends);
    parts.map(|(begin, end)| &pattern[begin..end]).collect()
}

/// Characters of a pattern that are neither escaped nor in a class: byte offset, character, number
/// of groups around the character.
fn signs(pattern: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut escaped, mut class) = (0_usize, false, false);
    pattern.char_indices().filter_map(move |(at, char)| {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => {
                depth += 1;
                return Some((at, char, depth - 1));
            }
            ')' => {
                depth = depth.saturating_sub(1);
                return Some((at, char, depth));
            }
            _ => return Some((at, char, depth)),
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(schema: &Value, document: &Value) -> Result<Text, String> {
        let mut document = document.clone();
        document["schema"] = schema.clone();
        let (root, schema) = (Root::new(&document), &document["schema"]);
        text_of(schema, &root, "</p>", root.types(schema))
    }

    fn fixed(schema: Value) -> Vec<String> {
        text(&schema, &json!({})).unwrap().fixed
    }

    #[test]
    fn what_stands_beside_the_whole_of_a_text_is_not_passed_over() {
        let root = json!({"$defs": {"c": {"type": "string"}, "e": {"enum": ["a"],
            "maxLength": 2}, "via": {"$ref": "#/$defs/c", "minLength": 2}}});
        for schema in [
            json!({"type": "string", "enum": ["Paris"], "maxLength": 2}),
            json!({"const": "Paris", "pattern": "^x"}),
            json!({"const": "Paris", "enum": ["Rome"]}),
            json!({"pattern": "^x", "anyOf": [{"type": "string"}]}),
            json!({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}),
            json!({"$ref": "#/$defs/c", "maxLength": 2}),
            json!({"$ref": "#/$defs/c", "type": "integer"}),
            json!({"$ref": "#/$defs/e"}),
            json!({"$ref": "#/$defs/via"}),
            json!({"$ref": "#/$defs/absent"}),
            json!({"anyOf": [{"$ref": "#/$defs/c", "enum": ["Rome"]}]}),
            json!({"type": "STRING"}),
            json!({"type": []}),
            json!({"type": ["string", "foo"]}),
            json!({"$id": "z", "$ref": "#/$defs/c"}),
            json!({"type": "string", "minLength": "2"}),
            json!({"type": "string", "maxLength": 5_000_000_000_u64}),
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            json!({"type": "string", "pattern": 2}),
            json!({"type": "string", "pattern": "^(?=a)"}),
            json!(["string"]),
            json!(false),
        ] {
            assert!(text(&schema, &root).is_err(), "{schema}");
        }
        for schema in [
            json!({"$ref": "#/$defs/c", "description": "d"}),
            json!({"type": "string", "enum": ["Paris"], "default": "Paris", "x-order": 1}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "t"}),
        ] {
            assert!(text(&schema, &root).is_ok(), "{schema}");
        }
    }

    #[test]
    fn one_of_texts_is_taken_where_no_text_is_of_two() {
        let root = json!({"$defs": {"c": {"const": "c"}}});
        for apart in [
            json!([{"const": "a"}, {"enum": ["b", "d"]}, {"$ref": "#/$defs/c"}]),
            json!([{"type": "string", "pattern": "^x"}, {"type": "null"}]),
            json!([{"type": "string"}, {"type": "integer"}, {"type": "array"}]),
        ] {
            let schema = json!({"oneOf": apart});
            assert!(text(&schema, &root).is_ok(), "{schema}");
        }
        for overlapping in [
            json!([{"const": "a"}, {"enum": ["b", "a"]}]),
            json!([{"type": "string"}, {"const": "a"}]),
            json!([{"type": "string", "pattern": "^x"}, {"type": "string", "maxLength": 3}]),
            json!([{"type": ["string", "null"]}, {"type": ["integer", "null"]}]),
            json!([{"type": "string"}, {"$ref": "#/$defs/c"}]),
            json!([{"type": "string"}, {"minimum": 3}]),
            json!([{"type": "string"}, {"type": "integer"}, {"type": "number"}]),
            json!([{"type": "string"}, {"anyOf": [{}, {"type": "integer"}]}]),
        ] {
            let schema = json!({"oneOf": overlapping});
            assert!(text(&schema, &root).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_value_of_a_type_that_is_not_allowed_is_no_choice() {
        assert_eq!(
            fixed(json!({"type": "string", "enum": ["a", null, 1]})),
            [r#""a""#]
        );
        assert_eq!(
            fixed(json!({"enum": ["a", null, 1, [2]]})),
            [r#""a""#, r#""null""#, r#""1""#, r#""[2]""#]
        );
        let never_null =
            json!({"type": "string", "anyOf": [{"enum": ["a", null]}, {"type": "null"}]});
        assert_eq!(fixed(never_null), [r#""a""#]);
        let taken_for_another = json!({"enum": ["1", 2]});
        assert!(text(&taken_for_another, &json!({})).is_err());
    }

    /// A value that is no text is written as what it is, and no text looks like it.
    #[test]
    fn a_union_keeps_all_its_branches() {
        let found = |schema: Value| {
            let found = text(&schema, &json!({})).unwrap();
            let free = !found.free.is_empty();
            (
                free,
                found.fixed.len(),
                found.json.names(),
                found.lookalikes.names(),
            )
        };
        let none: Vec<&str> = Vec::new();
        for (schema, expected) in [
            (
                json!({"type": ["string", "integer", "null"]}),
                (true, 2, none.clone(), none.clone()),
            ),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 3}]}),
                (true, 0, vec!["array"], vec!["array"]),
            ),
            (
                json!({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 3}]}),
                (false, 1, vec!["integer"], vec!["integer"]),
            ),
            (
                json!({"anyOf": [{"type": "string", "minLength": 1}, {"const": 5},
                    {"type": "boolean"}]}),
                (true, 3, none.clone(), vec!["integer"]),
            ),
        ] {
            assert_eq!(found(schema.clone()), expected, "{schema}");
        }
    }

    /// Patterns that are searched for and those that are matched whole are found in the same texts.
    #[test]
    fn anchors_stand_at_the_ends_of_what_is_found() {
        let texts = [
            "", "a", "b", "c", "ab", "ba", "bc", "abc", "cab", "a$", "xa,", ",a", "a\\",
        ];
        for pattern in [
            "a|b",
            "^a|b$",
            "^a$|^$|[|$]",
            r"a\$|^(b|c)$",
            "(^a|b)c",
            "(?:^|b)a",
            "(a$|b)",
            "^(a$|bc$)",
            "((^a)|b)$",
            "(^|,)a(,|$)",
            "^(?:a|^b)$",
            "(a|b)c|(c|^)a(b$|$)",
            "(a)*(b|$)",
            r"a\\$",
            "^",
            "(b|$)",
        ] {
            let whole = whole_match(pattern).unwrap_or_else(|| panic!("{pattern}"));
            let found = regex::Regex::new(pattern).unwrap();
            let matched = regex::Regex::new(&format!("^(?:{whole})$")).unwrap();
            for text in texts {
                assert_eq!(
                    matched.is_match(text),
                    found.is_match(text),
                    "{pattern}: {text}"
                );
            }
        }
        for pattern in ["a^|b", "(a^)b", "a($b)", "(^a)*b", "(?i:^a)b", "a(^|b)"] {
            assert_eq!(whole_match(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn a_value_that_holds_the_closing_tag_is_refused() {
        for schema in [
            json!({"const": "a</p>b"}),
            json!({"enum": ["a", "</p>"]}),
            json!({"anyOf": [{"const": "a"}, {"enum": ["</p>"]}]}),
        ] {
            let problem = text(&schema, &json!({})).unwrap_err();
            assert!(problem.contains("</p>"), "{problem}");
        }
        let apart = json!({"type": "string", "enum": ["</p", "<p>"]});
        assert!(text(&apart, &json!({})).is_ok());
        let never_text = json!({"type": "string", "enum": ["a", ["</p>"]]});
        assert!(text(&never_text, &json!({})).is_ok());
    }

    #[test]
    fn schemas_that_refer_to_each_other_end() {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{}", at % 30)});
        let one = |at: usize| {
            let options = [next(at + 1), next(at + 1), json!({"const": at.to_string()})];
            (at.to_string(), json!({"anyOf": options}))
        };
        let root = json!({"$defs": (0..30).map(one).collect::<Value>()});
        assert!(text(&next(29), &root).is_err());
        let root = json!({"$defs": {"0": {"anyOf": [next(0), {"const": "a"}]}}});
        assert!(text(&next(0), &root).is_err());
        let shared = json!({"anyOf": [next(0), {"const": "a"}, next(0)]});
        let root = json!({"$defs": {"0": {"const": "b"}}});
        assert_eq!(text(&shared, &root).unwrap().fixed, [r#""b""#, r#""a""#]);
    }
}
