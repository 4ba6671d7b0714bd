//! `logits`: logits of the model for given tokens, to compare with another implementation.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::transfer::copy::unwritable;
use super::{Exit, Failure};
use crate::start::boot;
use crate::start::boot::Files;
use crate::start::meter::Meter;
use check::window_ring;
use host::operator_file;
use host::output::Output;
use model::ROUTER_LOGITS;
use model::backend;
use model::ops::LOGITS_ROWS_MAX;
use model::target::{self, MAX_CONTEXT, PAGE, PREFILL_TOKENS, VOCAB};
use model::weights::Progress;
use step::executor::{BlockTable, Executor, PageId, SeqRows, Slot, TokenId};

/// Bytes of the largest file of tokens.
const TOKENS_BYTES_MAX: u64 = 64 << 20;

/// write the logits of every position of a text, to compare with another implementation
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "logits", help_triggers("--help"))]
pub struct Logits {
    /// directory that holds the weights, any of the target's tensors, or packed file of them
    #[argh(positional)]
    weights: PathBuf,

    /// file of token ids, with spaces or line ends between them
    #[argh(option)]
    tokens: PathBuf,

    /// file to write: 32-bit floats, little-endian, a row of the vocabulary for each token
    #[argh(option)]
    out: PathBuf,

    /// file to write beside it: for each token the logits of every layer's router, the shared
    /// expert's gate last. They decide the experts: the largest, the lower index on a tie
    #[argh(option)]
    routers: Option<PathBuf>,

    /// how many layers the weights have (default: all)
    #[argh(option, default = "target::LAYERS")]
    layers: usize,

    /// feed one token at a time, as when a reply is generated
    #[argh(switch)]
    decode: bool,
}

/// Runs the tokens as one sequence and writes the logits after each token.
///
/// # Errors
/// Names the file, option or token that cannot be used.
pub fn run(options: &Logits) -> Result<(), Failure> {
    if options.layers == 0 || options.layers > target::LAYERS {
        let text = format!("--layers: 1 to {}, not {}", target::LAYERS, options.layers);
        return Err(Exit::Usage.failure(text));
    }
    routed(options.routers.is_some(), ROUTER_LOGITS)?;
    let tokens = tokens(options)?;
    let progress = Arc::new(Progress::default());
    let meter = Meter::start(&progress);
    let checkpoint = Files::at(&options.weights)?.open_layers(options.layers, progress)?;
    let checkpoint = checkpoint.without_prediction();
    boot::log_doubts(&checkpoint);
    let internal = |error| Exit::Internal.failure(error);
    let mut runner = boot::load(backend::open()?, &checkpoint)?;
    drop(meter);
    let mut out = Floats::create(&options.out)?;
    let mut routers = options.routers.as_deref().map(Floats::create).transpose()?;
    let pages = tokens.len().div_ceil(PAGE) as u32;
    let pages: Vec<_> = (0..pages).map(PageId).collect();
    let window = window_ring(0, tokens.len(), PREFILL_TOKENS);
    let (mut start, mut logits, mut of_routers) = (0, Vec::new(), Vec::new());
    for chunk in tokens.chunks(if options.decode { 1 } else { PREFILL_TOKENS }) {
        let rows = SeqRows {
            window: BlockTable::whole(&window),
            ..SeqRows::of(Slot(0), start, chunk, &pages)
        };
        match &mut routers {
            None => runner.step(&[rows]).map_err(internal)?,
            Some(file) => {
                let step = runner.step_with_routers(&[rows], &mut of_routers);
                step.map_err(internal)?;
                by_row(&of_routers, chunk.len()).try_for_each(|row| file.write(row))?;
            }
        }
        if chunk.len() == 1 {
            out.write(runner.logits(0).map_err(internal)?)?;
        } else {
            for first in (0..chunk.len()).step_by(LOGITS_ROWS_MAX) {
                let rows = first..chunk.len().min(first + LOGITS_ROWS_MAX);
                let rows: Vec<usize> = rows.collect();
                runner.logits_of(&rows, &mut logits).map_err(internal)?;
                out.write(&logits)?;
            }
        }
        start += chunk.len();
    }
    out.finish()?;
    routers.map(Floats::finish).transpose()?;
    boot::print(&format!("{start} positions of {VOCAB} logits\n"))
}

