//! Tools that come and go within a conversation. The model is told of one where a tool's result or
//! a system message brings it, and not at the head of the prompt: agents search among more tools
//! than a context should hold, and what stands behind the head stays as it was when one is found.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Field;
use crate::limits::TOOLS_MAX;

use super::tool_policy::{ToolChoice, ToolPolicy};

/// The tools of a request and what its conversation does with them.
#[derive(Debug, Default)]
pub struct ConversationTools {
    tools: Vec<Tool>,
    /// Places by name.
    places: HashMap<String, usize>,
}

#[derive(Debug)]
struct Tool {
    /// In the form of the chat completions API.
    definition: Value,
    at_head: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The model has not been told of it.
    Waiting,
    Callable,
    /// The model has been told of it, and that it is gone.
    Removed,
}

/// Tools as the prompt tells of them, and which of them the reply may call.
#[derive(Debug)]
pub struct Presented {
    pub policy: ToolPolicy,
    /// Tools that the head of the prompt tells of, removed ones among them; none if none may be
    /// called.
    pub head: Vec<Value>,
    /// Tools that may be called and of which the conversation tells.
    pub loaded: Vec<Value>,
}

/// Text of tools within a conversation for the model: the form that agents announce to it in the
/// description of their search.
pub fn functions<'v>(tools: impl IntoIterator<Item = &'v Value>) -> String {
    let line = |tool: &Value| format!("<function>{}</function>\n", tool["function"]);
    let lines: String = tools.into_iter().map(line).collect();
    format!("<functions>\n{lines}</functions>")
}

impl ConversationTools {
    /// Tools of the head and those that wait, whose names differ.
    pub fn new(head: Vec<Value>, waiting: Vec<Value>) -> ConversationTools {
        let mut told = ConversationTools::default();
        for tool in head {
            told.add(tool, true, State::Callable);
        }
        for tool in waiting {
            told.add(tool, false, State::Waiting);
        }
        told
    }

    fn add(&mut self, definition: Value, at_head: bool, state: State) {
        let name = name_of(&definition).to_string();
        self.places.insert(name, self.tools.len());
        self.tools.push(Tool {
            definition,
            at_head,
            state,
        });
    }

    pub fn count(&self) -> usize {
        self.tools.len()
    }

    /// Adds a tool of which the conversation tells; false where there is one of its name.
    pub fn find(&mut self, tool: Value) -> bool {
        let new = !self.places.contains_key(name_of(&tool));
        if new {
            self.add(tool, false, State::Callable);
        }
        new
    }

