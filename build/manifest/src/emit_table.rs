//! `target.rs`: the table of tensors.

use std::fmt::Write;

use crate::table::{Kind, Row, Run, Sites};
use crate::target::Target;

impl Target {
    /// Writes the constant `TENSORS_TABLE`, for [`Target::emit_rust`].
    pub(crate) fn write_table(&self, out: &mut String) {
        let doc = "Every tensor of the checkpoint, without the vision tower.";
        let _ = writeln!(out, "/// {doc}\npub static TENSORS_TABLE: &[Row] = &[");
        for row in self.table() {
            write_row(out, &row);
        }
        *out += "];\n";
    }
}

fn write_row(out: &mut String, row: &Row) {
    let Row {
        role,
        name,
        sites,
        copies,
        shape,
        runs,
        kind,
    } = row;
    let sites = match sites {
        Sites::Whole => "Sites::Whole".to_string(),
        Sites::Layers(layers) => format!("Sites::Layers(Cow::Borrowed(&{layers:?}))"),
        Sites::Prediction => "Sites::Prediction".to_string(),
    };
    let kind = match kind {
        Kind::Matrix(format) => format!("Kind::Matrix(Format::{format:?})"),
        Kind::Rounded { stored, resident } => format!(
            "Kind::Rounded {{ stored: Format::{stored:?}, resident: Format::{resident:?} }}"
        ),
        Kind::Vector { plus_one } => format!("Kind::Vector {{ plus_one: {plus_one} }}"),
        Kind::Unused => "Kind::Unused".to_string(),
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    let runs = runs.join(", ");
    let _ = writeln!(
        out,
        "    Row {{ role: Role::{role:?}, name: Cow::Borrowed({name:?}), sites: {sites}, copies: \
         {copies}, shape: Cow::Borrowed(&{shape:?}), runs: Cow::Borrowed(&[{runs}]), \
         kind: {kind} }},"
    );
}

fn run(run: &Run) -> String {
    let Run {
        groups,
        stride,
        first,
        rows,
    } = run;
    format!("Run {{ groups: {groups}, stride: {stride}, first: {first}, rows: {rows} }}")
}
