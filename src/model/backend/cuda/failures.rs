//! Failures since somebody asked.
//!
//! A launch that is refused leaves a device that works. A wait that fails does not: the device ran
//! into an error, which every later call repeats or hides after one of its own.

/// Calls that failed, by the first one's error.
#[derive(Debug)]
pub struct Failures<E> {
    first: Option<E>,
    /// Whether a wait has failed.
    lost: bool,
}

impl<E> Default for Failures<E> {
    fn default() -> Self {
        Failures {
            first: None,
            lost: false,
        }
    }
}

impl<E: Clone> Failures<E> {
    /// Notes how a call ended that queued work.
    pub fn queued(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.first.get_or_insert(error);
        }
    }

    /// Notes how a wait ended.
    pub fn waited(&mut self, result: Result<(), E>) {
        self.lost |= result.is_err();
        self.queued(result);
    }

    /// Whether something failed: what would be queued now could work on what was never written.
    pub fn any(&self) -> bool {
        self.first.is_some()
    }

    /// Whether nothing works any more.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The first error; forgotten then, unless the device is lost.
    pub fn reported(&mut self) -> Result<(), E> {
        let reported = self.first.clone().map_or(Ok(()), Err);
        if !self.lost {
            self.first = None;
        }
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_once() {
        let mut failures = Failures::default();
        failures.queued(Ok(()));
        assert!(!failures.any());
        failures.queued(Err("first"));
        failures.queued(Err("second"));
        assert!(failures.any());
        assert_eq!(failures.reported(), Err("first"));
        assert_eq!(failures.reported(), Ok(()));
        assert!(!failures.any() && !failures.is_lost());
    }

    #[test]
    fn a_lost_device_stays_lost() {
        let mut failures = Failures::default();
        failures.waited(Err("the device's"));
        failures.queued(Err("what came of it"));
        assert!(failures.is_lost());
        for _ in 0..2 {
            assert!(failures.any());
            assert_eq!(failures.reported(), Err("the device's"));
        }
    }

    #[test]
    fn what_a_refused_launch_brought_about_is_not_what_is_told() {
        let mut failures = Failures::default();
        failures.queued(Err("refused"));
        failures.waited(Err("later"));
        assert_eq!(failures.reported(), Err("refused"));
        assert!(failures.any());
    }
}
