//! The fields that a response has before anything of it is written.

use serde_json::{Map, Value, json};

/// Members that a response has from its beginning on.
#[derive(Debug)]
pub struct Head {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Fields that repeat the request.
    pub repeated: Map<String, Value>,
}

impl Head {
    /// The response with what it has put out so far.
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
