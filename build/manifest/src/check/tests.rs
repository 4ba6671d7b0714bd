//! Every rule is broken once, and says what is wrong where.

use toml::Value;

use super::largest;
use crate::constants::Value::Size;
use crate::constants::constants;
use crate::family::GDN;
use crate::schema::model::{Family, Mixer};
use crate::table::Format;
use crate::testing::{Scratch, root};

const LEAF: &str = "h200/qwen3.5-35b-a3b/nvfp4";
const LEAF_FILE: &str = "targets/h200/qwen3.5-35b-a3b/nvfp4.toml";
const MODEL_FILE: &str = "targets/_model/qwen3.5-35b-a3b/model.toml";
const HARDWARE_FILE: &str = "targets/_hw/h200.toml";

/// The message for `LEAF` after one edit of one of its manifests.
fn message(file: &str, from: &str, to: &str) -> String {
    let scratch = Scratch::of(LEAF);
    scratch.edit(file, from, to);
    let error = scratch.load(LEAF).expect_err("the edit breaks a rule");
    error.to_string()
}

/// Declares tests: one edit of one manifest is refused with one message.
macro_rules! refused {
    ($name:ident: $file:ident, $from:expr => $to:expr, $message:expr) => {
        #[test]
        fn $name() {
            assert_eq!(
                message($file, $from, $to),
                format!("{}: {}", $file, $message)
            );
        }
    };
}

#[test]
fn the_manifests_are_right_before_they_are_broken() {
    Scratch::of(LEAF).load(LEAF).unwrap();
}

refused!(unknown_key_of_hardware: HARDWARE_FILE, "sms = 132" => "sms = 132\ncores = 1",
    "line 9: `cores = 1`: unknown field `cores`, expected one of `arch`, `sms`, \
     `partition`, `threads_per_sm`, `shared_bytes_per_block`, `l2_bytes`, `memory_bytes`, \
     `bandwidth_rated`, `bandwidth_read_measured`");
refused!(unknown_key_of_model: MODEL_FILE, "[mtp]" => "[mtp]\ndepth = 2",
    "line 36: `depth = 2`: unknown field `depth`, expected `layers` or `draft_ids`");
refused!(leaf_overrides_a_fact: LEAF_FILE, "[numbers]" => "[hidden]\nsize = 4096\n[numbers]",
    "line 19: `[hidden]`: unknown field `hidden`, expected one of `hw`, `model`, `embed`, \
     `checkpoint`, `derive`, `format`, `numbers`, `limits`, `steps`, `op` (facts are stated in \
     targets/_hw and targets/_model only)");
refused!(missing_fact: MODEL_FILE, "hidden = 2048\n" => "",
    "line 1: `title = \"Qwen3.5-35B-A3B\"`: missing field `hidden`");
refused!(missing_fact_of_a_table: MODEL_FILE, "kv_heads = 2\n" => "",
    "line 15: `[attention]`: missing field `kv_heads`");
refused!(unknown_format: LEAF_FILE, "as = \"bf16\"" => "as = \"int8\"",
    format!("line 13: `as = \"int8\"`: unknown variant `int8`, expected one of {} \
     (facts are stated in targets/_hw and targets/_model only)",
     Format::ALL.map(|format| format!("`{}`", format.name())).join(", ")));
refused!(a_pattern_that_is_none: LEAF_FILE, "match = \"*\"" => "match = 3",
    "line 16: `match = 3`: expected a pattern of names, or a list of them (facts are stated in \
     targets/_hw and targets/_model only)");
refused!(matrices_that_no_rule_names: LEAF_FILE, "match = \"*\"" =>
    "match = [\"*.experts.*\", \"*.shared_expert.*\", \"*.q_proj\", \"*.k_proj\", \"*.v_proj\"]",
    "format = model.layers.{layer}.self_attn.o_proj: no rule names these matrices; add a \
     [[format]] that does");
refused!(layers_that_no_rule_names: LEAF_FILE, "match = \"*\"" =>
    "match = [\"*expert*\", \"*.q_proj\", \"*.k_proj\", \"*.v_proj\"]\nas = \"bf16\"\n\
     [[format]]\nmatch = \"*.o_proj\"\nlayers = [3, 11, 15, 19, 23, 27, 31, 35]",
    "format = model.layers.{layer}.self_attn.o_proj in layers [7, 39]: no rule names these \
     matrices; add a [[format]] that does");
refused!(a_rule_that_names_nothing: LEAF_FILE, "\"lm_head\"," => "\"lm_head\", \"*.w1\",",
    "format.0.match = \"*.w1\": names no matrix of the model that an earlier rule leaves to it");
refused!(a_rule_behind_one_that_names_all: LEAF_FILE,
    "[numbers]" => "[[format]]\nmatch = \"*.o_proj\"\nas = \"bf16\"\n[numbers]",
    "format.2.match = \"*.o_proj\": names no matrix of the model that an earlier rule leaves to \
     it");
refused!(a_rule_for_layers_that_are_not_there: LEAF_FILE,
    "[[format]]\nmatch = \"*\"" =>
    "[[format]]\nmatch = \"*.o_proj\"\nlayers = [0, 40]\nas = \"bf16\"\n[[format]]\nmatch = \"*\"",
    "format.1.match = \"*.o_proj\": names no matrix of the model that an earlier rule leaves to \
     it");
