//! Tensors of a checkpoint as a table: a row for each kind of matrix, vector or scalar. The build
//! writes it into `target.rs`. The server is compiled with this file too, and opens, reads, draws
//! and counts checkpoints by the table alone.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares an enum, and a table with a tuple of constants for each variant.
macro_rules! rows {
    ($(#[$of:meta])* $table:ident -> $is:ty; $($(#[$doc:meta])* $row:ident: $value:expr;)+) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $table {
            $($(#[$doc])* $row,)+
        }

        impl $table {
            /// All variants, in the order of their discriminants.
            pub const ALL: [$table; [$(stringify!($row)),+].len()] = [$($table::$row),+];

            const fn row(self) -> &'static $is {
                match self {
                    $($table::$row => &const { $value },)+
                }
            }
        }
    };
}

rows! {
    /// Storage of a weight matrix in a checkpoint; after the floats, bits ascend. A row is its name
    /// in manifests, its coding, columns that a matrix has a multiple of, its tensors, and what
    /// `config.json` says of it, in JSON.
    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "snake_case")]
    Format -> (&'static str, Coding, usize, &'static [Part], &'static [Described]);
    Bf16: ("bf16", Coding::Bf16, 1, &[(Elements, ".weight", |n, k| vec![n, k], BF16)], &[]);
    /// F32, which is BF16 in memory; a weight that BF16 cannot hold exactly is refused.
    F32: ("f32", Coding::Bf16, 1, &[(Elements, ".weight", |n, k| vec![n, k], F32)], &[]);
    /// NVFP4 of compressed-tensors, whose scale of a whole matrix is a divisor.
    Nvfp4CompressedTensors: ("nvfp4_compressed_tensors", Coding::Nvfp4, NVFP4_GROUP, &[
        (Elements, ".weight_packed", |n, k| vec![n, k / 2], U8),
        (Scales, ".weight_scale", |n, k| vec![n, k / NVFP4_GROUP], F8),
        (Divisor, ".weight_global_scale", |_, _| vec![], F32),
        (Input, ".input_global_scale", |_, _| vec![], F32_OR_BF16),
    ], &[
        (METHOD, "\"compressed-tensors\""),
        ("/quantization_config/format", "\"nvfp4-pack-quantized\""),
        ("/quantization_config/config_groups/*/weights/type", "\"float\""),
        ("/quantization_config/config_groups/*/weights/num_bits", "4"),
        ("/quantization_config/config_groups/*/weights/group_size", "16"),
    ]);
    /// NVFP4 of NVIDIA's modelopt, whose scale of a whole matrix is a factor and no divisor.
    Nvfp4Modelopt: ("nvfp4_modelopt", Coding::Nvfp4, NVFP4_GROUP, &[
        (Elements, ".weight", |n, k| vec![n, k / 2], U8),
        (Scales, ".weight_scale", |n, k| vec![n, k / NVFP4_GROUP], F8),
        (Factor, ".weight_scale_2", |_, _| vec![], F32),
        (Input, ".input_scale", |_, _| vec![], F32),
    ], &[(METHOD, "\"modelopt\""), (ALGORITHM, "\"NVFP4\"")]);
    /// FP8 with a scale per 128x128 block.
    Fp8Block128: ("fp8_block128", Coding::Fp8, 1, &[
        (Elements, ".weight", |n, k| vec![n, k], F8),
        (Scales, ".weight_scale_inv", |n, k| [n, k].map(blocks).to_vec(), BF16_OR_F32),
    ], &[
        (METHOD, "\"fp8\""),
        ("/quantization_config/fmt", "\"e4m3\""),
        ("/quantization_config/weight_block_size", "[128,128]"),
    ]);
    /// modelopt FP8 with one scale for the whole matrix.
    Fp8Tensor: ("fp8_tensor", Coding::Fp8, 1, &[
        (Elements, ".weight", |n, k| vec![n, k], F8),
        (Factor, ".weight_scale", |_, _| vec![], F32),
        (Input, ".input_scale", |_, _| vec![], F32),
    ], &[(METHOD, "\"modelopt\""), (ALGORITHM, "\"FP8\"")]);
    /// OCP MXFP4 of stacked experts.
    Mxfp4: ("mxfp4", Coding::Mxfp4, MXFP4_GROUP, &[
        (Elements, "_blocks", |n, k| vec![n, k / MXFP4_GROUP, MXFP4_GROUP / 2], U8),
        (Scales, "_scales", |n, k| vec![n, k / MXFP4_GROUP], U8),
    ], &[(METHOD, "\"mxfp4\"")]);
}

