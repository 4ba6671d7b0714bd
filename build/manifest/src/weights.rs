//! Every tensor of a checkpoint, in groups of equal shape: the source of all byte figures.

use serde::Serialize;

use crate::schema::leaf::Format;
use crate::schema::model::Mixer;
use crate::target::Target;

/// Part of a model that a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Decoder, embedding and head.
    Text,
    /// Multi-token prediction.
    Mtp,
}

/// Matrices of one shape, `[n, k]` each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which tensors, by their names in the checkpoint.
    pub name: &'static str,
    /// Where they belong.
    pub part: Part,
    /// Matrices in the checkpoint.
    pub count: u64,
    /// Matrices that one decoded token reads.
    pub count_read: u64,
    /// Rows.
    pub n: u64,
    /// Rows that one decoded token reads of each.
    pub n_read: u64,
    /// Columns.
    pub k: u64,
    /// How they are stored.
    pub storage: Storage,
    /// Matrices that share one tensor of the checkpoint.
    pub stacked: u64,
}

/// Storage of a matrix or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// BF16 or F32, as the publisher likes: counted as BF16.
    Vector,
    /// As a format of the leaf.
    #[serde(untagged)]
    Format(Format),
}

impl From<Format> for Storage {
    fn from(format: Format) -> Self {
        Storage::Format(format)
    }
}

/// Columns that share a scale in NVFP4.
pub(crate) const NVFP4_GROUP: u64 = 16;
/// Rows and columns that share a scale in block-wise FP8.
const FP8_BLOCK: u64 = 128;
const BF16_BYTES: u64 = 2;
const F32_BYTES: u64 = 4;

impl Group {
    /// Bytes that the group takes beside `bytes_stored` if it is F32.
    pub(crate) fn bytes_if_f32(&self) -> u64 {
        match self.storage {
            Storage::Vector => self.count * self.n * self.k * (F32_BYTES - BF16_BYTES),
            Storage::Format(_) => 0,
        }
    }

    /// Bytes of one matrix of `n` rows with its scales.
    fn bytes(&self, n: u64, input_scale: bool) -> u64 {
        match self.storage {
            Storage::Vector | Storage::Format(Format::Bf16) => n * self.k * BF16_BYTES,
            Storage::Format(Format::Fp8Block128) => {
                let blocks = n.div_ceil(FP8_BLOCK) * self.k.div_ceil(FP8_BLOCK);
                n * self.k + blocks * BF16_BYTES
            }
            Storage::Format(Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt) => {
                let scalars = F32_BYTES * (1 + u64::from(input_scale));
                n * self.k / 2 + n * self.k / NVFP4_GROUP + scalars
            }
        }
    }

    /// Bytes of the group in the checkpoint.
    pub fn bytes_stored(&self, input_scale: bool) -> u64 {
        self.count * self.bytes(self.n, input_scale)
    }

    /// Bytes that one decoded token reads at batch 1.
    pub fn bytes_read(&self, input_scale: bool) -> u64 {
        self.count_read * self.bytes(self.n_read, input_scale)
    }

    /// Tensors in the checkpoint: values and scales.
    pub fn tensors(&self, input_scale: bool) -> u64 {
        let each = match self.storage {
            Storage::Vector | Storage::Format(Format::Bf16) => 1,
            Storage::Format(Format::Fp8Block128) => 2,
            Storage::Format(Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt) => {
                3 + u64::from(input_scale)
            }
        };
        self.count / self.stacked * each
    }
}

/// A group whose matrices are all read by every token.
fn dense(
    name: &'static str,
    part: Part,
    count: u64,
    [n, k]: [u64; 2],
    storage: impl Into<Storage>,
) -> Group {
    Group {
        name,
        part,
        count,
        count_read: count,
        n,
        n_read: n,
        k,
        storage: storage.into(),
        stacked: 1,
    }
}

impl Target {
    /// Tensors of the text model and of multi-token prediction, without the vision tower.
    pub fn weights(&self) -> Vec<Group> {
        let mut groups = self.table_groups();
        groups.extend(self.gdn_groups());
        let quant = &self.leaf.quant;
        let attention_layers = self.layers_of(Mixer::Attention);
        groups.extend(self.attention_groups(Part::Text, attention_layers, quant.attention));
        let layers = self.model.layers.count as u64;
        groups.extend(self.moe_groups(Part::Text, layers, quant.experts, quant.shared_expert));
        let norms = [1, self.model.hidden];
        groups.push(dense(
            "norms",
            Part::Text,
            2 * layers + 1,
            norms,
            Storage::Vector,
        ));
        groups.extend(self.mtp_groups());
        groups.retain(|group| group.count > 0);
        groups
    }

