use std::borrow::Cow;

use super::{Tensor, dequantise, join, slice, split};
use std::collections::BTreeMap;

/// Finite E4M3 codes.
const E4M3_FINITE: [std::ops::Range<u8>; 2] = [0x00..0x7f, 0x80..0xff];

fn tensor(dtype: &'static str, shape: &[usize], data: Vec<u8>) -> Tensor<'static> {
    let (shape, data) = (shape.to_vec(), Cow::Owned(data));
    Tensor { dtype, shape, data }
}

/// A file with one matrix `m`: packed `[n, k/2]`, scales `[n, k/16]`, a divisor.
fn matrix(n: usize, packed: Vec<u8>, scales: Vec<u8>, divisor: f32) -> Vec<u8> {
    let global = divisor.to_le_bytes().to_vec();
    let (half, groups) = (packed.len() / n, scales.len() / n);
    let packed = tensor("U8", &[n, half], packed);
    let scales = tensor("F8_E4M3", &[n, groups], scales);
    join(&BTreeMap::from([
        ("m.weight_packed".into(), packed),
        ("m.weight_scale".into(), scales),
        ("m.weight_global_scale".into(), tensor("F32", &[1], global)),
    ]))
}

/// The BF16 elements of `name`.
fn elements(file: &[u8], name: &str) -> Vec<f32> {
    let (header, data) = split(file).unwrap();
    let bytes = slice(name, &header[name], data).unwrap();
    let pairs = bytes.chunks_exact(2);
    let bits = pairs.map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    bits.map(f32::from_bits).collect()
}

/// E2M1 by its bits: 2^(e-1) * (1 + m/2), and m/2 where e is 0.
fn e2m1(code: u8) -> f32 {
    let (e, m) = (code >> 1 & 3, f32::from(code & 1));
    let magnitude = if e == 0 {
        m / 2.0
    } else {
        f32::from(1u8 << (e - 1)) * (1.0 + m / 2.0)
    };
    magnitude.copysign(if code & 8 == 0 { 1.0 } else { -1.0 })
}

/// E4M3 by moving its bits into those of a float; the exponent of a float has 127 - 7 more.
fn e4m3(code: u8) -> f32 {
    let sign = u32::from(code & 0x80) << 24;
    let magnitude = f32::from_bits(u32::from(code & 0x7f) << 20);
    f32::from_bits((magnitude * f32::from_bits((127 + 120) << 23)).to_bits() | sign)
}

#[test]
fn every_code_with_every_scale_is_exact() {
    let codes: Vec<u8> = (0..16).step_by(2).map(|low| low | (low + 1) << 4).collect();
    for scale in E4M3_FINITE.into_iter().flatten() {
        for divisor in [1.0, 4096.0, 0.125] {
            let file = dequantise(&matrix(1, codes.clone(), vec![scale], divisor)).unwrap();
            let expected = (0..16).map(|code| e2m1(code) * e4m3(scale) / divisor);
            let expected: Vec<u32> = expected.map(f32::to_bits).collect();
            let found: Vec<u32> = elements(&file, "m.weight")
                .iter()
                .map(|x| x.to_bits())
                .collect();
            assert_eq!(found, expected, "scale {scale:#04x}, divisor {divisor}");
        }
    }
}

#[test]
fn the_low_nibble_is_the_even_column() {
    let mut packed = vec![0; 8];
    packed[1] = 0x42; // column 2 is code 2 = 1.0, column 3 is code 4 = 2.0
    let file = dequantise(&matrix(1, packed, vec![0x38], 1.0)).unwrap();
    assert_eq!(elements(&file, "m.weight")[..4], [0.0, 0.0, 1.0, 2.0]);
}

#[test]
fn sixteen_columns_of_a_row_share_a_scale() {
    let scales = vec![0x38, 0x40, 0x48, 0x50]; // 1, 2, 4, 8
    let file = dequantise(&matrix(2, vec![0x22; 32], scales, 2.0)).unwrap();
    let expected = [0.5, 1.0, 2.0, 4.0].map(|value| [value; 16]);
    assert_eq!(elements(&file, "m.weight"), expected.as_flattened());
}

#[test]
fn other_tensors_are_copied_and_scales_are_left_out() {
    let mut tensors = BTreeMap::new();
    tensors.insert("a.weight".to_owned(), tensor("BF16", &[1], vec![1, 2]));
    tensors.insert(
        "f.weight_scale".to_owned(),
        tensor("F32", &[1], vec![1, 2, 3, 4]),
    );
    for (name, data) in [
        ("m.weight_packed", vec![0x22; 8]),
        ("m.weight_scale", vec![0x38]),
        ("m.weight_global_scale", 1f32.to_le_bytes().to_vec()),
        ("m.input_global_scale", 1f32.to_le_bytes().to_vec()),
    ] {
        let shape = [1, data.len()];
        tensors.insert(name.to_owned(), tensor("U8", &shape, data));
    }
    let file = dequantise(&join(&tensors)).unwrap();
    let (header, data) = split(&file).unwrap();
    let names: Vec<_> = header.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.weight", "f.weight_scale", "m.weight"]);
    assert_eq!(
        slice("", &header["f.weight_scale"], data).unwrap(),
        [1, 2, 3, 4]
    );
    assert_eq!(
        (
            header["m.weight"].dtype.as_str(),
            &header["m.weight"].shape[..]
        ),
        ("BF16", &[1, 16][..])
    );
}

#[test]
fn the_data_section_is_aligned() {
    let file = dequantise(&matrix(1, vec![0; 8], vec![0], 1.0)).unwrap();
    assert_eq!(u64::from_le_bytes(*file.first_chunk().unwrap()) % 8, 0);
}

fn problem(file: &[u8]) -> String {
    dequantise(file).unwrap_err()
}

#[test]
fn a_divisor_that_is_no_power_of_two_is_refused() {
    let file = matrix(1, vec![0x22; 8], vec![0x38], 3.0);
    let expected = "tensor m.weight_packed: element 0 = 0.3333333333333333 is not exact in BF16";
    assert_eq!(problem(&file), expected);
}

#[test]
fn a_scale_that_is_no_number_is_refused() {
    let file = matrix(1, vec![0x22; 8], vec![0x7f], 1.0);
    assert_eq!(
        problem(&file),
        "tensor m.weight_packed: element 0 = NaN is not exact in BF16"
    );
}

#[test]
fn a_divisor_of_zero_is_refused() {
    let file = matrix(1, vec![0x22; 8], vec![0x38], 0.0);
    assert_eq!(
        problem(&file),
        "tensor m.weight_packed: element 0 = inf is not exact in BF16"
    );
}

#[test]
fn the_element_of_the_high_nibble_is_named_by_its_column() {
    let mut packed = vec![0; 8];
    packed[2] = 0x20; // only column 5 is not zero
    let file = matrix(1, packed, vec![0x38], 3.0);
    assert_eq!(
        problem(&file),
        "tensor m.weight_packed: element 5 = 0.3333333333333333 is not exact in BF16"
    );
}

#[test]
fn a_matrix_without_its_scale_is_refused() {
    let file = join(&BTreeMap::from([(
        "m.weight_packed".to_owned(),
        tensor("U8", &[1, 8], vec![0; 8]),
    )]));
    assert_eq!(problem(&file), "tensor m.weight_scale: is missing");
}

#[test]
fn scales_of_another_shape_are_refused() {
    let file = matrix(1, vec![0; 8], vec![0; 2], 1.0);
    assert_eq!(
        problem(&file),
        "tensor m.weight_packed: scales do not fit a matrix of 1 x 16"
    );
}

#[test]
fn a_truncated_file_is_refused() {
    let file = matrix(1, vec![0; 8], vec![0], 1.0);
    assert_eq!(
        problem(&file[..4]),
        "shorter than the length of a safetensors header"
    );
    let cut = problem(&file[..file.len() - 1]);
    assert_eq!(
        cut,
        "tensor m.weight_scale: offsets 12..13 lie outside the file"
    );
}
