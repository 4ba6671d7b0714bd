//! Digests and names of commits as text.

use std::fmt::Write as _;

/// Digits of a SHA-1, which git names its objects by.
pub const SHA1_DIGITS: usize = 40;

/// Lower-case hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn is_lower_hex(text: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.bytes().all(digit)
}

/// Whether a text is a commit's name.
pub fn is_commit(text: &str) -> bool {
    text.len() == SHA1_DIGITS && is_lower_hex(text)
}
