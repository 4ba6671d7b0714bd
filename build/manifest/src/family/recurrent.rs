//! Mixers that keep a state of each sequence: what manifests, configurations and targets have of
//! each, and the tensors of Gated DeltaNet.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::blocks::Place;
use super::{Family, Traits};
use crate::kernels::Kind;
use crate::numbers::Number;
use crate::schema::model::{Mixer, Model};
use crate::shapes::{self, Shape, stated};
use crate::table::{Role, Row};
use crate::target::Target;

/// A mixer that keeps a state of each sequence.
#[derive(Clone, Copy)]
pub struct Recurrent(&'static Recurs);

/// Names of such a mixer in manifests and configurations, and its part in targets.
pub(crate) struct Recurs {
    /// Name in the order of layers.
    pub name: &'static str,
    /// Name in that of configurations.
    pub stated: &'static str,
    /// Name of its shape.
    pub block: &'static str,
    pub shape: fn(&Target) -> Shape,
    /// Numbers of `[mixer]`; none where the manifest has a table of the mixer's name.
    pub numbers: &'static [Number],
    /// Elements that a layer keeps of a sequence: of matrices, and of rows of a convolution.
    pub state: fn(&Model) -> [u64; 2],
    /// A fact, and the columns of the last product that follow from it.
    pub columns: fn(&Model) -> ((&'static str, u64), u64),
}

/// Gated DeltaNet.
pub(super) const GDN: Recurs = Recurs {
    name: "gdn",
    stated: "linear_attention",
    block: "Gdn",
    shape: |target| {
        let gdn = target.model.gdn();
        let doc = "Gated DeltaNet.";
        delta(&GDN, doc, stated("gdn", &gdn), gdn.value_dim)
    },
    numbers: &[],
    state: |model| {
        let gdn = model.gdn();
        let matrices = gdn.value_heads * gdn.key_dim * gdn.value_dim;
        [matrices, gdn.conv_kernel * gdn.qkv_rows()]
    },
    columns: |model| columns("gdn.value_heads", model),
};

/// Mamba-2.
pub(super) const MAMBA: Recurs = Recurs {
    name: "mamba",
    block: "Mamba",
    shape: |target| {
        let (gdn, numbers) = (target.model.gdn(), stated("mamba", &target.model.mamba));
        let group = gdn.z_rows() / gdn.key_heads.max(1);
        delta(&MAMBA, "Mamba-2.", numbers, group)
    },
    columns: |model| columns("mamba.heads", model),
    ..GDN
};

/// The shape of a delta rule whose norms are over so many elements.
fn delta(
    of: &Recurs,
    doc: &'static str,
    numbers: Vec<(&'static str, shapes::Number)>,
    normed: u64,
) -> Shape {
    let is_mamba = of.name == MAMBA.name;
    let rule = [
        ("MAMBA", shapes::Number::Bool(is_mamba)),
        ("NORM", shapes::Number::Size(normed)),
    ];
    Shape {
        doc,
        word: of.name,
        name: of.block,
        kind: Kind::DELTA,
        constants: numbers.into_iter().chain(rule).collect(),
    }
}

fn columns(key: &'static str, model: &Model) -> ((&'static str, u64), u64) {
    let gdn = model.gdn();
    ((key, gdn.value_heads), gdn.z_rows())
}

impl Recurrent {
    #[cfg(test)]
    pub(crate) const GDN: Recurrent = Recurrent(&GDN);
    pub(crate) const MAMBA: Recurrent = Recurrent(&MAMBA);

    pub(crate) const fn traits(self) -> &'static Recurs {
        self.0
    }
}

impl fmt::Debug for Mixer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mixer::Recurrent(recurrent) => recurrent.0.block,
            Mixer::Attention => "Attention",
            Mixer::Sliding => "Sliding",
            Mixer::None => "None",
        })
    }
}

impl PartialEq for Recurrent {
    fn eq(&self, other: &Recurrent) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Recurrent {}

impl Traits {
    /// The recurrent mixer of the family.
    pub(crate) fn recurrent(&self) -> Option<Recurrent> {
        self.recurs.map(Recurrent)
    }
}

impl Mixer {
    /// Whether it keeps a state of each sequence.
    pub(crate) fn recurs(self) -> bool {
        matches!(self, Mixer::Recurrent(_))
    }

    fn name(self) -> &'static str {
        match self {
            Mixer::Recurrent(recurrent) => recurrent.0.name,
            Mixer::Attention => "attention",
            Mixer::Sliding => "sliding",
            Mixer::None => "none",
        }
    }
}

impl Serialize for Mixer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Mixer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Mixer, D::Error> {
        let name = String::deserialize(from)?;
        let families = Family::ALL.iter();
        let recurrent = families.filter_map(|family| family.traits().recurrent());
        let others = [Mixer::Attention, Mixer::Sliding, Mixer::None];
        let mut all = recurrent.map(Mixer::Recurrent).chain(others);
        let found = all.find(|mixer| mixer.name() == name);
        found.ok_or_else(|| Error::custom(format!("unknown mixer `{name}`")))
    }
}

/// Gated DeltaNet with a projection for each of its inputs.
pub(super) fn gdn(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (qkv, z, heads) = (gdn.qkv_rows(), gdn.z_rows(), gdn.value_heads);
    let mut rows = gdn_beside_inputs(target, place);
    rows.extend([
        place.matrix(Role::GdnQkv, "linear_attn.in_proj_qkv", qkv, hidden),
        place.matrix(Role::GdnGate, "linear_attn.in_proj_z", z, hidden),
        place.matrix(Role::GdnBeta, "linear_attn.in_proj_b", heads, hidden),
        place.matrix(Role::GdnDecay, "linear_attn.in_proj_a", heads, hidden),
    ]);
    rows
}

/// Tensors of Gated DeltaNet beside the projections of its inputs.
pub(super) fn gdn_beside_inputs(target: &Target, place: &Place) -> Vec<Row> {
    let (gdn, hidden) = (target.model.gdn(), target.model.hidden);
    let (taps, heads) = ([gdn.qkv_rows(), 1, gdn.conv_kernel], [gdn.value_heads]);
    let vector = |role, name, shape: &[u64]| place.vector(role, name, shape, false);
    vec![
        place.matrix(
            Role::GdnOutput,
            "linear_attn.out_proj",
            hidden,
            gdn.z_rows(),
        ),
        vector(Role::GdnConv, "linear_attn.conv1d.weight", &taps),
        vector(Role::GdnDecayRate, "linear_attn.A_log", &heads),
        vector(Role::GdnDecayBias, "linear_attn.dt_bias", &heads),
        vector(Role::GdnNorm, "linear_attn.norm.weight", &[gdn.value_dim]),
    ]
}
