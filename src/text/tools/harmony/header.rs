//! Headers of messages, read as models write them.
//!
//! In long conversations models break them: they repeat the role or the channel, glue marks to
//! names or leave out parts. The first known channel and the last recipient count, other parts are
//! ignored: no header makes a reply fail.

use super::{FUNCTIONS, Mark, TO};

/// Recipients that are no tools.
const NOBODY: [&str; 3] = ["all", "assistant", "user"];
/// Authors whose messages are no answers of the model.
const OTHERS: [&str; 4] = ["developer", "system", "tool", "user"];
/// Author of a reply.
const ASSISTANT: &str = "assistant";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Analysis,
    Commentary,
    Final,
}

const CHANNELS: [(&str, Channel); 3] = [
    ("analysis", Channel::Analysis),
    ("commentary", Channel::Commentary),
    ("final", Channel::Final),
];

/// Parts of a message's header that decide how its text is read.
#[derive(Debug, Default, PartialEq)]
pub struct Header<'h> {
    pub channel: Option<Channel>,
    pub recipient: Option<&'h str>,
    /// Whether the author is another than the assistant.
    pub foreign: bool,
    /// Text after the header, of a message in which the mark between header and text is missing.
    pub rest: &'h str,
}

impl<'h> Header<'h> {
    /// Reads the text between `<|start|>` and `<|message|>`, in which marks are texts.
    pub fn read(text: &'h str) -> Header<'h> {
        let recipient = recipient(text);
        let first = word(text.trim_start());
        let result = first.starts_with(FUNCTIONS) && text.contains(TO);
        Header {
            channel: channel(text).map(|(channel, _)| channel),
            recipient: recipient.filter(|name| !NOBODY.contains(name)),
            foreign: OTHERS.contains(&first) || (result && recipient == Some(ASSISTANT)),
            rest: rest(text),
        }
    }
}

/// The first known channel, and the byte after its name.
fn channel(text: &str) -> Option<(Channel, usize)> {
    let mark = Mark::Channel.text();
    text.match_indices(mark).find_map(|(at, _)| {
        let named = text[at + mark.len()..].trim_start();
        let known = CHANNELS.iter().find(|(name, _)| named.starts_with(name));
        known.map(|(name, channel)| (*channel, text.len() - named.len() + name.len()))
    })
}

/// The last recipient after `to=`; else a function's name without `to=`.
fn recipient(text: &str) -> Option<&str> {
    let named = text.rfind(TO).map(|at| word(&text[at + TO.len()..]));
    let bare = || text.find(FUNCTIONS).map(|at| word(&text[at..]));
    named.or_else(bare).filter(|name| !name.is_empty())
}

/// Start of a text up to a blank or a mark.
fn word(text: &str) -> &str {
    let ends = |char: char| char.is_whitespace() || char == '<';
    text.split(ends).next().unwrap_or_default()
}

/// Text after the channel, or else after the role.
fn rest(text: &str) -> &str {
    let text = match channel(text) {
        Some((_, end)) => &text[end..],
        None => text.strip_prefix(ASSISTANT).unwrap_or(text),
    };
    text.trim_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Channel>, Option<&str>) {
        let header = Header::read(text);
        assert!(!header.foreign, "{text}");
        (header.channel, header.recipient)
    }

    #[test]
    fn a_call_is_read_in_every_order() {
        let expected = (Some(Channel::Commentary), Some("functions.f"));
        for text in [
            "<|channel|>commentary to=functions.f <|constrain|>json",
            "assistant to=functions.f<|channel|>commentary json",
            "assistant<|channel|>commentary to=functions.f code",
            "<|channel|>commentary to=functions.f<|constrain|>json",
            "assistant<|channel|>commentary<|channel|>commentary to=functions.f json",
            "assistant to=functions.g to=functions.f<|channel|>commentary",
            "functions.f<|channel|>commentary <|constrain|>json",
            "<|channel|>commentary functions.f json",
            "assistant<|channel|>odd<|channel|>commentary to=functions.f",
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_message_to_nobody_has_no_recipient() {
        for (text, channel) in [
            ("<|channel|>analysis", Some(Channel::Analysis)),
            (
                "assistant<|channel|>final <|constrain|>json",
                Some(Channel::Final),
            ),
            ("assistant to=all<|channel|>final", Some(Channel::Final)),
            ("assistant", None),
            ("assistant<|channel|>other", None),
        ] {
            assert_eq!(read(text), (channel, None), "{text}");
        }
    }

    #[test]
    fn words_of_others_are_told_apart() {
        for text in [
            "functions.f to=assistant<|channel|>commentary",
            "user",
            "system",
        ] {
            assert!(Header::read(text).foreign, "{text}");
        }
    }

    #[test]
    fn what_is_no_header_is_the_rest() {
        for text in [
            "<|channel|>final I cannot.",
            "assistant I cannot.",
            "I cannot.",
        ] {
            assert_eq!(Header::read(text).rest, "I cannot.", "{text}");
        }
        assert_eq!(Header::read("assistant<|channel|>final").rest, "");
    }
}
