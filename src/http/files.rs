//! Number of files that the process may have open, of which each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::limits::{CONNECTIONS_MAX, FILES_BESIDE_CONNECTIONS};

/// Raises the limit of open files as far as the system lets this process, and returns how many
/// connections fit: at most `CONNECTIONS_MAX`.
pub fn connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS_MAX + FILES_BESIDE_CONNECTIONS) as u64;
    let current = Some(raised(limit.current, limit.maximum, wanted));
    let raised = Rlimit { current, ..limit };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    };
    fitting(files)
}

/// Limit of open files to set, given the current and the largest allowed one; None is no limit.
fn raised(current: Option<u64>, maximum: Option<u64>, wanted: u64) -> u64 {
    let reachable = maximum.map_or(wanted, |maximum| wanted.min(maximum));
    current.map_or(reachable, |current| reachable.max(current))
}

fn fitting(files: Option<u64>) -> usize {
    let Some(files) = files.and_then(|files| usize::try_from(files).ok()) else {
        return CONNECTIONS_MAX;
    };
    let most = files.saturating_sub(FILES_BESIDE_CONNECTIONS);
    most.clamp(1, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_to_what_is_wanted_and_allowed() {
        assert_eq!(raised(Some(1024), Some(4096), 2000), 2000);
        assert_eq!(raised(Some(1024), Some(1500), 2000), 1500);
        assert_eq!(raised(Some(1024), None, 2000), 2000);
        assert_eq!(raised(Some(9000), Some(9000), 2000), 9000);
        assert_eq!(raised(None, None, 2000), 2000);
    }

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(fitting(None), CONNECTIONS_MAX);
        assert_eq!(fitting(Some(1024)), 1024 - FILES_BESIDE_CONNECTIONS);
        assert_eq!(fitting(Some(3)), 1);
        assert_eq!(fitting(Some(1 << 40)), CONNECTIONS_MAX);
    }

    #[test]
    fn the_limit_of_this_process_is_one_of_those() {
        let found = connections();
        assert_eq!(found, fitting(getrlimit(Resource::Nofile).current));
    }
}
