//! Responses that are being written, to be found, cancelled and deleted by their ids.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::Value;
use tokio::sync::watch;

use crate::error::ApiError;
use crate::keys::KeyId;
use crate::limits::RUNNING_RESPONSES_MAX;

use super::head::Head;

/// Error code of an abort by cancellation.
pub const CANCELLED: &str = "response_cancelled";

/// Error of a cancelled reply; None while it is not cancelled.
type Cancelled = Option<ApiError>;

#[derive(Debug)]
struct Entry {
    owner: Option<KeyId>,
    head: Arc<Head>,
    cancelled: watch::Sender<Cancelled>,
    /// Whether the reply is complete, so that it cannot be cancelled any more.
    complete: bool,
    /// Whether the response was deleted: it is not found any more, and will not be stored.
    deleted: bool,
}

impl Entry {
    fn is_known_to(&self, owner: Option<KeyId>) -> bool {
        self.owner == owner && !self.deleted
    }

    /// Cancels the reply.
    fn end(&self) {
        let error = ApiError::new(StatusCode::CONFLICT, "the response was cancelled");
        self.cancelled.send_replace(Some(error.coded(CANCELLED)));
    }

    fn response(&self) -> Value {
        let status = match *self.cancelled.borrow() {
            Some(_) => "cancelled",
            None => "in_progress",
        };
        self.head.response(status, &[])
    }
}

/// Outcome of an attempt to cancel a response.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// The response is cancelled; its JSON.
    Cancelled(Value),
    TooLate,
    Unknown,
}

/// The running responses of a server. The lock is held for a look-up or until a response is stored,
/// never across an await.
#[derive(Debug, Default)]
pub struct Running {
    entries: Mutex<HashMap<String, Entry>>,
}

impl Running {
    /// Makes a response known to its owner until the handle is dropped; None if there are too many.
    pub fn enter(self: &Arc<Self>, owner: Option<KeyId>, head: &Arc<Head>) -> Option<Handle> {
        let mut entries = self.lock();
        if entries.len() >= RUNNING_RESPONSES_MAX {
            return None;
        }
        let (cancelled, cancellation) = watch::channel(None);
        let entry = Entry {
            owner,
            head: head.clone(),
            cancelled,
            complete: false,
            deleted: false,
        };
        entries.insert(head.id.clone(), entry);
        Some(Handle {
            running: self.clone(),
            id: head.id.clone(),
            cancellation,
        })
    }

    /// JSON of the response `id` while it is written.
    pub fn get(&self, owner: Option<KeyId>, id: &str) -> Option<Value> {
        known(&self.lock(), owner, id).map(Entry::response)
    }

    /// Cancels the reply of the response `id`.
    pub fn cancel(&self, owner: Option<KeyId>, id: &str) -> Outcome {
        let entries = self.lock();
        let Some(entry) = known(&entries, owner, id) else {
            return Outcome::Unknown;
        };
        if entry.complete {
            return Outcome::TooLate;
        }
        entry.end();
        Outcome::Cancelled(entry.response())
    }

    /// Cancels the reply of the response `id` and hides the response; false if `owner` has none.
    pub fn delete(&self, owner: Option<KeyId>, id: &str) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(id).filter(|entry| entry.is_known_to(owner)) else {
            return false;
        };
        entry.deleted = true;
        if !entry.complete {
            entry.end();
        }
        true
    }

    #[cfg(test)]
    pub fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // Each entry is added or removed as a whole, so a panic leaves the list usable.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn known<'e>(
    entries: &'e HashMap<String, Entry>,
    owner: Option<KeyId>,
    id: &str,
) -> Option<&'e Entry> {
    entries.get(id).filter(|entry| entry.is_known_to(owner))
}

/// Handle of a running response; dropping it removes the response.
#[derive(Debug)]
pub struct Handle {
    running: Arc<Running>,
    id: String,
    cancellation: watch::Receiver<Cancelled>,
}

impl Handle {
    /// Receiver of the error that cancels the reply.
    pub fn cancellation(&self) -> watch::Receiver<Cancelled> {
        self.cancellation.clone()
    }

