//! Verbs that write files, beside paths and names that somebody planted, killed at each step, and
//! with files that they did not place.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::bundle::{NAME, files, shell, sums};
use crate::corrupt::Model;
use crate::harness::{BINARY, Folder, Server, outcome, question};

/// A user that the tests never run as.
const STRANGER: u32 = 4_243_001;
/// Digest of nothing.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Whether users can be played here.
fn is_root() -> bool {
    let root = shell("/", "id -u").1.trim() == "0";
    if !root {
        println!("skipped: it needs root");
    }
    root
}

/// A bundle of these weights whose program says `text`, and runs in no time.
fn bundle(folder: &Folder, name: &str, weights: &Path, text: &str) -> String {
    let (folder, weights_in) = (folder.path(name), folder.path(&format!("{name}/weights")));
    fs::create_dir_all(&weights_in).unwrap();
    let from = match weights.is_file() {
        true => vec![weights.to_path_buf()],
        false => files(weights.to_str().unwrap()),
    };
    for file in from {
        let name = match weights.is_file() {
            true => format!("{NAME}.packed"),
            false => file.file_name().unwrap().to_str().unwrap().to_string(),
        };
        fs::copy(&file, Path::new(&weights_in).join(name)).unwrap();
    }
    let program = format!("{folder}/{NAME}");
    fs::write(&program, format!("#!/bin/sh\necho {text}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let script = include_str!("../../src/cli/transfer/install.sh").replace("@NAME@", NAME);
    fs::write(format!("{folder}/install.sh"), script).unwrap();
    sums(&folder);
    folder
}

fn packed(model: &Model) -> PathBuf {
    let file = std::env::temp_dir().join(format!("atlas-e2e-{}-packed", std::process::id()));
    let file = file.with_extension(model.0.file_name().unwrap());
    let (code, said) = outcome(&["pack", model.0.to_str().unwrap(), file.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    file
}

fn install(bundle: &str, root: &str) -> (i32, String) {
    outcome(&["install", bundle, "--root", root])
}

/// Folder of the weights of this build.
fn weights_of(root: &str) -> PathBuf {
    let all = format!("{root}/var/lib/atlas/{NAME}");
    let mut found = fs::read_dir(all)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let plain = |path: &PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with('.');
    found.find(plain).unwrap()
}

#[test]
fn paths_of_a_list_stay_in_their_folder() {
    let folder = Folder::new();
    let (model, root, dest) = (
        Model::copy("paths"),
        folder.path("root"),
        folder.path("dest"),
    );
    let bundle = bundle(&folder, "bundle", &model.0, "it ran");
    let fine = fs::read(format!("{bundle}/SHA256SUMS")).unwrap();
    let outside = folder.path("outside");
    // Where the joined path of the first two leads inside of the bundle.
    fs::create_dir_all(format!("{bundle}/weights{outside}")).unwrap();
    fs::write(format!("{bundle}/weights{outside}/x"), "").unwrap();
    for path in [
        &format!("weights/{outside}/x"),
        &format!("weights/./{outside}/x"),
        "weights/../weights/x",
        "/etc/hostname",
        "weights/",
        "weights/a\tb",
        ".",
        "",
    ] {
        let list = [fine.as_slice(), format!("{EMPTY}  {path}\n").as_bytes()].concat();
        fs::write(format!("{bundle}/SHA256SUMS"), list).unwrap();
        let line = fine.iter().filter(|byte| **byte == b'\n').count() + 1;
        let ways = [
            outcome(&["import", &bundle, &dest]),
            install(&bundle, &root),
            shell(&bundle, &format!("sh ./install.sh --root {root}")),
        ];
        for (code, said) in ways {
            let named = said.contains("SHA256SUMS") && said.contains(&format!("line {line} "));
            assert!(code == 78 && named, "{path:?}: {code} {said}");
            assert!(!said.contains("it ran"), "{path:?}: {said}");
        }
        assert!(
            !Path::new(&outside).exists() && !Path::new(&dest).exists(),
            "{path}"
        );
        assert_eq!(files(&root), Vec::<PathBuf>::new(), "{path}");
    }
}

#[test]
fn a_bundle_with_links_or_pipes_is_refused_and_does_not_hang() {
    let folder = Folder::new();
    let model = Model::copy("odd");
    let bundle = bundle(&folder, "bundle", &model.0, "it ran");
    let file = format!("{bundle}/weights/tokenizer.json");
    fs::rename(&file, folder.path("away")).unwrap();
    for make in ["ln -s ../../away", "mkfifo"] {
        assert_eq!(
            shell(&bundle, &format!("{make} weights/tokenizer.json")).0,
            0
        );
        let ways = [
            outcome(&["import", &bundle, &folder.path("dest")]),
            install(&bundle, &folder.path("root")),
            shell(
                &bundle,
                &format!("sh ./install.sh --root {}", folder.path("root")),
            ),
        ];
        for (code, said) in ways {
            let named = said.contains("tokenizer.json") && !said.contains("it ran");
            assert!(code != 0 && named, "{make}: {code} {said}");
        }
        fs::remove_file(&file).unwrap();
    }
    assert!(!Path::new(&folder.path("dest")).exists());
}

#[test]
fn what_root_alone_may_read_is_not_copied_for_another_user() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let (theirs, secret, dest) = (
        folder.path("theirs"),
        folder.path("secret"),
        folder.path("dest"),
    );
    let model = Model::copy("secret");
    fs::create_dir(&theirs).unwrap();
    for file in files(model.0.to_str().unwrap()) {
        fs::copy(&file, Path::new(&theirs).join(file.file_name().unwrap())).unwrap();
    }
    let give = |path: &str| lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    files(&theirs)
        .iter()
        .for_each(|file| give(file.to_str().unwrap()));
    give(&theirs);
    fs::write(&secret, "{\"of\": \"root\"}").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let leaks = |folder: &str| {
        let texts = files(folder)
            .into_iter()
            .filter_map(|file| fs::read(file).ok());
        texts
            .filter(|text| text.windows(6).any(|part| part == b"\"root\""))
            .count()
    };
    // A name that no checkpoint has is passed over.
    let unlisted = format!("{theirs}/notes.json");
    symlink(&secret, &unlisted).unwrap();
    give(&unlisted);
    assert_eq!(outcome(&["import", &theirs, &dest]).0, 0);
    assert_eq!(
        outcome(&["bundle", &folder.path("bundle"), "--weights", &theirs]).0,
        0
    );
    assert_eq!(leaks(&dest) + leaks(&folder.path("bundle/weights")), 0);
    // One that it may have is refused, be it a link or another name of the file.
    let listed = format!("{theirs}/generation_config.json");
    let _ = fs::remove_file(&listed);
    let plant: [&dyn Fn(); 2] = [
        &|| {
            symlink(&secret, &listed).unwrap();
            give(&listed);
        },
        &|| fs::hard_link(&secret, &listed).unwrap(),
    ];
    for (ix, plant) in plant.iter().enumerate() {
        plant();
        for verb in ["import", "bundle"] {
            let to = folder.path(&format!("{verb}-{ix}"));
            let line = match verb {
                "import" => vec![verb, &theirs, &to],
                _ => vec![verb, &to, "--weights", &theirs],
            };
            let (code, said) = outcome(&line);
            assert!(
                code == 78 && said.contains("generation_config.json"),
                "{verb}: {code} {said}"
            );
            assert!(!Path::new(&to).exists(), "{verb}");
        }
        fs::remove_file(&listed).unwrap();
    }
}

#[test]
fn what_is_planted_where_all_may_write_is_not_followed() {
    if !is_root() {
        return;
    }
    let folder = Folder::new();
    let (open, away) = (folder.path("open"), folder.path("away"));
    let model = Model::copy("sticky");
    for folder in [&open, &away] {
        fs::create_dir(folder).unwrap();
    }
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let theirs = |name: &str, to: &str| {
        let link = format!("{open}/{name}");
        symlink(to, &link).unwrap();
        lchown(&link, Some(STRANGER), Some(STRANGER)).unwrap();
    };
    let source = model.0.to_str().unwrap();
    let import = |dest: &str| outcome(&["import", source, &format!("{open}/{dest}")]);
    theirs("one.partial", &away);
    theirs(".one.0123456789abcdef.partial", &away);
    assert_eq!(import("one").0, 0);
    theirs("two", &away);
    theirs("way", &away);
    for dest in ["two", "way/x"] {
        let (code, said) = import(dest);
        assert!(code == 2 && said.contains(dest), "{dest}: {code} {said}");
        let line = ["bundle", &format!("{open}/{dest}"), "--weights", source];
        let (code, said) = outcome(&line);
        assert!(code == 2 && said.contains(dest), "{dest}: {code} {said}");
    }
    // Their folder under the name of an unfinished one.
    let planted = format!("{open}/.three.0123456789abcdef.partial");
    fs::create_dir(&planted).unwrap();
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&planted, Some(STRANGER), Some(STRANGER)).unwrap();
    assert_eq!(import("three").0, 0);
    let made = fs::metadata(format!("{open}/three")).unwrap();
    assert!(made.uid() == 0 && made.mode() & 0o777 == 0o755);
    assert_eq!(files(&away), Vec::<PathBuf>::new());
}

#[test]
fn outputs_replace_nothing_but_own_files() {
    let folder = Folder::new();
    let model = Model::copy("outputs");
    let weights = model.0.to_str().unwrap();
    let (requests, tokens) = (folder.path("in"), folder.path("tokens"));
    fs::write(&requests, "").unwrap();
    fs::write(&tokens, "1 5 9").unwrap();
    fs::write(folder.path("target"), "kept").unwrap();
    symlink(folder.path("target"), folder.path("link")).unwrap();
    symlink(folder.path("nothing"), folder.path("dangling")).unwrap();
    fs::create_dir(folder.path("folder")).unwrap();
    let _socket = UnixListener::bind(folder.path("socket")).unwrap();
    assert_eq!(shell(&folder.path(""), "mkfifo pipe").0, 0);
    let mut names = vec!["link", "dangling", "folder", "socket", "pipe"];
    if is_root() {
        fs::write(folder.path("theirs"), "kept").unwrap();
        chown(folder.path("theirs"), Some(STRANGER), None).unwrap();
        names.push("theirs");
    }
    let kind = |name: &str| {
        let found = fs::symlink_metadata(folder.path(name)).unwrap();
        (found.mode(), found.ino(), found.uid())
    };
    let refused = |name: &str, line: &[&str]| {
        let before = kind(name);
        let (code, said) = outcome(line);
        assert!(
            code == 2 && said.contains(&folder.path(name)),
            "{line:?}: {code} {said}"
        );
        assert_eq!(kind(name), before, "{line:?}");
    };
    for name in &names {
        refused(name, &["pack", weights, &folder.path(name)]);
    }
    refused("pipe", &["batch", &requests, &folder.path("pipe")]);
    refused("dangling", &["batch", &requests, &folder.path("dangling")]);
    let logits = [
        "logits",
        weights,
        "--tokens",
        &tokens,
        "--out",
        &folder.path("link"),
    ];
    refused("link", &logits);
    assert_eq!(fs::read_to_string(folder.path("target")).unwrap(), "kept");
    assert!(!Path::new(&folder.path("nothing")).exists());
}

#[test]
fn an_import_that_fails_or_would_lose_something_leaves_what_is_there() {
    let folder = Folder::new();
    let (model, dest) = (Model::copy("import"), folder.path("dest"));
    let good = bundle(&folder, "good", &model.0, "good");
    assert_eq!(outcome(&["import", &good, &dest]).0, 0);
    let inode = fs::metadata(&dest).unwrap().ino();
    let damaged = bundle(&folder, "damaged", &model.0, "damaged");
    let file = format!("{damaged}/weights/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (code, said) = outcome(&["import", &damaged, &dest]);
    assert!(
        code == 78 && said.contains("model.safetensors"),
        "{code} {said}"
    );
    // Weights that are as the list states, and none of this model.
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    sums(&damaged);
    assert_eq!(outcome(&["import", &damaged, &dest]).0, 78);
    assert_eq!(fs::metadata(&dest).unwrap().ino(), inode);
    assert_eq!(outcome(&["verify", &dest]).0, 0);
    fs::write(format!("{dest}/notes.txt"), "mine").unwrap();
    let (code, said) = outcome(&["import", &good, &dest]);
    assert!(code == 2 && said.contains("notes.txt"), "{code} {said}");
    fs::remove_file(format!("{dest}/notes.txt")).unwrap();
    assert_eq!(outcome(&["import", &good, &dest]).0, 0);
    assert_eq!(outcome(&["verify", &dest]).0, 0);
    assert_eq!(
        fs::read_dir(folder.path("")).unwrap().count(),
        3,
        "nothing is left beside"
    );
}

/// Calls that change what lies on a disk, or wait until it does.
const CHANGES: [&str; 5] = ["mkdirat", "renameat2", "linkat", "unlinkat", "fsync"];

/// Runs a verb, which is killed before it makes such a call for the `nth` time; whether it was, for
/// there may be fewer.
fn killed_before(nth: usize, call: &str, line: &[&str]) -> bool {
    let inject = format!("inject={call}:signal=KILL:when={nth}");
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", &inject, &BINARY]);
    let status = strace.args(line).stdout(Stdio::null()).status().unwrap();
    assert!(
        status.success() || status.signal() == Some(9),
        "{call} {nth}: {status}"
    );
    !status.success()
}

/// Runs a verb for each of its changes, before which it is killed, and for each kind of them to its
/// end, each between `before` and `behind`. How often it was killed.
fn killed_at_each(line: &[&str], before: impl Fn(), mut behind: impl FnMut(&str)) -> usize {
    let until_its_end = |call: &&str| {
        let kills = (1..).take_while(|nth| {
            before();
            let was_killed = killed_before(*nth, call, line);
            behind(&format!("{call} {nth}"));
            was_killed
        });
        kills.count()
    };
    CHANGES.iter().map(until_its_end).sum()
}

fn has_strace() -> bool {
    let there = shell("/", "command -v strace").0 == 0;
    if !there {
        println!("skipped: it needs strace");
    }
    there
}

/// Names and sizes of the files of a folder.
fn listed(folder: &Path) -> Vec<(PathBuf, u64)> {
    let files = files(folder.to_str().unwrap()).into_iter();
    let mut listed: Vec<_> = files
        .map(|file| {
            (
                file.file_name().unwrap().into(),
                file.metadata().unwrap().len(),
            )
        })
        .collect();
    listed.sort();
    listed
}

#[test]
fn an_upgrade_that_is_killed_leaves_the_old_one_or_the_new_one() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new();
    let (model, root) = (Model::copy("killed"), folder.path("root"));
    let packed = packed(&model);
    let old = bundle(&folder, "old", &model.0, "old");
    let new = bundle(&folder, "new", &packed, "new");
    fs::remove_file(packed).unwrap();
    let whole = [&old, &new].map(|bundle| listed(&Path::new(bundle).join("weights")));
    let programs = [&old, &new].map(|bundle| fs::read(format!("{bundle}/{NAME}")).unwrap());
    let program = || fs::read(format!("{root}/usr/local/bin/{NAME}")).unwrap();
    let unit = format!("{root}/etc/systemd/system/{NAME}.service");
    let mut seen = [0; 2];
    let prepare = || assert_eq!(install(&old, &root).0, 0);
    killed_at_each(&["install", &new, "--root", &root], prepare, |at| {
        // Both builds read both kinds of weights.
        assert!(whole.contains(&listed(&weights_of(&root))), "{at}");
        assert!(Path::new(&unit).is_file(), "{at}");
        let which = programs.iter().position(|found| *found == program());
        seen[which.unwrap()] += 1;
        assert_eq!(install(&new, &root).0, 0, "{at}");
        assert!(program() == programs[1] && listed(&weights_of(&root)) == whole[1]);
    });
    assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
}

#[test]
fn a_first_installation_that_is_killed_is_completed_or_removed() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new();
    let (model, root) = (Model::copy("first"), folder.path("root"));
    let bundle = bundle(&folder, "bundle", &model.0, "it ran");
    let weights = listed(&Path::new(&bundle).join("weights"));
    let program = format!("{root}/usr/local/bin/{NAME}");
    let is_whole = || Path::new(&program).exists() && listed(&weights_of(&root)) == weights;
    let line = ["install", &bundle, "--root", &root];
    let prepare = || drop(fs::remove_dir_all(&root));
    let mut completes = false;
    let kills = killed_at_each(&line, prepare, |at| {
        assert!(!Path::new(&program).exists() || is_whole(), "{at}");
        completes = !completes;
        if completes {
            assert_eq!(install(&bundle, &root).0, 0, "{at}");
            assert!(is_whole(), "{at}");
        }
        assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0, "{at}");
        assert_eq!(files(&root), Vec::<PathBuf>::new(), "{at}");
    });
    assert!(kills > 40, "{kills}");
}

