//! A checkpoint whose every tensor has been checked against the target, ready to be read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{DerefMut, Range, RangeInclusive};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::codings::Exact;
use super::error::{WeightsError, Wrong};
use super::folder::Folder;
use super::format;
use super::header::{self, Dtype, TensorInfo};
use super::layout::{Expected, Layout, Weight};
use super::names::{CONFIG, INDEX, SINGLE};
use super::packed::table::VECTOR;
use super::packed::{Packed, PackedStack};
use super::progress::{Progress, Stage};
use super::seeded::{self, Seeded};
use super::source::Source;
use super::stored::{Bits, Stored};
use super::{config, digests, index, locate, origin, rounding};
use crate::target::{
    self, CheckpointFile, FP8_BLOCK, Format, Kind, Piece, Purpose, Role, Site, is_vision,
};

/// Largest number of shards that an index may name.
const SHARDS_MAX: usize = 1000;

/// An open checkpoint of the target.
pub struct Checkpoint {
    files: Vec<Source>,
    /// Index of each tensor's file and range in it, by the tensor's canonical name.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    layout: Layout,
    /// Number and bytes of the tensors of the vision tower.
    vision: [u64; 2],
    /// Keys of the configuration whose names suggest that they change the model's maths, and that
    /// the binary does not know.
    unknown_maths: Vec<String>,
    /// Packed file of the weights, if the weights are not in `files`.
    packed: Option<Arc<Packed>>,
    progress: Arc<Progress>,
    /// Largest magnitudes of matrices that are rounded, by key, set once they are computed.
    largest: Mutex<BTreeMap<String, Arc<Mutex<Option<f32>>>>>,
}

/// Opens and checks the checkpoint in `directory`: that it is whole, has the sizes, configuration
/// and revision that the target states, and all of its tensors. Reads headers only.
///
/// # Errors
/// The first difference from the checkpoint that the target expects.
pub fn open(directory: &Path, progress: Arc<Progress>) -> Result<Checkpoint, WeightsError> {
    progress.enter(Stage::Checking);
    let folder = Folder::open(directory)?;
    check_whole(&folder)?;
    for file in target::CHECKPOINT {
        check_size(&Source::open(&folder, file.name)?, file)?;
    }
    let unknown_maths = config::check(&folder)?;
    origin::check_revision(&folder, &digests::names(&folder)?)?;
    let checkpoint = open_folder(&folder, target::LAYERS, progress)?;
    checkpoint.check_sums()?;
    Ok(Checkpoint {
        unknown_maths,
        ..checkpoint
    })
}

/// Opens and checks a checkpoint that is not the release and is not served: its files may have any
/// size, and it ends after the first `layers` layers. Used for measurements and comparisons.
pub fn open_layers(
    directory: &Path,
    layers: usize,
    progress: Arc<Progress>,
) -> Result<Checkpoint, WeightsError> {
    progress.enter(Stage::Checking);
    open_folder(&Folder::open(directory)?, layers, progress)
}

fn open_folder(
    folder: &Folder,
    layers: usize,
    progress: Arc<Progress>,
) -> Result<Checkpoint, WeightsError> {
    if folder.has(INDEX) {
        return open_sharded(folder, layers, progress);
    }
    check_there(folder, &[SINGLE])?;
    let single = vec![Source::open(folder, SINGLE)?];
    Checkpoint::check(single, None, layers, progress)
}

/// Refuses a directory that lacks files of the checkpoint, and names all missing ones.
pub fn check_whole(folder: &Folder) -> Result<(), WeightsError> {
    let weights = if folder.has(INDEX) { INDEX } else { SINGLE };
    match target::CHECKPOINT {
        [] => check_there(folder, &[CONFIG, weights]),
        files => {
            let names: Vec<&str> = files.iter().map(|file| file.name).collect();
            check_there(folder, &names)
        }
    }
}