rows! {
    /// Codes of weights and their scales in memory. A row is its name, bits of a weight, columns
    /// that share a scale of a byte, and the scope of its F32 factors.
    Coding -> (&'static str, u32, Option<usize>, Owner);
    Bf16: ("bf16", 16, None, Owner::None);
    /// E2M1 with an E4M3 scale per 16 columns.
    Nvfp4: ("nvfp4", 4, Some(NVFP4_GROUP), Owner::Matrix);
    /// E4M3 with a scale per 128x128 block.
    Fp8: ("fp8", 8, None, Owner::Blocks);
    /// E2M1 with a power of two per 16 columns, the upper byte of an F16, and a factor per row.
    Mxfp4: ("mxfp4", 4, Some(16), Owner::Rows);
}

/// A JSON pointer into `config.json`, and the JSON value that must be there.
type Described = (&'static str, &'static str);

const METHOD: &str = "/quantization_config/quant_method";
/// Pointer to modelopt's algorithm, which is `MIXED_PRECISION` where a checkpoint has several.
pub const ALGORITHM: &str = "/quantization_config/quant_algo";

/// Scope of the F32 factors that weights have beside one-byte scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    None,
    Matrix,
    Rows,
    /// Blocks of 128 rows and columns.
    Blocks,
}

impl Coding {
    /// Name of the coding in the names of targets.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Bits of a weight, scales left out.
    pub const fn bits(self) -> u32 {
        self.row().1
    }

    /// Scope of the F32 factors beside one-byte scales.
    pub const fn factors(self) -> Owner {
        self.row().3
    }

    /// Bytes of the codes of weights `[n, k]`, and of their one-byte scales.
    pub const fn sections(self, n: usize, k: usize) -> [usize; 2] {
        let scales = match self.row().2 {
            Some(group) => n * (k / group),
            None => 0,
        };
        [n * k * self.bits() as usize / 8, scales]
    }

    /// Number of F32 factors of weights `[n, k]`.
    pub const fn factors_of(self, n: usize, k: usize) -> usize {
        match self.factors() {
            Owner::None => 0,
            Owner::Matrix => 1,
            Owner::Rows => n,
            Owner::Blocks => blocks(n) * blocks(k),
        }
    }

    /// Number to whose multiples columns of a matrix in memory are padded: whole runs of floats,
    /// whole blocks of codes.
    pub const fn columns(self) -> usize {
        match self {
            Coding::Bf16 => RUN_COLUMNS,
            _ => FP8_BLOCK,
        }
    }
}

/// Columns of NVFP4 that share an E4M3 scale.
pub const NVFP4_GROUP: usize = 16;
/// Columns of MXFP4 that share a power of two.
pub const MXFP4_GROUP: usize = 32;
/// Rows and columns of FP8 that share a scale.
pub const FP8_BLOCK: usize = 128;
/// Number of blocks that `n` rows or columns make, the last one perhaps in part.
const fn blocks(n: usize) -> usize {
    n.div_ceil(FP8_BLOCK)
}

/// Columns of a run of BF16, the fewest that a kernel reads.
pub const RUN_COLUMNS: usize = 32;

impl Format {
    /// Name of the format in manifests.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Coding of the format's weights in memory.
    pub const fn coding(self) -> Coding {
        self.row().1
    }

