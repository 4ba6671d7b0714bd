//! Shapes of the model's blocks in `target.rs`: a unit struct each, and what it is of
//! `src/shapes.rs`.

use std::fmt::Write;

use crate::schema::leaf::Rows;
use crate::target::Target;

/// One block of the model.
struct Shape {
    doc: &'static str,
    /// Of the struct.
    name: &'static str,
    /// Of `src/shapes.rs`.
    kind: &'static str,
    /// Name, type and value.
    constants: Vec<(&'static str, &'static str, String)>,
}

impl Target {
    pub(crate) fn write_shapes(&self, out: &mut String) {
        for shape in [
            self.attention_shape(),
            self.delta_shape(),
            self.experts_shape(),
        ] {
            let Shape {
                doc, name, kind, ..
            } = shape;
            let _ = writeln!(out, "/// {doc}\npub struct {name};");
            let _ = writeln!(out, "impl crate::shapes::{kind} for {name} {{");
            for (name, kind, value) in shape.constants {
                let _ = writeln!(out, "    const {name}: {kind} = {value};");
            }
            out.push_str("}\n");
        }
    }

    fn attention_shape(&self) -> Shape {
        let attention = &self.model.attention;
        let theta = attention.rope_theta;
        let rope = format!("crate::shapes::Rope {{ theta: {theta:?}, scaling: None }}");
        Shape {
            doc: "Attention over all positions.",
            name: "Full",
            kind: "Attention",
            constants: vec![
                size("HEADS", attention.heads),
                size("KV_HEADS", attention.kv_heads),
                size("HEAD_DIM", attention.head_dim),
                size("ROTARY_DIM", attention.rotary_dim),
                ("ROPE", "crate::shapes::Rope", rope),
                ("GATED", "bool", true.to_string()),
                ("NORMED", "bool", true.to_string()),
            ],
        }
    }

    fn delta_shape(&self) -> Shape {
        let gdn = &self.model.gdn;
        Shape {
            doc: "Gated DeltaNet.",
            name: "Gdn",
            kind: "Delta",
            constants: vec![
                size("KEY_HEADS", gdn.key_heads),
                size("VALUE_HEADS", gdn.value_heads),
                size("KEY_DIM", gdn.key_dim),
                size("VALUE_DIM", gdn.value_dim),
                size("CONV", gdn.conv_kernel),
            ],
        }
    }

    fn experts_shape(&self) -> Shape {
        let moe = &self.model.moe;
        let rounds = self.leaf.numbers.experts_rows == Rows::Nvfp4;
        Shape {
            doc: "Mixture of experts.",
            name: "Moe",
            kind: "Experts",
            constants: vec![
                size("COUNT", moe.experts),
                size("PER_TOKEN", moe.experts_per_token),
                size("INTERMEDIATE", moe.intermediate),
                size("SHARED", moe.shared_intermediate),
                ("ROWS_NVFP4", "bool", rounds.to_string()),
            ],
        }
    }
}

fn size(name: &'static str, value: u64) -> (&'static str, &'static str, String) {
    (name, "usize", value.to_string())
}
