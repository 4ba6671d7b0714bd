//! Plan of the memory that a model takes, made before any is taken from the target's constants and
//! the available bytes. Constants determine all of it but the number of KV pages: as many as the
//! target states, or fewer where less is available, down to the pages of one longest sequence.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::iter;

use step::agents;

use super::{Runs, decoder, pools};
use crate::ops::{Bound, Footprint, HostMemory, RANKED};
use crate::ops::{ENDS_MAX, LOGITS_ROWS_MAX, VERIFIED_MAX};
use crate::shapes::PageGroup;
use crate::target::{
    self, KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, Role, SNAPSHOTS, STATES, Shape, Site, VOCAB,
    WINDOW,
};
use crate::weights::{Layout, Weight};

/// Number of pages of the longest sequence: with fewer there is no server.
pub const PAGES_MIN: usize = MAX_CONTEXT / PAGE;

/// Number of pages of the windowed group.
const WINDOW_PAGES: usize = match WINDOW {
    Some(window) => window.pages,
    None => 0,
};

const MEBIBYTE: u64 = 1024 * 1024;

/// Line of the ledger: a use of memory, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: &'static str,
    pub bytes: u64,
}

/// Memory that a model takes, for as long as the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of KV pages of `PAGE` tokens, from `PAGES_MIN` to `KV_PAGES`.
    pub pages: usize,
    /// Number of pages of the windowed group.
    window_pages: usize,
    buffers: [Entry; 7],
    /// Upper bounds of bytes beside buffers: of the device's driver and, if the model lies in host
    /// memory, of the server.
    others: [Entry; 4],
    budget: MemoryBudget,
}

/// Memory that may be taken, and the limit that bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryBudget {
    /// Bytes that may be taken; None if the system does not say.
    bytes: Option<u64>,
    host: HostMemory,
    /// Bytes that are left to other programs.
    reserve: u64,
}

/// Error: there is too little memory for the model or the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLittle {
    /// Bytes that are needed with `PAGES_MIN` pages.
    needed: u64,
    budget: MemoryBudget,
    /// Whether host memory is too small for the server, while the model lies elsewhere.
    of_server: bool,
}

/// Prompt lengths for which a plan reports how many agents fit.
const AGENTS: [usize; 3] = [1 << 10, 32 << 10, 128 << 10];

const MODEL: &str = "the model, one sequence as long as its context, and the server";
const RAISE: &str = "Raise that limit, or take a smaller model's binary";
const STOP: &str = "Stop other programs, or take a smaller model's binary";
const STOP_ON_GPU: &str =
    "Stop other programs that use the GPU (`nvidia-smi` lists them), or take a smaller binary";

impl Plan {
    /// Plan of a model on a kind of device that takes `available` bytes at most, in all.
    ///
    /// # Errors
    /// When the bytes do not suffice for the model and its longest sequence.
    pub fn within<B: Runs + Footprint>(
        available: Option<u64>,
        model: Layout,
    ) -> Result<Plan, TooLittle> {
        Plan::fitting::<B>(available, model, |pages| [pages, WINDOW_PAGES])
    }

    /// [`Plan::within`] with the same number of pages in each group, so that sequences keep all
    /// pages of both: for tests without an engine that frees pages that a window has left.
    ///
    /// # Errors
    /// Errors of `within`.
    pub fn whole_within<B: Runs + Footprint>(
        available: Option<u64>,
        model: Layout,
    ) -> Result<Plan, TooLittle> {
        Plan::fitting::<B>(available, model, |pages| [pages; 2])
    }

    /// Plan with the most pages that fit; `of_groups` gives both groups' numbers of pages for a
    /// number of KV pages.
    fn fitting<B: Runs + Footprint>(
        available: Option<u64>,
        model: Layout,
        of_groups: impl Fn(usize) -> [usize; 2],
    ) -> Result<Plan, TooLittle> {
        let budget = MemoryBudget::of::<B>(available);
        let bytes = |pages| taken::<B>(caches::<B>(model, of_groups(pages)));
        let least = Plan::of::<B>(model, of_groups(PAGES_MIN), budget);
        let others = least.bytes() - bytes(PAGES_MIN);
        let fits = |pages: &usize| budget.bytes.is_none_or(|max| others + bytes(*pages) <= max);
        match (PAGES_MIN..=KV_PAGES).rev().find(fits) {
            Some(pages) => Ok(Plan::of::<B>(model, of_groups(pages), budget)),
            None => Err(TooLittle {
                needed: least.bytes(),
                budget,
                of_server: false,
            }),
        }
    }

