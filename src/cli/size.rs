//! Sizes in bytes as values of flags.

use std::fmt;
use std::str::FromStr;

/// Suffixes and their factors, the largest first of each kind.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// A number of bytes, written like `32GB` or `1.5GiB`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    text: String,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("`{text}` is no size: give a number and a unit, as in 32GB or 8GiB");
        let mut units = UNITS.iter();
        let unit = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.ok_or_else(wrong)?;
        let number: f64 = number.trim_end().parse().map_err(|_| wrong())?;
        let bytes = number * unit as f64;
        // The condition is also false for NaN.
        match bytes >= 1.0 && bytes < i64::MAX as f64 {
            true => Ok(Size {
                bytes: bytes as u64,
                text: text.to_string(),
            }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A number of bytes in gigabytes, rounded down, in the form of a flag's value.
pub fn gigabytes(bytes: u64) -> String {
    format!("{}.{}GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_unit() {
        let bytes = |text: &str| text.parse::<Size>().map(|size| size.bytes);
        assert_eq!(bytes("32GB"), Ok(32_000_000_000));
        assert_eq!(bytes("1.5 GiB"), Ok(3 << 29));
        assert_eq!(bytes(&gigabytes(2_390_000_000)), Ok(2_300_000_000));
        for wrong in [
            "", "32", "GB", "-1GB", "0GB", "NaNGB", "1e30TB", "32 gb", "32GBs",
        ] {
            assert!(bytes(wrong).unwrap_err().contains("32GB"), "{wrong}");
        }
    }
}
