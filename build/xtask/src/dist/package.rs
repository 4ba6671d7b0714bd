//! The files of a package: the binary, its documentation, its service files, and records of its
//! origin.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use manifest::Target;
use serde_json::json;

use super::archive::{Member, ar, gzip, tar};
use super::bill::{self, Tool};
use super::changes::Release;
use super::crates::Crate;
use crate::binary::{Elf, MACHINE_AARCH64};
use crate::graph::Sandbox;
use crate::graph::digest::Digest;
use crate::site;

/// Files of the workspace from which package files are made.
pub const TEMPLATES: [&str; 19] = [
    LICENCE,
    "packaging/CHANGELOG.md",
    "packaging/README.md",
    "packaging/atlas.service",
    "packaging/config.toml",
    "packaging/debian/control",
    "packaging/debian/copyright",
    "packaging/debian/postinst",
    "packaging/debian/postrm",
    "packaging/debian/prerm",
    "packaging/drop-ins/cpu.conf",
    "packaging/drop-ins/gpu.conf",
    "packaging/drop-ins/keys.conf",
    "packaging/drop-ins/lan.conf",
    "packaging/operations.md",
    MANUAL,
    BASH,
    ZSH,
    FISH,
];

/// Manual page generated from the command line, with marks for facts of a release.
const MANUAL: &str = "packaging/pages/atlas.1";
const BASH: &str = "packaging/pages/atlas.bash";
const ZSH: &str = "packaging/pages/atlas.zsh";
const FISH: &str = "packaging/pages/atlas.fish";

/// Folder, in the action's folder, with the licences of linked wheels.
pub const WHEEL_LICENCES: &str = "wheels";

/// Path of this project's licence, from the root of the workspace.
pub const LICENCE: &str = "LICENSE";

/// Last bytes of a program with appended licences, by which `about --licences` finds them: before
/// this mark is their length, eight bytes, little-endian.
const LICENCES_MARK: &[u8; 8] = b"LICENCES";

/// Makes `licenses.txt` of all code in the program, and `binary`, the program with this text
/// appended.
///
/// # Errors
/// The input that is unreadable or malformed.
pub fn licensed(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let own = String::from_utf8_lossy(&sandbox.read(LICENCE)?).into_owned();
    let crates: Vec<Crate> =
        serde_json::from_slice(&sandbox.read("crates.json")?).map_err(|why| why.to_string())?;
    let text = bill::licences(&own, &crates, &wheel_licences(sandbox)?);
    let binary = sandbox.path("binary");
    let written = fs::write(&binary, with_licences(sandbox.read("stripped")?, &text))
        .and_then(|()| fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::write(sandbox.path("licenses.txt"), &text));
    written.map_err(|why| why.to_string())
}

fn with_licences(mut program: Vec<u8>, text: &str) -> Vec<u8> {
    program.extend(text.bytes());
    program.extend((text.len() as u64).to_le_bytes());
    program.extend(LICENCES_MARK);
    program
}

/// Bytes in a unit of `Installed-Size`.
const SIZE_UNIT: usize = 1024;

/// Facts of a target that packages state, in JSON; the plan computes them.
pub fn facts(target: &Target) -> String {
    json!({
        "target": target.name,
        "hardware": target.leaf.hw,
        "model": target.leaf.model,
        "quantisation": target.quant,
        "manifest_sha256": Digest::of(target.expanded().as_bytes()).to_string(),
        "embedded": target.leaf.embed,
        "gpu": target.hardware.gpu.is_some(),
    })
    .to_string()
}

