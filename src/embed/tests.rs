//! The engine inside of a program, over an executor that follows a script.

use super::*;
use http::testing::{Script, TestServer};
use text::testing::END_OF_TURN;

/// An engine, and the server whose script it plays.
fn playing(script: Script) -> (Engine, TestServer) {
    let server = TestServer::start(script);
    let loaded = Loaded {
        state: server.state.clone(),
        watch: None,
    };
    let loaded = Arc::new(loaded);
    (Engine { loaded }, server)
}

fn question() -> Request {
    Request::prompt("hi").thinking(false)
}

#[test]
fn a_whole_reply_has_text_tokens_usage_and_its_end() {
    let (engine, _server) = playing(Script::text("It is Paris."));
    let reply = engine.generate(&question()).unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.finish),
        ("It is Paris.", Finish::Stop)
    );
    assert_eq!(reply.tokens.len(), reply.usage.completion);
    assert_eq!(reply.tokens.last(), Some(&END_OF_TURN));
    assert!(reply.usage.prompt > 0 && reply.tool_calls.is_empty());
    let cut = engine.generate(&question().max_tokens(2)).unwrap();
    assert_eq!((cut.tokens.len(), cut.finish), (2, Finish::Length));
    assert_eq!(cut.tokens, reply.tokens[..2]);
}

#[test]
fn pieces_make_the_reply_and_come_to_threads_and_tasks() {
    let (engine, _server) = playing(Script::text("It is Paris."));
    let text = |piece: Option<Result<Piece, Error>>| match piece?.unwrap() {
        Piece::Content(text) => Some(text),
        other => panic!("{other:?}"),
    };
    let mut stream = engine.stream(&question()).unwrap();
    let blocking: String = std::iter::from_fn(|| text(stream.next())).collect();
    assert_eq!(
        (blocking.as_str(), stream.finish()),
        ("It is Paris.", Some(Finish::Stop))
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let awaited = runtime.block_on(async {
        let mut stream = engine.stream(&question()).unwrap();
        let mut whole = String::new();
        while let Some(piece) = text(stream.piece().await) {
            whole += &piece;
        }
        whole
    });
    assert_eq!(awaited, blocking);
}

#[test]
fn dropping_a_stream_ends_its_reply() {
    let (engine, server) = playing(Script::endless());
    let mut stream = engine.stream(&question()).unwrap();
    assert!(stream.next().is_some());
    assert_eq!(stream.finish(), None);
    drop(stream);
    server.wait_for(|stats| stats.cancelled.get() == 1 && stats.running.get() == 0);
}

#[test]
fn clones_are_answered_at_once() {
    let (engine, _server) = playing(Script::text("It is Paris."));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let engine = engine.clone();
            thread::spawn(move || engine.generate(&question()).unwrap().text)
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), "It is Paris.");
    }
}

#[test]
fn what_cannot_be_answered_names_its_field() {
    let (engine, _server) = playing(Script::text("x"));
    for (request, name) in [
        (question().temperature(9.0), "temperature"),
        (question().max_tokens(0), "max_tokens"),
        (Request::messages([("nobody", "hi")]), "messages[0].role"),
        (question().set("n", 2), "n"),
        (question().set("logprobs", true), "logprobs"),
    ] {
        match engine.generate(&request) {
            Err(Error::Request { field, .. }) => assert_eq!(field.as_deref(), Some(name)),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_failure_of_the_device_is_an_error_of_the_stream() {
    let script = Script {
        fails_at: Some(3),
        ..Script::endless()
    };
    let (engine, _server) = playing(script);
    let failed = engine.generate(&question());
    assert!(matches!(failed, Err(Error::Engine(_))), "{failed:?}");
    // From here on nothing is taken.
    let later = engine.generate(&question());
    assert!(matches!(later, Err(Error::Engine(_))), "{later:?}");
}

#[test]
fn the_readme_shows_the_example() {
    let example = include_str!("example.rs");
    let (_, program) = example.split_once("\n\n").unwrap();
    let readme = include_str!("../README.md");
    let block = format!("```rust\n{program}```\n");
    assert!(
        readme.contains(&block),
        "put this into src/README.md:\n{block}"
    );
}
