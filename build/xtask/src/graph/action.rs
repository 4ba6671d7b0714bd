//! Actions: declared inputs, outputs, tools, arguments and environment.
//!
//! An action sees its declarations and nothing else. It runs in a clean folder that holds its
//! inputs, with exactly the declared environment and a `PATH` of exactly the declared tools; all
//! declarations, and nothing else, are covered by its key.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::run::Sandbox;

/// Index of an action in its [`Graph`](super::Graph).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActionId(pub(super) u32);

impl ActionId {
    /// The file or folder that the action leaves at `path`, as an input of other actions.
    pub fn output(self, path: impl Into<String>) -> Source {
        Source::Output(self, path.into())
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Origin of an input's bytes.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file of the workspace; the path is relative to its root. The action gets a copy.
    Workspace(PathBuf),
    /// An output of an earlier action, under the name that this action declares. The reader gets a
    /// link into the store.
    Output(ActionId, String),
    /// Text made by the plan itself (generated headers, translation units).
    Text(String),
}

impl Source {
    /// The action that makes these bytes.
    pub fn maker(&self) -> Option<ActionId> {
        match self {
            Source::Output(maker, _) => Some(*maker),
            Source::Workspace(_) | Source::Text(_) => None,
        }
    }
}

/// One input and the path, relative to the action's folder, at which the action finds it.
#[derive(Clone, Debug)]
pub struct Input {
    pub from: Source,
    pub at: String,
}

/// A program of the host that the action may start by name. Programs made by other actions are
/// inputs.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Name of the program in the action's `PATH`.
    pub name: String,
    /// Absolute path on this host, which the key does not cover.
    pub path: PathBuf,
    /// Stand-in for the program in the key: the version that it prints, or the digest of its file.
    pub identity: String,
}

/// Form of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    File,
    /// A folder with everything below it. Users get a symbolic link to the stored folder.
    Tree,
}

/// Folder in which the action leaves an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the action's own folder; moved into the store.
    Folder,
    /// In the action's cache; copied into the store, because later runs still need it in the cache.
    Cache,
}

/// An output. An action that succeeds without leaving one of its outputs has failed.
#[derive(Clone, Debug)]
pub struct Output {
    /// Name, and path relative to `place`.
    pub path: String,
    pub form: Form,
    pub place: Place,
}

impl Output {
    /// Path of the output in the action's own folder or its cache.
    pub fn within(&self, work: &Path, cache: &Path) -> PathBuf {
        match self.place {
            Place::Folder => work.join(&self.path),
            Place::Cache => cache.join(&self.path),
        }
    }
}

/// A variable of the action's environment.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    pub value: String,
    /// Whether the key covers the value; false for a value that cannot change outputs but differs
    /// between hosts (`HOME`, a proxy): the key then covers the name only.
    pub covered: bool,
}

impl Variable {
    fn of(name: &str, value: String, covered: bool) -> Variable {
        let name = name.to_string();
        Variable {
            name,
            value,
            covered,
        }
    }
}

/// A built-in action is a plain function: it cannot capture anything that the key does not cover.
pub type Function = fn(&Sandbox<'_>) -> Result<(), String>;

/// Identity of a built-in action's code in its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The running executable: any change of xtask runs the action again. Right for cheap actions.
    Executable,
    /// A number that is raised with each change of the function. For costly actions (downloads,
    /// unpacking).
    Version(u32),
    /// The text of the files that decide what the function does. For costly actions whose function
    /// often changes; test executables of the pipeline share their outputs.
    Sources(&'static [&'static str]),
}

/// Work that an action does.
#[derive(Clone, Debug)]
pub enum Work {
    /// Starts `argv[0]`: the name of a declared tool, or the path of an input.
    Process { argv: Vec<String> },
    /// Calls a function of xtask with named arguments.
    BuiltIn {
        function: Function,
        name: &'static str,
        code: Code,
        args: Vec<(String, String)>,
    },
}

/// A node of the graph.
///
/// It runs in `.atlas/work/<label>`, emptied first; actions that share a cache run in a folder of
/// that name, in which an input that is there already stays with its time stamp. In arguments and
/// environment values `{work}` stands for that folder, `{cache}` for the action's cache, `{atlas}`
/// for `.atlas` and `{root}` for the workspace, all absolute. The key covers the text before they
/// are replaced.
#[derive(Clone, Debug)]
pub struct Action {
    /// Unique in the graph, and a file name once `/` and spaces are replaced; names the action in
    /// progress, errors and `--explain`.
    pub label: String,
    pub work: Work,
    pub tools: Vec<Tool>,
    pub inputs: Vec<Input>,
    pub outputs: Vec<Output>,
    pub env: Vec<Variable>,
    /// A folder under `.atlas` that outlives the action, with files that its tool reuses. Its
    /// content must not change outputs. Actions that share a cache never run at the same time.
    pub cache: Option<String>,
}

