//! Runs a graph: a ready queue, clean folders, and outputs moved into the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Graph;
use super::action::{Action, ActionId, Function, Source, Work, slug};
use super::digest::{self, Digest};
use super::error::Error;
use super::explain::{self, Reason};
use super::progress::Progress;
use super::store::{self, Kind, Lookup, Store, Stored};

/// Folder inside of an action's folder with links to the declared tools: the action's whole `PATH`.
const TOOLS_FOLDER: &str = ".tools";

/// Bytes of a failed action's output that are shown; the whole output is in `.atlas/log`.
const SHOWN_BYTES: u64 = 16 << 10;

/// Time between two drawings of the status line.
const REDRAW: Duration = Duration::from_millis(200);

/// Folder and named arguments of a built-in action.
pub struct Sandbox<'a> {
    /// Absolute path of the folder that holds the inputs and receives the outputs.
    pub work: &'a Path,
    pub(super) args: &'a [(String, String)],
}

impl Sandbox<'_> {
    /// Absolute path of an input or output of the action.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Content of an input.
    ///
    /// # Errors
    /// The input's name, and why it cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        fs::read(self.path(name)).map_err(|why| format!("{name}: {why}"))
    }

    /// Writes an output.
    ///
    /// # Errors
    /// The output's name, and why it cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), String> {
        fs::write(self.path(name), content).map_err(|why| format!("{name}: {why}"))
    }

    /// Value of the argument `name`.
    ///
    /// # Errors
    /// If the plan did not set it.
    pub fn arg(&self, name: &str) -> Result<&str, String> {
        let found = self.args.iter().find(|(key, _)| key == name);
        found
            .map(|(_, value)| value.as_str())
            .ok_or_else(|| format!("argument `{name}` is not set"))
    }
}

/// Options of a run.
pub struct Options {
    /// Absolute path of the workspace.
    pub root: PathBuf,
    /// Most actions that run at the same time.
    pub jobs: usize,
    /// Print, for every action, why it ran and what its key covers.
    pub explain: bool,
    pub progress: Progress,
}

/// Summary of a finished run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Labels of the actions that ran, in the order in which they ended.
    pub ran: Vec<String>,
    /// Number of actions whose outputs were in the store.
    pub hits: usize,
    outputs: BTreeMap<ActionId, Vec<Stored>>,
}

impl Summary {
    /// The stored output `path` of an action that was wanted.
    pub fn output(&self, id: ActionId, path: &str) -> Option<&Stored> {
        let mut outputs = self.outputs.get(&id)?.iter();
        outputs.find(|stored| stored.path == path)
    }
}

/// Makes `wanted`, running every needed action whose outputs are not in the store.
///
/// # Errors
/// The first error. Running actions are waited for, and no other is started.
pub fn run(
    graph: &Graph,
    wanted: &[ActionId],
    store: &Store,
    options: &Options,
) -> Result<Summary, Error> {
    let needed = graph.needed(wanted);
    let runner = Runner::new(graph, &needed, store, options)?;
    options.progress.begin(needed.len());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| runner.work());
        }
        runner.watch();
    });
    options.progress.end();
    let queue = runner.queue.into_inner();
    let queue = queue.expect("workers do not panic with the queue");
    queue.error.map_or(Ok(queue.summary), Err)
}

/// Keys of the actions whose outputs for the present sources are in the store.
///
/// # Errors
/// A source that cannot be read.
pub fn present(graph: &Graph, store: &Store, options: &Options) -> Result<BTreeSet<Digest>, Error> {
    let runner = Runner::new(graph, &BTreeSet::new(), store, options)?;
    let (mut made, mut keys) = (BTreeMap::new(), BTreeSet::new());
    for id in graph.ids() {
        let is_made = |maker| made.contains_key(maker);
        if !graph.makers(id).iter().all(is_made) {
            continue;
        }
        let action = graph.action(id);
        let contents = contents(&runner.locate(action, &made)?);
        let key = digest::key(action, &contents, &runner.executable);
        if let Lookup::Found(outputs) = store.lookup(&key) {
            made.insert(id, outputs);
            keys.insert(key);
        }
    }
    Ok(keys)
}

