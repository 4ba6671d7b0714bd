//! Every rule is broken once, and says what is wrong where.

use crate::testing::Scratch;

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

/// A test that one edit of one manifest is refused with one message.
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
    "line 8: `cores = 1`: unknown field `cores`, expected one of `arch`, `sms`, \
     `partition`, `threads_per_sm`, `shared_bytes_per_block`, `l2_bytes`, `memory_bytes`, \
     `bandwidth_rated`, `bandwidth_read_measured`");
refused!(unknown_key_of_model: MODEL_FILE, "[mtp]" => "[mtp]\ndepth = 2",
    "line 42: `depth = 2`: unknown field `depth`, expected `layers`");
refused!(leaf_overrides_a_fact: LEAF_FILE, "[quant]" => "hidden = 4096\n[quant]",
    "line 4: `hidden = 4096`: unknown field `hidden`, expected one of `hw`, `model`, `embed`, \
     `checkpoint`, `derive`, `quant`, `limits`, `steps`, `op` (facts are stated in targets/_hw \
     and targets/_model only)");
refused!(missing_fact: MODEL_FILE, "hidden = 2048\n" => "",
    "line 1: `title = \"Qwen3.5-35B-A3B\"`: missing field `hidden`");
refused!(missing_fact_of_a_table: MODEL_FILE, "kv_heads = 2\n" => "",
    "line 15: `[attention]`: missing field `kv_heads`");
refused!(unknown_format: LEAF_FILE, "head = \"bf16\"" => "head = \"int8\"",
    "line 6: `head = \"int8\"`: unknown variant `int8`, expected one of `bf16`, \
     `nvfp4_compressed_tensors`, `nvfp4_modelopt`, `fp8_block128` (facts are stated in \
     targets/_hw and targets/_model only)");

refused!(an_unknown_checkpoint: LEAF_FILE, "[quant]" => "checkpoint = \"fp16\"\n[quant]",
    "checkpoint = fp16: must be a [checkpoint] of the model");
refused!(rows_of_nvfp4_for_other_weights: LEAF_FILE,
    "experts = \"nvfp4_compressed_tensors\"\nshared" =>
    "experts = \"bf16\"\nexperts_rows = \"nvfp4\"\nshared",
    "quant.experts_rows = nvfp4: is for experts of NVFP4, the shared one too");
refused!(rows_that_a_kernel_does_not_round: LEAF_FILE,
    "mtp_attention" => "experts_rows = \"nvfp4\"\nmtp_attention",
    "op.experts.kernel = warpgroups_f16: block_scaled_fp4 and quant.experts_rows = \"nvfp4\" ask \
     for each other");
refused!(a_kernel_that_rounds_rows_by_itself: LEAF_FILE,
    "\"rows_f16\"" => "\"block_scaled_fp4\"",
    "op.moe.kernel = block_scaled_fp4: block_scaled_fp4 and quant.experts_rows = \"nvfp4\" ask for \
     each other");

refused!(inexact_architecture: HARDWARE_FILE, "\"sm_90a\"" => "\"sm_90\"",
    "gpu.arch = sm_90: must be an exact architecture, sm_<number>a");
refused!(no_multiprocessors: HARDWARE_FILE, "sms = 132" => "sms = 0",
    "gpu.sms = 0: must be at least 1");
refused!(a_part_that_no_driver_gives: HARDWARE_FILE,
    "sms = 132" => "sms = 52\npartition = true",
    "gpu.sms = 52: must be a multiple of 8 with partition = true");
refused!(threads_that_are_no_warps: HARDWARE_FILE, "2048" => "2040",
    "gpu.threads_per_sm = 2040: must be a multiple of 32");
refused!(no_device_memory: HARDWARE_FILE, "150_109_880_320" => "0",
    "gpu.memory_bytes = 0: must be at least 1");
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
    "host_reserve_bytes = 0: must be at least 1");

#[test]
fn memory_that_others_need_is_refused() {
    let reserve = "\"cuda\"\nhost_reserve_bytes = 30_000_000_000";
    assert_eq!(
        message(HARDWARE_FILE, "\"cuda\"", reserve),
        format!(
            "{LEAF_FILE}: limits.kv_tokens = 4194304: weights, KV pages, states and \
             host_reserve_bytes need 152743033344 bytes, above gpu.memory_bytes = 150109880320"
        )
    );
}

