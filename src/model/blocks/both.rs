//! An MLP and experts beside each other: both read the residual stream, each has norms of its own,
//! and the sum of their outputs is normed before it is added.

use super::experts::{self, Experts};
use super::mlp::{self, Mlp};
use super::{Block, Loader, Pass, Stream};
use crate::ops;
use crate::shapes;
use crate::target::{HIDDEN, Role};
use crate::weights::WeightsError;
use step::executor::DeviceError;

/// The MLP and the experts of one layer; `Norms::before` is that of the MLP.
pub struct Both<B: ops::Both<S>, S: shapes::Both> {
    mlp: Mlp<B, S::Mlp>,
    experts: Experts<B, S::Experts>,
    /// Norm of the MLP's output.
    of_mlp: B::Vector,
    /// Norm before the router.
    router: B::Vector,
    /// Norms of the input and the output of the experts.
    around: [B::Vector; 2],
    /// Weights of a norm that gives zeros, which experts add to.
    zeros: B::Vector,
}

/// Workspace of a step for an MLP and experts.
pub struct Scratch<B: ops::Both<S>, S: shapes::Both> {
    mlp: mlp::Scratch<B::Tensor>,
    experts: experts::Scratch<B, S::Experts>,
    /// Outputs of the experts.
    given: B::Tensor,
    /// Sum of both outputs.
    sum: B::Tensor,
}

impl<B: ops::Both<S>, S: shapes::Both> Block<B> for Both<B, S> {
    type Scratch = Scratch<B, S>;

    const WIDTHS: &'static [usize] = &[
        <S::Mlp as shapes::Mlp>::INTERMEDIATE,
        <S::Mlp as shapes::Mlp>::INTERMEDIATE,
        <S::Mlp as shapes::Mlp>::INTERMEDIATE,
        <S::Experts as shapes::Experts>::LOGITS,
        HIDDEN,
        HIDDEN,
    ];

    const ZEROS: usize = HIDDEN;

    fn load(loader: &mut Loader<'_, B>) -> Result<Self, WeightsError> {
        Ok(Both {
            mlp: Block::load(loader)?,
            experts: Block::load(loader)?,
            of_mlp: loader.vector(Role::MlpNorm)?,
            router: loader.vector(Role::RouterNorm)?,
            around: [
                loader.vector(Role::ExpertsInputNorm)?,
                loader.vector(Role::ExpertsNorm)?,
            ],
            zeros: loader.ops.zeros(Self::ZEROS)?,
        })
    }

    fn scratch(ops: &B, rows: usize) -> Result<Self::Scratch, DeviceError> {
        Ok(Scratch {
            mlp: <Mlp<B, S::Mlp> as Block<B>>::scratch(ops, rows)?,
            experts: <Experts<B, S::Experts> as Block<B>>::scratch(ops, rows)?,
            given: ops.tensor(rows, HIDDEN)?,
            sum: ops.tensor(rows, HIDDEN)?,
        })
    }

    fn run(&mut self, ops: &mut B, pass: Pass<'_, B>, own: &mut Self::Scratch) {
        let norms = pass.norms;
        let Stream { residual, x, .. } = pass.stream;
        let Scratch { given, sum, .. } = own;
        let [before, after] = &self.around;
        self.mlp
            .visit(ops, residual, &norms.before, &mut own.mlp, x);
        ops.rms_norm(x, &self.of_mlp, sum, None);
        self.experts
            .choose(ops, residual, &self.router, x, &mut own.experts);
        ops.rms_norm(residual, before, x, None);
        ops.rms_norm(residual, &self.zeros, given, None);
        ops.gather_add(given, |ops, sum| {
            self.experts.visit(ops, x, &mut own.experts, sum);
        });
        ops.rms_norm(given, after, sum, Some(1.0));
        let after = norms.after.as_ref();
        let (after, factor) = after.expect("a family with both norms the sum");
        ops.rms_norm(sum, after, residual, Some(*factor));
    }

    fn router(own: &Self::Scratch) -> Option<&B::Tensor> {
        <Experts<B, S::Experts> as Block<B>>::router(&own.experts)
    }
}
