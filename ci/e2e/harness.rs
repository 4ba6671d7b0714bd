//! A server process, and the client of `http::testing` for it.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use atlas::bench::client::{Ask, Endpoint, Timings};
use atlas::bench::process::memory;
pub use host::testing::Folder;
use host::testing::cpu_time;
pub use http::testing::client::{Answer, Connection, PATIENCE, bearer, request, send_to, with};
use model::target::MODEL_ID;
use serde_json::{Value, json};
use step::testing;
use tokio::runtime::Builder;

/// The binary under test: the release that the pipeline names, or the one that cargo just built.
pub static BINARY: LazyLock<String> = LazyLock::new(|| {
    let built = || env!("CARGO_BIN_EXE_atlas").to_string();
    env::var("ATLAS_BINARY").unwrap_or_else(|_| built())
});
/// Amount of a test: `few` in the suite, `many` where the tests are compiled for that.
pub const fn few_or_many(few: usize, many: usize) -> usize {
    testing::few_or_many(few as u64, many as u64) as usize
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(&*BINARY)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Makes a pipe of this name, which nobody writes to.
pub fn make_pipe(path: &str) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Runs the binary to its end: exit code and what was said on standard error.
pub fn outcome(arguments: &[&str]) -> (i32, String) {
    let done = run(arguments);
    (
        done.status.code().unwrap(),
        String::from_utf8(done.stderr).unwrap(),
    )
}

/// The binary behind a line of the shell, which may set limits.
fn under(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{line} && exec \"$0\" \"$@\""), &BINARY]);
    shell
}

/// Runs the binary to its end behind a line of the shell.
pub fn run_under(line: &str, arguments: &[&str]) -> Output {
    let mut command = under(line);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A server process; killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    lines: Mutex<mpsc::Receiver<String>>,
}

/// Sends `signal` to a process, as `kill` names it.
pub fn kill(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    assert!(sent.unwrap().success());
}

/// A server without flags that one test asks at a time, and the process that ends it once this one
/// has ended. Each start checks the model, which takes longer than most tests, so the next test has
/// the same server.
pub struct Lent(Option<(Server, Child)>);

/// Servers that no test has now. Nothing that is in a static is ever dropped.
static IDLE: Mutex<Vec<(Server, Child)>> = Mutex::new(Vec::new());

impl Deref for Lent {
    type Target = Server;

    fn deref(&self) -> &Server {
        let (server, _) = self.0.as_ref().expect("it is there until it is dropped");
        server
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // A test that failed may leave its server as it should not be.
        let lent = self.0.take().filter(|_| !thread::panicking());
        IDLE.lock().unwrap().extend(lent);
    }
}

impl Server {
    /// A server for a test that leaves it as it was, but for prompts that it keeps and its figures.
    pub fn lent() -> Lent {
        let idle = IDLE.lock().unwrap().pop();
        let (server, guard) = idle.unwrap_or_else(|| {
            let server = Server::start();
            let mut guard = Command::new("sh");
            guard.args(["-c", "read line; kill -9 \"$0\"", &server.id().to_string()]);
            let guard = guard.stdin(Stdio::piped()).spawn().unwrap();
            (server, guard)
        });
        server.lines_so_far();
        Lent(Some((server, guard)))
    }

    /// Starts a server and waits until it answers.
    pub fn start() -> Server {
        let server = Server::start_loading();
        server.line_with("READY ");
        server
    }

    /// Starts a server with more flags and waits until it answers.
    pub fn start_with(flags: &[&str]) -> Server {
        let server = Server::spawn(flags);
        server.line_with("READY ");
        server
    }

    /// Starts a server with more flags behind a line of the shell, and waits until it answers.
    pub fn start_under(line: &str, flags: &[&str]) -> Server {
        let server = Server::of(&mut under(line), &[&["--port", "0"], flags].concat()).at_port();
        server.line_with("READY ");
        server
    }

    /// Starts a server that listens elsewhere than at an address, and waits until it answers.
    pub fn start_elsewhere(flags: &[&str]) -> Server {
        let server = Server::launch(flags);
        server.line_with("READY ");
        server
    }

    /// Starts a server and waits until it listens.
    pub fn start_loading() -> Server {
        Server::spawn(&[])
    }

    /// Starts a server with more flags and waits until it listens.
    pub fn spawn(flags: &[&str]) -> Server {
        Server::launch(&[&["--port", "0"], flags].concat()).at_port()
    }

    /// The server, once it tells its address.
    fn at_port(mut self) -> Server {
        let line = self.line_with("listening on http://");
        let address = line
            .split("http://")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        self.address = address.parse().unwrap();
        self
    }

    fn launch(flags: &[&str]) -> Server {
        Server::of(&mut Command::new(&*BINARY), flags)
    }

