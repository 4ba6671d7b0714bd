//! Routing: finds the handler for a request's head, checks the head and answers.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Version};
use serde_json::{Value, json};

use engine::Phase;
use host::calendar::strftime;
use host::log;
use step::Facts;

use super::body;
use super::call::{ANTHROPIC_REQUEST_ID, Call, REQUEST_ID};
use super::chat;
use super::completions;
use super::error::{ApiError, Dialect};
use super::figures::Foreseen;
use super::generate::Answer;
use super::generate::stream::ReplyStream;
use super::hosts::{self, Hosts};
use super::limits::URI_BYTES_MAX;
use super::messages;
use super::metrics;
use super::openapi;
use super::origins;
use super::peer::Asked;
use super::responses;
use super::state::{ServerState, Service};
use super::tokenize::{self, Direction};

/// The body of every response.
pub type ResponseBody = Either<Full<Bytes>, ReplyStream>;

/// Kind of a request with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Chat,
    Completions,
    Messages,
    CountTokens,
    Responses,
    InputTokens,
    Tokens(Direction),
}

impl Question {
    /// Whether requests of this kind need the engine.
    fn generates(self) -> bool {
        use Question::{Chat, Completions, Messages, Responses};
        matches!(self, Chat | Completions | Messages | Responses)
    }
}

/// Routes of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route<'p> {
    Body(Question),
    Response(&'p str),
    CancelResponse(&'p str),
    InputItems(&'p str),
    TokenizerInfo,
    Page,
    Models,
    Model(&'p str),
    Health,
    Hello,
    Metrics,
    Version,
    OpenApi,
}

/// Routes with a fixed path.
const ROUTES: &[(&str, Route<'static>)] = {
    use Direction::{Detokenize, Tokenize};
    use Question::{Chat, Completions, CountTokens, InputTokens, Messages, Responses, Tokens};
    &[
        ("/v1/chat/completions", Route::Body(Chat)),
        ("/v1/completions", Route::Body(Completions)),
        ("/v1/messages", Route::Body(Messages)),
        ("/v1/messages/count_tokens", Route::Body(CountTokens)),
        ("/v1/responses", Route::Body(Responses)),
        ("/v1/responses/input_tokens", Route::Body(InputTokens)),
        ("/tokenize", Route::Body(Tokens(Tokenize))),
        ("/detokenize", Route::Body(Tokens(Detokenize))),
        ("/tokenizer_info", Route::TokenizerInfo),
        ("/", Route::Page),
        ("/v1/models", Route::Models),
        ("/health", Route::Health),
        ("/api/hello", Route::Hello),
        ("/metrics", Route::Metrics),
        ("/version", Route::Version),
        ("/openapi.json", Route::OpenApi),
    ]
};

impl Route<'_> {
    pub(super) fn find(path: &str) -> Option<Route<'_>> {
        if not_offered(path).is_some() {
            return None;
        }
        let route = ROUTES.iter().find(|(known, _)| *known == path);
        route.map_or_else(|| Route::find_named(path), |(_, route)| Some(*route))
    }

    /// Route of a path that ends with an id or a name.
    fn find_named(path: &str) -> Option<Route<'_>> {
        let named = |prefix: &str| path.strip_prefix(prefix).filter(|id| !id.is_empty());
        if let Some(id) = named("/v1/models/") {
            return Some(Route::Model(id));
        }
        let id = named("/v1/responses/")?;
        match id.split_once('/') {
            None => Some(Route::Response(id)),
            Some((id, "cancel")) => Some(Route::CancelResponse(id)),
            Some((id, "input_items")) => Some(Route::InputItems(id)),
            Some(_) => None,
        }
    }

    /// API in whose form errors on a path are reported; the path may have no route.
    fn dialect(path: &str) -> Dialect {
        if path.starts_with("/api/") {
            return Dialect::Ollama;
        }
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }

    /// Path pattern for the log, without ids and names.
    fn pattern(self) -> &'static str {
        match self {
            Route::Response(_) => "/v1/responses/{id}",
            Route::CancelResponse(_) => "/v1/responses/{id}/cancel",
            Route::InputItems(_) => "/v1/responses/{id}/input_items",
            Route::Model(_) => "/v1/models/{id}",
            route => {
                let known = ROUTES.iter().find(|(_, known)| *known == route);
                known.map_or("", |(path, _)| path)
            }
        }
    }

    /// Whether no key is needed: probes have none, nor have clients that only connect.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Route::Health | Route::Hello)
    }

    fn allows(self, method: &Method) -> bool {
        let mut allowed = self.allowed().split(", ");
        allowed.any(|allowed| allowed == method.as_str())
    }

    fn allowed(self) -> &'static str {
        match self {
            Route::Body(_) | Route::CancelResponse(_) => "POST",
            Route::Response(_) => "GET, HEAD, DELETE",
            _ => "GET, HEAD",
        }
    }
}

