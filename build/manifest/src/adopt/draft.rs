//! Manifests of a model whose configuration is understood: the checkpoint's table, and a leaf for
//! each hardware whose memory suffices.

use std::path::Path;

use serde_json::Value;

use super::index::Index;
use super::limits;
use super::rules::{self, Rule};
use super::stored::{Stored, stored};
use super::text;
use super::understood::{other_formats, stops, unknown};
use super::{Adopted, CPU, GPUS, Open, Published};
use crate::check::check;
use crate::error::ManifestError;
use crate::kernels::kernels_of;
use crate::schema::hardware::Backend;
use crate::schema::leaf::{Limits, Op, Steps};
use crate::schema::model::{Checkpoint, Model, Unused};
use crate::schema::parse;
use crate::table::Format;
use crate::target::{Target, hardware_file, read_hardware};

/// Name of the checkpoint while its formats are not known.
const UNNAMED: &str = "unnamed";
/// Value of a key that is not set.
const ABSENT: &str = "absent";
/// Threads of a block where the hardware's own kernel does not fit the model: eight warps, which
/// every kernel takes.
const OTHER_THREADS: u64 = 256;
const RECOMMENDED: &str = "generation_config.json has what its makers recommend";

/// A CPU target of the model whose matrices are all floats.
pub(super) fn floats(
    root: &Path,
    published: &Published,
    mut model: Model,
) -> Result<Target, ManifestError> {
    let checkpoint = Checkpoint {
        form: published.form(),
        ..Checkpoint::default()
    };
    model.checkpoint = [(UNNAMED.to_string(), checkpoint)].into();
    let all = Rule {
        patterns: vec!["*".to_string()],
        layers: None,
        format: Format::Bf16,
    };
    let sizes = limits::cpu(&model);
    let name = [CPU, published.name, kv_of(Backend::Cpu)];
    let text = text::leaf(name, &[all], &sizes);
    Ok(Target {
        name: format!("{CPU}/{}/{UNNAMED}", published.name),
        quant: UNNAMED.to_string(),
        hardware: read_hardware(root, CPU)?,
        leaf: parse(&text, UNNAMED, "")?,
        model,
        root: root.into(),
    })
}

/// Format of keys and values on a backend, as manifests write it.
fn kv_of(backend: Backend) -> &'static str {
    match backend {
        Backend::Cpu => "f32",
        Backend::Cuda => "bf16",
    }
}

/// The manifests of a model, from the tensors that its checkpoint has.
///
/// # Errors
/// Tensors that are not those of the family, or figures that contradict each other.
pub(super) fn drafted(
    floats: Target,
    published: &Published,
    config: &Value,
    index: &Index,
) -> Result<Adopted, Vec<ManifestError>> {
    let checkpoint = beginning(&floats, index);
    let floats = with(floats, UNNAMED, checkpoint.clone());
    let stored = stored(&floats, index, published.index.path)?;
    let rules = rules::rules(&stored.matrices);
    let quant = quant(published, &rules).map_err(one)?;
    let draft = Draft {
        name: published.name,
        quant,
        rules: &rules,
    };
    let target = with(floats, quant, looked_at(checkpoint, &stored));
    let sizes = limits::cpu(&target.model);
    let (leaf, mut target) = draft.leaf(&target, CPU, &sizes).map_err(one)?;
    target.model.vision = tower(&target, published, index).map_err(one)?;
    let model = model(&mut target, &stops(config)).map_err(one)?;
    checked(published, config, &target)?;
    let mut adopted = Adopted {
        quant: quant.to_string(),
        open: open(&target, index)
            .into_iter()
            .chain(unknown(published, config, &target))
            .collect(),
        files: vec![model, (target.leaf_file(), leaf)],
    };
    for hw in GPUS {
        draft.add_gpu(&target, hw, &mut adopted);
    }
    Ok(adopted)
}

/// Path and text of the model's manifest; `target` becomes the target that the text describes.
fn model(target: &mut Target, stops: &[u64]) -> Result<(String, String), ManifestError> {
    let text = text::model(&target.model, stops);
    let file = target.model_path("model.toml");
    target.model = parse(&text, &file, "")?;
    Ok((file, text))
}

fn one(problem: ManifestError) -> Vec<ManifestError> {
    vec![problem]
}

/// The target with `checkpoint` as its only checkpoint.
fn with(mut target: Target, quant: &str, checkpoint: Checkpoint) -> Target {
    target.quant = quant.to_string();
    target.model.checkpoint = [(quant.to_string(), checkpoint)].into();
    target
}

