//! `target.cuh`: the constants that device code includes.

use std::fmt::Write;

use crate::constants::{Value, block_constants, constants};
use crate::kernels::{KernelChoice, moe_rows, top_k_chunks, top_k_parts};
use crate::schema::leaf::KvFormat;
use crate::schema::model::Mixer;
use crate::target::Target;

impl Target {
    /// CUDA C++ text of the constants of the target, in namespace `atlas::target`.
    pub fn emit_cuda(&self) -> String {
        let mut out = format!(
            "// Generated from {}; edit that.\n#pragma once\n\n",
            self.leaf_file()
        );
        out += "namespace atlas::target {\n\n";
        out += "enum class Mixer { gdn, attention };\n";
        out += "enum class KvFormat { f32, bf16 };\n";
        out += "enum class Format {\n  bf16,\n  nvfp4_compressed_tensors,\n";
        out += "  nvfp4_modelopt,\n  fp8_block128\n};\n\n";
        for constant in constants(self).into_iter().chain(block_constants(self)) {
            let name = constant.name;
            let text = match constant.value {
                Value::Size(value) => format!("int {name} = {value}"),
                Value::Single(value) => format!("float {name} = {value:?}f"),
                Value::Double(value) => format!("double {name} = {value:?}"),
                Value::Bool(value) => format!("bool {name} = {value}"),
                Value::Format(value) => format!("Format {name} = Format::{}", value.name()),
                Value::Kv(value) => format!("KvFormat {name} = KvFormat::{}", kv_name(value)),
            };
            let _ = writeln!(out, "// {}\ninline constexpr {text};", constant.doc);
        }
        self.write_cuda_mixers(&mut out);
        self.write_cuda_hardware(&mut out);
        self.write_cuda_ops(&mut out);
        out + "\n} // namespace atlas::target\n"
    }

    fn write_cuda_mixers(&self, out: &mut String) {
        let names = self.mixers().into_iter().map(|mixer| match mixer {
            Mixer::Gdn => "  Mixer::gdn,\n",
            Mixer::Attention => "  Mixer::attention,\n",
        });
        let names: String = names.collect();
        let _ = writeln!(out, "// Token mixer of each layer.");
        let _ = writeln!(
            out,
            "inline constexpr Mixer MIXERS[LAYERS] = {{\n{names}}};"
        );
    }

    fn write_cuda_hardware(&self, out: &mut String) {
        let Some(gpu) = &self.hardware.gpu else {
            return;
        };
        let _ = writeln!(out, "// Of `sm_121a` it is 121.");
        let _ = writeln!(
            out,
            "inline constexpr int COMPUTE_CAPABILITY = {};",
            gpu.capability()
        );
        let _ = writeln!(out, "// Streaming multiprocessors.");
        let _ = writeln!(out, "inline constexpr int SMS = {};", gpu.sms);
        let _ = writeln!(out, "// Shared memory that one block may ask for, bytes.");
        let bytes = gpu.shared_bytes_per_block;
        let _ = writeln!(
            out,
            "inline constexpr int SHARED_BYTES_PER_BLOCK = {bytes};"
        );
        let _ = writeln!(out, "// Most rows of `moe` in one launch.");
        let _ = writeln!(out, "inline constexpr int MOE_ROWS = {};", moe_rows(bytes));
        let _ = writeln!(
            out,
            "// Chunks of a row of logits: what each block of the head makes."
        );
        let chunks = top_k_chunks(&self.model, gpu.sms.into());
        let _ = writeln!(out, "inline constexpr int TOP_K_CHUNKS = {chunks};");
        let _ = writeln!(out, "// Parts of a chunk, which a warp ranks.");
        let parts = top_k_parts(&self.model, gpu.sms.into());
        let _ = writeln!(out, "inline constexpr int TOP_K_PARTS = {parts};");
    }

    fn write_cuda_ops(&self, out: &mut String) {
        for choice in self.kernels() {
            let _ = writeln!(
                out,
                "\n// Kernel `{}` of op `{}`.",
                choice.kernel, choice.op
            );
            let _ = writeln!(out, "struct {} {{", camel(choice.op));
            for line in kernel_numbers(&choice) {
                let _ = writeln!(out, "  static constexpr {line};");
            }
            let _ = writeln!(out, "}};");
        }
    }
}

/// The numbers that a kernel's template reads, as `type name = value`.
fn kernel_numbers(choice: &KernelChoice<'_>) -> [String; 2] {
    [
        format!("int kThreads = {}", choice.threads),
        format!("int kSharedBytes = {}", choice.shared_bytes),
    ]
}

/// `rms_norm` to `RmsNorm`.
fn camel(op: &str) -> String {
    let words = op
        .split('_')
        .map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

fn kv_name(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F32 => "f32",
        KvFormat::Bf16 => "bf16",
    }
}
