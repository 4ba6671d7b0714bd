//! Shapes of a model's blocks as types of host and device: in `target.rs` a unit struct with a
//! trait of `src/model/shapes.rs`, in `target.cuh` a struct of the same numbers.

use std::fmt::Write;

use serde::Serialize;

use crate::emit_rust::item;
use crate::family::{Activation, FeedForward as Beside, Mixers, Scale, Switch};
use crate::kernels::{Kind, Launcher};
use crate::numbers::{self, NUMBERS, Range};
use crate::schema::leaf::Rows;
use crate::schema::model::{Attention, FeedForward, Mixer, RopeScaling, Yarn};
use crate::target::Target;

/// One block of the model.
pub(crate) struct Shape {
    pub kind: Kind,
    /// Table of the block's facts in the manifest.
    pub word: &'static str,
    /// Name of the shape's struct; in lower case, the suffix of its launchers.
    pub name: &'static str,
    pub doc: &'static str,
    /// Constants in the order of the trait that the kind of block has.
    pub constants: Vec<(&'static str, Number)>,
}

/// A constant of a shape.
pub(crate) enum Number {
    Size(u64),
    Bool(bool),
    Single(f32),
    /// Growth of queries and the context of the first training, tokens; device code has a growth of
    /// 0 for none.
    Temperature(Option<(f64, u64)>),
    Activation(Activation),
    /// RoPE, whose angles the host computes: base, and scaling as a Rust expression.
    Rope(f64, String),
    /// Positions of a window; 0 in device code for none.
    Window(Option<u64>),
    /// The page group of windowed pages, a constant of the host alone.
    WindowPages,
    /// Name of another shape, a type of the host alone.
    Shape(&'static str),
}

/// A shape of attention in a model.
pub(crate) struct Attends {
    /// Mixer of the layers with this attention.
    pub mixer: Mixer,
    /// Name of the attention's shape.
    name: &'static str,
    doc: &'static str,
    pub facts: Attention,
    /// Width of a value, elements.
    pub value_dim: u64,
}

impl Attends {
    /// Table of the manifest that states the attention.
    pub fn table(&self) -> &'static str {
        match self.mixer {
            Mixer::Sliding => "sliding",
            Mixer::Attention | Mixer::Recurrent(_) | Mixer::None => "attention",
        }
    }

    /// Suffix of the attention's own launchers.
    pub fn snake(&self) -> String {
        self.name.to_lowercase()
    }

    /// Whether values are a part of the stored latents.
    pub fn is_latent(&self) -> bool {
        self.value_dim < self.facts.head_dim
    }
}

impl Mixer {
    /// Name of the mixer's shape, if it has one.
    fn shape(self) -> Option<&'static str> {
        match self {
            Mixer::Recurrent(recurs) => Some(recurs.block),
            Mixer::Attention => Some("Full"),
            Mixer::Sliding => Some("Sliding"),
            Mixer::None => None,
        }
    }
}

impl FeedForward {
    fn shape(self) -> Option<&'static str> {
        match self {
            FeedForward::Mlp => Some("Mlp"),
            FeedForward::Moe => Some("Moe"),
            FeedForward::Both => Some("Both"),
            FeedForward::None => None,
        }
    }
}

impl Number {
    /// Constant of the host's trait, as an item of its implementation.
    fn rust(&self, name: &str) -> String {
        let (kind, value) = match self {
            Number::Size(value) => ("usize", value.to_string()),
            Number::Bool(value) => ("bool", value.to_string()),
            Number::Single(value) => ("f32", format!("{value:?}")),
            Number::Activation(value) => (
                "crate::shapes::Activation",
                format!("crate::shapes::Activation::{value:?}"),
            ),
            Number::Rope(theta, scaling) => (
                "crate::shapes::Rope",
                format!("crate::shapes::Rope {{ theta: {theta:?}, scaling: {scaling} }}"),
            ),
            Number::Window(positions) => ("Option<usize>", format!("{positions:?}")),
            Number::Temperature(growth) => {
                let some = |(beta, original)| {
                    let kind = "crate::shapes::Temperature";
                    format!("Some({kind} {{ beta: {beta:?}, original: {original} }})")
                };
                let value = growth.map_or("None".to_string(), some);
                ("Option<crate::shapes::Temperature>", value)
            }
            Number::WindowPages => (
                "crate::shapes::PageGroup",
                "crate::shapes::PageGroup::Window".to_string(),
            ),
            Number::Shape(shape) => return format!("type {name} = {shape};"),
        };
        format!("const {name}: {kind} = {value};")
    }