fn check_there(folder: &Folder, names: &[&str]) -> Result<(), WeightsError> {
    let absent = |name: &&&str| !folder.has(name);
    let missing = names.iter().filter(absent);
    let missing: Vec<String> = missing.map(|name| name.to_string()).collect();
    match missing[..] {
        [] => Ok(()),
        _ => Err(locate::incomplete(folder, &missing)),
    }
}

/// Opens and checks the checkpoint compiled into the binary.
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
        return Err(WeightsError::Directory {
            path: "(embedded)".into(),
            problem: "holds no weights; give a directory".to_string(),
        });
    }
    Checkpoint::check(sources, None, target::LAYERS, progress)
}

fn check_size(source: &Source, file: &CheckpointFile) -> Result<(), WeightsError> {
    if source.bytes() == file.bytes {
        return Ok(());
    }
    let (found, expected, file) = (source.bytes(), file.bytes, file.name.to_string());
    Err(match source.foreign() {
        Some(problem) => WeightsError::Foreign { file, problem },
        None => WeightsError::Size {
            file,
            found,
            expected,
        },
    })
}

/// Opens the checkpoint of drawn weights, which are equal in every run of a target.
pub fn open_seeded(progress: Arc<Progress>) -> Checkpoint {
    open_seeded_layers(target::LAYERS, progress)
}

/// The checkpoint of drawn weights, cut after the first `layers` layers.
pub fn open_seeded_layers(layers: usize, progress: Arc<Progress>) -> Checkpoint {
    let layout = Layout::cut(layers);
    let (mut seeded, mut tensors) = (Seeded::default(), BTreeMap::new());
    for tensor in seeded::tensors(layout, &[]) {
        let start = seeded.push(&tensor);
        let info = TensorInfo {
            dtype: tensor.dtype,
            bytes: start..seeded.bytes(),
            shape: tensor.shape,
        };
        tensors.insert(tensor.name, (0, info));
    }
    progress.expect(seeded.bytes());
    Checkpoint {
        files: vec![Source::Seeded(seeded)],
        tensors,
        ..Checkpoint::empty(layout, progress)
    }
}

