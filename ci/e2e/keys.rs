//! A server that asks for keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Server, make_pipe, outcome, run, with};

const KEY: &str = "first-0123456789abcdef";
const LATER: &str = "second-0123456789abcdef";

/// A key file that goes with its owner.
pub struct KeyFile(PathBuf);

impl KeyFile {
    pub fn new(name: &str, keys: &str) -> KeyFile {
        let name = format!("atlas-keys-{}-{name}", std::process::id());
        let file = KeyFile(std::env::temp_dir().join(name));
        file.write(keys);
        file
    }

    fn write(&self, keys: &str) {
        fs::write(&self.0, keys).unwrap();
    }

    pub fn path(&self) -> &str {
        Path::to_str(&self.0).unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn status(server: &Server, path: &str, header: &str) -> u16 {
    server.ask("GET", path, header, "").status
}

/// Methods and paths that the server's description of itself has.
fn described() -> Vec<(String, String)> {
    let page = include_str!("../../src/http/openapi/openapi.json");
    let page: Value = serde_json::from_str(page).unwrap();
    let paths = page["paths"].as_object().unwrap();
    let methods = |(path, methods): (&String, &Value)| {
        let names: Vec<String> = methods.as_object().unwrap().keys().cloned().collect();
        let path = path.replace(['{', '}'], "");
        names
            .into_iter()
            .map(move |name| (name.to_uppercase(), path.clone()))
    };
    paths.iter().flat_map(methods).collect()
}

fn with_key(server: &Server, key: &str) -> u16 {
    status(server, "/v1/models", &format!("x-api-key: {key}\r\n"))
}

#[test]
fn every_route_but_health_and_hello_asks_for_a_key() {
    let file = KeyFile::new("routes", KEY);
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    for (method, path) in described() {
        let is_open = ["/health", "/api/hello"].contains(&&*path);
        let expected = if is_open { 200 } else { 401 };
        let found = server.ask(&method, &path, "", "").status;
        assert_eq!(found, expected, "{method} {path}");
    }
    for path in ["/nothing", "//", "/health/"] {
        assert_eq!(status(&server, path, ""), 401, "{path}");
    }
    let bearer = format!("authorization: Bearer {KEY}\r\n");
    assert_eq!(status(&server, "/v1/models", &bearer), 200);
    assert_eq!(with_key(&server, KEY), 200);
    assert_eq!(with_key(&server, LATER), 401);
    let refused = server.ask("POST", "/v1/messages", "", "");
    assert!(
        refused
            .head
            .contains("www-authenticate: bearer realm=\"atlas\"")
    );
    // Whoever finds the port taken is told by whom.
    let port = server.address.port().to_string();
    let said = String::from_utf8(run(&["doctor", "--port", &port]).stdout).unwrap();
    assert!(
        said.contains("an Atlas that asks for an API key has it"),
        "{said}"
    );
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
}

/// Ends at once where it is not refused before, since nothing can be recorded there.
fn refused(flags: &[&str]) -> Option<String> {
    let end = ["--port", "0", "--dump", "/"];
    let (code, said) = outcome(&[&["serve"][..], flags, &end].concat());
    (code != 78 || !said.contains("--dump")).then_some(said)
}

#[test]
fn an_address_that_others_reach_asks_for_keys_or_says_that_it_does_not() {
    let file = KeyFile::new("public", KEY);
    let settings = KeyFile::new("settings", "host = \"::\"");
    let keys = ["--api-keys-file", file.path()];
    for flags in [
        &["--host", "0.0.0.0"][..],
        &["--host", "::"],
        &["--host", "192.0.2.1"],
        &["--config", settings.path()],
    ] {
        let said = refused(flags).expect("it is refused");
        let fix = said.contains("--api-keys-file") && said.contains("--without-keys");
        assert!(fix, "{said}");
        for more in [&keys[..], &["--without-keys"]] {
            assert_eq!(refused(&[flags, more].concat()), None, "{more:?}");
        }
    }
    for host in ["127.8.0.1", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(refused(&["--host", host]), None, "{host}");
    }
    let open = [
        "serve",
        "--host",
        "::",
        "--without-keys",
        "--port",
        "0",
        "--dump",
        "/",
    ];
    let (_, said) = outcome(&open);
    assert!(
        said.contains("warning: whoever reaches :: is served"),
        "{said}"
    );
    let both = [&keys[..], &["--without-keys"]].concat();
    assert!(refused(&both).is_some_and(|said| said.contains("contradicts")));
}

#[test]
fn a_browser_asks_its_user_for_the_key_of_the_page() {
    let file = KeyFile::new("browser", KEY);
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let ask = |header: &str| server.ask("GET", "/", header, "");
    let refused = ask("");
    let challenge = "www-authenticate: basic realm=";
    assert!(
        refused.head.to_ascii_lowercase().contains(challenge),
        "{}",
        refused.head
    );
    // `me:` and the key.
    let password = "authorization: Basic bWU6Zmlyc3QtMDEyMzQ1Njc4OWFiY2RlZg==\r\n";
    assert_eq!(ask(password).status, 200);
    assert_eq!(status(&server, "/v1/models", password), 200);
}

#[test]
fn a_hangup_reads_the_keys_again_and_a_bad_file_changes_nothing() {
    let file = KeyFile::new("hangup", KEY);
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    file.write(LATER);
    server.signal("-HUP");
    server.line_with("SIGHUP: 1 API keys");
    assert_eq!(
        (with_key(&server, KEY), with_key(&server, LATER)),
        (401, 200)
    );
    file.write("short");
    server.signal("-HUP");
    server.line_with("the keys stay as they were");
    assert_eq!(with_key(&server, LATER), 200);
}

#[test]
fn a_pipe_in_the_place_of_the_keys_holds_up_neither_requests_nor_the_end() {
    let file = KeyFile::new("pipe", KEY);
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    fs::remove_file(file.path()).unwrap();
    make_pipe(file.path());
    server.signal("-HUP");
    let said = server.line_with("the keys stay as they were");
    assert!(said.contains("no regular file"), "{said}");
    assert_eq!(with_key(&server, KEY), 200);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_key_file_that_others_may_read_is_told_of_by_name() {
    let file = KeyFile::new("open", KEY);
    let said = |mode| {
        fs::set_permissions(&file.0, fs::Permissions::from_mode(mode)).unwrap();
        // It ends at once, since nothing can be recorded there.
        let flags = ["--port", "0", "--api-keys-file", file.path(), "--dump", "/"];
        let output = run(&[&["serve"][..], &flags].concat());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let warning = format!("warning: --api-keys-file {}: everyone", file.path());
    for (mode, expected) in [(0o644, true), (0o602, true), (0o640, false)] {
        let said = said(mode);
        assert_eq!(said.contains(&warning), expected, "{said}");
    }
}

#[test]
fn a_stored_response_is_there_for_its_own_key_alone() {
    let file = KeyFile::new("owners", &format!("{KEY}\n{LATER}\n"));
    let server = Server::start_with(&["--api-keys-file", file.path()]);
    let ask = |key: &str, method: &str, path: &str, body: Value| {
        let key = format!("x-api-key: {key}\r\n");
        server.ask(method, path, &key, &body.to_string())
    };
    let create = |key: &str, more: Value| {
        let body = with(json!({"input": "Hi", "max_output_tokens": 4}), more);
        ask(key, "POST", "/v1/responses", body)
    };
    let made = create(KEY, json!({})).json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    for (method, path) in [
        ("GET", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/cancel")),
    ] {
        assert_eq!(ask(LATER, method, &path, json!({})).status, 404, "{method}");
    }
    let next = json!({"previous_response_id": made["id"]});
    assert_eq!(create(LATER, next.clone()).status, 404);
    assert_eq!(create(KEY, next).status, 200);
    assert_eq!(ask(KEY, "GET", &path, json!({})).status, 200);
}
