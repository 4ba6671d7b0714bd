//! Order in which bodies are read: JSON, templates and encoding take time and memory that others
//! wait for.
//!
//! Small bodies have places of their own. Large ones share a few, and the memory that what is made
//! of them may take together; of those that wait the smallest comes next, and every other time the
//! one that has waited longest, so that none waits for ever. Who leaves while it waits costs
//! nothing more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::backend::allocator;

use super::body::{Share, WholeBody};
use super::error::ApiError;
use super::json;
use super::limits::{
    JSON_VALUES_MAX, LARGE_PARSERS_MAX, PARSERS_MAX, PARSING_BYTES_MAX, SMALL_BODY_BYTES,
};

/// Copies of a body's texts that are there at once, at most: as they came, as JSON, as messages, in
/// the template's form, rendered, and without what hides control tokens.
const COPIES: usize = 6;
/// Memory of a JSON value beside its text: its place in a list or, at worst, in a map that grows,
/// and its key.
const VALUE_BYTES: usize = 160;

/// What was made of a body is given back to the system at once if it may have been as large.
const TRIMMED_BYTES_MIN: usize = 8 * 1024 * 1024;

/// The places of a server.
#[derive(Debug, Default)]
pub struct Parsing {
    small: Arc<Places>,
    large: Arc<Places>,
}

/// A body that waited for its turn, which ends when this is dropped.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// Share of the memory for bodies; none once the bytes are gone.
    share: Option<Arc<Share>>,
    turn: Turn,
}

impl Parsing {
    /// Waits for a place. Whoever stops waiting gives it up.
    pub async fn enter(&self, body: WholeBody) -> Body {
        let bytes = memory(&body.bytes);
        let turn = match body.bytes.len() <= SMALL_BODY_BYTES {
            true => enter(&self.small, PARSERS_MAX, bytes).await,
            false => enter(&self.large, LARGE_PARSERS_MAX, bytes).await,
        };
        Body {
            bytes: body.bytes,
            share: Some(body.share),
            turn,
        }
    }
}

impl Body {
    /// The JSON of the body, whose bytes are given up.
    ///
    /// # Errors
    /// As [`json::parse`]; 400.
    pub fn json(&mut self) -> Result<Value, ApiError> {
        let value = json::parse(&self.bytes);
        self.bytes = Bytes::new();
        self.share = None;
        value.map_err(ApiError::malformed)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.turn.bytes >= TRIMMED_BYTES_MIN {
            allocator::trim();
        }
    }
}

/// Memory that reading `body` takes, at most.
fn memory(body: &[u8]) -> usize {
    let begins_value = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
    let values = 1 + body.iter().filter(begins_value).count();
    let values = values.min(JSON_VALUES_MAX);
    (body.len() * COPIES + values * VALUE_BYTES).min(PARSING_BYTES_MAX)
}

#[derive(Debug, Default)]
struct Places(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// Turns that were given, and what they may take.
    taken: usize,
    bytes: usize,
    /// Waiting bodies in the order of their arrival.
    waiting: Vec<Waiting>,
    /// The longest wait ends next, whatever its size.
    oldest_next: bool,
    /// Names for turns.
    last: u64,
}

#[derive(Debug)]
struct Waiting {
    name: u64,
    bytes: usize,
    called: oneshot::Sender<()>,
}

/// A place, or one in the queue for it.
#[derive(Debug)]
struct Turn {
    places: Arc<Places>,
    most: usize,
    name: u64,
    bytes: usize,
}

