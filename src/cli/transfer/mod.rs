//! Weights and bundles from one host to another, without a network: `import`, `bundle`, `install`,
//! `uninstall`.
//!
//! A bundle is a folder: the binary, the files of the weights (whole or in parts), a script that
//! only verifies and then starts the binary's `install`, and `SHA256SUMS`, which names every other
//! file and may be signed.

pub mod bundle;
pub mod copy;
pub mod import;
pub mod install;
mod record;
mod stage;
pub mod sums;

/// The list of digests, in the format of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";
/// Signature of the list of digests, by minisign.
pub const SIGNATURE: &str = "SHA256SUMS.minisig";
/// Folder of a bundle with the files of the weights.
pub const WEIGHTS: &str = "weights";
/// The script of a bundle.
pub const INSTALLER: &str = "install.sh";
