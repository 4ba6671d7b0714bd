//! Account of the device memory that buffers take; once sealed, it refuses any further buffer.

use std::cell::Cell;

/// Largest buffer for which the driver shares a block of memory between buffers, bytes.
const SHARED_MAX: usize = 1 << 20;
/// Bytes of a block of the driver's memory; a larger buffer has whole blocks of its own.
const BLOCK: usize = 2 << 20;
/// Multiple of bytes at which a buffer in a shared block starts.
const ALIGNMENT: usize = 512;

/// Most bytes of a device's memory that a buffer of `bytes` takes, not counting one shared block
/// that is partly filled: buffers of one size fill blocks.
pub const fn buffer_bytes(bytes: usize) -> u64 {
    let taken = match bytes {
        0 => 0,
        1..=SHARED_MAX => BLOCK / (BLOCK / bytes.next_multiple_of(ALIGNMENT)),
        _ => bytes.next_multiple_of(BLOCK),
    };
    taken as u64
}

/// Bytes of a device's buffers, and whether more may be taken.
#[derive(Debug, Default)]
pub(crate) struct Account {
    taken: Cell<u64>,
    sealed: Cell<bool>,
}

impl Account {
    /// Adds a buffer to the account.
    pub fn take(&self, bytes: usize) {
        self.taken.set(self.taken.get() + buffer_bytes(bytes));
    }

    /// Refuses a buffer if the account is sealed; called before memory is requested.
    pub fn check_open(&self) {
        assert!(
            !self.sealed.get(),
            "memory is asked for that no plan has: all is taken before the first request"
        );
    }

    pub fn give_back(&self, bytes: usize) {
        self.taken.set(self.taken.get() - buffer_bytes(bytes));
    }

    /// Seals the account: no buffer may be added afterwards. Returns the bytes of all buffers.
    pub fn seal(&self) -> u64 {
        self.sealed.set(true);
        self.taken.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_what_a_driver_was_seen_to_give_them() {
        let seen = [
            (4, 512),
            (4096, 4096),
            (65_536, 65_536),
            (524_288, 524_288),
            (786_432, 1 << 20),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
            (34_603_025, 35_651_584),
        ];
        for (bytes, wanted) in seen {
            assert_eq!(buffer_bytes(bytes), wanted, "{bytes}");
        }
    }

    #[test]
    fn what_is_given_back_is_taken_no_more() {
        let account = Account::default();
        account.take(100);
        account.take(3 << 20);
        account.give_back(100);
        assert_eq!(account.seal(), 4 << 20);
    }

    #[test]
    #[should_panic(expected = "that no plan has")]
    fn a_sealed_account_takes_nothing() {
        let account = Account::default();
        account.check_open();
        account.seal();
        account.check_open();
    }

    #[test]
    fn memory_is_given_back_after_the_seal() {
        let account = Account::default();
        account.take(1);
        account.seal();
        account.give_back(1);
        assert_eq!(account.seal(), 0);
    }
}
