//! Ops compared with their reference, by the same cases for every backend.
//!
//! The CPU's norms, products, attention and MLP gates are compared with formulas in F64, and all
//! ops of the device, if the binary has one, with the CPU's. Cases are grouped as in `model::ops`;
//! groups that the model lacks are not compiled. Each run draws new inputs; the report names the
//! seed.

mod against;
mod attention;
mod decode;
#[cfg(has = "delta")]
mod delta;
mod dense;
#[cfg(has = "experts")]
mod experts;
mod formula;
#[cfg(has = "mlp")]
mod gate;
mod head_norms;
#[cfg(has = "latent")]
mod latent;
mod long;
mod matrices;
mod probe;
mod rows;
mod sequences;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use host::threads::fill_by_parts;

use model::target::{MAX_SEQUENCES, PREFILL_TOKENS};
use step::random;

pub use against::compare;
pub use attention::ProbeAttention;
#[cfg(has = "delta")]
pub use delta::ProbeDelta;
#[cfg(has = "experts")]
pub use experts::ProbeExperts;
pub use matrices::stored;
pub use probe::Probe;

use rows::RowCase;
use sequences::SequenceCase;

/// Largest norm-wise error of F32 arithmetic: thousands of rounded additions in a row.
pub const F32_CHAIN: f64 = 1e-5;
/// Largest norm-wise error of results that are exact in F32 and stored as BF16: half of BF16's unit
/// roundoff, as errors of elements are spread below that.
pub const BF16_STORED: f64 = 1.0 / 512.0;
/// Largest norm-wise error of results that are exact in F32 and stored as F16: half of F16's unit
/// roundoff.
pub const F16_STORED: f64 = 1.0 / 4096.0;
/// Largest norm-wise error of results whose operands are rounded to F16 a few times on the way:
/// twice F16's unit roundoff.
pub const F16_OPERANDS: f64 = 4.0 * F16_STORED;

/// Result of one comparison.
#[derive(Clone, Debug)]
pub struct Line {
    pub op: &'static str,
    /// Shape of the inputs, such as `16 x 2048`.
    pub case: String,
    /// Both sides of the comparison, in words.
    pub check: &'static str,
    /// Result in words, or as an error with its limit.
    pub found: String,
    pub passed: bool,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line {
            op,
            case,
            check,
            found,
            passed,
        } = self;
        let verdict = if *passed { "ok" } else { "FAIL" };
        write!(f, "{verdict:<4} {op:<14} {case:<14} {check:<34} {found}")
    }
}

/// A group of operations and its cases.
struct Group {
    /// Operations with cases whose rows are independent.
    by_row: &'static [&'static str],
    /// Operations with cases of sequences, because each sequence has a cache or a state.
    by_sequence: &'static [&'static str],
    /// Compares the CPU's operations with formulas in F64.
    formulas: fn(&mut Report, &mut Random),
    /// Draws the cases of independent rows.
    rows: fn(&mut Random) -> Vec<Box<dyn RowCase>>,
    /// Draws the operations that have cases of sequences.
    sequences: fn(&mut Random) -> Vec<Box<dyn SequenceCase>>,
}

/// Groups of the operations that the target's model uses.
const GROUPS: &[Group] = &[
    dense::GROUP,
    #[cfg(has = "delta")]
    delta::GROUP,
    attention::GROUP,
    #[cfg(has = "experts")]
    experts::GROUP,
    #[cfg(has = "mlp")]
    gate::GROUP,
    #[cfg(has = "latent")]
    latent::GROUP,
];
/// Name of the packing of the checkpoint's rows into panels, which is no operation of the model.
const PACK: &str = "pack";

/// Numbers of rows of the cases that compare the CPU with formulas.
const FORMULA_ROWS: [usize; 3] = [1, MAX_SEQUENCES, PREFILL_TOKENS];

