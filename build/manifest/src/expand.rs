//! The expanded manifest: every fact of a target and every number that follows, as TOML.

use serde::{Serialize, Serializer};

use crate::schema::hardware::Hardware;
use crate::schema::leaf::Leaf;
use crate::schema::model::Model;
use crate::table::Row;
use crate::target::Target;
use crate::weights::{Part, count};

#[derive(Serialize)]
struct Expanded<'a> {
    target: &'a str,
    binary: String,
    serves: bool,
    #[serde(serialize_with = "as_table")]
    derived: [Figure; 14],
    leaf: &'a Leaf,
    hardware: &'a Hardware,
    model: &'a Model,
}

/// Name and value of a figure derived for a target, in bytes or as a count.
type Figure = (&'static str, u64);

impl Target {
    /// The target as TOML: facts, choices, derived figures and a table of weights.
    pub fn expanded(&self) -> String {
        let expanded = Expanded {
            target: &self.name,
            binary: self.binary(),
            serves: self.serves(),
            derived: self.derived(),
            leaf: &self.leaf,
            hardware: &self.hardware,
            model: &self.model,
        };
        let head = toml::to_string(&expanded).expect("plain structures always serialise");
        let rows: String = self.tensors().iter().map(|row| self.row(row)).collect();
        format!("{head}\n[weights]\n{rows}")
    }

    fn derived(&self) -> [Figure; 14] {
        let [state_matrix, state_conv] = self.state_bytes();
        [
            ("parameters_text", self.part_parameters(Part::Text)),
            ("parameters_mtp", self.part_parameters(Part::Mtp)),
            ("parameters_active", self.active_parameters()),
            ("checkpoint_tensors", self.checkpoint_tensors()),
            ("checkpoint_bytes", self.checkpoint_bytes()),
            ("checkpoint_bytes_text", self.part_bytes(Part::Text)),
            ("checkpoint_bytes_mtp", self.part_bytes(Part::Mtp)),
            ("weight_bytes_per_token", self.weight_bytes_per_token()),
            ("kv_bytes_per_token", self.kv_bytes_per_token()),
            ("kv_pages", self.kv_pages()),
            ("kv_bytes", self.kv_bytes()),
            ("state_matrix_bytes_per_sequence", state_matrix),
            ("state_conv_bytes_per_sequence", state_conv),
            ("resident_bytes", self.resident_bytes()),
        ]
    }

    /// A line of the expanded manifest for a row of the table.
    fn row(&self, row: &Row) -> String {
        let (name, shape, count) = (&row.name, &row.shape, count(row));
        let format = match (row.format(), row.resident()) {
            (Some(stored), Some(resident)) if stored != resident => {
                format!(
                    "{}, resident = {}",
                    toml_name(&stored),
                    toml_name(&resident)
                )
            }
            (Some(stored), _) => toml_name(&stored),
            (None, _) => "\"vector\"".to_string(),
        };
        let (stored, read) = (self.bytes_stored(row), self.bytes_read(row));
        format!(
            "\"{name}\" = {{ count = {count}, shape = {shape:?}, format = {format}, \
             bytes_stored = {stored}, bytes_read_per_token = {read} }}\n"
        )
    }
}

fn as_table<S: Serializer>(figures: &[Figure], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.iter().copied())
}

/// Name of a unit variant in manifests.
pub(crate) fn toml_name(variant: &impl Serialize) -> String {
    let value = toml::Value::try_from(variant).expect("a unit variant is a string");
    value.to_string()
}
