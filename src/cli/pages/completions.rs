//! Completions for bash, zsh and fish.

use argh::FlagInfo;

use super::{Command, is_path, shown, value, verbs};

/// Function for bash-completion, which completes verbs, then the verb's flags and files.
pub fn bash(command: &Command, name: &str) -> String {
    let mut cases = String::new();
    let mut paths = String::new();
    for (words, verb) in verbs(command) {
        let flags = shown(verb).map(|flag| flag.long);
        let below = verb.commands.iter().map(|verb| verb.name);
        let offers: Vec<&str> = below.chain(flags).collect();
        let words = words.join(" ");
        let offers = offers.join(" ");
        cases.push_str(&format!("        '{words}') offers='{offers}' ;;\n"));
        for flag in shown(verb).filter(|flag| value(flag).is_some()) {
            let files = if is_path(flag) { "files" } else { "nothing" };
            paths.push_str(&format!("        '{words} {}') {files}=1 ;;\n", flag.long));
        }
    }
    let names: Vec<&str> = command.commands.iter().map(|verb| verb.name).collect();
    let names = names.join(" ");
    format!(
        r#"# bash completion of {name}
_{name}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local verb=${{COMP_WORDS[1]}} offers='' files='' nothing=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '{names} --help --version' -- "$word"))
        return
    fi
    case "$verb ${{COMP_WORDS[2]}}" in
{nested}    esac
    case "$verb $before" in
{paths}    esac
    [[ $nothing ]] && return
    case "$verb" in
{cases}    esac
    if [[ $files || $word != -* ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$word"))
    fi
    [[ $files ]] || COMPREPLY+=($(compgen -W "$offers" -- "$word"))
}}
complete -F _{name} {name}
"#,
        nested = nested(command),
    )
}

/// Cases of a shell script that join verbs of two words to one key for their flags.
fn nested(command: &Command) -> String {
    let verbs = verbs(command);
    let two = verbs.iter().filter(|(words, _)| words.len() > 1);
    two.map(|(words, _)| format!("        '{0}') verb='{0}' ;;\n", words.join(" ")))
        .collect()
}

/// Function for zsh's completion system.
pub fn zsh(command: &Command, name: &str) -> String {
    let mut out = format!("#compdef {name}\n\n_atlas_verbs() {{\n    local -a verbs=(\n");
    for verb in &command.commands {
        let words = quoted(&verb.command.description.replace(':', "\\:"));
        out.push_str(&format!("        {}:{words}\n", verb.name));
    }
    out.push_str("    )\n    _describe verb verbs\n}\n\n");
    out.push_str("_arguments -C '1:verb:_atlas_verbs' '*::argument:->rest'\n\ncase $words[1] in\n");
    for verb in &command.commands {
        out.push_str(&format!("    {})\n", verb.name));
        out.push_str(&zsh_arguments(&verb.command));
        out.push_str("        ;;\n");
    }
    out.push_str("esac\n");
    out
}

fn zsh_arguments(verb: &Command) -> String {
    if !verb.commands.is_empty() {
        let names: Vec<&str> = verb.commands.iter().map(|verb| verb.name).collect();
        let flags = verb.commands.iter().flat_map(|verb| shown(&verb.command));
        let mut specs: Vec<String> = flags.map(zsh_flag).collect();
        specs.sort();
        specs.dedup();
        return format!(
            "        _arguments '1:verb:({})' {} '*:file:_files'\n",
            names.join(" "),
            specs.join(" ")
        );
    }
    let specs: Vec<String> = shown(verb).map(zsh_flag).collect();
    format!("        _arguments {} '*:file:_files'\n", specs.join(" "))
}

fn zsh_flag(flag: &FlagInfo<'static>) -> String {
    let escaped = ['\\', '[', ']', ':']
        .iter()
        .fold(flag.description.to_string(), |text, sign| {
            text.replace(*sign, &format!("\\{sign}"))
        });
    let value = match (value(flag), is_path(flag)) {
        (None, _) => String::new(),
        (Some(value), true) => format!(":{value}:_files"),
        (Some(value), false) => format!(":{value}:"),
    };
    quoted(&format!("{}[{escaped}]{value}", flag.long))
}

/// Lines of `complete` for fish.
pub fn fish(command: &Command, name: &str) -> String {
    let mut out = format!("# fish completion of {name}\n");
    for verb in &command.commands {
        out.push_str(&format!(
            "complete -c {name} -n __fish_use_subcommand -f -a {} -d {}\n",
            verb.name,
            quoted(verb.command.description)
        ));
        for (_, below) in std::iter::once((vec![], &verb.command)).chain(verbs(&verb.command)) {
            let seen = format!("-n '__fish_seen_subcommand_from {}'", verb.name);
            for inner in &below.commands {
                let words = quoted(inner.command.description);
                let inner = &inner.name;
                out.push_str(&format!(
                    "complete -c {name} {seen} -a {inner} -d {words}\n"
                ));
            }
            for flag in shown(below) {
                out.push_str(&format!("complete -c {name} {seen} {}\n", fish_flag(flag)));
            }
        }
    }
    out
}

fn fish_flag(flag: &FlagInfo<'static>) -> String {
    let value = match (value(flag), is_path(flag)) {
        (None, _) => "",
        (Some(_), true) => " -r -F",
        (Some(_), false) => " -x",
    };
    let long = flag.long.trim_start_matches('-');
    format!("-l {long}{value} -d {}", quoted(flag.description))
}

/// Text in single quotes, escaped for all three shells.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "’"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command as Process, Stdio};

    use argh::ArgsInfo;

    use super::*;
    use crate::cli::Atlas;

    /// Runs `script` in a shell; what it prints. None where the shell is not installed.
    fn said(shell: &str, script: &str) -> Option<String> {
        let mut child = Process::new(shell)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        child
            .stdin
            .take()
            .unwrap()
            .write_all(script.as_bytes())
            .unwrap();
        let done = child.wait_with_output().unwrap();
        let wrong = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(wrong, "", "{shell}");
        Some(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Completions that bash offers for the words of a line.
    fn offered(line: &[&str]) -> String {
        let words: Vec<String> = line.iter().map(|word| quoted(word)).collect();
        let script = format!(
            "{}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_atlas-x\necho \"${{COMPREPLY[@]}}\"\n",
            bash(&Atlas::get_args_info(), "atlas-x"),
            words.join(" "),
            line.len() - 1
        );
        said("bash", &script).expect("every machine has bash")
    }

    #[test]
    fn bash_offers_verbs_and_their_flags() {
        assert_eq!(offered(&["atlas-x", "se"]), "serve selftest\n");
        assert_eq!(offered(&["atlas-x", "serve", "--por"]), "--port\n");
        assert_eq!(offered(&["atlas-x", "bench", "decode", "--po"]), "\n");
        assert_eq!(offered(&["atlas-x", "serve", "--port", ""]), "\n");
    }

    #[test]
    fn zsh_and_fish_can_read_theirs() {
        let command = Atlas::get_args_info();
        let zsh = zsh(&command, "atlas-x");
        assert!(zsh.contains("'--port[") && zsh.contains(" serve:'"));
        let check = format!("f() {{\n{zsh}\n}}\n");
        said("zsh", &check);
        let fish = fish(&command, "atlas-x");
        said("fish", &fish);
        assert!(fish.contains("-l port -x"));
    }
}
