//! Emitted text against the files of `golden/`; `UPDATE=1 cargo test -p manifest` rewrites them.

use std::fs;
use std::path::Path;

use crate::target::DerivedFile;
use crate::testing::{repository, root};

/// Compares `text` with `golden/name`, or writes it there when `UPDATE` is set.
fn check(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let path = folder.join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let lines = golden.lines().zip(text.lines()).enumerate();
    for (number, (expected, found)) in lines {
        assert_eq!(
            found,
            expected,
            "golden/{name} line {}; UPDATE=1 rewrites",
            number + 1
        );
    }
    assert_eq!(
        text.len(),
        golden.len(),
        "length of golden/{name}; UPDATE=1 rewrites"
    );
}

#[test]
fn rust_of_a_gpu_target() {
    check(
        "h200-tiny-nvfp4.target.rs",
        &repository("h200/tiny/nvfp4").emit_rust(&[]),
    );
}

#[test]
fn cuda_of_a_gpu_target() {
    check(
        "h200-tiny-nvfp4.target.cuh",
        &repository("h200/tiny/nvfp4").emit_cuda(),
    );
}

/// Text that the target of the files has not, of a host's memory and of a vision tower; and none of
/// a GPU where there is none.
#[test]
fn other_targets_have_text_of_their_own() {
    let text = repository("gb10/qwen3.5-35b-a3b/nvfp4").emit_rust(&[]);
    for line in [
        "pub const HOST_RESERVE: Option<u64> = Some(8589934592);",
        "pub const NAME_PREFIX: &str = \"model.language_model.\";",
        "pub const VISION_TENSORS: [u64; 2] = [333, 893142496];",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    let text = repository("cpu/tiny/nvfp4").emit_rust(&[]);
    assert!(text.contains("= None;") && text.contains("KvFormat::F32"));
    for constant in [
        "COMPUTE_CAPABILITY",
        "SMS:",
        "MOE_ROWS",
        "OPERANDS",
        "impl crate::backend",
    ] {
        assert!(!text.contains(constant), "{constant}");
    }
}

#[test]
fn text_names_no_folder_of_this_machine() {
    let target = repository("cpu/tiny/bf16");
    let root = fs::canonicalize(&target.root).unwrap();
    let text = target.emit_rust(&[]) + &target.emit_cuda();
    assert!(!text.contains(root.to_str().unwrap()));
    assert!(!text.contains(target.root.to_str().unwrap()));
}

#[test]
fn a_derived_file_is_stated_with_its_own_digest_and_taken_from_out_dir() {
    let mut target = repository("cpu/tiny/bf16");
    let source = crate::schema::model::File {
        name: "a.safetensors".into(),
        bytes: 9,
        sha256: "0".repeat(64),
    };
    target.model.checkpoint.get_mut("nvfp4").unwrap().files = vec![source];
    let made = DerivedFile {
        name: "a.safetensors".into(),
        content: b"abc".to_vec(),
    };
    let text = target.emit_rust(&[made]);
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let stated = format!("{{ name: \"a.safetensors\", bytes: 3, sha256: \"{digest}\" }}");
    assert!(text.contains(&stated), "{text}");
    assert!(text.contains("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/a.safetensors\"))"));
}

/// Errors that grow with the position, as of rounded frequencies, need far positions to be seen.
#[test]
fn every_family_has_golden_logits_of_far_positions() {
    let mut far = std::collections::BTreeSet::new();
    let leaves = crate::target::leaves(&root()).unwrap();
    for leaf in leaves.iter().filter(|leaf| leaf.starts_with("cpu/")) {
        let target = repository(leaf);
        let folder = root().join("targets/_model").join(&target.leaf.model);
        let Ok(golden) = fs::read(folder.join("golden/logits.safetensors")) else {
            continue;
        };
        let (header, _) = crate::safetensors::split(&golden).unwrap();
        if header["tokens"].shape[0] >= 2048 {
            far.insert(target.traits().name);
        }
    }
    assert_eq!(
        far.len(),
        crate::schema::model::Family::ALL.len(),
        "{far:?}"
    );
}
