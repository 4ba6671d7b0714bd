//! A decoder of the target's family: its weights and caches, and the forward pass.

use super::blocks::{self, AnyBlock, Loader, Memory, Norms, Pass, Runs, Stream};
use super::pools::Pools;
use crate::ops::{Batch, BesideNorms, ENDS_MAX, Ends, Hidden, RANKED, ROWS_MAX, VERIFIED_MAX, cap};
use crate::target::{DRAFT_IDS, HIDDEN, MAX_SEQUENCES, Role, Shape, Site, VOCAB, blocks_at};
use crate::weights::{Checkpoint, Layout, WeightsError};
use step::executor::DeviceError;

/// Weights of a model, and each layer's part of caches and states.
pub struct Model<B: Runs> {
    pub embed: B::Matrix,
    pub layers: Vec<Layer<B>>,
    pub norm: B::Vector,
    /// Matrix of the head; none when the embedding is the head.
    pub head: Option<B::Matrix>,
    pub prediction: Option<Prediction<B>>,
}

/// Layer of a mixer and a feed-forward block, or of one of the two alone.
pub struct Layer<B: Runs> {
    pub mixer: Option<Normed<B>>,
    pub feed_forward: Option<Normed<B>>,
}

/// A block and the norms around it.
pub struct Normed<B: Runs> {
    pub norms: Norms<B::Vector>,
    shape: Shape,
    pub block: AnyBlock<B>,
}

/// Multi-token-prediction (MTP) layer, with the norms and the matrix before and after it.
pub struct Prediction<B: Runs> {
    norm_embedding: B::Vector,
    norm_hidden: B::Vector,
    /// Matrix `[HIDDEN, 2 HIDDEN]` for the normed embedding and, after it, normed hidden state.
    fusion: B::Matrix,
    layer: Layer<B>,
    norm: B::Vector,
}

/// Workspace of a step, reused from step to step.
pub struct Scratch<B: Runs> {
    pub stream: Stream<B>,
    blocks: blocks::Scratch<B>,
    /// Shape of the feed-forward block that ran last.
    fed: Option<Shape>,
    /// Workspace of predictions, if the model has an MTP layer.
    pub predicted: Option<Predicted<B>>,
    /// Normed hidden states of the wanted rows.
    pub last: B::Tensor,
    /// Logits of the wanted rows.
    pub logits: B::Tensor,
    /// Ranking of each row of `logits`, if the backend ranks rows.
    pub ranked: B::Tensor,
}

/// Workspace of a prediction. The host may still read the workspace of the step meanwhile.
pub struct Predicted<B: Runs> {
    /// Normed embeddings of every row; the same embeddings beside normed hidden states.
    pair: [B::Tensor; 2],
    /// Normed hidden states of the wanted rows.
    pub last: B::Tensor,
    /// Logits of the wanted rows.
    pub logits: B::Tensor,
    /// Ranking of each row of `logits`, if the backend ranks rows.
    pub ranked: B::Tensor,
}

impl<B: Runs> Predicted<B> {
    fn new(ops: &B) -> Result<Predicted<B>, DeviceError> {
        let [y, pair] = PAIR_WIDTHS.map(|width| ops.tensor(ROWS_MAX, width));
        let [last, logits, ranked] = END_WIDTHS.map(|width| ops.tensor(PREDICTED_MAX, width));
        Ok(Predicted {
            pair: [y?, pair?],
            last: last?,
            logits: logits?,
            ranked: ranked?,
        })
    }
}

/// Most rows whose logits a prediction gives: one a sequence, or all of a recorded step.
const PREDICTED_MAX: usize = if MAX_SEQUENCES < VERIFIED_MAX {
    VERIFIED_MAX
} else {
    MAX_SEQUENCES
};
/// Widths of `Predicted::pair`.
const PAIR_WIDTHS: [usize; 2] = [HIDDEN, 2 * HIDDEN];
/// Widths of tensors for the wanted rows: `last`, `logits` and `ranked`.
const END_WIDTHS: [usize; 3] = [HIDDEN, VOCAB, RANKED];

/// Elements of each tensor of the largest step.
pub fn activations<B: Runs>(layout: Layout) -> impl Iterator<Item = usize> {
    let pair = PAIR_WIDTHS.into_iter().filter(move |_| predicts(layout));
    let stream = Stream::<B>::widths(AnyBlock::<B>::MIXED);
    let rows = blocks::Scratch::<B>::widths().chain(stream).chain(pair);
    let ends = END_WIDTHS.map(|width| ENDS_MAX * width);
    let predicted = END_WIDTHS.map(|width| PREDICTED_MAX * width);
    let predicted = predicted.into_iter().filter(move |_| predicts(layout));
    let rows = rows.map(|width| ROWS_MAX * width);
    rows.chain(ends).chain(predicted)
}

