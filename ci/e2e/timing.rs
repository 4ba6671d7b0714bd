//! Prompts and schemas of another key, guessed by the time that a probe takes: it tells nothing of
//! what is kept of computed prompts, of texts that were encoded and of grammars that were compiled.
//! With the same key it tells all, which shows that the attack is one.

use std::time::{Duration, Instant};

use host::testing::Folder;
use serde_json::{Map, Value, json};
use step::random::Random;

use crate::harness::{Server, few_or_many, with};
use crate::keys::KeyFile;
use crate::prefix::{PAGE, used};

/// Guesses of a secret, of which one half is right.
const PROBES: usize = few_or_many(120, 2_000);
/// Distance from 0.5 up to which an area is nothing: four standard errors of what chance alone
/// gives for so many.
const NOTHING: f64 = few_or_many(25, 5) as f64 / 100.0;
/// Area of an attack that succeeds, also on cores that others use meanwhile: farther from 0.5 than
/// what is nothing.
const EVERYTHING: f64 = 0.75;
/// Times that an attack is looked at which must be seen.
const LOOKS: usize = 3;
/// Surfaces that are attacked: schemas, which take long to compile, at length only.
const TRIED: &[Surface] = match few_or_many(1, 2) {
    1 => &[Surface::Prompt],
    _ => &[Surface::Prompt, Surface::Schema],
};
/// Digits of a secret, a token each.
const DIGITS: usize = 64;
const VICTIM: &str = "victim-0123456789abcdef";
const OTHER: &str = "other-0123456789abcdef";
const SEED: u64 = 7;

fn secret(random: &mut Random) -> String {
    let digits = (0..DIGITS).map(|_| char::from(b'0' + random.below(10) as u8));
    digits.collect()
}

/// Members of a schema, so many that it takes its time to compile.
const MEMBERS: usize = 200;

/// Attack surface: the field of a secret, and the route of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surface {
    /// Prompt, through the engine.
    Prompt,
    /// Text, through the tokenizer alone.
    Text,
    /// Schema of the reply.
    Schema,
}

impl Surface {
    fn path(self) -> &'static str {
        match self {
            Surface::Prompt | Surface::Schema => "/v1/chat/completions",
            Surface::Text => "/tokenize",
        }
    }

    fn body(self, secret: &str) -> Value {
        let (said, schema) = match self {
            Surface::Prompt | Surface::Text => (secret, None),
            Surface::Schema => ("This", Some(schema(secret))),
        };
        let content = format!("{said} is the number of the account. What is 2 and 3?");
        let messages = json!([{"role": "user", "content": content}]);
        let body = json!({"messages": messages, "max_tokens": 1, "enable_thinking": false});
        let form = |schema| json!({"name": "account", "schema": schema});
        let form = |schema| json!({"type": "json_schema", "json_schema": form(schema)});
        match schema {
            None => body,
            Some(schema) => with(body, json!({"response_format": form(schema)})),
        }
    }
}

/// Schema of an object whose members all tell the secret.
fn schema(secret: &str) -> Value {
    let text = |at| json!({"type": "string", "pattern": format!("^({secret}[a-z]{{1,20}}|{at})$")});
    let members: Map<String, Value> = (0..MEMBERS)
        .map(|at| (format!("m{at}"), text(at)))
        .collect();
    let names: Vec<_> = members.keys().cloned().collect();
    json!({"type": "object", "properties": members, "required": names})
}

