//! Compilation of an op: its translation unit, the nvcc command that cc composes, ptxas' report.

use std::fs;
use std::path::Path;
use std::process::Command;

use manifest::{KernelChoice, camel};

use super::abi;
use super::host::Host;
use crate::graph::Code;
use crate::graph::run::Sandbox;

/// Folder of the unpacked compiler in the action's folder.
pub const TOOLKIT: &str = "toolkit";
/// Folder of the CUTLASS headers in the action's folder.
pub const CUTLASS: &str = "cutlass";
/// File name of the generated translation unit.
pub const UNIT: &str = "unit.cu";
/// Folder in which the executor puts links to an action's tools.
const TOOLS: &str = ".tools";

/// Identity of this code in an action's key: this file's text, and the version of `cc`.
pub const CODE: Code = Code::Sources(&[
    include_str!("compile.rs"),
    include_str!("../../../../Cargo.lock"),
]);

/// Optimisation level of host and device compiler, the highest.
const OPTIMISATION: u32 = 3;

/// Text of the unit that defines a launcher by its kernel, in the file `header`.
///
/// The kernel `rows_f32` of `rms_norm` is the struct `RowsF32` of namespace `atlas::rms_norm`, a
/// template over the launcher's tile in `target.cuh` and, for an op with shapes, over a shape
/// there.
///
/// # Errors
/// If `ops.toml` has no such op.
pub fn unit(table: &abi::Table, compiled: &KernelChoice, header: &str) -> Result<String, String> {
    let op = compiled.op;
    let row = table.get(op);
    let row = row.ok_or_else(|| format!("ffi/ops.toml has no op `{op}`"))?;
    let declaration = abi::declaration(&compiled.launcher, row);
    let names: Vec<&str> = row.args.iter().map(|arg| arg.name.as_str()).collect();
    let (kernel, tile) = (camel(compiled.kernel), camel(&compiled.launcher));
    let shape = compiled.shape.iter();
    let shape: String = shape
        .map(|shape| format!(", atlas::target::shapes::{}", camel(shape)))
        .collect();
    Ok(format!(
        "#include \"ops/{op}/{header}\"\n#include \"target.cuh\"\n\n\
         extern \"C\" {declaration} {{\n    \
             return atlas::{op}::{kernel}<atlas::target::{tile}{shape}>::launch({}, stream);\n}}\n",
        names.join(", ")
    ))
}

/// `sm_90a` as the pair of options that embeds a cubin of exactly this architecture and no PTX.
pub fn gencode(arch: &str) -> String {
    let number = arch.trim_start_matches("sm_");
    format!("arch=compute_{number},code=sm_{number}")
}

/// Arguments of the action that calls [`nvcc`]: unit, architecture, host compiler.
pub fn args(
    host: &Host,
    build_host: &str,
    arch: &str,
    object: &str,
) -> [(&'static str, String); 5] {
    [
        ("arch", arch.to_string()),
        ("host", build_host.to_string()),
        ("target", host.triple.clone()),
        ("cxx", host.cxx.name.clone()),
        ("object", object.to_string()),
    ]
}

/// Compiles [`UNIT`] to `<object>.o` and writes the report of ptxas to `<object>.ptxas`.
pub fn nvcc(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let object = sandbox.arg("object")?;
    let mut command = compose(sandbox)?;
    command.args(["-c", UNIT, "-o"]).arg(format!("{object}.o"));
    let done = command.output();
    let done = done.map_err(|why| format!("nvcc cannot be started: {why}"))?;
    let printed = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        return Err(format!("{command:?}\n{printed}"));
    }
    let report = report(&printed);
    refuse_spills(object, &report)?;
    let text: String = report.iter().map(|kernel| kernel.to_string()).collect();
    fs::write(sandbox.path(&format!("{object}.ptxas")), text).map_err(|why| why.to_string())
}

