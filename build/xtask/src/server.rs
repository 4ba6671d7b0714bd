//! A server under test: the real binary on a free port, until it is dropped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until a server prints `READY`.
const READY_WAIT: Duration = Duration::from_secs(600);
/// Time between two reads of a starting server's output.
const READY_POLL: Duration = Duration::from_millis(50);
/// Start of the line that a server prints once it accepts requests; its URL follows.
const READY: &str = "READY ";

/// A running server.
pub struct Server {
    child: Child,
    /// URL of the server: `http://127.0.0.1:<port>`.
    pub url: String,
}

impl Server {
    /// Starts `binary serve` with `flags` and waits for `READY`; its output goes to `log`.
    ///
    /// # Errors
    /// If it cannot start, exits, or takes too long, with its output.
    pub fn start(binary: &Path, flags: &[String], log: &Path) -> Result<Server, String> {
        let refuse = |why: std::io::Error| format!("open {}: {why}", log.display());
        let out = File::create(log).map_err(refuse)?;
        let err = out.try_clone().map_err(refuse)?;
        let mut command = Command::new(binary);
        command.arg("serve").args(flags).args(["--port", "0"]);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn();
        let child = child.map_err(|why| format!("start {}: {why}", binary.display()))?;
        let mut server = Server {
            child,
            url: String::new(),
        };
        server.url = server.wait_ready(log)?;
        Ok(server)
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_ready(&mut self, log: &Path) -> Result<String, String> {
        let since = Instant::now();
        loop {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if let Some(url) = ready_url(&text) {
                return Ok(url.to_string());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "the server ended before it was ready ({status}):\n{text}"
                ));
            }
            if since.elapsed() > READY_WAIT {
                return Err(format!(
                    "the server was not ready after {READY_WAIT:?}:\n{text}"
                ));
            }
            std::thread::sleep(READY_POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The URL in a complete `READY` line.
fn ready_url(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(READY)?;
    let (line, _) = rest.split_once('\n')?;
    line.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_when_its_line_is_whole() {
        let line = "memory: 1\nREADY http://127.0.0.1:81 model tiny";
        assert_eq!(ready_url(line), None);
        assert_eq!(ready_url(&format!("{line}\n")), Some("http://127.0.0.1:81"));
    }

    #[test]
    fn a_server_that_ends_is_reported_with_what_it_printed() {
        let log = std::env::temp_dir().join(format!("atlas-server-{}", std::process::id()));
        let error = Server::start(Path::new("/bin/echo"), &["no weights".to_string()], &log);
        let error = error.err().unwrap();
        let _ = std::fs::remove_file(&log);
        assert!(
            error.contains("ended before it was ready") && error.contains("no weights"),
            "{error}"
        );
    }
}