refused!(formats_that_kernels_do_not_mix: LEAF_FILE,
    "[[format]]\nmatch = \"*\"" =>
    "[[format]]\nmatch = \"*.experts.*\"\nlayers = [7]\nas = \"bf16\"\n[[format]]\nmatch = \"*\"",
    "format = nvfp4_compressed_tensors, bf16: kernels take one format for routed experts");
refused!(router_of_codes: LEAF_FILE, "    \"*.mlp.gate\",\n" => "",
    "format of model.layers.{layer}.mlp.gate = nvfp4_compressed_tensors: must be bf16 or f32: \
     publishers leave it in floats, and kernels take it so");
refused!(weights_that_are_rounded_in_silence: LEAF_FILE,
    "as = \"nvfp4_compressed_tensors\"" =>
    "as = \"nvfp4_compressed_tensors\"\nresident = \"fp8_block128\"",
    "format.1.resident = fp8_block128: weights with other bits than the checkpoint's are a target \
     of their own; name the leaf after them, as nvfp4-fp8.toml");
refused!(weights_that_nothing_rounds: LEAF_FILE,
    "as = \"bf16\"" => "as = \"bf16\"\nresident = \"nvfp4_compressed_tensors\"",
    "format.0.resident = nvfp4_compressed_tensors: weights are rounded to nvfp4_modelopt or \
     fp8_block128");
refused!(weights_that_are_rounded_to_as_many_bits: LEAF_FILE,
    "as = \"nvfp4_compressed_tensors\"" =>
    "as = \"nvfp4_compressed_tensors\"\nresident = \"nvfp4_modelopt\"",
    "format.1.resident = nvfp4_modelopt: must have fewer bits than nvfp4_compressed_tensors");
refused!(weights_that_are_rounded_from_nothing: LEAF_FILE,
    "as = \"bf16\"" => "as = \"bf16\"\nresident = \"nvfp4_modelopt\"",
    "checkpoint = none: must name the [checkpoint] that weights are rounded from");
refused!(rounded_weights_under_the_name_of_others: LEAF_FILE, "\n[[format]]\nmatch = [" =>
    "checkpoint = \"nvfp4\"\n[[format]]\nmatch = \"*.o_proj\"\nas = \"bf16\"\n\
     resident = \"nvfp4_modelopt\"\n[[format]]\nmatch = [",
    "format.resident = nvfp4: the model publishes a checkpoint of this leaf's name; name the leaf \
     otherwise");

refused!(an_unknown_checkpoint: LEAF_FILE, "\n[[format]]\nmatch = [" =>
    "checkpoint = \"fp16\"\n[[format]]\nmatch = [",
    "checkpoint = fp16: must be a [checkpoint] of the model");
refused!(rows_that_a_kernel_does_not_round: LEAF_FILE,
    "kv = \"bf16\"" => "kv = \"bf16\"\nexperts_rows = \"nvfp4\"",
    "op.experts.kernel = warpgroups_f16: block_scaled_fp4 and numbers.experts_rows = \"nvfp4\" ask \
     for each other");
refused!(a_kernel_that_rounds_rows_by_itself: LEAF_FILE, "prefill = 8192" =>
    "prefill = 8192\n[op.moe]\nkernel = \"block_scaled_fp4\"\nthreads = 256\nwhy = \"y\"",
    "op.moe.kernel = block_scaled_fp4: block_scaled_fp4 and numbers.experts_rows = \"nvfp4\" ask \
     for each other");

refused!(inexact_architecture: HARDWARE_FILE, "\"sm_90a\"" => "\"sm_90\"",
    "gpu.arch = sm_90: must be an exact architecture, sm_<number>a");
refused!(no_multiprocessors: HARDWARE_FILE, "sms = 132" => "sms = 0",
    "gpu.sms = 0: must be 1 ..= 16384");
refused!(a_part_that_no_driver_gives: HARDWARE_FILE,
    "sms = 132" => "sms = 52\npartition = true",
    "gpu.sms = 52: must be a multiple of 8 with partition = true");
refused!(threads_that_are_no_warps: HARDWARE_FILE, "2048" => "2040",
    "gpu.threads_per_sm = 2040: must be a multiple of 32");
refused!(no_device_memory: HARDWARE_FILE, "150_109_880_320" => "0",
    "gpu.memory_bytes = 0: must be 1 ..= 1125899906842624");
refused!(measured_above_rated: HARDWARE_FILE, "4_650_000_000_000" => "4_900_000_000_000",
    "gpu.bandwidth_read_measured = 4900000000000: must be above 0 and not above \
     gpu.bandwidth_rated");
refused!(cuda_without_host: HARDWARE_FILE, "host = \"x86_64-unknown-linux-gnu\"\n" => "",
    "host = absent: backend = \"cuda\" needs the triple of the host");
refused!(cpu_that_leaves_nothing: HARDWARE_FILE, "\"cuda\"" => "\"cpu\"",
    "host_reserve_bytes = absent: a cpu leaves a part of the host's memory to others");
refused!(cpu_with_gpu: HARDWARE_FILE, "\"cuda\"" => "\"cpu\"\nhost_reserve_bytes = 1",
    "gpu = a table: a cpu has none");
refused!(reserve_of_nothing: HARDWARE_FILE, "\"cuda\"" => "\"cuda\"\nhost_reserve_bytes = 0",
    "host_reserve_bytes = 0: must be 1 ..= 1125899906842624");

