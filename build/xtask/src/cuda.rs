//! The device half of the plan: fetch -> unpack -> nvcc for each op -> archive -> inputs of cargo.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use manifest::{KernelChoice, Launcher, Target};

use crate::dist::Tool;
use crate::glibc::{self, Programs};
use crate::graph::{Action, ActionId, Error, Graph, Input, Source};
use crate::site::read;
use crate::toolchain::{CargoAdditions, Toolchain};
use crate::wheel::{self, Pin, Wheels};

#[path = "../../../ffi/abi.rs"]
mod abi;
mod compile;
mod host;
mod inspect;
pub mod pins;
mod probe;

#[cfg(test)]
mod tests;

use host::Host;
pub use host::{AARCH64, X86_64};
use pins::Pins;

pub use inspect::{block_scaled_fp4, check};
pub use probe::Probe;

/// Path of the table of ops, from the root of the workspace.
pub const OPS: &str = "ffi/ops.toml";
/// Name of the archive with all launchers, which `build.rs` looks for.
const ARCHIVE: &str = "libatlas_ops.a";
/// Folders of headers that every kernel may include.
const SHARED_HEADERS: [&str; 2] = ["cuda/base", "cuda/tile"];

/// Error about the table of ops or a kernel's file that is wrong or missing.
fn wrong(what: String) -> Error {
    Error::plan("device code", what)
}

/// Facts of a target that the device code depends on.
#[derive(Clone, Debug)]
pub struct DeviceTarget {
    /// `<hw>/<model>/<quant>`.
    pub name: String,
    /// Exact architecture, `sm_90a`.
    pub arch: String,
    /// Rust triple of the host.
    pub host: String,
    /// Text of `target.cuh`.
    pub constants: String,
    /// Launchers with a kernel of their own, to be compiled.
    pub kernels: Vec<KernelChoice>,
    pub launchers: Vec<Launcher>,
    /// Probe that the kernels are compiled as; none for the product.
    pub probe: Option<Probe>,
}

impl DeviceTarget {
    /// The device side of a checked target, or of a probe of it.
    ///
    /// # Errors
    /// If its hardware has no GPU or no host.
    pub fn of(target: &Target, probe: Option<Probe>) -> Result<DeviceTarget, Error> {
        let hardware = &target.hardware;
        let (Some(gpu), Some(host)) = (&hardware.gpu, &hardware.host) else {
            return Err(wrong(format!(
                "targets/_hw/{}.toml: device code needs `host` and `[gpu]`",
                target.leaf.hw
            )));
        };
        Ok(DeviceTarget {
            name: target.name.clone(),
            arch: gpu.arch.clone(),
            host: host.clone(),
            constants: target.emit_cuda(),
            kernels: target.kernels(),
            launchers: target.launchers(),
            probe,
        })
    }

    /// The probe as which the kernels of `op` are compiled, if it changes them.
    fn probe_of(&self, op: &str) -> Option<Probe> {
        self.probe.filter(|probe| probe.changes(op))
    }
}

/// `label`, marked with the probe if there is one.
pub fn labelled(label: String, probe: Option<Probe>) -> String {
    match probe {
        Some(probe) => format!("{label} {}", probe.name()),
        None => label,
    }
}

/// Outputs of the device half: input of the cargo action, and files that checks read.
pub struct Device {
    pub cargo: CargoAdditions,
    /// For each launcher the name of its resource report and its source.
    pub reports: Vec<(String, Source)>,
    /// The folder that holds `bin/cuobjdump`, and `bin/nvdisasm` beside it.
    pub cuobjdump: Source,
    /// The folder that holds libclang.
    pub libclang: Source,
    /// Folders with the licences of linked wheels, by name of the wheel.
    pub licences: Vec<(String, Source)>,
}

/// Adds the device half of `target` to the graph, once per graph.
///
/// # Errors
/// All programs that are missing on this machine, at once, before any action runs.
pub fn plan(
    graph: &mut Graph,
    toolchain: &Toolchain,
    target: &DeviceTarget,
    rustc: Option<&crate::graph::Tool>,
) -> Result<Device, Error> {
    let host = Host::find(&target.host, &toolchain.host, rustc)?;
    let pins = pins(&toolchain.root).map_err(wrong)?;
    let table = read(&toolchain.root, OPS).and_then(|text| abi::parse(&text));
    let table = table.map_err(wrong)?;
    let folders = Folders::plan(graph, &pins, &host)?;
    let mut objects = Vec::new();
    for compiled in &target.kernels {
        let action = compile_action(toolchain, target, &host, &table, &folders, compiled)?;
        objects.push((compiled.launcher.clone(), graph.add(action)?));
    }
    let archive = graph.add(archive_action(target, &host, &objects))?;
    let report = |(op, id): &(String, ActionId)| (op.clone(), id.output(format!("{op}.ptxas")));
    let mut cargo = cargo_additions(&host, &folders, archive, toolchain);
    let programs = Programs {
        cc: &host.linker,
        ar: &host.ar,
        beside: &host.beside,
    };
    glibc::link_with(graph, &host.triple, &programs, &mut cargo)?;
    Ok(Device {
        cargo,
        reports: objects.iter().map(report).collect(),
        cuobjdump: folders.cuobjdump,
        libclang: folders.libclang,
        licences: folders.licences,
    })
}

