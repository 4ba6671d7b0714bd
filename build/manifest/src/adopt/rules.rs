//! Format rules of a leaf from the formats that a checkpoint stores: few patterns, the last one for
//! every matrix that the other patterns leave.

use std::collections::{BTreeMap, BTreeSet};

use super::stored::Named;
use crate::formats::is_match;
use crate::table::{Format, Site};

/// A `[[format]]` table of a leaf.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub patterns: Vec<String>,
    /// Decoder layers of the rule; none: all layers, and tensors outside of layers.
    pub layers: Option<Vec<usize>>,
    pub format: Format,
}

/// Rules of a checkpoint with these matrices: for some layers, all layers, and all other matrices.
pub(super) fn rules(matrices: &[Named]) -> Vec<Rule> {
    let present = Format::ALL.into_iter().rev();
    let present = present.filter(|format| matrices.iter().any(|named| sites(named, *format) > 0));
    let choices = present.map(|last| {
        let names = matrices.iter();
        let usual = names.filter_map(|named| Some((named.name.as_str(), usual(named, last)?)));
        let mut rules = of_some_layers(matrices, last);
        rules.extend(of_all_layers(&usual.collect::<Vec<_>>(), last));
        rules
    });
    let patterns = |rules: &Vec<Rule>| rules.iter().map(|rule| rule.patterns.len()).sum::<usize>();
    choices.min_by_key(patterns).unwrap_or_default()
}

/// Number of sites at which a matrix has a format.
fn sites(named: &Named, format: Format) -> usize {
    named
        .at
        .iter()
        .filter(|(_, other)| *other == format)
        .count()
}

/// The format of a matrix where no rule names layers: `last` if any of its sites has it, else the
/// most frequent one.
fn usual(named: &Named, last: Format) -> Option<Format> {
    let most = Format::ALL
        .into_iter()
        .max_by_key(|format| sites(named, *format))?;
    let usual = if sites(named, last) > 0 { last } else { most };
    (sites(named, usual) > 0).then_some(usual)
}

/// Rules for matrices that have another format in some layers than in most.
fn of_some_layers(matrices: &[Named], last: Format) -> Vec<Rule> {
    let mut groups: BTreeMap<(Vec<usize>, usize), Vec<&str>> = BTreeMap::new();
    for named in matrices {
        for (at, format) in Format::ALL.into_iter().enumerate() {
            let layers = layers_of(named, format);
            if usual(named, last) != Some(format) && !layers.is_empty() {
                groups.entry((layers, at)).or_default().push(&named.name);
            }
        }
    }
    let rule = |((layers, at), names): ((Vec<usize>, usize), Vec<&str>)| {
        let stands = |named: &&Named| {
            let mut at = named.at.iter();
            at.any(|(site, _)| matches!(site, Site::Layer(layer) if layers.contains(layer)))
        };
        let all = matrices
            .iter()
            .filter(stands)
            .map(|named| named.name.as_str());
        Rule {
            patterns: cover(&names, &all.collect::<Vec<_>>()),
            layers: Some(layers),
            format: Format::ALL[at],
        }
    };
    groups.into_iter().map(rule).collect()
}

/// Decoder layers in which a matrix has a format.
fn layers_of(named: &Named, format: Format) -> Vec<usize> {
    let layer = |(site, other): &(Site, Format)| match site {
        Site::Layer(layer) if *other == format => Some(*layer),
        _ => None,
    };
    named.at.iter().filter_map(layer).collect()
}

/// Rules without layers; the last one gives `last` to every matrix that the others leave.
fn of_all_layers(usual: &[(&str, Format)], last: Format) -> Vec<Rule> {
    let all: Vec<&str> = usual.iter().map(|(name, _)| *name).collect();
    let of = |format: Format| {
        let names = usual.iter().filter(|(_, other)| *other == format);
        cover(&names.map(|(name, _)| *name).collect::<Vec<_>>(), &all)
    };
    let rule = |format, patterns| Rule {
        patterns,
        layers: None,
        format,
    };
    let others = Format::ALL.into_iter().filter(|format| *format != last);
    let mut rules: Vec<Rule> = others.map(|format| rule(format, of(format))).collect();
    rules.retain(|rule| !rule.patterns.is_empty());
    rules.push(rule(last, vec!["*".to_string()]));
    rules
}