    /// Plan with all pages of the target in each group, whatever is available.
    pub fn largest<B: Runs + Footprint>(model: Layout) -> Plan {
        Plan::of::<B>(model, [KV_PAGES; 2], MemoryBudget::of::<B>(None))
    }

    /// Number of pages of each group.
    pub fn page_counts(&self) -> [usize; 2] {
        [self.pages, self.window_pages]
    }

    fn of<B: Runs + Footprint>(model: Layout, pages: [usize; 2], budget: MemoryBudget) -> Plan {
        let entry = |name, bytes| Entry { name, bytes };
        // All states share one buffer, whose rounding differs from the sum of its parts' roundings.
        let state = pools::state_bytes::<B>(model);
        let states = |first, end| {
            let upto = |states| taken::<B>([(states * state) as u64]);
            upto(end) - upto(first)
        };
        let drafts = MAX_SEQUENCES + SNAPSHOTS;
        let [caches, windows] = caches::<B>(model, pages).map(|bytes| taken::<B>([bytes]));
        let [pages, window_pages] = pages;
        Plan {
            pages,
            window_pages,
            buffers: [
                entry("weights, at most", taken::<B>(weights::<B>(model))),
                entry("KV pages", caches),
                entry("KV of windows", windows),
                entry("recurrent states", states(0, MAX_SEQUENCES)),
                entry("snapshots", states(MAX_SEQUENCES, drafts)),
                entry("states of drafts", states(drafts, STATES)),
                entry("activations", taken::<B>(activations::<B>(model))),
            ],
            others: [
                entry("graphs, at most", graphs::<B>(model)),
                entry("context, at most", B::CONTEXT_BYTES),
                entry("locked, at most", locked::<B>()),
                entry("server, at most", server(&budget.host)),
            ],
            budget,
        }
    }

    /// Lines of the ledger.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.buffers.iter().chain(&self.others)
    }

    /// Bytes of all lines.
    pub fn bytes(&self) -> u64 {
        self.entries().map(|entry| entry.bytes).sum()
    }

    /// Bytes of the model's buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.iter().map(|entry| entry.bytes).sum()
    }

    /// The ledger as text: entries that take memory, their sum, and the available memory.
    pub fn lines(&self) -> Vec<String> {
        let line = |name: &str, bytes: u64| format!("  {name:<17}{:>12}", mebibytes(bytes));
        let entries = self.entries().filter(|entry| entry.bytes > 0);
        let entries = entries.map(|entry| line(entry.name, entry.bytes));
        let mut lines: Vec<String> = iter::once("memory:".to_string()).chain(entries).collect();
        lines.push(line("sum", self.bytes()));
        lines.push(self.budget_words());
        lines.extend(self.agents_words());
        lines
    }

    /// Text on how many agents find their prompts cached; none if the context is too short for all.
    fn agents_words(&self) -> Option<String> {
        let fit = |tokens: &usize| agents(self.pages, SNAPSHOTS, *tokens);
        let lengths = AGENTS.iter().filter(|tokens| **tokens <= MAX_CONTEXT);
        let words = lengths.map(|tokens| format!("{} of {} Ki tokens", fit(tokens), tokens >> 10));
        let words: Vec<_> = words.collect();
        let text = || format!("agents that find their prompts again: {}", words.join(", "));
        (!words.is_empty()).then(text)
    }

    /// Text on the available memory, and the number of KV pages that it gives.
    fn budget_words(&self) -> String {
        let fewer = match self.pages {
            KV_PAGES => "",
            _ => ", as many as fit",
        };
        format!(
            "{}; {} KV pages for {} tokens{fewer}",
            self.budget,
            self.pages,
            self.pages * PAGE
        )
    }
}

impl MemoryBudget {
    fn of<B: Footprint>(bytes: Option<u64>) -> MemoryBudget {
        MemoryBudget {
            bytes,
            host: B::host_memory(),
            reserve: B::RESERVE_BYTES,
        }
    }

