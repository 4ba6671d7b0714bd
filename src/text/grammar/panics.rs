//! Panics inside llguidance, which the library turns into errors.
//!
//! The library's panic hook would write a stack trace into each error. The first trace of a process
//! takes some 60 ms, since all symbols of the program are read: longer than any grammar may take.
//! So the hook of this module omits the stack.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// Whether this thread runs code of llguidance.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Puts a hook before llguidance's own hook, which must have been set before.
pub fn without_stacks() {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    });
}

/// Runs code of llguidance, which catches all panics in it. `work` must not call this function.
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(false);
        }
    }
    INSIDE.set(true);
    let _leave = Leave;
    work()
}
