//! `serve`: bind, load, check, answer, drain.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};
use rustix::process::getuid;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use toml::Value;

use engine::speculate::Speculate;
use engine::tier::disk;
use engine::{DEVICE_FAILED, Handle, Limits, Phase, Setup};
use host::allocator;
use host::log;
use http::error::{ApiError, internal};
use http::files;
use http::hosts::{HostName, Hosts};
use http::journal::Journal;
use http::keys::Keys;
use http::limits::{CONNECTIONS_MAX, DUMP_BYTES_MAX, IO_THREADS};
use http::listener::Listener;
use http::origins::Origin;
use http::server::Server;
use http::settings::{Compatibility, Settings};
use http::state::ServerState;
use http::threads::{Home, OF_RUNTIME, Threads};
use http::tls::Tls;
use model::backend::Backend;
use model::ops::Footprint;
use model::target;
use model::weights::Progress;
use text::chat::ChatModel;

use super::notify::Notifier;
use super::size::{Size, gigabytes};
use super::warm::Warm;
use super::{Exit, Failure, identity};
use crate::start::boot::{self, Files, TextSide};

/// Address to listen on by default.
const HOST_DEFAULT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT_DEFAULT: u16 = 8000;
/// Threads of the server: for connections; to accept connections and wait for signals; to read
/// files again; to write two log files.
pub const THREADS: usize = IO_THREADS * OF_RUNTIME + 1 + 1 + 2;
/// Divisor of the host's memory that prompts may take, for the share through which a disk is read
/// if no size is given. Prompts longer than the share are not kept on the disk.
const STAGING_PART: u64 = 8;
/// Most bytes of the host's memory through which a disk is read if no size is given.
const STAGING_MAX: u64 = 4 << 30;
/// Time for writing the last prompts to the disk, once all requests are answered.
const WRITTEN_MAX: Duration = Duration::from_secs(5);
/// Permissions of the access log: the server's user, and its group to read.
const ACCESS_LOG_MODE: u32 = 0o640;
/// Permissions of recorded texts: only the server's user.
const DUMP_MODE: u32 = 0o600;

