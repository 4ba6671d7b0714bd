//! Rules of the repository that a compiler does not know.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use crate::site::Site;

/// Longest line of code and comments, in characters.
const COLUMNS: usize = 100;

/// Words that say nothing, as parts of a file name.
const NAMES_BANNED: [&str; 11] = [
    "fast",
    "optimized",
    "v2",
    "new",
    "old",
    "util",
    "utils",
    "common",
    "helper",
    "manager",
    "misc",
];

/// Words that no comment opens with: a noun stands there, so that it is understood without the code
/// beside it.
const OPENINGS_BANNED: [&str; 6] = ["What", "Of", "As", "Those", "The same", "How"];

/// Folders that hold what builds make; `golden` holds generated text that tests compare.
const FOLDERS_SKIPPED: [&str; 3] = ["target", "golden", "__pycache__"];

/// Entries of the workspace's top level, beside those that begin with a dot.
const TOP_LEVEL: [&str; 13] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "build",
    "ci",
    "cuda",
    "ffi",
    "packaging",
    "rust-toolchain.toml",
    "scripts",
    "src",
    "targets",
];

/// Where unsafe code may be: a backend's, and the checks of its own calls. The last two are no
/// part of a binary: the text of a program that calls a launcher, and a client that the kernel
/// tells when bytes came, which no safe crate reads without changing the features of crates that
/// binaries share with tests.
const UNSAFE_ALLOWED: [&str; 7] = [
    "ffi/",
    "src/model/backend/",
    "src/check/cuda/",
    "src/host/allocator.rs",
    "src/host/lib.rs",
    "build/xtask/src/cuda/tests.rs",
    "ci/load/arrivals.rs",
];

/// Places of the switches between backends, and between TLS and none. Helpers of other crates'
/// tests may be anywhere.
const CFG_ALLOWED: [&str; 4] = [
    "src/model/backend/",
    "src/check/lib.rs",
    "src/http/tls/mod.rs",
    "ffi/",
];

/// A rule: a name, the files it looks at, and what is wrong with a line.
struct Rule {
    name: &'static str,
    covers: fn(&str) -> bool,
    breaks: fn(&str) -> bool,
}

fn is_code(path: &str) -> bool {
    [".rs", ".cu", ".cuh", ".h"]
        .iter()
        .any(|end| path.ends_with(end))
}

fn is_product(path: &str) -> bool {
    let is_built = path.starts_with("src/") || path.starts_with("ffi/src/");
    path.ends_with(".rs") && is_built && !path.ends_with("/build.rs")
}

/// Whether a file of the model proper is compiled into the product.
fn is_model(path: &str) -> bool {
    let beside = ["backend/", "ops/", "testing.rs", "weights/"];
    let within = path.strip_prefix("src/model/");
    let is_beside = |path: &str| beside.iter().any(|start| path.starts_with(start));
    within.is_some_and(|path| !path.ends_with("tests.rs") && !is_beside(path))
}

const RULES: [Rule; 7] = [
    Rule {
        name: "a line has at most 100 characters",
        covers: is_code,
        // A raw string cannot be cut without changing what it says.
        breaks: |line| line.chars().count() > COLUMNS && !line.trim_start().starts_with("r#"),
    },
    Rule {
        name: "the product reads no environment variable",
        covers: is_product,
        breaks: |line| line.contains(concat!("env::", "var")),
    },
    Rule {
        name: "cfg of a feature stands where backends or TLS are chosen",
        covers: |path| is_product(path) && !within(path, &CFG_ALLOWED),
        breaks: |line| {
            line.contains("cfg(") && line.contains("feature") && !line.contains("\"testing\"")
        },
    },
    Rule {
        name: "unsafe code of a binary is in ffi, the backends and the allocator",
        covers: |path| path.ends_with(".rs") && !within(path, &UNSAFE_ALLOWED),
        breaks: |line| {
            !is_comment(line)
                && ["unsafe {", "unsafe fn", "unsafe impl"]
                    .iter()
                    .any(|word| code(line).contains(word))
        },
    },
    Rule {
        name: "nothing is left to do",
        covers: is_code,
        breaks: |line| line.contains(concat!("TO", "DO")) || line.contains(concat!("FIX", "ME")),
    },
    Rule {
        name: "no test is ignored",
        covers: |path| path.ends_with(".rs"),
        breaks: |line| line.trim_start().starts_with(concat!("#[", "ignore")),
    },
    Rule {
        name: "a model names no device: what it needs of one is in its ops",
        covers: is_model,
        // A module's own tests are further in.
        breaks: |line| {
            !line.starts_with("    use ") && !is_comment(line) && line.contains("crate::backend")
        },
    },
];

fn within(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The line without what stands in quotes.
fn code(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

/// Files of the workspace, relative to its root.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        for entry in
            fs::read_dir(root.join(&folder)).expect("folders of the workspace can be listed")
        {
            let entry = entry.expect("folders of the workspace can be listed");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if name.starts_with('.') || FOLDERS_SKIPPED.contains(&name.as_str()) {
                continue;
            }
            match entry.path().is_dir() {
                true => open.push(path),
                false => found.push(path.display().to_string()),
            }
        }
    }
    found.sort();
    found
}

