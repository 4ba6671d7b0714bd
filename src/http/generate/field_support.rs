//! Fields that requests to servers of language models have, and how each dialect treats them.
//!
//! A field is honoured, refused by name unless its value changes nothing, or passed over because no
//! value of it could make an answer wrong: it concerns no part of this server, or is a mere hint.
//! Fields that are not in the table are unknown, and ignored.

use serde_json::Value;

use crate::error::ApiError;
#[cfg(test)]
use crate::fields::record;
use crate::fields::{Field, Object};
use host::log;

/// The dialects of requests, in the order of [`Marks`] and [`Words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// Treatment of a field by each dialect: [`HONOURED`], [`PASSED_OVER`], or refused by any other
/// mark.
type Marks = &'static [u8; 4];
const HONOURED: u8 = b'+';
const PASSED_OVER: u8 = b'.';

/// Advice for each dialect if the field is refused, or the reason why the field is ignored.
type Words = [&'static str; 4];

/// A field by its path, its treatment by the dialects, the values beside null (as JSON) that change
/// nothing and so are never refused, and the words for messages.
type Known = (&'static str, Marks, &'static str, Words);

const fn all(words: &'static str) -> Words {
    [words; 4]
}

const NONE: Words = all("");
const CHAT: Words = all("a text is continued as it is; use chat/completions");
const MESSAGES: &str = "send messages";
const TURNS: Words = [MESSAGES, "send prompt", "send input", MESSAGES];
const SYSTEM: Words = [
    "send a system message",
    "put it into the prompt",
    "send instructions",
    "send system",
];
const WHOLE: &str = "conversations are not kept by this API; send the whole one";
const STORED: Words = [WHOLE, WHOLE, "send previous_response_id", WHOLE];
const SHORTER: Words = all("prompts are never cut; send less");
const MEDIA: Words = all("this server reads text only");
const TEXT: Words = all("this server writes text only");
const TEMPLATE: Words = all("the template comes with the model");
const TURN: Words = [
    "",
    "a text is always continued as it is",
    "end input with what the assistant has said to go on with it",
    "end messages with what the assistant has said to go on with it",
];
const OFFLINE: Words = all("this server reaches no network");
const SINGLE: &str = "send tool_choice.disable_parallel_tool_use";
const PARALLEL: Words = ["", "a text calls no tools", "", SINGLE];
const LENGTH: Words = [
    "send max_completion_tokens",
    "send max_tokens",
    "send max_output_tokens",
    "send max_tokens",
];
const LEAST: Words = all("send min_tokens");
const STOP: Words = ["send stop", "send stop", "send stop", "send stop_sequences"];
const STOP_TEXT: Words = all("stop strings are no part of a reply");
const SCHEMA: &str = "send output_config.format";
const FORMAT: &str = "send response_format";
const FORM: Words = [FORMAT, FORMAT, "send text.format", SCHEMA];
const COMPACT: &str = "send structured_outputs.disable_any_whitespace";
const WHITESPACE: Words = [COMPACT, COMPACT, COMPACT, SCHEMA];
const TOOLS: Words = ["send tools", CHAT[1], "send tools", "send tools"];
const CHOOSE: &str = "send tool_choice";
const CHOICE: Words = [CHOOSE, CHAT[1], CHOOSE, CHOOSE];
const BIAS: Words = all("send logit_bias");
const BEAMS: Words = all("beam search is not served");
const PENALTY: Words = all("send repetition_penalty");
const NUCLEUS: Words = all("send top_p or min_p");
const OFF: Words = all("it tunes what is refused where it is on");
const ONE_REPLY: Words = all("an answer is one reply");
const SCORES_ELSEWHERE: &str = "they are told by chat/completions and completions";
const SCORES: Words = [
    "send logprobs and top_logprobs",
    "send logprobs",
    "send top_logprobs, and include to hold message.output_text.logprobs",
    SCORES_ELSEWHERE,
];
const INSIDE: Words = all("the model's inside is not told");
const ALWAYS: &str = "reasoning is always reported";
const REPORTED: Words = [ALWAYS, ALWAYS, ALWAYS, "send thinking.display"];
const BUDGET: Words = [
    "send thinking_token_budget",
    CHAT[1],
    "send thinking_token_budget",
    "send thinking.budget_tokens",
];
const USAGE: Words = [
    "send stream_options.include_usage",
    "send stream_options.include_usage",
    "usage is always told",
    "usage is always told",
];
const FORMS: Words = all("an answer has one form");
const ALONE: Words = all("send the fields that it holds by themselves");
const PLUG_INS: Words = all("there are no plug-ins");
const WHO: Words = all("it says who asks or where, not what");
const CACHE: Words = all("no cache changes an answer");
const ROUTING: Words = all("there is one model in one place");
const STORING: Words = all("it says what becomes of the answer, not what is in it");
const HINT: Words = all("a hint that no answer can break, and the model has no switch for it");
const SUMMARY: Words = all("the reasoning itself is told");

/// Columns: field; marks for chat, completions, responses and messages; neutral values; words.
#[rustfmt::skip]
const FIELDS: &[Known] = &[
    ("model",                             b"++++", "", NONE),

    // Conversation.
    ("messages",                          b"+--+", "", TURNS),
    ("prompt",                            b"-+--", "", TURNS),
    ("input",                             b"--+-", "", TURNS),
    ("prompt_embeds",                     b"----", "", TURNS),
    ("instructions",                      b"--+-", "", SYSTEM),
    ("system",                            b"---+", "", SYSTEM),
    ("suffix",                            b"----", r#""""#, all("a text is continued at its end")),
    ("documents",                         b"----", "[]", all("put documents into what is said")),
    ("images",                            b"----", "[]", MEDIA),
    ("mm_processor_kwargs",               b"....", "", MEDIA),
    ("media_io_kwargs",                   b"....", "", MEDIA),
    ("mm_hashes",                         b"....", "", MEDIA),
    ("previous_response_id",              b"--+-", "", STORED),
    ("conversation",                      b"----", "", STORED),
    ("session_params",                    b"----", "{}", STORED),
    // The parser of messages refuses this field with a code of its own.
    ("thread",                            b"---+", "", STORED),
    ("preset",                            b"----", "", SYSTEM),
    // A prompt that fits is never truncated, and one that does not is refused under either value.
    ("truncation",                        b"----", r#""disabled", "auto""#, SHORTER),
    ("truncate_prompt_tokens",            b"----", "", SHORTER),
    ("transforms",                        b"----", "[]", SHORTER),
    ("context_management",                b"---+", "[], {}", SHORTER),
    ("truncation_side",                   b"....", "", SHORTER),
    ("num_ctx",                           b"....", "", SHORTER),
    ("num_keep",                          b"....", "", SHORTER),
    ("n_keep",                            b"....", "", SHORTER),
    ("n_discard",                         b"....", "", SHORTER),
    ("chat_template",                     b"----", "", TEMPLATE),
    ("template",                          b"----", "", TEMPLATE),
    ("chat_template_kwargs",              b"+-++", "{}", CHAT),
    ("preserve_thinking",                 b"+-++", "", CHAT),
    ("clear_thinking",                    b"+-++", "", CHAT),
    ("add_generation_prompt",             b"+---", "true", TURN),
    ("continue_final_message",            b"+---", "false", TURN),
    ("add_special_tokens",                b"-+--", "false", TEMPLATE),
    ("echo",                              b"-+--", "false", all("the prompt is not repeated")),

    // Tools.
    ("tools",                             b"+-++", "[]", CHAT),
    ("tool_choice",                       b"+-++", r#""none", "auto""#, CHAT),
    ("parallel_tool_calls",               b"+.+-", "true", PARALLEL),
    ("functions",                         b"----", "[]", TOOLS),
    ("function_call",                     b"----", r#""none", "auto""#, CHOICE),
    ("max_tool_calls",                    b"..+.", "", all("no tool runs here")),
    ("mcp_servers",                       b"----", "[]", OFFLINE),
    ("web_search_options",                b"----", "", OFFLINE),
    ("plugins",                           b"----", "[]", OFFLINE),
    ("container",                         b"----", "", all("this server runs no code")),

    // The form of the answer.
    ("response_format",                   b"+++-", "", FORM),
    ("structured_outputs",                b"+++-", "", FORM),
    ("guided_json",                       b"+++-", "", FORM),
    ("guided_regex",                      b"+++-", "", FORM),
    ("guided_choice",                     b"+++-", "", FORM),
    ("guided_grammar",                    b"+++-", "", FORM),
    ("json_schema",                       b"+++-", "", FORM),
    ("regex",                             b"+++-", "", FORM),
    ("text",                              b"--+-", "{}", FORM),
    ("output_format",                     b"---+", "", FORM),
    ("format",                            b"----", r#""""#, FORM),
    ("output_config",                     b"+-++", "{}", CHAT),
    ("output_config.format",              b"---+", "", FORM),
    ("output_config.task_budget",         b"----", "", LENGTH),
    ("structural_tag",                    b"----", "", FORM),
    ("grammar",                           b"+++-", r#""""#, FORM),
    ("ebnf",                              b"+++-", "", FORM),
    ("guided_whitespace_pattern",         b"----", "", WHITESPACE),
    ("guided_decoding_backend",           b"....", "", all("there is one")),
    ("modalities",                        b"----", r#"["text"]"#, TEXT),
    ("audio",                             b"----", "", TEXT),
    ("text.verbosity",                    b"--.-", "", HINT),
    ("verbosity",                         b"....", "", HINT),

    // Choice of the next token.
    ("temperature",                       b"++++", "", NONE),
    ("top_p",                             b"++++", "", NONE),
    ("top_k",                             b"++++", "", NONE),
    ("min_p",                             b"++++", "", NONE),
    ("presence_penalty",                  b"++++", "", NONE),
    ("frequency_penalty",                 b"++++", "", NONE),
    ("repetition_penalty",                b"++++", "", NONE),
    ("logit_bias",                        b"++++", "", NONE),
    ("seed",                              b"++++", "", NONE),
    ("bad_words",                         b"++++", "", NONE),
    ("allowed_token_ids",                 b"++++", "", NONE),
    ("logits_processors",                 b"----", "[]", BIAS),
    ("custom_logit_processor",            b"----", "", BIAS),
    ("custom_params",                     b"----", "{}", BIAS),
    ("vllm_xargs",                        b"----", "{}", PLUG_INS),
    ("use_beam_search",                   b"----", "false", BEAMS),
    ("length_penalty",                    b"----", "1", BEAMS),
    ("repeat_penalty",                    b"----", "1", PENALTY),
    ("repeat_last_n",                     b"----", "-1, 64", all("penalties see the whole reply")),
    ("dry_multiplier",                    b"++++", "", NONE),
    ("dry_base",                          b"++++", "", NONE),
    ("dry_allowed_length",                b"++++", "", NONE),
    ("dry_penalty_last_n",                b"++++", "", NONE),
    ("dry_sequence_breakers",             b"++++", "", NONE),
    ("typical_p",                         b"++++", "", NONE),
    ("tfs_z",                             b"----", "1", NUCLEUS),
    ("top_a",                             b"----", "0", NUCLEUS),
    ("top_n_sigma",                       b"++++", "", NONE),
    ("min_keep",                          b"----", "0", NUCLEUS),
    ("adaptive_sampling",                 b"++++", "", NONE),
    ("xtc_probability",                   b"++++", "", NONE),
    ("xtc_threshold",                     b"++++", "", NONE),
    ("mirostat",                          b"----", "0", NUCLEUS),
    ("mirostat_tau",                      b"....", "", OFF),
    ("mirostat_eta",                      b"....", "", OFF),
    ("dynatemp_range",                    b"----", "0", all("send temperature")),
    ("dynatemp_exponent",                 b"....", "", OFF),
    ("samplers",                          b"----", "", all("they are applied in one order")),
    ("lora",                              b"----", "[]", all("the model is served as it is")),
    ("lora_path",                         b"----", "", all("the model is served as it is")),

    // Length of a reply, and where it stops.
    ("max_tokens",                        b"++-+", "", LENGTH),
    ("max_completion_tokens",             b"+---", "", LENGTH),
    ("max_output_tokens",                 b"--+-", "", LENGTH),
    ("max_new_tokens",                    b"----", "", LENGTH),
    ("n_predict",                         b"++--", "-1", LENGTH),
    ("num_predict",                       b"----", "-1", LENGTH),
    ("t_max_predict_ms",                  b"----", "-1, 0", LENGTH),
    ("min_tokens",                        b"++++", "", NONE),
    ("min_new_tokens",                    b"----", "0", LEAST),
    ("stop",                              b"+++-", "[]", STOP),
    ("stop_sequences",                    b"---+", "[]", STOP),
    ("stop_token_ids",                    b"+++-", "[]", STOP),
    ("stop_regex",                        b"----", "[]", STOP),
    ("ignore_eos",                        b"+++-", "false", all("the model ends a reply")),
    ("include_stop_str_in_output",        b"----", "false", STOP_TEXT),
    ("no_stop_trim",                      b"----", "false", STOP_TEXT),
    ("repetition_detection",              b"----", "", all("replies are never watched")),
    ("timeout",                           b"....", "", all("a reply ends when its client is gone")),

    // Parts of a reply that are reported, and how.
    ("n",                                 b"++--", "1", ONE_REPLY),
    ("best_of",                           b"----", "1", all("replies are not ranked")),
    ("stream",                            b"++++", "", NONE),
    ("stream_options",                    b"++..", "", USAGE),
    ("stream_options.include_obfuscation", b"....", "", all("events are not padded")),
    ("usage",                             b"++..", "", USAGE),
    ("stream_interval",                   b"----", "1", all("each token is told as it comes")),
    ("return_progress",                   b"----", "false", all("a stream is of the reply alone")),
    ("background",                        b"----", "false", all("send stream to see it grow")),
    ("logprobs",                          b"++--", "false", SCORES),
    ("top_logprobs",                      b"+-+-", "0", SCORES),
    ("reasoning_logprobs",                b"+---", "false", SCORES),
    ("prompt_logprobs",                   b"++--", "", all(SCORES_ELSEWHERE)),
    ("n_probs",                           b"----", "0", SCORES),
    ("post_sampling_probs",               b"----", "false", all("they are of the model alone")),
    ("include",                           b"--+-", "[]", SCORES),
    ("return_token_ids",                  b"----", "false", all("send the text to /tokenize")),
    ("return_tokens",                     b"----", "false", all("send the text to /tokenize")),
    ("return_tokens_as_token_ids",        b"-+--", "false", all("tokens are told as text")),
    ("return_hidden_states",              b"----", "false", INSIDE),
    ("return_routed_experts",             b"----", "false", INSIDE),
    ("response_fields",                   b"----", "[]", FORMS),
    ("timings_per_token",                 b"----", "false", FORMS),
    ("skip_special_tokens",               b"----", "true", all("special tokens have no text")),
    ("spaces_between_special_tokens",     b"....", "", all("special tokens have no text")),

    // Reasoning.
    ("thinking",                          b"+-++", "", CHAT),
    ("thinking.display",                  b"---+", r#""summarized", "updates""#, REPORTED),
    ("reasoning",                         b"+-++", "{}", CHAT),
    ("reasoning.exclude",                 b"----", "false", REPORTED),
    ("reasoning.summary",                 b"..+.", "", SUMMARY),
    ("reasoning.generate_summary",        b"..+.", "", SUMMARY),
    ("reasoning_effort",                  b"+-++", r#""none""#, CHAT),
    ("enable_thinking",                   b"+-++", "false", CHAT),
    ("think",                             b"+-++", "false", CHAT),
    ("thinking_budget",                   b"+-++", "0", CHAT),
    ("thinking_token_budget",             b"+-++", "0", CHAT),
    ("reasoning_budget",                  b"----", "-1", BUDGET),
    ("reasoning_control",                 b"----", "false", BUDGET),
    ("include_reasoning",                 b"----", "true", REPORTED),
    ("separate_reasoning",                b"----", "true", all("reasoning is always separate")),
    ("stream_reasoning",                  b"----", "true", all("reasoning is told as it comes")),
    ("reasoning_format",                  b"----", r#""auto", "deepseek", "parsed""#, REPORTED),

    // Service of the request.
    ("prediction",                        b"....", "", all("it changes how fast, not what")),
    ("moderation",                        b"----", "", all("nothing is moderated here")),
    ("priority",                          b"----", "0", all("requests are served in their order")),
    ("speed",                             b"----", r#""standard""#, all("there is one speed")),
    ("inference_geo",                     b"....", "", ROUTING),
    ("options",                           b"----", "{}", ALONE),
    ("service_tier",                      b"....", "", ROUTING),
    ("provider",                          b"....", "", ROUTING),
    ("models",                            b"....", "", ROUTING),
    ("route",                             b"....", "", ROUTING),
    ("data_parallel_rank",                b"....", "", ROUTING),
    ("kv_transfer_params",                b"....", "", CACHE),
    ("cache_salt",                        b"++++", "", NONE),
    ("extra_key",                         b"++++", "", NONE),
    ("cache_prompt",                      b"....", "", CACHE),
    ("cache_control",                     b"....", "", CACHE),
    ("prompt_cache_key",                  b"....", "", CACHE),
    ("prompt_cache_options",              b"....", "", CACHE),
    ("prompt_cache_retention",            b"....", "", CACHE),
    ("id_slot",                           b"....", "", CACHE),
    ("keep_alive",                        b"....", "", CACHE),
    ("store",                             b"..+.", "", STORING),
    ("metadata",                          b"..+.", "", STORING),
    ("trace",                             b"....", "", STORING),
    ("user",                              b"....", "", WHO),
    ("safety_identifier",                 b"....", "", WHO),
    ("client_metadata",                   b"....", "", WHO),
    ("session_id",                        b"....", "", WHO),
    ("request_id",                        b"....", "", WHO),
    ("rid",                               b"....", "", WHO),
    ("anthropic_version",                 b"....", "", all("every version is read alike")),
    ("anthropic_beta",                    b"....", "", all("betas are known by their fields")),
    ("betas",                             b"....", "", all("betas are known by their fields")),
];

/// Refuses fields that `api` has and this server does not serve, unless the value changes nothing.
///
/// # Errors
/// Names the first field that asks for something that is not served.
pub fn check(object: &Object<'_>, api: Api) -> Result<(), ApiError> {
    let mut all = FIELDS.iter();
    all.try_for_each(|known| check_one(object, api, known))
}

/// Checks the fields `names` alone, as [`check`] does.
pub fn check_some(object: &Object<'_>, api: Api, names: &[&str]) -> Result<(), ApiError> {
    let mut some = FIELDS.iter().filter(|(name, ..)| names.contains(name));
    some.try_for_each(|known| check_one(object, api, known))
}

fn check_one(
    root: &Object<'_>,
    api: Api,
    (path, marks, neutral, words): &Known,
) -> Result<(), ApiError> {
    let (mark, words) = (marks[api as usize], words[api as usize]);
    if mark == HONOURED {
        return Ok(());
    }
    let Some((parent, name)) = path.split_once('.') else {
        return check_in(root, path, mark, neutral, words);
    };
    if !is_honoured(parent, api) {
        return Ok(());
    }
    match root.optional_object(parent)? {
        Some(parent) => check_in(&parent, name, mark, neutral, words),
        None => Ok(()),
    }
}

fn is_honoured(path: &str, api: Api) -> bool {
    let mut fields = FIELDS.iter();
    fields.any(|(name, marks, ..)| *name == path && marks[api as usize] == HONOURED)
}

fn check_in(
    object: &Object<'_>,
    name: &str,
    mark: u8,
    neutral: &str,
    words: &str,
) -> Result<(), ApiError> {
    if mark == PASSED_OVER {
        if object.pass_over(name) {
            log::debug(format_args!("{name} is passed over: {words}"));
        }
        return Ok(());
    }
    #[cfg(test)]
    {
        let taken = values(neutral).into_iter().chain([Value::Null]).collect();
        record::note(&object.path_of(name), &[("enum", taken)]);
    }
    match object.get(name) {
        Some(field) if !is_neutral(&field, neutral) => {
            let error = field.error(format!("is not served; {words}"));
            Err(error.coded("unsupported_parameter"))
        }
        _ => Ok(()),
    }
}

fn is_neutral(field: &Field<'_>, neutral: &str) -> bool {
    let same_number = |value: &Value| value.is_number() && value.as_f64() == field.value.as_f64();
    let mut values = values(neutral).into_iter();
    values.any(|value| value == *field.value || same_number(&value))
}

fn values(neutral: &str) -> Vec<Value> {
    // The table is constant, and a test reads each of its rows, so this never fails.
    serde_json::from_str(&format!("[{neutral}]")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
