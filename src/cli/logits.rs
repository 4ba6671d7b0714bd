//! `logits`: what the model computes for given tokens, for another implementation to be compared.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

use argh::FromArgs;

use super::meter::Meter;
use super::{Exit, Failure, boot};
use crate::backend;
use crate::engine::executor::{Executor, LOGITS_ROWS_MAX, PageId, Rows, Slot};
use crate::engine::request::TokenId;
use crate::model::Runner;
use crate::target::{self, MAX_CONTEXT, PAGE, PREFILL_TOKENS, VOCAB};
use crate::weights::{self, Progress};

/// Largest file of tokens that is read.
const TOKENS_BYTES_MAX: u64 = 64 << 20;

/// write the logits of every position of a text, to compare with another implementation
#[derive(FromArgs, Debug)]
#[argh(subcommand, name = "logits", help_triggers("--help"))]
pub struct Logits {
    /// directory that holds the weights: any of the target's tensors
    #[argh(positional)]
    weights: PathBuf,

    /// file of token ids, with spaces or line ends between them
    #[argh(option)]
    tokens: PathBuf,

    /// file to write: 32-bit floats, little-endian, a row of the vocabulary for each token
    #[argh(option)]
    out: PathBuf,

    /// how many layers the weights have (default: all)
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// feed one token at a time, as when a reply is generated
    #[argh(switch)]
    decode: bool,
}

/// Runs the tokens as one sequence and writes the logits after each.
///
/// # Errors
/// Names the file, option or token that cannot be used.
pub fn run(options: &Logits) -> Result<(), Failure> {
    if options.layers == 0 || options.layers > target::LAYERS {
        let text = format!("--layers: 1 to {}, not {}", target::LAYERS, options.layers);
        return Err(Failure::new(Exit::Usage, text));
    }
    let tokens = tokens(options)?;
    let progress = Arc::new(Progress::default());
    let meter = Meter::start(&progress);
    let checkpoint = weights::open_layers(&options.weights, options.layers, progress)
        .map_err(|error| boot::start_failure(&error))?;
    boot::tell_detour(&checkpoint);
    let internal = |error| Failure::new(Exit::Internal, error);
    let device = backend::open().map_err(internal)?;
    let mut runner =
        Runner::load(device, &checkpoint).map_err(|error| boot::start_failure(&error))?;
    drop(meter);
    let written = |error| Failure::new(Exit::Io, format!("{}: {error}", options.out.display()));
    let mut out = BufWriter::new(File::create(&options.out).map_err(written)?);
    let pages = tokens.len().div_ceil(PAGE) as u32;
    let pages: Vec<_> = (0..pages).map(PageId).collect();
    let (mut start, mut logits) = (0, Vec::new());
    for chunk in tokens.chunks(if options.decode { 1 } else { PREFILL_TOKENS }) {
        let rows = Rows {
            slot: Slot(0),
            start,
            tokens: chunk,
            pages: &pages,
            logits: true,
        };
        runner.step(&[rows]).map_err(internal)?;
        if chunk.len() == 1 {
            write(&mut out, runner.logits(0).map_err(internal)?).map_err(written)?;
        } else {
            for first in (0..chunk.len()).step_by(LOGITS_ROWS_MAX) {
                let rows = first..chunk.len().min(first + LOGITS_ROWS_MAX);
                let rows: Vec<usize> = rows.collect();
                runner.logits_of(&rows, &mut logits).map_err(internal)?;
                write(&mut out, &logits).map_err(written)?;
            }
        }
        start += chunk.len();
    }
    out.flush().map_err(written)?;
    boot::print(&format!("{start} positions of {VOCAB} logits\n"))
}

fn write(out: &mut impl Write, logits: &[f32]) -> std::io::Result<()> {
    logits
        .iter()
        .try_for_each(|logit| out.write_all(&logit.to_le_bytes()))
}

fn tokens(options: &Logits) -> Result<Vec<TokenId>, Failure> {
    let name = options.tokens.display();
    let io = |error| Failure::new(Exit::Io, format!("{name}: {error}"));
    let wrong = |text: String| Failure::new(Exit::Usage, format!("{name}: {text}"));
    if fs::metadata(&options.tokens).map_err(io)?.len() > TOKENS_BYTES_MAX {
        return Err(wrong(format!("has more than {TOKENS_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(&options.tokens).map_err(io)?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Vec<TokenId>, String> {
    let token = |word: &str| match word.parse::<TokenId>() {
        Ok(token) if (token as usize) < VOCAB => Ok(token),
        _ => Err(format!("{word:?} is no token; they are 0 to {}", VOCAB - 1)),
    };
    let tokens = text.split_whitespace().map(token);
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    match tokens.len() {
        1..=MAX_CONTEXT => Ok(tokens),
        count => Err(format!("{count} tokens; give 1 to {MAX_CONTEXT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_or_the_wrong_one_is_named() {
        assert_eq!(parse("1 2\n3").unwrap(), [1, 2, 3]);
        for wrong in ["", "1 x", "-1", &VOCAB.to_string()] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("1 x").unwrap_err().contains("\"x\""));
    }

    #[test]
    fn logits_of_a_prompt_are_those_of_its_tokens_one_by_one() {
        let folder = std::env::temp_dir().join(format!("atlas-logits-{}", std::process::id()));
        let weights = folder.join("weights");
        weights::write_synthetic(&weights, 1, 2, &Progress::default()).unwrap();
        let (tokens, out) = (folder.join("tokens"), folder.join("out"));
        let text: Vec<String> = (0..PAGE + 3)
            .map(|at| (at * 7 % VOCAB).to_string())
            .collect();
        fs::write(&tokens, text.join(" ")).unwrap();
        let found = [false, true].map(|decode| {
            let options = Logits {
                weights: weights.clone(),
                tokens: tokens.clone(),
                out: out.clone(),
                layers: 1,
                decode,
            };
            run(&options).unwrap();
            fs::read(&out).unwrap()
        });
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found[0].len(), 4 * VOCAB * (PAGE + 3));
        assert!(found[0] == found[1]);
    }
}
