//! Every tensor of the target's checkpoint: name, shape and element type, from `crate::target`.
//!
//! Names are canonical: `model.language_model.` of multimodal releases is written `model.` here.

use std::collections::BTreeMap;

use super::format::{FP8_BLOCK, NVFP4_GROUP};
use super::header::Dtype;
use crate::shapes::{Attention as _, Delta as _, Experts as _};
use crate::target::{self, Format, Full, Gdn, Mixer, Moe};

/// A matrix `[n, k]` in one of the formats.
#[derive(Clone, Debug)]
pub struct MatrixSpec {
    /// Name without `.weight` and its relatives.
    pub name: String,
    pub n: usize,
    pub k: usize,
    pub format: Format,
    /// Set when the matrix is a part of a BF16 tensor that stacks all experts of a layer.
    pub stack: Option<Stack>,
}

/// Place of a matrix inside a stacked tensor.
#[derive(Clone, Debug)]
pub struct Stack {
    pub shape: [usize; 3],
    /// First row of the matrix, all leading dimensions flattened.
    pub row: usize,
}

/// A vector, or a small tensor read as one; BF16 or F32 in the checkpoint.
#[derive(Clone, Debug)]
pub struct VectorSpec {
    pub name: String,
    pub shape: Vec<usize>,
    /// The values are one more than what is stored: weights of norms that are kept around zero.
    pub plus_one: bool,
}

/// What a tensor of the checkpoint must look like.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub shape: Vec<usize>,
    /// Element types that are accepted.
    pub dtypes: &'static [Dtype],
    /// May be absent: activation scales, which weight-only arithmetic does not use.
    pub optional: bool,
}

pub struct ModelSpec {
    pub embed: MatrixSpec,
    pub layers: Vec<LayerSpec>,
    pub norm: VectorSpec,
    /// None when the head is the embedding.
    pub head: Option<MatrixSpec>,
    pub mtp: Option<MtpSpec>,
}

impl ModelSpec {
    /// Every matrix once.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixSpec> {
        let mtp = self.mtp.iter();
        let layers = self.layers.iter().chain(mtp.clone().map(|mtp| &mtp.layer));
        let single = [&self.embed].into_iter().chain(&self.head);
        single
            .chain(mtp.map(|mtp| &mtp.fc))
            .chain(layers.flat_map(LayerSpec::matrices))
    }

    /// Every vector once.
    pub fn vectors(&self) -> impl Iterator<Item = &VectorSpec> {
        let mtp = self.mtp.iter();
        let layers = self.layers.iter().chain(mtp.clone().map(|mtp| &mtp.layer));
        let of_mtp = mtp.flat_map(|mtp| [&mtp.norm_embedding, &mtp.norm_hidden, &mtp.norm]);
        let of_layers = layers.flat_map(|layer| {
            let of_mixer = layer.mixer.vectors().into_iter();
            of_mixer.chain([&layer.input_norm, &layer.post_norm])
        });
        [&self.norm].into_iter().chain(of_mtp).chain(of_layers)
    }
}

pub struct LayerSpec {
    pub input_norm: VectorSpec,
    pub mixer: MixerSpec,
    pub post_norm: VectorSpec,
    pub moe: MoeSpec,
}

impl LayerSpec {
    fn matrices(&self) -> impl Iterator<Item = &MatrixSpec> {
        let MoeSpec {
            router,
            experts,
            shared,
            shared_gate,
        } = &self.moe;
        let moe = [router, shared_gate].into_iter().chain(shared);
        let mixer = self.mixer.matrices().into_iter();
        mixer.chain(moe).chain(experts.iter().flatten())
    }
}

pub enum MixerSpec {
    Gdn(GdnSpec),
    Attention(AttentionSpec),
}

impl MixerSpec {
    pub fn matrices(&self) -> Vec<&MatrixSpec> {
        match self {
            MixerSpec::Gdn(gdn) => vec![&gdn.qkv, &gdn.z, &gdn.b, &gdn.a, &gdn.out],
            MixerSpec::Attention(w) => vec![&w.q, &w.k, &w.v, &w.o],
        }
    }

    fn vectors(&self) -> Vec<&VectorSpec> {
        match self {
            MixerSpec::Gdn(gdn) => vec![&gdn.conv, &gdn.a_log, &gdn.dt_bias, &gdn.norm],
            MixerSpec::Attention(w) => vec![&w.q_norm, &w.k_norm],
        }
    }
}

