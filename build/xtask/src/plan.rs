//! From a target to its actions: device objects if it has a GPU, cargo, and the check of the
//! binary.

use std::fs;
use std::path::{Path, PathBuf};

use manifest::Target;
use manifest::schema::hardware::Backend;

use crate::binary;
use crate::cuda::{self, Device, DeviceTarget, Probe, labelled};
use crate::glibc::{self, Programs};
use crate::graph::{Action, ActionId, Code, Error, Graph, Source};
use crate::toolchain::{CargoAdditions, Toolchain};

/// Name that cargo gives the binary.
const CARGO_BINARY: &str = "atlas";

/// Files and folders, beside those of the target, that decide the output of cargo.
const SOURCES: [&str; 20] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo/config.toml",
    "build/build.rs",
    "build/manifest",
    "ci/e2e/recordings/aider-edit.jsonl",
    "ci/e2e/recordings/claude-edit.jsonl",
    "ci/e2e/recordings/cline-edit.jsonl",
    "ci/e2e/recordings/codex-edit.jsonl",
    "ci/e2e/recordings/continue-edit.jsonl",
    "ci/e2e/recordings/opencode-edit.jsonl",
    "ci/e2e/recordings/qwen-edit.jsonl",
    "ci/e2e/recordings/vercel.jsonl",
    "ffi",
    "packaging/atlas.pub",
    "packaging/atlas.service",
    "packaging/config.toml",
    "packaging/drop-ins",
    "src",
];

/// Name of the cache that is shared by all targets which the toolchain's own rustc compiles.
const SHARED: &str = "shared";

/// Members of the workspace that the binary does not contain: path of the manifest, which cargo
/// needs, and path and text of an empty source.
const EMPTY: [(&str, &str, &str); 2] = [
    (
        "build/xtask/Cargo.toml",
        "build/xtask/src/main.rs",
        "fn main() {}\n",
    ),
    ("build/gguf/Cargo.toml", "build/gguf/src/lib.rs", ""),
];

/// Variables for access to a registry. They cannot change packages that `Cargo.lock` pins.
const NETWORK_VARIABLES: [&str; 8] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The actions of one target.
pub struct Plan {
    pub graph: Graph,
    /// The action whose output is the checked binary.
    pub last: ActionId,
    /// Name of the binary and of the last action's output.
    pub binary: String,
    /// Path at which the binary is published, relative to `.atlas`.
    pub published: PathBuf,
    /// The device half, for targets with a GPU.
    pub device: Option<Device>,
    /// Rust triple of the binary's host.
    pub triple: String,
}

/// Changes of a build that is not the product: more features of the binary's crate, and a probe of
/// its kernels.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    pub features: Vec<String>,
    pub probe: Option<Probe>,
}

/// Plans a variant of `target`.
///
/// # Errors
/// If the device toolchain lacks something, the sources cannot be listed, or there are no kernels
/// to probe.
pub fn plan(target: &Target, toolchain: &Toolchain, variant: &Variant) -> Result<Plan, Error> {
    let mut graph = Graph::new();
    let device = match target.hardware.backend {
        Backend::Cpu if variant.probe.is_some() => {
            let what = format!("{} has no kernels to probe", target.name);
            return Err(Error::plan("--probe", what));
        }
        Backend::Cpu => None,
        Backend::Cuda => {
            let (target, rustc) = (DeviceTarget::of(target, variant.probe)?, &toolchain.rustc);
            Some(cuda::plan(&mut graph, toolchain, &target, Some(rustc))?)
        }
    };
    let of_host;
    let additions = match &device {
        Some(device) => &device.cargo,
        None => {
            of_host = linked_for(&mut graph, toolchain)?;
            &of_host
        }
    };
    let cargo = graph.add(cargo(target, toolchain, additions, variant)?)?;
    let binary = match variant.probe {
        Some(probe) => format!("{}.{}", target.binary(), probe.name()),
        None => target.binary(),
    };
    let last = graph.add(check(&graph, cargo, &binary, toolchain))?;
    let published = Path::new("out").join(&target.name).join(&binary);
    let triple = additions.triple.as_ref().unwrap_or(&toolchain.host).clone();
    Ok(Plan {
        triple,
        graph,
        last,
        binary,
        published,
        device,
    })
}

/// Stand-ins of the C library for targets of this host, as additions to cargo.
fn linked_for(graph: &mut Graph, toolchain: &Toolchain) -> Result<CargoAdditions, Error> {
    let mut additions = CargoAdditions::default();
    let [cc, beside @ .., ar] = toolchain.cc.as_slice() else {
        unreachable!("the toolchain has four programs of the C compiler")
    };
    let programs = Programs { cc, ar, beside };
    glibc::link_with(graph, &toolchain.host, &programs, &mut additions)?;
    Ok(additions)
}