/// Whether a model has a multi-token-prediction layer.
fn predicts(layout: Layout) -> bool {
    layout.has(Role::Fusion, Site::Prediction)
}

impl<B: Runs> Scratch<B> {
    /// Workspace for the largest step of a model with these weights.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(ops: &B, layout: Layout) -> Result<Scratch<B>, DeviceError> {
        let [last, logits, ranked] = END_WIDTHS.map(|width| ops.tensor(ENDS_MAX, width));
        Ok(Scratch {
            stream: Stream::new(ops, ROWS_MAX, AnyBlock::<B>::MIXED)?,
            blocks: blocks::Scratch::new(ops, ROWS_MAX)?,
            fed: None,
            predicted: predicts(layout).then(|| Predicted::new(ops)).transpose()?,
            last: last?,
            logits: logits?,
            ranked: ranked?,
        })
    }

    /// Logits of the router of the layer that ran last, `[rows, ROUTER_LOGITS]`, if there is one.
    pub fn router(&self) -> Option<&B::Tensor> {
        self.fed?.router(&self.blocks)
    }
}

/// Reads every weight of the checkpoint onto the backend, with caches and states in `pools`.
///
/// # Errors
/// `WeightsError` naming the file and tensor that cannot be used.
pub fn load<B: Runs>(
    ops: &mut B,
    checkpoint: &Checkpoint,
    pools: &mut Pools<B::Pool>,
) -> Result<Model<B>, WeightsError> {
    let mut loader = Loader {
        ops,
        checkpoint,
        memory: Memory::Pooled(pools),
        site: Site::Whole,
    };
    let layers = 0..checkpoint.layout().layers();
    let layers = layers.map(|layer| Layer::load(loader.at(Site::Layer(layer))));
    let layers = layers.collect::<Result<_, _>>()?;
    let prediction = loader.at(Site::Prediction).has(Role::Fusion);
    let prediction = prediction
        .then(|| Prediction::load(&mut loader))
        .transpose()?;
    let whole = loader.at(Site::Whole);
    let head = whole.has(Role::Head).then(|| whole.matrix(Role::Head));
    Ok(Model {
        head: head.transpose()?,
        embed: whole.matrix(Role::Embedding)?,
        norm: whole.vector(Role::FinalNorm)?,
        layers,
        prediction,
    })
}

impl<B: Runs> Model<B> {
    /// Matrix that projects hidden states to logits.
    pub fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

impl<B: Runs> Layer<B> {
    /// Reads the layer of the loader's site.
    ///
    /// # Errors
    /// Errors of the loader.
    pub fn load(loader: &mut Loader<'_, B>) -> Result<Layer<B>, WeightsError> {
        let [mixer, feed_forward] = blocks_at(loader.site);
        let mut normed = |block: Option<Shape>, norms| {
            let load = |shape| Normed::load(loader, norms, shape);
            block.map(load).transpose()
        };
        Ok(Layer {
            mixer: normed(mixer, [Role::InputNorm, Role::MixedNorm])?,
            feed_forward: normed(feed_forward, [Role::PostNorm, Role::FedNorm])?,
        })
    }

    /// Adds the mixer's output to the residual stream.
    pub fn mix(&mut self, ops: &mut B, s: &mut Scratch<B>, batch: &Batch) {
        if let Some(mixer) = &mut self.mixer {
            mixer.run(ops, s, batch);
        }
    }

    /// Adds the feed-forward block's output to the residual stream.
    pub fn feed(&mut self, ops: &mut B, s: &mut Scratch<B>, batch: &Batch) {
        s.fed = self.feed_forward.as_ref().map(|fed| fed.shape);
        if let Some(fed) = &mut self.feed_forward {
            fed.run(ops, s, batch);
        }
    }
}

impl<B: Runs> Normed<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        [before, after]: [Role; 2],
        shape: Shape,
    ) -> Result<Normed<B>, WeightsError> {
        let after = loader.has(after).then(|| -> Result<_, WeightsError> {
            let scales = after == Role::FedNorm && loader.has(Role::LayerScalar);
            let factor = scales
                .then(|| loader.scalar(Role::LayerScalar))
                .transpose()?;
            Ok((loader.vector(after)?, factor.unwrap_or(1.0)))
        });
        Ok(Normed {
            norms: Norms {
                after: after.transpose()?,
                before: loader.vector(before)?,
            },
            shape,
            block: AnyBlock::load(shape, loader)?,
        })
    }

    fn run(&mut self, ops: &mut B, s: &mut Scratch<B>, batch: &Batch) {
        let pass = Pass {
            norms: &self.norms,
            stream: &mut s.stream,
            batch,
        };
        self.block.run(ops, pass, &mut s.blocks);
    }
}