refused!(no_width: MODEL_FILE, "hidden = 2048" => "hidden = 0",
    "hidden = 0: must be at least 1");
refused!(no_epsilon: MODEL_FILE, "1e-6" => "0.0", "norm_eps = 0: must be above 0");
refused!(pattern_that_does_not_fit_the_layers: MODEL_FILE, "count = 40" => "count = 41",
    "layers.period = [Gdn, Gdn, Gdn, Attention]: 4 mixers must divide layers.count = 41; list \
     every layer where none repeats");
refused!(kv_heads_that_do_not_divide_heads: MODEL_FILE, "kv_heads = 2" => "kv_heads = 3",
    "attention.kv_heads = 3: must divide attention.heads = 16");
refused!(odd_rotary_dim: MODEL_FILE, "rotary_dim = 64" => "rotary_dim = 63",
    "attention.rotary_dim = 63: must be even and at most attention.head_dim = 256");
refused!(rotary_dim_above_head_dim: MODEL_FILE, "rotary_dim = 64" => "rotary_dim = 258",
    "attention.rotary_dim = 258: must be even and at most attention.head_dim = 256");
refused!(no_rope_base: MODEL_FILE, "1e7" => "0.0", "attention.rope_theta = 0: must be above 0");
refused!(query_projection_of_other_width: MODEL_FILE, "q_rows = 8192" => "q_rows = 4096",
    "attention.q_rows = 4096: must be 8192 = 2 * heads * head_dim, query and gate");
refused!(key_projection_of_other_width: MODEL_FILE, "kv_rows = 512" => "kv_rows = 1024",
    "attention.kv_rows = 1024: must be 512 = kv_heads * head_dim");
refused!(output_projection_of_other_width: MODEL_FILE, "o_columns = 4096" => "o_columns = 8192",
    "attention.o_columns = 8192: must be 4096 = heads * head_dim");
refused!(value_heads_no_multiple_of_key_heads: MODEL_FILE, "value_heads = 32" => "value_heads = 24",
    "gdn.value_heads = 24: must be a multiple of gdn.key_heads = 16");
refused!(convolution_of_one_tap: MODEL_FILE, "conv_kernel = 4" => "conv_kernel = 1",
    "gdn.conv_kernel = 1: must be at least 2");
refused!(gdn_projection_of_other_width: MODEL_FILE, "qkv_rows = 8192" => "qkv_rows = 8064",
    "gdn.qkv_rows = 8064: must be 8192 = 2 * key_heads * key_dim + value_heads * value_dim");
refused!(gdn_gate_projection_of_other_width: MODEL_FILE, "z_rows = 4096" => "z_rows = 2048",
    "gdn.z_rows = 2048: must be 4096 = value_heads * value_dim");
refused!(gdn_decay_projection_of_other_width: MODEL_FILE, "gate_rows = 32" => "gate_rows = 16",
    "gdn.gate_rows = 16: must be 32 = value_heads");
refused!(more_experts_than_there_are: MODEL_FILE, "per_token = 8" => "per_token = 257",
    "moe.experts_per_token = 257: must be 1 ..= moe.experts = 256");
refused!(two_prediction_layers: MODEL_FILE, "[mtp]\nlayers = 1" => "[mtp]\nlayers = 2",
    "mtp.layers = 2: must be 0 or 1");
refused!(hot_sampling: MODEL_FILE, "temperature = 1.0" => "temperature = 2.5",
    "sampling.temperature = 2.5: must be 0 ..= 2");
refused!(share_above_one: MODEL_FILE, "top_p = 0.95" => "top_p = 95.0",
    "sampling.top_p = 95: must be in (0, 1]");
refused!(no_stop_token: MODEL_FILE, "[248_046, 248_044]" => "[]",
    "chat.stop_ids = []: must name at least one token");
refused!(stop_token_outside_the_vocabulary: MODEL_FILE, "248_046," => "248_320,",
    "chat.stop_ids = 248320: must be below vocab = 248320");
refused!(reasoning_token_outside_the_vocabulary: MODEL_FILE, "248_068" => "248_320",
    "chat.think_open_id = 248320: must be below vocab = 248320");
