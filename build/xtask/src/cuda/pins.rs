//! `build/toolchain.toml`: the pinned wheels of the build.

use serde::Deserialize;

use crate::wheel::Pin;

/// Path of the table of pins, from the root of the workspace.
pub const FILE: &str = "build/toolchain.toml";

/// All pins. A wheel that the build needs is a field, so that a missing pin is an error at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    pub rust: Pin,
    pub rustup: Pin,
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
    pub actionlint: Pin,
    pub shellcheck: Pin,
    pub zizmor: Pin,
}

impl Pins {
    /// Parses the text of [`FILE`].
    ///
    /// # Errors
    /// One line that names the file and the pin.
    pub fn parse(text: &str) -> Result<Pins, String> {
        let pins: Pins = toml::from_str(text).map_err(|why| format!("{FILE}: {why}"))?;
        for pin in pins.all().into_iter().chain(pins.linters()) {
            pin.check().map_err(|why| format!("{FILE}: {why}"))?;
        }
        Ok(pins)
    }

    /// Wheels of linters for workflow files, which no build uses.
    pub fn linters(&self) -> [&Pin; 3] {
        [&self.actionlint, &self.shellcheck, &self.zizmor]
    }

    /// Every wheel that builds use.
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
