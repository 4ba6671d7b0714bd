//! Description of the API in OpenAPI 3.1, `GET /openapi.json`.
//!
//! The document is generated from the fields that the parsers read and from recorded answers; a
//! test compares it with a new one.

#[cfg(test)]
#[path = "derive_tests.rs"]
mod derive;
#[cfg(test)]
mod tests;

/// Description of the API in JSON.
pub const DOCUMENT: &str = include_str!("openapi.json");