/// The nvcc command without input and output. It inherits no variable of this process.
fn compose(sandbox: &Sandbox<'_>) -> Result<Command, String> {
    let (tools, scratch) = (sandbox.path(TOOLS), sandbox.path("scratch"));
    fs::create_dir_all(&scratch).map_err(|why| format!("{}: {why}", scratch.display()))?;
    let toolkit = sandbox.path(TOOLKIT);
    let environment = [
        ("PATH", tools.clone()),
        ("NVCC", toolkit.join("bin/nvcc")),
        ("CXX", tools.join(sandbox.arg("cxx")?)),
        ("TMPDIR", scratch.clone()),
    ];
    let mut build = cc::Build::new();
    build
        .set_envs_snapshot(environment)
        .cuda(true)
        .cudart("none")
        .target(sandbox.arg("target")?)
        .host(sandbox.arg("host")?)
        .opt_level(OPTIMISATION)
        .debug(false)
        .out_dir(&scratch)
        .cargo_metadata(false)
        .cargo_warnings(false)
        .cargo_output(false)
        .flag("-std=c++20")
        .warnings(false);
    for folder in ["cuda", "generated", CUTLASS] {
        build.include(folder);
    }
    build.flag("-gencode").flag(gencode(sandbox.arg("arch")?));
    build.flag("-Xptxas").flag("-v,-warn-spills");
    // No C++ runtime: the binary needs libc alone.
    build.flag("-Xcompiler");
    build.flag("-fno-exceptions,-fno-rtti,-fno-threadsafe-statics");
    let compiler = build.try_get_compiler().map_err(|why| why.to_string())?;
    let mut command = compiler.to_command();
    command.env_clear().envs(environment_of(&tools, &scratch));
    command.current_dir(sandbox.work);
    Ok(command)
}

fn environment_of<'a>(tools: &'a Path, scratch: &'a Path) -> [(&'static str, &'a Path); 2] {
    [("PATH", tools), ("TMPDIR", scratch)]
}

/// Resources of one kernel, as ptxas reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Mangled name of the kernel.
    pub kernel: String,
    pub registers: u32,
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    pub shared_bytes: u32,
}

impl std::fmt::Display for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} registers={} stack={} spill_stores={} spill_loads={} shared={}",
            self.kernel,
            self.registers,
            self.stack_bytes,
            self.spill_store_bytes,
            self.spill_load_bytes,
            self.shared_bytes
        )
    }
}

/// Parses the output of `ptxas -v`, which has an entry for each kernel.
pub fn report(printed: &str) -> Vec<Resources> {
    let mut kernels: Vec<Resources> = Vec::new();
    for line in printed.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or(rest).to_string();
            kernels.push(Resources {
                kernel,
                ..Resources::default()
            });
        }
        let Some(last) = kernels.last_mut() else {
            continue;
        };
        let number = |unit: &str| number_before(line, unit);
        last.registers = number(" registers").unwrap_or(last.registers);
        last.stack_bytes = number(" bytes stack frame").unwrap_or(last.stack_bytes);
        last.spill_store_bytes = number(" bytes spill stores").unwrap_or(last.spill_store_bytes);
        last.spill_load_bytes = number(" bytes spill loads").unwrap_or(last.spill_load_bytes);
        last.shared_bytes = number(" bytes smem").unwrap_or(last.shared_bytes);
    }
    kernels
}

fn number_before(line: &str, unit: &str) -> Option<u32> {
    let (before, _) = line.split_once(unit)?;
    before.rsplit([' ', ',']).next()?.parse().ok()
}

/// Operations whose launchers may be composed of other operations' kernels alone.
const COMPOSED: [&str; 1] = ["mlp"];

/// # Errors
/// If a kernel of `object` spills registers, or `object` has no kernel and is not in `COMPOSED`.
pub fn refuse_spills(object: &str, report: &[Resources]) -> Result<(), String> {
    if report.is_empty() && !COMPOSED.contains(&object) {
        return Err("ptxas reported no kernel: the unit compiled to nothing".to_string());
    }
    let spilled = report
        .iter()
        .find(|kernel| kernel.spill_store_bytes + kernel.spill_load_bytes > 0);
    match spilled {
        None => Ok(()),
        Some(kernel) => Err(format!(
            "registers spill to memory: {kernel}Give the tile more threads, or hold less of a row \
             per thread"
        )),
    }
}
