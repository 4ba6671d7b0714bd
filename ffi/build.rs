//! `ops.toml` -> `ops.h` -> Rust externs in `OUT_DIR/ops.rs`, and the link line of the CUDA
//! runtime.

use std::env;
use std::fs;
use std::path::PathBuf;

mod abi;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=ops.toml");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=abi.rs");
    let table = abi::parse(&fs::read_to_string("ops.toml")?)?;
    let bindings = bindgen::Builder::default()
        .header_contents("ops.h", &abi::header(&table))
        .allowlist_function("atlas_.*")
        .wrap_unsafe_ops(true)
        .layout_tests(false)
        .generate()?;
    bindings.write_to_file(out.join("ops.rs"))?;
    link_runtime();
    Ok(())
}

/// `ATLAS_CUDART` is the folder of `libcudart_static.a`; unset where nothing is linked, as for a
/// check.
fn link_runtime() {
    println!("cargo::rerun-if-env-changed=ATLAS_CUDART");
    if let Ok(folder) = env::var("ATLAS_CUDART") {
        println!("cargo::rustc-link-search=native={folder}");
        println!("cargo::rustc-link-lib=static=cudart_static");
    }
}
