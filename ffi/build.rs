//! Build script: makes `ops.h` and Rust externs in `OUT_DIR/ops.rs` from `ops.toml` and the shapes
//! of the target `ATLAS_TARGET`, and links the CUDA runtime.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

mod abi;

/// Target whose launchers are declared when `ATLAS_TARGET` is not set, as in a check.
const DEFAULT_TARGET: &str = "cpu/tiny/nvfp4";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=ops.toml");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=abi.rs");
    let table = abi::parse(&fs::read_to_string("ops.toml")?)?;
    println!("cargo::rerun-if-env-changed=ATLAS_TARGET");
    let name = env::var("ATLAS_TARGET").unwrap_or_else(|_| DEFAULT_TARGET.into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.expect("the crate is a folder of the workspace");
    let target = manifest::load(root, &name)?;
    for file in target.files_read() {
        println!("cargo::rerun-if-changed={}", root.join(file).display());
    }
    let launchers = target.launchers();
    let names = launchers
        .iter()
        .map(|launcher| (launcher.op, launcher.name.as_str()));
    let bindings = bindgen::Builder::default()
        .header_contents("ops.h", &abi::header(&table, names)?)
        .allowlist_function("atlas_.*")
        .allowlist_type("atlas_.*_launcher")
        .wrap_unsafe_ops(true)
        .layout_tests(false)
        .generate()?;
    bindings.write_to_file(out.join("ops.rs"))?;
    link_runtime();
    Ok(())
}

/// Links the CUDA runtime. `ATLAS_CUDART` is the folder of `libcudart_static.a`; unset where
/// nothing is linked, as in a check.
fn link_runtime() {
    println!("cargo::rerun-if-env-changed=ATLAS_CUDART");
    if let Ok(folder) = env::var("ATLAS_CUDART") {
        println!("cargo::rustc-link-search=native={folder}");
        println!("cargo::rustc-link-lib=static=cudart_static");
    }
}
