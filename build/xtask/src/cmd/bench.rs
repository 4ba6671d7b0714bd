//! `bench`: measures a target by the binary's own `bench` and compares with the baseline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use argh::FromArgs;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::build::build;
use crate::dist::commit;
use crate::server::Server;
use crate::site::{Failure, Site};

/// Key of a baseline for the commit that was measured.
const COMMIT: &str = "commit";
/// Key of a baseline for the SHA-256 of the measured binary.
pub const DIGEST: &str = "binary_sha256";
/// Key of a baseline for the machine that ran the binary.
const MACHINE: &str = "machine";

/// Measure a target and compare with its baseline. Arguments after `--` go to the binary's `bench`.
#[derive(FromArgs)]
#[argh(subcommand, name = "bench")]
pub struct Bench {
    /// which target: <hw>/<model>/<quant>
    #[argh(positional)]
    target: String,
    /// what to measure: serve (the server over HTTP), decode, prefill or drafts (the model's
    /// steps), or start (the way to READY)
    #[argh(positional)]
    what: String,
    /// flags of `serve`, as one text; the weights directory for targets that do not carry weights
    #[argh(option, default = "String::new()")]
    serve: String,
    /// write the figures as the new baseline
    #[argh(switch)]
    save: bool,
}

impl Bench {
    pub fn start(self, site: &Site, flags: &[String]) -> Result<(), Failure> {
        let binary = build(site, Some(&self.target), false)?;
        let found = self.measure(site, &binary, flags)?;
        let (target, what, flags) = (&self.target, &self.what, self.serve_flags(flags));
        let arguments = format!("bench {target} {what} {flags}");
        let mut figures = Map::new();
        flatten("", &found, &mut figures);
        let origin = origin(&site.root, &found);
        let path = baseline(site, &self.target);
        let kept = read(&path)?;
        let before = kept.get(&self.what).and_then(Value::as_object);
        print!("\n{}", compare(&self.what, &figures, before));
        match self.save {
            true => {
                figures.extend(origin);
                save(&path, kept, &self.what, (arguments, figures))
            }
            false => Ok(()),
        }
    }

    /// The flags of `serve` that decide what is measured, as given on the command line.
    fn serve_flags(&self, flags: &[String]) -> String {
        let serve = match self.serve.is_empty() {
            true => String::new(),
            false => format!("--serve '{}' ", self.serve),
        };
        match flags {
            [] => serve,
            flags => format!("{serve}-- {}", flags.join(" ")),
        }
    }

    /// Runs the binary's own `bench`; returns the JSON that it wrote.
    fn measure(&self, site: &Site, binary: &Path, flags: &[String]) -> Result<Value, Failure> {
        let log = site.atlas().join("log");
        let (json, log) = (log.join("bench.json"), log.join("bench-server"));
        let mut command = Command::new(binary);
        command.args(["bench", &self.what, "--json"]);
        command.arg(&json).args(flags);
        let serve: Vec<String> = self.serve.split_whitespace().map(String::from).collect();
        let server = match self.what.as_str() {
            "serve" => Some(Server::start(binary, &serve, &log)?),
            _ => None,
        };
        if let Some(server) = &server {
            command.args(["--url", &server.url, "--pid", &server.pid().to_string()]);
        }
        let status = command
            .status()
            .map_err(|why| format!("start {}: {why}", binary.display()))?;
        if !status.success() {
            return Err(Failure::Failed(format!("the measurement failed: {status}")));
        }
        parsed(&json)
    }
}

/// Path of a target's baseline.
pub fn baseline(site: &Site, target: &str) -> PathBuf {
    let name = target.replace('/', "-");
    site.root.join(format!("ci/baseline/{name}.json"))
}

/// Figures of a baseline by what was measured; none where there is no file.
pub fn read(path: &Path) -> Result<Map<String, Value>, Failure> {
    if !path.exists() {
        return Ok(Map::new());
    }
    parsed(path)
}

fn parsed<T: DeserializeOwned>(json: &Path) -> Result<T, Failure> {
    let text = fs::read_to_string(json).map_err(|why| format!("read {}: {why}", json.display()))?;
    Ok(serde_json::from_str(&text).map_err(|why| format!("{}: {why}", json.display()))?)
}

