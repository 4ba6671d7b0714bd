//! The graph as a picture: DOT text, or an SVG laid out in layers by ourselves.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ActionId, Graph};

/// Pixels.
const BOX_HEIGHT: f64 = 30.0;
const LETTER_WIDTH: f64 = 7.2;
const BOX_PADDING: f64 = 20.0;
const COLUMN_GAP: f64 = 90.0;
const ROW_GAP: f64 = 14.0;
const MARGIN: f64 = 20.0;

/// DOT text, for graphviz.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from(
        "digraph atlas {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n",
    );
    for id in graph.ids() {
        let action = graph.action(id);
        let inputs = action.inputs.len() - graph.makers(id).len().min(action.inputs.len());
        let _ = writeln!(
            text,
            "  {:?} [tooltip=\"{inputs} files of the workspace\"];",
            action.label
        );
        for maker in graph.makers(id) {
            let _ = writeln!(
                text,
                "  {:?} -> {:?};",
                graph.action(maker).label,
                action.label
            );
        }
    }
    text.push_str("}\n");
    text
}

/// Corner and width of an action's box.
#[derive(Clone, Copy, Debug)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
}

/// An SVG with a title: an action stands one layer to the right of the last action it reads from.
pub fn svg(graph: &Graph, title: &str) -> String {
    let mut layers = layers(graph);
    untangle(graph, &mut layers);
    let (places, width, height) = places(graph, &layers);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"monospace\" font-size=\"12\" fill=\"#1f2328\">\n<title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"{}\">{title}</text>\n",
        MARGIN - 6.0
    );
    for id in graph.ids() {
        for maker in graph.makers(id) {
            edge(&mut text, places[&maker], places[&id]);
        }
    }
    for id in graph.ids() {
        node(&mut text, places[&id], &graph.action(id).label);
    }
    text.push_str("</svg>\n");
    text
}

fn layers(graph: &Graph) -> Vec<Vec<ActionId>> {
    let mut layer_of = BTreeMap::new();
    let mut layers: Vec<Vec<ActionId>> = Vec::new();
    for id in graph.ids() {
        let layer = graph
            .makers(id)
            .iter()
            .map(|maker| layer_of[maker] + 1)
            .max()
            .unwrap_or(0);
        layer_of.insert(id, layer);
        layers.resize(layers.len().max(layer + 1), vec![]);
        layers[layer].push(id);
    }
    layers
}

/// Sorts each layer by the mean height of the boxes it reads from.
fn untangle(graph: &Graph, layers: &mut [Vec<ActionId>]) {
    let mut height = BTreeMap::new();
    for layer in layers {
        let mean = |id: &ActionId| {
            let makers = graph.makers(*id);
            let sum: f64 = makers.iter().map(|maker| height[maker]).sum();
            if makers.is_empty() {
                0.0
            } else {
                sum / makers.len() as f64
            }
        };
        layer.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        let rows = layer.len() as f64;
        height.extend(
            layer
                .iter()
                .enumerate()
                .map(|(row, id)| (*id, (row as f64 + 0.5) / rows)),
        );
    }
}

fn places(graph: &Graph, layers: &[Vec<ActionId>]) -> (BTreeMap<ActionId, Place>, f64, f64) {
    let row = BOX_HEIGHT + ROW_GAP;
    let rows = layers.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let (mut places, mut x) = (BTreeMap::new(), MARGIN);
    for layer in layers {
        let letters = layer
            .iter()
            .map(|id| graph.action(*id).label.chars().count())
            .max()
            .unwrap_or(0);
        let width = letters as f64 * LETTER_WIDTH + BOX_PADDING;
        let top = MARGIN + (rows - layer.len() as f64) * row / 2.0;
        for (ix, id) in layer.iter().enumerate() {
            places.insert(
                *id,
                Place {
                    x,
                    y: top + ix as f64 * row,
                    width,
                },
            );
        }
        x += width + COLUMN_GAP;
    }
    (places, x - COLUMN_GAP + MARGIN, rows * row + 2.0 * MARGIN)
}

fn edge(text: &mut String, from: Place, to: Place) {
    let (x0, y0) = (from.x + from.width, from.y + BOX_HEIGHT / 2.0);
    let (x1, y1) = (to.x, to.y + BOX_HEIGHT / 2.0);
    let middle = (x0 + x1) / 2.0;
    let _ = writeln!(
        text,
        "<path d=\"M{x0:.1} {y0:.1} C{middle:.1} {y0:.1} {middle:.1} {y1:.1} {x1:.1} {y1:.1}\" \
         fill=\"none\" stroke=\"#8899aa\"/>"
    );
}

fn node(text: &mut String, place: Place, label: &str) {
    let Place { x, y, width } = place;
    let label = label.replace('&', "&amp;").replace('<', "&lt;");
    let (text_x, text_y) = (x + BOX_PADDING / 2.0, y + BOX_HEIGHT / 2.0 + 4.0);
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"4\" \
         fill=\"#eef3f8\" stroke=\"#445566\"/>\n\
         <text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{label}</text>"
    );
}
