//! Tools that are added and removed within a conversation. Such tools are described where a tool's
//! result or a system message adds them and not at the head of the prompt: agents search among more
//! tools than a context should hold, and the cached prefix stays valid when one is found.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Field;
use crate::limits::TOOLS_MAX;

use super::tool_policy::{ToolChoice, ToolPolicy};

/// The tools of a request, and their states at this point of the conversation.
#[derive(Debug, Default)]
pub struct ConversationTools {
    tools: Vec<Tool>,
    /// Index of each tool by its name.
    indices: HashMap<String, usize>,
}

#[derive(Debug)]
struct Tool {
    /// Description in the form of the chat completions API.
    definition: Value,
    at_head: bool,
    state: ToolState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolState {
    /// The prompt has not described the tool so far.
    Waiting,
    Callable,
    /// The prompt describes the tool, and announces that it is removed.
    Removed,
}

/// Tools as the prompt describes them, and those that the reply may call.
#[derive(Debug)]
pub struct Presented {
    pub policy: ToolPolicy,
    /// Tools at the head of the prompt, also removed ones; empty if no tool may be called.
    pub head: Vec<Value>,
    /// Callable tools that messages describe.
    pub loaded: Vec<Value>,
}

/// Text that describes tools to the model within a conversation, in the form that descriptions of
/// agents' search tools announce.
pub fn functions<'v>(tools: impl IntoIterator<Item = &'v Value>) -> String {
    let line = |tool: &Value| format!("<function>{}</function>\n", tool["function"]);
    let lines: String = tools.into_iter().map(line).collect();
    format!("<functions>\n{lines}</functions>")
}

impl ConversationTools {
    /// Tools of the prompt's head, and `waiting` ones that may be loaded later; all names differ.
    pub fn new(head: Vec<Value>, waiting: Vec<Value>) -> ConversationTools {
        let mut tools = ConversationTools::default();
        for tool in head {
            tools.add(tool, true, ToolState::Callable);
        }
        for tool in waiting {
            tools.add(tool, false, ToolState::Waiting);
        }
        tools
    }

    fn add(&mut self, definition: Value, at_head: bool, state: ToolState) {
        let name = name_of(&definition).to_string();
        self.indices.insert(name, self.tools.len());
        self.tools.push(Tool {
            definition,
            at_head,
            state,
        });
    }

    pub fn count(&self) -> usize {
        self.tools.len()
    }

    /// Adds a tool that the conversation describes; false if its name is taken.
    pub fn find(&mut self, tool: Value) -> bool {
        let new = !self.indices.contains_key(name_of(&tool));
        if new {
            self.add(tool, false, ToolState::Callable);
        }
        new
    }