/// Check: the device's results against the CPU's.
const DEVICE_CPU: &str = "cuda = cpu";
/// Check: the device can run at all.
const RUNS: &str = "cuda runs";
/// Check: a sequence's results alone against those in a batch.
const ALONE: &str = "a sequence alone = in the batch";
/// Check: a sequence's results with rejected drafts against those without.
const DRAFTED: &str = "with wrong drafts = without";
/// Check: results of `attention` against those of `store_kv` and `attend`.
const APART: &str = "store_kv and attend = attention";

/// Names of all comparisons that can be chosen, without duplicates.
fn names() -> Vec<&'static str> {
    let groups = GROUPS.iter();
    let names = groups.flat_map(|group| [group.by_row, group.by_sequence].concat());
    matrices::once(names.chain([PACK]))
}

/// Selection of comparisons and of their inputs.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Seed of the inputs; none: from the clock.
    pub seed: Option<u64>,
    /// Name of the only operation to compare; none: all.
    pub op: Option<String>,
    /// Whether every row of large cases is compared, not a sample of each tile.
    pub all: bool,
}

impl Choice {
    /// # Errors
    /// If no operation has the chosen name.
    pub fn check(&self) -> Result<(), String> {
        let known = names();
        match &self.op {
            Some(op) if !known.contains(&op.as_str()) => {
                Err(format!("--op: `{op}` is none of {}", known.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

/// Results of a self-test, and its selection.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    /// Name of the only operation to compare; none: all.
    pub only: Option<String>,
    /// Whether every row of large cases is compared.
    pub all: bool,
    pub lines: Vec<Line>,
    /// Called with each line as soon as it is found.
    pub on_line: Option<fn(&Line)>,
}

impl Report {
    /// A report of the comparisons that `choice` selects; `on_line` gets each line at once.
    pub fn with_lines(choice: Choice, on_line: fn(&Line)) -> Report {
        let since = || SystemTime::now().duration_since(UNIX_EPOCH);
        let of_clock = || since().map_or(0, |since| since.as_nanos() as u64);
        Report {
            seed: choice.seed.unwrap_or_else(of_clock),
            only: choice.op,
            all: choice.all,
            on_line: Some(on_line),
            ..Report::default()
        }
    }

    /// Whether the operation `op` is compared.
    pub fn wants(&self, op: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == op)
    }

    /// Whether any of `ops` is compared.
    fn wants_any(&self, ops: &[&str]) -> bool {
        ops.iter().any(|op| self.wants(op))
    }

    /// Summary: number of comparisons, and of failed ones.
    pub fn total(&self) -> String {
        let failed = self.lines.iter().filter(|line| !line.passed).count();
        let (count, seed) = (self.lines.len(), self.seed);
        format!("{count} comparisons, {failed} failed, seed {seed}")
    }

    /// Whether every comparison passed.
    pub fn passed(&self) -> bool {
        self.lines.iter().all(|line| line.passed)
    }

    /// Adds a comparison whose error `found` must be within a limit.
    pub fn within(
        &mut self,
        op: &'static str,
        case: &str,
        check: &'static str,
        found: Result<f64, String>,
        limit: f64,
    ) {
        // A comparison by `>` would let NaN pass.
        let passed = found.as_ref().is_ok_and(|error| *error <= limit);
        let found = match found {
            Ok(error) => format!("{error:.2e} of {limit:.2e}"),
            Err(why) => why,
        };
        self.push(op, case, check, found, passed);
    }

    /// Adds a comparison of bits; `differing` names a difference, if there is one.
    pub fn same(
        &mut self,
        (op, case, check): (&'static str, &str, &'static str),
        differing: &str,
        is_same: bool,
    ) {
        let found = match is_same {
            true => "same bits".to_string(),
            false => format!("{differing} differ"),
        };
        self.push(op, case, check, found, is_same);
    }

    /// Adds a line to the report.
    pub fn push(
        &mut self,
        op: &'static str,
        case: &str,
        check: &'static str,
        found: String,
        passed: bool,
    ) {
        let line = Line {
            op,
            case: case.to_string(),
            check,
            found,
            passed,
        };
        if let Some(on_line) = self.on_line {
            on_line(&line);
        }
        self.lines.push(line);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))?;
        f.write_str(&self.total())
    }
}

/// Compares the CPU's ops with formulas in F64.
pub fn formulas(report: &mut Report, random: &mut Random) {
    for group in GROUPS {
        (group.formulas)(report, random);
    }
}

/// Random numbers of tensors.
pub struct Random(random::Random);

impl Random {
    pub fn seeded(seed: u64) -> Random {
        Random(random::Random::new(seed))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }

    /// Draws `count` values, each made of its index and 64 random bits; on all cores if there are
    /// many. The values do not depend on the number of cores.
    fn many<T: Send + Clone + Default>(
        &mut self,
        count: usize,
        make: impl Fn(usize, u64) -> T + Sync,
    ) -> Vec<T> {
        let after = |count: usize| self.0.after(count as u64);
        let mut all = vec![T::default(); count];
        fill_by_parts(&mut all, 1, |start, part| {
            let mut random = after(start);
            let numbered = part.iter_mut().zip(start..);
            numbered.for_each(|(to, at)| *to = make(at, random.bits()));
        });
        self.0 = after(count);
        all
    }

    /// `count` random bytes in `range`.
    pub fn bytes(&mut self, count: usize, range: RangeInclusive<u8>) -> Vec<u8> {
        let span = u64::from(range.end() - range.start()) + 1;
        let byte = |_, bits: u64| range.start() + ((bits >> 32) % span) as u8;
        self.many(count, byte)
    }

    /// `count` random BF16 values in `-scale .. scale`, as F32.
    pub fn bf16(&mut self, count: usize, scale: f32) -> Vec<f32> {
        self.scaled(count, |_| scale)
    }

    /// `count` random values, each within the scale of its index.
    pub fn scaled(&mut self, count: usize, scale: impl Fn(usize) -> f32 + Sync) -> Vec<f32> {
        self.many(count, |at, bits| round_bf16(unit(bits) * scale(at)))
    }

    /// `count` random BF16 values in `-scale .. scale`, as stored bytes.
    pub fn bf16_bytes(&mut self, count: usize, scale: f32) -> Vec<u8> {
        let bytes = |_, bits| {
            let value = round_bf16(unit(bits) * scale);
            ((value.to_bits() >> 16) as u16).to_le_bytes()
        };
        self.many(count, bytes).into_flattened()
    }

    /// `count` random weights of a norm, in `0.5 .. 1.5`.
    pub fn gains(&mut self, count: usize) -> Vec<f32> {
        let around_zero = self.bf16(count, 0.5);
        around_zero.into_iter().map(|w| 1.0 + w).collect()
    }
}

/// The number in `-1 .. 1` that `bits` stand for.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The nearest BF16 of a finite `x`, ties to even.
pub fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// `|found - wanted| / |wanted|`, at least 0.
///
/// # Errors
/// Words that name the first element that is finite on one side only, or lengths that differ.
pub fn distance(found: &[f32], wanted: &[f32]) -> Result<f64, String> {
    if found.len() != wanted.len() {
        return Err(format!("{} elements, not {}", found.len(), wanted.len()));
    }
    let mut pairs = found.iter().zip(wanted);
    if let Some(at) = pairs.position(|(found, wanted)| found.is_finite() != wanted.is_finite()) {
        return Err(format!("element {at} is {}, not {}", found[at], wanted[at]));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (&found, &wanted) in found
        .iter()
        .zip(wanted)
        .filter(|(found, _)| found.is_finite())
    {
        error += (f64::from(found) - f64::from(wanted)).powi(2);
        norm += f64::from(wanted).powi(2);
    }
    Ok(if error == 0.0 {
        0.0
    } else {
        (error / norm).sqrt()
    })
}

/// Reports the result with the largest distance from the wanted one.
fn nearest(
    report: &mut Report,
    op: &'static str,
    (shape, check): (&str, &'static str),
    (found, wanted): (&[Vec<f32>], &[Vec<f32>]),
    limit: f64,
) {
    assert_eq!(found.len(), wanted.len());
    let distances = found
        .iter()
        .zip(wanted)
        .map(|(found, wanted)| distance(found, wanted));
    let furthest = distances.reduce(|a, b| match (&a, &b) {
        (Ok(x), Ok(y)) if x >= y => a,
        (Err(_), _) => a,
        _ => b,
    });
    let furthest = furthest.unwrap_or_else(|| Err("no result".into()));
    report.within(op, shape, check, furthest, limit);
}

/// Whether two results are equal, bit by bit.
fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let mut pairs = a.iter().zip(b);
    a.len() == b.len() && pairs.all(|(a, b)| a.to_bits() == b.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_agrees_with_the_formula() {
        let mut report = Report::default();
        formulas(&mut report, &mut Random::seeded(1));
        assert!(report.passed() && !report.lines.is_empty(), "{report}");
    }

    /// A group whose cases are of operations that it does not name would be passed over.
    #[test]
    fn groups_name_the_operations_that_they_have_cases_of() {
        for group in GROUPS {
            let mut random = Random::seeded(1);
            for case in (group.rows)(&mut random) {
                assert!(group.by_row.contains(&case.op()), "{}", case.op());
            }
            for case in (group.sequences)(&mut random) {
                assert!(group.by_sequence.contains(&case.op()), "{}", case.op());
            }
        }
    }

    #[test]
    fn one_operation_may_be_chosen_by_its_name() {
        let choice = |op: &str| Choice {
            seed: Some(7),
            op: Some(op.to_string()),
            all: false,
        };
        choice("attention").check().unwrap();
        Choice::default().check().unwrap();
        let refused = choice("attentoin").check().unwrap_err();
        assert!(refused.contains("attention"), "{refused}");
        let mut report = Report::with_lines(choice("attention"), |_| {});
        assert!(report.wants("attention") && !report.wants("linear"));
        assert!(report.wants_any(&["attend", "attention"]) && !report.wants_any(&["attend"]));
        assert_eq!(report.seed, 7);
        formulas(&mut report, &mut Random::seeded(7));
        assert!(report.lines.iter().all(|line| line.op == "attention"));
    }

    #[test]
    fn many_numbers_are_those_that_one_by_one_are_drawn() {
        let count = (3 << 16) + 5;
        let (mut many, mut single) = (Random::seeded(9), Random::seeded(9));
        let found = many.scaled(count, |at| (at % 3) as f32);
        let wanted = (0..count).map(|at| round_bf16(unit(single.0.bits()) * (at % 3) as f32));
        assert!(found.into_iter().eq(wanted));
        assert_eq!(many.0.bits(), single.0.bits());
    }

    #[test]
    fn a_wrong_result_is_reported() {
        let mut report = Report::default();
        let error = distance(&[1.0, 2.0], &[1.0, 2.1]);
        report.within("op", "1 x 2", "found = wanted", error, BF16_STORED);
        assert!(!report.passed());
    }

    #[test]
    fn a_nan_is_found_before_distances_are_taken() {
        let found = distance(&[1.0, f32::NAN], &[1.0, 2.0]);
        assert_eq!(found.unwrap_err(), "element 1 is NaN, not 2");
    }

    #[test]
    fn an_error_that_is_no_number_does_not_pass() {
        let mut report = Report::default();
        report.within("op", "", "", Ok(f64::NAN), 1.0);
        assert!(!report.passed());
    }

    #[test]
    fn bf16_is_rounded_to_nearest_even() {
        assert_eq!(round_bf16(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(round_bf16(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(round_bf16(-1.0 - 1.0 / 200.0), -1.0 - 2.0 / 256.0);
    }
}
