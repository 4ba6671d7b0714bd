//! The launchers of `ops.toml`, as bindgen reads them from the generated C header.
//!
//! The linker binds a symbol to its kernel: without a kernel, or with two, linking fails.
#![allow(non_camel_case_types)]

/// Function of a launcher type `atlas_<op>_launcher`, without the null that C allows.
pub type Launcher<T> = <T as Nullable>::Function;

/// A function pointer that may be null.
pub trait Nullable {
    type Function;
}

impl<F> Nullable for Option<F> {
    type Function = F;
}

include!(concat!(env!("OUT_DIR"), "/ops.rs"));
