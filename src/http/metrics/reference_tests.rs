//! The page of all figures in `packaging/metrics.md`, made of what the server reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::super::journal::Journal;
use super::super::settings::Settings;
use super::super::testing::{Script, TestServer};

const HEAD: &str = "# Figures of `/metrics`

All that the server tells, but for what `--metrics-compat` adds; a test makes this page. Those of
logs are there where the server writes these logs, those of the engine once it answers requests.

| name | type | labels | meaning |
|---|---|---|---|
";

/// Names of the labels of a sample, but for the bounds of a histogram.
fn labels(sample: &str) -> impl Iterator<Item = &str> {
    let inside = sample.split_once('{').map_or("", |(_, rest)| rest);
    let names = inside
        .split("\",")
        .filter_map(|label| label.split_once("=\""));
    names.map(|(name, _)| name).filter(|name| *name != "le")
}

/// A row for each series of a page in the format of Prometheus.
fn rows(page: &str) -> BTreeMap<&str, String> {
    let mut rows = BTreeMap::new();
    for series in page.split("# HELP ").skip(1) {
        let (head, rest) = series.split_once('\n').unwrap();
        let (name, help) = head.split_once(' ').unwrap();
        let (kind, samples) = rest.split_once('\n').unwrap();
        let kind = kind.rsplit(' ').next().unwrap();
        let labels: BTreeSet<String> = samples
            .lines()
            .flat_map(labels)
            .map(|label| format!("`{label}`"))
            .collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(", ");
        rows.insert(name, format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
    rows
}

fn packaged(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

fn page() -> String {
    let journal = || {
        Some(
            Journal::open(Path::new("/dev/null"), 0o600, u64::MAX)
                .unwrap()
                .into(),
        )
    };
    let settings = Settings {
        access_log: journal(),
        dump: journal(),
        ..Settings::default()
    };
    TestServer::start_as(Script::text("x"), settings)
        .get("/metrics")
        .body
}

#[test]
fn the_reference_has_every_figure() {
    let page = page();
    let rows = rows(&page).into_values().collect::<String>();
    let made = format!("{HEAD}{rows}");
    let path = std::env::temp_dir().join("metrics.md");
    let same = packaged("metrics.md") == made;
    if !same {
        fs::write(&path, made).unwrap();
    }
    assert!(
        same,
        "packaging/metrics.md is out of date: replace it by {}",
        path.display()
    );
}

#[test]
fn alerts_and_the_dashboard_ask_for_figures_that_there_are() {
    let page = page();
    let known = rows(&page);
    for file in ["alerts.yml", "dashboard.json"] {
        let text = packaged(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let asked = words.filter(|word| word.starts_with("atlas_") || word.starts_with("process_"));
        let asked: BTreeSet<&str> = asked
            .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
            .collect();
        assert!(asked.len() > 5, "{file}");
        for name in asked {
            assert!(known.contains_key(name), "{file}: {name}");
        }
    }
}