fn own_digest(store: &Store) -> Result<Digest, Error> {
    let path =
        std::env::current_exe().map_err(Error::io("find", Path::new("the running executable")))?;
    let digest = store.digests.of_file(&path);
    digest.map_err(Error::io("read", &path))
}

/// Order of a run by dependencies. An action goes waiting -> ready -> running -> done; it leaves
/// `waiting` when the last action that it depends on is done.
#[derive(Default)]
struct Queue {
    waiting: BTreeMap<ActionId, BTreeSet<ActionId>>,
    ready: BTreeSet<ActionId>,
    running: BTreeSet<ActionId>,
    busy_caches: BTreeSet<String>,
    error: Option<Error>,
    summary: Summary,
}

impl Queue {
    fn new(graph: &Graph, needed: &BTreeSet<ActionId>) -> Queue {
        let needed = needed.iter().map(|&id| (id, graph.makers(id)));
        let (ready, waiting): (BTreeMap<_, _>, _) =
            needed.partition(|(_, makers)| makers.is_empty());
        Queue {
            waiting,
            ready: ready.into_keys().collect(),
            ..Queue::default()
        }
    }

    fn is_over(&self) -> bool {
        let idle = self.running.is_empty();
        idle && (self.error.is_some() || self.ready.is_empty() && self.waiting.is_empty())
    }

    /// Takes the first ready action whose cache no running action uses.
    fn start(&mut self, graph: &Graph) -> Option<ActionId> {
        if self.error.is_some() {
            return None;
        }
        let free = |id: &&ActionId| {
            let cache = graph.action(**id).cache.as_ref();
            cache.is_none_or(|cache| !self.busy_caches.contains(cache))
        };
        let id = *self.ready.iter().find(free)?;
        self.ready.remove(&id);
        self.running.insert(id);
        self.busy_caches.extend(graph.action(id).cache.clone());
        Some(id)
    }

    fn finish(&mut self, graph: &Graph, id: ActionId, result: Result<Done, Error>) {
        self.running.remove(&id);
        if let Some(cache) = &graph.action(id).cache {
            self.busy_caches.remove(cache);
        }
        match result {
            Err(error) => {
                self.error.get_or_insert(error);
            }
            Ok(done) => {
                match done.ran {
                    true => self.summary.ran.push(graph.action(id).label.clone()),
                    false => self.summary.hits += 1,
                }
                self.summary.outputs.insert(id, done.outputs);
                self.release(id);
            }
        }
    }

    fn release(&mut self, done: ActionId) {
        let is_free = |_: &ActionId, makers: &mut BTreeSet<ActionId>| {
            makers.remove(&done);
            makers.is_empty()
        };
        let free = self.waiting.extract_if(.., is_free);
        self.ready.extend(free.map(|(id, _)| id));
    }
}

struct Done {
    outputs: Vec<Stored>,
    ran: bool,
}

struct Runner<'a> {
    graph: &'a Graph,
    store: &'a Store,
    options: &'a Options,
    executable: Digest,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// Path of an input's bytes, and the text that stands for them in a key.
struct Located<'a> {
    at: &'a str,
    content: String,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Workspace(PathBuf),
    Stored(Stored),
    Text(&'a str),
}

/// Texts that stand for inputs in a key.
fn contents(inputs: &[Located<'_>]) -> Vec<String> {
    inputs.iter().map(|input| input.content.clone()).collect()
}

impl<'a> Runner<'a> {
    fn new(
        graph: &'a Graph,
        needed: &BTreeSet<ActionId>,
        store: &'a Store,
        options: &'a Options,
    ) -> Result<Runner<'a>, Error> {
        Ok(Runner {
            graph,
            store,
            options,
            executable: own_digest(store)?,
            queue: Mutex::new(Queue::new(graph, needed)),
            wake: Condvar::new(),
        })
    }
}