/// The wheels of the toolchain, each with whether binaries for `triple` contain code of it.
///
/// # Errors
/// If the table of pins is wrong.
pub fn wheels(root: &Path, triple: &str) -> Result<Vec<Tool>, String> {
    let pins = pins(root)?;
    let linked = linked(&pins, triple).map(|pin| &pin.file);
    let tool = |pin: &Pin| Tool {
        name: pin.name().to_string(),
        version: pin.version().to_string(),
        sha256: Some(pin.sha256.clone()),
        purpose: pin.purpose.clone(),
        linked: linked.contains(&&pin.file),
    };
    Ok(pins.all().into_iter().map(tool).collect())
}

/// Wheels whose code is in binaries: the runtime, and headers with code.
fn linked<'p>(pins: &'p Pins, triple: &str) -> [&'p Pin; 3] {
    let cudart = match triple {
        host::AARCH64 => &pins.cudart_aarch64,
        _ => &pins.cudart_x86_64,
    };
    [cudart, &pins.cccl, &pins.cutlass]
}

/// Takes the pinned wheels from `folder` for later builds of the workspace at `root`, which then
/// ask no package index.
///
/// # Errors
/// The pin that is not in the folder or has another digest.
pub fn give_wheels(root: &Path, atlas: &Path, folder: &Path) -> Result<(), String> {
    wheel::give(atlas, &pins(root)?.all(), folder)
}

/// All pins of `build/toolchain.toml`.
///
/// # Errors
/// If the table cannot be read or is wrong.
pub fn pins(root: &Path) -> Result<Pins, String> {
    Pins::parse(&read(root, pins::FILE)?)
}

/// Folders of the unpacked wheels, as inputs.
struct Folders {
    toolkit: Source,
    cutlass: Source,
    cudart: Source,
    cuobjdump: Source,
    libclang: Source,
    licences: Vec<(String, Source)>,
}

impl Folders {
    fn plan(graph: &mut Graph, pins: &Pins, host: &Host) -> Result<Folders, Error> {
        let linked = linked(pins, &host.triple);
        let [cudart, ..] = linked;
        let mut wheels = Wheels::default();
        let mut unpack = |into: &str, of: &[&Pin], keep: &str| wheels.unpack(graph, into, of, keep);
        let mut licences = Vec::new();
        for pin in linked {
            let folder = format!("{}-{}", pin.name(), pin.version());
            let keep = format!("{folder}.dist-info/licenses");
            let from = unpack(&format!("licences-{folder}"), &[pin], &keep)?;
            licences.push((folder, from));
        }
        let [nvcc, nvvm, crt] = [&pins.nvcc, &pins.nvvm, &pins.crt];
        let compiler = [nvcc, nvvm, crt, &pins.cccl, &pins.cudart_x86_64];
        let cudart_folder = format!("cudart-{}", host.triple);
        let inspectors = [&pins.cuobjdump, &pins.nvdisasm];
        let clang = format!("libclang-{}.data", pins.libclang.version());
        let clang = format!("{clang}/platlib/clang/native");
        let include = "cutlass_library/source/include";
        Ok(Folders {
            toolkit: unpack(compile::TOOLKIT, &compiler, "nvidia/cu13")?,
            cutlass: unpack(compile::CUTLASS, &[&pins.cutlass], include)?,
            cudart: unpack(&cudart_folder, &[cudart], "nvidia/cu13/lib")?,
            cuobjdump: unpack("cuobjdump", &inspectors, "nvidia/cu13")?,
            libclang: unpack("libclang", &[&pins.libclang], &clang)?,
            licences,
        })
    }
}

fn compile_action(
    toolchain: &Toolchain,
    target: &DeviceTarget,
    host: &Host,
    table: &abi::Table,
    folders: &Folders,
    compiled: &KernelChoice,
) -> Result<Action, Error> {
    let KernelChoice { op, launcher, .. } = compiled;
    let folder = format!("cuda/ops/{op}");
    let header = kernel_header(&toolchain.root, &folder, compiled.kernel, &target.arch)?;
    let mut unit = compile::unit(table, compiled, &header).map_err(wrong)?;
    let launchers = target.launchers.iter();
    let launchers = launchers.map(|launcher| (launcher.op, launcher.name.as_str()));
    let abi = abi::header(table, launchers).map_err(wrong)?;
    let probe = target.probe_of(op);
    if let Some(probe) = probe {
        unit = format!("#define ATLAS_PROBE {}\n{unit}", probe.name());
    }
    let label = labelled(format!("nvcc {} {launcher}", target.name), probe);
    let constants = Source::Text(target.constants.clone());
    let mut action = Action::built_in(label, "nvcc", compile::nvcc, compile::CODE)
        .input(folders.toolkit.clone(), compile::TOOLKIT)
        .input(folders.cutlass.clone(), compile::CUTLASS)
        .input(Source::Text(unit), compile::UNIT)
        .input(Source::Text(abi), "generated/ops.h")
        .input(constants, "generated/target.cuh")
        .tools([&host.cxx, &host.linker])
        .tools(&host.beside)
        .output(&format!("{launcher}.o"))
        .output(&format!("{launcher}.ptxas"));
    for (name, value) in compile::args(host, &toolchain.host, &target.arch, launcher) {
        action = action.arg(name, value);
    }
    for file in needed(&toolchain.root, folder).map_err(wrong)? {
        action = action.workspace(&file);
    }
    Ok(action)
}

