//! Constraints on replies: the engine asks which tokens may follow and reports the sampled one.
//!
//! A constraint is a state machine over tokens. A mask may take longer than a step can wait, so it
//! is computed on a thread beside the engine while the model runs: the constraint moves to that
//! thread and comes back with its mask. A sequence whose mask is late is left out of steps. The
//! allowed tokens depend on the tokens so far alone, never on time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use step::executor::{Slot, TokenId};

/// Threads that compute masks. A sequence's slot selects the thread: queues have one reader.
pub const THREADS: usize = 4;
/// Longest wait of a step's sampling for late masks, of all sequences together. A sequence whose
/// mask is later still is left out of steps until the mask comes.
pub(super) const GRACE: Duration = Duration::from_millis(1);
/// Longest wait of the engine for a mask when it has nothing else to do.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);
const BITS: usize = u32::BITS as usize;

const GONE: &str = "the constraint of this reply could not be computed";
const NOTHING_ALLOWED: &str = "the constraint and the stop tokens of this reply leave no token";

/// Set of tokens: bit `id % 32` of word `id / 32` stands for the token `id`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    words: Vec<u32>,
}

impl Mask {
    /// Replaces the set by the words of another bit set.
    pub fn copy_from(&mut self, words: &[u32]) {
        self.words.clear();
        self.words.extend_from_slice(words);
    }

    /// Makes the set contain all tokens below `vocab`.
    pub fn fill(&mut self, vocab: usize) {
        self.words.clear();
        self.words.resize(vocab / BITS, u32::MAX);
        if !vocab.is_multiple_of(BITS) {
            self.words.push((1 << (vocab % BITS)) - 1);
        }
    }

