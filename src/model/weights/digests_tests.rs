//! Digests of files against every kind of statement; the values are those of `sha256sum` and
//! `git hash-object`.

use std::sync::Arc;

use super::*;

const CONTENT: &[u8] = b"abc";
const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const GIT: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";
/// That of the LFS pointer to the content.
const POINTER: &str = "80d7d501c2b256023dc42e46d958b9ac2ec283ee";

fn verdict(expected: Option<Expected>) -> Verdict {
    let job = Job {
        source: Source::Embedded {
            name: "a".to_string(),
            content: CONTENT,
        },
        expected: expected.map(|expected| (Witness::Tree, expected)),
    };
    let [file] =
        <[FileDigest; 1]>::try_from(hash(vec![job], &Progress::default()).unwrap()).unwrap();
    assert_eq!((file.bytes, file.sha256.as_str()), (3, SHA256));
    file.verdict
}

#[test]
fn each_kind_of_digest_is_compared() {
    for (right, wrong) in [
        (
            Expected::Sha256(SHA256.into()),
            Expected::Sha256("0".repeat(64)),
        ),
        (
            Expected::GitBlob(GIT.into()),
            Expected::GitBlob(POINTER.into()),
        ),
    ] {
        assert_eq!(verdict(Some(right)), Verdict::Agrees(Witness::Tree));
        assert!(matches!(verdict(Some(wrong)), Verdict::Differs { .. }));
    }
}

#[test]
fn what_nobody_states_is_not_known() {
    assert_eq!(verdict(None), Verdict::Unknown);
}

#[test]
fn many_files_keep_their_order() {
    let job = |name: String| Job {
        source: Source::Embedded {
            name,
            content: CONTENT,
        },
        expected: None,
    };
    let progress = Arc::new(Progress::default());
    let jobs = (10..60).map(|number| job(number.to_string())).collect();
    let files = hash(jobs, &progress).unwrap();
    assert!(files.is_sorted_by_key(|file| file.name.clone()) && files.len() == 50);
    assert_eq!(progress.bytes(), (150, 150));
}