/// Makes `data.tar`, `control.tar.gz`, `release.tar`, `MANIFEST.json` and `sbom.json`.
///
/// # Errors
/// The input that is unreadable or malformed.
pub fn contents(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let parts = Parts::read(sandbox)?;
    let time = parts.release.seconds();
    let installed = parts.installed();
    sandbox.write("data.tar", &tar(&installed, "./", time)?)?;
    let control = tar(&parts.control(&installed), "./", time)?;
    sandbox.write("control.tar.gz", gzip(&control))?;
    let prefix = format!("{}-{}/", parts.name, parts.release.version);
    sandbox.write("release.tar", &tar(&parts.released(), &prefix, time)?)?;
    sandbox.write("MANIFEST.json", parts.manifest().as_bytes())?;
    sandbox.write("sbom.json", parts.bill().as_bytes())
}

/// Contents and facts from which packages are made.
struct Parts {
    name: String,
    binary: Vec<u8>,
    facts: serde_json::Value,
    commit: String,
    release: Release,
    crates: Vec<Crate>,
    tools: Vec<Tool>,
    licences: String,
    /// Contents of [`TEMPLATES`], with file names filled in.
    templates: Vec<(String, String)>,
    depends: String,
    arch: &'static str,
}

impl Parts {
    fn read(sandbox: &Sandbox<'_>) -> Result<Parts, String> {
        let text = |path: &str| site::read(sandbox.work, path);
        let json = |what: &str, text: &str| {
            serde_json::from_str(text).map_err(|why| format!("{what}: {why}"))
        };
        let binary = sandbox.read("binary")?;
        let elf = Elf::parse(&binary)?;
        let (depends, arch) = (depends(&elf)?, architecture(&elf));
        let tools = serde_json::from_str(sandbox.arg("tools")?).map_err(|why| why.to_string())?;
        let crates = serde_json::from_str(&text("crates.json")?).map_err(|why| why.to_string())?;
        let mut parts = Parts {
            name: sandbox.arg("name")?.to_string(),
            facts: json("facts", sandbox.arg("facts")?)?,
            release: Release::newest(&text("packaging/CHANGELOG.md")?, sandbox.arg("version")?)?,
            crates,
            tools,
            licences: text("licenses.txt")?,
            commit: sandbox.arg("commit")?.to_string(),
            templates: Vec::new(),
            binary,
            depends,
            arch,
        };
        for path in TEMPLATES {
            let filled = parts.fill(path, &text(path)?);
            parts.templates.push((path.to_string(), filled));
        }
        Ok(parts)
    }

    fn fact(&self, name: &str) -> &str {
        self.facts[name].as_str().unwrap_or_default()
    }

    fn embedded(&self) -> bool {
        self.facts["embedded"] == true
    }

    /// Replaces the marks in a template by facts of the target.
    fn fill(&self, path: &str, template: &str) -> String {
        let weights = format!("/var/lib/atlas/{}", self.name);
        let next = match self.embedded() {
            true => "the weights are inside; nothing else is needed".to_string(),
            false => format!("put the weights into {weights}"),
        };
        let needs = match (self.embedded(), self.facts["gpu"] == true) {
            (true, false) => "The weights are inside.",
            (true, true) => "The weights are inside. It needs NVIDIA's driver, 580 or later.",
            (false, false) => "It needs the weights of that model.",
            (false, true) => {
                "It needs the weights of that model and NVIDIA's driver, 580 or later."
            }
        };
        let line = match self.embedded() {
            true => "# The weights are inside the binary.".to_string(),
            false => format!("weights = \"{weights}\""),
        };
        let marks = [
            ("@NAME@", self.name.as_str()),
            ("@VERSION@", &self.release.version),
            ("@DATE@", &self.release.date),
            ("@ARCH@", self.arch),
            ("@DEPENDS@", &self.depends),
            ("@MODEL@", self.fact("model")),
            ("@HARDWARE@", self.fact("hardware")),
            ("@QUANT@", self.fact("quantisation")),
            ("@WEIGHTS_LINE@", &line),
            ("@NEXT@", &next),
            ("@NEEDS@", needs),
        ];
        marks
            .iter()
            .fold(template.to_string(), |text, (mark, value)| {
                match path {
                    // Hyphens of commands are escaped, as troff prints plain ones as dashes.
                    MANUAL => text.replace(mark, &value.replace('-', "\\-")),
                    _ => text.replace(mark, value),
                }
            })
    }