fn open_sharded(
    folder: &Folder,
    layers: usize,
    progress: Arc<Progress>,
) -> Result<Checkpoint, WeightsError> {
    let index = index::read(folder)?;
    let shards: BTreeSet<&str> = index.values().map(String::as_str).collect();
    if shards.len() > SHARDS_MAX {
        return Err(WeightsError::Index {
            file: INDEX.to_string(),
            problem: format!("{} shards, at most {SHARDS_MAX}", shards.len()),
        });
    }
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for &name in &shards {
        match Source::open(folder, name) {
            Ok(file) => files.push(file),
            Err(WeightsError::Absent { .. } | WeightsError::Dangling { .. }) => {
                missing.push(name.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    match missing[..] {
        [] => Checkpoint::check(files, Some(&index), layers, progress),
        _ => Err(locate::incomplete(folder, &missing)),
    }
}

impl Checkpoint {
    fn check(
        files: Vec<Source>,
        index: Option<&BTreeMap<String, String>>,
        layers: usize,
        progress: Arc<Progress>,
    ) -> Result<Checkpoint, WeightsError> {
        let (mut tensors, mut vision) = (BTreeMap::new(), [0; 2]);
        for (number, file) in files.iter().enumerate() {
            let header = read_header(file)?;
            if let Some(index) = index {
                check_index(index, file.name(), &header)?;
            }
            let tower = header.iter().filter(|(name, _)| is_vision(name));
            add(&mut vision, tower.map(|(_, info)| info));
            collect(number, file.name(), header, &mut tensors)?;
        }
        if let Some(index) = index {
            check_all_found(index, &tensors)?;
        }
        let layout = Layout::cut(layers).found_in(|name| tensors.contains_key(name));
        check_layout(&layout.tensors(), &files, &tensors)?;
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
            vision,
            ..Checkpoint::empty(layout, progress)
        })
    }

    fn empty(layout: Layout, progress: Arc<Progress>) -> Checkpoint {
        Checkpoint {
            files: Vec::new(),
            tensors: BTreeMap::new(),
            layout,
            vision: [0; 2],
            unknown_maths: Vec::new(),
            packed: None,
            progress,
            largest: Mutex::default(),
        }
    }

    /// Number of the checkpoint's tensors, without a vision tower.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the model has a layer of multi-token prediction and the checkpoint lacks its
    /// tensors.
    pub fn lacks_prediction(&self) -> bool {
        let has = |layout: Layout| layout.has(Role::Fusion, Site::Prediction);
        has(Layout::whole()) && !has(self.layout)
    }

    /// Compares the sums of tensors and bytes with the manifest's. A vision tower must be complete
    /// or absent. The sums apply to all layers; a checkpoint without the layer of multi-token
    /// prediction has other sums.
    fn check_sums(&self) -> Result<(), WeightsError> {
        let mut text = [0; 2];
        add(&mut text, self.tensors.values().map(|(_, info)| info));
        let sums = [
            ("tensors", text[0], target::TENSORS),
            ("bytes of tensors", text[1], target::TENSOR_BYTES),
            ("tensors of a vision tower", self.vision[0], tower(0)),
            ("bytes of a vision tower", self.vision[1], tower(1)),
        ];
        for (what, found, expected) in sums {
            let absent = match what.ends_with("tower") {
                true => self.vision == [0, 0],
                false => self.lacks_prediction(),
            };
            if !absent && !expected.contains(&found) {
                return Err(WeightsError::Sum {
                    what,
                    found,
                    expected: *expected.end(),
                });
            }
        }
        Ok(())
    }

    /// Checkpoint of the first `layers` layers of a packed file, and the tensors around the layers.
    pub fn of_packed(packed: Arc<Packed>, layers: usize, progress: Arc<Progress>) -> Checkpoint {
        let whole = Layout::cut(layers);
        let layout = match whole.has(Role::Fusion, Site::Prediction) {
            true if packed.bytes_of(&whole.weight(Role::Fusion, Site::Prediction).key()) == 0 => {
                whole.without_prediction()
            }
            _ => whole,
        };
        let checkpoint = Checkpoint {
            packed: Some(packed),
            ..Checkpoint::empty(layout, progress)
        };
        checkpoint.progress.expect(checkpoint.bytes());
        checkpoint
    }

    /// Keys of the configuration, each with its value, whose names suggest that they change the
    /// model's maths, and that the binary does not know.
    pub fn unknown_maths(&self) -> &[String] {
        &self.unknown_maths
    }

    /// The packed file, if the weights are packed.
    pub fn packed(&self) -> Option<&Arc<Packed>> {
        self.packed.as_ref()
    }

    /// Number of bytes that loading reads.
    fn bytes(&self) -> u64 {
        if let Some(packed) = &self.packed {
            let weights = self.layout.matrices().chain(self.layout.vectors());
            return weights.map(|weight| packed.bytes_of(&weight.key())).sum();
        }
        let loaded = self.layout.tensors();
        let loaded = loaded.keys().filter_map(|name| self.tensors.get(name));
        loaded
            .map(|(_, info)| info.bytes.end - info.bytes.start)
            .sum()
    }

    /// Layout of the matrices and vectors that are loaded.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The checkpoint without the layer of multi-token prediction, which is not loaded then.
    pub fn without_prediction(mut self) -> Checkpoint {
        self.layout = self.layout.without_prediction();
        self.progress.expect(self.bytes());
        self
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Refuses a checkpoint that was written to while the server read it.
    ///
    /// # Errors
    /// `Changed` naming the file.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(Source::check_unchanged)?;
        self.packed
            .iter()
            .try_for_each(|packed| packed.check_unchanged())
    }

    /// Refuses a packed checkpoint where weights are needed in the checkpoint's own format.
    fn check_stored(&self) -> Result<(), WeightsError> {
        match &self.packed {
            None => Ok(()),
            Some(packed) => Err(packed.refused(
                "holds the weights as the kernels of this binary read them, no other way; give \
                 the directory of the checkpoint for this"
                    .to_string(),
            )),
        }
    }

    /// Source of the matrix of a role at a site.
    pub fn matrix(&self, role: Role, site: Site) -> MatrixSource<'_> {
        self.source(self.layout.weight(role, site))
    }

    /// Source of the matrix of one expert.
    pub fn expert(&self, role: Role, site: Site, expert: usize) -> MatrixSource<'_> {
        self.source(self.layout.copy(role, site, expert))
    }

    /// Source of the matrix `weight` of the layout, in tensors or in the packed file.
    pub fn source(&self, weight: Weight) -> MatrixSource<'_> {
        MatrixSource {
            checkpoint: self,
            weight,
        }
    }

    /// Source of the vector of a role at a site.
    pub fn vector(&self, role: Role, site: Site) -> VectorSource<'_> {
        VectorSource {
            checkpoint: self,
            weight: self.layout.weight(role, site),
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

    fn read_all_floats(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let info = &self.tensors[name].1;
        let bytes = (info.bytes.end - info.bytes.start) as usize;
        self.read_floats(name, 0..bytes / info.dtype.bytes())
    }

    /// Reads some elements of a tensor of floats as F32.
    fn read_floats(&self, name: &str, range: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        let dtype = self.tensors[name].1.dtype;
        let mut bytes = vec![0; range.len() * dtype.bytes()];
        self.read(name, range.start * dtype.bytes(), &mut bytes)?;
        let mut out = Vec::with_capacity(range.len());
        match dtype {
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

    /// Refuses a stored head that differs from the embedding that it is tied to. `bytes`: a part of
    /// the head, from its byte `first` on.
    fn check_tied(&self, first: usize, bytes: &[u8]) -> Result<(), WeightsError> {
        const BLOCK: usize = 1 << 20;
        if !self.layout.has(Role::TiedHead, Site::Whole) {
            return Ok(());
        }
        let name = self.layout.weight(Role::TiedHead, Site::Whole).name();
        if !self.tensors.contains_key(&name) {
            return Ok(());
        }
        let mut head = vec![0; bytes.len().min(BLOCK)];
        for (block, embedding) in bytes.chunks(BLOCK).enumerate() {
            let (first, head) = (first + block * BLOCK, &mut head[..embedding.len()]);
            self.read(&name, first, head)?;
            if let Some(at) = format::bf16_difference(embedding, head) {
                return Err(self.wrong(&name, first / 2 + at, Wrong::Untied));
            }
        }
        Ok(())
    }

    /// Refuses a tensor if there is an `index`, that of its first wrong element.
    fn check_none(&self, name: &str, index: Option<usize>) -> Result<(), WeightsError> {
        let wrong = |index| Err(self.wrong(name, index, Wrong::NotFinite));
        index.map_or(Ok(()), wrong)
    }

    fn wrong(&self, name: &str, index: usize, wrong: Wrong) -> WeightsError {
        let (file, tensor) = (self.file_of(name), name.to_string());
        WeightsError::Element {
            file,
            tensor,
            index,
            wrong,
        }
    }

    /// Entry of `largest` for the matrix `key`.
    fn largest_of(&self, key: &str) -> Arc<Mutex<Option<f32>>> {
        let largest = self.largest.lock();
        let mut largest = largest.unwrap_or_else(PoisonError::into_inner);
        largest.entry(key.to_string()).or_default().clone()
    }

    fn file_of(&self, tensor: &str) -> String {
        self.files[self.tensors[tensor].0].name().to_string()
    }
}

/// Index of the first wrong element. Whole blocks are checked without branches, for which the
/// compiler has vector instructions.
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

/// A checked matrix of the checkpoint, which can be read.
#[derive(Clone, Copy)]
pub struct MatrixSource<'a> {
    checkpoint: &'a Checkpoint,
    weight: Weight,
}

impl MatrixSource<'_> {
    /// Numbers of rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.weight.n(), self.weight.k())
    }

    /// Format of the weights once they are read, possibly rounded.
    pub fn format(&self) -> Format {
        self.weight.format()
    }

    /// Whether weights are rounded as they are read from the checkpoint.
    pub fn is_rounded(&self) -> bool {
        matches!(self.weight.kind(), Kind::Rounded { .. })
    }

    /// Whether the matrix is used in place, in its mapped file.
    pub fn is_mapped(&self) -> bool {
        let packed = self.checkpoint.packed.as_ref();
        packed.is_some_and(|packed| packed.maps())
    }

    /// Location of matrices that lie together in a packed file; None if nothing is packed.
    ///
    /// # Errors
    /// `Packed` if the matrices do not lie together.
    pub fn packed<'a>(parts: &[MatrixSource<'a>]) -> Result<Option<PackedStack<'a>>, WeightsError> {
        let MatrixSource { checkpoint, weight } = parts[0];
        let Some(packed) = &checkpoint.packed else {
            return Ok(None);
        };
        let n = parts.iter().map(|part| part.shape().0).sum();
        let entry = packed.entry(&weight.key(), [n, weight.k()])?;
        Ok(Some(PackedStack::new(packed, entry, &checkpoint.progress)))
    }

    /// Reads the weights as exact F32, row-major `[n, k]`.
    ///
    /// # Errors
    /// `Io`, or `Element`.
    pub fn read_f32(&self) -> Result<Vec<f32>, WeightsError> {
        Ok(self.read()?.values())
    }

    /// Reads the weights in their format in memory, all of them finite.
    pub fn read(&self) -> Result<Stored, WeightsError> {
        self.read_rows(0..self.weight.n())
    }

    /// Reads some rows in the format that `read` gives, all of them finite. Rows that share scales
    /// are read together: `rows` begins at a multiple of `FP8_BLOCK`.
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Stored, WeightsError> {
        let [codes, scales] = self.sections(rows.len());
        self.read_rows_to(rows, vec![0; codes], vec![0; scales])
    }

    /// Bytes of the codes of `rows` rows, and of their scales.
    pub fn sections(&self, rows: usize) -> [usize; 2] {
        self.format().coding().sections(rows, self.weight.k())
    }

    /// Bytes of the codes and of the scales of `rows` rows in the checkpoint's own format.
    fn stored_sections(&self, rows: usize) -> [usize; 2] {
        let coding = self.weight.stored_format().coding();
        coding.sections(rows, self.weight.k())
    }

    /// Reads rows as `read_rows` does, into `codes` and `scales`, whose lengths `sections` states.
    pub fn read_rows_to<Bytes: DerefMut<Target = [u8]>>(
        &self,
        rows: Range<usize>,
        codes: Bytes,
        scales: Bytes,
    ) -> Result<Stored<Bytes>, WeightsError> {
        assert!(rows.start.is_multiple_of(FP8_BLOCK) && rows.end <= self.weight.n());
        assert_eq!([codes.len(), scales.len()], self.sections(rows.len()));
        self.checkpoint.check_stored()?;
        match self.is_rounded() {
            true => self.round_rows(rows, codes, scales),
            false => self.read_stored(rows, codes, scales),
        }
    }

    /// Reads rows as `read_rows_to` does, and rounds them from the checkpoint's format.
    fn round_rows<Bytes: DerefMut<Target = [u8]>>(
        &self,
        rows: Range<usize>,
        mut codes: Bytes,
        mut scales: Bytes,
    ) -> Result<Stored<Bytes>, WeightsError> {
        let stored = self.read_exact(rows.clone())?;
        let (n, k, values) = (stored.n, stored.k, stored.values());
        let largest = || match rows.len() == self.weight.n() {
            true => Ok(rounding::largest(&values)),
            false => self.largest(),
        };
        let (coding, bias) = (self.format().coding(), stored.bias);
        let (weights, largest) = (&values[..], &largest);
        let exact = Exact {
            weights,
            k,
            largest,
        };
        let factors = coding.codec().round(exact, &mut codes, &mut scales)?;
        let bits = Bits::new(coding, codes, scales, factors);
        Ok(Stored { n, k, bits, bias })
    }

    /// Largest magnitude of the whole matrix. The first caller reads all rows, later callers wait.
    fn largest(&self) -> Result<f32, WeightsError> {
        const ROWS: usize = FP8_BLOCK;
        let known = self.checkpoint.largest_of(&self.weight.key());
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(largest) = *known {
            return Ok(largest);
        }
        let n = self.weight.n();
        let sections = self.stored_sections(n);
        let bytes: usize = sections.iter().sum();
        self.checkpoint.progress.expect_more(bytes as u64);
        let mut largest = 0f32;
        for start in (0..n).step_by(ROWS) {
            let stored = self.read_exact(start..n.min(start + ROWS))?;
            largest = largest.max(rounding::largest(&stored.values()));
        }
        *known = Some(largest);
        Ok(largest)
    }

    /// Reads some rows in the checkpoint's own format.
    fn read_exact(&self, rows: Range<usize>) -> Result<Stored, WeightsError> {
        let sections = self.stored_sections(rows.len());
        let [codes, scales] = sections.map(|bytes| vec![0; bytes]);
        self.read_stored(rows, codes, scales)
    }

    fn read_stored<Bytes: DerefMut<Target = [u8]>>(
        &self,
        rows: Range<usize>,
        mut codes: Bytes,
        mut scales: Bytes,
    ) -> Result<Stored<Bytes>, WeightsError> {
        let (n, k) = (rows.len(), self.weight.k());
        let has = self.weight.stored()[0];
        let stored = rows.start.min(has)..rows.end.min(has);
        let bias = self.bias(rows)?;
        let rows = MatrixRows {
            checkpoint: self.checkpoint,
            weight: self.weight,
            stretches: self.weight.stretches(&stored),
        };
        let coding = self.weight.stored_format().coding();
        let factors = coding.codec().read(&rows, &mut codes, &mut scales)?;
        let bits = Bits::new(coding, codes, scales, factors);
        let stored = Stored { n, k, bits, bias };
        // A product of finite factors may overflow.
        if !stored.is_finite() {
            let values = stored.values();
            let name = self.weight.tensor(Purpose::Elements);
            self.checkpoint.check_finite(&name, &values)?;
        }
        Ok(stored)
    }

    /// Biases of the results of some rows, 0 for padded rows; empty if the matrix has no bias.
    ///
    /// # Errors
    /// `Io`, or `Element`.
    pub fn bias(&self, rows: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        let (weight, layout) = (self.weight, self.checkpoint.layout);
        let role = weight.role().bias();
        let Some(role) = role.filter(|role| layout.has(*role, weight.site())) else {
            return Ok(Vec::new());
        };
        let has = weight.stored()[0];
        let stretches = weight.stretches(&(rows.start.min(has)..rows.end.min(has)));
        let start = stretches.first().map_or(0, |stretch| stretch.start);
        let end = stretches.last().map_or(0, |stretch| stretch.end);
        let all = self
            .checkpoint
            .vector(role, weight.site())
            .read_part(start..end)?;
        let of = |stretch: &Range<usize>| &all[stretch.start - start..stretch.end - start];
        let mut bias: Vec<f32> = stretches.iter().flat_map(of).copied().collect();
        bias.resize(rows.len(), 0.0);
        Ok(bias)
    }
}

