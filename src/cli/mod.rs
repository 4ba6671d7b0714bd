//! The command line: verbs, flags and exit codes.

pub mod about;
pub mod boot;
pub mod check;
pub mod doctor;
pub mod drafts;
pub mod generate;
pub mod logits;
pub mod meter;
pub mod selftest;
pub mod serve;
pub mod synth;
pub mod verify;

use std::fmt;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use argh::FromArgs;

use crate::backend;
use crate::bench::{self, BenchError};

/// one binary that serves one model on one kind of hardware
#[derive(FromArgs, Debug)]
#[argh(
    help_triggers("--help"),
    example = "{command_name} serve WEIGHTS_DIR --port 8000",
    error_code(0, "ok"),
    error_code(2, "the command line is wrong"),
    error_code(69, "an address, another service or enough memory cannot be had"),
    error_code(70, "the device is missing or failed, or a check did"),
    error_code(74, "reading or writing failed"),
    error_code(75, "told to stop, and replies that took too long were cut"),
    error_code(78, "the weights or their configuration cannot be served")
)]
pub struct Atlas {
    #[argh(subcommand)]
    pub verb: Verb,
}

#[derive(FromArgs, Debug)]
#[argh(subcommand)]
pub enum Verb {
    Serve(serve::Serve),
    Generate(generate::Generate),
    About(about::About),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Selftest(selftest::Selftest),
    Synth(synth::Synth),
    Logits(logits::Logits),
    Bench(bench::Command),
}

/// How the process ends; the numbers follow sysexits.h but for the usual 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Usage = 2,
    Unavailable = 69,
    Internal = 70,
    Io = 74,
    /// It was told to stop, and ended replies before their time.
    Cut = 75,
    Config = 78,
}

impl Exit {
    /// The failure that another process of this program ended with.
    pub fn of_code(code: i32) -> Option<Exit> {
        use Exit::{Config, Cut, Internal, Io, Unavailable, Usage};
        let failures = [Usage, Unavailable, Internal, Io, Cut, Config];
        failures.into_iter().find(|exit| *exit as i32 == code)
    }

    /// Ends the process after `grace`, whatever its threads wait for by then.
    pub fn within(self, grace: Duration) {
        thread::spawn(move || {
            thread::sleep(grace);
            backend::leave(self as i32)
        });
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a verb failed: what to say, and how to end.
#[derive(Debug, PartialEq)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
        }
    }
}

/// Runs `bench`.
///
/// # Errors
/// In the terms of exit codes.
pub fn bench(options: bench::Command) -> Result<(), Failure> {
    bench::run(options).map_err(|error| {
        let exit = match &error {
            BenchError::Start(failure) => failure.exit,
            BenchError::Option(_) => Exit::Usage,
            BenchError::Server(_) | BenchError::Requests { .. } => Exit::Unavailable,
            BenchError::File { .. } => Exit::Io,
            BenchError::Model(_) => Exit::Internal,
        };
        Failure::new(exit, error)
    })
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Parsed {
    Run(Box<Verb>),
    /// Text to print on standard output, such as help.
    Say(String),
    /// The command line is wrong; text for standard error.
    Wrong(String),
}

/// Reads the arguments behind the program's name. `--key=value` and `-h` are understood too.
pub fn parse(program: &str, arguments: &[String]) -> Parsed {
    if matches!(arguments, [only] if only == "--version" || only == "-V") {
        return Parsed::Say(format!("{}\n", about::version_line()));
    }
    let plain = plain_arguments(arguments);
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    match Atlas::from_args(&[program], &plain) {
        Ok(atlas) => Parsed::Run(Box::new(atlas.verb)),
        Err(early) if early.status.is_ok() => Parsed::Say(early.output),
        Err(early) => Parsed::Wrong(early.output),
    }
}

/// Splits `--key=value` and spells out `-h`, up to `--`.
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
        assert_eq!(serve.model_name, crate::target::MODEL_ID);
        assert!(serve.weights.is_none() && serve.host.is_none() && serve.port.is_none());
    }

    #[test]
    fn help_is_there_for_all_and_for_each_verb() {
        for verb in [
            "", "serve", "generate", "about", "verify", "doctor", "selftest", "synth", "logits",
            "bench",
        ] {
            for flag in ["-h", "--help"] {
                let said = parsed(&format!("{verb} {flag}"));
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
    fn a_prompt_may_look_like_a_flag_behind_two_dashes() {
        assert_eq!(prompt("generate -- --a=b"), "--a=b");
    }

    #[test]
    fn the_word_help_is_a_prompt() {
        assert_eq!(prompt("generate help"), "help");
    }
}
