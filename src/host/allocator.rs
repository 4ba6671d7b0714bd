//! The C library's allocator with settings for this server. If the system has no memory the process
//! ends with an exit code instead of an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::mem::MaybeUninit;
use std::ptr;

use crate::leave;

/// Number of arenas. Each reserves its own addresses and keeps its freed blocks.
pub const POOLS: usize = 4;
/// Bytes of addresses that an arena reserves: twice its size while it is created.
pub const POOL_BYTES: u64 = 128 * 1024 * 1024;
/// Bytes from which a block lies outside of the arenas and returns to the system when freed.
const LARGE_BLOCK_BYTES: i32 = 1024 * 1024;
/// Bytes below the frame of `trim_stack` that the function's own calls may use.
const STACK_RETAINED_BYTES: usize = 128 * 1024;
/// Exit code of the process, the same as `Exit::Unavailable`.
const EXIT: i32 = 69;

/// The system's allocator; the process ends when it has no memory.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: each method calls that of the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is that of the call.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is that of the call.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which is that of the call.
        given(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which is that of the call.
        unsafe { System.dealloc(block, layout) }
    }
}

fn given(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        exhausted(bytes);
    }
    block
}

/// Prints an error without allocating, and ends the process.
#[cold]
fn exhausted(bytes: usize) -> ! {
    let mut line = [0_u8; 160];
    let capacity = line.len();
    let mut rest = &mut line[..];
    // Text that does not fit into `line` is cut off.
    let _ = writeln!(
        rest,
        "memory: the system refuses {bytes} bytes; raise its limit (`ulimit -v`, MemoryMax=) or \
         stop other programs"
    );
    let length = capacity - rest.len();
    // SAFETY: `line` has `length` bytes. Rust's handle is not used: the caller may have locked it.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), length) };
    leave(EXIT)
}

/// Sets parameters of the allocator; must be called before there are threads.
#[cfg(target_env = "gnu")]
pub fn prepare() {
    // SAFETY: both calls set a parameter of the allocator; an unknown parameter has no effect.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, POOLS as i32);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES);
    }
}

/// Returns free memory of the arenas to the system.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: the call touches only free blocks, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Returns stack memory that deep calls of this thread have used to the system.
pub fn trim_stack() {
    let mut attributes = MaybeUninit::uninit();
    let (mut lowest, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the attributes are filled before they are read, and destroyed once.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    let here = (&raw const bytes).addr();
    let unused = here.saturating_sub(lowest.addr() + STACK_RETAINED_BYTES);
    // SAFETY: no frame is below `here`, since the stack grows down to `lowest`; the bytes retained
    // for this function's own calls are excluded.
    unsafe { libc::madvise(lowest, unused, libc::MADV_DONTNEED) };
}

/// Does nothing: other C libraries have no such parameters.
#[cfg(not(target_env = "gnu"))]
pub fn prepare() {}

/// Does nothing: other C libraries have no call that returns free memory.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::hint::black_box;
    use std::thread;

    use super::*;

    const DEEP_BYTES: usize = 32 << 20;

    /// Bytes of this thread's stack that are in memory.
    fn resident() -> usize {
        let here = 0_u8;
        let here = (&raw const here).addr();
        let maps = fs::read_to_string("/proc/thread-self/smaps").unwrap();
        let mut lines = maps.lines();
        let holds = |line: &&str| {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            range.is_some_and(|(start, end)| {
                let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
                (number(start)..number(end)).contains(&here)
            })
        };
        lines.find(holds).expect("the stack is mapped");
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kibibytes = line.trim().strip_suffix("kB").unwrap().trim();
        kibibytes.parse::<usize>().unwrap() * 1024
    }

    fn go_deep() {
        black_box(&mut [1_u8; DEEP_BYTES]).fill(2);
    }

    #[test]
    fn a_stack_that_was_deep_is_given_back() {
        let thread = thread::Builder::new().stack_size(2 * DEEP_BYTES);
        let thread = thread.spawn(|| {
            let before = resident();
            go_deep();
            let deep = resident();
            trim_stack();
            (before, deep, resident())
        });
        let (before, deep, after) = thread.unwrap().join().unwrap();
        assert!(deep >= DEEP_BYTES, "{deep}");
        assert!(after <= before + STACK_RETAINED_BYTES, "{before} {after}");
    }
}
