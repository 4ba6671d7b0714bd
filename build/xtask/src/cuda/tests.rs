//! The device half of the plan. A test without its tools or packages says so and passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::*;
use crate::binary::Elf;
use crate::graph::{Options, Progress, Store, run};
use crate::site::Site;

const X86: &str = "h200/tiny/nvfp4";
const ARM: &str = "gb10/tiny/nvfp4";

/// A folder that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("atlas-cuda-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The device half of a target and its outputs.
struct Made {
    toolchain: Toolchain,
    host: Host,
    arch: String,
    archive: PathBuf,
    cudart: PathBuf,
    cuobjdump: PathBuf,
}

/// Makes the device half of `target`, or says why this machine cannot.
fn made(target: &str) -> Option<Made> {
    match try_made(target) {
        Ok(made) => Some(made),
        Err(why) => {
            eprintln!("SKIPPED for {target}: {why}");
            None
        }
    }
}

fn try_made(name: &str) -> Result<Made, String> {
    let site = Site::here();
    let toolchain = Toolchain::find(&site.root)?;
    let target = device_target(&site, name)?;
    let host = Host::find(&target.host, &toolchain.host, Some(&toolchain.rustc));
    let host = host.map_err(|why| why.to_string())?;
    let mut graph = Graph::new();
    let device = plan(&mut graph, &toolchain, &target, Some(&toolchain.rustc));
    let device = device.map_err(|why| why.to_string())?;
    let all: Vec<_> = graph.ids().collect();
    let path = outputs(&site, &graph, &all)?;
    let input = |at: &str| {
        let inputs = &device.cargo.inputs;
        let found = inputs.iter().find(|input| input.at == at);
        path(&found.expect("cargo gets it").from)
    };
    Ok(Made {
        archive: input(&format!("device/{ARCHIVE}")),
        cudart: input("cudart"),
        cuobjdump: path(&device.cuobjdump).join("bin/cuobjdump"),
        arch: target.arch,
        host,
        toolchain,
    })
}

fn device_target(site: &Site, name: &str) -> Result<DeviceTarget, String> {
    let target = manifest::load(&site.root, name).map_err(|why| why.to_string())?;
    DeviceTarget::of(&target, None).map_err(|why| why.to_string())
}

/// Makes `wanted`; returns the paths of the outputs.
fn outputs(
    site: &Site,
    graph: &Graph,
    wanted: &[ActionId],
) -> Result<impl Fn(&Source) -> PathBuf + use<>, String> {
    let store = Store::open(&site.atlas(), || ()).map_err(|why| why.to_string())?;
    let options = Options {
        root: site.root.clone(),
        jobs: 2,
        explain: false,
        progress: Progress::detect(),
    };
    let summary = run(graph, wanted, &store, &options).map_err(|why| why.to_string())?;
    Ok(move |source: &Source| {
        let Source::Output(id, name) = source else {
            panic!("outputs of actions are wanted");
        };
        store.path(summary.output(*id, name).expect("the action ran"))
    })
}

/// The object of one op of a target, and `cuobjdump`.
fn object(name: &str, op: &str) -> Result<[PathBuf; 2], String> {
    let site = Site::here();
    let toolchain = Toolchain::find(&site.root)?;
    let target = device_target(&site, name)?;
    let mut graph = Graph::new();
    let device = plan(&mut graph, &toolchain, &target, Some(&toolchain.rustc));
    let device = device.map_err(|why| why.to_string())?;
    let report = device.reports.iter().find(|(other, _)| other == op);
    let Some((_, Source::Output(compiled, _))) = report else {
        panic!("{name} has no op {op}");
    };
    let Source::Output(unpacked, _) = &device.cuobjdump else {
        panic!("cuobjdump is unpacked");
    };
    let path = outputs(&site, &graph, &[*compiled, *unpacked])?;
    let object = path(&Source::Output(*compiled, format!("{op}.o")));
    Ok([object, path(&device.cuobjdump).join("bin/cuobjdump")])
}