/// serve the model over HTTP
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "serve", help_triggers("--help"))]
pub struct Serve {
    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(positional)]
    pub weights: Option<PathBuf>,

    /// address to listen on (default 127.0.0.1: this machine only)
    #[argh(option)]
    pub host: Option<IpAddr>,

    /// port to listen on (default 8000; 0 takes a free one)
    #[argh(option)]
    pub port: Option<u16>,

    /// socket to make in the file system and listen on instead, for the server's user and group
    #[argh(option)]
    pub socket: Option<PathBuf>,

    /// file of API keys, one a line, that every request but those for /health must bring one of,
    /// a browser as the password of any name; SIGHUP reads it again (default: none, which an
    /// address that other machines reach is refused with)
    #[argh(option)]
    pub api_keys_file: Option<PathBuf>,

    /// serve whoever can connect at an address that other machines reach
    #[argh(switch)]
    pub without_keys: bool,

    /// file of certificates, the server's own first, in PEM: the port speaks TLS; needs --tls-key
    /// and a binary built with TLS; SIGHUP reads both files again
    #[argh(option)]
    pub tls_cert: Option<PathBuf>,

    /// file of that certificate's private key, in PEM
    #[argh(option)]
    pub tls_key: Option<PathBuf>,

    /// file of golden tokens that the model is checked with before it serves; `verify --oracle
    /// --golden FILE` writes one (default: none)
    #[argh(option)]
    pub golden: Option<PathBuf>,

    /// name that requests may reach the server by, beside localhost and any address (repeated; * is
    /// any name, and the default unless --host is of this machine only)
    #[argh(option)]
    pub allow_host: Vec<HostName>,

    /// origin of web pages that may use the server beside its own, as in https://chat.example
    /// (repeated; * is any page; default: none)
    #[argh(option)]
    pub allow_origin: Vec<Origin>,

    /// file that gets a line of JSON about each request, without its texts; - is standard output
    /// (default: none)
    #[argh(option)]
    pub access_log: Option<PathBuf>,

    /// file to which requests and their answers are appended, with all their texts, for
    /// scripts/replay.py; - is standard output (default: none)
    #[argh(option)]
    pub dump: Option<PathBuf>,

    /// vllm: /metrics tells figures under the names of that server too, for dashboards made for it
    /// (default: only its own names)
    #[argh(option)]
    pub metrics_compat: Option<Compatibility>,

    /// drafts of each reply that are tried in a step: off, auto, which is as many as pay, or 1 to 7
    /// in every step, to measure; no answer depends on it (default auto)
    #[argh(option, default = "Speculate::Auto")]
    pub speculate: Speculate,

    /// host memory, as in 32GB, for prompts that the device's memory has no place for: they come
    /// back from there and are not computed again (default: none)
    #[argh(option)]
    pub cache_host: Option<Size>,

    /// directory for prompts that memory has no place for, which outlast the server: the same
    /// program with the same weights finds them there, each for the key that it came with; needs
    /// --cache-disk (default: none)
    #[argh(option)]
    pub cache_dir: Option<PathBuf>,

    /// room in that directory, as in 200GB
    #[argh(option)]
    pub cache_disk: Option<Size>,

    /// bytes that are written there in a day, at most (default: as many as --cache-disk)
    #[argh(option)]
    pub cache_disk_daily: Option<Size>,

    /// file of conversations that are computed before the server is ready, for all keys, so that
    /// prompts which begin as they do have less to compute; a line of JSON each, as the body of a
    /// request to /v1/chat/completions (default: none)
    #[argh(option)]
    pub warm: Option<PathBuf>,

    /// model id that the API reports and answers to
    #[argh(
        option,
        default = "target::MODEL_ID.to_string()",
        from_str_fn(model_name)
    )]
    pub model_name: String,

    /// file of settings in TOML, under the names of these flags, which count before it (default:
    /// none)
    #[argh(option)]
    pub config: Option<PathBuf>,

    /// print all settings, as a file of them, and where each comes from
    #[argh(switch)]
    pub print_config: bool,

    /// socket that is told how loading goes, when the server is ready and that it lives, in the
    /// protocol of systemd; a unit writes the variable NOTIFY_SOCKET (default: none)
    #[argh(option)]
    pub notify_socket: Option<PathBuf>,

    /// info, or debug to name the unknown fields of requests too (default info)
    #[argh(option, default = "log::Level::Info")]
    pub log_level: log::Level,
}

impl Serve {
    /// Each setting under the name of its flag, in TOML; None if it has no value.
    pub fn settings(&self) -> Vec<(&'static str, Option<Value>)> {
        let text = |value: &dyn fmt::Display| Value::from(value.to_string());
        let path = |value: &Option<PathBuf>| value.as_ref().map(|path| text(&path.display()));
        let size = |size: Option<&Size>| size.map(|size| text(size));
        let disk_daily = self.cache_disk_daily.as_ref().or(self.cache_disk.as_ref());
        let port = self.port.or(self.socket.is_none().then_some(PORT_DEFAULT));
        let host = self.host.or(self.socket.is_none().then_some(HOST_DEFAULT));
        vec![
            ("weights", path(&self.weights)),
            ("host", host.map(|host| text(&host))),
            ("port", port.map(|port| Value::from(i64::from(port)))),
            ("socket", path(&self.socket)),
            ("api-keys-file", path(&self.api_keys_file)),
            ("without-keys", Some(Value::from(self.without_keys))),
            ("tls-cert", path(&self.tls_cert)),
            ("tls-key", path(&self.tls_key)),
            ("golden", path(&self.golden)),
            ("allow-host", Some(texts(&self.allow_host))),
            ("allow-origin", Some(texts(&self.allow_origin))),
            ("access-log", path(&self.access_log)),
            ("dump", path(&self.dump)),
            ("metrics-compat", self.metrics_compat.map(|of| text(&of))),
            ("speculate", Some(text(&self.speculate))),
            ("cache-host", size(self.cache_host.as_ref())),
            ("cache-dir", path(&self.cache_dir)),
            ("cache-disk", size(self.cache_disk.as_ref())),
            ("cache-disk-daily", size(disk_daily)),
            ("warm", path(&self.warm)),
            ("model-name", Some(text(&self.model_name))),
            ("notify-socket", path(&self.notify_socket)),
            ("log-level", Some(text(&self.log_level))),
        ]
    }
}