/// `path:line: rule` for each line that breaks a rule.
fn broken(path: &str, text: &str) -> Vec<String> {
    let rules = || RULES.iter().filter(|rule| (rule.covers)(path));
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(ix, line)| {
            let hits = rules().filter(|rule| (rule.breaks)(line));
            hits.map(|rule| format!("{path}:{}: {}", ix + 1, rule.name))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// `path:line: rule` for each comment that opens with one of [`OPENINGS_BANNED`].
fn without_a_noun(path: &str, text: &str) -> Vec<String> {
    let opens = |line: &str| {
        let words = line
            .trim_start()
            .trim_start_matches(['/', '!'])
            .trim_start();
        OPENINGS_BANNED.iter().any(|word| {
            let rest = words.strip_prefix(word);
            rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        })
    };
    let before = iter::once("").chain(text.lines());
    let lines = text.lines().zip(before).enumerate();
    let first = lines.filter(|(_, (line, before))| is_comment(line) && !is_comment(before));
    let opening = first.filter(|(_, (line, _))| opens(line));
    let broken = opening.map(|(ix, _)| format!("{path}:{}: a comment begins with a noun", ix + 1));
    broken.collect()
}

fn has_banned_name(path: &str) -> bool {
    let name = Path::new(path)
        .file_stem()
        .map(|stem| stem.to_string_lossy().to_lowercase());
    name.is_some_and(|name| {
        name.split(['_', '-', '.'])
            .any(|word| NAMES_BANNED.contains(&word))
    })
}

/// The list of failures of other servers, with a `file test` for each.
const CASES: &str = "ci/cases.md";

/// The tests of a row of [`CASES`] that do not exist, or the row if it names none.
fn missing(root: &Path, row: &str) -> Vec<String> {
    let tests = row.split('`').skip(1).step_by(2);
    let tests: Vec<&str> = tests.filter(|name| name.contains(".rs ")).collect();
    if tests.is_empty() {
        return vec![row.to_string()];
    }
    let is_test = |name: &str| {
        let (file, test) = name.split_once(' ')?;
        let text = fs::read_to_string(root.join(file)).ok()?;
        let (before, _) = text.split_once(&format!("fn {test}()"))?;
        let before = before.trim_end();
        let before = before.strip_suffix("async").unwrap_or(before);
        let mut above = before.trim_end().lines().rev().map(str::trim);
        let attribute = above.find(|line| !line.starts_with("#[should_panic"))?;
        (attribute == "#[test]" || attribute.starts_with("#[tokio::test")).then_some(())
    };
    let absent = tests.into_iter().filter(|name| is_test(name).is_none());
    absent.map(String::from).collect()
}

#[test]
fn every_file_keeps_the_rules() {
    let root = Site::here().root;
    let mut found = Vec::new();
    for path in files(&root) {
        if has_banned_name(&path) {
            found.push(format!("{path}: the name says nothing"));
        }
        if is_code(&path) {
            let text = fs::read_to_string(root.join(&path)).expect("code is UTF-8");
            found.extend(broken(&path, &text));
            found.extend(without_a_noun(&path, &text));
        }
    }
    assert!(
        found.is_empty(),
        "{} lines break a rule:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn the_top_level_holds_nothing_that_tools_left() {
    let entries = fs::read_dir(Site::here().root).expect("the workspace can be listed");
    let names = entries.map(|entry| entry.expect("the workspace can be listed").file_name());
    let left = |name: &String| {
        !name.starts_with('.')
            && !FOLDERS_SKIPPED.contains(&name.as_str())
            && !TOP_LEVEL.contains(&name.as_str())
    };
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(left).collect();
    assert!(left.is_empty(), "not of the workspace: {}", left.join(", "));
}

#[test]
fn each_rule_finds_what_it_forbids() {
    let lines = [
        ("src/a.rs", "x".repeat(COLUMNS + 1)),
        (
            "src/a.rs",
            format!("let a = std::{};", concat!("env::", "var(\"A\")")),
        ),
        ("src/a.rs", "#[cfg(feature = \"cuda\")]".to_string()),
        ("src/a.rs", format!("let a = {} {{ f() }};", "unsafe")),
        ("cuda/a.cuh", format!("// {}: later", concat!("TO", "DO"))),
        ("src/a.rs", format!("    {}]", concat!("#[", "ignore"))),
        (
            "src/model/a.rs",
            "use crate::backend::cpu::Cpu;".to_string(),
        ),
    ];
    for ((path, line), rule) in lines.iter().zip(&RULES) {
        let hits = broken(path, line);
        assert!(
            hits.len() == 1 && hits[0].ends_with(rule.name),
            "{line}: {hits:?}"
        );
    }
    let comments = "/// Of a row.\nlet a = 1;\n// Office hours.\n//\n// As above.\n";
    let hits = without_a_noun("src/a.rs", comments);
    assert_eq!(hits, ["src/a.rs:1: a comment begins with a noun"]);
    assert!(has_banned_name("src/string_utils.rs") && !has_banned_name("src/newton.rs"));
}

#[test]
fn every_case_names_tests_that_exist() {
    let root = Site::here().root;
    let text = fs::read_to_string(root.join(CASES)).expect("the list is there");
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<&str> = rows.filter(|row| *row != "| case | tests |").collect();
    let missing = rows.iter().flat_map(|row| missing(&root, row));
    let missing: Vec<String> = missing.collect();
    assert!(!rows.is_empty() && missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_test_that_does_not_exist_is_missed() {
    let root = Site::here().root;
    let row = "| a | `build/xtask/src/tidy_tests.rs missing` `src/none.rs a` |";
    assert_eq!(missing(&root, row).len(), 2, "a helper and a file");
    assert_eq!(missing(&root, "| a | none |"), ["| a | none |"]);
}
