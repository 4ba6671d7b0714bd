//! Start of an engine from files, shared by verbs, measurements and the library's own API, and the
//! end of a process.

pub mod boot;
pub mod check;
pub mod exit;
pub mod files;
pub mod machine;
pub mod meter;
