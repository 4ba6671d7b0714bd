//! Links of all kinds of people. Those of another user need root, who alone can make them.

use std::os::unix::fs::{PermissionsExt, lchown, symlink};

use super::*;
use host::testing::Folder as Scratch;

/// A user that the tests never run as.
const STRANGER: u32 = 4_243_001;
const CONTENT: &[u8] = b"content";

/// `model/` in a scratch folder beside `elsewhere/file`.
fn scratch() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    for name in ["model", "elsewhere"] {
        fs::create_dir(scratch.0.join(name)).unwrap();
    }
    fs::write(scratch.0.join("elsewhere/file"), CONTENT).unwrap();
    let model = scratch.0.join("model");
    (scratch, model)
}

fn read(model: &Path) -> Result<Vec<u8>, WeightsError> {
    Folder::open(model).unwrap().read("file", 100)
}

fn open_to_all(path: &Path, sticky: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777 | sticky)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn give_away(path: &Path) {
    lchown(path, Some(STRANGER), None).unwrap();
}

#[test]
fn links_of_the_owner_are_followed_however_they_lead() {
    let (scratch, model) = scratch();
    let far = scratch.0.join("elsewhere/file");
    symlink("elsewhere", scratch.0.join("disk")).unwrap();
    for target in [far.to_str().unwrap(), "../elsewhere/file", "../disk/./file"] {
        symlink(target, model.join("file")).unwrap();
        assert_eq!(read(&model).unwrap(), CONTENT, "{target}");
        fs::remove_file(model.join("file")).unwrap();
    }
}

#[test]
fn the_first_blob_on_the_way_is_reported() {
    let (scratch, model) = scratch();
    let opened = |name: &str| Folder::open(&model).unwrap().file(name).unwrap().blob;
    fs::create_dir(scratch.0.join("blobs")).unwrap();
    symlink("../elsewhere/file", scratch.0.join("blobs/abc")).unwrap();
    symlink("../blobs/abc", model.join("file")).unwrap();
    symlink("file", model.join("other")).unwrap();
    fs::write(model.join("plain"), CONTENT).unwrap();
    assert_eq!(opened("file").as_deref(), Some("abc"));
    assert_eq!(opened("other").as_deref(), Some("abc"));
    assert_eq!(opened("plain"), None);
}

#[test]
fn a_link_through_a_directory_that_is_open_to_all_is_refused() {
    let (scratch, model) = scratch();
    symlink("../elsewhere/file", model.join("file")).unwrap();
    open_to_all(&scratch.0.join("elsewhere"), 0);
    let error = read(&model).unwrap_err();
    let why = Distrust::OpenToAll(PathBuf::new());
    assert!(
        matches!(&error, WeightsError::Untrusted { why: found, .. }
            if std::mem::discriminant(found) == std::mem::discriminant(&why)),
        "{error}"
    );
    assert!(error.to_string().contains("chmod o-w"), "{error}");
    open_to_all(&scratch.0.join("elsewhere"), 0o1000);
    assert_eq!(read(&model).unwrap(), CONTENT);
}

#[test]
fn a_link_in_a_model_directory_that_is_open_to_all_is_refused() {
    let (_scratch, model) = scratch();
    fs::write(model.join("other"), CONTENT).unwrap();
    symlink("../elsewhere/file", model.join("file")).unwrap();
    open_to_all(&model, 0);
    assert!(matches!(read(&model), Err(WeightsError::Untrusted { .. })));
    let folder = Folder::open(&model).unwrap();
    assert_eq!(folder.read("other", 100).unwrap(), CONTENT);
}