    pub const fn described(self) -> &'static [Described] {
        self.row().4
    }

    /// Short name of the format in the names of targets.
    pub const fn short(self) -> &'static str {
        match self {
            Format::F32 => self.name(),
            _ => self.coding().name(),
        }
    }

    /// The format of weights in memory that are not rounded.
    pub const fn exact(self) -> Format {
        match self {
            Format::F32 => Format::Bf16,
            other => other,
        }
    }

    /// Whether codes are E2M1 with an E4M3 scale per 16 columns.
    pub const fn is_nvfp4(self) -> bool {
        matches!(self.coding(), Coding::Nvfp4)
    }

    /// Whether weights of other formats can be rounded to this one.
    pub const fn is_rounded_to(self) -> bool {
        matches!(self, Format::Nvfp4Modelopt | Format::Fp8Block128)
    }

    /// Whether the format is for stacks alone: tensors with the matrices of all experts.
    pub const fn is_of_stacks(self) -> bool {
        matches!(self, Format::Mxfp4)
    }

    /// Whether several rows of a stored matrix share a scale.
    pub const fn has_blocks(self) -> bool {
        matches!(self, Format::Fp8Block128)
    }

    /// Columns of which a stored matrix has a multiple.
    pub const fn columns(self) -> usize {
        self.row().2
    }

    /// Bits of a stored weight, scales left out.
    pub const fn bits(self) -> u32 {
        match self {
            Format::F32 => 32,
            _ => self.coding().bits(),
        }
    }
}

/// Element type of a tensor in a safetensors file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    U8,
    F8E4M3,
    Bf16,
    F32,
    /// A known type that no target reads, by the bytes of an element; such a tensor can only be
    /// ignored.
    Other(u8),
}

impl Dtype {
    /// Bytes of one element of the type.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::U8 | Dtype::F8E4M3 => 1,
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::Other(bytes) => bytes as usize,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dtype::U8 => f.write_str("U8"),
            Dtype::F8E4M3 => f.write_str("F8_E4M3"),
            Dtype::Bf16 => f.write_str("BF16"),
            Dtype::F32 => f.write_str("F32"),
            Dtype::Other(bytes) => write!(f, "another type of {bytes} bytes"),
        }
    }
}

/// Use of a matrix or vector in a model. Tensors of one role differ in their site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Embedding table, `[VOCAB, HIDDEN]`.
    Embedding,
    /// Output head, `[VOCAB, HIDDEN]`; absent where the embedding table serves as it.
    Head,
    /// A copy of an embedding table that serves as the head; it is not read.
    TiedHead,
    /// Norm after the last layer, of the decoder or of the prediction.
    FinalNorm,
    /// Norm before a layer's mixer.
    InputNorm,
    /// Norm before a layer's MLP or experts.
    PostNorm,
    /// Norm of a mixer's results, in models that have this norm.
    MixedNorm,
    /// Norm of the results of a layer's MLP, or of the sum of an MLP and experts.
    FedNorm,
    /// Norm of the results of an MLP beside experts.
    MlpNorm,
    /// Norm before experts beside an MLP, and norm of their results.
    ExpertsInputNorm,
    ExpertsNorm,
    /// Norm before a router that has its own; stored times the square root of the hidden width.
    RouterNorm,
    /// Factor of the hidden states at the end of a layer.
    LayerScalar,
    /// Attention's query projection; with an output gate, each head's query and gate in turn.
    Query,
    Key,
    Value,
    /// Attention's output projection.
    Output,
    /// The two products that make queries by way of latents, and the norm between them.
    QueryDown,
    QueryDownNorm,
    QueryUp,
    /// Product that makes the elements stored for a position: rotated ones, evens before odds, and
    /// a latent.
    LatentDown,
    LatentNorm,
    /// Rows that make a head's key, and a head's value, of a latent: `[heads, dim]` rows.
    LatentKeys,
    LatentValues,
    /// Biases of attention's projections.
    QueryBias,
    KeyBias,
    ValueBias,
    OutputBias,
    /// Attention sinks: a score for each query head that its softmax counts, without a value.
    Sinks,
    /// Norm of each head's query, with one set of weights for all heads.
    QueryNorm,
    KeyNorm,
    /// Scale of stored keys, which no target reads.
    KeyScale,
    ValueScale,
    /// Rows that make the inputs of a recurrent mixer's convolution: Gated DeltaNet's queries, keys
    /// and values, each for all heads; Mamba-2's `C`, `B` and `x` in their places.
    GdnQkv,
    /// Gate of the mixer's output, `z`.
    GdnGate,
    /// Strength of an update of the state, `b`.
    GdnBeta,
    /// Decay of the state, `a`.
    GdnDecay,
    GdnOutput,
    /// Step of Mamba-2, `dt`, which makes decay and strength.
    TimeStep,
    /// Factor of a Mamba-2 head's input `x` in its output.
    Skip,
    /// Taps of the causal convolution, `[channels, 1, taps]`.
    GdnConv,
    /// Biases of the causal convolution, one for each channel.
    ConvBias,
    /// Logarithm of a head's decay rate.
    GdnDecayRate,
    GdnDecayBias,
    /// Norm of each head's output, with one set of weights for all heads; in Mamba-2 over groups of
    /// heads, each with weights of its own.
    GdnNorm,
    /// Router's matrix, which makes a logit for each expert.
    Router,
    /// Matrix that makes the logit of the shared expert's weight.
    SharedRouter,
    /// Matrices of routed experts; each site has one for every expert.
    ExpertGate,
    ExpertUp,
    ExpertDown,
    /// Projections of hidden states to the latents that routed experts read, and of the sum of
    /// their results back.
    ExpertsIn,
    ExpertsOut,
    RouterBias,
    /// Factors of the weights of chosen experts, one for each expert.
    ExpertScales,
    /// Corrections of the experts' scores, which count in the choice and not in the weights.
    Correction,
    /// Biases of gate and up in the order of their tensor's rows, `[experts, 2 I]`.
    ExpertInBias,
    /// Biases of down, `[experts, HIDDEN]`.
    ExpertDownBias,
    /// Matrices of the shared expert.
    SharedGate,
    SharedUp,
    SharedDown,
    /// The matrices of a layer's MLP.
    MlpGate,
    MlpUp,
    MlpDown,
    /// Norm of the embedding that goes into a prediction.
    EmbeddingNorm,
    /// Norm of the hidden state that goes into a prediction.
    HiddenNorm,
    /// Projection of embedding and hidden state, in this order, `[HIDDEN, 2 HIDDEN]`.
    Fusion,
}

