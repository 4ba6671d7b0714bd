//! Prompts of another key, guessed by the time that a probe takes: it tells nothing, neither of
//! what is kept of computed prompts nor of texts that were encoded. With the same key it tells all,
//! which shows that the attack is one.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Server, few_or_many};
use crate::keys::KeyFile;
use crate::malformed::Random;
use crate::prefix::{PAGE, used};

/// Guesses of a secret, of which one half is right.
const PROBES: usize = few_or_many(120, 2_000);
/// Distance from 0.5 up to which an area is nothing: four standard errors of what chance alone
/// gives for so many.
const NOTHING: f64 = few_or_many(25, 5) as f64 / 100.0;
/// Area of an attack that succeeds, also on cores that others use meanwhile: farther from 0.5 than
/// what is nothing.
const EVERYTHING: f64 = 0.75;
/// Digits of a secret, a token each.
const DIGITS: usize = 64;
const VICTIM: &str = "victim-0123456789abcdef";
const OTHER: &str = "other-0123456789abcdef";
const SEED: u64 = 7;

fn secret(random: &mut Random) -> String {
    let digits = (0..DIGITS).map(|_| char::from(b'0' + random.below(10) as u8));
    digits.collect()
}

/// Routes that a probe takes, through the engine and through the tokenizer alone.
const CHAT: &str = "/v1/chat/completions";
const TOKENIZE: &str = "/tokenize";

/// Asks about a secret: how long the answer took, and whether it tells of cached tokens.
fn ask(server: &Server, (key, path): (&str, &str), secret: &str) -> (Duration, bool) {
    let content = format!("{secret} is the number of the account. What is 2 and 3?");
    let messages = json!([{"role": "user", "content": content}]);
    let body = json!({"messages": messages, "max_tokens": 1, "enable_thinking": false});
    let begun = Instant::now();
    let answer = server.post_as(key, path, &body);
    let took = begun.elapsed();
    assert_eq!(answer.status, 200, "{answer:?}");
    (took, path == CHAT && used(&answer.json()).1 >= PAGE)
}

/// Share of pairs in which the wrong guess took longer than the right one: 0.5 tells nothing, 1
/// everything.
fn area(right: &[Duration], wrong: &[Duration]) -> f64 {
    let won = |right: &Duration| {
        let longer = wrong.iter().filter(|wrong| *wrong > right).count();
        let equal = wrong.iter().filter(|wrong| *wrong == right).count();
        longer as f64 + equal as f64 / 2.0
    };
    let won: f64 = right.iter().map(won).sum();
    won / (right.len() * wrong.len()) as f64
}

/// Probes with a key at a path, behind prompts of the victim: the area, and whether any told of
/// cached tokens.
fn attack(server: &Server, probe: (&str, &str), random: &mut Random) -> (f64, bool) {
    let (mut right, mut wrong, mut told) = (Vec::new(), Vec::new(), false);
    while right.len().min(wrong.len()) < PROBES / 2 {
        let (known, guess) = (secret(random), secret(random));
        ask(server, (VICTIM, CHAT), &known);
        let is_right = random.below(2) == 0;
        let (took, cached) = ask(server, probe, if is_right { &known } else { &guess });
        told |= cached;
        let times = if is_right { &mut right } else { &mut wrong };
        if times.len() < PROBES / 2 {
            times.push(took);
        }
    }
    (area(&right, &wrong), told)
}

#[test]
fn probes_with_another_key_tell_nothing() {
    let file = KeyFile::new("timing", &[VICTIM, OTHER].join("\n"));
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let mut random = Random(SEED);
    for path in [CHAT, TOKENIZE] {
        let (found, told) = attack(&server, (OTHER, path), &mut random);
        println!("{PROBES} probes of {path} with another key: area {found:.3}");
        assert!(!told && (found - 0.5).abs() <= NOTHING, "{path}: {found}");
    }
    let (found, told) = attack(&server, (VICTIM, CHAT), &mut random);
    println!("{PROBES} probes of {CHAT} with the same key: area {found:.3}");
    assert!(told && found >= EVERYTHING, "the attack is none: {found}");
}
