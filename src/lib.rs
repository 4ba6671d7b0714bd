//! Atlas: one binary per hardware, model and quantisation, serving it over HTTP.

pub mod backend;
pub mod bench;
pub mod calendar;
pub mod cli;
pub mod engine;
pub mod http;
pub mod log;
pub mod model;
pub mod ops;
pub mod target;
pub mod text;
pub mod weights;