impl Role {
    /// Whether the matrix is small: every publisher stores it in floats, which kernels multiply.
    pub const fn is_float(self) -> bool {
        use Role::{Fusion, GdnBeta, GdnDecay, Router, SharedRouter};
        matches!(self, Router | SharedRouter | GdnBeta | GdnDecay | Fusion)
    }

    /// Role of the biases of a matrix's results, where a model may have them.
    pub const fn bias(self) -> Option<Role> {
        match self {
            Role::Query => Some(Role::QueryBias),
            Role::Key => Some(Role::KeyBias),
            Role::Value => Some(Role::ValueBias),
            Role::Output => Some(Role::OutputBias),
            Role::Router => Some(Role::RouterBias),
            Role::ExpertGate | Role::ExpertUp => Some(Role::ExpertInBias),
            Role::ExpertDown => Some(Role::ExpertDownBias),
            _ => None,
        }
    }

    /// Numbers that a matrix's rows and columns in memory are multiples of, where hidden and inner
    /// channels are padded to multiples of two numbers; the first also of a vector's elements.
    const fn multiples(self, [hidden, inner]: [usize; 2]) -> [usize; 2] {
        use Role::*;
        match self {
            ExpertGate | ExpertUp | MlpGate | MlpUp | SharedGate | SharedUp => [inner, hidden],
            ExpertDown | MlpDown | SharedDown => [hidden, inner],
            Output | GdnOutput => [hidden, 1],
            QueryUp | LatentKeys | LatentValues => [1, 1],
            ExpertsIn | ExpertsOut | OutputBias => [hidden, hidden],
            FinalNorm | InputNorm | PostNorm | MixedNorm | FedNorm => [hidden, hidden],
            MlpNorm | ExpertsInputNorm | ExpertsNorm | RouterNorm => [hidden, hidden],
            _ => [1, hidden],
        }
    }

    /// Whether a matrix belongs to the shared expert.
    pub const fn is_shared_expert(self) -> bool {
        matches!(self, Role::SharedGate | Role::SharedUp | Role::SharedDown)
    }

    /// Whether a matrix belongs to a routed expert.
    pub const fn is_expert(self) -> bool {
        matches!(self, Role::ExpertGate | Role::ExpertUp | Role::ExpertDown)
    }

    /// Whether a matrix belongs to an expert, routed or shared.
    pub const fn is_of_experts(self) -> bool {
        self.is_expert() || self.is_shared_expert()
    }
}

/// Part of a model that has a matrix or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    /// Outside of layers: before the first one, or after the last.
    Whole,
    /// A decoder layer, counted from 0.
    Layer(usize),
    /// The multi-token-prediction layer, and the tensors around it.
    Prediction,
}

