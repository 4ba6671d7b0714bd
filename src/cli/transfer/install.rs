//! `install` copies a bundle to the paths of the service, `uninstall` removes it.
//!
//! New files are complete and verified under other names before any is renamed. The weights of each
//! build have a folder of their own, named after the layout that the build reads, so that a run
//! killed between the renames leaves a binary with its weights.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use super::copy::{self, Copy, Piece, unwritable};
use super::import::{self, Weights, of_bundle};
use super::record::{self, Record, record_path};
use super::stage::{self, Stage};
use super::sums::Sums;
use crate::cli::{Exit, Failure};
use crate::start::boot;
use crate::start::files::needs_weights;
use host::beneath::{Beneath, Dir};
use host::output::{self, Output};
use model::backend::READER;
use model::target;
use model::weights::packed;

/// install a bundle as a service of this machine
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "install", help_triggers("--help"))]
pub struct Install {
    /// the bundle
    #[argh(positional)]
    bundle: PathBuf,

    /// file of the minisign public key that it must be signed with (default: no signature is asked
    /// for, and every file is compared with the bundle's own list)
    #[argh(option)]
    public_key: Option<PathBuf>,

    /// directory that stands for / (default /)
    #[argh(option, default = "PathBuf::from(\"/\")")]
    root: PathBuf,
}

/// remove what `install` installed
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "uninstall", help_triggers("--help"))]
pub struct Uninstall {
    /// directory that stands for / (default /)
    #[argh(option, default = "PathBuf::from(\"/\")")]
    root: PathBuf,
}

const UNIT: &str = include_str!("../../../packaging/atlas.service");
const DROP_IN: &str = if cfg!(feature = "cuda") {
    include_str!("../../../packaging/drop-ins/gpu.conf")
} else {
    include_str!("../../../packaging/drop-ins/cpu.conf")
};
const SETTINGS: &str = include_str!("../../../packaging/config.toml");
const PROGRAMS: &str = "usr/local/bin";
const WEIGHTS: &str = "var/lib/atlas";
const MODE_PROGRAM: u32 = 0o755;
const MODE_TEXT: u32 = 0o644;

/// Directory in place of `/`, for tests and images.
pub(super) struct Root {
    path: PathBuf,
}

impl Root {
    pub(super) fn new(path: &Path) -> Root {
        Root {
            path: path.to_path_buf(),
        }
    }

    pub(super) fn shown(&self, path: &Beneath) -> PathBuf {
        self.path.join(path.as_str())
    }

    /// Report of a path that cannot be written, for `map_err`.
    pub(super) fn unwritable(&self, path: &Beneath) -> impl Fn(io::Error) -> Failure + use<> {
        let shown = self.shown(path);
        move |why| unwritable(&shown)(why)
    }

    /// The folder that holds a path, made if it is not there, and the last name.
    pub(super) fn make(&self, path: &Beneath) -> io::Result<(Dir, Beneath)> {
        let (folder, name) = Beneath::last(Path::new(path.as_str()))?;
        Ok((Dir::make(&self.path.join(folder))?, name))
    }

    /// Opens the folder around a path, with the last name of the path; None if the folder does not
    /// exist.
    pub(super) fn open(&self, path: &Beneath) -> io::Result<Option<(Dir, Beneath)>> {
        let (folder, name) = Beneath::last(Path::new(path.as_str()))?;
        match Dir::open(&self.path.join(folder)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(|folder| Some((folder, name))),
        }
    }

    /// Whether there is a file, folder or link at a path.
    pub(super) fn is_there(&self, path: &Beneath) -> bool {
        let found = self.open(path).ok().flatten();
        found.is_some_and(|(folder, name)| matches!(folder.look(&name), Ok(Some(_))))
    }
}

fn path(text: &str) -> Beneath {
    Beneath::parse(text).expect("paths of this program are plain")
}

pub(super) fn binary() -> Beneath {
    path(&format!("{PROGRAMS}/{}", target::BINARY))
}

/// Folder of the weights of all builds of this binary.
pub(super) fn weights() -> Beneath {
    path(&format!("{WEIGHTS}/{}", target::BINARY))
}

/// Folder of the weights that this build of the binary reads.
fn own_weights() -> Beneath {
    weights().join(&path(&packed::folder_name(READER.layout)))
}

fn settings() -> Beneath {
    path(&format!("etc/atlas/{}.toml", target::BINARY))
}

fn unit() -> Beneath {
    path(&format!("etc/systemd/system/{}.service", target::BINARY))
}