impl Action {
    /// An action that starts a process.
    pub fn process<S: Into<String>>(
        label: impl Into<String>,
        argv: impl IntoIterator<Item = S>,
    ) -> Action {
        let argv = argv.into_iter().map(Into::into).collect();
        Action::with(label.into(), Work::Process { argv })
    }

    /// An action that calls `function`; `name` is the function's name in `--explain`.
    pub fn built_in(
        label: impl Into<String>,
        name: &'static str,
        function: Function,
        code: Code,
    ) -> Action {
        let work = Work::BuiltIn {
            function,
            name,
            code,
            args: Vec::new(),
        };
        Action::with(label.into(), work)
    }

    fn with(label: String, work: Work) -> Action {
        let (tools, inputs, outputs, env) = (vec![], vec![], vec![], vec![]);
        Action {
            label,
            work,
            tools,
            inputs,
            outputs,
            env,
            cache: None,
        }
    }

    /// Adds a named argument of a built-in action.
    ///
    /// # Panics
    /// If the action is a process, whose arguments are its argv.
    pub fn arg(mut self, name: &str, value: impl Into<String>) -> Action {
        let Work::BuiltIn { args, .. } = &mut self.work else {
            panic!("{}: arg() is for built-in actions", self.label);
        };
        args.push((name.to_string(), value.into()));
        self
    }

    /// Allows the action to start `tools` by name.
    pub fn tools<'t>(mut self, tools: impl IntoIterator<Item = &'t Tool>) -> Action {
        self.tools.extend(tools.into_iter().cloned());
        self
    }

    /// Declares a file of the workspace, found at the same relative path in the action's folder.
    pub fn workspace(self, path: &str) -> Action {
        self.input(Source::Workspace(path.into()), path)
    }

    /// Declares an input, and the path at which the action finds it.
    pub fn input(mut self, from: Source, at: &str) -> Action {
        self.inputs.push(Input {
            from,
            at: at.to_string(),
        });
        self
    }

    /// Declares a file that the action leaves in its folder as an output.
    pub fn output(self, path: &str) -> Action {
        self.leaves(path, Form::File, Place::Folder)
    }

    /// Declares a folder that the action leaves in its folder as an output.
    pub fn output_tree(self, path: &str) -> Action {
        self.leaves(path, Form::Tree, Place::Folder)
    }

    /// Declares a file that the action leaves in its cache, an output under its path there.
    pub fn output_in_cache(self, path: &str) -> Action {
        self.leaves(path, Form::File, Place::Cache)
    }

    fn leaves(mut self, path: &str, form: Form, place: Place) -> Action {
        self.outputs.push(Output {
            path: path.to_string(),
            form,
            place,
        });
        self
    }

    /// Sets a variable of the process.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Action {
        self.env.push(Variable::of(name, value.into(), true));
        self
    }

    /// Sets a variable whose value cannot change outputs; see [`Variable::covered`].
    pub fn env_uncovered(mut self, name: &str, value: impl Into<String>) -> Action {
        self.env.push(Variable::of(name, value.into(), false));
        self
    }

    /// Keeps the folder `.atlas/<name>` between runs, as `{cache}`.
    pub fn cache(mut self, name: &str) -> Action {
        self.cache = Some(name.to_string());
        self
    }

    /// Checks for mistakes that fail any run: paths that leave the action's folder, and paths or
    /// names that are declared twice.
    pub(super) fn check(&self) -> Result<(), Error> {
        let inputs = self.inputs.iter().map(|input| ("input", input.at.as_str()));
        let outputs = self.outputs.iter();
        let outputs = outputs.map(|output| ("output", output.path.as_str()));
        let tools = self.tools.iter().map(|tool| ("tool", tool.name.as_str()));
        let env = self.env.iter();
        let env = env.map(|variable| ("variable", variable.name.as_str()));
        let mut seen = std::collections::BTreeSet::new();
        let wrong = |what: &str| Err(Error::plan(&self.label, what));
        for (kind, name) in inputs.chain(outputs).chain(tools).chain(env) {
            let inside = !name.is_empty()
                && !name.starts_with('/')
                && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if !inside {
                let what = format!("{kind} `{name}` must be a relative path inside its folder");
                return wrong(&what);
            }
            if !seen.insert((kind, name)) {
                return wrong(&format!("{kind} `{name}` is declared twice"));
            }
        }
        if self.env.iter().any(|variable| variable.name == "PATH") {
            return wrong("PATH is made of the declared tools");
        }
        let in_cache = |output: &Output| output.place == Place::Cache;
        if self.cache.is_none() && self.outputs.iter().any(in_cache) {
            return wrong("an output lies in the cache, but the action has none");
        }
        Ok(())
    }
}

/// The label as a file name.
pub(super) fn slug(label: &str) -> String {
    label.replace(['/', ' '], "-")
}
