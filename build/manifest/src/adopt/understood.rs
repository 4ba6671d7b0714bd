//! A configuration as a target: facts read from it, rules checked on the facts, and statements that
//! would change answers but are not understood.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value;

use super::draft::floats;
use super::words::{Words, shown};
use super::{Open, Published, model, noted};
use crate::check::model_problems;
use crate::config::config_facts;
use crate::error::ManifestError;
use crate::facts::{FAMILY, Fact, contradiction, unknown_maths};
use crate::params;
use crate::schema::model::{Family, Form};
use crate::target::Target;

/// Key under which problems of formats are reported.
const FORMAT: &str = "format";

/// The model of a configuration as a CPU target whose matrices are all floats.
///
/// # Errors
/// Every fact that the configuration lacks or states wrong.
pub(super) fn understood(
    root: &Path,
    published: &Published,
    config: &Value,
    predicts: bool,
) -> Result<Target, Vec<ManifestError>> {
    let form = published.form();
    let usual = match form {
        Form::Transformers => Cow::Borrowed(config),
        Form::Mistral => Cow::Owned(params::usual(config)),
    };
    let mut words = words(published, &usual);
    let Ok(family) = model::family(&mut words) else {
        return Err(words.problems);
    };
    let read = model::model(&mut words, family, published.name, predicts);
    let target = match read {
        Ok(model) => noted(floats(root, published, model), &mut words.problems),
        Err(_) => None,
    };
    let Some(target) = target else {
        let dense = model::dense(&mut words, family.traits()).unwrap_or_default();
        let more = contradicted(&words, family, &family.traits().facts(&dense));
        return Err([words.problems, more].concat());
    };
    let words = Words { config, ..words };
    let mut facts = config_facts(&target);
    facts.retain(|fact| fact.key != FORMAT);
    let broken = model_problems(&target).into_iter();
    let broken: Vec<_> = broken
        .map(|problem| located(problem, &words, &facts))
        .collect();
    let more = contradicted(&words, family, &facts);
    let problems = [words.problems, broken, more].concat();
    match problems.is_empty() {
        true => Ok(target),
        false => Err(problems),
    }
}

fn words<'a>(published: &Published<'a>, config: &'a Value) -> Words<'a> {
    Words {
        file: published.config.path,
        config,
        form: published.form(),
        problems: Vec::new(),
    }
}

/// Statements of the configuration about formats that contradict the target's leaf.
pub(super) fn other_formats(
    published: &Published,
    config: &Value,
    target: &Target,
) -> Vec<ManifestError> {
    let mut facts = config_facts(target);
    facts.retain(|fact| fact.key == FORMAT);
    contradicted(&words(published, config), target.model.family, &facts)
}

/// Statements of the configuration about the model's maths that no fact compares.
pub(super) fn unknown(published: &Published, config: &Value, target: &Target) -> Vec<Open> {
    let found = unknown_maths(config, &config_facts(target)).into_iter();
    let open = found.map(|key| Open {
        file: published.config.path.to_string(),
        key,
        note:
            "is not known here, and by its name it may change what the model computes; look into \
               the model's code"
                .to_string(),
    });
    open.collect()
}

/// The problem of a rule, moved to the place in the configuration that states the fact of its key.
fn located(problem: ManifestError, words: &Words, facts: &[Fact]) -> ManifestError {
    let facts = facts.iter().filter(|fact| fact.key == problem.key);
    let mut places = facts.flat_map(Fact::places);
    match places.find_map(|place| words.stated(place)) {
        None => problem,
        Some((key, stated)) => ManifestError {
            file: words.file.to_string(),
            key,
            value: shown(stated),
            rule: match problem.value.parse().ok() == stated.as_f64() {
                true => problem.rule,
                false => format!(
                    "gives {} = {}: {}",
                    problem.key, problem.value, problem.rule
                ),
            },
        },
    }
}

/// Every fact that a configuration states differently.
fn contradicted(words: &Words, family: Family, facts: &[Fact]) -> Vec<ManifestError> {
    // Facts with a key were read from the configuration, so `config.json` need state only the
    // family's facts; `params.json` must state all, as some are in that file alone.
    let all = words.form == Form::Mistral;
    let alone = |fact: &Fact| Fact {
        required: fact.required && (all || fact.key == FAMILY),
        ..fact.clone()
    };
    let found = facts.iter();
    let found = found.filter_map(|fact| contradiction(words.config, &[alone(fact)]));
    let problem = found.map(|found| {
        let has = match found.key {
            FAMILY => format!("the layer math of family = {:?}", family.traits().name),
            key => key.to_string(),
        };
        let rule = format!("{}; {has} has {}", found.stated, shown(found.right));
        ManifestError::file(words.file, rule)
    });
    problem.collect()
}

/// Ids of the tokens that end a reply, as far as a configuration states them.
pub(super) fn stops(config: &Value) -> Vec<u64> {
    let stated = ["/eos_token_id", "/text_config/eos_token_id"];
    let mut stated = stated.iter().filter_map(|pointer| config.pointer(pointer));
    match stated.find(|ids| !ids.is_null()) {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
        Some(id) => id.as_u64().into_iter().collect(),
        None => Vec::new(),
    }
}
