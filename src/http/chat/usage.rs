//! Usage of answers of the completions APIs, and the chunks of a stream that have it.

use std::io::Write;

use serde_json::{Value, json};

use crate::call::Usage;
use crate::error::ApiError;
use crate::fields::Object;
use crate::generate::generation::Settled;

/// Chunks of a stream in which usage is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageReport {
    Never,
    /// Usage is reported in a last chunk without choices.
    AtEnd,
    /// The last chunk, and each chunk before with the usage so far.
    Running,
}

impl UsageReport {
    /// Reads `stream_options`; OpenRouter's clients ask for the last chunk by the field `usage`.
    /// Whole answers always have usage.
    ///
    /// # Errors
    /// When `stream_options` comes without `stream`, or asks for running counts alone.
    pub fn read(object: &Object<'_>, stream: bool) -> Result<UsageReport, ApiError> {
        let usage = object.optional_object("usage")?;
        let mut asked = usage.map_or(Ok(false), |usage| usage.boolean("include", false))?;
        let mut running = false;
        if let Some(field) = object.get("stream_options") {
            let options = field.object()?;
            if !stream {
                return Err(field.error("needs stream to be true"));
            }
            asked |= options.boolean("include_usage", false)?;
            running = options.boolean("continuous_usage_stats", false)?;
            if running && !asked {
                let path = options.path_of("continuous_usage_stats");
                return Err(ApiError::field(path, "needs include_usage to be true"));
            }
        }
        Ok(match (asked, running) {
            (false, _) => UsageReport::Never,
            (true, false) => UsageReport::AtEnd,
            (true, true) => UsageReport::Running,
        })
    }
}

/// Usage so far of a stream: the sum over all its replies.
#[derive(Debug)]
pub struct Tally {
    reported: UsageReport,
    so_far: Usage,
    /// Whether the number of cached tokens is known.
    admitted: bool,
}

impl Tally {
    /// Usage of a stream whose prompts have `prompt` tokens in all.
    pub fn new(reported: UsageReport, prompt: usize) -> Tally {
        let so_far = Usage {
            prompt,
            ..Usage::default()
        };
        Tally {
            reported,
            so_far,
            admitted: false,
        }
    }

    /// Sets the usage of the prompts.
    pub fn admit(&mut self, usage: Usage) {
        self.so_far.cached = usage.cached;
        self.admitted = true;
    }

    /// Counts the tokens of `settled`, whose text may partly be held back still.
    pub fn add(&mut self, settled: &Settled) {
        self.so_far.completion += settled.tokens;
        self.so_far.reasoning += settled.reasoning_tokens;
    }

    /// Whether each chunk reports the usage, so that a token without text needs a chunk too.
    pub fn is_running(&self) -> bool {
        self.reported == UsageReport::Running
    }

    /// Ends a chunk after its last choice, with the usage so far if it is reported.
    pub fn end_chunk(&self, out: &mut Vec<u8>) {
        match self.reported {
            UsageReport::Never => out.extend_from_slice(b"]}\n\n"),
            // A client that waits for the usage finds the field, null, in each chunk.
            UsageReport::AtEnd => out.extend_from_slice(b"],\"usage\":null}\n\n"),
            UsageReport::Running => {
                let mut usage = usage_json(self.so_far);
                if !self.admitted
                    && let Some(fields) = usage.as_object_mut()
                {
                    fields.remove(PROMPT_DETAILS);
                }
                end_with(&usage, out);
            }
        }
    }

    /// Ends a stream; `head` is the text of a chunk up to the opening of its choices.
    pub fn end_stream(&self, head: &str, usage: Usage, out: &mut Vec<u8>) {
        if self.reported != UsageReport::Never {
            out.extend_from_slice(head.as_bytes());
            end_with(&usage_json(usage), out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

fn end_with(usage: &Value, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = write!(out, "],\"usage\":{usage}}}\n\n");
}

/// Name of the member that states how many tokens of the prompt came from the cache.
const PROMPT_DETAILS: &str = "prompt_tokens_details";

/// Usage in the form of the completions APIs.
pub fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        PROMPT_DETAILS: {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<UsageReport, String> {
        let stream = body["stream"] == true;
        UsageReport::read(&Object::root(&body).unwrap(), stream)
            .map_err(|error| error.param.unwrap_or_default())
    }

    fn options(options: Value) -> Result<UsageReport, String> {
        read(json!({"stream": true, "stream_options": options}))
    }

    #[test]
    fn usage_is_asked_for_by_either_name() {
        use UsageReport::{AtEnd, Never};
        assert_eq!(options(json!({"include_usage": true})), Ok(AtEnd));
        assert_eq!(options(json!({"include_usage": false})), Ok(Never));
        assert_eq!(read(json!({"usage": {"include": true}})), Ok(AtEnd));
        assert_eq!(read(json!({"usage": {"include": false}})), Ok(Never));
        assert_eq!(read(json!({})), Ok(Never));
    }

    #[test]
    fn running_counts_are_reported_beside_the_last_one() {
        let both = json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(options(both.clone()), Ok(UsageReport::Running));
        let off = json!({"include_usage": true, "continuous_usage_stats": false});
        assert_eq!(options(off), Ok(UsageReport::AtEnd));
        let at = "stream_options.continuous_usage_stats".to_string();
        assert_eq!(options(json!({"continuous_usage_stats": true})), Err(at));
        let whole = read(json!({"stream_options": both}));
        assert_eq!(whole, Err("stream_options".to_string()));
    }

    #[test]
    fn each_chunk_reports_what_was_used_up_to_it() {
        let mut tally = Tally::new(UsageReport::Running, 3);
        tally.admit(Usage {
            cached: 2,
            ..Usage::default()
        });
        let mut reported = Vec::new();
        for (tokens, reasoning_tokens) in [(0, 0), (1, 1), (2, 0)] {
            tally.add(&Settled {
                tokens,
                reasoning_tokens,
                ..Settled::default()
            });
            let mut out = b"[".to_vec();
            tally.end_chunk(&mut out);
            let text = String::from_utf8(out).unwrap();
            let usage = text.trim_end().strip_prefix("[],\"usage\":").unwrap();
            let usage: Value = serde_json::from_str(usage.strip_suffix('}').unwrap()).unwrap();
            reported.push(usage);
        }
        let of = |completion, reasoning| {
            usage_json(Usage {
                prompt: 3,
                cached: 2,
                completion,
                reasoning,
            })
        };
        assert_eq!(reported, [of(0, 0), of(1, 1), of(3, 1)]);
    }

    #[test]
    fn what_was_cached_is_not_reported_before_it_is_known() {
        let mut out = Vec::new();
        Tally::new(UsageReport::Running, 3).end_chunk(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("\"prompt_tokens\":3") && !text.contains("cached"),
            "{text}"
        );
    }

    #[test]
    fn the_end_reports_usage_where_asked() {
        let end = |reported| {
            let usage = Usage {
                prompt: 3,
                cached: 2,
                completion: 4,
                reasoning: 1,
            };
            let mut out = Vec::new();
            Tally::new(reported, 3).end_stream("data: {\"choices\":[", usage, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(end(UsageReport::Never), "data: [DONE]\n\n");
        for reported in [UsageReport::AtEnd, UsageReport::Running] {
            let begins = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3";
            assert!(end(reported).starts_with(begins));
            assert!(end(reported).ends_with("data: [DONE]\n\n"));
        }
    }
}
