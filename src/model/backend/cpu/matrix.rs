//! Matrices in panels of sixteen rows, and their product with activations.
//!
//! Each output is the plain sum over `k`, in order, from zero: the bits are those of the naive
//! loop, whatever the number of rows, threads or lanes.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::share::Shared;
use super::split;
use super::wide::{Kernel, Vector, widest};
use crate::backend::mapping::{Mapping, Stretch};
use crate::target::Coding;
use crate::weights::{PackedStack, Stored, WeightsError};
use ::host::threads::fill_by_parts;

/// Name of panels of F32 in packed files.
const F32: &str = "cpu-f32";
/// Name of panels of BF16 in packed files.
const BF16: &str = "cpu-bf16";

/// Weights `[n, k]`, rows beyond `n` zero.
pub struct Matrix {
    pub n: usize,
    pub k: usize,
    weights: Weights,
    /// Biases, added to results in groups of sixteen; empty if the matrix has none.
    bias: Vec<Lanes>,
}

/// Panels `[ceil(n / 16), k]`, each of sixteen rows.
enum Weights {
    F32(Elements<Lanes>),
    /// BF16, if every weight is a BF16 number: half the bytes of F32, the same values.
    Bf16(Elements<Halves>),
}

/// Elements of panels, in memory of their own or in a mapped file.
enum Elements<E> {
    Own(Vec<E>),
    /// A part of a mapped packed file.
    Mapped(Stretch),
}

impl<E: Element> Deref for Elements<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match self {
            Elements::Own(elements) => elements,
            Elements::Mapped(stretch) => of_bytes(stretch.bytes()),
        }
    }
}

/// Views bytes as elements.
fn of_bytes<E: Element>(bytes: &[u8]) -> &[E] {
    // SAFETY: elements are arrays of numbers, for which all bits are valid.
    let (before, elements, after) = unsafe { bytes.align_to() };
    assert!(
        before.is_empty() && after.is_empty(),
        "weights begin at a page and are whole"
    );
    elements
}

/// Views elements as bytes.
fn as_bytes<E: Element>(elements: &[E]) -> &[u8] {
    // SAFETY: there is no padding between or in arrays of numbers.
    unsafe { elements.align_to() }.1
}

fn as_bytes_mut<E: Element>(elements: &mut [E]) -> &mut [u8] {
    // SAFETY: there is no padding in arrays of numbers, for which all bits are valid.
    unsafe { elements.align_to_mut() }.1
}

/// Sixteen BF16 numbers.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Halves([u16; LANES]);

/// A stored element of a panel, an array of numbers that fills its alignment.
trait Element: Copy {
    const ZERO: Self;

    fn load<V: Vector>(&self) -> V;

    /// Value in lane `at`.
    fn lane(&self, at: usize) -> f32;
}

impl Element for Lanes {
    const ZERO: Lanes = Lanes::ZERO;

    #[inline(always)]
    fn load<V: Vector>(&self) -> V {
        V::load(&self.0)
    }

    fn lane(&self, at: usize) -> f32 {
        self.0[at]
    }
}

impl Element for Halves {
    const ZERO: Halves = Halves([0; LANES]);

    #[inline(always)]
    fn load<V: Vector>(&self) -> V {
        V::load_halves(&self.0)
    }

    fn lane(&self, at: usize) -> f32 {
        f32::from_bits(u32::from(self.0[at]) << 16)
    }
}

/// Largest number of bytes of a matrix `[n, k]` in memory. `bf16`: the checkpoint has BF16 weights,
/// which stay BF16; weights with scales may have values that BF16 lacks, and take F32.
pub fn bytes_max(n: usize, k: usize, bf16: bool) -> u64 {
    let element = if bf16 {
        size_of::<Halves>()
    } else {
        size_of::<Lanes>()
    };
    (n.div_ceil(LANES) * k * element) as u64
}

impl Matrix {
    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> u64 {
        self.stored().1.len() as u64
    }

    /// Name of the weights' layout in packed files, and their bytes.
    pub fn stored(&self) -> (&'static str, &[u8]) {
        match &self.weights {
            Weights::F32(panels) => (F32, as_bytes(panels)),
            Weights::Bf16(panels) => (BF16, as_bytes(panels)),
        }
    }

