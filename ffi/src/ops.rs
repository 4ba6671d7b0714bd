//! The launchers of `ops.toml`, as bindgen reads them from the generated C header.
//!
//! Which kernel stands behind a symbol is decided by the linker: none is a link error, two are one.
#![allow(non_camel_case_types)]

include!(concat!(env!("OUT_DIR"), "/ops.rs"));