#[test]
fn a_removal_that_is_killed_can_be_told_again() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new();
    let (model, root) = (Model::copy("removal"), folder.path("root"));
    let bundle = bundle(&folder, "bundle", &model.0, "it ran");
    let program = PathBuf::from(format!("{root}/usr/local/bin/{NAME}"));
    let list = PathBuf::from(format!("{root}/var/lib/atlas/{NAME}.installed"));
    let prepare = || assert_eq!(install(&bundle, &root).0, 0);
    let kills = killed_at_each(&["uninstall", "--root", &root], prepare, |at| {
        let left = files(&root);
        let is_list = |file: &PathBuf| *file == list;
        let goes_on = left.contains(&program) || left.iter().all(is_list);
        assert!(goes_on, "{at}: {left:?}");
        assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0, "{at}");
        assert_eq!(files(&root), Vec::<PathBuf>::new(), "{at}");
    });
    assert!(kills > 10, "{kills}");
}

#[test]
fn a_bundle_that_is_killed_is_begun_anew() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new();
    let (model, dest) = (Model::copy("unfinished"), folder.path("dest"));
    let line = ["bundle", &dest, "--weights", model.0.to_str().unwrap()];
    let prepare = || drop(fs::remove_dir_all(&dest));
    let kills = killed_at_each(&line, prepare, |at| {
        let (code, said) = outcome(&line);
        let is_whole = code == 2 && said.contains("is not empty");
        assert!(code == 0 || is_whole, "{at}: {code} {said}");
        let (code, said) = shell(&dest, "sha256sum --strict --quiet -c SHA256SUMS");
        assert!(
            code == 0 && !Path::new(&dest).join(".unfinished").exists(),
            "{at}: {said}"
        );
    });
    assert!(kills > 10, "{kills}");
}