#[test]
fn memory_that_others_need_is_refused() {
    let reserve = "\"cuda\"\nhost_reserve_bytes = 30_000_000_000";
    assert_eq!(
        message(HARDWARE_FILE, "\"cuda\"", reserve),
        format!(
            "{LEAF_FILE}: limits.kv_tokens = 4194304: weights, KV pages, states and \
             host_reserve_bytes need 157646436864 bytes, above gpu.memory_bytes = 150109880320"
        )
    );
}

refused!(no_width: MODEL_FILE, "hidden = 2048" => "hidden = 0",
    "hidden = 0: must be 1 ..= 131072");
refused!(no_epsilon: MODEL_FILE, "1e-6" => "0.0", "norm_eps = 0: must be 1e-12 ..= 1e-2");
refused!(pattern_that_does_not_fit_the_layers: MODEL_FILE, "count = 40" => "count = 41",
    "layers.period = [gdn, gdn, gdn, attention]: 4 mixers must divide layers.count = 41; list \
     every layer where none repeats");
refused!(kv_heads_that_do_not_divide_heads: MODEL_FILE, "kv_heads = 2" => "kv_heads = 3",
    "attention.kv_heads = 3: must divide attention.heads = 16");
refused!(odd_rotary_dim: MODEL_FILE, "rotary_dim = 64" => "rotary_dim = 63",
    "attention.rotary_dim = 63: must be even, 2 ..= attention.head_dim = 256");
refused!(rotary_dim_above_head_dim: MODEL_FILE, "rotary_dim = 64" => "rotary_dim = 258",
    "attention.rotary_dim = 258: must be even, 2 ..= attention.head_dim = 256");
refused!(no_rope_base: MODEL_FILE, "1e7" => "0.0",
    "attention.rope_theta = 0: must be above 1 and at most 1e12");
refused!(a_projection_is_derived: MODEL_FILE, "kv_heads = 2" => "kv_heads = 2\nq_rows = 8192",
    "line 18: `q_rows = 8192`: unknown field `q_rows`, expected one of `heads`, `kv_heads`, \
     `head_dim`, `rotary_dim`, `turned_pairs`, `window`, `rope_theta`, `rope_scaling`, `yarn`");
refused!(a_table_that_the_family_has: MODEL_FILE,
    "[moe]\nexperts = 256\nexperts_per_token = 8\nintermediate = 512\nshared_intermediate = 512\n"
    => "", "moe = absent: family = \"qwen3_5_moe\" has it");
refused!(a_table_that_the_family_has_not: MODEL_FILE, "[mtp]" => "[mlp]\nintermediate = 1\n[mtp]",
    "mlp = stated: family = \"qwen3_5_moe\" has none");
refused!(a_number_that_the_mixer_has_not: MODEL_FILE, "[mtp]" => "[mixer]\ntaps = 3\n[mtp]",
    "mixer.taps = stated: family = \"qwen3_5_moe\" has none");
refused!(a_mixer_of_another_family: MODEL_FILE, "\"gdn\", \"att" => "\"mamba\", \"att",
    "layers.period = stated: family = \"qwen3_5_moe\" has none");
refused!(a_shared_expert_that_the_family_has: MODEL_FILE, "shared_intermediate = 512\n" => "",
    "moe.shared_intermediate = absent: family = \"qwen3_5_moe\" has it");
refused!(a_shared_expert_that_the_family_has_not: MODEL_FILE, "\"qwen3_5_moe\"" => "\"qwen3_moe\"",
    "gdn = stated: family = \"qwen3_moe\" has none");
refused!(layers_that_all_recur: MODEL_FILE, "\"gdn\", \"attention\"]" => "\"gdn\", \"gdn\"]",
    "layers.period = [gdn, gdn, gdn, gdn]: family = \"qwen3_5_moe\" attends in some layers");

#[test]
fn a_family_that_is_not_known_is_refused_with_those_that_are() {
    let names = Family::ALL
        .iter()
        .map(|family| format!("`{}`", family.traits().name));
    let names: Vec<_> = names.collect();
    assert_eq!(names[0], "`gemma3`");
    let expected = format!(
        "{MODEL_FILE}: line 3: `family = \"gpt2\"`: unknown variant `gpt2`, expected one of {}",
        names.join(", ")
    );
    assert_eq!(message(MODEL_FILE, "\"qwen3_5_moe\"", "\"gpt2\""), expected);
}

refused!(value_heads_no_multiple_of_key_heads: MODEL_FILE, "value_heads = 32" => "value_heads = 24",
    "gdn.value_heads = 24: must be a multiple of gdn.key_heads = 16");
refused!(convolution_of_one_tap: MODEL_FILE, "conv_kernel = 4" => "conv_kernel = 1",
    "gdn.conv_kernel = 1: must be 2 ..= 64");
refused!(more_experts_than_there_are: MODEL_FILE, "per_token = 8" => "per_token = 257",
    "moe.experts_per_token = 257: must be 1 ..= moe.experts = 256");
refused!(drafts_of_half_a_panel: MODEL_FILE, "draft_ids = 65_536" => "draft_ids = 1000",
    "mtp.draft_ids = 1000: must be a multiple of 16, 64 ..= vocab = 248320");
refused!(two_prediction_layers: MODEL_FILE, "[mtp]\nlayers = 1" => "[mtp]\nlayers = 2",
    "mtp.layers = 2: must be 0 ..= 1");
