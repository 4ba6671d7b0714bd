//! The README's own commands, as a reader would copy them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use http::limits::{IDLE_TIMEOUT, IDLE_TIMEOUT_SCARCE};

use crate::harness::{self, BINARY, Folder, Server};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
/// Name of the default target's binary, under which the README calls it.
const NAME: &str = "atlas-cpu-tiny-nvfp4";

/// Blocks of commands.
fn blocks() -> Vec<String> {
    let readme = fs::read_to_string(README).unwrap();
    let blocks = readme.split("\n```");
    let commands = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    commands.map(str::to_string).collect()
}

/// The block of commands that holds `text`.
fn commands(text: &str) -> String {
    let mut blocks = blocks().into_iter();
    let block = blocks.find(|block| block.contains(text));
    block.expect("the README has it")
}

/// Runs commands in the folder `place`, where the binary is in the path.
fn run(folder: &Folder, commands: &str) -> Output {
    let folder = folder.path("");
    let _ = symlink(
        fs::canonicalize(&*BINARY).unwrap(),
        Path::new(&folder).join(NAME),
    );
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", commands]).current_dir(&folder);
    shell.env("PATH", path).output().unwrap()
}

#[test]
fn a_file_of_requests_is_answered() {
    let folder = Folder::new();
    let done = run(&folder, &commands(" batch "));
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(folder.path("answers.jsonl")).unwrap();
    let answer = |id: &str| {
        let mut lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.find(|line| line["custom_id"] == id).unwrap()["response"].to_string()
    };
    assert!(
        answer("france").contains("Paris") && answer("sum").contains("42"),
        "{text}"
    );
}

#[test]
fn the_first_request_is_answered() {
    let server = Server::start();
    let command = commands("/v1/chat/completions");
    let command = command.replace("127.0.0.1:8000", &server.address.to_string());
    let done = run(&Folder::new(), &command);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.contains("Paris"), "{said}");
}

#[test]
fn verbs_are_there() {
    let help = String::from_utf8(harness::run(&["--help"]).stdout).unwrap();
    let blocks = blocks().join("\n");
    let lines = blocks.lines().filter(|line| line.starts_with("atlas-"));
    let verbs: Vec<&str> = lines.filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(verbs.len() > 1, "{verbs:?}");
    for verb in verbs {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb}");
    }
}

/// Clients with their versions, as they name themselves.
fn recorded() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ci/e2e/recordings");
    let files = fs::read_dir(folder).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let texts: Vec<String> = texts.collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let names = lines.filter_map(|line| {
        let exchange: Value = serde_json::from_str(line).ok()?;
        if let Some(client) = exchange["client"].as_str() {
            return Some(client.to_string());
        }
        let headers = exchange["request"]["headers"].as_array()?.iter();
        let mut agents = headers.filter(|header| header[0] == "user-agent");
        let agent = agents.next()?[1].as_str()?.to_string();
        // Others are libraries below them.
        let words = agent.split(" (").next()?.to_string();
        Some(words.split(" ai-sdk").next()?.to_string())
    });
    names.collect()
}

#[test]
fn tried_clients_are_those_that_were_recorded() {
    let readme = fs::read_to_string(README).unwrap();
    let recorded = recorded();
    assert!(recorded.len() > 5, "{recorded:?}");
    // Providers of the AI SDK are told with it.
    let told = recorded.iter().filter(|name| !name.starts_with("ai-sdk"));
    for name in told {
        assert!(readme.contains(name.as_str()), "{name}");
    }
}

#[test]
fn proxies_are_told_how_long_a_connection_is_kept() {
    let seconds = [IDLE_TIMEOUT, IDLE_TIMEOUT_SCARCE].map(|time| time.as_secs());
    let told = format!(
        "{} seconds, {} where connections are scarce",
        seconds[0], seconds[1]
    );
    for file in ["README.md", "nginx.conf", "Caddyfile", "haproxy.cfg"] {
        let path = format!("{}/packaging/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(&told), "{file}: {told}");
    }
}
