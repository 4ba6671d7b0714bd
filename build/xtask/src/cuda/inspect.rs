//! Device code inside a file, as the pinned cuobjdump lists it.

use std::path::Path;
use std::process::Command;

/// Device code in a binary, archive or object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCode {
    /// Architecture of each cubin in the form `sm_90a`, sorted.
    pub cubins: Vec<String>,
    /// Names of PTX texts; a released binary has none.
    pub ptx: Vec<String>,
}

/// Lists the device code of `file` with `cuobjdump`.
pub fn device_code(cuobjdump: &Path, file: &Path) -> Result<DeviceCode, String> {
    let elf = list(cuobjdump, "--list-elf", file)?;
    let ptx = list(cuobjdump, "--list-ptx", file)?;
    let mut cubins: Vec<String> = elf.iter().filter_map(|name| arch_of(name)).collect();
    cubins.sort();
    Ok(DeviceCode { cubins, ptx })
}

/// Names after `ELF file  1: ` or `PTX file  1: `; empty if the file has no such code.
fn list(cuobjdump: &Path, option: &str, file: &Path) -> Result<Vec<String>, String> {
    let (succeeded, printed) = run(cuobjdump, option, file)?;
    if !succeeded && !printed.contains("file found to extract") {
        return Err(format!("cuobjdump {option} {}: {printed}", file.display()));
    }
    let names = printed.lines().filter(|line| line.contains(" file "));
    let names = names.filter_map(|line| line.split_once(": ").map(|(_, name)| name.trim()));
    let names = names.filter(|name| !name.starts_with("No "));
    Ok(names.map(str::to_string).collect())
}

/// Whether `cuobjdump`, with the `nvdisasm` beside it, succeeds with an option, and what it prints.
fn run(cuobjdump: &Path, option: &str, file: &Path) -> Result<(bool, String), String> {
    let beside = cuobjdump.parent().map(|folder| ("NVDISASM_PATH", folder));
    let mut command = Command::new(cuobjdump);
    let done = command.arg(option).arg(file).envs(beside).output();
    let done = done.map_err(|why| format!("{}: {why}", cuobjdump.display()))?;
    let printed = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    Ok((done.status.success(), printed.into_owned()))
}

/// Architecture of a cubin's name: `sm_90a` of `unit.1.sm_90a.cubin`.
fn arch_of(name: &str) -> Option<String> {
    let mut parts = name.rsplit('.').skip(1);
    let found = parts.find(|part| part.starts_with("sm_"));
    found.map(str::to_string)
}

/// Checks that `file` holds cubins of `arch` alone and no PTX.
///
/// # Errors
/// One line that names unexpected or missing device code.
pub fn check(cuobjdump: &Path, file: &Path, arch: &str) -> Result<DeviceCode, String> {
    let code = device_code(cuobjdump, file)?;
    let file = file.display();
    if let Some(other) = code.cubins.iter().find(|cubin| *cubin != arch) {
        return Err(format!("{file} holds a cubin for {other} beside {arch}"));
    }
    if code.cubins.is_empty() {
        return Err(format!("{file} holds no cubin for {arch}"));
    }
    match code.ptx.first() {
        Some(name) => Err(format!(
            "{file} holds PTX ({name}), which the driver would compile"
        )),
        None => Ok(code),
    }
}

/// Start of the instruction of sm_12x for block-scaled products of FP4, in disassembly.
const BLOCK_SCALED_FP4: &str = "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X";

/// Counts the instructions of block-scaled FP4 products in `file`.
///
/// # Errors
/// If `cuobjdump` or the `nvdisasm` beside it cannot be started or refuses the file.
pub fn block_scaled_fp4(cuobjdump: &Path, file: &Path) -> Result<usize, String> {
    let (succeeded, printed) = run(cuobjdump, "-sass", file)?;
    if !succeeded {
        return Err(format!("cuobjdump -sass {}: {printed}", file.display()));
    }
    let lines = printed.lines();
    Ok(lines.filter(|line| line.contains(BLOCK_SCALED_FP4)).count())
}
