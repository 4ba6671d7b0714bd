//! `figures`: tables of measured and computed figures for documentation pages.

use std::fmt::Write;
use std::path::Path;

use argh::FromArgs;
use manifest::Target;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::bench::{DIGEST, baseline, read};
use crate::graph::digest::Digest;
use crate::site::{self, Failure, Site};

/// Path of the comparison with another server on one card.
const COMPARED: &str = "ci/baseline/compared.json";
const README: &str = "README.md";
pub const OPERATIONS: &str = "packaging/operations.md";
/// Prompt lengths of agents for which targets are sized, in Ki tokens.
const AGENTS: [usize; 2] = [32, 128];
/// Hardware whose measured figures the README shows.
const HARDWARE: &str = "h200/";
/// Hardware that a model may be built for, and its name for people; memory is that of the first one
/// with a target.
const BUILT_FOR: [(&str, &str); 3] = [("gb10", "GB10"), ("h200", "H200"), ("cpu", "CPU")];
/// Numbers of sequences that decode at once, each after 128 tokens.
const SEQUENCES: [u64; 3] = [1, 8, 32];
/// Length of the measured prompt, tokens.
const PROMPT: u64 = 8192;
const GB: f64 = 1e9;
const MB: f64 = 1e6;

const HEAD: &str = "\
| model | download | memory | built for | 1 sequence | 8 | 32 | prompt of 8,192 | GB10, computed |
|---|---|---|---|---|---|---|---|---|
";

/// Print figures as the tables of the README, from `ci/baseline`, and of `packaging/operations.md`,
/// from the targets.
#[derive(FromArgs)]
#[argh(subcommand, name = "figures")]
pub struct Figures {
    /// print nothing, and fail where the pages have other figures than these
    #[argh(switch)]
    check: bool,
}

impl Figures {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        if self.check {
            return check(site);
        }
        let tables = tables(site)?.map(|(_, table)| table);
        print!("{}", tables.join("\n"));
        for leaf in site.leaves()? {
            tell_origin(site, &leaf)?;
        }
        Ok(())
    }
}

/// Prints which baselines of a target may not be of the binary that this tree built.
///
/// # Errors
/// A target or a baseline that cannot be read.
fn tell_origin(site: &Site, leaf: &str) -> Result<(), Failure> {
    let path = baseline(site, leaf);
    if !path.exists() {
        return Ok(());
    }
    let binary = site.target(Some(leaf))?.binary();
    let built = Digest::of_file(&site.atlas().join("out").join(leaf).join(binary));
    let built = built.ok().map(|digest| digest.to_string());
    for (what, figures) in &read(&path)? {
        if let Some(why) = doubt(figures, built.as_deref()) {
            eprintln!("note: {leaf}, {what}: {why}");
        }
    }
    Ok(())
}

/// Reason to doubt that figures are those of the binary with digest `built`.
fn doubt(figures: &Value, built: Option<&str>) -> Option<&'static str> {
    match (figures.get(DIGEST).and_then(Value::as_str), built) {
        (None, _) => Some("states no digest of the binary that was measured"),
        (Some(_), None) => Some("this tree has not built the binary; `cargo xtask build` does"),
        (Some(measured), Some(built)) if measured != built => {
            Some("was measured with another binary than this tree's; measure again")
        }
        _ => None,
    }
}

