//! Broken checkpoints: each must be refused with the right kind of error.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use host::testing::Folder;

use super::layout::Expected;
use super::*;
use crate::target::{FP8_BLOCK, Role, Site};
use crate::weights::header::Dtype;

/// Opens whatever lies in the folder, without the sizes that the target states.
fn open_any(folder: &Path) -> Result<Checkpoint, WeightsError> {
    checkpoint::open_layers(folder, crate::target::LAYERS, Arc::default())
}

fn refusal(folder: &Folder) -> WeightsError {
    open_any(&folder.0)
        .err()
        .expect("the checkpoint is refused")
}

fn single(content: &[u8]) -> WeightsError {
    refusal(&Folder::with("model.safetensors", content))
}

/// A file of the given header text, followed by `data` zero bytes.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// All tensors of the target, zero, after `change` had its way with them.
fn target_file(change: impl FnOnce(&mut BTreeMap<String, Expected>)) -> Vec<u8> {
    let mut tensors = Layout::whole().tensors();
    tensors.retain(|_, expected| !expected.piece.optional);
    change(&mut tensors);
    // Wide elements first, as writers do to keep every tensor aligned.
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    tensors.sort_by_key(|(_, expected)| std::cmp::Reverse(expected.piece.dtypes[0].bytes()));
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, expected) in tensors {
        let piece = expected.piece;
        let (dtype, shape) = (piece.dtypes[0], &piece.shape);
        let bytes = piece.elements() * dtype.bytes();
        let entry = serde_json::json!({
            "dtype": dtype.to_string(), "shape": shape, "data_offsets": [end, end + bytes]
        });
        header.insert(name, entry);
        end += bytes;
    }
    file(&serde_json::Value::Object(header).to_string(), end)
}

const NORM: &str = "model.norm.weight";

#[test]
fn a_complete_checkpoint_is_accepted() {
    let folder = Folder::with("model.safetensors", &target_file(|_| ()));
    let checkpoint = open_any(&folder.0).unwrap();
    let norm = checkpoint.vector(Role::FinalNorm, Site::Whole);
    let norm = norm.read_f32().unwrap();
    assert_eq!(norm, vec![1.0; crate::target::HIDDEN]);
    assert!(checkpoint.progress().bytes().0 > 0);
}

/// A factor of the whole matrix is known to each part of it.
#[test]
fn rows_in_parts_are_those_of_the_whole() {
    let checkpoint = open_seeded(Default::default());
    let small = |matrix: &Weight| matrix.n() <= 4096;
    for matrix in checkpoint.layout().matrices().filter(small).take(20) {
        let (source, n) = (checkpoint.source(matrix), matrix.n());
        let parts = (0..n).step_by(FP8_BLOCK).map(|start| {
            let part = source.read_rows(start..n.min(start + FP8_BLOCK));
            part.unwrap().values()
        });
        let parts: Vec<Vec<f32>> = parts.collect();
        assert!(
            parts.concat() == source.read_f32().unwrap(),
            "{}",
            matrix.name()
        );
    }
}

#[cfg(has = "delta")]
#[test]
fn weights_of_norms_are_stored_less_one_but_for_gated_ones() {
    let folder = Folder::with("model.safetensors", &target_file(|_| ()));
    let checkpoint = open_any(&folder.0).unwrap();
    for vector in checkpoint.layout().vectors() {
        let name = vector.name();
        let values = checkpoint.vector(vector.role(), vector.site()).read_f32();
        let norm = name.contains("norm") && !name.contains("linear_attn");
        let expected = f32::from(u8::from(norm));
        assert!(values.unwrap().iter().all(|&v| v == expected), "{name}");
    }
}

#[test]
fn names_of_multimodal_releases_and_their_vision_tower_are_accepted() {
    let content = target_file(|tensors| {
        let mut patch = tensors[NORM].clone();
        patch.piece.shape = vec![2, 8];
        let names: Vec<String> = tensors.keys().cloned().collect();
        for name in names {
            if let Some(rest) = name.strip_prefix("model.") {
                let expected = tensors.remove(&name).unwrap();
                tensors.insert(format!("model.language_model.{rest}"), expected);
            }
        }
        for tower in [
            "visual.patch_embed.proj",
            "vision_tower.a.linear",
            "embed_vision.b",
        ] {
            tensors.insert(format!("model.{tower}.weight"), patch.clone());
        }
    });
    assert!(open_any(&Folder::with("model.safetensors", &content).0).is_ok());
}