    /// The filled template of a workspace path.
    fn template(&self, path: &str) -> &str {
        let mut known = self.templates.iter();
        let found = known.find(|(name, _)| name == path);
        found.map_or("", |(_, text)| text)
    }

    /// The systemd unit, its drop-in for this hardware and optional drop-ins, as members below
    /// `units` and `choices`, for a binary in the folder `programs`.
    fn service(&self, programs: &str, units: &str, choices: &str) -> Vec<Member> {
        let name = &self.name;
        let hardware = match self.facts["gpu"] == true {
            true => "gpu",
            false => "cpu",
        };
        let drop_in = |of: &str| format!("packaging/drop-ins/{of}.conf");
        let service = format!("{units}{name}.service");
        let of_hardware = format!("{service}.d/10-{hardware}.conf");
        let files = [
            (service, "packaging/atlas.service".to_string()),
            (of_hardware, drop_in(hardware)),
            (format!("{choices}lan.conf"), drop_in("lan")),
            (format!("{choices}keys.conf"), drop_in("keys")),
        ];
        let binary = format!("{programs}/{name}");
        let member = |(path, template): (String, String)| {
            Member::text(path, self.template(&template).replace("@BINARY@", &binary))
        };
        files.map(member).to_vec()
    }

    fn bill(&self) -> String {
        let digest = Digest::of(&self.binary).to_string();
        let (name, version) = (&self.name, &self.release.version);
        let bill = bill::cyclonedx(name, version, &digest, &self.crates, &self.tools);
        format!("{bill:#}\n")
    }

    /// `MANIFEST.json`: inputs of the build, and each file of the plain archive.
    fn manifest(&self) -> String {
        let files = self.explained().into_iter().map(|member| {
            json!({"path": member.path, "bytes": member.content.len(),
                "sha256": Digest::of(&member.content).to_string()})
        });
        let manifest = json!({
            "name": self.name,
            "version": self.release.version,
            "date": self.release.date,
            "commit": self.commit,
            "target": self.fact("target"),
            "manifest_sha256": self.fact("manifest_sha256"),
            "tools": self.tools,
            "files": files.collect::<Vec<_>>(),
        });
        format!("{manifest:#}\n")
    }

    /// Files of the plain archive except its manifest.
    fn explained(&self) -> Vec<Member> {
        let name = &self.name;
        let mut members = self.service("/usr/local/bin", "systemd/", "systemd/choices/");
        members.extend([
            Member::program(name, self.binary.clone()),
            Member::text(
                format!("{name}.toml"),
                self.template("packaging/config.toml"),
            ),
            Member::text(format!("{name}.1"), self.template(MANUAL)),
            Member::text(format!("completions/{name}.bash"), self.template(BASH)),
            Member::text(format!("completions/_{name}"), self.template(ZSH)),
            Member::text(format!("completions/{name}.fish"), self.template(FISH)),
            Member::text(format!("{name}.cdx.json"), self.bill()),
            Member::text("CHANGELOG.md", self.template("packaging/CHANGELOG.md")),
            Member::text("LICENSE", self.template("LICENSE")),
            Member::text("README.md", self.template("packaging/README.md")),
            Member::text("operations.md", self.template("packaging/operations.md")),
            Member::text("licenses.txt", self.licences.clone()),
        ]);
        members
    }

    /// Files of the plain archive.
    fn released(&self) -> Vec<Member> {
        let mut members = self.explained();
        members.push(Member::text("MANIFEST.json", self.manifest()));
        members
    }

