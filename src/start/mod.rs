//! From files to an engine that serves: what verbs, measurements and the library's own API begin
//! with, and how a process ends.

pub mod boot;
pub mod check;
pub mod exit;
pub mod files;
pub mod machine;
pub mod meter;
