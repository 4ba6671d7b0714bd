//! Checks of single regular expressions, whose errors are one line each.

use std::panic::AssertUnwindSafe;

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::panic_utils::catch_unwind;

use super::{explained, panics};

/// Characters of a faulty expression that an error quotes.
const EXCERPT_CHARS_MAX: usize = 20;

/// # Errors
/// States why llguidance refuses an expression that may match anywhere in a text.
pub fn check_searched(pattern: &str) -> Result<(), String> {
    check(&RegexAst::SearchRegex(pattern.to_string()))
}

/// # Errors
/// States why llguidance refuses an expression that must match a whole text.
pub fn check_whole(pattern: &str) -> Result<(), String> {
    check(&RegexAst::Regex(pattern.to_string()))
}

fn check(expression: &RegexAst) -> Result<(), String> {
    let build = || RegexBuilder::new().mk(expression).map(|_| ());
    let built = panics::inside(|| catch_unwind(AssertUnwindSafe(build)));
    built.map_err(|error| explained(&error.to_string()))
}

/// Fault of an expression and its position, in one line; None if `text` is no error of the library
/// of regular expressions. Its errors show the expression, a mark below the fault, and the reason.
pub fn one_line(text: &str) -> Option<String> {
    let (_, shown) = text.split_once("regex parse error:\n")?;
    let mut lines = shown.lines();
    let reason = lines.find_map(|line| line.strip_prefix("error: "))?;
    let marks = |line: &str| line.contains('^') && line.trim_matches([' ', '^']).is_empty();
    let mut lines = shown.lines().zip(shown.lines().skip(1));
    let Some((expression, marks)) = lines.find(|(_, line)| marks(line)) else {
        return Some(format!("the regular expression is wrong: {reason}"));
    };
    // Expression and mark have the same indentation.
    let indentation = expression.len() - expression.trim_start_matches(' ').len();
    let indentation = indentation.min(INDENTATION);
    let before = marks.chars().take_while(|mark| *mark == ' ').count();
    let rest = expression.chars().skip(before);
    let excerpt: String = rest.take(EXCERPT_CHARS_MAX).collect();
    let at = before.saturating_sub(indentation) + 1;
    Some(format!(
        "the regular expression is wrong at character {at}, {excerpt:?}: {reason}"
    ))
}

/// Blanks that the library puts before an expression in an error.
const INDENTATION: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_reported_with_its_position() {
        for (pattern, reported) in [
            ("(", "at character 1, \"(\": unclosed group"),
            ("ab(?=c)d", "at character 3, \"(?=c)d\": look-around"),
            ("   [a", "at character 4, \"[a\": unclosed character class"),
            (
                "é{3,1}",
                "at character 2, \"{3,1}\": invalid repetition count range",
            ),
            ("a\n(", ": unclosed group"),
            ("a^b", "a^b"),
        ] {
            let error = check_whole(pattern).unwrap_err();
            assert!(error.contains(reported), "{pattern}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert_eq!(check_searched(r"^\d+/[\w-]$"), Ok(()));
    }
}
