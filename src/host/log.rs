//! Lines for the operator on standard error. No prompt and no reply ever goes here.

use std::fmt::{self, Display};
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Level of the process. Nothing is written until a level is set.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Silent as u8);

/// Level of detail of the lines for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Silent,
    Info,
    /// Also lines that explain why a client does not get the expected answer.
    Debug,
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Level, Self::Err> {
        match text {
            "info" => Ok(Level::Info),
            "debug" => Ok(Level::Debug),
            _ => Err("must be info or debug"),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Silent => "silent",
            Level::Info => "info",
            Level::Debug => "debug",
        })
    }
}

/// Sets the level of lines that are written from now on.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether [`debug`] writes lines.
pub fn logs_debug() -> bool {
    LEVEL.load(Ordering::Relaxed) == Level::Debug as u8
}

/// Writes one line at the level `Debug` only.
pub fn debug(text: impl Display) {
    if logs_debug() {
        line(format_args!("debug: {text}"));
    }
}

/// Writes one line; control characters are escaped, so that text from elsewhere cannot forge
/// lines or drive a terminal.
pub fn line(text: impl Display) {
    if LEVEL.load(Ordering::Relaxed) == Level::Silent as u8 {
        return;
    }
    let text = escaped(&text.to_string());
    // A failure of standard error cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() {
            true => out.extend(char.escape_default()),
            false => out.push(char),
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
