//! Programs of the host that actions may start, each with its identity in keys.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::graph::{Input, Tool, digest::Digest};

/// Root of the workspace, and host programs that a plan may use.
pub struct Toolchain {
    /// Absolute path of the workspace.
    pub root: PathBuf,
    pub cargo: Tool,
    pub rustc: Tool,
    /// The host's C compiler driver, by which rustc links, and programs that the driver starts.
    pub cc: Vec<Tool>,
    /// Rust triple of the host, such as `x86_64-unknown-linux-gnu`.
    pub host: String,
    /// The user's home folder, whose path a binary must not contain.
    pub home: PathBuf,
    /// Cargo's home folder, with the registry.
    pub cargo_home: PathBuf,
}

/// Additions of a target to the action that runs cargo.
#[derive(Default)]
pub struct CargoAdditions {
    /// Device objects and headers placed beside the sources.
    pub inputs: Vec<Input>,
    /// Programs that build scripts and the linker start.
    pub tools: Vec<Tool>,
    /// Variables of the action; `{work}` is the folder that holds the inputs.
    pub env: Vec<(String, String)>,
    /// Further arguments of `cargo build`, such as `--features cuda`.
    pub args: Vec<String>,
    /// Rust triple of the binary; by default that of this host.
    pub triple: Option<String>,
    /// A rustc in place of the toolchain's own, for cross-compiling.
    pub rustc: Option<Tool>,
}

impl Toolchain {
    /// Finds the programs on this host.
    ///
    /// # Errors
    /// Names the program that is missing and the way to get it.
    pub fn find(root: &Path) -> Result<Toolchain, String> {
        let rustc =
            on_path("rustc").ok_or("rustc is not on PATH; install it from https://rustup.rs")?;
        let sysroot = PathBuf::from(ask(&rustc, &["--print", "sysroot"], root)?.trim());
        let rustc = Tool {
            name: "rustc".to_string(),
            identity: ask(&rustc, &["-vV"], root)?.trim().to_string(),
            path: sysroot.join("bin/rustc"),
        };
        let mut lines = rustc.identity.lines();
        let host = lines.find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or("rustc -vV names no host")?.to_string();
        let home = PathBuf::from(env::var("HOME").map_err(|_| "HOME is not set")?);
        let cargo_home = env::var("CARGO_HOME").map_or_else(|_| home.join(".cargo"), PathBuf::from);
        let cargo = cargo(&sysroot, &cargo_home, &rustc)?;
        let cc = ["cc", "as", "ld", "ar"].into_iter();
        let cc = cc.map(|name| versioned(name, "gcc", root));
        let cc = cc.collect::<Result<_, _>>()?;
        Ok(Toolchain {
            root: root.to_path_buf(),
            cargo,
            rustc,
            cc,
            host,
            home,
            cargo_home,
        })
    }
}

/// Cargo of the toolchain, identified with its settings outside the workspace, which change builds.
fn cargo(sysroot: &Path, cargo_home: &Path, rustc: &Tool) -> Result<Tool, String> {
    let settings = ["config.toml", "config"].map(|name| std::fs::read(cargo_home.join(name)).ok());
    let settings = settings.into_iter().flatten().next();
    let release = rustc.identity.lines().next().unwrap_or_default();
    let identity = match settings.map(|text| Digest::of(&text)) {
        Some(digest) => format!("cargo of {release}, settings {digest}"),
        None => format!("cargo of {release}"),
    };
    let path = match sysroot.join("bin/cargo") {
        path if path.exists() => path,
        _ => on_path("cargo").ok_or("cargo is not on PATH")?,
    };
    let name = "cargo".to_string();
    Ok(Tool {
        name,
        path,
        identity,
    })
}

/// A program of `PATH` that identifies itself with `--version`.
///
/// # Errors
/// If the program is not found; `package` is the Debian package that has it.
pub fn versioned(name: &str, package: &str, root: &Path) -> Result<Tool, String> {
    let path =
        on_path(name).ok_or_else(|| format!("{name} is not on PATH; apt-get install {package}"))?;
    let text = ask(&path, &["--version"], root)?;
    let identity = text.lines().next().unwrap_or_default().to_string();
    Ok(Tool {
        name: name.to_string(),
        path,
        identity,
    })
}

/// Absolute path of a program in `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut found = env::split_paths(&path).map(|folder| folder.join(name));
    found.find(|path| path.is_file())
}

fn ask(program: &Path, args: &[&str], folder: &Path) -> Result<String, String> {
    let failed = |why: String| format!("{} {}: {why}", program.display(), args.join(" "));
    let mut command = Command::new(program);
    let output = command.args(args).current_dir(folder).output();
    let output = output.map_err(|why| failed(why.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
