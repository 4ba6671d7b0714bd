//! Shapes of the blocks of models, as types: the target has one unit struct for each block of
//! its model, and operations, weights and memory are generic over it.
//!
//! All numbers are constants of the build. Widths are elements of one row. What most blocks lack
//! has a value that says so; targets state all.

/// Rows of a tensor instruction.
const INSTRUCTION_ROWS: usize = 16;

/// Grouped-query attention with rotary embedding.
pub trait Attention: Send + Sync + 'static {
    /// Query heads.
    const HEADS: usize;
    /// Key and value heads; each is asked by `GROUP` query heads.
    const KV_HEADS: usize;
    /// Elements of a head.
    const HEAD_DIM: usize;
    /// Elements of a value; where a head has more, keys are rotated elements and a latent of so
    /// many after them, and the latents are the values.
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
    /// Positions that a query sees, its own the last; none: all up to its own.
    const WINDOW: Option<usize> = None;
    /// Group of pages that hold its keys and values.
    const PAGES: PageGroup = PageGroup::Whole;
    /// Whether each query head has a sink: a score that its softmax counts beside those of
    /// positions, and that no value belongs to.
    const SINKS: bool = false;

    /// Query heads of a key head.
    const GROUP: usize = Self::HEADS / Self::KV_HEADS;
    /// Query heads of a key head that kernels score together: of latents, which all heads ask, so
    /// many as are rows of one instruction.
    const TOGETHER: usize = if Self::LATENT && Self::GROUP > INSTRUCTION_ROWS {
        INSTRUCTION_ROWS
    } else {
        Self::GROUP
    };
    /// Elements between the queries of two heads of a row: a query, and its gate if there is one.
    const QUERY: usize = Self::HEAD_DIM * if Self::GATED { 2 } else { 1 };
    /// Width of queries, gates included.
    const QUERIES: usize = Self::HEADS * Self::QUERY;
    /// Whether values are latents of keys.
    const LATENT: bool = Self::VALUE_DIM < Self::HEAD_DIM;
    /// Width of keys.
    const KEYS: usize = Self::KV_HEADS * Self::HEAD_DIM;
    /// Width of values beside keys; 0 where they are latents of these.
    const VALUES: usize = if Self::LATENT { 0 } else { Self::KEYS };
    /// Elements of a query, and of a key, that a norm is over, the last ones; 0 without a norm.
    const NORMS: [usize; 2] = match (Self::NORMED, Self::LATENT) {
        (true, _) => [Self::HEAD_DIM; 2],
        (false, true) => [0, Self::VALUE_DIM],
        (false, false) => [0; 2],
    };
    /// Width of the result.
    const MIXED: usize = Self::HEADS * Self::VALUE_DIM;
    /// Rotated pairs of a head.
    const PAIRS: usize = Self::ROTARY_DIM / 2;
    /// Fails to compile where the numbers do not fit each other.
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

/// Pages that have a block table of their own in each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageGroup {
    /// Pages of every position.
    Whole,
    /// Pages of a window of positions, where other layers of the model see all of them.
    Window,
}

/// Factor of queries after positions of the first training: `1 + BETA ln(1 + position /
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

/// Angles of rotary embedding: `position * frequency(pair)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change of frequencies for contexts beyond those that the model was first trained on.
    pub scaling: Option<Scaling>,
}

/// A change of frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    Llama3(Llama3),
    Yarn(Yarn),
    /// So many pairs, the first ones, keep theirs; the others do not rotate.
    First(usize),
}

/// The scaling YaRN (`rope_type` "yarn" of HF transformers; arXiv 2309.00071): a pair that rotates
/// less than `slow` times in `original` positions is slowed by `factor`, one that rotates more
/// than `fast` times is unchanged, and frequencies between are interpolated by pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    pub fast: f64,
    pub slow: f64,
    /// Context length of the training before the scaling.
    pub original: f64,
    /// Whether the bounds between unchanged and slowed pairs are whole pairs.
    pub truncate: bool,
    /// Factor of queries and of keys; absent: `0.1 ln(factor) + 1`.
    pub growth: Option<f64>,
}

/// The scaling of Llama 3.1: low frequencies are divided by `factor`, high ones unchanged, those
/// between interpolated (`rope_type` "llama3" of HF transformers).
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
    /// Radians per position of a pair. Rounded to F32, as training code has it, an angle would be
    /// off by more the further a position is.
    pub fn frequency(&self, pair: usize, rotary_dim: usize) -> f64 {
        let frequency = libm::pow(self.theta, -2.0 * pair as f64 / rotary_dim as f64);
        match self.scaling {
            Some(Scaling::Llama3(scaling)) => scaling.of(frequency),
            Some(Scaling::First(pairs)) if pair >= pairs => 0.0,
            Some(Scaling::Yarn(scaling)) => frequency * scaling.share(self.theta, pair, rotary_dim),
            None | Some(Scaling::First(_)) => frequency,
        }
    }

    /// Factor of queries and of keys.
    pub fn growth(&self) -> f64 {
        match self.scaling {
            Some(Scaling::Yarn(scaling)) => {
                let usual = || 0.1 * libm::log(scaling.factor) + 1.0;
                scaling.growth.unwrap_or_else(usual)
            }
            _ => 1.0,
        }
    }

    /// Cosine and sine of a pair's angle, times what queries and keys grow by.
    pub fn rotation(&self, position: usize, pair: usize, rotary_dim: usize) -> (f32, f32) {
        let angle = position as f64 * self.frequency(pair, rotary_dim);
        let growth = self.growth();
        let grown = |value: f64| (growth * value) as f32;
        (grown(libm::cos(angle)), grown(libm::sin(angle)))
    }
}

