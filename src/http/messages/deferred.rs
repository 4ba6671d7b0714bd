//! Tools that are declared with `defer_loading`. The model is told of one where a tool's result
//! refers to it, and not at the head of the prompt: agents search among more tools than a context
//! should hold, and what stands behind the head stays as it was when one is found.

use std::collections::HashSet;

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::Field;
use crate::http::generate::offer::place_of;

/// What the conversation does with the tools of its request.
#[derive(Debug, Default)]
pub struct Deferred {
    /// In the form of the chat completions API.
    waiting: Vec<Value>,
    loaded: Vec<Value>,
    /// Tools of which the model has been told.
    told: HashSet<String>,
}

impl Deferred {
    /// Of the tools that the head tells of and those that wait.
    pub fn new(told: &[Value], waiting: Vec<Value>) -> Deferred {
        Deferred {
            waiting,
            loaded: Vec::new(),
            told: told
                .iter()
                .filter_map(name_of)
                .map(str::to_string)
                .collect(),
        }
    }

    /// What the model reads in the place of a reference to a tool, which it may call from there
    /// on. A definition is told once, however many references there are to it: they are short,
    /// and it may be long.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn load(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let wanted = name.string()?;
        if self.told.contains(wanted) {
            return Ok(format!("{wanted} can be called already."));
        }
        let tool = self.waiting.remove(place_of(name, wanted, &self.waiting)?);
        self.told.insert(wanted.to_string());
        // The form that agents announce to the model in the description of their search.
        let text = format!(
            "<functions>\n<function>{}</function>\n</functions>",
            tool["function"]
        );
        self.loaded.push(tool);
        Ok(text)
    }

    /// The loaded tools, in the order of their loading, and those that still wait.
    pub fn into_parts(self) -> (Vec<Value>, Vec<Value>) {
        (self.loaded, self.waiting)
    }
}

fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {}}})
    }

    fn load(deferred: &mut Deferred, name: &str) -> Result<String, String> {
        let value = json!(name);
        let path = "at".to_string();
        let loaded = deferred.load(&Field {
            value: &value,
            path,
        });
        loaded.map_err(|error| error.param.unwrap())
    }

    #[test]
    fn a_definition_is_told_once() {
        let mut deferred = Deferred::new(&[tool("f")], vec![tool("g"), tool("h")]);
        let told = load(&mut deferred, "h").unwrap();
        let expected = r#"<function>{"name":"h","parameters":{}}</function>"#;
        assert!(told.contains(expected), "{told}");
        for known in ["h", "f"] {
            let told = load(&mut deferred, known).unwrap();
            assert_eq!(told, format!("{known} can be called already."));
        }
        assert_eq!(load(&mut deferred, "i"), Err("at".to_string()));
        assert_eq!(deferred.into_parts(), (vec![tool("h")], vec![tool("g")]));
    }
}