/// Router logits of the shape `[layers, rows, ROUTER_LOGITS]`, in the order `[rows, layers]`.
fn by_row(routers: &[f32], rows: usize) -> impl Iterator<Item = &[f32]> {
    let layers = routers.len() / (rows * ROUTER_LOGITS);
    let at = move |(row, layer)| (layer * rows + row) * ROUTER_LOGITS;
    let positions = (0..rows).flat_map(move |row| (0..layers).map(move |layer| (row, layer)));
    positions.map(move |position| &routers[at(position)..][..ROUTER_LOGITS])
}

/// Writer of a file of 32-bit floats, little-endian.
struct Floats<'a> {
    path: &'a Path,
    file: BufWriter<Output>,
}

impl Floats<'_> {
    fn create(path: &Path) -> Result<Floats<'_>, Failure> {
        let file = Output::create(path).map_err(unwritable(path))?;
        let file = BufWriter::new(file);
        Ok(Floats { path, file })
    }

    fn write(&mut self, values: &[f32]) -> Result<(), Failure> {
        let mut bytes = values.iter().map(|value| value.to_le_bytes());
        bytes
            .try_for_each(|bytes| self.file.write_all(&bytes))
            .map_err(unwritable(self.path))
    }

    fn finish(self) -> Result<(), Failure> {
        let whole = self.file.into_inner().map_err(|error| error.into_error());
        let finished = whole.and_then(Output::finish);
        finished.map_err(unwritable(self.path))
    }
}

/// Refuses the option for router logits if no layer of the model has a router.
fn routed(wanted: bool, logits: usize) -> Result<(), Failure> {
    let text = "--routers: the layers of this model have no router; leave it out";
    match wanted && logits == 0 {
        true => Err(Exit::Usage.failure(text)),
        false => Ok(()),
    }
}

fn tokens(options: &Logits) -> Result<Vec<TokenId>, Failure> {
    let file = &options.tokens;
    let text = operator_file::text(file, TOKENS_BYTES_MAX).map_err(|why| Exit::Io.at(file, why))?;
    parse(&text).map_err(|problem| Exit::Usage.at(file, problem))
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
    use std::fs;

    use super::*;
    use host::testing::Folder;
    use model::weights;

    #[test]
    fn tokens_are_read_or_the_wrong_one_is_named() {
        assert_eq!(parse("1 2\n3").unwrap(), [1, 2, 3]);
        for wrong in ["", "1 x", "-1", &VOCAB.to_string()] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("1 x").unwrap_err().contains("\"x\""));
    }

    #[test]
    fn routers_that_no_layer_has_are_refused() {
        assert!(
            routed(true, 0)
                .unwrap_err()
                .message
                .starts_with("--routers: ")
        );
        assert!(routed(false, 0).is_ok() && routed(true, ROUTER_LOGITS).is_ok());
    }

    #[test]
    fn router_logits_are_dealt_to_rows() {
        let value = |at: usize| (at / ROUTER_LOGITS) as f32;
        let routers: Vec<f32> = (0..6 * ROUTER_LOGITS).map(value).collect();
        let found: Vec<f32> = by_row(&routers, 3).map(|part| part[0]).collect();
        assert_eq!(found, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }

    #[test]
    fn logits_of_a_prompt_are_those_of_its_tokens_one_by_one() {
        let folder = Folder::new();
        let weights = folder.join("weights");
        weights::write_synthetic(&weights, 1, &[], 2, &Progress::default()).unwrap();
        let [tokens, out, routers] = ["tokens", "out", "routers"].map(|name| folder.join(name));
        let text: Vec<String> = (0..PAGE + 3)
            .map(|at| (at * 7 % VOCAB).to_string())
            .collect();
        fs::write(&tokens, text.join(" ")).unwrap();
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        let found = ways.map(|(decode, telling)| {
            let options = Logits {
                weights: weights.clone(),
                tokens: tokens.clone(),
                out: out.clone(),
                routers: telling.then(|| routers.clone()),
                layers: 1,
                decode,
            };
            run(&options).unwrap();
            let routed = fs::read(&routers).unwrap_or_default();
            (fs::read(&out).unwrap(), routed)
        });
        assert_eq!(found[0].0.len(), 4 * VOCAB * (PAGE + 3));
        assert!(found.iter().all(|(logits, _)| *logits == found[0].0));
        assert!(found[..2].iter().all(|(_, routed)| routed.is_empty()));
        assert_eq!(found[2].1.len(), 4 * ROUTER_LOGITS * (PAGE + 3));
        assert!(found[2].1 == found[3].1);
    }
}
