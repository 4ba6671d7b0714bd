//! Weights of a site of the model, from a checkpoint onto a backend.

use crate::ops::{Attend, Device, PoolRegion};
use crate::pools::Pools;
use crate::shapes;
use crate::target::{Role, Site};
use crate::weights::{Checkpoint, WeightsError};
use step::executor::DeviceError;

/// Memory of the KV caches and states of the layers that are being loaded.
pub enum Memory<'a, P> {
    /// Parts of a model's pools, where all layers' parts of a page are adjacent.
    Pooled(&'a mut Pools<P>),
    /// Buffers for each layer alone; a KV cache has so many pages.
    Own(usize),
}

/// Loads the matrices and vectors of one site after the other.
pub struct Loader<'a, B: Device> {
    pub ops: &'a mut B,
    pub checkpoint: &'a Checkpoint,
    pub memory: Memory<'a, B::Pool>,
    pub site: Site,
}

impl<B: Device> Loader<'_, B> {
    /// The loader at another site.
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
    /// `WeightsError` when the checkpoint cannot be read or holds a value that is not finite;
    /// likewise in the functions below.
    pub fn matrix(&mut self, role: Role) -> Result<B::Matrix, WeightsError> {
        let matrix = self.checkpoint.matrix(role, self.site);
        self.ops.load_matrix(&[matrix])
    }

    /// The vector of a role. `# Errors` as `matrix`.
    pub fn vector(&mut self, role: Role) -> Result<B::Vector, WeightsError> {
        let vector = self.checkpoint.vector(role, self.site);
        self.ops.load_vector(&vector)
    }

    /// The number of a role. `# Errors` as `matrix`.
    pub fn scalar(&self, role: Role) -> Result<f32, WeightsError> {
        let values = self.checkpoint.vector(role, self.site).read_f32()?;
        Ok(values[0])
    }

    /// The cache of the next attention layer.
    ///
    /// # Errors
    /// Too little memory.
    pub fn cache<A: shapes::Attention>(&mut self) -> Result<B::KvCache, DeviceError>
    where
        B: Attend<A>,
    {
        match &mut self.memory {
            Memory::Pooled(pools) => Ok(self.ops.cache_at(pools.page(A::PAGES, B::PAGE_BYTES))),
            Memory::Own(pages) => self.ops.kv_cache(*pages),
        }
    }

    /// The next recurrent layer's part of each state.
    ///
    /// # Errors
    /// Too little memory.
    pub fn states(&mut self, bytes: usize) -> Result<PoolRegion<B::Pool>, DeviceError> {
        match &mut self.memory {
            Memory::Pooled(pools) => Ok(pools.state(bytes)),
            Memory::Own(_) => self.ops.states(bytes),
        }
    }
}