    /// Files of the Debian package, where they are installed.
    fn installed(&self) -> Vec<Member> {
        let name = &self.name;
        let doc = |file: &str, content: Vec<u8>| {
            Member::text(format!("usr/share/doc/{name}/{file}"), content)
        };
        let page = |path: String, template: &str| {
            Member::text(format!("usr/share/{path}"), self.template(template))
        };
        let changes = self.template("packaging/CHANGELOG.md");
        let changes = self.release.debian(name, changes);
        let examples = format!("usr/share/doc/{name}/examples/");
        let mut members = self.service("/usr/bin", "lib/systemd/system/", &examples);
        members.extend([
            Member::program(format!("usr/bin/{name}"), self.binary.clone()),
            Member::text(self.settings(), self.template("packaging/config.toml")),
            Member::text(
                format!("usr/share/man/man1/{name}.1.gz"),
                gzip(self.template(MANUAL).as_bytes()),
            ),
            page(format!("bash-completion/completions/{name}"), BASH),
            page(format!("zsh/vendor-completions/_{name}"), ZSH),
            page(format!("fish/vendor_completions.d/{name}.fish"), FISH),
            page(
                format!("doc/{name}/copyright"),
                "packaging/debian/copyright",
            ),
            doc("changelog.gz", gzip(changes.as_bytes())),
            doc("licenses.txt.gz", gzip(self.licences.as_bytes())),
            page(format!("doc/{name}/README.md"), "packaging/README.md"),
            page(
                format!("doc/{name}/operations.md"),
                "packaging/operations.md",
            ),
            doc("MANIFEST.json", self.manifest().into()),
            doc(&format!("{name}.cdx.json"), self.bill().into()),
        ]);
        members
    }

    /// Path of the settings file, which an upgrade leaves as its owner edited it.
    fn settings(&self) -> String {
        format!("etc/atlas/{}.toml", self.name)
    }

    /// Files that dpkg reads: facts, digests and maintainer scripts.
    fn control(&self, installed: &[Member]) -> Vec<Member> {
        let bytes: usize = installed.iter().map(|member| member.content.len()).sum();
        let size = bytes.div_ceil(SIZE_UNIT).to_string();
        let control = self.template("packaging/debian/control");
        let control = control.replace("@SIZE@", &size);
        let sums = installed.iter();
        let sums = sums.map(|member| format!("{}  {}\n", md5(&member.content), member.path));
        let mut members = vec![
            Member::text("control", control),
            Member::text("conffiles", format!("/{}\n", self.settings())),
            Member::text("md5sums", sums.collect::<String>()),
        ];
        for script in ["postinst", "prerm", "postrm"] {
            let text = self.template(&format!("packaging/debian/{script}"));
            members.push(Member::program(script, text));
        }
        members
    }
}