pub struct GdnSpec {
    pub qkv: MatrixSpec,
    pub z: MatrixSpec,
    pub b: MatrixSpec,
    pub a: MatrixSpec,
    pub out: MatrixSpec,
    pub conv: VectorSpec,
    pub a_log: VectorSpec,
    pub dt_bias: VectorSpec,
    pub norm: VectorSpec,
}

pub struct AttentionSpec {
    pub q: MatrixSpec,
    pub k: MatrixSpec,
    pub v: MatrixSpec,
    pub o: MatrixSpec,
    pub q_norm: VectorSpec,
    pub k_norm: VectorSpec,
}

pub struct MoeSpec {
    pub router: MatrixSpec,
    /// Gate, up and down of each expert.
    pub experts: Vec<[MatrixSpec; 3]>,
    /// Gate, up and down of the shared expert.
    pub shared: [MatrixSpec; 3],
    pub shared_gate: MatrixSpec,
}

pub struct MtpSpec {
    pub norm_embedding: VectorSpec,
    pub norm_hidden: VectorSpec,
    pub fc: MatrixSpec,
    pub layer: LayerSpec,
    pub norm: VectorSpec,
}

/// The target's checkpoint; `present` says whether it holds a tensor (experts may be stacked).
pub fn model(present: &dyn Fn(&str) -> bool) -> ModelSpec {
    model_of(target::LAYERS, present)
}

/// The same, cut behind the first `layers`.
pub fn model_of(layers: usize, present: &dyn Fn(&str) -> bool) -> ModelSpec {
    let layers = target::MIXERS[..layers].iter().enumerate();
    let head = matrix(
        "lm_head",
        target::VOCAB,
        target::HIDDEN,
        target::FORMAT_HEAD,
    );
    ModelSpec {
        embed: matrix(
            "model.embed_tokens",
            target::VOCAB,
            target::HIDDEN,
            target::FORMAT_EMBED,
        ),
        layers: layers
            .map(|(index, &kind)| {
                let prefix = format!("model.layers.{index}");
                let formats = (target::FORMAT_EXPERTS, target::FORMAT_SHARED_EXPERT);
                layer(&prefix, mixer(&prefix, kind), formats, present)
            })
            .collect(),
        norm: norm("model.norm.weight", target::HIDDEN),
        head: (!target::TIED_HEAD).then_some(head),
        mtp: (target::MTP_LAYERS > 0).then(|| mtp(present)),
    }
}

fn mtp(present: &dyn Fn(&str) -> bool) -> MtpSpec {
    let prefix = "mtp.layers.0";
    let mixer = MixerSpec::Attention(attention(prefix, target::FORMAT_MTP_ATTENTION));
    let formats = (target::FORMAT_MTP_EXPERTS, target::FORMAT_MTP_EXPERTS);
    MtpSpec {
        norm_embedding: norm("mtp.pre_fc_norm_embedding.weight", target::HIDDEN),
        norm_hidden: norm("mtp.pre_fc_norm_hidden.weight", target::HIDDEN),
        fc: matrix("mtp.fc", target::HIDDEN, 2 * target::HIDDEN, Format::Bf16),
        layer: layer(prefix, mixer, formats, present),
        norm: norm("mtp.norm.weight", target::HIDDEN),
    }
}

/// `formats`: of the routed experts and of the shared expert.
fn layer(
    prefix: &str,
    mixer: MixerSpec,
    formats: (Format, Format),
    present: &dyn Fn(&str) -> bool,
) -> LayerSpec {
    LayerSpec {
        input_norm: norm(&format!("{prefix}.input_layernorm.weight"), target::HIDDEN),
        mixer,
        post_norm: norm(
            &format!("{prefix}.post_attention_layernorm.weight"),
            target::HIDDEN,
        ),
        moe: moe(&format!("{prefix}.mlp"), formats, present),
    }
}

fn mixer(prefix: &str, kind: Mixer) -> MixerSpec {
    match kind {
        Mixer::Gdn => MixerSpec::Gdn(gdn(&format!("{prefix}.linear_attn"))),
        Mixer::Attention => MixerSpec::Attention(attention(prefix, target::FORMAT_ATTENTION)),
    }
}

