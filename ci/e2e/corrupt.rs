//! A hundred corrupted model directories. Each ends `verify` within two seconds, with an exit code
//! for bad files and a line that names the file or tensor at fault.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use step::random::Random;

use crate::harness::{BINARY, PATIENCE};

const SEED: u64 = 20;
const CASES_MIN: usize = 100;
const DEADLINE: Duration = Duration::from_secs(2);
/// Exit codes that `--help` gives to files that cannot be read or served.
const REFUSED: [i32; 2] = [74, 78];

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";

/// A directory that holds the good files of `tiny`, removed when dropped.
pub struct Model(pub PathBuf);

impl Model {
    pub fn copy(name: &str) -> Model {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/_model/tiny");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        for entry in fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::hard_link(entry.path(), directory.join(entry.file_name())).unwrap();
            }
        }
        Model(directory)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub fn remove(&self, file: &str) -> PathBuf {
        let path = self.path(file);
        fs::remove_file(&path).unwrap();
        path
    }

    /// Replaces `file` by its content as `change` leaves it.
    fn rewrite(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut content = fs::read(self.path(file)).unwrap();
        change(&mut content);
        fs::write(self.remove(file), content).unwrap();
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes of the JSON header, behind its length.
fn header(content: &[u8]) -> std::ops::Range<usize> {
    let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    8..8 + length
}

/// Where `text` stands in the header; one of the places, by `random`.
fn position(content: &[u8], text: &str, random: &mut Random) -> usize {
    let range = header(content);
    let places: Vec<usize> = content[range.clone()]
        .windows(text.len())
        .enumerate()
        .filter_map(|(at, window)| (window == text.as_bytes()).then_some(range.start + at))
        .collect();
    places[random.below(places.len())]
}

/// Data of one tensor whose header entry ends its name with `suffix`. Those of the prediction
/// layer are left out: a server that does not draft with it never reads their values.
fn data(content: &[u8], suffix: &str, random: &mut Random) -> std::ops::Range<usize> {
    let range = header(content);
    let table: serde_json::Value = serde_json::from_slice(&content[range.clone()]).unwrap();
    let entries: Vec<&serde_json::Value> = table
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| name.ends_with(suffix) && !name.starts_with("mtp."))
        .map(|(_, entry)| entry)
        .collect();
    let offsets = &entries[random.below(entries.len())]["data_offsets"];
    let at = |index: usize| range.end + offsets[index].as_u64().unwrap() as usize;
    at(0)..at(1)
}

/// Another digit than the one at `at`.
fn change_digit(content: &mut [u8], at: usize) {
    content[at] = if content[at] == b'9' {
        b'1'
    } else {
        content[at] + 1
    };
}

type Corruption = (String, Box<dyn FnOnce(&Model, &mut Random)>);

fn case(
    name: impl Into<String>,
    corrupt: impl FnOnce(&Model, &mut Random) + 'static,
) -> Corruption {
    (name.into(), Box::new(corrupt))
}

fn sizes() -> Vec<Corruption> {
    let mut cases = Vec::new();
    for _ in 0..20 {
        cases.push(case("truncated", |model, random| {
            model.rewrite(WEIGHTS, |bytes| bytes.truncate(random.below(bytes.len())));
        }));
    }
    for extra in [1, 8, 4096] {
        cases.push(case(format!("{extra} bytes too long"), move |model, _| {
            model.rewrite(WEIGHTS, |bytes| bytes.resize(bytes.len() + extra, 0));
        }));
    }
    for length in [0, 1, 7, 100_000_001, 1 << 32, 1 << 63, u64::MAX] {
        cases.push(case(format!("header length {length}"), move |model, _| {
            model.rewrite(WEIGHTS, |bytes| {
                bytes[..8].copy_from_slice(&length.to_le_bytes())
            });
        }));
    }
    cases
}

fn headers() -> Vec<Corruption> {
    let mut cases = Vec::new();
    for byte in [0xff, 0x00] {
        for _ in 0..5 {
            cases.push(case(
                format!("header byte {byte:#x}"),
                move |model, random| {
                    model.rewrite(WEIGHTS, |bytes| {
                        let range = header(bytes);
                        bytes[range.start + random.below(range.len())] = byte;
                    });
                },
            ));
        }
    }
    for (text, skip) in [("\"shape\":[", 9), ("\"data_offsets\":[", 16)] {
        for _ in 0..10 {
            cases.push(case(
                format!("a digit behind {text}"),
                move |model, random| {
                    model.rewrite(WEIGHTS, |bytes| {
                        let at = position(bytes, text, random) + skip;
                        change_digit(bytes, at);
                    });
                },
            ));
        }
    }
    for _ in 0..6 {
        cases.push(case("another dtype", |model, random| {
            model.rewrite(WEIGHTS, |bytes| {
                let at = position(bytes, "\"BF16\"", random);
                bytes[at..at + 6].copy_from_slice(b"\"I16\" ");
            });
        }));
        cases.push(case("another tensor name", |model, random| {
            model.rewrite(WEIGHTS, |bytes| {
                let at = position(bytes, ".weight", random);
                bytes[at + 1] = b'W';
            });
        }));
    }
    cases
}

