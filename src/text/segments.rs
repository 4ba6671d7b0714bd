//! Ids of texts that were encoded before, so that a conversation costs only its new turn.

use std::collections::HashMap;
use std::sync::Arc;

use crate::executor::TokenId;

/// Bytes that remembered texts and their ids take at most.
pub const SEGMENTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What an entry takes beside its text and its ids.
const ENTRY_BYTES: usize = 96;

/// Two generations: what is used stays in the younger one; when that is full, it becomes the older
/// one, whose entries nobody asked for in the meantime are forgotten.
#[derive(Debug)]
pub struct Segments {
    younger: HashMap<Box<str>, Arc<[TokenId]>>,
    older: HashMap<Box<str>, Arc<[TokenId]>>,
    younger_bytes: usize,
    /// Of one generation.
    bytes_max: usize,
}

impl Segments {
    /// Remembers up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Segments {
        Segments {
            younger: HashMap::new(),
            older: HashMap::new(),
            younger_bytes: 0,
            bytes_max: bytes_max / 2,
        }
    }

    /// The ids of `text`, if they are remembered.
    pub fn get(&mut self, text: &str) -> Option<Arc<[TokenId]>> {
        if let Some(ids) = self.younger.get(text) {
            return Some(ids.clone());
        }
        let (text, ids) = self.older.remove_entry(text)?;
        self.insert(text, ids.clone());
        Some(ids)
    }

    /// Remembers the ids of `text`, unless they alone would take most of the room.
    pub fn put(&mut self, text: &str, ids: &Arc<[TokenId]>) {
        if cost(text, ids) <= self.bytes_max / 2 {
            self.insert(text.into(), ids.clone());
        }
    }

    fn insert(&mut self, text: Box<str>, ids: Arc<[TokenId]>) {
        let cost = cost(&text, &ids);
        if self.younger_bytes + cost > self.bytes_max {
            self.older = std::mem::take(&mut self.younger);
            self.younger_bytes = 0;
        }
        if self.younger.insert(text, ids).is_none() {
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
    fn what_is_used_is_kept_and_the_rest_forgotten() {
        let mut segments = Segments::new(20 * (ENTRY_BYTES + 8));
        segments.put("kept", &ids(1));
        segments.put("lost", &ids(1));
        for at in 0..100 {
            segments.put(&format!("{at:04}"), &ids(1));
            assert!(segments.get("kept").is_some(), "{at}");
        }
        assert!(segments.get("lost").is_none());
        assert!(segments.get("0099").is_some());
        assert!(segments.younger.len() + segments.older.len() <= 20);
    }

    #[test]
    fn a_text_that_would_take_most_of_the_room_is_not_kept() {
        let mut segments = Segments::new(4096);
        segments.put("large", &ids(1024));
        assert!(segments.get("large").is_none());
        segments.put("small", &ids(8));
        assert_eq!(segments.get("small").unwrap().len(), 8);
    }

    #[test]
    fn the_same_text_twice_counts_once() {
        let mut segments = Segments::new(4096);
        segments.put("a", &ids(1));
        let bytes = segments.younger_bytes;
        segments.put("a", &ids(1));
        assert_eq!(segments.younger_bytes, bytes);
    }
}
