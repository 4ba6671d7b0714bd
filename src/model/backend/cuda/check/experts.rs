//! Cases of experts on the GPU.

use super::pack::{LAYER, contents, loaded, tell};
use crate::backend::cuda::panels::Panels;
use crate::backend::cuda::route::Experts;
use crate::backend::cuda::{Cuda, refused};
use crate::backend::parity::{ProbeExperts, Report};
use crate::ops::Route;
use crate::shapes::Experts as _;
use crate::target::{Moe, Role};
use crate::weights::{Checkpoint, Stored, WeightsError};
use step::executor::DeviceError;

impl ProbeExperts<Moe> for Cuda {
    fn experts_of(&mut self, stored: &[[Stored; 3]]) -> Result<Experts, DeviceError> {
        let packed: Vec<[Panels; 2]> = stored.iter().map(Panels::of_expert).collect();
        let bytes = packed[0].each_ref().map(|panels| panels.bytes.len());
        let mut experts = self.experts_room(packed[0][0].storage, bytes)?;
        for (index, both) in packed.iter().enumerate() {
            let rooms = [&mut experts.gate_up, &mut experts.down];
            for (room, panels) in rooms.into_iter().zip(both) {
                let start = index * panels.bytes.len();
                let copied = room.upload(start, &panels.bytes, &self.queue.stream);
                copied.map_err(refused)?;
            }
        }
        Ok(experts)
    }
}

/// Compares what a layer's router and experts are packed to with what the host makes of them.
pub fn pack(
    report: &mut Report,
    cuda: &mut Cuda,
    checkpoint: &Checkpoint,
) -> Result<(), WeightsError> {
    let mut router = vec![checkpoint.matrix(Role::Router, LAYER)];
    let routed = [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
    let expert = |e| routed.map(|role| checkpoint.expert(role, LAYER, e));
    let mut all: Vec<_> = (0..Moe::COUNT).map(expert).collect();
    if Moe::HAS_SHARED > 0 {
        router.push(checkpoint.matrix(Role::SharedRouter, LAYER));
        let shared = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
        all.push(shared.map(|role| checkpoint.matrix(role, LAYER)));
    }
    loaded(report, cuda, &router, Role::Router)?;
    let found = cuda.load_experts(&all)?;
    let [mut gate_up, mut down] = [Vec::new(), Vec::new()];
    for [gate, up, below] in all {
        let packed = Panels::of_expert(&[gate.read()?, up.read()?, below.read()?]);
        gate_up.extend_from_slice(&packed[0].bytes);
        down.extend_from_slice(&packed[1].bytes);
    }
    for (case, found, wanted) in [
        ("gate, up", &found.gate_up, gate_up),
        ("down", &found.down, down),
    ] {
        tell(report, case, &contents(cuda, found)?, &wanted);
    }
    Ok(())
}