    /// Text that replaces a reference to a tool in the conversation. From there on the model may
    /// call the tool: the first reference becomes the definition, later ones a note.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn load(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let tool = self.named(name)?;
        let before = std::mem::replace(&mut tool.state, ToolState::Callable);
        let name = name_of(&tool.definition);
        Ok(match before {
            ToolState::Waiting => functions([&tool.definition]),
            ToolState::Callable => format!("{name} can be called already."),
            ToolState::Removed => format!("{name} can be called again."),
        })
    }

    /// Text that replaces the definition of a tool within the conversation, `tool` in the form of
    /// the chat completions API. `name` is the field of its name.
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

    /// Text that replaces the removal of a tool: the model may call it no more, though its
    /// definition stays in the prompt.
    ///
    /// # Errors
    /// When there is no such tool.
    pub fn remove(&mut self, name: &Field<'_>) -> Result<String, ApiError> {
        let tool = self.named(name)?;
        if tool.state == ToolState::Callable {
            tool.state = ToolState::Removed;
        }
        let name = name_of(&tool.definition);
        Ok(format!("{name} cannot be called any more."))
    }

    fn named(&mut self, name: &Field<'_>) -> Result<&mut Tool, ApiError> {
        let index = self.indices.get(name.string()?);
        let index = index.ok_or_else(|| name.error("is the name of no tool"))?;
        Ok(&mut self.tools[*index])
    }

    /// The tools that may be called, those of the prompt's head first.
    pub fn callable(&self) -> Vec<Value> {
        let tools = self.tools.iter();
        let callable = tools.filter(|tool| tool.state == ToolState::Callable);
        callable.map(|tool| tool.definition.clone()).collect()
    }

    /// Reason why the tool `name` may not be called; None if it may or does not exist.
    pub fn why_not(&self, name: &str) -> Option<&'static str> {
        match self.tools[*self.indices.get(name)?].state {
            ToolState::Callable => None,
            ToolState::Waiting => {
                Some("is the name of a tool with defer_loading that nothing has loaded")
            }
            ToolState::Removed => Some("is the name of a tool that the conversation has removed"),
        }
    }

    /// Tools to show to the model under `policy`, which was made of the callable tools.
    pub fn present(self, policy: ToolPolicy) -> Presented {
        let (mut head, mut loaded) = (Vec::new(), Vec::new());
        if policy.choice != ToolChoice::Never {
            for tool in self.tools {
                match (tool.at_head, tool.state) {
                    (true, _) => head.push(tool.definition),
                    (false, ToolState::Callable) => loaded.push(tool.definition),
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

    fn load(tools: &mut ConversationTools, name: &str) -> Result<String, String> {
        with(name, |name| tools.load(name))
    }

    #[test]
    fn what_is_removed_may_come_back() {
        let mut tools = ConversationTools::new(vec![tool("f")], vec![tool("g")]);
        load(&mut tools, "g").unwrap();
        for name in ["f", "g"] {
            with(name, |name| tools.remove(name)).unwrap();
            assert!(tools.why_not(name).unwrap().contains("removed"));
        }
        assert_eq!(tools.callable(), [] as [Value; 0]);
        for name in ["f", "g"] {
            let text = load(&mut tools, name).unwrap();
            assert_eq!(text, format!("{name} can be called again."));
        }
        assert_eq!(tools.callable(), [tool("f"), tool("g")]);
    }

    #[test]
    fn the_head_lists_what_was_removed_after_it() {
        let mut tools = ConversationTools::new(vec![tool("f"), tool("g")], vec![tool("h")]);
        with("f", |name| tools.remove(name)).unwrap();
        load(&mut tools, "h").unwrap();
        let policy = ToolPolicy::of(tools.callable(), ToolChoice::Auto);
        let presented = tools.present(policy);
        assert_eq!(presented.head, [tool("f"), tool("g")]);
        assert_eq!(presented.loaded, [tool("h")]);
        assert_eq!(presented.policy.tools, [tool("g"), tool("h")]);
    }

    #[test]
    fn a_tool_is_defined_under_a_name_of_its_own() {
        let mut tools = ConversationTools::new(vec![tool("f")], vec![tool("g")]);
        for taken in ["f", "g"] {
            assert!(with(taken, |name| tools.define(name, tool(taken))).is_err());
        }
        let text = with("h", |name| tools.define(name, tool("h"))).unwrap();
        assert!(text.contains(r#"{"name":"h""#), "{text}");
        assert!(with("absent", |name| tools.remove(name)).is_err());
        assert_eq!(tools.callable(), [tool("f"), tool("h")]);
    }

    #[test]
    fn the_number_of_tools_is_bounded_at_the_limit() {
        let all: Vec<Value> = (1..TOOLS_MAX).map(|at| tool(&format!("f{at}"))).collect();
        let mut tools = ConversationTools::new(all, Vec::new());
        assert!(with("g", |name| tools.define(name, tool("g"))).is_ok());
        assert!(with("h", |name| tools.define(name, tool("h"))).is_err());
    }

    #[test]
    fn a_definition_is_reported_once() {
        let mut tools = ConversationTools::new(vec![tool("f")], vec![tool("g"), tool("h")]);
        let expected =
            "<functions>\n<function>{\"name\":\"h\",\"parameters\":{}}</function>\n</functions>";
        assert_eq!(load(&mut tools, "h").unwrap(), expected);
        for known in ["h", "f"] {
            let text = load(&mut tools, known).unwrap();
            assert_eq!(text, format!("{known} can be called already."));
        }
        assert_eq!(load(&mut tools, "i"), Err("at".to_string()));
        assert!(tools.why_not("g").unwrap().contains("defer_loading"));
        assert_eq!(tools.callable(), [tool("f"), tool("h")]);
    }
}
