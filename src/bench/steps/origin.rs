//! Program and machine of a measurement, without which two reports are not comparable.

use std::fs;
use std::io;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::start::machine;
use model::weights::hex::hex;

/// Program and machine of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Origin {
    /// SHA-256 of the program's file; None if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_sha256: Option<String>,
    /// GPU, clock of its SMs, power and temperature, directly after the measurement.
    machine: String,
}

impl Origin {
    /// Origin of this process's figures, with clock and power as they are now.
    pub fn now() -> Origin {
        Origin {
            binary_sha256: own_digest().ok(),
            machine: machine::measured_on(),
        }
    }
}

fn own_digest() -> io::Result<String> {
    Ok(hex(&Sha256::digest(fs::read("/proc/self/exe")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_knows_its_digest_and_its_machine() {
        let origin = serde_json::to_value(Origin::now()).unwrap();
        assert_eq!(origin["binary_sha256"].as_str().map(str::len), Some(64));
        assert!(
            origin["machine"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
}
