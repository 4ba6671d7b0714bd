//! Cargo's hook: the manifest of the target becomes `target.rs` in `OUT_DIR`.
//!
//! Reads `ATLAS_TARGET` (`<hw>/<model>/<quant>`) and, for targets with device code,
//! `ATLAS_OBJECTS`: the folder with the archives that the pipeline compiled for it. `ATLAS_GLIBC`
//! is the folder with what the binary is linked with in place of the host's C library.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use manifest::Target;
use manifest::schema::hardware::Backend;

const DEFAULT_TARGET: &str = "cpu/tiny/nvfp4";

fn main() -> ExitCode {
    let Err(error) = generate() else {
        return ExitCode::SUCCESS;
    };
    let text = error.to_string();
    text.lines()
        .for_each(|line| println!("cargo::error={line}"));
    ExitCode::FAILURE
}

fn generate() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=ATLAS_TARGET");
    let name = env::var("ATLAS_TARGET").unwrap_or_else(|_| DEFAULT_TARGET.into());
    let (root, out) = (env::var("CARGO_MANIFEST_DIR")?, env::var("OUT_DIR")?);
    let (root, out) = (Path::new(&root), Path::new(&out));
    let target = manifest::load(root, &name).inspect_err(|_| watch("targets"))?;
    watch(format!("targets/_model/{}", target.leaf.model)); // a file that is added later
    target.files_read().iter().for_each(watch);
    let derived = target.derived_files()?;
    for file in &derived {
        fs::write(out.join(&file.name), &file.content)?;
    }
    fs::write(out.join("target.rs"), target.emit_rust(&derived))?;
    choose("model", &["hybrid", "plain", "sliding"], target.decoder());
    choose("feed_forward", &["experts", "mlp"], target.feed_forward());
    link_glibc();
    link(&target)
}

/// Searches start files and libraries in the given folder first. Symbols that the host's own
/// libraries want of its C library are not looked for; copies of data are refused, for they would
/// need the addresses of that release.
fn link_glibc() {
    println!("cargo::rerun-if-env-changed=ATLAS_GLIBC");
    if let Ok(folder) = env::var("ATLAS_GLIBC") {
        watch(&folder);
        for argument in [
            &format!("-B{folder}"),
            &format!("-L{folder}"),
            "-Wl,--allow-shlib-undefined",
            "-Wl,-z,nocopyreloc,-z,text",
        ] {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}

/// Tells which of some kinds of code the target has.
fn choose(name: &str, kinds: &[&str], chosen: &str) {
    let kinds: Vec<_> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
    println!(
        "cargo::rustc-check-cfg=cfg({name}, values({}))",
        kinds.join(", ")
    );
    println!("cargo::rustc-cfg={name}={chosen:?}");
}

fn watch(path: impl AsRef<Path>) {
    println!("cargo::rerun-if-changed={}", path.as_ref().display());
}

/// Links device archives whole, so that a missing launcher or a second one is a link error.
fn link(target: &Target) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=ATLAS_OBJECTS");
    let name = &target.name;
    let folder = match (env::var("ATLAS_OBJECTS"), target.hardware.backend) {
        (Ok(folder), _) => folder,
        (Err(_), Backend::Cpu) => return Ok(()),
        _ => Err(format!(
            "{name} has device code: `cargo xtask build {name}` builds it"
        ))?,
    };
    println!("cargo::rustc-link-search=native={folder}");
    watch(&folder);
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let archive = name
            .strip_prefix("lib")
            .and_then(|name| name.strip_suffix(".a"));
        if let Some(archive) = archive {
            println!("cargo::rustc-link-lib=static:+whole-archive={archive}");
        }
    }
    Ok(())
}