fn gdn(prefix: &str) -> GdnSpec {
    let heads = Gdn::VALUE_HEADS;
    let named = |name: &str, n, k, format| matrix(&format!("{prefix}.{name}"), n, k, format);
    let vector = |name: &str, shape: &[usize]| vector(&format!("{prefix}.{name}"), shape);
    GdnSpec {
        qkv: named("in_proj_qkv", Gdn::QKV, target::HIDDEN, target::FORMAT_GDN),
        z: named("in_proj_z", Gdn::VALUES, target::HIDDEN, target::FORMAT_GDN),
        b: named("in_proj_b", heads, target::HIDDEN, Format::Bf16),
        a: named("in_proj_a", heads, target::HIDDEN, Format::Bf16),
        out: named("out_proj", target::HIDDEN, Gdn::VALUES, target::FORMAT_GDN),
        conv: vector("conv1d.weight", &[Gdn::QKV, 1, Gdn::CONV]),
        a_log: vector("A_log", &[heads]),
        dt_bias: vector("dt_bias", &[heads]),
        norm: vector("norm.weight", &[Gdn::VALUE_DIM]),
    }
}

fn attention(prefix: &str, format: Format) -> AttentionSpec {
    let (heads, kv) = (
        Full::HEADS * Full::HEAD_DIM,
        Full::KV_HEADS * Full::HEAD_DIM,
    );
    let named = |name: &str, n, k| matrix(&format!("{prefix}.self_attn.{name}"), n, k, format);
    let norm = |name: &str| norm(&format!("{prefix}.self_attn.{name}.weight"), Full::HEAD_DIM);
    AttentionSpec {
        q: named("q_proj", 2 * heads, target::HIDDEN),
        k: named("k_proj", kv, target::HIDDEN),
        v: named("v_proj", kv, target::HIDDEN),
        o: named("o_proj", target::HIDDEN, heads),
        q_norm: norm("q_norm"),
        k_norm: norm("k_norm"),
    }
}

fn moe(
    prefix: &str,
    (experts, shared): (Format, Format),
    present: &dyn Fn(&str) -> bool,
) -> MoeSpec {
    let stacked = experts == Format::Bf16 && present(&format!("{prefix}.experts.gate_up_proj"));
    let expert = |e| match stacked {
        true => stacked_expert(prefix, e),
        false => swiglu(&format!("{prefix}.experts.{e}"), Moe::INTERMEDIATE, experts),
    };
    MoeSpec {
        router: matrix(
            &format!("{prefix}.gate"),
            Moe::COUNT,
            target::HIDDEN,
            Format::Bf16,
        ),
        experts: (0..Moe::COUNT).map(expert).collect(),
        shared: swiglu(&format!("{prefix}.shared_expert"), Moe::SHARED, shared),
        shared_gate: matrix(
            &format!("{prefix}.shared_expert_gate"),
            1,
            target::HIDDEN,
            Format::Bf16,
        ),
    }
}

fn swiglu(prefix: &str, intermediate: usize, format: Format) -> [MatrixSpec; 3] {
    let hidden = target::HIDDEN;
    [
        matrix(&format!("{prefix}.gate_proj"), intermediate, hidden, format),
        matrix(&format!("{prefix}.up_proj"), intermediate, hidden, format),
        matrix(&format!("{prefix}.down_proj"), hidden, intermediate, format),
    ]
}

/// Gate rows come first in `gate_up_proj [E, 2 I, H]`; `down_proj` is `[E, H, I]`.
fn stacked_expert(prefix: &str, expert: usize) -> [MatrixSpec; 3] {
    let (e, i, h) = (Moe::COUNT, Moe::INTERMEDIATE, target::HIDDEN);
    let part = |name: &str, n, k, shape, row| MatrixSpec {
        name: format!("{prefix}.experts.{name}"),
        n,
        k,
        format: Format::Bf16,
        stack: Some(Stack { shape, row }),
    };
    [
        part("gate_up_proj", i, h, [e, 2 * i, h], expert * 2 * i),
        part("gate_up_proj", i, h, [e, 2 * i, h], expert * 2 * i + i),
        part("down_proj", h, i, [e, h, i], expert * h),
    ]
}

