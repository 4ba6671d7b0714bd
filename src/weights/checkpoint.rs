//! A checkpoint whose every tensor has been checked against the target, ready to be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{DerefMut, Range};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use sha2::{Digest, Sha256};

use super::error::WeightsError;
use super::format::{self, FP8_BLOCK, NVFP4_GROUP};
use super::header::{self, Dtype, TensorInfo};
use super::layout::{self, Expected, MatrixSpec, ModelSpec, VectorSpec};
use super::progress::{Progress, Stage};
use super::source::Source;
use super::stored::{Bits, Global, Stored};
use crate::target::{self, CheckpointFile, Format};

pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const SINGLE: &str = "model.safetensors";
/// Largest index, in bytes; ten times the largest known.
const INDEX_BYTES_MAX: u64 = 200_000_000;
/// Most shards that an index may name.
const SHARDS_MAX: usize = 1000;
/// Bytes hashed per read.
const HASH_BYTES: usize = 1 << 20;
/// Prefixes of tensors that text generation does not use.
const IGNORED: [&str; 2] = ["model.visual.", "visual."];

/// An open checkpoint of the target.
pub struct Checkpoint {
    files: Vec<Source>,
    /// Canonical name -> file and place.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    spec: ModelSpec,
    progress: Arc<Progress>,
}

/// Opens and checks the checkpoint in `directory`; reads headers only.
///
/// # Errors
/// The first thing that differs from what the target expects.
pub fn open(directory: &Path, progress: Arc<Progress>) -> Result<Checkpoint, WeightsError> {
    progress.enter(Stage::Checking);
    for file in target::CHECKPOINT {
        check_size(&Source::open(directory, file.name)?, file)?;
    }
    open_layers(directory, target::LAYERS, progress)
}

/// Opens and checks a checkpoint that is not the release and is not served: its files may have any
/// size, and it ends behind the first `layers`. For measurements and comparisons.
///
/// # Errors
/// As `open`.
pub fn open_layers(
    directory: &Path,
    layers: usize,
    progress: Arc<Progress>,
) -> Result<Checkpoint, WeightsError> {
    progress.enter(Stage::Checking);
    let index = directory.join(INDEX);
    if index.symlink_metadata().is_ok() {
        return open_sharded(directory, layers, progress);
    }
    if directory.join(SINGLE).symlink_metadata().is_err() {
        return Err(WeightsError::Empty {
            directory: directory.to_path_buf(),
        });
    }
    let single = vec![Source::open(directory, SINGLE)?];
    Checkpoint::check(single, None, layers, progress)
}

/// Opens and checks the checkpoint compiled into the binary.
///
/// # Errors
/// As `open`.
pub fn open_embedded(progress: Arc<Progress>) -> Result<Checkpoint, WeightsError> {
    let files = target::EMBEDDED
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"));
    let sources: Vec<Source> = files
        .map(|&(name, content)| Source::Embedded {
            name: name.to_string(),
            content,
        })
        .collect();
    if sources.is_empty() {
        return Err(WeightsError::Empty {
            directory: "(embedded)".into(),
        });
    }
    Checkpoint::check(sources, None, target::LAYERS, progress)
}

/// Compares the SHA-256 of every file that the target names; reads the whole checkpoint.
///
/// # Errors
/// `Digest` naming the first file that differs.
pub fn verify_digests(directory: &Path, progress: &Progress) -> Result<(), WeightsError> {
    progress.enter(Stage::Verifying);
    progress.expect(target::CHECKPOINT.iter().map(|file| file.bytes).sum());
    for file in target::CHECKPOINT {
        let source = Source::open(directory, file.name)?;
        check_size(&source, file)?;
        let found = digest(&source, progress)?;
        if found != file.sha256 {
            let (file, expected) = (file.name.to_string(), file.sha256.to_string());
            return Err(WeightsError::Digest {
                file,
                found,
                expected,
            });
        }
    }
    Ok(())
}

