//! Every fact of every model's manifest, left out and changed: none is idle.
//!
//! A fact is settled where a build without it, or with another value, is refused by its name. What
//! no rule and no configuration asks for is listed here, with the least that it does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use toml::Value;

use crate::check::{check, model_problems};
use crate::config::{config_checks, generation_checks};
use crate::facts::{Fact, contradiction};
use crate::schema::model::Model;
use crate::schema::parse;
use crate::target::{Target, leaves};
use crate::testing::{repository, root, usual};

/// Effect of leaving out or changing a fact of a manifest; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Refused by a message that names the key.
    Named,
    /// Refused by a rule on the fact and others, named by another key.
    Refused,
    /// Accepted: constants of the program differ.
    Compiled,
    /// A program that differs by the text of its manifest alone: a fact for people, or of how files
    /// are made.
    Shown,
    /// Accepted, and nothing differs.
    Idle,
}

use Fate::{Compiled, Refused, Shown};

/// Keys that may be absent, with the least that absence does. `*` stands for the name of a
/// quantisation.
const OPTIONAL: [(&str, Fate); 20] = [
    ("attention.yarn.truncate", Compiled),
    ("chat", Compiled),
    ("chat.tool_format", Compiled),
    ("checkpoint", Compiled),
    ("checkpoint.*", Compiled),
    ("checkpoint.*.form", Compiled),
    ("checkpoint.*.input_scales", Compiled),
    ("checkpoint.*.kv_scales", Shown),
    ("checkpoint.*.repository", Compiled),
    ("checkpoint.*.revision", Compiled),
    ("checkpoint.*.source", Shown),
    ("checkpoint.*.stacked_experts", Refused),
    ("checkpoint.*.tensor_bytes", Compiled),
    ("checkpoint.*.tensors", Shown),
    ("checkpoint.*.text_nll", Compiled),
    ("checkpoint.*.tied_head_stored", Refused),
    ("checkpoint.*.without_mtp", Refused),
    ("layers.feed_forward", Refused),
    ("mtp.draft_ids", Compiled),
    ("vision", Compiled),
];

/// Keys whose values no configuration states, with the least that another one does.
const UNSTATED: [(&str, Fate); 32] = [
    ("attention.yarn.truncate", Compiled),
    ("chat.added_tokens.first", Compiled),
    ("chat.added_tokens.texts", Compiled),
    ("chat.template", Compiled),
    ("chat.think_close", Refused),
    ("chat.think_open", Compiled),
    ("chat.thinking", Compiled),
    ("chat.tokenizer", Compiled),
    ("checkpoint.*.files", Compiled),
    ("checkpoint.*.files.bytes", Compiled),
    ("checkpoint.*.files.name", Compiled),
    ("checkpoint.*.files.sha256", Refused),
    ("checkpoint.*.input_scales", Compiled),
    ("checkpoint.*.kv_scales", Shown),
    ("checkpoint.*.repository", Compiled),
    ("checkpoint.*.revision", Compiled),
    ("checkpoint.*.source.parts", Shown),
    ("checkpoint.*.source.parts.member", Shown),
    ("checkpoint.*.source.parts.sha256", Shown),
    ("checkpoint.*.source.parts.wheel", Shown),
    ("checkpoint.*.stacked_experts", Refused),
    ("checkpoint.*.tensor_bytes", Refused),
    ("checkpoint.*.tensors", Refused),
    ("checkpoint.*.text_nll", Compiled),
    ("checkpoint.*.tied_head_stored", Refused),
    ("checkpoint.*.without_mtp", Refused),
    ("id", Compiled),
    ("layers.feed_forward", Refused),
    ("licence", Shown),
    ("title", Shown),
    ("vision.bytes", Compiled),
    ("vision.tensors", Compiled),
];

/// Path of a key through tables and arrays.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

type Path = Vec<Step>;