    /// The mapped file that holds the matrix; none if its memory is its own.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.weights {
            Weights::F32(Elements::Mapped(stretch)) | Weights::Bf16(Elements::Mapped(stretch)) => {
                Some(stretch.mapping())
            }
            _ => None,
        }
    }

    /// A matrix `[n, k]` of a packed file, used in place if the file is mapped.
    ///
    /// # Errors
    /// `Packed` if its layout is unknown, or the file cannot be read.
    pub fn of_packed(stack: PackedStack<'_>, [n, k]: [usize; 2]) -> Result<Matrix, WeightsError> {
        let count = n.div_ceil(LANES) * k;
        let weights = match stack.storage() {
            F32 => Weights::F32(Elements::of_packed(stack, count)?),
            BF16 => Weights::Bf16(Elements::of_packed(stack, count)?),
            _ => return Err(stack.unknown()),
        };
        let bias = Vec::new();
        Ok(Matrix {
            n,
            k,
            weights,
            bias,
        })
    }

    /// The matrix with biases `[n]`; unchanged if `bias` is empty.
    pub fn biased(self, bias: &[f32]) -> Matrix {
        assert!(bias.is_empty() || bias.len() == self.n);
        let bias = bias.chunks(LANES).map(Lanes::load_part).collect();
        Matrix { bias, ..self }
    }

    /// Stacks row-major parts `[.., k]` in order.
    pub fn new(k: usize, parts: &[Vec<f32>]) -> Matrix {
        let n = parts.iter().map(|part| part.len() / k).sum();
        let mut panels = vec![Lanes::ZERO; usize::div_ceil(n, LANES) * k];
        let rows = parts.iter().flat_map(|part| part.chunks_exact(k));
        for (row, values) in rows.enumerate() {
            let panel = &mut panels[row / LANES * k..][..k];
            for (lanes, &value) in panel.iter_mut().zip(values) {
                lanes.0[row % LANES] = value;
            }
        }
        Matrix {
            n,
            k,
            weights: Weights::new(panels),
            bias: Vec::new(),
        }
    }

    /// Stacks matrices of a checkpoint, without their biases.
    pub fn of_stored(parts: &[Stored]) -> Matrix {
        let halves = parts.iter().map(|part| {
            let is_bf16 = part.bits.coding == Coding::Bf16;
            is_bf16.then(|| part.bits.codes.as_chunks().0)
        });
        let k = parts[0].k;
        match halves.collect::<Option<Vec<_>>>() {
            Some(halves) => Matrix::of_halves(k, &halves),
            None => {
                let values: Vec<_> = parts.iter().map(Stored::values).collect();
                Matrix::new(k, &values)
            }
        }
    }

    /// Matrix of rows of `k` numbers in little-endian BF16, without an F32 copy of the rows.
    fn of_halves(k: usize, parts: &[&[[u8; 2]]]) -> Matrix {
        let rows = parts.iter().flat_map(|part| part.chunks_exact(k));
        let rows: Vec<_> = rows.collect();
        let mut panels = vec![Halves::ZERO; rows.len().div_ceil(LANES) * k];
        fill_by_parts(&mut panels, k, |first, panels| {
            let rows = rows[first / k * LANES..].chunks(LANES);
            for (panel, rows) in panels.chunks_exact_mut(k).zip(rows) {
                for (lane, row) in rows.iter().enumerate() {
                    for (to, from) in panel.iter_mut().zip(*row) {
                        to.0[lane] = u16::from_le_bytes(*from);
                    }
                }
            }
        });
        Matrix {
            n: rows.len(),
            k,
            weights: Weights::Bf16(Elements::Own(panels)),
            bias: Vec::new(),
        }
    }

    /// Copies row `n` to `out [k]`.
    pub fn row(&self, n: usize, out: &mut [f32]) {
        match &self.weights {
            Weights::F32(panels) => self.copy_row(panels, n, out),
            Weights::Bf16(panels) => self.copy_row(panels, n, out),
        }
    }

    fn copy_row<E: Element>(&self, panels: &[E], n: usize, out: &mut [f32]) {
        let panel = &panels[n / LANES * self.k..][..self.k];
        for (value, element) in out.iter_mut().zip(panel) {
            *value = element.lane(n % LANES);
        }
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }
}

impl<E: Element> Elements<E> {
    fn of_packed(stack: PackedStack<'_>, count: usize) -> Result<Elements<E>, WeightsError> {
        if stack.bytes() != count * size_of::<E>() {
            return Err(stack.unknown());
        }
        if let Some(stretch) = stack.map() {
            return Ok(Elements::Mapped(stretch));
        }
        let mut elements = vec![E::ZERO; count];
        stack.read(0, as_bytes_mut(&mut elements))?;
        Ok(Elements::Own(elements))
    }
}