impl Yarn {
    /// Part of a pair's frequency that is left.
    fn share(&self, theta: f64, pair: usize, rotary_dim: usize) -> f64 {
        let pairs = rotary_dim as f64 / 2.0;
        // The pair that rotates so many times.
        let of = |rotations: f64| {
            let wavelength = self.original / (rotations * 2.0 * std::f64::consts::PI);
            pairs * libm::log(wavelength) / libm::log(theta)
        };
        let (low, high) = match self.truncate {
            false => (of(self.fast), of(self.slow)),
            true => (of(self.fast).floor(), of(self.slow).ceil()),
        };
        let (low, high) = (low.max(0.0), high.min(rotary_dim as f64 - 1.0));
        // Width that HF transformers takes where both bounds are the same.
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

/// A causal convolution and a recurrent matrix state per value head: Gated DeltaNet, or Mamba-2,
/// whose `C` are queries, whose `B` are keys and whose `x` are values here.
pub trait Delta: Send + Sync + 'static {
    /// Whether the rule is that of Mamba-2.
    const MAMBA: bool = false;
    /// Elements of the result that a norm is over: a head, or heads of one key.
    const NORM: usize;
    /// Heads of queries and keys.
    const KEY_HEADS: usize;
    /// Heads of values, each with a state `[KEY_DIM, VALUE_DIM]`.
    const VALUE_HEADS: usize;
    /// Elements of a query and of a key.
    const KEY_DIM: usize;
    /// Elements of a value.
    const VALUE_DIM: usize;
    /// Taps of the convolution.
    const CONV: usize;

    /// Value heads of a key head.
    const GROUP: usize = Self::VALUE_HEADS / Self::KEY_HEADS;
    /// Width of queries, and of keys.
    const KEYS: usize = Self::KEY_HEADS * Self::KEY_DIM;
    /// Width of values, of their gates and of the result.
    const VALUES: usize = Self::VALUE_HEADS * Self::VALUE_DIM;
    /// Width of queries, keys and values together, which the convolution mixes.
    const QKV: usize = 2 * Self::KEYS + Self::VALUES;
    /// Weights of norms: of a head, one for all heads, or of all.
    const GAINS: usize = if Self::MAMBA {
        Self::VALUES
    } else {
        Self::VALUE_DIM
    };
    /// Elements of a sequence's matrix state.
    const STATE: usize = Self::VALUE_HEADS * Self::KEY_DIM * Self::VALUE_DIM;
    /// Fails to compile where the numbers do not fit each other.
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
    /// Matrices that make its inputs: gate and up, or up alone.
    pub const fn inputs(self) -> usize {
        match self {
            Activation::Relu2 => 1,
            Activation::Silu | Activation::GeluTanh | Activation::Clamped => 2,
        }
    }
}

/// Bound of gate and up that are clamped, and the factor in their sigmoid.
pub const CLAMP: f32 = 7.0;
pub const ALPHA: f32 = 1.702;
/// `2 sqrt(2 / pi)`.
pub const GELU_SLOPE: f32 = 1.595_769;
pub const GELU_CUBIC: f32 = 0.044_715;

/// Routed experts, and one that every row visits where `SHARED` is not 0.
pub trait Experts: Send + Sync + 'static {
    /// Routed experts of a layer.
    const COUNT: usize;
    /// Routed experts that a row visits.
    const PER_TOKEN: usize;
    /// Inner width of a routed expert.
    const INTERMEDIATE: usize;
    /// Width of the rows that experts read and make.
    const WIDTH: usize;
    /// Whether these are latents, which projections make of hidden states and bring back; else they
    /// are hidden states.
    const LATENT: bool = false;
    /// Inner width of the shared expert, 0 if there is none.
    const SHARED: usize = 0;
    /// Whether its weight is the sigmoid of a logit of its own; else it is 1.
    const SHARED_GATED: bool = false;
    /// Inner width of an expert beside these, an MLP of its own without a gate, which every row
    /// visits with weight 1; 0 if there is none.
    const BESIDE: usize = 0;
    /// Whether scores are sigmoids, which a correction of each is added to in the choice alone;
    /// else they are a softmax.
    const SIGMOID: bool = false;
    /// Factor of the weights of routed experts.
    const WEIGHT_SCALE: f32 = 1.0;
    /// Whether experts stored as NVFP4 multiply rows that are rounded to it.
    const ROWS_NVFP4: bool = false;
    /// Whether the weight of a chosen expert is multiplied by a number of that expert.
    const SCALED: bool = false;
    const ACTIVATION: Activation;

    /// Matrices of an expert beside `down`: gate and up, or up alone.
    const INPUTS: usize = Self::ACTIVATION.inputs();
    /// Experts of a layer, the shared one last.
    const ALL: usize = Self::COUNT + Self::HAS_SHARED;
    /// Experts that a row is assigned to, the shared one last.
    const ASSIGNED: usize = Self::PER_TOKEN + Self::HAS_SHARED;
    /// 1 if there is a shared expert, else 0.
    const HAS_SHARED: usize = if Self::SHARED > 0 { 1 } else { 0 };
    /// Width of the router's logits: of every expert whose weight they decide.
    const LOGITS: usize = match Self::SHARED_GATED {
        true => Self::ALL,
        false => Self::COUNT,
    };
}

/// A gated MLP: `down` of the activation of `gate x` and `up x`.
pub trait Mlp: Send + Sync + 'static {
    /// Inner width.
    const INTERMEDIATE: usize;
    const ACTIVATION: Activation;
}

/// An MLP and experts beside each other.
pub trait Both: Send + Sync + 'static {
    type Mlp: Mlp;
    type Experts: Experts;
}

/// The largest of some numbers, 0 of none: of one for each shape of a kind.
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
