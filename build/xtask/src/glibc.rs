//! Stand-ins for the host's C library at link time, so that a binary runs with an older release:
//! empty libraries that name the older release's symbols, and its process start.
//!
//! The linker records for each symbol the version in the library that it sees. Loaders of later
//! systems have that version, too; a version that is later than the system's would be missing.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::graph::{Action, Code, Error, Graph, Input, Sandbox, Tool};
use crate::site::read;
use crate::toolchain::CargoAdditions;

/// The glibc release whose symbols the lists name.
pub const RELEASE: (u32, u32) = (2, 31);

/// Folder of the symbol lists and the start of a process, in workspace and action's folder.
const SOURCES: &str = "build/glibc";
const START: &str = "build/glibc/start.c";
/// Name of the folder that the linker searches first.
const FOLDER: &str = "glibc";
/// Folder in which the executor puts links to an action's tools.
const TOOLS: &str = ".tools";
/// Code whose change makes the libraries anew, as one of the symbol lists does: this file.
const CODE: Code = Code::Sources(&[include_str!("glibc.rs")]);

/// Programs that make objects and libraries for one triple.
pub struct Programs<'t> {
    /// The compiler driver that rustc links with.
    pub cc: &'t Tool,
    pub ar: &'t Tool,
    /// Programs that the compiler driver starts by name.
    pub beside: &'t [Tool],
}

/// Adds the libraries for `triple` to the inputs of cargo.
///
/// # Errors
/// If the graph already has them.
pub fn link_with(
    graph: &mut Graph,
    triple: &str,
    programs: &Programs<'_>,
    additions: &mut CargoAdditions,
) -> Result<(), Error> {
    let arch = triple.split('-').next().unwrap_or_default();
    let list = format!("{SOURCES}/{arch}.txt");
    let action = Action::built_in(format!("glibc {arch}"), "glibc", make, CODE)
        .arg("list", &list)
        .arg("cc", &programs.cc.name)
        .arg("ar", &programs.ar.name)
        .workspace(&list)
        .workspace(START)
        .tools([programs.cc, programs.ar])
        .tools(programs.beside)
        .output_tree(FOLDER);
    let from = graph.add(action)?.output(FOLDER);
    additions.inputs.push(Input {
        from,
        at: FOLDER.to_string(),
    });
    let variable = ("ATLAS_GLIBC".to_string(), format!("{{work}}/{FOLDER}"));
    additions.env.push(variable);
    Ok(())
}

/// Symbols of a library with one version.
struct Group<'l> {
    /// Name by which programs request the library from the loader, such as `libc.so.6`.
    library: &'l str,
    version: &'l str,
    /// Name, and for data the bytes, of each symbol.
    symbols: Vec<(&'l str, Option<&'l str>)>,
}

/// Parses a list: a line `library version`, then indented lines of names, with `:bytes` after data.
fn groups(list: &str) -> Result<Vec<Group<'_>>, String> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for line in list.lines() {
        let mut words = line.split_whitespace();
        if line.starts_with(' ') {
            let last = groups.last_mut().ok_or("names stand before a library")?;
            last.symbols
                .extend(words.map(|word| match word.split_once(':') {
                    Some((name, bytes)) => (name, Some(bytes)),
                    None => (word, None),
                }));
            continue;
        }
        let (Some(library), Some(version)) = (words.next(), words.next()) else {
            return Err(format!("`{line}` is not `library version`"));
        };
        groups.push(Group {
            library,
            version,
            symbols: Vec::new(),
        });
    }
    Ok(groups)
}