/// Texts as a list in TOML.
fn texts(values: &[impl fmt::Display]) -> Value {
    Value::from(values.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// Serves until a signal or a failure of the engine.
///
/// # Errors
/// The reason for the end, with a fix if there is one.
pub fn run(options: &Serve) -> Result<(), Failure> {
    boot::require_serving()?;
    require_drafts(options.speculate)?;
    require_memory(options.cache_host.as_ref())?;
    require_disk(options)?;
    require_keys(options)?;
    log::set_level(options.log_level);
    let warm = options.warm.as_deref().map(Warm::load).transpose()?;
    let files = Files::locate(options.weights.as_deref())?;
    let of_disk = options.cache_dir.as_ref().map_or(0, |_| disk::THREADS);
    boot::preflight(&files, THREADS + boot::THREADS + of_disk)?;
    if getuid().is_root() {
        log::line(
            "warning: running as root, which this server needs for nothing; the unit in packaging/ \
             gives it a user of its own",
        );
    }
    let none = |error| Exit::Internal.failure(format!("no threads: {error}"));
    let threads = Threads::new(IO_THREADS).map_err(none)?;
    // This runtime accepts connections, waits for signals and starts the engine.
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(none)?;
    runtime.block_on(serve(options, files, warm, threads.homes()))
}

/// Model id, which must have characters and none that controls a terminal.
fn model_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err("must have characters, and none that controls a terminal".to_string()),
        false => Ok(text.to_string()),
    }
}

/// Refuses more draft tokens than a step of this target has.
fn require_drafts(speculate: Speculate) -> Result<(), Failure> {
    match speculate {
        Speculate::Depth(depth) if target::DRAFTS < depth => {
            let most = target::DRAFTS;
            let message = format!("--speculate {depth}: a step of this target has {most} drafts");
            Err(Exit::Usage.failure(message))
        }
        _ => Ok(()),
    }
}

/// Bytes of the host's memory that prompts may take; None if unknown.
fn memory_max() -> Option<u64> {
    let host = Backend::host_memory();
    host.bytes.map(|bytes| bytes.saturating_sub(host.server))
}

/// Refuses a size above the host's memory that prompts may take.
fn require_memory(size: Option<&Size>) -> Result<(), Failure> {
    match (size, memory_max()) {
        (Some(size), Some(most)) if size.bytes > most => {
            let most = gigabytes(most);
            let message = format!("--cache-host {size}: {most} of the host's memory may be taken");
            Err(Exit::Config.failure(message))
        }
        _ => Ok(()),
    }
}

/// Refuses settings of a disk for prompts if the directory or the size is missing.
fn require_disk(options: &Serve) -> Result<(), Failure> {
    let (bytes, daily) = (&options.cache_disk, &options.cache_disk_daily);
    match (&options.cache_dir, bytes, daily) {
        (None, None, None) | (Some(_), Some(_), _) => Ok(()),
        _ => Err(Exit::Usage.failure(
            "--cache-dir and --cache-disk belong together: give a directory and how much of its \
             disk may be taken",
        )),
    }
}

/// Bytes of the host's memory for prompts: the given size, or else a share through which a disk is
/// read.
fn host_cache_bytes(options: &Serve) -> usize {
    let most = || memory_max().map_or(STAGING_MAX, |most| (most / STAGING_PART).min(STAGING_MAX));
    let asked = options.cache_host.as_ref().map(|size| size.bytes);
    let staging = options.cache_dir.as_ref().map(|_| most());
    asked.or(staging).unwrap_or(0) as usize
}

/// Options of the disk for prompts; None unless the flags name its directory and its size.
fn disk(options: &Serve, files: &Files) -> Option<disk::Options> {
    let (path, size) = (options.cache_dir.clone()?, options.cache_disk.as_ref()?);
    let daily = options.cache_disk_daily.as_ref().unwrap_or(size);
    let files = files.clone();
    let (name, bytes) = (move || identity::of(&files), (size.bytes, daily.bytes));
    Some(disk::Options::folder(path, name, bytes))
}

