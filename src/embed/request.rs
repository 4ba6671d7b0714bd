//! Requests: fields of the chat completions API, with methods for the usual ones.

use serde_json::{Map, Value, json};

/// A request for one reply. Fields that are not set have the defaults of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    fields: Map<String, Value>,
}

impl Request {
    /// A request with one question of the user.
    pub fn prompt(text: impl Into<String>) -> Request {
        Request::messages([("user", text)])
    }

    /// A request with a conversation: roles (`system`, `user`, `assistant`) and texts.
    pub fn messages<R: Into<String>, T: Into<String>>(
        messages: impl IntoIterator<Item = (R, T)>,
    ) -> Request {
        let message = |(role, text): (R, T)| json!({"role": role.into(), "content": text.into()});
        let messages: Vec<Value> = messages.into_iter().map(message).collect();
        let request = Request { fields: Map::new() };
        request.set("messages", messages)
    }

    /// Most tokens to generate; by default as many as fit.
    pub fn max_tokens(self, tokens: usize) -> Request {
        self.set("max_tokens", tokens)
    }

    /// Randomness from 0 to 2; 0 always takes the most likely token.
    pub fn temperature(self, temperature: f64) -> Request {
        self.set("temperature", temperature)
    }

    /// Sampling from the smallest set of tokens whose probability reaches `top_p`, above 0 and at
    /// most 1.
    pub fn top_p(self, top_p: f64) -> Request {
        self.set("top_p", top_p)
    }

    /// Seed of sampling: equal requests with equal seeds have equal replies. By default each
    /// request has another seed.
    pub fn seed(self, seed: i64) -> Request {
        self.set("seed", seed)
    }

    /// Texts that end the reply and are no part of it.
    pub fn stop<T: Into<String>>(self, texts: impl IntoIterator<Item = T>) -> Request {
        let texts: Vec<String> = texts.into_iter().map(T::into).collect();
        self.set("stop", texts)
    }

    /// Whether the model thinks before it answers.
    pub fn thinking(self, on: bool) -> Request {
        self.set("chat_template_kwargs", json!({"enable_thinking": on}))
    }

    /// Any field of the chat completions API, such as `tools` or `response_format`, in the API's
    /// form.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Request {
        self.fields.insert(field.to_string(), value.into());
        self
    }

    /// Body of the equivalent request over HTTP.
    pub(super) fn body(&self) -> Value {
        Value::Object(self.fields.clone())
    }
}