/// Every problem that a build would find, and formats that the configuration states otherwise.
fn checked(
    published: &Published,
    config: &Value,
    target: &Target,
) -> Result<(), Vec<ManifestError>> {
    let mut problems = other_formats(published, config, target);
    problems.extend(check(target).err());
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems),
    }
}

/// A checkpoint before the names of its tensors are compared.
fn beginning(target: &Target, index: &Index) -> Checkpoint {
    Checkpoint {
        tensors: Some(index.names.len() as u64 + index.tower),
        tensor_bytes: index.bytes,
        form: target.form(),
        stacked_experts: index.stacked_experts(),
        without_mtp: target.model.mtp.layers > 0 && !index.predicts(),
        ..Checkpoint::default()
    }
}

/// `checkpoint` with the facts that the names of its tensors state.
fn looked_at(checkpoint: Checkpoint, stored: &Stored) -> Checkpoint {
    Checkpoint {
        input_scales: stored.input_scales.clone(),
        kv_scales: stored.kv_scales,
        tied_head_stored: stored.tied_head_stored,
        ..checkpoint
    }
}

/// Name of the leaves: as asked for if it names the format with the fewest bits, else that format.
fn quant<'a>(published: &Published<'a>, rules: &[Rule]) -> Result<&'a str, ManifestError> {
    let has = |format: &Format| rules.iter().any(|rule| rule.format == *format);
    let [floats, quantised @ ..] = Format::ALL;
    let short = quantised.into_iter().find(has).unwrap_or(floats).short();
    let Some(name) = published.quant else {
        return Ok(short);
    };
    let rule = format!("must have the part {short:?}, which the tensors are stored in");
    let shown = format!("{name:?}");
    match name.split('-').any(|part| part == short) {
        true => Ok(name),
        false => Err(ManifestError::key("targets", "--quant", shown, &rule)),
    }
}

/// The vision tower: all bytes of the checkpoint less the text model's. Without a tower, both
/// numbers of bytes must be equal.
fn tower(
    target: &Target,
    published: &Published,
    index: &Index,
) -> Result<Option<Unused>, ManifestError> {
    let (least, most) = target.checkpoint_bytes_range().into_inner();
    let tensors = index.tower;
    if let Some(header) = &index.header {
        let bytes = header.tower_bytes;
        return Ok((tensors > 0).then_some(Unused { tensors, bytes }));
    }
    let rest = index.bytes.and_then(|size| size.checked_sub(least));
    let right = |size: u64| (least..=most).contains(&size);
    let name = &index.tower_name;
    let rule = match (tensors, index.bytes) {
        (0, _) => format!("must be {least}, up to {most} with vectors of F32, as the facts give"),
        (_, None) => format!(
            "must be stated: nothing else says the bytes of the {tensors} tensors of a vision \
             tower, as {name}; give the file itself as --index if there is only one"
        ),
        (_, Some(_)) => format!(
            "leaves no byte to the {tensors} tensors of a vision tower, as {name}: the others have \
             {least}, as the facts give"
        ),
    };
    match (tensors, rest) {
        (0, _) if index.bytes.is_none_or(right) => Ok(None),
        (1.., Some(bytes @ 1..)) => Ok(Some(Unused { tensors, bytes })),
        _ => {
            let size = index.bytes.map(|size| size.to_string());
            let size = size.unwrap_or(ABSENT.to_string());
            let (file, key) = (published.index.path, "metadata.total_size");
            Err(ManifestError::key(file, key, size, &rule))
        }
    }
}

/// Facts from which the leaves of a model are written.
struct Draft<'a> {
    name: &'a str,
    quant: &'a str,
    rules: &'a [Rule],
}

