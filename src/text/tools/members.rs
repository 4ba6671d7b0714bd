//! The members of an object that its schema describes: for the reader of calls, which needs types
//! of arguments, and for the grammar of calls, which must agree with that reader.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::schemas::{Root, SCHEMA_DEPTH_MAX, Types};

/// Most alternatives of an object's members.
const ALTERNATIVES_MAX: usize = 16;
/// Most schemas that hold together in one alternative.
const LAYERS_MAX: usize = 16;
/// Schemas that are read for the members of one object.
const SCHEMAS_MAX: usize = 256;
/// Expressions of names in one schema that are read.
const PATTERNS_MAX: usize = 16;
/// Bytes that an expression of names may take when compiled.
const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// Members that one schema of an object states; `M` is the schema of a member, or its types.
#[derive(Clone, Debug)]
pub struct Layer<M> {
    /// The schema that states these members.
    pub schema: M,
    /// Members by name, in the order of the schema.
    named: Vec<(String, M)>,
    /// Index of each name in `named`.
    indices: HashMap<String, usize>,
    /// Members by an expression that their names match.
    patterns: Vec<(Regex, M)>,
    /// Schema of the members that neither `named` nor `patterns` describes, if there is one.
    others: Option<M>,
    required: Vec<String>,
    /// Whether members that the schema does not describe are forbidden.
    closed: bool,
}

/// The members of an object, as alternatives of which one applies. An alternative is a list of
/// layers that all apply; layers are shared by alternatives.
#[derive(Clone, Debug)]
pub struct Members<M> {
    pub alternatives: Vec<Vec<Arc<Layer<M>>>>,
    /// Whether no alternative and no layer was left out because of the limits.
    pub exact: bool,
}

impl<M> Default for Members<M> {
    fn default() -> Members<M> {
        Members {
            alternatives: vec![Vec::new()],
            exact: true,
        }
    }
}

/// A member of an alternative.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<M> {
    pub name: String,
    /// Schemas, or types, that the layers state for the member.
    pub said: Vec<M>,
    pub required: bool,
    /// Whether a layer forbids the member.
    pub forbidden: bool,
}

impl<'v> Members<&'v Value> {
    /// The members that `schema`, in the document `root`, describes: directly, by references and by
    /// `allOf`, `anyOf` and `oneOf`.
    pub fn of(root: &Root<'v>, schema: &'v Value) -> Members<&'v Value> {
        let mut reader = Reader {
            root,
            left: SCHEMAS_MAX,
            layers: HashMap::new(),
        };
        reader.read(schema, 0)
    }

    /// The members with their types in place of their schemas.
    pub fn typed(&self, root: &Root<'v>) -> Members<Types> {
        let mut known = HashMap::new();
        let mut typed = |layer: &Arc<Layer<&'v Value>>| {
            let typed = known.entry(Arc::as_ptr(layer));
            typed.or_insert_with(|| Arc::new(layer.typed(root))).clone()
        };
        let alternatives = self.alternatives.iter();
        let alternatives = alternatives.map(|layers| layers.iter().map(&mut typed).collect());
        Members {
            alternatives: alternatives.collect(),
            exact: self.exact,
        }
    }
}

/// Reader of a schema's members.
struct Reader<'r, 'v> {
    root: &'r Root<'v>,
    /// Schemas that may still be read.
    left: usize,
    /// Layers by the address of their schema, so that each schema is read once.
    layers: HashMap<*const Value, Arc<Layer<&'v Value>>>,
}

impl<'v> Reader<'_, 'v> {
    fn read(&mut self, schema: &'v Value, depth: usize) -> Members<&'v Value> {
        let mut members = Members::default();
        if depth > SCHEMA_DEPTH_MAX || self.left == 0 {
            members.exact = false;
            return members;
        }
        self.left -= 1;
        let layer = self.layers.entry(std::ptr::from_ref(schema));
        members.add(layer.or_insert_with(|| Arc::new(Layer::of(schema))));
        let target = schema["$ref"].as_str();
        if let Some(target) = target.and_then(|name| self.root.target(name)) {
            members.meet(&self.read(target, depth + 1));
        }
        let parts = |name: &str| schema[name].as_array().map(Vec::as_slice);
        for part in parts("allOf").unwrap_or_default() {
            members.meet(&self.read(part, depth + 1));
        }
        for options in [parts("anyOf"), parts("oneOf")].into_iter().flatten() {
            let mut either = Members {
                alternatives: Vec::new(),
                exact: true,
            };
            for option in options {
                either.join(self.read(option, depth + 1));
            }
            members.meet(&either);
        }
        members
    }
}

