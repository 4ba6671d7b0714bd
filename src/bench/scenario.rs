//! Scenarios that are measured, as data.

/// One closed loop: `streams` clients, each of which asks again as soon as its reply is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub name: &'static str,
    /// Replies at once.
    pub streams: usize,
    /// Replies to measure.
    pub requests: usize,
    /// Tokens per prompt, with the chat template.
    pub prompt_tokens: usize,
    /// Tokens per reply, exactly.
    pub max_tokens: usize,
}

pub(super) const SCENARIOS: [Scenario; 3] = [
    Scenario::of("decode-1", [1, 8], [64, 128]),
    Scenario::of("decode-8", [8, 32], [64, 128]),
    Scenario::of("prefill-200", [1, 32], [200, 1]),
];

/// For a model of real size: what a first token takes, and what one to 64 readers get.
pub(super) const LARGE: [Scenario; 7] = [
    Scenario::of("first-128", [1, 12], [128, 1]),
    Scenario::of("first-1024", [1, 8], [1024, 1]),
    Scenario::of("first-8192", [1, 4], [8192, 1]),
    Scenario::of("streams-1", [1, 4], [128, 512]),
    Scenario::of("streams-8", [8, 16], [128, 256]),
    Scenario::of("streams-32", [32, 64], [128, 256]),
    Scenario::of("streams-64", [64, 128], [128, 256]),
];

impl Scenario {
    /// Streams and requests, and the tokens of a prompt and of a reply.
    const fn of(
        name: &'static str,
        [streams, requests]: [usize; 2],
        [prompt_tokens, max_tokens]: [usize; 2],
    ) -> Scenario {
        Scenario {
            name,
            streams,
            requests,
            prompt_tokens,
            max_tokens,
        }
    }

    /// A scenario from the command line; what is not given is as in a chat with eight users.
    pub fn custom([streams, requests, prompt_tokens, max_tokens]: [Option<usize>; 4]) -> Scenario {
        let streams = streams.unwrap_or(8);
        let requests = requests.unwrap_or(4 * streams);
        let tokens = [prompt_tokens.unwrap_or(200), max_tokens.unwrap_or(128)];
        Scenario::of("custom", [streams, requests], tokens)
    }
}

/// # Errors
/// Lists the names there are.
pub(super) fn named(name: &str) -> Result<Scenario, String> {
    let mut all = SCENARIOS.iter().chain(&LARGE);
    let found = all.find(|scenario| scenario.name == name);
    found.cloned().ok_or_else(|| {
        let names = SCENARIOS.iter().chain(&LARGE).map(|scenario| scenario.name);
        let names = names.collect::<Vec<_>>().join(", ");
        format!("--scenario {name}: there is no such scenario; choose from {names}")
    })
}

/// Words that most vocabularies have as one token.
const WORDS: [&str; 16] = [
    "the", "time", "of", "day", "is", "a", "good", "name", "for", "one", "long", "line", "in",
    "this", "new", "book",
];

/// A text of `words` words. The number in front makes each prompt another one, so that no part of
/// it comes from a prefix cache.
pub(super) fn prompt(number: usize, words: usize) -> String {
    let mut text = format!("{number:06}");
    for word in WORDS.iter().cycle().take(words) {
        text.push(' ');
        text.push_str(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_from_the_first_character_on_and_have_the_length_asked_for() {
        assert_eq!(prompt(17, 3), "000017 the time of");
        assert_eq!(prompt(0, 40).split(' ').count(), 41);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(named("decode-8").unwrap().streams, 8);
        assert!(
            named("decode")
                .unwrap_err()
                .contains("decode-1, decode-8, prefill-200")
        );
    }

    #[test]
    fn every_stream_of_a_scenario_is_busy_more_than_once() {
        assert!(
            SCENARIOS
                .iter()
                .all(|scenario| scenario.requests >= 2 * scenario.streams)
        );
    }
}
