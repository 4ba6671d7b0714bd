//! Transfer of weights and bundles without a network: `import`, `bundle`, `install`, `uninstall`.
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

/// Name of the list of digests, which has the format of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";
/// Name of the list's signature by minisign.
pub const SIGNATURE: &str = "SHA256SUMS.minisig";
/// Name of a bundle's folder with the files of the weights.
pub const WEIGHTS: &str = "weights";
/// Name of a bundle's script.
pub const INSTALLER: &str = "install.sh";
