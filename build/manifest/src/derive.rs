//! Numbers computed from a target's manifests: widths, bytes and counts.

use std::ops::RangeInclusive;

use crate::family::Switch;
use crate::schema::leaf::KvFormat;
use crate::schema::model::{Attention, Mixer, Model};
use crate::table::{Format, Piece, Row};
use crate::target::Target;
use crate::weights::{Part, count, elements, piece_bytes};

const F32_BYTES: u64 = 4;
const BF16_BYTES: u64 = 2;

/// The nearest BF16 number of a positive number; ties go to the even one.
fn nearest_bf16(number: f64) -> f64 {
    let bits = (number as f32).to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    f32::from_bits(rounded & 0xffff_0000).into()
}

impl Target {
    /// Numbers to whose multiples hidden and inner widths are padded in memory.
    pub(crate) fn pads(&self) -> [u64; 2] {
        let numbers = &self.leaf.numbers;
        [numbers.pad, numbers.pad_inner.unwrap_or(numbers.pad)]
    }

    /// A hidden width in memory, padding included.
    pub(crate) fn padded(&self, width: u64) -> u64 {
        width.next_multiple_of(self.pads()[0])
    }

    /// An inner width in memory, padding included.
    pub(crate) fn padded_inner(&self, width: u64) -> u64 {
        width.next_multiple_of(self.pads()[1])
    }

    /// Factor of the embedding's rows, rounded to BF16 as training code rounds it.
    pub(crate) fn embedding_scale(&self) -> f64 {
        match self.has(Switch::ScaledEmbedding) {
            true => nearest_bf16((self.model.hidden as f64).sqrt()),
            false => 1.0,
        }
    }

    /// The model with its widths in memory, padding included.
    pub(crate) fn padded_model(&self) -> Model {
        let mut model = self.model.clone();
        model.hidden = self.padded(model.hidden);
        let latent = model.moe.as_mut().and_then(|moe| moe.latent.as_mut());
        latent
            .into_iter()
            .for_each(|latent| *latent = self.padded(*latent));
        let experts = model.moe.as_mut().into_iter();
        let experts = experts.flat_map(|moe| {
            let shared = moe.shared_intermediate.as_mut();
            [Some(&mut moe.intermediate), shared]
        });
        let of_mlp = model.mlp.as_mut().map(|mlp| &mut mlp.intermediate);
        for width in experts.flatten().chain(of_mlp) {
            *width = self.padded_inner(*width);
        }
        model
    }

    /// Mixer of each layer.
    pub fn mixers(&self) -> Vec<Mixer> {
        self.model.mixers()
    }

    /// Number of layers with the given mixer.
    pub(crate) fn layers_of(&self, mixer: Mixer) -> u64 {
        self.mixers().iter().filter(|&&each| each == mixer).count() as u64
    }

    /// Number of layers with a recurrent mixer.
    pub(crate) fn recurrent_layers(&self) -> u64 {
        let mixers = self.mixers().into_iter();
        mixers.filter(|each| each.recurs()).count() as u64
    }