    /// The tokens of the set, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> {
        let bits = |(at, &word): (usize, &u32)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    (at * BITS) as TokenId + bit
                })
            })
        };
        self.words.iter().enumerate().flat_map(bits)
    }

    /// Puts a token into the set or takes it out; a token beyond the set's words is never in.
    pub fn set(&mut self, id: TokenId, contained: bool) {
        if let Some(word) = self.words.get_mut(id as usize / BITS) {
            let bit = 1 << (id as usize % BITS);
            *word = if contained { *word | bit } else { *word & !bit };
        }
    }

    /// Whether a token is in the set.
    pub fn has(&self, id: TokenId) -> bool {
        let word = self.words.get(id as usize / BITS);
        word.is_some_and(|word| word & 1 << (id as usize % BITS) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

/// Kind of the set of tokens that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Any token but those of `Constraint::barred`; a stop token only if `stop`.
    Free { stop: bool },
    /// The tokens of `Constraint::mask`.
    Masked,
    /// Nothing: the reply is complete.
    Complete,
}

/// A state machine over the tokens of one reply.
///
/// Errors are texts fit for the client; an error ends this reply alone.
pub trait Constraint: Send {
    /// Kind of the set of tokens that may follow now.
    fn next(&self) -> Next;

    /// The few tokens that may not follow. Asked only when `next` is `Free`.
    fn barred(&self) -> &[TokenId] {
        &[]
    }

    /// Fills `mask` with the tokens that may follow, and returns whether the reply may also end
    /// here. Asked only when `next` is `Masked`, on any thread.
    ///
    /// # Errors
    /// When the mask cannot be computed within the limits of the implementation.
    fn mask(&mut self, mask: &mut Mask) -> Result<bool, String>;

    /// Takes the next token of the reply; never a token that ends the reply.
    ///
    /// # Errors
    /// When the token may not follow.
    fn advance(&mut self, id: TokenId) -> Result<(), String>;
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

/// Tokens that may be sampled at one position.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    All,
    /// All tokens but those of the list.
    Except(&'a [TokenId]),
    /// The tokens of a mask alone.
    Only(&'a Mask),
}

impl Allowed<'_> {
    /// Whether a token may be sampled.
    pub fn has(&self, id: TokenId) -> bool {
        match self {
            Allowed::All => true,
            Allowed::Except(ids) => !ids.contains(&id),
            Allowed::Only(mask) => mask.has(id),
        }
    }
}

/// Constraint that comes back from a thread with its mask.
#[derive(Debug)]
struct Answer {
    constraint: Box<dyn Constraint>,
    mask: Mask,
    /// Result of `Constraint::mask`.
    may_stop: Result<bool, String>,
}

#[derive(Debug)]
struct Job {
    constraint: Box<dyn Constraint>,
    /// Mask to fill; its old content is not used.
    mask: Mask,
    back: mpsc::SyncSender<Answer>,
}

/// Threads that compute masks; the threads end when the engine that owns them ends.
#[derive(Debug)]
pub(super) struct MaskThreads {
    inboxes: Vec<mpsc::Sender<Job>>,
}

impl MaskThreads {
    /// # Panics
    /// If the system refuses a thread.
    pub fn new() -> MaskThreads {
        let start = |_| {
            let (inbox, jobs) = mpsc::channel::<Job>();
            let builder = thread::Builder::new().name("masks".to_owned());
            let work = move || jobs.into_iter().for_each(answer);
            builder.spawn(work).expect("the system refuses a thread");
            inbox
        };
        MaskThreads {
            inboxes: (0..THREADS).map(start).collect(),
        }
    }

    /// Sends a job to the slot's thread. If the thread is gone, the job's answer channel closes.
    fn send(&self, slot: Slot, job: Job) {
        let _ = self.inboxes[slot.0 as usize % THREADS].send(job);
    }
}

fn answer(job: Job) {
    let Job {
        mut constraint,
        mut mask,
        back,
    } = job;
    let compute = || {
        let may_stop = constraint.mask(&mut mask);
        Answer {
            constraint,
            mask,
            may_stop,
        }
    };
    // A panic leaves the job without an answer: only the job's sequence fails.
    if let Ok(answer) = catch_unwind(AssertUnwindSafe(compute)) {
        // The receiver is gone where the sequence has ended meanwhile.
        let _ = back.send(answer);
    }
}

/// Owner of a sequence's constraint: its guide, or a thread that computes its next mask.
#[derive(Debug)]
enum Holder {
    Guide(Box<dyn Constraint>),
    Thread(mpsc::Receiver<Answer>),
    /// The thread has answered; the guide has not yet taken over constraint and mask.
    Answered(Answer),
    /// The constraint panicked: the sequence fails.
    Lost,
}

/// The constraint of one running sequence, and the tokens that may follow now.
#[derive(Debug)]
pub(super) struct Guide {
    slot: Slot,
    holder: Holder,
    mask: Mask,
    /// Tokens that are forbidden while all other tokens may follow.
    except: Vec<TokenId>,
}

impl Guide {
    /// Guide of a reply's constraint; the first mask starts to be computed.
    pub fn new(constraint: Box<dyn Constraint>, slot: Slot, threads: &MaskThreads) -> Guide {
        let mut guide = Guide {
            slot,
            holder: Holder::Lost,
            mask: Mask::default(),
            except: Vec::new(),
        };
        guide.prepare(constraint, threads);
        guide
    }

    /// Sends the constraint to a thread if it needs a mask.
    fn prepare(&mut self, constraint: Box<dyn Constraint>, threads: &MaskThreads) {
        if constraint.next() != Next::Masked {
            self.holder = Holder::Guide(constraint);
            return;
        }
        let (back, coming) = mpsc::sync_channel(1);
        let mask = std::mem::take(&mut self.mask);
        let job = Job {
            constraint,
            mask,
            back,
        };
        threads.send(self.slot, job);
        self.holder = Holder::Thread(coming);
    }

    /// Whether `allowed` can be asked; waits for the mask until `deadline`.
    pub fn is_ready(&mut self, deadline: Instant) -> bool {
        let Holder::Thread(coming) = &self.holder else {
            return true;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.holder = match coming.recv_timeout(left) {
            Ok(answer) => Holder::Answered(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => return false,
            Err(mpsc::RecvTimeoutError::Disconnected) => Holder::Lost,
        };
        true
    }

    /// Tokens that may follow, if `is_ready`. `stop_tokens` end the reply: they are allowed exactly
    /// where the reply may end, whatever else the constraint says of these tokens.
    ///
    /// # Errors
    /// A text for the client when the mask could not be computed, or leaves no token.
    pub fn allowed<'a>(&'a mut self, stop_tokens: &'a [TokenId]) -> Result<Allowed<'a>, String> {
        let constraint = match std::mem::replace(&mut self.holder, Holder::Lost) {
            Holder::Guide(constraint) => constraint,
            Holder::Answered(answer) => {
                self.mask = answer.mask;
                let may_stop = answer.may_stop?;
                for &id in stop_tokens {
                    self.mask.set(id, may_stop);
                }
                answer.constraint
            }
            Holder::Thread(_) | Holder::Lost => return Err(GONE.to_owned()),
        };
        let next = constraint.next();
        self.except.clear();
        if next != Next::Masked {
            self.except.extend_from_slice(constraint.barred());
        }
        self.holder = Holder::Guide(constraint);
        match next {
            Next::Masked if self.mask.is_empty() => return Err(NOTHING_ALLOWED.to_owned()),
            Next::Masked => return Ok(Allowed::Only(&self.mask)),
            Next::Free { stop: true } => {}
            Next::Free { stop: false } | Next::Complete => {
                self.except.extend_from_slice(stop_tokens);
            }
        }
        Ok(match self.except.is_empty() {
            true => Allowed::All,
            false => Allowed::Except(&self.except),
        })
    }

    /// Takes the token that was sampled and starts on the next mask; returns whether the reply is
    /// complete.
    ///
    /// # Errors
    /// A text for the client.
    pub fn advance(&mut self, id: TokenId, threads: &MaskThreads) -> Result<bool, String> {
        let Holder::Guide(mut constraint) = std::mem::replace(&mut self.holder, Holder::Lost)
        else {
            return Err(GONE.to_owned());
        };
        constraint.advance(id)?;
        let complete = constraint.next() == Next::Complete;
        if !complete {
            self.prepare(constraint, threads);
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_the_set_of_its_tokens() {
        let mut mask = Mask::default();
        mask.fill(70);
        assert_eq!(mask.ids().collect::<Vec<_>>(), (0..70).collect::<Vec<_>>());
        mask.copy_from(&[1 << 31, 0, 1]);
        assert_eq!(mask.ids().collect::<Vec<_>>(), [31, 64]);
        mask.set(31, false);
        mask.set(40, true);
        mask.set(1000, true);
        assert_eq!(mask.ids().collect::<Vec<_>>(), [40, 64]);
    }

    /// Allows one token, or panics when asked.
    #[derive(Debug)]
    struct One {
        panics: bool,
    }

    impl Constraint for One {
        fn next(&self) -> Next {
            Next::Masked
        }

        fn mask(&mut self, mask: &mut Mask) -> Result<bool, String> {
            assert!(!self.panics, "as told");
            mask.copy_from(&[1 << 5]);
            Ok(false)
        }

        fn advance(&mut self, _: TokenId) -> Result<(), String> {
            Ok(())
        }
    }

    fn guide(panics: bool, threads: &MaskThreads) -> Guide {
        let mut guide = Guide::new(Box::new(One { panics }), Slot(0), threads);
        assert!(guide.is_ready(Instant::now() + Duration::from_secs(20)));
        guide
    }

    #[test]
    fn a_constraint_that_panics_fails_alone() {
        let threads = MaskThreads::new();
        assert_eq!(guide(true, &threads).allowed(&[]).unwrap_err(), GONE);
        assert!(guide(false, &threads).allowed(&[]).is_ok());
    }

    /// Allows all but one token.
    #[derive(Debug)]
    struct AllBut(TokenId, bool);

    impl Constraint for AllBut {
        fn next(&self) -> Next {
            Next::Free { stop: self.1 }
        }

        fn barred(&self) -> &[TokenId] {
            std::slice::from_ref(&self.0)
        }

        fn mask(&mut self, _: &mut Mask) -> Result<bool, String> {
            unreachable!("it is free")
        }

        fn advance(&mut self, _: TokenId) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn what_is_barred_may_not_follow_where_the_rest_may() {
        let threads = MaskThreads::new();
        for (stop, except) in [(true, &[7][..]), (false, &[7, 4])] {
            let mut guide = Guide::new(Box::new(AllBut(7, stop)), Slot(0), &threads);
            let Ok(Allowed::Except(found)) = guide.allowed(&[4]) else {
                panic!("some are barred")
            };
            assert_eq!(found, except);
        }
    }

    #[test]
    fn stop_tokens_come_only_where_the_reply_may_end() {
        let threads = MaskThreads::new();
        let mut other = guide(false, &threads);
        let Ok(Allowed::Only(mask)) = other.allowed(&[4]) else {
            panic!("a mask")
        };
        assert_eq!(mask.ids().collect::<Vec<_>>(), [5]);
        let nothing = guide(false, &threads).allowed(&[5]).unwrap_err();
        assert_eq!(nothing, NOTHING_ALLOWED);
    }
}
