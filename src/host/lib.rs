//! Services of the host: files beneath a folder, outputs, files that an operator names, lines for
//! the operator, threads, memory and the calendar. Nothing in here knows of models or requests.

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

/// Bytes that nobody can guess.
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

/// Ends the process at once. An orderly exit runs what libraries registered for it, libcuda among
/// them, and that may wait for a device that does not answer.
pub fn leave(code: i32) -> ! {
    // SAFETY: it runs nothing of this process and does not return.
    unsafe { libc::_exit(code) }
}