/// Some rows of a matrix, which can be read as the checkpoint has them.
pub struct MatrixRows<'a> {
    checkpoint: &'a Checkpoint,
    pub weight: Weight,
    /// Rows of the checkpoint's tensors that make these rows, in order.
    pub stretches: Vec<Range<usize>>,
}

impl MatrixRows<'_> {
    /// Reads all numbers of the matrix's tensor for `purpose`.
    pub fn numbers(&self, purpose: Purpose) -> Result<Vec<f32>, WeightsError> {
        let name = self.weight.tensor(purpose);
        self.checkpoint.read_all_floats(&name)
    }

    /// Fills `out` with rows of the tensor for a purpose. `bytes` gives a row's bytes by its
    /// columns: shorter rows of the checkpoint are padded by zeros, and so is the rest of `out`.
    /// `check` gets the bytes of each stretch of rows and their offset in the tensor.
    pub fn read(
        &self,
        purpose: Purpose,
        bytes: fn(usize) -> usize,
        out: &mut [u8],
        check: impl Fn(usize, &[u8]) -> Result<(), WeightsError>,
    ) -> Result<(), WeightsError> {
        let [stored, wide] = [self.weight.stored()[1], self.weight.k()].map(bytes);
        let rows: usize = self.stretches.iter().map(|stretch| stretch.len()).sum();
        let (filled, rest) = out.split_at_mut(rows * wide);
        rest.fill(0);
        if stored == wide {
            return self.read_stretches(purpose, stored, filled, check);
        }
        let mut narrow = vec![0; rows * stored];
        self.read_stretches(purpose, stored, &mut narrow, check)?;
        let rows = narrow.chunks_exact(stored);
        for (to, from) in filled.chunks_exact_mut(wide).zip(rows) {
            to[..stored].copy_from_slice(from);
            to[stored..].fill(0);
        }
        Ok(())
    }

    fn read_stretches(
        &self,
        purpose: Purpose,
        row_bytes: usize,
        mut out: &mut [u8],
        check: impl Fn(usize, &[u8]) -> Result<(), WeightsError>,
    ) -> Result<(), WeightsError> {
        let name = self.weight.tensor(purpose);
        for stretch in &self.stretches {
            let (now, rest) = out.split_at_mut(stretch.len() * row_bytes);
            let first = stretch.start * row_bytes;
            self.checkpoint.read(&name, first, now)?;
            check(first, now)?;
            out = rest;
        }
        Ok(())
    }

    /// Refuses the first wrong element. `elements` begin at index `first` of the tensor.
    pub fn check<T>(
        &self,
        purpose: Purpose,
        first: usize,
        elements: &[T],
        wrong: impl Fn(&T) -> Option<Wrong>,
    ) -> Result<(), WeightsError> {
        let index = position(elements, |element| wrong(element).is_some()).unwrap_or(0);
        let wrong = elements.get(index).and_then(wrong);
        wrong.map_or(Ok(()), |wrong| {
            Err(self.wrong(purpose, first + index, wrong))
        })
    }

    /// Error for the element at `index` of a tensor.
    pub fn wrong(&self, purpose: Purpose, index: usize, wrong: Wrong) -> WeightsError {
        let name = self.weight.tensor(purpose);
        self.checkpoint.wrong(&name, index, wrong)
    }

    /// Refuses rows of a stored head that differ from the embedding that the head is tied to; other
    /// rows pass. `bytes` begin at the tensor's byte `first`.
    pub fn check_tied(&self, first: usize, bytes: &[u8]) -> Result<(), WeightsError> {
        match self.weight.role() {
            Role::Embedding => self.checkpoint.check_tied(first, bytes),
            _ => Ok(()),
        }
    }
}