/// `Cache-Control` of streams: caches and proxies must not keep, compress or buffer the events.
const STREAM_CACHE_CONTROL: &str = "no-cache, no-transform";
/// Header by which nginx and some other proxies do not buffer a stream.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Content type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Header that tells clients whether to retry a failed request.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Header in which a client of the Messages API asks for more than the published version.
const ANTHROPIC_BETA: &str = "anthropic-beta";

/// Whether a client sends the headers of the Messages API, which show its dialect on unknown paths.
fn speaks_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Answers one request; errors become their JSON.
pub async fn respond(
    state: Arc<ServerState>,
    asked: Asked,
    request: Request<impl Body<Data = Bytes> + Unpin>,
) -> Response<ResponseBody> {
    let path = request.uri().path();
    let route = Route::find(path).map(Route::pattern);
    let dialect = match Route::dialect(path) {
        Dialect::OpenAi if route.is_none() && speaks_anthropic(request.headers()) => {
            Dialect::Anthropic
        }
        dialect => dialect,
    };
    let origin = request.headers().get(ORIGIN).cloned();
    let method = request.method().clone();
    for beta in request.headers().get_all(ANTHROPIC_BETA) {
        log::debug(format_args!("betas are ignored: {beta:?}"));
    }
    let call = Call::new(asked, request.headers(), method, route, &state.settings);
    let call = Arc::new(call);
    let mut response = match answer(&state, request, &call).await {
        Ok(response) => response,
        Err(error) => error_response(&error, dialect, &call),
    };
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, call.id.clone());
    origins::grant(&state.settings.origins, origin.as_ref(), headers);
    if dialect == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, call.id.clone());
    }
    call.answered(response.status());
    state.figures.count_response(&response);
    response
}

async fn answer(
    state: &Arc<ServerState>,
    request: Request<impl Body<Data = Bytes> + Unpin>,
    call: &Arc<Call>,
) -> Result<Response<ResponseBody>, ApiError> {
    check_head(&request)?;
    check_host(&state.settings.hosts, request.headers())?;
    origins::check(&state.settings.origins, request.headers())?;
    if origins::is_preflight(request.method(), request.headers()) {
        return Ok(preflight(request.headers()));
    }
    let path = request.uri().path().to_string();
    let route = Route::find(&path);
    let is_open = route.is_some_and(Route::is_open);
    if let Some(keys) = state.settings.keys.as_ref().filter(|_| !is_open) {
        let asks_password = matches!(route, Some(Route::Page));
        let key = keys.check(request.headers()).map_err(|error| ApiError {
            asks_password,
            ..error
        })?;
        call.brings(key);
    }
    let route = route.ok_or_else(|| not_found(&path))?;
    if !route.allows(request.method()) {
        let dialect = Route::dialect(&path);
        return Ok(method_not_allowed(route, dialect, call));
    }
    let (key, query) = (call.key(), request.uri().query());
    let value = match route {
        Route::Body(question) => {
            // The future is boxed, since connections would have to reserve room for its large
            // state.
            return Box::pin(body_answer(state, question, request, call)).await;
        }
        Route::Page => return Ok(page()),
        Route::Health => return Ok(health(state)),
        Route::Metrics => {
            let page = metrics::page(state);
            return Ok(whole(StatusCode::OK, METRICS_TYPE, page));
        }
        Route::OpenApi => return Ok(json_text_response(StatusCode::OK, openapi::DOCUMENT)),
        Route::Response(id) if request.method() == Method::DELETE => {
            responses::delete(state, key, id)?
        }
        Route::Response(id) => {
            let known = responses::known(state, key, id, query)?;
            return Ok(json_text_response(StatusCode::OK, known));
        }
        Route::CancelResponse(id) => responses::cancel(state, key, id)?,
        Route::InputItems(id) => responses::input_items(state, key, id, query)?,
        Route::TokenizerInfo => tokenize::info(state, ready(state)?),
        Route::Models => models(state),
        Route::Model(id) if id == state.model_id => model(state),
        Route::Model(id) => return Err(no_model(state, id)),
        Route::Hello => json!({"message": "hello"}),
        Route::Version => version(state.facts),
    };
    Ok(json_response(StatusCode::OK, &value))
}

