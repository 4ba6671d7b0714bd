//! Descriptions of the GPU for people.

use super::NEEDED;
use crate::target;

/// Text about the SMs that this binary runs on, if these are not all of the GPU.
pub fn partition() -> Option<String> {
    let sms = target::PARTITION?;
    Some(match ffi::probe() {
        Ok(info) => format!("{sms} of {} SMs", info.multiprocessors),
        Err(_) => format!("{sms} SMs"),
    })
}

/// Description of the GPU for `doctor`.
///
/// # Errors
/// Why the GPU cannot be used, and the fix.
pub fn describe() -> Result<String, String> {
    let info = ffi::probe().map_err(|why| why.to_string())?;
    let ((major, minor), driver) = (info.compute_capability, info.driver_cuda);
    let used = match target::PARTITION {
        Some(sms) => format!(" of which it uses {sms}"),
        None => String::new(),
    };
    let text = format!(
        "{}, compute capability {major}.{minor}, {} SMs{used}, {:.1} GiB, driver for CUDA {}.{}",
        info.name,
        info.multiprocessors,
        info.memory_bytes as f64 / f64::from(1 << 30),
        driver.0,
        driver.1
    );
    match info.check(&NEEDED) {
        Ok(()) => Ok(text),
        Err(why) => Err(format!("{text}; {why}")),
    }
}
