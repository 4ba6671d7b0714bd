use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::table::{HEAD_BYTES, VECTOR};
use super::*;
use crate::backend::mapping::Stretch;
use crate::weights::{Progress, WeightsError};
use host::testing::Folder as Scratch;

const READER: Reader = Reader {
    layout: 3,
    maps: true,
};

/// Writes two weights and two files; where.
fn written(folder: &Scratch) -> PathBuf {
    let path = folder.0.join("weights.packed");
    let mut writer = Writer::new(File::create(&path).unwrap(), READER.layout, true).unwrap();
    writer
        .weight("a".into(), [2, 8], "bits", &[7; 5000])
        .unwrap();
    writer.weight("b".into(), [3, 1], VECTOR, &[1; 12]).unwrap();
    writer.file("config.json", b"{}").unwrap();
    writer.file("empty", b"").unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(path.metadata().unwrap().len(), bytes);
    path
}

/// Why a file is refused: in words.
fn refusal(path: &std::path::Path) -> String {
    match Packed::open(path, READER) {
        Ok(_) => panic!("it is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_there() {
    let folder = Scratch::new();
    let packed = Packed::open(&written(&folder), READER).unwrap();
    assert!(packed.table().drawn);
    assert_eq!(packed.file("config.json").unwrap().unwrap(), b"{}");
    assert_eq!(packed.file("empty").unwrap().unwrap(), b"");
    assert!(packed.file("other").unwrap().is_none());
    let progress = Progress::default();
    let stack = |name, shape| {
        let entry = packed.entry(name, shape).unwrap();
        PackedStack::new(&packed, entry, &progress)
    };
    let a = stack("a", [2, 8]);
    let mut read = vec![0; 5000];
    a.read(0, &mut read).unwrap();
    assert!(read == [7; 5000] && a.storage() == "bits");
    if let Some(stretch) = a.map() {
        assert!(stretch.bytes() == read && stretch.bytes().as_ptr().addr() % 4096 == 0);
    }
    assert!(packed.entry("a", [8, 2]).is_err() && packed.entry("c", [2, 8]).is_err());
    packed.check(&progress).unwrap();
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let folder = Scratch::new();
    let path = written(&folder);
    let fine = fs::read(&path).unwrap();
    let head = fine[16..24].try_into().map(u64::from_le_bytes).unwrap() as usize;
    for at in (0..64).step_by(3).chain((64..fine.len()).step_by(97)) {
        let mut flipped = fine.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        match (HEAD_BYTES..head).contains(&at) {
            true => {
                let packed = Packed::open(&path, READER).unwrap();
                let text = packed.check(&Progress::default()).unwrap_err().to_string();
                assert!(
                    text.contains("weights.packed: piece 0 (bytes 4096"),
                    "{text}"
                );
            }
            false => assert!(refusal(&path).contains("weights.packed"), "{at}"),
        }
    }
}

#[test]
fn a_file_that_was_cut_short_says_so() {
    let folder = Scratch::new();
    let path = written(&folder);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for bytes in (0..path.metadata().unwrap().len()).rev().step_by(97) {
        file.set_len(bytes).unwrap();
        let text = refusal(&path);
        assert!(
            text.contains("cut short") && text.contains(&bytes.to_string()),
            "{text}"
        );
    }
}

#[test]
fn another_version_target_or_layout_is_named() {
    let folder = Scratch::new();
    let path = written(&folder);
    let fine = fs::read(&path).unwrap();
    let other = Reader {
        layout: 4,
        ..READER
    };
    let text = Packed::open(&path, other).err().unwrap().to_string();
    assert!(text.contains("another build of"), "{text}");
    let mut newer = fine.clone();
    newer[8] = 2;
    fs::write(&path, newer).unwrap();
    assert!(refusal(&path).contains("is of version 2 of the format"));
    let mut table = Packed::open(&written(&folder), READER)
        .unwrap()
        .table()
        .clone();
    table.target = "atlas-other".to_string();
    let start = fine[16..24].try_into().map(u64::from_le_bytes).unwrap();
    let head = table::Head::of(start, &table.bytes());
    let whole = [
        &head.bytes(),
        &fine[HEAD_BYTES..start as usize],
        &table.bytes(),
    ]
    .concat();
    fs::write(&path, whole).unwrap();
    let text = refusal(&path);
    assert!(
        text.contains("is packed for atlas-other") && text.contains("pack WEIGHTS_DIR"),
        "{text}"
    );
}

#[test]
fn a_file_that_is_not_whole_is_none() {
    let folder = Scratch::new();
    let path = folder.0.join("weights.packed");
    let mut writer = Writer::new(File::create(&path).unwrap(), READER.layout, false).unwrap();
    writer
        .weight("a".into(), [2, 8], "bits", &[7; 20 << 20])
        .unwrap();
    drop(writer);
    assert!(
        !is_packed(&path)
            && matches!(
                Packed::open(&path, READER),
                Err(WeightsError::Packed { .. })
            )
    );
}

#[test]
fn a_file_that_is_renamed_over_is_read_to_its_end_and_reported() {
    let folder = Scratch::new();
    let path = written(&folder);
    let packed = Packed::open(&path, READER).unwrap();
    let copied = Packed::open(
        &path,
        Reader {
            maps: false,
            ..READER
        },
    )
    .unwrap();
    let other = folder.0.join("other.packed");
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEAD_BYTES..HEAD_BYTES + 5000].fill(8);
    fs::write(&other, bytes).unwrap();
    packed.check_unchanged().unwrap();
    fs::rename(&other, &path).unwrap();
    for packed in [packed, copied] {
        let progress = Progress::default();
        let entry = packed.entry("a", [2, 8]).unwrap();
        let stack = PackedStack::new(&packed, entry, &progress);
        let mut read = vec![0; 5000];
        stack.read(0, &mut read).unwrap();
        assert!(read == [7; 5000]);
        if let Some(stretch) = stack.map() {
            assert!(stretch.bytes() == read);
        }
        let text = [packed.check_unchanged(), packed.check(&progress)];
        for text in text {
            assert!(
                matches!(text, Err(WeightsError::Changed { .. })),
                "{text:?}"
            );
        }
    }
}

/// Place where the kernel gives leases to whoever runs the test.
#[test]
fn truncation_of_a_mapped_file_waits_until_its_reader_has_ended() {
    let folder = Scratch::new();
    let path = written(&folder);
    let packed = Arc::new(Packed::open(&path, READER).unwrap());
    let Some(mapping) = packed.maps().then(|| packed.mapped().unwrap().clone()) else {
        return assert!(packed.detour().is_some());
    };
    let again = Packed::open(&path, READER).unwrap();
    assert!(again.maps(), "two processes have leases of one file");
    drop(again);
    mapping.check().unwrap();
    let cut = path.clone();
    let writer = thread::spawn(move || {
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(cut)
            .unwrap()
    });
    let begun = Instant::now();
    let text = loop {
        match mapping.check() {
            Err(text) => break text,
            Ok(()) => assert!(begun.elapsed() < Duration::from_secs(10)),
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(
        text.contains("weights.packed") && !writer.is_finished(),
        "{text}"
    );
    assert!(Stretch::new(mapping.clone(), 4096..9096).bytes() == [7; 5000]);
    drop((mapping, packed));
    writer.join().unwrap();
    assert_eq!(path.metadata().unwrap().len(), 0);
}
