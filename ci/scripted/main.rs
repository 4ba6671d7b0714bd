//! `scripted PORT SCRIPT.json [STEP_MICROSECONDS [KEYS_FILE]]`: serves a script in place of a
//! model, for clients whose prompts a small model cannot follow, or at the pace of a model that
//! another device computes. The script is a list of scenes, see `play.rs`.

#[path = "mod.rs"]
mod scripted;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use http::keys::Keys;
use http::settings::Settings;
use scripted::play::{STEP, Scene};
use scripted::server;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, script, rest @ ..] = arguments.as_slice() else {
        return Err("usage: scripted PORT SCRIPT.json [STEP_MICROSECONDS [KEYS_FILE]]".into());
    };
    let step = match rest.first() {
        Some(micros) => Duration::from_micros(micros.parse()?),
        None => STEP,
    };
    let keys = rest
        .get(1)
        .map(|file| Keys::load(Path::new(file)))
        .transpose()?;
    let settings = Settings {
        keys,
        ..Settings::default()
    };
    let scenes: Vec<Scene> = serde_json::from_slice(&fs::read(script)?)?;
    let ready = |address| println!("READY http://{address} model {}", server::MODEL);
    let never = std::future::pending();
    Ok(server::serve(
        scenes,
        step,
        settings,
        port.parse()?,
        ready,
        never,
    )?)
}
