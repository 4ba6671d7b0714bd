//! The graph as DOT text.

use std::fmt::Write as _;

use super::Graph;

/// DOT text of the graph, for graphviz.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from(
        "digraph atlas {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n",
    );
    for id in graph.ids() {
        let action = graph.action(id);
        let inputs = action.inputs.len() - graph.makers(id).len().min(action.inputs.len());
        let (label, files) = (&action.label, "files of the workspace");
        let _ = writeln!(text, "  {label:?} [tooltip=\"{inputs} {files}\"];");
        for maker in graph.makers(id) {
            let (from, to) = (&graph.action(maker).label, &action.label);
            let _ = writeln!(text, "  {from:?} -> {to:?};");
        }
    }
    text.push_str("}\n");
    text
}