/// Checks of the head that apply to all routes.
fn check_head<B>(request: &Request<B>) -> Result<(), ApiError> {
    let uri = request.uri();
    let uri_bytes = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if uri_bytes > URI_BYTES_MAX {
        let message = format!("the URI is longer than {URI_BYTES_MAX} bytes");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, message));
    }
    if matches!(*request.method(), Method::TRACE | Method::CONNECT) {
        let message = format!("{} is not served", request.method());
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).closing());
    }
    let hosts = request.headers().get_all(HOST).iter();
    let hosts: Vec<&[u8]> = hosts.map(HeaderValue::as_bytes).collect();
    let host_required = request.version() >= Version::HTTP_11;
    if !matches!(uri.scheme_str(), None | Some("http" | "https")) {
        return Err(ApiError::malformed("the URI is of another scheme than http").closing());
    }
    let authority = uri.authority().map(|authority| authority.as_str());
    hosts::check(&hosts, host_required, authority)
        .map_err(|problem| ApiError::malformed(problem).closing())
}

/// Checks that the request's host is one of those that the server answers to.
fn check_host(hosts: &Hosts, headers: &HeaderMap) -> Result<(), ApiError> {
    // `check_head` has checked that the host is well-formed.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.filter(|host| !hosts.allow(host)) else {
        return Ok(());
    };
    let shown: String = host.chars().take(64).collect();
    let message = format!(
        "this server does not answer to the host {shown:?}: start it with --allow-host and the \
         name that clients use; if a proxy in front gave it this one, let it pass the client's on \
         (nginx: proxy_set_header Host $http_host;)"
    );
    let error = ApiError::new(StatusCode::FORBIDDEN, message);
    Err(error.coded("host_not_allowed").closing())
}

/// The answer to a browser's preflight, which comes without a key.
fn preflight(asked: &HeaderMap) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    origins::grant_preflight(asked, response.headers_mut());
    response
}

/// Answers a request with a body.
async fn body_answer(
    state: &Arc<ServerState>,
    question: Question,
    request: Request<impl Body<Data = Bytes> + Unpin>,
    call: &Arc<Call>,
) -> Result<Response<ResponseBody>, ApiError> {
    let service = ready(state)?.clone();
    let encoding = request.headers().get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        let message = "Content-Encoding: send the body as plain JSON";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).closing());
    }
    let body = body::read(request.into_body(), &state.bodies).await?;
    call.asked(&body);
    if question.generates() && service.engine.turns_away(call.source()) {
        return Err(ApiError::full());
    }
    let body = state.parsing.enter(body, call.source()).await;
    let answer = match question {
        Question::Chat => chat::answer(state, service, body, call).await?,
        Question::Completions => completions::answer(state, service, body, call).await?,
        Question::Messages => messages::answer(state, service, body, call).await?,
        Question::CountTokens => {
            Answer::Whole(messages::count_tokens(state, service, body, call.key()).await?)
        }
        Question::Responses => responses::answer(state, service, body, call).await?,
        Question::InputTokens => {
            Answer::Whole(responses::input_tokens(state, service, body, call).await?)
        }
        Question::Tokens(direction) => {
            Answer::Text(tokenize::answer(service, direction, body, call.domain("")).await?)
        }
    };
    Ok(match answer {
        Answer::Whole(value) => recorded(call, StatusCode::OK, value.to_string()),
        Answer::Text(text) => recorded(call, StatusCode::OK, text),
        Answer::Stream(stream) => {
            let mut response = Response::new(Either::Right(*stream));
            set(&mut response, CONTENT_TYPE, "text/event-stream");
            set(&mut response, CACHE_CONTROL, STREAM_CACHE_CONTROL);
            set(&mut response, X_ACCEL_BUFFERING, "no");
            response
        }
    })
}