/// A checked vector of the checkpoint.
#[derive(Clone, Copy)]
pub struct VectorSource<'a> {
    checkpoint: &'a Checkpoint,
    weight: Weight,
}

impl VectorSource<'_> {
    /// Reads the values as F32. Weights of norms that are stored around zero get one added.
    ///
    /// # Errors
    /// `Io`, or `Element`.
    pub fn read_f32(&self) -> Result<Vec<f32>, WeightsError> {
        if let Some(packed) = &self.checkpoint.packed {
            return self.unpacked(packed);
        }
        let mut values = self.checkpoint.read_all_floats(&self.weight.name())?;
        let runs = self.weight.stretches(&(0..self.weight.stored()[0]));
        if !runs.is_empty() {
            values = in_order(&values, &runs);
        }
        if matches!(self.weight.kind(), Kind::Vector { plus_one: true }) {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        if self.weight.role() == Role::RouterNorm {
            let root = (target::CHANNELS as f32).sqrt();
            values.iter_mut().for_each(|value| *value /= root);
        }
        values.resize(self.weight.elements(), 0.0);
        Ok(values)
    }

    /// Reads some of the values, without the one that is added to norms.
    fn read_part(&self, range: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        match &self.checkpoint.packed {
            Some(packed) => Ok(self.unpacked(packed)?[range].to_vec()),
            None => self.checkpoint.read_floats(&self.weight.name(), range),
        }
    }

    /// Reads the values from a packed file, which has them as `read_f32` returns them.
    fn unpacked(&self, packed: &Packed) -> Result<Vec<f32>, WeightsError> {
        let entry = packed.entry(&self.weight.key(), [self.weight.elements(), 1])?;
        let stack = PackedStack::new(packed, entry, &self.checkpoint.progress);
        if stack.storage() != VECTOR || stack.bytes() != self.weight.elements() * size_of::<f32>() {
            return Err(stack.unknown());
        }
        let mut bytes = vec![0; stack.bytes()];
        stack.read(0, &mut bytes)?;
        let mut values = Vec::with_capacity(self.weight.elements());
        format::f32_values(&bytes, &mut values);
        Ok(values)
    }
}