refused!(hot_sampling: MODEL_FILE, "temperature = 1.0" => "temperature = 2.5",
    "sampling.temperature = 2.5: must be 0 ..= 2");
refused!(share_above_one: MODEL_FILE, "top_p = 0.95" => "top_p = 95.0",
    "sampling.top_p = 95: must be in (0, 1]");
refused!(no_stop_token: MODEL_FILE, "[248_046, 248_044]" => "[]",
    "chat.stop_ids = []: must name at least one token");
refused!(stop_token_outside_the_vocabulary: MODEL_FILE, "248_046," => "248_320,",
    "chat.stop_ids = 248320: must be below vocab = 248320");
refused!(stop_token_without_a_text: MODEL_FILE, "\"<|im_end|>\"," => "\"\",",
    "chat.stop_ids = 248046: must be one of chat.added_tokens");
refused!(reasoning_token_outside_the_vocabulary: MODEL_FILE, "248_068" => "248_320",
    "chat.think_open_id = 248320: must be below vocab = 248320");
refused!(reasoning_without_a_token: MODEL_FILE, "think_open_id = 248_068\n" => "",
    "chat.think_open_id = none: must begin the text Some(\"<think>\"); chat.added_tokens states \
     None");
refused!(a_token_without_reasoning: MODEL_FILE,
    "think_open = \"<think>\"\nthink_open_id = 248_068\nthink_close = \"</think>\"\n"
    => "think_open_id = 248_068\n",
    "chat.think_open_id = 248068: must begin the text None; chat.added_tokens states \
     Some(\"<think>\")");
refused!(checkpoint_with_other_tensors: MODEL_FILE, "125_091" => "125_090",
    "checkpoint.nvfp4.tensors = 125090: must be 125091, the sum over the tensors that dims, \
     formats, input_scales and stacked_experts give");
refused!(checkpoint_of_other_size: MODEL_FILE, "25_025_991_648" => "25_025_991_646",
    "checkpoint.nvfp4.tensor_bytes = 25025991646: must be 25025991648, the sum over the tensors \
     that dims, formats, input_scales and stacked_experts give; with vectors of F32 it is 2 more \
     for each of their elements, 25028332768 at most");
refused!(checkpoint_of_half_an_element: MODEL_FILE, "25_025_991_648" => "25_025_991_649",
    "checkpoint.nvfp4.tensor_bytes = 25025991649: must be 25025991648, the sum over the tensors \
     that dims, formats, input_scales and stacked_experts give; with vectors of F32 it is 2 more \
     for each of their elements, 25028332768 at most");

#[test]
fn a_list_about_what_the_model_lacks_is_refused() {
    let (leaf, file) = (
        "cpu/llama-3.1-8b/bf16",
        "targets/_model/llama-3.1-8b/model.toml",
    );
    for (key, name, rule) in [
        (
            "input_scales",
            "fp8_tensor",
            "names formats of matrices that the checkpoint has",
        ),
        (
            "stacked_experts",
            "layers",
            "names parts of models that have experts there",
        ),
    ] {
        let scratch = Scratch::of(leaf);
        scratch.edit(
            file,
            "files = []",
            &format!("{key} = [{name:?}]\nfiles = []"),
        );
        assert_eq!(
            scratch.load(leaf).unwrap_err().to_string(),
            format!("{file}: checkpoint.bf16.{key} = {name:?}: {rule}")
        );
    }
}

#[test]
fn a_switch_about_what_the_model_lacks_is_refused() {
    let (leaf, file) = (
        "cpu/llama-3.1-8b/bf16",
        "targets/_model/llama-3.1-8b/model.toml",
    );
    for (key, what) in [
        ("tied_head_stored", "a tied head"),
        ("without_mtp", "multi-token prediction"),
    ] {
        let scratch = Scratch::of(leaf);
        scratch.edit(file, "files = []", &format!("{key} = true\nfiles = []"));
        assert_eq!(
            scratch.load(leaf).unwrap_err().to_string(),
            format!(
                "{file}: checkpoint.bf16.{key} = true: is for checkpoints of models with {what}"
            )
        );
    }
}

#[test]
fn a_checkpoint_may_state_vectors_of_f32_or_no_sums() {
    for sums in ["25_025_991_650", "25_028_332_768"] {
        let scratch = Scratch::of(LEAF);
        scratch.edit(MODEL_FILE, "25_025_991_648", sums);
        scratch.load(LEAF).unwrap();
    }
    let scratch = Scratch::of(LEAF);
    scratch.edit(
        MODEL_FILE,
        "tensors = 125_091\ntensor_bytes = 25_025_991_648\n",
        "",
    );
    let target = scratch.load(LEAF).unwrap();
    assert_eq!(target.checkpoint_bytes(), 25_025_991_648);
}

refused!(file_of_another_folder: MODEL_FILE,
    "files = []" => "files = [{ name = \"a/b\", bytes = 1, sha256 = \"A0\" }]",
    "checkpoint.nvfp4.files.a/b = \"a/b\": must be the name of a file in the weights directory");
refused!(tokenizer_of_another_folder: MODEL_FILE, "\"tokenizer.json\"" => "\"/tokenizer.json\"",
    "chat.tokenizer = \"/tokenizer.json\": must be the name of a file in the weights directory");
refused!(reasoning_that_opens_and_never_closes: MODEL_FILE,
    "think_close = \"</think>\"" => "think_close = \"\"",
    "chat.think_close = \"\": is empty where chat.think_open is, and only there");