    fn mebibytes(&self) -> String {
        mebibytes(self.bytes.unwrap_or(0))
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes.is_none() {
            return f.write_str("what is free is not known");
        }
        write!(f, "{} may be taken, ", self.mebibytes())?;
        match (target::HOST_RESERVE, self.host.bound) {
            (Some(_), Some(bound)) => bound.fmt(f),
            _ => write!(f, "{} are left to the driver", mebibytes(self.reserve)),
        }
    }
}

impl fmt::Display for TooLittle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.needed.div_ceil(MEBIBYTE);
        let bound = self.budget.host.bound.filter(|of| **of != Bound::Free);
        let budget = self.budget.to_string();
        let (what, budget, fix) = match (self.of_server, target::HOST_RESERVE, bound) {
            (true, ..) => ("the server beside its GPU", self.host_words(), RAISE),
            (_, None, _) => (MODEL, budget, STOP_ON_GPU),
            (_, _, Some(_)) => (MODEL, budget, RAISE),
            (_, _, None) => (MODEL, budget, STOP),
        };
        write!(
            f,
            "memory: {needed} MiB are needed for {what}, and {budget}. {fix}"
        )
    }
}

impl TooLittle {
    fn host_words(&self) -> String {
        let bound = self.budget.host.bound;
        let bound = bound.map_or(String::new(), |bound| format!(", {bound}"));
        format!(
            "{} of the host's may be taken{bound}",
            self.budget.mebibytes()
        )
    }
}

impl Error for TooLittle {}

/// Text of bytes in MiB.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MEBIBYTE as f64)
}

/// Bytes of the device that buffers of these sizes take, each rounded up.
fn taken<B: Footprint>(buffers: impl IntoIterator<Item = u64>) -> u64 {
    buffers.into_iter().map(B::buffer_bytes).sum()
}

/// Bytes of the pools of so many KV pages of each group.
fn caches<B: Runs>(model: Layout, [pages, windows]: [usize; 2]) -> [u64; 2] {
    let bytes = |pages, group| (pages * pools::page_bytes::<B>(model, group)) as u64;
    [
        bytes(pages, PageGroup::Whole),
        bytes(windows, PageGroup::Window),
    ]
}

/// Representative of the roles whose matrices at a site are loaded into one buffer: the first.
fn buffer_of(role: Role) -> Role {
    match role {
        Role::SharedRouter => Role::Router,
        Role::ExpertUp | Role::SharedGate | Role::SharedUp => Role::ExpertGate,
        Role::SharedDown => Role::ExpertDown,
        alone => alone,
    }
}

/// Upper bounds of bytes as the device holds weights and the vectors of zeros beside them: a device
/// may hold values in fewer bytes when that loses nothing.
fn weights<B: Runs + Footprint>(model: Layout) -> impl Iterator<Item = u64> {
    let mut buffers: BTreeMap<(Site, Role), u64> = BTreeMap::new();
    for matrix in model.matrices() {
        let buffer = (matrix.site(), buffer_of(matrix.role()));
        let bytes = B::matrix_bytes_max(matrix.n(), matrix.k(), matrix.format());
        *buffers.entry(buffer).or_default() += bytes;
    }
    let vectors = model.vectors().map(Weight::elements);
    let zeros = model.blocks().map(Shape::zeros::<B>);
    let vectors = vectors.chain(zeros);
    let vectors = vectors.map(|elements| (elements * size_of::<f32>()) as u64);
    buffers.into_values().chain(vectors)
}

/// Bytes of the activations and logits of the largest step, and of the operations' workspaces.
fn activations<B: Runs + Footprint>(model: Layout) -> impl Iterator<Item = u64> {
    let tensors = decoder::activations::<B>(model);
    let tensors = tensors.map(|elements| elements * size_of::<f32>());
    let buffers = tensors.chain(B::workspace());
    buffers.map(|bytes| bytes as u64)
}

/// Bytes of page-locked memory of the host where the device uses host memory: what the device
/// takes, and the rows that the host reads.
fn locked<B: Footprint>() -> u64 {
    let rows = ENDS_MAX * RANKED + (1 + LOGITS_ROWS_MAX) * VOCAB;
    match B::LOCKED_BYTES {
        0 => 0,
        bytes => bytes + (rows * size_of::<f32>()) as u64,
    }
}

/// Bytes of the recorded steps: for every number of replies, without drafts and with.
fn graphs<B: Footprint>(model: Layout) -> u64 {
    let steps = MAX_SEQUENCES + VERIFIED_MAX;
    (steps * model.blocks().count().div_ceil(2)) as u64 * B::GRAPH_LAYER_BYTES
}

