//! Shapes of the blocks of models, as types: the target has one unit struct for each block of its
//! model, and operations, weights and memory are generic over it.
//!
//! All numbers are constants of the build. Widths are elements of one row. Heads, columns and
//! experts are those of one rank: with one rank all of the model's. Features that most blocks lack
//! have a default here; targets state every feature.

/// Rows that a tensor instruction multiplies.
const INSTRUCTION_ROWS: usize = 16;

/// Shape of grouped-query attention with rotary embedding.
pub trait Attention: Send + Sync + 'static {
    /// Number of query heads.
    const HEADS: usize;
    /// Number of key and value heads; each serves `GROUP` query heads.
    const KV_HEADS: usize;
    /// Elements of a head.
    const HEAD_DIM: usize;
    /// Elements of a value. Where a head has more, a key is its rotated elements and, after them, a
    /// latent of so many elements, and the latents are the values.
    const VALUE_DIM: usize;
    /// Leading elements of a head that RoPE rotates, in pairs `(i, i + ROTARY_DIM / 2)`.
    const ROTARY_DIM: usize;
    /// Angles of rotary embedding.
    const ROPE: Rope;
    /// Factor of the products of queries and keys.
    const SCALE: f32;
    /// Whether each query comes with a gate, whose sigmoid the head's result is multiplied by.
    const GATED: bool = false;
    /// Whether queries and keys have an RMS norm of each head.
    const NORMED: bool = false;
    /// Whether queries and keys have one RMS norm over all heads of a row.
    const ROWS_NORMED: bool = false;
    /// Whether values have an RMS norm of each head, without weights.
    const VALUES_NORMED: bool = false;
    /// Number of positions that a query sees, its own the last; none: all up to its own.
    const WINDOW: Option<usize> = None;
    /// Group of pages in which keys and values are cached.
    const PAGES: PageGroup = PageGroup::Whole;
    /// Whether each query head has a sink: a further score in its softmax, to which no position and
    /// no value belongs.
    const SINKS: bool = false;
    /// Bytes of a position in the cache of one layer, in the format that the hardware stores: keys,
    /// and values where they are not latents of the keys.
    const POSITION_BYTES: usize;

    /// Number of query heads for each key head.
    const GROUP: usize = Self::HEADS / Self::KV_HEADS;
    /// Number of a key head's query heads that kernels score together: with latents, which all
    /// heads share, as many as an instruction has rows.
    const TOGETHER: usize = if Self::LATENT && Self::GROUP > INSTRUCTION_ROWS {
        INSTRUCTION_ROWS
    } else {
        Self::GROUP
    };
    /// Elements between the queries of two heads of a row: a query, and its gate if `GATED`.
    const QUERY: usize = Self::HEAD_DIM * if Self::GATED { 2 } else { 1 };
    /// Width of the queries of all heads, gates included.
    const QUERIES: usize = Self::HEADS * Self::QUERY;
    /// Whether values are latents of keys.
    const LATENT: bool = Self::VALUE_DIM < Self::HEAD_DIM;
    /// Width of the keys of all heads.
    const KEYS: usize = Self::KV_HEADS * Self::HEAD_DIM;
    /// Width of the values of all heads; 0 where values are latents of the keys.
    const VALUES: usize = if Self::LATENT { 0 } else { Self::KEYS };
    /// Numbers of last elements of a query, and of a key, that a norm is over; 0 without a norm.
    const NORMS: [usize; 2] = match (Self::NORMED, Self::LATENT) {
        (true, _) => [Self::HEAD_DIM; 2],
        (false, true) => [0, Self::VALUE_DIM],
        (false, false) => [0; 2],
    };
    /// Width of the results of all heads.
    const MIXED: usize = Self::HEADS * Self::VALUE_DIM;
    /// Number of rotated pairs of a head.
    const PAIRS: usize = Self::ROTARY_DIM / 2;
    /// Fails to compile where the shape's numbers contradict each other.
    const CHECK: () = {
        assert!(Self::HEADS.is_multiple_of(Self::KV_HEADS));
        assert!(Self::ROTARY_DIM.is_multiple_of(2) && Self::ROTARY_DIM <= Self::HEAD_DIM);
        assert!(!matches!(Self::WINDOW, Some(0)));
        assert!(!Self::ROWS_NORMED || !(Self::NORMED || Self::GATED));
        assert!(
            !Self::LATENT
                || Self::HEAD_DIM == Self::ROTARY_DIM + Self::VALUE_DIM
                    && !(Self::GATED || Self::NORMED || Self::VALUES_NORMED)
        );
    };

    /// First position that a query at `position` sees.
    fn first_seen(position: usize) -> usize {
        Self::WINDOW.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Group of pages that has a block table of its own in each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageGroup {
    /// Pages of every position.
    Whole,
    /// Pages of a window of positions, in a model with other layers that see all positions.
    Window,
}

/// Factor of queries at positions beyond those of the first training: `1 + BETA ln(1 + position /
/// ORIGINAL)`, the quotient rounded down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub beta: f32,
    pub original: usize,
}