refused!(no_id: MODEL_FILE, "id = \"qwen3.5-35b-a3b\"" => "id = \" \"",
    "id = \"\": must not be empty");
refused!(digest_that_is_none: MODEL_FILE,
    "files = []" => "files = [{ name = \"a\", bytes = 1, sha256 = \"A0\" }]",
    "checkpoint.nvfp4.files.a.sha256 = A0: must be 64 lower-case hexadecimal digits");

refused!(leaf_of_other_hardware: LEAF_FILE, "hw = \"h200\"" => "hw = \"gb10\"",
    "hw = gb10: must be h200, as in the path");
refused!(leaf_of_other_model: LEAF_FILE, "model = \"qwen3.5-35b-a3b\"" => "model = \"tiny\"",
    "model = tiny: must be qwen3.5-35b-a3b, as in the path");
refused!(page_off_the_grid: LEAF_FILE, "page = 64" => "page = 48",
    "limits.page = 48: must be a multiple of 64");
refused!(context_off_the_pages: LEAF_FILE, "context = 131_072" => "context = 131_104",
    "limits.context = 131104: must be a multiple of limits.page = 64");
refused!(context_above_the_models: LEAF_FILE, "context = 131_072" => "context = 524_288",
    "limits.context = 524288: must be at most the model's max_position = 262144");
refused!(no_sequences: LEAF_FILE, "sequences = 64" => "sequences = 0",
    "limits.sequences = 0: must be 1 ..= 65536");
refused!(recurrent_states_that_none_are_kept_of: LEAF_FILE, "snapshots = 64\n" => "",
    "limits.snapshots = none: must be stated, as the model has recurrent states or \
     windowed pages");
refused!(no_snapshots: LEAF_FILE, "snapshots = 64" => "snapshots = 0",
    "limits.snapshots = 0: must be 1 ..= 65536");
refused!(no_drafts: LEAF_FILE, "drafts = 7" => "drafts = 0",
    "limits.drafts = 0: must be 1 ..= 65536");
refused!(no_queue: LEAF_FILE, "queued = 256" => "queued = 0",
    "limits.queued = 0: must be 1 ..= 65536");
refused!(prefill_beyond_the_pages: LEAF_FILE, "prefill = 8192" => "prefill = 4_194_368",
    "steps.prefill = 4194368: must be at most limits.kv_tokens = 4194304: a step fills pages");
refused!(keys_and_values_that_no_kernel_keeps: LEAF_FILE, "kv = \"bf16\"" => "kv = \"f32\"",
    "numbers.kv = f32: kernels keep keys and values in bf16 or fp8");
refused!(prefill_off_the_pages: LEAF_FILE, "prefill = 8192" => "prefill = 4000",
    "steps.prefill = 4000: must be a multiple of limits.page = 64");
refused!(kv_tokens_off_the_pages: LEAF_FILE, "kv_tokens = 4_194_304" => "kv_tokens = 4_194_305",
    "limits.kv_tokens = 4194305: must be a multiple of limits.page = 64");
refused!(kv_tokens_below_one_sequence: LEAF_FILE,
    "kv_tokens = 4_194_304" => "kv_tokens = 131_008",
    "limits.kv_tokens = 131008: must be at least limits.context = 131072: one sequence may fill \
     it");
refused!(kv_tokens_that_no_sequence_takes: LEAF_FILE,
    "kv_tokens = 4_194_304" => "kv_tokens = 8_388_672",
    "limits.kv_tokens = 8388672: must be at most limits.sequences * limits.context = 8388608");
refused!(more_than_the_memory: LEAF_FILE, "kv_tokens = 4_194_304" => "kv_tokens = 8_388_608",
    "limits.kv_tokens = 8388608: weights, KV pages, states and host_reserve_bytes need \
     222135717376 bytes, above gpu.memory_bytes = 150109880320");
refused!(embedding_files_that_are_not_stated: LEAF_FILE, "\n[[format]]\nmatch = [" =>
    "embed = true\n[[format]]\nmatch = [",
    "embed = true: needs a [checkpoint] of the model that states its files");
refused!(deriving_from_what_is_not_published: LEAF_FILE,
    "\n[[format]]\nmatch = [" =>
    "[derive]\ntransformation = \"dequantise\"\nfrom = \"fp8\"\n[[format]]\nmatch = [",
    "derive.from = fp8: must be a [checkpoint] of the model");
refused!(deriving_what_is_published: LEAF_FILE,
    "\n[[format]]\nmatch = [" =>
    "[derive]\ntransformation = \"dequantise\"\nfrom = \"nvfp4\"\n[[format]]\nmatch = [",
    "derive = a table: the model publishes a checkpoint of this quantisation");
refused!(op_that_no_family_has: HARDWARE_FILE, "[op.attend]" => "[op.norm]",
    "op = norm: no family has an op of this name");
refused!(op_of_a_hardware_over_a_shape: HARDWARE_FILE, "[op.attend]" => "[op.\"attend.full\"]",
    "op = attend.full: a leaf chooses for one shape, a hardware for all");
refused!(op_over_a_shape_that_the_model_lacks: LEAF_FILE, "prefill = 8192" =>
    "prefill = 8192\n[op.\"attend.globl\"]\nkernel = \"tiles_bf16\"\nthreads = 384\nwhy = \"y\"",
    "op = attend.globl: the model has no block of this shape that the op is over");
