//! Services of the host: files beneath a folder, outputs, files that an operator names, lines for
//! the operator, threads, memory and the calendar. This crate does not know models or requests.

pub mod allocator;
pub mod beneath;
pub mod calendar;
pub mod histogram;
pub mod log;
pub mod operator_file;
pub mod output;
pub mod pool;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;

/// Random bytes that nobody can guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut secret = [0; N];
    let mut filled = 0;
    while filled < secret.len() {
        let rest = &mut secret[filled..];
        // The call waits for the system's randomness, and fails only if a signal interrupts it.
        let got = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
        filled += got.unwrap_or(0);
    }
    secret
}

/// Ends the process at once. An orderly exit would run handlers of libraries, among them libcuda's,
/// which may wait for a device that does not answer.
pub fn leave(code: i32) -> ! {
    // SAFETY: the call runs no code of this process and does not return.
    unsafe { libc::_exit(code) }
}
