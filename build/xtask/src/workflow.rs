//! The workflow files of GitHub Actions, generated from the targets: a new target is tested and
//! released without a line of YAML.

use std::fs;
use std::path::Path;

use manifest::Target;

use crate::cuda;
use crate::site::{Failure, Site};

/// Folder of the files, from the root of the workspace.
pub const FOLDER: &str = ".github/workflows";

/// Names and templates of the files; marks stand for targets, and for text of every job.
pub const FILES: [(&str, &str); 4] = [
    ("ci.yml", include_str!("workflow/ci.yml")),
    ("nightly.yml", include_str!("workflow/nightly.yml")),
    ("weekly.yml", include_str!("workflow/weekly.yml")),
    ("release.yml", include_str!("workflow/release.yml")),
];
const RELEASE: &str = "release.yml";
const SETUP: &str = include_str!("workflow/setup.yml");
const STORE: &str = include_str!("workflow/store.yml");

/// Third-party actions, pinned by digests, since a tag or a name can be moved.
const PINS: [(&str, &str); 6] = [
    (
        "@CHECKOUT@",
        "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2",
    ),
    (
        "@CACHE@",
        "actions/cache@5a3ec84eff668545956fd18022155c47e93e2684 # v4.2.3",
    ),
    (
        "@UPLOAD@",
        "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2",
    ),
    (
        "@DOWNLOAD@",
        "actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093 # v4.3.0",
    ),
    (
        "@ATTEST@",
        "actions/attest-build-provenance@e8998f949152b193b063cb0ec769d69d929409be # v2.4.0",
    ),
    (
        "@DEBIAN@",
        "debian:12@sha256:8a8cd02c5912770b4980228a54d4aff9e4f986f1eb2525d2d371dec5232cefcc",
    ),
];
/// Debian packages that every job installs.
const PACKAGES: &str = "ca-certificates curl git gcc g++ python3 python3-pip xz-utils zstd";
/// Packages for device code whose host is GB10's, an aarch64.
const CROSS: &str = "g++-aarch64-linux-gnu binutils-aarch64-linux-gnu qemu-user-static";
/// Packages without which the suite skips steps.
const SUITE: &str =
    "chromium nginx caddy haproxy openssl minisign zsh fish lintian strace prometheus";
/// Targets that are built twice, in different folders, and must be equal bit by bit.
const REPRODUCED: [&str; 2] = ["cpu/tiny/nvfp4", "gb10/tiny/nvfp4"];
/// Targets that every pull request builds beside the suite's: dense and sparse, FP8 and FP4.
const REPRESENTATIVE: [&str; 3] = [
    "cpu/qwen3.5-27b/nvfp4",
    "gb10/qwen3.5-35b-a3b/nvfp4-w4a4",
    "h200/qwen3.6-35b-a3b/fp8",
];
/// Minutes that all machines of a pull request may take.
#[cfg(test)]
const PULL_REQUEST_MINUTES: usize = 90;
/// Targets that a job builds one after the other, within its time from a cold store.
const SHARD: usize = 11;

