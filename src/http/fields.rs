//! Typed access to the fields of a JSON body. An error names the field by its path.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use host::log;
use text::work;

use super::error::ApiError;

/// Unknown fields of one request that are named in the log.
const UNKNOWN_NAMED_MAX: usize = 8;
const UNKNOWN_NAME_CHARS_MAX: usize = 64;

/// An object somewhere in a body, with its path.
#[derive(Clone, Debug)]
pub struct Object<'v> {
    map: &'v Map<String, Value>,
    path: String,
    /// Names of the fields that were read and are present.
    asked: RefCell<Vec<&'v str>>,
}

/// A value somewhere in a body; never null.
#[derive(Clone, Debug)]
pub struct Field<'v> {
    pub value: &'v Value,
    pub path: String,
}

impl<'v> Object<'v> {
    /// The whole body.
    ///
    /// # Errors
    /// When the body is no object.
    pub fn root(value: &'v Value) -> Result<Object<'v>, ApiError> {
        let map = value.as_object();
        let map = map.ok_or_else(|| ApiError::malformed("the body must be a JSON object"))?;
        Ok(Object::of(map, String::new()))
    }

    fn of(map: &'v Map<String, Value>, path: String) -> Object<'v> {
        let asked = RefCell::default();
        Object { map, path, asked }
    }

    /// Fields that no method has read: this server does not know them.
    pub fn unknown(&self) -> Vec<&'v str> {
        let asked = self.asked.borrow();
        let names = self.map.keys().map(String::as_str);
        names.filter(|name| !asked.contains(name)).collect()
    }

    /// Logs, at the debug level, which fields of a request were ignored.
    pub fn report_unknown(&self) {
        if !log::logs_debug() {
            return;
        }
        for name in self.unknown().into_iter().take(UNKNOWN_NAMED_MAX) {
            let name: String = name.chars().take(UNKNOWN_NAME_CHARS_MAX).collect();
            log::debug(format_args!("ignored the unknown field {name:?}"));
        }
    }

    /// Marks a field as known without reading its value; false if it is absent or null.
    pub fn pass_over(&self, name: &str) -> bool {
        let Some((key, value)) = self.map.get_key_value(name) else {
            return false;
        };
        self.asked.borrow_mut().push(key);
        !value.is_null()
    }

    /// The field `name`; None if it is absent or null.
    pub fn get(&self, name: &str) -> Option<Field<'v>> {
        #[cfg(test)]
        record::note(&self.path_of(name), &[]);
        let (key, value) = self.map.get_key_value(name)?;
        self.asked.borrow_mut().push(key);
        let path = self.path_of(name);
        (!value.is_null()).then_some(Field { value, path })
    }

    /// The field `name`.
    ///
    /// # Errors
    /// When the field is absent or null.
    pub fn require(&self, name: &str) -> Result<Field<'v>, ApiError> {
        #[cfg(test)]
        record::note(&self.path_of(name), &[("required", true.into())]);
        let missing = || ApiError::field(self.path_of(name), "is required");
        self.get(name).ok_or_else(missing)
    }

    pub fn keys(&self) -> impl Iterator<Item = &'v String> {
        self.map.keys()
    }

    /// The path of the field `name`.
    pub fn path_of(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_string(),
            path => format!("{path}.{name}"),
        }
    }

    /// The field `name` as a boolean; `default` if it is absent.
    pub fn boolean(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        self.get(name).map_or(Ok(default), |field| field.boolean())
    }

    /// The field `name` as a number in `range`; `default` if it is absent.
    pub fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
        default: f64,
    ) -> Result<f64, ApiError> {
        self.get(name)
            .map_or(Ok(default), |field| field.number(range))
    }

    /// The field `name` as an object; None if it is absent or null.
    pub fn optional_object(&self, name: &str) -> Result<Option<Object<'v>>, ApiError> {
        self.get(name).map(|field| field.object()).transpose()
    }

    pub fn optional_string(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        self.get(name).map(|field| field.string()).transpose()
    }

    /// Items of the list `name`, at most `most`; none if the field is absent.
    pub fn items(&self, name: &str, most: usize) -> Result<Vec<Field<'v>>, ApiError> {
        self.get(name)
            .map_or(Ok(Vec::new()), |field| field.list(most))
    }

    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|field| field.integer(range)).transpose()
    }
}

impl<'v> Field<'v> {
    /// An error about this field.
    pub fn error(&self, problem: impl AsRef<str>) -> ApiError {
        ApiError::field(self.path.clone(), problem)
    }

    /// Error that states what the field must be, `wanted`, and the type of its value.
    pub fn mismatch(&self, wanted: impl Display) -> ApiError {
        let found = match self.value {
            Value::Null => "null".to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Number(value) => value.to_string(),
            Value::String(_) => "a string".to_string(),
            Value::Array(_) => "a list".to_string(),
            Value::Object(_) => "an object".to_string(),
        };
        self.error(format!("must be {wanted}, not {found}"))
    }