/// The dotted name, quantisations as `*` and members of arrays without a number.
fn name(path: &[Step]) -> String {
    let keys = path.iter().filter_map(|step| match step {
        Step::Key(key) => Some(key.as_str()),
        Step::Index(_) => None,
    });
    let mut keys: Vec<_> = keys.collect();
    if let ["checkpoint", quant, ..] = &mut keys[..] {
        *quant = "*";
    }
    keys.join(".")
}

/// Every key of a table, those of tables in it too. The first and the last member stand for an
/// array's.
fn paths(value: &Value, path: &Path, found: &mut Vec<Path>) {
    let mut below = |step: Step, value: &Value| {
        let mut path = path.clone();
        path.push(step);
        if matches!(path.last(), Some(Step::Key(_))) {
            found.push(path.clone());
        }
        paths(value, &path, found);
    };
    match value {
        Value::Table(table) => {
            let entries = table.iter();
            entries.for_each(|(key, value)| below(Step::Key(key.clone()), value));
        }
        Value::Array(members) => {
            let ends = BTreeSet::from([0, members.len().saturating_sub(1)]);
            let ends = ends
                .into_iter()
                .filter_map(|at| Some((at, members.get(at)?)));
            ends.for_each(|(at, value)| below(Step::Index(at), value));
        }
        _ => {}
    }
}

/// The value that holds the last step of `path`.
fn parent<'a>(model: &'a mut Value, path: &[Step]) -> &'a mut Value {
    let steps = path[..path.len() - 1].iter();
    steps.fold(model, |value, step| match step {
        Step::Key(key) => &mut value[key.as_str()],
        Step::Index(at) => &mut value[*at],
    })
}

fn last(path: &[Step]) -> &str {
    match path.last() {
        Some(Step::Key(key)) => key,
        _ => unreachable!("a path ends with a key"),
    }
}

/// The manifest without a key.
fn without(model: &Value, path: &[Step]) -> Option<Value> {
    let mut model = model.clone();
    let table = parent(&mut model, path).as_table_mut().unwrap();
    table.remove(last(path)).unwrap();
    Some(model)
}

/// The manifest with another value at a key; of a table, nothing.
fn changed(model: &Value, path: &[Step]) -> Option<Value> {
    let mut model = model.clone();
    let value = &mut parent(&mut model, path)[last(path)];
    match value {
        Value::Boolean(is) => *is = !*is,
        Value::Integer(number) => *number += 1,
        Value::Float(number) if *number == 0.0 => *number = 1.0,
        Value::Float(number) => *number *= 1.0 + 1.0 / 1024.0,
        Value::String(text) => text.push('x'),
        Value::Array(members) => drop(members.pop()?),
        Value::Table(_) | Value::Datetime(_) => return None,
    }
    Some(model)
}

/// A model as one of its targets takes it, and configurations that it is right for.
struct Subject {
    target: Target,
    /// Constants of its program, and the text of its manifest.
    constants: String,
    expanded: String,
    model: Value,
    config: Json,
    generation: Json,
}

