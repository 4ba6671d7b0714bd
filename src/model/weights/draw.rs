//! Tensors of a drawn checkpoint: seeded numbers of a trained model's magnitudes.
//!
//! - Matrices have a standard deviation of `1 / sqrt(K)`, so that a row of unit variance keeps it,
//!   but for those that add to the hidden state. The embedding has unit variance; each layer adds
//!   little to it.
//! - One channel of the hidden state in [`COMMON_EVERY`] holds the same value for every token. On
//!   these channels a row of a router holds its expert's popularity: the expert of rank `r`, from 1
//!   on, gets a logit of `-POPULARITY ln r` beside one of unit variance that the token decides,
//!   both times `ROUTER_SPREAD`. With 256 experts, 8 a token, the busiest is taken 5 to 6 times as
//!   often as on average, the busiest tenth gets a quarter of all rows, none stays idle; the first
//!   expert of a token has half of their weight, the eighth 2 % (`scripts/full_width.py`
//!   measures it). Logits whose sigmoids are scores lie lower, by `SIGMOID_BELOW`, and spread
//!   further: where they are near 1, all chosen experts have one weight, and a near tie would
//!   exchange a whole share of a layer's experts.
//! - Logits have a standard deviation of `HEAD_SPREAD sqrt(2 ln VOCAB)`, where a few tokens share
//!   most of the probability: on average the next token has an entropy of 2 to 4 nats, less if the
//!   vocabulary is small.
//! - A tensor's seed is its name: a checkpoint cut after some layers holds the same tensors.

use super::format::{self, e4m3};
use super::header::Dtype;
use super::layout::{Expected, Layout, Weight};
use crate::shapes::Activation;
use crate::target::{self, Coding, Kind, Purpose, Role, Site, each_experts};
use step::random::Random;

/// Distance of the channels that have the same value for every token.
const COMMON_EVERY: usize = 16;
/// Value on the common channels; all other channels have unit variance.
const COMMON: f32 = 2.0;
/// Standard deviation of the part of a router's logits that the token decides.
const ROUTER_SPREAD: f32 = 4.0;
/// Standard deviation as `ROUTER_SPREAD`, of models whose experts' scores are sigmoids.
const SIGMOID_SPREAD: f32 = 6.0;
/// Distance of the mean of logits below zero where scores are sigmoids, in units of their
/// deviation.
const SIGMOID_BELOW: f32 = 1.5;
/// Exponent of the popularity of experts, in units of the deviation of logits.
const POPULARITY: f32 = 0.2;
/// Mean square of a layer's additions to the hidden state.
pub const LAYER_GROWTH: f32 = 0.09;
/// Factor of mixers' last matrices: with it a Gated DeltaNet adds 0.06 to the hidden state.
const MIXER_GAIN: f32 = 0.365;
/// Factor of mixers' last matrices in Mamba-2, which multiply normed results.
const MAMBA_GAIN: f32 = 0.25;
/// Factor of experts' down matrices: with it a token's experts add 0.03 to the hidden state.
const EXPERT_GAIN: f32 = 0.286;
/// Weights of norms over outputs that blocks add to the hidden state: with them a block adds 0.05.
const ADDED_GAIN: f32 = 0.21;
/// Factor of the down matrices of experts with clamps, whose activations are larger, since one is
/// added to the up product.
const CLAMPED_GAIN: f32 = 0.034;
/// Factor of the down matrices of ungated experts, whose routing weights sum up to more than 1.
const RELU2_GAIN: f32 = 0.065;
/// Largest correction of the scores of experts: a tenth or so of the least chosen score.
const CORRECTION_SPREAD: f32 = 0.002;
/// Standard deviation of logits, in units of `sqrt(2 ln VOCAB)`.
const HEAD_SPREAD: f32 = 1.05;
/// Largest distance of drawn norm weights from their centre.
const NORM_SPREAD: f32 = 0.5;

/// Root mean square of uniformly drawn E2M1 codes.
pub const E2M1_RMS: f32 = 2.926;
/// Largest distance from 1 of the drawn factors of whole tensors or blocks.
const FACTOR_SPREAD: f32 = 0.25;