#[test]
fn weights_of_an_older_build_stay_until_the_new_binary_is_there() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new();
    let (model, root) = (Model::copy("builds"), folder.path("root"));
    let [old, new] = ["old", "new"].map(|text| bundle(&folder, text, &model.0, text));
    let program = format!("{root}/usr/local/bin/{NAME}");
    let record = format!("{root}/var/lib/atlas/{NAME}.installed");
    let older = PathBuf::from(format!("{root}/var/lib/atlas/{NAME}/0-0"));
    let count = files(&format!("{old}/weights")).len();
    assert_eq!(install(&old, &root).0, 0);
    let own = weights_of(&root);
    let name = own.file_name().unwrap().to_str().unwrap();
    let prepare = || {
        let _ = fs::remove_dir_all(&root);
        assert_eq!(install(&old, &root).0, 0);
        let list = fs::read_to_string(&record).unwrap().replace(name, "0-0");
        fs::write(&record, list).unwrap();
        fs::rename(&own, &older).unwrap();
    };
    killed_at_each(&["install", &new, "--root", &root], prepare, |at| {
        let is_new = fs::read_to_string(&program).unwrap().contains("new");
        let whole = if is_new { &own } else { &older };
        assert_eq!(files(whole.to_str().unwrap()).len(), count, "{at}");
    });
    assert!(!older.exists());
}

