//! Responses that clients asked to store: bounded in number, bytes and age, in memory alone.
//!
//! A response belongs to the key of its request: requests with other keys do not find it, and each
//! key has a share of the bytes. Without keys all clients are one owner.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::keys::KeyId;
use crate::limits::{
    STORED_BYTES_MAX, STORED_BYTES_OF_KEY_MAX, STORED_RESPONSES_MAX, STORED_RESPONSES_OF_KEY_MAX,
    STORED_TIME,
};
use host::log;

/// Id of an item, and its JSON.
pub type Item = (String, String);

/// A complete response, and its parts that later requests may refer to.
#[derive(Clone, Debug)]
pub struct Stored {
    /// JSON of the response.
    pub response: Arc<str>,
    /// JSON of the conversation with the response, a list of messages in the form of templates.
    pub history: Arc<str>,
    /// Input items of the request, without those of earlier responses.
    pub input: Arc<[Item]>,
    /// Items of the response's output.
    pub items: Arc<[Item]>,
}

#[derive(Debug)]
struct Entry {
    owner: Option<KeyId>,
    id: String,
    stored: Stored,
    since: Instant,
}

impl Entry {
    fn bytes(&self) -> usize {
        let items = self.stored.items.iter().chain(&*self.stored.input);
        let items: usize = items.map(|(id, json)| id.len() + json.len()).sum();
        self.id.len() + self.stored.response.len() + self.stored.history.len() + items
    }
}

/// Stored responses of all owners, the oldest first.
#[derive(Debug, Default)]
struct Entries {
    list: VecDeque<Entry>,
    bytes: usize,
}

impl Entries {
    /// Number of responses of `owner`, and their bytes.
    fn of(&self, owner: Option<KeyId>) -> (usize, usize) {
        let own = self.list.iter().filter(|entry| entry.owner == owner);
        own.fold((0, 0), |(count, bytes), entry| {
            (count + 1, bytes + entry.bytes())
        })
    }

    /// The owner whose responses have the most bytes.
    fn largest(&self) -> Option<KeyId> {
        let mut bytes: HashMap<Option<KeyId>, usize> = HashMap::new();
        for entry in &self.list {
            *bytes.entry(entry.owner).or_default() += entry.bytes();
        }
        let largest = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
        largest.and_then(|(owner, _)| owner)
    }

    fn remove(&mut self, at: usize) -> bool {
        let removed = self.list.remove(at);
        if let Some(entry) = &removed {
            self.bytes -= entry.bytes();
        }
        removed.is_some()
    }

    fn drop_oldest_of(&mut self, owner: Option<KeyId>) {
        let oldest = self.list.iter().position(|entry| entry.owner == owner);
        if let Some(at) = oldest {
            self.remove(at);
        }
    }

    fn drop_expired(&mut self, now: Instant, age_max: Duration) {
        let expired = |entry: &Entry| now.duration_since(entry.since) > age_max;
        while self.list.front().is_some_and(expired) {
            self.remove(0);
        }
    }

    fn position(&self, owner: Option<KeyId>, id: &str) -> Option<usize> {
        let is_meant = |entry: &Entry| entry.owner == owner && entry.id == id;
        self.list.iter().position(is_meant)
    }
}

/// The store of a server as one owner sees it. The lock is never held across an await.
#[derive(Debug, Default)]
pub struct Store {
    entries: Arc<Mutex<Entries>>,
    owner: Option<KeyId>,
}

impl Store {
    /// The store as `owner` sees it.
    pub fn of(&self, owner: Option<KeyId>) -> Store {
        Store {
            entries: self.entries.clone(),
            owner,
        }
    }

    /// Most responses that the owner may have, and most bytes.
    fn quota(&self) -> (usize, usize) {
        match self.owner {
            Some(_) => (STORED_RESPONSES_OF_KEY_MAX, STORED_BYTES_OF_KEY_MAX),
            None => (STORED_RESPONSES_MAX, STORED_BYTES_MAX),
        }
    }

    /// Stores a response. Evicts the owner's oldest responses if the owner's share is full, those
    /// of the owner with most bytes if the store is full. Responses above the share are not stored.
    pub fn insert(&self, id: &str, stored: Stored) {
        let owner = self.owner;
        let entry = Entry {
            owner,
            id: id.to_string(),
            stored,
            since: Instant::now(),
        };
        let bytes = entry.bytes();
        let (count_max, bytes_max) = self.quota();
        if bytes > bytes_max {
            log::debug(format_args!("a response of {bytes} bytes is not stored"));
            return;
        }
        let mut entries = self.lock(entry.since);
        let exceeds =
            |(count, taken): (usize, usize)| count == count_max || taken + bytes > bytes_max;
        while exceeds(entries.of(owner)) {
            entries.drop_oldest_of(owner);
        }
        while entries.list.len() == STORED_RESPONSES_MAX || entries.bytes + bytes > STORED_BYTES_MAX
        {
            let largest = entries.largest();
            entries.drop_oldest_of(largest);
        }
        entries.bytes += bytes;
        entries.list.push_back(entry);
    }