    /// Text in the place of a reference to a tool, which the model may call from there on. A
    /// definition is told once, however many references there are to it: they are short, and it may
    /// be long.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn load(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let tool = self.named(name)?;
        let before = std::mem::replace(&mut tool.state, State::Callable);
        let name = name_of(&tool.definition);
        Ok(match before {
            State::Waiting => functions([&tool.definition]),
            State::Callable => format!("{name} can be called already."),
            State::Removed => format!("{name} can be called again."),
        })
    }

    /// [`ConversationTools::load`] of a tool that stands in the conversation itself, in the form of
    /// the chat completions API; `name` is its name's field.
    ///
    /// # Errors
    /// When another tool has the name, or there are too many.
    pub fn define(&mut self, name: &Field<'_>, tool: Value) -> Result<String, ApiError> {
        if self.tools.len() == TOOLS_MAX {
            return Err(name.error(format!("is that of tool {}", TOOLS_MAX + 1)));
        }
        let text = functions([&tool]);
        match self.find(tool) {
            true => Ok(text),
            false => Err(name.error("is the name of another tool already")),
        }
    }

    /// Text where a tool is removed, which the model may call no more. What has told of it still
    /// does.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn remove(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let tool = self.named(name)?;
        if tool.state == State::Callable {
            tool.state = State::Removed;
        }
        let name = name_of(&tool.definition);
        Ok(format!("{name} cannot be called any more."))
    }

    fn named(&mut self, name: &Field<'_>) -> Result<&mut Tool, ApiError> {
        let place = self.places.get(name.string()?);
        let place = place.ok_or_else(|| name.error("is the name of no tool"))?;
        Ok(&mut self.tools[*place])
    }

    /// The tools that may be called: those of the head first.
    pub fn callable(&self) -> Vec<Value> {
        let tools = self.tools.iter();
        let callable = tools.filter(|tool| tool.state == State::Callable);
        callable.map(|tool| tool.definition.clone()).collect()
    }

    /// Why the tool `name` may not be called, if there is one.
    pub fn why_not(&self, name: &str) -> Option<&'static str> {
        match self.tools[*self.places.get(name)?].state {
            State::Callable => None,
            State::Waiting => {
                Some("is the name of a tool with defer_loading that nothing has loaded")
            }
            State::Removed => Some("is the name of a tool that the conversation has removed"),
        }
    }

    /// Tools that `policy`, which is made of the callable ones, leaves.
    pub fn present(self, policy: ToolPolicy) -> Presented {
        let (mut head, mut loaded) = (Vec::new(), Vec::new());
        if policy.choice != ToolChoice::Never {
            for tool in self.tools {
                match (tool.at_head, tool.state) {
                    (true, _) => head.push(tool.definition),
                    (false, State::Callable) => loaded.push(tool.definition),
                    (false, _) => {}
                }
            }
        }
        Presented {
            policy,
            head,
            loaded,
        }
    }
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
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

    fn load(told: &mut ConversationTools, name: &str) -> Result<String, String> {
        with(name, |name| told.load(name))
    }

    #[test]
    fn what_is_removed_may_come_back() {
        let mut told = ConversationTools::new(vec![tool("f")], vec![tool("g")]);
        load(&mut told, "g").unwrap();
        for name in ["f", "g"] {
            with(name, |name| told.remove(name)).unwrap();
            assert!(told.why_not(name).unwrap().contains("removed"));
        }
        assert_eq!(told.callable(), [] as [Value; 0]);
        for name in ["f", "g"] {
            let text = load(&mut told, name).unwrap();
            assert_eq!(text, format!("{name} can be called again."));
        }
        assert_eq!(told.callable(), [tool("f"), tool("g")]);
    }

    #[test]
    fn the_head_tells_of_what_was_removed_behind_it() {
        let mut told = ConversationTools::new(vec![tool("f"), tool("g")], vec![tool("h")]);
        with("f", |name| told.remove(name)).unwrap();
        load(&mut told, "h").unwrap();
        let policy = ToolPolicy::of(told.callable(), ToolChoice::Auto);
        let presented = told.present(policy);
        assert_eq!(presented.head, [tool("f"), tool("g")]);
        assert_eq!(presented.loaded, [tool("h")]);
        assert_eq!(presented.policy.tools, [tool("g"), tool("h")]);
    }

    #[test]
    fn a_tool_is_defined_under_a_name_of_its_own() {
        let mut told = ConversationTools::new(vec![tool("f")], vec![tool("g")]);
        for taken in ["f", "g"] {
            assert!(with(taken, |name| told.define(name, tool(taken))).is_err());
        }
        let text = with("h", |name| told.define(name, tool("h"))).unwrap();
        assert!(text.contains(r#"{"name":"h""#), "{text}");
        assert!(with("absent", |name| told.remove(name)).is_err());
        assert_eq!(told.callable(), [tool("f"), tool("h")]);
    }

    #[test]
    fn the_number_of_tools_is_bounded_at_the_limit() {
        let all: Vec<Value> = (1..TOOLS_MAX).map(|at| tool(&format!("f{at}"))).collect();
        let mut told = ConversationTools::new(all, Vec::new());
        assert!(with("g", |name| told.define(name, tool("g"))).is_ok());
        assert!(with("h", |name| told.define(name, tool("h"))).is_err());
    }

    #[test]
    fn a_definition_is_told_once() {
        let mut told = ConversationTools::new(vec![tool("f")], vec![tool("g"), tool("h")]);
        let expected =
            "<functions>\n<function>{\"name\":\"h\",\"parameters\":{}}</function>\n</functions>";
        assert_eq!(load(&mut told, "h").unwrap(), expected);
        for known in ["h", "f"] {
            let text = load(&mut told, known).unwrap();
            assert_eq!(text, format!("{known} can be called already."));
        }
        assert_eq!(load(&mut told, "i"), Err("at".to_string()));
        assert!(told.why_not("g").unwrap().contains("defer_loading"));
        assert_eq!(told.callable(), [tool("f"), tool("h")]);
    }
}
