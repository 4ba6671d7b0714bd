//! Matrices that a device loads together, in the order of a packed file.

use std::collections::BTreeMap;

use crate::target::{Role, Site};
use crate::weights::{Layout, Weight};

/// Matrices that are stacked to one when they are loaded.
#[derive(Clone, Debug)]
pub struct Stack {
    pub parts: Vec<Weight>,
    pub of_experts: bool,
}

/// Every matrix of a model once, site by site: each alone, but for routers and for gate and up of
/// an expert. `Block::load` loads the same stacks.
pub fn stacks(layout: Layout) -> Vec<Stack> {
    let mut sites: BTreeMap<Site, BTreeMap<Role, Vec<Weight>>> = BTreeMap::new();
    for weight in layout.matrices() {
        let roles = sites.entry(weight.site()).or_default();
        roles.entry(weight.role()).or_default().push(weight);
    }
    sites.values_mut().flat_map(of_site).collect()
}

fn of_site(roles: &mut BTreeMap<Role, Vec<Weight>>) -> Vec<Stack> {
    const EXPERTS: [[Role; 3]; 2] = [
        [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown],
        [Role::SharedGate, Role::SharedUp, Role::SharedDown],
    ];
    let mut found = Vec::new();
    let routers = [Role::Router, Role::SharedRouter];
    let routers: Vec<_> = routers
        .into_iter()
        .filter_map(|role| roles.remove(&role))
        .collect();
    let experts = EXPERTS.map(|expert| expert.map(|role| roles.remove(&role).unwrap_or_default()));
    found.extend(
        roles
            .values()
            .flatten()
            .map(|alone| stack(&[*alone], false)),
    );
    found.extend((!routers.is_empty()).then(|| stack(&routers.concat(), false)));
    for [gates, ups, downs] in experts {
        for (at, (up, down)) in ups.into_iter().zip(downs).enumerate() {
            let inputs: Vec<_> = gates.get(at).copied().into_iter().chain([up]).collect();
            found.extend([stack(&inputs, true), stack(&[down], true)]);
        }
    }
    found
}

fn stack(parts: &[Weight], of_experts: bool) -> Stack {
    Stack {
        parts: parts.to_vec(),
        of_experts,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_matrix_is_in_one_stack() {
        let layout = Layout::whole();
        let stacks = stacks(layout);
        let keys: Vec<_> = stacks
            .iter()
            .flat_map(|stack| &stack.parts)
            .map(|part| part.key())
            .collect();
        let all: BTreeSet<_> = layout.matrices().map(Weight::key).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), all);
    }
}
