//! The binary as its users meet it: started as a process, spoken to over a socket.
//!
//! Each test starts a server of its own on a free port, and ends it. Of the program's code its name
//! and version are used here, the client of `bench serve`, and in `clients` the server around a
//! script.

mod attack;
mod batch;
mod batch_invariance;
mod bundle;
mod chat;
mod check;
mod cli;
mod clients;
mod completions;
mod constraint;
mod corrupt;
mod counts;
mod directories;
mod disk;
mod drawn;
mod files;
mod forged;
mod harness;
mod keys;
mod life;
mod malformed;
mod messages;
mod operator;
mod packed;
mod parsers;
mod prefix;
mod probes;
mod prometheus;
mod readme;
mod responses;
mod schemas;
#[path = "../scripted/mod.rs"]
mod scripted;
mod service;
mod sloppy;
mod smuggling;
mod three_way;
mod timing;
mod warm;
