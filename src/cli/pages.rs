//! The manual page and shell completions, generated from the definition of the command line.

use argh::{
    ArgsInfo, CommandInfoWithArgs as Command, FlagInfo, FlagInfoKind, FromArgValue, Optionality,
};

use super::Atlas;
use model::target;

mod completions;
mod manual;

/// A page about this program that it can print.
#[derive(Clone, Copy, Debug, FromArgValue)]
pub enum Page {
    Man,
    Bash,
    Zsh,
    Fish,
}

/// Facts of a build that the pages state.
struct Build<'a> {
    name: &'a str,
    version: &'a str,
    /// Date of the release as `YYYY-MM-DD`; empty if unknown.
    date: &'a str,
    model: &'a str,
    quant: &'a str,
    hardware: &'a str,
}

impl Page {
    /// Text of the page for this binary.
    pub fn own(self) -> String {
        self.of(&Build {
            name: target::BINARY,
            version: env!("CARGO_PKG_VERSION"),
            date: "",
            model: target::MODEL,
            quant: target::QUANT,
            hardware: target::HARDWARE,
        })
    }

    fn of(self, build: &Build<'_>) -> String {
        let command = Atlas::get_args_info();
        match self {
            Page::Man => manual::page(&command, build),
            Page::Bash => completions::bash(&command, build.name),
            Page::Zsh => completions::zsh(&command, build.name),
            Page::Fish => completions::fish(&command, build.name),
        }
    }
}

/// All verbs below a command, with the words that select them.
fn verbs(command: &Command) -> Vec<(Vec<&str>, &Command)> {
    let mut found = Vec::new();
    for verb in &command.commands {
        found.push((vec![verb.name], &verb.command));
        for (words, below) in verbs(&verb.command) {
            found.push(([&[verb.name], words.as_slice()].concat(), below));
        }
    }
    found
}

/// Flags that are not hidden.
fn shown(command: &Command) -> impl Iterator<Item = &FlagInfo<'static>> {
    command.flags.iter().filter(|flag| !flag.hidden)
}

/// Placeholder of a flag's value; None for a switch.
fn value(flag: &FlagInfo<'static>) -> Option<&'static str> {
    match flag.kind {
        FlagInfoKind::Switch => None,
        FlagInfoKind::Option { arg_name } => Some(arg_name),
    }
}

/// Whether the value of a flag is a path, by its description.
fn is_path(flag: &FlagInfo<'static>) -> bool {
    const PATHS: [&str; 3] = ["file", "directory", "socket"];
    value(flag).is_some() && PATHS.iter().any(|word| flag.description.starts_with(word))
}

fn is_required(optionality: &Optionality) -> bool {
    *optionality == Optionality::Required
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask dist` puts the facts of a release into the marks.
    #[test]
    fn packages_have_the_pages_of_this_command_line() {
        let marks = Build {
            name: "@NAME@",
            version: "@VERSION@",
            date: "@DATE@",
            model: "@MODEL@",
            quant: "@QUANT@",
            hardware: "@HARDWARE@",
        };
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/pages");
        let mut stale = Vec::new();
        for (page, name) in [
            (Page::Man, "atlas.1"),
            (Page::Bash, "atlas.bash"),
            (Page::Zsh, "atlas.zsh"),
            (Page::Fish, "atlas.fish"),
        ] {
            let made = page.of(&marks);
            if !std::fs::read_to_string(format!("{folder}/{name}")).is_ok_and(|text| text == made) {
                let path = std::env::temp_dir().join(name);
                std::fs::write(&path, made).unwrap();
                stale.push(path);
            }
        }
        assert!(
            stale.is_empty(),
            "{folder} is out of date: replace its files by {stale:?}"
        );
    }

    #[test]
    fn verbs_are_found_at_every_depth_and_flags_with_their_values() {
        let command = Atlas::get_args_info();
        let verbs = verbs(&command);
        let has = |words: &[&str]| verbs.iter().any(|(found, _)| found == words);
        assert!(has(&["serve"]) && has(&["bench", "decode"]) && !has(&["decode"]));
        let (_, serve) = verbs.iter().find(|(words, _)| words == &["serve"]).unwrap();
        let flag = |name: &str| serve.flags.iter().find(|flag| flag.long == name).unwrap();
        assert!(is_path(flag("--golden")) && !is_path(flag("--port")));
        assert_eq!(value(flag("--help")), None);
    }
}