    fn of(command: &mut Command, flags: &[&str]) -> Server {
        let mut child = command
            .arg("serve")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .for_each(|line| drop(sender.send(line)));
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Server {
            child,
            address: any,
            lines: Mutex::new(lines),
        }
    }

    /// Waits for a line of the log that holds `text`.
    pub fn line_with(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.lock().unwrap().recv_timeout(left);
            let line = line.expect("the log says it");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Waits for lines of the log that hold `texts`, in any order.
    pub fn lines_with(&self, texts: &[&str]) {
        let mut missing = texts.to_vec();
        while !missing.is_empty() {
            let line = self.line_with("");
            missing.retain(|text| !line.contains(text));
        }
    }

    /// The lines of the log that were not read yet.
    pub fn lines_so_far(&self) -> Vec<String> {
        self.lines.lock().unwrap().try_iter().collect()
    }

    /// Internet sockets of the process, as lines of the system's tables.
    pub fn sockets(&self) -> Vec<String> {
        let process = format!("/proc/{}", self.child.id());
        let files = fs::read_dir(format!("{process}/fd")).unwrap();
        let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let inode = |link: PathBuf| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_string())
        };
        let inodes: Vec<String> = links.filter_map(inode).collect();
        let tables = ["tcp", "tcp6", "udp", "udp6"].map(|table| format!("{process}/net/{table}"));
        let texts = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
        let lines = texts.iter().flat_map(|text| text.lines().skip(1));
        let of_process = |line: &&str| {
            let inode = line.split_whitespace().nth(9);
            inode.is_some_and(|inode| inodes.iter().any(|known| known == inode))
        };
        lines.filter(of_process).map(str::to_string).collect()
    }

    /// Numbers of its threads.
    pub fn threads(&self) -> BTreeSet<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name = |task: std::io::Result<fs::DirEntry>| task.unwrap().file_name();
        tasks
            .map(|task| name(task).into_string().unwrap())
            .collect()
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to the process, as `kill` names it.
    pub fn signal(&self, signal: &str) {
        kill(&self.child, signal);
    }

    /// Memory that the process has in RAM, in bytes.
    pub fn resident(&self) -> usize {
        memory(self.id()).unwrap().rss_bytes as usize
    }

    /// Time that processors have spent on the process.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.id())
    }

    /// Waits for the process to end.
    pub fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the process does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends bytes on a connection of their own.
    pub fn send(&self, bytes: &[u8]) -> Connection {
        send_to(self.address, bytes)
    }

    /// Answer to a request with `more` lines in its head.
    pub fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        self.send(&request(method, path, more, body.as_bytes()))
            .answer()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    /// Posts bytes to the chat route.
    pub fn post(&self, body: &[u8]) -> Connection {
        self.open_post("/v1/chat/completions", body)
    }

    /// Posts JSON to any route.
    pub fn post_to(&self, path: &str, body: &Value) -> Answer {
        self.open_post(path, body.to_string().as_bytes()).answer()
    }

    /// Posts bytes to any route.
    pub fn open_post(&self, path: &str, body: &[u8]) -> Connection {
        self.send(&request("POST", path, "", body))
    }

    pub fn open_chat(&self, body: &Value) -> Connection {
        self.post(body.to_string().as_bytes())
    }

    pub fn chat(&self, body: &Value) -> Answer {
        self.open_chat(body).answer()
    }

    /// A chat with an API key.
    pub fn chat_as(&self, key: &str, body: &Value) -> Answer {
        self.post_as(key, "/v1/chat/completions", body)
    }

    /// Posts JSON with an API key to any route.
    pub fn post_as(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &bearer(key), &body.to_string())
    }

    /// A streamed reply of so many tokens, as `bench serve` reads and times it.
    pub fn reply(&self, prompt: &str, tokens: usize) -> Timings {
        let ask = Ask {
            model: MODEL_ID,
            prompt: prompt.to_string(),
            tokens,
        };
        let endpoint = Endpoint::parse(&format!("http://{}", self.address), None).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let reply = runtime.block_on(async { endpoint.connect().await?.chat(&ask).await });
        reply.unwrap()
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        self.metric_as("none", name)
    }

    /// The value of a metric without labels, where an API key is asked for.
    pub fn metric_as(&self, key: &str, name: &str) -> f64 {
        let page = self.ask("GET", "/metrics", &bearer(key), "").body;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not on {page}"))
            .parse()
            .unwrap()
    }

    /// Waits until a metric has a value.
    pub fn wait_for_metric(&self, name: &str, value: f64) {
        let deadline = Instant::now() + PATIENCE;
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {}", self.metric(name));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the server: {:?}", self.child.try_wait());
            self.lines
                .get_mut()
                .unwrap()
                .try_iter()
                .for_each(|line| println!("  {line}"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A chat that always takes the most likely token.
pub fn question(text: &str, max_tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    })
}
