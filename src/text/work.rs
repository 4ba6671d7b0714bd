//! Cooperative scheduling of work on requests.
//!
//! Parsing, rendering and encoding take time in proportion to the request. Each of these tasks
//! calls [`step`] every fraction of a millisecond, and stops if the step fails. The caller of
//! [`under`] defines a step: it may block the thread to let others run, or fail to cancel the work.
//! Outside of [`under`] a step does nothing.

use std::cell::RefCell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Reason why work was cancelled.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Stopped {
    /// The client has left.
    #[error("nobody waits for it any more")]
    Gone,
    /// The work takes more CPU time than this limit.
    #[error("to read it takes more than {} s of a processor; send less at once", .0.as_secs())]
    TooLong(Duration),
}

/// Function that runs between two steps of a thread's work.
type Between = Box<dyn FnMut() -> Result<(), Stopped>>;

thread_local! {
    static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
}

/// Ends a step of the work.
///
/// # Errors
/// When the work is cancelled.
pub fn step() -> Result<(), Stopped> {
    BETWEEN.with_borrow_mut(|between| between.as_mut().map_or(Ok(()), |between| between()))
}

/// Runs `work`, with `between` as its step function.
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

/// CPU time of this thread.
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
    fn work_is_stopped_between_its_steps_and_other_work_is_not() {
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