impl Temperature {
    /// The factor of a query at a position.
    pub fn of(self, position: usize) -> f32 {
        let times = 1 + position / self.original;
        (1.0 + f64::from(self.beta) * libm::log(times as f64)) as f32
    }
}

/// Angles of rotary embedding: `position * frequency(pair)` radians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: pair `i` has `theta ^ (-2 i / ROTARY_DIM)`.
    pub theta: f64,
    /// Change of frequencies for contexts beyond those that the model was first trained on.
    pub scaling: Option<Scaling>,
}

/// Change of the frequencies of rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    Llama3(Llama3),
    Yarn(Yarn),
    /// Number of leading pairs that keep their frequencies; the others do not rotate.
    First(usize),
}

/// The scaling YaRN (`rope_type` "yarn" of HF transformers; arXiv 2309.00071): a pair that rotates
/// less than `slow` times in `original` positions is slowed by `factor`, one that rotates more than
/// `fast` times is unchanged, and frequencies in between are interpolated by pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub fast: f64,
    pub slow: f64,
    /// Context length of the training before the scaling.
    pub original: f64,
    /// Whether the bounds between unchanged and slowed pairs are rounded to whole pairs.
    pub truncate: bool,
    /// Factor of queries and of keys; absent: `0.1 ln(factor) + 1`.
    pub growth: Option<f64>,
}

/// The scaling of Llama 3.1: low frequencies are divided by `factor`, high ones unchanged, others
/// interpolated (`rope_type` "llama3" of HF transformers).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    pub factor: f64,
    /// Wavelengths of more than `original / low` are low frequencies.
    pub low: f64,
    /// Wavelengths of less than `original / high` are high frequencies.
    pub high: f64,
    /// Context length of the training before the scaling.
    pub original: f64,
}

impl Rope {
    /// Radians per position of a pair, in double precision: the error of an F32 would grow with the
    /// position.
    pub fn frequency(&self, pair: usize, rotary_dim: usize) -> f64 {
        let frequency = libm::pow(self.theta, -2.0 * pair as f64 / rotary_dim as f64);
        match self.scaling {
            Some(Scaling::Llama3(scaling)) => scaling.of(frequency),
            Some(Scaling::First(pairs)) if pair >= pairs => 0.0,
            Some(Scaling::Yarn(scaling)) => frequency * scaling.share(self.theta, pair, rotary_dim),
            None | Some(Scaling::First(_)) => frequency,
        }
    }

    /// Factor that multiplies queries and keys in addition to the rotation.
    pub fn growth(&self) -> f64 {
        match self.scaling {
            Some(Scaling::Yarn(scaling)) => {
                let usual = || 0.1 * libm::log(scaling.factor) + 1.0;
                scaling.growth.unwrap_or_else(usual)
            }
            _ => 1.0,
        }
    }

