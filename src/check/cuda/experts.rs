//! Cases of experts on the GPU.

use super::{compare_bytes, contents, loaded, routed};
use crate::parity::{ProbeExperts, Report};
use model::backend::cuda::panels::Panels;
use model::backend::cuda::{Cuda, Experts, refused};
use model::expert_sources;
use model::ops::Route;
use model::shapes::Experts as _;
use model::target::{Moe, Role};
use model::weights::{Checkpoint, Stored, WeightsError};
use step::executor::DeviceError;

impl ProbeExperts<Moe> for Cuda {
    fn experts_of(&mut self, stored: &[Vec<Stored>]) -> Result<Experts, DeviceError> {
        let packed = stored.iter().map(|expert| Panels::of_expert(expert));
        let packed: Vec<[Panels; 2]> = packed.collect();
        let bytes = packed[0].each_ref().map(|panels| panels.bytes.len());
        let mut experts = self.experts_memory(packed[0][0].storage, bytes)?;
        for (index, both) in packed.iter().enumerate() {
            let buffers = [&mut experts.gate_up, &mut experts.down];
            for (buffer, panels) in buffers.into_iter().zip(both) {
                let start = index * panels.bytes.len();
                let copied = buffer.upload(start, &panels.bytes, &self.queue.stream);
                copied.map_err(refused)?;
            }
        }
        Ok(experts)
    }
}

/// Compares the packed router and experts of a layer with those that the host packs.
pub fn pack(
    report: &mut Report,
    cuda: &mut Cuda,
    checkpoint: &Checkpoint,
) -> Result<(), WeightsError> {
    let Some(site) = routed() else {
        return Ok(());
    };
    let mut router = vec![checkpoint.matrix(Role::Router, site)];
    let all = expert_sources::<Moe>(checkpoint, site);
    if Moe::SHARED_GATED {
        router.push(checkpoint.matrix(Role::SharedRouter, site));
    }
    loaded(report, cuda, &router, Role::Router)?;
    let found = cuda.load_experts(&all)?;
    let [mut gate_up, mut down] = [Vec::new(), Vec::new()];
    for expert in all {
        let matrices = expert.inputs.iter().chain([&expert.down]);
        let matrices = matrices.map(|matrix| matrix.read());
        let packed = Panels::of_expert(&matrices.collect::<Result<Vec<_>, _>>()?);
        gate_up.extend_from_slice(&packed[0].bytes);
        down.extend_from_slice(&packed[1].bytes);
    }
    for (case, found, wanted) in [
        ("gate, up", &found.gate_up, gate_up),
        ("down", &found.down, down),
    ] {
        compare_bytes(report, case, &contents(cuda, found)?, &wanted);
    }
    Ok(())
}
