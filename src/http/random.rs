//! Ids and seeds that no two answers share, from the random keys of the standard hasher. Not for
//! secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// 64 random bits.
pub fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 128 random bits as 32 hexadecimal digits.
pub fn hex() -> String {
    format!("{:016x}{:016x}", bits(), bits())
}

/// A new id: `prefix` and 32 random hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", hex())
}