    fn table_groups(&self) -> Vec<Group> {
        let table = [self.model.vocab, self.model.hidden];
        let quant = &self.leaf.quant;
        let mut embed = dense("embed_tokens", Part::Text, 1, table, quant.embed);
        let mut head = dense("lm_head", Part::Text, 1, table, quant.head);
        if self.model.tied_head {
            head.count = 0;
        } else {
            embed.n_read = 1;
        }
        vec![embed, head]
    }

    fn gdn_groups(&self) -> Vec<Group> {
        let gdn = &self.model.gdn;
        let hidden = self.model.hidden;
        let layers = self.layers_of(Mixer::Gdn);
        let of =
            |name, each, shape, storage| dense(name, Part::Text, each * layers, shape, storage);
        let stored = Storage::Format(self.leaf.quant.gdn);
        let (bf16, vector) = (Storage::Format(Format::Bf16), Storage::Vector);
        let (qkv, z, heads) = (gdn.qkv_rows(), gdn.z_rows(), gdn.value_heads);
        vec![
            of("in_proj_qkv", 1, [qkv, hidden], stored),
            of("in_proj_z", 1, [z, hidden], stored),
            of("in_proj_a, in_proj_b", 2, [heads, hidden], bf16),
            of("out_proj", 1, [hidden, z], stored),
            of("conv1d", 1, [qkv, gdn.conv_kernel], vector),
            of("A_log, dt_bias", 2, [1, heads], vector),
            of("linear_attn.norm", 1, [1, gdn.value_dim], vector),
        ]
    }

    fn attention_groups(&self, part: Part, layers: u64, format: Format) -> Vec<Group> {
        let attention = &self.model.attention;
        let hidden = self.model.hidden;
        let (q, kv, o) = (
            attention.q_rows(),
            attention.kv_rows(),
            attention.o_columns(),
        );
        let of = |name, each, shape, storage| dense(name, part, each * layers, shape, storage);
        let stored = Storage::Format(format);
        vec![
            of("q_proj", 1, [q, hidden], stored),
            of("k_proj, v_proj", 2, [kv, hidden], stored),
            of("o_proj", 1, [hidden, o], stored),
            of(
                "q_norm, k_norm",
                2,
                [1, attention.head_dim],
                Storage::Vector,
            ),
        ]
    }

    fn moe_groups(&self, part: Part, layers: u64, routed: Format, shared: Format) -> Vec<Group> {
        let moe = &self.model.moe;
        let hidden = self.model.hidden;
        let of = |name, each, shape, format| dense(name, part, each * layers, shape, format);
        let stack = self
            .checkpoint()
            .is_some_and(|checkpoint| checkpoint.stacked_experts);
        let experts = |name, each: u64, shape| Group {
            count_read: each * moe.experts_per_token * layers,
            stacked: if stack { each * moe.experts } else { 1 },
            ..dense(name, part, each * moe.experts * layers, shape, routed)
        };
        vec![
            of("mlp.gate", 1, [moe.experts, hidden], Format::Bf16),
            experts("experts gate_proj, up_proj", 2, [moe.intermediate, hidden]),
            experts("experts down_proj", 1, [hidden, moe.intermediate]),
            of(
                "shared_expert gate_proj, up_proj",
                2,
                [moe.shared_intermediate, hidden],
                shared,
            ),
            of(
                "shared_expert down_proj",
                1,
                [hidden, moe.shared_intermediate],
                shared,
            ),
            of("shared_expert_gate", 1, [1, hidden], Format::Bf16),
        ]
    }

    fn mtp_groups(&self) -> Vec<Group> {
        let hidden = self.model.hidden;
        let layers = self.model.mtp.layers;
        let quant = &self.leaf.quant;
        let (Some(attention), Some(experts)) = (quant.mtp_attention, quant.mtp_experts) else {
            return Vec::new();
        };
        let (fc, norms) = ([hidden, 2 * hidden], [1, hidden]);
        let mut groups = vec![
            dense("fc", Part::Mtp, layers, fc, Format::Bf16),
            dense("norms", Part::Mtp, 5 * layers, norms, Storage::Vector),
        ];
        groups.extend(self.attention_groups(Part::Mtp, layers, attention));
        groups.extend(self.moe_groups(Part::Mtp, layers, experts, experts));
        groups
    }
}
