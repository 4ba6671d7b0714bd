//! The library's panics, which it turns into errors of its own.
//!
//! Its hook keeps the stack of each for the error's text, where nobody wants it. The first stack
//! that a process writes costs it some 60 ms, for all names of the program are read: longer than
//! any grammar may take. Here the stack is left out.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    /// Whether this thread does the library's work.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Puts a hook before the library's, which must have been at work before.
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

/// Work of the library, all of which catches its panics; it does not call back.
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