/// Refuses an address that other machines reach, unless exactly one setting states which clients
/// may use the server.
fn require_keys(options: &Serve) -> Result<(), Failure> {
    let host = Endpoint::of(options)?.ip().map(|ip| ip.to_canonical());
    let message = match (host, &options.api_keys_file, options.without_keys) {
        (_, Some(path), true) => format!(
            "--without-keys contradicts --api-keys-file {}: give one of them",
            path.display()
        ),
        (Some(host), None, false) if !host.is_loopback() => format!(
            "--host {host} is reached by other machines, and no keys are asked for: name a file of \
             keys with --api-keys-file, or say --without-keys to serve whoever can connect"
        ),
        (Some(host), None, true) if !host.is_loopback() => {
            let warning = format!("warning: whoever reaches {host} is served, without a key");
            log::line(warning);
            return Ok(());
        }
        _ => return Ok(()),
    };
    Err(Exit::Usage.failure(message))
}

/// TLS for the connections to the port, if the flags name a certificate.
fn tls(options: &Serve) -> Result<Option<Tls>, Failure> {
    match (&options.tls_cert, &options.tls_key) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if options.socket.is_some() => {
            Err(Exit::Usage.failure("--tls-cert is for a port; a --socket is as safe without"))
        }
        (Some(certificates), Some(key)) => Tls::load(certificates, key)
            .map(Some)
            .map_err(|why| Exit::Config.failure(format!("--tls-cert, --tls-key: {why}"))),
        _ => {
            Err(Exit::Usage
                .failure("--tls-cert and --tls-key belong together: give both or neither"))
        }
    }
}

/// Warns about wide permissions and other doubtful settings of the key file.
fn warn_of(keys: &Keys) {
    if let Some(warning) = keys.warning() {
        log::line(format_args!("warning: --api-keys-file {warning}"));
    }
}

/// Journal for the file that `flag` names.
fn journal(
    flag: &str,
    path: &Option<PathBuf>,
    mode: u32,
    bytes_max: u64,
) -> Result<Option<Arc<Journal>>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let journal = Journal::open(path, mode, bytes_max).map_err(|problem| {
        let message = format!(
            "{flag} {}: {problem}; name a file that can be written, or - for standard output",
            path.display()
        );
        Exit::Config.failure(message)
    })?;
    Ok(Some(Arc::new(journal)))
}

/// Number of connections that are served at once; logs a line if the system allows fewer than
/// usual.
fn connections() -> usize {
    let connections = files::connections();
    if connections < CONNECTIONS_MAX {
        log::line(format_args!(
            "the limit of open files leaves room for {connections} connections; raise it for \
             {CONNECTIONS_MAX}, with `ulimit -n` or LimitNOFILE= of a unit"
        ));
    }
    connections
}

/// HTTP settings from the flags.
fn settings(options: &Serve, endpoint: &Endpoint) -> Result<Settings, Failure> {
    let keys = options.api_keys_file.as_deref().map(Keys::load).transpose();
    let keys =
        keys.map_err(|problem| Exit::Config.failure(format!("--api-keys-file: {problem}")))?;
    if let Some(keys) = &keys {
        log::line(format_args!("{} API keys", keys.count()));
        warn_of(keys);
    }
    let (path, mode) = (&options.access_log, ACCESS_LOG_MODE);
    let access_log = journal("--access-log", path, mode, u64::MAX)?;
    let dump = journal("--dump", &options.dump, DUMP_MODE, DUMP_BYTES_MAX)?;
    if let Some(path) = &options.dump {
        log::line(format_args!(
            "--dump {}: requests and answers are recorded there, with all their texts",
            path.display()
        ));
    }
    Ok(Settings {
        keys,
        access_log,
        dump,
        metrics: options.metrics_compat,
        hosts: Hosts::of(&options.allow_host, endpoint.ip()),
        origins: options.allow_origin.clone(),
    })
}

