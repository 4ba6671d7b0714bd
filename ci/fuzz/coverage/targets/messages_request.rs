#![no_main]

#[expect(dead_code, reason = "one check of many")]
#[path = "../../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::messages_request(bytes));
