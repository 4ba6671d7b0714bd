//! The manual page in `man(7)` macros.

use argh::{FlagInfo, PositionalInfo};

use super::{Build, Command, is_required, shown, value, verbs};

/// Page of section 1 about `command`.
pub fn page(command: &Command, build: &Build<'_>) -> String {
    let Build {
        name,
        version,
        date,
        model,
        quant,
        hardware,
    } = build;
    let mut out = format!(
        ".TH {0} 1 \"{date}\" \"Atlas {version}\" \"User Commands\"\n\
         .SH NAME\n{0} \\- {1}\n\
         .SH SYNOPSIS\n.B {0}\n.I VERB\n[\\fIOPTIONS\\fR]\n\
         .SH DESCRIPTION\n{2}\n.SH VERBS\n",
        plain(name),
        plain(command.description),
        plain(&format!(
            "Serves {model} ({quant}) on {hardware} to OpenAI and Anthropic clients. Nothing is \
             downloaded and no other server is asked for anything."
        )),
    );
    for (words, verb) in verbs(command) {
        out.push_str(&section(name, &words, verb));
    }
    out.push_str(".SH EXIT STATUS\n");
    for code in command.error_codes {
        let meaning = sentence(code.description);
        out.push_str(&format!(".TP\n{}\n{meaning}\n", code.code));
    }
    out.push_str(".SH EXAMPLES\n");
    for example in command.examples {
        let example = example.replace("{command_name}", name);
        out.push_str(&format!(".PP\n.nf\n{}\n.fi\n", plain(&example)));
    }
    out.push_str(&format!(
        ".SH FILES\n.TP\n{0}\nThe manifest of this release, the list of what it contains and its \
         licences.\n",
        plain(&format!("/usr/share/doc/{name}/"))
    ));
    out
}

fn section(name: &str, words: &[&str], verb: &Command) -> String {
    let mut usage = format!("{name} {}", words.join(" "));
    for argument in verb.positionals {
        let upper = argument.name.to_uppercase();
        usage.push_str(&match is_required(&argument.optionality) {
            true => format!(" {upper}"),
            false => format!(" [{upper}]"),
        });
    }
    let mut out = format!(
        ".SS {}\n{}\n.PP\n.B {}\n",
        plain(&words.join(" ")),
        sentence(verb.description),
        plain(&usage)
    );
    for argument in verb.positionals {
        out.push_str(&positional(argument));
    }
    shown(verb).for_each(|flag| out.push_str(&option(flag)));
    out
}

fn positional(argument: &PositionalInfo<'static>) -> String {
    let upper = argument.name.to_uppercase();
    let (name, meaning) = (plain(&upper), sentence(argument.description));
    format!(".TP\n.I {name}\n{meaning}\n")
}

fn option(flag: &FlagInfo<'static>) -> String {
    let value = value(flag).map(|value| format!(" \\fI{}\\fR", plain(&value.to_uppercase())));
    let required = match is_required(&flag.optionality) {
        true => " Required.",
        false => "",
    };
    format!(
        ".TP\n\\fB{}\\fR{}\n{}{required}\n",
        plain(flag.long),
        value.unwrap_or_default(),
        sentence(flag.description)
    )
}

/// A text with a capital at its start and a full stop at its end.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().collect());
    let first: String = first.unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    plain(&format!("{first}{}{end}", letters.as_str()))
}

/// A text escaped for roff.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use argh::ArgsInfo;

    use super::*;
    use crate::cli::{Atlas, pages::Page};

    #[test]
    fn every_verb_and_flag_is_on_the_page() {
        let (command, page) = (Atlas::get_args_info(), Page::Man.own());
        for (words, verb) in verbs(&command) {
            let section = format!(".SS {}\n", plain(&words.join(" ")));
            assert!(page.contains(&section), "{words:?}");
            for flag in shown(verb) {
                let name = format!("\\fB{}\\fR", plain(flag.long));
                assert!(page.contains(&name), "{}", flag.long);
            }
        }
    }

    #[test]
    fn text_gives_roff_no_orders() {
        assert_eq!(plain(".x \\n a-b"), "\\&.x \\en a\\-b");
        assert_eq!(sentence("a thing"), "A thing.");
    }
}
