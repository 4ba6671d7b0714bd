//! The CPU's steps, and bytes against shapes.

use super::*;
use model::backend::cpu::Cpu;
use model::backend::metered::{Call, Label, distinct_experts};
use model::ops::ONE_BY_ONE;
use model::shapes::{Attention as _, Delta as _, Experts as _};
use model::target::{DRAFT_IDS, Full, Gdn, HIDDEN, Moe, Role, Site, VOCAB};
use model::weights::Layout;

fn calls(case: Case, layers: usize) -> Vec<Call> {
    let checkpoint = weights::open_seeded_layers(layers, Arc::default());
    let sink = Sink::default();
    let metered = Metered::new(Cpu::new(1), sink.clone()).unwrap();
    let plan = Plan::largest::<Cpu>(checkpoint.layout());
    let mut runner = Runner::load(metered, &checkpoint, &plan).unwrap();
    case.meter(&mut runner, &sink).unwrap();
    sink.take()
}

fn decode(rows: usize) -> Case {
    Case::Decode(Decode { rows, context: 3 })
}

/// Calls of `op` in each metered step.
fn of<'a>(calls: &'a [Call], op: &'a str) -> Vec<&'a Call> {
    calls.iter().filter(|call| call.label.op == op).collect()
}

#[test]
fn every_operation_of_a_step_is_timed_and_weighed() {
    let calls = calls(decode(1), target::LAYERS);
    assert!(calls.len().is_multiple_of(METERED));
    assert_eq!(of(&calls, "moe").len(), METERED * target::LAYERS);
    assert!(
        calls
            .iter()
            .all(|call| call.cost.bytes > 0 && call.seconds >= 0.0)
    );
    assert!(calls.iter().map(|call| call.seconds).sum::<f64>() > 0.0);
}

#[test]
fn the_head_is_read_once_whatever_the_rows() {
    for rows in [1, 2] {
        let calls = calls(decode(rows), 1);
        let heads: Vec<_> = calls.iter().filter(|call| call.label.n == VOCAB).collect();
        let matrix = Cpu::matrix_bytes_max(VOCAB, HIDDEN, target::FORMAT_HEAD);
        let bytes = matrix + (4 * rows * (VOCAB + 2 * HIDDEN)) as u64;
        assert_eq!(heads.len(), METERED);
        assert!(heads.iter().all(|call| call.cost.bytes == bytes));
        assert!(
            heads
                .iter()
                .all(|call| call.cost.flops == (2 * rows * VOCAB * HIDDEN) as u64)
        );
    }
}

#[test]
fn a_step_that_ends_within_a_prompt_reads_no_head() {
    let calls = calls(Case::Prompt(target::PREFILL_TOKENS + 1), 1);
    let heads = calls.iter().filter(|call| call.label.n == VOCAB);
    let bytes: Vec<_> = heads.map(|call| call.cost.bytes).collect();
    assert_eq!(bytes.len(), 2 * METERED);
    assert!(bytes.chunks(2).all(|steps| steps[0] == 0 && steps[1] > 0));
}

#[test]
fn the_state_of_a_sequence_moves_once_however_many_rows_it_has() {
    if !Layout::whole().has(Role::GdnQkv, Site::Layer(0)) {
        return;
    }
    let bytes = |case, op| of(&calls(case, 1), op)[0].cost.bytes;
    let (one, two) = (bytes(decode(1), "delta_net"), bytes(decode(2), "delta_net"));
    let f32s = |count: usize| (count * size_of::<f32>()) as u64;
    let weights = f32s(Gdn::CONV * Gdn::QKV);
    assert_eq!(
        two - weights,
        2 * (one - weights),
        "each row is another sequence's"
    );
    let state = model::ops::Cost::gated_delta::<Gdn>().bytes;
    let tail = f32s(2 * (Gdn::CONV - 1) * Gdn::QKV);
    let row = f32s(Gdn::QKV + 2 * Gdn::VALUE_HEADS + Gdn::VALUES);
    let few = f32s(Gdn::VALUES) + row;
    let prompt = |rows, op| bytes(Case::Prompt(rows), op);
    assert_eq!(prompt(2, "delta_net"), state + weights + tail + 2 * few);
    let (rows, long) = (ONE_BY_ONE as u64 + 1, ONE_BY_ONE + 1);
    assert_eq!(prompt(long, "gated_delta"), state + rows * row);
    let mixed = rows * f32s(2 * Gdn::QKV);
    assert_eq!(prompt(long, "conv_silu"), weights + tail + mixed);
}

