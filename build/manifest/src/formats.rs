//! The leaf's format rules, applied to the rows of the model's family.

use std::borrow::Cow;

use crate::error::ManifestError;
use crate::schema::leaf::FormatRule;
use crate::table::{Kind, Row, Site, Sites};
use crate::target::Target;

/// Rows in the formats of the leaf's rules, and faults of these rules.
pub(crate) struct Formatted {
    pub rows: Vec<Row>,
    /// Names of matrices that no rule matches.
    unnamed: Vec<String>,
    /// Patterns that decide the format of no matrix, each after the index of its rule.
    idle: Vec<(usize, String)>,
}

/// Whether `pattern` matches `name`; `*` is any text. Text between stars is taken where it occurs
/// first: any later place would leave less for the rest of the pattern.
pub(crate) fn is_match(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let (between, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let name = name.strip_prefix(head);
    let mut name = name.and_then(|name| name.strip_suffix(tail));
    for part in between.split('*') {
        name = name.and_then(|name| Some(name.split_once(part)?.1));
    }
    name.is_some()
}

impl FormatRule {
    /// Whether the rule covers `site`.
    fn is_for(&self, site: Site) -> bool {
        match (&self.layers, site) {
            (None, _) => true,
            (Some(layers), Site::Layer(layer)) => layers.contains(&layer),
            (Some(_), _) => false,
        }
    }

    /// Kind of a matrix under this rule: stored as such, or rounded.
    fn kind(&self) -> Kind {
        match (self.r#as, self.resident) {
            (stored, Some(resident)) => Kind::Rounded { stored, resident },
            (stored, None) => Kind::Matrix(stored),
        }
    }

    /// Index of the first pattern that matches `name`.
    fn pattern(&self, name: &str) -> Option<usize> {
        let mut patterns = self.r#match.patterns().iter();
        patterns.position(|pattern| is_match(pattern, name))
    }
}

/// Indices of the rule and of its pattern that decide a matrix.
type Decision = (usize, usize);

impl Formatted {
    pub(crate) fn of(target: &Target) -> Formatted {
        let rules = &target.leaf.format;
        let mut formatted = Formatted {
            rows: Vec::new(),
            unnamed: Vec::new(),
            idle: Vec::new(),
        };
        let mut used = Vec::new();
        for row in target.rows() {
            match row.format() {
                Some(_) => used.extend(formatted.add(rules, &row)),
                None => formatted.rows.push(row),
            }
        }
        let idle = patterns(rules).filter(|(decision, _)| !used.contains(decision));
        let idle = idle.map(|((rule, _), pattern)| (rule, pattern.to_string()));
        formatted.idle = idle.collect();
        formatted
    }

    /// Adds a matrix's row, one for each format that its sites have; returns the deciding patterns.
    fn add(&mut self, rules: &[FormatRule], row: &Row) -> Vec<Decision> {
        let named = rules.iter().enumerate();
        let named = named.filter_map(|(at, rule)| Some((at, rule.pattern(&row.name)?)));
        let named: Vec<Decision> = named.collect();
        let (mut used, mut open) = (Vec::new(), Vec::new());
        let mut parts: Vec<(Kind, Vec<Site>)> = Vec::new();
        for site in row.sites.iter() {
            let mut decisions = named.iter().filter(|(rule, _)| rules[*rule].is_for(site));
            let Some(&first) = decisions.next() else {
                open.push(site);
                continue;
            };
            used.push(first);
            let kind = rules[first.0].kind();
            match parts.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, sites)) => sites.push(site),
                None => parts.push((kind, vec![site])),
            }
        }
        self.unnamed.extend(words(row, &open));
        let part = |(kind, sites): (Kind, Vec<Site>)| Row {
            kind,
            sites: these(&row.sites, &sites),
            ..row.clone()
        };
        self.rows.extend(parts.into_iter().map(part));
        used
    }

    /// Refuses rules that leave a matrix without a format, and patterns that decide no matrix.
    ///
    /// # Errors
    /// Names the matrices, or the pattern, by keys of the leaf `file`.
    pub(crate) fn check(&self, file: &str) -> Result<(), ManifestError> {
        if !self.unnamed.is_empty() {
            let names = self.unnamed.join(", ");
            let rule = "no rule names these matrices; add a [[format]] that does";
            return Err(ManifestError::key(file, "format", names, rule));
        }
        let Some((rule, pattern)) = self.idle.first() else {
            return Ok(());
        };
        let key = format!("format.{rule}.match");
        let rule = "names no matrix of the model that an earlier rule leaves to it";
        Err(ManifestError::key(file, &key, format!("{pattern:?}"), rule))
    }
}