/// Bytes that the server takes of the memory that the model lies in.
fn server(host: &HostMemory) -> u64 {
    target::HOST_RESERVE.map_or(0, |_| host.server)
}

/// Checks the plan before a device is opened, if the model lies in host memory: a machine whose GPU
/// shares the host's memory does not fail when it runs out but freezes until it is switched off.
///
/// # Errors
/// When the target's model lies there and does not fit, or the server does not.
pub fn preflight<B: Runs + Footprint>() -> Result<(), TooLittle> {
    let host = B::host_memory();
    let short = host.bytes.is_some_and(|bytes| bytes < host.server);
    if target::HOST_RESERVE.is_none() && short {
        return Err(TooLittle {
            needed: host.server,
            budget: MemoryBudget::of::<B>(host.bytes),
            of_server: true,
        });
    }
    let model = Layout::whole().without_prediction();
    Plan::within::<B>(host.available(), model).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;

    fn model() -> Layout {
        Layout::whole()
    }

    /// Bytes of a plan with so many pages.
    fn bytes_with(pages: usize) -> u64 {
        let pages = [pages, WINDOW_PAGES];
        Plan::of::<Backend>(model(), pages, MemoryBudget::of::<Backend>(None)).bytes()
    }

    #[test]
    fn the_ledger_names_what_takes_memory_and_the_sum() {
        let plan = Plan::largest::<Backend>(model());
        let lines = plan.lines().join("\n");
        assert!(lines.contains(&mebibytes(plan.bytes())), "{lines}");
        for entry in plan.entries() {
            assert_eq!(lines.contains(entry.name), entry.bytes > 0, "{lines}");
        }
        for entry in &plan.buffers {
            let keeps = pools::state_bytes::<Backend>(model()) > 0;
            let is_none = match entry.name {
                "snapshots" => SNAPSHOTS == 0 || !keeps,
                "states of drafts" => target::DRAFTS == 0 || !keeps,
                "recurrent states" => !keeps,
                "KV of windows" => WINDOW_PAGES == 0,
                _ => false,
            };
            assert_eq!(entry.bytes == 0, is_none, "{}", entry.name);
        }
    }

    #[test]
    fn what_is_free_decides_how_many_pages_there_are() {
        for pages in [PAGES_MIN, PAGES_MIN + 1, KV_PAGES - 1, KV_PAGES] {
            let plan = Plan::within::<Backend>(Some(bytes_with(pages)), model()).unwrap();
            assert_eq!((plan.pages, plan.bytes()), (pages, bytes_with(pages)));
        }
    }

    #[test]
    fn a_byte_less_is_a_page_less() {
        let plan = Plan::within::<Backend>(Some(bytes_with(KV_PAGES) - 1), model()).unwrap();
        assert_eq!(plan.pages, KV_PAGES - 1);
        let lines = plan.lines();
        assert!(lines.iter().any(|line| line.contains("as many as fit")));
    }

    #[test]
    fn the_ledger_states_how_many_agents_fit() {
        let plan = Plan::largest::<Backend>(model());
        let text = plan.agents_words().unwrap();
        let pages = (KV_PAGES / (1024 / PAGE)).min(SNAPSHOTS.wrapping_sub(1));
        assert!(text.contains(&format!(" {pages} of 1 Ki tokens")), "{text}");
    }

    #[test]
    fn there_are_never_more_pages_than_the_target_states() {
        for available in [Some(u64::MAX), None] {
            assert_eq!(
                Plan::within::<Backend>(available, model()).unwrap().pages,
                KV_PAGES
            );
        }
    }

    #[test]
    fn less_than_one_sequence_fills_is_refused() {
        let needed = bytes_with(PAGES_MIN);
        let refused = Plan::within::<Backend>(Some(needed - 1), model()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("{} MiB are needed", needed.div_ceil(MEBIBYTE))));
        assert!(text.contains("Stop other programs"), "{text}");
    }

    #[test]
    fn fewer_layers_take_less() {
        let less = Layout::cut(1);
        let (one, all) = (
            Plan::largest::<Backend>(less),
            Plan::largest::<Backend>(model()),
        );
        assert!(one.buffers[0].bytes < all.buffers[0].bytes);
    }
}