/// Rows of a tensor in the order of `stretches`, which together cover it.
fn in_order(values: &[f32], stretches: &[Range<usize>]) -> Vec<f32> {
    let rows: usize = stretches.iter().map(|stretch| stretch.len()).sum();
    let width = values.len() / rows;
    let part = |stretch: &Range<usize>| &values[stretch.start * width..stretch.end * width];
    stretches.iter().flat_map(part).copied().collect()
}

fn read_header(file: &Source) -> Result<BTreeMap<String, TensorInfo>, WeightsError> {
    let fail = |problem| {
        let name = file.name().to_string();
        match file.foreign() {
            Some(problem) => WeightsError::Foreign {
                file: name,
                problem,
            },
            None => WeightsError::Header {
                file: name,
                problem,
            },
        }
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

/// Name without the parts that multimodal releases add: `model.language_model.` becomes `model.`.
fn canonical(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.to_string(),
    }
}

/// Expected number (`at` 0) or bytes (`at` 1) of the tensors of a vision tower.
fn tower(at: usize) -> RangeInclusive<u64> {
    target::VISION_TENSORS[at]..=target::VISION_TENSORS[at]
}

/// Adds the number of tensors and their bytes to `sums`.
fn add<'a>(sums: &mut [u64; 2], tensors: impl Iterator<Item = &'a TensorInfo>) {
    for info in tensors {
        sums[0] += 1;
        sums[1] += info.bytes.end - info.bytes.start;
    }
}

fn is_ignored(name: &str) -> bool {
    is_vision(name) || (target::MTP_LAYERS == 0 && name.starts_with("mtp."))
}

fn collect(
    file: usize,
    file_name: &str,
    header: BTreeMap<String, TensorInfo>,
    tensors: &mut BTreeMap<String, (usize, TensorInfo)>,
) -> Result<(), WeightsError> {
    for (name, info) in header.into_iter().filter(|(name, _)| !is_ignored(name)) {
        let canonical = canonical(&name);
        if tensors.insert(canonical, (file, info)).is_some() {
            let problem = format!("tensor {name} is given twice");
            return Err(WeightsError::Header {
                file: file_name.to_string(),
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
    let absent =
        |(name, e): &(&String, &Expected)| !e.piece.optional && !tensors.contains_key(*name);
    let mut missing = expected.iter().filter(absent);
    if let Some((tensor, _)) = missing.next() {
        let count = 1 + missing.count();
        return Err(WeightsError::Missing {
            tensor: tensor.clone(),
            count,
        });
    }
    for (name, (file, info)) in tensors {
        let file = files[*file].name();
        match expected.get(name) {
            Some(expected) => check_tensor(file, name, info, &expected.piece)?,
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
    expected: &Piece,
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
