//! Failed calls since the last report.
//!
//! A refused launch leaves the device working. A failed wait does not: the device ran into an
//! error, which every later call repeats, or hides behind an error of its own.

/// Failed calls since the last report, represented by the first one's error.
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
    /// Notes the result of a call that queued work.
    pub fn queued(&mut self, result: Result<(), E>) {
        if let Err(error) = result {
            self.first.get_or_insert(error);
        }
    }

    /// Notes the result of a wait.
    pub fn waited(&mut self, result: Result<(), E>) {
        self.lost |= result.is_err();
        self.queued(result);
    }

    /// Whether a call failed: work queued now could read memory that was never written.
    pub fn any(&self) -> bool {
        self.first.is_some()
    }

    /// Whether the device does not work any more.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The first error, if any; it is then forgotten unless the device is lost.
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
    fn the_first_error_is_reported_once() {
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
    fn a_refused_launch_is_reported_rather_than_its_consequences() {
        let mut failures = Failures::default();
        failures.queued(Err("refused"));
        failures.waited(Err("later"));
        assert_eq!(failures.reported(), Err("refused"));
        assert!(failures.any());
    }
}
