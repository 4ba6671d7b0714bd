//! `new model`: manifests of a model, from two files of its checkpoint's repository.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use argh::FromArgs;
use manifest::{Adopted, Published, Source, adopt};

use crate::site::{Failure, Site};

/// Largest number of bytes that are read of a configuration, an index or a tensor header.
const LARGEST: u64 = 256 << 20;
/// Bytes of the header length at the start of a tensor file.
const LENGTH_BYTES: u64 = 8;

/// Write the manifests of something new.
#[derive(FromArgs)]
#[argh(subcommand, name = "new")]
pub struct New {
    #[argh(subcommand)]
    what: What,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum What {
    Model(Model),
}

/// Write targets/_model/NAME and its leaves from the configuration and the index of a checkpoint.
#[derive(FromArgs)]
#[argh(subcommand, name = "model")]
struct Model {
    /// name of the model in targets, as qwen3-8b
    #[argh(positional)]
    name: String,
    /// config.json of the checkpoint, or params.json of Mistral's own form
    #[argh(option)]
    config: PathBuf,
    /// model.safetensors.index.json, or model.safetensors where that is the only file
    #[argh(option)]
    index: PathBuf,
    /// name of the leaves, as nvfp4; by default the format with the fewest bits
    #[argh(option)]
    quant: Option<String>,
}

impl New {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let What::Model(model) = self.what;
        model.start(site)
    }
}

impl Model {
    fn start(self, site: &Site) -> Result<(), Failure> {
        let (config, index) = (content(&self.config), content(&self.index));
        let (config, index) = match (config, index) {
            (Ok(config), Ok(index)) => (config, index),
            (config, index) => {
                let problems = [config.err(), index.err()];
                return Err(refused(problems.into_iter().flatten()));
            }
        };
        let published = Published {
            name: &self.name,
            quant: self.quant.as_deref(),
            config: Source {
                path: &self.config.to_string_lossy(),
                content: &config,
            },
            index: Source {
                path: &self.index.to_string_lossy(),
                content: &index,
            },
        };
        let adopted = adopt(&site.root, &published).map_err(refused)?;
        write(&site.root, &adopted)?;
        print!("{}", report(&self.name, &adopted));
        Ok(())
    }
}

/// Failure with all problems, one a line.
fn refused(problems: impl IntoIterator<Item = impl ToString>) -> Failure {
    let lines = problems.into_iter();
    let lines = lines.map(|why| format!("\n  {}", why.to_string()));
    let lines: String = lines.collect();
    Failure::Failed(format!("nothing is written:{lines}"))
}

/// Content of a file; of a tensor file, the header alone.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |why: io::Error| format!("{}: cannot be read: {why}", path.display());
    let tensors = path.extension().is_some_and(|end| end == "safetensors");
    let (file, mut content) = (File::open(path).map_err(failed)?, Vec::new());
    let first = if tensors { LENGTH_BYTES } else { LARGEST };
    let read = (&file).take(first).read_to_end(&mut content);
    read.map_err(failed)?;
    if let (true, Ok(length)) = (tensors, <[u8; 8]>::try_from(&content[..])) {
        let header = u64::from_le_bytes(length).min(LARGEST);
        let read = (&file).take(header).read_to_end(&mut content);
        read.map_err(failed)?;
    }
    match content.len() as u64 >= LARGEST {
        true => Err(format!("{}: has more than {LARGEST} bytes", path.display())),
        false => Ok(content),
    }
}

/// Writes all files, or none if one of them exists already.
fn write(root: &Path, adopted: &Adopted) -> Result<(), Failure> {
    let mut written: Vec<PathBuf> = Vec::new();
    for (file, text) in &adopted.files {
        if let Err(why) = create(&root.join(file), text) {
            for path in written {
                let _ = fs::remove_file(path);
            }
            return Err(Failure::Failed(format!("write {file}: {why}")));
        }
        written.push(root.join(file));
    }
    Ok(())
}

/// Writes a new file, making its folder; fails if the file exists.
fn create(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    File::create_new(path)?.write_all(text.as_bytes())
}

/// The command that makes a model's golden files from the checkpoint in FOLDER.
pub fn golden_command(model: &str) -> String {
    format!("python3 scripts/golden.py targets/_model/{model} --weights FOLDER")
}

/// Text on the files written, the facts to decide, and the next steps.
fn report(name: &str, adopted: &Adopted) -> String {
    let files = adopted.files.iter();
    let files = files.map(|(file, _)| format!("wrote {file}\n"));
    let open = adopted.open.iter().map(|open| format!("  {open}\n"));
    let (files, open): (String, String) = (files.collect(), open.collect());
    let quant = &adopted.quant;
    format!(
        "{files}to decide:\n{open}then:\n  cargo xtask show cpu/{name}/{quant}\n  \
         cargo xtask workflows\n  {}\n  cargo xtask test cpu/{name}/{quant}\n",
        golden_command(name)
    )
}