/// Number of drawn bytes that are turned into numbers at once.
const DRAWN_BYTES: usize = 4096;

/// Content of a tensor as a function of its seed.
#[derive(Clone, Debug)]
pub struct Draw {
    seed: u64,
    numbers: Numbers,
    /// Whether BF16 numbers are stored as F32 in this tensor.
    widened: bool,
}

#[derive(Clone, Debug)]
pub enum Numbers {
    Bf16(Range),
    F32(Range),
    /// Bytes in which the bits of the first number are set and those of the second are drawn.
    Bytes((u8, u8)),
    /// BF16 `[rows, columns]` of `range`, but on the common channels: there row `r` has
    /// `common[r]`, or all rows have the one value of `common`.
    Rows {
        range: Range,
        columns: usize,
        common: Vec<f32>,
    },
}

/// Evenly distributed numbers of a range.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    centre: f32,
    spread: f32,
}

impl Range {
    /// Range of the weights of a matrix with `columns` that keeps the variance of its input.
    pub fn matrix(columns: usize) -> Range {
        let (centre, spread) = (0.0, (3.0 / columns as f32).sqrt());
        Range { centre, spread }
    }

    fn around(centre: f32, spread: f32) -> Range {
        Range { centre, spread }
    }

    pub fn times(self, factor: f32) -> Range {
        Range::around(factor * self.centre, factor * self.spread)
    }

    /// Range of drawn scales and factors of matrices.
    pub fn factor(centre: f32) -> Range {
        Range::around(centre, FACTOR_SPREAD * centre)
    }

    /// Number of the range that a drawn byte selects.
    fn of(self, byte: u8) -> f32 {
        self.centre + self.spread * (f32::from(byte as i8) + 0.5) / 128.0
    }
}

/// Distribution of a role's BF16 numbers, if it has one. `tied`: the embedding is the head.
fn of_role(weight: Weight, tied: bool) -> Option<Numbers> {
    let columns = target::CHANNELS;
    let rows = |scale: f32, range: Range, common: Vec<f32>| Numbers::Rows {
        range: Range::around(0.0, scale * range.spread),
        columns,
        common: common.iter().map(|value| scale * value).collect(),
    };
    let embedding = |scale| rows(scale, Range::around(0.0, 3f32.sqrt()), vec![COMMON]);
    // Weights that are stored around zero are drawn around zero.
    let stored = |centre: f32| match weight.kind() {
        Kind::Vector { plus_one: true } => Range::around(centre - 1.0, NORM_SPREAD),
        _ => Range::around(centre, NORM_SPREAD),
    };
    Some(match weight.role() {
        // An embedding that is also the head has the magnitude of a head, which norms undo.
        Role::Embedding if tied => embedding(head_scale()),
        Role::Embedding => embedding(1.0),
        Role::Head => Numbers::Bf16(Range::around(0.0, head_scale() * 3f32.sqrt())),
        Role::Router => {
            let (spread, below) = match scores_are_sigmoids() {
                true => (SIGMOID_SPREAD, SIGMOID_BELOW),
                false => (ROUTER_SPREAD, 0.0),
            };
            rows(spread, Range::matrix(columns), popularity(weight, below))
        }
        Role::FinalNorm
        | Role::InputNorm
        | Role::PostNorm
        | Role::ExpertsInputNorm
        | Role::MlpNorm
        | Role::ExpertsNorm
        | Role::ExpertScales
        | Role::LatentNorm
        | Role::EmbeddingNorm
        | Role::HiddenNorm
        | Role::GdnNorm => Numbers::Bf16(stored(1.0)),
        // The weights are small, since the normed numbers have unit variance.
        Role::MixedNorm | Role::FedNorm => {
            let Range { centre, .. } = stored(ADDED_GAIN);
            Numbers::Bf16(Range::around(centre, NORM_SPREAD * ADDED_GAIN))
        }
        // The stored weights are multiplied by the root of the hidden width.
        Role::RouterNorm => {
            let Range { centre, spread } = stored(1.0);
            let root = (columns as f32).sqrt();
            Numbers::Bf16(Range::around(centre, spread).times(root))
        }
        Role::LayerScalar => Numbers::Bf16(Range::around(0.9, 0.1)),
        // The weights are larger, so that attention prefers some positions.
        Role::QueryNorm | Role::QueryDownNorm | Role::KeyNorm => Numbers::Bf16(stored(1.5)),
        // The half-lives are from one token to some thousands.
        Role::GdnDecayRate => Numbers::Bf16(Range::around(1.4, 1.4)),
        Role::Correction => Numbers::Bf16(Range::around(0.0, CORRECTION_SPREAD)),
        Role::GdnDecayBias => Numbers::Bf16(Range::around(-4.6, 2.3)),
        _ => return None,
    })
}