impl Weights {
    fn new(panels: Vec<Lanes>) -> Weights {
        let short = |value: &f32| value.to_bits() & 0xffff == 0;
        if !panels.iter().flat_map(|lanes| &lanes.0).all(short) {
            return Weights::F32(Elements::Own(panels));
        }
        let halve = |lanes: &Lanes| Halves(lanes.0.map(|value| (value.to_bits() >> 16) as u16));
        Weights::Bf16(Elements::Own(panels.iter().map(halve).collect()))
    }
}

/// `out [rows, n] = x [rows, k] w^T`, plus the biases of `w`.
pub fn linear(pool: &mut Pool, x: &[f32], w: &Matrix, out: &mut [f32]) {
    linear_of_first(pool, x, w, w.n, out);
}

/// Product with the first `n` rows of `w`.
pub fn linear_of_first(pool: &mut Pool, x: &[f32], w: &Matrix, n: usize, out: &mut [f32]) {
    let rows = x.len() / w.k;
    assert!(out.len() == rows * n && n <= w.n);
    let product = Product {
        x,
        w,
        n,
        out: &Shared::new(out),
        out_start: 0,
    };
    // SAFETY: the ranges of panels are disjoint, and so are their outputs.
    split(
        pool,
        n.div_ceil(LANES),
        rows * w.k * LANES,
        |panels| unsafe { product.run(panels) },
    );
}

/// Part of a product: rows of `x [.., k]` by some panels of `w`, into rows of `out [.., n]`.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub x: &'a [f32],
    pub w: &'a Matrix,
    /// Elements of a row of `out`.
    pub n: usize,
    pub out: &'a Shared<'a, f32>,
    /// Index in `out` of the first row's first element.
    pub out_start: usize,
}

/// `Product` over some panels of `weights`.
struct Panels<'a, E> {
    product: Product<'a>,
    weights: &'a [E],
    panels: Range<usize>,
}

impl<E: Element> Kernel for Panels<'_, E> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let rows = self.product.rows();
        match V::WIDTH {
            16 => {
                self.blocks::<V, 8, 2>(0);
                self.blocks::<V, 4, 4>(rows / 8 * 8);
                self.blocks::<V, 2, 4>(rows / 4 * 4);
                self.blocks::<V, 1, 8>(rows / 2 * 2);
            }
            8 => {
                self.blocks::<V, 4, 1>(0);
                self.blocks::<V, 2, 2>(rows / 4 * 4);
                self.blocks::<V, 1, 4>(rows / 2 * 2);
            }
            _ => {
                self.blocks::<V, 2, 1>(0);
                self.blocks::<V, 1, 2>(rows / 2 * 2);
            }
        }
    }
}

impl Product<'_> {
    /// `out[r, n] = sum_k x[r, k] w[n, k]` for every row of `x` and `n` in `panels`.
    ///
    /// # Safety
    /// No other thread writes these elements of `out`.
    pub unsafe fn run(self, panels: Range<usize>) {
        assert!(panels.end <= self.w.panels() && self.x.len().is_multiple_of(self.w.k));
        match &self.w.weights {
            Weights::F32(weights) => widest(Panels {
                product: self,
                weights,
                panels,
            }),
            Weights::Bf16(weights) => widest(Panels {
                product: self,
                weights,
                panels,
            }),
        }
    }

    fn rows(&self) -> usize {
        self.x.len() / self.w.k
    }
}