/// The service; an error while the server is loading or stopping.
fn ready(state: &ServerState) -> Result<&Arc<Service>, ApiError> {
    if state.is_draining() {
        return Err(ApiError::draining().closing());
    }
    let loading = || ApiError::unavailable("loading", "the model is being loaded; see /health");
    state.service().ok_or_else(loading)
}

fn health(state: &ServerState) -> Response<ResponseBody> {
    let (problem, foreseen) = match state.service() {
        _ if state.is_draining() => (json!({"status": "draining"}), true),
        None => (loading_json(state), true),
        Some(service) if service.engine.phase() == Phase::Serving => {
            return json_response(StatusCode::OK, &json!({"status": "ready"}));
        }
        Some(_) => (json!({"status": "stopped"}), false),
    };
    let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, &problem);
    if foreseen {
        response.extensions_mut().insert(Foreseen);
    }
    set(&mut response, RETRY_AFTER, "1");
    response
}

fn loading_json(state: &ServerState) -> Value {
    let loading = state.loading();
    let share = loading.bytes_done as f64 / loading.bytes_total.max(1) as f64;
    json!({
        "status": "loading",
        "stage": loading.stage,
        "bytes_done": loading.bytes_done,
        "bytes_total": loading.bytes_total,
        "percent": (share * 100.0).floor().clamp(0.0, 100.0) as u64,
    })
}

/// JSON of the model that suits the OpenAI and the Anthropic API.
fn model(state: &ServerState) -> Value {
    let service = state.service();
    let context = service.map_or(state.facts.context, |service| service.engine.context());
    json!({
        "id": state.model_id,
        "object": "model",
        "created": state.created,
        "owned_by": "atlas",
        "type": "model",
        "display_name": state.model_id,
        "created_at": rfc3339(state.created),
        "max_model_len": context,
        "max_input_tokens": context,
    })
}

fn rfc3339(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    strftime("%Y-%m-%dT%H:%M:%SZ", time)
}

fn models(state: &ServerState) -> Value {
    json!({
        "object": "list",
        "data": [model(state)],
        "has_more": false,
        "first_id": state.model_id,
        "last_id": state.model_id,
    })
}

fn no_model(state: &ServerState, id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    let own = &state.model_id;
    let message = format!("there is no model {shown:?}; this server has {own:?}");
    ApiError {
        code: Some("model_not_found"),
        param: Some("model".to_string()),
        ..ApiError::new(StatusCode::NOT_FOUND, message)
    }
}

fn version(facts: &Facts) -> Value {
    json!({"version": env!("CARGO_PKG_VERSION"), "target": facts.binary})
}

/// Methods that at least one route takes.
const METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";

/// Paths of the same APIs that are not offered here, including all paths below each.
const NOT_OFFERED: &[(&str, &str)] = &[
    ("/v1/embeddings", "embeddings are"),
    ("/v1/messages/batches", "batches are"),
    ("/v1/responses/compact", "compaction is"),
    ("/v1/conversations", "conversations are"),
    ("/v1/images", "images are"),
    ("/v1/videos", "videos are"),
    ("/v1/audio", "audio is"),
    ("/v1/realtime", "realtime sessions are"),
    ("/v1/moderations", "moderation is"),
    ("/v1/files", "files are"),
    ("/v1/uploads", "uploads are"),
    ("/v1/batches", "batches are"),
    ("/v1/fine_tuning", "fine-tuning is"),
    ("/v1/vector_stores", "vector stores are"),
    ("/v1/assistants", "assistants are"),
    ("/v1/threads", "threads are"),
    ("/v1/rerank", "reranking is"),
    ("/v2/rerank", "reranking is"),
    ("/rerank", "reranking is"),
    ("/v1/score", "scoring of pairs is"),
    ("/score", "scoring of pairs is"),
    ("/pooling", "pooling is"),
    ("/classify", "classification is"),
];

/// Paths that the error for an unknown path lists.
const OFFERED: &str = "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, \
     /v1/models, /tokenize, /detokenize, /tokenizer_info, /health, /metrics, /version, \
     /openapi.json and a chat page at /";