#[test]
fn links_and_files_of_another_user_are_refused() {
    if !is_root() {
        return;
    }
    let refused = |model: &Path| {
        let error = read(model).unwrap_err();
        assert!(error.to_string().contains(&STRANGER.to_string()), "{error}");
    };
    let (scratch, model) = scratch();
    let elsewhere = scratch.0.join("elsewhere");
    symlink("../elsewhere/file", model.join("file")).unwrap();
    give_away(&model.join("file"));
    refused(&model);
    // The owner of the model's directory may be anyone.
    give_away(&model);
    assert_eq!(read(&model).unwrap(), CONTENT);
    lchown(&model, Some(0), None).unwrap();
    lchown(model.join("file"), Some(0), None).unwrap();
    give_away(&elsewhere);
    refused(&model);
    lchown(&elsewhere, Some(0), None).unwrap();
    // Where root lets others have files they stay root's choice; where anyone can put one, not.
    give_away(&elsewhere.join("file"));
    assert_eq!(read(&model).unwrap(), CONTENT);
    open_to_all(&elsewhere, 0o1000);
    refused(&model);
}

#[test]
fn every_directory_on_the_way_of_a_link_must_be_trusted() {
    if !is_root() {
        return;
    }
    let (scratch, model) = scratch();
    fs::create_dir(scratch.0.join("elsewhere/deep")).unwrap();
    fs::write(scratch.0.join("elsewhere/deep/file"), CONTENT).unwrap();
    symlink("../elsewhere/deep/file", model.join("file")).unwrap();
    give_away(&scratch.0.join("elsewhere"));
    let error = read(&model).unwrap_err();
    assert!(
        error.to_string().contains("elsewhere, which is user"),
        "{error}"
    );
}

#[test]
fn links_that_lead_nowhere_or_in_a_circle_are_reported() {
    let (_scratch, model) = scratch();
    symlink("../gone/file", model.join("file")).unwrap();
    let error = read(&model).unwrap_err();
    assert!(
        matches!(&error, WeightsError::Dangling { target, .. } if target.ends_with("gone")),
        "{error}"
    );
    fs::remove_file(model.join("file")).unwrap();
    symlink("file", model.join("file")).unwrap();
    assert!(matches!(read(&model), Err(WeightsError::Unusable { .. })));
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let (_scratch, model) = scratch();
    fs::create_dir(model.join("file")).unwrap();
    assert!(matches!(read(&model), Err(WeightsError::NotRegular { .. })));
    fs::remove_dir(model.join("file")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(model.join("file"))
        .status();
    assert!(made.unwrap().success());
    assert!(matches!(read(&model), Err(WeightsError::NotRegular { .. })));
    fs::remove_file(model.join("file")).unwrap();
    symlink("/dev/zero", model.join("file")).unwrap();
    assert!(matches!(read(&model), Err(WeightsError::NotRegular { .. })));
}

#[test]
fn a_file_is_not_read_beyond_its_limit() {
    let (_scratch, model) = scratch();
    fs::write(model.join("file"), [0; 101]).unwrap();
    assert!(matches!(read(&model), Err(WeightsError::LargeFile { .. })));
    fs::write(model.join("file"), [0; 100]).unwrap();
    assert_eq!(read(&model).unwrap().len(), 100);
}

#[test]
fn what_another_user_chose_is_copied_only_if_it_is_that_users() {
    let (scratch, model) = scratch();
    if !is_root() {
        return;
    }
    let far = scratch.0.join("elsewhere/file");
    let copied = || {
        let opened = Folder::open(&model).unwrap().open_to_copy("file");
        opened.map(drop).map_err(|error| error.to_string())
    };
    symlink(&far, model.join("file")).unwrap();
    copied().unwrap();
    give_away(&model);
    give_away(&model.join("file"));
    assert_eq!(read(&model).unwrap(), CONTENT, "it is served");
    let why = copied().unwrap_err();
    assert!(why.contains(&STRANGER.to_string()), "{why}");
    give_away(&far);
    copied().unwrap();
    fs::remove_file(model.join("file")).unwrap();
    lchown(&far, Some(0), None).unwrap();
    fs::hard_link(&far, model.join("file")).unwrap();
    assert!(copied().is_err(), "another name of root's file");
}