#[test]
fn attention_of_a_decode_step_moves_each_position_of_the_cache_once() {
    let attends = |layer: &usize| Layout::whole().has(Role::Key, Site::Layer(*layer));
    let first = (0..target::LAYERS).find(attends);
    let layers = 1 + first.expect("every model attends");
    let (decode, prompt) = (calls(decode(2), layers), calls(Case::Prompt(2), layers));
    let heads = Full::HEADS * Full::HEAD_DIM;
    let row = 4 * (3 * heads + 2 * Full::KV_HEADS * Full::HEAD_DIM);
    // The row's own position is after the context.
    let cache = model::ops::Cost::attend::<Full>(3 + 1);
    let found = of(&decode, "attention");
    assert_eq!(found.len(), METERED);
    assert_eq!(found[0].cost.bytes, 2 * (row as u64 + cache.bytes));
    assert_eq!(found[0].cost.flops, 2 * cache.flops);
    let count = |calls: &[Call], op| of(calls, op).len();
    let parts = ["store_kv", "attend", "attention"];
    assert_eq!(parts.map(|op| count(&decode, op)), [0, 0, METERED]);
    assert_eq!(parts.map(|op| count(&prompt, op)), [METERED, METERED, 0]);
}

#[test]
fn rows_visit_as_many_experts_as_chance_lets_them() {
    assert_eq!(distinct_experts::<Moe>(1), Moe::PER_TOKEN as f64);
    assert!(distinct_experts::<Moe>(2) <= 2.0 * Moe::PER_TOKEN as f64);
    assert!((distinct_experts::<Moe>(10_000) - Moe::COUNT as f64).abs() < 1e-6);
}

fn drafted(sequences: usize, depth: usize) -> Drafted {
    Drafted {
        sequences,
        depth,
        context: 3,
    }
}

/// Rows of each call of the head.
fn heads(calls: &[Call]) -> Vec<u64> {
    let of_head = |call: &&Call| {
        let Label { op, n, .. } = call.label;
        [VOCAB, DRAFT_IDS].contains(&n) && ["linear", "lm_head"].contains(&op)
    };
    let heads = calls.iter().filter(of_head);
    let row = |call: &Call| (2 * call.label.n * HIDDEN) as u64;
    heads.map(|call| call.cost.flops / row(call)).collect()
}

#[test]
fn a_step_of_drafts_has_the_logits_of_each_row() {
    if target::MTP_LAYERS > 0 {
        let calls = calls(Case::Verify(drafted(2, 3)), 1);
        assert_eq!(heads(&calls), [2 * (1 + 3); METERED]);
    }
}

#[test]
fn predictions_are_reported_without_the_step_before_them() {
    if target::MTP_LAYERS > 0 {
        let calls = calls(Case::Predict(drafted(2, 3)), 1);
        assert_eq!(heads(&calls), [2; 3 * METERED]);
        assert_eq!(of(&calls, "embed_beside").len(), 3 * METERED);
    }
}

#[test]
fn cases_that_do_not_fit_are_left_out() {
    let decode = |rows, context| Decode { rows, context };
    assert!(decode(1, 8).fits(8, 1));
    assert!(!decode(1, 8).fits(8, 0));
    assert!(!decode(target::MAX_SEQUENCES + 1, 8).fits(8, KV_PAGES));
    assert!(!decode(1, MAX_CONTEXT).fits(1, KV_PAGES));
    assert!(drafted(1, 1).fits(1));
    assert!(!drafted(2, 1).fits(1));
    assert!(!drafted(target::MAX_SEQUENCES + 1, 0).fits(KV_PAGES));
    assert!(!drafted(1, model::ops::ENDS_MAX).fits(KV_PAGES));
    let whole = Drafted {
        context: MAX_CONTEXT - 2,
        ..drafted(1, 0)
    };
    assert!(whole.fits(KV_PAGES));
    assert!(!Drafted { depth: 1, ..whole }.fits(KV_PAGES));
}

pub(super) fn report(partition: Option<&str>, left_out: &[&str]) -> Report {
    Report {
        format: FORMAT,
        target: target::BINARY,
        origin: Origin::default(),
        partition: partition.map(str::to_string),
        weights: String::new(),
        load_s: 0.0,
        read_gb_s: 0.0,
        cases: Vec::new(),
        left_out: left_out.iter().map(|name| name.to_string()).collect(),
    }
}

#[test]
fn what_exceeds_memory_is_reported() {
    let [some, none] = [&["32 x context 8192"][..], &[]].map(|left_out| report(None, left_out));
    assert!(some.table().contains("KV pages: 32 x context 8192\n"));
    assert!(!none.table().contains("left out"));
}

#[test]
fn figures_of_a_part_of_the_device_say_so() {
    let (part, whole) = (report(Some("48 of 132 SMs"), &[]), report(None, &[]));
    assert!(part.table().contains("\nkernels on 48 of 132 SMs"));
    assert!(!whole.table().contains("SMs"));
    let json = |report| serde_json::to_value(report).unwrap();
    assert_eq!(json(part)["partition"], "48 of 132 SMs");
    assert!(json(whole).get("partition").is_none());
}