/// Commit, digest of the binary, card, clock and power limit of a measurement.
fn origin(root: &Path, found: &Value) -> Map<String, Value> {
    let mut origin = Map::new();
    origin.insert(COMMIT.to_string(), Value::String(commit(root)));
    for name in [DIGEST, MACHINE] {
        if let Some(Value::String(text)) = found.pointer(&format!("/origin/{name}")) {
            origin.insert(name.to_string(), Value::String(text.clone()));
        }
    }
    origin
}

fn save(
    path: &Path,
    mut kept: Map<String, Value>,
    what: &str,
    (arguments, mut figures): (String, Map<String, Value>),
) -> Result<(), Failure> {
    let command = format!("cargo xtask {}", arguments.trim());
    figures.insert("command".to_string(), Value::String(command));
    kept.insert(what.to_string(), Value::Object(figures));
    let text = serde_json::to_string_pretty(&kept).expect("a map of numbers is JSON") + "\n";
    let failed = |why: std::io::Error| format!("write {}: {why}", path.display());
    fs::create_dir_all(path.parent().expect("a baseline lies in a folder")).map_err(failed)?;
    fs::write(path, text).map_err(failed)?;
    println!("saved to {}", path.display());
    Ok(())
}

/// Adds the numbers of a JSON value under dotted names.
fn flatten(name: &str, value: &Value, to: &mut Map<String, Value>) {
    let below = |key: &str| match name {
        "" => key.to_string(),
        name => format!("{name}.{key}"),
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| flatten(&below(key), value, to)),
        Value::Array(items) => items.iter().enumerate().for_each(|(ix, value)| {
            let named = value.get("name").and_then(Value::as_str).map(String::from);
            flatten(&below(&named.unwrap_or_else(|| ix.to_string())), value, to);
        }),
        Value::Number(_) => {
            to.insert(name.to_string(), value.clone());
        }
        _ => {}
    }
}

/// Table with figure, measured value, baseline and difference.
fn compare(what: &str, figures: &Map<String, Value>, kept: Option<&Map<String, Value>>) -> String {
    let columns = format!("{:>14} {:>14} {:>9}", "measured", "baseline", "change");
    let mut table = format!("{what:<44} {columns}\n");
    for (name, value) in figures {
        let measured = value.as_f64().unwrap_or(f64::NAN);
        let row = match kept.and_then(|kept| kept.get(name)?.as_f64()) {
            Some(known) if known != 0.0 => {
                format!(
                    "{measured:>14.3} {known:>14.3} {:>+8.1}%",
                    100.0 * (measured / known - 1.0)
                )
            }
            Some(known) => format!("{measured:>14.3} {known:>14.3} {:>9}", "-"),
            None => format!("{measured:>14.3} {:>14} {:>9}", "none", "-"),
        };
        table.push_str(&format!("{name:<44} {row}\n"));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_says_where_its_figures_are_from() {
        let found = serde_json::json!({"origin": {"binary_sha256": "ab", "machine": "a card"}});
        let origin = origin(&Site::here().root, &found);
        assert_eq!(origin[DIGEST], "ab");
        assert_eq!(origin[MACHINE], "a card");
        assert!(
            origin[COMMIT]
                .as_str()
                .is_some_and(|commit| commit.len() >= 40)
        );
    }

    #[test]
    fn figures_are_compared_by_their_dotted_names() {
        let mut figures = Map::new();
        let runs = [serde_json::json!({"name": "one", "n": 2.0})];
        let found = serde_json::json!({"rate": {"decode": 110.0}, "runs": runs, "name": "x"});
        flatten("", &found, &mut figures);
        let kept = serde_json::json!({"rate.decode": 100.0});
        let table = compare("serve", &figures, kept.as_object());
        assert!(
            table.contains("rate.decode") && table.contains("+10.0%"),
            "{table}"
        );
        assert!(
            table.contains("runs.one.n") && !table.contains("name"),
            "{table}"
        );
    }
}