/// The action in which cargo compiles the binary of `target`.
fn cargo(
    target: &Target,
    toolchain: &Toolchain,
    additions: &CargoAdditions,
    variant: &Variant,
) -> Result<Action, Error> {
    let label = labelled(format!("cargo {}", target.name), variant.probe);
    // The triple is stated even where it is this host's: then cargo compiles build scripts and
    // macros always without flags, and once for targets of all hosts.
    let triple = additions.triple.as_ref().unwrap_or(&toolchain.host);
    let argv = ["cargo", "build", "--release", "--locked", "--target"];
    let argv = argv.into_iter().chain([triple, "--bin", CARGO_BINARY]);
    let features = variant.features.iter();
    let features = features.flat_map(|name| ["--features", name]);
    let more = additions.args.iter().map(String::as_str);
    let argv = argv.chain(more).chain(features);
    let rustc = additions.rustc.as_ref();
    let action = Action::process(&label, argv)
        .tools([&toolchain.cargo, rustc.unwrap_or(&toolchain.rustc)])
        .tools(&toolchain.cc)
        .tools(&additions.tools);
    let mut action = sources(action, target, &toolchain.root)?;
    action.inputs.extend(additions.inputs.iter().cloned());
    action = action
        .env("ATLAS_TARGET", &target.name)
        .env("CARGO_TARGET_DIR", "{cache}")
        .env("CARGO_ENCODED_RUSTFLAGS", flags(toolchain))
        .env("CARGO_TERM_COLOR", "never")
        .env_uncovered("HOME", toolchain.home.display().to_string())
        .env_uncovered("CARGO_HOME", toolchain.cargo_home.display().to_string());
    for (name, value) in &additions.env {
        action = action.env(name, value);
    }
    for name in NETWORK_VARIABLES {
        if let Ok(value) = std::env::var(name) {
            action = action.env_uncovered(name, value);
        }
    }
    // Two compilers in one cache would compile build scripts again whenever targets alternate.
    let cache = match rustc {
        Some(_) => &target.leaf.hw,
        None => SHARED,
    };
    Ok(action
        .cache(&format!("cargo/{cache}"))
        .output_in_cache(&format!("{triple}/release/{CARGO_BINARY}")))
}