fn digest(source: &Source, progress: &Progress) -> Result<String, WeightsError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; HASH_BYTES];
    let mut offset = 0;
    while offset < source.bytes() {
        let bytes = (source.bytes() - offset).min(HASH_BYTES as u64);
        let chunk = &mut buffer[..bytes as usize];
        source.read(offset, chunk)?;
        hash.update(&*chunk);
        offset += bytes;
        progress.advance(bytes);
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn check_size(source: &Source, file: &CheckpointFile) -> Result<(), WeightsError> {
    if source.bytes() == file.bytes {
        return Ok(());
    }
    let (found, expected) = (source.bytes(), file.bytes);
    Err(WeightsError::Size {
        file: file.name.to_string(),
        found,
        expected,
    })
}

fn open_sharded(
    directory: &Path,
    layers: usize,
    progress: Arc<Progress>,
) -> Result<Checkpoint, WeightsError> {
    let source = Source::open(directory, INDEX)?;
    let problem = |problem| WeightsError::Index {
        file: INDEX.to_string(),
        problem,
    };
    if source.bytes() > INDEX_BYTES_MAX {
        return Err(problem(format!(
            "{} bytes, at most {INDEX_BYTES_MAX}",
            source.bytes()
        )));
    }
    let mut text = vec![0; source.bytes() as usize];
    source.read(0, &mut text)?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| problem(e.to_string()))?;
    let shards: BTreeSet<&str> = index.weight_map.0.values().map(String::as_str).collect();
    if shards.len() > SHARDS_MAX {
        return Err(problem(format!(
            "{} shards, at most {SHARDS_MAX}",
            shards.len()
        )));
    }
    let files = shards.iter().map(|name| Source::open(directory, name));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    Checkpoint::check(files, Some(&index.weight_map.0), layers, progress)
}

impl Checkpoint {
    fn check(
        files: Vec<Source>,
        index: Option<&BTreeMap<String, String>>,
        layers: usize,
        progress: Arc<Progress>,
    ) -> Result<Checkpoint, WeightsError> {
        let mut tensors = BTreeMap::new();
        for (place, file) in files.iter().enumerate() {
            let header = read_header(file)?;
            if let Some(index) = index {
                check_index(index, file.name(), &header)?;
            }
            collect(place, file.name(), header, &mut tensors)?;
        }
        if let Some(index) = index {
            check_all_found(index, &tensors)?;
        }
        let spec = layout::model_of(layers, &|name| tensors.contains_key(name));
        check_layout(&layout::expected(&spec), &files, &tensors)?;
        let bytes = tensors
            .values()
            .map(|(_, info)| info.bytes.end - info.bytes.start)
            .sum();
        progress.expect(bytes);
        let mut on_detour = files
            .iter()
            .filter_map(|file| Some((file.name(), file.detour()?)));
        if let Some((name, why)) = on_detour.next() {
            progress.take_detour(format!("{name}: {why}"));
        }
        Ok(Checkpoint {
            files,
            tensors,
            spec,
            progress,
        })
    }

    /// Tensors that were made from the target's layout.
    pub(super) fn of_seeded(
        source: Source,
        tensors: BTreeMap<String, (usize, TensorInfo)>,
        spec: ModelSpec,
        progress: Arc<Progress>,
    ) -> Checkpoint {
        progress.expect(source.bytes());
        Checkpoint {
            files: vec![source],
            tensors,
            spec,
            progress,
        }
    }

