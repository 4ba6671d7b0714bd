//! Dates of the Gregorian calendar, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// The weekday of 1970-01-01.
const FIRST_WEEKDAY: u64 = 4;

/// Conversions of `strftime` in UTC and in C's locale, with `-` for numbers without padding; what
/// is none is left as it is.
pub fn strftime(format: &str, now: SystemTime) -> String {
    let moment = Moment::of(now);
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let bare = rest[at + 1..].starts_with('-');
        let mut chars = rest[at + 1 + usize::from(bare)..].chars();
        let shown = chars.next().and_then(|name| moment.shown(name));
        let Some(shown) = shown else {
            out.push('%');
            rest = &rest[at + 1..];
            continue;
        };
        match bare {
            true => out.push_str(unpadded(&shown)),
            false => out.push_str(&shown),
        }
        rest = chars.as_str();
    }
    out + rest
}

/// A number without the zeros or blanks before it.
fn unpadded(number: &str) -> &str {
    let digits = number.trim_start_matches(['0', ' ']);
    match digits.is_empty() {
        true => &number[number.len().saturating_sub(1)..],
        false => digits,
    }
}

/// A time, taken apart.
struct Moment {
    seconds: u64,
    micros: u32,
    year: u64,
    month: u64,
    day: u64,
    /// Days since Sunday.
    weekday: u64,
    /// Days since the first of January.
    yearday: u64,
}

impl Moment {
    fn of(now: SystemTime) -> Moment {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let days = since.as_secs() / 86_400;
        let (year, month, day) = civil_date(days);
        let yearday = (0..366)
            .take_while(|back| {
                days.checked_sub(*back)
                    .is_some_and(|day| civil_date(day).0 == year)
            })
            .count() as u64;
        Moment {
            seconds: since.as_secs(),
            micros: since.subsec_micros(),
            year,
            month,
            day,
            weekday: (days + FIRST_WEEKDAY) % 7,
            yearday: yearday.saturating_sub(1),
        }
    }

    /// What the conversion `name` shows.
    fn shown(&self, name: char) -> Option<String> {
        let (hour, minute) = (self.seconds / 3600 % 24, self.seconds / 60 % 60);
        let twelve = (hour + 11) % 12 + 1;
        let month = MONTHS[self.month as usize - 1];
        let day = DAYS[self.weekday as usize];
        let all = |format: &str| {
            let parts = format.split_inclusive(|c: char| c.is_ascii_alphabetic());
            let shown = parts.map(|part| {
                let name = part.chars().last().unwrap_or_default();
                let between = &part[..part.len() - name.len_utf8()];
                between.to_string() + &self.shown(name).unwrap_or_default()
            });
            shown.collect::<String>()
        };
        Some(match name {
            'Y' => self.year.to_string(),
            'C' => format!("{:02}", self.year / 100),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.yearday + 1),
            'B' => month.to_string(),
            'b' | 'h' => month[..3].to_string(),
            'A' => day.to_string(),
            'a' => day[..3].to_string(),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'U' => format!("{:02}", (self.yearday + 7 - self.weekday) / 7),
            'W' => format!("{:02}", (self.yearday + 7 - (self.weekday + 6) % 7) / 7),
            'V' => format!("{:02}", self.iso_week().1),
            'G' => self.iso_week().0.to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{twelve:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_string(),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.seconds % 60),
            'f' => format!("{:06}", self.micros),
            's' => self.seconds.to_string(),
            // A time of Python's that knows no zone shows none.
            'z' | 'Z' => String::new(),
            'F' => all("Y-m-d"),
            'D' | 'x' => all("m/d/y"),
            'T' | 'X' => all("H:M:S"),
            'R' => all("H:M"),
            'r' => all("I:M:S p"),
            'c' => all("a b e H:M:S Y"),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            _ => return None,
        })
    }

    /// Year and number of the ISO week, which belongs to the year of its Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let days = self.seconds / 86_400;
        let thursday = days + 3 - (self.weekday + 6) % 7;
        let (year, ..) = civil_date(thursday);
        let mut weeks = 1;
        let mut earlier = thursday;
        while let Some(before) = earlier
            .checked_sub(7)
            .filter(|day| civil_date(*day).0 == year)
        {
            (weeks, earlier) = (weeks + 1, before);
        }
        (year, weeks)
    }
}

/// Year, month and day of a count of days since 1970-01-01 (Gregorian calendar).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
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

    /// As Python's `datetime.strftime` shows them.
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