    /// Cosine and sine of a pair's angle, both times YaRN's attention factor (1 without YaRN).
    pub fn rotation(&self, position: usize, pair: usize, rotary_dim: usize) -> (f32, f32) {
        let angle = position as f64 * self.frequency(pair, rotary_dim);
        let growth = self.growth();
        let grown = |value: f64| (growth * value) as f32;
        (grown(libm::cos(angle)), grown(libm::sin(angle)))
    }
}

impl Yarn {
    /// Factor of a pair's frequency.
    fn share(&self, theta: f64, pair: usize, rotary_dim: usize) -> f64 {
        let pairs = rotary_dim as f64 / 2.0;
        // Index of the pair that rotates so many times in `original` positions.
        let of = |rotations: f64| {
            let wavelength = self.original / (rotations * 2.0 * std::f64::consts::PI);
            pairs * libm::log(wavelength) / libm::log(theta)
        };
        let (low, high) = match self.truncate {
            false => (of(self.fast), of(self.slow)),
            true => (of(self.fast).floor(), of(self.slow).ceil()),
        };
        let (low, high) = (low.max(0.0), high.min(rotary_dim as f64 - 1.0));
        // Width that HF transformers takes where both bounds are equal.
        let width = if high == low { 0.001 } else { high - low };
        let slowed = ((pair as f64 - low) / width).clamp(0.0, 1.0);
        slowed / self.factor + 1.0 - slowed
    }
}

impl Llama3 {
    fn of(&self, frequency: f64) -> f64 {
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < self.original / self.high {
            return frequency;
        }
        if wavelength > self.original / self.low {
            return frequency / self.factor;
        }
        let unchanged = (self.original / wavelength - self.low) / (self.high - self.low);
        (1.0 - unchanged) * frequency / self.factor + unchanged * frequency
    }
}

/// Shape of a causal convolution and a recurrent matrix state per value head: Gated DeltaNet, or
/// Mamba-2, whose `C` are called queries, `B` keys and `x` values here.
pub trait Delta: Send + Sync + 'static {
    /// Whether the rule is that of Mamba-2.
    const MAMBA: bool = false;
    /// Elements of the result that a norm is over: of one head, or of the heads of one key.
    const NORM: usize;
    /// Number of heads of queries and keys.
    const KEY_HEADS: usize;
    /// Number of heads of values, each with a state `[KEY_DIM, VALUE_DIM]`.
    const VALUE_HEADS: usize;
    /// Elements of a query and of a key.
    const KEY_DIM: usize;
    /// Elements of a value.
    const VALUE_DIM: usize;
    /// Number of taps of the convolution.
    const CONV: usize;

    /// Number of value heads for each key head.
    const GROUP: usize = Self::VALUE_HEADS / Self::KEY_HEADS;
    /// Width of queries, and of keys.
    const KEYS: usize = Self::KEY_HEADS * Self::KEY_DIM;
    /// Width of values, of their gates and of the result.
    const VALUES: usize = Self::VALUE_HEADS * Self::VALUE_DIM;
    /// Width of queries, keys and values together, which the convolution mixes.
    const QKV: usize = 2 * Self::KEYS + Self::VALUES;
    /// Number of weights of the result's norm: of a head, shared by all, or of all heads.
    const GAINS: usize = if Self::MAMBA {
        Self::VALUES
    } else {
        Self::VALUE_DIM
    };
    /// Elements of a sequence's matrix state.
    const STATE: usize = Self::VALUE_HEADS * Self::KEY_DIM * Self::VALUE_DIM;
    /// Fails to compile where the shape's numbers contradict each other.
    const CHECK: () = {
        assert!(Self::VALUE_HEADS.is_multiple_of(Self::KEY_HEADS) && Self::CONV >= 2);
        assert!(Self::VALUES.is_multiple_of(Self::NORM));
    };
}