    /// The tensors of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Refuses a checkpoint that was written to while it was read.
    ///
    /// # Errors
    /// `Changed` naming the file.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(Source::check_unchanged)
    }

    /// A matrix of `spec`, to be read.
    pub fn matrix<'a>(&'a self, spec: &'a MatrixSpec) -> MatrixSource<'a> {
        MatrixSource {
            checkpoint: self,
            spec,
        }
    }

    /// A vector of `spec`, to be read.
    pub fn vector<'a>(&'a self, spec: &'a VectorSpec) -> VectorSource<'a> {
        VectorSource {
            checkpoint: self,
            spec,
        }
    }

    /// Fills `out` with a tensor's bytes from `offset` on.
    fn read(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<(), WeightsError> {
        let (file, info) = &self.tensors[name];
        let (start, bytes) = (info.bytes.start + offset as u64, out.len() as u64);
        assert!(start + bytes <= info.bytes.end);
        let direct = self.files[*file].read(start, out)?;
        self.progress.advance_direct(direct);
        self.progress.advance(bytes);
        Ok(())
    }

    fn read_floats(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let info = &self.tensors[name].1;
        let mut bytes = vec![0; (info.bytes.end - info.bytes.start) as usize];
        self.read(name, 0, &mut bytes)?;
        let mut out = Vec::with_capacity(bytes.len() / 2);
        match self.tensors[name].1.dtype {
            Dtype::Bf16 => format::bf16_values(&bytes, &mut out),
            Dtype::F32 => format::f32_values(&bytes, &mut out),
            other => unreachable!("{name} was checked to be BF16 or F32, not {other}"),
        }
        self.check_finite(name, &out)?;
        Ok(out)
    }

    fn check_finite(&self, name: &str, values: &[f32]) -> Result<(), WeightsError> {
        self.check_none(name, values.iter().position(|value| !value.is_finite()))
    }

    /// `first`: of the elements, in the tensor. Tensor instructions take F16, so that a weight is
    /// below 2^16.
    fn check_bf16(&self, name: &str, first: usize, bytes: &[u8]) -> Result<(), WeightsError> {
        const END: u16 = (127 + 16) << 7;
        let weights = bytes.as_chunks().0;
        let found = position(weights, |&b| u16::from_le_bytes(b) & 0x7fff >= END);
        let Some(index) = found else { return Ok(()) };
        let value = format::bf16(weights[index]);
        let index = first + index;
        match value.is_finite() {
            true => Err(WeightsError::TooLarge {
                file: self.file_of(name),
                tensor: name.to_string(),
                index,
                value,
            }),
            false => self.check_none(name, Some(index)),
        }
    }

    /// `first`: of the codes, in the tensor.
    fn check_e4m3(&self, name: &str, first: usize, codes: &[u8]) -> Result<(), WeightsError> {
        let found = position(codes, |code| code & 0x7f == 0x7f);
        self.check_none(name, found.map(|index| first + index))
    }

    /// Refuses the value at `index`, if there is one.
    fn check_none(&self, name: &str, index: Option<usize>) -> Result<(), WeightsError> {
        let Some(index) = index else {
            return Ok(());
        };
        Err(WeightsError::NotFinite {
            file: self.file_of(name),
            tensor: name.to_string(),
            index,
        })
    }

    fn file_of(&self, tensor: &str) -> String {
        self.files[self.tensors[tensor].0].name().to_string()
    }
}

/// The first element that is wrong. Whole blocks are looked at without a branch, which the
/// compiler turns into vector instructions.
fn position<T>(elements: &[T], is_wrong: impl Fn(&T) -> bool) -> Option<usize> {
    const BLOCK: usize = 1024;
    let mut blocks = elements.chunks(BLOCK);
    let any = |block: &[T]| {
        block
            .iter()
            .fold(false, |any, element| any | is_wrong(element))
    };
    let block = blocks.position(any)? * BLOCK;
    let inside = elements[block..].iter().position(is_wrong)?;
    Some(block + inside)
}

/// A checked matrix of the checkpoint.
#[derive(Clone, Copy)]
pub struct MatrixSource<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a MatrixSpec,
}

