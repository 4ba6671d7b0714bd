//! Published weaknesses of crates: what is locked is free of those that are listed.

use std::fs;

use crate::site::Site;

/// The list: a row names a crate, an advisory and the first version without the weakness.
const ADVISORIES: &str = "ci/advisories.md";
const LOCK: &str = "Cargo.lock";

type Version = [u64; 3];

/// `major.minor.patch`, and perhaps more behind it.
fn version(text: &str) -> Option<Version> {
    let release = text.split(['-', '+']).next()?;
    let mut numbers = release.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// Names and versions of all locked crates.
fn locked(lock: &str) -> Vec<(&str, Version)> {
    fn field<'l>(package: &'l str, name: &str) -> Option<&'l str> {
        let opening = format!("{name} = \"");
        let mut lines = package.lines();
        lines.find_map(|line| line.strip_prefix(&opening)?.strip_suffix('"'))
    }
    let packages = lock.split("[[package]]").skip(1);
    let read = |package| {
        Some((
            field(package, "name")?,
            version(field(package, "version")?)?,
        ))
    };
    packages.filter_map(read).collect()
}

/// Rows of the list that a locked crate is older than, or that say nothing.
fn weak<'r>(list: &'r str, lock: &str) -> Vec<&'r str> {
    let locked = locked(lock);
    let rows = list.lines().filter(|line| line.starts_with("| `"));
    let is_weak = |row: &&str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some((name, mended)) = cells
            .get(1)
            .zip(cells.get(3).and_then(|cell| version(cell)))
        else {
            return true;
        };
        let mut found = locked
            .iter()
            .filter(|(known, _)| *known == name.trim_matches('`'));
        found.any(|(_, version)| *version < mended)
    };
    rows.filter(is_weak).collect()
}

#[test]
fn no_locked_crate_has_a_listed_weakness() {
    let root = Site::here().root;
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("it is there");
    let (list, lock) = (read(ADVISORIES), read(LOCK));
    assert!(locked(&lock).len() > 100 && list.contains("| `bytes` |"));
    assert_eq!(weak(&list, &lock), Vec::<&str>::new());
}

#[test]
fn an_older_crate_is_found() {
    let lock = "[[package]]\nname = \"a\"\nversion = \"1.9.0\"\n\n\
        [[package]]\nname = \"b\"\nversion = \"1.10.0+x\"\n";
    let list = "| `a` | X-1 | 1.10.0 |\n| `b` | X-2 | 1.10.0 |\n| `c` | X-3 | 9.0.0 |\n| `d` | |";
    assert_eq!(weak(list, lock), ["| `a` | X-1 | 1.10.0 |", "| `d` | |"]);
}
