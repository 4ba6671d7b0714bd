//! Statistics of the engine for `/metrics`, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::tier::Staging;
use host::histogram::Histogram;
use step::PAGE;

/// A number that one thread may set or several may add to; no order between numbers is promised.
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

/// Metric of a figure. Gauges state a current value; counters only grow.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    /// Kind of the metric, `gauge` or `counter`.
    pub kind: &'static str,
    /// Meaning of the metric, in a sentence.
    pub help: &'static str,
    pub value: f64,
}

/// Makes `Stats` of rows: meaning of a figure, which is the metric's help text, field, kind, name
/// of the metric, and the number of the figure's units in one of the metric's unit.
macro_rules! stats {
    ($(#[doc = $help:literal] $field:ident: $kind:ident $name:literal / $steps:literal,)*) => {
        /// Figures of an engine.
        #[derive(Debug, Default)]
        pub struct Stats {
            $(#[doc = $help] pub $field: Figure,)*
            /// Replies that ended on a stop token.
            pub finished_stop: Figure,
            /// Replies that reached `max_tokens`.
            pub finished_length: Figure,
            /// Requests that got `Event::Failed`.
            pub failed: Figure,
            /// Requests whose receiver went away.
            pub cancelled: Figure,
            /// Steps by their tokens of prompts and replies.
            pub step_tokens: StepTokens,
        }

        impl Stats {
            /// Metrics that have one value each.
            pub fn metrics(&self) -> Vec<Metric> {
                vec![$(Metric {
                    name: $name,
                    kind: stringify!($kind),
                    help: $help.trim_ascii(),
                    value: self.$field.get() as f64 / $steps,
                },)*]
            }
        }
    };
}

stats! {
    /// Sequences that hold a slot.
    running: gauge "atlas_requests_running" / 1.0,
    /// Accepted requests without a slot.
    waiting: gauge "atlas_requests_waiting" / 1.0,
    /// KV pages that sequences use.
    pages_used: gauge "atlas_kv_pages_used" / 1.0,
    /// KV pages of cached prompts that no sequence uses.
    pages_cached: gauge "atlas_kv_pages_cached" / 1.0,
    /// KV pages of the engine.
    pages_total: gauge "atlas_kv_pages" / 1.0,
    /// KV pages of layers over a window that sequences and cached prompts have.
    window_pages_used: gauge "atlas_kv_window_pages_used" / 1.0,
    /// KV pages of layers over a window; 0 where the model has none of their own.
    window_pages_total: gauge "atlas_kv_window_pages" / 1.0,
    /// Host memory for cached prompts beyond the device's memory.
    host_bytes: gauge "atlas_prefix_cache_host_bytes" / 1.0,
    /// Host memory that cached prompts take.
    host_bytes_used: gauge "atlas_prefix_cache_host_bytes_used" / 1.0,
    /// 1 while prompts are cached on a disk, 0 when the disk is turned off.
    disk_on: gauge "atlas_prefix_cache_disk_up" / 1.0,
    /// Bytes on a disk for cached prompts beyond the host's memory.
    disk_bytes: gauge "atlas_prefix_cache_disk_bytes" / 1.0,
    /// Bytes on the disk that cached prompts take.
    disk_bytes_used: gauge "atlas_prefix_cache_disk_bytes_used" / 1.0,
    /// Bytes of prompts that were written to the disk in the last day.
    disk_bytes_in_a_day: gauge "atlas_prefix_cache_disk_daily_bytes" / 1.0,
    /// Time of the last steps over that of the first steps of the same size.
    slowdown: gauge "atlas_step_slowdown_ratio" / 1e3,
    /// Prompt tokens computed.
    prompt_tokens: counter "atlas_prompt_tokens_total" / 1.0,
    /// Tokens of prompts that were looked up in the prefix cache.
    looked_up_tokens: counter "atlas_prefix_cache_queries_total" / 1.0,
    /// Tokens of prompts that were found in the prefix cache, and not computed again.
    cached_tokens: counter "atlas_prefix_cache_hits_total" / 1.0,
    /// Time that it would have taken to compute the tokens found in the prefix cache.
    saved_nanos: counter "atlas_prefix_cache_saved_seconds_total" / 1e9,
    /// Cached prompt prefixes that were evicted from the device's memory.
    evictions: counter "atlas_prefix_cache_evictions_total" / 1.0,
    /// Tokens of the prefixes that were evicted from the device's memory.
    evicted_tokens: counter "atlas_prefix_cache_evicted_tokens_total" / 1.0,
    /// Sum of the times from a prefix's last use to its eviction from the device's memory.
    evicted_age_millis: counter "atlas_prefix_cache_evicted_age_seconds_total" / 1e3,
    /// Tokens found in the prefix cache that were restored from the host's memory.
    restored_tokens: counter "atlas_prefix_cache_host_hits_total" / 1.0,
    /// Bytes of prompts that were copied to the host's memory.
    host_saved_bytes: counter "atlas_prefix_cache_host_saved_bytes_total" / 1.0,
    /// Bytes of prompts that were copied back from the host's memory.
    host_restored_bytes: counter "atlas_prefix_cache_host_restored_bytes_total" / 1.0,
    /// Cached prompt prefixes that were evicted from the host's memory.
    host_evictions: counter "atlas_prefix_cache_host_evictions_total" / 1.0,
    /// Tokens of the prefixes that were evicted from the host's memory.
    host_evicted_tokens: counter "atlas_prefix_cache_host_evicted_tokens_total" / 1.0,
    /// Sum of the times from a prefix's last use to its eviction from the host's memory.
    host_evicted_age_millis: counter "atlas_prefix_cache_host_evicted_age_seconds_total" / 1e3,
    /// Cached prefixes in the host's memory that were dropped because their checksums were wrong.
    host_broken: counter "atlas_prefix_cache_host_broken_total" / 1.0,
    /// Tokens of prompts that were read from the disk.
    disk_tokens: counter "atlas_prefix_cache_disk_hits_total" / 1.0,
    /// Bytes of prompts that were written to the disk.
    disk_written_bytes: counter "atlas_prefix_cache_disk_saved_bytes_total" / 1.0,
    /// Bytes of prompts that were read from the disk.
    disk_read_bytes: counter "atlas_prefix_cache_disk_restored_bytes_total" / 1.0,
    /// Cached prompt prefixes that were evicted from the disk.
    disk_evictions: counter "atlas_prefix_cache_disk_evictions_total" / 1.0,
    /// Tokens of the prefixes that were evicted from the disk.
    disk_evicted_tokens: counter "atlas_prefix_cache_disk_evicted_tokens_total" / 1.0,
    /// Sum of the times from a prefix's last use to its eviction from the disk.
    disk_evicted_age_millis: counter "atlas_prefix_cache_disk_evicted_age_seconds_total" / 1e3,
    /// Cached prefixes on the disk that were dropped because they were torn or changed.
    disk_broken: counter "atlas_prefix_cache_disk_broken_total" / 1.0,
    /// Tokens generated.
    generated_tokens: counter "atlas_generation_tokens_total" / 1.0,
    /// Draft tokens that were tried.
    drafted_tokens: counter "atlas_draft_tokens_total" / 1.0,
    /// Draft tokens that were accepted: tokens that took no step of their own.
    accepted_tokens: counter "atlas_draft_tokens_accepted_total" / 1.0,
    /// Requests turned away.
    rejected: counter "atlas_requests_rejected_total" / 1.0,
    /// Steps of the device.
    steps: counter "atlas_steps_total" / 1.0,
    /// Time of the device's steps.
    step_nanos: counter "atlas_step_seconds_total" / 1e9,
}

impl Stats {
    /// Copies the statistics of the disk.
    pub(super) fn set_disk(&self, staging: &Staging) {
        let (disk, pages) = (&staging.disk, staging.pages_read());
        let (traffic, evicted) = (disk.traffic(), disk.evicted());
        self.disk_on.set(usize::from(disk.is_on()));
        self.disk_bytes_used.set(disk.bytes_used() as usize);
        let in_a_day = disk.written_in_a_day();
        self.disk_bytes_in_a_day.set(in_a_day as usize);
        self.disk_tokens.set(pages * PAGE);
        self.disk_written_bytes.set(traffic.written_bytes as usize);
        self.disk_read_bytes.set(traffic.read_bytes as usize);
        self.disk_evictions.set(evicted.count);
        self.disk_evicted_tokens.set(evicted.pages * PAGE);
        let age = evicted.age.as_millis() as usize;
        self.disk_evicted_age_millis.set(age);
        self.disk_broken.set(traffic.broken);
    }
}

/// Histogram of steps by their tokens.
#[derive(Debug)]
pub struct StepTokens(pub Histogram);

impl Default for StepTokens {
    fn default() -> StepTokens {
        StepTokens(Histogram::of_tokens())
    }
}