/// Factor of the matrices that add to the hidden state.
fn gain(role: Role) -> f32 {
    let activations = each_experts![E => <E as crate::shapes::Experts>::ACTIVATION];
    let activation = activations.first().copied();
    match role {
        Role::GdnOutput if Layout::whole().sites(Role::TimeStep).next().is_some() => MAMBA_GAIN,
        Role::Output | Role::GdnOutput => MIXER_GAIN,
        Role::ExpertDown if activation == Some(Activation::Clamped) => CLAMPED_GAIN,
        Role::ExpertDown | Role::MlpDown if activation == Some(Activation::Relu2) => RELU2_GAIN,
        Role::ExpertDown | Role::SharedDown | Role::MlpDown => EXPERT_GAIN,
        _ => 1.0,
    }
}

/// Whether experts are chosen by sigmoids.
fn scores_are_sigmoids() -> bool {
    let sigmoid = each_experts![E => <E as crate::shapes::Experts>::SIGMOID];
    sigmoid.contains(&true)
}

/// Standard deviation of the head's weights.
fn head_scale() -> f32 {
    let logits = HEAD_SPREAD * (2.0 * (target::VOCAB as f32).ln()).sqrt();
    let hidden = target::CHANNELS as f32 * (1.0 + NORM_SPREAD * NORM_SPREAD / 3.0);
    logits / hidden.sqrt()
}

/// Values of a router's rows on the channels that hold one value for every token. They give each
/// expert its popularity, lowered by `below`; ranks of experts differ between layers.
fn popularity(router: Weight, below: f32) -> Vec<f32> {
    let layer = match router.site() {
        Site::Layer(layer) => layer,
        Site::Whole | Site::Prediction => target::LAYERS,
    };
    let channels = target::CHANNELS.div_ceil(COMMON_EVERY) as f32;
    let share = 1.0 / COMMON_EVERY as f32;
    let embedding = share * COMMON * COMMON + 1.0 - share;
    let size = (embedding + LAYER_GROWTH * layer as f32).sqrt();
    let sum = channels * COMMON / size;
    let mut ranks: Vec<usize> = (0..router.n()).collect();
    let dealt = seed("popularity").wrapping_add(layer as u64);
    ranks.sort_by_key(|&rank| word(dealt, rank as u64));
    let logit = |rank: &usize| -POPULARITY * ((rank + 1) as f32).ln() - below;
    ranks.iter().map(|rank| logit(rank) / sum).collect()
}

/// Root mean square of E4M3 numbers whose bits `set` are set and whose bits `drawn` are drawn.
pub fn e4m3_rms((set, drawn): (u8, u8)) -> f32 {
    let square = |byte: u8| e4m3(byte & drawn | set).powi(2);
    ((0..=u8::MAX).map(square).sum::<f32>() / 256.0).sqrt()
}

