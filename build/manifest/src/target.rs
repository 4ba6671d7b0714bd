//! Search for leaves, and loading of one into a [`Target`].

use std::path::{Path, PathBuf};

use crate::check::check;
use crate::dequantise::dequantise;
use crate::error::ManifestError;
use crate::files;
use crate::kernels::usual_kernels;
use crate::schema::hardware::{Backend, Hardware};
use crate::schema::leaf::{KvFormat, Leaf, Rows, Transformation};
use crate::schema::model::{Checkpoint, Form, Model};
use crate::schema::read;

const LEAF_HINT: &str = " (facts are stated in targets/_hw and targets/_model only)";

/// One checked target: the facts of its hardware and model, and its leaf.
#[derive(Clone, Debug)]
pub struct Target {
    /// `<hw>/<model>/<quant>`.
    pub name: String,
    /// Last part of `name`.
    pub quant: String,
    /// `targets/_hw/<hw>.toml`.
    pub hardware: Hardware,
    /// `targets/_model/<model>/model.toml`.
    pub model: Model,
    /// `targets/<hw>/<model>/<quant>.toml`.
    pub leaf: Leaf,
    pub(crate) root: PathBuf,
}

/// A checkpoint file that a target makes from a published one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedFile {
    /// Name of the file inside the weights directory.
    pub name: String,
    /// Content of the file.
    pub content: Vec<u8>,
}