#[test]
fn an_empty_directory_is_refused() {
    assert!(matches!(
        refusal(&Folder::new()),
        WeightsError::Incomplete { .. }
    ));
}

#[test]
fn a_file_that_is_too_short_is_refused() {
    assert!(matches!(single(&[]), WeightsError::Foreign { .. }));
    for bytes in [1, 7] {
        assert!(matches!(
            single(&vec![0; bytes]),
            WeightsError::Header { .. }
        ));
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let mut content = target_file(|_| ());
    content.truncate(content.len() - 1);
    assert!(matches!(single(&content), WeightsError::Header { .. }));
}

#[test]
fn a_file_with_more_bytes_than_tensors_is_refused() {
    let mut content = target_file(|_| ());
    content.push(0);
    assert!(single(&content).to_string().contains("tensors end"));
}

/// Header text, data bytes, and what the refusal says.
const HEADERS: &[(&str, usize, &str)] = &[
    ("[1]", 0, "invalid type"),
    ("{", 0, "EOF"),
    (
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x"#,
        4,
        "trailing",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        4,
        "do not hold",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        4,
        "do not hold",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        3,
        "ends at",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#,
        0,
        "empty",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        4,
        "invalid value",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,6]}}"#,
        6,
        "invalid type",
    ),
    (
        r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "unknown element",
    ),
    (
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#,
        4,
        "overflows",
    ),
    (
        r#"{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#,
        1,
        "dimensions",
    ),
    (
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}}"#,
        1,
        "unknown field",
    ),
    (
        r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        1,
        "duplicate",
    ),
    (r#"{"__metadata__":{"a":1}}"#, 0, "invalid type"),
    (r#"{"__metadata__":{},"__metadata__":{}}"#, 0, "twice"),
    (
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
        2,
        "twice",
    ),
    (
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
        3,
        "overlaps",
    ),
    (
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#,
        3,
        "hole",
    ),
    (
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#,
        5,
        "aligned",
    ),
];

#[test]
fn each_broken_header_is_refused_for_its_reason() {
    for (header, data, reason) in HEADERS {
        let error = single(&file(header, *data));
        assert!(
            matches!(error, WeightsError::Header { .. }),
            "{header}: {error}"
        );
        assert!(error.to_string().contains(reason), "{header}: {error}");
    }
}

#[test]
fn a_header_that_is_not_text_is_refused() {
    let mut content = file("{   }", 0);
    content[9] = 0xff;
    assert!(single(&content).to_string().contains("UTF-8"));
}

#[test]
fn header_lengths_beyond_the_file_or_the_limit_are_refused() {
    for length in [1 << 20, header::HEADER_BYTES_MAX + 1, u64::MAX] {
        let mut content = file("{}", 0);
        content[..8].copy_from_slice(&length.to_le_bytes());
        assert!(
            matches!(single(&content), WeightsError::Header { .. }),
            "{length}"
        );
    }
}

#[test]
fn deep_nesting_is_refused() {
    let header = format!(r#"{{"a":{}"#, "[".repeat(100_000));
    assert!(matches!(
        single(&file(&header, 0)),
        WeightsError::Header { .. }
    ));
}

#[test]
fn a_missing_tensor_is_named() {
    let content = target_file(|tensors| {
        tensors.remove(NORM);
    });
    let error = single(&content);
    assert!(matches!(&error, WeightsError::Missing { tensor, count: 1 } if tensor == NORM));
}

#[cfg(has = "delta")]
#[test]
fn a_layer_of_prediction_is_there_as_a_whole_or_not_at_all() {
    let others = Layout::whole().without_prediction().tensors();
    let of_prediction = |name: &str| !others.contains_key(name);
    let content = target_file(|tensors| tensors.retain(|name, _| !of_prediction(name)));
    let folder = Folder::with("model.safetensors", &content);
    let checkpoint = open_any(&folder.0).unwrap();
    assert!(checkpoint.lacks_prediction());
    assert!(!checkpoint.layout().has(Role::Fusion, Site::Prediction));
    let content = target_file(|tensors| {
        let name = tensors.keys().find(|name| of_prediction(name)).cloned();
        tensors.remove(&name.unwrap());
    });
    let error = single(&content);
    assert!(matches!(&error, WeightsError::Missing { tensor, count: 1 } if of_prediction(tensor)));
}

#[test]
fn an_unknown_tensor_is_named() {
    let content = target_file(|tensors| {
        let norm = tensors[NORM].clone();
        tensors.insert("model.layers.99.extra".into(), norm);
    });
    let error = single(&content);
    assert!(
        matches!(&error, WeightsError::Unexpected { tensor, .. } if tensor.contains("99.extra"))
    );
}

#[test]
fn another_shape_is_named() {
    let content = target_file(|tensors| tensors.get_mut(NORM).unwrap().piece.shape.push(1));
    assert!(matches!(single(&content), WeightsError::Shape { tensor, .. } if tensor == NORM));
}

#[test]
fn another_element_type_is_named() {
    let content = target_file(|tensors| tensors.get_mut(NORM).unwrap().piece.dtypes = &[Dtype::U8]);
    assert!(matches!(single(&content), WeightsError::Dtype { tensor, .. } if tensor == NORM));
}

fn assert_not_finite(error: WeightsError, tensor: &str, index: usize) {
    let wrong = Wrong::NotFinite;
    let is_it = matches!(&error, WeightsError::Element { tensor: of, index: at, wrong: why, .. }
        if (of.as_str(), *at, why) == (tensor, index, &wrong));
    assert!(is_it, "{error}");
}

#[test]
fn a_value_that_is_not_finite_is_refused_when_read() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut content = target_file(|_| ());
        let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&content[8..8 + length]).unwrap();
        let start = header[NORM]["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
        content[start + 2..start + 4].copy_from_slice(&value.to_le_bytes()[2..]);
        let folder = Folder::with("model.safetensors", &content);
        let checkpoint = open_any(&folder.0).unwrap();
        let norm = checkpoint.vector(Role::FinalNorm, Site::Whole);
        assert_not_finite(norm.read_f32().unwrap_err(), NORM, 1);
    }
}