impl Members<Types> {
    /// Types of the member `name`; None if no schema states anything about it.
    pub fn types(&self, name: &str) -> Option<Types> {
        let alternatives = self.alternatives.iter();
        let types = alternatives.filter_map(|layers| {
            let said = layers.iter().flat_map(|layer| layer.said(name));
            // If no type fits all schemas, the first statement counts.
            said.reduce(|types, more| match (types.unsaid(), more.unsaid()) {
                (true, _) => more,
                (_, true) => types,
                _ => types.and(more).said().unwrap_or(types),
            })
        });
        types.reduce(|types, more| match types.unsaid() || more.unsaid() {
            true => Types::default(),
            false => types.or(more),
        })
    }
}

impl<M: Clone> Members<M> {
    fn add(&mut self, layer: &Arc<Layer<M>>) {
        for layers in &mut self.alternatives {
            layers.push(layer.clone());
        }
    }

    /// Combines each alternative of `self` with each of `other`, so that both apply.
    fn meet(&mut self, other: &Members<M>) {
        self.exact &= other.exact;
        let mut all = Vec::new();
        for (own, more) in self
            .alternatives
            .iter()
            .flat_map(|own| other.alternatives.iter().map(move |more| (own, more)))
        {
            let mut layers = [own.as_slice(), more.as_slice()].concat();
            self.exact &= layers.len() <= LAYERS_MAX && all.len() < ALTERNATIVES_MAX;
            layers.truncate(LAYERS_MAX);
            if all.len() < ALTERNATIVES_MAX {
                all.push(layers);
            }
        }
        self.alternatives = all;
    }

    /// Adds the alternatives of `other` to those of `self`.
    fn join(&mut self, other: Members<M>) {
        self.exact &= other.exact;
        self.alternatives.extend(other.alternatives);
        self.exact &= self.alternatives.len() <= ALTERNATIVES_MAX;
        self.alternatives.truncate(ALTERNATIVES_MAX);
    }

    /// Names that some alternative describes or requires, in order.
    pub fn names(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for layers in &self.alternatives {
            add_names(layers, &mut found);
        }
        found
    }

    /// Members that an alternative describes by name or requires, in order.
    pub fn members(layers: &[Arc<Layer<M>>]) -> Vec<Member<M>> {
        let required: HashSet<&String> = layers.iter().flat_map(|layer| &layer.required).collect();
        let mut names = Vec::new();
        add_names(layers, &mut names);
        let member = |name: String| Member {
            said: layers.iter().flat_map(|layer| layer.said(&name)).collect(),
            required: required.contains(&name),
            forbidden: layers.iter().any(|layer| layer.forbids(&name)),
            name,
        };
        names.into_iter().map(member).collect()
    }
}

fn add_names<M: Clone>(layers: &[Arc<Layer<M>>], found: &mut Vec<String>) {
    let named = layers.iter().flat_map(|layer| &layer.named);
    let required = layers.iter().flat_map(|layer| &layer.required);
    let named = named.map(|(name, _)| name).chain(required);
    let mut known: HashSet<String> = found.iter().cloned().collect();
    for name in named {
        if known.insert(name.clone()) {
            found.push(name.clone());
        }
    }
}

impl<'v> Layer<&'v Value> {
    fn of(schema: &'v Value) -> Layer<&'v Value> {
        let members = |name: &str| schema[name].as_object().into_iter().flatten();
        let named = members("properties").map(|(name, schema)| (name.clone(), schema));
        let patterns = members("patternProperties").take(PATTERNS_MAX);
        let patterns = patterns.filter_map(|(pattern, schema)| {
            let mut builder = RegexBuilder::new(pattern);
            let regex = builder.size_limit(PATTERN_BYTES_MAX).build().ok()?;
            Some((regex, schema))
        });
        let required = schema["required"].as_array().into_iter().flatten();
        let required = required.filter_map(Value::as_str);
        let names = members("properties").map(|(name, _)| name.clone());
        let others = schema.get("additionalProperties");
        Layer {
            schema,
            named: named.collect(),
            indices: names.zip(0..).collect(),
            patterns: patterns.collect(),
            others: others.filter(|others| others.is_object()),
            required: required.map(str::to_string).collect(),
            closed: others == Some(&Value::Bool(false)),
        }
    }

    fn typed(&self, root: &Root<'v>) -> Layer<Types> {
        let typed = |schema: &'v Value| root.types(schema);
        let named = self.named.iter();
        let named = named.map(|(name, schema)| (name.clone(), typed(schema)));
        let patterns = self.patterns.iter();
        let patterns = patterns.map(|(name, schema)| (name.clone(), typed(schema)));
        Layer {
            schema: typed(self.schema),
            named: named.collect(),
            indices: self.indices.clone(),
            patterns: patterns.collect(),
            others: self.others.map(typed),
            required: self.required.clone(),
            closed: self.closed,
        }
    }
}

impl<M: Clone> Layer<M> {
    /// Schemas, or types, that the layer states for the member `name`.
    fn said(&self, name: &str) -> Vec<M> {
        let named = self.indices.get(name).map(|at| self.named[*at].1.clone());
        let patterns = self.patterns.iter();
        let patterns = patterns.filter(|(pattern, _)| pattern.is_match(name));
        let patterns = patterns.map(|(_, said)| said.clone());
        let said: Vec<M> = named.into_iter().chain(patterns).collect();
        match said.is_empty() {
            true => self.others.clone().into_iter().collect(),
            false => said,
        }
    }

