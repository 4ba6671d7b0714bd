//! Threads that the system gives this process.
//!
//! All that serving needs are made at the start, and none later. A limit of a control group or of a
//! user is met before anything is loaded: so many are made at once and given back.

use std::fmt;
use std::io;
use std::sync::RwLock;
use std::thread::{self, Builder};

/// Stack of a thread that only waits.
const WAITING_STACK_BYTES: usize = 64 * 1024;

/// Cores, each of which has a thread of its own where work is shared by all of them.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Why a start cannot go on.
#[derive(Debug)]
pub struct TooFew {
    needed: usize,
    given: usize,
    why: io::Error,
}

impl fmt::Display for TooFew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} threads are needed, and the system gives {}: {}; raise pids.max of the control \
             group (TasksMax= of a unit, --pids-limit of a container), or `ulimit -u`",
            self.needed, self.given, self.why
        )
    }
}

/// Makes sure that this process can have `count` threads beside this one at once.
///
/// # Errors
/// How many there may be, and what refuses the rest.
pub fn require(count: usize) -> Result<(), TooFew> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let _closed = gate.write();
        (0..count).try_for_each(|made| {
            let builder = Builder::new().stack_size(WAITING_STACK_BYTES);
            let thread = builder.spawn_scoped(scope, || drop(gate.read()));
            thread.map(drop).map_err(|why| TooFew {
                needed: count + 1,
                given: made + 1,
                why,
            })
        })
    })
}
