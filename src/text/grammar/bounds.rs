//! Bounds of numbers in a JSON schema, rewritten to ones that llguidance enforces.
//!
//! llguidance accepts an exclusive bound as a value if the bound is whole and nearer to zero than
//! the other bound. So the next double becomes an inclusive bound: no double lies between the two.

use serde_json::{Map, Value};

use super::formats::FAR;

/// Number that counts as the next one after zero. Smaller numbers would be written with hundreds of
/// zeros, since bounded numbers have no exponents.
const NEAREST_TO_ZERO: f64 = 1e-40;

/// Replaces exclusive bounds by inclusive ones if the allowed numbers lie away from zero.
/// llguidance enforces exclusive bounds whose allowed numbers lie towards zero; an inclusive
/// neighbour, with its many digits, would forbid numbers of which it is a prefix.
pub fn include(schema: &mut Map<String, Value>) {
    for (excluded, included, sign) in [
        ("exclusiveMinimum", "minimum", 1.0),
        ("exclusiveMaximum", "maximum", -1.0),
    ] {
        let far = |name: &str| Some(schema.get(name)?.as_f64()? * sign);
        let Some(bound) = far(excluded).filter(|bound| *bound >= 0.0) else {
            continue;
        };
        let beside = far(included).unwrap_or(bound);
        schema.remove(excluded);
        let nearest = sign * beside.max(above(bound));
        schema.insert(included.to_string(), Value::from(nearest));
    }
}

/// The next double above `bound`, which is at least 0; above 0 it is `NEAREST_TO_ZERO`.
fn above(bound: f64) -> f64 {
    match bound == 0.0 {
        true => NEAREST_TO_ZERO,
        false => bound.next_up(),
    }
}

/// Whether a bound is so far from zero that llguidance treats neighbouring numbers as equal.
pub fn is_far(bound: &Value) -> bool {
    bound.as_f64().is_some_and(|bound| bound.abs() > FAR as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn included(schema: Value) -> Value {
        let mut schema = schema.as_object().unwrap().clone();
        include(&mut schema);
        Value::Object(schema)
    }

    #[test]
    fn a_bound_is_the_nearest_number_that_is_not_excluded() {
        for (schema, expected) in [
            (
                json!({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5}),
                json!({"exclusiveMaximum": 1.5, "minimum": 1.0000000000000002}),
            ),
            (json!({"exclusiveMinimum": 0}), json!({"minimum": 1e-40})),
            (
                json!({"exclusiveMaximum": -0.0}),
                json!({"maximum": -1e-40}),
            ),
            (
                json!({"exclusiveMaximum": -1, "maximum": -1}),
                json!({"maximum": -1.0000000000000002}),
            ),
            (
                json!({"exclusiveMinimum": 1, "minimum": 2}),
                json!({"minimum": 2.0}),
            ),
            (
                json!({"exclusiveMinimum": -1, "minimum": 0}),
                json!({"exclusiveMinimum": -1, "minimum": 0}),
            ),
        ] {
            assert_eq!(included(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn what_doubles_tell_apart_and_whole_numbers_hold_is_near() {
        for near in [json!(1e18), json!(-1e18), json!(0), json!(i32::MIN)] {
            assert!(!is_far(&near), "{near}");
        }
        for far in [
            json!(1.1e18),
            json!(-1e300),
            json!(u64::MAX),
            json!(i64::MIN),
        ] {
            assert!(is_far(&far), "{far}");
        }
    }
}
