//! Replies: complete ones, and streams of a reply's pieces.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Error, Finish, Loaded, Piece, Request, Usage, wait};
use http::chat::request::ChatRequest;
use http::error::ApiError;
use http::generate::generation::Generation;
use http::generate::{self, Ask};
use http::offline;
use http::state::Abort;
use model::target::FACTS;
use step::executor::TokenId;
use text::reply::append;

/// A tool call that the model asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// JSON object of the arguments.
    pub arguments: String,
}

/// A complete reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub text: String,
    /// Reasoning before the text; empty without reasoning.
    pub reasoning: String,
    pub tool_calls: Vec<ToolCall>,
    /// Ids of all generated tokens, including those of reasoning, calls and the end of the turn.
    pub tokens: Vec<TokenId>,
    pub usage: Usage,
    pub finish: Finish,
}

/// A reply that is being generated: a blocking iterator over its pieces, with [`Stream::piece`] for
/// asynchronous code. Dropping the stream ends the reply.
pub struct Stream {
    generation: Generation,
    abort: Abort,
    ready: VecDeque<Piece>,
    tokens: Vec<TokenId>,
    finish: Option<Finish>,
    /// Whether no further event follows.
    ended: bool,
    // Dropped after the generation, which is declared first: the engine ends only after all
    // replies.
    _loaded: Arc<Loaded>,
}

impl Stream {
    pub(super) fn begin(loaded: &Arc<Loaded>, request: &Request) -> Result<Stream, Error> {
        let generation = begin(loaded, request)?;
        Ok(Stream {
            generation: generation.reporting_ids(),
            abort: loaded.state.abort(),
            ready: VecDeque::new(),
            tokens: Vec::new(),
            finish: None,
            ended: false,
            _loaded: loaded.clone(),
        })
    }

    /// The next piece, in asynchronous code on any runtime; None at the end.
    pub async fn piece(&mut self) -> Option<Result<Piece, Error>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// [`Stream::piece`] for hand-written futures.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Error>>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match self.poll_events(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(Error::of(error))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes the events that have come, with their pieces and tokens.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        let Stream {
            generation,
            ready,
            tokens,
            finish,
            ended,
            ..
        } = self;
        let polled = generation.poll(cx, &mut |_, settled| {
            ready.extend(settled.deltas);
            tokens.extend(settled.ids);
            *finish = finish.or(settled.finish);
        });
        *ended = finish.is_some();
        match polled {
            Poll::Pending => Pin::new(&mut self.abort).poll(cx).map(Err),
            polled => polled,
        }
    }

    /// Ids of the tokens of the reply so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Token counts of the prompt and of the reply so far.
    pub fn usage(&self) -> Usage {
        self.generation.usage()
    }

    /// Reason why the reply ended; None while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.finish.filter(|_| self.ready.is_empty())
    }

    /// Reply made of the pieces that have not been taken yet; blocks until it is complete.
    ///
    /// # Errors
    /// [`Error::Engine`], if the model fails.
    pub fn reply(mut self) -> Result<Reply, Error> {
        let mut pieces = Vec::new();
        for piece in self.by_ref() {
            append(&mut pieces, piece?);
        }
        let cut = || Error::Engine("the reply has no end".to_string());
        let mut reply = Reply {
            text: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
            usage: self.usage(),
            finish: self.finish.ok_or_else(cut)?,
            tokens: self.tokens,
        };
        pieces.into_iter().for_each(|piece| reply.add(piece));
        Ok(reply)
    }
}

impl Reply {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Content(text) => self.text += &text,
            Piece::Reasoning(text) => self.reasoning += &text,
            Piece::ToolCall { name, .. } => self.tool_calls.push(ToolCall {
                name,
                arguments: String::new(),
            }),
            Piece::Arguments { index, json } => {
                if let Some(call) = self.tool_calls.get_mut(index) {
                    call.arguments += &json;
                }
            }
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        wait(|cx| self.poll_piece(cx))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} tokens)", self.tokens.len())
    }
}

/// Starts the reply to a request, which is checked as if it came over HTTP.
fn begin(loaded: &Loaded, request: &Request) -> Result<Generation, Error> {
    let stopped = || Error::Engine("the engine has stopped".to_string());
    let service = loaded.state.service().ok_or_else(stopped)?;
    let mut ask = ChatRequest::parse(&request.body(), &FACTS)
        .map_err(Error::of)?
        .ask;
    check(&ask)?;
    let prompt = generate::prompt(&mut ask, service, None).map_err(Error::of)?;
    let call = offline::call(&loaded.state.settings);
    generate::submit(service, &call, &ask, &[prompt]).map_err(Error::of)
}

/// Refuses fields whose effect a [`Reply`] cannot represent.
fn check(ask: &Ask) -> Result<(), Error> {
    if ask.choices != 1 {
        return Err(Error::field(
            "n",
            "a request has one reply; ask again for another",
        ));
    }
    if ask.logprobs.is_some() || ask.prompt_logprobs.is_some() {
        let field = ask.logprobs.map_or("prompt_logprobs", |_| "logprobs");
        return Err(Error::field(field, "are not told here; leave them out"));
    }
    Ok(())
}
