//! `generate`: one reply on standard output, without a server.

use std::io::{self, Write};
use std::mem;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::{Exit, Failure};
use crate::embed::{Engine, Error, Piece, Request, Stream};
use crate::start::boot;

/// answer one prompt on standard output; what the model thinks before goes to standard error
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "generate", help_triggers("--help"))]
pub struct Generate {
    /// what to ask
    #[argh(positional)]
    pub prompt: String,

    /// directory that holds the weights, or packed file; none for a model inside the binary
    #[argh(option)]
    weights: Option<PathBuf>,

    /// tokens to generate at most (default: what fits)
    #[argh(option)]
    max_tokens: Option<usize>,

    /// randomness from 0 to 2; 0 always takes the most likely token (default: the model's)
    #[argh(option)]
    temperature: Option<f32>,

    /// seed of the choice of tokens (default 0)
    #[argh(option, default = "0")]
    seed: u64,
}

/// Prints the reply as it is generated.
pub fn run(options: &Generate) -> Result<(), Failure> {
    let engine = Engine::of(options.weights.as_deref())?;
    let printed = match engine.stream(&request(options)) {
        Ok(stream) => print_reply(stream),
        Err(error) => Err(refused(error)),
    };
    engine.close()?;
    printed
}

fn request(options: &Generate) -> Request {
    let request = Request::prompt(options.prompt.as_str()).seed(options.seed.cast_signed());
    let request = match options.max_tokens {
        Some(tokens) => request.max_tokens(tokens),
        None => request,
    };
    match options.temperature {
        Some(temperature) => request.temperature(f64::from(temperature)),
        None => request,
    }
}

/// Error that names the argument of the command line in place of the request's field.
fn refused(error: Error) -> Failure {
    let Error::Request { field, problem } = error else {
        return Exit::Internal.failure(error);
    };
    let argument = match field.as_deref() {
        Some("max_tokens") => "--max-tokens",
        Some("temperature") => "--temperature",
        _ => "PROMPT",
    };
    Exit::Usage.failure(format!("{argument}: {problem}"))
}

/// Prints the answer to standard output, reasoning to standard error.
fn print_reply(stream: Stream) -> Result<(), Failure> {
    let mut thinks = false;
    for piece in stream {
        match piece.map_err(|error| Exit::Internal.failure(error))? {
            Piece::Reasoning(text) => {
                thinks = true;
                show(&text);
            }
            Piece::Content(text) => {
                if mem::take(&mut thinks) {
                    show("\n\n");
                }
                boot::print(&text)?;
            }
            Piece::ToolCall { .. } | Piece::Arguments { .. } => {}
        }
    }
    boot::print("\n")
}

/// Writes to standard error. Errors are ignored: the reader still wants the answer.
fn show(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
