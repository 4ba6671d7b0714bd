//! The table of tensors, expanded: every matrix and vector of the model, and every tensor that its
//! checkpoint has.
//!
//! Names are canonical: `model.language_model.` of multimodal releases is written `model.` here.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::target::{self, Format, Kind, Piece, Purpose, Role, Row, Shape, Site, TENSORS_TABLE};

/// Multiples to which hidden and inner widths are padded in memory.
const PADS: [usize; 2] = [target::PAD, target::PAD_INNER];

/// The tensors of the target's model, or of its first layers and the tensors around layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    layers: usize,
    /// Whether the layout includes the layer of multi-token prediction.
    predicts: bool,
}

/// A matrix or vector of the model.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    row: &'static Row,
    site: Site,
    copy: usize,
}

/// A tensor that the checkpoint must or may have.
#[derive(Clone, Debug)]
pub struct Expected {
    pub weight: Weight,
    pub piece: Piece,
}

impl Layout {
    /// Layout of the whole model.
    pub fn whole() -> Layout {
        Layout::cut(target::LAYERS)
    }

    /// Layout of the model cut after its first `layers` layers.
    pub fn cut(layers: usize) -> Layout {
        Layout {
            layers,
            predicts: true,
        }
    }

    /// The layout without the layer of multi-token prediction, for uses without drafts.
    pub fn without_prediction(self) -> Layout {
        Layout {
            predicts: false,
            ..self
        }
    }

    /// The layout without the layer of multi-token prediction if none of its tensors exists: some
    /// releases declare such a layer and lack it.
    pub fn found_in(self, is_there: impl Fn(&str) -> bool) -> Layout {
        let less = self.without_prediction();
        let others = less.tensors();
        let own = self.tensors().into_keys();
        match own
            .into_iter()
            .any(|name| !others.contains_key(&name) && is_there(&name))
        {
            true => self,
            false => less,
        }
    }

    /// Number of decoder layers.
    pub fn layers(self) -> usize {
        self.layers
    }

    /// Shapes of the blocks of all layers.
    pub fn blocks(self) -> impl Iterator<Item = Shape> {
        let layers = (0..self.layers).map(Site::Layer);
        let sites = layers.chain(self.predicts.then_some(Site::Prediction));
        sites.flat_map(target::blocks_at).flatten()
    }

    /// Sites that have a tensor of the role.
    pub fn sites(self, role: Role) -> impl Iterator<Item = Site> {
        let rows = self.rows().filter(move |row| row.role == role);
        let sites = rows.flat_map(|row| row.sites.iter());
        sites.filter(move |site| self.holds(*site))
    }

    /// Whether the model has a matrix or vector of this role at the site.
    pub fn has(self, role: Role, site: Site) -> bool {
        self.find(role, site, 0).is_some()
    }

    /// The matrix or vector of a role at a site, where the table has exactly one.
    pub fn weight(self, role: Role, site: Site) -> Weight {
        self.copy(role, site, 0)
    }

    /// Weight of one expert, for a role that has several weights at a site.
    pub fn copy(self, role: Role, site: Site, copy: usize) -> Weight {
        let found = self.find(role, site, copy);
        found.unwrap_or_else(|| panic!("the model has no {role:?} {copy} at {site:?}"))
    }

    fn find(self, role: Role, site: Site, copy: usize) -> Option<Weight> {
        let mut rows = self.rows();
        let row = rows.find(|row| row.role == role && row.sites.contains(site))?;
        let weight = Weight { row, site, copy };
        (copy < row.copies && self.holds(site)).then_some(weight)
    }

    fn rows(self) -> impl Iterator<Item = &'static Row> {
        TENSORS_TABLE.iter()
    }

    fn holds(self, site: Site) -> bool {
        match site {
            Site::Layer(layer) => layer < self.layers,
            Site::Whole => true,
            Site::Prediction => self.predicts,
        }
    }

    /// Every matrix and vector, unused ones included.
    fn weights(self) -> impl Iterator<Item = Weight> {
        self.rows().flat_map(move |row| {
            let sites = row.sites.iter().filter(move |site| self.holds(*site));
            sites.flat_map(move |site| {
                let copies = 0..row.copies;
                copies.map(move |copy| Weight { row, site, copy })
            })
        })
    }

    /// All matrices of the layout, also those that share a tensor.
    pub fn matrices(self) -> impl Iterator<Item = Weight> {
        let is_matrix = |weight: &Weight| weight.row.format().is_some();
        self.weights().filter(is_matrix)
    }

    /// Pairs of formats: that of matrices in the checkpoint, and that to which they are rounded
    /// when read.
    pub fn rounds(self) -> Vec<[Format; 2]> {
        let kinds = self.rows().map(|row| row.kind);
        let mut pairs: Vec<[Format; 2]> = Vec::new();
        for kind in kinds {
            if let Kind::Rounded { stored, resident } = kind
                && !pairs.contains(&[stored, resident])
            {
                pairs.push([stored, resident]);
            }
        }
        pairs
    }

    /// All vectors of the layout.
    pub fn vectors(self) -> impl Iterator<Item = Weight> {
        let is_vector = |weight: &Weight| matches!(weight.row.kind, Kind::Vector { .. });
        self.weights().filter(is_vector)
    }

    /// Every tensor by canonical name; for a tensor that several weights share, the first weight.
    pub fn tensors(self) -> BTreeMap<String, Expected> {
        let mut tensors = BTreeMap::new();
        for weight in self.weights() {
            for piece in weight.row.pieces() {
                let expected = Expected { weight, piece };
                tensors.entry(expected.name()).or_insert(expected);
            }
        }
        tensors
    }
}

