//! The end of the process around an engine: each test starts itself again as the process that ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use engine::fair_queue::Source;
use engine::request::{Admitted, Event, Request, Sampling};
use host::testing::Folder;
use model::backend::cpu::Cpu;
use model::weights::WeightsError;
use step::executor::{DeviceError, Executor, Patience, SeqRows};

/// Begins the argument that makes a test the process that ends: the milliseconds of its step. For
/// the harness of the tests it is one more filter, which finds nothing.
const STEP_MS: &str = "step_ms=";
/// Line that says that the step has begun.
const BEGUN: &str = "the step has begun";
const PATIENCE: Duration = Duration::from_millis(800);

/// One step, in pieces much shorter than a pause of the process.
struct Sleeper(Duration);

impl Executor for Sleeper {
    const VOCAB: usize = 2;
    const PATIENCE: Option<Patience> = Some(Patience {
        call: PATIENCE,
        prompt: 1,
    });

    fn step(&mut self, _: &[SeqRows<'_>]) -> Result<(), DeviceError> {
        println!("{BEGUN}");
        for _ in 0..10 {
            thread::sleep(self.0 / 10);
        }
        Ok(())
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], DeviceError> {
        Ok(&[0.0, 1.0])
    }

    fn logits_of(&mut self, _: &[usize], _: &mut Vec<f32>) -> Result<(), DeviceError> {
        unreachable!("no prompt is scored")
    }
}

/// Serves one request; after a failure the process is blocked for longer than it may last.
fn live(step: Duration) {
    log::set_level(log::Level::Info); // as `main` does
    let (handle, thread) = engine::spawn(Limits::of(&target::FACTS), move || Ok(Sleeper(step)));
    let (events, mut read) = handle.channel(4);
    let request = Request {
        source: Source::default(),
        domain: 0,
        head: 0,
        prompt: vec![1],
        max_tokens: 1,
        stop_tokens: vec![],
        sampling: Sampling::default(),
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
        admitted: Admitted::default(),
        events,
    };
    handle.submit(request).unwrap();
    handle.drain();
    if end(thread).is_err() {
        thread::sleep(10 * PATIENCE);
    }
    assert!(matches!(read.blocking_recv(), Some(Event::Token { .. })));
}

/// Length of this process's step, if it is one that ends.
fn step_of_this() -> Option<Duration> {
    let mut arguments = std::env::args();
    let step_ms = arguments.find_map(|argument| argument.strip_prefix(STEP_MS)?.parse().ok());
    step_ms.map(Duration::from_millis)
}

/// The test `name` as a process of its own, in its step.
fn start(name: &str, step: Duration) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            &format!("start::boot::tests::{name}"),
        ])
        .arg(format!("{STEP_MS}{}", step.as_millis()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(BEGUN)));
    child
}

#[test]
fn a_device_that_never_answers_ends_the_process() {
    if let Some(step) = step_of_this() {
        return live(step);
    }
    let name = "a_device_that_never_answers_ends_the_process";
    let child = start(name, Duration::from_secs(60));
    let begun = Instant::now();
    let output = child.wait_with_output().unwrap();
    let took = begun.elapsed();
    assert!(took < 2 * (PATIENCE + LAST_WORDS), "{took:?}");
    assert_eq!(output.status.code(), Some(Exit::Internal as i32));
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.contains("the device did not answer for 0.8 s"),
        "{output}"
    );
}

#[test]
fn the_template_knows_the_special_tokens_of_the_checkpoint() {
    if target::EMBEDDED.is_empty() {
        return;
    }
    let model = chat_model(&Files::Embedded).unwrap();
    let special = model.template.special();
    assert_eq!(special.get("eos_token"), Some("<|im_end|>"));
    assert_eq!(special.get("bos_token"), None);
}