/// Name and text of each file.
///
/// # Errors
/// If the targets cannot be listed or one is wrong.
pub fn files(site: &Site) -> Result<[(&'static str, String); 4], Failure> {
    let (leaves, served) = (site.leaves()?, served(site)?);
    let experimental = served.iter().filter(|target| !is_measured(site, target));
    let experimental: Vec<String> = experimental.map(|target| target.binary()).collect();
    let released: Vec<String> = served.iter().map(|target| target.name.clone()).collect();
    let rustup = cuda::pins(&site.root)?.rustup;
    Ok(FILES.map(|(name, text)| {
        let targets = if name == RELEASE { &released } else { &leaves };
        let shards: Vec<String> = targets.chunks(SHARD).map(|part| part.join(" ")).collect();
        let mut marks = vec![
            ("@SUITE@", setup(&[PACKAGES, CROSS, SUITE].join(" "))),
            ("@BUILD@", setup(&[PACKAGES, CROSS].join(" "))),
            ("@STORE@", STORE.trim_end().to_string()),
            ("@SHARDS@", rows("          - ", &shards)),
            ("@REPRODUCED@", rows("            ", &REPRODUCED)),
            ("@REPRESENTATIVE@", rows("            ", &REPRESENTATIVE)),
            ("@EXPERIMENTAL@", rows("            ", &experimental)),
            ("@RUSTUP@", rustup.file.clone()),
            ("@RUSTUP_SHA256@", rustup.sha256.clone()),
        ];
        marks.extend(PINS.map(|(mark, pin)| (mark, pin.to_string())));
        let fill = |text: String, (mark, value): &(&str, String)| text.replace(mark, value);
        let text = marks.iter().fold(text.to_string(), fill);
        let minutes: Vec<String> = jobs(&text).iter().map(Job::minutes).collect();
        (name, text.replace("@MINUTES@", &minutes.join(", ")))
    }))
}

/// A job of a workflow file.
struct Job<'t> {
    name: &'t str,
    /// Lines from the job's name to the next job.
    text: String,
}

impl Job<'_> {
    /// Text after the first occurrence of a key in the job.
    fn value(&self, key: &str) -> Option<&str> {
        let mut lines = self.text.lines().map(str::trim_start);
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
    }

    /// Machines that run the job: one for each row of its matrix.
    fn machines(&self) -> usize {
        let rows = self.text.lines();
        let rows = rows.skip_while(|line| !line.contains("matrix:"));
        let mut rows = rows.take_while(|line| line.starts_with("      ")).skip(1);
        let first = rows.next().unwrap_or_default();
        let listed = rows.take_while(|row| row.trim_start().starts_with("- "));
        (first.matches(',').count() + 1).max(listed.count())
    }

    /// Minutes after which a machine is stopped.
    fn limit(&self) -> usize {
        let minutes = self.value("timeout-minutes");
        minutes.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn minutes(&self) -> String {
        match self.machines() {
            1 => format!("{} {}", self.limit(), self.name),
            machines => format!("{machines} x {} {}", self.limit(), self.name),
        }
    }
}

/// Jobs in the text of a workflow file.
fn jobs(text: &str) -> Vec<Job<'_>> {
    let (_, jobs) = text.split_once("\njobs:\n").unwrap_or_default();
    let mut found: Vec<Job<'_>> = Vec::new();
    let is_comment = |line: &&str| line.trim_start().starts_with('#');
    for line in jobs.lines().filter(|line| !is_comment(line)) {
        let name = line.trim().trim_end_matches(':');
        match found.last_mut() {
            Some(job) if line.starts_with("   ") => job.text += &format!("{line}\n"),
            _ => {
                let text = String::new();
                found.push(Job { name, text });
            }
        }
    }
    found
}

/// Most minutes of all machines of a file's jobs together.
fn minutes(text: &str) -> usize {
    let minutes = |job: &Job<'_>| job.machines() * job.limit();
    jobs(text).iter().map(minutes).sum()
}

/// Jobs of each file, each with the jobs that it waits for and the most minutes it takes.
///
/// # Errors
/// If the targets cannot be listed or one is wrong.
pub fn graph(site: &Site) -> Result<String, Failure> {
    Ok(drawn(&files(site)?))
}

fn drawn(files: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (name, text) in files {
        let (_, on) = text.split_once("\non:\n").unwrap_or_default();
        let on = on.lines().take_while(|line| line.starts_with(' '));
        let on = on.filter_map(|line| line.strip_prefix("  ")?.split(':').next());
        let on: Vec<&str> = on.filter(|key| !key.starts_with(' ')).collect();
        let sum = minutes(text);
        out += &format!("{name}, on {}: {sum} minutes at most\n", on.join(" and "));
        for job in jobs(text) {
            let after = job.value("needs").map(|needs| format!(", after {needs}"));
            out += &format!("  {}{}\n", job.minutes(), after.unwrap_or_default());
        }
    }
    out
}

/// Whether the baseline has figures of the target on its hardware.
fn is_measured(site: &Site, target: &Target) -> bool {
    let name = target.name.replace('/', "-");
    site.root.join(format!("ci/baseline/{name}.json")).is_file()
}