/// Few patterns that name every one of `names` and no other of `all`, in the order of the names.
fn cover(names: &[&str], all: &[&str]) -> Vec<String> {
    let candidates: BTreeSet<String> = names.iter().flat_map(|name| candidates(name)).collect();
    let fits = |pattern: &&String| {
        let mut named = all.iter().filter(|name| is_match(pattern, name));
        named.all(|name| names.contains(name))
    };
    let candidates: Vec<&String> = candidates.iter().filter(fits).collect();
    let (mut open, mut chosen) = (names.to_vec(), Vec::new());
    while let Some(best) = best(&candidates, &open) {
        chosen.push(best.clone());
        open.retain(|name| !is_match(best, name));
    }
    let first = |pattern: &String| names.iter().position(|name| is_match(pattern, name));
    chosen.sort_by_key(first);
    chosen
}

/// The pattern that matches most of `open`; among equals one without layer or expert numbers, then
/// a whole name, then the longest.
fn best<'a>(candidates: &[&'a String], open: &[&str]) -> Option<&'a String> {
    let names = |pattern: &str| open.iter().filter(|name| is_match(pattern, name)).count();
    let key = |pattern: &&&'a String| {
        let (numbers, stars) = (pattern.contains('{'), pattern.contains('*'));
        (names(pattern), !numbers, !stars, pattern.len())
    };
    let best = candidates.iter().max_by_key(key)?;
    (names(best) > 0).then_some(*best)
}

/// Patterns that match a name: itself, and each of its parts between stars.
fn candidates(name: &str) -> Vec<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let mut found = vec![name.to_string()];
    for start in 0..parts.len() {
        for end in start + 1..=parts.len() {
            let head = if start > 0 { "*." } else { "" };
            let tail = if end < parts.len() { ".*" } else { "" };
            found.push(format!("{head}{}{tail}", parts[start..end].join(".")));
        }
        let rest = parts[start..].join(".");
        let words = rest.match_indices('_').map(|(at, _)| &rest[..=at]);
        let words = words.filter(|words| start > 0 && !words.is_empty());
        found.extend(words.map(|words| format!("*.{words}*")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Rule, cover, rules};
    use crate::adopt::stored::Named;
    use crate::table::{Format, Site};

    const HEAD: &str = "lm_head";
    const QUERY: &str = "model.layers.{layer}.self_attn.q_proj";
    const UP: &str = "model.layers.{layer}.mlp.up_proj";

    fn named(name: &str, formats: &[Format]) -> Named {
        let at = formats.iter().enumerate();
        let at = at.map(|(layer, format)| (Site::Layer(layer), *format));
        Named {
            name: name.to_string(),
            at: at.collect(),
        }
    }

    #[test]
    fn one_format_is_one_rule() {
        let named = [
            named(QUERY, &[Format::Bf16; 2]),
            named(UP, &[Format::Bf16; 2]),
        ];
        let all = Rule {
            patterns: vec!["*".to_string()],
            layers: None,
            format: Format::Bf16,
        };
        assert_eq!(rules(&named), [all]);
    }

    #[test]
    fn layers_that_differ_have_a_rule_of_their_own() {
        let mixed = [Format::Bf16, Format::Nvfp4Modelopt, Format::Nvfp4Modelopt];
        let named = [named(QUERY, &mixed), named(UP, &[Format::Nvfp4Modelopt; 3])];
        let found = rules(&named);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].layers, Some(vec![0]));
        assert_eq!(found[0].patterns, ["*.self_attn.q_proj"]);
        assert_eq!(found[1].patterns, ["*"]);
    }

    #[test]
    fn a_pattern_names_nothing_else() {
        let key = "model.layers.{layer}.self_attn.k_proj";
        let all = [HEAD, QUERY, key, UP];
        assert_eq!(cover(&[HEAD, UP], &all), ["lm_head", "*.mlp.up_proj"]);
        assert_eq!(cover(&[QUERY, key], &all), ["*.self_attn.*"]);
        assert_eq!(cover(&all, &all).len(), 2);
        assert!(cover(&[], &all).is_empty());
    }
}
