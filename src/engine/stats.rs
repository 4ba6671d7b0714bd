//! Figures of the engine for `/metrics`, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::tier::Staging;
use host::histogram::Histogram;
use step::PAGE;

/// A figure that one thread may set or several may add to; no order between figures is promised.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(super) fn add(&self, amount: usize) {
        self.0.fetch_add(amount as u64, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, amount: usize) {
        let before = self.0.fetch_sub(amount as u64, Ordering::Relaxed);
        debug_assert!(before >= amount as u64, "a gauge fell below zero");
    }
}

/// Gauges say what is now; counters only grow.
#[derive(Debug, Default)]
pub struct Stats {
    /// Gauge: sequences that hold a slot.
    pub running: Figure,
    /// Gauge: accepted requests without a slot.
    pub waiting: Figure,
    /// Gauge: KV pages that sequences own.
    pub pages_used: Figure,
    /// Gauge: KV pages of kept prompts that no sequence uses.
    pub pages_cached: Figure,
    /// Gauge: KV pages of the engine.
    pub pages_total: Figure,
    /// Counter: prompt tokens computed.
    pub prompt_tokens: Figure,
    /// Counter: tokens of prompts that were looked up among kept ones.
    pub looked_up_tokens: Figure,
    /// Counter: those of them that were kept and not computed again.
    pub cached_tokens: Figure,
    /// Counter: nanoseconds that those would have taken.
    pub saved_nanos: Figure,
    /// Counter: kept beginnings of prompts that were driven out, their tokens, and the sum of the
    /// times since each was in use, milliseconds.
    pub evictions: Figure,
    pub evicted_tokens: Figure,
    pub evicted_age_millis: Figure,
    /// Counter: tokens of `cached_tokens` that came from the host's memory.
    pub restored_tokens: Figure,
    /// Counter: bytes copied to the host's memory, and back.
    pub host_saved_bytes: Figure,
    pub host_restored_bytes: Figure,
    /// Gauge: bytes of the host's memory for beginnings of prompts, and those that have some.
    pub host_bytes: Figure,
    pub host_bytes_used: Figure,
    /// Counter: beginnings of prompts that were driven out of the host's memory, their tokens, and
    /// the sum of the times since each was in use, milliseconds.
    pub host_evictions: Figure,
    pub host_evicted_tokens: Figure,
    pub host_evicted_age_millis: Figure,
    /// Gauge: bytes of the disk for beginnings of prompts, those that have some, and those that
    /// were written in the last day.
    pub disk_bytes: Figure,
    pub disk_bytes_used: Figure,
    pub disk_bytes_in_a_day: Figure,
    /// Counter: tokens of prompts that were read from the disk, and bytes written to it and read.
    pub disk_tokens: Figure,
    pub disk_written_bytes: Figure,
    pub disk_read_bytes: Figure,
    /// Counter: entries of the disk that were driven out, their tokens, and the sum of the times
    /// since each was in use, milliseconds.
    pub disk_evictions: Figure,
    pub disk_evicted_tokens: Figure,
    pub disk_evicted_age_millis: Figure,
    /// Counter: entries of the disk that were torn or changed.
    pub disk_broken: Figure,
    /// Gauge: whether the disk is used.
    pub disk_on: Figure,
    /// Counter: tokens generated.
    pub generated_tokens: Figure,
    /// Counter: drafts that were tried.
    pub drafted_tokens: Figure,
    /// Counter: those of them that held.
    pub accepted_tokens: Figure,
    /// Counter: replies that ended on a stop token.
    pub finished_stop: Figure,
    /// Counter: replies that reached `max_tokens`.
    pub finished_length: Figure,
    /// Counter: requests that got `Event::Failed`.
    pub failed: Figure,
    /// Counter: requests whose receiver went away.
    pub cancelled: Figure,
    /// Counter: requests turned away because the queue was full or the engine stopped.
    pub rejected: Figure,
    /// Counter: steps of the device.
    pub steps: Figure,
    /// Counter: nanoseconds that the device took for them.
    pub step_nanos: Figure,
    /// Gauge: thousandths, how long steps take now over the first of the same work.
    pub slowdown: Figure,
    /// Tokens of prompts and replies in each step.
    pub step_tokens: StepTokens,
}

impl Stats {
    /// Takes the figures of the disk.
    pub(super) fn set_disk(&self, staging: &Staging) {
        let (disk, pages) = (&staging.disk, staging.pages_read());
        let (traffic, gone) = (disk.traffic(), disk.gone());
        self.disk_on.set(usize::from(disk.is_on()));
        self.disk_bytes_used.set(disk.bytes_used() as usize);
        let in_a_day = disk.written_in_a_day();
        self.disk_bytes_in_a_day.set(in_a_day as usize);
        self.disk_tokens.set(pages * PAGE);
        self.disk_written_bytes.set(traffic.written_bytes as usize);
        self.disk_read_bytes.set(traffic.read_bytes as usize);
        self.disk_evictions.set(gone.count);
        self.disk_evicted_tokens.set(gone.pages * PAGE);
        let age = gone.age.as_millis() as usize;
        self.disk_evicted_age_millis.set(age);
        self.disk_broken.set(traffic.broken);
    }
}

/// Counts the steps by their tokens.
#[derive(Debug)]
pub struct StepTokens(pub Histogram);

impl Default for StepTokens {
    fn default() -> StepTokens {
        StepTokens(Histogram::of_tokens())
    }
}