#[test]
fn what_runs_goes_on_while_a_newer_one_is_installed() {
    let folder = Folder::new();
    let (model, root) = (Model::copy("running"), folder.path("root"));
    let packed = packed(&model);
    let bundle = bundle(&folder, "bundle", &packed, "a script");
    fs::remove_file(packed).unwrap();
    // A program that the system keeps from being written to while it runs.
    let program = format!("{bundle}/{NAME}");
    fs::copy("/bin/sleep", &program).unwrap();
    sums(&bundle);
    assert_eq!(install(&bundle, &root).0, 0);
    let mut running = Command::new(format!("{root}/usr/local/bin/{NAME}"))
        .arg("60")
        .spawn()
        .unwrap();
    let weights = format!("{root}/var/lib/atlas/{NAME}");
    let server = Server::start_with(&[&weights]);
    let (code, said) = install(&bundle, &root);
    assert_eq!(code, 0, "{said}");
    // Damaged weights are refused before anything moves.
    let file = files(&format!("{bundle}/weights")).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    bytes[5000] ^= 1;
    fs::write(&file, bytes).unwrap();
    sums(&bundle);
    let (code, said) = install(&bundle, &root);
    assert!(code == 78 && said.contains("piece 0"), "{code} {said}");
    assert_eq!(outcome(&["verify", "--full", &weights]).0, 0);
    // The guard of a mapping looks ten times a second.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(server.chat(&question("Hello", 2)).status, 200);
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn equal_weights_of_two_binaries_are_one_file_and_each_goes_alone() {
    let folder = Folder::new();
    let (model, root) = (Model::copy("shared"), folder.path("root"));
    let bundle = bundle(&folder, "bundle", &model.0, "a script");
    let other = format!("{root}/var/lib/atlas/atlas-other/0-0");
    fs::create_dir_all(&other).unwrap();
    for file in files(&format!("{bundle}/weights")) {
        let to = Path::new(&other).join(file.file_name().unwrap());
        fs::copy(&file, &to).unwrap();
        // One of equal size and other content.
        if file.ends_with("tokenizer.json") {
            let mut bytes = fs::read(&file).unwrap();
            bytes[100] ^= 1;
            fs::write(&to, bytes).unwrap();
        }
    }
    assert_eq!(install(&bundle, &root).0, 0);
    let names = |name: &str| weights_of(&root).join(name).metadata().unwrap().nlink();
    assert_eq!(
        (names("model.safetensors"), names("tokenizer.json")),
        (2, 1)
    );
    assert_eq!(install(&bundle, &root).0, 0);
    let there = files(&other).len();
    assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0);
    assert!(files(&other).len() == there && files(&root).len() == there);
}

