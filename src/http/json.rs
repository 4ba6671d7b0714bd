//! JSON bodies, read strictly: no repeated keys, bounded depth and number of values.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use text::work;

use super::limits::{JSON_DEPTH_MAX, JSON_VALUES_MAX};

/// Longest key that an error repeats.
const QUOTED_KEY_CHARS_MAX: usize = 64;

/// Reads one JSON text.
///
/// # Errors
/// A sentence fit for the client, with line and column.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("the body is not UTF-8 from byte {} on", error.valid_up_to()))?;
    if text.trim_start().is_empty() {
        return Err("the body is empty; send a JSON object".to_string());
    }
    let values_left = Cell::new(JSON_VALUES_MAX);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let strict = Strict {
        depth: 0,
        values_left: &values_left,
    };
    let value = strict.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| format!("the body is not valid JSON: {error}"))
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    depth: usize,
    values_left: &'a Cell<usize>,
}

impl<'a> Strict<'a> {
    fn deeper<E: Error>(self) -> Result<Strict<'a>, E> {
        if self.depth == JSON_DEPTH_MAX {
            let problem = format!("nested deeper than {JSON_DEPTH_MAX} levels");
            return Err(E::custom(problem));
        }
        Ok(Strict {
            depth: self.depth + 1,
            ..self
        })
    }

    fn count<E: Error>(self) -> Result<(), E> {
        work::step().map_err(E::custom)?;
        let left = self.values_left.get();
        self.values_left.set(left.saturating_sub(1));
        if left == 0 {
            return Err(E::custom(format!("more than {JSON_VALUES_MAX} values")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let shown: String = key.chars().take(QUOTED_KEY_CHARS_MAX).collect();
                return Err(A::Error::custom(format!("the key {shown:?} appears twice")));
            }
            let value = entries.next_value_seed(inner)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn values_come_through_in_order() {
        let text = r#"{"z": [1, -2, 0.5, true, null, "é"], "a": {"b": 18446744073709551615}}"#;
        let value = parse(text.as_bytes()).unwrap();
        assert_eq!(
            value,
            json!({"z": [1, -2, 0.5, true, null, "é"], "a": {"b": u64::MAX}})
        );
        assert_eq!(value.as_object().unwrap().keys().next().unwrap(), "z");
    }

    #[test]
    fn a_key_twice_is_refused() {
        assert!(refused(r#"{"a": {"n": 1, "n": 2}}"#).contains(r#"the key "n" appears twice"#));
    }

    #[test]
    fn depth_is_bounded_at_the_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(refused(&nested(JSON_DEPTH_MAX + 1)).contains("deeper than 64"));
        assert!(refused(&"[".repeat(1_000_000)).contains("deeper than 64"));
    }

    #[test]
    fn the_number_of_values_is_bounded_at_the_limit() {
        let list = |items: usize| format!("[{}0]", "0,".repeat(items - 1));
        assert!(parse(list(JSON_VALUES_MAX - 1).as_bytes()).is_ok());
        assert!(
            refused(&list(JSON_VALUES_MAX))
                .contains(&format!("more than {JSON_VALUES_MAX} values"))
        );
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            "  ",
            "{",
            "nul",
            "{\"a\":NaN}",
            "[1e999]",
            "{} {}",
            "\"\\ud800\"",
            "[1,]",
        ] {
            refused(text);
        }
        assert!(
            parse(b"\"\xff\"")
                .unwrap_err()
                .contains("not UTF-8 from byte 1")
        );
    }
}
