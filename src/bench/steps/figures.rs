//! Figures of operations and steps, computed from calls and times.

use std::collections::BTreeMap;

use serde::Serialize;

use super::reads::Reads;
use model::backend::clock::Clock;
use model::backend::metered::{Call, Label};
use step::executor::DeviceError;

/// Read bandwidths of a GB10 in bytes a second: the usual one and the lowest measured.
const GB10_RATES: [f64; 2] = [245e9, 232e9];
/// Operations a second of matrix products on a GB10: a share of its dense BF16 peak.
const GB10_FLOPS: f64 = 0.7 * 125e12;
/// Seconds from the end of an operation in a recorded step to the start of the next operation.
const GB10_EDGE: f64 = 2e-6;

/// All calls of one operation on matrices of one shape in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpFigures {
    pub name: String,
    pub calls: usize,
    pub us: f64,
    pub bytes: u64,
    pub gb_s: f64,
    /// Ratio of the time of a large read of `bytes` bytes to the measured time.
    pub share: f64,
    /// Microseconds of plain reads of `bytes` bytes in all, each of the size of one call.
    pub read_us: f64,
}

/// Figures of one step, or of all steps of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseFigures {
    pub name: String,
    pub us: f64,
    pub tok_s: f64,
    pub bytes: u64,
    pub limit_us: f64,
    pub share: f64,
    /// Number of kernels and copies in a recorded step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launches: Option<usize>,
    /// Microseconds of the operations timed one by one, outside of a recorded step.
    pub ops_us: f64,
    pub ops: Vec<OpFigures>,
    /// Times computed for a GB10, not measured.
    pub projected_gb10: Projection,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Projection {
    pub us_at_245_gb_s: f64,
    pub us_at_232_gb_s: f64,
}

impl CaseFigures {
    /// Figures from `calls` of `repeats` equal steps; `rate`: bytes a second of a large read.
    /// `read_us` and `launches` are not filled in.
    pub fn of(
        name: String,
        (seconds, tokens): (f64, usize),
        (calls, repeats): (&[Call], usize),
        rate: f64,
    ) -> CaseFigures {
        let ops = ops(calls, repeats, rate);
        let bytes = ops.iter().map(|op| op.bytes).sum();
        let limit = bytes as f64 / rate;
        CaseFigures {
            name,
            us: seconds * 1e6,
            tok_s: tokens as f64 / seconds,
            bytes,
            limit_us: limit * 1e6,
            share: limit / seconds,
            launches: None,
            ops_us: ops.iter().map(|op| op.us).sum(),
            projected_gb10: Projection::of(calls, repeats),
            ops,
        }
    }

    /// Fills in `read_us`, the time of plain reads of each operation's size.
    pub fn beside<C: Clock>(mut self, reads: &mut Reads<C>) -> Result<CaseFigures, DeviceError> {
        for op in &mut self.ops {
            let each = op.bytes / op.calls as u64;
            op.read_us = op.calls as f64 * reads.seconds(each)? * 1e6;
        }
        Ok(self)
    }
}

fn ops(calls: &[Call], repeats: usize, rate: f64) -> Vec<OpFigures> {
    let mut by_label = BTreeMap::<Label, (usize, f64, u64)>::new();
    for call in calls {
        let sums = by_label.entry(call.label).or_default();
        sums.0 += 1;
        sums.1 += call.seconds;
        sums.2 += call.cost.bytes;
    }
    let figures = |(label, (calls, seconds, bytes)): (Label, (usize, f64, u64))| {
        let Label { op, n, k } = label;
        let name = match n {
            0 => op.to_string(),
            _ => format!("{op} {n}x{k}"),
        };
        // A coarse clock may measure a time of zero.
        let seconds = (seconds / repeats as f64).max(f64::MIN_POSITIVE);
        let bytes = bytes / repeats as u64;
        OpFigures {
            name,
            calls: calls / repeats,
            us: seconds * 1e6,
            bytes,
            gb_s: bytes as f64 / seconds / 1e9,
            share: bytes as f64 / rate / seconds,
            read_us: 0.0,
        }
    };
    let mut ops: Vec<_> = by_label.into_iter().map(figures).collect();
    ops.sort_by(|a, b| b.us.total_cmp(&a.us));
    ops
}

impl Projection {
    /// Projected time: each operation takes as long as its bytes or its products, plus
    /// [`GB10_EDGE`].
    fn of(calls: &[Call], repeats: usize) -> Projection {
        let at = |rate: f64| {
            let each = |call: &Call| {
                let (bytes, flops) = (call.cost.bytes as f64, call.cost.flops as f64);
                (bytes / rate).max(flops / GB10_FLOPS) + GB10_EDGE
            };
            calls.iter().map(each).sum::<f64>() / repeats as f64 * 1e6
        };
        let [best, worst] = GB10_RATES.map(at);
        Projection {
            us_at_245_gb_s: best,
            us_at_232_gb_s: worst,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reads::tests::Slow;
    use super::*;
    use model::ops::Cost;

    fn call(op: &'static str, bytes: u64, flops: u64, us: f64) -> Call {
        Call {
            label: Label { op, n: 0, k: 0 },
            cost: Cost { bytes, flops },
            seconds: us / 1e6,
        }
    }

    #[test]
    fn equal_steps_are_averaged_and_compared_with_the_limit() {
        let step = [
            call("a", 1000, 0, 2.0),
            call("a", 3000, 0, 4.0),
            call("b", 500, 0, 9.0),
        ];
        let calls = [step, step].concat();
        let case = CaseFigures::of("x".into(), (20e-6, 2), (&calls, 2), 1e9);
        assert_eq!(case.bytes, 4500);
        assert!((case.limit_us - 4.5).abs() < 1e-9 && (case.share - 0.225).abs() < 1e-9);
        assert!((case.tok_s - 1e5).abs() < 1e-3 && (case.ops_us - 15.0).abs() < 1e-9);
        let names: Vec<_> = case.ops.iter().map(|op| (&op.name[..], op.calls)).collect();
        assert_eq!(names, [("b", 1), ("a", 2)]);
        assert!((case.ops[1].gb_s - 4000.0 / 6e-6 / 1e9).abs() < 1e-6);
    }

    #[test]
    fn an_operation_is_beside_as_many_reads_as_it_has_calls() {
        let calls = [call("a", 1000, 0, 2.0), call("a", 3000, 0, 4.0)];
        let case = CaseFigures::of("x".into(), (6e-6, 1), (&calls, 1), 1e9);
        let case = case.beside(&mut Reads::new(Slow::default())).unwrap();
        // A byte a second: twice 2,000 bytes.
        assert_eq!(case.ops[0].read_us, 4000.0 * 1e6);
    }

    #[test]
    fn a_projection_is_bytes_or_products_and_edges() {
        let calls = [
            call("a", 245_000_000, 0, 1.0),
            call("b", 1, 87_500_000_000, 1.0),
        ];
        let projected = Projection::of(&calls, 1);
        assert!((projected.us_at_245_gb_s - (1000.0 + 1000.0 + 4.0)).abs() < 1e-6);
        assert!(projected.us_at_232_gb_s > projected.us_at_245_gb_s);
    }
}