/// The tables, each with the path of the page that shows it.
fn tables(site: &Site) -> Result<[(&'static str, String); 3], Failure> {
    Ok([
        (README, models(site)?),
        (README, compared(&site.root)?),
        (OPERATIONS, sizing(site)?),
    ])
}

/// Compares the tables in pages with the present figures.
///
/// # Errors
/// Names the first row of a page that has other figures, or that the page lacks.
pub fn check(site: &Site) -> Result<(), Failure> {
    for (page, table) in tables(site)? {
        let text = site::read(&site.root, page)?;
        let shown = rows_below(&text, &table);
        let unknown = shown.iter().find(|row| !table.contains(*row));
        if let Some(row) = unknown {
            return Err(format!("{page}: no figures give this row:\n{row}").into());
        }
        if let Some(row) = table.lines().find(|row| !shown.contains(row)) {
            return Err(format!("{page}: `cargo xtask figures` prints this row:\n{row}").into());
        }
    }
    Ok(())
}

/// Table of targets that serve: memory with all KV pages, tokens in these pages, bytes of 1,024
/// tokens, and number of agents whose prompts all fit.
fn sizing(site: &Site) -> Result<String, Failure> {
    let mut table = "| target | memory | tokens | 1 Ki tokens |".to_string();
    for length in AGENTS {
        let _ = write!(table, " agents of {length} Ki |");
    }
    let _ = writeln!(table, "\n|---|---|---|---|{}", "---|".repeat(AGENTS.len()));
    for leaf in site.leaves()? {
        let target = site.target(Some(&leaf))?;
        if !target.serves() {
            continue;
        }
        let memory = target.resident_bytes() as f64 / GB;
        let tokens = target.leaf.limits.kv_tokens;
        let kept = (target.kv_bytes_per_token_of_all() << 10) as f64 / MB;
        table += &format!("| `{leaf}` | {memory:.1} GB | {tokens} | {kept:.1} MB |");
        for length in AGENTS {
            let (pages, states) = (target.kv_pages() as usize, target.snapshots() as usize);
            let agents = match length << 10 {
                tokens if tokens as u64 > target.leaf.limits.context => "-".to_string(),
                tokens => step::agents(pages, states, tokens).to_string(),
            };
            let _ = write!(table, " {agents} |");
        }
        table += "\n";
    }
    Ok(table)
}

/// Rows in `text` of the table that has the heading of `table`, heading included.
fn rows_below<'a>(text: &'a str, table: &str) -> Vec<&'a str> {
    let head = table.lines().next().unwrap_or_default();
    let rows = text.lines().skip_while(|line| *line != head);
    rows.take_while(|line| line.starts_with('|')).collect()
}

/// Table of measured models: download, memory, and tokens a second, for decode with the share of
/// what memory bandwidth allows.
///
/// # Errors
/// A target or a baseline that cannot be read.
fn models(site: &Site) -> Result<String, Failure> {
    let leaves = site.leaves()?;
    let mut table = HEAD.to_string();
    for leaf in &leaves {
        let Some(model) = leaf.strip_prefix(HARDWARE) else {
            continue;
        };
        let path = baseline(site, leaf);
        if !path.exists() {
            continue;
        }
        let names = BUILT_FOR.map(|(folder, name)| (format!("{folder}/{model}"), name));
        let built = names.iter().filter(|(target, _)| leaves.contains(target));
        let built: Vec<_> = built.collect();
        let target = site.target(built.first().map(|(target, _)| target.as_str()))?;
        let names: Vec<&str> = built.iter().map(|(_, name)| *name).collect();
        let sizes = sizes(&target, &names.join(", "));
        table += &format!("| `{model}` |{sizes}{}\n", row(&read(&path)?));
    }
    Ok(table)
}

/// Columns of a model's sizes: bytes of the checkpoint, memory with all KV pages, hardware.
fn sizes(target: &Target, built_for: &str) -> String {
    let bytes = [target.checkpoint_bytes(), target.resident_bytes()];
    let [download, memory] = bytes.map(|bytes| format!("{:.1} GB", bytes as f64 / GB));
    format!(" {download} | {memory} | {built_for} |")
}

/// Columns of a model's figures; `-` where nothing was measured.
fn row(kept: &Map<String, Value>) -> String {
    let mut row = String::new();
    for sequences in SEQUENCES {
        let case = format!("{sequences} x context 128");
        let _ = write!(row, " {} |", rate(kept, "decode", &case));
    }
    let prompt = figure(kept, "prefill", &format!("prompt of {PROMPT}"), "tok_s");
    let name = "projected_gb10.us_at_232_gb_s";
    let micros = figure(kept, "decode", "1 x context 128", name);
    let projected = micros.map(|micros| 1e6 / micros);
    let _ = write!(row, " {} | {} |", whole(prompt), whole(projected));
    row
}