/// Assembly that defines the symbols of a library, and the linker script that gives them versions.
fn texts(groups: &[&Group<'_>]) -> (String, String) {
    let (mut assembly, mut script) = (String::new(), String::new());
    let written = "text grows in memory";
    for group in groups {
        writeln!(script, "{} {{ global:", group.version).expect(written);
        for (name, bytes) in &group.symbols {
            let kind = bytes.map_or("function", |_| "object");
            let bytes = bytes.unwrap_or("0");
            writeln!(
                assembly,
                ".globl {name}\n.type {name}, %{kind}\n.size {name}, {bytes}\n{name}:"
            )
            .expect(written);
            writeln!(script, "{name};").expect(written);
        }
        writeln!(script, "}};").expect(written);
    }
    writeln!(script, "ATLAS_NOTHING {{ local: *; }};").expect(written);
    (assembly, script)
}

/// File name by which `-l` finds a library; the C library's is a linker script naming its parts.
fn file_name(library: &str) -> String {
    let alone = library.starts_with("libc.") || library.starts_with("ld-");
    match library.split_once(".so") {
        Some((stem, _)) if !alone => format!("{stem}.so"),
        _ => library.to_string(),
    }
}

fn make(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let list = read(sandbox.work, sandbox.arg("list")?)?;
    let groups = groups(&list)?;
    let mut libraries: Vec<_> = groups.iter().map(|group| group.library).collect();
    libraries.dedup();
    fs::create_dir_all(sandbox.path(FOLDER)).map_err(|why| format!("{FOLDER}: {why}"))?;
    for library in &libraries {
        let of: Vec<_> = groups.iter().filter(|g| g.library == *library).collect();
        let (assembly, script) = texts(&of);
        sandbox.write("symbols.s", &assembly)?;
        sandbox.write("versions", &script)?;
        let to = format!("{FOLDER}/{}", file_name(library));
        let name = format!("-Wl,-soname,{library}");
        let linked = ["-shared", "-nostdlib", "-Wl,--version-script,versions"];
        compile(sandbox, &[&linked[..], &[&name, "symbols.s", "-o", &to]])?;
    }
    let object = ["-c", "-O2", "-fPIC", "-fno-stack-protector", START, "-o"];
    compile(sandbox, &[&object, &["glibc/Scrt1.o", "-DSTART"]])?;
    compile(sandbox, &[&object, &["nonshared.o"]])?;
    let archive = format!("{FOLDER}/libc_nonshared.a");
    run(sandbox, "ar", &["crsD", &archive, "nonshared.o"])?;
    let loader = libraries.iter().find(|name| name.starts_with("ld-"));
    let loader = loader.ok_or("the list names no loader `ld-`")?;
    let parts = format!("GROUP(libc.so.6 libc_nonshared.a AS_NEEDED({loader}))\n");
    sandbox.write(&format!("{FOLDER}/libc.so"), &parts)
}

fn compile(sandbox: &Sandbox<'_>, args: &[&[&str]]) -> Result<(), String> {
    run(sandbox, "cc", &args.concat())
}

/// Runs a declared tool without any variable of this process.
fn run(sandbox: &Sandbox<'_>, program: &str, args: &[&str]) -> Result<(), String> {
    let tools = sandbox.path(TOOLS);
    let program = sandbox.arg(program)?;
    let mut command = Command::new(tools.join(program));
    command.args(args).current_dir(sandbox.work);
    command.env_clear().env("PATH", &tools);
    command.env("TMPDIR", sandbox.work);
    let done = command.output();
    let done = done.map_err(|why| format!("{program} cannot be started: {why}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?}\n{}",
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_becomes_libraries_of_versions() {
        let groups = groups("libc.so.6 GLIBC_2.2.5\n  a b:8\n  c\nlibm.so.6 GLIBC_2.29\n  d\n");
        let groups = groups.unwrap();
        assert_eq!(
            groups[0].symbols,
            [("a", None), ("b", Some("8")), ("c", None)]
        );
        let (assembly, script) = texts(&[&groups[0]]);
        assert!(
            assembly.contains(".type b, %object\n.size b, 8\nb:\n"),
            "{assembly}"
        );
        assert!(
            script.starts_with("GLIBC_2.2.5 { global:\na;\nb;\nc;\n};"),
            "{script}"
        );
    }

    #[test]
    fn the_lists_name_no_later_release() {
        for list in [
            include_str!("../../glibc/x86_64.txt"),
            include_str!("../../glibc/aarch64.txt"),
        ] {
            let newest = groups(list).unwrap().into_iter().filter_map(|group| {
                let (major, minor) = group.version.strip_prefix("GLIBC_")?.split_once('.')?;
                let minor = minor.split('.').next()?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            });
            assert!(
                newest
                    .max()
                    .is_some_and(|newest: (u32, u32)| newest <= RELEASE)
            );
        }
    }

    #[test]
    fn only_the_parts_of_the_c_library_keep_their_names() {
        assert_eq!(file_name("libpthread.so.0"), "libpthread.so");
        assert_eq!(file_name("libc.so.6"), "libc.so.6");
        assert_eq!(file_name("ld-linux-x86-64.so.2"), "ld-linux-x86-64.so.2");
    }
}