impl<B: Runs> Prediction<B> {
    fn load(loader: &mut Loader<'_, B>) -> Result<Prediction<B>, WeightsError> {
        Ok(Prediction {
            norm_embedding: loader.vector(Role::EmbeddingNorm)?,
            norm_hidden: loader.vector(Role::HiddenNorm)?,
            fusion: loader.matrix(Role::Fusion)?,
            layer: Layer::load(loader)?,
            norm: loader.vector(Role::FinalNorm)?,
        })
    }
}

/// Point of the forward pass at which `forward_watched` calls its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    Embedding,
    Mixer,
    /// After a feed-forward block; the logits of a router are still in `Scratch::router`.
    FeedForward,
}

/// Runs the step of `batch`: updates caches and states, leaves the normed hidden state of every
/// row in `s.stream.x`, the logits of the wanted rows in `s.logits [wanted, VOCAB]`, and their
/// ranking in `s.ranked`, if the backend ranks them.
pub fn forward<B: Runs>(ops: &mut B, model: &mut Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    forward_watched(ops, model, s, batch, |_, _, _| {});
}

/// [`forward`] that calls `after` at each hook point; hidden states are in `s.stream.residual`.
pub fn forward_watched<B: Runs>(
    ops: &mut B,
    model: &mut Model<B>,
    s: &mut Scratch<B>,
    batch: &Batch,
    mut after: impl FnMut(&mut B, &Scratch<B>, HookPoint),
) {
    ops.embed(&model.embed, batch, &mut s.stream.residual);
    after(ops, s, HookPoint::Embedding);
    for layer in &mut model.layers {
        layer.mix(ops, s, batch);
        after(ops, s, HookPoint::Mixer);
        layer.feed(ops, s, batch);
        after(ops, s, HookPoint::FeedForward);
    }
    let ends = Ends {
        hidden: Hidden::OfRows,
        x: &mut s.stream.x,
        last: &mut s.last,
        ids: VOCAB,
        logits: &mut s.logits,
        ranked: Some(&mut s.ranked),
    };
    ops.lm_head(&s.stream.residual, &model.norm, model.head(), batch, ends);
}

/// Runs the MTP layer on the token after each row (`batch.tokens`) and on hidden states, by `from`:
/// of each row, as `forward` left them in `s.stream.x`, or of the wanted rows, as a prediction left
/// them in `s.predicted.last`. Leaves in `s.predicted`, for the wanted rows, new hidden states and
/// the logits of the token after next, of the ids that are drafted; and the draft in the batch of
/// drafts.
pub fn draft<B: Runs>(
    ops: &mut B,
    model: &mut Model<B>,
    s: &mut Scratch<B>,
    batch: &Batch,
    from: Hidden,
) {
    let prediction = model.prediction.as_mut();
    let prediction = prediction.expect("the target has a multi-token-prediction layer");
    if from == Hidden::OfRows {
        ops.accept(&s.ranked, batch);
    }
    let predicted = s.predicted.as_mut().expect("a prediction has memory");
    let [y, pair] = &mut predicted.pair;
    let Stream { residual, x, .. } = &mut s.stream;
    let hidden = match from {
        Hidden::OfRows => &*x,
        Hidden::OfWanted => &predicted.last,
    };
    let norms = BesideNorms {
        embedding: &prediction.norm_embedding,
        hidden: &prediction.norm_hidden,
    };
    let workspace = [y, &mut *residual];
    ops.embed_beside(&model.embed, hidden, norms, batch, workspace, pair);
    ops.linear(pair, &prediction.fusion, residual);
    prediction.layer.mix(ops, s, batch);
    prediction.layer.feed(ops, s, batch);
    let prediction = model.prediction.as_ref().expect("it has run");
    let predicted = s.predicted.as_mut().expect("a prediction has memory");
    let ends = Ends {
        hidden: Hidden::OfWanted,
        x: &mut s.stream.x,
        last: &mut predicted.last,
        ids: DRAFT_IDS,
        logits: &mut predicted.logits,
        ranked: None,
    };
    let residual = &s.stream.residual;
    ops.lm_head(residual, &prediction.norm, model.head(), batch, ends);
    ops.draft(&predicted.logits, from == Hidden::OfWanted);
}

/// Ranks the logits that a prediction left in `s.predicted.logits`, if the backend ranks rows.
pub fn rank_prediction<B: Runs>(ops: &mut B, s: &mut Scratch<B>) {
    let predicted = s.predicted.as_mut().expect("a prediction has memory");
    if B::RANKS {
        ops.top_k(&predicted.logits, &mut predicted.ranked);
    }
}

/// Leaves the logits of the wanted rows of `s.stream.x`, the hidden states that `forward` left, in
/// `s.logits [wanted, VOCAB]`.
pub fn logits<B: Runs>(ops: &mut B, model: &Model<B>, s: &mut Scratch<B>, batch: &Batch) {
    ops.select(&s.stream.x, batch, &mut s.last);
    ops.linear(&s.last, model.head(), &mut s.logits);
    cap(ops, &mut s.logits);
}