impl MatrixSource<'_> {
    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.spec.n, self.spec.k)
    }

    pub fn format(&self) -> Format {
        self.spec.format
    }

    /// The weights as exact F32, row-major `[n, k]`.
    ///
    /// # Errors
    /// `Io`, `NotFinite` for a weight or scale, or `TooLarge` for a weight.
    pub fn read_f32(&self) -> Result<Vec<f32>, WeightsError> {
        Ok(self.read()?.values())
    }

    /// The weights as they are stored, all of them finite.
    ///
    /// # Errors
    /// As `read_f32`.
    pub fn read(&self) -> Result<Stored, WeightsError> {
        self.read_rows(0..self.spec.n)
    }

    /// Some rows as they are stored, all of them finite. Rows that share scales come together: they
    /// begin at a multiple of `FP8_BLOCK`.
    ///
    /// # Errors
    /// As `read_f32`.
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Stored, WeightsError> {
        let [codes, scales] = self.sections(rows.len());
        self.read_rows_to(rows, vec![0; codes], vec![0; scales])
    }

    /// Bytes of the codes of so many rows, and of their E4M3 scales.
    pub fn sections(&self, rows: usize) -> [usize; 2] {
        let weights = rows * self.spec.k;
        match self.spec.format {
            Format::Bf16 => [2 * weights, 0],
            Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt => {
                [weights / 2, weights / NVFP4_GROUP]
            }
            Format::Fp8Block128 => [weights, 0],
        }
    }

    /// As `read_rows`, into memory that has just the room of the `sections`.
    ///
    /// # Errors
    /// As `read_f32`.
    pub fn read_rows_to<Bytes: DerefMut<Target = [u8]>>(
        &self,
        rows: Range<usize>,
        mut codes: Bytes,
        mut scales: Bytes,
    ) -> Result<Stored<Bytes>, WeightsError> {
        assert!(rows.start.is_multiple_of(FP8_BLOCK) && rows.end <= self.spec.n);
        assert_eq!([codes.len(), scales.len()], self.sections(rows.len()));
        let named = |suffix: &str| format!("{}.{suffix}", self.spec.name);
        let (n, k) = (rows.len(), self.spec.k);
        let bits = match self.spec.format {
            Format::Bf16 => {
                self.read_bf16(&rows, &mut codes)?;
                Bits::Bf16(codes)
            }
            Format::Nvfp4CompressedTensors => {
                let names = ["weight_packed", "weight_scale", "weight_global_scale"];
                let global = self.read_nvfp4(names.map(named), &rows, &mut codes, &mut scales)?;
                let global = Global::Divide(global);
                Bits::Nvfp4 {
                    codes,
                    scales,
                    global,
                }
            }
            Format::Nvfp4Modelopt => {
                let names = ["weight", "weight_scale", "weight_scale_2"];
                let global = self.read_nvfp4(names.map(named), &rows, &mut codes, &mut scales)?;
                let global = Global::Multiply(global);
                Bits::Nvfp4 {
                    codes,
                    scales,
                    global,
                }
            }
            Format::Fp8Block128 => {
                let scales = self.read_fp8(&rows, &mut codes)?;
                Bits::Fp8 { codes, scales }
            }
        };
        let stored = Stored { n, k, bits };
        // Factors that are finite apart may overflow together.
        if !stored.is_finite() {
            let values = stored.values();
            self.checkpoint
                .check_finite(&self.first_tensor(), &values)?;
        }
        Ok(stored)
    }

    /// Name of the tensor that holds the codes.
    fn first_tensor(&self) -> String {
        match self.spec.format {
            Format::Nvfp4CompressedTensors => format!("{}.weight_packed", self.spec.name),
            _ => format!("{}.weight", self.spec.name),
        }
    }

    /// The global scale.
    fn read_nvfp4(
        &self,
        names: [String; 3],
        rows: &Range<usize>,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<f32, WeightsError> {
        let k = self.spec.k;
        self.checkpoint
            .read(&names[0], rows.start * (k / 2), codes)?;
        let global = self.checkpoint.read_floats(&names[2])?[0];
        let offset = rows.start * (k / NVFP4_GROUP);
        self.checkpoint.read(&names[1], offset, scales)?;
        Ok(global)
    }

    /// The scales of the rows' blocks.
    fn read_fp8(&self, rows: &Range<usize>, codes: &mut [u8]) -> Result<Vec<f32>, WeightsError> {
        let (checkpoint, name, k) = (self.checkpoint, &self.spec.name, self.spec.k);
        let (weight, scale) = (format!("{name}.weight"), format!("{name}.weight_scale_inv"));
        checkpoint.read(&weight, rows.start * k, codes)?;
        checkpoint.check_e4m3(&weight, rows.start * k, codes)?;
        let scales = checkpoint.read_floats(&scale)?;
        let blocks = k.div_ceil(FP8_BLOCK);
        let first = rows.start / FP8_BLOCK * blocks;
        let count = rows.len().div_ceil(FP8_BLOCK) * blocks;
        Ok(scales[first..][..count].to_vec())
    }

    fn read_bf16(&self, rows: &Range<usize>, codes: &mut [u8]) -> Result<(), WeightsError> {
        let (name, start) = match &self.spec.stack {
            None => (format!("{}.weight", self.spec.name), 0),
            Some(stack) => (self.spec.name.clone(), stack.row),
        };
        let first = (start + rows.start) * self.spec.k;
        self.checkpoint.read(&name, 2 * first, codes)?;
        self.checkpoint.check_bf16(&name, first, codes)
    }
}

/// A checked vector of the checkpoint.
#[derive(Clone, Copy)]
pub struct VectorSource<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a VectorSpec,
}

impl VectorSource<'_> {
    /// The values as F32.
    ///
    /// # Errors
    /// `Io`, or `NotFinite`.
    pub fn read_f32(&self) -> Result<Vec<f32>, WeightsError> {
        self.checkpoint.read_floats(&self.spec.name)
    }
}

fn read_header(file: &Source) -> Result<BTreeMap<String, TensorInfo>, WeightsError> {
    let fail = |problem| WeightsError::Header {
        file: file.name().to_string(),
        problem,
    };
    if file.bytes() < header::LENGTH_BYTES {
        return Err(fail(format!(
            "{} bytes are too few for a header",
            file.bytes()
        )));
    }
    let mut length = [0; header::LENGTH_BYTES as usize];
    file.read(0, &mut length)?;
    let bytes = header::json_bytes(length, file.bytes()).map_err(fail)?;
    let mut json = vec![0; bytes];
    file.read(header::LENGTH_BYTES, &mut json)?;
    header::parse(&json, file.bytes()).map_err(fail)
}

