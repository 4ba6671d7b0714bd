//! Histogram in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in seconds; one more bucket counts longer times.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 2560.0,
];
/// Upper bounds of the buckets in tokens; one more bucket counts larger numbers.
const TOKENS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0,
];
const NANOS_PER_SECOND: f64 = 1e9;

/// A histogram of durations or token counts.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<AtomicU64>,
    /// Sum of the values, in steps of `1 / per_unit`.
    sum: AtomicU64,
    per_unit: f64,
}

impl Histogram {
    pub fn of_seconds() -> Histogram {
        Histogram::new(SECONDS, NANOS_PER_SECOND)
    }

    pub fn of_tokens() -> Histogram {
        Histogram::new(TOKENS, 1.0)
    }

    fn new(bounds: &'static [f64], per_unit: f64) -> Histogram {
        let mut buckets = Vec::new();
        buckets.resize_with(bounds.len() + 1, AtomicU64::default);
        Histogram {
            bounds,
            buckets,
            sum: AtomicU64::default(),
            per_unit,
        }
    }

    /// Counts `duration` `times` times.
    pub fn record(&self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.add(duration.as_secs_f64(), nanos, times);
    }

    /// Counts a number of tokens, or of another unit.
    pub fn record_tokens(&self, tokens: usize) {
        self.add(tokens as f64, tokens as u64, 1);
    }

    fn add(&self, value: f64, steps: u64, times: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        let sum = steps.saturating_mul(times);
        self.sum.fetch_add(sum, Ordering::Relaxed);
    }

    /// Appends the series `name`, each with `labels`: `name="value"` pairs, or none.
    pub fn write(&self, out: &mut String, name: &str, labels: &str, help: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let braced = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{labels}}}"),
        };
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut count = 0;
        let bounds = self.bounds.iter().map(f64::to_string);
        for (bucket, bound) in self.buckets.iter().zip(bounds.chain(["+Inf".to_string()])) {
            count += bucket.load(Ordering::Relaxed);
            let _ = writeln!(
                out,
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}"
            );
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.per_unit;
        let _ = writeln!(
            out,
            "{name}_sum{braced} {sum}\n{name}_count{braced} {count}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let histogram = Histogram::of_seconds();
        histogram.record(Duration::from_millis(1), 1);
        histogram.record(Duration::from_millis(20), 2);
        histogram.record(Duration::from_secs(1000), 1);
        let mut out = String::new();
        histogram.write(&mut out, "x", "", "help");
        assert!(out.contains("x_bucket{le=\"0.001\"} 1\n"));
        assert!(out.contains("x_bucket{le=\"0.01\"} 1\n"));
        assert!(out.contains("x_bucket{le=\"0.025\"} 3\n"));
        assert!(out.contains("x_bucket{le=\"+Inf\"} 4\n"));
        assert!(out.contains("x_sum 1000.041\nx_count 4\n"));
    }

    #[test]
    fn labels_stand_in_every_series() {
        let histogram = Histogram::of_tokens();
        histogram.record_tokens(5);
        let mut out = String::new();
        histogram.write(&mut out, "x", "a=\"b\"", "help");
        assert!(out.contains("x_bucket{a=\"b\",le=\"4\"} 0\n"));
        assert!(out.contains("x_bucket{a=\"b\",le=\"16\"} 1\n"));
        assert!(out.contains("x_sum{a=\"b\"} 5\nx_count{a=\"b\"} 1\n"));
    }
}