    /// Marks the reply as complete, to prevent its cancellation; true if it was cancelled before.
    pub fn complete(&self) -> bool {
        let mut entries = self.running.lock();
        if let Some(entry) = entries.get_mut(&self.id) {
            entry.complete = true;
        }
        self.cancellation.borrow().is_some()
    }

    /// Removes the response and stores it by `insert`, unless it was deleted. Both happen under one
    /// lock, so that a deletion always finds the response.
    pub fn leave(self, insert: impl FnOnce()) {
        let mut entries = self.running.lock();
        let entry = entries.remove(&self.id);
        if !entry.is_some_and(|entry| entry.deleted) {
            insert();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn head(id: &str) -> Arc<Head> {
        Arc::new(Head {
            id: id.to_string(),
            created: 0,
            model: "m".to_string(),
            repeated: Map::new(),
        })
    }

    #[test]
    fn a_response_is_known_as_long_as_its_handle_lives() {
        let running = Arc::new(Running::default());
        let handle = running.enter(None, &head("a")).unwrap();
        assert_eq!(running.get(None, "a").unwrap()["status"], "in_progress");
        assert!(running.get(None, "b").is_none());
        drop(handle);
        assert!(running.get(None, "a").is_none() && running.ids().is_empty());
        assert_eq!(running.cancel(None, "a"), Outcome::Unknown);
    }

    #[test]
    fn cancelling_reaches_the_reply_and_may_be_repeated() {
        let running = Arc::new(Running::default());
        let handle = running.enter(None, &head("a")).unwrap();
        let mut cancellation = handle.cancellation();
        for _ in 0..2 {
            let Outcome::Cancelled(response) = running.cancel(None, "a") else {
                panic!("it runs");
            };
            assert_eq!(response["status"], "cancelled");
        }
        let error = cancellation.borrow_and_update().clone().unwrap();
        assert_eq!(error.code, Some(CANCELLED));
        assert!(handle.complete(), "it was cancelled before its end");
    }

    #[test]
    fn a_complete_reply_cannot_be_cancelled() {
        let running = Arc::new(Running::default());
        let handle = running.enter(None, &head("a")).unwrap();
        assert!(!handle.complete());
        assert_eq!(running.cancel(None, "a"), Outcome::TooLate);
        assert!(handle.cancellation().borrow().is_none());
    }

    #[test]
    fn a_deleted_response_is_known_to_nobody_and_not_stored() {
        let running = Arc::new(Running::default());
        let handle = running.enter(None, &head("a")).unwrap();
        assert!(running.delete(None, "a") && handle.cancellation().borrow().is_some());
        assert!(!running.delete(None, "a") && running.get(None, "a").is_none());
        assert_eq!(running.cancel(None, "a"), Outcome::Unknown);
        handle.leave(|| panic!("it is not kept"));
        assert!(running.ids().is_empty() && !running.delete(None, "a"));
    }

    #[test]
    fn a_running_response_is_there_for_its_owner_alone() {
        let running = Arc::new(Running::default());
        let owner = Some(KeyId::of(b"a key"));
        let _handle = running.enter(owner, &head("a")).unwrap();
        for other in [None, Some(KeyId::of(b"another"))] {
            assert!(running.get(other, "a").is_none() && !running.delete(other, "a"));
            assert_eq!(running.cancel(other, "a"), Outcome::Unknown);
        }
        assert!(running.get(owner, "a").is_some() && running.delete(owner, "a"));
    }

    #[test]
    fn a_response_is_stored_before_it_leaves() {
        let running = Arc::new(Running::default());
        let (handle, mut stored) = (running.enter(None, &head("a")).unwrap(), false);
        handle.leave(|| stored = true);
        assert!(stored && running.ids().is_empty());
    }

    #[test]
    fn the_number_is_bounded() {
        let running = Arc::new(Running::default());
        let enter = |number: usize| running.enter(None, &head(&number.to_string()));
        let mut handles: Vec<Handle> = (0..RUNNING_RESPONSES_MAX).filter_map(enter).collect();
        assert_eq!(handles.len(), RUNNING_RESPONSES_MAX);
        assert!(enter(RUNNING_RESPONSES_MAX).is_none());
        handles.pop();
        assert!(enter(RUNNING_RESPONSES_MAX).is_some());
    }
}