/// Name of a matrix without a format at some sites, and its layers if they are not all.
fn words(row: &Row, open: &[Site]) -> Option<String> {
    let sites = these(&row.sites, open);
    match &sites {
        _ if open.is_empty() => None,
        Sites::Layers(layers) if sites != row.sites => {
            Some(format!("{} in layers {layers:?}", row.name))
        }
        _ => Some(row.name.to_string()),
    }
}

/// Every pattern of the rules.
fn patterns(rules: &[FormatRule]) -> impl Iterator<Item = (Decision, &str)> {
    rules.iter().enumerate().flat_map(|(rule, each)| {
        let patterns = each.r#match.patterns().iter().enumerate();
        patterns.map(move |(at, pattern)| ((rule, at), pattern.as_str()))
    })
}

/// The sites of a row that are in `some`.
fn these(sites: &Sites, some: &[Site]) -> Sites {
    let layers = some.iter().filter_map(|site| match site {
        Site::Layer(layer) => Some(*layer),
        Site::Whole | Site::Prediction => None,
    });
    match sites {
        Sites::Layers(_) => Sites::Layers(Cow::Owned(layers.collect())),
        alone => alone.clone(),
    }
}

impl Target {
    /// Every tensor of the target's checkpoint but the vision tower's.
    pub(crate) fn table(&self) -> Vec<Row> {
        Formatted::of(self).rows
    }
}

#[cfg(test)]
mod tests {
    use super::is_match;
    use crate::schema::leaf::Patterns;
    use crate::schema::model::Mixer;
    use crate::table::{Format, Kind, Role, Sites};
    use crate::testing::repository;

    #[test]
    fn a_star_stands_for_any_text() {
        let name = "model.layers.{layer}.mlp.experts.{expert}.up_proj";
        for pattern in [
            "*",
            "model.*",
            "*.up_proj",
            "*.mlp.*",
            name,
            "*layer*up*",
            "m**j",
        ] {
            assert!(is_match(pattern, name), "{pattern}");
        }
        for pattern in [
            "",
            "up_proj",
            "*.up",
            "mlp.*",
            "*.mlp.*.gate_proj",
            "*up_*_proj",
        ] {
            assert!(!is_match(pattern, name), "{pattern}");
        }
    }

    #[test]
    fn the_first_rule_that_names_a_matrix_decides_layer_by_layer() {
        let mut target = repository("cpu/tiny/nvfp4");
        let mut rule = target.leaf.format[0].clone();
        rule.r#match = Patterns::One("*.o_proj".to_string());
        (rule.layers, rule.r#as) = (Some(vec![3]), Format::Fp8Block128);
        target.leaf.format.insert(0, rule);
        let rows = target.table();
        let outputs: Vec<_> = rows.iter().filter(|row| row.role == Role::Output).collect();
        let sites = |layers: &[usize]| Sites::Layers(layers.to_vec().into());
        assert_eq!(target.layers_of(Mixer::Attention), 1);
        assert_eq!(outputs.len(), 2);
        assert_eq!(outputs[0].sites, sites(&[3]));
        assert_eq!(outputs[0].kind, Kind::Matrix(Format::Fp8Block128));
        assert_eq!(outputs[1].sites, Sites::Prediction);
        assert_eq!(
            outputs[1].kind,
            Kind::Matrix(Format::Nvfp4CompressedTensors)
        );
    }
}
