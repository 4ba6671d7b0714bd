//! Bundles for machines without a network, installed by the lines of their own README: what is
//! damaged is named before anything of a bundle runs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::corrupt::Model;
use crate::harness::{Folder, few_or_many, outcome};

/// Name of the binary in a bundle.
pub const NAME: &str = "atlas-cpu-tiny-nvfp4";
const WEIGHTS: &str = "weights/model.packed";
/// Bits from one trial to the next where a file is small; it has no factor in common with eight.
const STRIDE: usize = few_or_many(37, 1);

/// Exit code and all that was said.
fn told(done: Output) -> (i32, String) {
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (done.status.code().unwrap(), said)
}

pub fn shell(folder: &str, line: &str) -> (i32, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder);
    told(shell.output().unwrap())
}

/// Installs for `root` as the README of the bundle says, with a key where `begins` is minisign's.
fn install(bundle: &str, root: &str, begins: &str) -> (i32, String) {
    let readme = include_str!("../../src/cli/transfer/bundle.txt");
    let mut lines = readme.lines().map(str::trim_start);
    let line = lines.find(|line| line.starts_with(begins)).unwrap();
    let line = line.replace("KEY.pub", "../KEY.pub");
    shell(bundle, &format!("{line} --root {root}"))
}

const UNSIGNED: &str = "grep ' install.sh$'";
const SIGNED: &str = "minisign -V";

/// All files below a folder.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => open.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

pub fn sums(bundle: &str) {
    let list = "find . -type f ! -name 'SHA256SUMS*' | sed 's,^./,,' | sort";
    let list = format!("{list} | xargs sha256sum > SHA256SUMS");
    assert_eq!(shell(bundle, &list).0, 0);
}

/// A bundle with packed weights in three parts, as media want them that take no large files.
fn in_parts(folder: &Folder, name: &str) -> String {
    let (bundle, packed) = (folder.path("bundle"), folder.path("model.packed"));
    let model = Model::copy(&format!("bundle-{name}"));
    assert_eq!(outcome(&["pack", model.0.to_str().unwrap(), &packed]).0, 0);
    assert_eq!(outcome(&["bundle", &bundle, "--weights", &packed]).0, 0);
    let whole = files(&format!("{bundle}/weights")).remove(0);
    let split = format!("split -n 3 -d -a 3 {0} {0}.part && rm {0}", whole.display());
    assert_eq!(shell(&bundle, &split).0, 0);
    sums(&bundle);
    bundle
}

/// A bundle whose program only tells that it ran.
fn told_by_a_script(folder: &Folder) -> String {
    let bundle = folder.path("bundle");
    assert_eq!(outcome(&["bundle", &bundle]).0, 0);
    let program = format!("{bundle}/{NAME}");
    fs::write(&program, "#!/bin/sh\necho it ran\n").unwrap();
    fs::create_dir(format!("{bundle}/weights")).unwrap();
    fs::write(format!("{bundle}/{WEIGHTS}.part000"), "a part\n").unwrap();
    sums(&bundle);
    bundle
}

#[test]
fn a_bundle_installs_and_leaves_nothing() {
    let folder = Folder::new();
    let (bundle, root) = (folder.path("bundle"), folder.path("root"));
    assert_eq!(outcome(&["bundle", &bundle]).0, 0);
    let (code, said) = outcome(&["bundle", &bundle]);
    assert_eq!(code, 2, "a folder with something in it: {said}");
    for _ in 0..2 {
        let (code, said) = install(&bundle, &root, UNSIGNED);
        assert_eq!(code, 0, "{said}");
    }
    let placed = files(&root).len();
    assert_eq!(
        placed, 5,
        "binary, unit, drop-in, settings and the list of them"
    );
    assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0);
    assert_eq!(files(&root), Vec::<PathBuf>::new());
}

#[test]
fn any_flipped_bit_is_caught_before_anything_runs() {
    let folder = Folder::new();
    let (bundle, root) = (told_by_a_script(&folder), folder.path("root"));
    let (code, said) = install(&bundle, &root, UNSIGNED);
    assert!(code == 0 && said.contains("it ran"), "{said}");
    for file in files(&bundle) {
        let fine = fs::read(&file).unwrap();
        let name = file.strip_prefix(&bundle).unwrap().to_str().unwrap();
        for bit in (0..8 * fine.len()).step_by(STRIDE) {
            let mut flipped = fine.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, flipped).unwrap();
            let (code, said) = install(&bundle, &root, UNSIGNED);
            // A digit of the list is as wrong as the file that it belongs to.
            let named = said.contains(name) || name == "SHA256SUMS" && code != 0;
            assert!(
                code != 0 && named && !said.contains("it ran"),
                "bit {bit} of {name}: {code} {said}"
            );
        }
        fs::write(&file, fine).unwrap();
    }
}

