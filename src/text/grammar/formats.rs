//! Formats of schemas that are enforced: formats of text as expressions, of numbers as bounds.
//!
//! Sources: JSON Schema 2020-12, "validation", section 7.3; RFC 3339 (dates and times), RFC 5321
//! (addresses of mail, without quoted and literal ones), RFC 1123 (names of hosts), RFC 2673 and
//! 4291 (addresses), RFC 3986 (URIs), RFC 9562 (UUIDs); the formats of numbers are those of the
//! OpenAPI registry and of Rust's schemars.

use std::sync::LazyLock;

/// Formats that do not restrict a value more than its type, or whose meaning depends on the client.
const SILENT: &[&str] = &["float", "double", "decimal", "password"];

/// Bound beyond which llguidance treats neighbouring whole numbers as equal: the largest power of
/// ten below 2^63, which a double holds exactly.
pub const FAR: i64 = 1_000_000_000_000_000_000;

/// Values that a format allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Texts that match an expression as a whole.
    Text(&'static str),
    /// Numbers from the first to the second; texts are not restricted.
    Number(i64, i64),
    Anything,
}

/// Values that the format `name` allows; None if the format is not enforced.
pub fn find(name: &str) -> Option<Format> {
    if SILENT.contains(&name) {
        return Some(Format::Anything);
    }
    let mut texts = TEXTS.iter().filter(|(known, _)| *known == name);
    if let Some((_, expression)) = texts.next() {
        return Some(Format::Text(expression));
    }
    let (least, most) = match name {
        "int8" => (i64::from(i8::MIN), i64::from(i8::MAX)),
        "int16" => (i64::from(i16::MIN), i64::from(i16::MAX)),
        "int32" => (i64::from(i32::MIN), i64::from(i32::MAX)),
        "int64" | "int" | "int128" => (-FAR, FAR),
        "uint8" => (0, i64::from(u8::MAX)),
        "uint16" => (0, i64::from(u16::MAX)),
        "uint32" => (0, i64::from(u32::MAX)),
        "uint64" | "uint" | "uint128" => (0, FAR),
        _ => return None,
    };
    Some(Format::Number(least, most))
}

/// Expressions of the formats of text, by format name.
static TEXTS: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let table = [
        ("date", date()),
        ("time", time()),
        ("date-time", date_time()),
        ("duration", duration()),
        ("email", email()),
        ("hostname", hostname()),
        ("ipv4", ipv4()),
        ("ipv6", ipv6()),
        ("uri", uri()),
        ("uuid", uuid()),
    ];
    let table = table.map(|(name, text)| (name, &*Box::leak(text.into_boxed_str())));
    table.to_vec()
});

/// Dates of the Gregorian calendar: 29 February in years that 4 divides, in centuries only if 400
/// does.
fn date() -> String {
    const FOURS: &str = "(?:[02468][048]|[13579][26])";
    let months = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
                  |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
                  |02-(?:0[1-9]|1[0-9]|2[0-8])";
    let not_null = "0[48]|[2468][048]|[13579][26]";
    format!("(?:[0-9]{{4}}-(?:{months})|(?:[0-9]{{2}}(?:{not_null})|{FOURS}00)-02-29)")
}

const CLOCK: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
const SECOND: &str = r"[0-5][0-9](?:\.[0-9]+)?";
/// Expression of a leap second in UTC; with another offset it would not be at 23:59:60.
const LEAP: &str = r"23:59:60(?:\.[0-9]+)?(?:[zZ]|[+-]00:00)";

fn time() -> String {
    format!("(?:{CLOCK}:{SECOND}(?:[zZ]|[+-]{CLOCK})|{LEAP})")
}

/// Dates with times; leap seconds occur only at the end of June and of December.
fn date_time() -> String {
    let date = date();
    format!(
        "(?:{date}[tT]{CLOCK}:{SECOND}(?:[zZ]|[+-]{CLOCK})|[0-9]{{4}}-(?:06-30|12-31)[tT]{LEAP})"
    )
}

/// Durations: years, months and days with hours, minutes and seconds, without gaps; or weeks.
fn duration() -> String {
    let run = |units: [&str; 3]| {
        let [a, b, c] = units.map(|unit| format!("[0-9]+{unit}"));
        format!("(?:{a}(?:{b}(?:{c})?)?|{b}(?:{c})?|{c})")
    };
    let (date, time) = (run(["Y", "M", "D"]), run(["H", "M", "S"]));
    format!("P(?:{date}(?:T{time})?|T{time}|[0-9]+W)")
}

const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";

fn hostname() -> String {
    format!(r"{LABEL}(?:\.{LABEL})*")
}

fn email() -> String {
    const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+";
    let host = hostname();
    format!(r"{ATOM}(?:\.{ATOM})*@{host}")
}

fn ipv4() -> String {
    const PART: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    format!(r"{PART}(?:\.{PART}){{3}}")
}

/// IPv6 addresses: eight groups, of which `::` replaces one or more; the last two may be IPv4.
fn ipv6() -> String {
    const GROUP: &str = "[0-9a-fA-F]{1,4}";
    let ipv4 = ipv4();
    let last = format!("(?:{GROUP}:{GROUP}|{ipv4})");
    let mut forms = vec![format!("(?:{GROUP}:){{6}}{last}")];
    for count in 0..=5 {
        let before = match count {
            0 => String::new(),
            count => format!("(?:{GROUP}(?::{GROUP}){{0,{}}})?", count - 1),
        };
        forms.push(format!("{before}::(?:{GROUP}:){{{}}}{last}", 5 - count));
    }
    forms.push(format!("(?:{GROUP}(?::{GROUP}){{0,5}})?::{GROUP}"));
    forms.push(format!("(?:{GROUP}(?::{GROUP}){{0,6}})?::"));
    format!("(?:{})", forms.join("|"))
}