refused!(kernel_that_does_not_exist: HARDWARE_FILE,
    "[op.mlp]\nkernel = \"warpgroups_f16\"" => "[op.mlp]\nkernel = \"rows_f16\"",
    "op.mlp.kernel = rows_f16: no such kernel; mlp has [\"apart_f16\", \"warpgroups_f16\"]");
refused!(threads_that_are_no_whole_warps: HARDWARE_FILE,
    "[op.mlp]\nkernel = \"warpgroups_f16\"\nthreads = 384" =>
    "[op.mlp]\nkernel = \"warpgroups_f16\"\nthreads = 250",
    "op.mlp.threads = 250: must be a multiple of 32 in 32 ..= 1024");
refused!(rows_of_an_op_that_takes_any: HARDWARE_FILE,
    "[op.mlp]\nkernel = \"warpgroups_f16\"\nthreads = 384" =>
    "[op.mlp]\nkernel = \"warpgroups_f16\"\nthreads = 384\nrows = 4",
    "op.mlp.rows = 4: is of op.moe alone");
refused!(tile_without_a_reason: HARDWARE_FILE,
    "\"as `linear_add`, tiles of 128 places of one expert\"" => "\" \"",
    "op.experts.why = \"\": must give the reason");

#[test]
fn kernel_that_cannot_hold_the_row() {
    let scratch = Scratch::of(LEAF);
    let chosen = "[op.rms_norm]\nkernel = \"rows_f32\"\nthreads = 32\nwhy = \"y\"\n[op.attend]";
    scratch.edit(HARDWARE_FILE, "[op.attend]", chosen);
    assert_eq!(
        scratch.load(LEAF).unwrap_err().to_string(),
        format!(
            "{HARDWARE_FILE}: op.rms_norm.threads = 32: rows_f32 keeps a row in registers, at \
             most 32 elements a thread; hidden = 2048"
        )
    );
}

#[test]
fn nvfp4_columns_off_the_scale_groups() {
    let scratch = Scratch::of(LEAF);
    scratch.edit(MODEL_FILE, "\nintermediate = 512", "\nintermediate = 520");
    assert_eq!(
        scratch.load(LEAF).unwrap_err().to_string(),
        format!(
            "{LEAF_FILE}: columns of model.layers.{{layer}}.mlp.experts.{{expert}}.down_proj = \
             520: NVFP4 needs a multiple of 16 columns"
        )
    );
}

#[test]
fn cpu_that_chooses_kernels() {
    let scratch = Scratch::of("cpu/tiny/nvfp4");
    let file = "targets/cpu/tiny/nvfp4.toml";
    scratch.edit(
        file,
        "prefill = 256",
        "prefill = 256\n[op.linear]\nkernel = \"x\"\nthreads = 32\nwhy = \"y\"",
    );
    assert_eq!(
        scratch.load("cpu/tiny/nvfp4").unwrap_err().to_string(),
        format!("{file}: op = a table: a cpu target chooses no kernels")
    );
}

const CPU_LEAF: &str = "cpu/random-ratio1/bf16";
const CPU_FILE: &str = "targets/cpu/random-ratio1/bf16.toml";

#[test]
fn cpu_that_keeps_keys_and_values_in_other_bits() {
    let scratch = Scratch::of(CPU_LEAF);
    scratch.edit(CPU_FILE, "kv = \"f32\"", "kv = \"bf16\"");
    assert_eq!(
        scratch.load(CPU_LEAF).unwrap_err().to_string(),
        format!(
            "{CPU_FILE}: numbers.kv = bf16: a cpu keeps keys and values in f32 or as fp8 rounds"
        )
    );
}

#[test]
fn format_of_a_prediction_layer_that_is_not_there() {
    let scratch = Scratch::of(CPU_LEAF);
    scratch.edit(CPU_FILE, "\"*\"", "[\"mtp.*\", \"*\"]");
    assert_eq!(
        scratch.load(CPU_LEAF).unwrap_err().to_string(),
        format!(
            "{CPU_FILE}: format.0.match = \"mtp.*\": names no matrix of the model that an earlier \
             rule leaves to it"
        )
    );
}

#[test]
fn rows_of_nvfp4_are_for_experts_of_nvfp4() {
    let scratch = Scratch::of(LEAF);
    scratch.edit(
        LEAF_FILE,
        "    \"mtp.*\",",
        "    \"mtp.*\",\n    \"*.shared_expert.*\",",
    );
    let rows = "kv = \"bf16\"\nexperts_rows = \"nvfp4\"";
    scratch.edit(LEAF_FILE, "kv = \"bf16\"", rows);
    assert_eq!(
        scratch.load(LEAF).unwrap_err().to_string(),
        format!(
            "{LEAF_FILE}: numbers.experts_rows = nvfp4: is for experts of NVFP4, the shared one too"
        )
    );
}

/// Paths of all numbers in a table, as `attention.heads` or `vocab.stop.0`.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    let below = |key: &str| match path {
        "" => key.to_string(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Integer(_) | Value::Float(_) => found.push(path.to_string()),
        Value::Table(table) => {
            let entries = table.iter();
            entries.for_each(|(key, value)| numbers(value, &below(key), found));
        }
        Value::Array(list) => {
            let entries = list.iter().enumerate();
            entries.for_each(|(at, value)| numbers(value, &below(&at.to_string()), found));
        }
        _ => {}
    }
}

