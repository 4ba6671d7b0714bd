//! Weights of a site of the model, from a checkpoint onto a backend.

use crate::ops::Device;
use crate::target::{Role, Site};
use crate::weights::{Checkpoint, WeightsError};

/// Loads the matrices and vectors of one site after the other.
pub struct Loader<'a, B: Device> {
    pub ops: &'a mut B,
    pub checkpoint: &'a Checkpoint,
    /// KV pages of each cache.
    pub pages: usize,
    pub site: Site,
}

impl<B: Device> Loader<'_, B> {
    /// The same at another site.
    pub fn at(&mut self, site: Site) -> &mut Self {
        self.site = site;
        self
    }

    /// Whether the site has weights of a role.
    pub fn has(&self, role: Role) -> bool {
        self.checkpoint.layout().has(role, self.site)
    }

    /// The matrix of a role.
    ///
    /// # Errors
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite; so
    /// below.
    pub fn matrix(&mut self, role: Role) -> Result<B::Matrix, WeightsError> {
        let matrix = self.checkpoint.matrix(role, self.site);
        self.ops.load_matrix(&[matrix])
    }

    /// The vector of a role. `# Errors` as `matrix`.
    pub fn vector(&mut self, role: Role) -> Result<B::Vector, WeightsError> {
        let vector = self.checkpoint.vector(role, self.site);
        self.ops.load_vector(&vector)
    }
}
