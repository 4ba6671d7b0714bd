//! Requests of the load, and clients that take what comes at once: the client of `bench serve`.

use std::net::SocketAddr;

use atlas::bench::client::{Ask, Connection, Endpoint, Timings};
use model::target::MODEL_ID;

use super::server::WORD;

/// A request for `tokens` tokens; prompts of as many words have as many tokens.
pub fn ask(words: usize, tokens: usize) -> Ask<'static> {
    Ask {
        model: MODEL_ID,
        prompt: format!("hi{}", " the".repeat(words)),
        tokens,
    }
}

/// Tokens in each piece of a reply.
pub fn tokens(reply: &Timings) -> impl Iterator<Item = usize> {
    reply.pieces.iter().map(|(_, bytes)| bytes / WORD.len())
}

async fn connect(address: SocketAddr) -> Connection {
    let endpoint = Endpoint::parse(&format!("http://{address}"), None);
    let open = endpoint.expect("an address").connect().await;
    open.expect("a connection")
}

/// The reply to a request, none of whose tokens was lost.
pub async fn stream(address: SocketAddr, words: usize, count: usize) -> Timings {
    let reply = connect(address).await.chat(&ask(words, count)).await;
    let reply = reply.expect("a whole stream");
    assert_eq!(tokens(&reply).sum::<usize>(), count, "tokens were lost");
    reply
}

/// Connections that have had one answer each and say nothing further.
pub async fn idle(address: SocketAddr, count: usize) -> Vec<Connection> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = connect(address).await;
        connection.target().await.expect("an answer");
        open.push(connection);
    }
    open
}
