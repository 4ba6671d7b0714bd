//! The configuration file of `serve`: TOML whose keys are the flags' names. A flag on the command
//! line takes precedence over the file, the file over the default.

use std::collections::BTreeSet;
use std::path::Path;

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, FromArgs};
use toml::{Table, Value};

use super::serve::Serve;
use super::{Exit, Failure};
use host::operator_file;

/// Flag that names the file, also in messages.
const FLAG: &str = "--config";
/// Key in the file for the one positional argument.
const WEIGHTS: &str = "weights";
/// Flags that have no meaning in the file.
const OF_COMMANDS: [&str; 3] = ["help", "config", "print-config"];
/// Bytes of the largest configuration file.
const BYTES_MAX: u64 = 1024 * 1024;
/// Pairs of settings of which the first overrides the second: a socket replaces an address.
const ALTERNATIVES: [(&str, &str); 4] = [
    ("socket", "host"),
    ("socket", "port"),
    ("host", "socket"),
    ("port", "socket"),
];

/// Settings of `serve` from command line and file, and the source of each.
#[derive(Debug)]
pub struct Merged {
    pub serve: Serve,
    of_flags: BTreeSet<String>,
    of_file: BTreeSet<String>,
}

/// Reads the arguments of `serve`, and the file that they name.
///
/// # Errors
/// The error of argh about the command line, or the key of the file that is wrong.
pub fn read(command: &[&str], arguments: &[&str]) -> Result<Merged, Reading> {
    let serve = Serve::from_args(command, arguments).map_err(Reading::Arguments)?;
    let mut of_flags: BTreeSet<String> = names(arguments);
    of_flags.extend(serve.weights.is_some().then(|| WEIGHTS.to_string()));
    let Some(path) = &serve.config else {
        let of_file = BTreeSet::new();
        return Ok(Merged {
            serve,
            of_flags,
            of_file,
        });
    };
    let wrong = |why: String| {
        let message = format!("{FLAG} {}: {why}", path.display());
        Reading::File(Exit::Config.failure(message))
    };
    let table = load(path).map_err(wrong)?;
    let (added, of_file) = added(&table, &of_flags).map_err(wrong)?;
    // Arguments of the file come first, since all after `--` is text.
    let all = added.iter().map(String::as_str);
    let all: Vec<&str> = all.chain(arguments.iter().copied()).collect();
    let serve = Serve::from_args(command, &all);
    // The command line alone was right, so the file is at fault.
    let serve = serve.map_err(|early| wrong(early.output.trim().to_string()))?;
    Ok(Merged {
        serve,
        of_flags,
        of_file,
    })
}

/// Reason why `serve` does not start with the given arguments.
#[derive(Debug)]
pub enum Reading {
    /// The command line asks for help, or is wrong.
    Arguments(argh::EarlyExit),
    File(Failure),
}

/// Names of the flags in `arguments`, without dashes.
fn names(arguments: &[&str]) -> BTreeSet<String> {
    let flags = arguments.iter().take_while(|argument| **argument != "--");
    let names = flags.filter_map(|argument| argument.strip_prefix("--"));
    names.map(str::to_string).collect()
}

fn load(path: &Path) -> Result<Table, String> {
    let text = operator_file::text(path, BYTES_MAX);
    let text = text.map_err(|error| format!("{error}; name a file that can be read"))?;
    // The error shows the line, with a mark below the fault.
    text.parse()
        .map_err(|error: toml::de::Error| error.to_string().trim_end().to_string())
}

/// Arguments for the settings in `table`, without those that flags override, and the settings'
/// keys.
fn added(
    table: &Table,
    given: &BTreeSet<String>,
) -> Result<(Vec<String>, BTreeSet<String>), String> {
    let info = Serve::get_args_info();
    let (mut arguments, mut used) = (Vec::new(), BTreeSet::new());
    let mut positional = None;
    for (key, value) in table {
        let words = words(&info, key, value)?;
        let instead = |(flag, of): &(&str, &str)| given.contains(*flag) && of == key;
        if given.contains(key) || ALTERNATIVES.iter().any(instead) {
            continue;
        }
        used.insert(key.clone());
        if key == WEIGHTS {
            positional = words.into_iter().next();
        } else {
            arguments.extend(words);
        }
    }
    arguments.extend(positional);
    Ok((arguments, used))
}

/// Arguments that are equivalent to `key = value`.
fn words(info: &CommandInfoWithArgs, key: &str, value: &Value) -> Result<Vec<String>, String> {
    if key == WEIGHTS {
        return Ok(vec![word(key, value)?]);
    }
    let flags = info.flags.iter();
    let flags = flags.filter(|flag| !OF_COMMANDS.contains(&name(flag)));
    let Some(flag) = flags.clone().find(|flag| name(flag) == key) else {
        let known: Vec<&str> = [WEIGHTS].into_iter().chain(flags.map(name)).collect();
        let known = known.join(", ");
        return Err(format!("`{key}` is no flag of serve; it has {known}"));
    };
    let named = |value: &Value| Ok::<_, String>([flag.long.to_string(), word(key, value)?]);
    let values = match (&flag.kind, &flag.optionality, value) {
        (FlagInfoKind::Switch, _, Value::Boolean(on)) => {
            return Ok(on.then(|| flag.long.to_string()).into_iter().collect());
        }
        (FlagInfoKind::Switch, ..) => return Err(format!("`{key}` must be true or false")),
        (_, argh::Optionality::Repeating, Value::Array(values)) => values.as_slice(),
        (..) => std::slice::from_ref(value),
    };
    let words: Vec<_> = values.iter().map(named).collect::<Result<_, _>>()?;
    Ok(words.into_iter().flatten().collect())
}

