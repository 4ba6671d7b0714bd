//! Release of a target: the stripped binary, archives of it, and files that state and prove its
//! origin.
//!
//! ```text
//! binary ─ strip ─┬─ contents ─┬─ data.tar ─ xz ──────┬─ assemble ─ .deb, SHA256SUMS ─ signature
//! cargo metadata ─┘            └─ release.tar ─ zstd ─┘
//! ```

mod archive;
mod bill;
mod changes;
mod crates;
mod package;
pub mod sign;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use manifest::Target;

pub use bill::Tool;
use changes::Release;

use crate::cuda;
use crate::graph::{self, Action, ActionId, Code, Error, Source};
use crate::plan::{Plan, sources};
use crate::toolchain::{Toolchain, versioned};

/// Version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Name of the file that is signed.
pub const SUMS: &str = "SHA256SUMS";

/// The release of a target.
pub struct Dist {
    /// Folder in which the release is published, relative to `.atlas`.
    pub folder: PathBuf,
    /// Name and source of each file.
    pub files: Vec<(String, Source)>,
}

/// Adds the actions of a release to the plan of its binary.
///
/// # Errors
/// If a program is missing, or the newest release in the changelog is not the workspace's.
pub fn plan(plan: &mut Plan, target: &Target, toolchain: &Toolchain) -> Result<Dist, Error> {
    let host = |what: String| Error::Host { what };
    let prefix = match plan.triple == toolchain.host {
        true => String::new(),
        false => format!("{}-linux-gnu-", machine(&plan.triple)),
    };
    let find = |name: &str, package: &str| versioned(name, package).map_err(host);
    let strip = find(&format!("{prefix}strip"), "binutils")?;
    let (xz, zstd) = (find("xz", "xz-utils")?, find("zstd", "zstd")?);
    let (stripped, crates) = (stripped(plan, &strip)?, crates(plan, target, toolchain)?);
    let made = Made {
        name: target.binary(),
        licensed: licensed(plan, stripped, crates)?,
        crates,
        tools: tools(plan, toolchain, &[&strip, &xz, &zstd])?,
        commit: commit(&toolchain.root),
    };
    let contents = contents(plan, target, &made)?;
    let best = &["--keep", "--threads=1", "-9"];
    let data = compressed(plan, contents, "data.tar", &xz, best)?;
    let release = compressed(plan, contents, "release.tar", &zstd, &["--quiet", "-19"])?;
    let time = newest(toolchain)?.seconds();
    assembled(plan, made, contents, [data, release], time)
}

fn newest(toolchain: &Toolchain) -> Result<Release, Error> {
    let path = toolchain.root.join(changes::FILE);
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    Release::newest(&text, VERSION).map_err(|what| Error::plan("dist", what))
}

/// Machine of a Rust triple, its first part.
fn machine(triple: &str) -> &str {
    triple.split('-').next().unwrap_or(triple)
}