    pub fn get(&self, id: &str) -> Option<Stored> {
        let entries = self.lock(Instant::now());
        let at = entries.position(self.owner, id)?;
        Some(entries.list[at].stored.clone())
    }

    /// JSON of the item `id` in the output of a stored response.
    pub fn item(&self, id: &str) -> Option<String> {
        let entries = self.lock(Instant::now());
        // Clients mostly refer to the latest response.
        let mut items = entries
            .list
            .iter()
            .rev()
            .filter(|entry| entry.owner == self.owner)
            .flat_map(|entry| &*entry.stored.items);
        let (_, json) = items.find(|(known, _)| known == id)?;
        Some(json.clone())
    }

    /// Removes a response; false if `owner` has none of this id.
    pub fn remove(&self, id: &str) -> bool {
        let mut entries = self.lock(Instant::now());
        let found = entries.position(self.owner, id);
        found.is_some_and(|at| entries.remove(at))
    }

    /// The entries, of which those too old at `now` are removed.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Entries> {
        // Each entry is added or removed as a whole, so a panic leaves the list usable.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.drop_expired(now, STORED_TIME);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored {
            response: "r".repeat(bytes).into(),
            history: "[]".into(),
            input: [].into(),
            items: [].into(),
        }
    }

    #[test]
    fn what_is_stored_is_found_until_it_is_removed() {
        let store = Store::default();
        store.insert("a", stored(3));
        assert_eq!(&*store.get("a").unwrap().response, "rrr");
        assert!(store.remove("a") && !store.remove("a"));
        assert!(store.get("a").is_none());
        assert_eq!(store.entries.lock().unwrap().bytes, 0);
    }

    #[test]
    fn an_item_is_found_as_long_as_its_response_is_stored() {
        let store = Store::default();
        let items = [("i".to_string(), "{}".to_string())].into();
        store.insert("a", Stored { items, ..stored(1) });
        assert_eq!(store.item("i").unwrap(), "{}");
        assert!(store.item("a").is_none());
        store.remove("a");
        assert!(store.item("i").is_none());
        assert_eq!(store.entries.lock().unwrap().bytes, 0);
    }

    #[test]
    fn the_number_is_bounded_and_the_oldest_goes_first() {
        let store = Store::default();
        for number in 0..=STORED_RESPONSES_MAX {
            store.insert(&number.to_string(), stored(1));
        }
        assert!(store.get("0").is_none() && store.get("1").is_some());
        let entries = store.entries.lock().unwrap();
        assert_eq!(entries.list.len(), STORED_RESPONSES_MAX);
    }

    #[test]
    fn the_bytes_are_bounded() {
        let store = Store::default();
        for id in ["a", "b", "c"] {
            store.insert(id, stored(STORED_BYTES_MAX / 2 - 8));
        }
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("c").is_some());
        store.insert("huge", stored(STORED_BYTES_MAX));
        assert!(store.get("huge").is_none() && store.get("c").is_some());
        assert!(store.entries.lock().unwrap().bytes <= STORED_BYTES_MAX);
    }

    fn key(number: u8) -> Option<KeyId> {
        Some(KeyId::of(&[number]))
    }

    #[test]
    fn what_belongs_to_a_key_is_there_for_no_other() {
        let store = Store::default();
        let items = [("i".to_string(), "{}".to_string())].into();
        store.of(key(1)).insert("a", Stored { items, ..stored(1) });
        for other in [None, key(2)] {
            let other = store.of(other);
            assert!(other.get("a").is_none() && other.item("i").is_none() && !other.remove("a"));
        }
        let own = store.of(key(1));
        assert!(own.get("a").is_some() && own.item("i").is_some() && own.remove("a"));
    }

    #[test]
    fn a_key_pushes_out_its_own_responses_and_then_those_of_who_has_most() {
        let store = Store::default();
        store.of(key(1)).insert("first", stored(1));
        let most = STORED_RESPONSES_OF_KEY_MAX;
        for number in 0..most + 2 {
            store.of(key(2)).insert(&number.to_string(), stored(1));
        }
        assert!(store.of(key(1)).get("first").is_some());
        assert_eq!(store.entries.lock().unwrap().of(key(2)).0, most);
        for owner in 3..6 {
            for number in 0..most {
                store
                    .of(key(owner))
                    .insert(&number.to_string(), stored(owner.into()));
            }
        }
        assert!(store.of(key(1)).get("first").is_some());
        assert_eq!(
            store.entries.lock().unwrap().list.len(),
            STORED_RESPONSES_MAX
        );
    }

    #[test]
    fn the_age_is_bounded() {
        let store = Store::default();
        store.insert("a", stored(1));
        let later = Instant::now() + STORED_TIME + Duration::from_secs(1);
        assert!(store.lock(later).list.is_empty());
    }
}
