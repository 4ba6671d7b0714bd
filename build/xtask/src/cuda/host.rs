//! The host compiler and the Rust standard library of a target, found before any action runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::graph::{Error, Tool};
use crate::toolchain::tool;

pub const X86_64: &str = "x86_64-unknown-linux-gnu";
pub const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Path of Debian's rustc, which may lie beside one that rustup manages.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Tools that compile and link a target's host code.
#[derive(Clone, Debug)]
pub struct Host {
    /// Rust triple of the target.
    pub triple: String,
    /// The C++ compiler that nvcc hands host code to.
    pub cxx: Tool,
    /// The compiler driver that rustc links with.
    pub linker: Tool,
    pub ar: Tool,
    /// Programs that the compilers start by name.
    pub beside: Vec<Tool>,
    /// A rustc other than the toolchain's, if only this one has the target's standard library.
    pub rustc: Option<Tool>,
}

impl Host {
    /// Finds the tools for `triple` on `build_host`, with a standard library for `rustc`; without a
    /// `rustc`, only the tools that kernels need.
    ///
    /// # Errors
    /// All missing tools, each with the package that has it.
    pub fn find(triple: &str, build_host: &str, rustc: Option<&Tool>) -> Result<Host, Error> {
        let (prefix, package, binutils) = match triple {
            _ if triple == build_host => ("", "g++", "binutils"),
            AARCH64 => (
                "aarch64-linux-gnu-",
                "g++-aarch64-linux-gnu",
                "binutils-aarch64-linux-gnu",
            ),
            X86_64 => (
                "x86_64-linux-gnu-",
                "g++-x86-64-linux-gnu",
                "binutils-x86-64-linux-gnu",
            ),
            other => {
                return Err(lacks(&[format!("no host compiler is known for {other}")]));
            }
        };
        let mut missing = Vec::new();
        let mut find = |name: &str, package| {
            let program = format!("{prefix}{name}");
            let found = tool(&program);
            if found.is_none() {
                missing.push(format!("`{program}` (Debian: apt-get install {package})"));
            }
            found
        };
        let cxx = find("g++", package);
        let linker = find("gcc", package);
        let beside = [find("as", binutils), find("ld", binutils)];
        let ar = find("ar", binutils);
        let rustc = rustc.map_or(Ok(None), |rustc| rustc_for(triple, rustc));
        let rustc = rustc.unwrap_or_else(|what| {
            missing.push(what);
            None
        });
        match (cxx, linker, ar) {
            (Some(cxx), Some(linker), Some(ar)) if missing.is_empty() => Ok(Host {
                triple: triple.to_string(),
                cxx,
                linker,
                ar,
                beside: beside.into_iter().flatten().collect(),
                rustc,
            }),
            _ => Err(lacks(&missing)),
        }
    }
}

/// Error about missing programs, each with the package that has it.
fn lacks(missing: &[String]) -> Error {
    let missing = missing.join("\n  ");
    Error::Host {
        what: format!("this target needs what this machine lacks:\n  {missing}"),
    }
}

/// `None` if `rustc` has the standard library of `triple`, else Debian's rustc if it has.
fn rustc_for(triple: &str, rustc: &Tool) -> Result<Option<Tool>, String> {
    if has_std(&rustc.path, triple) {
        return Ok(None);
    }
    if has_std(Path::new(DEBIAN_RUSTC), triple)
        && let Some(tool) = tool(DEBIAN_RUSTC)
    {
        return Ok(Some(Tool {
            name: "rustc".to_string(),
            ..tool
        }));
    }
    Err(format!(
        "Rust's standard library for {triple} (rustup target add {triple}; or Debian: dpkg \
         --add-architecture arm64 && apt-get update && apt-get install rustc-web \
         libstd-rust-web-dev:arm64)"
    ))
}

fn has_std(rustc: &Path, triple: &str) -> bool {
    let printed = Command::new(rustc).args(["--print", "sysroot"]).output();
    printed.is_ok_and(|printed| {
        let root = PathBuf::from(String::from_utf8_lossy(&printed.stdout).trim());
        root.join("lib/rustlib").join(triple).join("lib").is_dir()
    })
}
