//! Lines for the operator on standard error. No prompt and no reply ever goes here.

use std::fmt::Display;
use std::io::Write;

/// Writes one line; control characters are escaped, so that text from elsewhere cannot forge
/// lines or drive a terminal.
pub fn line(text: impl Display) {
    let text = escaped(&text.to_string());
    // Nobody can be told that standard error is gone.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            out.extend(char.escape_default())
        } else {
            out.push(char)
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\u{1b}[31m\r\nb\té"), "a\\u{1b}[31m\\r\\nb\\té");
    }
}
