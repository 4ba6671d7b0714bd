//! Names of a checkpoint's files, and several in their shortest form.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub use crate::target::{CONFIG_FILE as CONFIG, INDEX_FILE as INDEX, WEIGHTS_FILE as SINGLE};

/// Name of the file that marks a directory whose weights are drawn.
pub const MARK: &str = "atlas-drawn.json";

/// Joins names in their shortest form: names that differ in one number only become one, as in
/// `model-[00003-00007,00012]-of-00042.safetensors`; `names` has at least one.
pub fn shortest(names: &[String]) -> String {
    let mut groups: BTreeMap<(&str, usize, &str), Vec<u64>> = BTreeMap::new();
    let mut parts = Vec::new();
    for name in names {
        match numbered(name) {
            Some((head, digits, tail)) => {
                let numbers = groups.entry((head, digits.len(), tail)).or_default();
                numbers.push(digits.parse().unwrap_or_default());
            }
            None => parts.push(name.clone()),
        }
    }
    let groups = groups.into_iter().map(|((head, width, tail), numbers)| {
        let ranges = ranges(numbers).into_iter().map(|range| word(range, width));
        let ranges: Vec<String> = ranges.collect();
        match &ranges[..] {
            [one] if !one.contains('-') => format!("{head}{one}{tail}"),
            ranges => format!("{head}[{}]{tail}", ranges.join(",")),
        }
    });
    parts.extend(groups);
    match parts.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => parts.concat(),
    }
}

/// Largest number of digits of a number in a name.
const DIGITS_MAX: usize = 9;

/// Text before the first number, the number, and the text after it.
fn numbered(name: &str) -> Option<(&str, &str, &str)> {
    let start = name.find(|c: char| c.is_ascii_digit())?;
    let digits = name[start..].find(|c: char| !c.is_ascii_digit());
    let end = digits.map_or(name.len(), |digits| start + digits);
    (end - start <= DIGITS_MAX).then(|| (&name[..start], &name[start..end], &name[end..]))
}

fn ranges(mut numbers: Vec<u64>) -> Vec<RangeInclusive<u64>> {
    numbers.sort_unstable();
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if *last.end() + 1 >= number => *last = *last.start()..=number,
            _ => ranges.push(number..=number),
        }
    }
    ranges
}

fn word(range: RangeInclusive<u64>, width: usize) -> String {
    let (first, last) = range.into_inner();
    match last - first {
        0 => format!("{first:0width$}"),
        _ => format!("{first:0width$}-{last:0width$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::shortest;

    fn of(numbers: &[u32]) -> String {
        let name = |n: &u32| format!("model-{n:05}-of-00042.safetensors");
        shortest(&numbers.iter().map(name).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_are_shown_as_ranges() {
        assert_eq!(of(&[7]), "model-00007-of-00042.safetensors");
        assert_eq!(of(&[4, 3, 5]), "model-[00003-00005]-of-00042.safetensors");
        assert_eq!(
            of(&[1, 3, 4, 42]),
            "model-[00001,00003-00004,00042]-of-00042.safetensors"
        );
    }

    #[test]
    fn other_names_stand_beside_them() {
        let names = ["config.json", "a1", "a2", "tokenizer.json"].map(str::to_string);
        assert_eq!(shortest(&names), "config.json, tokenizer.json and a[1-2]");
        assert_eq!(shortest(&names[..1]), "config.json");
    }
}