/// Name of a flag without dashes.
fn name<'a>(flag: &FlagInfo<'a>) -> &'a str {
    flag.long.trim_start_matches('-')
}

fn word(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err(format!(
            "`{key}` must be a text or a number, or several of them where the flag \
                          may be repeated"
        )),
    }
}

impl Merged {
    /// All settings as a file for `--config`; defaults are comments.
    pub fn text(&self) -> String {
        let mut out =
            String::from("# A flag counts before the file, the file before the default.\n");
        for (key, value) in self.serve.settings() {
            let line = match value {
                Some(value) => format!("{key} = {value}"),
                None => format!("{key} ="),
            };
            let origin = match key {
                _ if self.of_flags.contains(key) => "from the command line",
                _ if self.of_file.contains(key) => "from the file",
                _ => "default",
            };
            let mark = if origin == "default" { "# " } else { "" };
            out.push_str(&format!("{mark}{line}  # {origin}\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::testing::Folder;

    /// Arguments that `serve` reads with a file of `text` and more of them.
    fn merged(text: &str, arguments: &[&str]) -> Result<Merged, String> {
        let folder = Folder::with("config.toml", text.as_bytes());
        let path = folder.join("config.toml");
        let arguments = [&["--config", path.to_str().unwrap()], arguments].concat();
        let read = read(&["atlas", "serve"], &arguments);
        read.map_err(|why| match why {
            Reading::Arguments(early) => early.output,
            Reading::File(failure) => {
                assert_eq!(failure.exit, Exit::Config);
                assert!(
                    failure.message.contains(path.to_str().unwrap()),
                    "{}",
                    failure.message
                );
                failure.message
            }
        })
    }

    #[test]
    fn a_flag_counts_before_the_file_and_the_file_before_the_default() {
        let text =
            "weights = \"dir\"\nport = 9\nallow-host = [\"a\", \"b\"]\nlog-level = \"debug\"";
        let found = merged(text, &["--port", "7"]).unwrap();
        assert_eq!(found.serve.port, Some(7));
        assert_eq!(found.serve.weights.as_deref(), Some(Path::new("dir")));
        assert_eq!(found.serve.allow_host.len(), 2);
        assert_eq!(found.serve.model_name, model::target::MODEL_ID);
        let found = merged("weights = \"dir\"", &["other"]).unwrap();
        assert_eq!(found.serve.weights.as_deref(), Some(Path::new("other")));
    }

    #[test]
    fn a_socket_on_the_command_line_replaces_the_address_of_the_file() {
        let found = merged("port = 9\nhost = \"::1\"", &["--socket", "s"]).unwrap();
        assert!(found.serve.port.is_none() && found.serve.host.is_none());
        let found = merged("socket = \"s\"", &["--port", "9"]).unwrap();
        assert!(found.serve.socket.is_none());
    }

    #[test]
    fn the_settings_of_packages_are_flags() {
        let text = include_str!("../../packaging/config.toml");
        let lines = text.lines().filter(|line| line.contains(" = "));
        let lines: Vec<&str> = lines.map(|line| line.trim_start_matches('#')).collect();
        let serve = merged(&lines.join("\n"), &[]).unwrap().serve;
        let keys = serve.api_keys_file.unwrap();
        assert!(keys.ends_with("@NAME@.service/api-keys") && serve.host.is_some());
    }

    #[test]
    fn what_is_wrong_in_the_file_is_named() {
        for (text, word) in [
            ("prot = 9", "`prot`"),
            ("port = = 9", "port = = 9"),
            ("port = 99999", "--port"),
            ("port = [9]", "`port`"),
            ("port = 9\nport = 8", "port"),
            ("config = \"x\"", "`config`"),
        ] {
            let why = merged(text, &[]).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        let missing = read(&["atlas", "serve"], &["--config", "/nowhere/atlas.toml"]);
        let Err(Reading::File(failure)) = missing else {
            panic!("{missing:?}")
        };
        assert!(failure.message.contains("/nowhere/atlas.toml"));
    }

    #[test]
    fn the_printed_settings_are_a_file_of_the_same() {
        let text = "port = 9\nallow-origin = [\"https://a.example\"]\nweights = \"a \\\" b\"";
        let first = merged(text, &["--model-name", "m"]).unwrap().text();
        assert!(first.contains("port = 9  # from the file"), "{first}");
        assert!(
            first.contains("model-name = \"m\"  # from the command line"),
            "{first}"
        );
        assert!(
            first.contains("# log-level = \"info\"  # default"),
            "{first}"
        );
        let again = merged(&first, &[]).unwrap();
        assert_eq!(again.serve.model_name, "m");
        assert_eq!(again.serve.weights.as_deref(), Some(Path::new("a \" b")));
    }

    #[test]
    fn every_flag_is_printed() {
        let serve = Serve::from_args(&["serve"], &[]).unwrap();
        let printed: BTreeSet<&str> = serve.settings().iter().map(|(key, _)| *key).collect();
        let info = Serve::get_args_info();
        let flags = info
            .flags
            .iter()
            .map(name)
            .filter(|name| !OF_COMMANDS.contains(name));
        let known: BTreeSet<&str> = flags.chain([WEIGHTS]).collect();
        assert_eq!(printed, known);
    }
}
