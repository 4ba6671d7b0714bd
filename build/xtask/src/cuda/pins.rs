//! `build/toolchain.toml`: which wheels the build uses.

use std::fmt;

use serde::Deserialize;

/// Path of the table from the root of the workspace.
pub const FILE: &str = "build/toolchain.toml";

/// One wheel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Name on the index: `<name>-<version>-<python>-<abi>-<platforms>.whl`.
    pub file: String,
    /// Lower-case hexadecimal digest of the file.
    pub sha256: String,
    /// What the build takes from it; for people.
    #[serde(rename = "use")]
    pub purpose: String,
}

impl Pin {
    fn part(&self, index: usize) -> &str {
        let stem = self.file.trim_end_matches(".whl");
        stem.split('-').nth(index).unwrap_or("")
    }

    /// Name of the project, with `_` for `-`.
    pub fn name(&self) -> &str {
        self.part(0)
    }

    pub fn version(&self) -> &str {
        self.part(1)
    }

    /// First platform tag, which is enough for pip to find the file; `None` for `any`.
    pub fn platform(&self) -> Option<&str> {
        let tags = self.part(4);
        let first = tags.split('.').next().unwrap_or("");
        (first != "any").then_some(first)
    }

    fn check(&self) -> Result<(), String> {
        let digest = self.sha256.len() == 64 && self.sha256.chars().all(|c| c.is_ascii_hexdigit());
        let parts = self.file.ends_with(".whl") && self.file.split('-').count() == 5;
        match (parts, digest) {
            (false, _) => Err(format!(
                "`{}` is not <name>-<version>-<python>-<abi>-<platform>.whl",
                self.file
            )),
            (_, false) => Err(format!(
                "sha256 of `{}` is not 64 hexadecimal digits",
                self.file
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, version) = (self.name(), self.version());
        write!(
            f,
            "{name} {version} (file {}, sha256 {})",
            self.file, self.sha256
        )
    }
}

/// All pins. A tool that the build needs is a field, so a missing one is an error at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    pub nvcc: Pin,
    pub nvvm: Pin,
    pub crt: Pin,
    pub cccl: Pin,
    pub cudart_x86_64: Pin,
    pub cudart_aarch64: Pin,
    pub cuobjdump: Pin,
    pub nvdisasm: Pin,
    pub cutlass: Pin,
    pub libclang: Pin,
}

impl Pins {
    /// Parses the text of [`FILE`].
    ///
    /// # Errors
    /// One line that names the file and the pin.
    pub fn parse(text: &str) -> Result<Pins, String> {
        let pins: Pins = toml::from_str(text).map_err(|why| format!("{FILE}: {why}"))?;
        for pin in pins.all() {
            pin.check().map_err(|why| format!("{FILE}: {why}"))?;
        }
        Ok(pins)
    }

    /// Every pin.
    pub fn all(&self) -> [&Pin; 10] {
        [
            &self.nvcc,
            &self.nvvm,
            &self.crt,
            &self.cccl,
            &self.cudart_x86_64,
            &self.cudart_aarch64,
            &self.cuobjdump,
            &self.nvdisasm,
            &self.cutlass,
            &self.libclang,
        ]
    }
}
