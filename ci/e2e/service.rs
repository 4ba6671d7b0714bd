//! The binary under a service manager: the notify protocol, settings in a file, a question to a
//! running server.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::harness::{Folder, Server, outcome, run};

/// Longest wait for a message; a debug build loads for half a minute.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn a_service_manager_is_told_of_loading_readiness_life_and_the_end() {
    let folder = Folder::new();
    let path = folder.path("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let message = || {
        let mut text = [0; 4096];
        let bytes = socket.recv(&mut text).expect("a message comes");
        String::from_utf8(text[..bytes].to_vec()).unwrap()
    };
    let server = Server::start_with(&["--notify-socket", &path]);
    let mut seen = vec![message()];
    while !seen.last().unwrap().contains("READY=1") {
        seen.push(message());
    }
    assert!(
        seen[0].contains("STATUS=") && seen[0].contains("EXTEND_TIMEOUT_USEC="),
        "{seen:?}"
    );
    assert!(
        seen.last().unwrap().contains("ready on http://"),
        "{seen:?}"
    );
    assert_eq!(message(), "WATCHDOG=1");
    server.signal("-TERM");
    let mut last = message();
    while last == "WATCHDOG=1" {
        last = message();
    }
    assert!(last.contains("STOPPING=1"), "{last}");
    assert!(server.wait().success());
}

#[test]
fn settings_come_from_a_file_and_flags_before_it() {
    let folder = Folder::new();
    let path = folder.path("atlas.toml");
    fs::write(
        &path,
        "port = 0\nmodel-name = \"filed\"\nallow-host = [\"a.example\"]\n",
    )
    .unwrap();
    let printed = run(&[
        "serve",
        "--config",
        &path,
        "--model-name",
        "told",
        "--print-config",
    ]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(
        printed.contains("model-name = \"told\"  # from the command line"),
        "{printed}"
    );
    assert!(
        printed.contains("allow-host = [\"a.example\"]  # from the file"),
        "{printed}"
    );
    let server = Server::start_with(&["--config", &path]);
    assert!(server.get("/v1/models").body.contains("filed"));
    fs::write(&path, "prot = 0\n").unwrap();
    let (code, said) = outcome(&["serve", "--config", &path]);
    assert!(
        code == 78 && said.contains(&path) && said.contains("prot"),
        "{code} {said}"
    );
}

#[test]
fn a_running_server_is_asked_by_try() {
    let server = Server::start();
    let url = format!("http://{}", server.address);
    let done = run(&["try", "What is the capital of France?", "--url", &url]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && said.contains("Paris"), "{said}");
    drop(server);
    let (code, said) = outcome(&["try", "Hello", "--url", &url]);
    assert!(code == 69 && said.contains(&url), "{code} {said}");
}
