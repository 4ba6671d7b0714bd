//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`: tokenizer and template alone,
//! without a wait for the device.

use std::sync::Arc;

use serde::ser::{Error, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use step::executor::TokenId;
use text::chat::{ChatModel, ENCODED_TOKENS_MAX, PromptError};
use text::detokenize::Detokenizer;
use text::tokenizer::Encoded;
use text::work;

use super::chat::messages;
use super::completions::positions::token_text;
use super::error::{ApiError, internal};
use super::fields::Object;
use super::generate::field_support::{Api, check_some};
use super::generate::parameters::{check_model, token};
use super::generate::start::Start;
use super::generate::{self, template_variables};
use super::limits::JSON_VALUES_MAX;
use super::parsing::Body;
use super::state::{ServerState, Service};
use super::thinking;
use super::threads::parse;

/// Direction of the conversion that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Tokenize,
    Detokenize,
}

/// Fields of a chat template request that are known but not served.
const REFUSED: &[&str] = &["chat_template", "documents"];

/// Answers one request in JSON; `domain` is its domain of the grammar cache.
pub async fn answer(
    service: Arc<Service>,
    direction: Direction,
    body: Body,
    domain: u128,
) -> Result<String, ApiError> {
    parse(body, move |mut body| {
        let value = body.json()?;
        let object = Object::root(&value)?;
        check_model(&object)?;
        check_some(&object, Api::Chat, REFUSED)?;
        let answer = match direction {
            Direction::Tokenize => tokenize(&service, &object, domain),
            Direction::Detokenize => detokenize(&service, &object),
        }?;
        object.report_unknown();
        Ok(answer)
    })
    .await
}

/// Tokens of a body `{prompt, add_special_tokens}`, encoded as a completion's prompt, or
/// `{messages, tools, add_generation_prompt}`, encoded as a chat.
fn tokenize(service: &Service, object: &Object<'_>, domain: u128) -> Result<String, ApiError> {
    let with_texts = object.boolean("return_token_strs", false)?;
    let tokens = match object.get("messages") {
        Some(_) => conversation_tokens(service, object, domain)?,
        None => prompt_tokens(service, object, domain)?,
    };
    let texts = Texts {
        chat: &service.chat,
        tokens: &tokens,
    };
    let answer = Tokenized {
        count: tokens.len(),
        max_model_len: service.engine.context(),
        tokens: &tokens,
        token_strs: with_texts.then_some(texts),
    };
    serde_json::to_string(&answer).map_err(|error| internal(error.to_string()))
}

/// The answer; apart from `tokens`, only its serialised form is ever in memory.
#[derive(Serialize)]
struct Tokenized<'t> {
    count: usize,
    max_model_len: usize,
    tokens: &'t [TokenId],
    token_strs: Option<Texts<'t>>,
}

/// Texts of the tokens, made one by one as they are serialised.
struct Texts<'t> {
    chat: &'t ChatModel,
    tokens: &'t [TokenId],
}

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut texts = serializer.serialize_seq(Some(self.tokens.len()))?;
        for &id in self.tokens {
            work::step().map_err(S::Error::custom)?;
            texts.serialize_element(&token_text(self.chat, id, false))?;
        }
        texts.end()
    }
}

fn prompt_tokens(
    service: &Service,
    object: &Object<'_>,
    domain: u128,
) -> Result<Vec<TokenId>, ApiError> {
    let prompt = object.require("prompt")?;
    let text = prompt.string()?;
    let framed = object.boolean("add_special_tokens", true)?;
    let tokenizer = &service.chat.tokenizer;
    let encoded = tokenizer.encode_at_most(text, framed, ENCODED_TOKENS_MAX, domain);
    match encoded.map_err(|error| prompt.error(error.to_string()))? {
        Encoded::Whole(tokens) => Ok(tokens),
        Encoded::AtLeast(tokens) => Err(prompt.error(format!(
            "has at least {tokens} tokens; {ENCODED_TOKENS_MAX} are told at most"
        ))),
    }
}

fn conversation_tokens(
    service: &Service,
    object: &Object<'_>,
    domain: u128,
) -> Result<Vec<TokenId>, ApiError> {
    let field = object.require("messages")?;
    if object.boolean("add_special_tokens", false)? {
        let problem = "a conversation has those of its template; send false";
        return Err(ApiError::field("add_special_tokens", problem));
    }
    let tools = object.get("tools").map(|tools| messages::tools(&tools));
    let start = Start::read(object)?;
    let thinking = thinking::read(object, service.chat.facts.thinking && !start.is_amid())?;
    let (conversation, _) = generate::conversation(
        &service.chat,
        messages::messages(&field)?,
        &tools.transpose()?.unwrap_or_default(),
        thinking.on,
        (&start, &template_variables::read(object)?),
    )?;
    // Some clients ask for the count of a conversation that does not fit, so the limit is off.
    let prompt = service.chat.prompt(&conversation, domain, usize::MAX);
    let prompt = prompt.map_err(|error: PromptError| field.error(error.to_string()))?;
    Ok(prompt.tokens)
}

/// Turns `{tokens}` into `{prompt}`: the tokens' bytes, with U+FFFD where they are not UTF-8.
fn detokenize(service: &Service, object: &Object<'_>) -> Result<String, ApiError> {
    let fields = object.require("tokens")?.list(JSON_VALUES_MAX)?;
    let chat = &service.chat;
    let start = chat.tokenizer.text_start();
    let (mut detokenizer, mut text) = (Detokenizer::of_text(start), String::new());
    for field in &fields {
        field.step()?;
        let id = token(field, chat.facts.vocab)?;
        detokenizer.push(chat.tokenizer.token_bytes(id), &mut text);
    }
    detokenizer.finish(&mut text);
    Ok(json!({"prompt": text}).to_string())
}

/// Data of the tokenizer and the template that a client needs to build prompts itself.
pub fn info(state: &ServerState, service: &Service) -> Value {
    let chat = &service.chat;
    let special = chat.template.special();
    let end = chat.stop_tokens.first();
    let end = end.map(|&id| token_text(chat, id, false));
    json!({
        "name_or_path": state.model_id,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": service.engine.context(),
        "vocab_size": chat.facts.vocab,
        "bos_token": special.get("bos_token"),
        "eos_token": special.get("eos_token").map(String::from).or(end),
        "pad_token": special.get("pad_token"),
        "unk_token": special.get("unk_token"),
        "chat_template": chat.template.source(),
    })
}
