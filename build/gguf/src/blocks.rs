//! Conversion of ggml's blocks of numbers to F32.
//!
//! Format: `block_*` of ggml's `ggml-common.h`; arithmetic as in its `dequantize_row_*`: in F32, so
//! `d * q + m` is rounded once.

/// Elements of a block of the quantised kinds.
const BLOCK: usize = 32;
/// Elements of a block of the kinds whose parts of 16 or 32 have scales of their own.
const SUPER: usize = 256;
/// Bytes of the six-bit scales and minima of a block's eight parts.
const SCALES: usize = 12;
const HALF_BYTES: usize = 2;

/// Storage format of a tensor: how an element follows from its code `q`, the factors `d` and `m` of
/// its block, and the integers `s` and `t` of its part of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    /// `d * (q - 8)`, four bits each.
    Q4_0,
    /// `d * q + m`, four bits each.
    Q4_1,
    /// `d * (q - 16)`, five bits each.
    Q5_0,
    /// `d * q`, eight bits each.
    Q8_0,
    /// `d * s * q - m * t`, four bits each; every 32 have their own `s` and `t`.
    Q4K,
    /// `d * s * (q - 32)`, six bits each; every 16 have their own `s`.
    Q6K,
}

/// Kinds with their numbers in files and their names.
const KINDS: [(u32, Kind, &str); 9] = [
    (0, Kind::F32, "F32"),
    (1, Kind::F16, "F16"),
    (2, Kind::Q4_0, "Q4_0"),
    (3, Kind::Q4_1, "Q4_1"),
    (6, Kind::Q5_0, "Q5_0"),
    (8, Kind::Q8_0, "Q8_0"),
    (12, Kind::Q4K, "Q4_K"),
    (14, Kind::Q6K, "Q6_K"),
    (30, Kind::Bf16, "BF16"),
];

impl Kind {
    pub fn of(number: u32) -> Option<Kind> {
        let found = KINDS.iter().find(|(of, _, _)| *of == number);
        found.map(|(_, kind, _)| *kind)
    }

    /// Names and numbers of all known kinds, for errors.
    pub fn known() -> String {
        KINDS
            .map(|(of, _, name)| format!("{of} ({name})"))
            .join(", ")
    }

    /// Elements in one block of the kind.
    pub fn elements(self) -> usize {
        match self {
            Kind::F32 | Kind::F16 | Kind::Bf16 => 1,
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q5_0 | Kind::Q8_0 => BLOCK,
            Kind::Q4K | Kind::Q6K => SUPER,
        }
    }

    /// Bytes of one block of the kind.
    pub fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::F16 | Kind::Bf16 => HALF_BYTES,
            Kind::Q4_0 => HALF_BYTES + BLOCK / 2,
            Kind::Q4_1 => 2 * HALF_BYTES + BLOCK / 2,
            Kind::Q5_0 => HALF_BYTES + BLOCK / 8 + BLOCK / 2,
            Kind::Q8_0 => HALF_BYTES + BLOCK,
            Kind::Q4K => 2 * HALF_BYTES + SCALES + SUPER / 2,
            Kind::Q6K => SUPER / 2 + SUPER / 4 + SUPER / 16 + HALF_BYTES,
        }
    }

    /// Appends to `to` the elements of whole blocks.
    pub fn dequantise(self, blocks: &[u8], to: &mut Vec<f32>) {
        for block in blocks.chunks_exact(self.bytes()) {
            match self {
                Kind::F32 => to.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Kind::F16 => to.push(half(block)),
                Kind::Bf16 => to.push(f32::from_bits(
                    u32::from(u16::from_le_bytes([block[0], block[1]])) << 16,
                )),
                Kind::Q4_0 => {
                    let d = half(block);
                    nibbles(&block[HALF_BYTES..], to, |q| d * (f32::from(q) - 8.0));
                }
                Kind::Q4_1 => {
                    let (d, m) = (half(block), half(&block[HALF_BYTES..]));
                    nibbles(&block[2 * HALF_BYTES..], to, |q| d * f32::from(q) + m);
                }
                Kind::Q5_0 => q5_0(block, to),
                Kind::Q4K => q4_k(block, to),
                Kind::Q6K => q6_k(block, to),
                Kind::Q8_0 => {
                    let d = half(block);
                    let codes = block[HALF_BYTES..].iter();
                    to.extend(codes.map(|&q| d * f32::from(q.cast_signed())));
                }
            }
        }
    }
}

/// Calls `number` for each code: a block's first half is in low nibbles, the second in high ones.
fn nibbles(codes: &[u8], to: &mut Vec<f32>, mut number: impl FnMut(u8) -> f32) {
    to.extend(codes.iter().map(|code| number(code & 0xf)));
    to.extend(codes.iter().map(|code| number(code >> 4)));
}