/// Targets that answer requests; others are for tests and measurements.
fn served(site: &Site) -> Result<Vec<Target>, Failure> {
    let targets = site.leaves()?.into_iter();
    let targets = targets.map(|leaf| site.target(Some(&leaf)));
    let mut targets: Vec<_> = targets.collect::<Result<_, _>>()?;
    targets.retain(Target::serves);
    Ok(targets)
}

/// Writes the workflow files.
///
/// # Errors
/// If a file cannot be written.
pub fn write(site: &Site) -> Result<(), Failure> {
    let folder = site.root.join(FOLDER);
    let failed = |path: &Path, why: std::io::Error| format!("write {}: {why}", path.display());
    fs::create_dir_all(&folder).map_err(|why| failed(&folder, why))?;
    for (name, text) in files(site)? {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|why| failed(&path, why))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Lines of a list, each with `prefix` before its item.
fn rows(prefix: &str, items: &[impl AsRef<str>]) -> String {
    let rows = items.iter().map(AsRef::as_ref);
    let rows = rows.map(|item| format!("{prefix}{item}"));
    rows.collect::<Vec<_>>().join("\n")
}

/// Steps of a job that install packages, and check out sources and the pinned toolchain.
fn setup(packages: &str) -> String {
    SETUP.trim_end().replace("@PACKAGES@", packages)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    /// The files, of which each takes all targets to be loaded.
    static MADE: LazyLock<[(&str, String); 4]> = LazyLock::new(|| files(&Site::here()).unwrap());

    #[test]
    fn the_files_are_those_of_the_targets() {
        let site = Site::here();
        for (name, text) in &*MADE {
            let path = site.root.join(FOLDER).join(name);
            let kept = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                kept == *text,
                "{name} is out of date: `cargo xtask workflows` makes it"
            );
        }
    }

    fn text(name: &str) -> &'static str {
        let found = MADE.iter().find(|(found, _)| *found == name);
        &found.unwrap().1
    }

    /// Targets of the shards of a file.
    fn sharded(name: &str) -> Vec<String> {
        let text = text(name);
        let shards = text.lines().filter(|line| line.starts_with("          - "));
        let words = shards.flat_map(|line| line.split_whitespace().skip(1));
        words.map(String::from).collect()
    }

    #[test]
    fn every_target_is_built_each_night_and_those_that_serve_are_released() {
        let site = Site::here();
        assert_eq!(sharded("nightly.yml"), site.leaves().unwrap());
        let served = served(&site).unwrap();
        let names: Vec<_> = served.iter().map(|target| target.name.clone()).collect();
        assert_eq!(sharded(RELEASE), names);
        let release = text(RELEASE);
        let experimental = |name: &str| release.contains(&format!("            {name}\n"));
        assert!(experimental("atlas-gb10-tiny-nvfp4") && !experimental("atlas-cpu-tiny-nvfp4"));
    }

    #[test]
    fn a_pull_request_is_cheap_and_the_graph_says_what_waits_for_what() {
        assert!(minutes(text("ci.yml")) <= PULL_REQUEST_MINUTES);
        let graph = drawn(&*MADE);
        for line in [
            "weekly.yml, on schedule",
            "  3 x 30 installed, after dist\n",
            "  5 plan\n",
        ] {
            assert!(graph.contains(line), "{graph}");
        }
    }

    #[test]
    fn the_key_is_seen_by_one_job_which_compiles_nothing_and_no_job_lasts_for_ever() {
        for (name, _) in FILES {
            for job in jobs(text(name)) {
                assert!(job.limit() > 0, "{name}: {}", job.name);
                let trusted = name == RELEASE && job.name == "publish";
                let job = job.text;
                for word in ["secrets.", ": write", "environment:", "github.token"] {
                    assert_eq!(job.contains(word), trusted, "{name}: {word} in {job}");
                }
                assert!(!trusted || !job.contains("cargo"), "{job}");
            }
        }
    }
}
