//! The engine on its thread: waking, draining, failing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::constraint::{Constraint, Mask, Next};
use super::events::EventReceiver;
use super::request::{Event, FinishReason, Request, Sampling};
use super::testing::simulator::{self, HashModel, POISON, Spec, VOCAB, engine};
use super::thinking::ThinkingBudget;
use super::*;
use step::PAGE;
use step::executor::{DeviceError, Executor, Patience, SeqRows, TokenId};
use step::random::Random;
use step::testing::TINY;

/// Longer than any of these tests may take; shorter than a person waits.
const PATIENCE: Duration = Duration::from_secs(20);

const LIMITS: Limits = Limits {
    snapshots: 2,
    window: None,
    drafts: 7,
    speculate: Speculate::Auto,
    sequences: 2,
    queued: 3,
    pages: 64,
    prefill_tokens: 64,
    ..Limits::of(&TINY)
};

fn spec(max_tokens: usize) -> Spec {
    Spec {
        prompt: vec![1, 2, 3],
        max_tokens,
        stop_tokens: vec![],
        sampling: Sampling::default(),
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
    }
}

fn spawn_model() -> (Handle, Thread) {
    spawn(LIMITS, || Ok(HashModel::<VOCAB>::new(&LIMITS)))
}

fn submit(handle: &Handle, spec: &Spec, capacity: usize) -> EventReceiver {
    let (request, receiver) = spec.request(capacity);
    handle.submit(request).unwrap();
    receiver
}

fn read_all(mut receiver: EventReceiver) -> Vec<Event> {
    std::iter::from_fn(|| receiver.blocking_recv()).collect()
}

fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "{what} never happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_request_is_answered_and_counted() {
    let (handle, thread) = spawn_model();
    let events = read_all(submit(&handle, &spec(5), 2));
    assert_eq!(events, spec(5).expected(&LIMITS));
    handle.drain();
    thread.join().unwrap();
    let stats = handle.stats();
    assert_eq!(
        (stats.prompt_tokens.get(), stats.generated_tokens.get()),
        (3, 5)
    );
    assert_eq!((stats.finished_length.get(), stats.steps.get()), (1, 5));
    assert_eq!((stats.pages_used.get(), stats.pages_total.get()), (0, 64));
    assert_eq!(handle.phase(), Phase::Stopped);
}

#[test]
fn a_device_may_have_fewer_pages_than_the_target_states() {
    let few = Limits { pages: 3, ..LIMITS };
    let (handle, thread) = spawn(LIMITS, move || Ok(HashModel::<VOCAB>::new(&few)));
    let capacity = 3 * PAGE;
    let fits = read_all(submit(&handle, &spec(capacity - 3), capacity));
    assert_eq!(fits.last(), Some(&Event::Done(FinishReason::Length)));
    let refused = read_all(submit(&handle, &spec(capacity - 2), capacity));
    assert!(
        matches!(&refused[..], [Event::Failed(text)] if text.contains(&format!("than {capacity}"))),
        "{refused:?}"
    );
    handle.drain();
    thread.join().unwrap();
    assert_eq!(handle.stats().pages_total.get(), 3);
}

#[test]
fn a_stop_token_ends_the_reply_and_is_its_last_token() {
    let (handle, _thread) = spawn_model();
    let free = spec(5).expected(&LIMITS);
    let Event::Token { id, .. } = free[2] else {
        panic!("a token")
    };
    let spec = Spec {
        stop_tokens: vec![id],
        ..spec(5)
    };
    let events = read_all(submit(&handle, &spec, 8));
    assert_eq!(events[..3], free[..3]);
    assert_eq!(events[3..], [Event::Done(FinishReason::Stop)]);
}

#[test]
fn a_prompt_is_scored_without_a_reply() {
    let (handle, thread) = spawn_model();
    let scored = Spec {
        prompt: (0..150).map(|id| 1 + id % 40).collect(),
        prompt_logprobs: Some(2),
        ..spec(0)
    };
    let events = read_all(submit(&handle, &scored, 3));
    let events: Vec<Event> = events.into_iter().flat_map(simulator::singles).collect();
    assert_eq!(events, scored.expected(&LIMITS));
    assert_eq!(events.len(), 149 + 1);
    handle.drain();
    thread.join().unwrap();
    let stats = handle.stats();
    assert_eq!(
        (stats.prompt_tokens.get(), stats.generated_tokens.get()),
        (150, 0)
    );
    assert_eq!(stats.finished_length.get(), 1);
}