/// Function of gate `g` and up `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu(g) * u`.
    Silu,
    /// `gelu(g) * u`, GELU in its form with a hyperbolic tangent:
    /// `gelu(g) = g * sigmoid(GELU_SLOPE (g + GELU_CUBIC g^3))`.
    GeluTanh,
    /// `min(g, CLAMP) * sigmoid(ALPHA min(g, CLAMP)) * (clamp(u) + 1)`, `u` within
    /// `-CLAMP ..= CLAMP`.
    Clamped,
    /// `max(g, 0) * u`, where `g` is `u`: there is no gate.
    Relu2,
}

impl Activation {
    /// Number of matrices that make the inputs of the activation: gate and up, or up alone.
    pub const fn inputs(self) -> usize {
        match self {
            Activation::Relu2 => 1,
            Activation::Silu | Activation::GeluTanh | Activation::Clamped => 2,
        }
    }
}

/// Bound to which clamped activations limit gate and up.
pub const CLAMP: f32 = 7.0;
/// Factor of the gate in the sigmoid of clamped activations.
pub const ALPHA: f32 = 1.702;
/// Factor in the sigmoid form of GELU, `2 sqrt(2 / pi)`.
pub const GELU_SLOPE: f32 = 1.595_769;
/// Coefficient of the cube in GELU.
pub const GELU_CUBIC: f32 = 0.044_715;

/// Shape of routed experts, and of one that every row visits where `SHARED` is not 0.
pub trait Experts: Send + Sync + 'static {
    /// Number of routed experts of a layer.
    const COUNT: usize;
    /// Number of routed experts that a row visits.
    const PER_TOKEN: usize;
    /// Inner width of a routed expert.
    const INTERMEDIATE: usize;
    /// Width of the rows that experts read and write.
    const WIDTH: usize;
    /// Whether experts read and write latents, to which hidden states are projected and from which
    /// results are projected back; else hidden states.
    const LATENT: bool = false;
    /// Inner width of the shared expert, 0 if there is none.
    const SHARED: usize = 0;
    /// Whether the shared expert's weight is the sigmoid of a logit of its own; else it is 1.
    const SHARED_GATED: bool = false;
    /// Inner width of an ungated MLP beside the routed experts, which every row visits with weight
    /// 1; 0 if there is none.
    const BESIDE: usize = 0;
    /// Whether experts' scores are sigmoids, to which corrections are added for the choice alone;
    /// else the scores are a softmax.
    const SIGMOID: bool = false;
    /// Factor of the weights of routed experts.
    const WEIGHT_SCALE: f32 = 1.0;
    /// Whether experts stored as NVFP4 multiply rows that are rounded to NVFP4.
    const ROWS_NVFP4: bool = false;
    /// Whether the weight of a chosen expert is multiplied by a number of that expert.
    const SCALED: bool = false;
    const ACTIVATION: Activation;

    /// Number of matrices of an expert beside `down`: gate and up, or up alone.
    const INPUTS: usize = Self::ACTIVATION.inputs();
    /// Number of experts of a layer, the shared one included.
    const ALL: usize = Self::COUNT + Self::HAS_SHARED;
    /// Number of experts that a row visits, the shared one included.
    const ASSIGNED: usize = Self::PER_TOKEN + Self::HAS_SHARED;
    /// 1 if there is a shared expert, else 0.
    const HAS_SHARED: usize = if Self::SHARED > 0 { 1 } else { 0 };
    /// Width of the router's logits: one for every expert whose weight the router decides.
    const LOGITS: usize = match Self::SHARED_GATED {
        true => Self::ALL,
        false => Self::COUNT,
    };
}

/// Shape of a gated MLP: `down` of the activation of `gate x` and `up x`.
pub trait Mlp: Send + Sync + 'static {
    /// Inner width of the MLP.
    const INTERMEDIATE: usize;
    const ACTIVATION: Activation;
}

/// Shapes of an MLP and experts beside each other.
pub trait Both: Send + Sync + 'static {
    type Mlp: Mlp;
    type Experts: Experts;
}

