//! Work on a request in steps, between which it makes way for that of others.
//!
//! Reading, rendering and encoding take as long as a request is large. What does so calls [`step`]
//! wherever a fraction of a millisecond may have gone by, and gives up where that fails. Who has it
//! done says by [`under`] what happens there: the thread may be kept waiting, or told to stop.
//! Elsewhere a step is nothing.

use std::cell::RefCell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Why work is not done to its end.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Stopped {
    /// Its client has left.
    #[error("nobody waits for it any more")]
    Gone,
    /// It takes more than this of a processor's time.
    #[error("to read it takes more than {} s of a processor; send less at once", .0.as_secs())]
    TooLong(Duration),
}

/// Action between two steps of a thread's work.
type Between = Box<dyn FnMut() -> Result<(), Stopped>>;

thread_local! {
    static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
}

/// A step is done.
///
/// # Errors
/// When there is to be no other.
pub fn step() -> Result<(), Stopped> {
    BETWEEN.with_borrow_mut(|between| between.as_mut().map_or(Ok(()), |between| between()))
}

/// Does `work`, with `between` after each of its steps.
pub fn under<T>(
    between: impl FnMut() -> Result<(), Stopped> + 'static,
    work: impl FnOnce() -> T,
) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            BETWEEN.set(None);
        }
    }
    BETWEEN.set(Some(Box::new(between)));
    let _leave = Leave;
    work()
}

/// Time that processors have spent on this thread: that of other programs does not count.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn work_is_told_between_its_steps_and_other_work_is_not() {
        let steps = Rc::new(Cell::new(0));
        let counted = steps.clone();
        let between = move || match counted.replace(counted.get() + 1) {
            ..3 => Ok(()),
            _ => Err(Stopped::Gone),
        };
        let done = under(between, || (0..9).take_while(|_| step().is_ok()).count());
        assert_eq!((done, steps.get()), (3, 4));
        assert_eq!((step(), steps.get()), (Ok(()), 4));
    }
}
