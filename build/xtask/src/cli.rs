//! The command line: verbs, flags, and conventions that argh lacks.

use argh::{EarlyExit, FromArgs, SubCommands};

use crate::cmd;
use crate::site::{Failure, Site, unknown};

/// Builds, runs, tests and measures Atlas.
///
/// Exit codes: 0 success, 1 a build, test or check failed, 2 the command line makes no sense.
#[derive(FromArgs)]
struct Xtask {
    #[argh(subcommand)]
    verb: Verb,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Verb {
    Build(cmd::build::Build),
    Run(cmd::run::Run),
    Test(cmd::test::Test),
    Show(cmd::show::Show),
    Graph(cmd::show::Graph),
    Targets(cmd::show::Targets),
    Bench(cmd::bench::Bench),
    Figures(cmd::figures::Figures),
    Sizes(cmd::sizes::Sizes),
    Check(cmd::check::Check),
    New(cmd::model::New),
    Checkpoint(cmd::checkpoint::Checkpoint),
    Synth(cmd::synth::Synth),
    Weights(cmd::weights::Weights),
    Dist(cmd::dist::Dist),
    Mirror(cmd::mirror::Mirror),
    Workflows(cmd::workflows::Workflows),
    Clean(cmd::clean::Clean),
}

/// Names of all verbs.
fn verbs() -> impl Iterator<Item = &'static str> {
    Verb::COMMANDS.iter().map(|verb| verb.name)
}

/// Parses `args` and runs their verb.
///
/// # Errors
/// The verb's failure, or a usage error.
pub fn start(args: &[String]) -> Result<(), Failure> {
    let (args, rest) = split(args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Some(verb) = args.first()
        && !verb.starts_with('-')
        && !verbs().any(|known| known == *verb)
    {
        return Err(Failure::Usage(unknown("verb", verb, verbs())));
    }
    let args = match args.is_empty() {
        true => vec!["--help"],
        false => args,
    };
    match Xtask::from_args(&["cargo xtask"], &args) {
        Ok(xtask) => xtask.verb.start(&Site::find()?, rest),
        Err(EarlyExit {
            output,
            status: Ok(()),
        }) => {
            println!("{}", output.trim_end());
            Ok(())
        }
        Err(EarlyExit { output, .. }) => Err(Failure::Usage(output.trim_end().to_string())),
    }
}

/// Rewrites `args` in the one form that argh takes (`--key value`, `--help`), and splits them at
/// the first `--`.
fn split(args: &[String]) -> (Vec<String>, Vec<String>) {
    let cut = args.iter().position(|arg| arg == "--");
    let cut = cut.unwrap_or(args.len());
    let rest = args.get(cut + 1..).unwrap_or_default().to_vec();
    let plain = |arg: &String| match arg.split_once('=') {
        _ if arg == "-h" => vec!["--help".to_string()],
        Some((key, value)) if key.starts_with("--") => vec![key.to_string(), value.to_string()],
        _ => vec![arg.clone()],
    };
    (args[..cut].iter().flat_map(plain).collect(), rest)
}

impl Verb {
    fn start(self, site: &Site, rest: Vec<String>) -> Result<(), Failure> {
        if !rest.is_empty() && !matches!(self, Verb::Run(_) | Verb::Bench(_)) {
            let text = format!(
                "only `run` and `bench` take arguments after `--`; found `{}`",
                rest.join(" ")
            );
            return Err(Failure::Usage(text));
        }
        match self {
            Verb::Build(verb) => verb.start(site),
            Verb::Run(verb) => verb.start(site, &rest),
            Verb::Test(verb) => verb.start(site),
            Verb::Show(verb) => verb.start(site),
            Verb::Graph(verb) => verb.start(site),
            Verb::Targets(verb) => verb.start(site),
            Verb::Bench(verb) => verb.start(site, &rest),
            Verb::Figures(verb) => verb.start(site),
            Verb::Sizes(verb) => verb.start(site),
            Verb::Check(verb) => verb.start(site),
            Verb::New(verb) => verb.start(site),
            Verb::Checkpoint(verb) => verb.start(site),
            Verb::Synth(verb) => verb.start(site),
            Verb::Weights(verb) => verb.start(site),
            Verb::Dist(verb) => verb.start(site),
            Verb::Mirror(verb) => verb.start(site),
            Verb::Workflows(verb) => verb.start(site),
            Verb::Clean(verb) => verb.start(site),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn both_forms_of_a_flag_and_of_help_are_taken() {
        let (args, rest) = split(&words("dist t --out=a -h"));
        assert_eq!((args, rest), (words("dist t --out a --help"), vec![]));
    }

    #[test]
    fn what_follows_two_dashes_is_left_alone() {
        let (args, rest) = split(&words("run -- --port=0 -h -- x"));
        assert_eq!((args, rest), (words("run"), words("--port=0 -h -- x")));
    }

    #[test]
    fn an_unknown_verb_names_the_nearest() {
        let error = start(&words("biuld")).unwrap_err();
        assert!(
            matches!(&error, Failure::Usage(text) if text.contains("`build`")),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_flag_is_a_usage_error() {
        assert!(matches!(
            start(&words("targets --none")),
            Err(Failure::Usage(_))
        ));
    }

    #[test]
    fn every_verb_has_help() {
        for verb in verbs() {
            assert!(
                Xtask::from_args(&["xtask"], &[verb, "--help"])
                    .is_err_and(|exit| exit.status.is_ok()),
                "{verb}"
            );
        }
    }

    #[test]
    fn arguments_after_two_dashes_need_a_verb_that_takes_them() {
        assert!(matches!(
            start(&words("targets -- x")),
            Err(Failure::Usage(_))
        ));
    }
}