/// Sites that have the tensors of a row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sites {
    Whole,
    /// Decoder layers in ascending order.
    Layers(Cow<'static, [usize]>),
    Prediction,
}

impl Sites {
    /// Whether `site` is among the sites.
    pub fn contains(&self, site: Site) -> bool {
        match (self, site) {
            (Sites::Whole, Site::Whole) | (Sites::Prediction, Site::Prediction) => true,
            (Sites::Layers(layers), Site::Layer(layer)) => layers.binary_search(&layer).is_ok(),
            _ => false,
        }
    }

    /// The sites, in order.
    pub fn iter(&self) -> impl Iterator<Item = Site> {
        let (alone, layers): (Option<Site>, &[usize]) = match self {
            Sites::Whole => (Some(Site::Whole), &[]),
            Sites::Prediction => (Some(Site::Prediction), &[]),
            Sites::Layers(layers) => (None, layers),
        };
        let layers = layers.iter().map(|&layer| Site::Layer(layer));
        alone.into_iter().chain(layers)
    }
}

/// Rows of a tensor that follow each other in a matrix: of each of `groups` stretches of `stride`
/// rows, the `rows` from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    pub groups: usize,
    pub stride: usize,
    pub first: usize,
    pub rows: usize,
}

/// Element type and meaning of the tensors of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A matrix in the same format on disk and in memory.
    Matrix(Format),
    /// A matrix that is rounded from format `stored` to `resident` as it is read.
    Rounded { stored: Format, resident: Format },
    /// A vector, or a small tensor read as one; BF16 or F32, at the publisher's choice.
    Vector {
        /// Whether the vector is stored less one: 1 is added before use.
        plus_one: bool,
    },
    /// A tensor that may be absent and is not read: an F32 scalar, or BF16 with a shape.
    Unused,
}

/// A row of the table: one kind of tensor in a checkpoint, and its part in a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub role: Role,
    /// Canonical name with `{layer}` and `{expert}` in place of numbers. A matrix has a tensor
    /// `<name>.weight` and related ones; a part of a stack has the stack's name.
    pub name: Cow<'static, str>,
    pub sites: Sites,
    /// Matrices at each site: one for each expert, else 1.
    pub copies: usize,
    /// Shape of the tensor: `[N, K]` of a matrix, `[copies, N, K]` of a stack.
    pub shape: Cow<'static, [usize]>,
    /// Rows of the tensor, or of a copy's part of a stack, that make the matrix, in the matrix's
    /// order; likewise elements of a vector that is stored in another order.
    pub runs: Cow<'static, [Run]>,
    pub kind: Kind,
}

/// Purpose of a tensor among the tensors of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The elements, or the codes of elements.
    Elements,
    /// The scales of groups or blocks.
    Scales,
    /// The scale of the whole matrix, by which products of code and group scale are divided.
    Divisor,
    /// The scale of the whole matrix, by which products of code and group scale are multiplied.
    Factor,
    /// The scale of the matrix's input, which no target reads.
    Input,
}

/// A tensor of a row: one of several that hold a matrix, or the only one of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub purpose: Purpose,
    /// End of the tensor's name, after the row's.
    pub suffix: &'static str,
    pub shape: Vec<usize>,
    /// Element types that are accepted, the usual first.
    pub dtypes: &'static [Dtype],
    /// Whether the tensor may be absent.
    pub optional: bool,
}

impl Piece {
    /// Number of elements of the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

use Purpose::{Divisor, Elements, Factor, Input, Scales};

/// A tensor of a format: its purpose, the end of its name, its shape for a matrix `[n, k]`, and its
/// element types.
type Part = (
    Purpose,
    &'static str,
    fn(usize, usize) -> Vec<usize>,
    &'static [Dtype],
);

const BF16: &[Dtype] = &[Dtype::Bf16];
const F32: &[Dtype] = &[Dtype::F32];
const BF16_OR_F32: &[Dtype] = &[Dtype::Bf16, Dtype::F32];
const F32_OR_BF16: &[Dtype] = &[Dtype::F32, Dtype::Bf16];
const U8: &[Dtype] = &[Dtype::U8];
const F8: &[Dtype] = &[Dtype::F8E4M3];

impl Row {
    /// Rows of the matrix.
    pub fn n(&self) -> usize {
        self.runs.iter().map(|run| run.groups * run.rows).sum()
    }