    pub fn string(&self) -> Result<&'v str, ApiError> {
        #[cfg(test)]
        record::note(&self.path, &[("type", "string".into())]);
        self.value.as_str().ok_or_else(|| self.mismatch("a string"))
    }

    pub fn boolean(&self) -> Result<bool, ApiError> {
        #[cfg(test)]
        record::note(&self.path, &[("type", "boolean".into())]);
        let found = self.value.as_bool();
        found.ok_or_else(|| self.mismatch("true or false"))
    }

    /// The value as a whole number, which JSON writes without fraction and exponent.
    pub fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        #[cfg(test)]
        record::note_range(&self.path, "integer", *range.start(), *range.end());
        let found = self.value.as_i64().filter(|found| range.contains(found));
        let (least, most) = range.into_inner();
        found.ok_or_else(|| self.mismatch(format!("an integer from {least} to {most}")))
    }

    pub fn number(&self, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
        #[cfg(test)]
        record::note_range(&self.path, "number", *range.start(), *range.end());
        let found = self.value.as_f64().filter(|found| range.contains(found));
        let (least, most) = range.into_inner();
        found.ok_or_else(|| self.mismatch(format!("a number from {least} to {most}")))
    }

    /// The value as a list of at most `most` items.
    pub fn list(&self, most: usize) -> Result<Vec<Field<'v>>, ApiError> {
        #[cfg(test)]
        record::note(&self.path, &[("type", "array".into())]);
        let items = self.value.as_array();
        let items = items.ok_or_else(|| self.mismatch("a list"))?;
        let count = items.len();
        if count > most {
            return Err(self.error(format!("has {count} items, at most {most} are taken")));
        }
        let field = |(at, value)| {
            self.step()?;
            let path = format!("{}[{at}]", self.path);
            Ok(Field { value, path })
        };
        items.iter().enumerate().map(field).collect()
    }

    /// The value as a text of 1 to `bytes` bytes.
    pub fn text(&self, bytes: usize) -> Result<String, ApiError> {
        let text = self.string()?;
        match (1..=bytes).contains(&text.len()) {
            true => Ok(text.to_string()),
            false => Err(self.error(format!("must have 1 to {bytes} bytes"))),
        }
    }

    /// The value as a list of at most `most` texts, each of 1 to `bytes` bytes.
    pub fn texts(&self, most: usize, bytes: usize) -> Result<Vec<String>, ApiError> {
        let items = self.list(most)?;
        items.iter().map(|item| item.text(bytes)).collect()
    }

    /// Ends a step of reading the field.
    ///
    /// # Errors
    /// When the job is cancelled, so that the field is read no further.
    pub fn step(&self) -> Result<(), ApiError> {
        work::step().map_err(|why| self.error(why.to_string()))
    }

    pub fn object(&self) -> Result<Object<'v>, ApiError> {
        #[cfg(test)]
        record::note(&self.path, &[("type", "object".into())]);
        let map = self.value.as_object();
        let map = map.ok_or_else(|| self.mismatch("an object"))?;
        Ok(Object::of(map, self.path.clone()))
    }
}

/// Record of what parsers ask of bodies: the description of the API is made of it.
#[cfg(test)]
pub mod record {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    /// A path, with the facts that its parser knows in the words of JSON Schema.
    pub type Note = (String, Vec<(&'static str, Value)>);

    thread_local! {
        static NOTES: RefCell<Vec<Note>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes of this thread since the last call.
    pub fn take() -> Vec<Note> {
        NOTES.take()
    }

    pub fn note(path: &str, facts: &[(&'static str, Value)]) {
        NOTES.with_borrow_mut(|notes| notes.push((path.to_string(), facts.to_vec())));
    }

    pub fn note_range<T: Into<Value> + Copy>(path: &str, kind: &str, least: T, most: T) {
        let range = [("minimum", least.into()), ("maximum", most.into())];
        let reported = range
            .into_iter()
            .filter(|(_, bound)| ![json!(i64::MIN), json!(i64::MAX)].contains(bound));
        let facts: Vec<_> = [("type", kind.into())]
            .into_iter()
            .chain(reported)
            .collect();
        note(path, &facts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_names_the_path_and_the_value() {
        let body = json!({"messages": [{"content": 5}]});
        let messages = Object::root(&body).unwrap().require("messages").unwrap();
        let message = messages.list(4).unwrap().remove(0).object().unwrap();
        let error = message.require("content").unwrap().string().unwrap_err();
        assert_eq!(error.param.unwrap(), "messages[0].content");
        assert_eq!(
            error.message,
            "messages[0].content: must be a string, not 5"
        );
    }

    #[test]
    fn integers_are_whole_and_in_range() {
        for (value, ok) in [
            (json!(0), true),
            (json!(8), true),
            (json!(9), false),
            (json!(-1), false),
            (json!(1.0), false),
            (json!(1e308), false),
            (json!(9_223_372_036_854_775_808_u64), false),
            (json!("1"), false),
            (json!(true), false),
        ] {
            let body = json!({"n": value});
            let found = Object::root(&body).unwrap().integer("n", 0..=8);
            assert_eq!(found.is_ok(), ok, "{value}");
        }
    }

    #[test]
    fn fields_that_nobody_asks_for_are_unknown() {
        let body = json!({"a": 1, "b": null, "c": 2, "d": 3});
        let object = Object::root(&body).unwrap();
        assert!(object.get("a").is_some() && object.get("b").is_none());
        assert!(object.get("e").is_none());
        assert_eq!(object.unknown(), ["c", "d"]);
    }

    #[test]
    fn null_counts_as_absent() {
        let body = json!({"stream": null});
        let body = Object::root(&body).unwrap();
        assert!(body.get("stream").is_none());
        assert_eq!(body.require("stream").unwrap_err().param.unwrap(), "stream");
    }
}
