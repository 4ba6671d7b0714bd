use std::fs;

use serde_json::{Map, Value, json};

use crate::chat::request::ChatRequest;
use crate::completions::request::CompletionRequest;
use crate::error::ApiError;
use crate::fields::record;
use crate::messages::request::{MessagesRequest, countable};
use crate::responses::request::ResponsesRequest;
use crate::responses::store::Store;
use crate::routes::Route;
use crate::seal::Seal;
use step::testing::TINY;
use text::testing::chat_model;

use super::DOCUMENT;
use super::derive::{Schema, answered};

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ci/e2e/recordings");

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/examples.json");

type Parser = fn(&Value) -> Result<(), ApiError>;

/// Routes that read a body, with their parsers.
const PARSED: [(&str, Parser); 6] = [
    ("/v1/chat/completions", |body| {
        ChatRequest::parse(body, &TINY).map(drop)
    }),
    ("/v1/completions", |body| {
        let tokenizer = chat_model().tokenizer;
        CompletionRequest::parse(body, (&tokenizer, None), TINY.context, &TINY).map(drop)
    }),
    ("/v1/messages", |body| {
        MessagesRequest::parse(body, &Seal::new(None), &TINY).map(drop)
    }),
    ("/v1/messages/count_tokens", |body| {
        countable(body, &Seal::new(None), &TINY).map(drop)
    }),
    ("/v1/responses", |body| {
        ResponsesRequest::parse(body, (&Store::default(), &Seal::new(None)), &TINY).map(drop)
    }),
    ("/v1/responses/input_tokens", |body| {
        ResponsesRequest::parse(body, (&Store::default(), &Seal::new(None)), &TINY).map(drop)
    }),
];

/// Fields that are refused whatever they hold.
const REFUSED: [&str; 1] = ["thread"];

/// Requests with fields that no recorded client sends.
fn examples(path: &str) -> Vec<Value> {
    let text = fs::read(EXAMPLES).unwrap();
    let examples: Value = serde_json::from_slice(&text).unwrap();
    let list = examples[path].as_array().unwrap();
    list.clone()
}

struct Exchange {
    path: String,
    body: Value,
    answer: Value,
}

/// Exchanges that were recorded and answered well.
fn recorded() -> Vec<Exchange> {
    let mut found = Vec::new();
    for file in fs::read_dir(RECORDINGS).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines().filter(|line| line.starts_with("{\"request\"")) {
            let exchange: Value = serde_json::from_str(line).unwrap();
            let (request, response) = (&exchange["request"], &exchange["response"]);
            if response["status"] == 200 {
                let path = request["path"].as_str().unwrap();
                found.push(Exchange {
                    path: path.split('?').next().unwrap().to_string(),
                    body: request["body"].clone(),
                    answer: response["body"].clone(),
                });
            }
        }
    }
    found
}

/// The schema of a body, from what its parser asks of requests that it takes.
fn request_schema(path: &str, parser: Parser, recorded: &[Exchange]) -> Value {
    let mut schema = Schema::root();
    let recorded = recorded.iter().filter(|exchange| exchange.path == path);
    let bodies = recorded.map(|exchange| exchange.body.clone());
    for mut body in bodies.chain(examples(path)) {
        body["model"] = json!("tiny");
        record::take();
        let outcome = parser(&body);
        record::take().iter().for_each(|note| schema.add(note));
        match outcome {
            Ok(()) => schema.add_taken(&body),
            Err(error) if error.code == Some("previous_response_not_found") => {}
            Err(error) => assert!(
                error.message.contains("not stored"),
                "{path}: {error:?} {body}"
            ),
        }
    }
    let known = |name: &&str| schema.unknown().contains(name);
    for name in REFUSED.into_iter().filter(known).collect::<Vec<&str>>() {
        schema.add(&(name.to_string(), vec![("enum", json!([null]))]));
    }
    let unknown = schema.unknown();
    assert!(
        unknown.is_empty(),
        "{path}: examples.json lacks {unknown:?}"
    );
    schema.json(false)
}

fn json_content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

fn refusals() -> Map<String, Value> {
    let error = |status: &str, words: &str| {
        let content = json_content(&json!({"$ref": "#/components/schemas/Error"}));
        (
            status.to_string(),
            json!({"description": words, "content": content}),
        )
    };
    Map::from_iter([
        error("4XX", "The request is refused; the error names the field."),
        error("5XX", "The server is starting, stopping or at its limit."),
    ])
}

fn operation(id: &str, body: Option<Value>, content: Value) -> Value {
    let mut responses = refusals();
    responses.insert(
        "200".into(),
        json!({"description": "The answer.", "content": content}),
    );
    let mut operation = json!({"operationId": id, "responses": responses});
    if let Some(schema) = body {
        operation["requestBody"] = json!({"required": true, "content": json_content(&schema)});
    }
    operation
}