impl Runner<'_> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        let queue = self.queue.lock();
        queue.expect("no thread panics while it holds the queue")
    }

    /// Redraws the status line until the run ends.
    fn watch(&self) {
        let mut queue = self.lock();
        while !queue.is_over() {
            let woken = self.wake.wait_timeout(queue, REDRAW);
            (queue, _) = woken.expect("as in lock()");
            self.options.progress.redraw();
        }
        self.wake.notify_all();
    }

    /// A worker: runs ready actions until no more can become ready.
    fn work(&self) {
        let mut queue = self.lock();
        while !queue.is_over() {
            let Some(id) = queue.start(self.graph) else {
                queue = self.wake.wait(queue).expect("as in lock()");
                continue;
            };
            let makers = self.graph.makers(id).into_iter();
            let made = makers.map(|maker| (maker, queue.summary.outputs[&maker].clone()));
            let made: BTreeMap<_, _> = made.collect();
            drop(queue);
            let result = self.make(self.graph.action(id), &made);
            queue = self.lock();
            queue.finish(self.graph, id, result);
            self.wake.notify_all();
        }
    }

    /// Gets the outputs of an action, running it only if they are not in the store.
    fn make(&self, action: &Action, made: &BTreeMap<ActionId, Vec<Stored>>) -> Result<Done, Error> {
        let (progress, atlas) = (&self.options.progress, self.store.atlas());
        let slug = slug(&action.label);
        let inputs = self.locate(action, made)?;
        let contents = contents(&inputs);
        let key = digest::key(action, &contents, &self.executable);
        let text = digest::explanation(action, &contents, &self.executable);
        let reason = match self.store.lookup(&key) {
            Lookup::Found(outputs) => {
                if self.options.explain {
                    progress.note(&explain::up_to_date(&action.label, &key, &text));
                }
                explain::record(atlas, &slug, &text)?;
                progress.hit();
                let ran = false;
                return Ok(Done { outputs, ran });
            }
            Lookup::Damaged(output) => Reason::Damaged(output),
            Lookup::Absent => explain::reason(atlas, &slug, &text),
        };
        if self.options.explain {
            progress.note(&explain::ran(&action.label, &key, &reason, &text));
        }
        progress.started(&action.label);
        let since = Instant::now();
        let result = self.execute(action, &inputs, &key);
        progress.ended(&action.label, since.elapsed(), result.is_ok());
        let outputs = result?;
        explain::record(atlas, &slug, &text)?;
        Ok(Done { outputs, ran: true })
    }

    fn locate<'a>(
        &self,
        action: &'a Action,
        made: &BTreeMap<ActionId, Vec<Stored>>,
    ) -> Result<Vec<Located<'a>>, Error> {
        let locate = |input: &'a super::Input| {
            let (content, bytes) = match &input.from {
                Source::Workspace(path) => self.locate_in_workspace(action, path)?,
                Source::Text(text) => (Digest::of(text.as_bytes()).to_string(), Bytes::Text(text)),
                Source::Output(maker, name) => {
                    let stored = made[maker].iter().find(|stored| stored.path == *name);
                    let stored = stored.expect("Graph::add checked that the maker declares it");
                    let content = stored.kind.content(&stored.digest);
                    (content, Bytes::Stored(stored.clone()))
                }
            };
            let at = &input.at;
            Ok(Located { at, content, bytes })
        };
        action.inputs.iter().map(locate).collect()
    }

    fn locate_in_workspace(
        &self,
        action: &Action,
        path: &Path,
    ) -> Result<(String, Bytes<'static>), Error> {
        let full = self.options.root.join(path);
        let refuse = |why: std::io::Error| Error::Input {
            label: action.label.clone(),
            path: full.clone(),
            why: why.to_string(),
        };
        let metadata = fs::metadata(&full).map_err(refuse)?;
        let digest = self.store.digests.of_file(&full).map_err(refuse)?;
        let content = Kind::of(&metadata).content(&digest);
        Ok((content, Bytes::Workspace(full.clone())))
    }

    fn execute(
        &self,
        action: &Action,
        inputs: &[Located<'_>],
        key: &Digest,
    ) -> Result<Vec<Stored>, Error> {
        let site = Site::prepare(self.store, action, &self.options.root)?;
        site.place_all(self.store, inputs)?;
        match &action.work {
            Work::Process { argv } => self.start(action, &site, argv)?,
            Work::BuiltIn {
                function,
                name,
                args,
                ..
            } => call(action, &site, (*function, name), args)?,
        }
        let outputs = self.store.keep(key, action, &site.work, &site.cache)?;
        if !site.is_shared {
            fs::remove_dir_all(&site.work).map_err(Error::io("remove", &site.work))?;
        }
        Ok(outputs)
    }

    fn start(&self, action: &Action, site: &Site, argv: &[String]) -> Result<(), Error> {
        let argv: Vec<_> = argv.iter().map(|arg| site.fill(arg)).collect();
        let failed = |why, output| Error::failed(&action.label, argv.clone(), why, output);
        let program = site.program(action, &argv)?;
        let log_path = self.store.atlas().join("log").join(slug(&action.label));
        let mut log = File::options();
        log.create(true).truncate(true).read(true).write(true);
        let mut log = log.open(&log_path).map_err(Error::io("open", &log_path))?;
        let clone = |file: &File| file.try_clone().map_err(Error::io("open", &log_path));
        let mut command = Command::new(program);
        command.args(&argv[1..]).current_dir(&site.work).env_clear();
        command.env("PATH", site.work.join(TOOLS_FOLDER));
        let env = action.env.iter();
        command.envs(env.map(|variable| (&variable.name, site.fill(&variable.value))));
        let lock = self.store.lock_handle();
        command.stdin(lock.map_err(Error::io("open", Path::new("lock")))?);
        command.stdout(clone(&log)?).stderr(clone(&log)?);
        let status = command.status();
        let status = status.map_err(|why| failed(why.to_string(), String::new()))?;
        match status.success() {
            true => Ok(()),
            false => Err(failed(describe(status), tail(&mut log))),
        }
    }
}