#[test]
fn a_prompt_of_one_token_has_no_score() {
    let (handle, _thread) = spawn_model();
    let scored = Spec {
        prompt: vec![5],
        prompt_logprobs: Some(0),
        ..spec(0)
    };
    let events = read_all(submit(&handle, &scored, 3));
    assert_eq!(events, [Event::Done(FinishReason::Length)]);
}

#[test]
#[should_panic(expected = "too small")]
fn prompt_scores_need_capacity_of_their_own() {
    let (handle, _thread) = spawn_model();
    let scored = Spec {
        prompt_logprobs: Some(0),
        ..spec(1)
    };
    let _ = handle.submit(scored.request(2).0);
}

/// Counts how often the device was asked, and can be asked to block a step.
struct Gated {
    model: HashModel<VOCAB>,
    gate: std::sync::mpsc::Receiver<()>,
}

impl Executor for Gated {
    const VOCAB: usize = VOCAB;

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        self.gate
            .recv()
            .map_err(|gone| DeviceError::Failed(gone.to_string()))?;
        self.model.step(rows)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        self.model.logits(index)
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.model.logits_of(rows, logits)
    }
}

fn spawn_gated() -> (std::sync::mpsc::Sender<()>, Handle, Thread) {
    let (open, gate) = std::sync::mpsc::channel();
    let make = move || {
        Ok(Gated {
            model: HashModel::new(&LIMITS),
            gate,
        })
    };
    let (handle, thread) = spawn(LIMITS, make);
    (open, handle, thread)
}

#[test]
fn an_idle_engine_sleeps() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (handle, thread) = spawn(LIMITS, move || {
        sender.send(std::fs::read_link("/proc/thread-self")?)?;
        Ok(HashModel::<VOCAB>::new(&LIMITS))
    });
    read_all(submit(&handle, &spec(1), 2));
    let stat = std::path::Path::new("/proc")
        .join(receiver.recv().unwrap())
        .join("stat");
    std::thread::sleep(Duration::from_millis(50));
    let before = processor_ticks(&stat);
    std::thread::sleep(Duration::from_millis(300));
    // A thread that spins would use some 30 ticks of ten milliseconds, or half on a busy machine.
    assert!(processor_ticks(&stat) - before < 3);
    handle.drain();
    thread.join().unwrap();
}

