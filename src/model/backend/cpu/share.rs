//! One output buffer, written by several threads in disjoint ranges.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose disjoint ranges may be written from several threads.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `range`, whose contract keeps ranges disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Shared<'a, T> {
        Shared {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No other live slice of this buffer overlaps `range`.
    #[allow(clippy::mut_from_ref)] // disjoint by contract
    #[inline(always)]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion, unaliased by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements of `range`, for reading.
    ///
    /// # Safety
    /// No live mutable slice of this buffer overlaps `range`.
    #[inline(always)]
    pub unsafe fn read(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion, not written by the contract of this function.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}