#[test]
fn a_bundle_is_of_the_owner_of_the_key_or_not_installed() {
    if shell("/", "command -v minisign").0 != 0 {
        println!("skipped: minisign is not there");
        return;
    }
    let folder = Folder::new();
    let (bundle, root) = (told_by_a_script(&folder), folder.path("root"));
    let key = |name: &str| {
        let made = format!("minisign -G -W -f -p {name}.pub -s {name}.key");
        assert_eq!(shell(&folder.path(""), &made).0, 0);
    };
    key("KEY");
    let signed = shell(&bundle, "minisign -S -s ../KEY.key -m SHA256SUMS");
    assert_eq!(signed.0, 0, "{}", signed.1);
    let (code, said) = install(&bundle, &root, SIGNED);
    assert!(code == 0 && said.contains("it ran"), "{code} {said}");
    let refused = |what: &str| {
        let (code, said) = install(&bundle, &root, SIGNED);
        assert!(code != 0 && !said.contains("it ran"), "{what}: {said}");
    };
    for name in ["SHA256SUMS", "SHA256SUMS.minisig"] {
        let file = format!("{bundle}/{name}");
        let fine = fs::read(&file).unwrap();
        // The first line of a signature says nothing that is believed.
        let first = fine.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let from = if name.ends_with("sig") { 8 * first } else { 0 };
        for bit in (from..8 * fine.len()).step_by(STRIDE) {
            let mut flipped = fine.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, flipped).unwrap();
            refused(&format!("bit {bit} of {name}"));
        }
        fs::write(&file, fine).unwrap();
    }
    key("KEY");
    refused("another key");
    fs::remove_file(format!("{bundle}/SHA256SUMS.minisig")).unwrap();
    refused("no signature");
}

#[test]
fn weights_in_parts_are_installed_whole_or_the_part_is_named() {
    let folder = Folder::new();
    let (bundle, root) = (in_parts(&folder, "parts"), folder.path("root"));
    let part = files(&format!("{bundle}/weights"));
    let part = part
        .iter()
        .find(|path| path.extension().unwrap() == "part001");
    let part = part.unwrap();
    let fine = fs::read(part).unwrap();
    let mut flipped = fine.clone();
    flipped[1234] ^= 4;
    for damaged in [Some(&flipped[..]), Some(&fine[1..]), Some(&[]), None] {
        fs::remove_file(part).unwrap();
        if let Some(bytes) = damaged {
            fs::write(part, bytes).unwrap();
        }
        let (code, said) = install(&bundle, &root, UNSIGNED);
        assert!(code == 78 && said.contains(".part001"), "{code} {said}");
        // The program alone, without the script.
        let (code, said) = outcome(&["install", &bundle, "--root", &root]);
        assert!(
            [74, 78].contains(&code) && said.contains(".part001"),
            "{code} {said}"
        );
        assert!(
            files(&root)
                .iter()
                .all(|path| path.to_str().unwrap().contains(".partial"))
        );
        fs::write(part, &fine).unwrap();
    }
    let (code, said) = install(&bundle, &root, UNSIGNED);
    assert_eq!(code, 0, "{said}");
    let weights = format!("{root}/var/lib/atlas/{NAME}");
    assert_eq!(outcome(&["verify", "--full", &weights]).0, 0);
    let settings = fs::read_to_string(format!("{root}/etc/atlas/{NAME}.toml")).unwrap();
    assert!(
        settings.contains(&format!("weights = \"/var/lib/atlas/{NAME}\"")),
        "{settings}"
    );
    assert_eq!(outcome(&["uninstall", "--root", &root]).0, 0);
    assert_eq!(files(&root), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_installation_goes_on_with_the_same_command() {
    let folder = Folder::new();
    let (bundle, root) = (in_parts(&folder, "interrupted"), folder.path("root"));
    assert_eq!(install(&bundle, &root, UNSIGNED).0, 0);
    let whole = files(&root);
    let file = files(&format!("{root}/var/lib/atlas/{NAME}")).remove(0);
    let (bytes, fine) = (fs::metadata(&file).unwrap().len(), fs::read(&file).unwrap());
    // State of a run that ended within the second part, before it wrote the program.
    let weights = file.parent().unwrap();
    let name = weights.file_name().unwrap().to_str().unwrap();
    let unfinished = weights.with_file_name(format!(".{name}.0123456789abcdef.partial"));
    fs::rename(weights, &unfinished).unwrap();
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o700)).unwrap();
    let there = unfinished.join(file.file_name().unwrap());
    let cut = fs::OpenOptions::new().write(true).open(&there).unwrap();
    cut.set_len(bytes / 2).unwrap();
    let begun = there.metadata().unwrap().ino();
    fs::remove_file(format!("{root}/usr/local/bin/{NAME}")).unwrap();
    let (code, said) = install(&bundle, &root, UNSIGNED);
    assert_eq!(code, 0, "{said}");
    assert_eq!(files(&root).len(), whole.len());
    assert!(fs::read(&file).unwrap() == fine);
    assert_eq!(file.metadata().unwrap().ino(), begun, "it went on");
}

#[test]
fn a_full_disk_is_told_before_anything_is_written() {
    let folder = Folder::new();
    let (bundle, root) = (in_parts(&folder, "full"), folder.path("root"));
    let program = format!("{bundle}/{NAME}");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&root).unwrap();
    let inside = format!(
        "mount -t tmpfs -o size=1M none {root} && {program} install {bundle} --root {root}; \
         code=$?; find {root} -type f >&2; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &inside]);
    let (code, said) = told(command.output().unwrap());
    if said.contains("unshare:") || said.contains("mount:") {
        println!("skipped: no file system can be mounted here: {said}");
        return;
    }
    assert!(code == 74 && said.contains("are free"), "{code} {said}");
    assert!(
        !said.contains(&format!("\n{root}/")),
        "nothing is written: {said}"
    );
}