refused!(checkpoint_with_other_tensors: MODEL_FILE, "125_091" => "125_090",
    "checkpoint.nvfp4.tensors = 125090: must be 125091 = the sum over the tensors that dims, \
     formats, input_scales, stacked_experts and a_log_f32 give");
refused!(checkpoint_of_other_size: MODEL_FILE, "25_025_991_648" => "25_025_991_649",
    "checkpoint.nvfp4.tensor_bytes = 25025991649: must be 25025991648 = the sum over the tensors \
     that dims, formats, input_scales, stacked_experts and a_log_f32 give");
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
    "limits.sequences = 0: must be at least 1");
refused!(prefill_off_the_pages: LEAF_FILE, "prefill = 8192" => "prefill = 4000",
    "steps.prefill = 4000: must be a multiple of limits.page = 64");
refused!(decode_steps_that_do_not_ascend: LEAF_FILE, "[1, 2, 4, " => "[1, 4, 2, ",
    "steps.decode = [1, 4, 2, 8, 16, 32, 64]: must ascend from at least 1");
refused!(decode_steps_that_end_early: LEAF_FILE, ", 32, 64]" => ", 32]",
    "steps.decode = [1, 2, 4, 8, 16, 32]: must end with limits.sequences = 64");
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
     217232313856 bytes, above gpu.memory_bytes = 150109880320");
refused!(embedding_files_that_are_not_stated: LEAF_FILE, "\n[quant]" => "embed = true\n[quant]",
    "embed = true: needs a [checkpoint] of the model that states its files");
refused!(deriving_from_what_is_not_published: LEAF_FILE,
    "\n[quant]" => "[derive]\ntransformation = \"dequantise\"\nfrom = \"fp8\"\n[quant]",
    "derive.from = fp8: must be a [checkpoint] of the model");
refused!(deriving_what_is_published: LEAF_FILE,
    "\n[quant]" => "[derive]\ntransformation = \"dequantise\"\nfrom = \"nvfp4\"\n[quant]",
    "derive = a table: the model publishes a checkpoint of this quantisation");
refused!(op_that_no_family_has: LEAF_FILE, "[op.rms_norm]" => "[op.norm]",
    "op = norm: no family has an op of this name");
refused!(kernel_that_does_not_exist: LEAF_FILE,
    "[op.rms_norm]\nkernel = \"rows_f32\"" => "[op.rms_norm]\nkernel = \"rows_f16\"",
    "op.rms_norm.kernel = rows_f16: no such kernel; rms_norm has [\"rows_f32\"]");
refused!(threads_that_are_no_whole_warps: LEAF_FILE,
    "[op.rms_norm]\nkernel = \"rows_f32\"\nthreads = 256" =>
    "[op.rms_norm]\nkernel = \"rows_f32\"\nthreads = 250",
    "op.rms_norm.threads = 250: must be a multiple of 32 in 32 ..= 1024");
refused!(tile_without_a_reason: LEAF_FILE,
    "\"a warp per row\"" => "\" \"",
    "op.route.why = \"\": must give the reason");

#[test]
fn kernel_that_needs_too_much_shared_memory() {
    let scratch = Scratch::of(LEAF);
    scratch.edit(HARDWARE_FILE, "232_448", "16");
    assert_eq!(
        scratch.load(LEAF).unwrap_err().to_string(),
        format!(
            "{LEAF_FILE}: op.attend.kernel = tiles_bf16: needs 197632 bytes of shared memory, \
             above gpu.shared_bytes_per_block = 16"
        )
    );
}

#[test]
fn kernel_that_cannot_hold_the_row() {
    let scratch = Scratch::of(LEAF);
    let chosen = "[op.rms_norm]\nkernel = \"rows_f32\"\nthreads = 256";
    scratch.edit(LEAF_FILE, chosen, &chosen.replace("256", "32"));
    assert_eq!(
        scratch.load(LEAF).unwrap_err().to_string(),
        format!(
            "{LEAF_FILE}: op.rms_norm.threads = 32: rows_f32 keeps a row in registers, at \
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
            "{MODEL_FILE}: experts down_proj columns = 520: NVFP4 needs a multiple of 16 columns"
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