async fn serve(
    options: &Serve,
    files: Files,
    warm: Option<Warm>,
    homes: Vec<Home>,
) -> Result<(), Failure> {
    // The default action of SIGHUP would end the process.
    let hangup = on_signal(SignalKind::hangup())?;
    let progress = Arc::new(Progress::default());
    let reported = progress.clone();
    let endpoint = Endpoint::of(options)?;
    let notifier = Arc::new(Notifier::new(options.notify_socket.as_deref())?);
    let tls = tls(options)?;
    let settings = settings(options, &endpoint)?;
    let state = ServerState::new(&target::FACTS, &options.model_name, settings, move || {
        boot::loading(&reported)
    });
    tokio::spawn(pass_on(hangup, reloader(state.clone(), tls.clone())?));
    let (listener, endpoint) = listen(&endpoint).await?;
    let server = Server::new(listener, state.clone(), connections());
    let server = server.with_tls(tls).in_homes(homes);
    log::line(format_args!("listening on {endpoint}, loading"));

    let stop = watch::Sender::new(false);
    let mut stopped = stop.subscribe();
    let mut server = tokio::spawn(server.run(async move {
        // An error means that the sender is dropped, which also means stopping.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }));
    let limits = Limits {
        speculate: options.speculate,
        host_bytes: host_cache_bytes(options),
        ..Limits::of(&target::FACTS)
    };
    let disk = disk(options, &files);
    let setup = Setup { limits, disk };
    let engine = boot::engine(&files, &progress, options.golden.as_deref(), setup);
    let handle = engine.handle.clone();
    let following = notifier.clone().follow(handle.clone(), progress);
    tokio::spawn(following);
    let outcome = live(engine, warm, &state, &endpoint, &notifier).await;
    notifier.stopping();
    stop.send_replace(true);
    let drained = tokio::select! {
        drained = &mut server => drained.unwrap_or(false),
        name = signalled() => {
            log::line(format_args!("{}: ending open replies", name?));
            state.abort_replies(ApiError::draining());
            let _ = server.await;
            false
        }
    };
    if options.cache_dir.is_some() {
        handle.drain();
        let _ = timeout(WRITTEN_MAX, boot::reached(&handle, Phase::Stopped)).await;
    }
    if drained {
        if outcome.is_ok() {
            log::line("stopped");
        }
        return outcome;
    }
    log::line("stopped; replies that took too long were ended");
    outcome.and(Err(Exit::Cut.failure("")))
}

/// Loads the model and serves until the signal that stops the server.
async fn live(
    engine: boot::Engine,
    warm: Option<Warm>,
    state: &Arc<ServerState>,
    endpoint: &Endpoint,
    notifier: &Notifier,
) -> Result<(), Failure> {
    let signals = signalled();
    tokio::pin!(signals);
    let (engine, thread, chat) = (engine.handle, engine.thread, engine.chat);
    // On a signal during loading the engine's thread goes on until the process ends.
    let chat = tokio::select! {
        chat = ready(&engine, chat, warm, notifier) => chat?,
        name = &mut signals => return stop_on(name?),
    };
    if let Some(chat) = chat {
        state.serve(chat, engine.clone());
        // Serving has no use for memory that loading freed.
        allocator::trim();
        log::line(format_args!(
            "READY {endpoint} model {}, context {} x {}",
            state.model_id,
            target::MAX_CONTEXT,
            target::MAX_SEQUENCES
        ));
        notifier.ready(endpoint);
        tokio::select! {
            _ = boot::reached(&engine, Phase::Stopped) => {}
            name = &mut signals => return stop_on(name?),
        }
    }
    match thread.join() {
        Ok(Err(error)) => {
            if error.is_of_device() {
                // The engine cannot end the open replies any more.
                state.abort_replies(internal(DEVICE_FAILED));
            }
            Err(boot::engine_failure(&error))
        }
        Ok(Ok(())) => Err(Exit::Internal.failure("the engine stopped by itself")),
        Err(_) => Err(Exit::Internal.failure("the engine broke down")),
    }
}

/// Waits until requests are answered; returns the chat model, or None if the engine has stopped.
async fn ready(
    engine: &Handle,
    chat: TextSide,
    warm: Option<Warm>,
    notifier: &Notifier,
) -> Result<Option<ChatModel>, Failure> {
    match (boot::serving(engine, chat).await?, warm) {
        (Some(chat), Some(warm)) => warm.compute(chat, engine, notifier).await,
        (chat, _) => Ok(chat),
    }
}

fn stop_on(name: &'static str) -> Result<(), Failure> {
    log::line(format_args!("{name}: finishing open replies"));
    Ok(())
}

/// Requests a reload at each `hangup`; a signal during a reload causes another one.
async fn pass_on(mut hangup: Signal, readings: SyncSender<()>) {
    while hangup.recv().await.is_some() {
        let _ = readings.try_send(());
    }
}

/// Thread that reloads keys and certificate on request: a disk that does not answer delays neither
/// requests nor other signals.
fn reloader(state: Arc<ServerState>, tls: Option<Tls>) -> Result<SyncSender<()>, Failure> {
    let (readings, asked) = mpsc::sync_channel(1);
    let builder = thread::Builder::new().name("reload".to_owned());
    let thread = builder.spawn(move || asked.iter().for_each(|()| reload(&state, tls.as_ref())));
    thread.map_err(|error| Exit::Unavailable.failure(format!("no threads: {error}")))?;
    Ok(readings)
}

/// Reads keys and certificate again, if there are any.
fn reload(state: &ServerState, tls: Option<&Tls>) {
    if state.settings.keys.is_none() && tls.is_none() {
        log::line("SIGHUP: there are no keys and no certificate to read again");
    }
    match state.settings.keys.as_ref().map(Keys::reload) {
        None => {}
        Some(Ok(count)) => {
            log::line(format_args!("SIGHUP: {count} API keys"));
            state.settings.keys.as_ref().map(warn_of);
        }
        Some(Err(why)) => {
            log::line(format_args!("SIGHUP: the keys stay as they were: {why}"));
        }
    }
    match tls.map(Tls::reload) {
        None => {}
        Some(Ok(())) => log::line("SIGHUP: the certificate is read again"),
        Some(Err(why)) => {
            log::line(format_args!(
                "SIGHUP: the certificate stays as it was: {why}"
            ));
        }
    }
}

fn on_signal(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Exit::Internal.failure(format!("no signals: {error}")))
}

/// Waits for a signal to stop; returns its name.
pub(super) async fn signalled() -> Result<&'static str, Failure> {
    let mut interrupt = on_signal(SignalKind::interrupt())?;
    let mut terminate = on_signal(SignalKind::terminate())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    })
}

