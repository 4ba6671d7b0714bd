//! Tools that come and go within a conversation. The model is told of one where a tool's result or
//! a system message refers to it, and not at the head of the prompt: agents search among more tools
//! than a context should hold, and what stands behind the head stays as it was when one is found.

use std::collections::HashSet;

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::Field;
use crate::http::generate::offer::place_of;
use crate::http::limits::TOOLS_MAX;

/// What the conversation does with the tools of its request.
#[derive(Debug, Default)]
pub struct Deferred {
    /// In the form of the chat completions API.
    waiting: Vec<Value>,
    loaded: Vec<Value>,
    /// Tools of which the model has been told, and which it may call.
    told: HashSet<String>,
    /// Tools of which the head tells, and which were removed behind it.
    removed: HashSet<String>,
}

impl Deferred {
    /// Of the tools that the head tells of and those that wait.
    pub fn new(told: &[Value], waiting: Vec<Value>) -> Deferred {
        Deferred {
            waiting,
            loaded: Vec::new(),
            removed: HashSet::new(),
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
        if self.removed.remove(wanted) {
            self.told.insert(wanted.to_string());
            return Ok(format!("{wanted} can be called again."));
        }
        let tool = self.waiting.remove(place_of(name, wanted, &self.waiting)?);
        Ok(self.tell(wanted, tool))
    }

    /// The same of a tool that stands in the conversation itself, in the form of the chat
    /// completions API; `name` is its name's field.
    ///
    /// # Errors
    /// When another tool has the name, or there are too many.
    pub fn define(&mut self, name: &Field<'_>, tool: Value) -> Result<String, ApiError> {
        let wanted = name.string()?;
        let waits = self
            .waiting
            .iter()
            .any(|tool| name_of(tool) == Some(wanted));
        if waits || self.told.contains(wanted) || self.removed.contains(wanted) {
            return Err(name.error("is the name of another tool already"));
        }
        if self.loaded.len() == TOOLS_MAX {
            return Err(name.error(format!("is tool {} of those added", TOOLS_MAX + 1)));
        }
        Ok(self.tell(wanted, tool))
    }

    fn tell(&mut self, name: &str, tool: Value) -> String {
        self.told.insert(name.to_string());
        // The form that agents announce to the model in the description of their search.
        let text = format!(
            "<functions>\n<function>{}</function>\n</functions>",
            tool["function"]
        );
        self.loaded.push(tool);
        text
    }

    /// What the model reads where a tool is removed, which it may call no more. The head still
    /// tells of it, if it did.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn remove(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let wanted = name.string()?;
        let of = |tools: &[Value]| tools.iter().position(|tool| name_of(tool) == Some(wanted));
        if let Some(at) = of(&self.loaded) {
            // It may be loaded again.
            self.waiting.push(self.loaded.remove(at));
            self.told.remove(wanted);
        } else if self.told.remove(wanted) {
            self.removed.insert(wanted.to_string());
        } else if of(&self.waiting).is_none() && !self.removed.contains(wanted) {
            return Err(name.error("is the name of no tool"));
        }
        Ok(format!("{wanted} cannot be called any more."))
    }

    /// Whether a tool of the head may be called.
    pub fn keeps(&self, tool: &Value) -> bool {
        name_of(tool).is_none_or(|name| !self.removed.contains(name))
    }

    /// The loaded tools, in the order of their loading, and those that wait.
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

    fn with(
        name: &str,
        run: impl FnOnce(&Field<'_>) -> Result<String, ApiError>,
    ) -> Result<String, String> {
        let value = json!(name);
        let path = "at".to_string();
        let done = run(&Field {
            value: &value,
            path,
        });
        done.map_err(|error| error.param.unwrap())
    }

    fn load(deferred: &mut Deferred, name: &str) -> Result<String, String> {
        with(name, |name| deferred.load(name))
    }

    #[test]
    fn what_is_removed_may_come_back() {
        let mut deferred = Deferred::new(&[tool("f")], vec![tool("g")]);
        load(&mut deferred, "g").unwrap();
        for name in ["f", "g"] {
            with(name, |name| deferred.remove(name)).unwrap();
        }
        assert!(!deferred.keeps(&tool("f")));
        assert!(deferred.loaded.is_empty());
        assert_eq!(load(&mut deferred, "f").unwrap(), "f can be called again.");
        assert!(load(&mut deferred, "g").unwrap().contains("<function>"));
        assert!(deferred.keeps(&tool("f")));
        assert_eq!(deferred.into_parts(), (vec![tool("g")], vec![]));
    }

    #[test]
    fn a_tool_is_defined_under_a_name_of_its_own() {
        let mut deferred = Deferred::new(&[tool("f")], vec![tool("g")]);
        for taken in ["f", "g"] {
            assert!(with(taken, |name| deferred.define(name, tool(taken))).is_err());
        }
        let text = with("h", |name| deferred.define(name, tool("h"))).unwrap();
        assert!(text.contains(r#"{"name":"h""#), "{text}");
        assert!(with("absent", |name| deferred.remove(name)).is_err());
        assert_eq!(deferred.into_parts(), (vec![tool("h")], vec![tool("g")]));
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
