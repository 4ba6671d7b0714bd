//! Fields that a response has before any of its output.

use serde_json::{Map, Value, json};

/// Fields that a response has from its start.
#[derive(Debug)]
pub struct Head {
    pub id: String,
    /// Time at which the response was created, seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Fields of the request that the response repeats.
    pub repeated: Map<String, Value>,
}

impl Head {
    /// JSON of the response with its `output` so far.
    pub fn response(&self, status: &str, output: &[Value]) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "error": null,
            "incomplete_details": null,
            "usage": null,
        });
        for (name, value) in &self.repeated {
            response[name] = value.clone();
        }
        response
    }
}