fn md5(content: &[u8]) -> String {
    use md5::{Digest as _, Md5};
    Md5::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Debian's name of the binary's architecture.
fn architecture(elf: &Elf<'_>) -> &'static str {
    match elf.machine() {
        MACHINE_AARCH64 => "arm64",
        _ => "amd64",
    }
}

/// Debian packages of the libraries that the binary needs, with their lowest versions.
fn depends(elf: &Elf<'_>) -> Result<String, String> {
    let (major, minor) = elf.glibc()?;
    let mut depends = format!("libc6 (>= {major}.{minor})");
    if elf.needed()?.iter().any(|name| name == "libgcc_s.so.1") {
        depends.push_str(", libgcc-s1");
    }
    Ok(depends)
}

fn wheel_licences(sandbox: &Sandbox<'_>) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    let folders = fs::read_dir(sandbox.path(WHEEL_LICENCES));
    for entry in folders.into_iter().flatten().flatten() {
        let mut text = String::new();
        let files = fs::read_dir(entry.path()).map_err(|why| why.to_string())?;
        for file in files.flatten() {
            text.push_str(&fs::read_to_string(file.path()).map_err(|why| why.to_string())?);
        }
        found.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    found.sort();
    Ok(found)
}

/// Assembles the Debian package, and lists the digests of all published files.
///
/// # Errors
/// If an input cannot be read.
pub fn assemble(sandbox: &Sandbox<'_>) -> Result<(), String> {
    let time = sandbox.arg("time")?.parse();
    let time = time.map_err(|_| "time is no number")?;
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", sandbox.read("control.tar.gz")?),
        ("data.tar.xz", sandbox.read("data.tar.xz")?),
    ];
    let deb = sandbox.arg("deb")?;
    sandbox.write(deb, ar(&members, time))?;
    let mut names: Vec<&str> = sandbox.arg("sums")?.split(' ').collect();
    names.sort_unstable();
    let mut sums = String::new();
    for name in names {
        sums.push_str(&format!("{}  {name}\n", Digest::of(&sandbox.read(name)?)));
    }
    sandbox.write("SHA256SUMS", sums.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{LICENCES_MARK, with_licences};
    use crate::site::Site;
    use crate::toolchain::on_path;

    /// Tenths of the exposure that `systemd-analyze security` may find, of 100.
    const EXPOSURE_MOST: &str = "--threshold=15";

    #[test]
    fn a_program_ends_with_its_licences_as_it_looks_for_them() {
        let made = with_licences(b"program".to_vec(), "be kind");
        assert_eq!(made, b"programbe kind\x07\0\0\0\0\0\0\0LICENCES");
        let about = std::fs::read_to_string(Site::here().root.join("src/cli/about.rs")).unwrap();
        let mark = String::from_utf8_lossy(LICENCES_MARK);
        assert!(about.contains(&format!("b\"{mark}\"")));
    }

    #[test]
    fn alerts_are_rules_of_prometheus() {
        let Some(program) = on_path("promtool") else {
            return;
        };
        let rules = Site::here().root.join("packaging/alerts.yml");
        let mut command = Command::new(program);
        let done = command
            .args(["check", "rules"])
            .arg(rules)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// A drop-in that states the command takes back what another has stated of it.
    #[test]
    fn drop_ins_leave_the_command_to_the_unit_and_hold_nothing_that_an_older_systemd_lacks() {
        let folder = Site::here().root.join("packaging/drop-ins");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let wrong = |line: &&str| line.starts_with("ExecStart=") || line.contains('%');
            let wrong: Vec<&str> = lines.filter(wrong).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
        }
    }

    #[test]
    fn the_unit_is_known_to_systemd_and_exposes_little_on_every_hardware_and_to_a_network() {
        let Some(program) = on_path("systemd-analyze") else {
            return;
        };
        let packaging = Site::here().root.join("packaging");
        let read = |name: &str| std::fs::read_to_string(packaging.join(name)).unwrap();
        for hardware in ["cpu", "gpu"] {
            let name = format!("atlas-unit-{}-{hardware}", std::process::id());
            let folder = std::env::temp_dir().join(&name);
            let drop_ins = folder.join("x.service.d");
            std::fs::create_dir_all(&drop_ins).unwrap();
            let fill = |name: &str| {
                let text = read(name).replace("@BINARY@", "/bin/true");
                text.replace("@NAME@", "x")
            };
            std::fs::write(folder.join("x.service"), fill("atlas.service")).unwrap();
            for drop_in in [hardware, "keys", "lan"] {
                let file = format!("{drop_in}.conf");
                let text = fill(&format!("drop-ins/{file}"));
                std::fs::write(drop_ins.join(&file), text).unwrap();
            }
            let analyze = |flags: &[&str]| {
                let mut command = Command::new(&program);
                command
                    .args(flags)
                    .arg(folder.join("x.service"))
                    .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.display()));
                let done = command.output().unwrap();
                assert!(done.status.success(), "{hardware}: {done:?}");
                String::from_utf8_lossy(&done.stderr).into_owned()
            };
            analyze(&["security", "--offline=true", EXPOSURE_MOST]);
            // An unknown key is a line on standard error alone.
            assert_eq!(analyze(&["verify", "--man=no"]), "", "{hardware}");
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
}