/// Reads a block of Q5_0: a factor, a word of the codes' fifth bits, and nibbles in two halves.
fn q5_0(block: &[u8], to: &mut Vec<f32>) {
    let (d, codes) = (half(block), &block[HALF_BYTES..]);
    let fifth = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]);
    let mut at = 0;
    nibbles(&codes[BLOCK / 8..], to, |q| {
        let whole = u32::from(q) | (fifth >> at & 1) << 4;
        at += 1;
        d * (whole as f32 - 16.0)
    });
}

/// Reads a block of Q4_K: each two parts of 32 share 32 bytes, the first in low nibbles.
fn q4_k(block: &[u8], to: &mut Vec<f32>) {
    let (d, m) = (half(block), half(&block[HALF_BYTES..]));
    let (scales, codes) = block[2 * HALF_BYTES..].split_at(SCALES);
    for (pair, codes) in codes.chunks_exact(BLOCK).enumerate() {
        for (part, shift) in [(2 * pair, 0), (2 * pair + 1, 4)] {
            let [scale, least] = six_bits(scales, part);
            let (scale, least) = (d * scale, m * least);
            let numbers = codes.iter().map(|code| f32::from(code >> shift & 0xf));
            to.extend(numbers.map(|q| scale * q - least));
        }
    }
}

/// Scale and minimum of a part, six bits each: for the first four parts the low bits of one byte,
/// for the others a nibble of the last four bytes and the upper two bits of an earlier byte.
fn six_bits(scales: &[u8], part: usize) -> [f32; 2] {
    let bits = match part {
        0..4 => [scales[part] & 63, scales[part + 4] & 63],
        _ => [
            scales[part + 4] & 0xf | scales[part - 4] >> 6 << 4,
            scales[part + 4] >> 4 | scales[part] >> 6 << 4,
        ],
    };
    bits.map(f32::from)
}

/// Reads Q6_K: 64 bytes of low nibbles for each half, then 32 of upper two bits, then scales.
fn q6_k(block: &[u8], to: &mut Vec<f32>) {
    let (low, rest) = block.split_at(SUPER / 2);
    let (high, rest) = rest.split_at(SUPER / 4);
    let (scales, d) = rest.split_at(SUPER / 16);
    let d = half(d);
    for at in 0..SUPER {
        let (side, quarter, byte) = (at / 128, at % 128 / 32, at % 32);
        let nibble = low[64 * side + quarter % 2 * 32 + byte] >> (quarter / 2 * 4) & 0xf;
        let upper = high[32 * side + byte] >> (2 * quarter) & 3;
        let code = f32::from(nibble | upper << 4) - 32.0;
        to.push(d * f32::from(scales[at / 16].cast_signed()) * code);
    }
}

/// The F16 number in the first two bytes, exactly.
fn half(bytes: &[u8]) -> f32 {
    let bits = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let sign = (bits & 0x8000) << 16;
    let magnitude = match bits & 0x7c00 {
        0x7c00 => f32::from_bits(0x7f80_0000 | (bits & 0x3ff) << 13),
        // F32's exponents are 127 - 15 = 112 larger; the product makes subnormals normal, too.
        _ => f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// Element type of a checkpoint that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// F32: every number exactly.
    F32,
    /// BF16: rounded to nearest, ties to even.
    Bf16,
}

impl Element {
    /// Names in manifests, in a safetensors header and in `config.json`; bytes of an element.
    const fn row(self) -> (&'static str, &'static str, &'static str, usize) {
        match self {
            Element::F32 => ("f32", "F32", "float32", 4),
            Element::Bf16 => ("bf16", "BF16", "bfloat16", 2),
        }
    }

    /// Element type that manifests call `name`, if there is one.
    pub fn of(name: &str) -> Option<Element> {
        let mut all = [Element::F32, Element::Bf16].into_iter();
        all.find(|element| element.row().0 == name)
    }

    /// Name of the element type in a safetensors header.
    pub fn dtype(self) -> &'static str {
        self.row().1
    }

    /// Name of the element type in `config.json`.
    pub fn torch(self) -> &'static str {
        self.row().2
    }

    pub fn bytes(self) -> usize {
        self.row().3
    }

    /// Appends the bytes of `number` as an element.
    pub fn push(self, number: f32, to: &mut Vec<u8>) {
        match self {
            Element::F32 => to.extend(number.to_le_bytes()),
            Element::Bf16 => to.extend(bf16(number).to_le_bytes()),
        }
    }
}

/// Bits of the BF16 number nearest to a finite number; ties go to the even one.
fn bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
