//! How quick a model's steps are, through the same calls as the engine's.

use std::time::Instant;

use crate::executor::{DeviceError, Executor, PageId, Rows, Slot, States, TokenId};
use crate::target::{KV_PAGES, MAX_CONTEXT, MAX_SEQUENCES, PAGE, PREFILL_TOKENS, VOCAB};

/// Longest prompt that is measured.
const PROMPT_MAX: usize = 8192;
/// Shorter context of decode steps.
const CONTEXT_SHORT: usize = 128;
/// Timed decode steps, after a quarter as many to warm up.
const STEPS: usize = 64;

/// Times prefill of a long prompt, and decode behind a short and a long context, alone and with
/// others. The executor must be idle.
///
/// # Errors
/// `DeviceError` of a step.
pub fn measure<E: Executor>(executor: &mut E) -> Result<Vec<String>, DeviceError> {
    let long = (MAX_CONTEXT - 2 * STEPS).min(PROMPT_MAX) / PAGE * PAGE;
    let mut lines = Vec::new();
    prefill(executor, 0, long)?; // to warm up
    let seconds = prefill(executor, 0, long)?;
    lines.push(format!(
        "prefill       {long} tokens: {:.1} ms, {:.0} tokens/s",
        seconds * 1e3,
        long as f64 / seconds
    ));
    lines.push(decode(executor, 1, long)?);
    for rows in [1, 2, 8, 32, 64] {
        let pages = (CONTEXT_SHORT + 2 * STEPS).div_ceil(PAGE);
        if rows <= MAX_SEQUENCES && rows * pages <= KV_PAGES {
            for slot in 0..rows {
                prefill(executor, slot, CONTEXT_SHORT)?;
            }
            lines.push(decode(executor, rows, CONTEXT_SHORT)?);
        }
    }
    Ok(lines)
}

/// Pages of a slot; slot 0 alone may have a long context.
fn pages(slot: usize, tokens: usize) -> Vec<PageId> {
    let each = (CONTEXT_SHORT + 2 * STEPS).div_ceil(PAGE);
    let pages = slot * each..slot * each + tokens.div_ceil(PAGE);
    pages.map(|page| PageId(page as u32)).collect()
}

/// Seconds of a prompt of `tokens` in steps of the largest size.
fn prefill<E: Executor>(executor: &mut E, slot: usize, tokens: usize) -> Result<f64, DeviceError> {
    let prompt: Vec<_> = (0..tokens)
        .map(|at| (at * 7919 % VOCAB) as TokenId)
        .collect();
    let pages = pages(slot, tokens);
    let start = Instant::now();
    for (index, chunk) in prompt.chunks(PREFILL_TOKENS).enumerate() {
        let end = index * PREFILL_TOKENS + chunk.len();
        let rows = Rows {
            states: States::own(Slot(slot as u32)),
            start: index * PREFILL_TOKENS,
            tokens: chunk,
            pages: &pages,
            logits: end == tokens,
        };
        executor.step(&[rows])?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Median of decode steps of `rows` sequences behind `context` tokens each.
fn decode<E: Executor>(
    executor: &mut E,
    rows: usize,
    context: usize,
) -> Result<String, DeviceError> {
    let tables: Vec<_> = (0..rows)
        .map(|slot| pages(slot, context + 2 * STEPS))
        .collect();
    let mut times = Vec::new();
    for step in 0..STEPS + STEPS / 4 {
        // Different ones, so that the rows visit different experts.
        let token = |slot: usize| ((step * 31 + slot * 7919) % VOCAB) as TokenId;
        let tokens: Vec<_> = (0..rows).map(token).collect();
        let step_rows = tables.iter().enumerate().map(|(slot, pages)| Rows {
            states: States::own(Slot(slot as u32)),
            start: context + step,
            tokens: std::slice::from_ref(&tokens[slot]),
            pages,
            logits: true,
        });
        let step_rows: Vec<_> = step_rows.collect();
        let start = Instant::now();
        executor.step(&step_rows)?;
        if step >= STEPS / 4 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    Ok(format!(
        "decode        {rows} x context {context}: {:.0} us, {:.0} tokens/s",
        median * 1e6,
        rows as f64 / median
    ))
}
