//! Cache of encoded texts, so that only the new turn of a conversation is encoded.
//!
//! Domains share no entries: the speed of a hit would show that somebody else sent the text.

use std::collections::HashMap;
use std::sync::Arc;

use step::executor::TokenId;

/// Most bytes of all entries.
pub const SEGMENTS_BYTES_MAX: usize = 56 * 1024 * 1024;
/// Bytes of an entry in addition to its text and its ids.
const ENTRY_BYTES: usize = 96;
/// Bytes of a domain in addition to its entries.
const DOMAIN_BYTES: usize = 256;

/// Token ids by text, by domain.
type Generation = HashMap<u128, HashMap<Box<str>, Arc<[TokenId]>>>;

/// Cache of two generations. An entry that is used moves to the younger one. A full younger
/// generation replaces the older one, whose entries are dropped.
#[derive(Debug)]
pub struct Segments {
    younger: Generation,
    older: Generation,
    younger_bytes: usize,
    /// Most bytes of one generation.
    bytes_max: usize,
}

impl Segments {
    /// Cache of up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Segments {
        Segments {
            younger: HashMap::new(),
            older: HashMap::new(),
            younger_bytes: 0,
            bytes_max: bytes_max / 2,
        }
    }

    /// Ids of `text`, if `domain` has an entry for it.
    pub fn get(&mut self, domain: u128, text: &str) -> Option<Arc<[TokenId]>> {
        let younger = self.younger.get(&domain);
        if let Some(ids) = younger.and_then(|texts| texts.get(text)) {
            return Some(ids.clone());
        }
        let (text, ids) = self.older.get_mut(&domain)?.remove_entry(text)?;
        self.insert(domain, text, ids.clone());
        Some(ids)
    }

    /// Adds an entry for `domain`, unless the entry alone is too large.
    pub fn put(&mut self, domain: u128, text: &str, ids: &Arc<[TokenId]>) {
        if cost(text, ids) <= self.bytes_max / 2 {
            self.insert(domain, text.into(), ids.clone());
        }
    }

    fn insert(&mut self, domain: u128, text: Box<str>, ids: Arc<[TokenId]>) {
        let cost = cost(&text, &ids);
        if self.younger_bytes + cost + DOMAIN_BYTES > self.bytes_max {
            self.older = std::mem::take(&mut self.younger);
            self.younger_bytes = 0;
        }
        let texts = self.younger.entry(domain).or_default();
        if texts.is_empty() {
            self.younger_bytes += DOMAIN_BYTES;
        }
        if texts.insert(text, ids).is_none() {
            self.younger_bytes += cost;
        }
    }
}

fn cost(text: &str, ids: &[TokenId]) -> usize {
    text.len() + size_of_val(ids) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> Arc<[TokenId]> {
        vec![7; count].into()
    }

    #[test]
    fn what_is_used_stays_cached_and_the_rest_is_evicted() {
        let mut segments = Segments::new(2 * DOMAIN_BYTES + 20 * (ENTRY_BYTES + 8));
        segments.put(0, "kept", &ids(1));
        segments.put(0, "lost", &ids(1));
        for at in 0..100 {
            segments.put(0, &format!("{at:04}"), &ids(1));
            assert!(segments.get(0, "kept").is_some(), "{at}");
        }
        assert!(segments.get(0, "lost").is_none());
        assert!(segments.get(0, "0099").is_some());
        let texts = |of: &Generation| of.values().map(HashMap::len).sum::<usize>();
        assert!(texts(&segments.younger) + texts(&segments.older) <= 20);
    }

    #[test]
    fn a_text_that_would_take_most_of_the_bytes_is_not_cached() {
        let mut segments = Segments::new(4096);
        segments.put(0, "large", &ids(1024));
        assert!(segments.get(0, "large").is_none());
        segments.put(0, "small", &ids(8));
        assert_eq!(segments.get(0, "small").unwrap().len(), 8);
    }

    #[test]
    fn nobody_finds_what_another_domain_had_remembered() {
        let mut segments = Segments::new(4096);
        segments.put(1, "secret", &ids(1));
        assert!(segments.get(2, "secret").is_none());
        assert!(segments.get(1, "secret").is_some());
    }

    #[test]
    fn domains_are_forgotten_as_texts_are() {
        let mut segments = Segments::new(20 * DOMAIN_BYTES);
        for domain in 0..1000 {
            segments.put(domain, "a", &ids(1));
            assert!(segments.younger.len() + segments.older.len() <= 20);
        }
    }

    #[test]
    fn the_same_text_twice_counts_once() {
        let mut segments = Segments::new(4096);
        segments.put(0, "a", &ids(1));
        let bytes = segments.younger_bytes;
        segments.put(0, "a", &ids(1));
        assert_eq!(segments.younger_bytes, bytes);
    }
}