/// Whether `key` is `name`, or in the table of that name.
fn is_in(key: &str, name: &str) -> bool {
    let rest = key.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a message names a key.
fn says(message: &str, name: &str) -> bool {
    let is_end = |letter: char| !(letter.is_alphanumeric() || "._".contains(letter));
    message.split(is_end).any(|word| is_in(word, name))
}

/// The program's constants, without the text of the manifest.
fn constants(target: &Target) -> String {
    let text = target.emit_rust(&[]) + &target.emit_cuda();
    text.replace(&target.expanded(), "")
}

impl Subject {
    /// The model of a leaf that reads a checkpoint as it was published.
    fn of(leaf: &str) -> Option<Subject> {
        let target = repository(leaf);
        let path = root().join(target.model_path("model.toml"));
        let text = std::fs::read_to_string(path).unwrap();
        let subject = Subject {
            model: toml::from_str(&text).unwrap(),
            config: usual(&config_checks(&target)),
            generation: usual(&generation_checks(&target.model)),
            constants: constants(&target),
            expanded: target.expanded(),
            target,
        };
        Some(subject).filter(|subject| subject.target.leaf.derive.is_none())
    }

    /// Name of the checkpoint that is read.
    fn checkpoint(&self) -> &str {
        let target = &self.target;
        target.leaf.checkpoint.as_ref().unwrap_or(&target.quant)
    }

    /// Every key but those of checkpoints that are not read.
    fn paths(&self) -> Vec<Path> {
        let mut found = Vec::new();
        paths(&self.model, &Vec::new(), &mut found);
        found.retain(|path| match &path[..] {
            [Step::Key(table), Step::Key(name), ..] if table == "checkpoint" => {
                name == self.checkpoint()
            }
            _ => true,
        });
        found
    }

    fn fate(&self, edited: &Value, path: &[Step]) -> Fate {
        let model: Model = match parse(&toml::to_string(edited).unwrap(), "model.toml", "") {
            Ok(model) => model,
            Err(error) if says(&error.rule, last(path)) => return Fate::Named,
            Err(_) => return Fate::Refused,
        };
        let other = Target {
            model,
            ..self.target.clone()
        };
        let name = name(path);
        let broken = model_problems(&other);
        if broken
            .iter()
            .any(|problem| says(&problem.to_string(), &name))
        {
            return Fate::Named;
        }
        match check(&other) {
            _ if broken.is_empty() && self.contradicts(&other, &name) => Fate::Named,
            Err(_) => Fate::Refused,
            Ok(()) if constants(&other) != self.constants => Fate::Compiled,
            Ok(()) if other.expanded() != self.expanded => Fate::Shown,
            Ok(()) => Fate::Idle,
        }
    }

    /// Whether configurations that are right for the model contradict facts of a name in the other
    /// one.
    fn contradicts(&self, other: &Target, name: &str) -> bool {
        let contradict = |mut facts: Vec<Fact>, config: &Json| {
            facts.retain(|fact| is_in(fact.key, name));
            contradiction(config, &facts).is_some()
        };
        contradict(config_checks(other), &self.config)
            || contradict(generation_checks(&other.model), &self.generation)
    }
}

/// Every model with each of its checkpoints, once.
fn subjects() -> Vec<Subject> {
    let mut seen = BTreeSet::new();
    let leaves = leaves(&root()).unwrap();
    let mut subjects: Vec<_> = leaves.iter().filter_map(|leaf| Subject::of(leaf)).collect();
    subjects.retain(|subject| {
        let model = subject.target.leaf.model.clone();
        seen.insert((model, subject.checkpoint().to_string()))
    });
    subjects
}

/// The worst fate of each key over all models when `edit` is made to it, but for those that are
/// always refused by name.
fn unnamed(edit: fn(&Value, &[Step]) -> Option<Value>) -> Vec<(String, Fate)> {
    let mut worst = BTreeMap::new();
    let mut edits = 0;
    for subject in subjects() {
        for path in subject.paths() {
            let Some(edited) = edit(&subject.model, &path) else {
                continue;
            };
            edits += 1;
            let fate = subject.fate(&edited, &path);
            let worst = worst.entry(name(&path)).or_insert(Fate::Named);
            *worst = fate.max(*worst);
        }
    }
    assert!(edits > 1000, "{edits}");
    worst.retain(|_, fate| *fate > Fate::Named);
    worst.into_iter().collect()
}

fn listed(facts: &[(&str, Fate)]) -> Vec<(String, Fate)> {
    let facts = facts.iter();
    facts
        .map(|(name, fate)| (name.to_string(), *fate))
        .collect()
}

#[test]
fn a_fact_that_is_left_out_is_missed_by_its_name_or_may_be_absent() {
    assert_eq!(unnamed(without), listed(&OPTIONAL));
}

#[test]
fn a_fact_that_changes_contradicts_a_configuration_or_changes_the_program() {
    assert_eq!(unnamed(changed), listed(&UNSTATED));
}