/// Debian's name for the machine of a Rust triple.
fn debian_name(triple: &str) -> &'static str {
    match machine(triple) {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// Actions and facts from which packages are made.
struct Made {
    name: String,
    /// The action that adds all licences to the stripped program.
    licensed: ActionId,
    crates: ActionId,
    /// Tools of the build, in JSON.
    tools: String,
    commit: String,
}

/// File at the root of sources without git history that names their commit.
pub const COMMIT: &str = "COMMIT";

/// Commit of the sources at `root`, with a mark if files were changed since.
pub fn commit(root: &Path) -> String {
    if let Ok(text) = fs::read_to_string(root.join(COMMIT)) {
        return text.trim().to_string();
    }
    // The sources may belong to another user, as in a container.
    let asked = Command::new("git")
        .args(["-c", "safe.directory=*", "describe", "--always", "--dirty"])
        .args(["--abbrev=40", "--exclude=*"])
        .current_dir(root)
        .output();
    let said = asked.ok().filter(|done| done.status.success());
    said.map_or("unknown".to_string(), |done| {
        String::from_utf8_lossy(&done.stdout).trim().to_string()
    })
}

fn stripped(plan: &mut Plan, strip: &graph::Tool) -> Result<ActionId, Error> {
    let argv = [&strip.name, "--strip-all", "-o", "stripped", "binary"];
    let action = Action::process(format!("strip {}", plan.binary), argv)
        .tools([strip])
        .input(plan.last.output(&plan.binary), "binary")
        .output("stripped");
    plan.graph.add(action)
}

/// Adds the action that appends licences of crates and linked wheels to the stripped program.
fn licensed(plan: &mut Plan, stripped: ActionId, crates: ActionId) -> Result<ActionId, Error> {
    let label = format!("licences {}", plan.binary);
    let mut action = Action::built_in(label, "licences", package::licensed, Code::Executable)
        .workspace(package::LICENCE)
        .input(stripped.output("stripped"), "stripped")
        .input(crates.output("crates.json"), "crates.json")
        .output("binary")
        .output("licenses.txt");
    for (wheel, folder) in plan.device.iter().flat_map(|device| &device.licences) {
        let place = format!("{}/{wheel}", package::WHEEL_LICENCES);
        action = action.input(folder.clone(), &place);
    }
    plan.graph.add(action)
}

/// Adds the action that lists crates once cargo has compiled them: their sources are present then.
fn crates(plan: &mut Plan, target: &Target, toolchain: &Toolchain) -> Result<ActionId, Error> {
    let features = if plan.device.is_some() { "cuda" } else { "" };
    let label = format!("crates {}", target.name);
    let action = Action::built_in(label, "crates", crates::collect, Code::Executable)
        .arg("cargo", toolchain.cargo.path.display().to_string())
        .arg("rustc", toolchain.rustc.path.display().to_string())
        .arg("cargo_home", toolchain.cargo_home.display().to_string())
        .arg("triple", &plan.triple)
        .arg("features", features)
        .input(plan.last.output(&plan.binary), "binary")
        .output("crates.json");
    plan.graph.add(sources(action, target, &toolchain.root)?)
}

/// The programs that made the binary and its packages, in JSON.
fn tools(plan: &Plan, toolchain: &Toolchain, others: &[&graph::Tool]) -> Result<String, Error> {
    let mut tools = match plan.device {
        Some(_) => cuda::wheels(&toolchain.root, &plan.triple)
            .map_err(|what| Error::plan("device code", what))?,
        None => Vec::new(),
    };
    let compilers = [&toolchain.rustc].into_iter().chain(&toolchain.cc);
    let programs = compilers.chain(others.iter().copied());
    tools.extend(programs.map(|tool| Tool {
        name: tool.name.clone(),
        version: tool.identity.lines().next().unwrap_or_default().to_string(),
        sha256: None,
        purpose: "a program of the machine that built".to_string(),
        linked: false,
    }));
    Ok(serde_json::to_string(&tools).expect("tools are plain text"))
}

fn contents(plan: &mut Plan, target: &Target, made: &Made) -> Result<ActionId, Error> {
    let label = format!("contents {}", made.name);
    let mut action = Action::built_in(label, "contents", package::contents, Code::Executable)
        .arg("name", &made.name)
        .arg("version", VERSION)
        .arg("facts", package::facts(target))
        .arg("tools", &made.tools)
        .arg("commit", &made.commit)
        .input(made.licensed.output("binary"), "binary")
        .input(made.licensed.output("licenses.txt"), "licenses.txt")
        .input(made.crates.output("crates.json"), "crates.json")
        .output("data.tar")
        .output("control.tar.gz")
        .output("release.tar")
        .output("MANIFEST.json")
        .output("sbom.json");
    for path in package::TEMPLATES {
        action = action.workspace(path);
    }
    plan.graph.add(action)
}

/// Adds an action that compresses the output `file` of `from`; returns the compressed file.
fn compressed(
    plan: &mut Plan,
    from: ActionId,
    file: &str,
    tool: &graph::Tool,
    options: &[&str],
) -> Result<Source, Error> {
    let label = format!("{} {file} of {}", tool.name, plan.binary);
    let packed = format!("{file}.{}", if tool.name == "xz" { "xz" } else { "zst" });
    let argv = [&[&*tool.name], options, &["--force", file]].concat();
    let action = Action::process(label, argv)
        .tools([tool])
        .input(from.output(file), file)
        .output(&packed);
    Ok(plan.graph.add(action)?.output(packed))
}

fn assembled(
    plan: &mut Plan,
    made: Made,
    contents: ActionId,
    [data, release]: [Source; 2],
    time: u64,
) -> Result<Dist, Error> {
    let name = &made.name;
    let deb = format!("{name}_{VERSION}_{}.deb", debian_name(&plan.triple));
    // A release has one such list of digests for each target.
    let list = format!("{name}.MANIFEST.json");
    let mut files = vec![
        (name.clone(), made.licensed.output("binary")),
        (format!("{name}-{VERSION}.tar.zst"), release),
        (format!("{name}.cdx.json"), contents.output("sbom.json")),
        (list, contents.output("MANIFEST.json")),
    ];
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let label = format!("assemble {}", made.name);
    let mut action = Action::built_in(label, "assemble", package::assemble, Code::Executable)
        .arg("deb", &deb)
        .arg("time", time.to_string())
        .arg("sums", format!("{} {deb}", names.join(" ")))
        .input(contents.output("control.tar.gz"), "control.tar.gz")
        .input(data, "data.tar.xz")
        .output(&deb)
        .output(SUMS);
    for (name, source) in &files {
        action = action.input(source.clone(), name);
    }
    let last = plan.graph.add(action)?;
    let outputs = [deb, SUMS.to_string()];
    files.extend(outputs.map(|name| (name.clone(), last.output(name))));
    let folder = PathBuf::from("dist").join(&made.name);
    Ok(Dist { folder, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_their_commit_with_and_without_their_history() {
        let here = commit(&crate::site::Site::here().root);
        let digits = here.trim_end_matches("-dirty");
        assert!(
            digits.len() == 40 && digits.chars().all(|c| c.is_ascii_hexdigit()),
            "{here}"
        );
        let folder = std::env::temp_dir().join(format!("atlas-commit-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(commit(&folder), "unknown");
        fs::write(folder.join(COMMIT), "abc\n").unwrap();
        assert_eq!(commit(&folder), "abc");
        fs::remove_dir_all(&folder).unwrap();
    }
}