impl Draw {
    /// The content of the tensor `name` of `layout`.
    pub fn of(name: &str, tensor: &Expected, layout: Layout) -> Draw {
        let (weight, piece) = (tensor.weight, &tensor.piece);
        let tied = !layout.has(Role::Head, Site::Whole);
        let is = |dtype| piece.purpose == Purpose::Elements && piece.dtypes[0] == dtype;
        let widened = is(Dtype::F32);
        let floats = widened || is(Dtype::Bf16);
        let by_role = floats.then(|| of_role(weight, tied)).flatten();
        let numbers = by_role.unwrap_or_else(|| match piece.purpose {
            Purpose::Input => Numbers::F32(Range::around(1.0, 0.0)),
            _ => {
                let coding = if floats {
                    Coding::Bf16
                } else {
                    weight.stored_format().coding()
                };
                coding
                    .codec()
                    .draw(piece, weight.stored()[1], gain(weight.role()))
            }
        });
        Draw {
            seed: seed(name),
            numbers,
            widened,
        }
    }

    /// Fills `out` with the tensor's bytes from `offset` on; both begin at a whole element.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        if !self.widened {
            return self.fill_narrow(offset, out);
        }
        let mut narrow = vec![0; out.len() / 2];
        self.fill_narrow(offset / 2, &mut narrow);
        let numbers = narrow
            .as_chunks()
            .0
            .iter()
            .map(|&number| format::bf16(number));
        for (to, number) in out.as_chunks_mut().0.iter_mut().zip(numbers) {
            *to = number.to_le_bytes();
        }
    }

    fn fill_narrow(&self, offset: u64, out: &mut [u8]) {
        match &self.numbers {
            Numbers::Bytes((set, drawn)) => {
                draw(self.seed, offset, out);
                out.iter_mut().for_each(|byte| *byte = *byte & drawn | set);
            }
            Numbers::F32(range) => {
                let (values, first) = (out.as_chunks_mut().0.iter_mut(), offset / 4);
                for (index, value) in values.enumerate() {
                    let byte = word(self.seed, first + index as u64) as u8;
                    *value = range.of(byte).to_le_bytes();
                }
            }
            Numbers::Bf16(range) => self.fill_bf16(*range, offset / 2, out),
            Numbers::Rows {
                range,
                columns,
                common,
            } => {
                self.fill_bf16(*range, offset / 2, out);
                let first = (offset / 2) as usize;
                put_common(common, *columns, first, out.as_chunks_mut().0);
            }
        }
    }

    /// Fills `out` with BF16 of `range`; `first`: index of the first element.
    fn fill_bf16(&self, range: Range, first: u64, out: &mut [u8]) {
        let table: [[u8; 2]; 256] = std::array::from_fn(|byte| bf16(range.of(byte as u8)));
        let mut drawn = [0; DRAWN_BYTES];
        let mut first = first;
        for out in out.as_chunks_mut::<2>().0.chunks_mut(DRAWN_BYTES) {
            let drawn = &mut drawn[..out.len()];
            draw(self.seed, first, drawn);
            for (out, byte) in out.iter_mut().zip(drawn) {
                *out = table[usize::from(*byte)];
            }
            first += out.len() as u64;
        }
    }
}

/// Overwrites elements on common channels; `first`: index of the first element.
fn put_common(common: &[f32], columns: usize, first: usize, out: &mut [[u8; 2]]) {
    let mut at = first;
    while at < first + out.len() {
        let (row, column) = (at / columns, at % columns);
        let next = column.next_multiple_of(COMMON_EVERY);
        let end = (row + 1) * columns;
        let value = bf16(common[row % common.len()]);
        for index in (row * columns + next..end).step_by(COMMON_EVERY) {
            match out.get_mut(index - first) {
                Some(out) => *out = value,
                None => break,
            }
        }
        at = end;
    }
}

/// The `index`-th number of a seed.
fn word(seed: u64, index: u64) -> u64 {
    Random::new(seed).after(index).bits()
}

/// Fills `out` with drawn bytes from index `first` on: eight of each word.
fn draw(seed: u64, first: u64, out: &mut [u8]) {
    let skipped = (first % 8) as usize;
    let head = ((8 - skipped) % 8).min(out.len());
    let (start, rest) = out.split_at_mut(head);
    start.copy_from_slice(&word(seed, first / 8).to_le_bytes()[skipped..][..start.len()]);
    let mut index = first.div_ceil(8);
    let (words, last) = rest.as_chunks_mut();
    for out in words {
        *out = word(seed, index).to_le_bytes();
        index += 1;
    }
    last.copy_from_slice(&word(seed, index).to_le_bytes()[..last.len()]);
}

