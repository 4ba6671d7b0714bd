//! Mixers with a recurrent state for each sequence: keys in manifests and configurations, sizes,
//! and the tensors of Gated DeltaNet.

use std::fmt;

use super::Family;
use super::blocks::Place;
use crate::kernels::Kind;
use crate::numbers::Number;
use crate::schema::model::{Mixer, Model};
use crate::shapes::{self, Shape, stated};
use crate::table::{Role, Row};
use crate::target::Target;

/// A mixer with a recurrent state for each sequence.
pub struct Recurs {
    /// Name of the mixer in a manifest's order of layers.
    pub(crate) name: &'static str,
    /// Name of the mixer in a configuration's order of layers.
    pub(crate) stated: &'static str,
    /// Name of the mixer's shape.
    pub(crate) block: &'static str,
    pub(crate) shape: fn(&Target) -> Shape,
    /// Numbers of the table `[mixer]`; none where the mixer has a table of its own name.
    pub(crate) numbers: &'static [Number],
    /// Elements of a sequence's state in one layer: of matrices, and of convolution tails.
    pub(crate) state: fn(&Model) -> [u64; 2],
    /// Key and value of the fact that decides the output projection's columns; number of columns.
    pub(crate) columns: fn(&Model) -> ((&'static str, u64), u64),
}

/// Gated DeltaNet.
pub(crate) const GDN: Recurs = Recurs {
    name: "gdn",
    stated: "linear_attention",
    block: "Gdn",
    shape: delta,
    numbers: &[],
    state: |model| {
        let gdn = model.gdn();
        let matrices = gdn.value_heads * gdn.key_dim * gdn.value_dim;
        [matrices, gdn.conv_kernel * gdn.qkv_rows()]
    },
    columns: |model| columns("gdn.value_heads", model),
};

/// Mamba-2.
pub(crate) const MAMBA: Recurs = Recurs {
    name: "mamba",
    block: "Mamba",
    columns: |model| columns("mamba.heads", model),
    ..GDN
};

/// Shape of the recurrent mixer, Gated DeltaNet or Mamba-2.
fn delta(target: &Target) -> Shape {
    let (gdn, mamba) = (target.model.gdn(), target.model.mamba.as_ref());
    let (doc, of, normed, numbers) = match mamba {
        None => ("Gated DeltaNet.", GDN, gdn.value_dim, stated("gdn", &gdn)),
        Some(facts) => {
            let group = gdn.z_rows() / gdn.key_heads;
            ("Mamba-2.", MAMBA, group, stated("mamba", facts))
        }
    };
    let rule = [
        ("MAMBA", shapes::Number::Bool(mamba.is_some())),
        ("NORM", shapes::Number::Size(normed)),
    ];
    let constants = numbers.into_iter().chain(rule).collect();
    Shape::of(Kind::DELTA, [of.name, of.block, doc], constants)
}

fn columns(key: &'static str, model: &Model) -> ((&'static str, u64), u64) {
    let gdn = model.gdn();
    ((key, gdn.value_heads), gdn.z_rows())
}

impl PartialEq for Recurs {
    fn eq(&self, other: &Recurs) -> bool {
        self.name == other.name
    }
}

impl Mixer {
    /// Whether the mixer has a recurrent state for each sequence.
    pub(crate) fn recurs(self) -> bool {
        matches!(self, Mixer::Recurrent(_))
    }
}

impl From<Mixer> for &'static str {
    fn from(mixer: Mixer) -> &'static str {
        match mixer {
            Mixer::Recurrent(recurs) => recurs.name,
            Mixer::Attention => "attention",
            Mixer::Sliding => "sliding",
            Mixer::None => "none",
        }
    }
}

impl TryFrom<String> for Mixer {
    type Error = String;

    fn try_from(name: String) -> Result<Mixer, String> {
        let families = Family::ALL.iter();
        let recurrent = families.filter_map(|family| family.traits().recurs);
        let others = [Mixer::Attention, Mixer::Sliding, Mixer::None];
        let mut all = recurrent.map(Mixer::Recurrent).chain(others);
        let found = all.find(|mixer| name == <&str>::from(*mixer));
        found.ok_or_else(|| format!("unknown mixer `{name}`"))
    }
}

impl fmt::Debug for Mixer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((*self).into())
    }
}

/// Gated DeltaNet with one projection for each input.
pub(super) fn gdn(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (qkv, z, heads) = (gdn.qkv_rows(), gdn.z_rows(), gdn.value_heads);
    let block = place.within("linear_attn");
    let mut rows = gdn_beside_inputs(target, place);
    rows.extend([
        block.matrix(Role::GdnQkv, "in_proj_qkv", qkv, hidden),
        block.matrix(Role::GdnGate, "in_proj_z", z, hidden),
        block.matrix(Role::GdnBeta, "in_proj_b", heads, hidden),
        block.matrix(Role::GdnDecay, "in_proj_a", heads, hidden),
    ]);
    rows
}

/// Tensors of Gated DeltaNet other than input projections.
pub(super) fn gdn_beside_inputs(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (taps, heads) = ([gdn.qkv_rows(), 1, gdn.conv_kernel], [gdn.value_heads]);
    let block = place.within("linear_attn");
    vec![
        block.matrix(Role::GdnOutput, "out_proj", hidden, gdn.z_rows()),
        block.vector(Role::GdnConv, "conv1d.weight", &taps),
        block.vector(Role::GdnDecayRate, "A_log", &heads),
        block.vector(Role::GdnDecayBias, "dt_bias", &heads),
        block.vector(Role::GdnNorm, "norm.weight", &[gdn.value_dim]),
    ]
}