    fn cuda(&self) -> Option<String> {
        match self {
            Number::Size(value) => Some(format!("int @ = {value}")),
            Number::Bool(value) => Some(format!("bool @ = {value}")),
            Number::Single(value) => Some(format!("float @ = {value:?}f")),
            Number::Activation(value) => {
                Some(format!("Activation @ = Activation::{}", value.name()))
            }
            Number::Rope(..) | Number::WindowPages | Number::Shape(_) => None,
            Number::Window(positions) => Some(format!("int @ = {}", positions.unwrap_or(0))),
            Number::Temperature(growth) => {
                let (beta, original) = growth.unwrap_or((0.0, 1));
                Some(format!(
                    "float @Beta = {beta:?}f;\n  static constexpr int @Original = {original}"
                ))
            }
        }
    }
}

use Number::{Bool, Single, Size};

impl Shape {
    pub fn of(
        kind: Kind,
        [word, name, doc]: [&'static str; 3],
        constants: Vec<(&'static str, Number)>,
    ) -> Shape {
        Shape {
            kind,
            word,
            name,
            doc,
            constants,
        }
    }

    /// Suffix of the shape's own launchers.
    pub fn snake(&self) -> String {
        self.name.to_lowercase()
    }

    /// Name in `target.cuh` of the only shape of a kind.
    fn kind_name(&self) -> String {
        camel(self.kind.name)
    }
}

impl Target {
    /// Whether an MLP of its own stands beside routed experts, as a shared expert.
    pub(crate) fn beside(&self) -> bool {
        self.traits().feed_forward == Beside::ExpertBeside
    }

    /// Shapes of attention in the model, each once.
    pub(crate) fn attentions(&self) -> Vec<Attends> {
        let predicts = self.model.mtp.layers > 0;
        let full = self.mixers().contains(&Mixer::Attention) || predicts;
        let full = full.then_some(Attends {
            mixer: Mixer::Attention,
            name: "Full",
            doc: "Attention over all positions.",
            facts: Attention {
                window: None,
                ..self.model.attention.clone()
            },
            value_dim: match self.has(Switch::Latent) {
                true => self.model.latent_rank(),
                false => self.model.attention.head_dim,
            },
        });
        let sliding = match self.traits().mixers {
            Mixers::Windowed => Some(&self.model.attention),
            _ => self.model.sliding.as_ref(),
        };
        let sliding = sliding.cloned().map(|facts| Attends {
            mixer: Mixer::Sliding,
            name: "Sliding",
            doc: "Attention over a window of positions.",
            value_dim: facts.head_dim,
            facts,
        });
        full.into_iter().chain(sliding).collect()
    }

    /// Window of the page group that some layers have, where others attend over all positions.
    pub fn page_window(&self) -> Option<u64> {
        let attentions = self.attentions();
        let mut windows = attentions.iter().filter_map(|each| each.facts.window);
        windows.next().filter(|_| attentions.len() > 1)
    }

    /// Blocks of the model, each once.
    pub(crate) fn shapes(&self) -> Vec<Shape> {
        let attentions = self.attentions().into_iter();
        let others = [
            self.traits().recurs.map(|recurs| (recurs.shape)(self)),
            self.experts_shape(),
            self.mlp_shape(),
            self.both_shape(),
            self.latent_shape(),
        ];
        let attentions = attentions.map(|each| self.attention_shape(&each));
        attentions.chain(others.into_iter().flatten()).collect()
    }

    pub(crate) fn write_shapes(&self, out: &mut String) {
        for shape in self.shapes() {
            let (name, [kind, _]) = (shape.name, shape.kind.traits());
            let _ = writeln!(out, "/// {}\npub struct {name};", shape.doc);
            let _ = writeln!(out, "impl crate::{kind} for {name} {{");
            for (name, number) in &shape.constants {
                let _ = writeln!(out, "    {}", number.rust(name));
            }
            out.push_str("}\n");
        }
        let mut shapes = self.shapes().into_iter();
        if let Some(shape) = shapes.find(|shape| shape.kind == Kind::DELTA) {
            let doc = "Recurrent mixer of the model, whatever its rule.";
            let _ = writeln!(out, "/// {doc}\npub type Recurrent = {};", shape.name);
        }
        self.write_each(out, Kind::ATTENTION);
        self.write_each(out, Kind::EXPERTS);
        self.write_blocks(out);
        if self.hardware.gpu.is_some() {
            self.write_each(out, Kind::MLP);
            self.write_launchers(out);
        }
    }

    fn write_each(&self, out: &mut String, kind: Kind) {
        let name = kind.name;
        let _ = writeln!(
            out,
            "/// Values of an expression for each shape of {name}, which it calls `$shape`.\n\
             #[macro_export]\n\
             macro_rules! each_{name} {{\n    ($shape:ident => $value:expr) => {{\n        ["
        );
        for each in self.shapes().iter().filter(|shape| shape.kind == kind) {
            let shape = format!("type $shape = $crate::target::{}", each.name);
            let _ = writeln!(out, "            {{ {shape}; $value }},");
        }
        let _ = writeln!(out, "        ]\n    }};\n}}\npub use each_{name};");
    }

    /// Writes the blocks, of which the server makes a type, and the names of each layer's blocks.
    fn write_blocks(&self, out: &mut String) {
        let doc = "Blocks that layers are made of, for a macro: name, block of a shape, and the \
                   operations that it takes.";
        let _ = writeln!(out, "/// {doc}\nmacro_rules! with_blocks {{");
        out.push_str("    ($macro:ident) => {\n        $macro! {\n");
        let (layers, prediction) = (self.layer_blocks(), self.prediction_blocks());
        let used = layers.iter().chain([&prediction]).flatten().flatten();
        let mut blocks = self.shapes();
        blocks.retain(|shape| used.clone().any(|name| *name == shape.name));
        for Shape {
            kind, word, name, ..
        } in blocks
        {
            let (module, block, [_, ops]) = (kind.name, kind.block, kind.traits());
            let _ = writeln!(
                out,
                "            {word}: {module}::{block}<{name}> by {ops},"
            );
        }
        out.push_str("        }\n    };\n}\npub(crate) use with_blocks;\n");
        let blocks: Vec<_> = layers.iter().copied().map(blocks_text).collect();
        let blocks = blocks.join(", ");
        let blocks = format!("LAYER_BLOCKS: [[Option<Shape>; 2]; LAYERS] = [{blocks}]");
        item(out, "Mixer and feed-forward of each layer.", &blocks);
        let blocks = blocks_text(prediction);
        let blocks = format!("PREDICTION_BLOCKS: [Option<Shape>; 2] = {blocks}");
        item(out, "Blocks of the multi-token-prediction layer.", &blocks);
    }

    /// Names of the shapes of each layer's mixer and feed-forward.
    fn layer_blocks(&self) -> Vec<[Option<&'static str>; 2]> {
        let layers = self.mixers().into_iter().zip(self.model.feed_forwards());
        let blocks = layers.map(|(mixer, part)| match (mixer, self.has(Switch::Latent)) {
            (Mixer::Attention, true) => [Some("Latent"), part.shape()],
            _ => [mixer.shape(), part.shape()],
        });
        blocks.collect()
    }

    fn prediction_blocks(&self) -> [Option<&'static str>; 2] {
        match self.mtp_layers() {
            0 => [None; 2],
            _ => [
                Mixer::Attention.shape(),
                self.traits().feed_forward.usual().shape(),
            ],
        }
    }

    /// Kinds of blocks, each with whether the model has one.
    pub fn block_kinds(&self) -> Vec<(&'static str, bool)> {
        let shapes = self.shapes();
        let has = |kind| shapes.iter().any(|shape| shape.kind.name == kind);
        let kinds = Kind::names().into_iter().map(|kind| {
            // The block of latents contains its attention.
            let within = kind == Kind::ATTENTION.name && has(Kind::LATENT.name);
            (kind, has(kind) && !within)
        });
        kinds.collect()
    }

    /// Writes the launchers of each attention shape's operations, which the linker resolves.
    fn write_launchers(&self, out: &mut String) {
        for (place, each) in self.attentions().iter().enumerate() {
            let name = each.name;
            let _ = writeln!(out, "impl crate::backend::cuda::Launchers for {name} {{");
            let _ = writeln!(out, "    const INDEX: usize = {place};");
            let mut launchers = self.launchers();
            launchers.retain(|launcher| launcher.shape.as_deref() == Some(each.snake().as_str()));
            for Launcher { op, name, .. } in launchers {
                let kind = format!("ffi::ops::Launcher<ffi::ops::atlas_{op}_launcher>");
                let constant = op.to_uppercase();
                let _ = writeln!(
                    out,
                    "    const {constant}: {kind} = ffi::ops::atlas_{name};"
                );
            }
            out.push_str("}\n");
        }
    }

    /// Writes shapes as text of device code, where `HEAD_DIM` is `kHeadDim`.
    pub(crate) fn write_cuda_shapes(&self, out: &mut String) {
        out.push_str("\n// Blocks of the model.\nnamespace shapes {\n");
        let mut shapes = self.shapes();
        shapes.retain(|shape| shape.kind != Kind::BOTH);
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
            let same = |other: &&Shape| other.kind == shape.kind;
            if shapes.iter().filter(same).count() == 1 && shape.kind != Kind::ATTENTION {
                let _ = writeln!(out, "// The only one of its kind.");
                let _ = writeln!(out, "using {} = {};", shape.kind_name(), shape.name);
            }
        }
        out.push_str("\n} // namespace shapes\n");
    }

    fn attention_shape(&self, each: &Attends) -> Shape {
        let (attention, traits) = (&each.facts, self.traits());
        let (rotary_dim, rope) = match traits.has(Switch::Unturned) {
            false => (
                attention.rotary_dim,
                (attention.rope_theta, scaling(attention)),
            ),
            // Rotary pairs exist, but none of them is rotated.
            true => (attention.head_dim, (1.0, first(0))),
        };
        let divisor = match traits.scale {
            Scale::Head => attention.head_dim,
            Scale::Stated => self.model.query_pre_attn_scalar.unwrap_or(1),
            Scale::One => 1,
        };
        let divisor = match &self.model.latent {
            Some(latent) => latent.nope_dim + rotary_dim,
            None => divisor,
        };
        let scale = score_growth(attention) / (divisor as f64).sqrt();
        let window = attention.window.and(self.page_window());
        let pages = window.map(|_| ("PAGES", Number::WindowPages));
        let mut constants = stated("attention", attention);
        constants.extend([
            ("VALUE_DIM", Size(each.value_dim)),
            ("ROTARY_DIM", Size(rotary_dim)),
            ("ROPE", Number::Rope(rope.0, rope.1)),
            ("SCALE", Single(scale as f32)),
        ]);
        constants.extend(self.switches(Kind::ATTENTION));
        constants.extend([
            ("WINDOW", Number::Window(attention.window)),
            ("SINKS", Bool(traits.has(Switch::Sinks))),
            ("POSITION_BYTES", Number::Size(self.kv_bytes_in(attention))),
        ]);
        constants.extend(pages);
        Shape::of(
            Kind::ATTENTION,
            [each.table(), each.name, each.doc],
            constants,
        )
    }

    fn latent_shape(&self) -> Option<Shape> {
        let latent = self.model.latent.as_ref()?;
        let original = self.model.attention.yarn.as_ref();
        let original = original.map(|yarn| yarn.original_max_position);
        let growth = Number::Temperature(latent.temperature_beta.zip(original));
        let mut constants = vec![("Attention", Number::Shape("Full"))];
        constants.extend(stated("latent", latent));
        constants.push(("TEMPERATURE", growth));
        let names = ["latent", "Latent", "Attention over latents."];
        Some(Shape::of(Kind::LATENT, names, constants))
    }

    /// Columns of the output projection after an attention.
    pub(crate) fn o_columns(&self, each: &Attends) -> u64 {
        match &self.model.latent {
            Some(latent) => each.facts.heads * latent.value_dim,
            None => each.facts.o_columns(),
        }
    }

    fn experts_shape(&self) -> Option<Shape> {
        let moe = self.model.moe.as_ref()?;
        let rounds = self.leaf.numbers.experts_rows == Rows::Nvfp4;
        let width = moe.latent.unwrap_or(self.model.hidden);
        let (shared, none) = (Size(self.padded(moe.shared())), Size(0));
        let (shared, beside) = match self.beside() {
            false => (shared, none),
            true => (none, shared),
        };
        let mut constants = stated("moe", moe);
        constants.extend([
            ("INTERMEDIATE", Size(self.padded_inner(moe.intermediate))),
            ("WIDTH", Size(self.padded(width))),
            ("LATENT", Bool(moe.latent.is_some())),
            ("SHARED", shared),
            (
                "SHARED_GATED",
                Bool(self.traits().feed_forward == Beside::SharedExpert),
            ),
            ("BESIDE", beside),
        ]);
        constants.extend(self.switches(Kind::EXPERTS));
        let scale = moe.scale.unwrap_or(1.0) as f32;
        constants.extend([
            ("WEIGHT_SCALE", Single(scale)),
            ("ROWS_NVFP4", Bool(rounds)),
            ("SCALED", Bool(self.has(Switch::ExpertsScaled))),
            ("ACTIVATION", Number::Activation(self.traits().activation)),
        ]);
        let names = ["moe", "Moe", "Mixture of experts."];
        Some(Shape::of(Kind::EXPERTS, names, constants))
    }

    /// Constants of a shape that switches of the family decide, for shapes of kind `kind`.
    fn switches(&self, kind: Kind) -> impl Iterator<Item = (&'static str, Number)> {
        let constants = self.traits().constants(kind);
        constants.map(|(name, is_on)| (name, Bool(is_on)))
    }

    fn mlp_shape(&self) -> Option<Shape> {
        let mlp = self.model.mlp.as_ref()?;
        let constants = vec![
            ("INTERMEDIATE", Size(self.padded_inner(mlp.intermediate))),
            ("ACTIVATION", Number::Activation(self.traits().activation)),
        ];
        Some(Shape::of(
            Kind::MLP,
            ["mlp", "Mlp", "A gated MLP."],
            constants,
        ))
    }

    fn both_shape(&self) -> Option<Shape> {
        let parts = self.model.feed_forward();
        let shapes = [("Mlp", "Mlp"), ("Experts", "Moe")];
        let constants = shapes.map(|(name, shape)| (name, Number::Shape(shape)));
        let names = ["both", "Both", "An MLP and experts beside each other."];
        let both = parts.contains(&FeedForward::Both);
        both.then(|| Shape::of(Kind::BOTH, names, constants.into()))
    }
}

/// Constants of a shape, with their values in `facts`, the manifest's table `table`.
pub(crate) fn stated(table: &str, facts: &impl Serialize) -> Vec<(&'static str, Number)> {
    let listed = NUMBERS.iter().filter(|number| number.table() == table);
    of_numbers(listed, facts)
}

/// Constants of a shape for the given numbers of a model, with their values in `facts`.
pub(crate) fn of_numbers(
    constants: impl Iterator<Item = &'static numbers::Number>,
    facts: &impl Serialize,
) -> Vec<(&'static str, Number)> {
    let facts = toml::Value::try_from(facts).expect("plain structures always serialise");
    let constant = |number: &'static numbers::Number| {
        let value = facts.get(number.key.rsplit_once('.')?.1);
        let whole = value.and_then(toml::Value::as_integer).unwrap_or(0);
        let real = value.and_then(toml::Value::as_float).unwrap_or(0.0);
        let value = match number.range {
            Range::Whole(_) => Number::Size(whole.unsigned_abs()),
            _ => Number::Single(real as f32),
        };
        Some((number.constant?, value))
    };
    constants.filter_map(constant).collect()
}

