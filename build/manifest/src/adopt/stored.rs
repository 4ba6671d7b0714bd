//! Tensors of a checkpoint by name, compared with those of the model's family: the formats of
//! matrices, and tensors that a checkpoint may have or lack.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::index::Index;
use crate::error::ManifestError;
use crate::table::{Format, Kind, Piece, Purpose, Role, Row, Site};
use crate::target::Target;
use crate::weights::Part;

/// Largest number of names that a problem lists.
const LISTED: usize = 3;

/// A matrix of the family's table, and how the checkpoint stores it at each of its sites.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named {
    pub name: String,
    pub at: Vec<(Site, Format)>,
}

/// Facts of a checkpoint that its tensors' names tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub matrices: Vec<Named>,
    /// Formats whose matrices have input scales in this checkpoint.
    pub input_scales: Vec<Format>,
    pub kv_scales: bool,
    pub tied_head_stored: bool,
}

/// Tensors of one kind, counted: the checkpoint must have all of them, or none.
#[derive(Default)]
struct Tally {
    found: usize,
    possible: usize,
}

impl Tally {
    fn add(&mut self, found: bool) {
        self.found += usize::from(found);
        self.possible += 1;
    }

    /// Whether the checkpoint has the tensors.
    fn has(&self) -> bool {
        self.found > 0
    }

    fn is_part(&self) -> bool {
        self.has() && self.found < self.possible
    }
}

/// A walk over the rows of a table.
struct Walk<'a> {
    index: &'a Index,
    /// Names that no row of the table has matched so far.
    left: BTreeSet<&'a str>,
    missing: Vec<String>,
    /// Tensors whose type or shape differs from the family's, each with both types or shapes.
    other: Vec<String>,
    /// Layers' experts that are stored in several formats.
    uneven: Vec<String>,
    matrices: Vec<Named>,
    inputs: [Tally; Format::ALL.len()],
    kv: Tally,
    head: Tally,
}

/// Compares the tensors that `index` lists with those of the target's family.
///
/// # Errors
/// Tensors that are missing, that nothing describes, or whose formats rules cannot say.
pub(super) fn stored(
    target: &Target,
    index: &Index,
    file: &str,
) -> Result<Stored, Vec<ManifestError>> {
    let mut walk = Walk {
        index,
        left: index.names.iter().map(String::as_str).collect(),
        missing: Vec::new(),
        other: Vec::new(),
        uneven: Vec::new(),
        matrices: Vec::new(),
        inputs: Default::default(),
        kv: Tally::default(),
        head: Tally::default(),
    };
    target.rows().iter().for_each(|row| walk.row(row));
    let problems = walk.problems(file, target.traits().name);
    match problems.is_empty() {
        true => Ok(walk.stored()),
        false => Err(problems),
    }
}

