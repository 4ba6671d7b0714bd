//! Build script of the binary: passes the linker its archives and libraries.
//!
//! `ATLAS_OBJECTS` is the folder with the archives that the pipeline compiled for a target with
//! device code. `ATLAS_GLIBC` is the folder with the libraries that stand for the host's C library.
//! A change of either variable relinks the binary and compiles nothing else again.

use std::env;
use std::fs;
use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build/build.rs");
    link_glibc();
    let Err(error) = link() else {
        return ExitCode::SUCCESS;
    };
    println!("cargo::error=the archives of device code: {error}");
    ExitCode::FAILURE
}

/// Searches start files and libraries in the given folder first. Symbols that shared libraries of
/// the host want of its C library are not resolved; copy relocations, which would need addresses of
/// the older release, are refused.
fn link_glibc() {
    println!("cargo::rerun-if-env-changed=ATLAS_GLIBC");
    if let Ok(folder) = env::var("ATLAS_GLIBC") {
        println!("cargo::rerun-if-changed={folder}");
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

/// Links device archives whole, so that a missing launcher or a second one is a link error.
fn link() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed=ATLAS_OBJECTS");
    let Ok(folder) = env::var("ATLAS_OBJECTS") else {
        return match env::var("CARGO_FEATURE_CUDA") {
            Ok(_) => Err(io::Error::other("`cargo xtask build` builds this target")),
            Err(_) => Ok(()),
        };
    };
    println!("cargo::rustc-link-search=native={folder}");
    println!("cargo::rerun-if-changed={folder}");
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