fn at<'a>(value: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(value, |value, key| match value {
        Value::Array(list) => &mut list[key.parse::<usize>().unwrap()],
        value => &mut value[key],
    })
}

/// Sets each number of the manifests of `leaf` to each of `integers`, or of `floats`; the manifest,
/// the path, and what became of it.
fn with_each_number(
    leaf: &str,
    integers: &[i64],
    floats: &[f64],
    mut judge: impl FnMut(&str, &Value, Option<String>),
) {
    let [hw, model, _] = leaf.split('/').collect::<Vec<_>>().try_into().unwrap();
    for file in [
        format!("targets/_hw/{hw}.toml"),
        format!("targets/_model/{model}/model.toml"),
        format!("targets/{leaf}.toml"),
    ] {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let right: Value = Value::Table(text.parse().unwrap());
        let mut paths = Vec::new();
        numbers(&right, "", &mut paths);
        for path in paths {
            let integer = at(&mut right.clone(), &path).is_integer();
            let wrong = match integer {
                true => integers
                    .iter()
                    .copied()
                    .map(Value::Integer)
                    .collect::<Vec<_>>(),
                false => floats.iter().copied().map(Value::Float).collect(),
            };
            for wrong in wrong {
                let mut edited = right.clone();
                *at(&mut edited, &path) = wrong.clone();
                let scratch = Scratch::of(leaf);
                scratch.write(&file, toml::to_string(&edited).unwrap().as_bytes());
                let error = scratch.load(leaf).err();
                judge(&path, &wrong, error.map(|error| error.to_string()));
            }
        }
    }
}

/// Leaves that state every field of the schemas between them.
const EDITED: [&str; 3] = [LEAF, CPU_LEAF, SLIDING_LEAF];

#[test]
fn a_huge_number_is_refused_by_its_key() {
    for leaf in EDITED {
        let huge = [f64::INFINITY, f64::NAN, -1.0, 1e300];
        with_each_number(leaf, &[i64::MAX], &huge, |path, wrong, error| {
            let key = path.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
            let key = key.rsplit('.').next().unwrap();
            let error = error.unwrap_or_else(|| panic!("{leaf}: {path} = {wrong} is accepted"));
            assert!(error.contains(key), "{leaf}: {path} = {wrong}: {error}");
        });
    }
}

/// A model whose layers attend in two shapes.
const SLIDING_LEAF: &str = "cpu/random-sliding-1/bf16";

#[test]
fn two_shapes_of_attention_are_refused_by_the_keys_of_each() {
    let file = "targets/_model/random-sliding-1/model.toml";
    for (from, to, problem) in [
        (
            "window = 100\n",
            "",
            "sliding.window = absent: family = \"sliding\" has it",
        ),
        (
            "head_dim = 512\n",
            "head_dim = 512\nwindow = 64\n",
            "attention.window = stated: family = \"sliding\" has none",
        ),
        (
            "period = [\"sliding\", \"sliding\", \"attention\"]\n",
            "",
            "layers.period = absent: family = \"sliding\" has it",
        ),
        (
            "\"sliding\", \"attention\"]",
            "\"sliding\", \"sliding\"]",
            "layers.period = [sliding, sliding, sliding]: family = \"sliding\" attends in some \
             layers",
        ),
        (
            "kv_heads = 2",
            "kv_heads = 3",
            "sliding.kv_heads = 3: must divide sliding.heads = 2",
        ),
        (
            "rotary_dim = 256",
            "rotary_dim = 128",
            "sliding.rotary_dim = 128: family = \"sliding\" turns the whole head, \
             sliding.head_dim = 256",
        ),
        (
            "family = \"sliding\"",
            "family = \"qwen3\"",
            "sliding = stated: family = \"qwen3\" has none",
        ),
    ] {
        let scratch = Scratch::of(SLIDING_LEAF);
        scratch.edit(file, from, to);
        let error = scratch
            .load(SLIDING_LEAF)
            .expect_err("the edit breaks a rule");
        assert_eq!(error.to_string(), format!("{file}: {problem}"));
    }
}

