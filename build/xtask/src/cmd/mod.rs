//! The verbs, one file each.

pub mod bench;
pub mod build;
pub mod check;
pub mod checkpoint;
pub mod clean;
pub mod dist;
pub mod figures;
pub mod lint;
pub mod mirror;
pub mod model;
pub mod reads;
pub mod reproduce;
pub mod run;
pub mod show;
pub mod sizes;
pub mod steps;
pub mod synth;
pub mod test;
pub mod weights;
pub mod workflows;
