//! `target.cuh`: the constants that device code includes.

use std::fmt::Write;

use crate::constants::{Constant, Value, constants, gpu_constants};
use crate::kernels::distinct;
use crate::shapes::camel;
use crate::table::Coding;
use crate::target::Target;

impl Target {
    /// CUDA C++ text of the constants of the target, in namespace `atlas::target`.
    pub fn emit_cuda(&self) -> String {
        let mut out = format!(
            "// Generated from {}; edit that.\n#pragma once\n\n",
            self.leaf_file()
        );
        out += "namespace atlas::target {\n\n";
        out += "enum class KvFormat { f32, bf16, fp8 };\n";
        out += "enum class Activation { silu, gelu_tanh, clamped, relu2 };\n";
        let names = Coding::ALL.map(Coding::name).join(", ");
        out += &format!("enum class Format {{ {names} }};\n\n");
        for constant in constants(self) {
            write_constant(&mut out, &constant);
        }
        self.write_cuda_hardware(&mut out);
        self.write_cuda_shapes(&mut out);
        self.write_cuda_widths(&mut out);
        self.write_cuda_formats(&mut out);
        self.write_cuda_ops(&mut out);
        out + "\n} // namespace atlas::target\n"
    }

    fn write_cuda_formats(&self, out: &mut String) {
        for (name, op, formats) in self.product_formats() {
            let names = formats.into_iter().map(|format| format.coding().name());
            let names = distinct(names.map(|name| format!("Format::{name}")));
            let _ = writeln!(out, "// Formats of the matrices of `{op}`.");
            let names = names.join(", ");
            let _ = writeln!(out, "inline constexpr Format {name}[] = {{{names}}};");
        }
    }

    fn write_cuda_widths(&self, out: &mut String) {
        let [stored, added] = self.product_widths();
        out.push_str("\n// Numbers of columns.\ntemplate <int... kWidths>\nstruct Widths {};\n");
        for (name, op, widths) in [
            ("LinearWidths", "linear", stored),
            ("LinearAddWidths", "linear_add", added),
        ] {
            let widths: Vec<String> = widths.iter().map(u64::to_string).collect();
            let _ = writeln!(out, "// Widths of the rows that `{op}` multiplies.");
            let _ = writeln!(out, "using {name} = Widths<{}>;", widths.join(", "));
        }
    }

    fn write_cuda_hardware(&self, out: &mut String) {
        let Some(gpu) = &self.hardware.gpu else {
            return;
        };
        let (capability, sms, bytes) = (gpu.capability(), gpu.sms, gpu.shared_bytes_per_block);
        let _ = writeln!(
            out,
            "// Of `sm_121a` it is 121.\n\
             inline constexpr int COMPUTE_CAPABILITY = {capability};\n\
             // Streaming multiprocessors.\n\
             inline constexpr int SMS = {sms};\n\
             // Shared memory that one block may ask for, bytes.\n\
             inline constexpr int SHARED_BYTES_PER_BLOCK = {bytes};"
        );
        for constant in gpu_constants(self, gpu) {
            write_constant(out, &constant);
        }
    }

    fn write_cuda_ops(&self, out: &mut String) {
        for choice in self.kernels() {
            let (kernel, name) = (choice.kernel, &choice.launcher);
            let _ = writeln!(out, "\n// Kernel `{kernel}` of `{name}`.");
            let _ = writeln!(out, "struct {} {{", camel(name));
            let _ = writeln!(out, "  static constexpr int kThreads = {};", choice.threads);
            out.push_str("};\n");
        }
    }
}

fn write_constant(out: &mut String, constant: &Constant) {
    let name = constant.name;
    let text = match constant.value {
        _ if constant.of_host => return,
        Value::Size(value) => format!("int {name} = {value}"),
        Value::Single(value) => format!("float {name} = {value:?}f"),
        Value::Bool(value) => format!("bool {name} = {value}"),
        Value::Format(value) => {
            format!("Format {name} = Format::{}", value.coding().name())
        }
        Value::Kv(value) => {
            let value = format!("{value:?}").to_lowercase();
            format!("KvFormat {name} = KvFormat::{value}")
        }
    };
    let _ = writeln!(out, "// {}\ninline constexpr {text};", constant.doc);
}