fn values() -> Vec<Corruption> {
    let not_a_number: [(&str, &'static [u8]); 3] = [
        (".weight_scale", &[0x7f]),
        ("norm.weight", &[0xc0, 0x7f]),
        (".weight_global_scale", &[0, 0, 0x80, 0x7f]),
    ];
    let mut cases = Vec::new();
    for (suffix, value) in not_a_number {
        for _ in 0..5 {
            cases.push(case(
                format!("{suffix} not finite"),
                move |model, random| {
                    model.rewrite(WEIGHTS, |bytes| {
                        let range = data(bytes, suffix, random);
                        let at =
                            range.start + random.below(range.len() / value.len()) * value.len();
                        bytes[at..at + value.len()].copy_from_slice(value);
                    });
                },
            ));
        }
    }
    cases
}

fn kinds() -> Vec<Corruption> {
    let mut cases = Vec::new();
    for file in [WEIGHTS, TOKENIZER, TEMPLATE] {
        cases.push(case(format!("no {file}"), move |model, _| {
            model.remove(file);
        }));
        cases.push(case(format!("{file} is a directory"), move |model, _| {
            fs::create_dir(model.remove(file)).unwrap();
        }));
        cases.push(case(format!("{file} is a pipe"), move |model, _| {
            make_pipe(&model.remove(file));
        }));
        cases.push(case(format!("{file} is endless"), move |model, _| {
            symlink("/dev/zero", model.remove(file)).unwrap();
        }));
    }
    for text in ["{", "[]", "{\"version\": 1}", "\u{0}"] {
        cases.push(case(format!("tokenizer {text:?}"), move |model, _| {
            model.rewrite(TOKENIZER, |bytes| *bytes = text.into());
        }));
    }
    for text in ["{% if %}", "{{ messages", "{% endfor %}", "\u{fffd}{%"] {
        cases.push(case(format!("template {text:?}"), move |model, _| {
            model.rewrite(TEMPLATE, |bytes| *bytes = text.into());
        }));
    }
    cases
}

fn indices() -> Vec<Corruption> {
    let deep = "[".repeat(100_000);
    let texts = [
        "{".to_string(),
        "{}".to_string(),
        "{\"weight_map\": 1}".to_string(),
        "{\"weight_map\": {}}".to_string(),
        "{\"weight_map\": {\"lm_head.weight\": \"../model.safetensors\"}}".to_string(),
        "{\"weight_map\": {\"lm_head.weight\": \"/etc/passwd\"}}".to_string(),
        "{\"weight_map\": {\"lm_head.weight\": \"gone.safetensors\"}}".to_string(),
        "{\"weight_map\": {\"lm_head.weight\": 7}}".to_string(),
        deep,
    ];
    let case_of = |text: String| {
        let name = format!("index {}", text.chars().take(40).collect::<String>());
        case(name, move |model: &Model, _: &mut Random| {
            fs::write(model.path(INDEX), text).unwrap();
        })
    };
    texts.into_iter().map(case_of).collect()
}

fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Output and exit code of `verify`; `None` if it took longer than `limit`.
fn verify(directory: &Path, limit: Duration) -> (Option<i32>, String) {
    let mut child = Command::new(&*BINARY)
        .arg("verify")
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() && start.elapsed() < limit {
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let mut said = String::new();
    let _ = child.stderr.take().unwrap().read_to_string(&mut said);
    (child.wait().unwrap().code(), said)
}

#[test]
fn corrupted_model_directories_are_refused_in_time() {
    let good = Model::copy("corrupt-none");
    assert_eq!(
        verify(&good.0, PATIENCE).0,
        Some(0),
        "the copy itself must be in order"
    );

    let random = &mut Random::new(SEED);
    let groups = [sizes(), headers(), values(), kinds(), indices()];
    let cases: Vec<Corruption> = groups.into_iter().flatten().collect();
    assert!(cases.len() >= CASES_MIN, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for (number, (name, corrupt)) in cases.into_iter().enumerate() {
        let model = Model::copy(&format!("corrupt-{number}"));
        corrupt(&model, random);
        let (code, said) = verify(&model.0, DEADLINE);
        let refused = code.is_some_and(|code| REFUSED.contains(&code));
        let names_it = [WEIGHTS, TOKENIZER, TEMPLATE, "tensor", "index"]
            .iter()
            .any(|name| said.contains(name));
        if !refused || !names_it || said.contains("panicked") {
            wrong.push(format!("{number} {name}: {code:?} {said}"));
        }
    }
    assert!(wrong.is_empty(), "seed {SEED}:\n{}", wrong.join("\n"));
}
