//! The executor's promises, each tried with real processes in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::action::{Code, Source};
use super::progress::Style;
use super::run::Summary;
use super::store::Store;
use super::*;

/// A workspace that is removed with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("atlas-graph-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn store(&self) -> Store {
        Store::open(&self.0.join(".atlas"), || ()).unwrap()
    }

    fn options(&self) -> Options {
        let progress = Progress::new(Style::Lines);
        Options {
            root: self.0.clone(),
            jobs: 4,
            explain: false,
            progress,
        }
    }

    fn try_run(&self, actions: Vec<Action>) -> Result<Summary, Error> {
        let mut graph = Graph::new();
        let ids = actions
            .into_iter()
            .map(|action| graph.add(action))
            .collect::<Result<Vec<_>, _>>()?;
        run(&graph, &ids, &self.store(), &self.options())
    }

    fn run(&self, actions: Vec<Action>) -> Summary {
        self.try_run(actions).unwrap()
    }

    fn explanation(&self, action: &Action) -> String {
        let mut graph = Graph::new();
        graph.add(action.clone()).unwrap();
        let store = self.store();
        let digest = |input: &Input| match &input.from {
            Source::Workspace(path) => store
                .digests
                .of_file(&self.0.join(path))
                .unwrap()
                .to_string(),
            _ => unreachable!("these tests explain actions that read files"),
        };
        let contents: Vec<_> = action.inputs.iter().map(digest).collect();
        let executable = digest::Digest::of_file(&std::env::current_exe().unwrap()).unwrap();
        let text = digest::explanation(action, &contents, &executable);
        explain::reason(store.atlas(), &action::slug(&action.label), &text).to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn host_tool(name: &str) -> Tool {
    Tool {
        name: name.to_string(),
        path: Path::new("/bin").join(name),
        identity: "any".to_string(),
    }
}

fn shell(label: &str, script: &str) -> Action {
    let names = ["sh", "cat", "cp", "sleep"];
    let action = Action::process(label, ["sh", "-c", script]);
    names
        .iter()
        .fold(action, |action, name| action.tools([&host_tool(name)]))
}

fn copy_of_a() -> Action {
    shell("copy", "cat a > b").workspace("a").output("b")
}

#[test]
fn a_declared_input_is_there_and_its_output_is_stored() {
    let place = Place::new("declared");
    place.write("a", "text");
    let mut graph = Graph::new();
    let id = graph.add(copy_of_a()).unwrap();
    let store = place.store();
    let summary = run(&graph, &[id], &store, &place.options()).unwrap();
    let stored = summary.output(id, "b").unwrap();
    assert_eq!(fs::read_to_string(store.path(stored)).unwrap(), "text");
}

#[test]
fn an_undeclared_input_is_absent() {
    let place = Place::new("undeclared");
    place.write("a", "text");
    let error = place
        .try_run(vec![shell("copy", "cat a > b").output("b")])
        .unwrap_err();
    assert!(error.to_string().contains("a: No such file"), "{error}");
}

#[test]
fn an_undeclared_tool_is_absent() {
    let place = Place::new("tool");
    let error = place
        .try_run(vec![shell("list", "ls > b").output("b")])
        .unwrap_err();
    assert!(error.to_string().contains("ls: not found"), "{error}");
}

#[test]
fn the_environment_is_the_declared_one() {
    let place = Place::new("environment");
    let print = shell("print", "cat /proc/self/environ > env")
        .env("SEEN", "{work}")
        .output("env");
    let mut graph = Graph::new();
    let id = graph.add(print).unwrap();
    let store = place.store();
    let summary = run(&graph, &[id], &store, &place.options()).unwrap();
    let env = fs::read_to_string(store.path(summary.output(id, "env").unwrap())).unwrap();
    let names: Vec<_> = env
        .split_terminator('\0')
        .map(|pair| pair.split('=').next().unwrap())
        .collect();
    assert!(
        names
            .iter()
            .all(|name| ["PATH", "SEEN", "PWD", "SHLVL", "_", "OLDPWD"].contains(name)),
        "{names:?}"
    );
    assert!(env.contains("/.atlas/work/print\0"), "{env}");
}

#[test]
fn a_second_run_starts_nothing() {
    let place = Place::new("second");
    place.write("a", "text");
    assert_eq!(place.run(vec![copy_of_a()]).ran, ["copy"]);
    let again = place.run(vec![copy_of_a()]);
    assert_eq!((again.ran.len(), again.hits), (0, 1));
}

/// Runs `before`, then expects that `after` runs and that the explanation is `reason`.
fn reruns(name: &str, before: Action, after: Action, reason: &str) {
    let place = Place::new(name);
    place.write("a", "text");
    place.run(vec![before]);
    assert_eq!(place.explanation(&after), reason);
    assert_eq!(place.run(vec![after]).ran.len(), 1);
}

#[test]
fn a_changed_argument_runs_again_and_is_named() {
    let after = shell("copy", "cat a a > b").workspace("a").output("b");
    let reason = "argv 002 changed from `cat a > b` to `cat a a > b`";
    reruns("argument", copy_of_a(), after, reason);
}

#[test]
fn a_changed_variable_runs_again_and_is_named() {
    let after = copy_of_a().env("LEVEL", "3");
    reruns(
        "variable",
        copy_of_a().env("LEVEL", "2"),
        after,
        "env LEVEL changed from `2` to `3`",
    );
}

#[test]
fn a_changed_tool_runs_again_and_is_named() {
    let tool = |identity: &str| Tool {
        identity: identity.to_string(),
        ..host_tool("ls")
    };
    let (before, after) = (
        copy_of_a().tools([&tool("ls 1")]),
        copy_of_a().tools([&tool("ls 2")]),
    );
    reruns(
        "version",
        before,
        after,
        "tool ls changed from `ls 1` to `ls 2`",
    );
}

#[test]
fn a_changed_input_runs_again_and_is_named() {
    let place = Place::new("input");
    place.write("a", "text");
    place.run(vec![copy_of_a()]);
    place.write("a", "other");
    let reason = place.explanation(&copy_of_a());
    assert!(
        reason.starts_with("input a changed from 982d9e3eb996…"),
        "{reason}"
    );
    assert_eq!(place.run(vec![copy_of_a()]).ran, ["copy"]);
}

#[test]
fn a_variable_that_is_not_covered_does_not_run_again() {
    let place = Place::new("uncovered");
    place.write("a", "text");
    place.run(vec![copy_of_a().env_uncovered("HOME", "/here")]);
    assert_eq!(
        place
            .run(vec![copy_of_a().env_uncovered("HOME", "/there")])
            .hits,
        1
    );
}

#[test]
fn equal_output_of_a_changed_action_does_not_run_its_readers() {
    let place = Place::new("cutoff");
    place.write("a", "text");
    let plan = |script: &str| {
        let mut graph = Graph::new();
        let first = graph
            .add(shell("first", script).workspace("a").output("b"))
            .unwrap();
        let second = shell("second", "cp b c").input(Source::Output(first, "b".into()), "b");
        let second = graph.add(second.output("c")).unwrap();
        run(&graph, &[second], &place.store(), &place.options())
            .unwrap()
            .ran
    };
    assert_eq!(plan("cat a > b"), ["first", "second"]);
    assert_eq!(plan("cat < a > b"), ["first"]);
}

#[test]
fn a_missing_output_is_named() {
    let place = Place::new("missing");
    let error = place
        .try_run(vec![shell("nothing", "true").output("b")])
        .unwrap_err();
    assert!(
        matches!(&error, Error::Missing { output, .. } if output == "b"),
        "{error}"
    );
}

#[test]
fn a_failure_shows_label_argv_and_output() {
    let place = Place::new("failure");
    let error = place
        .try_run(vec![shell("broken", "echo says why; exit 3")])
        .unwrap_err()
        .to_string();
    for part in [
        "`broken` failed: exit code 3",
        "sh -c echo says why",
        "| says why",
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn independent_actions_run_at_the_same_time() {
    let place = Place::new("parallel");
    // Each action signals its run and waits for the other's signal: in turn, one would give up.
    let script = "echo > {root}/$OWN; n=0; \
                  while ! cat {root}/$OTHER; do n=$((n+1)); [ $n -lt 200 ] || exit 1; sleep 0.05; \
                  done; echo > done";
    let action = |own: &str, other: &str| {
        let action = shell(own, script).output("done");
        action.env("OWN", own).env("OTHER", other)
    };
    let summary = place.run(vec![action("one", "two"), action("two", "one")]);
    assert_eq!(summary.ran.len(), 2);
}

#[test]
fn actions_that_share_a_cache_take_turns() {
    let place = Place::new("turns");
    let script = "if cat {cache}/busy; then exit 1; fi; echo > {cache}/busy; sleep 0.2; \
                  echo > done; exec /bin/rm {cache}/busy";
    let action = |ix: usize| {
        shell(&format!("turn {ix}"), script)
            .cache("shared")
            .output("done")
            .env("TURN", ix.to_string())
    };
    assert_eq!(place.run((0..3).map(action).collect()).ran.len(), 3);
}

#[test]
fn actions_that_share_a_cache_find_what_stays_the_same_with_its_time() {
    let place = Place::new("times");
    place.write("a", "same");
    place.write("b", "old");
    let list = |label: &str, others: &[&str]| {
        let script = "/bin/ls -R --time-style=full-iso -lG . > list; /bin/sleep 0.02";
        let action = shell(label, script).cache("kept").output("list");
        let action = action.workspace("a").workspace("b");
        let others = others.iter();
        others.fold(action, |action, at| {
            action.input(Source::Workspace("a".into()), at)
        })
    };
    let lines = |action: Action| {
        let mut graph = Graph::new();
        let id = graph.add(action).unwrap();
        let store = place.store();
        let summary = run(&graph, &[id], &store, &place.options()).unwrap();
        let text = fs::read_to_string(store.path(summary.output(id, "list").unwrap())).unwrap();
        let line = |name: &str| {
            let mut lines = text.lines();
            lines.find(|line| line.ends_with(name)).map(str::to_string)
        };
        [" a", " b", " c", " f"].map(line)
    };
    let [a, b, ..] = lines(list("first", &["c", "d/e/f"]));
    place.write("b", "new");
    let [same, other, gone, folder] = lines(list("second", &["d/e"]));
    assert_eq!(same, a);
    assert!(other.is_some() && other != b);
    assert_eq!((gone, folder), (None, None));
}

#[test]
fn a_stale_file_in_the_cache_is_no_output() {
    let place = Place::new("stale");
    place.run(vec![
        shell("make", "echo 1 > {cache}/b")
            .cache("kept")
            .output_in_cache("b"),
    ]);
    let idle = shell("make", "true").cache("kept").output_in_cache("b");
    assert!(matches!(
        place.try_run(vec![idle]),
        Err(Error::Missing { .. })
    ));
}

#[test]
fn a_damaged_blob_is_made_again() {
    let place = Place::new("damaged");
    place.write("a", "text");
    let mut graph = Graph::new();
    let id = graph.add(copy_of_a()).unwrap();
    let store = place.store();
    let summary = run(&graph, &[id], &store, &place.options()).unwrap();
    let blob = store.path(summary.output(id, "b").unwrap());
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, "tixt").unwrap();
    let again = run(&graph, &[id], &store, &place.options()).unwrap();
    assert_eq!(again.ran, ["copy"]);
    assert_eq!(fs::read_to_string(&blob).unwrap(), "text");
}

#[test]
fn a_damaged_tree_is_made_again() {
    let place = Place::new("tree");
    let mut graph = Graph::new();
    let id = graph
        .add(shell("tree", "/bin/mkdir t; echo 1 > t/x").output_tree("t"))
        .unwrap();
    let store = place.store();
    let summary = run(&graph, &[id], &store, &place.options()).unwrap();
    let tree = store.path(summary.output(id, "t").unwrap());
    fs::remove_file(tree.join("x")).unwrap();
    assert_eq!(
        run(&graph, &[id], &store, &place.options()).unwrap().ran,
        ["tree"]
    );
    assert_eq!(fs::read_to_string(tree.join("x")).unwrap(), "1\n");
}

#[test]
fn built_in_actions_get_their_arguments_and_leave_outputs() {
    fn double(sandbox: &Sandbox<'_>) -> Result<(), String> {
        let text = sandbox.arg("text")?.repeat(2);
        fs::write(sandbox.path("b"), text).map_err(|why| why.to_string())
    }
    let place = Place::new("built-in");
    let action = |text: &str| {
        Action::built_in("double", "double", double, Code::Version(1))
            .arg("text", text)
            .output("b")
    };
    assert_eq!(place.run(vec![action("x")]).ran.len(), 1);
    assert_eq!(place.run(vec![action("x")]).ran.len(), 0);
    assert_eq!(place.run(vec![action("y")]).ran.len(), 1);
}

#[test]
fn a_built_in_action_runs_again_when_a_source_of_it_changes() {
    fn nothing(sandbox: &Sandbox<'_>) -> Result<(), String> {
        fs::write(sandbox.path("b"), "").map_err(|why| why.to_string())
    }
    let place = Place::new("sources");
    let action =
        |texts| Action::built_in("nothing", "nothing", nothing, Code::Sources(texts)).output("b");
    assert_eq!(place.run(vec![action(&["x", "y"])]).ran.len(), 1);
    assert_eq!(place.run(vec![action(&["x", "y"])]).ran.len(), 0);
    assert_eq!(place.run(vec![action(&["x", "z"])]).ran.len(), 1);
}

#[test]
fn a_plan_with_a_path_that_leaves_its_folder_is_refused() {
    let mut graph = Graph::new();
    let error = graph.add(shell("out", "true").output("../b")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("output `../b` must be a relative path"),
        "{error}"
    );
}

/// Variable that turns this test's executable into a build that the test below kills.
const VICTIM: &str = "ATLAS_TEST_VICTIM";

/// The build that is killed: half an output, then a long wait.
fn victim_actions(wait: &str) -> Vec<Action> {
    let slow = format!("echo half > b; sleep {wait}; echo whole > b");
    vec![
        shell("quick", "echo 1 > q").output("q"),
        shell("slow", &slow).output("b"),
    ]
}

#[test]
fn a_killed_build_leaves_no_half_output() {
    if let Ok(path) = std::env::var(VICTIM) {
        let place = std::mem::ManuallyDrop::new(Place(PathBuf::from(path)));
        place.run(victim_actions("2"));
        return;
    }
    let place = Place::new("killed");
    let name = "graph::tests::a_killed_build_leaves_no_half_output";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(VICTIM, &place.0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let half = place.0.join(".atlas/work/slow/b");
    while !half.exists() || !place.0.join(".atlas/explain/quick").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The orphan still holds the lock, so this build waits for it and then finds only what was
    // complete.
    let summary = place.run(victim_actions("2"));
    assert_eq!((summary.ran, summary.hits), (vec!["slow".to_string()], 1));
}

#[test]
fn two_builds_of_a_workspace_take_turns() {
    let place = Place::new("two");
    let first = place.store();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| {
            let mut waited = false;
            let store = Store::open(&place.0.join(".atlas"), || waited = true);
            store.map(|_| waited).unwrap()
        });
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        assert!(waited.join().unwrap());
    });
}