/// Asks about a secret: how long the answer took, and whether it tells that something of the
/// prompt was kept.
fn ask(server: &Server, (key, surface): (&str, Surface), secret: &str) -> (Duration, bool) {
    let body = surface.body(secret);
    let begun = Instant::now();
    let answer = server.post_as(key, surface.path(), &body);
    let took = begun.elapsed();
    assert_eq!(answer.status, 200, "{answer:?}");
    (
        took,
        surface == Surface::Prompt && used(&answer.json()).1 >= PAGE,
    )
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

/// Probes with a key, behind requests of the victim that have the secret at `seen`: the area, and
/// whether any told of cached tokens.
fn attack(
    server: &Server,
    (seen, probe): (Surface, (&str, Surface)),
    random: &mut Random,
) -> (f64, bool) {
    let (mut right, mut wrong, mut told) = (Vec::new(), Vec::new(), false);
    while right.len().min(wrong.len()) < PROBES / 2 {
        let (known, guess) = (secret(random), secret(random));
        ask(server, (VICTIM, seen), &known);
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
    let mut random = Random::new(SEED);
    let attacks = [
        (Surface::Prompt, Surface::Prompt),
        (Surface::Prompt, Surface::Text),
        (Surface::Schema, Surface::Schema),
    ];
    for (seen, surface) in attacks.into_iter().filter(|(seen, _)| TRIED.contains(seen)) {
        let (found, told) = attack(&server, (seen, (OTHER, surface)), &mut random);
        println!("{PROBES} probes with another key, {surface:?}: area {found:.3}");
        assert!(
            !told && (found - 0.5).abs() <= NOTHING,
            "{surface:?}: {found}"
        );
    }
    for &surface in TRIED {
        let (found, told) = attack(&server, (surface, (VICTIM, surface)), &mut random);
        println!("{PROBES} probes with the same key, {surface:?}: area {found:.3}");
        assert_eq!(told, surface == Surface::Prompt);
        assert!(
            found >= EVERYTHING,
            "the attack is none, {surface:?}: {found}"
        );
    }
}

/// Tier that keeps the victim's prompts when the device has no place for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// The host's memory, behind far more prompts than the device keeps.
    Host,
    /// A disk, behind a restart: nothing else has them.
    Disk,
}

impl Tier {
    /// Flags for both, and the metric of what came from this one.
    fn flags(self, folder: &Folder) -> ([String; 6], &'static str) {
        let path = folder.0.join("cache").display().to_string();
        let flags = [
            "--cache-host",
            "2GB",
            "--cache-dir",
            &path,
            "--cache-disk",
            "4GB",
        ];
        let found = match self {
            Tier::Host => "atlas_prefix_cache_host_hits_total",
            Tier::Disk => "atlas_prefix_cache_disk_hits_total",
        };
        (flags.map(str::to_owned), found)
    }
}

/// Probes with a key of secrets that a tier has, and of as many that nothing has: the area, and how
/// many told of cached tokens.
fn attack_tier(server: &Server, key: &str, known: &[String], random: &mut Random) -> (f64, usize) {
    let (mut right, mut wrong, mut told) = (Vec::new(), Vec::new(), 0);
    while right.len().min(wrong.len()) < known.len() {
        let is_right = random.below(2) == 0 && right.len() < known.len();
        let guess = match is_right {
            true => known[right.len()].clone(),
            false => secret(random),
        };
        let (took, cached) = ask(server, (key, Surface::Prompt), &guess);
        told += usize::from(cached);
        let times = if is_right { &mut right } else { &mut wrong };
        times.push(took);
    }
    (area(&right, &wrong), told)
}

#[test]
fn probes_with_another_key_tell_nothing_of_what_tiers_keep() {
    for tier in [Tier::Host, Tier::Disk] {
        let (file, folder) = (
            KeyFile::new("timing-tier", &[VICTIM, OTHER].join("\n")),
            Folder::new(),
        );
        let (flags, from_tier) = tier.flags(&folder);
        let keys = ["--api-keys-file", file.path()];
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain(keys).collect();
        let mut server = Server::start_with(&flags);
        let mut random = Random::new(SEED);
        let known: Vec<String> = (0..PROBES / 2).map(|_| secret(&mut random)).collect();
        for secret in &known {
            ask(&server, (VICTIM, Surface::Prompt), secret);
        }
        if tier == Tier::Disk {
            server.signal("-TERM");
            assert!(server.wait().success());
            server = Server::spawn(&flags);
            server.lines_with(&["READY ", "bytes of prompts are there"]);
        }
        let (found, told) = attack_tier(&server, OTHER, &known, &mut random);
        println!("{PROBES} probes with another key, {tier:?}: area {found:.3}");
        assert!(
            told == 0 && (found - 0.5).abs() <= NOTHING,
            "{tier:?}: {found}, {told} told of it"
        );
        assert_eq!(server.metric_as(VICTIM, from_tier), 0.0, "{tier:?}");
        let (mut found, told) = attack_tier(&server, VICTIM, &known, &mut random);
        let tokens = server.metric_as(VICTIM, from_tier);
        println!("the same key, {tier:?}: area {found:.3}, {told} told, {tokens} tokens of it");
        assert!(told * 10 >= known.len() * 9 && tokens > 0.0, "{tier:?}");
        // Other work of the machine hides what is to be seen: it is looked at again.
        for _ in 1..LOOKS {
            if found < EVERYTHING {
                found = attack_tier(&server, VICTIM, &known, &mut random).0;
            }
        }
        assert!(found >= EVERYTHING, "the attack is none, {tier:?}: {found}");
    }
}
