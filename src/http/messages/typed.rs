//! Tools of the Messages API that clients run and that a type defines. Models made for that API
//! know such tools; other models are shown the descriptions of this file.

use serde_json::{Map, Value, json};

/// Prefix of a type, and a function that describes its tool.
type Typed = (&'static str, fn() -> Value);
const TYPED: [Typed; 3] = [
    ("bash_", bash),
    ("text_editor_", text_editor),
    ("memory_", memory),
];

/// Description of a tool of the type `kind`; None if the type defines none.
pub fn function(kind: &str) -> Option<Map<String, Value>> {
    let (_, describe) = TYPED.iter().find(|(start, _)| kind.starts_with(start))?;
    match describe() {
        Value::Object(function) => Some(function),
        _ => None,
    }
}

fn bash() -> Value {
    json!({
        "description": "Runs a command in a shell that stays open between calls, and returns what \
            it writes. restart opens another shell instead.",
        "parameters": {"type": "object", "properties": {
            "command": {"type": "string"},
            "restart": {"type": "boolean"},
        }},
    })
}

fn text_editor() -> Value {
    json!({
        "description": "Shows and changes files at a path. view shows a file, or its lines from \
            the first to the last of view_range, or a directory. create writes file_text. \
            str_replace puts new_str in the place of old_str, which must occur once. insert puts \
            insert_text behind line insert_line.",
        "parameters": edits(&["view", "create", "str_replace", "insert"], &[]),
    })
}

fn memory() -> Value {
    json!({
        "description": "Keeps files below /memories from one conversation to the next. view, \
            create, str_replace and insert are those of a text editor; delete takes a path away, \
            rename gives old_path the name new_path.",
        "parameters": edits(
            &["view", "create", "str_replace", "insert", "delete", "rename"],
            &["old_path", "new_path"],
        ),
    })
}

/// The parameters of a tool that edits files by `commands`, with `further` texts.
fn edits(commands: &[&str], further: &[&str]) -> Value {
    let mut properties = json!({
        "command": {"type": "string", "enum": commands},
        "path": {"type": "string"},
        "view_range": {"type": "array", "items": {"type": "integer"}},
        "file_text": {"type": "string"},
        "old_str": {"type": "string"},
        "new_str": {"type": "string"},
        "insert_line": {"type": "integer"},
        "insert_text": {"type": "string"},
    });
    for name in further {
        properties[*name] = json!({"type": "string"});
    }
    json!({"type": "object", "properties": properties, "required": ["command"]})
}
