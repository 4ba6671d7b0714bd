//! The command line: verbs, flags and exit codes.

pub mod about;
pub mod ask;
pub mod batch;
pub mod config;
pub mod connect;
pub mod doctor;
pub mod drafts;
pub mod generate;
mod identity;
pub mod lines;
pub mod logits;
pub mod notify;
pub mod pack;
pub mod pages;
pub mod selftest;
pub mod serve;
mod size;
pub mod synth;
pub mod transfer;
pub mod usage;
pub mod verify;
pub mod warm;

use argh::{ArgsInfo, EarlyExit, FromArgs};

use self::config::Reading;
use crate::bench;
use crate::start::boot;
pub use crate::start::exit::{Exit, Failure};
use host::threads;
use model::backend;

/// Number of threads that resolve the name of a server.
const LOOK_UP: usize = 1;
/// Number of threads that report the progress of a verb.
const METER: usize = 1;

/// one binary that serves one model on one kind of hardware
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    help_triggers("--help"),
    example = "{command_name} serve WEIGHTS_DIR --port 8000",
    error_code(0, "ok"),
    error_code(2, "the command line is wrong"),
    error_code(69, "an address, another service or enough memory cannot be had"),
    error_code(70, "the device failed, or a check did"),
    error_code(71, "there is no driver or GPU that this binary can use"),
    error_code(74, "reading or writing failed"),
    error_code(75, "told to stop, and replies that took too long were cut"),
    error_code(78, "the weights, their configuration or another file cannot be used")
)]
pub struct Atlas {
    #[argh(subcommand)]
    pub verb: Verb,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Verb {
    Serve(serve::Serve),
    Generate(generate::Generate),
    Batch(batch::Batch),
    About(about::About),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Connect(connect::Connect),
    Try(ask::Try),
    Import(transfer::import::Import),
    Pack(pack::Pack),
    Bundle(transfer::bundle::Bundle),
    Install(transfer::install::Install),
    Uninstall(transfer::install::Uninstall),
    Selftest(selftest::Selftest),
    Synth(synth::Synth),
    Logits(logits::Logits),
    Bench(bench::Command),
}

impl Verb {
    /// Checks that the system allows the threads that a verb starts besides the main one. Verbs
    /// that start an engine have checks of their own.
    ///
    /// # Errors
    /// States how many threads are allowed, and the reason for the limit.
    pub fn require_threads(&self) -> Result<(), Failure> {
        use Verb::{About, Batch, Connect, Generate, Serve, Try};
        let needed = match self {
            Serve(_) | Generate(_) | Batch(_) | About(_) => return Ok(()),
            Connect(_) | Try(_) => LOOK_UP,
            _ => boot::THREADS + backend::threads() + threads::cores() + METER,
        };
        threads::require(needed).map_err(|why| Exit::Unavailable.failure(why))
    }
}

/// Outcome of parsing a command line.
#[derive(Debug)]
pub enum Parsed {
    Run(Box<Verb>),
    /// Text to print on standard output, such as help.
    Say(String),
    /// Fault of the command line or of the file that it names.
    Wrong(Failure),
}

/// Parses the arguments after the program's name, which may include `--key=value` and `-h`.
pub fn parse(program: &str, arguments: &[String]) -> Parsed {
    if matches!(arguments, [only] if only == "--version" || only == "-V") {
        return Parsed::Say(format!("{}\n", boot::version_line()));
    }
    let plain = plain_arguments(arguments);
    let mut plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    if let ["help", verbs @ ..] = plain.as_slice() {
        plain = [verbs, &["--help"]].concat();
    }
    if let ["serve", rest @ ..] = plain.as_slice() {
        return parse_serve(program, rest);
    }
    match Atlas::from_args(&[program], &plain) {
        Ok(atlas) => Parsed::Run(Box::new(atlas.verb)),
        Err(early) => ended(early),
    }
}

/// [`parse`] for `serve`, which has a file of settings.
fn parse_serve(program: &str, arguments: &[&str]) -> Parsed {
    match config::read(&[program, "serve"], arguments) {
        Ok(merged) if merged.serve.print_config => Parsed::Say(merged.text()),
        Ok(merged) => Parsed::Run(Box::new(Verb::Serve(merged.serve))),
        Err(Reading::Arguments(early)) => ended(early),
        Err(Reading::File(failure)) => Parsed::Wrong(failure),
    }
}

/// Help text, or the fault of the command line.
fn ended(early: EarlyExit) -> Parsed {
    match early.status {
        Ok(()) => Parsed::Say(early.output),
        Err(()) => Parsed::Wrong(Exit::Usage.failure(early.output)),
    }
}

/// Arguments up to `--` with `--key=value` split and `-h` spelt out.
fn plain_arguments(arguments: &[String]) -> Vec<String> {
    let mut plain = Vec::new();
    let mut rest = arguments.iter();
    for argument in rest.by_ref() {
        match argument.split_once('=') {
            _ if argument == "-h" => plain.push("--help".to_string()),
            Some((key, value)) if key.starts_with("--") => {
                plain.extend([key.to_string(), value.to_string()]);
            }
            _ => plain.push(argument.clone()),
        }
        if argument == "--" {
            break;
        }
    }
    plain.extend(rest.cloned());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Parsed {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        parse("atlas", &arguments)
    }

    #[test]
    fn flags_are_read_with_a_space_or_an_equals_sign() {
        for line in [
            "serve dir --port 9 --host ::1",
            "serve --port=9 --host=::1 dir",
        ] {
            match parsed(line) {
                Parsed::Run(verb) => match *verb {
                    Verb::Serve(serve) => {
                        assert_eq!(serve.port, Some(9));
                        assert_eq!(serve.host.unwrap().to_string(), "::1");
                        assert_eq!(serve.weights.unwrap().to_str(), Some("dir"));
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn serving_needs_no_flag() {
        let Parsed::Run(verb) = parsed("serve") else {
            panic!("it is refused")
        };
        let Verb::Serve(serve) = *verb else {
            panic!("another verb")
        };
        assert_eq!(serve.model_name, model::target::MODEL_ID);
        assert!(serve.weights.is_none() && serve.host.is_none() && serve.port.is_none());
    }

    #[test]
    fn a_model_has_a_name() {
        for name in ["", "a\nb"] {
            let arguments = ["serve", "--model-name", name].map(str::to_string);
            let Parsed::Wrong(failure) = parse("atlas", &arguments) else {
                panic!("{name:?} is taken")
            };
            assert_eq!(failure.exit, Exit::Usage);
            assert!(
                failure.message.contains("model-name"),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn help_is_there_for_all_and_for_each_verb() {
        for verb in [
            "",
            "serve",
            "generate",
            "batch",
            "about",
            "verify",
            "doctor",
            "connect",
            "try",
            "import",
            "pack",
            "bundle",
            "install",
            "uninstall",
            "selftest",
            "synth",
            "logits",
            "bench",
        ] {
            for line in [
                format!("{verb} -h"),
                format!("{verb} --help"),
                format!("help {verb}"),
            ] {
                let said = parsed(&line);
                assert!(
                    matches!(said, Parsed::Say(text) if text.contains("Usage:")),
                    "{verb}"
                );
            }
        }
        assert!(matches!(parsed("--help"), Parsed::Say(text) if text.contains("78 ")));
    }

    #[test]
    fn a_wrong_line_is_refused() {
        for line in [
            "",
            "dance",
            "serve --prot 9",
            "serve --port x",
            "serve --port=70000",
            "serve a b",
        ] {
            assert!(matches!(parsed(line), Parsed::Wrong(_)), "{line}");
        }
    }

    /// The prompt of a line for `generate`.
    fn prompt(line: &str) -> String {
        match parsed(line) {
            Parsed::Run(verb) => match *verb {
                Verb::Generate(generate) => generate.prompt,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prompt_may_look_like_a_flag_after_two_dashes() {
        assert_eq!(prompt("generate -- --a=b"), "--a=b");
    }

    #[test]
    fn the_word_help_is_a_prompt() {
        assert_eq!(prompt("generate help"), "help");
    }
}