/// Address or socket on which the server listens.
#[derive(Debug, PartialEq)]
enum Endpoint {
    /// Address, and whether connections are encrypted.
    Address(SocketAddr, bool),
    Socket(PathBuf),
}

impl Endpoint {
    fn of(options: &Serve) -> Result<Endpoint, Failure> {
        match &options.socket {
            Some(_) if options.host.is_some() || options.port.is_some() => Err(Exit::Usage
                .failure(
                    "--socket stands in the endpoint of --host and --port: give one or the other",
                )),
            Some(path) => Ok(Endpoint::Socket(path.clone())),
            None => {
                let host = options.host.unwrap_or(HOST_DEFAULT);
                let address = SocketAddr::new(host, options.port.unwrap_or(PORT_DEFAULT));
                Ok(Endpoint::Address(address, options.tls_cert.is_some()))
            }
        }
    }

    /// IP address that the server listens on; None for a socket in the file system.
    fn ip(&self) -> Option<IpAddr> {
        match self {
            Endpoint::Address(address, _) => Some(address.ip()),
            Endpoint::Socket(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Address(address, true) => write!(f, "https://{address}"),
            Endpoint::Address(address, false) => write!(f, "http://{address}"),
            Endpoint::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Binds the endpoint; returns the endpoint with the port that was bound.
async fn listen(endpoint: &Endpoint) -> Result<(Listener, Endpoint), Failure> {
    match endpoint {
        Endpoint::Address(wanted, encrypted) => {
            let listener = Listener::tcp(*wanted).await;
            let listener = listener.map_err(|error| bind_failure(*wanted, &error))?;
            let address = listener.address().unwrap_or(*wanted);
            Ok((listener, Endpoint::Address(address, *encrypted)))
        }
        Endpoint::Socket(path) => {
            let listener = Listener::unix(path).await.map_err(|error| {
                let message = format!(
                    "cannot listen on --socket {}: {error}; name a path in a folder that the \
                     server may write to",
                    path.display()
                );
                Exit::Unavailable.failure(message)
            })?;
            Ok((listener, Endpoint::Socket(path.clone())))
        }
    }
}

fn bind_failure(address: SocketAddr, error: &std::io::Error) -> Failure {
    let fix = match error.kind() {
        std::io::ErrorKind::AddrInUse => "another program has it; choose another with --port",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need privileges; choose --port",
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address; check --host",
        _ => "choose another with --host and --port",
    };
    let message = format!("cannot listen on {address}: {error}: {fix}");
    Exit::Unavailable.failure(message)
}
