//! Panics of llguidance, which it turns into errors of its own.
//!
//! Its hook writes the stack of each into the error's text, which nobody needs here. The first
//! stack costs a process some 60 ms, for all names in the program are read: longer than any grammar
//! may take. So the hook here leaves the stack out.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// Whether this thread runs the library's code.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Puts a hook before the library's own one, which must have been set before.
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

/// Runs code of the library, which catches all panics in it. `work` must not call this again.
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
