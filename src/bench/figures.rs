//! Figures computed from timed replies.

use std::time::Duration;

use serde::Serialize;

use super::client::Timings;
use super::scenario::Scenario;

/// Nearest-rank percentiles; zero without values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Percentiles {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Percentiles {
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
        }
    }
}

/// Measurements of one scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    #[serde(skip)]
    pub name: &'static str,
    pub streams: usize,
    /// Number of complete replies, from which the figures are computed.
    pub replies: usize,
    pub errors: usize,
    /// Mean tokens per prompt, as the server counts them.
    pub prompt_tokens: f64,
    /// Mean tokens per reply, as the server counts them.
    pub reply_tokens: f64,
    pub wall_s: f64,
    /// Time from sending the request to the first text.
    pub ttft_ms: Percentiles,
    /// Time between one piece of text and the next.
    pub itl_ms: Percentiles,
    /// Tokens after the first per second between the first and the last text of a reply.
    pub stream_tok_s: Percentiles,
    /// Prompt tokens per second until the first text of a reply.
    pub prompt_tok_s: Percentiles,
    /// Tokens of all replies per second of wall time.
    pub total_tok_s: f64,
}

impl Figures {
    pub fn of(scenario: &Scenario, replies: &[Timings], errors: usize, wall: Duration) -> Self {
        let generated = sum(replies, |reply| reply.completion_tokens);
        let count = replies.len().max(1) as f64;
        Figures {
            name: scenario.name,
            streams: scenario.streams,
            replies: replies.len(),
            errors,
            prompt_tokens: sum(replies, |reply| reply.prompt_tokens) / count,
            reply_tokens: generated / count,
            wall_s: wall.as_secs_f64(),
            ttft_ms: Percentiles::of(replies.iter().map(|reply| millis(reply.first()))),
            itl_ms: Percentiles::of(replies.iter().flat_map(gaps_ms)),
            stream_tok_s: Percentiles::of(replies.iter().filter_map(stream_tok_s)),
            prompt_tok_s: Percentiles::of(replies.iter().map(prompt_tok_s)),
            total_tok_s: generated / wall.as_secs_f64(),
        }
    }
}

fn sum(replies: &[Timings], count: impl Fn(&Timings) -> usize) -> f64 {
    replies.iter().map(count).sum::<usize>() as f64
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn gaps_ms(reply: &Timings) -> impl Iterator<Item = f64> {
    let pairs = reply.pieces.windows(2);
    pairs.map(|pair| millis(pair[1].0 - pair[0].0))
}

/// Rate of one reply's tokens; None for a reply whose text came in one piece.
fn stream_tok_s(reply: &Timings) -> Option<f64> {
    let time = (reply.last() - reply.first()).as_secs_f64();
    (time > 0.0).then(|| (reply.completion_tokens - 1) as f64 / time)
}

fn prompt_tok_s(reply: &Timings) -> f64 {
    reply.prompt_tokens as f64 / reply.first().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scenario;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from));
        assert_eq!(
            hundred,
            Percentiles {
                p50: 50.0,
                p90: 90.0,
                p99: 99.0
            }
        );
        let three = Percentiles::of([3.0, 1.0, 2.0]);
        assert_eq!(
            three,
            Percentiles {
                p50: 2.0,
                p90: 3.0,
                p99: 3.0
            }
        );
        assert_eq!(Percentiles::of([]), Percentiles::default());
    }

    #[test]
    fn figures_of_a_known_reply() {
        let pieces = [100, 120, 160]
            .map(|at| (Duration::from_millis(at), 1))
            .to_vec();
        let reply = Timings {
            prompt_tokens: 50,
            completion_tokens: 4,
            pieces,
        };
        let scenario = scenario::named("decode-1").unwrap();
        let wall = Duration::from_millis(400);
        let figures = Figures::of(&scenario, &[reply.clone(), reply], 1, wall);
        assert_eq!((figures.replies, figures.errors), (2, 1));
        assert_eq!((figures.prompt_tokens, figures.reply_tokens), (50.0, 4.0));
        assert_eq!(figures.ttft_ms.p50, 100.0);
        assert_eq!((figures.itl_ms.p50, figures.itl_ms.p90), (20.0, 40.0));
        assert!((figures.stream_tok_s.p50 - 3.0 / 0.06).abs() < 1e-9);
        assert!((figures.prompt_tok_s.p50 - 500.0).abs() < 1e-9);
        assert_eq!(figures.total_tok_s, 20.0);
    }

    #[test]
    fn a_reply_of_one_piece_has_no_rate() {
        let reply = Timings {
            completion_tokens: 1,
            pieces: vec![(Duration::from_millis(5), 1)],
            ..Timings::default()
        };
        assert_eq!(stream_tok_s(&reply), None);
    }
}
