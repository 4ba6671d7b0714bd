//! A model's weights, caches and scratch on a backend.

use super::Runs;
use crate::engine::executor::DeviceError;
use crate::ops::RANKED;
use crate::shapes::{Attention as _, Delta as _, Experts as _};
use crate::target::{self, Full, Gdn, HIDDEN, Moe, VOCAB};
use crate::weights::{
    AttentionSpec, Checkpoint, GdnSpec, LayerSpec, MixerSpec, MoeSpec, MtpSpec, VectorSpec,
    WeightsError,
};

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
    let spec = checkpoint.spec();
    let mut loader = Loader {
        ops,
        checkpoint,
        pages,
    };
    let layers = spec.layers.iter().map(|layer| loader.layer(layer));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let mut matrix = |m| loader.ops.load_matrix(&[checkpoint.matrix(m)]);
    Ok(Model {
        layers,
        embed: matrix(&spec.embed)?,
        head: spec.head.as_ref().map(&mut matrix).transpose()?,
        norm: loader.vector(&spec.norm)?,
        mtp: spec.mtp.as_ref().map(|mtp| loader.mtp(mtp)).transpose()?,
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
    let mut loader = Loader {
        ops,
        checkpoint,
        pages,
    };
    loader.layer(&checkpoint.spec().layers[layer])
}

struct Loader<'a, B: Runs> {
    ops: &'a mut B,
    checkpoint: &'a Checkpoint,
    pages: usize,
}

impl<B: Runs> Loader<'_, B> {
    fn layer(&mut self, spec: &LayerSpec) -> Result<Layer<B>, WeightsError> {
        Ok(Layer {
            input_norm: self.vector(&spec.input_norm)?,
            mixer: match &spec.mixer {
                MixerSpec::Gdn(gdn) => Mixer::Gdn(self.gdn(gdn)?),
                MixerSpec::Attention(attention) => Mixer::Attention(self.attention(attention)?),
            },
            post_norm: self.vector(&spec.post_norm)?,
            moe: self.moe(&spec.moe)?,
        })
    }

    fn gdn(&mut self, spec: &GdnSpec) -> Result<GdnLayer<B>, WeightsError> {
        let checkpoint = self.checkpoint;
        let mut matrix = |m| self.ops.load_matrix(&[checkpoint.matrix(m)]);
        Ok(GdnLayer {
            qkv: matrix(&spec.qkv)?,
            z: matrix(&spec.z)?,
            b: matrix(&spec.b)?,
            a: matrix(&spec.a)?,
            out: matrix(&spec.out)?,
            conv: self.vector(&spec.conv)?,
            a_log: self.vector(&spec.a_log)?,
            dt_bias: self.vector(&spec.dt_bias)?,
            norm: self.vector(&spec.norm)?,
            state: self.ops.delta_state()?,
        })
    }

    fn attention(&mut self, spec: &AttentionSpec) -> Result<Attention<B>, WeightsError> {
        let checkpoint = self.checkpoint;
        let mut matrix = |m| self.ops.load_matrix(&[checkpoint.matrix(m)]);
        Ok(Attention {
            q: matrix(&spec.q)?,
            k: matrix(&spec.k)?,
            v: matrix(&spec.v)?,
            o: matrix(&spec.o)?,
            q_norm: self.vector(&spec.q_norm)?,
            k_norm: self.vector(&spec.k_norm)?,
            cache: self.ops.kv_cache(self.pages)?,
        })
    }

    fn moe(&mut self, spec: &MoeSpec) -> Result<MoeLayer<B>, WeightsError> {
        let source = |m| self.checkpoint.matrix(m);
        let experts = spec.experts.iter().chain([&spec.shared]);
        let experts: Vec<_> = experts.map(|e| e.each_ref().map(source)).collect();
        Ok(MoeLayer {
            router: self
                .ops
                .load_matrix(&[source(&spec.router), source(&spec.shared_gate)])?,
            experts: self.ops.load_experts(&experts)?,
        })
    }

    fn mtp(&mut self, spec: &MtpSpec) -> Result<Mtp<B>, WeightsError> {
        Ok(Mtp {
            norm_embedding: self.vector(&spec.norm_embedding)?,
            norm_hidden: self.vector(&spec.norm_hidden)?,
            fc: self.ops.load_matrix(&[self.checkpoint.matrix(&spec.fc)])?,
            layer: self.layer(&spec.layer)?,
            norm: self.vector(&spec.norm)?,
        })
    }

    fn vector(&mut self, spec: &VectorSpec) -> Result<B::Vector, WeightsError> {
        self.ops.load_vector(&self.checkpoint.vector(spec))
    }
}