/// Seed of a tensor: FNV-1a of its name.
fn seed(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The BF16 of a number, rounded towards zero.
fn bf16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::format;
    use super::*;

    fn bytes(numbers: Numbers, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let seed = seed("a");
        let draw = Draw {
            seed,
            numbers,
            widened: false,
        };
        draw.fill(offset, &mut out);
        out
    }

    #[test]
    fn a_range_equals_that_range_of_the_whole() {
        let rows = Numbers::Rows {
            range: Range::matrix(40),
            columns: 40,
            common: vec![1.0, 2.0, 3.0],
        };
        let any = Numbers::Bytes((0, 0xff));
        for numbers in [any, Numbers::Bf16(Range::matrix(3)), rows] {
            let whole = bytes(numbers.clone(), 0, 2 * DRAWN_BYTES + 480);
            for (start, len) in [(0, 2), (2, 18), (14, 100), (4096, 4200), (78, 320)] {
                let part = bytes(numbers.clone(), start as u64, len);
                assert_eq!(part, whole[start..start + len], "{start} {len}");
            }
        }
    }

    #[test]
    fn numbers_of_f32_are_those_of_bf16() {
        let numbers = Numbers::Bf16(Range::matrix(3));
        let narrow = bytes(numbers.clone(), 6, 100);
        let draw = Draw {
            seed: seed("a"),
            numbers,
            widened: true,
        };
        let mut wide = [0; 200];
        draw.fill(12, &mut wide);
        let wide = wide.as_chunks().0.iter();
        let back = wide.flat_map(|&number| format::narrow(number).unwrap());
        assert!(back.eq(narrow));
    }

    #[test]
    fn a_matrix_keeps_the_variance_of_what_it_is_multiplied_with() {
        let bytes = bytes(Numbers::Bf16(Range::matrix(300)), 0, 60_000);
        let values = bytes.as_chunks().0.iter().map(|&b| format::bf16(b));
        let square: f32 = values.map(|value| value * value).sum::<f32>() / 100.0;
        assert!((square - 1.0).abs() < 0.05, "{square}");
    }

    #[test]
    fn codes_are_as_large_as_scales_count_on() {
        let codes = |of| bytes(Numbers::Bytes(of), 0, 60_000);
        let size = |values: &[f32]| {
            let square = values.iter().map(|value| value * value).sum::<f32>();
            (square / values.len() as f32).sqrt()
        };
        let e4m3_of = |kind| codes(kind).into_iter().map(e4m3).collect::<Vec<_>>();
        let both = codes((0, 0xff))
            .into_iter()
            .flat_map(|byte| [byte & 15, byte >> 4]);
        let e2m1: Vec<f32> = both.map(|code| format::E2M1[usize::from(code)]).collect();
        let found = [(0, 0xb7), (0x30, 0x0f)].map(|kind| size(&e4m3_of(kind)) / e4m3_rms(kind));
        for ratio in [found[0], found[1], size(&e2m1) / E2M1_RMS] {
            assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
        }
    }

    #[test]
    fn common_channels_hold_their_rows_value() {
        let rows = Numbers::Rows {
            range: Range::around(9.0, 0.0),
            columns: 20,
            common: vec![1.0, 2.0],
        };
        let bytes = bytes(rows, 0, 2 * 60);
        let values: Vec<_> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&b| format::bf16(b))
            .collect();
        let common = |at: usize| (at % 20).is_multiple_of(COMMON_EVERY);
        for (at, value) in values.into_iter().enumerate() {
            let wanted = if common(at) {
                [1.0, 2.0, 1.0][at / 20]
            } else {
                9.0
            };
            assert_eq!(value, wanted, "{at}");
        }
    }
}
