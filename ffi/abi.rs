//! Reads `ops.toml` and writes the C header of the launchers.
//!
//! Shared by this crate's build script, which makes the Rust externs from the header, and by the
//! pipeline, which compiles the launchers against the same header.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;

/// Ops of the table by name.
pub type Table = BTreeMap<String, Op>;

/// One op of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Formula of the op, one line.
    pub does: String,
    /// Kind of block for each of whose shapes the op has a launcher; absent: one launcher.
    pub over: Option<String>,
    /// Kernels that a hardware or a leaf may choose; the first is the choice where none is named.
    pub kernels: Vec<String>,
    /// Threads of a block of the first kernel.
    pub threads: u64,
    /// Reason for the number of threads.
    pub why: String,
    /// Arguments in order; the stream follows them.
    pub args: Vec<Arg>,
}

/// One argument of an op.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arg {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Type,
    /// Whether an array is read or written; absent for a scalar.
    pub io: Option<Io>,
    /// Dimensions of an array, outermost first; absent for a scalar.
    pub shape: Option<Vec<String>>,
}

/// Element or scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    F32,
    U8,
    U32,
}

/// Direction of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    In,
    Out,
    Inout,
}

impl Type {
    fn c(self) -> &'static str {
        match self {
            Type::F32 => "float",
            Type::U8 => "unsigned char",
            Type::U32 => "unsigned int",
        }
    }
}

impl Op {
    fn check(&self, name: &str) -> Result<(), String> {
        let blank = self.threads == 0 || self.why.trim().is_empty();
        if self.kernels.is_empty() || blank {
            let wanted = "names of kernels, and the threads of the first one and why";
            return Err(format!("ops.toml: {name}: must have {wanted}"));
        }
        self.args.iter().try_for_each(|arg| arg.check(name))
    }
}

impl Arg {
    fn check(&self, op: &str) -> Result<(), String> {
        if self.io.is_some() != self.shape.is_some() {
            let name = &self.name;
            return Err(format!(
                "ops.toml: {op}.{name}: an array has both `io` and `shape`, a scalar neither"
            ));
        }
        Ok(())
    }

    /// The argument as a C parameter.
    pub fn parameter(&self) -> String {
        let (kind, name) = (self.kind.c(), &self.name);
        match self.io {
            Some(Io::In) => format!("const {kind} *{name}"),
            Some(Io::Out | Io::Inout) => format!("{kind} *{name}"),
            None => format!("{kind} {name}"),
        }
    }
}

/// Symbol of a launcher: its op, with the shape where a target has several.
pub fn symbol(launcher: &str) -> String {
    format!("atlas_{launcher}")
}

/// A launcher's C declaration without the closing semicolon.
pub fn declaration(launcher: &str, op: &Op) -> String {
    signature(&symbol(launcher), op)
}

/// The C function `name` with the op's arguments.
fn signature(name: &str, op: &Op) -> String {
    let mut parameters: Vec<String> = op.args.iter().map(Arg::parameter).collect();
    parameters.push("atlas_stream *stream".to_string());
    format!("int {name}({})", parameters.join(", "))
}

/// Parses and checks the table.
///
/// # Errors
/// One line that names the op and the argument.
pub fn parse(text: &str) -> Result<Table, String> {
    let table: Table = toml::from_str(text).map_err(|why| format!("ops.toml: {why}"))?;
    for (name, op) in &table {
        op.check(name)?;
    }
    Ok(table)
}

const HEAD: &str = "\
// Generated from ffi/ops.toml: the launchers of device ops.
#pragma once

// CUDA's CUstream_st, to which cudaStream_t and CUstream point.
typedef struct CUstream_st atlas_stream;

#ifdef __cplusplus
extern \"C\" {
#endif
";

const TAIL: &str = "
#ifdef __cplusplus
}
#endif
";

/// The text of `ops.h`, which declares `launchers`, pairs of op and launcher, and for each op with
/// shapes the type of its launchers. It includes no header, so that it parses on any system.
///
/// # Errors
/// If a launcher is of an op that the table lacks.
pub fn header<'a>(
    table: &Table,
    launchers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<String, String> {
    let mut text = String::from(HEAD);
    let over = table.iter().filter(|(_, row)| row.over.is_some());
    for (op, row) in over {
        let kind = signature(&format!("{}_launcher", symbol(op)), row);
        write!(
            text,
            "\n// Launchers of `{op}`, one for each shape.\ntypedef {kind};\n"
        )
        .expect("writing to a String cannot fail");
    }
    for (op, launcher) in launchers {
        let row = table.get(op);
        let row = row.ok_or_else(|| format!("ffi/ops.toml has no op `{op}`"))?;
        write!(text, "\n// {}\n{};\n", row.does, declaration(launcher, row))
            .expect("writing to a String cannot fail");
    }
    Ok(text + TAIL)
}
