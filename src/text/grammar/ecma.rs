//! Translation of the regular expressions of schemas, ECMAScript's, to llguidance's syntax.
//!
//! Both have the same names for sets of characters (`\d`, `\w`, `\s`), but some of the sets differ.
//! Source: ECMA-262, sections 22.2.1 and 22.2.2.

use super::expression;

/// Line terminators, which `.` does not match, for use in a class.
const LINE_ENDS: &str = r"\n\r\u{2028}\u{2029}";
/// Sets of characters by the letter of their escape, as ranges for use in a class.
const SETS: &[(char, &str)] = &[
    ('d', "0-9"),
    ('D', r"\x00-/:-\u{10ffff}"),
    ('w', "0-9A-Z_a-z"),
    ('W', r"\x00-/:-@\[-\^`\{-\u{10ffff}"),
    (
        's',
        r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}",
    ),
    (
        'S',
        concat!(
            r"\x00-\x08\x0e-\x1f!-\u{9f}\u{a1}-\u{167f}\u{1681}-\u{1fff}\u{200b}-\u{2027}",
            r"\u{202a}-\u{202e}\u{2030}-\u{205e}\u{2060}-\u{2fff}\u{3001}-\u{fefe}",
            r"\u{ff00}-\u{10ffff}",
        ),
    ),
];

/// `pattern` of a schema in llguidance's syntax, where it may match anywhere in a text.
///
/// # Errors
/// States why llguidance cannot search for the pattern.
pub fn searched(pattern: &str) -> Result<String, String> {
    let Some(rewritten) = rewritten(pattern) else {
        return Err("brackets and doubled signs in a class must be escaped".to_string());
    };
    expression::check_searched(&rewritten)?;
    Ok(rewritten)
}

/// Position of a character of an expression relative to classes in brackets.
#[derive(Clone, Copy, PartialEq)]
enum Context {
    Outside,
    /// The character follows the bracket that opens a class.
    Opened,
    /// The character follows the `^` after the opening bracket.
    Negated,
    Inside,
}

/// `pattern` with its sets written out. None if a class contains characters that llguidance would
/// read as a nested class or as an operation on two classes, or if a class is empty, whose bracket
/// llguidance would take for a character.
fn rewritten(pattern: &str) -> Option<String> {
    use Context::{Inside, Negated, Opened, Outside};
    let mut out = String::with_capacity(pattern.len());
    let (mut context, mut last) = (Outside, None);
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        if char == '\\' {
            push_escaped(&mut out, chars.next(), context);
            (context, last) = (if context == Outside { Outside } else { Inside }, None);
            continue;
        }
        context = match (context, char) {
            (Outside, '[') => Opened,
            (Outside, _) | (Inside, ']') => Outside,
            (_, '[') | (Opened | Negated, ']') => return None,
            (_, '&' | '-' | '~') if last == Some(char) => return None,
            (Opened, '^') => Negated,
            _ => Inside,
        };
        match (context, char) {
            (Outside, '.') => out.extend(["[^", LINE_ENDS, "]"]),
            _ => out.push(char),
        }
        last = Some(char);
    }
    Some(out)
}

/// Appends the meaning of `\` and `sign` in a context; an expression may end in `\`.
fn push_escaped(out: &mut String, sign: Option<char>, context: Context) {
    match SETS.iter().find(|(set, _)| Some(*set) == sign) {
        Some((_, ranges)) if context == Context::Outside => out.extend(["[", ranges, "]"]),
        Some((_, ranges)) => out.push_str(ranges),
        None if sign == Some('0') => out.push_str(r"\x00"),
        None => {
            out.push('\\');
            out.extend(sign);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_schemas_read_as_characters_is_not_read_otherwise() {
        for pattern in [
            "[[a]b]",
            "[[:alpha:]]",
            "[a&&b]",
            "[a--b]",
            "[a~~b]",
            "[]a]",
            "[^]a]",
        ] {
            assert!(searched(pattern).is_err(), "{pattern}");
        }
        for pattern in [
            r"[\[a\]&]",
            "a--b&&",
            "[a-z][-]-[-]",
            r"[\--]",
            "[&][&]",
            r"[\]a]",
            "[^^]",
        ] {
            assert_eq!(searched(pattern).as_deref(), Ok(pattern), "{pattern}");
        }
    }

    #[test]
    fn sets_are_written_out() {
        for (pattern, expected) in [
            (r"\d", "[0-9]"),
            (r"[\d.]", "[0-9.]"),
            (r"[^\w-]", "[^0-9A-Z_a-z-]"),
            (".", r"[^\n\r\u{2028}\u{2029}]"),
            (r"\0", r"\x00"),
            (r"\.\\d\n", r"\.\\d\n"),
            (r"\\.", r"\\[^\n\r\u{2028}\u{2029}]"),
            (r"[\]]\D", r"[\]][\x00-/:-\u{10ffff}]"),
        ] {
            assert_eq!(searched(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn a_set_and_its_opposite_part_all_characters() {
        let all: String = ('\0'..=char::MAX).collect();
        for (sign, opposite) in [('d', 'D'), ('w', 'W'), ('s', 'S')] {
            let class =
                |sign| regex::Regex::new(&rewritten(&format!("\\{sign}")).unwrap()).unwrap();
            let rest = class(sign).replace_all(&all, "");
            let others: String = class(opposite)
                .find_iter(&all)
                .map(|one| one.as_str())
                .collect();
            assert!(rest == others, "{sign}");
        }
    }
}
