//! Limits on schemas with references, which can make much work of a short text.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::tools::Root;

use super::GrammarError;
use super::limits::{COMBINATIONS_MAX, LEVELS_MAX, LEVELS_TOGETHER_MAX, at_most};

/// # Errors
/// Names the limit that a document exceeds, along its references.
pub fn check(document: &Value) -> Result<(), GrammarError> {
    let root = Root::new(document);
    let mut targets = HashSet::new();
    collect(document, &root, &mut targets);
    let mut together = 0;
    let height = height(document, &targets, &mut together);
    let (levels, what) = (height + together, "levels in all that it refers to");
    at_most(levels, LEVELS_TOGETHER_MAX, what)?;
    let mut cost = ReferenceCost {
        root,
        known: HashMap::new(),
    };
    cost.of(document, 0).map(|_| ())
}

/// Adds the addresses of all values in a document that references lead to.
fn collect(value: &Value, root: &Root<'_>, targets: &mut HashSet<*const Value>) {
    if let Some(target) = value["$ref"].as_str().and_then(|name| root.target(name)) {
        targets.insert(target);
    }
    children(value).for_each(|(_, child)| collect(child, root, targets));
}

/// Depth of objects and lists in each other. `together` becomes the sum of the depths of all
/// targets of references, since llguidance may recurse through each target once.
fn height(value: &Value, targets: &HashSet<*const Value>, together: &mut usize) -> usize {
    let inner = children(value).map(|(_, child)| height(child, targets, together));
    let height = 1 + inner.max().unwrap_or(0);
    if targets.contains(&std::ptr::from_ref(value)) {
        *together += height;
    }
    height
}

/// Members of an object by name, or items of a list, with empty names.
fn children(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let members = value.as_object().into_iter().flatten();
    let items = value.as_array().into_iter().flatten();
    let members = members.map(|(name, value)| (name.as_str(), value));
    members.chain(items.map(|item| ("", item)))
}

/// Counts over all values below a value.
#[derive(Clone, Copy)]
struct Below {
    levels: usize,
    /// Number of ways to choose among alternatives, in the value or in one of its parts.
    ways: usize,
}

const NOTHING: Below = Below { levels: 0, ways: 1 };

struct ReferenceCost<'v> {
    root: Root<'v>,
    /// Counts of the values read so far, by address. A value that is still being read has `NOTHING`
    /// here, so that a schema with references to itself is counted once.
    known: HashMap<*const Value, Below>,
}

impl<'v> ReferenceCost<'v> {
    /// Counts below a value. Each object counts as a schema, which is too strict.
    fn of(&mut self, value: &'v Value, depth: usize) -> Result<Below, GrammarError> {
        at_most(depth, LEVELS_MAX, "levels along its references")?;
        let address = std::ptr::from_ref(value);
        if let Some(known) = self.known.get(&address) {
            return Ok(*known);
        }
        self.known.insert(address, NOTHING);
        let below = self.read(value, depth)?;
        let along = depth + below.levels;
        at_most(along, LEVELS_MAX, "levels along its references")?;
        self.known.insert(address, below);
        Ok(below)
    }

    fn read(&mut self, value: &'v Value, depth: usize) -> Result<Below, GrammarError> {
        let mut levels = 0;
        // Factors for alternatives that apply at once, and the largest product of separate parts.
        let (mut factors, mut part) = (Vec::new(), 1);
        let target = value["$ref"].as_str();
        if let Some(target) = target.and_then(|name| self.root.target(name)) {
            let below = self.of(target, depth + 1)?;
            levels = below.levels;
            factors.push(below.ways);
        }
        for (name, child) in children(value) {
            let below = self.of(child, depth + 1)?;
            // Definitions are counted at the references to them.
            if matches!(name, "$defs" | "definitions") {
                continue;
            }
            levels = levels.max(below.levels);
            let each = child.as_array().into_iter().flatten();
            // The items were counted above, so the counts are known.
            let ways: Vec<usize> = each
                .map(|item| self.known.get(&std::ptr::from_ref(item)))
                .map(|known| known.map_or(1, |below| below.ways))
                .collect();
            match name {
                "anyOf" | "oneOf" => {
                    factors.push(ways.into_iter().fold(0, usize::saturating_add).max(1));
                }
                "allOf" => factors.extend(ways),
                _ => part = part.max(below.ways),
            }
        }
        factors.push(part);
        let ways = factors.iter().copied().fold(1, usize::saturating_mul);
        if factors.iter().filter(|ways| **ways > 1).count() > 1 {
            at_most(ways, COMBINATIONS_MAX, "combinations of alternatives")?;
        }
        let levels = levels + 1;
        Ok(Below { levels, ways })
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Definitions of which each leads to the next by `link`.
    pub fn chain(count: usize, link: impl Fn(Value) -> Value) -> Value {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{at}")});
        let one = |at: usize| (at.to_string(), link(next(at + 1)));
        let mut definitions: serde_json::Map<String, Value> = (0..count).map(one).collect();
        definitions.insert(count.to_string(), json!({"type": "integer"}));
        json!({"$defs": definitions, "$ref": "#/$defs/0"})
    }

    #[test]
    fn levels_are_counted_along_references() {
        let links: [fn(Value) -> Value; 4] = [
            |next| json!({"type": "array", "items": next}),
            |next| json!({"type": "object", "properties": {"a": next}}),
            |next| json!({"anyOf": [next, {"type": "null"}]}),
            |next| json!({"allOf": [next]}),
        ];
        for link in links {
            check(&chain(LEVELS_MAX / 8, link)).unwrap();
            for count in [LEVELS_MAX, 8 * LEVELS_MAX] {
                let error = check(&chain(count, link)).unwrap_err();
                assert!(error.0.contains("levels"), "{error}");
            }
        }
    }

    #[test]
    fn what_leads_back_to_itself_ends() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"anyOf": [{"$ref": "#"}, {"items": {"$ref": "#/anyOf/1"}}]}),
            json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        ] {
            assert!(check(&schema).is_ok(), "{schema}");
        }
    }

    #[test]
    fn alternatives_that_hold_together_multiply() {
        let either = |count: usize| json!({"anyOf": vec![json!({"type": "string"}); count]});
        let all = |parts: Vec<Value>| json!({"allOf": parts});
        assert!(check(&all(vec![either(4); 3])).is_ok());
        for bomb in [
            all(vec![either(4); 7]),
            all(vec![either(30); 3]),
            json!({"anyOf": [either(20)], "oneOf": [either(20)]}),
            json!({"$ref": "#/$defs/a", "allOf": [either(20)], "$defs": {"a": either(20)}}),
            all(vec![json!({"properties": {"a": either(20)}}); 2]),
        ] {
            let error = check(&bomb).unwrap_err();
            assert!(error.0.contains("combinations"), "{bomb}: {error}");
        }
        // Unions inside each other are no conjunction.
        let nested = json!({"anyOf": vec![json!({"properties": {"a": either(30)}}); 30]});
        assert!(check(&json!({"properties": {"a": nested, "b": nested}})).is_ok());
    }
}