#[test]
fn a_weight_that_is_no_f16_is_refused_when_read() {
    let mut content = target_file(|_| ());
    let length = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&content[8..8 + length]).unwrap();
    let table = "model.embed_tokens.weight";
    let start = header[table]["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
    let mut read = |value: f32| {
        content[start + 4..start + 6].copy_from_slice(&value.to_le_bytes()[2..]);
        let folder = Folder::with("model.safetensors", &content);
        let checkpoint = open_any(&folder.0).unwrap();
        checkpoint
            .matrix(Role::Embedding, Site::Whole)
            .read_rows(0..1)
            .map(|stored| stored.values()[2])
    };
    assert_eq!(read(-65_280.0).unwrap(), -65_280.0);
    for large in [65_536.0, -65_536.0] {
        let error = read(large).unwrap_err();
        let expected = format!(
            "model.safetensors: tensor {table} holds {large} at element 2: products are of F16, \
             which holds no weight of 65536 or more. "
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(!error.to_string().contains("download the file again"));
    }
    for value in [f32::NAN, f32::INFINITY] {
        assert_not_finite(read(value).unwrap_err(), table, 2);
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let folder = Folder::with("model.safetensors", &target_file(|_| ()));
    let checkpoint = open_any(&folder.0).unwrap();
    assert!(checkpoint.check_unchanged().is_ok());
    let path = folder.0.join("model.safetensors");
    let bytes = fs::metadata(&path).unwrap().len();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(bytes / 2).unwrap();
    let changed = checkpoint.check_unchanged();
    assert!(matches!(changed, Err(WeightsError::Changed { .. })));
    let mut matrices = checkpoint.layout().matrices();
    let error = matrices.find_map(|matrix| checkpoint.source(matrix).read().err());
    assert!(matches!(error, Some(WeightsError::Truncated { .. })));
}

/// The memory of a process is a file that refuses to be read where nothing is mapped.
#[test]
fn errors_of_the_operating_system_are_reported() {
    let process = Path::new("/proc").join(std::process::id().to_string());
    let process = folder::Folder::open(&process).unwrap();
    let source = source::Source::open(&process, "mem").unwrap();
    let error = source.read(0, &mut [0; 8]).unwrap_err();
    let WeightsError::Io { file, error } = error else {
        panic!("{error}");
    };
    assert_eq!((file.as_str(), error.raw_os_error()), ("mem", Some(5)));
}

#[test]
fn rows_are_read_as_they_lie_in_the_whole() {
    let checkpoint = open_seeded(Arc::default());
    let matrices = checkpoint.layout().matrices();
    for matrix in matrices.filter(|matrix| matrix.n() > FP8_BLOCK) {
        let source = checkpoint.source(matrix);
        let rows = FP8_BLOCK..matrix.n();
        let (part, whole) = (source.read_rows(rows).unwrap(), source.read_f32().unwrap());
        let later = &whole[FP8_BLOCK * matrix.k()..];
        assert!(part.values() == later, "{}", matrix.name());
    }
}

const INDEX: &str = "model.safetensors.index.json";

fn index(text: &str) -> WeightsError {
    refusal(&Folder::with(INDEX, text.as_bytes()))
}

#[test]
fn an_index_that_leads_elsewhere_is_refused() {
    for name in [
        "../a.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        ".",
        "",
    ] {
        let text = format!(r#"{{"weight_map":{{"x":{name:?}}}}}"#);
        let error = index(&text);
        assert!(
            matches!(error, WeightsError::Escapes { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_broken_index_is_refused() {
    for text in [
        "{",
        "{}",
        "[]",
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{"a":"b","a":"b"}}"#,
    ] {
        let error = index(text);
        assert!(
            matches!(error, WeightsError::Index { .. }),
            "{text}: {error}"
        );
    }
    let missing = index(r#"{"weight_map":{"a":"a1.safetensors","b":"a2.safetensors"}}"#);
    assert!(
        matches!(&missing, WeightsError::Incomplete { names, .. }
            if names == "a[1-2].safetensors are"),
        "{missing}"
    );
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let (tensor, shard) = ("b", "a.safetensors");
    let folder = Folder::with(
        INDEX,
        format!(r#"{{"weight_map":{{"{tensor}":"{shard}"}}}}"#).as_bytes(),
    );
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    fs::write(folder.0.join(shard), file(header, 1)).unwrap();
    assert!(matches!(refusal(&folder), WeightsError::Index { .. }));
    fs::write(folder.0.join(shard), file("{}", 0)).unwrap();
    assert!(matches!(refusal(&folder), WeightsError::Index { .. }));
}

#[test]
fn links_of_the_owner_are_followed() {
    let elsewhere = Folder::with("real.safetensors", &target_file(|_| ()));
    let folder = Folder::new();
    let link = folder.0.join("model.safetensors");
    std::os::unix::fs::symlink(elsewhere.0.join("real.safetensors"), link).unwrap();
    assert!(open_any(&folder.0).is_ok());
}

#[test]
fn links_into_the_hub_cache_are_followed() {
    let model = Folder::new();
    let snapshot = model.0.join("snapshots/abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(model.0.join("blobs")).unwrap();
    fs::write(model.0.join("blobs/123"), target_file(|_| ())).unwrap();
    std::os::unix::fs::symlink("../../blobs/123", snapshot.join("model.safetensors")).unwrap();
    assert!(open_any(&snapshot).is_ok());
}

#[test]
fn pipes_directories_and_devices_are_refused() {
    let folder = Folder::new();
    let path = folder.0.join("model.safetensors");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    assert!(matches!(refusal(&folder), WeightsError::NotRegular { .. }));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(refusal(&folder), WeightsError::NotRegular { .. }));
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(matches!(refusal(&folder), WeightsError::NotRegular { .. }));
}