    /// Columns of the matrix.
    pub fn k(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows and columns of the matrix in memory, where hidden and inner widths are padded to
    /// multiples of `pads`.
    pub fn padded(&self, pads: [usize; 2]) -> [usize; 2] {
        let [rows, columns] = self.role.multiples(pads);
        [
            self.n().next_multiple_of(rows),
            self.k().next_multiple_of(columns),
        ]
    }

    /// Elements of the vector in memory, where its hidden width is padded to a multiple of `pad`.
    pub fn padded_elements(&self, pad: usize) -> usize {
        let elements = self.shape.iter().product::<usize>();
        elements.next_multiple_of(self.role.multiples([pad; 2])[0])
    }

    /// Whether one tensor holds the matrices of all copies.
    pub fn is_stacked(&self) -> bool {
        self.format().is_some() && self.shape.len() > 2
    }

    /// Format of the matrix in the checkpoint; none of a vector.
    pub fn format(&self) -> Option<Format> {
        match self.kind {
            Kind::Matrix(stored) | Kind::Rounded { stored, .. } => Some(stored),
            Kind::Vector { .. } | Kind::Unused => None,
        }
    }

    /// Format of the matrix in memory; none of a vector.
    pub fn resident(&self) -> Option<Format> {
        match self.kind {
            Kind::Rounded { resident, .. } => Some(resident),
            _ => self.format().map(Format::exact),
        }
    }

    /// Number of tensors at a site for each piece.
    pub fn tensors_of_site(&self) -> usize {
        match self.is_stacked() {
            true => 1,
            false => self.copies,
        }
    }

    /// Canonical name at a site, without the suffix of a piece.
    pub fn name_at(&self, site: Site, copy: usize) -> String {
        let layer = match site {
            Site::Layer(layer) => layer,
            Site::Whole | Site::Prediction => 0,
        };
        let name = self.name.replace("{layer}", &layer.to_string());
        name.replace("{expert}", &copy.to_string())
    }

    /// Pieces of the row: the tensors that hold its matrix or vector.
    pub fn pieces(&self) -> Vec<Piece> {
        match self.kind {
            Kind::Vector { .. } => self.whole(Purpose::Elements, BF16_OR_F32),
            Kind::Unused if self.shape.is_empty() => self.whole(Purpose::Input, F32),
            Kind::Unused => self.whole(Purpose::Input, BF16),
            Kind::Matrix(stored) | Kind::Rounded { stored, .. } => self.pieces_in(stored),
        }
    }

    /// Pieces that hold the row's matrix in a given format.
    pub fn pieces_in(&self, format: Format) -> Vec<Piece> {
        match self.shape[..] {
            [n, k] => format.pieces(&[], n, k),
            [copies, n, k] if format.is_of_stacks() => format.pieces(&[copies], n, k),
            _ => self.whole(Purpose::Elements, BF16),
        }
    }

    /// One piece with the row's name and shape.
    fn whole(&self, purpose: Purpose, dtypes: &'static [Dtype]) -> Vec<Piece> {
        vec![Piece {
            purpose,
            suffix: "",
            shape: self.shape.to_vec(),
            dtypes,
            optional: purpose == Purpose::Input,
        }]
    }
}

impl Format {
    /// Bytes of a stored matrix `[n, k]`, scales included.
    pub fn bytes(self, n: usize, k: usize) -> usize {
        let pieces = self.pieces(&[], n, k).into_iter();
        let needed = pieces.filter(|piece| !piece.optional);
        needed
            .map(|piece| piece.elements() * piece.dtypes[0].bytes())
            .sum()
    }

    /// Pieces that hold `copies` of a matrix `[n, k]`; no copies: of the matrix itself.
    fn pieces(self, copies: &[usize], n: usize, k: usize) -> Vec<Piece> {
        let parts = self.row().3.iter();
        let pieces = parts.map(|&(purpose, suffix, shape, dtypes)| Piece {
            purpose,
            suffix,
            shape: [copies, &shape(n, k)].concat(),
            dtypes,
            optional: purpose == Purpose::Input,
        });
        pieces.collect()
    }
}
