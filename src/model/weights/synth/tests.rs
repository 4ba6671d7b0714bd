//! Written checkpoints against the loader, and the model that it makes.

use std::sync::Arc;

use super::super::{Checkpoint, Weight, WeightsError, open_layers, open_seeded};
use host::testing::Folder;
use std::fs;

use super::*;
use crate::backend::cpu::Cpu;
use crate::target::{LAYERS, PAGE, Site, VOCAB, contradiction};
use crate::{Plan, Runner};
use step::executor::{Executor, PageId, SeqRows, Slot, TokenId};

fn written(layers: usize, threads: usize) -> Folder {
    let folder = Folder::new();
    write(&folder.0, layers, &[], threads, &Progress::default()).unwrap();
    folder
}

fn open_any(folder: &Folder, layers: usize) -> Result<Checkpoint, WeightsError> {
    open_layers(&folder.0, layers, Arc::default())
}

fn same_matrix(a: &Checkpoint, b: &Checkpoint, matrix: Weight) {
    let read = |checkpoint: &Checkpoint| checkpoint.source(matrix).read_f32().unwrap();
    assert!(read(a) == read(b), "{}", matrix.name());
}

#[test]
fn what_is_written_is_what_is_drawn_in_memory() {
    let folder = written(LAYERS, 2);
    let (files, drawn) = (
        open_any(&folder, LAYERS).unwrap(),
        open_seeded(Arc::default()),
    );
    let layout = files.layout();
    layout
        .matrices()
        .for_each(|matrix| same_matrix(&files, &drawn, matrix));
    for vector in layout.vectors() {
        let (role, site) = (vector.role(), vector.site());
        let read = |checkpoint: &Checkpoint| checkpoint.vector(role, site).read_f32().unwrap();
        assert_eq!(read(&files), read(&drawn), "{}", vector.name());
    }
}

#[test]
fn the_files_do_not_depend_on_the_threads() {
    let folders = [written(LAYERS, 1), written(LAYERS, 3)];
    let [one, three] = folders.each_ref().map(|folder| {
        let names = fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
            .into_iter()
            .map(|path| fs::read(path).unwrap())
            .collect::<Vec<_>>()
    });
    assert!(one.len() >= 2 && one == three);
}

#[test]
fn a_cut_checkpoint_holds_the_first_layers_and_is_no_whole_one() {
    let folder = written(1, 1);
    let (cut, whole) = (open_any(&folder, 1).unwrap(), open_seeded(Arc::default()));
    assert_eq!(cut.layout().layers(), 1);
    cut.layout()
        .matrices()
        .for_each(|matrix| same_matrix(&cut, &whole, matrix));
    if LAYERS > 1 {
        let refused = open_any(&folder, LAYERS).err();
        assert!(matches!(refused, Some(WeightsError::Missing { .. })));
    }
}

#[test]
fn a_configuration_states_what_the_models_own_must() {
    let found = contradiction(&config(LAYERS), target::CONFIG);
    assert!(found.is_none(), "{}", found.unwrap().stated);
}

#[test]
fn the_configuration_of_a_cut_checkpoint_has_as_many_kinds_as_layers() {
    let cut = config(1);
    let kinds = cut["layer_types"].as_array().map(Vec::len);
    let letters = cut["hybrid_override_pattern"].as_str().map(str::len);
    let mut counts = [kinds, letters].into_iter().flatten();
    assert!(counts.all(|count| count == 1));
}

#[test]
fn kinds_of_layers_with_a_rope_of_their_own_state_it_alone() {
    let whole = config(LAYERS);
    let Some(rope) = whole["rope_parameters"].as_object() else {
        return;
    };
    let apart = rope.values().filter(|of_kind| of_kind.is_object()).count();
    assert!(apart == 0 || apart == rope.len(), "{rope:?}");
}

#[test]
fn a_number_of_layers_that_the_model_does_not_have_is_refused() {
    let folder = Folder::new();
    for asked in [0, LAYERS + 1] {
        let error = write(&folder.0, asked, &[], 1, &Progress::default()).unwrap_err();
        assert!(matches!(error, SynthError::Layers { .. }), "{error}");
    }
}

