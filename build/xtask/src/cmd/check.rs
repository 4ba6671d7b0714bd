//! `check`: verifies a binary's libraries, host and contents.

use std::path::{Path, PathBuf};

use argh::FromArgs;
use manifest::Target;
use memchr::memmem;

use super::build::{make, plan};
use crate::binary::{self, Elf, MACHINE_AARCH64, MACHINE_X86_64};
use crate::cuda;
use crate::glibc::RELEASE;
use crate::site::{Failure, Site};

/// Libraries that a binary may need: glibc with its loader, and the GPU driver.
const LIBRARIES: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libcuda.so.1",
];

/// Text at the start of every PTX module. PTX in a binary would be compiled on the user's machine.
const PTX_MARK: &[u8] = b".version ";
const PTX_MARK_NEXT: &[u8] = b".target sm_";
/// Bytes after [`PTX_MARK`] within which a PTX module has its second mark.
const PTX_HEADER_BYTES: usize = 64;

/// Build a binary and check what it needs and contains.
#[derive(FromArgs)]
#[argh(subcommand, name = "check")]
pub struct Check {
    /// which target: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
    /// also make its release in another folder and compare every byte
    #[argh(switch)]
    reproducible: bool,
}

impl Check {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        let target = site.target(self.target.as_deref())?;
        let (_, findings) = checks(site, &target)?;
        let mut wrong = 0;
        for (what, result) in findings {
            match result {
                Ok(found) => println!("ok    {what}: {found}"),
                Err(why) => {
                    println!("FAIL  {what}: {why}");
                    wrong += 1;
                }
            }
        }
        if self.reproducible {
            for same in super::reproduce::same_elsewhere(site, &target.name)? {
                println!("ok    reproducible: {same}");
            }
        }
        match wrong {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!("{wrong} checks failed"))),
        }
    }
}

