//! Facts of a checkpoint's configuration, and their comparison: the build compares the
//! configuration beside a manifest; the server, which is compiled with this file too, the
//! configuration beside the weights.

use std::borrow::Cow;

use serde_json::Value;

/// Key of facts that follow from the family and that manifests have no key for.
pub const FAMILY: &str = "family";

/// Values that a configuration may state in one place.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Key of the manifest that states the fact, or from which it follows.
    pub key: &'static str,
    /// JSON pointer; `*` stands for each member of an object.
    pub pointer: &'static str,
    /// Pointers where older configurations state the fact.
    pub elsewhere: &'static [&'static str],
    /// JSON array of right values, the usual one first.
    pub right: Cow<'static, str>,
    /// Whether a configuration must state the fact: no tensor's shape shows the value, and there is
    /// no default to trust.
    pub required: bool,
    /// Pointer of a switch: where it is `false`, transformers ignores the fact's value.
    pub switch: Option<&'static str>,
}

impl Fact {
    /// Every pointer where the fact may be stated, the usual one first.
    pub fn places(&self) -> impl Iterator<Item = &'static str> {
        [self.pointer]
            .into_iter()
            .chain(self.elsewhere.iter().copied())
    }
}

/// A fact that a configuration states differently, in words.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Key of the manifest, as in [`Fact`].
    pub key: &'static str,
    /// `states VALUE at POINTER`, or `does not state POINTER`.
    pub stated: String,
    /// The usual right value.
    pub right: String,
}

/// Beginnings of the names of a vision tower's tensors, which text generation does not use.
const VISION: [&str; 8] = [
    "model.visual.",
    "visual.",
    "model.vision_tower.",
    "model.embed_vision.",
    "vision_encoder.",
    "vision_language_adapter.",
    "patch_merger.",
    "pre_mm_projector_norm.",
];

/// Whether a tensor of this name belongs to a vision tower.
pub fn is_vision(name: &str) -> bool {
    VISION.iter().any(|prefix| name.starts_with(prefix))
}

/// Key under which a multimodal configuration describes its text model.
pub const TEXT: &str = "text_config";

/// The first of `facts` that `config` contradicts, as a whole or in its description of the text
/// model. A null counts as not stated.
pub fn contradiction(config: &Value, facts: &[Fact]) -> Option<Contradiction> {
    facts.iter().find_map(|fact| contradicted(config, fact))
}

/// Every value that `config` states at some pointers, each with its pointer, `*` resolved.
fn stated(config: &Value, pointers: impl Iterator<Item = &'static str>) -> Vec<(String, &Value)> {
    let mut stated = Vec::new();
    for pointer in pointers {
        collect(config, pointer, String::new(), &mut stated);
        if let Some(text) = config.get(TEXT) {
            collect(text, pointer, format!("/{TEXT}"), &mut stated);
        }
    }
    stated
}

fn contradicted(config: &Value, fact: &Fact) -> Option<Contradiction> {
    let switches = stated(config, fact.switch.into_iter());
    if switches
        .iter()
        .any(|(_, switch)| **switch == Value::Bool(false))
    {
        return None;
    }
    let right: Vec<Value> = serde_json::from_str(&fact.right).unwrap_or_default();
    let found = stated(config, fact.places());
    let is_right = |value: &Value| right.iter().any(|right| same(right, value));
    let wrong = found.iter().find(|(_, value)| !is_right(value));
    let stated = match wrong {
        Some((pointer, value)) => format!("states {value} at {pointer}"),
        None if fact.required && found.is_empty() => {
            format!("does not state {}", fact.pointer)
        }
        None => return None,
    };
    let usual = right.first().filter(|value| !value.is_null());
    Some(Contradiction {
        key: fact.key,
        stated,
        right: usual.map_or_else(|| "none".to_string(), Value::to_string),
    })
}

/// Parts of the names of keys that change a model's maths, in the configurations of many families.
const MATHS: [&str; 10] = [
    "scale",
    "scaling",
    "multiplier",
    "no_rope",
    "nope",
    "causal",
    "bidirectional",
    "softcap",
    "clip",
    "attn_temperature",
];

/// Suffix of keys whose values describe something beside the text model: a tower for images, or how
/// weights are stored.
const DESCRIPTION: &str = "_config";

/// Keys whose names suggest that they change a model's maths, and that no fact is about, as
/// `POINTER = VALUE`: their effect is unknown, so nothing compares them.
pub fn unknown_maths(config: &Value, facts: &[Fact]) -> Vec<String> {
    let mut found = Vec::new();
    unknown_in(config, "", facts, &mut found);
    found
}

fn unknown_in(part: &Value, path: &str, facts: &[Fact], found: &mut Vec<String>) {
    let members = part.as_object().into_iter().flatten();
    for (key, value) in members.filter(|(_, value)| !value.is_null()) {
        let (pointer, name) = (format!("{path}/{key}"), key.to_lowercase());
        if MATHS.iter().any(|part| name.contains(part)) && !is_known(&pointer, facts) {
            found.push(format!("{pointer} = {value}"));
        } else if key == TEXT || !name.ends_with(DESCRIPTION) {
            unknown_in(value, &pointer, facts, found);
        }
    }
}

/// Whether a fact stands at a pointer, or inside of the value there.
fn is_known(pointer: &str, facts: &[Fact]) -> bool {
    let inner = pointer.strip_prefix(&format!("/{TEXT}"));
    let pointer = inner.unwrap_or(pointer);
    let inside = |place: &str| {
        let rest = place.strip_prefix(pointer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    facts.iter().flat_map(Fact::places).any(inside)
}

/// Adds the values that `config` states at `pointer`, each with its whole path.
fn collect<'a>(config: &'a Value, pointer: &str, path: String, out: &mut Vec<(String, &'a Value)>) {
    let Some(rest) = pointer.strip_prefix('/') else {
        if !config.is_null() {
            out.push((path, config));
        }
        return;
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let members = config.as_object().into_iter().flatten();
    for (key, value) in members.filter(|(key, _)| name == "*" || *key == name) {
        collect(value, rest, format!("{path}/{key}"), out);
    }
}

/// Equality of values, of numbers however they are written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}