fn drop_in() -> Beneath {
    let folder = format!("{}.d", unit());
    path(&format!("{folder}/10-hardware.conf"))
}

/// Link by which systemd starts the unit at boot.
fn wanted() -> Beneath {
    let unit = format!("{}.service", target::BINARY);
    path(&format!(
        "etc/systemd/system/multi-user.target.wants/{unit}"
    ))
}

/// Texts of the installed files other than program and weights, by path. `brought`: whether weights
/// are outside of the binary.
fn texts(brought: bool) -> BTreeMap<Beneath, String> {
    let weights = match brought {
        true => format!("weights = \"/{}\"", weights()),
        false => "# The weights are inside the binary.".to_string(),
    };
    let fill = |text: &str| {
        text.replace("@NAME@", target::BINARY)
            .replace("@BINARY@", &format!("/{}", binary()))
            .replace("@WEIGHTS_LINE@", &weights)
    };
    BTreeMap::from([
        (settings(), fill(SETTINGS)),
        (unit(), fill(UNIT)),
        (drop_in(), fill(DROP_IN)),
    ])
}

/// Verifies and installs the files of a bundle; nothing is started.
///
/// # Errors
/// Names the file that is damaged, missing or cannot be written; the same command goes on.
pub fn run(options: &Install) -> Result<(), Failure> {
    let root = Root::new(&options.root);
    let (program, brought) = chosen(&options.bundle, options.public_key.as_deref())?;
    let is_upgrade = root.is_there(&binary());
    let weights = stage(&root, &brought)?;
    let staged = stage_program(&root, &program)?;
    let mut texts = texts(weights.is_some());
    // Existing settings are not overwritten.
    let unwritten = match root.is_there(&settings()) {
        true => texts.remove(&settings()),
        false => None,
    };
    let older = Record::read(&root)?;
    let mut installed = Record::default();
    installed.keep(&older, &settings());
    installed.add(binary(), program.sha256.clone().unwrap_or_default());
    for (path, text) in &texts {
        installed.add(path.clone(), record::digest_of(text));
    }
    if let Some(weights) = &weights {
        installed.add_weights(&brought, weights.dir(), &own_weights())?;
    }
    // The record precedes the renames, so that `uninstall` removes what a killed run leaves.
    older.with(&installed).write(&root)?;
    move_all(&root, weights, staged, &texts)?;
    older.without(&installed).remove(&root)?;
    installed.write(&root)?;
    boot::print(&what_next(&root, unwritten.as_deref(), is_upgrade))
}

/// Program and weights of a bundle, opened, with the digests of its list.
fn chosen(bundle: &Path, key: Option<&Path>) -> Result<(Piece, Weights), Failure> {
    let opened = Dir::open(bundle).map_err(copy::unreadable(bundle))?;
    let sums = Sums::read(&opened, key)?;
    let refused = |problem: String| Exit::Config.at(bundle, problem);
    let program = path(target::BINARY);
    let digest = sums.0.get(&program);
    let digest = digest.ok_or_else(|| refused(format!("is no bundle of {program}")))?;
    let brought = of_bundle(&opened, &sums)?;
    if brought.is_empty() && needs_weights() {
        return Err(refused("has no weights in its list".to_string()));
    }
    Ok((Piece::inside(&opened, &program, digest)?, brought))
}

/// Renames the new files to their paths: first the weights, which an older binary ignores.
fn move_all(
    root: &Root,
    weights: Option<Stage>,
    program: Output,
    texts: &BTreeMap<Beneath, String>,
) -> Result<(), Failure> {
    let weights = weights.map_or(Ok(()), Stage::finish);
    weights.map_err(root.unwritable(&own_weights()))?;
    program.finish().map_err(root.unwritable(&binary()))?;
    let mut texts = texts.iter();
    texts.try_for_each(|(path, text)| write(root, path, text))
}

/// Next steps for the operator. `unwritten`: settings that were not written, since a file exists.
fn what_next(root: &Root, unwritten: Option<&str>, is_upgrade: bool) -> String {
    let name = target::BINARY;
    let line = unwritten.and_then(|text| text.lines().find(|line| line.starts_with("weights")));
    let shown = root.shown(&settings());
    let stated = std::fs::read_to_string(&shown).unwrap_or_default();
    let note = match line {
        Some(line) if !stated.contains(line) => {
            let settings = shown.display();
            format!("{settings} stays as it is; `{line}` in it takes the new weights\n")
        }
        _ => String::new(),
    };
    let start = match is_upgrade {
        true => "try-restart",
        false => "enable --now",
    };
    format!(
        "{note}installed; `systemctl daemon-reload && systemctl {start} {name}` starts it, `{name} \
         uninstall` removes it\n"
    )
}