#[test]
fn the_picture_has_a_box_for_each_action_and_an_edge_for_each_link() {
    let mut graph = Graph::new();
    let first = graph.add(shell("first", "true").output("b")).unwrap();
    let second = shell("second", "true").input(Source::Output(first, "b".into()), "b");
    graph.add(second).unwrap();
    let dot = draw::dot(&graph);
    assert_eq!(dot.matches("[tooltip=").count(), 2);
    assert_eq!(dot.matches("->").count(), 1);
    assert!(dot.contains("\"first\" -> \"second\";"));
}

#[test]
fn a_sweep_leaves_what_the_sources_need_and_what_is_young_within_its_bytes() {
    let place = Place::new("sweep");
    let mut graph = Graph::new();
    graph.add(copy_of_a()).unwrap();
    // The last is that of the present sources.
    for text in ["first", "second", "third"] {
        place.write("a", text);
        assert_eq!(place.run(vec![copy_of_a()]).ran, ["copy"]);
    }
    let (store, now) = (place.store(), SystemTime::now());
    let needed = run::present(&graph, &store, &place.options()).unwrap();
    let kept = |since, bytes| store.sweep(&needed, since, bytes).unwrap()[1].actions;
    assert_eq!(kept(SystemTime::UNIX_EPOCH, u64::MAX), 3);
    assert_eq!(kept(SystemTime::UNIX_EPOCH, 11), 2);
    assert_eq!(kept(now + Duration::from_secs(1), u64::MAX), 1);
    drop(store);
    assert_eq!(place.run(vec![copy_of_a()]).hits, 1);
    place.write("a", "second");
    assert_eq!(place.run(vec![copy_of_a()]).ran, ["copy"]);
}