#[test]
fn a_checkpoint_need_not_name_special_tokens() {
    let directory = Folder::new();
    let files = Files::Directory(directory.to_path_buf());
    assert_eq!(special_tokens(&files).unwrap(), SpecialTokens::default());
    fs::write(directory.join(special::FILE), r#"{"bos_token": "<s>"}"#).unwrap();
    assert_eq!(
        special_tokens(&files).unwrap().get("bos_token"),
        Some("<s>")
    );
    fs::write(directory.join(special::FILE), r#"{"bos_token": 1}"#).unwrap();
    let failure = special_tokens(&files).unwrap_err();
    assert!(failure.message.contains("tokenizer_config.json: bos_token"));
}

#[test]
fn a_template_without_a_file_is_where_the_special_tokens_are() {
    let file = target::TEMPLATE_FILE;
    if file.is_empty() {
        return;
    }
    let directory = Folder::new();
    let files = Files::Directory(directory.to_path_buf());
    let put = |name: &str, content: &str| fs::write(directory.join(name), content).unwrap();
    put(stated::FILE, r#"{"eos_token": "</s>"}"#);
    let missing = template_source(&files).unwrap_err();
    assert!(missing.message.contains(file), "{}", missing.message);
    put(stated::FILE, r#"{"chat_template": "stated"}"#);
    let stated = (stated::FILE, "stated".to_string());
    assert_eq!(template_source(&files).unwrap(), stated);
    put(file, "own");
    let own = (file, "own".to_string());
    assert_eq!(template_source(&files).unwrap(), own);
}

#[test]
fn a_slow_host_is_no_fault() {
    assert_eq!(<Runner<Cpu> as Executor>::PATIENCE, None);
}

#[test]
fn a_process_that_was_stopped_goes_on() {
    if let Some(step) = step_of_this() {
        return live(step);
    }
    let child = start("a_process_that_was_stopped_goes_on", PATIENCE / 2);
    let process = Pid::from_child(&child);
    // So that some looks have seen the step.
    thread::sleep(PATIENCE / 4);
    kill_process(process, Signal::STOP).unwrap();
    thread::sleep(2 * PATIENCE);
    kill_process(process, Signal::CONT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn too_little_memory_and_no_device_end_with_codes_of_their_own() {
    let refused = Plan::within::<Cpu>(Some(1), weights::Layout::whole()).unwrap_err();
    let full = || DeviceError::Memory(String::new());
    assert_eq!(start_failure(&refused).exit, Exit::Unavailable);
    assert_eq!(start_failure(&full()).exit, Exit::Unavailable);
    let amid_weights = WeightsError::Device(full());
    assert_eq!(start_failure(&amid_weights).exit, Exit::Unavailable);
    let absent = DeviceError::Absent(String::new());
    assert_eq!(start_failure(&absent).exit, Exit::NoDevice);
    let lost = DeviceError::Failed(String::new());
    assert_eq!(start_failure(&lost).exit, Exit::Internal);
}

#[test]
fn a_model_without_a_tokenizer_says_so() {
    let message = unfinished("");
    assert!(
        message.contains("has no tokenizer and no chat template"),
        "{message}"
    );
    assert!(
        message.contains("[chat]") && message.contains("verify"),
        "{message}"
    );
    assert!(!unfinished("tokenizer.json").contains("[chat]"));
}

/// Folder where the kernel gives leases to whoever runs the test.
#[test]
fn weights_that_nobody_uses_are_let_go() {
    let folder = Folder::new();
    let path = folder.0.join("weights");
    fs::write(&path, "weights").unwrap();
    let open = |write: bool| {
        let mut options = fs::OpenOptions::new();
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        options
            .read(!write)
            .write(write)
            .custom_flags(flags)
            .open(&path)
    };
    let Ok(mapping) = Mapping::new(open(false).unwrap(), String::new(), 7) else {
        return;
    };
    let mapping = Arc::new(mapping);
    guard(Arc::downgrade(&mapping));
    assert_eq!(Arc::strong_count(&mapping), 1);
    drop(mapping);
    // The guard holds it while it looks.
    let begun = Instant::now();
    while open(true).is_err() {
        assert!(begun.elapsed() < GUARD_EVERY * 20, "the lease is held");
        thread::sleep(GUARD_EVERY / 10);
    }
}