fn uri() -> String {
    const SIGN: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";
    const USER: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@";
    const NAME: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*";
    let ipv6 = ipv6();
    let authority = format!(r"(?:{USER})?(?:\[{ipv6}\]|{NAME})(?::[0-9]*)?");
    let path = format!("(?:/{SIGN}*)*");
    let rooted = format!("/(?:{SIGN}+{path})?");
    let rootless = format!("{SIGN}+{path}");
    let query = format!("(?:{SIGN}|[/?])*");
    let hierarchy = format!("(?://{authority}{path}|{rooted}|{rootless})?");
    format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:{hierarchy}(?:\?{query})?(?:#{query})?")
}

fn uuid() -> String {
    "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(name: &str, text: &str) -> bool {
        let Some(Format::Text(expression)) = find(name) else {
            panic!("{name} is no format of text");
        };
        let whole = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        whole.is_match(text)
    }

    #[test]
    fn only_days_and_seconds_that_exist_are_allowed() {
        for (name, right, wrong) in [
            (
                "date",
                &[
                    "2024-02-29",
                    "2000-02-29",
                    "0000-02-29",
                    "2023-02-28",
                    "1996-12-31",
                ][..],
                &[
                    "2023-02-29",
                    "1900-02-29",
                    "2024-02-30",
                    "2023-04-31",
                    "2023-13-01",
                    "2023-1-01",
                ][..],
            ),
            (
                "time",
                &[
                    "23:59:60Z",
                    "00:00:00.5+23:59",
                    "12:00:59z",
                    "23:59:60.1-00:00",
                ],
                &[
                    "12:00:60Z",
                    "24:00:00Z",
                    "12:00:00",
                    "23:59:60+01:00",
                    "12:60:00Z",
                ],
            ),
            (
                "date-time",
                &[
                    "1990-12-31T23:59:60Z",
                    "2024-02-29t00:00:00-08:00",
                    "2023-06-30T23:59:60.9Z",
                ],
                &[
                    "2023-02-29T00:00:00Z",
                    "1990-12-30T23:59:60Z",
                    "1990-12-31T22:59:60Z",
                    "1990-12-31",
                ],
            ),
            (
                "duration",
                &["P1Y2M3D", "P1YT2H", "PT5S", "P3W", "P1M", "PT1M2S"],
                &["P", "PT", "P1Y2D", "P1D2H", "P1.5D", "1D", "P1W2D"],
            ),
            (
                "email",
                &["a.b+c@d-e.f", "x@y"],
                &["a..b@c", ".a@b", "a@", "a@b_c", "a b@c", "a@-b"],
            ),
            (
                "hostname",
                &["a", "a-b.c", "1.2"],
                &["", "-a", "a-", "a..b", "a_b", "a."],
            ),
            (
                "ipv4",
                &["0.0.0.0", "255.249.199.99"],
                &["256.0.0.0", "1.2.3", "01.2.3.4", "1.2.3.4.5"],
            ),
            (
                "ipv6",
                &[
                    "::",
                    "::1",
                    "1::",
                    "1:2:3:4:5:6:7:8",
                    "1::8",
                    "::ffff:1.2.3.4",
                    "1:2:3:4:5:6:7::",
                    "1:2:3:4:5:6:1.2.3.4",
                    "::2:3:4:5:6:7:8",
                    "1:2::7:8",
                    "1:2:3:4:5::7:8",
                    "fe80::1:2:3",
                ],
                &[
                    ":",
                    ":::",
                    "1:2:3:4:5:6:7",
                    "1:2:3:4:5:6:7:8:9",
                    "1::2::3",
                    "12345::",
                    "1:2:3:4:5:6:7::8",
                    "::1.2.3",
                    "g::",
                ],
            ),
            (
                "uri",
                &[
                    "http://a.b/c?d=e#f",
                    "mailto:a@b",
                    "urn:x:y",
                    "http://[::1]:80/",
                    "file:///a",
                    "x:",
                ],
                &["a/b", "http://a b", "http://[1]", "://a", "http://a/%zz"],
            ),
            (
                "uuid",
                &["123e4567-e89b-12d3-a456-426614174000"],
                &[
                    "123e4567e89b12d3a456426614174000",
                    "123e4567-e89b-12d3-a456-42661417400g",
                ],
            ),
        ] {
            for text in right {
                assert!(matches(name, text), "{name}: {text}");
            }
            for text in wrong {
                assert!(!matches(name, text), "{name}: {text}");
            }
        }
    }

    #[test]
    fn numbers_are_bounded_where_their_format_bounds_them() {
        assert_eq!(
            find("int32"),
            Some(Format::Number(-2_147_483_648, 2_147_483_647))
        );
        assert_eq!(find("uint"), Some(Format::Number(0, FAR)));
        assert_eq!(find("double"), Some(Format::Anything));
        assert_eq!(find("phone"), None);
        assert_eq!(FAR as f64 as i64, FAR);
    }
}