fn matrix(name: &str, n: usize, k: usize, format: Format) -> MatrixSpec {
    MatrixSpec {
        name: name.to_string(),
        n,
        k,
        format,
        stack: None,
    }
}

fn vector(name: &str, shape: &[usize]) -> VectorSpec {
    VectorSpec {
        name: name.to_string(),
        shape: shape.to_vec(),
        plus_one: false,
    }
}

/// Weights of a norm of the family, which are stored less one.
fn norm(name: &str, width: usize) -> VectorSpec {
    VectorSpec {
        plus_one: true,
        ..vector(name, &[width])
    }
}

const BF16: &[Dtype] = &[Dtype::Bf16];
const F32: &[Dtype] = &[Dtype::F32];
const BF16_OR_F32: &[Dtype] = &[Dtype::Bf16, Dtype::F32];
const U8: &[Dtype] = &[Dtype::U8];
const F8: &[Dtype] = &[Dtype::F8E4M3];

/// Every tensor by canonical name.
pub fn expected(spec: &ModelSpec) -> BTreeMap<String, Expected> {
    let mut tensors = Tensors(BTreeMap::new());
    spec.matrices().for_each(|matrix| tensors.matrix(matrix));
    tensors.vector(&spec.norm);
    spec.layers.iter().for_each(|layer| tensors.layer(layer));
    if let Some(mtp) = &spec.mtp {
        tensors.vector(&mtp.norm_embedding);
        tensors.vector(&mtp.norm_hidden);
        tensors.layer(&mtp.layer);
        tensors.vector(&mtp.norm);
    }
    tensors.0
}

struct Tensors(BTreeMap<String, Expected>);

impl Tensors {
    fn layer(&mut self, layer: &LayerSpec) {
        self.vector(&layer.input_norm);
        self.vector(&layer.post_norm);
        match &layer.mixer {
            MixerSpec::Gdn(gdn) => {
                let vectors = [&gdn.conv, &gdn.a_log, &gdn.dt_bias, &gdn.norm];
                vectors.iter().for_each(|v| self.vector(v));
            }
            MixerSpec::Attention(attention) => {
                self.vector(&attention.q_norm);
                self.vector(&attention.k_norm);
                self.optional_scalar(&format!("{}.k_scale", attention.k.name));
                self.optional_scalar(&format!("{}.v_scale", attention.v.name));
            }
        }
    }

    fn matrix(&mut self, m: &MatrixSpec) {
        if let Some(stack) = &m.stack {
            return self.put(m.name.clone(), &stack.shape, BF16);
        }
        let (n, k) = (m.n, m.k);
        let named = |suffix: &str| format!("{}.{suffix}", m.name);
        match m.format {
            Format::Bf16 => self.put(named("weight"), &[n, k], BF16),
            Format::Nvfp4CompressedTensors => {
                self.put(named("weight_packed"), &[n, k / 2], U8);
                self.put(named("weight_scale"), &[n, k / NVFP4_GROUP], F8);
                self.put(named("weight_global_scale"), &[], F32);
                self.optional_scalar(&named("input_global_scale"));
            }
            Format::Nvfp4Modelopt => {
                self.put(named("weight"), &[n, k / 2], U8);
                self.put(named("weight_scale"), &[n, k / NVFP4_GROUP], F8);
                self.put(named("weight_scale_2"), &[], F32);
                self.optional_scalar(&named("input_scale"));
            }
            Format::Fp8Block128 => {
                let blocks = [n.div_ceil(FP8_BLOCK), k.div_ceil(FP8_BLOCK)];
                self.put(named("weight"), &[n, k], F8);
                self.put(named("weight_scale_inv"), &blocks, BF16_OR_F32);
            }
        }
    }

    fn vector(&mut self, v: &VectorSpec) {
        self.put(v.name.clone(), &v.shape, BF16_OR_F32);
    }

    fn put(&mut self, name: String, shape: &[usize], dtypes: &'static [Dtype]) {
        self.0.insert(
            name,
            Expected {
                shape: shape.to_vec(),
                dtypes,
                optional: false,
            },
        );
    }

    fn optional_scalar(&mut self, name: &str) {
        let expected = Expected {
            shape: Vec::new(),
            dtypes: F32,
            optional: true,
        };
        self.0.insert(name.to_string(), expected);
    }
}