/// Entry of [`NOT_OFFERED`] to which a path belongs.
fn not_offered(path: &str) -> Option<&'static str> {
    let under = |prefix: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = NOT_OFFERED.iter().find(|(prefix, _)| under(prefix));
    found.map(|(_, what)| *what)
}

fn not_found(path: &str) -> ApiError {
    if let Some(what) = not_offered(path) {
        let message = format!("{what} not offered here; this server has {OFFERED}");
        return ApiError::new(StatusCode::NOT_IMPLEMENTED, message).coded("not_implemented");
    }
    let shown: String = path.chars().take(64).collect();
    let message = match Route::dialect(path) {
        Dialect::Ollama => format!(
            "{shown:?} is of an API that is not served; point the client at /v1 and choose its \
             OpenAI mode: this server has {OFFERED}"
        ),
        _ => match meant(path) {
            Some((advice, there)) => {
                format!("there is nothing at {shown:?}; {advice}: it is {there} here")
            }
            None => format!("there is nothing at {shown:?}; this server has {OFFERED}"),
        },
    };
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// Route that an unknown path means: base URLs come with or without `/v1`, or end with a slash.
fn meant(path: &str) -> Option<(&'static str, String)> {
    let plain = path.trim_end_matches('/');
    let mut once = plain;
    while once.starts_with("/v1/v1/") {
        once = &once["/v1".len()..];
    }
    let bare = once.strip_prefix("/v1").unwrap_or_default();
    let candidates = [
        ("drop the slash at its end", plain.to_string()),
        ("drop the second /v1 of the URL", once.to_string()),
        ("add /v1 to the base URL", format!("/v1{plain}")),
        ("drop /v1", bare.to_string()),
    ];
    let mut found = candidates.into_iter();
    found.find(|(_, there)| there != path && !there.is_empty() && Route::find(there).is_some())
}

/// Response with the chat page and its headers.
fn page() -> Response<ResponseBody> {
    let page = Bytes::from_static(ui::PAGE.as_bytes());
    let mut response = Response::new(Either::Left(Full::new(page)));
    for (name, value) in ui::headers() {
        set(&mut response, HeaderName::from_static(name), value);
    }
    response
}

fn method_not_allowed(route: Route<'_>, dialect: Dialect, call: &Call) -> Response<ResponseBody> {
    let message = format!("send {} here", route.allowed());
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message);
    let mut response = error_response(&error, dialect, call);
    set(&mut response, ALLOW, route.allowed());
    response
}

fn error_response(error: &ApiError, dialect: Dialect, call: &Call) -> Response<ResponseBody> {
    let mut body = error.body(dialect);
    if dialect == Dialect::Anthropic {
        body["request_id"] = Value::from(call.id_text());
    }
    let mut response = recorded(call, error.status, body.to_string());
    let mut insert = |name, value| set(&mut response, name, value);
    match error.status {
        // Clients that retry after any 5xx heed `x-should-retry`.
        StatusCode::NOT_IMPLEMENTED => insert(X_SHOULD_RETRY, "false"),
        // A known route has set its own methods before.
        StatusCode::METHOD_NOT_ALLOWED => insert(ALLOW, METHODS),
        StatusCode::UNAUTHORIZED => {
            let scheme = match error.asks_password {
                true => "Basic realm=\"Atlas: any name, and an API key as the password\"",
                false => "Bearer realm=\"Atlas\"",
            };
            insert(WWW_AUTHENTICATE, scheme);
        }
        _ => {}
    }
    if error.close {
        insert(CONNECTION, "close");
    }
    if let Some(seconds) = error.retry_after_s {
        let seconds = HeaderValue::from(seconds);
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
    response
}

/// Sets a header of a response.
fn set(response: &mut Response<ResponseBody>, name: HeaderName, value: &'static str) {
    let value = HeaderValue::from_static(value);
    response.headers_mut().insert(name, value);
}

/// A JSON answer, which is also recorded for the dump.
fn recorded(call: &Call, status: StatusCode, text: String) -> Response<ResponseBody> {
    call.responded(text.as_bytes());
    json_text_response(status, text)
}

fn json_response(status: StatusCode, value: &Value) -> Response<ResponseBody> {
    json_text_response(status, value.to_string())
}

fn json_text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<ResponseBody> {
    whole(status, "application/json", text)
}

fn whole(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::new(text.into())));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, kind);
    response
}
