use std::sync::Arc;

use super::*;
#[cfg(all(has = "experts", not(has = "both")))]
use model::AnyBlock;
use model::Plan;
use model::backend::cpu::Cpu;
#[cfg(all(has = "experts", not(has = "both")))]
use model::backend::cpu::Matrix;
use model::weights;

/// Share of its size that a part is off by.
const PERCENT: f32 = 1.01;

/// In no order, so that the rows visit many experts.
fn tokens(count: usize) -> Vec<TokenId> {
    (0..count)
        .map(|at| (at * 7919 % VOCAB) as TokenId)
        .collect()
}

/// Whether the target is one whose model is run in a test.
fn is_small() -> bool {
    HIDDEN * LAYERS <= 1024
}

/// Makes what follows a norm a percent too large.
fn scale(norm: &mut [f32]) {
    norm.iter_mut().for_each(|w| *w *= PERCENT);
}

/// The first layer from `from` on with certain blocks.
fn layer_from(from: usize, is: impl Fn([Option<Shape>; 2]) -> bool) -> usize {
    let mut layers = from..LAYERS;
    let found = layers.find(|&layer| is(blocks_at(Site::Layer(layer))));
    found.expect("a layer has such blocks")
}

/// Weights of the norm before a layer's mixer.
fn mixer_norm(layer: &mut Layer<Cpu>) -> &mut Vec<f32> {
    &mut layer
        .mixer
        .as_mut()
        .expect("the layer has a mixer")
        .norms
        .before
}

/// `down` of a layer's experts.
#[cfg(all(has = "experts", not(has = "both")))]
fn experts_down(layer: &mut Layer<Cpu>) -> &mut [Matrix] {
    match layer.feed_forward.as_mut().map(|normed| &mut normed.block) {
        Some(AnyBlock::Moe(moe)) => &mut moe.experts.down,
        _ => panic!("the layer has experts"),
    }
}

/// Compares a model one of whose layers `spoil` has changed.
fn compared(spoil: impl FnOnce(&mut [Layer<Cpu>])) -> (OracleReport, Vec<LayerFinding>) {
    let checkpoint = weights::open_seeded(Arc::default());
    let plan = Plan::largest::<Cpu>(checkpoint.layout());
    let mut runner = Runner::load(Cpu::new(2), &checkpoint, &plan).unwrap();
    spoil(runner.layers());
    let mut layers = Vec::new();
    let on_layer = |layer: &LayerFinding, _| layers.push(*layer);
    let report = oracle(&mut runner, Cpu::new(2), &checkpoint, &tokens(24), on_layer).unwrap();
    (report, layers)
}

/// The only layer that failed.
fn failed(layers: &[LayerFinding]) -> LayerFinding {
    let mut failed = layers.iter().filter(|layer| !layer.passed());
    let found = *failed.next().expect("a layer fails");
    assert!(failed.next().is_none());
    found
}

#[test]
fn the_cpu_agrees_with_itself() {
    if is_small() {
        let (report, layers) = compared(|_| {});
        assert!(report.passed(), "{report}");
        assert_eq!((layers.len(), report.same_top), (LAYERS, report.tokens));
        assert!(
            report.kld.abs() < 1e-9 && report.nats[0] == report.nats[1],
            "{report}"
        );
        assert!(
            layers
                .iter()
                .all(|layer| layer.chain.largest == 0.0 && layer.ties == 0)
        );
    }
}

#[test]
fn a_mixer_that_is_off_by_a_percent_is_named() {
    if is_small() {
        let spoiled = layer_from(1, |[mixer, _]| mixer.is_some());
        let (report, layers) = compared(|layers| scale(mixer_norm(&mut layers[spoiled])));
        let layer = failed(&layers);
        assert!(!report.passed() && layer.layer == spoiled, "{report}");
        assert!(!layer.mixer.within() && layer.experts.within(), "{layer}");
    }
}

#[cfg(all(has = "experts", not(has = "both")))]
#[test]
fn experts_that_are_off_by_a_percent_are_named() {
    if is_small() {
        let spoiled = layer_from(2, |[_, part]| part == Some(Shape::Moe));
        let (report, layers) = compared(|layers| {
            let down = experts_down(&mut layers[spoiled]);
            down.iter_mut().for_each(|matrix| *matrix = scaled(matrix));
        });
        let layer = failed(&layers);
        assert!(!report.passed() && layer.layer == spoiled, "{report}");
        assert!(layer.mixer.within() && !layer.experts.within(), "{layer}");
    }
}

#[cfg(all(has = "experts", not(has = "both")))]
fn scaled(matrix: &Matrix) -> Matrix {
    let mut row = vec![0.0; matrix.k];
    let rows = (0..matrix.n).flat_map(|n| {
        matrix.row(n, &mut row);
        row.iter().map(|w| w * PERCENT).collect::<Vec<_>>()
    });
    Matrix::new(matrix.k, &[rows.collect()])
}

#[cfg(all(has = "experts", not(has = "both")))]
#[test]
fn swapped_experts_are_found() {
    if is_small() {
        let spoiled = layer_from(0, |[_, part]| part == Some(Shape::Moe));
        let (report, layers) =
            compared(|layers| experts_down(&mut layers[spoiled])[..ROUTED[0]].rotate_left(1));
        let layer = failed(&layers);
        assert!(!report.passed() && layer.layer == spoiled, "{report}");
        assert!(layer.experts.largest > 10.0 * ROW_WITHIN, "{layer}");
    }
}

#[test]
fn a_missing_norm_is_found() {
    if is_small() {
        let (report, layers) = compared(|layers| mixer_norm(&mut layers[0]).fill(0.0));
        assert!(
            !report.passed() && !failed(&layers).mixer.within(),
            "{report}"
        );
    }
}

#[test]
fn an_attention_that_is_wrong_is_found_over_the_longer_text_too() {
    if is_small() {
        let spoil = |layers: &mut [Layer<Cpu>]| {
            let attends = |index: &usize| Layout::whole().has(Role::Key, Site::Layer(*index));
            let first = (0..LAYERS).find(attends).expect("a layer attends");
            scale(mixer_norm(&mut layers[first]));
        };
        let (report, layers) = compared(spoil);
        let layer = failed(&layers);
        assert!(!report.passed() && !layer.mixer.within(), "{report}");
    }
}

#[test]
fn an_error_that_is_no_number_is_within_nothing() {
    let errors = Errors::of(&[1e-4, f64::NAN, 1e-4]);
    assert!(!errors.within() && errors.largest.is_nan());
    let mut rows = vec![1e-4; 10 * AVERAGED];
    rows[9 * AVERAGED..].fill(1.5 * MEAN_WITHIN);
    assert!(!Errors::of(&rows).within(), "the last rows alone are wrong");
    assert!(
        !Errors {
            mean: 1e-4,
            largest: 2.0 * ROW_WITHIN
        }
        .within()
    );
    assert!(Errors::of(&[1e-4, 2e-4]).within());
}
