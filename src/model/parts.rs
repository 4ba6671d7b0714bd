//! A model's weights, caches and scratch on a backend.

use super::Runs;
use crate::engine::executor::DeviceError;
use crate::ops::RANKED;
use crate::shapes::{Attention as _, Delta as _, Experts as _};
use crate::target::{self, Full, Gdn, HIDDEN, Moe, Role, Site, VOCAB};
use crate::weights::{Checkpoint, WeightsError};

use super::runner::ROWS_MAX;

/// Width of what a mixer leaves.
const MIXED: usize = match Full::HEADS * Full::HEAD_DIM {
    heads if heads > Gdn::VALUES => heads,
    _ => Gdn::VALUES,
};

pub struct Model<B: Runs> {
    pub embed: B::Matrix,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Vector,
    /// None when the embedding is the head.
    pub head: Option<B::Matrix>,
    pub mtp: Option<Mtp<B>>,
}

impl<B: Runs> Model<B> {
    /// What multiplies hidden states into logits.
    pub fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

pub struct Layer<B: Runs> {
    pub input_norm: B::Vector,
    pub mixer: Mixer<B>,
    pub post_norm: B::Vector,
    pub moe: MoeLayer<B>,
}

pub enum Mixer<B: Runs> {
    Gdn(GdnLayer<B>),
    Attention(Attention<B>),
}

pub struct GdnLayer<B: Runs> {
    pub qkv: B::Matrix,
    pub z: B::Matrix,
    pub b: B::Matrix,
    pub a: B::Matrix,
    pub out: B::Matrix,
    pub conv: B::Vector,
    pub a_log: B::Vector,
    pub dt_bias: B::Vector,
    pub norm: B::Vector,
    pub state: B::State,
}

pub struct Attention<B: Runs> {
    pub q: B::Matrix,
    pub k: B::Matrix,
    pub v: B::Matrix,
    pub o: B::Matrix,
    pub q_norm: B::Vector,
    pub k_norm: B::Vector,
    pub cache: B::KvCache,
}

pub struct MoeLayer<B: Runs> {
    /// A row per expert, then the shared expert's gate.
    pub router: B::Matrix,
    pub experts: B::Experts,
}

pub struct Mtp<B: Runs> {
    pub norm_embedding: B::Vector,
    pub norm_hidden: B::Vector,
    pub fc: B::Matrix,
    pub layer: Layer<B>,
    pub norm: B::Vector,
}

/// Activations of a step, `[rows, width]` each, reused from step to step.
pub struct Scratch<B: Runs> {
    pub residual: B::Tensor,
    pub x: B::Tensor,
    pub y: B::Tensor,
    pub qkv: B::Tensor,
    pub conv: B::Tensor,
    pub z: B::Tensor,
    pub b: B::Tensor,
    pub a: B::Tensor,
    pub q: B::Tensor,
    pub k: B::Tensor,
    pub v: B::Tensor,
    pub mixed: B::Tensor,
    pub router: B::Tensor,
    pub routing: B::Routing,
    pub pair: B::Tensor,
    pub last: B::Tensor,
    pub logits: B::Tensor,
    /// Of each row of `logits`, where the backend ranks them.
    pub ranked: B::Tensor,
}

/// Widths of a scratch's tensors of every row of a step, in their order but for those of the ends.
pub const ROW_WIDTHS: [usize; 14] = [
    HIDDEN,
    HIDDEN,
    HIDDEN,
    Gdn::QKV,
    Gdn::QKV,
    Gdn::VALUES,
    Gdn::VALUE_HEADS,
    Gdn::VALUE_HEADS,
    2 * Full::HEADS * Full::HEAD_DIM,
    Full::KV_HEADS * Full::HEAD_DIM,
    Full::KV_HEADS * Full::HEAD_DIM,
    MIXED,
    Moe::COUNT + 1,
    2 * HIDDEN,
];
/// Of those of every sequence's last row: `last`, `logits` and `ranked`.
pub const END_WIDTHS: [usize; 3] = [HIDDEN, VOCAB, RANKED];

impl<B: Runs> Scratch<B> {
    /// Room for the largest step.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(ops: &B) -> Result<Scratch<B>, DeviceError> {
        let rows = ROW_WIDTHS.map(|width| ops.tensor(ROWS_MAX, width));
        let [
            residual,
            x,
            y,
            qkv,
            conv,
            z,
            b,
            a,
            q,
            k,
            v,
            mixed,
            router,
            pair,
        ] = rows;
        let ends = END_WIDTHS.map(|width| ops.tensor(target::MAX_SEQUENCES, width));
        let [last, logits, ranked] = ends;
        Ok(Scratch {
            residual: residual?,
            x: x?,
            y: y?,
            qkv: qkv?,
            conv: conv?,
            z: z?,
            b: b?,
            a: a?,
            q: q?,
            k: k?,
            v: v?,
            mixed: mixed?,
            router: router?,
            routing: ops.routing()?,
            pair: pair?,
            last: last?,
            logits: logits?,
            ranked: ranked?,
        })
    }
}