/// Ticks of processor time that a thread has used: fields 14 and 15 of its `stat` file.
fn processor_ticks(stat: &std::path::Path) -> u64 {
    let stat = std::fs::read_to_string(stat).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_stalled_sequence_goes_on_when_its_reader_catches_up() {
    let (handle, _thread) = spawn_model();
    let receiver = submit(&handle, &spec(20), 4);
    eventually("the stall", || handle.stats().generated_tokens.get() == 3);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(
        handle.stats().generated_tokens.get(),
        3,
        "the channel has capacity for one more"
    );
    assert_eq!(read_all(receiver), spec(20).expected(&LIMITS));
}

#[test]
fn a_stalled_sequence_is_freed_when_its_reader_leaves() {
    let (handle, _thread) = spawn_model();
    let receiver = submit(&handle, &spec(20), 2);
    eventually("the stall", || handle.stats().generated_tokens.get() == 1);
    drop(receiver);
    eventually("the cancellation", || handle.stats().cancelled.get() == 1);
    eventually("the return of pages", || {
        handle.stats().pages_used.get() == 0
    });
}

#[test]
fn a_waiting_request_leaves_the_queue_when_its_reader_leaves() {
    let (handle, _thread) = spawn_model();
    let stalled = [(); 2].map(|()| submit(&handle, &spec(20), 2));
    eventually("both slots taken", || handle.stats().running.get() == 2);
    let waiting = submit(&handle, &spec(1), 2);
    eventually("the stall", || handle.stats().generated_tokens.get() == 2);
    // Long enough for the engine to take the request in and to sleep again.
    std::thread::sleep(Duration::from_millis(50));
    drop(waiting);
    eventually("an empty queue", || handle.stats().waiting.get() == 0);
    drop(stalled);
}

#[test]
fn a_full_queue_hands_the_request_back() {
    let (_open, handle, _thread) = spawn_gated();
    let running = [(); 2].map(|()| submit(&handle, &spec(1), 2));
    eventually("both are taken in", || handle.stats().waiting.get() < 2);
    let mut accepted = Vec::new();
    let refused = loop {
        let (request, receiver) = spec(1).request(2);
        match handle.submit(request) {
            Ok(()) => accepted.push(receiver),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(&refused, Rejected::Full(request) if request.prompt == [1, 2, 3]));
    assert!(
        accepted.len() <= LIMITS.queued + 1,
        "{} were accepted",
        accepted.len()
    );
    assert_eq!(handle.stats().rejected.get(), 1);
    drop(running);
}

#[test]
fn draining_completes_what_was_accepted_and_refuses_the_rest() {
    let (open, handle, thread) = spawn_gated();
    let accepted: Vec<_> = (0..3).map(|_| submit(&handle, &spec(2), 4)).collect();
    handle.drain();
    let (request, _receiver) = spec(1).request(2);
    assert!(matches!(handle.submit(request), Err(Rejected::Stopped(_))));
    (0..8).for_each(|_| open.send(()).unwrap());
    thread.join().unwrap();
    for receiver in accepted {
        assert_eq!(read_all(receiver), spec(2).expected(&LIMITS));
    }
}

/// A prompt whose last row is not finite leaves nothing to others.
#[test]
fn a_failed_prompt_is_not_cached() {
    let mut seen = [0, 0];
    for drawn in 1..40 {
        let (handle, mut engine) = engine(LIMITS, HashModel::<VOCAB>::new(&LIMITS));
        let mut poisoned = spec(1);
        poisoned.prompt = vec![POISON; 2 * PAGE + 9];
        poisoned.prompt[1] = drawn;
        let mut receiver = submit(&handle, &poisoned, 4);
        handle.drain();
        while engine.round().unwrap() != Round::Finished {}
        let failed = matches!(receiver.try_recv(), Ok(Event::Failed(_)));
        seen[usize::from(failed)] += 1;
        assert_eq!(engine.kv.pages_cached(), if failed { 0 } else { 2 });
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// With fewer states than snapshot points of a prompt, the last one has one.
#[test]
fn the_end_of_a_prompt_is_cached_before_its_middle() {
    let limits = Limits {
        snapshots: 1,
        ..LIMITS
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let mut long = spec(1);
    long.prompt = (0..2 * TINY.prefill_tokens + 2 * PAGE + 9)
        .map(|at| (at % VOCAB) as TokenId)
        .collect();
    for cached in [0, 2 * TINY.prefill_tokens + 2 * PAGE] {
        let before = handle.stats().cached_tokens.get();
        let mut receiver = submit(&handle, &long, 4);
        while !matches!(receiver.try_recv(), Ok(Event::Done(_))) {
            engine.round().unwrap();
        }
        assert_eq!(handle.stats().cached_tokens.get() - before, cached as u64);
    }
}

#[test]
fn an_idle_engine_ends_when_drained_or_forgotten() {
    let (handle, thread) = spawn_model();
    handle.drain();
    thread.join().unwrap();
    let (handle, thread) = spawn_model();
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn a_device_error_fails_everyone_and_stops_the_engine() {
    let (open, handle, thread) = spawn_gated();
    let receivers: Vec<_> = (0..3).map(|_| submit(&handle, &spec(9), 12)).collect();
    open.send(()).unwrap();
    drop(open);
    assert!(matches!(thread.join(), Err(EngineError::Device(_))));
    for receiver in receivers {
        assert_eq!(
            read_all(receiver).pop(),
            Some(Event::Failed(DEVICE_FAILED.into()))
        );
    }
    let (request, _receiver) = spec(1).request(2);
    assert!(matches!(handle.submit(request), Err(Rejected::Stopped(_))));
    assert_eq!(handle.stats().failed.get(), 3);
}

#[test]
fn a_model_that_does_not_start_fails_what_waits_for_it() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let make = move || -> Result<HashModel<VOCAB>, Box<dyn Error + Send + Sync>> {
        wait.recv().unwrap();
        Err("no such file".into())
    };
    let (handle, thread) = spawn(LIMITS, make);
    let receiver = submit(&handle, &spec(1), 2);
    assert_eq!(handle.phase(), Phase::Starting);
    go.send(()).unwrap();
    let error = thread.join().unwrap_err();
    assert!(error.to_string().contains("no such file"));
    assert_eq!(read_all(receiver), [Event::Failed(START_FAILED.into())]);
    assert_eq!(handle.phase(), Phase::Stopped);
}

/// Returns too few logits, which breaks an invariant of the engine.
struct Silent;

impl Executor for Silent {
    const VOCAB: usize = VOCAB;

    fn step(&mut self, _: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        Ok(&[])
    }

    fn logits_of(&mut self, _: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        logits.clear();
        Ok(())
    }
}

#[test]
fn a_broken_invariant_fails_everyone_and_stops_the_engine() {
    let (handle, thread) = spawn(LIMITS, || Ok(Silent));
    let receiver = submit(&handle, &spec(1), 2);
    assert!(matches!(thread.join(), Err(EngineError::Panicked)));
    assert_eq!(read_all(receiver), [Event::Failed(INTERNAL.into())]);
}

#[test]
fn a_new_engine_says_when_it_serves() {
    let (handle, _thread) = spawn_model();
    let mut phases = handle.phases();
    let wait = async {
        *phases
            .wait_for(|phase| *phase >= Phase::Serving)
            .await
            .unwrap()
    };
    assert_eq!(runtime().unwrap().block_on(wait), Phase::Serving);
}

#[test]
#[should_panic(expected = "too small")]
fn a_channel_without_capacity_for_an_end_is_refused() {
    let (handle, _thread) = spawn_model();
    let _ = handle.submit(spec(1).request(1).0);
}

#[test]
fn what_can_never_run_is_refused_with_the_reason() {
    let refusal = |change: fn(&mut Request)| {
        let (mut request, _receiver) = spec(1).request(2);
        change(&mut request);
        LIMITS.check_request(&request, VOCAB).unwrap_err()
    };
    assert!(refusal(|request| request.prompt.clear()).contains("at least one"));
    assert!(refusal(|request| request.max_tokens = 0).contains("at least one"));
    assert!(refusal(|request| request.max_tokens = usize::MAX).contains("more than 2048"));
    assert!(refusal(|request| request.max_tokens = 2046).contains("more than 2048"));
    assert!(refusal(|request| request.prompt.push(VOCAB as u32)).contains("token 48"));
    assert!(refusal(|request| request.logprobs = Some(21)).contains("at most 20"));
    assert!(refusal(|request| request.prompt_logprobs = Some(21)).contains("at most 20"));
    assert!(refusal(|request| request.sampling.temperature = f32::NAN).contains("temperature"));
    assert!(refusal(|request| request.sampling.top_p = 0.0).contains("top_p"));
    assert!(refusal(|request| request.sampling.repetition_penalty = 0.0).contains("repetition"));
    let bias = refusal(|request| request.sampling.logit_bias.push((1, 101.0)));
    assert!(bias.contains("logit_bias is 101"));
}

/// The first owners are written out field by field, so that none is forgotten.
#[test]
fn a_slot_carries_nothing_to_its_next_owner() {
    let limits = Limits {
        sequences: 1,
        queued: 4,
        ..LIMITS
    };
    let thinks = Spec {
        prompt: vec![9; PAGE + 2],
        max_tokens: 30,
        stop_tokens: vec![4],
        sampling: Sampling {
            temperature: 1.5,
            top_k: 5,
            top_p: 0.5,
            min_p: 0.1,
            presence_penalty: 2.0,
            frequency_penalty: -2.0,
            repetition_penalty: 2.0,
            logit_bias: vec![(11, 50.0)],
            seed: 7,
            thinking_budget: Some(ThinkingBudget {
                tokens: 6,
                close: vec![2],
                ending: vec![3, 2, 5],
            }),
            ..Sampling::default()
        },
        logprobs: Some(3),
        prompt_logprobs: Some(2),
        constraint: None,
    };
    // A constraint applies from the first token, inside of any reasoning.
    let mut specs = (0..).map(|seed| Spec::drawn(&mut Random::new(seed)));
    let obeys = specs.find(|spec| spec.constraint.is_some()).unwrap();
    let plain = spec(30);
    let owners = [thinks, plain.clone(), obeys, plain.clone()];
    let replies = simulator::run_together(&owners, limits);
    for at in [1, 3] {
        assert_eq!(replies[at], plain.expected(&limits));
    }
}

#[test]
fn a_large_request_is_not_overtaken() {
    let limits = Limits {
        sequences: 4,
        queued: 4,
        pages: 4,
        ..LIMITS
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let three_pages = spec(150);
    let _first = submit(&handle, &three_pages, 200);
    let _large = submit(&handle, &three_pages, 200);
    let _small = submit(&handle, &spec(1), 200);
    for _ in 0..5 {
        engine.round().unwrap();
        assert_eq!(
            (handle.stats().running.get(), handle.stats().waiting.get()),
            (1, 2)
        );
    }
    (5..151).for_each(|_| assert_eq!(engine.round().unwrap(), Round::Stepped));
    assert_eq!(
        handle.stats().running.get(),
        1,
        "the small one came in beside the large one"
    );
    assert_eq!(
        (
            handle.stats().waiting.get(),
            handle.stats().finished_length.get()
        ),
        (0, 2)
    );
}

#[test]
fn a_newcomers_prompt_waits_for_no_prompt_of_a_flood() {
    let limits = Limits {
        sequences: 4,
        queued: 4,
        prefill_tokens: 2 * PAGE,
        ..LIMITS
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let from = |client, length| {
        let spec = Spec {
            prompt: vec![5; length],
            ..spec(9)
        };
        let (mut request, receiver) = spec.request(20);
        request.source.client = client;
        handle.submit(request).unwrap();
        receiver
    };
    let mut served = || {
        engine.round().unwrap();
        let scheduled = engine.plan.scheduled.iter();
        let mut clients: Vec<u64> = scheduled
            .map(|of| engine.running[of.index].source.client)
            .collect();
        clients.sort_unstable();
        clients
    };
    let _flood = [from(1, 9 * PAGE), from(1, PAGE)];
    assert_eq!(served(), [1, 1]);
    // Longer than what half a step has, and than what the flood has left.
    let _second = from(2, 2 * PAGE);
    assert_eq!(served(), [1, 2], "a reply and the newcomer's prompt");
    assert_eq!(handle.stats().prompt_tokens.get(), 4 * PAGE as u64);
    // The flood's prompt is not left out twice in a row.
    let _third = from(3, 3);
    assert_eq!(served(), [1, 1, 2, 3]);
}

#[test]
fn a_newcomer_waits_for_no_reply_to_end_and_others_run_in_turn_meanwhile() {
    let limits = Limits {
        drafts: 0,
        ..LIMITS
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let ask = |connection, tokens| {
        let (mut request, receiver) = spec(tokens).request(tokens + 2);
        request.source.connection = connection;
        handle.submit(request).unwrap();
        receiver
    };
    let batch = [ask(1, 40), ask(1, 40), ask(1, 40)];
    (0..3).for_each(|_| assert_eq!(engine.round().unwrap(), Round::Stepped));
    assert_eq!(handle.stats().running.get(), 2, "the batch has more");
    let newcomer = ask(2, 9);
    let mut left_out = HashSet::new();
    for _ in 0..9 {
        assert_eq!(engine.round().unwrap(), Round::Stepped);
        let worked: Vec<usize> = engine.plan.scheduled.iter().map(|of| of.index).collect();
        assert!(worked.len() == 2 && worked.contains(&2), "{worked:?}");
        left_out.extend((0..2).filter(|index| !worked.contains(index)));
    }
    assert_eq!(
        (left_out.len(), handle.stats().finished_length.get()),
        (2, 1)
    );
    while handle.stats().finished_length.get() < 4 {
        engine.round().unwrap();
    }
    let expected = spec(40).expected(&LIMITS);
    for receiver in batch {
        assert_eq!(
            read_all(receiver),
            expected,
            "its bits are those that it has alone"
        );
    }
    assert_eq!(read_all(newcomer), spec(9).expected(&LIMITS));
}

#[test]
fn a_request_that_meets_a_closed_inbox_is_not_counted_as_waiting() {
    let (handle, inbox, _shared) = Handle::new(&LIMITS);
    drop(inbox);
    let (request, _receiver) = spec(1).request(2);
    assert!(matches!(handle.submit(request), Err(Rejected::Stopped(_))));
    assert_eq!(
        (handle.stats().waiting.get(), handle.stats().rejected.get()),
        (0, 1)
    );
}

#[test]
fn rows_reuse_their_memory() {
    let rows: Vec<SeqRows<'_>> = Vec::with_capacity(9);
    let address = rows.as_ptr() as usize;
    let again: Vec<SeqRows<'static>> = recycle(rows);
    assert_eq!((again.as_ptr() as usize, again.capacity()), (address, 9));
}

/// Also a benchmark: prints what the engine itself costs per step, without the device.
#[test]
fn keeping_books_on_256_sequences_takes_little() {
    let limits = Limits {
        snapshots: 2,
        window: None,
        drafts: 7,
        speculate: Speculate::Auto,
        sequences: 256,
        queued: 256,
        pages: 257 * 4,
        prefill_tokens: 512,
        ..Limits::of(&TINY)
    };
    let (handle, mut engine) = engine(limits, HashModel::<VOCAB>::new(&limits));
    let receivers: Vec<_> = (0..256).map(|_| submit(&handle, &spec(200), 256)).collect();
    (0..8).for_each(|_| assert_eq!(engine.round().unwrap(), Round::Stepped));
    assert_eq!(handle.stats().running.get(), 256);
    let mut micros: Vec<u64> = (0..150)
        .map(|_| {
            let device = handle.stats().step_nanos.get();
            let begun = Instant::now();
            engine.round().unwrap();
            let whole = begun.elapsed().as_nanos() as u64;
            (whole - (handle.stats().step_nanos.get() - device)) / 1000
        })
        .collect();
    micros.sort_unstable();
    println!(
        "256 sequences: {} us per step, {} us at p99",
        micros[75], micros[148]
    );
    assert!(micros[75] < 5_000, "{} us", micros[75]);
    drop(receivers);
}

/// A constraint whose masks do not come before they may.
#[derive(Debug)]
struct Late(Arc<AtomicBool>);

impl Constraint for Late {
    fn next(&self) -> Next {
        Next::Masked
    }

    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
        while !self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        mask.copy_from(&[1 << 9]);
        Ok(false)
    }

    fn advance(&mut self, _: TokenId) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_late_mask_holds_its_own_sequence_and_no_other() {
    let (handle, _thread) = spawn_model();
    let may_come = Arc::new(AtomicBool::new(false));
    let (mut request, mut events) = spec(3).request(8);
    request.constraint = Some(Box::new(Late(may_come.clone())));
    handle.submit(request).unwrap();
    let other = read_all(submit(&handle, &spec(20), 32));
    assert_eq!(other, spec(20).expected(&LIMITS));
    assert!(events.try_recv().is_err());
    may_come.store(true, Ordering::Relaxed);
    let is_nine = |event: &Event| matches!(event, Event::Token { id: 9, .. });
    let events = read_all(events);
    assert!(events[..3].iter().all(is_nine), "{events:?}");
    assert_eq!(events[3], Event::Done(FinishReason::Length));
}

/// A model whose calls take some time, which it takes for long at some point.
struct Slow {
    model: HashModel<VOCAB>,
    /// Length of the first step, of others, and of each call for logits.
    first: Duration,
    others: Duration,
    logits: Duration,
}

/// Longest time of a call of `Slow`; a step with a prompt may take twice as long.
const SLOW_PATIENCE: Duration = Duration::from_millis(800);
/// Longer than that.
const LOST: Duration = Duration::from_secs(5);

impl Executor for Slow {
    const VOCAB: usize = VOCAB;
    const PATIENCE: Option<Patience> = Some(Patience {
        call: SLOW_PATIENCE,
        prompt: 2,
    });

    fn step(&mut self, rows: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        std::thread::sleep(self.first);
        self.first = self.others;
        self.model.step(rows)
    }

    fn logits(&mut self, index: usize) -> Result<&[f32], DeviceError> {
        std::thread::sleep(self.logits);
        self.model.logits(index)
    }

    fn logits_of(&mut self, rows: &[usize], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        std::thread::sleep(self.logits);
        self.model.logits_of(rows, logits)
    }
}

/// Times of the first step, of others, and of each call for logits.
fn spawn_slow([first, others, logits]: [Duration; 3]) -> (Handle, Thread) {
    let model = HashModel::new(&LIMITS);
    spawn(LIMITS, move || {
        Ok(Slow {
            model,
            first,
            others,
            logits,
        })
    })
}

#[test]
fn a_call_that_never_returns_ends_the_engine_in_time() {
    let none = Duration::ZERO;
    for (times, prompt_logprobs, patience) in [
        ([LOST, none, none], None, 2 * SLOW_PATIENCE),
        ([none, LOST, none], None, SLOW_PATIENCE),
        ([none, none, LOST], None, SLOW_PATIENCE),
        ([none, none, LOST], Some(1), SLOW_PATIENCE),
    ] {
        let (handle, thread) = spawn_slow(times);
        let begun = Instant::now();
        let asked = Spec {
            prompt_logprobs,
            ..spec(3)
        };
        let _receiver = submit(&handle, &asked, 8);
        handle.drain();
        let error = thread.join().unwrap_err();
        let took = begun.elapsed();
        let reported = format!("{} s", patience.as_secs_f32());
        assert!(error.is_of_device() && error.to_string().contains(&reported));
        assert!(
            took >= patience && took < patience + SLOW_PATIENCE,
            "{took:?}"
        );
        assert_eq!(handle.phase(), Phase::Stopped);
    }
}

#[test]
fn a_call_within_patience_is_waited_for() {
    let third = SLOW_PATIENCE / 3;
    let (handle, thread) = spawn_slow([4 * third, 2 * third, Duration::ZERO]);
    let receiver = submit(&handle, &spec(3), 8);
    handle.drain();
    thread.join().unwrap();
    assert_eq!(read_all(receiver), spec(3).expected(&LIMITS));
}

#[test]
fn many_calls_may_take_longer_than_one() {
    let short = SLOW_PATIENCE / 10;
    let (handle, thread) = spawn_slow([short; 3]);
    let begun = Instant::now();
    let receiver = submit(&handle, &spec(10), 16);
    handle.drain();
    thread.join().unwrap();
    assert!(begun.elapsed() > 2 * SLOW_PATIENCE);
    assert_eq!(read_all(receiver), spec(10).expected(&LIMITS));
}

#[test]
fn an_executor_may_take_any_time_to_be_made_and_between_calls() {
    let making = 2 * SLOW_PATIENCE;
    let (handle, thread) = spawn(LIMITS, move || {
        std::thread::sleep(making);
        Ok(Slow {
            model: HashModel::new(&LIMITS),
            first: Duration::ZERO,
            others: Duration::ZERO,
            logits: Duration::ZERO,
        })
    });
    let waits = handle.clone();
    let asks = std::thread::spawn(move || {
        eventually("serving", || waits.phase() == Phase::Serving);
        std::thread::sleep(2 * SLOW_PATIENCE);
        let events = read_all(submit(&waits, &spec(3), 8));
        waits.drain();
        events
    });
    thread.join().unwrap();
    assert_eq!(asks.join().unwrap(), spec(3).expected(&LIMITS));
}

/// Reports when it is taken down.
struct Failing(std::sync::mpsc::Sender<()>);

impl Drop for Failing {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

impl Executor for Failing {
    const VOCAB: usize = VOCAB;

    fn step(&mut self, _: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed("it is lost".into()))
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        unreachable!("no step")
    }

    fn logits_of(&mut self, _: &[usize], _: &mut Vec<f32>) -> Result<(), DeviceError> {
        unreachable!("no step")
    }
}

#[test]
fn a_device_that_failed_is_asked_for_nothing() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (handle, thread) = spawn(LIMITS, || Ok(Failing(sender)));
    let _receiver = submit(&handle, &spec(1), 2);
    thread.join().unwrap_err();
    assert!(receiver.try_recv().is_err());
}
