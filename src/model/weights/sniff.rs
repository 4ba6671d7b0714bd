//! Contents that are found in place of a checkpoint's file: pointers, web pages, other formats.

/// Bytes at the start of a file that are examined.
pub(super) const BYTES: usize = 512;

/// First bytes of foreign contents, and the message about each.
const KINDS: [(&[u8], &str); 4] = [
    (
        b"version https://git-lfs.github.com/spec/",
        "is the pointer that Git LFS keeps in place of the file; `git lfs pull` brings the file",
    ),
    (
        b"GGUF",
        "is a GGUF file; this binary reads the safetensors files of the release",
    ),
    (
        b"PK\x03\x04",
        "is a PyTorch or zip file; this binary reads the safetensors files of the release",
    ),
    (
        b"\0\0\0\0\0\0\0\0",
        "begins with zeros: room was made for it and not filled; start its download again",
    ),
];
/// First bytes of web pages, in lower case.
const PAGES: [&[u8]; 3] = [b"<!doctype", b"<html", b"<?xml"];

/// Reason for which `content`, the start of a file, is no checkpoint's, with the fix, if any.
pub fn foreign(content: &[u8]) -> Option<&'static str> {
    if content.is_empty() {
        return Some("is empty; start its download again");
    }
    let text = content.trim_ascii_start();
    let is_page = |start: &&&[u8]| {
        text.get(..start.len())
            .is_some_and(|text| text.eq_ignore_ascii_case(start))
    };
    if PAGES.iter().find(is_page).is_some() {
        return Some(
            "is a web page, such as one that asks for a login, not the file; log in with `hf auth \
             login` and download it again",
        );
    }
    let kind = KINDS.iter().find(|(start, _)| content.starts_with(start));
    kind.map(|(_, problem)| *problem)
}

#[cfg(test)]
mod tests {
    use super::foreign;

    #[test]
    fn what_is_found_instead_of_a_file_is_named() {
        for (content, word) in [
            (&b""[..], "empty"),
            (b"\n <!DOCTYPE html><html>", "web page"),
            (b"<HTML>", "web page"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                "git lfs pull",
            ),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"PK\x03\x04", "zip"),
            (&[0; 16], "zeros"),
        ] {
            let found = foreign(content);
            assert!(
                found.is_some_and(|found| found.contains(word)),
                "{word}: {found:?}"
            );
        }
    }

    #[test]
    fn files_of_a_checkpoint_are_not_foreign() {
        for content in [
            &b"{\"a\": 1}"[..],
            b"{% if x %}",
            &[136, 0, 0, 0, 0, 0, 0, 0, b'{'],
        ] {
            assert_eq!(foreign(content), None);
        }
    }
}
