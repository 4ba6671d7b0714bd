//! Access to metadata by key and type.

use super::read::{Entry, Gguf, Value, of_key};
use super::{GgufError, fail};

impl Gguf<'_> {
    /// Fails at the first key that begins with `prefix` and is not in `known`, since it could
    /// change answers.
    pub fn only(&self, prefix: &str, known: &[&str]) -> Result<(), GgufError> {
        let own = self.metadata.range(prefix.to_string()..);
        let mut own = own.take_while(|(key, _)| key.starts_with(prefix));
        match own.find(|(key, _)| !known.contains(&&key[prefix.len()..])) {
            Some((key, entry)) => fail(entry.offset, of_key(key), "nobody here knows this key"),
            None => Ok(()),
        }
    }

    fn entry(&self, key: &str) -> Result<&Entry, GgufError> {
        match self.metadata.get(key) {
            Some(entry) => Ok(entry),
            None => fail(0, of_key(key), "is missing"),
        }
    }

    /// An error about the value of a key.
    pub fn wrong<T>(&self, key: &str, problem: impl Into<String>) -> Result<T, GgufError> {
        fail(self.entry(key)?.offset, of_key(key), problem)
    }

    pub fn whole(&self, key: &str) -> Result<usize, GgufError> {
        let found = match &self.entry(key)?.value {
            Value::Unsigned(number) => usize::try_from(*number).ok(),
            Value::Signed(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        found.map_or_else(|| self.wrong(key, "is no whole number"), Ok)
    }

    /// Number of a key as people write it: an F32 as the shortest decimal that rounds to it.
    pub fn decimal(&self, key: &str) -> Result<f64, GgufError> {
        match self.entry(key)?.value {
            Value::Single(number) if number.is_finite() => Ok(number
                .to_string()
                .parse()
                .expect("Rust reads what it prints")),
            Value::Double(number) if number.is_finite() => Ok(number),
            _ => self.wrong(key, "is no finite number"),
        }
    }

    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        match &self.entry(key)?.value {
            Value::Text(text) => Ok(text),
            _ => self.wrong(key, "is no text"),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        let items = self.list(key)?.iter();
        let texts = items.map(|item| match item {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let texts: Option<_> = texts.collect();
        texts.map_or_else(|| self.wrong(key, "is no list of texts"), Ok)
    }

    pub fn list(&self, key: &str) -> Result<&[Value], GgufError> {
        match &self.entry(key)?.value {
            Value::List(items) => Ok(items),
            _ => self.wrong(key, "is no list"),
        }
    }

    /// Fails if the flag `key` is set, as that would change answers; an absent flag is not set.
    pub fn unset(&self, key: &str) -> Result<(), GgufError> {
        match self.metadata.get(key).map(|entry| &entry.value) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => self.wrong(key, "is set, and what it asks for is not made here"),
        }
    }
}
