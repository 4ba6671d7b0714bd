//! The manual page, in the `man(7)` macros.

use super::definition::{Command, Flag, Positional};

/// Content of the page beside the command line.
pub struct About<'a> {
    /// Name of the binary.
    pub name: &'a str,
    pub version: &'a str,
    /// Date of the release, `YYYY-MM-DD`.
    pub date: &'a str,
    /// The model and the hardware, in a sentence.
    pub purpose: &'a str,
}

/// The page of section 1.
pub fn page(command: &Command, about: &About<'_>) -> String {
    let About {
        name,
        version,
        date,
        purpose,
    } = about;
    let upper = name.to_uppercase();
    let mut out = format!(
        ".TH {upper} 1 {date} \"Atlas {version}\" \"User Commands\"\n\
         .SH NAME\n{} \\- {}\n\
         .SH SYNOPSIS\n.B {}\n.I VERB\n[\\fIOPTIONS\\fR]\n\
         .SH DESCRIPTION\n{}\n.SH VERBS\n",
        plain(name),
        plain(&command.description),
        plain(name),
        plain(purpose),
    );
    for (words, verb) in command.verbs() {
        out.push_str(&section(name, &words, verb));
    }
    out.push_str(".SH EXIT STATUS\n");
    for code in &command.error_codes {
        out.push_str(&format!(
            ".TP\n{}\n{}\n",
            code.code,
            sentence(&code.description)
        ));
    }
    out.push_str(".SH EXAMPLES\n");
    for example in &command.examples {
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
    for place in &verb.positionals {
        let upper = place.name.to_uppercase();
        usage.push_str(&match place.is_required() {
            true => format!(" {upper}"),
            false => format!(" [{upper}]"),
        });
    }
    let mut out = format!(
        ".SS {}\n{}\n.PP\n.B {}\n",
        plain(&words.join(" ")),
        sentence(&verb.description),
        plain(&usage)
    );
    verb.positionals
        .iter()
        .for_each(|place| out.push_str(&positional(place)));
    verb.shown().for_each(|flag| out.push_str(&option(flag)));
    out
}

fn positional(place: &Positional) -> String {
    let upper = place.name.to_uppercase();
    format!(
        ".TP\n.I {}\n{}\n",
        plain(&upper),
        sentence(&place.description)
    )
}

fn option(flag: &Flag) -> String {
    let value = flag
        .value()
        .map(|value| format!(" \\fI{}\\fR", plain(&value.to_uppercase())));
    let required = if flag.is_required() { " Required." } else { "" };
    format!(
        ".TP\n\\fB{}\\fR{}\n{}{required}\n",
        plain(&flag.long),
        value.unwrap_or_default(),
        sentence(&flag.description)
    )
}

/// Text that begins with a capital and ends with a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters
        .next()
        .map(|c| c.to_uppercase().collect())
        .unwrap_or_default();
    let end = if text.ends_with('.') { "" } else { "." };
    plain(&format!("{first}{}{end}", letters.as_str()))
}

/// Text that roff takes as it stands.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::kept;
    use super::*;

    #[test]
    fn every_verb_and_flag_is_on_the_page() {
        let command = kept();
        let about = About {
            name: "atlas-x",
            version: "1",
            date: "2000-01-01",
            purpose: "Serves x.",
        };
        let page = page(&command, &about);
        for (words, verb) in command.verbs() {
            assert!(
                page.contains(&format!(".SS {}\n", plain(&words.join(" ")))),
                "{words:?}"
            );
            for flag in verb.shown() {
                assert!(
                    page.contains(&format!("\\fB{}\\fR", plain(&flag.long))),
                    "{}",
                    flag.long
                );
            }
        }
    }

    #[test]
    fn text_gives_roff_no_orders() {
        assert_eq!(plain(".x \\n a-b"), "\\&.x \\en a\\-b");
        assert_eq!(sentence("a thing"), "A thing.");
    }
}