impl Walk<'_> {
    fn row(&mut self, row: &Row) {
        match row.kind {
            Kind::Matrix(_) | Kind::Rounded { .. } => self.matrix(row),
            Kind::Vector { .. } => self.vector(row),
            Kind::Unused => self.unused(row),
        }
    }

    /// Whether the checkpoint has a tensor of this name, which `piece` describes from now on.
    fn take(&mut self, name: &str, piece: &Piece) -> bool {
        self.left.remove(name);
        self.other.extend(self.difference(name, piece));
        self.index.names.contains(name)
    }

    /// Type and shape of a tensor, where they are known and differ from those of `piece`.
    fn difference(&self, name: &str, piece: &Piece) -> Option<String> {
        let (dtype, shape) = self.index.header.as_ref()?.shapes.get(name)?;
        let known = piece.dtypes.iter().any(|each| each.to_string() == *dtype);
        let scalar = piece.shape.is_empty() && shape[..] == [1];
        let (usual, right) = (piece.dtypes[0], &piece.shape);
        let differs = !known || !scalar && shape != right;
        differs.then(|| format!("{name} is {dtype} {shape:?}, not {usual} {right:?}"))
    }

    fn vector(&mut self, row: &Row) {
        let pieces = row.pieces();
        for site in row.sites.iter() {
            let name = row.name_at(site, 0);
            if !self.take(&name, &pieces[0]) {
                self.missing.push(name);
            }
        }
    }

    fn unused(&mut self, row: &Row) {
        let pieces = row.pieces();
        for site in row.sites.iter() {
            let found = self.take(&row.name_at(site, 0), &pieces[0]);
            match row.role {
                Role::TiedHead => self.head.add(found),
                _ if Part::of(row) == Part::Text => self.kv.add(found),
                _ => {}
            }
        }
    }

    /// Takes the tensors of a matrix; a matrix may be split over several rows.
    fn matrix(&mut self, row: &Row) {
        let mut at = Vec::new();
        for site in row.sites.iter() {
            let copies = 0..row.tensors_of_site();
            let formats: Vec<Format> = copies
                .filter_map(|copy| self.copy(row, &row.name_at(site, copy)))
                .collect();
            let Some(&first) = formats.first() else {
                continue;
            };
            at.push((site, first));
            if formats.iter().any(|format| *format != first) {
                let name = row.name.replace("{expert}", "*");
                let one = Row {
                    name: name.into(),
                    ..row.clone()
                };
                self.uneven.push(one.name_at(site, 0));
            }
        }
        let name = row.name.to_string();
        if !self.matrices.iter().any(|known| known.name == name) {
            self.matrices.push(Named { name, at });
        }
    }

    /// Format of the matrix whose tensors begin with `base`; takes these tensors.
    fn copy(&mut self, row: &Row, base: &str) -> Option<Format> {
        let Some(format) = self.format(row, base) else {
            let end = if row.is_stacked() { "" } else { ".weight" };
            self.missing.push(format!("{base}{end}"));
            return None;
        };
        for piece in row.pieces_in(format) {
            let name = format!("{base}{}", piece.suffix);
            let found = self.take(&name, &piece);
            match piece.purpose {
                Purpose::Input => {
                    let of = Format::ALL.iter().zip(&mut self.inputs);
                    of.filter(|(each, _)| **each == format)
                        .for_each(|(_, tally)| tally.add(found));
                }
                _ if !found => self.missing.push(name),
                _ => {}
            }
        }
        Some(format)
    }

    /// The format that the tensors beginning with `base` fit best: most names, then most types and
    /// shapes, then fewest missing tensors; the first among equals.
    fn format(&self, row: &Row, base: &str) -> Option<Format> {
        let rank = |format: Format| {
            let (mut found, mut right, mut needed) = (0, 0, 0);
            let pieces = row.pieces_in(format).into_iter();
            for piece in pieces.filter(|piece| !piece.optional) {
                let name = format!("{base}{}", piece.suffix);
                let has = self.index.names.contains(&name);
                found += usize::from(has);
                right += usize::from(has && self.difference(&name, &piece).is_none());
                needed += 1;
            }
            (found, right, Reverse(needed))
        };
        let ranked = Format::ALL.map(|format| (rank(format), format));
        let some = ranked.into_iter().filter(|((found, ..), _)| *found > 0);
        some.rev()
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, format)| format)
    }

    /// One problem for each kind of difference that was found.
    fn problems(&self, file: &str, family: &str) -> Vec<ManifestError> {
        let left: Vec<String> = self.left.iter().map(|name| name.to_string()).collect();
        let tally = |tally: &Tally, names: &str| match tally.is_part() {
            true => vec![format!("{names} of {} in {}", tally.found, tally.possible)],
            false => Vec::new(),
        };
        let inputs = self.inputs.iter();
        let inputs = inputs.flat_map(|of| tally(of, "scales of inputs"));
        let inputs: Vec<String> = inputs.collect();
        let kv = tally(&self.kv, "k_scale and v_scale");
        let has = format!("are missing; family = {family:?} has them by config.json");
        let none = format!("are not described; family = {family:?} has no such tensors");
        let kinds = [
            (&self.missing, has.as_str()),
            (&left, none.as_str()),
            (
                &self.other,
                "must have the types and shapes that config.json gives",
            ),
            (
                &self.uneven,
                "must have one format for all experts of a layer",
            ),
            (
                &inputs,
                "must be there for all matrices of a format, or for none",
            ),
            (&kv, "must be there for all attention layers, or for none"),
        ];
        let some = kinds.into_iter().filter(|(names, _)| !names.is_empty());
        some.map(|(names, rule)| ManifestError::key(file, self.index.key(), few(names), rule))
            .collect()
    }

    fn stored(self) -> Stored {
        Stored {
            input_scales: {
                let of = Format::ALL.into_iter().zip(&self.inputs);
                of.filter_map(|(format, tally)| tally.has().then_some(format))
                    .collect()
            },
            kv_scales: self.kv.has(),
            tied_head_stored: self.head.has(),
            matrices: self.matrices,
        }
    }
}

/// The first few of `names`, and how many more there are.
fn few(names: &[String]) -> String {
    let first = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
