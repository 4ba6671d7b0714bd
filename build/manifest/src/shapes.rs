//! Blocks of a model as types, for host and device: a unit struct each in `target.rs`, with what it
//! is of `src/shapes.rs`, and a struct of the same numbers in `target.cuh`.

use std::fmt::Write;

use crate::kernels::Kind;
use crate::schema::leaf::Rows;
use crate::schema::model::{Mixer, RopeScaling};
use crate::target::Target;

/// One block of the model.
pub(crate) struct Shape {
    pub kind: Kind,
    /// Name of its struct; in lower case, of launchers of its own.
    pub name: &'static str,
    doc: &'static str,
    /// Constants in the order of the kind's trait.
    constants: Vec<(&'static str, Number)>,
}

/// A constant of a shape.
enum Number {
    Size(u64),
    Bool(bool),
    /// Rotary embedding, whose angles the host makes: base of the frequencies, and their scaling.
    Rope(f64, Option<RopeScaling>),
}

impl Number {
    fn rust(&self) -> (&'static str, String) {
        match self {
            Number::Size(value) => ("usize", value.to_string()),
            Number::Bool(value) => ("bool", value.to_string()),
            Number::Rope(theta, scaling) => {
                let scaling = scaling.as_ref().map_or("None".to_string(), llama3);
                let rope =
                    format!("crate::shapes::Rope {{ theta: {theta:?}, scaling: {scaling} }}");
                ("crate::shapes::Rope", rope)
            }
        }
    }

    fn cuda(&self) -> Option<String> {
        match self {
            Number::Size(value) => Some(format!("int @ = {value}")),
            Number::Bool(value) => Some(format!("bool @ = {value}")),
            Number::Rope(..) => None,
        }
    }
}

impl Shape {
    /// Name in launchers of its own.
    pub fn snake(&self) -> String {
        self.name.to_lowercase()
    }

    /// Name of the trait in `src/shapes.rs`, and of the alias in `target.cuh` of an only shape.
    fn kind_name(&self) -> String {
        camel(self.kind.name())
    }
}

impl Target {
    /// Blocks of the model, each once.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let mixers = self.mixers();
        let attends = mixers.contains(&Mixer::Attention) || self.model.mtp.layers > 0;
        let blocks = [
            attends.then(|| self.attention_shape()),
            self.delta_shape(),
            self.experts_shape(),
            self.mlp_shape(),
        ];
        blocks.into_iter().flatten().collect()
    }

    pub(crate) fn write_shapes(&self, out: &mut String) {
        for shape in self.shapes() {
            let (name, kind) = (shape.name, shape.kind_name());
            let _ = writeln!(out, "/// {}\npub struct {name};", shape.doc);
            let _ = writeln!(out, "impl crate::shapes::{kind} for {name} {{");
            for (name, number) in &shape.constants {
                let (kind, value) = number.rust();
                let _ = writeln!(out, "    const {name}: {kind} = {value};");
            }
            out.push_str("}\n");
        }
    }

    /// The same for device code, `HEAD_DIM` being `kHeadDim`.
    pub(crate) fn write_cuda_shapes(&self, out: &mut String) {
        out.push_str("\n// Blocks of the model.\nnamespace shapes {\n");
        let shapes = self.shapes();
        for shape in &shapes {
            let _ = writeln!(out, "\n// {}\nstruct {} {{", shape.doc, shape.name);
            for (name, number) in &shape.constants {
                let name = format!("k{}", camel(&name.to_lowercase()));
                if let Some(text) = number.cuda() {
                    let _ = writeln!(out, "  static constexpr {};", text.replace('@', &name));
                }
            }
            out.push_str("};\n");
        }
        for shape in &shapes {
            let alone = shapes
                .iter()
                .filter(|other| other.kind == shape.kind)
                .count()
                == 1;
            if alone && shape.kind != Kind::Attention {
                let _ = writeln!(out, "// The only one of its kind.");
                let _ = writeln!(out, "using {} = {};", shape.kind_name(), shape.name);
            }
        }
        out.push_str("\n} // namespace shapes\n");
    }

    fn attention_shape(&self) -> Shape {
        let (attention, traits) = (&self.model.attention, self.traits());
        let rope = Number::Rope(attention.rope_theta, attention.rope_scaling.clone());
        Shape {
            doc: "Attention over all positions.",
            name: "Full",
            kind: Kind::Attention,
            constants: vec![
                ("HEADS", Number::Size(attention.heads)),
                ("KV_HEADS", Number::Size(attention.kv_heads)),
                ("HEAD_DIM", Number::Size(attention.head_dim)),
                ("ROTARY_DIM", Number::Size(attention.rotary_dim)),
                ("ROPE", rope),
                ("GATED", Number::Bool(traits.gated)),
                ("NORMED", Number::Bool(traits.normed)),
            ],
        }
    }

    fn delta_shape(&self) -> Option<Shape> {
        let gdn = self.model.gdn.as_ref()?;
        Some(Shape {
            doc: "Gated DeltaNet.",
            name: "Gdn",
            kind: Kind::Delta,
            constants: vec![
                ("KEY_HEADS", Number::Size(gdn.key_heads)),
                ("VALUE_HEADS", Number::Size(gdn.value_heads)),
                ("KEY_DIM", Number::Size(gdn.key_dim)),
                ("VALUE_DIM", Number::Size(gdn.value_dim)),
                ("CONV", Number::Size(gdn.conv_kernel)),
            ],
        })
    }

    fn experts_shape(&self) -> Option<Shape> {
        let moe = self.model.moe.as_ref()?;
        let rounds = self.leaf.numbers.experts_rows == Rows::Nvfp4;
        Some(Shape {
            doc: "Mixture of experts.",
            name: "Moe",
            kind: Kind::Experts,
            constants: vec![
                ("COUNT", Number::Size(moe.experts)),
                ("PER_TOKEN", Number::Size(moe.experts_per_token)),
                ("INTERMEDIATE", Number::Size(moe.intermediate)),
                ("SHARED", Number::Size(moe.shared())),
                ("ROWS_NVFP4", Number::Bool(rounds)),
            ],
        })
    }

    fn mlp_shape(&self) -> Option<Shape> {
        let mlp = self.model.mlp.as_ref()?;
        Some(Shape {
            doc: "A gated MLP.",
            name: "Mlp",
            kind: Kind::Mlp,
            constants: vec![("INTERMEDIATE", Number::Size(mlp.intermediate))],
        })
    }
}

/// The scaling of rotary embedding as an expression of the host's.
fn llama3(scaling: &RopeScaling) -> String {
    let RopeScaling {
        factor,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position: original,
    } = scaling;
    format!(
        "Some(crate::shapes::Llama3 {{ factor: {factor:?}, low: {low:?}, high: {high:?}, original: \
         {original}.0 }})"
    )
}

/// `rms_norm` to `RmsNorm`.
pub(crate) fn camel(name: &str) -> String {
    let words = name
        .split('_')
        .map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}
