//! Manifests of `targets/` to one checked [`Target`], and from it to Rust and CUDA constants.
//!
//! ```text
//! targets/_hw/<hw>.toml             ┐
//! targets/_model/<model>/model.toml ├─ schema ─ check ─ Target ─┬─ emit_rust ─ target.rs
//! targets/<hw>/<model>/<quant>.toml ┘                           ├─ emit_cuda ─ target.cuh
//!                                                               └─ expanded ── TOML for people
//! ```
//!
//! Numbers of models are declared in `numbers`, switches of their math in `family/switches`: rules,
//! comparison with `config.json`, adoption and constants read these. A fact is stated once; numbers
//! that follow are computed. Output depends on the files alone: no clock, no path, no environment.

mod adopt;
mod bounds;
mod check;
mod config;
mod constants;
mod dequantise;
mod derive;
mod emit_cuda;
mod emit_rust;
mod emit_table;
mod error;
mod expand;
mod facts;
mod family;
mod files;
mod formats;
#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden;
mod kernels;
#[cfg(test)]
#[path = "needed_tests.rs"]
mod needed;
mod numbers;
mod params;
mod safetensors;
pub mod schema;
mod shapes;
pub mod table;
mod target;
#[cfg(test)]
mod testing;
mod weights;

pub use adopt::{Adopted, Open, Published, Source, adopt};
pub use error::ManifestError;
pub use files::{block as files_block, checkpoint_block};
pub use kernels::{KernelChoice, Launcher};
pub use shapes::camel;
pub use target::{DerivedFile, Target, leaves, load};
pub use weights::Part;
