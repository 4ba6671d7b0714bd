//! The model inside of a program. src/README.md shows this text, and the suite runs it.

use atlas::{Engine, Error, Piece, Request};

fn main() -> Result<(), Error> {
    let engine = Engine::embedded()?; // or Engine::open("directory of the weights")?
    let reply = engine.generate(&Request::prompt("What is the capital of France?"))?;
    println!("{} ({} tokens)", reply.text, reply.usage.completion);

    let conversation = [("system", "Answer briefly."), ("user", "What is 17 + 25?")];
    let request = Request::messages(conversation)
        .temperature(0.0)
        .max_tokens(64);
    for piece in engine.stream(&request)? {
        if let Piece::Content(text) = piece? {
            print!("{text}");
        }
    }
    println!();
    Ok(())
}