fn call(
    action: &Action,
    site: &Site,
    (function, name): (Function, &str),
    args: &[(String, String)],
) -> Result<(), Error> {
    let args = args.iter();
    let args = args.map(|(name, value)| (name.clone(), site.fill(value)));
    let (work, args) = (&*site.work, &args.collect::<Vec<_>>()[..]);
    function(&Sandbox { work, args }).map_err(|why| {
        let shown = args.iter().map(|(name, value)| format!("{name}={value}"));
        let argv = std::iter::once(name.to_string()).chain(shown).collect();
        Error::failed(&action.label, argv, why, String::new())
    })
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}

/// The last part of an action's printed output.
fn tail(log: &mut File) -> String {
    let bytes = log.metadata().map_or(0, |metadata| metadata.len());
    let mut text = Vec::new();
    let from = SeekFrom::Start(bytes.saturating_sub(SHOWN_BYTES));
    let read = log.seek(from).and_then(|_| log.read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(why) => format!("(its output cannot be read: {why})"),
    }
}

/// Folders of an action while it runs. Actions that share a cache share a folder that is not
/// emptied, so that files keep the time stamps by which a tool recognises them.
struct Site {
    work: PathBuf,
    cache: PathBuf,
    is_shared: bool,
    atlas: PathBuf,
    root: PathBuf,
}