#[test]
fn uninstall_leaves_what_install_did_not_place() {
    let folder = Folder::new();
    let root = folder.path("root");
    let write = |path: &str, text: &str| {
        let path = format!("{root}/{path}");
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let settings = format!("etc/atlas/{NAME}.toml");
    let list = format!("/.\n/usr/bin/{NAME}\n/{settings}\n");
    write(&format!("var/lib/dpkg/info/{NAME}.list"), &list);
    write(&settings, "port = 9000\n");
    write(&format!("usr/bin/{NAME}"), "of the package");
    write(
        &format!("var/lib/atlas/{NAME}/model.safetensors"),
        "of the owner",
    );
    write("var/lib/atlas/tiny/model.safetensors", "of the owner");
    let there = files(&root);
    let (code, said) = outcome(&["uninstall", "--root", &root]);
    assert!(code == 78 && said.contains("apt remove"), "{code} {said}");
    assert_eq!(files(&root), there);
    // Beside a package, what a bundle placed goes alone.
    let model = Model::copy("packaged");
    let bundle = bundle(&folder, "bundle", &model.0, "a script");
    assert_eq!(install(&bundle, &root).0, 0);
    assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0);
    let mut left = files(&root);
    left.sort();
    let mut there = there;
    there.sort();
    assert_eq!(left, there);
    let kept = fs::read_to_string(format!("{root}/{settings}")).unwrap();
    assert_eq!(kept, "port = 9000\n");
}