/// A program that launches no row, which needs no GPU, and prints what the launcher returned.
const PROGRAM: &str = "
use std::ffi::{c_float, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
unsafe extern \"C\" {
    fn atlas_rms_norm(x: *const c_void, weight: *const c_void,
        out: *mut c_void, adds: c_uint, factor: c_float, rows: c_uint,
        width: c_uint, stream: *mut c_void) -> c_int;
}
fn main() {
    let code = unsafe {
        atlas_rms_norm(null(), null(), null_mut(), 0, 1.0, 0, 0, null_mut())
    };
    println!(\"launched {code}\");
}
";

impl Made {
    /// Links [`PROGRAM`] with the archives as `build.rs` does, and the runtime.
    fn link(&self, folder: &Path, archives: &[&Path]) -> Output {
        let source = folder.join("program.rs");
        fs::write(&source, PROGRAM).unwrap();
        let rustc = self.host.rustc.as_ref().unwrap_or(&self.toolchain.rustc);
        let mut command = Command::new(&rustc.path);
        command
            .arg(&source)
            .args(["--edition", "2024", "--target", &self.host.triple]);
        command.arg("-o").arg(folder.join("program"));
        let linker = self.host.linker.path.display();
        command.args(["-C", &format!("linker={linker}")]);
        for (index, archive) in archives.iter().enumerate() {
            let name = format!("ops{index}");
            fs::copy(archive, folder.join(format!("lib{name}.a"))).unwrap();
            command.args(["-l", &format!("static:+whole-archive={name}")]);
        }
        command.arg("-L").arg(folder).arg("-L").arg(&self.cudart);
        command.args(["-l", "static=cudart_static"]);
        command.output().unwrap()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_missing_launcher_is_a_link_error() {
    let Some(made) = made(X86) else { return };
    let folder = Scratch::new("missing");
    let linked = made.link(&folder.0, &[]);
    let said = text(&linked);
    assert!(
        !linked.status.success() && said.contains("atlas_rms_norm"),
        "{said}"
    );
    assert!(said.contains("undefined"), "{said}");
}

#[test]
fn a_second_launcher_is_a_link_error() {
    let Some(made) = made(X86) else { return };
    let folder = Scratch::new("second");
    let linked = made.link(&folder.0, &[&made.archive, &made.archive]);
    let said = text(&linked);
    assert!(
        !linked.status.success() && said.contains("atlas_rms_norm"),
        "{said}"
    );
    assert!(
        said.contains("duplicate symbol") || said.contains("multiple definition"),
        "{said}"
    );
}

#[test]
fn a_program_holds_cubins_of_its_architecture_and_needs_no_cuda_library() {
    for target in [X86, ARM] {
        let Some(made) = made(target) else { continue };
        let folder = Scratch::new(&target.replace('/', "-"));
        let linked = made.link(&folder.0, &[&made.archive]);
        assert!(linked.status.success(), "{}", text(&linked));
        let program = folder.0.join("program");
        let code = check(&made.cuobjdump, &program, &made.arch).unwrap();
        assert!(!code.cubins.is_empty());
        assert!(
            code.cubins.iter().all(|arch| *arch == made.arch),
            "{:?}",
            code.cubins
        );
        let bytes = fs::read(&program).unwrap();
        let needed = Elf::parse(&bytes).unwrap().needed().unwrap();
        let other = needed.iter().find(|name| {
            let part_of_glibc = ["libc.so", "libgcc_s.so", "ld-linux", "libm.so"];
            !part_of_glibc.iter().any(|known| name.starts_with(known))
        });
        assert_eq!(other, None, "{needed:?}");
    }
}

#[test]
fn experts_of_rounded_rows_are_multiplied_by_fp4_instructions() {
    for (target, has_them) in [("gb10/qwen3.5-35b-a3b/nvfp4-w4a4", true), (ARM, false)] {
        let [object, cuobjdump] = match object(target, "experts") {
            Ok(made) => made,
            Err(why) => {
                eprintln!("SKIPPED for {target}: {why}");
                continue;
            }
        };
        let count = block_scaled_fp4(&cuobjdump, &object).unwrap();
        assert_eq!(count > 0, has_them, "{target}: {count}");
    }
}

#[test]
fn a_launcher_runs_on_its_host_without_a_gpu() {
    for (target, emulator) in [(X86, None), (ARM, Some("qemu-aarch64-static"))] {
        let Some(made) = made(target) else { continue };
        let folder = Scratch::new(&format!("run-{}", made.arch));
        let linked = made.link(&folder.0, &[&made.archive]);
        assert!(linked.status.success(), "{}", text(&linked));
        let program = folder.0.join("program");
        let mut command = match emulator {
            None => Command::new(&program),
            Some(name) if crate::toolchain::on_path(name).is_some() => {
                let mut command = Command::new(name);
                command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(&program);
                command
            }
            Some(name) => {
                eprintln!(
                    "SKIPPED for {target}: {name} (Debian: apt-get install qemu-user-static)"
                );
                continue;
            }
        };
        let ran = command.output().unwrap();
        assert_eq!(text(&ran), "launched 0\n");
    }
}

#[test]
fn every_pin_is_complete() {
    let pins = pins(&Site::here().root).unwrap();
    assert_eq!(pins.nvcc.name(), "nvidia_cuda_nvcc");
    assert_eq!(
        pins.cudart_aarch64.platform(),
        Some("manylinux2014_aarch64")
    );
    assert_eq!(pins.cutlass.platform(), None);
    assert!(
        pins.all()
            .iter()
            .all(|pin| !pin.version().is_empty() && !pin.purpose.is_empty())
    );
}

#[test]
fn a_pin_that_is_no_wheel_is_refused() {
    let text = read(&Site::here().root, pins::FILE).unwrap();
    let why = Pins::parse(&text.replacen("nvidia_cuda_nvcc-13.0.88-py3-none", "nvcc", 1));
    assert!(why.unwrap_err().contains("build/toolchain.toml: `nvcc-"));
}

#[test]
fn a_wheel_with_another_digest_names_the_pin_and_the_fix() {
    let root = Site::here().root;
    let pins = pins(&root).unwrap();
    let folder = Scratch::new("digest");
    for pin in pins.all() {
        fs::write(folder.0.join(&pin.file), "not the wheel").unwrap();
    }
    let why = give_wheels(&root, &folder.0.join("atlas"), &folder.0)
        .unwrap_err()
        .to_string();
    let pin = &pins.nvcc;
    for part in [
        pin.name(),
        pin.version(),
        &pin.sha256,
        &pin.file,
        "not the pinned file",
    ] {
        assert!(why.contains(part), "{part} in {why}");
    }
}

#[test]
fn a_wheel_that_is_not_given_names_the_pin_and_the_fix() {
    let folder = Scratch::new("absent");
    let root = Site::here().root;
    let why = give_wheels(&root, &folder.0.join("atlas"), &folder.0)
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("nvidia_cuda_nvcc 13.0.88") && why.contains("--wheels FOLDER"),
        "{why}"
    );
}

/// Output of ptxas for one kernel.
const PTXAS: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kv' for 'sm_90a'
ptxas info    : Function properties for _Z1kv
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 34 registers, used 1 barriers, 32 bytes smem
";

#[test]
fn the_report_of_ptxas_is_read() {
    let expected = compile::Resources {
        kernel: "_Z1kv".to_string(),
        registers: 34,
        stack_bytes: 16,
        spill_store_bytes: 8,
        spill_load_bytes: 12,
        shared_bytes: 32,
    };
    assert_eq!(compile::report(PTXAS), [expected]);
}

#[test]
fn a_spill_is_an_error_that_names_the_kernel() {
    let why = compile::refuse_spills("rms_norm", &compile::report(PTXAS)).unwrap_err();
    assert!(
        why.contains("_Z1kv") && why.contains("spill_stores=8"),
        "{why}"
    );
    let clean = PTXAS.replace("8 bytes spill stores, 12", "0 bytes spill stores, 0");
    assert!(compile::refuse_spills("rms_norm", &compile::report(&clean)).is_ok());
}

#[test]
fn a_unit_that_compiles_to_nothing_is_an_error() {
    assert!(compile::refuse_spills("rms_norm", &compile::report("")).is_err());
}

#[test]
fn one_architecture_is_embedded_and_no_ptx() {
    assert_eq!(
        compile::gencode("sm_121a"),
        "arch=compute_121a,code=sm_121a"
    );
}

#[test]
fn a_kernel_without_a_file_names_both_places() {
    let root = Site::here().root;
    let why = kernel_header(&root, "cuda/ops/rms_norm", "columns_bf16", "sm_90a");
    let why = why.unwrap_err().to_string();
    assert!(
        why.contains("columns_bf16_sm90.cuh") && why.contains("columns_bf16.cuh"),
        "{why}"
    );
}

#[test]
fn a_header_may_include_another_of_its_folder() {
    let root = Site::here().root;
    let needed = super::needed(&root, "cuda/ops/delta_net".to_string()).unwrap();
    for file in ["columns_f32.cuh", "cells_f16.cuh", "chunks_f16.cuh"] {
        assert!(needed.contains(&format!("cuda/ops/gated_delta/{file}")));
    }
}

#[test]
fn an_op_that_the_table_lacks_is_named() {
    let table = abi::parse("").unwrap();
    let why = compile::unit(&table, &compiled("attend", None), "rows_f32.cuh").unwrap_err();
    assert!(why.contains("`attend`"));
}

/// The launcher of an op by a kernel, for a named shape if there are several.
fn compiled(op: &'static str, shape: Option<&str>) -> KernelChoice {
    let launcher = shape.map(|shape| format!("{op}_{shape}"));
    KernelChoice {
        op,
        shape: shape.map(str::to_string),
        launcher: launcher.unwrap_or(op.to_string()),
        kernel: "split_kv_bf16",
        threads: 256,
        operands: false,
    }
}

/// A row of the table of ops.
fn row(name: &str, rest: &str) -> String {
    let kernels = "kernels = [\"a\"]\nthreads = 32\nwhy = \"b\"";
    format!("[{name}]\ndoes = \"\"\n{kernels}\n{rest}\n")
}

#[test]
fn a_shape_of_several_has_launchers_of_its_own() {
    let table = abi::parse(&row("attend", "over = \"attention\"\nargs = []")).unwrap();
    let global = compiled("attend", Some("global"));
    let unit = compile::unit(&table, &global, "split_kv_bf16.cuh").unwrap();
    assert!(unit.contains("int atlas_attend_global(atlas_stream *stream)"));
    let kernel = "SplitKvBf16<atlas::target::AttendGlobal, atlas::target::shapes::Global>";
    assert!(unit.contains(kernel));
    let header = abi::header(&table, [("attend", "attend_global")].into_iter()).unwrap();
    assert!(header.contains("int atlas_attend_global("));
}

#[test]
fn an_array_states_its_shape_and_its_direction() {
    let args = "args = [{ name = \"x\", type = \"f32\", io = \"in\" }]";
    assert!(abi::parse(&row("op", args)).unwrap_err().contains("op.x"));
}
