//! `pack`: writes the weights into one file, in the layout that this binary's kernels read.

use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

use argh::{ArgsInfo, FromArgs};

use super::transfer::copy::{enough, unwritable};
use super::{Exit, Failure};
use crate::start::boot::{self, Files};
use crate::start::meter::Meter;
use host::output::Output;
use model;
use model::backend::{self, Backend, READER};
use model::ops::Device;
use model::target;
use model::weights::packed::Writer;
use model::weights::packed::table::VECTOR;
use model::weights::{self, Checkpoint, Layout, Progress, Stage};
use text::template::special;

/// write the weights as the kernels of this binary read them, into one file that `serve FILE`
/// starts from without repacking; an interrupted run is begun anew by the same command
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "pack", help_triggers("--help"))]
pub struct Pack {
    /// directory that holds the weights
    #[argh(positional)]
    weights: PathBuf,

    /// file to write; replaced at once where there is one
    #[argh(positional)]
    file: PathBuf,
}

/// Most threads that repack: more would wait for the thread that writes.
const THREADS_MAX: usize = 4;
/// Most threads if weights are also rounded to another format, which takes ten times as long.
const ROUNDING_MAX: usize = 16;

/// Writes the file under another name beside `FILE` until it is complete.
///
/// # Errors
/// The reason why the weights are not this binary's, or the file that cannot be written.
pub fn run(options: &Pack) -> Result<(), Failure> {
    let dest = &options.file;
    let files = Files::locate(Some(&options.weights))?;
    if let Files::Packed(packed) = &files {
        return Err(Exit::Usage.at(packed.path(), "is packed already"));
    }
    let progress = Arc::new(Progress::default());
    let checkpoint = files.open(progress.clone())?;
    let texts = texts(&files)?;
    let unwritten = unwritable(dest);
    let output = Output::create(dest).map_err(unwritten)?;
    enough(output.folder(), bytes_max(&texts))?;
    let meter = Meter::start(&progress);
    progress.enter(Stage::Packing);
    let file = output.file().try_clone().map_err(unwritten)?;
    let writer = Writer::new(file, READER.layout, files.are_drawn()).map_err(unwritten)?;
    let bytes = write(writer, &checkpoint, &texts, unwritten)?;
    output.finish().map_err(unwritten)?;
    drop(meter);
    boot::print(&format!(
        "{}: {bytes} bytes; `{} serve {}` starts from it\n",
        dest.display(),
        target::BINARY,
        dest.display()
    ))
}

/// Names and contents of the small files that a server reads.
fn texts(files: &Files) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut names = weights::SMALL.to_vec();
    names.extend([special::FILE, target::TOKENIZER_FILE, target::TEMPLATE_FILE]);
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !name.is_empty() && files.has(name));
    let read = |name: &str| Ok((name.to_string(), files.read(name)?));
    names.into_iter().map(read).collect()
}

/// Most bytes that the file may have, without its table.
fn bytes_max(texts: &[(String, Vec<u8>)]) -> u64 {
    let layout = Layout::whole();
    let matrices = layout.matrices();
    let matrices =
        matrices.map(|weight| Backend::matrix_bytes_max(weight.n(), weight.k(), weight.format()));
    let vectors = layout.vectors();
    let vectors = vectors.map(|weight| (weight.elements() * size_of::<f32>()) as u64);
    let texts = texts.iter().map(|(_, text)| text.len() as u64);
    matrices.chain(vectors).chain(texts).sum()
}

/// Makes the items `0 .. count` on several threads, and passes them to `take` in this order. A
/// thread makes its next item once its last one was taken, so that few items are in memory.
///
/// # Errors
/// The first error of `make` or `take` in this order; later items may have been begun.
fn in_order<T: Send, E: Send>(
    count: usize,
    make: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let most = match Layout::whole().rounds().is_empty() {
        true => THREADS_MAX,
        false => ROUNDING_MAX,
    };
    let threads = threads.min(most);
    thread::scope(|scope| {
        let made = (0..threads).map(|first| {
            let ((sender, receiver), make) = (mpsc::sync_channel(0), &make);
            scope.spawn(move || {
                let mut items = (first..count).step_by(threads).map(make);
                // After an error there is no receiver.
                while items.next().is_some_and(|item| sender.send(item).is_ok()) {}
            });
            receiver
        });
        let made: Vec<_> = made.collect();
        (0..count).try_for_each(|ix| match made[ix % threads].recv() {
            Ok(item) => take(ix, item?),
            Err(_) => Ok(()), // A thread has panicked, which `scope` passes on.
        })
    })
}

/// Writes all parts of the file; returns its number of bytes.
fn write(
    mut writer: Writer,
    checkpoint: &Checkpoint,
    texts: &[(String, Vec<u8>)],
    unwritten: impl Fn(io::Error) -> Failure + Copy,
) -> Result<u64, Failure> {
    let layout = checkpoint.layout();
    let stacks = model::stacks(layout);
    let packed = |ix: usize| {
        let parts = stacks[ix].parts.iter();
        let parts: Vec<_> = parts.map(|part| checkpoint.source(*part)).collect();
        backend::pack(&parts, stacks[ix].of_experts).map_err(Failure::from)
    };
    let append = |ix: usize, (storage, bytes): (String, Vec<u8>)| {
        let parts = &stacks[ix].parts;
        let n = parts.iter().map(|part| part.n()).sum();
        let written = writer.weight(parts[0].key(), [n, parts[0].k()], &storage, &bytes);
        written.map_err(unwritten)
    };
    in_order(stacks.len(), packed, append)?;
    for vector in layout.vectors() {
        let values = checkpoint.vector(vector.role(), vector.site()).read_f32()?;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        let written = writer.weight(vector.key(), [values.len(), 1], VECTOR, &bytes);
        written.map_err(unwritten)?;
    }
    for (name, content) in texts {
        writer.file(name, content).map_err(unwritten)?;
    }
    checkpoint.check_unchanged()?;
    writer.finish().map_err(unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_their_order_whoever_made_them() {
        let mut taken = Vec::new();
        let make = |ix: usize| {
            thread::sleep(std::time::Duration::from_micros((ix * 7 % 5) as u64 * 100));
            Ok::<_, ()>(ix)
        };
        let take = |ix, item| {
            assert_eq!(ix, item);
            taken.push(item);
            Ok(())
        };
        assert_eq!(in_order(50, make, take), Ok(()));
        assert_eq!(taken, Vec::from_iter(0..50));
    }

    #[test]
    fn the_first_error_in_order_ends_all() {
        let make = |ix| if ix >= 9 { Err(ix) } else { Ok(ix) };
        assert_eq!(in_order(1000, make, |_, _| Ok(())), Err(9));
        let take = |ix, _| if ix == 3 { Err(3) } else { Ok(()) };
        assert_eq!(in_order(1000, Ok, take), Err(3));
    }
}