impl Site {
    /// Makes the folder with links to tools, and the folders of outputs.
    fn prepare(store: &Store, action: &Action, root: &Path) -> Result<Site, Error> {
        let atlas = store.atlas().to_path_buf();
        let name = action.cache.as_deref().unwrap_or(&action.label);
        let work = atlas.join("work").join(slug(name));
        let tools = work.join(TOOLS_FOLDER);
        let is_shared = action.cache.is_some();
        let stale = if is_shared { &tools } else { &work };
        store::remove_all(stale).map_err(Error::io("empty", stale))?;
        fs::create_dir_all(&tools).map_err(Error::io("make", &tools))?;
        for tool in &action.tools {
            let link = tools.join(&tool.name);
            std::os::unix::fs::symlink(&tool.path, &link).map_err(Error::io("link", &link))?;
        }
        let cache = atlas.join(action.cache.as_deref().unwrap_or("none"));
        if is_shared {
            fs::create_dir_all(&cache).map_err(Error::io("make", &cache))?;
        }
        let site = Site {
            work,
            cache,
            is_shared,
            atlas,
            root: root.to_path_buf(),
        };
        let mut outputs = action.outputs.iter();
        outputs.try_for_each(|output| site.clear(output))?;
        Ok(site)
    }

    /// Makes the folder of an output, without an earlier run's output, which must not pass for an
    /// output of this run.
    fn clear(&self, output: &super::action::Output) -> Result<(), Error> {
        let path = output.within(&self.work, &self.cache);
        store::remove_all(&path).map_err(Error::io("remove", &path))?;
        make_parent(&path)
    }

    fn place_all(&self, store: &Store, inputs: &[Located<'_>]) -> Result<(), Error> {
        if self.is_shared {
            let declared = inputs.iter().map(|input| input.at);
            let kept = declared.chain([TOOLS_FOLDER]).map(|at| self.work.join(at));
            store::remove_others(&self.work, &kept.collect())
                .map_err(Error::io("empty", &self.work))?;
        }
        inputs.iter().try_for_each(|input| self.place(store, input))
    }

    fn place(&self, store: &Store, input: &Located<'_>) -> Result<(), Error> {
        let to = self.work.join(input.at);
        make_parent(&to)?;
        match &input.bytes {
            Bytes::Workspace(from) => {
                store::copy_changed(from, &to).map_err(Error::io("copy", from))
            }
            Bytes::Stored(stored) if self.is_shared => {
                let from = store.path(stored);
                store::copy_changed(&from, &to).map_err(Error::io("copy", &from))
            }
            Bytes::Stored(stored) => store.place(stored, &to),
            Bytes::Text(text) => write_changed(text, &to).map_err(Error::io("write", &to)),
        }
    }

    /// Replaces marks such as `{work}` by the paths of folders.
    fn fill(&self, text: &str) -> String {
        let folders = [
            ("{work}", &self.work),
            ("{cache}", &self.cache),
            ("{atlas}", &self.atlas),
            ("{root}", &self.root),
        ];
        let mut text = text.to_string();
        for (name, folder) in folders {
            text = text.replace(name, &folder.display().to_string());
        }
        text
    }

    /// Path of the program that `argv[0]` names.
    fn program(&self, action: &Action, argv: &[String]) -> Result<PathBuf, Error> {
        let name = argv.first().map_or("", String::as_str);
        if action.tools.iter().any(|tool| tool.name == name) {
            return Ok(self.work.join(TOOLS_FOLDER).join(name));
        }
        if name.contains('/') {
            return Ok(self.work.join(name));
        }
        let what = format!("argv[0] `{name}` is neither a declared tool nor the path of an input");
        Err(Error::plan(&action.label, what))
    }
}

fn write_changed(text: &str, to: &Path) -> std::io::Result<()> {
    let is_link = fs::symlink_metadata(to).is_ok_and(|there| there.is_symlink());
    if !is_link && fs::read(to).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    store::remove_all(to)?;
    fs::write(to, text)
}

fn make_parent(path: &Path) -> Result<(), Error> {
    let folder = path.parent().expect("a path inside a folder has a parent");
    fs::create_dir_all(folder).map_err(Error::io("make", folder))
}