/// Variables by which a cargo outside of the graph finds dependencies that actions compiled: flags,
/// and the folder of intermediate files, which holds no binary.
pub fn sharing(toolchain: &Toolchain, atlas: &Path) -> [(&'static str, String); 2] {
    let (root, atlas) = (toolchain.root.display(), atlas.display());
    let flags = flags(toolchain)
        .replace("{root}", &root.to_string())
        .replace("{atlas}", &atlas.to_string());
    [
        ("CARGO_BUILD_BUILD_DIR", format!("{atlas}/cargo/{SHARED}")),
        ("CARGO_ENCODED_RUSTFLAGS", flags),
    ]
}

/// Flags of rustc that keep paths of this machine out of the binary; where several match, the last
/// one counts. No flag has an action's folder in it: different flags would compile all dependencies
/// again.
fn flags(toolchain: &Toolchain) -> String {
    let (home, cargo_home) = (toolchain.home.display(), toolchain.cargo_home.display());
    let registry = format!("{cargo_home}/registry/src");
    let sysroot = toolchain.rustc.path.ancestors().nth(2);
    let sysroot = sysroot.unwrap_or(Path::new("/"));
    let library = format!("{}/lib/rustlib/src/rust", sysroot.display());
    let maps = [
        (home.to_string(), "/home"),
        (cargo_home.to_string(), "/cargo"),
        (registry, "/cargo"),
        (library, "/rust"),
        ("{root}".to_string(), "/atlas"),
        ("{atlas}".to_string(), "/atlas/.atlas"),
    ];
    let flags = maps.map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    flags.join("\x1f")
}

/// Declares all files that cargo, build scripts and manifests read as inputs.
pub fn sources(mut action: Action, target: &Target, root: &Path) -> Result<Action, Error> {
    let mut paths = Vec::new();
    for source in SOURCES {
        files(root, Path::new(source), &mut paths)?;
    }
    let read = target.files_read();
    paths.extend(read.iter().map(|path| path.display().to_string()));
    paths.extend(EMPTY.map(|(manifest, _, _)| manifest.to_string()));
    paths.sort();
    paths.dedup();
    for path in &paths {
        action = action.workspace(path);
    }
    let stubs = EMPTY.map(|(_, path, text)| (path.to_string(), text));
    let unused = unused_targets(root)?.into_iter();
    let unused = unused.map(|path| (path, "fn main() {}\n"));
    for (path, text) in stubs.into_iter().chain(unused) {
        if !paths.contains(&path) {
            action = action.input(Source::Text(text.to_string()), &path);
        }
    }
    Ok(action)
}

/// Paths that `Cargo.toml` names for tests, benches and examples, which must exist for cargo.
fn unused_targets(root: &Path) -> Result<Vec<String>, Error> {
    let path = root.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let manifest = text.parse::<toml::Table>();
    let manifest = manifest.map_err(|why| Error::plan("cargo", why.to_string()))?;
    let kinds = ["test", "bench", "example"].into_iter();
    let entries = kinds.filter_map(|kind| manifest.get(kind)?.as_array());
    let paths = entries.flatten();
    let paths = paths.filter_map(|entry| entry.get("path")?.as_str());
    Ok(paths.map(String::from).collect())
}

/// Appends `path` or, for a folder, the files below it, relative to `root`; files that git would
/// ignore are left out.
pub fn files(root: &Path, path: &Path, to: &mut Vec<String>) -> Result<(), Error> {
    let full = root.join(path);
    if !full.is_dir() {
        to.push(path.display().to_string());
        return Ok(());
    }
    for entry in fs::read_dir(&full).map_err(Error::io("list", &full))? {
        let name = entry.map_err(Error::io("list", &full))?.file_name();
        let hidden =
            name.to_string_lossy().starts_with('.') || name.to_string_lossy().ends_with('~');
        if !hidden && name != "target" {
            files(root, &path.join(name), to)?;
        }
    }
    Ok(())
}

/// The action that refuses a binary with paths of the build machine in it.
fn check(graph: &Graph, cargo: ActionId, binary: &str, toolchain: &Toolchain) -> Action {
    let output = graph.action(cargo).outputs[0].path.clone();
    let label = format!("check {binary}");
    Action::built_in(label, "check_paths", check_paths, Code::Executable)
        .arg("workspace", "{root}")
        .arg("home", toolchain.home.display().to_string())
        .arg("binary", binary)
        .input(cargo.output(output), "in")
        .output(binary)
}

fn check_paths(sandbox: &crate::graph::Sandbox<'_>) -> Result<(), String> {
    let bytes =
        fs::read(sandbox.path("in")).map_err(|why| format!("cannot read the binary: {why}"))?;
    for name in ["workspace", "home"] {
        binary::refuse_path(&bytes, sandbox.arg(name)?)?;
    }
    let out = sandbox.path(sandbox.arg("binary")?);
    fs::copy(sandbox.path("in"), out)
        .map(|_| ())
        .map_err(|why| format!("cannot copy the binary: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::action::Work;
    use crate::site::Site;

    fn cargo_action() -> (Target, Action) {
        let site = Site::here();
        let target = site.target(None).unwrap();
        let toolchain = Toolchain::find(&site.root).unwrap();
        let variant = Variant {
            features: vec!["tls".to_string()],
            probe: None,
        };
        let action = cargo(&target, &toolchain, &CargoAdditions::default(), &variant).unwrap();
        (target, action)
    }

    fn declares(action: &Action, path: &str) -> bool {
        let mut inputs = action.inputs.iter();
        inputs
            .any(|input| matches!(&input.from, Source::Workspace(from) if *from == Path::new(path)))
    }

    #[test]
    fn cargo_is_given_what_the_manifest_reads() {
        let (target, action) = cargo_action();
        for path in target.files_read() {
            assert!(
                declares(&action, &path.display().to_string()),
                "{}",
                path.display()
            );
        }
        assert!(declares(&action, "Cargo.lock") && declares(&action, "src/main.rs"));
    }

    #[test]
    fn a_change_of_xtask_does_not_compile_the_binary_again() {
        let (_, action) = cargo_action();
        let xtask = action
            .inputs
            .iter()
            .filter(|input| input.at.starts_with("build/xtask/src"));
        let xtask: Vec<_> = xtask.collect();
        assert!(matches!(xtask.as_slice(), [only] if matches!(only.from, Source::Text(_))));
    }

    #[test]
    fn targets_share_flags_and_cache() {
        let (_, action) = cargo_action();
        assert_eq!(action.cache.as_deref(), Some("cargo/shared"));
        let flags = action
            .env
            .iter()
            .find(|variable| variable.name.ends_with("RUSTFLAGS"));
        let value = &flags.unwrap().value;
        assert!(
            !value.contains("cpu/tiny") && !value.contains("{work}"),
            "{value:?}"
        );
        let Work::Process { argv } = &action.work else {
            panic!("cargo is a process")
        };
        assert!(argv.contains(&"--locked".to_string()));
        assert!(argv.ends_with(&["--features".to_string(), "tls".to_string()]));
    }
}