/// Headers that the ops in a folder need: their own, shared ones, and those of ops whose headers
/// they include.
fn needed(root: &Path, folder: String) -> Result<BTreeSet<String>, String> {
    let mut files = BTreeSet::new();
    let mut folders = vec![folder];
    folders.extend(SHARED_HEADERS.map(str::to_string));
    let mut done = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        if !done.insert(folder.clone()) {
            continue;
        }
        for name in headers(root, &folder)? {
            let file = format!("{folder}/{name}");
            folders.extend(included_ops(&read(root, &file)?));
            files.insert(file);
        }
    }
    Ok(files)
}

/// Folders of the ops whose headers `header` includes, as `cuda/ops/route`.
fn included_ops(header: &str) -> Vec<String> {
    let lines = header.lines();
    let includes = lines.filter_map(|line| line.strip_prefix("#include \"ops/"));
    let ops = includes.filter_map(|rest| rest.split_once('/'));
    ops.map(|(op, _)| format!("cuda/ops/{op}")).collect()
}

/// Names of the headers in `folder`, sorted.
fn headers(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let refuse = |why: std::io::Error| format!("{folder}: {why}");
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(refuse)? {
        let name = entry.map_err(refuse)?.file_name();
        let name = name.to_string_lossy().into_owned();
        if name.ends_with(".cuh") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Path of a kernel's header: for this architecture alone (`rows_f32_sm90.cuh`), or for all.
fn kernel_header(root: &Path, folder: &str, kernel: &str, arch: &str) -> Result<String, Error> {
    let arch = arch.trim_end_matches('a').replace('_', "");
    let names = [format!("{kernel}_{arch}.cuh"), format!("{kernel}.cuh")];
    let folder_at = root.join(folder);
    let found = names.iter().find(|name| folder_at.join(name).is_file());
    found.cloned().ok_or_else(|| {
        wrong(format!(
            "kernel `{kernel}` has neither {folder}/{} nor {folder}/{}",
            names[0], names[1]
        ))
    })
}

fn archive_action(target: &DeviceTarget, host: &Host, objects: &[(String, ActionId)]) -> Action {
    let argv = [&host.ar.name, "crsD", ARCHIVE].map(str::to_string);
    let argv = argv.into_iter();
    let argv = argv.chain(objects.iter().map(|(op, _)| format!("{op}.o")));
    let label = labelled(format!("archive {}", target.name), target.probe);
    let mut action = Action::process(label, argv)
        .tools([&host.ar])
        .output(ARCHIVE);
    for (op, id) in objects {
        let object = format!("{op}.o");
        action = action.input(id.output(&object), &object);
    }
    action
}

fn cargo_additions(
    host: &Host,
    folders: &Folders,
    archive: ActionId,
    toolchain: &Toolchain,
) -> CargoAdditions {
    let input = |from: &Source, at: &str| Input {
        from: from.clone(),
        at: at.to_string(),
    };
    let archive = archive.output(ARCHIVE);
    let mut env = vec![
        ("ATLAS_OBJECTS".to_string(), "{work}/device".to_string()),
        ("ATLAS_CUDART".to_string(), "{work}/cudart".to_string()),
        ("LIBCLANG_PATH".to_string(), "{work}/libclang".to_string()),
    ];
    let mut tools = Vec::new();
    if host.triple != toolchain.host {
        let triple = host.triple.to_uppercase().replace('-', "_");
        let linker = format!("CARGO_TARGET_{triple}_LINKER");
        env.push((linker, host.linker.name.clone()));
        tools.push(host.linker.clone());
        tools.extend(host.beside.iter().cloned());
    }
    CargoAdditions {
        inputs: vec![
            input(&archive, &format!("device/{ARCHIVE}")),
            input(&folders.cudart, "cudart"),
            input(&folders.libclang, "libclang"),
        ],
        tools,
        env,
        args: vec!["--features".to_string(), "cuda".to_string()],
        triple: Some(host.triple.clone()),
        rustc: host.rustc.clone(),
    }
}