/// The largest of some numbers, such as one for each shape of a kind; 0 of none.
pub const fn largest(all: &[usize]) -> usize {
    let (mut found, mut at) = (0, 0);
    while at < all.len() {
        if found < all[at] {
            found = all[at];
        }
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Windowed;

    impl Attention for Windowed {
        const HEADS: usize = 1;
        const KV_HEADS: usize = 1;
        const HEAD_DIM: usize = 2;
        const VALUE_DIM: usize = 2;
        const ROTARY_DIM: usize = 2;
        const ROPE: Rope = Rope {
            theta: 1e4,
            scaling: None,
        };
        const SCALE: f32 = 1.0;
        const WINDOW: Option<usize> = Some(3);
        const POSITION_BYTES: usize = 16;
    }

    #[test]
    fn a_window_ends_with_the_query_s_own_position() {
        let seen = [0, 1, 2, 3, 9].map(|position| position + 1 - Windowed::first_seen(position));
        assert_eq!(seen, [1, 2, 3, 3, 3]);
    }

    #[test]
    fn pairs_after_the_first_ones_do_not_rotate() {
        let rope = Rope {
            theta: 16.0,
            scaling: Some(Scaling::First(1)),
        };
        assert_eq!(
            [0, 1, 2].map(|pair| rope.frequency(pair, 8)),
            [1.0, 0.0, 0.0]
        );
        assert_eq!(rope.rotation(9, 1, 8), (1.0, 0.0));
    }

    #[test]
    fn a_scaled_frequency_is_unchanged_above_and_divided_below() {
        let scaling = Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192.0,
        };
        let rope = |scaling| Rope {
            theta: 5e5,
            scaling,
        };
        let (plain, scaled) = (rope(None), rope(Some(Scaling::Llama3(scaling))));
        let both = |pair| (plain.frequency(pair, 128), scaled.frequency(pair, 128));
        let (unchanged, same) = both(0);
        assert_eq!(unchanged, same);
        let (slow, slower) = both(63);
        assert_eq!(slow / 8.0, slower);
        let between = (0..64).map(both).filter(|(a, b)| b < a && *b > a / 8.0);
        assert!(between.count() > 0);
    }

    /// Numbers of gpt-oss, whose bounds lie at pairs 8.09 and 17.40.
    #[test]
    fn yarn_keeps_fast_pairs_and_slows_the_others_by_degrees() {
        let scaling = Yarn {
            factor: 32.0,
            fast: 32.0,
            slow: 1.0,
            original: 4096.0,
            truncate: false,
            growth: None,
        };
        let share = |pair| scaling.share(150_000.0, pair, 64);
        assert_eq!([share(0), share(8)], [1.0; 2]);
        assert_eq!([share(18), share(31)], [1.0 / 32.0; 2]);
        let between = share(12);
        let expected = 1.0 - (12.0 - 8.0928) / (17.398 - 8.0928) * (31.0 / 32.0);
        assert!((between - expected).abs() < 1e-4, "{between} {expected}");
        let rope = Rope {
            theta: 150_000.0,
            scaling: Some(Scaling::Yarn(scaling)),
        };
        assert_eq!(rope.rotation(0, 3, 64), (1.346_573_6, 0.0));
        let whole = Yarn {
            truncate: true,
            growth: Some(1.0),
            ..scaling
        };
        let between = 1.0 - (12.0 - 8.0) / (18.0 - 8.0) * (31.0 / 32.0);
        assert!((whole.share(150_000.0, 12, 64) - between).abs() < 1e-6);
        let scaling = Some(Scaling::Yarn(whole));
        assert_eq!(Rope { scaling, ..rope }.rotation(0, 3, 64), (1.0, 0.0));
    }

    #[test]
    fn queries_grow_after_the_first_positions() {
        let growth = Temperature {
            beta: 0.1,
            original: 8,
        };
        assert_eq!([0, 7].map(|position| growth.of(position)), [1.0; 2]);
        assert_eq!(
            [8, 15].map(|position| growth.of(position)),
            [1.069_314_7; 2]
        );
        assert_eq!(growth.of(16), 1.109_861_2);
    }
}
