//! Reading `config.json`: each value by its pointer, or a problem that states the valid values.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::ManifestError;
use crate::facts::TEXT;
use crate::numbers::Range;
use crate::params;
use crate::schema::model::Form;

/// Longest value that a problem shows whole, characters.
const SHOWN: usize = 80;

/// Mark of a value that cannot be read; `Words` has the problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted;

/// A value of a configuration, or the mark that its problem is noted.
pub(super) type Read<T> = Result<T, Noted>;

/// A configuration, and the problems found in it so far.
pub(super) struct Words<'a> {
    /// Name of the file in problems.
    pub file: &'a str,
    pub config: &'a Value,
    /// Form of the release: problems use its words, `config` those of transformers.
    pub form: Form,
    pub problems: Vec<ManifestError>,
}

/// A value as problems show it.
pub(super) fn shown(value: impl Display) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

impl<'a> Words<'a> {
    /// Value at a pointer into the text model's description, or else the file; null counts as none.
    pub fn stated(&self, pointer: &str) -> Option<(String, &'a Value)> {
        let places = [format!("/{TEXT}{pointer}"), pointer.to_string()];
        places.into_iter().find_map(|place| {
            let value = self.config.pointer(&place)?;
            (!value.is_null()).then(|| (self.key(&place), value))
        })
    }

    /// A pointer in the form that problems show.
    fn key(&self, place: &str) -> String {
        let own = match self.form {
            Form::Transformers => place,
            Form::Mistral => params::own(place),
        };
        own[1..].replace('/', ".")
    }

    /// Notes the rule that the value of `key` breaks.
    pub fn note(&mut self, key: &str, value: impl Display, rule: &str) -> Noted {
        let problem = ManifestError::key(self.file, key, shown(value), rule);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        Noted
    }

    /// The first value stated at one of the pointers, as `take` reads it, if there is one.
    pub fn optional<T>(
        &mut self,
        pointers: &[&str],
        rule: &str,
        take: impl Fn(&Value) -> Option<T>,
    ) -> Read<Option<T>> {
        let stated = pointers.iter().find_map(|pointer| self.stated(pointer));
        let Some((key, value)) = stated else {
            return Ok(None);
        };
        match take(value) {
            Some(taken) => Ok(Some(taken)),
            None => Err(self.note(&key, value, rule)),
        }
    }

    /// The value at one of the pointers, as `read` takes it; a problem if none has one.
    pub fn required<T>(
        &mut self,
        pointers: &[&str],
        rule: &str,
        take: impl Fn(&Value) -> Option<T>,
    ) -> Read<T> {
        match self.optional(pointers, rule, take)? {
            Some(value) => Ok(value),
            None => Err(self.absent(pointers[0], rule)),
        }
    }

    /// Notes as a problem that there is no value at a pointer.
    pub fn absent(&mut self, pointer: &str, rule: &str) -> Noted {
        let key = self.key(pointer);
        self.note(&key, "absent", rule)
    }

    /// A whole number in a range, if one is stated.
    pub fn whole(&mut self, pointers: &[&str], range: RangeInclusive<u64>) -> Read<Option<u64>> {
        let rule = whole_rule(&range);
        self.optional(pointers, &rule, |value| whole(value, &range))
    }

    /// Reads a whole number from 1 to `most`.
    pub fn count(&mut self, pointer: &str, most: u64) -> Read<u64> {
        self.between(&[pointer], 1..=most)
    }

    /// A whole number in a range.
    pub fn between(&mut self, pointers: &[&str], range: RangeInclusive<u64>) -> Read<u64> {
        let rule = whole_rule(&range);
        self.required(pointers, &rule, |value| whole(value, &range))
    }

    /// A value in a range, if one is stated. Rules on models check the ranges of real numbers.
    pub fn ranged(&mut self, pointers: &[&str], range: &Range) -> Read<Option<Value>> {
        self.optional(pointers, &rule_of(range), |value| match range {
            Range::Whole(range) => whole(value, range).map(Value::from),
            Range::Above(..) | Range::Within(..) => positive(value).map(Value::from),
            Range::Flag => value.as_bool().map(Value::from),
        })
    }

    /// Notes as a problem that a number with this range is not stated.
    pub fn unstated(&mut self, pointer: &str, range: &Range) -> Noted {
        self.absent(pointer, &rule_of(range))
    }
}

fn rule_of(range: &Range) -> String {
    match range {
        Range::Whole(range) => whole_rule(range),
        Range::Above(..) | Range::Within(..) => "must be a number above 0".to_string(),
        Range::Flag => "must be true or false".to_string(),
    }
}

fn whole_rule(range: &RangeInclusive<u64>) -> String {
    format!(
        "must be a whole number, {} ..= {}",
        range.start(),
        range.end()
    )
}

fn whole(value: &Value, range: &RangeInclusive<u64>) -> Option<u64> {
    value.as_u64().filter(|number| range.contains(number))
}

/// The value as a finite number above 0, if it is one.
pub(super) fn positive(value: &Value) -> Option<f64> {
    value
        .as_f64()
        .filter(|number| number.is_finite() && *number > 0.0)
}

/// The value as a text, if it is one.
pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}
