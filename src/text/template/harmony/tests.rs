use serde_json::json;

use super::*;

/// Conversations and what OpenAI's own library makes of them, written by
/// `scripts/harmony_golden.py`.
const GOLDEN: &str = include_str!("golden.json");

fn conversation(task: &Value) -> Conversation {
    let list = |name: &str| task[name].as_array().cloned().unwrap_or_default();
    Conversation {
        messages: list("messages"),
        tools: list("tools"),
        add_generation_prompt: true,
        enable_thinking: task["thinking"] != false,
        variables: task["variables"].as_object().cloned().unwrap_or_default(),
        ..Conversation::default()
    }
}

#[test]
fn prompts_are_those_of_the_library() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let rendered = render(&conversation(case)).unwrap();
        assert_eq!(
            Some(rendered.as_str()),
            case["text"].as_str(),
            "{}",
            case["name"]
        );
    }
}

fn rendered(messages: Value, change: impl FnOnce(&mut Conversation)) -> String {
    let mut conversation = conversation(&json!({"messages": messages}));
    change(&mut conversation);
    render(&conversation).unwrap()
}

#[test]
fn a_running_tool_loop_goes_on_with_what_was_generated() {
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": "f", "arguments": {"a": 1}}});
    let user = json!({"role": "user", "content": "?"});
    let said = json!({"role": "assistant", "content": "I look.", "reasoning_content": "I think.",
        "tool_calls": [call]});
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "2"});
    let before = rendered(json!([user]), |_| {});
    let after = rendered(json!([user, said, result]), |_| {});
    let generated = "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant\
        <|channel|>commentary<|message|>I look.<|end|>\
        <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
    let result = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>2<|end|>";
    assert_eq!(
        after,
        format!("{before}{generated}{result}<|start|>assistant")
    );
}

#[test]
fn a_reply_without_thinking_has_thought_already() {
    let user = json!({"role": "user", "content": "?"});
    let text = rendered(json!([user]), |one| one.enable_thinking = false);
    assert!(text.contains("Reasoning: low"), "{text}");
    let end = "<|start|>assistant<|channel|>analysis<|message|><|end|><|start|>assistant";
    assert!(text.ends_with(end), "{text}");
    let opened = rendered(json!([user]), |one| one.opens_reasoning = true);
    assert!(opened.ends_with("<|start|>assistant<|channel|>analysis<|message|>"));
}

#[test]
fn efforts_are_the_three_that_the_model_knows() {
    for (asked, level) in [
        ("none", "low"),
        ("minimal", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("max", "high"),
    ] {
        let text = rendered(json!([]), |one| {
            one.variables.insert(EFFORT.to_string(), json!(asked));
        });
        assert!(text.contains(&format!("\nReasoning: {level}\n")), "{asked}");
    }
}

#[test]
fn a_role_of_nobody_is_refused() {
    let odd = conversation(&json!({"messages": [{"role": "critic", "content": "?"}]}));
    assert!(matches!(render(&odd), Err(TemplateError::Refused(_))));
}
