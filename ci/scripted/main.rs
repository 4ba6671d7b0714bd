//! `scripted PORT SCRIPT.json [STEP_MICROSECONDS]`: serves a script in place of a model, for
//! clients whose prompts a small model cannot follow, or at the pace of a model that another device
//! computes. The script is a list of scenes, see `play.rs`.

#[path = "mod.rs"]
mod scripted;

use std::error::Error;
use std::fs;
use std::time::Duration;

use scripted::play::{STEP, Scene};
use scripted::server;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (port, script, step) = match arguments.as_slice() {
        [port, script] => (port, script, STEP),
        [port, script, micros] => (port, script, Duration::from_micros(micros.parse()?)),
        _ => return Err("usage: scripted PORT SCRIPT.json [STEP_MICROSECONDS]".into()),
    };
    let scenes: Vec<Scene> = serde_json::from_slice(&fs::read(script)?)?;
    let ready = |address| println!("READY http://{address} model {}", server::MODEL);
    let never = std::future::pending();
    Ok(server::serve(scenes, step, port.parse()?, ready, never)?)
}
