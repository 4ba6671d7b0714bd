//! Errors about a command line: the command, the nearest known word, and a hint at help.

use argh::{ArgsInfo, CommandInfoWithArgs};

use super::{Atlas, Exit, Failure};

/// Start of the parser's message about an unknown word.
const UNKNOWN: &str = "Unrecognized argument: ";
/// Most edits between a wrong word and the suggested one: a letter is added, left out or replaced,
/// or two neighbours are exchanged.
const EDITS_MAX: usize = 2;

/// Adds the command in front of a failure about its command line, and a hint at help at the end;
/// other failures stay unchanged. `arguments`: those after the program's name.
pub fn explained(program: &str, arguments: &[String], failure: Failure) -> Failure {
    if failure.exit != Exit::Usage {
        return failure;
    }
    let message = explanation(program, arguments, &failure.message);
    Failure { message, ..failure }
}

fn explanation(program: &str, arguments: &[String], problem: &str) -> String {
    let (names, info) = command(arguments);
    let command = [&[program], names.as_slice()].concat().join(" ");
    let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
    let problem = match problem.strip_prefix(UNKNOWN) {
        Some(word) => unknown(word, &info),
        None => problem,
    };
    let end = match problem.ends_with(['.', '?']) {
        true => "",
        false => ".",
    };
    format!("{command}: {problem}{end} `{command} --help` tells more")
}

/// Words that select a command, and the definition of its arguments and verbs.
fn command(arguments: &[String]) -> (Vec<&str>, CommandInfoWithArgs) {
    let (mut names, mut info) = (Vec::new(), Atlas::get_args_info());
    let words = arguments.iter().map(String::as_str);
    for word in words.skip_while(|word| *word == "help") {
        match info.commands.iter().find(|below| below.name == word) {
            Some(below) => info = below.command.clone(),
            None => break,
        }
        names.push(word);
    }
    (names, info)
}

fn unknown(word: &str, info: &CommandInfoWithArgs) -> String {
    match near(word, info) {
        Some(meant) => format!("{word} is not known; did you mean {meant}?"),
        None => format!("{word} is not known"),
    }
}

/// The nearest known flag or verb; None if none is near enough.
fn near(word: &str, info: &CommandInfoWithArgs) -> Option<String> {
    let flags = info.flags.iter().map(|flag| flag.long);
    let verbs = info.commands.iter().map(|below| below.name);
    let known: Vec<&str> = match word.starts_with('-') {
        true => flags.collect(),
        false => verbs.collect(),
    };
    let plain = word.trim_start_matches('-');
    let edits = |known: &str| strsim::osa_distance(plain, known.trim_start_matches('-'));
    let near = known.into_iter().map(|known| (edits(known), known));
    // Edits of half of a word would make it another word.
    let near = near.filter(|(edits, _)| *edits <= EDITS_MAX && 2 * edits < plain.len());
    near.min().map(|(_, known)| known.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, parse};
    use super::*;

    fn message(line: &str) -> String {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        let Parsed::Wrong(failure) = parse("atlas", &arguments) else {
            panic!("{line} is taken")
        };
        explained("atlas", &arguments, failure).message
    }

    #[test]
    fn a_near_miss_is_named_with_its_command_and_help() {
        for (line, text) in [
            (
                "serve --prot 9",
                "atlas serve: --prot is not known; did you mean --port?",
            ),
            (
                "serve -port 9",
                "atlas serve: -port is not known; did you mean --port?",
            ),
            ("sevre", "atlas: sevre is not known; did you mean serve?"),
            (
                "help docter",
                "atlas: docter is not known; did you mean doctor?",
            ),
            (
                "bench serv",
                "atlas bench: serv is not known; did you mean serve?",
            ),
        ] {
            let message = message(line);
            assert!(message.starts_with(text), "{message}");
            assert!(message.ends_with(" --help` tells more"), "{message}");
        }
    }

    #[test]
    fn what_is_near_to_nothing_is_named_alone() {
        for (line, text) in [
            (
                "dance",
                "atlas: dance is not known. `atlas --help` tells more",
            ),
            ("serve a b", "atlas serve: b is not known."),
            ("serve --xyz", "atlas serve: --xyz is not known."),
            (
                "serve --port x",
                "atlas serve: Error parsing option '--port' with value 'x'",
            ),
        ] {
            assert!(message(line).starts_with(text), "{}", message(line));
        }
        assert!(!message("").contains('\n'), "{}", message(""));
    }

    #[test]
    fn another_failure_is_shown_as_it_is() {
        let failure = || Exit::Io.failure("the disk is full");
        assert_eq!(explained("atlas", &[], failure()), failure());
    }
}