#[test]
fn layers_of_forms_that_cannot_be_are_refused() {
    let sliding = ("cpu/mixed/bf16", "targets/_model/mixed/model.toml");
    let llama = (
        "cpu/random-llama-1/bf16",
        "targets/_model/random-llama-1/model.toml",
    );
    for ((leaf, file), from, to, problem) in [
        (
            sliding,
            "\"mlp\", \"moe\", \"none\"",
            "\"mlp\", \"none\", \"none\"",
            "[Mlp, None, None, Moe, Mlp, Moe]: layer 1 has neither a mixer nor this",
        ),
        (
            sliding,
            "\"mlp\", \"moe\", \"none\", \"moe\"",
            "\"mlp\", \"moe\"",
            "[Mlp, Moe, Mlp, Moe]: 4 parts must divide layers.count = 6; list every layer where \
             none repeats",
        ),
        (
            llama,
            "[layers]\n",
            "[layers]\nfeed_forward = [\"none\"]\n",
            "[None]: family = \"llama\" has no such layers",
        ),
    ] {
        let scratch = Scratch::of(leaf);
        scratch.edit(file, from, to);
        let error = scratch.load(leaf).expect_err("the edit breaks a rule");
        let wanted = format!("{file}: layers.feed_forward = {problem}");
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn a_kernel_is_not_chosen_for_heads_that_it_does_not_take() {
    let cases = [
        (
            "h200/random-sliding-1/bf16",
            "512 must be at most 256: a warpgroup's sums are the columns of a head \
             (cuda/ops/attend/tiles_bf16_sm90.cuh asserts A::kHeadDim <= 256)",
        ),
        (
            "h200/random-mistral4-4/bf16",
            "320 must have no latents: values lie beside keys \
             (cuda/ops/attend/tiles_bf16_sm90.cuh asserts A::kValueDim == A::kHeadDim)",
        ),
    ];
    for (leaf, why) in cases {
        let scratch = Scratch::of(leaf);
        let file = format!("targets/{leaf}.toml");
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let without = text.split("[op.").next().unwrap();
        scratch.write(&file, without.as_bytes());
        let error = scratch
            .load(leaf)
            .expect_err("the kernel takes no such heads");
        let expected = format!(
            "targets/_hw/h200.toml: op.attend.kernel = tiles_bf16: attention.head_dim = {why}; \
             name another kernel in [op.\"attend.full\"]"
        );
        assert_eq!(error.to_string(), expected);
    }
}

/// Numbers that may be 0.
const MAY_BE_NOTHING: [&str; 7] = [
    "mtp.layers",
    "sampling.top_k",
    "sampling.temperature",
    "chat.stop_ids.0",
    "chat.stop_ids.1",
    "chat.think_open_id",
    "chat.think_close_id",
];

#[test]
fn nothing_is_refused_but_where_it_means_something() {
    for leaf in EDITED {
        with_each_number(leaf, &[0], &[0.0, 1e-300], |path, wrong, error| {
            let refused = error.is_some() || MAY_BE_NOTHING.contains(&path);
            assert!(refused, "{leaf}: {path} = {wrong} is accepted");
        });
    }
}

/// Every figure of the largest target that the rules on single facts accept: none overflows.
#[test]
fn no_figure_of_the_largest_target_overflows() {
    let mut target = Scratch::of(LEAF).load(LEAF).unwrap();
    let model = &mut target.model;
    (model.hidden, model.vocab) = (largest::WIDTH, largest::VOCAB);
    (model.layers.count, model.max_position) = (largest::LAYERS as usize, largest::POSITIONS);
    let attention = &mut model.attention;
    (attention.heads, attention.kv_heads) = (largest::HEADS, largest::HEADS);
    (attention.head_dim, attention.rotary_dim) = (largest::HEAD_DIM, largest::HEAD_DIM);
    let gdn = model.gdn.as_mut().unwrap();
    (gdn.key_heads, gdn.value_heads) = (largest::HEADS, largest::HEADS);
    (gdn.key_dim, gdn.value_dim) = (largest::HEAD_DIM, largest::HEAD_DIM);
    gdn.conv_kernel = largest::TAPS;
    let moe = model.moe.as_mut().unwrap();
    (moe.experts, moe.experts_per_token) = (largest::EXPERTS, largest::EXPERTS);
    (moe.intermediate, moe.shared_intermediate) = (largest::WIDTH, Some(largest::WIDTH));
    let vision = model.vision.as_mut().unwrap();
    (vision.tensors, vision.bytes) = (largest::TENSORS, largest::BYTES);
    let published = model.checkpoint.get_mut("nvfp4").unwrap();
    (published.tensors, published.tensor_bytes) = (None, None);
    let limits = &mut target.leaf.limits;
    (limits.sequences, limits.queued) = (largest::REQUESTS, largest::REQUESTS);
    (limits.context, limits.kv_tokens) = (largest::POSITIONS, largest::KV_TOKENS);
    let gpu = target.hardware.gpu.as_mut().unwrap();
    (gpu.sms, gpu.threads_per_sm) = (largest::SMS as u32, largest::SMS as u32);
    (gpu.shared_bytes_per_block, gpu.memory_bytes) = (largest::SHARED_BYTES, largest::BYTES);
    for period in [[Mixer::Attention], [Mixer::Recurrent(&GDN)]] {
        target.model.layers.period = period.to_vec();
        let text = target.expanded() + &target.emit_rust(&[]);
        assert!(text.contains("resident_bytes") && target.resident_bytes() < 1 << 62);
    }
    for constant in constants(&target) {
        if let Size(value) = constant.value {
            assert!(value < 1 << 31, "{}", constant.name);
        }
    }
}

#[test]
fn latents_are_kept_in_no_fewer_bits() {
    let leaf = "cpu/random-mistral4-1/bf16";
    let (file, scratch) = (format!("targets/{leaf}.toml"), Scratch::of(leaf));
    scratch.edit(&file, "kv = \"f32\"", "kv = \"fp8\"");
    let error = scratch.load(leaf).expect_err("no leaf rounds latents");
    let message = "numbers.kv = fp8: latents are kept in f32 or bf16";
    assert_eq!(error.to_string(), format!("{file}: {message}"));
}

#[test]
fn heads_over_latents_share_one_key() {
    let leaf = "cpu/random-mistral4-1/bf16";
    let (file, scratch) = (
        "targets/_model/random-mistral4-1/model.toml",
        Scratch::of(leaf),
    );
    scratch.edit(file, "kv_heads = 1", "kv_heads = 5");
    let error = scratch.load(leaf).expect_err("there is one latent");
    let message = "attention.kv_heads = 5: must be 1 over latents";
    assert_eq!(error.to_string(), format!("{file}: {message}"));
}
