//! `GET /openapi.json`: the description of the API in OpenAPI 3.1.
//!
//! The document is made from what the parsers ask of bodies and from recorded answers; a test
//! compares it with what it would be now.

#[cfg(test)]
#[path = "derive_tests.rs"]
mod derive;
#[cfg(test)]
mod tests;

/// The description as JSON.
pub const DOCUMENT: &str = include_str!("openapi.json");