/// Copies the weights into a folder next to their path; None if they are inside the binary.
fn stage(root: &Root, brought: &Weights) -> Result<Option<Stage>, Failure> {
    if brought.is_empty() {
        return Ok(None);
    }
    let made = root.make(&own_weights());
    let (folder, name) = made.map_err(root.unwritable(&own_weights()))?;
    let others = installed_weights(root);
    let equal =
        |copy: &Copy<'_>, into: &Dir| Ok(link_equal(&others, copy, into).is_ok_and(|is| is));
    import::fill(brought, folder, &name, equal).map(Some)
}

/// Folders of installed weights, of all binaries and builds.
fn installed_weights(root: &Root) -> Vec<Dir> {
    let below = |dir: &Dir| -> Vec<Dir> {
        let names = dir.names().unwrap_or_default().into_iter();
        let names = names.filter(|name| !name.as_str().starts_with('.'));
        names.filter_map(|name| dir.folder(&name).ok()).collect()
    };
    let all = Dir::open(&root.path.join(WEIGHTS));
    let binaries = all.map(|all| below(&all)).unwrap_or_default();
    binaries.iter().flat_map(below).collect()
}

/// Links a file of another folder into this one if both have equal bytes.
fn link_equal(others: &[Dir], copy: &Copy<'_>, into: &Dir) -> io::Result<bool> {
    for other in others {
        let Ok(file) = other.read(&copy.to) else {
            continue;
        };
        if file.metadata()?.len() == copy.bytes() && copy.is_in(&file)? {
            into.remove(&copy.to)?;
            into.link(&file, &copy.to)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Copies the program to a temporary file next to its path.
fn stage_program(root: &Root, program: &Piece) -> Result<Output, Failure> {
    let unwritten = root.unwritable(&binary());
    let made = root.make(&binary());
    let output = made.and_then(|(folder, name)| Output::inside(folder, name));
    let output = output.map_err(&unwritten)?;
    let copy = Copy {
        pieces: std::slice::from_ref(program),
        to: binary(),
        mode: MODE_PROGRAM,
    };
    copy::enough(output.folder(), copy.bytes())?;
    let mut file: File = output.file().try_clone().map_err(unwritten)?;
    copy::into_file(&copy, &mut file, &root.shown(&binary()))?;
    Ok(output)
}

pub(super) fn write(root: &Root, path: &Beneath, text: &str) -> Result<(), Failure> {
    let written = root.make(path).and_then(|(folder, name)| {
        let mut output = Output::inside(folder, name)?;
        output.write_all(text.as_bytes())?;
        let mode = Permissions::from_mode(MODE_TEXT);
        output.file().set_permissions(mode)?;
        output.finish()
    });
    written.map_err(root.unwritable(path))
}

/// Removes the files that [`run`] recorded, and folders that become empty.
pub fn remove(options: &Uninstall) -> Result<(), Failure> {
    let root = Root::new(&options.root);
    let record = Record::read(&root)?;
    let packaged = |path: &&Beneath| record::is_packaged(&root, path);
    if let Some(path) = record.paths().find(packaged) {
        return Err(of_package(&root, path));
    }
    forget_unfinished(&root).map_err(root.unwritable(&weights()))?;
    if record.is_empty() {
        return none_recorded(&root);
    }
    // The program goes last: until then `uninstall` can be run again to remove the rest.
    let mut program = Record::default();
    program.keep(&record, &binary());
    let mut said = record.without(&program).remove(&root)?;
    forget_wanted(&root).map_err(root.unwritable(&wanted()))?;
    for path in [own_weights(), weights(), drop_in(), settings()] {
        record::remove_if_empty(&root, &path);
    }
    said.push_str(&program.remove(&root)?);
    Record::forget(&root)?;
    record::remove_if_empty(&root, &weights());
    said.push_str("removed; `systemctl daemon-reload` forgets the unit\n");
    boot::print(&said)
}

/// Removes unfinished files that killed runs left next to the paths of installed files.
fn forget_unfinished(root: &Root) -> io::Result<()> {
    if let Some((folder, name)) = root.open(&own_weights())? {
        stage::discard(&folder, &name)?;
    }
    for path in [binary(), settings(), unit(), drop_in(), record_path()] {
        if let Some((folder, name)) = root.open(&path)? {
            output::sweep(&folder, &name)?;
        }
    }
    Ok(())
}

/// Removes systemd's link to a unit that no longer exists.
fn forget_wanted(root: &Root) -> io::Result<()> {
    let Some((folder, name)) = root.open(&wanted())? else {
        return Ok(());
    };
    let leads = folder.link_target(&name);
    match leads.is_some_and(|leads| leads.ends_with(unit().as_str())) && !root.is_there(&unit()) {
        true => folder.remove(&name),
        false => Ok(()),
    }
}

fn none_recorded(root: &Root) -> Result<(), Failure> {
    let of_deb = path(&format!("usr/bin/{}", target::BINARY));
    if record::is_packaged(root, &of_deb) {
        return Err(of_package(root, &of_deb));
    }
    if let Some(path) = [binary(), unit()].iter().find(|path| root.is_there(path)) {
        let problem = "no record of `install` names it; remove it by hand if it is of no use";
        return Err(Exit::Config.at(&root.shown(path), problem));
    }
    // A run that was killed near its end may have left the folder of the weights.
    record::remove_if_empty(root, &weights());
    boot::print("nothing is installed\n")
}

fn of_package(root: &Root, path: &Beneath) -> Failure {
    let name = target::BINARY;
    let problem =
        format!("is of the package {name}; `apt remove {name}` removes it; nothing was removed");
    Exit::Config.at(&root.shown(path), problem)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use host::testing::Folder;

    struct Temp(Folder);

    impl Temp {
        fn new() -> Temp {
            Temp(Folder::new())
        }

        fn root(&self) -> Root {
            Root::new(&self.0)
        }

        fn uninstall(&self) -> Result<(), Failure> {
            remove(&Uninstall {
                root: self.0.to_path_buf(),
            })
        }

        fn has(&self, path: &Beneath) -> bool {
            self.0.join(path.as_str()).exists()
        }
    }

    /// Writes files and the record that names them.
    fn install(temp: &Temp) -> Record {
        let mut record = Record::default();
        let mut all = texts(true);
        all.insert(binary(), "program".to_string());
        all.insert(own_weights().join(&path("config.json")), "{}".to_string());
        for (path, text) in &all {
            write(&temp.root(), path, text).unwrap();
            record.add(path.clone(), record::digest_of(text));
        }
        record.write(&temp.root()).unwrap();
        record
    }

    #[test]
    fn units_and_settings_have_no_gap_left() {
        for (path, text) in texts(true) {
            assert!(!text.contains('@') || text.contains("~@"), "{path}: {text}");
            assert!(
                !text.contains("@NAME@") && !text.contains("@BINARY@"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_installed_is_removed_and_the_rest_stays() {
        let temp = Temp::new();
        install(&temp);
        let others = [
            "etc/atlas/other.toml",
            "var/lib/atlas/other/model",
            "usr/local/bin/other",
        ];
        for other in others {
            write(&temp.root(), &path(other), "").unwrap();
        }
        let left = weights().join(&path(".x.partial"));
        write(&temp.root(), &left, "of another").unwrap();
        for _ in 0..2 {
            temp.uninstall().unwrap();
        }
        assert!(others.iter().all(|other| temp.has(&path(other))) && temp.has(&left));
        assert!(!temp.has(&binary()) && !temp.has(&unit()) && !temp.has(&own_weights()));
        assert!(!temp.has(&drop_in().split().0.unwrap()));
    }

    #[test]
    fn what_was_changed_since_stays() {
        let temp = Temp::new();
        install(&temp);
        write(&temp.root(), &settings(), "port = 1\n").unwrap();
        temp.uninstall().unwrap();
        assert!(temp.has(&settings()) && !temp.has(&binary()));
    }

    #[test]
    fn what_is_not_recorded_or_of_a_package_is_refused_by_name() {
        let temp = Temp::new();
        write(&temp.root(), &binary(), "by hand").unwrap();
        let why = temp.uninstall().unwrap_err();
        assert!(why.message.contains("usr/local/bin"), "{why:?}");
        fs::remove_file(temp.0.join(binary().as_str())).unwrap();
        let name = target::BINARY;
        let list = path(&format!("var/lib/dpkg/info/{name}.list"));
        write(&temp.root(), &list, &format!("/usr\n/usr/bin/{name}\n")).unwrap();
        let why = temp.uninstall().unwrap_err();
        assert!(why.message.contains("apt remove"), "{why:?}");
        install(&temp);
        write(&temp.root(), &list, &format!("/{}\n", settings())).unwrap();
        let why = temp.uninstall().unwrap_err();
        assert!(why.message.contains(settings().as_str()), "{why:?}");
        assert!(temp.has(&binary()), "nothing was removed");
    }
}