/// Every buildable target below `root/targets`, sorted: `<hw>/<model>/<quant>`.
pub fn leaves(root: &Path) -> Result<Vec<String>, ManifestError> {
    let mut found = Vec::new();
    for hardware in entries(root, "targets")? {
        for model in entries(root, &format!("targets/{hardware}"))? {
            let folder = format!("{hardware}/{model}");
            for file in entries(root, &format!("targets/{folder}"))? {
                let quant = file.strip_suffix(".toml");
                found.extend(quant.map(|quant| format!("{folder}/{quant}")));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Names in `root/folder` that can be a part of a target's path: without a leading underscore or
/// dot. Empty when `folder` is a file.
fn entries(root: &Path, folder: &str) -> Result<Vec<String>, ManifestError> {
    let path = root.join(folder);
    if path.is_file() {
        return Ok(Vec::new());
    }
    let mut names = files::names_in(&path, folder)?;
    names.retain(|name| !name.starts_with(['_', '.']));
    Ok(names)
}

/// Reads, checks and joins the manifests of the target `leaf`, written `<hw>/<model>/<quant>`.
///
/// # Errors
/// The first rule that a manifest breaks, or a checkpoint file of this repository whose size or
/// digest is not as stated.
pub fn load(root: &Path, leaf: &str) -> Result<Target, ManifestError> {
    let [hardware, model, quant] = parts(root, leaf)?;
    let mut target = Target {
        name: leaf.into(),
        quant: quant.into(),
        hardware: read_hardware(root, hardware)?,
        model: read(root, &format!("targets/_model/{model}/model.toml"), "")?,
        leaf: read(root, &format!("targets/{leaf}.toml"), LEAF_HINT)?,
        root: root.into(),
    };
    check(&target)?;
    files::verify(&target)?;
    target.forget_idle_ops();
    Ok(target)
}

/// A hardware; ops without a table in its file have the first kernel of `ffi/ops.toml`.
pub(crate) fn read_hardware(root: &Path, name: &str) -> Result<Hardware, ManifestError> {
    let mut hardware: Hardware = read(root, &hardware_file(name), "")?;
    if hardware.backend == Backend::Cuda {
        let of_any = usual_kernels().filter(|(op, _)| !hardware.op.contains_key(op));
        hardware.op.extend(of_any.collect::<Vec<_>>());
    }
    Ok(hardware)
}

pub(crate) fn hardware_file(name: &str) -> String {
    format!("targets/_hw/{name}.toml")
}

fn parts<'a>(root: &Path, leaf: &'a str) -> Result<[&'a str; 3], ManifestError> {
    let parts: Vec<&str> = leaf.split('/').collect();
    match parts.try_into() {
        Ok(parts) if root.join(format!("targets/{leaf}.toml")).is_file() => Ok(parts),
        _ => {
            let known = leaves(root)?.join(", ");
            let rule = format!("no such target; targets are {known}");
            Err(ManifestError::file(format!("targets/{leaf}.toml"), rule))
        }
    }
}

impl Target {
    /// Removes the hardware's choices for ops that the model has no use for.
    fn forget_idle_ops(&mut self) {
        let launched: Vec<_> = self.launchers().into_iter().map(|each| each.op).collect();
        let ops = &mut self.hardware.op;
        ops.retain(|op, _| launched.contains(&op.as_str()));
    }

    /// Name of the target's binary.
    pub fn binary(&self) -> String {
        format!("atlas-{}", self.name.replace('/', "-"))
    }

    /// Path of the manifest of the target's hardware.
    pub(crate) fn hardware_file(&self) -> String {
        hardware_file(&self.leaf.hw)
    }

    /// Paths from the repository root of every file that the target's constants depend on.
    pub fn files_read(&self) -> Vec<PathBuf> {
        let mut paths = vec![
            self.hardware_file(),
            self.model_path("model.toml"),
            self.leaf_file(),
            self.golden_file(),
        ];
        let kept = self
            .checkpoint()
            .map_or(&[][..], |checkpoint| &checkpoint.files);
        paths.extend(kept.iter().map(|file| self.model_path(&file.name)));
        paths.extend(self.own_template());
        let read = [self.form().config(), files::GENERATION_CONFIG];
        let read = read.map(|name| self.model_path(name));
        paths.extend(
            read.into_iter()
                .filter(|path| !paths.contains(path))
                .collect::<Vec<_>>(),
        );
        paths.retain(|path| self.root.join(path).is_file());
        paths.into_iter().map(PathBuf::from).collect()
    }

    /// The published weights that the target is built for, or from which it derives its own.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        let named = self.leaf.checkpoint.as_ref().unwrap_or(&self.quant);
        let derive = self.leaf.derive.as_ref();
        let key = derive.map_or(named, |derive| &derive.from);
        self.model.checkpoint.get(key)
    }

    /// Form of the checkpoint's files.
    pub(crate) fn form(&self) -> Form {
        self.checkpoint()
            .map_or_else(Form::default, |checkpoint| checkpoint.form)
    }

    /// Path of the chat template that is compiled in, if there is one.
    pub(crate) fn own_template(&self) -> Option<String> {
        let name = &self.model.chat.as_ref()?.template;
        let mut files = self.checkpoint()?.files.iter();
        let path = self.model_path(name);
        let is_there = self.root.join(&path).is_file();
        (is_there && files.all(|file| file.name != *name)).then_some(path)
    }

    /// Makes the files that this target derives from its checkpoint; none for most targets.
    ///
    /// # Errors
    /// A source that cannot be read or has no exact result.
    pub fn derived_files(&self) -> Result<Vec<DerivedFile>, ManifestError> {
        let (Some(derive), Some(checkpoint)) = (&self.leaf.derive, self.checkpoint()) else {
            return Ok(Vec::new());
        };
        let Transformation::Dequantise = derive.transformation;
        let weights = |name: &&str| name.ends_with(".safetensors");
        let names = checkpoint.files.iter().map(|file| file.name.as_str());
        names
            .filter(weights)
            .map(|name| self.dequantised(name))
            .collect()
    }

    fn dequantised(&self, name: &str) -> Result<DerivedFile, ManifestError> {
        let path = self.model_path(name);
        let source = std::fs::read(self.root.join(&path)).map_err(ManifestError::unread(&path))?;
        let content = dequantise(&source)
            .map_err(|error| ManifestError::file(&path, format!("dequantise: {error}")))?;
        Ok(DerivedFile {
            name: name.into(),
            content,
        })
    }

    /// Whether the binary can answer requests: the model has a tokenizer, and the hardware is no
    /// partition of a GPU.
    pub fn serves(&self) -> bool {
        let part = self.hardware.gpu.as_ref().is_some_and(|gpu| gpu.partition);
        !part && self.model.chat.is_some()
    }

    /// Whether expert products use the block-scaled FP4 instructions of `sm_12x`, for which rows
    /// are rounded.
    pub fn has_block_scaled_fp4(&self) -> bool {
        let gpu = self.hardware.gpu.as_ref();
        let has_them = gpu.is_some_and(|gpu| gpu.capability() / 10 == 12);
        has_them && self.leaf.numbers.experts_rows == Rows::Nvfp4
    }

    /// Whether weights in memory differ from the checkpoint's.
    pub fn rounds(&self) -> bool {
        let mut rules = self.leaf.format.iter();
        rules.any(|rule| rule.resident.is_some())
    }

    /// Whether golden tokens of a reference hold for this target: weights, keys and values are not
    /// rounded to fewer bits than their own.
    pub fn has_golden_arithmetic(&self) -> bool {
        !self.rounds() && self.leaf.numbers.kv != KvFormat::Fp8
    }

    pub(crate) fn leaf_file(&self) -> String {
        format!("targets/{}.toml", self.name)
    }

    pub(crate) fn golden_file(&self) -> String {
        self.model_path("golden/tokens.json")
    }

    /// Path of a file in the model's folder, from the repository root.
    pub(crate) fn model_path(&self, name: &str) -> String {
        format!("targets/_model/{}/{name}", self.leaf.model)
    }
}

#[cfg(test)]
mod tests {
    use super::leaves;
    use crate::testing::{Scratch, repository, root};

    #[test]
    fn every_leaf_of_the_repository_loads() {
        let names = leaves(&root()).unwrap();
        assert!(names.contains(&"cpu/tiny/nvfp4".into()));
        names.iter().for_each(|name| drop(repository(name)));
    }

    #[test]
    fn leaves_are_sorted_and_have_no_underscore() {
        let names = leaves(&root()).unwrap();
        assert!(names.is_sorted() && !names.iter().any(|name| name.contains("/_")));
        assert!(names.iter().all(|name| !name.starts_with('_')), "{names:?}");
    }

    #[test]
    fn an_unknown_target_lists_the_known_ones() {
        let scratch = Scratch::of("cpu/tiny/nvfp4");
        assert_eq!(
            scratch.load("cpu/tiny/fp8").unwrap_err().to_string(),
            "targets/cpu/tiny/fp8.toml: no such target; targets are cpu/tiny/nvfp4"
        );
    }

    #[test]
    fn a_missing_model_is_named() {
        let scratch = Scratch::of("cpu/tiny/nvfp4");
        scratch.write("targets/cpu/small/nvfp4.toml", b"");
        let error = scratch.load("cpu/small/nvfp4").unwrap_err();
        assert_eq!(error.file, "targets/_model/small/model.toml");
        assert!(error.rule.starts_with("cannot be read: "), "{error}");
    }

    #[test]
    fn a_template_that_is_no_file_of_the_checkpoint_is_compiled_in() {
        let leaf = "h200/mistral-small-4-119b/nvfp4";
        let file = "targets/_model/mistral-small-4-119b/chat_template.jinja";
        let has = |scratch: &Scratch| {
            let target = scratch.load(leaf).unwrap();
            let text = target.emit_rust(&[]);
            let named = text.contains("TEMPLATE_FILE: &str = \"chat_template.jinja\"");
            let read = target.files_read().contains(&file.into());
            (text.contains(&format!("/../../{file}")), named, read)
        };
        let scratch = Scratch::of(leaf);
        assert_eq!(has(&scratch), (false, true, false));
        scratch.write(file, b"");
        assert_eq!(has(&scratch), (true, false, true));
        assert!(repository("h200/tiny/nvfp4").own_template().is_none());
    }

    #[test]
    fn a_cpu_target_serves() {
        assert!(repository("cpu/tiny/nvfp4").serves());
    }

    #[test]
    fn a_model_without_a_tokenizer_does_not_serve() {
        let target = repository("cpu/random-fp8/fp8");
        assert!(target.model.chat.is_none() && !target.serves());
        let shown = target.expanded();
        assert!(shown.contains("serves = false"), "{shown}");
    }

    #[test]
    fn a_target_has_no_kernel_of_an_operation_that_its_model_lacks() {
        let has = |leaf: &str, op: &str| repository(leaf).hardware.op.contains_key(op);
        assert!(has("h200/tiny/nvfp4", "delta_net") && !has("h200/tiny/nvfp4", "swiglu"));
        let llama = "h200/llama-3.1-8b/bf16";
        assert!(has(llama, "swiglu") && has(llama, "pack") && !has(llama, "delta_net"));
    }

    #[test]
    fn a_choice_for_one_shape_goes_before_that_of_all() {
        let mut target = repository("h200/tiny/nvfp4");
        let mut one = target.hardware.op["attend"].clone();
        one.kernel = "split_kv_bf16".to_string();
        target.leaf.op.insert("attend.full".to_string(), one);
        let kernels = target.kernels();
        let mut of_attend = kernels.iter().filter(|choice| choice.op == "attend");
        assert_eq!(of_attend.next().unwrap().kernel, "split_kv_bf16");
        assert!(of_attend.next().is_none());
    }

    #[test]
    fn a_hardware_has_a_kernel_of_every_operation_its_own_first() {
        let target = repository("h200/tiny/nvfp4");
        assert!(target.serves());
        assert_eq!(target.kernels().len(), target.launchers().len());
        let kernel = |op: &str| target.hardware.op[op].kernel.clone();
        assert_eq!(
            (kernel("linear"), kernel("attend")),
            ("panels_f16".into(), "tiles_bf16".into())
        );
    }

    #[test]
    fn a_gpu_target_needs_no_golden_tokens_to_serve() {
        let target = repository("h200/qwen3.6-35b-a3b/fp8");
        assert!(!target.root.join(target.golden_file()).is_file() && target.serves());
    }

    #[test]
    fn what_is_rounded_is_not_held_to_a_references_tokens() {
        let golden = |name: &str| repository(name).has_golden_arithmetic();
        assert!(golden("h200/tiny/nvfp4") && golden("cpu/smollm2-135m/bf16"));
        assert!(!golden("h200/tiny/nvfp4-kv8") && !golden("cpu/smollm2-135m/nvfp4-all"));
    }

    #[test]
    fn a_part_of_a_gpu_does_not_serve() {
        let target = repository("h200-48/qwen3.6-35b-a3b/fp8");
        assert!(!target.serves());
    }

    #[test]
    fn the_binary_is_named_after_the_target() {
        let target = repository("gb10/qwen3.5-35b-a3b/nvfp4");
        assert_eq!(target.binary(), "atlas-gb10-qwen3.5-35b-a3b-nvfp4");
    }

    #[test]
    fn the_stand_in_of_a_gb10_has_its_kernels() {
        let gpu = |name: &str| repository(name).hardware.gpu.unwrap();
        let (nvfp4, fp8) = ("qwen3.5-35b-a3b/nvfp4", "qwen3.6-35b-a3b/fp8");
        for leaf in [nvfp4, "qwen3.5-35b-a3b/nvfp4-w4a4", fp8] {
            let (real, other) = (format!("gb10/{leaf}"), format!("h200-48/{leaf}"));
            let (a, b) = (gpu(&real), gpu(&other));
            assert_eq!((a.sms, a.threads_per_sm), (b.sms, b.threads_per_sm));
            assert_eq!((a.partition, b.partition), (false, true));
            assert_eq!(a.shared_bytes_per_block, b.shared_bytes_per_block);
            let chip = gpu("h200/tiny/nvfp4");
            assert_eq!(chip.arch, b.arch);
            assert_eq!(
                (chip.l2_bytes, chip.memory_bytes),
                (b.l2_bytes, b.memory_bytes)
            );
            assert_eq!(chip.bandwidth_read_measured, b.bandwidth_read_measured);
            let part = "PARTITION: Option<u32> = Some(48);";
            assert!(repository(&other).emit_rust(&[]).contains(part));
            let file = |name: &str| {
                let path = crate::testing::root().join(format!("targets/{name}.toml"));
                std::fs::read_to_string(path).unwrap()
            };
            let same = file(&real).replacen("hw = \"gb10\"", "hw = \"h200-48\"", 1);
            assert_eq!(same, file(&other));
        }
    }

    #[test]
    fn only_sm_12x_has_instructions_of_fp4() {
        let has = |name: &str| repository(name).has_block_scaled_fp4();
        assert!(has("gb10/qwen3.5-35b-a3b/nvfp4-w4a4"));
        assert!(!has("h200-48/qwen3.5-35b-a3b/nvfp4-w4a4"));
        assert!(!has("gb10/qwen3.5-35b-a3b/nvfp4"));
    }

    #[test]
    fn the_expanded_manifest_is_toml_with_derived_numbers() {
        let text = repository("gb10/qwen3.6-35b-a3b/fp8").expanded();
        let parsed: toml::Table = text.parse().unwrap();
        let bytes = parsed["derived"]["weight_bytes_per_token"].as_integer();
        assert_eq!(bytes, Some(3_481_432_832));
        let rows =
            parsed["weights"]["model.layers.{layer}.mlp.experts.{expert}.down_proj"]["count"]
                .as_integer();
        assert_eq!(rows, Some(10_240));
    }

    #[test]
    fn the_bf16_weights_of_tiny_derive_to_the_tensors_of_its_formats() {
        let target = repository("cpu/tiny/bf16");
        let files = target.derived_files().unwrap();
        assert_eq!(files.len(), 1);
        let (header, data) = crate::safetensors::split(&files[0].content).unwrap();
        assert_eq!(header.len() as u64, target.checkpoint_tensors());
        assert_eq!(data.len() as u64, target.checkpoint_bytes());
    }
}