    /// Bytes of one token's keys and values in decoder layers that keep every position.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.kv_bytes_of(|window| window.is_none() || self.page_window().is_none())
    }

    /// Bytes of one token's keys and values in decoder layers whose pages are freed after a window.
    fn window_bytes_per_token(&self) -> u64 {
        self.kv_bytes_of(|window| window.is_some() && self.page_window().is_some())
    }

    /// Bytes of one token's keys and values in decoder layers whose page window `window` accepts.
    fn kv_bytes_of(&self, window: impl Fn(Option<u64>) -> bool) -> u64 {
        let shapes = self.attentions().into_iter();
        let of_group = shapes.filter(|each| window(each.facts.window));
        let of_layers =
            of_group.map(|each| self.kv_bytes_in(&each.facts) * self.layers_of(each.mixer));
        of_layers.sum()
    }

    /// Bytes of all pages of windowed layers.
    pub fn window_bytes(&self) -> u64 {
        let (limits, prefill) = (&self.leaf.limits, self.leaf.steps.prefill);
        self.window_bytes_for([limits.sequences, prefill, self.snapshots()])
    }

    /// Bytes of windowed layers' pages for these numbers of sequences, prompt tokens of a step and
    /// snapshots.
    pub(crate) fn window_bytes_for(&self, limits: [u64; 3]) -> u64 {
        let [sequences, prefill, snapshots] = limits.map(|limit| limit as usize);
        let pages = |window| {
            let window = step::Window::of(window as usize, sequences, prefill, snapshots);
            (window.pages * step::PAGE) as u64
        };
        self.page_window().map_or(0, pages) * self.window_bytes_per_token()
    }

    /// Bytes of one token's keys and values in all layers, the prediction layer included.
    pub fn kv_bytes_per_token_of_all(&self) -> u64 {
        let prediction = self.kv_bytes_in(&self.model.attention) * self.mtp_layers();
        self.kv_bytes_per_token() + prediction
    }

    /// Bytes of one token's keys and values in one layer.
    pub(crate) fn kv_bytes_in(&self, attention: &Attention) -> u64 {
        let gpu = &self.hardware.gpu;
        let of_head = |dim| match (gpu, self.leaf.numbers.kv) {
            // On a CPU, numbers of any format are in memory as F32.
            (None, _) | (_, KvFormat::F32) => F32_BYTES * dim,
            (_, KvFormat::Bf16) => BF16_BYTES * dim,
            (_, KvFormat::Fp8) => dim + 1,
        };
        let values = match (self.has(Switch::Latent), gpu) {
            (false, _) => of_head(attention.head_dim),
            // On a CPU, latents are in memory a second time, beside keys.
            (true, None) => of_head(self.model.latent_rank()),
            (true, Some(_)) => 0,
        };
        attention.kv_heads * (of_head(attention.head_dim) + values)
    }

    /// Number of KV pages of the whole server.
    pub fn kv_pages(&self) -> u64 {
        self.leaf.limits.kv_tokens / self.leaf.limits.page
    }

    /// Bytes of all KV pages, those of the prediction layer and of windowed layers included.
    pub fn kv_bytes(&self) -> u64 {
        let pages = self.kv_pages() * self.leaf.limits.page;
        pages * self.kv_bytes_per_token_of_all() + self.window_bytes()
    }

    /// Whether a prompt can resume only from a snapshot beside its pages: from a recurrent state,
    /// or from the last pages of a window.
    pub(crate) fn keeps_snapshots(&self) -> bool {
        self.recurrent_layers() > 0 || self.page_window().is_some()
    }

    /// Number of recurrent states for snapshots, beside those of sequences.
    pub fn snapshots(&self) -> u64 {
        self.leaf.limits.snapshots.unwrap_or(0)
    }

    /// Largest number of draft tokens that one step verifies.
    pub fn drafts(&self) -> u64 {
        self.leaf.limits.drafts.unwrap_or(0)
    }

    /// Number of recurrent states: one for each sequence, snapshot and draft.
    pub fn states(&self) -> u64 {
        let drafts = match self.keeps_snapshots() {
            true => self.drafts(),
            false => 0,
        };
        self.leaf.limits.sequences + self.snapshots() + drafts
    }

    /// Bytes of one sequence's matrix states, F32, and of its convolution tails: a row of F32 for
    /// each tap of a layer.
    pub fn state_bytes(&self) -> [u64; 2] {
        let recurs = self.traits().recurs;
        let of_layer = recurs.map_or([0; 2], |recurs| (recurs.state)(&self.model));
        of_layer.map(|elements| elements * F32_BYTES * self.recurrent_layers())
    }

    /// Bytes of a part of the checkpoint, text or multi-token prediction.
    pub fn part_bytes(&self, part: Part) -> u64 {
        self.sum(|row| u64::from(Part::of(row) == part) * self.bytes_stored(row))
    }

    /// Number and bytes of tensors that the server does not read, those of a vision tower.
    fn unused(&self) -> [u64; 2] {
        let vision = self.model.vision.as_ref();
        vision.map_or([0; 2], |vision| [vision.tensors, vision.bytes])
    }

    /// Bytes of all tensors of the checkpoint, a vision tower's included: the least, with all
    /// vectors in BF16, and the most, with all in F32.
    pub(crate) fn checkpoint_bytes_range(&self) -> RangeInclusive<u64> {
        let [_, unused] = self.unused();
        let least = self.part_bytes(Part::Text) + self.part_bytes(Part::Mtp) + unused;
        least..=least + self.sum(|row| self.bytes_if_f32(row))
    }

    /// Bytes of all tensors of the checkpoint, a vision tower's included: as published, or with
    /// vectors in BF16.
    pub fn checkpoint_bytes(&self) -> u64 {
        let made = self.leaf.derive.is_some();
        let published = self.checkpoint().filter(|_| !made);
        let stated = published.and_then(|checkpoint| checkpoint.tensor_bytes);
        stated.unwrap_or_else(|| *self.checkpoint_bytes_range().start())
    }

    /// Number of the checkpoint's tensors, a vision tower's included.
    pub fn checkpoint_tensors(&self) -> u64 {
        let [unused, _] = self.unused();
        self.sum(|row| count(row) * self.pieces(row).len() as u64) + unused
    }

    /// Number and bytes of the decoder's tensors, the least and the most: as published, or, where
    /// no number is stated, without and with the tensors that a checkpoint may leave out.
    pub(crate) fn sums(&self) -> [RangeInclusive<u64>; 2] {
        let [unused, unused_bytes] = self.unused();
        let tensors = self.checkpoint_tensors() - unused;
        let published = self.checkpoint().filter(|_| self.leaf.derive.is_none());
        let bytes = match published.and_then(|checkpoint| checkpoint.tensor_bytes) {
            Some(stated) => stated..=stated,
            None => self.checkpoint_bytes_range(),
        };
        let (least, most) = (bytes.start() - unused_bytes, bytes.end() - unused_bytes);
        match published.is_some_and(|checkpoint| checkpoint.tensors.is_none()) {
            false => [tensors..=tensors, least..=most],
            true => {
                let [had, may] = [false, true].map(|all| self.optional(all));
                [
                    tensors - had[0]..=tensors - had[0] + may[0],
                    least - had[1]..=most - had[1] + may[1],
                ]
            }
        }
    }

    /// Number and bytes of optional tensors: of all, or of those that the checkpoint states it has.
    fn optional(&self, all: bool) -> [u64; 2] {
        let pieces = |row: &Row| match all {
            true => row.pieces(),
            false => self.pieces(row),
        };
        let sum = |of: fn(&Piece) -> u64| {
            self.sum(|row| {
                let left_out = pieces(row).into_iter().filter(|piece| piece.optional);
                count(row) * left_out.map(|piece| of(&piece)).sum::<u64>()
            })
        };
        [sum(|_| 1), sum(piece_bytes)]
    }

    /// Number of parameters of a part of the model.
    pub fn part_parameters(&self, part: Part) -> u64 {
        self.sum(|row| u64::from(Part::of(row) == part) * elements(row))
    }

    /// Number of parameters that one decoded token reads, without multi-token prediction.
    pub fn active_parameters(&self) -> u64 {
        self.sum(|row| self.read_of(row, elements(row)))
    }

    /// Weight bytes that one decoded token reads at batch 1, without multi-token prediction.
    pub fn weight_bytes_per_token(&self) -> u64 {
        self.sum(|row| self.bytes_read(row))
    }

    /// Bytes that must be resident to serve: text and prediction weights, KV pages, states.
    pub fn resident_bytes(&self) -> u64 {
        let state: u64 = self.state_bytes().iter().sum();
        let weights = match self.pads() {
            [1, 1] => self.sum(|row| self.bytes_resident(row)),
            _ => self.table().iter().map(|row| self.padded_bytes(row)).sum(),
        };
        weights + self.kv_bytes() + state * self.states()
    }

    /// Bytes of a row's matrices in memory with padded widths: group-scaled codes then have one
    /// factor more for each row.
    fn padded_bytes(&self, row: &Row) -> u64 {
        let [n, k] = row.padded(self.pads().map(|pad| pad as usize));
        let Some(format) = row.resident() else {
            return self.bytes_stored(row);
        };
        let coding = format.coding();
        let bytes = match coding.sections(n, k) {
            [_, 0] => format.bytes(n, k),
            [codes, scales] => codes + scales + n * size_of::<f32>(),
        };
        (row.sites.iter().count() * row.copies * bytes) as u64
    }

    /// Number of layers of multi-token prediction in the checkpoint.
    pub(crate) fn mtp_layers(&self) -> u64 {
        let checkpoint = self.checkpoint();
        match checkpoint.is_some_and(|checkpoint| checkpoint.without_mtp) {
            true => 0,
            false => self.model.mtp.layers,
        }
    }

    /// Formats whose matrices have a scale of their input in the checkpoint.
    pub(crate) fn input_scales(&self) -> &[Format] {
        self.checkpoint()
            .map_or(&[], |checkpoint| &checkpoint.input_scales)
    }

    fn sum(&self, bytes: impl Fn(&Row) -> u64) -> u64 {
        self.tensors().iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::repository;
    use crate::weights::Part;

    const QWEN35: &str = "h200/qwen3.5-35b-a3b/nvfp4";
    const QWEN36: &str = "h200/qwen3.6-35b-a3b/fp8";

    #[test]
    fn parameters_of_a_35b() {
        let target = repository(QWEN35);
        assert_eq!(target.part_parameters(Part::Text), 34_660_610_688);
        assert_eq!(target.part_parameters(Part::Mtp), 844_640_768);
        assert_eq!(target.active_parameters(), 2_946_431_616);
    }

    #[test]
    fn checkpoint_bytes_of_nvfp4() {
        let target = repository(QWEN35);
        assert_eq!(target.part_bytes(Part::Text), 22_443_567_616);
        assert_eq!(target.part_bytes(Part::Mtp), 1_689_281_536);
        assert_eq!(target.checkpoint_bytes(), 25_025_991_648);
    }

    #[test]
    fn checkpoint_bytes_of_fp8() {
        let target = repository(QWEN36);
        assert_eq!(target.part_bytes(Part::Text), 35_707_978_496);
        assert_eq!(target.part_bytes(Part::Mtp), 853_668_480);
        assert_eq!(target.checkpoint_bytes(), 37_454_789_472);
    }

    #[test]
    fn weight_bytes_that_a_token_reads() {
        assert_eq!(repository(QWEN35).weight_bytes_per_token(), 3_873_052_672);
        assert_eq!(repository(QWEN36).weight_bytes_per_token(), 3_481_432_832);
    }

    #[test]
    fn rounded_weights_have_fewer_bytes_in_memory_than_stored() {
        let target = repository("h200/llama-3.1-8b/fp8");
        assert_eq!(target.checkpoint_bytes(), 16_060_522_496);
        assert_eq!(target.weight_bytes_per_token(), 8_031_387_648);
        let source = repository("h200/qwen3.6-35b-a3b/nvfp4");
        let target = repository("h200/qwen3.6-35b-a3b/nvfp4-all");
        assert_eq!(target.checkpoint_bytes(), source.checkpoint_bytes());
        assert_eq!(target.weight_bytes_per_token(), 1_694_963_920);
    }

    #[test]
    fn tensors_of_a_checkpoint() {
        assert_eq!(repository(QWEN35).checkpoint_tensors(), 125_091);
        assert_eq!(repository(QWEN36).checkpoint_tensors(), 64_196);
    }

    /// Tensors and bytes of published checkpoints, towers included, and the weight bytes that
    /// a token reads; by the headers of their files or by the shapes of the transformers library.
    #[test]
    fn checkpoints_of_every_family() {
        for (leaf, tensors, bytes, read) in [
            (
                "qwen3.5-122b-a10b/nvfp4",
                149_885,
                81_467_111_392,
                10_799_829_504,
            ),
            (
                "qwen3-next-80b-a3b/nvfp4",
                297_728,
                50_722_168_928,
                4_161_124_704,
            ),
            ("qwen3.5-27b/nvfp4", 2_384, 19_743_450_720, 16_279_203_968),
            ("qwen3.5-27b/bf16", 1_199, 55_562_855_904, 51_249_210_368),
            (
                "qwen3-vl-30b-a3b/nvfp4",
                75_090,
                19_164_721_120,
                2_176_756_224,
            ),
            ("qwen3-0.6b/bf16", 311, 1_503_264_768, 1_192_099_840),
            ("qwen3-8b/bf16", 399, 16_381_470_720, 15_136_819_200),
            ("qwen3-30b-a3b/bf16", 18_867, 61_064_245_248, 6_083_739_648),
            ("llama-3.1-8b/bf16", 291, 16_060_522_496, 15_009_857_536),
            ("mixtral-8x7b/bf16", 995, 93_405_585_408, 25_497_714_688),
        ] {
            let target = repository(&format!("cpu/{leaf}"));
            let found = (target.checkpoint_tensors(), target.checkpoint_bytes());
            assert_eq!(found, (tensors, bytes), "{leaf}");
            assert_eq!(target.weight_bytes_per_token(), read, "{leaf}");
        }
    }

    /// Tensors and bytes as the headers of the published files have them.
    #[test]
    fn a_checkpoint_of_gemma_4() {
        let target = repository("h200/gemma-4-26b-a4b/nvfp4a16");
        let least = *target.checkpoint_bytes_range().start();
        assert_eq!(
            (target.checkpoint_tensors(), least),
            (35_923, 16_416_988_112)
        );
        assert_eq!(target.weight_bytes_per_token(), 3_227_887_280);
    }

    /// Tensors and bytes as the headers of the published files have them, where 18 scales of inputs
    /// are missing.
    #[test]
    fn a_checkpoint_of_minimax() {
        let target = repository("h200/minimax-m2.7/nvfp4");
        let (tensors, bytes) = (191_069 + 18, 134_401_534_976 + 190_392 + 18 * 4);
        let found = (target.checkpoint_tensors(), target.checkpoint_bytes());
        assert_eq!(found, (tensors, bytes));
        // Scales of whole matrices of the experts that a token visits, besides.
        let scales = 62 * 8 * 3 * 4;
        assert_eq!(target.weight_bytes_per_token(), 10_738_856_768 + scales);
        assert_eq!(target.kv_bytes_per_token(), 253_952);
    }

    /// Tensors and bytes as the headers of the published files have them, where the scales of what
    /// shared experts take in are BF16.
    #[test]
    fn a_checkpoint_of_mistral_small_4() {
        let target = repository("h200/mistral-small-4-119b/nvfp4");
        let (tensors, bytes) = (56_313, 70_801_959_560 + 36 * 3 * 2);
        let found = (target.checkpoint_tensors(), target.checkpoint_bytes());
        assert_eq!(found, (tensors, bytes));
        assert_eq!(target.part_parameters(Part::Text), 118_972_826_624);
        assert_eq!(target.active_parameters(), 6_095_721_472);
        // Scales of what the experts that a token visits take in, besides.
        let scales = 36 * (4 + 1) * 3 * 4;
        assert_eq!(target.weight_bytes_per_token(), 5_679_788_144 + scales);
        assert_eq!(target.kv_bytes_per_token(), 23_040);
    }

    /// Tensors and bytes as the headers of the published files have them, whose corrections of
    /// experts are F32. A token reads the routers as BF16.
    #[test]
    fn a_checkpoint_of_nemotron_3_nano() {
        let target = repository("h200/nemotron-3-nano-30b-a3b/nvfp4");
        let least = *target.checkpoint_bytes_range().start();
        let (corrections, routers) = (23 * 128 * 2, 23 * 128 * 2688 * 2);
        assert_eq!(
            (target.checkpoint_tensors(), least),
            (24_147, 19_339_781_632 - corrections)
        );
        let read = target.weight_bytes_per_token();
        assert_eq!(read, 2_886_300_576 - corrections - routers);
        assert_eq!(target.kv_bytes_per_token(), 6_144);
    }

    /// Tensors and bytes as the headers of the published files have them, layers of multi-token
    /// prediction among them, whose corrections of experts are F32.
    #[test]
    fn a_checkpoint_of_nemotron_3_super() {
        let target = repository("h200/nemotron-3-super-120b-a12b/nvfp4");
        let least = *target.checkpoint_bytes_range().start();
        let corrections = 40 * 512 * 2;
        assert_eq!(
            (target.checkpoint_tensors(), least),
            (165_860, 80_297_329_824 - corrections - 512 * 2)
        );
        assert_eq!(target.part_bytes(Part::Mtp), 5_884_651_520 - 512 * 2);
        assert_eq!(target.part_bytes(Part::Text), 74_412_678_304 - corrections);
        let read = target.weight_bytes_per_token();
        assert_eq!(read, 12_645_741_472 - corrections);
        assert_eq!(target.kv_bytes_per_token(), 8_192);
        // Wider by the experts' padding alone: FP8 stays FP8 beside them.
        let (kept, state) = (target.kv_bytes(), target.state_bytes().iter().sum::<u64>());
        let states = state * target.states();
        let weights = target.resident_bytes() - kept - states;
        assert!(
            (83_800_000_000..84_000_000_000).contains(&weights),
            "{weights}"
        );
    }

    #[test]
    fn bytes_of_a_sequence() {
        let target = repository(QWEN35);
        assert_eq!(target.kv_bytes_per_token(), 20_480);
        assert_eq!(target.state_bytes(), [62_914_560, 3_932_160]);
    }

    #[test]
    fn a_tied_head_is_read_whole_and_stored_once() {
        let mut target = repository(QWEN35);
        let untied = target.weight_bytes_per_token();
        let stored = target.checkpoint_bytes();
        target.model.tied_head = true;
        target
            .model
            .checkpoint
            .get_mut("nvfp4")
            .unwrap()
            .tensor_bytes = None;
        let row = 2 * target.model.hidden;
        assert_eq!(target.weight_bytes_per_token(), untied - row);
        assert_eq!(stored - target.checkpoint_bytes(), row * target.model.vocab);
    }

    #[test]
    fn the_prediction_layer_keeps_keys_and_values_too() {
        let target = repository(QWEN35);
        let tokens = target.leaf.limits.kv_tokens;
        assert_eq!(target.kv_bytes(), tokens * (20_480 + 2_048));
    }

    #[test]
    fn stacked_experts_are_two_tensors_of_a_layer() {
        let mut target = repository("cpu/random-ratio3/bf16");
        let (stacked, stored) = (target.checkpoint_tensors(), target.part_bytes(Part::Text));
        let read = target.weight_bytes_per_token();
        let published = target.model.checkpoint.get_mut("bf16").unwrap();
        published.stacked_experts.clear();
        let (layers, experts) = (
            target.model.layers.count as u64 + 1,
            target.model.moe().experts,
        );
        let more = 3 * experts * layers - 2 * layers;
        assert_eq!(target.checkpoint_tensors(), stacked + more);
        assert_eq!(target.part_bytes(Part::Text), stored);
        assert_eq!(target.weight_bytes_per_token(), read);
    }

    #[test]
    fn float_vectors_are_twice_as_large() {
        let target = repository(QWEN36);
        let range = target.checkpoint_bytes_range();
        let gdn = 30 * (8192 * 4 + 2 * 32 + 128);
        let vectors = gdn + 11 * 2 * 256 + (2 * 41 + 4) * 2048;
        assert_eq!(range.end() - range.start(), 2 * vectors);
        assert_eq!(target.checkpoint_bytes(), *range.start());
    }

    #[test]
    fn what_was_published_counts() {
        let mut target = repository(QWEN36);
        let stated = target.checkpoint_bytes() + 2;
        target.model.checkpoint.get_mut("fp8").unwrap().tensor_bytes = Some(stated);
        assert_eq!(target.checkpoint_bytes(), stated);
    }
}
