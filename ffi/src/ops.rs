//! The launchers of `ops.toml`, as bindgen reads them from the generated C header.
//!
//! Which kernel stands behind a symbol is decided by the linker: none is a link error, two are one.
#![allow(non_camel_case_types)]

/// A function of one of the types `atlas_<op>_launcher`, which C lets be null.
pub type Launcher<T> = <T as Nullable>::Function;

/// A pointer to a function that may be null.
pub trait Nullable {
    type Function;
}

impl<F> Nullable for Option<F> {
    type Function = F;
}

include!(concat!(env!("OUT_DIR"), "/ops.rs"));
