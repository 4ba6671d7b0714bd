//! Scenarios of load.

/// One closed loop: each of `streams` clients sends a request as soon as its last reply is
/// complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub name: &'static str,
    /// Number of replies at once.
    pub streams: usize,
    /// Number of replies to measure.
    pub requests: usize,
    /// Tokens per prompt, with the chat template.
    pub prompt_tokens: usize,
    /// Exact number of tokens per reply.
    pub max_tokens: usize,
}

pub(super) const SCENARIOS: [Scenario; 3] = [
    Scenario::of("decode-1", [1, 8], [64, 128]),
    Scenario::of("decode-8", [8, 32], [64, 128]),
    Scenario::of("prefill-200", [1, 32], [200, 1]),
];

/// Scenarios for a model of real size: latency of first tokens, and throughput with 1 to 64
/// streams.
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
    /// Scenario with numbers of streams and requests, and tokens of a prompt and of a reply.
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

    /// A scenario from the command line; defaults are those of a chat with eight users.
    pub fn custom([streams, requests, prompt_tokens, max_tokens]: [Option<usize>; 4]) -> Scenario {
        let streams = streams.unwrap_or(8);
        let requests = requests.unwrap_or(4 * streams);
        let tokens = [prompt_tokens.unwrap_or(200), max_tokens.unwrap_or(128)];
        Scenario::of("custom", [streams, requests], tokens)
    }
}

/// # Errors
/// Lists the known names.
pub(super) fn named(name: &str) -> Result<Scenario, String> {
    let mut all = SCENARIOS.iter().chain(&LARGE);
    let found = all.find(|scenario| scenario.name == name);
    found.cloned().ok_or_else(|| {
        let names = SCENARIOS.iter().chain(&LARGE).map(|scenario| scenario.name);
        let names = names.collect::<Vec<_>>().join(", ");
        format!("--scenario {name}: there is no such scenario; choose from {names}")
    })
}

/// Words that are single tokens in most vocabularies.
const WORDS: [&str; 16] = [
    "the", "time", "of", "day", "is", "a", "good", "name", "for", "one", "long", "line", "in",
    "this", "new", "book",
];

/// A text of `words` words. `number` comes first, so that no two prompts share a prefix in the
/// cache.
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
