//! NVFP4 checkpoint to BF16 checkpoint, exactly.
//!
//! Format: compressed-tensors NVFP4.
//! An element is E2M1 times E4M3 divided by one F32 of the matrix. E2M1 has two significant bits
//! and E4M3 four, so with a power of two as divisor the result fits BF16, which has eight.

use std::collections::BTreeMap;

use crate::safetensors::{Entry, LENGTH_BYTES, fail, slice, split};

/// A tensor to be written.
struct Tensor<'a> {
    dtype: &'a str,
    shape: Vec<usize>,
    data: std::borrow::Cow<'a, [u8]>,
}

const PACKED: &str = ".weight_packed";
const SCALE: &str = ".weight_scale";
const GLOBAL: &str = ".weight_global_scale";
const INPUT: &str = ".input_global_scale";
const GROUP: usize = 16;
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Turns every NVFP4 matrix of a safetensors file into BF16 and copies the other tensors.
///
/// `X.weight_packed` `[N, K/2]`, `X.weight_scale` `[N, K/16]` and `X.weight_global_scale` `[1]`
/// become `X.weight` `[N, K]`; `X.input_global_scale` is left out. Tensors are written in the order
/// of their names.
///
/// # Errors
/// A malformed file, a matrix without its scales, or a value that BF16 cannot hold exactly.
pub(crate) fn dequantise(file: &[u8]) -> Result<Vec<u8>, String> {
    let (header, data) = split(file)?;
    let mut made = BTreeMap::new();
    for (name, entry) in &header {
        let bytes = slice(name, entry, data)?;
        if let Some(base) = name.strip_suffix(PACKED) {
            let part = |suffix: &str| find(&header, data, base, suffix);
            let matrix = matrix(name, entry, bytes, part(SCALE)?, part(GLOBAL)?)?;
            made.insert(format!("{base}.weight"), matrix);
        } else if !belongs_to_matrix(&header, name) {
            let copy = Tensor {
                dtype: &entry.dtype,
                shape: entry.shape.clone(),
                data: bytes.into(),
            };
            made.insert(name.clone(), copy);
        }
    }
    Ok(join(&made))
}

fn find<'a>(
    header: &BTreeMap<String, Entry>,
    data: &'a [u8],
    base: &str,
    suffix: &str,
) -> Result<&'a [u8], String> {
    let name = format!("{base}{suffix}");
    match header.get(&name) {
        Some(entry) => slice(&name, entry, data),
        None => fail(&name, "is missing"),
    }
}

/// Whether `name` is a scale of a matrix that is packed in the file.
fn belongs_to_matrix(header: &BTreeMap<String, Entry>, name: &str) -> bool {
    let base = [SCALE, GLOBAL, INPUT]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    base.is_some_and(|base| header.contains_key(&format!("{base}{PACKED}")))
}

/// Dequantises `packed` `[N, K/2]` with `scale` `[N, K/16]` and `global` `[1]` to BF16 `[N, K]`.
fn matrix<'a>(
    name: &str,
    entry: &Entry,
    packed: &[u8],
    scale: &[u8],
    global: &[u8],
) -> Result<Tensor<'a>, String> {
    let &[n, half] = entry.shape.as_slice() else {
        return fail(
            name,
            format!("shape {:?} has not two dimensions", entry.shape),
        );
    };
    let Some(k) = half.checked_mul(2).filter(|k| n.checked_mul(*k).is_some()) else {
        return fail(name, format!("shape {:?} is too large", entry.shape));
    };
    let sizes_agree = k % GROUP == 0 && packed.len() == n * half && scale.len() == n * k / GROUP;
    let global = match <[u8; 4]>::try_from(global) {
        Ok(bytes) if sizes_agree => f64::from(f32::from_le_bytes(bytes)),
        _ => return fail(name, format!("scales do not fit a matrix of {n} x {k}")),
    };
    let mut data = Vec::with_capacity(2 * n * k);
    for (index, &pair) in packed.iter().enumerate() {
        let scale = e4m3(scale[2 * index / GROUP]) / global;
        for (side, code) in [pair & 0xf, pair >> 4].into_iter().enumerate() {
            let value = e2m1(code) * scale;
            match bf16(value) {
                Some(bits) => data.extend(bits.to_le_bytes()),
                None => {
                    let at = 2 * index + side;
                    return fail(name, format!("element {at} = {value} is not exact in BF16"));
                }
            }
        }
    }
    Ok(Tensor {
        dtype: "BF16",
        shape: vec![n, k],
        data: data.into(),
    })
}

/// Value of a four-bit code: sign, two exponent bits, one mantissa bit.
fn e2m1(code: u8) -> f64 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Value of an E4M3 code; NaN for the two codes without a number.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 0xf), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa / 8.0 * f64::powi(2.0, -6),
        _ => (1.0 + mantissa / 8.0) * f64::powi(2.0, exponent - 7),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Bits of `value` in BF16, or none when BF16 has no such number.
fn bf16(value: f64) -> Option<u16> {
    let single = value as f32;
    let exact = f64::from(single) == value && single.is_finite();
    let bits = single.to_bits();
    (exact && bits & 0xffff == 0).then_some((bits >> 16) as u16)
}

/// A safetensors file of the given tensors; the data section starts on a multiple of 8 bytes.
fn join(tensors: &BTreeMap<String, Tensor<'_>>) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut end = 0;
    for (name, tensor) in tensors {
        let start = end;
        end += tensor.data.len();
        let entry = Entry {
            dtype: tensor.dtype.into(),
            shape: tensor.shape.clone(),
            data_offsets: [start, end],
        };
        entries.insert(name, entry);
    }
    let mut header = serde_json::to_vec(&entries).expect("a map of plain structures serialises");
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    tensors
        .values()
        .for_each(|tensor| file.extend_from_slice(&tensor.data));
    file
}

#[cfg(test)]
mod tests;