async fn enter(places: &Arc<Places>, most: usize, bytes: usize) -> Turn {
    let (called, call) = oneshot::channel();
    let turn = {
        let mut queue = places.lock();
        queue.last += 1;
        let name = queue.last;
        queue.waiting.push(Waiting {
            name,
            bytes,
            called,
        });
        queue.call(most);
        Turn {
            places: places.clone(),
            most,
            name,
            bytes,
        }
    };
    // It is called, or the wait ends: the queue forgets nobody.
    let _ = call.await;
    turn
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in between can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Gives turns while there is room; the only one may take any memory.
    fn call(&mut self, most: usize) {
        while self.taken < most
            && let Some(at) = self.next()
            && (self.taken == 0 || self.bytes + self.waiting[at].bytes <= PARSING_BYTES_MAX)
        {
            let next = self.waiting.remove(at);
            self.taken += 1;
            self.bytes += next.bytes;
            self.oldest_next = !self.oldest_next;
            // Who has left gives the place back when it is dropped.
            let _ = next.called.send(());
        }
    }

    fn next(&self) -> Option<usize> {
        let places = 0..self.waiting.len();
        match self.oldest_next {
            true => places.min(),
            false => places.min_by_key(|&at| self.waiting[at].bytes),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.places.lock();
        let waits = |waiting: &Waiting| waiting.name == self.name;
        match queue.waiting.iter().position(waits) {
            Some(at) => drop(queue.waiting.remove(at)),
            None => {
                queue.taken -= 1;
                queue.bytes -= self.bytes;
            }
        }
        queue.call(self.most);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Bytes of those that wait, in the order in which they are called where one has the place.
    async fn order(sizes: &[usize]) -> Vec<usize> {
        let places = Arc::new(Places::default());
        let mut held = enter(&places, 1, 0).await;
        let mut waiting: Vec<_> = sizes
            .iter()
            .map(|&bytes| Box::pin(enter(&places, 1, bytes)))
            .collect();
        let mut called = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for turn in &mut waiting {
            assert!(turn.as_mut().poll(&mut context).is_pending());
        }
        while !waiting.is_empty() {
            drop(held);
            let mut polled = waiting.iter_mut().enumerate();
            let next = polled.find_map(|(at, turn)| match turn.as_mut().poll(&mut context) {
                std::task::Poll::Ready(turn) => Some((at, turn)),
                std::task::Poll::Pending => None,
            });
            let (at, turn) = next.expect("one is called");
            drop(waiting.remove(at));
            called.push(turn.bytes);
            held = turn;
        }
        called
    }

    fn taken(places: &Places) -> (usize, usize) {
        let queue = places.lock();
        (queue.taken, queue.bytes)
    }

    #[tokio::test]
    async fn the_smallest_comes_next_and_every_other_time_the_oldest() {
        assert_eq!(order(&[9, 8, 1, 2, 3]).await, [9, 1, 8, 2, 3]);
    }

    #[tokio::test]
    async fn large_ones_share_their_memory_and_one_alone_may_take_all() {
        let places = Arc::new(Places::default());
        let whole = enter(&places, 2, PARSING_BYTES_MAX).await;
        let mut second = pin!(enter(&places, 2, 1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(whole);
        let second = second.await;
        let third = enter(&places, 2, PARSING_BYTES_MAX - 1).await;
        assert_eq!(places.lock().taken, 2);
        drop((second, third));
        assert_eq!(taken(&places), (0, 0));
    }

    #[tokio::test]
    async fn who_leaves_while_it_waits_is_forgotten() {
        let places = Arc::new(Places::default());
        let held = enter(&places, 1, 1).await;
        {
            let mut left = Box::pin(enter(&places, 1, 1));
            let mut context = Context::from_waker(Waker::noop());
            assert!(left.as_mut().poll(&mut context).is_pending());
        }
        assert!(places.lock().waiting.is_empty());
        // Called, and gone before it looks.
        let mut called = Box::pin(enter(&places, 1, 1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(called.as_mut().poll(&mut context).is_pending());
        drop(held);
        drop(called);
        assert_eq!(taken(&places), (0, 0));
    }

    #[test]
    fn many_values_take_more_than_their_text() {
        let text = memory(&[b'a'; 1000]);
        assert_eq!(text, 1000 * COPIES + VALUE_BYTES);
        assert!(memory(&[b','; 1000]) > 20 * text);
        assert_eq!(memory(&vec![b','; 1 << 23]), PARSING_BYTES_MAX);
    }
}