type Finding = (&'static str, Result<String, String>);

/// Builds a target and examines its binary.
///
/// # Errors
/// If the target does not build or the binary cannot be read.
pub fn checks(site: &Site, target: &Target) -> Result<(PathBuf, Vec<Finding>), Failure> {
    let plan = plan(site, Some(&target.name))?;
    let besides: Vec<_> = plan.device.iter().map(|device| &device.cuobjdump).collect();
    let built = make(site, &plan, &besides, false)?;
    let path = built.binary;
    let mut findings = findings(site, target, &path)?;
    if let (Some(folder), Some(gpu)) = (built.besides.first(), &target.hardware.gpu) {
        let cuobjdump = folder.join("bin/cuobjdump");
        let code = cuda::check(&cuobjdump, &path, &gpu.arch);
        let cubins = code.map(|code| format!("{} cubins for {}", code.cubins.len(), gpu.arch));
        findings.push(("device code", cubins));
        if target.has_block_scaled_fp4() {
            findings.push(("FP4 tensor instructions", fp4(&cuobjdump, &path)));
        }
    }
    Ok((path, findings))
}

/// Counts kernels with products of NVFP4 rows.
fn fp4(cuobjdump: &Path, path: &Path) -> Result<String, String> {
    match cuda::block_scaled_fp4(cuobjdump, path)? {
        0 => Err("none, though the manifest rounds rows for them".to_string()),
        count => Ok(format!("{count}, block-scaled")),
    }
}

fn findings(site: &Site, target: &Target, path: &Path) -> Result<Vec<Finding>, Failure> {
    let bytes = std::fs::read(path).map_err(|why| format!("read {}: {why}", path.display()))?;
    let elf = Elf::parse(&bytes)?;
    let home = std::env::var("HOME").unwrap_or_default();
    let root = site.root.display().to_string();
    let paths =
        binary::refuse_path(&bytes, &root).and_then(|()| binary::refuse_path(&bytes, &home));
    let paths = paths.map(|()| "none".to_string());
    Ok(vec![
        ("machine", machine(&elf, target)),
        ("libraries", libraries(&elf)),
        ("no paths of this machine", paths),
        ("no PTX", no_ptx(&bytes)),
        ("glibc", glibc(&elf)),
        ("PIE, RELRO, NX", elf.hardened().map(|()| "all".to_string())),
    ])
}

fn machine(elf: &Elf<'_>, target: &Target) -> Result<String, String> {
    let found = match elf.machine() {
        MACHINE_X86_64 => "x86_64",
        MACHINE_AARCH64 => "aarch64",
        other => return Err(format!("e_machine {other} is no host of any target")),
    };
    match &target.hardware.host {
        Some(host) if !host.starts_with(found) => {
            Err(format!("{found}, but the target's host is {host}"))
        }
        _ => Ok(found.to_string()),
    }
}

fn libraries(elf: &Elf<'_>) -> Result<String, String> {
    let needed = elf.needed()?;
    let is_known = |name: &&String| LIBRARIES.contains(&name.as_str());
    match needed.iter().find(|name| !is_known(name)) {
        Some(name) => Err(format!("{name} is not part of glibc or the driver")),
        None => Ok(needed.join(", ")),
    }
}

fn glibc(elf: &Elf<'_>) -> Result<String, String> {
    let (major, minor) = elf.glibc()?;
    match (major, minor) <= RELEASE {
        true => Ok(format!("{major}.{minor} or later")),
        false => Err(format!(
            "needs {major}.{minor}, but systems with {}.{} are served: it was not linked with the \
             libraries of build/glibc",
            RELEASE.0, RELEASE.1
        )),
    }
}

fn no_ptx(bytes: &[u8]) -> Result<String, String> {
    for at in memmem::find_iter(bytes, PTX_MARK) {
        let header = &bytes[at..bytes.len().min(at + PTX_HEADER_BYTES)];
        if memmem::find(header, PTX_MARK_NEXT).is_some() {
            return Err(format!("a PTX module begins at byte {at}"));
        }
    }
    Ok("none".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The libraries of a link with the oldest glibc are more than those of today's.
    #[test]
    fn the_container_has_every_library_that_a_binary_may_need() {
        const MACHINE: &str = "x86_64-linux-gnu";
        let file = Site::here().root.join("packaging/Containerfile");
        let text = std::fs::read_to_string(file).unwrap().replace("\\\n", "");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("RUN "))
            .unwrap();
        if !Path::new("/lib").join(MACHINE).is_dir() {
            return;
        }
        let place = std::env::temp_dir().join(format!("atlas-container-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let line = line.replace("/out", place.to_str().unwrap());
        let mut shell = std::process::Command::new("sh");
        let done = shell
            .args(["-e", "-c", &line])
            .env("MACHINE", MACHINE)
            .status();
        assert!(done.unwrap().success());
        for library in LIBRARIES {
            let lies = |folder: &str| place.join(folder).join(library).is_file();
            let elsewhere = library == "libcuda.so.1" || library.contains("aarch64");
            let found = lies("lib64") || lies(&format!("lib/{MACHINE}"));
            assert!(found != elsewhere, "{library}");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_symbol_of_a_later_glibc_is_found() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = memmem::find(&bytes, b"\0GLIBC_2.").expect("a test needs the C library");
        let end = at + 1 + memmem::find(&bytes[at + 1..], b"\0").unwrap();
        bytes[at + 9..end].fill(b'9');
        let why = glibc(&Elf::parse(&bytes).unwrap()).unwrap_err();
        assert!(why.contains("but systems with 2.31 are served"), "{why}");
    }

    #[test]
    fn a_ptx_module_is_found_and_its_parts_alone_are_not() {
        assert!(no_ptx(b"x\0.version 9.0\n.target sm_90a\n.address_size 64").is_err());
        assert!(no_ptx(b".version 1, and .target elsewhere").is_ok());
    }
}