/// Rust expression for a layer's shapes.
fn blocks_text(blocks: [Option<&str>; 2]) -> String {
    let text = blocks.map(|shape| match shape {
        Some(shape) => format!("Some(Shape::{shape})"),
        None => "None".to_string(),
    });
    format!("[{}]", text.join(", "))
}

/// Rust expression for the scaling of RoPE; the identity if there is none.
fn scaling(attention: &Attention) -> String {
    let llama3 = attention.rope_scaling.as_ref().map(llama3);
    let scaling = llama3
        .or(attention.yarn.as_ref().map(yarn))
        .or(attention.turned_pairs.map(first));
    scaling.unwrap_or_else(|| "None".to_string())
}

/// Rust expression for a rotation (RoPE) of only the first `pairs` pairs.
fn first(pairs: u64) -> String {
    format!("Some(crate::shapes::Scaling::First({pairs}))")
}

/// Rust expression for Llama 3.1's scaling of RoPE.
fn llama3(scaling: &RopeScaling) -> String {
    let RopeScaling {
        factor,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position: original,
    } = scaling;
    format!(
        "Some(crate::shapes::Scaling::Llama3(crate::shapes::Llama3 {{ factor: {factor:?}, low: \
         {low:?}, high: {high:?}, original: {original}.0 }}))"
    )
}