fn named(operation: Value, name: &str) -> Value {
    let parameter = json!({"name": name, "in": "path", "required": true,
        "schema": {"type": "string", "minLength": 1}});
    let mut operation = operation;
    operation["parameters"] = json!([parameter]);
    operation
}

/// The ways to send a key. A server without keys asks for none, which is the first alternative.
fn security() -> Value {
    json!([{}, {"bearer": []}, {"api_key": []}, {"basic": []}])
}

fn security_schemes() -> Value {
    json!({
        "bearer": {"type": "http", "scheme": "bearer"},
        "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "basic": {"type": "http", "scheme": "basic",
            "description": "The key is the password, as a browser sends it; any name will do."},
    })
}

/// Says of the operations that no key guards that they need none.
fn open(paths: &mut Map<String, Value>) {
    for (path, operations) in paths {
        if Route::find(path).is_some_and(Route::is_open) {
            let operations = operations.as_object_mut().into_iter().flatten();
            operations.for_each(|(_, operation)| operation["security"] = json!([]));
        }
    }
}

fn document() -> Value {
    let recorded = recorded();
    let answers = |path: &str| {
        let found = recorded.iter().filter(|exchange| exchange.path == path);
        let answers: Vec<&Value> = found.map(|e| &e.answer).filter(|a| a.is_object()).collect();
        answered(&answers)
    };
    let mut paths = Map::new();
    for (path, parser) in PARSED {
        let body = request_schema(path, parser, &recorded);
        let mut content = json_content(&answers(path));
        if body["properties"].get("stream").is_some() && !path.ends_with("tokens") {
            // A schema of it would be of each event for some readers, of all of them for others.
            content["text/event-stream"] = json!({});
        }
        let id = path.trim_start_matches("/v1/").replace('/', "_");
        paths.insert(
            path.into(),
            json!({"post": operation(&id, Some(body), content)}),
        );
    }
    let any = json_content(&json!({"type": "object"}));
    let text = |kind: &str| json!({kind: {"schema": {"type": "string"}}});
    let models = json_content(&answers("/v1/models"));
    for (path, id, content) in [
        ("/", "chat_page", text("text/html")),
        ("/health", "health", any.clone()),
        ("/api/hello", "hello", any.clone()),
        ("/metrics", "metrics", text("text/plain")),
        ("/openapi.json", "openapi", any.clone()),
        ("/tokenizer_info", "tokenizer_info", any.clone()),
        ("/v1/models", "models", models),
        ("/version", "version", any.clone()),
    ] {
        paths.insert(path.into(), json!({"get": operation(id, None, content)}));
    }
    let model = named(operation("model", None, any.clone()), "model");
    paths.insert("/v1/models/{model}".into(), json!({"get": model}));
    let stored = named(operation("response", None, any.clone()), "id");
    let forgotten = named(operation("delete_response", None, any.clone()), "id");
    paths.insert(
        "/v1/responses/{id}".into(),
        json!({"get": stored, "delete": forgotten}),
    );
    let cancelled = named(operation("cancel_response", None, any.clone()), "id");
    paths.insert(
        "/v1/responses/{id}/cancel".into(),
        json!({"post": cancelled}),
    );
    let items = named(operation("input_items", None, any.clone()), "id");
    paths.insert(
        "/v1/responses/{id}/input_items".into(),
        json!({"get": items}),
    );
    for (path, id, body) in [
        (
            "/tokenize",
            "tokenize",
            json!({"type": "object", "properties": {
            "prompt": {"type": ["string", "null"]}, "messages": {"type": ["array", "null"]},
            "add_special_tokens": {"type": ["boolean", "null"]},
            "return_token_strs": {"type": ["boolean", "null"]}}}),
        ),
        (
            "/detokenize",
            "detokenize",
            json!({"type": "object", "required": ["tokens"],
            "properties": {"tokens": {"type": "array", "items": {"type": "integer",
                "minimum": 0, "maximum": TINY.vocab - 1}}}}),
        ),
    ] {
        paths.insert(
            path.into(),
            json!({"post": operation(id, Some(body), any.clone())}),
        );
    }
    open(&mut paths);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Atlas", "version": env!("CARGO_PKG_VERSION"),
            "description": "Fields that are not described are ignored."},
        "security": security(),
        "paths": paths,
        "components": {
            "securitySchemes": security_schemes(),
            "schemas": {"Error": {"type": "object", "required": ["error"],
                "properties": {"error": {"type": "object", "required": ["message", "type"]}}}},
        },
    })
}

#[test]
fn the_description_is_what_parsers_ask_for_and_answers_hold() {
    let mut made = serde_json::to_string_pretty(&document()).unwrap();
    made.push('\n');
    let path = std::env::temp_dir().join("openapi.json");
    if made != DOCUMENT {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        made == DOCUMENT,
        "src/http/openapi/openapi.json is out of date: replace it by {}",
        path.display()
    );
}
