//! Results of the driver's functions as errors.

use std::ffi::{CStr, c_char};
use std::panic::Location;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use crate::error::CudaError;

/// Converts a driver result to a `Result` that knows its call and location.
#[track_caller]
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(describe(call, failed, Location::caller())),
    }
}

fn describe(call: &'static str, result: CUresult, at: &'static Location<'static>) -> CudaError {
    let (mut name, mut text) = (ptr::null(), ptr::null());
    // SAFETY: both functions write a pointer to a static string, or leave it null for an unknown
    // code.
    let (name, text) = unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
        (static_text(name), static_text(text))
    };
    CudaError {
        call,
        code: result as i32,
        text: format!("{name}, {text}"),
        at,
    }
}

/// # Safety
/// `text` is null or a string that lives as long as the driver.
pub(crate) unsafe fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_string();
    }
    // SAFETY: not null, so a string of the driver.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
