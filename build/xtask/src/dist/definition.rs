//! The command line of the binaries, as `packaging/cli.json` states it.

use serde::Deserialize;

/// Path from the root of the workspace. A test of the binary's crate makes it.
pub const FILE: &str = "packaging/cli.json";

/// A command or one of its verbs.
#[derive(Debug, Deserialize)]
pub struct Command {
    pub description: String,
    pub examples: Vec<String>,
    pub flags: Vec<Flag>,
    pub commands: Vec<Verb>,
    pub positionals: Vec<Positional>,
    pub error_codes: Vec<ExitCode>,
}

/// A verb by its name.
#[derive(Debug, Deserialize)]
pub struct Verb {
    pub name: String,
    pub command: Command,
}

#[derive(Debug, Deserialize)]
pub struct Flag {
    kind: Kind,
    optionality: String,
    /// Name with its dashes.
    pub long: String,
    pub description: String,
    pub hidden: bool,
}

#[derive(Debug, Deserialize)]
enum Kind {
    Switch,
    Option { arg_name: String },
}

#[derive(Debug, Deserialize)]
pub struct Positional {
    pub name: String,
    pub description: String,
    optionality: String,
}

#[derive(Debug, Deserialize)]
pub struct ExitCode {
    pub code: i32,
    pub description: String,
}

impl Command {
    /// Reads the text of [`FILE`].
    ///
    /// # Errors
    /// If it is not of that form.
    pub fn parse(text: &str) -> Result<Command, String> {
        serde_json::from_str(text).map_err(|why| format!("{FILE}: {why}"))
    }

    /// Flags that are shown.
    pub fn shown(&self) -> impl Iterator<Item = &Flag> {
        self.flags.iter().filter(|flag| !flag.hidden)
    }

    /// All verbs below this command with the words that select them.
    pub fn verbs(&self) -> Vec<(Vec<&str>, &Command)> {
        let mut found = Vec::new();
        for verb in &self.commands {
            found.push((vec![verb.name.as_str()], &verb.command));
            found.extend(
                verb.command
                    .verbs()
                    .into_iter()
                    .map(|(mut words, command)| {
                        words.insert(0, &verb.name);
                        (words, command)
                    }),
            );
        }
        found
    }
}

impl Flag {
    /// Placeholder of its value; none for a switch.
    pub fn value(&self) -> Option<&str> {
        match &self.kind {
            Kind::Switch => None,
            Kind::Option { arg_name } => Some(arg_name),
        }
    }

    /// Whether its value is a file or a folder.
    pub fn is_path(&self) -> bool {
        const PATHS: [&str; 3] = ["file", "directory", "socket"];
        self.value().is_some() && PATHS.iter().any(|word| self.description.starts_with(word))
    }

    pub fn is_required(&self) -> bool {
        self.optionality == "Required"
    }
}

impl Positional {
    pub fn is_required(&self) -> bool {
        self.optionality == "Required"
    }
}

#[cfg(test)]
pub fn kept() -> Command {
    let path = crate::site::Site::here().root.join(FILE);
    Command::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_at_every_depth() {
        let command = kept();
        let verbs = command.verbs();
        let has = |words: &[&str]| verbs.iter().any(|(found, _)| found == words);
        assert!(has(&["serve"]) && has(&["bench", "decode"]) && !has(&["decode"]));
    }

    #[test]
    fn flags_tell_their_values() {
        let command = kept();
        let verbs = command.verbs();
        let (_, serve) = verbs.iter().find(|(words, _)| words == &["serve"]).unwrap();
        let flag = |name: &str| serve.flags.iter().find(|flag| flag.long == name).unwrap();
        assert!(flag("--golden").is_path() && !flag("--port").is_path());
        assert_eq!(flag("--help").value(), None);
    }
}