impl Draft<'_> {
    /// Text of a leaf, and the target's model as this leaf would load it.
    fn leaf(
        &self,
        target: &Target,
        hw: &str,
        sizes: &(Limits, Steps),
    ) -> Result<(String, Target), ManifestError> {
        let mut target = target.clone();
        target.hardware = read_hardware(&target.root, hw)?;
        target.name = format!("{hw}/{}/{}", self.name, self.quant);
        let kv = kv_of(target.hardware.backend);
        let text = text::leaf([hw, self.name, kv], self.rules, sizes);
        target.leaf = parse(&text, &target.leaf_file(), "")?;
        Ok((text, target))
    }

    /// The leaf of a GPU, with as many pages as fit into its memory.
    fn gpu_leaf(&self, target: &Target, hw: &str) -> Result<(String, Target), ManifestError> {
        let (_, sized) = self.leaf(target, hw, &limits::cpu(&target.model))?;
        let gpu = sized.hardware.gpu.as_ref();
        let memory = gpu.map_or(0, |gpu| gpu.memory_bytes);
        let Some(sizes) = limits::gpu(&sized, memory) else {
            let weights = target.checkpoint_bytes();
            let rule = format!("leaves no room beside a checkpoint of {weights} bytes");
            let file = hardware_file(hw);
            return Err(ManifestError::key(&file, "gpu.memory_bytes", memory, &rule));
        };
        let mut leaf = self.leaf(target, hw, &sizes)?;
        while let Some((table, rule)) = leaf.1.unfit() {
            let Some(op) = fitting(&leaf.1, &table, rule) else {
                break;
            };
            text::add_op(&mut leaf.0, &table, &op);
            leaf.1.leaf.op.insert(table, op);
        }
        check(&leaf.1)?;
        Ok(leaf)
    }

    /// Adds the leaf of a GPU, or the reason why there is none.
    fn add_gpu(&self, target: &Target, hw: &str, adopted: &mut Adopted) {
        match self.gpu_leaf(target, hw) {
            Ok((text, leaf)) => {
                adopted.open.extend(leaf.leaf.op.iter().map(|(table, op)| {
                    Open {
                        file: leaf.leaf_file(),
                        key: format!("op.{table:?}.kernel = {}", op.kernel),
                        note: "takes the model, which the hardware's own does not; nobody has \
                           measured it"
                            .to_string(),
                    }
                }));
                adopted.files.push((leaf.leaf_file(), text));
            }
            Err(why) => adopted.open.push(Open {
                file: format!("targets/{hw}/{}/{}.toml", self.name, self.quant),
                key: String::new(),
                note: format!("is not written: {why}"),
            }),
        }
    }
}

/// Another kernel of the op that `table` names, one whose bounds the target's model meets.
fn fitting(target: &Target, table: &str, rule: &str) -> Option<Op> {
    let (op, shape) = table.split_once('.').unwrap_or((table, ""));
    let usual = target.op(op, Some(shape))?;
    let kernels = kernels_of(op)?.iter();
    let mut choices = kernels.map(|kernel| Op {
        kernel: kernel.to_string(),
        why: format!("{} {rule}", usual.kernel),
        threads: OTHER_THREADS,
        ..usual.clone()
    });
    choices.find(|choice| {
        let mut other = target.clone();
        other.leaf.op.insert(table.to_string(), choice.clone());
        other.unfit().is_none_or(|(unfit, _)| unfit != table)
    })
}

/// Facts that neither configuration nor index decides.
fn open(target: &Target, index: &Index) -> Vec<Open> {
    let (model, file) = (&target.model, target.model_path("model.toml"));
    let of = |key: &str, value: &str, note: &str| Open {
        file: file.clone(),
        key: format!("{key} = {value}"),
        note: note.to_string(),
    };
    let weights =
        |key: &str, value, note| of(&format!("checkpoint.{}.{key}", target.quant), value, note);
    let quoted = |text: &str| format!("{text:?}");
    let mut open = vec![
        of("title", &quoted(&model.title), "name for people"),
        of("id", &quoted(&model.id), "name that the API reports"),
        of(
            "licence",
            &quoted(&model.licence),
            "SPDX identifier of the weights' licence",
        ),
        of(
            "chat",
            ABSENT,
            "a model without it builds and does not serve",
        ),
        of("sampling.temperature", "1.0", RECOMMENDED),
        of("sampling.top_k", "0", RECOMMENDED),
        of("sampling.top_p", "1.0", RECOMMENDED),
        weights("repository", ABSENT, "owner/name where it is published"),
        weights("revision", ABSENT, "commit of that repository"),
        weights("text_nll", ABSENT, "scripts/text_nll.py measures it"),
        weights(
            "files",
            "[]",
            "`cargo xtask checkpoint FOLDER` prints their digests",
        ),
    ];
    if let (Some(vision), None) = (&model.vision, &index.header) {
        let note = "is right if every vector is BF16; headers of the files say it";
        open.push(of("vision.bytes", &vision.bytes.to_string(), note));
    }
    if index.bytes.is_none() {
        let note = "the index does not state it";
        open.push(weights("tensor_bytes", ABSENT, note));
    }
    open
}
