//! A hermetic executor: actions with declared inputs, a content-addressed store, a ready queue.

pub mod action;
pub mod digest;
pub mod draw;
pub mod error;
pub mod explain;
pub mod progress;
pub mod run;
pub mod store;
pub mod sweep;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

pub use action::{Action, ActionId, Code, Input, Source, Tool};
pub use error::Error;
pub use progress::Progress;
pub use run::{Options, Sandbox, run};
pub use store::Store;

/// Actions in an order in which they may run: an action can only name earlier ones, so there are no
/// cycles.
#[derive(Debug, Default)]
pub struct Graph {
    actions: Vec<Action>,
    labels: HashMap<String, ActionId>,
}

impl Graph {
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Adds an action whose inputs are files or outputs of actions already added.
    ///
    /// # Errors
    /// [`Error::Plan`] if the label is taken, or an input names an output that does not exist.
    pub fn add(&mut self, action: Action) -> Result<ActionId, Error> {
        action.check()?;
        for input in &action.inputs {
            let Source::Output(maker, name) = &input.from else {
                continue;
            };
            let made = self.actions.get(maker.index()).map(|maker| &maker.outputs);
            if !made.is_some_and(|outputs| outputs.iter().any(|output| output.path == *name)) {
                let what = format!("no earlier action leaves `{name}`");
                return Err(Error::plan(&action.label, what));
            }
        }
        let id = ActionId(self.actions.len() as u32);
        let other = self.labels.insert(action::slug(&action.label), id);
        if other.is_some() {
            return Err(Error::plan(&action.label, "another action has this label"));
        }
        self.actions.push(action);
        Ok(id)
    }

    pub fn action(&self, id: ActionId) -> &Action {
        &self.actions[id.index()]
    }

    /// All actions, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = ActionId> + use<> {
        (0..self.actions.len() as u32).map(ActionId)
    }

    /// The actions whose outputs `id` reads.
    pub fn makers(&self, id: ActionId) -> BTreeSet<ActionId> {
        let inputs = self.action(id).inputs.iter();
        inputs.filter_map(|input| input.from.maker()).collect()
    }

    /// `wanted` and everything it needs.
    pub fn needed(&self, wanted: &[ActionId]) -> BTreeSet<ActionId> {
        let mut needed = BTreeSet::new();
        let mut open = wanted.to_vec();
        while let Some(id) = open.pop() {
            if needed.insert(id) {
                open.extend(self.makers(id));
            }
        }
        needed
    }
}