impl<E: Element> Panels<'_, E> {
    /// Products of rows from `first` on in tiles of `R` rows, leaving a remainder, with panels in
    /// tiles of `P` and then of 1.
    #[inline(always)]
    fn blocks<V: Vector, const R: usize, const P: usize>(&self, first: usize) {
        if self.product.rows() < first + R {
            return;
        }
        let mut panel = self.panels.start;
        while panel + P <= self.panels.end {
            self.block::<V, R, P>(first, panel);
            panel += P;
        }
        while panel < self.panels.end {
            self.block::<V, R, 1>(first, panel);
            panel += 1;
        }
    }

    #[inline(always)]
    fn block<V: Vector, const R: usize, const P: usize>(&self, first: usize, panel: usize) {
        let mut row = first;
        while row + R <= self.product.rows() {
            self.tile::<V, R, P>(row, panel);
            row += R;
        }
    }

    #[inline(always)]
    fn tile<V: Vector, const R: usize, const P: usize>(&self, row: usize, panel: usize) {
        let k = self.product.w.k;
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.product.x[(row + r) * k..][..k]);
        let w: [&[E]; P] = std::array::from_fn(|p| &self.weights[(panel + p) * k..][..k]);
        let mut sums = [[V::splat(0.0); P]; R];
        for i in 0..k {
            for p in 0..P {
                let weights: V = w[p][i].load();
                for r in 0..R {
                    sums[r][p] = sums[r][p].add(weights.mul(V::splat(x[r][i])));
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (p, sum) in sums.iter().enumerate() {
                self.store(row + r, panel + p, sum.lanes());
            }
        }
    }

    #[inline(always)]
    fn store(&self, row: usize, panel: usize, sums: Lanes) {
        let (n, first) = (self.product.n, panel * LANES);
        let start = self.product.out_start + row * n + first;
        let sums = match self.product.w.bias.get(panel) {
            Some(bias) => sums.add(*bias),
            None => sums,
        };
        // SAFETY: the caller of `run` owns these elements.
        sums.store(unsafe { self.product.out.range(start..start + LANES.min(n - first)) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Bits;
    use step::random::Random;

    fn naive(x: &[f32], w: &[f32], k: usize) -> Vec<u32> {
        let dot = |x: &[f32], w: &[f32]| {
            let mut sum = 0.0f32;
            x.iter().zip(w).for_each(|(x, w)| sum += w * x);
            sum.to_bits()
        };
        x.chunks_exact(k)
            .flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w)))
            .collect()
    }

    fn check(rows: usize, n: usize, k: usize, x: &[f32], weights: &[f32]) {
        let w = Matrix::new(k, &[weights.to_vec()]);
        let mut out = vec![f32::NAN; rows * n];
        let shared = Shared::new(&mut out);
        let product = Product {
            x,
            w: &w,
            n,
            out: &shared,
            out_start: 0,
        };
        let half = w.panels() / 2;
        // SAFETY: one thread.
        unsafe { product.run(0..half) };
        // SAFETY: one thread.
        unsafe { product.run(half..w.panels()) };
        let bits: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, naive(x, weights, k), "{rows} rows of {n}x{k}");
    }

    #[test]
    fn every_shape_has_the_bits_of_the_naive_sum() {
        let mut random = Random::new(1);
        let shapes = [
            (1, 1, 1),
            (1, 16, 7),
            (2, 17, 33),
            (3, 40, 64),
            (8, 15, 16),
            (15, 129, 72),
            (13, 96, 5),
            (1, 300, 9),
        ];
        for (rows, n, k) in shapes {
            let (x, mut weights) = (random.normal(rows * k), random.normal(n * k));
            check(rows, n, k, &x, &weights);
            for weight in &mut weights {
                *weight = f32::from_bits(weight.to_bits() & 0xffff_0000);
            }
            check(rows, n, k, &x, &weights);
        }
    }

    #[test]
    fn matrices_of_bf16_are_those_of_their_values() {
        let (n, k) = (LANES + 3, 32);
        let bytes: Vec<u8> = (0..2 * n * k).map(|at| (at * 37 % 120) as u8).collect();
        let (bits, bias) = (
            Bits::new(Coding::Bf16, bytes, Vec::new(), Vec::new().into()),
            Vec::new(),
        );
        let part = Stored { n, k, bits, bias };
        let parts = [part.clone(), part];
        let [found, wanted] = [
            Matrix::of_stored(&parts),
            Matrix::new(k, &[parts[0].values(), parts[1].values()]),
        ];
        assert_eq!((found.n, found.k), (wanted.n, wanted.k));
        assert!(found.stored() == wanted.stored());
    }

    #[test]
    fn rows_come_back_as_they_were_given() {
        let (n, k) = (21, 5);
        let mut random = Random::new(2);
        for mask in [0xffff_0000, u32::MAX] {
            let mut weights = random.normal(n * k);
            weights
                .iter_mut()
                .for_each(|w| *w = f32::from_bits(w.to_bits() & mask));
            let (first, second) = weights.split_at(15);
            let w = Matrix::new(k, &[first.to_vec(), second.to_vec()]);
            let mut row = [0.0; 5];
            for index in 0..n {
                w.row(index, &mut row);
                assert_eq!(row, weights[index * k..][..k]);
            }
        }
    }
}