    fn forbids(&self, name: &str) -> bool {
        self.closed && self.said(name).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn types(schema: &Value, name: &str) -> Option<Vec<&'static str>> {
        let root = Root::new(schema);
        let members = Members::of(&root, schema).typed(&root);
        members.types(name).map(Types::names)
    }

    #[test]
    fn a_member_is_typed_wherever_the_schema_speaks_of_it() {
        let integer = json!({"type": "integer"});
        let a = json!({"properties": {"a": integer}});
        for schema in [
            a.clone(),
            json!({"additionalProperties": integer}),
            json!({"patternProperties": {"^a": integer},
                "additionalProperties": {"type": "string"}}),
            json!({"allOf": [{"required": ["a"]}, a]}),
            json!({"anyOf": [a, {"properties": {"b": {}}}]}),
            json!({"oneOf": [{"allOf": [a]}]}),
            json!({"$defs": {"d": a}, "$ref": "#/$defs/d"}),
            json!({"$defs": {"d": a}, "allOf": [{"$ref": "#/$defs/d"}]}),
            json!({"properties": {"a": {"type": ["integer", "string"]}}, "allOf": [a]}),
        ] {
            assert_eq!(types(&schema, "a"), Some(vec!["integer"]), "{schema}");
        }
        assert_eq!(types(&a, "b"), None);
        assert_eq!(types(&json!({"properties": {"b": {}}}), "b"), Some(vec![]));
        let either = json!({"anyOf": [a, {"properties": {"a": {"type": "string"}}}]});
        assert_eq!(types(&either, "a"), Some(vec!["string", "integer"]));
    }

    #[test]
    fn alternatives_and_what_holds_together_are_told_apart() {
        let schema = json!({"properties": {"a": true}, "required": ["a"], "anyOf": [
            {"properties": {"b": {"type": "integer"}}, "required": ["b", "c"]},
            {"properties": {"a": {"type": "string"}}, "additionalProperties": false}],
            "additionalProperties": {"type": "null"}});
        let root = Root::new(&schema);
        let members = Members::of(&root, &schema);
        assert!(members.exact);
        let names = |at: usize| -> Vec<(String, usize, bool, bool)> {
            let found = Members::members(&members.alternatives[at]);
            let stated = |member: Member<&Value>| {
                (
                    member.name,
                    member.said.len(),
                    member.required,
                    member.forbidden,
                )
            };
            found.into_iter().map(stated).collect()
        };
        let stated = |name: &str, said, required| (name.to_string(), said, required, false);
        let first = [
            stated("a", 1, true),
            stated("b", 2, true),
            stated("c", 1, true),
        ];
        assert_eq!(names(0), first);
        assert_eq!(names(1), [stated("a", 2, true)]);
    }

    #[test]
    fn a_layer_of_many_alternatives_is_there_once() {
        let next = json!({"$ref": "#/$defs/wide"});
        let schema = json!({"$defs": {"wide": {"properties": {"a": {"type": "integer"}}}},
            "allOf": vec![next.clone(); 3], "anyOf": vec![next; ALTERNATIVES_MAX]});
        let root = Root::new(&schema);
        let members = Members::of(&root, &schema);
        let typed = members.typed(&root);
        assert_eq!(typed.alternatives.len(), ALTERNATIVES_MAX);
        let layers = typed.alternatives.iter().flatten().map(Arc::as_ptr);
        // The schema itself, what all refer to, and what refers to it.
        let different = 1 + 1 + 3 + ALTERNATIVES_MAX;
        assert_eq!(layers.collect::<HashSet<_>>().len(), different);
        assert_eq!(types(&schema, "a"), Some(vec!["integer"]));
    }

    /// Each refers to the next several times, or to itself.
    #[test]
    fn references_that_multiply_end() {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{}", at % 20)});
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let one = |at: usize| (at.to_string(), json!({keyword: vec![next(at + 1); 20]}));
            let mut schema = json!({"$defs": (0..20).map(one).collect::<Value>()});
            schema["$ref"] = json!("#/$defs/0");
            let root = Root::new(&schema);
            assert!(!Members::of(&root, &schema).exact, "{keyword}");
        }
    }
}
