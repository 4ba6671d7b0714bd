//! `try`: one question to a running server, answered on standard output.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};
use tokio::runtime::Builder;

use super::connect::URL_DEFAULT;
use super::{Exit, Failure};
use crate::bench::client::Endpoint;
use crate::start::boot;
use host::operator_file;
use http::keys;

/// ask a running server
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "try", help_triggers("--help"))]
pub struct Try {
    /// the question
    #[argh(positional)]
    prompt: String,

    /// address of the server (default http://127.0.0.1:8000)
    #[argh(option, default = "URL_DEFAULT.to_string()")]
    url: String,

    /// file that holds the API key
    #[argh(option)]
    key_file: Option<PathBuf>,
}

/// Prints the answer as it arrives.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub fn run(options: &Try) -> Result<(), Failure> {
    let key = options.key_file.as_deref().map(|path| {
        let text = operator_file::text(path, keys::FILE_BYTES_MAX);
        let text = text.map(|text| text.trim().to_string());
        text.map_err(|why| Exit::Io.failure(format!("--key-file {}: {why}", path.display())))
    });
    let endpoint =
        Endpoint::parse(&options.url, key.transpose()?).map_err(|why| Exit::Usage.failure(why))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Exit::Internal.failure(why))?;
    let answered = runtime.block_on(async {
        let mut connection = endpoint.connect().await.map_err(|why| {
            let binary = model::target::BINARY;
            format!("{why}; is the server started, as in `{binary} serve`?")
        })?;
        let model = connection.first_model().await?;
        // A reader that closed standard output does not want the rest of the answer.
        let write = |text: &str| boot::print(text).map_err(|failure| failure.message);
        connection.answer(&model, &options.prompt, write).await
    });
    answered.map_err(|why| Exit::Unavailable.failure(why))?;
    boot::print("\n")
}