#[test]
fn a_directory_that_holds_something_is_left_alone() {
    let folder = Folder::new();
    fs::write(folder.0.join("mine"), "x").unwrap();
    let error = write(&folder.0, 1, &[], 1, &Progress::default()).unwrap_err();
    assert!(matches!(error, SynthError::NotEmpty { .. }), "{error}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

/// `/dev/full` refuses every write as a full disk does.
#[test]
fn a_full_disk_says_what_is_needed() {
    let folder = Folder::new();
    let shards = shards(&folder.0, 1);
    let directory = Dir::open(&folder.0).unwrap();
    let files = Files {
        directory: &directory,
        shards: &shards,
        bytes: 12_345,
        progress: &Progress::default(),
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = files.part(&full, &shards[0], 0, &mut [0; 64]).unwrap_err();
    assert!(matches!(error, SynthError::Full { .. }), "{error}");
    assert!(error.to_string().contains("12345 bytes"), "{error}");
}

#[test]
fn tensors_are_dealt_in_the_order_of_layers_under_the_releases_names() {
    let shards = shards(Path::new(""), LAYERS);
    let names = shards.iter().flat_map(|shard| &shard.names);
    let decoder = names
        .filter(|name| name.starts_with(target::NAME_PREFIX))
        .count();
    assert!(decoder > LAYERS);
    let Value::Object(index) = &index(&shards)["weight_map"] else {
        panic!("no map");
    };
    let all: usize = shards.iter().map(|shard| shard.names.len()).sum();
    assert_eq!(index.len(), all);
    assert!(layer_of(Site::Layer(10)) < layer_of(Site::Prediction));
}

/// Entropy of the distribution after each of some tokens, nats.
fn entropies(tokens: &[TokenId]) -> Vec<f64> {
    let checkpoint = open_seeded(Arc::default());
    let plan = Plan::largest::<Cpu>(checkpoint.layout());
    let mut runner = Runner::load(Cpu::new(2), &checkpoint, &plan).unwrap();
    let pages: Vec<_> = (0..tokens.len().div_ceil(PAGE))
        .map(|page| PageId(page as u32))
        .collect();
    let mut found = Vec::new();
    for (start, token) in tokens.iter().enumerate() {
        let rows = SeqRows::of(Slot(0), start, std::slice::from_ref(token), &pages);
        runner.step(&[rows]).unwrap();
        let logits = runner.logits(0).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        found.push(entropy(logits));
    }
    found
}

fn entropy(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| f64::from(logit - most).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    let terms = weights.iter().filter(|weight| **weight > 0.0);
    terms
        .map(|weight| -weight / sum * (weight / sum).ln())
        .sum()
}

#[test]
fn the_next_token_is_as_uncertain_as_text() {
    const TOKENS: usize = if cfg!(debug_assertions) { 32 } else { 96 };
    let tokens: Vec<_> = (0..TOKENS)
        .map(|at| (at * 7919 % VOCAB) as TokenId)
        .collect();
    let found = entropies(&tokens);
    let mean = found.iter().sum::<f64>() / found.len() as f64;
    println!("{}: mean entropy {mean:.2} nats", target::MODEL);
    // Small vocabularies have fewer tokens to be uncertain of.
    let least = if VOCAB > 1000 { 2.0 } else { 1.0 };
    assert!(mean > least && mean < 4.0, "{mean}");
}

/// Frequency with which each expert of the first layer is taken by hidden states that differ in all
/// but the common channels.
#[cfg(has = "experts")]
#[test]
fn experts_are_taken_by_their_popularity_and_by_the_token() {
    use crate::shapes::Experts as _;
    use crate::target::{HIDDEN, Moe, Role};

    let checkpoint = open_seeded(Arc::default());
    let read = |role, site| checkpoint.matrix(role, site).read_f32().unwrap();
    let embedding = read(Role::Embedding, Site::Whole);
    let router = read(Role::Router, Site::Layer(0));
    let mut assigned = vec![0; Moe::COUNT];
    let rows = embedding.chunks_exact(HIDDEN).take(1000);
    let count = rows.len();
    for row in rows {
        let size = (row.iter().map(|x| x * x).sum::<f32>() / HIDDEN as f32).sqrt();
        let logit = |weights: &[f32]| {
            weights
                .iter()
                .zip(row)
                .map(|(w, x)| w * x / size)
                .sum::<f32>()
        };
        let logits: Vec<f32> = router.chunks_exact(HIDDEN).map(logit).collect();
        let mut order: Vec<usize> = (0..Moe::COUNT).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        order[..Moe::PER_TOKEN]
            .iter()
            .for_each(|expert| assigned[*expert] += 1);
    }
    if Moe::COUNT == Moe::PER_TOKEN {
        return;
    }
    let even = (count * Moe::PER_TOKEN) as f64 / Moe::COUNT as f64;
    let most = *assigned.iter().max().unwrap() as f64 / even;
    println!(
        "{}: the busiest expert takes {most:.2} even shares of {assigned:?}",
        target::MODEL
    );
    // Few experts have ranks that hardly differ.
    assert!(most > 1.2 || Moe::COUNT < 8, "{assigned:?}");
    assert!(
        assigned
            .iter()
            .all(|&assigned| assigned > 0 && assigned < count),
        "{assigned:?}"
    );
}
