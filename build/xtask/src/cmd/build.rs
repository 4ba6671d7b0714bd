//! `build`: makes the binary of a target and prints its path.

use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::cuda::{self, DeviceTarget, Probe};
use crate::graph::run::Summary;
use crate::graph::store::Stored;
use crate::graph::{Graph, Options, Progress, Source, Store, run};
use crate::plan::{self, Plan, Variant};
use crate::site::{Failure, Site};
use crate::toolchain::Toolchain;

/// Build the binary of a target and print its path.
#[derive(FromArgs)]
#[argh(subcommand, name = "build")]
pub struct Build {
    /// what to build: <hw>/<model>/<quant>; by default cpu/tiny/nvfp4
    #[argh(positional)]
    target: Option<String>,
    /// say of each action why it runs and what its key covers
    #[argh(switch)]
    explain: bool,
    /// feature of the binary to compile in, such as tls (may be repeated)
    #[argh(option)]
    features: Vec<String>,
    /// compile the kernels otherwise, into a binary of another name: serial (none starts before the
    /// one before it has ended), delayed (of each two blocks rest where the next may start) or
    /// stray (read_bytes reads beyond its buffer)
    #[argh(option)]
    probe: Option<Probe>,
    /// take the pinned wheels of the device toolchain from this folder, now and later
    #[argh(option)]
    wheels: Option<PathBuf>,
}

impl Build {
    pub fn start(self, site: &Site) -> Result<(), Failure> {
        if let Some(folder) = &self.wheels {
            cuda::give_wheels(&site.root, &site.atlas(), folder)?;
        }
        let variant = Variant {
            features: self.features,
            probe: self.probe,
        };
        let plan = plan_with(site, self.target.as_deref(), &variant)?;
        let built = make(site, &plan, &[], self.explain)?;
        println!("{}", built.binary.display());
        Ok(())
    }
}

/// Plans the actions of a target.
///
/// # Errors
/// If there is no such target, or a program that its plan needs is missing.
pub fn plan(site: &Site, target: Option<&str>) -> Result<Plan, Failure> {
    plan_with(site, target, &Variant::default())
}

fn plan_with(site: &Site, target: Option<&str>, variant: &Variant) -> Result<Plan, Failure> {
    let target = site.target(target)?;
    let toolchain = Toolchain::find(&site.root)?;
    Ok(plan::plan(&target, &toolchain, variant)?)
}

/// Builds a target; returns the path of its binary.
///
/// # Errors
/// What [`plan`] reports, or the first action that failed.
pub fn build(site: &Site, target: Option<&str>, explain: bool) -> Result<PathBuf, Failure> {
    let built = make(site, &plan(site, target)?, &[], explain)?;
    Ok(built.binary)
}

/// Paths of a plan's outputs after [`make`].
pub struct Built {
    /// Path of the published binary.
    pub binary: PathBuf,
    /// Paths in the store of the outputs that were requested beside the binary.
    pub besides: Vec<PathBuf>,
}

/// Makes the binary of a plan, and the outputs `besides`.
///
/// # Errors
/// The first action that failed.
pub fn make(
    site: &Site,
    plan: &Plan,
    besides: &[&Source],
    explain: bool,
) -> Result<Built, Failure> {
    let last = plan.last.output(&plan.binary);
    let made = Made::of(site, &plan.graph, &[&[&last], besides].concat(), explain)?;
    let binary = site.atlas().join(&plan.published);
    made.store.publish(made.stored(&last), &binary)?;
    let besides = made.paths(besides);
    Ok(Built { binary, besides })
}

/// Compiles the kernels of a target alone.
///
/// # Errors
/// If they cannot be planned, or the first kernel that failed.
pub fn kernels(site: &Site, target: &str) -> Result<(), Failure> {
    let target = DeviceTarget::of(&site.target(Some(target))?, None)?;
    let mut graph = Graph::new();
    let device = cuda::plan(&mut graph, &Toolchain::find(&site.root)?, &target, None)?;
    let reports: Vec<_> = device.reports.iter().map(|(_, report)| report).collect();
    make_only(site, &graph, &reports).map(drop)
}

/// Makes outputs of a graph with all their inputs; returns the outputs' paths in the store.
///
/// # Errors
/// The first action that failed.
pub fn make_only(site: &Site, graph: &Graph, outputs: &[&Source]) -> Result<Vec<PathBuf>, Failure> {
    Ok(Made::of(site, graph, outputs, false)?.paths(outputs))
}

/// Makes outputs of a plan and publishes each under its name in `folder`, relative to `.atlas`;
/// returns the published paths.
///
/// # Errors
/// The first action that failed.
pub fn make_published(
    site: &Site,
    plan: &Plan,
    folder: &Path,
    files: &[(String, Source)],
    explain: bool,
) -> Result<Vec<PathBuf>, Failure> {
    let outputs: Vec<_> = files.iter().map(|(_, source)| source).collect();
    let made = Made::of(site, &plan.graph, &outputs, explain)?;
    let folder = site.atlas().join(folder);
    let publish = |(name, source): &(String, Source)| {
        let path = folder.join(name);
        made.store.publish(made.stored(source), &path)?;
        Ok(path)
    };
    files.iter().map(publish).collect()
}

/// Outputs that a run of a graph made, and their store.
struct Made {
    store: Store,
    summary: Summary,
}

impl Made {
    fn of(site: &Site, graph: &Graph, outputs: &[&Source], explain: bool) -> Result<Made, Failure> {
        let store = open(site)?;
        let wanted: Vec<_> = outputs.iter().filter_map(|source| source.maker()).collect();
        let summary = run(graph, &wanted, &store, &options(site, explain))?;
        Ok(Made { store, summary })
    }

    fn stored(&self, source: &Source) -> &Stored {
        let stored = match source {
            Source::Output(id, name) => self.summary.output(*id, name),
            Source::Workspace(_) | Source::Text(_) => None,
        };
        stored.expect("an action that succeeded has its outputs")
    }

    fn paths(&self, outputs: &[&Source]) -> Vec<PathBuf> {
        let stored = outputs.iter().map(|source| self.stored(source));
        stored.map(|stored| self.store.path(stored)).collect()
    }
}

pub fn open(site: &Site) -> Result<Store, Failure> {
    let waiting = || eprintln!("waiting for another build of this workspace to end");
    Ok(Store::open(&site.atlas(), waiting)?)
}

pub fn options(site: &Site, explain: bool) -> Options {
    let jobs = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Options {
        root: site.root.clone(),
        jobs,
        explain,
        progress: Progress::detect(),
    }
}
