//! `figures`: the measured figures of models, as the table of the README.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use argh::FromArgs;
use serde_json::{Map, Value};

use crate::site::{Failure, Site};

/// Folder of what `bench --save` keeps.
const BASELINES: &str = "ci/baseline";
/// Hardware whose figures are told.
const HARDWARE: &str = "h200-";
/// Sequences that decode at once, 128 tokens behind each.
const SEQUENCES: [u64; 3] = [1, 8, 32];
/// Tokens of the prompt.
const PROMPT: u64 = 8192;

const HEAD: &str = "\
| model | 1 sequence | 8 sequences | 32 sequences | prompt of 8,192 | 1 on a GB10, projected |
|---|---|---|---|---|---|
";

/// Print measured figures of models on an H200, from `ci/baseline`, as a table.
#[derive(FromArgs)]
#[argh(subcommand, name = "figures")]
pub struct Figures {}

impl Figures {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        print!("{}", table(&site.root)?);
        Ok(())
    }
}

/// The table: tokens a second, and the share of what memory allows in decode.
///
/// # Errors
/// A baseline that cannot be read.
pub fn table(root: &Path) -> Result<String, Failure> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(root.join(BASELINES)).map_err(|why| format!("{BASELINES}: {why}"))? {
        let path = entry.map_err(|why| format!("{BASELINES}: {why}"))?.path();
        let name = path
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let (Some(model), true) = (name.strip_prefix(HARDWARE), is_json(&path)) else {
            continue;
        };
        if !model.starts_with(|first: char| first.is_ascii_digit()) {
            rows.push(row(model, &read(&path)?));
        }
    }
    rows.sort();
    Ok(HEAD.to_string() + &rows.concat())
}

fn is_json(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

fn read(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(serde_json::from_str(&text).map_err(|why| format!("{}: {why}", path.display()))?)
}

/// One model; `-` where nothing was measured.
fn row(model: &str, kept: &Map<String, Value>) -> String {
    let mut row = format!("| `{model}` |");
    for sequences in SEQUENCES {
        let case = format!("{sequences} x context 128");
        let _ = write!(row, " {} |", rate(kept, "decode", &case));
    }
    let prompt = figure(kept, "prefill", &format!("prompt of {PROMPT}"), "tok_s");
    let micros = figure(
        kept,
        "decode",
        "1 x context 128",
        "projected_gb10.us_at_232_gb_s",
    );
    let projected = micros.map(|micros| 1e6 / micros);
    let _ = writeln!(row, " {} | {} |", whole(prompt), whole(projected));
    row
}

/// Tokens a second of a case, and its share of what memory allows.
fn rate(kept: &Map<String, Value>, what: &str, case: &str) -> String {
    let of = |name| figure(kept, what, case, name);
    match (of("tok_s"), of("share")) {
        (Some(rate), Some(share)) => format!("{rate:.0} ({:.0} %)", 100.0 * share),
        _ => "-".to_string(),
    }
}

fn whole(figure: Option<f64>) -> String {
    figure.map_or("-".to_string(), |figure| format!("{figure:.0}"))
}

fn figure(kept: &Map<String, Value>, what: &str, case: &str, name: &str) -> Option<f64> {
    kept.get(what)?
        .get(format!("cases.{case}.{name}"))?
        .as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_the_table() {
        let site = Site::find().unwrap();
        let readme = fs::read_to_string(site.root.join("README.md")).unwrap();
        let table = table(&site.root).unwrap_or_else(|_| panic!("baselines are there"));
        assert!(readme.contains(&table), "put this into README.md:\n{table}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let kept = serde_json::json!({"decode": {"cases.1 x context 128.tok_s": 10.4,
            "cases.1 x context 128.share": 0.5}});
        let row = row("m", kept.as_object().unwrap());
        assert_eq!(row, "| `m` | 10 (50 %) | - | - | - | - |\n");
    }
}
