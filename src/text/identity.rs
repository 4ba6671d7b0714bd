//! Check that tokenizer and chat template are those of the model: a stop token or thinking tag with
//! another id would go unnoticed as text.

use serde_json::json;

use super::template::{Conversation, Template, TemplateError};
use super::tokenizer::Tokenizer;
use step::Facts;

/// Texts of the tokens that begin the tags around reasoning.
pub fn tags(facts: &Facts) -> Vec<&'static str> {
    let tags = [facts.think_open, facts.think_close];
    let texts = facts.added_tokens.iter().map(|(_, text)| *text);
    let beginnings = texts.filter(|text| tags.iter().any(|tag| tag.starts_with(text)));
    beginnings.collect()
}

/// Tokens of a conversation, as id and text, that must be those of the manifest: ends of turns, and
/// tags around reasoning.
fn framing(facts: &Facts) -> impl Iterator<Item = (u32, &'static str)> {
    let tags = tags(facts);
    let counts =
        move |(id, text): &(u32, &str)| facts.stop_tokens.contains(id) || tags.contains(text);
    facts.added_tokens.iter().copied().filter(counts)
}

/// Texts of the tokens that end a turn, the usual one first.
fn stops(facts: &Facts) -> impl Iterator<Item = &'static str> {
    let text = |stop: &u32| {
        let mut tokens = facts.added_tokens.iter();
        tokens.find(|(id, _)| id == stop).map(|(_, text)| *text)
    };
    facts.stop_tokens.iter().filter_map(text)
}

/// Checks that the tokenizer has the manifest's ids for tokens that frame a conversation.
///
/// # Errors
/// Names the first token whose id differs; the message suggests no remedy.
pub fn check_tokenizer(facts: &Facts, tokenizer: &Tokenizer) -> Result<(), String> {
    let wrong = framing(facts).find(|(id, text)| tokenizer.id_of(text) != Some(*id));
    let Some((id, text)) = wrong else {
        return Ok(());
    };
    let found = match tokenizer.id_of(text) {
        Some(found) => format!("has {text} as token {found}"),
        None => format!("has no token {text}"),
    };
    let model = &facts.model;
    Err(format!(
        "{found}, {model} has it as {id}: this is the tokenizer of another model"
    ))
}

/// Checks that the template writes the manifest's tokens: a stop token after a turn of the model,
/// and the tags around reasoning.
///
/// # Errors
/// Names the token that the template does not write; the message suggests no remedy.
pub fn check_template(facts: &Facts, template: &Template) -> Result<(), String> {
    let turns = turns(template).map_err(|error| error.to_string())?;
    if !stops(facts).any(|stop| turns.contains(stop)) {
        let usual = stops(facts).next().unwrap_or_default();
        return Err(of_another_model(facts, usual));
    }
    let source = template.source();
    let marks = [facts.think_open, facts.think_close];
    let missing = marks.into_iter().find(|mark| !source.contains(mark));
    missing.map_or(Ok(()), |mark| Err(of_another_model(facts, mark)))
}

fn of_another_model(facts: &Facts, mark: &str) -> String {
    format!(
        "writes no {mark}, which turns of {} have: this is the template of another model",
        facts.model
    )
}

/// Rendering of a conversation in which a turn of the model is complete.
fn turns(template: &Template) -> Result<String, TemplateError> {
    let messages = [("user", "a"), ("assistant", "b"), ("user", "c")];
    template.render(&Conversation {
        messages: messages
            .map(|(role, content)| json!({"role": role, "content": content}))
            .to_vec(),
        tools: Vec::new(),
        add_generation_prompt: false,
        enable_thinking: false,
        ..Conversation::default()
    })
}

#[cfg(test)]
mod tests {
    use step::testing::TINY;

    use super::super::template::special::SpecialTokens;
    use super::super::testing::chat_model;
    use super::*;

    #[test]
    fn the_tokenizer_of_another_model_is_refused() {
        let said = check_tokenizer(&TINY, &chat_model().tokenizer).unwrap_err();
        assert!(said.contains("of another model"), "{said}");
    }

    #[test]
    fn a_template_that_ends_no_turn_or_knows_no_thoughts_is_refused() {
        let turns = "{% for message in messages %}{{ message.content }}END{% endfor %}";
        let stop = stops(&TINY).next().unwrap();
        for (end, missing) in [("</s>", stop), (stop, TINY.think_open)] {
            let source = turns.replace("END", end);
            let template = Template::load(&source, SpecialTokens::default()).unwrap();
            let said = check_template(&TINY, &template).unwrap_err();
            assert!(said.contains(&format!("writes no {missing}")), "{said}");
        }
    }
}
