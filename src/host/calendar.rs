//! Dates of the Gregorian calendar, in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime};

/// Conversions of `strftime` that Python and [`strftime`] have.
const CONVERSIONS: &str = "AaBbhCDFGHIMRSTUVWXYcdejmnprstuwxy%fzZ";

/// Seconds since 1970.
pub fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Text of `format` with Python's conversions of `strftime` for the time `now` in UTC and in C's
/// locale; `-` after `%` removes the padding of numbers. Unknown conversions are left as they are.
pub fn strftime(format: &str, now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = DateTime::from_timestamp(since.as_secs().cast_signed(), since.subsec_nanos());
    let moment = moment.unwrap_or_default().naive_utc();
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let bare = rest[at + 1..].starts_with('-');
        let mut chars = rest[at + 1 + usize::from(bare)..].chars();
        match chars.next().filter(|name| CONVERSIONS.contains(*name)) {
            Some(name) => {
                let shown = shown(name, &moment);
                out.push_str(if bare { unpadded(&shown) } else { &shown });
                rest = chars.as_str();
            }
            None => {
                out.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// Text of one of [`CONVERSIONS`].
fn shown(name: char, moment: &NaiveDateTime) -> String {
    let conversion = match name {
        'f' => "%6f".to_string(),
        // Python's times without a zone print no zone.
        'z' | 'Z' => String::new(),
        name => format!("%{name}"),
    };
    let mut out = String::new();
    // Writing to memory does not fail, and chrono has all of these conversions.
    let _ = write!(out, "{}", moment.format(&conversion));
    out
}

/// A number without the zeros or blanks that pad it.
fn unpadded(number: &str) -> &str {
    let digits = number.trim_start_matches(['0', ' ']);
    match digits.is_empty() {
        true => &number[number.len().saturating_sub(1)..],
        false => digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_follow_the_calendar() {
        let at = UNIX_EPOCH + Duration::from_secs(1_709_210_096); // 2024-02-29 12:34:56
        assert_eq!(
            strftime("%a %d %B %Y %H:%M:%S %%", at),
            "Thu 29 February 2024 12:34:56 %"
        );
        assert_eq!(strftime("%Y-%m-%d %A", UNIX_EPOCH), "1970-01-01 Thursday");
    }

    /// Texts are those of Python's `datetime.strftime`.
    #[test]
    fn conversions_are_those_of_c() {
        let shown = |seconds: u64, format: &str| {
            strftime(format, UNIX_EPOCH + Duration::from_secs(seconds))
        };
        let leap = 1_709_210_096; // 2024-02-29 12:34:56
        assert_eq!(
            shown(leap, "%-d.%-m.%y %e|%j|%I %p"),
            "29.2.24 29|060|12 PM"
        );
        assert_eq!(
            shown(leap, "%F %T|%D|%R|%r"),
            "2024-02-29 12:34:56|02/29/24|12:34|12:34:56 PM"
        );
        assert_eq!(
            shown(leap, "%c|%x|%X"),
            "Thu Feb 29 12:34:56 2024|02/29/24|12:34:56"
        );
        assert_eq!(
            shown(leap, "%u%w %U %W %G-%V %Z%z%n%t%f"),
            "44 08 09 2024-09 \n\t000000"
        );
        assert_eq!(shown(leap, "%Q %- %-Q % %é 100%"), "%Q %- %-Q % %é 100%");
        let new_year = 1_609_459_199; // 2020-12-31 23:59:59
        assert_eq!(shown(new_year, "%G-%V %j %-I"), "2020-53 366 11");
        assert_eq!(shown(new_year + 1, "%G-%V %j %-I %-M"), "2020-53 001 12 0");
    }
}
