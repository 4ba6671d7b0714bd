//! Cargo's build script: writes the manifest of the target as `target.rs` to `OUT_DIR`.
//!
//! Reads `ATLAS_TARGET` (`<hw>/<model>/<quant>`).

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

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
    let (own, out) = (env::var("CARGO_MANIFEST_DIR")?, env::var("OUT_DIR")?);
    let root = Path::new(&own).ancestors().nth(2);
    let root = root.ok_or("the crate is a folder of the workspace's `src`")?;
    let out = Path::new(&out);
    let watch = |path: &Path| println!("cargo::rerun-if-changed={}", root.join(path).display());
    let target = manifest::load(root, &name).inspect_err(|_| watch(Path::new("targets")))?;
    let model = Path::new("targets/_model").join(&target.leaf.model);
    watch(&model); // a file that is added later
    target.files_read().iter().for_each(|path| watch(path));
    let derived = target.derived_files()?;
    for file in &derived {
        fs::write(out.join(&file.name), &file.content)?;
    }
    fs::write(out.join("target.rs"), target.emit_rust(&derived))?;
    let kinds = target.block_kinds();
    for (kind, has) in &kinds {
        println!("cargo::rustc-check-cfg=cfg(has, values({kind:?}))");
        if *has {
            println!("cargo::rustc-cfg=has={kind:?}");
        }
    }
    let kinds: Vec<_> = kinds
        .iter()
        .map(|(kind, has)| format!("{kind}={has}"))
        .collect();
    println!("cargo::metadata=kinds={}", kinds.join(" "));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        // Unit tests of this crate call no device code, and are linked without any.
        println!("cargo::rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
    }
    Ok(())
}