/// `model.language_model.` of multimodal releases and `model.` of text releases are the same.
fn canonical(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.to_string(),
    }
}

fn is_ignored(name: &str) -> bool {
    IGNORED.iter().any(|prefix| name.starts_with(prefix))
        || (target::MTP_LAYERS == 0 && name.starts_with("mtp."))
}

fn collect(
    place: usize,
    file: &str,
    header: BTreeMap<String, TensorInfo>,
    tensors: &mut BTreeMap<String, (usize, TensorInfo)>,
) -> Result<(), WeightsError> {
    for (name, info) in header.into_iter().filter(|(name, _)| !is_ignored(name)) {
        let canonical = canonical(&name);
        if tensors.insert(canonical, (place, info)).is_some() {
            let problem = format!("tensor {name} is given twice");
            return Err(WeightsError::Header {
                file: file.to_string(),
                problem,
            });
        }
    }
    Ok(())
}

/// Each tensor of a shard must be listed in the index, and under this shard.
fn check_index(
    index: &BTreeMap<String, String>,
    file: &str,
    header: &BTreeMap<String, TensorInfo>,
) -> Result<(), WeightsError> {
    let stray = header
        .keys()
        .find(|name| index.get(*name).is_none_or(|shard| shard != file));
    match stray {
        None => Ok(()),
        Some(name) => Err(WeightsError::Index {
            file: INDEX.to_string(),
            problem: format!("does not say that {file} holds {name}"),
        }),
    }
}

fn check_all_found(
    index: &BTreeMap<String, String>,
    tensors: &BTreeMap<String, (usize, TensorInfo)>,
) -> Result<(), WeightsError> {
    let absent = index
        .iter()
        .find(|(name, _)| !is_ignored(name) && !tensors.contains_key(&canonical(name)));
    match absent {
        None => Ok(()),
        Some((name, shard)) => Err(WeightsError::Index {
            file: INDEX.to_string(),
            problem: format!("says that {shard} holds {name}, which it does not"),
        }),
    }
}

fn check_layout(
    expected: &BTreeMap<String, Expected>,
    files: &[Source],
    tensors: &BTreeMap<String, (usize, TensorInfo)>,
) -> Result<(), WeightsError> {
    let absent = |(name, e): &(&String, &Expected)| !e.optional && !tensors.contains_key(*name);
    let mut missing = expected.iter().filter(absent);
    if let Some((tensor, _)) = missing.next() {
        let count = 1 + missing.count();
        return Err(WeightsError::Missing {
            tensor: tensor.clone(),
            count,
        });
    }
    for (name, (place, info)) in tensors {
        let file = files[*place].name();
        match expected.get(name) {
            Some(expected) => check_tensor(file, name, info, expected)?,
            None => {
                let (file, tensor) = (file.to_string(), name.clone());
                return Err(WeightsError::Unexpected { file, tensor });
            }
        }
    }
    Ok(())
}

fn check_tensor(
    file: &str,
    name: &str,
    info: &TensorInfo,
    expected: &Expected,
) -> Result<(), WeightsError> {
    let (file, tensor) = (file.to_string(), name.to_string());
    if !expected.dtypes.contains(&info.dtype) {
        let names: Vec<String> = expected.dtypes.iter().map(Dtype::to_string).collect();
        let (found, expected) = (info.dtype.to_string(), names.join(" or "));
        return Err(WeightsError::Dtype {
            file,
            tensor,
            found,
            expected,
        });
    }
    let scalar = expected.shape.is_empty() && info.shape == [1];
    if !scalar && info.shape != expected.shape {
        let (found, expected) = (info.shape.clone(), expected.shape.clone());
        return Err(WeightsError::Shape {
            file,
            tensor,
            found,
            expected,
        });
    }
    Ok(())
}

/// The shard index; keys beside `weight_map` are informative.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Tensor -> shard; a duplicate key is an error.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut names = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            if names.len() == header::TENSORS_MAX {
                return Err(A::Error::custom(format!(
                    "more than {} tensors",
                    header::TENSORS_MAX
                )));
            }
            if names.insert(tensor.clone(), file).is_some() {
                return Err(A::Error::custom(format!("tensor {tensor} is given twice")));
            }
        }
        Ok(WeightMap(names))
    }
}