/// Rust expression for YaRN's scaling of RoPE.
fn yarn(scaling: &Yarn) -> String {
    let Yarn {
        factor,
        beta_fast: fast,
        beta_slow: slow,
        original_max_position: original,
        truncate,
        attention_factor: growth,
        mscale_all_dim: _,
    } = scaling;
    format!(
        "Some(crate::shapes::Scaling::Yarn(crate::shapes::Yarn {{ factor: {factor:?}, fast: \
         {fast:?}, slow: {slow:?}, original: {original}.0, truncate: {truncate}, growth: \
         {growth:?} }}))"
    )
}

/// Factor of attention scores that YaRN adds.
fn score_growth(attention: &Attention) -> f64 {
    let growth = |yarn: &Yarn| {
        let number = yarn.mscale_all_dim.unwrap_or(0.0);
        (0.1 * number * yarn.factor.ln() + 1.0).powi(2)
    };
    attention.yarn.as_ref().map_or(1.0, growth)
}

/// Name in camel case: `RmsNorm` of `rms_norm`.
pub fn camel(name: &str) -> String {
    let words = name
        .split('_')
        .map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::repository;

    const TWO: &str = "h200/random-sliding-1/bf16";

    #[test]
    fn each_attention_shape_has_its_numbers_and_launchers() {
        let rust = repository(TWO).emit_rust(&[]);
        for (name, place, head_dim, window) in
            [("Full", 0, 512, "None"), ("Sliding", 1, 256, "Some(100)")]
        {
            let of = |kind: &str| {
                let head = format!("impl crate::{kind} for {name} {{");
                let body = rust.split_once(&head).expect("an impl of each").1;
                body.split_once("\n}").expect("it ends").0.to_string()
            };
            let shape = of("shapes::Attention");
            assert!(
                shape.contains(&format!("HEAD_DIM: usize = {head_dim};")),
                "{shape}"
            );
            assert!(
                shape.contains(&format!("WINDOW: Option<usize> = {window};")),
                "{shape}"
            );
            let (launchers, snake) = (of("backend::cuda::Launchers"), name.to_lowercase());
            assert!(
                launchers.contains(&format!("INDEX: usize = {place};")),
                "{launchers}"
            );
            for op in ["attend", "attention", "store_kv"] {
                assert!(
                    launchers.contains(&format!("ffi::ops::atlas_{op}_{snake};")),
                    "{op}"
                );
            }
            assert!(rust.contains(&format!("type $shape = $crate::target::{name};")));
        }
    }

    #[test]
    fn device_code_has_a_struct_of_each_attention_shape() {
        let cuda = repository(TWO).emit_cuda();
        let of = |name: &str| {
            let body = cuda.split_once(&format!("struct {name} {{")).unwrap().1;
            body.split_once("};").unwrap().0.to_string()
        };
        assert!(of("Full").contains("kHeadDim = 512;") && of("Full").contains("kWindow = 0;"));
        let sliding = of("Sliding");
        assert!(sliding.contains("kHeadDim = 256;") && sliding.contains("kWindow = 100;"));
        assert!(cuda.contains("struct AttendFull {") && cuda.contains("struct AttendSliding {"));
        assert!(
            cuda.contains("using LinearAddWidths = Widths<1024, 512, 160>;"),
            "{cuda}"
        );
    }

    #[test]
    fn tokens_take_pages_of_layers_over_all_positions_and_windows_those_of_the_others() {
        let target = repository(TWO);
        let (full, sliding) = (2 * 512 * 2, 2 * 2 * 256 * 2);
        assert_eq!(target.kv_bytes_per_token(), full);
        let limits = &target.leaf.limits;
        let limits = [
            limits.sequences,
            target.leaf.steps.prefill,
            target.snapshots(),
        ];
        let [sequences, prefill, snapshots] = limits.map(|limit| limit as usize);
        let window = step::Window::of(100, sequences, prefill, snapshots);
        let window = (window.pages * step::PAGE) as u64 * 2 * sliding;
        assert_eq!(target.window_bytes(), window);
        assert_eq!(
            target.kv_bytes(),
            target.leaf.limits.kv_tokens * full + window
        );
    }

    #[test]
    fn layers_have_the_matrices_of_their_shape() {
        let target = repository(TWO);
        let rows = target.table().into_iter();
        let queries = rows.filter(|row| row.role == crate::table::Role::Query);
        let queries: Vec<_> = queries
            .map(|row| (row.n(), row.sites.iter().count()))
            .collect();
        assert_eq!(queries, [(1024, 1), (512, 2)]);
    }
}