impl Expected {
    fn name(&self) -> String {
        self.weight.name() + self.piece.suffix
    }
}

impl Weight {
    pub fn role(self) -> Role {
        self.row.role
    }

    pub fn site(self) -> Site {
        self.site
    }

    pub fn kind(self) -> Kind {
        self.row.kind
    }

    /// Number of rows of a matrix in memory.
    pub fn n(self) -> usize {
        self.row.padded(PADS)[0]
    }

    /// Number of columns of a matrix in memory.
    pub fn k(self) -> usize {
        self.row.padded(PADS)[1]
    }

    /// Numbers of rows and columns of a matrix in the checkpoint; padding in memory is zeros.
    pub fn stored(self) -> [usize; 2] {
        [self.row.n(), self.row.k()]
    }

    /// Number of elements of a vector in memory.
    pub fn elements(self) -> usize {
        self.row.padded_elements(target::PAD)
    }

    /// Format of a matrix in memory.
    pub fn format(self) -> Format {
        let format = self.row.resident();
        format.unwrap_or_else(|| panic!("{} is no matrix", self.name()))
    }

    /// Format of a matrix in the checkpoint.
    pub fn stored_format(self) -> Format {
        self.row.format().unwrap_or_else(|| self.format())
    }

    /// Unique name of the weight: several weights may share a tensor, and so the tensor's name.
    pub fn key(self) -> String {
        let (role, copy) = (self.row.role, self.copy);
        match self.site {
            Site::Whole => format!("{role:?}.{copy}"),
            Site::Layer(layer) => format!("layer.{layer}.{role:?}.{copy}"),
            Site::Prediction => format!("prediction.{role:?}.{copy}"),
        }
    }

    /// Canonical name, without the suffixes of a matrix's tensors.
    pub fn name(self) -> String {
        self.row.name_at(self.site, self.copy)
    }

    /// Canonical name of the tensor for a purpose.
    pub fn tensor(self, purpose: Purpose) -> String {
        let pieces = self.row.pieces();
        let piece = pieces.into_iter().find(|piece| piece.purpose == purpose);
        let piece = piece.unwrap_or_else(|| panic!("{} has no {purpose:?}", self.name()));
        self.name() + piece.suffix
    }

    /// Rows of the tensor that make `rows` of the matrix, in the matrix's order.
    pub fn stretches(self, rows: &Range<usize>) -> Vec<Range<usize>> {
        let base = match self.row.is_stacked() {
            true => self.copy * self.row.shape[1],
            false => 0,
        };
        let (mut found, mut at): (Vec<Range<usize>>, _) = (Vec::new(), 0);
        for run in self.row.runs.iter() {
            for group in 0..run.groups {
                let first = base + group * run.stride + run.first;
                let (start, end) = (rows.start.max(at), rows.end.min(at + run.rows));
                if start < end {
                    join(&mut found, first + (start - at)..first + (end - at));
                }
                at += run.rows;
            }
        }
        found
    }
}

/// Appends a stretch of rows, or extends the last stretch if this one follows it.
fn join(found: &mut Vec<Range<usize>>, stretch: Range<usize>) {
    match found.last_mut() {
        Some(last) if last.end == stretch.start => last.end = stretch.end,
        _ => found.push(stretch),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::target::{Run, Sites};

    /// Queries, keys and two values of each of three heads lie together, two rows each.
    fn interleaved() -> Weight {
        let run = |first, rows| Run {
            groups: 3,
            stride: 8,
            first,
            rows,
        };
        let row = Row {
            role: Role::GdnQkv,
            name: Cow::Borrowed("a"),
            sites: Sites::Whole,
            copies: 1,
            shape: Cow::Owned(vec![24, 16]),
            runs: Cow::Owned(vec![run(0, 2), run(2, 2), run(4, 4)]),
            kind: Kind::Matrix(Format::Bf16),
        };
        Weight {
            row: Box::leak(Box::new(row)),
            site: Site::Whole,
            copy: 0,
        }
    }

    #[test]
    fn rows_of_interleaved_heads_are_gathered_in_the_matrixs_order() {
        let weight = interleaved();
        assert_eq!(weight.n(), 24);
        let rows: Vec<usize> = weight.stretches(&(0..24)).into_iter().flatten().collect();
        let wanted = [0, 1, 8, 9, 16, 17, 2, 3, 10, 11, 18, 19];
        assert_eq!(rows[..12], wanted);
        assert_eq!(rows[12..], [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]);
        for first in 0..24 {
            let part = weight.stretches(&(first..24)).into_iter().flatten();
            assert!(part.eq(rows[first..].iter().copied()), "{first}");
        }
    }

    #[test]
    fn rows_that_follow_each_other_are_one_stretch() {
        let whole = |matrix: &Weight| matrix.row.runs.len() == 1 && matrix.row.runs[0].groups == 1;
        for matrix in Layout::whole().matrices().filter(whole) {
            let stretches = matrix.stretches(&(0..matrix.n()));
            assert_eq!(stretches.len(), 1, "{}", matrix.name());
            assert_eq!(stretches[0].len(), matrix.n());
        }
    }

    #[test]
    fn a_cut_model_lacks_its_last_layers() {
        let (cut, whole) = (Layout::cut(1), Layout::whole());
        assert!(cut.tensors().len() < whole.tensors().len() || target::LAYERS == 1);
        let last = Site::Layer(target::LAYERS - 1);
        assert!(whole.has(Role::InputNorm, last));
        assert!(!cut.has(Role::InputNorm, last) || target::LAYERS == 1);
        assert!(cut.has(Role::Embedding, Site::Whole));
    }
}