/// Reads every weight of the checkpoint onto the backend, with caches of `pages` KV pages.
///
/// # Errors
/// `WeightsError` naming the file and tensor that cannot be used.
pub fn load<B: Runs>(
    ops: &mut B,
    checkpoint: &Checkpoint,
    pages: usize,
) -> Result<Model<B>, WeightsError> {
    let layout = checkpoint.layout();
    let mut loader = Loader {
        ops,
        checkpoint,
        pages,
        site: Site::Whole,
    };
    let layers = (0..layout.layers()).map(|layer| loader.at(Site::Layer(layer)).layer());
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let whole = loader.at(Site::Whole);
    let has_head = layout.has(Role::Head, Site::Whole);
    let predicts = layout.has(Role::Fusion, Site::Prediction);
    Ok(Model {
        layers,
        embed: whole.matrix(Role::Embedding)?,
        head: has_head.then(|| whole.matrix(Role::Head)).transpose()?,
        norm: whole.vector(Role::FinalNorm)?,
        mtp: predicts
            .then(|| whole.at(Site::Prediction).mtp())
            .transpose()?,
    })
}

/// Reads one layer of the checkpoint onto the backend, with a cache of `pages` KV pages.
///
/// # Errors
/// As `load`.
pub fn load_layer<B: Runs>(
    ops: &mut B,
    checkpoint: &Checkpoint,
    layer: usize,
    pages: usize,
) -> Result<Layer<B>, WeightsError> {
    let site = Site::Layer(layer);
    Loader {
        ops,
        checkpoint,
        pages,
        site,
    }
    .layer()
}

/// What loads the matrices and vectors of a site.
struct Loader<'a, B: Runs> {
    ops: &'a mut B,
    checkpoint: &'a Checkpoint,
    pages: usize,
    site: Site,
}

impl<B: Runs> Loader<'_, B> {
    fn at(&mut self, site: Site) -> &mut Self {
        self.site = site;
        self
    }

    fn matrix(&mut self, role: Role) -> Result<B::Matrix, WeightsError> {
        self.ops
            .load_matrix(&[self.checkpoint.matrix(role, self.site)])
    }

    fn vector(&mut self, role: Role) -> Result<B::Vector, WeightsError> {
        self.ops
            .load_vector(&self.checkpoint.vector(role, self.site))
    }

    fn layer(&mut self) -> Result<Layer<B>, WeightsError> {
        let is_recurrent = self.checkpoint.layout().has(Role::GdnQkv, self.site);
        Ok(Layer {
            input_norm: self.vector(Role::InputNorm)?,
            mixer: match is_recurrent {
                true => Mixer::Gdn(self.gdn()?),
                false => Mixer::Attention(self.attention()?),
            },
            post_norm: self.vector(Role::PostNorm)?,
            moe: self.moe()?,
        })
    }

    fn gdn(&mut self) -> Result<GdnLayer<B>, WeightsError> {
        Ok(GdnLayer {
            qkv: self.matrix(Role::GdnQkv)?,
            z: self.matrix(Role::GdnGate)?,
            b: self.matrix(Role::GdnBeta)?,
            a: self.matrix(Role::GdnDecay)?,
            out: self.matrix(Role::GdnOutput)?,
            conv: self.vector(Role::GdnConv)?,
            a_log: self.vector(Role::GdnDecayRate)?,
            dt_bias: self.vector(Role::GdnDecayBias)?,
            norm: self.vector(Role::GdnNorm)?,
            state: self.ops.delta_state()?,
        })
    }

    fn attention(&mut self) -> Result<Attention<B>, WeightsError> {
        Ok(Attention {
            q: self.matrix(Role::Query)?,
            k: self.matrix(Role::Key)?,
            v: self.matrix(Role::Value)?,
            o: self.matrix(Role::Output)?,
            q_norm: self.vector(Role::QueryNorm)?,
            k_norm: self.vector(Role::KeyNorm)?,
            cache: self.ops.kv_cache(self.pages)?,
        })
    }

    fn moe(&mut self) -> Result<MoeLayer<B>, WeightsError> {
        let (checkpoint, site) = (self.checkpoint, self.site);
        let routed = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
        let shared = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
        let expert = |e| routed.map(|role| checkpoint.expert(role, site, e));
        let mut experts: Vec<_> = (0..Moe::COUNT).map(expert).collect();
        experts.push(shared.map(|role| checkpoint.matrix(role, site)));
        let router = [Role::Router, Role::SharedRouter].map(|role| checkpoint.matrix(role, site));
        Ok(MoeLayer {
            router: self.ops.load_matrix(&router)?,
            experts: self.ops.load_experts(&experts)?,
        })
    }

    fn mtp(&mut self) -> Result<Mtp<B>, WeightsError> {
        Ok(Mtp {
            norm_embedding: self.vector(Role::EmbeddingNorm)?,
            norm_hidden: self.vector(Role::HiddenNorm)?,
            fc: self.matrix(Role::Fusion)?,
            layer: self.layer()?,
            norm: self.vector(Role::FinalNorm)?,
        })
    }
}