/// Measurements of another server and of this one, on the same card.
#[derive(Deserialize)]
struct Compared {
    peer: String,
    card: String,
    date: String,
    weights: String,
    /// Titles of models, by their keys in `cases`.
    models: Map<String, Value>,
    cases: Vec<Map<String, Value>>,
}

/// Table of both servers' figures; a model's last column is above 1 where this server is better.
///
/// # Errors
/// A file that cannot be read.
fn compared(root: &Path) -> Result<String, Failure> {
    let found = serde_json::from_str(&site::read(root, COMPARED)?);
    let found: Compared = found.map_err(|why| format!("{COMPARED}: {why}"))?;
    let (card, date) = (&found.card, &found.date);
    let mut table = format!("| {card}, {date}, {} weights |", found.weights);
    for title in found.models.values() {
        let title = title.as_str().unwrap_or_default();
        let _ = write!(table, " {title}: {} | Atlas | ratio |", found.peer);
    }
    table += "\n|---|";
    table += &"---|---|---|".repeat(found.models.len());
    table += "\n";
    for case in &found.cases {
        table += &compared_row(case, found.models.keys());
    }
    Ok(table)
}

fn compared_row<'a>(case: &Map<String, Value>, models: impl Iterator<Item = &'a String>) -> String {
    let word = |name: &str| case.get(name).and_then(Value::as_str).unwrap_or("-");
    let (unit, mut row) = (word("unit"), format!("| {} |", word("case")));
    for model in models {
        let pair = case.get(model).map(|pair| [&pair[0], &pair[1]]);
        let pair = pair.map(|pair| pair.map(|figure| figure.as_f64().unwrap_or(0.0)));
        let [peer, own] = pair.unwrap_or_default();
        let ratio = match unit {
            "ms" => peer / own,
            _ => own / peer,
        };
        let _ = write!(row, " {peer} {unit} | {own} {unit} | {ratio:.2} |");
    }
    row + "\n"
}

/// Tokens a second in a case, and their share of what memory bandwidth allows.
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
    let of_kind = kept.get(what)?;
    of_kind.get(format!("cases.{case}.{name}"))?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_another_binary_are_doubted() {
        let of = |figures: Value, built| doubt(&figures, built).unwrap_or("none");
        let measured = || serde_json::json!({DIGEST: "ab", "cases.x.tok_s": 1});
        assert!(of(serde_json::json!({}), Some("ab")).contains("no digest"));
        assert!(of(measured(), None).contains("not built"));
        assert!(of(measured(), Some("cd")).contains("another binary"));
        assert_eq!(of(measured(), Some("ab")), "none");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let kept = serde_json::json!({"decode": {"cases.1 x context 128.tok_s": 10.4,
            "cases.1 x context 128.share": 0.5}});
        let row = row(kept.as_object().unwrap());
        assert_eq!(row, " 10 (50 %) | - | - | - | - |");
    }

    #[test]
    fn less_time_and_more_tokens_are_better() {
        let case = |unit| serde_json::json!({"case": "c", "unit": unit, "m": [2, 4]});
        let shown = |unit| {
            compared_row(
                case(unit).as_object().unwrap(),
                [&"m".to_string()].into_iter(),
            )
        };
        assert_eq!(shown("tok/s"), "| c | 2 tok/s | 4 tok/s | 2.00 |\n");
        assert_eq!(shown("ms"), "| c | 2 ms | 4 ms | 0.50 |\n");
    }

    #[test]
    fn rows_end_with_their_table() {
        let text = "| a |\n\n| head |\n| 1 |\ntext\n| 2 |\n";
        assert_eq!(rows_below(text, "| head |\n"), ["| head |", "| 1 |"]);
        assert!(rows_below(text, "| other |\n").is_empty());
    }
}
