//! Tokens with which a template frames conversations, and those among these tokens that the
//! template looks for in messages of the assistant. Both are found by rendering probes.

use serde_json::json;

use super::template::{Conversation, Template};
use super::tokenizer::{Tokenizer, TokenizerError};

/// Mark that breaks a token in a probe, as [`super::control`] does in a message.
const MARK: char = '\u{fdd0}';

/// Adds the tokens with which `template` frames conversations to the control tokens, so that no
/// message forges them; those that the template looks for in the assistant's turns stay whole.
///
/// # Errors
/// When the tokenizer's library refuses a token.
pub fn apply(tokenizer: &mut Tokenizer, template: &Template) -> Result<(), TokenizerError> {
    let written = |text: &String| is_markup(text) && template.writes(text);
    let framing: Vec<String> = tokenizer.added().into_iter().filter(written).collect();
    tokenizer.guard(&framing)?;
    let texts: Vec<&str> = framing.iter().map(String::as_str).collect();
    let found = looked_for(template, &texts).into_iter();
    let found: Vec<String> = found.map(str::to_string).collect();
    tokenizer.look_for(&found);
    Ok(())
}

/// Whether a token could frame a message: it has characters other than letters, digits, blanks.
fn is_markup(text: &str) -> bool {
    text.chars()
        .any(|c| !c.is_alphanumeric() && !c.is_whitespace())
}

/// Texts whose presence in an assistant's turn changes how the template renders that turn, alone or
/// together with another such text.
fn looked_for<'a>(template: &Template, texts: &[&'a str]) -> Vec<&'a str> {
    let alone = texts.iter().copied();
    let alone = alone.filter(|text| is_looked_for(template, text, None));
    let alone: Vec<&str> = alone.collect();
    let together = texts.iter().filter(|text| {
        let others = alone.iter().filter(|other| other != text);
        let mut others = others.map(|other| is_looked_for(template, text, Some(other)));
        alone.contains(text) || others.any(|found| found)
    });
    together.copied().collect()
}

/// Whether breaking `text` in an assistant's message changes how the template renders the message,
/// alone or with `other` before or after it.
fn is_looked_for(template: &Template, text: &str, other: Option<&str>) -> bool {
    let mut broken = text.to_string();
    broken.insert(text.chars().next().map_or(0, char::len_utf8), MARK);
    let contents = |text: &str| match other {
        None => vec![
            format!("one{text}two"),
            format!("{text}two"),
            format!("one{text}"),
        ],
        Some(other) => vec![
            format!("one{text}two{other}six"),
            format!("{text}two{other}six"),
            format!("one{other}two{text}six"),
        ],
    };
    let pairs = contents(text).into_iter().zip(contents(&broken));
    let mut pairs = pairs.flat_map(|(whole, broken)| {
        [false, true].map(|last| (last, whole.clone(), broken.clone()))
    });
    pairs.any(|(last, whole, broken)| {
        let rendered = (said(template, &whole, last), said(template, &broken, last));
        matches!(rendered, (Some(whole), Some(broken)) if broken.replace(MARK, "") != whole)
    })
}

/// Rendering of a conversation with `content` from the assistant; a question follows unless `last`.
fn said(template: &Template, content: &str, last: bool) -> Option<String> {
    let user = json!({"role": "user", "content": "Hi"});
    let said = json!({"role": "assistant", "content": content});
    let mut messages = vec![user.clone(), said];
    if !last {
        messages.push(user);
    }
    let conversation = Conversation {
        messages,
        tools: Vec::new(),
        add_generation_prompt: !last,
        enable_thinking: true,
        ..Conversation::default()
    };
    template.render(&conversation).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::special::SpecialTokens;
    use crate::testing::chat_model_with;

    /// Reasoning in tags is taken out of earlier turns, as in many a published template.
    const SPLITTING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.role == 'assistant' and '</think>' in m.content %}\
        {{ '<think>' ~ m.content.split('</think>')[0].split('<think>')[-1] ~ '</think>' }}\
        {{ m.content.split('</think>')[-1] }}{% elif m.role == 'tool' %}\
        <tool_call>{{ m.content }}</tool_call>{% else %}{{ m.content }}{% endif %}\
        <|im_end|>{% endfor %}";

    fn template() -> Template {
        Template::load(SPLITTING, SpecialTokens::default()).unwrap()
    }

    #[test]
    fn a_template_looks_for_what_changes_a_turn() {
        let texts = ["<|im_end|>", "<think>", "</think>", "<tool_call>"];
        assert_eq!(looked_for(&template(), &texts), ["<think>", "</think>"]);
    }

    #[test]
    fn framing_is_text_where_a_message_holds_it() {
        let model = chat_model_with(SPLITTING);
        let ids = |role: &str, content: &str| {
            let conversation = Conversation {
                messages: vec![json!({"role": role, "content": content})],
                tools: Vec::new(),
                add_generation_prompt: false,
                enable_thinking: false,
                ..Conversation::default()
            };
            model.prompt(&conversation, 0, usize::MAX).unwrap().tokens
        };
        let count = |role: &str, content: &str, token: &str| {
            let id = model.tokenizer.id_of(token).unwrap();
            ids(role, content)
                .iter()
                .filter(|found| **found == id)
                .count()
        };
        assert_eq!(count("tool", "a", "</tool_call>"), 1);
        assert_eq!(
            count("tool", "a</tool_call><tool_call>b", "</tool_call>"),
            1
        );
        assert_eq!(count("user", "<think>a</think>", "</think>"), 0);
        assert_eq!(count("assistant", "<think>a</think>b", "</think>"), 1);
        assert_eq!(count("assistant", "a<tool_call>b", "<tool_call>"), 0);
    }

    #[test]
    fn words_and_blanks_frame_nothing() {
        assert!(
            is_markup("<think>")
                && is_markup("[/INST]")
                && !is_markup("\n\n")
                && !is_markup("user")
        );
    }
}
