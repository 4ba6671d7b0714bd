//! Alert rules and dashboard in a real Prometheus that watches a server, where there is one.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Folder, PATIENCE, Server, question, request, send_to};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// One that watches `server` as the job `atlas`; None where it is not installed.
    fn of(server: SocketAddr, folder: &Folder) -> Option<Prometheus> {
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [format!("{PACKAGING}/alerts.yml")],
            "scrape_configs": [{
                "job_name": "atlas",
                "static_configs": [{"targets": [server.to_string()]}],
            }],
        });
        let file = folder.path("prometheus.yml");
        fs::write(&file, config.to_string()).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = Command::new("prometheus")
            .arg(format!("--config.file={file}"))
            .arg(format!("--storage.tsdb.path={}", folder.path("series")))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn();
        let child = child.ok()?;
        Some(Prometheus { child, address })
    }

    /// Data of an answer; null while it does not listen, or refuses.
    fn get(&self, path: &str) -> Value {
        if TcpStream::connect(self.address).is_err() {
            return Value::Null;
        }
        let answer = send_to(self.address, &request("GET", path, "", b"")).answer();
        match answer.status {
            200 => answer.json()["data"].clone(),
            _ => Value::Null,
        }
    }

    /// Series that an expression gives now.
    fn series(&self, expression: &str) -> usize {
        let bytes = expression.bytes();
        let escaped: String = bytes.map(|byte| format!("%{byte:02X}")).collect();
        let data = self.get(&format!("/api/v1/query?query={escaped}"));
        data["result"].as_array().map_or(0, Vec::len)
    }
}

/// Waits until nothing is left of what `left` gives.
fn wait_for_none(left: impl Fn() -> Vec<String>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{left:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

fn expressions(text: &Value) -> Vec<String> {
    let panels = text["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let of = |target: &Value| target["expr"].as_str().unwrap().to_string();
    targets.flatten().map(of).collect()
}

#[test]
fn every_panel_shows_something_and_no_alert_fires_beside_a_server_that_is_well() {
    let (server, folder) = (Server::start(), Folder::new());
    let Some(prometheus) = Prometheus::of(server.address, &folder) else {
        return eprintln!("prometheus is not installed");
    };
    let dashboard = fs::read(format!("{PACKAGING}/dashboard.json")).unwrap();
    let panels = expressions(&serde_json::from_slice(&dashboard).unwrap());
    wait_for_none(|| {
        server.chat(&question("What is the capital of France?", 8));
        let empty = panels.iter().filter(|panel| prometheus.series(panel) == 0);
        empty.cloned().collect()
    });
    wait_for_none(|| {
        let data = prometheus.get("/api/v1/rules");
        let rules = data["groups"][0]["rules"].as_array().unwrap();
        assert!(!rules.is_empty());
        let untried = rules.iter().filter(|rule| rule["health"] != "ok");
        untried.map(|rule| rule["name"].to_string()).collect()
    });
    assert_eq!(prometheus.series("ALERTS"), 0, "nothing is wrong");
}
