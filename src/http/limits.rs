//! Every bound of the server. The error for a request outside a bound names the bound.

use std::time::Duration;

use engine::events::BACKLOG_BYTES_MAX;
use step::SERVER_BYTES;
use text::segments::SEGMENTS_BYTES_MAX;

/// Bytes of the request line and headers.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Number of headers of a request.
pub const HEADERS_MAX: usize = 100;
/// Bytes of the path and query of a request.
pub const URI_BYTES_MAX: usize = 8 * 1024;
/// Time for a request's head to arrive, and for the first byte of a new connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Keep-alive time after an answer: longer than that of common clients' pools, so that they close
/// first. `IDLE_TIMEOUT_SCARCE` where connections are scarce.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
pub const IDLE_TIMEOUT_SCARCE: Duration = HEAD_TIMEOUT;
/// Time beyond the keep-alive time, for a request in flight.
pub const IDLE_GRACE: Duration = Duration::from_secs(5);
/// Bounds of the input that is discarded after the last answer: bytes, time, and time between two
/// pieces. A connection closed with unread input is reset, which may lose the answer. The time is
/// that of a head, so that lingering holds a connection no longer than a slow head.
pub const LINGER_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
pub const LINGER_TIMEOUT: Duration = HEAD_TIMEOUT;
pub const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
pub const LINGER_PIECE_BYTES: usize = 16 * 1024;
/// Connections beyond the limit that get an error as their answer before they are closed.
pub const REFUSED_MAX: usize = 32;
/// Time that an idle connection of a stopping server waits for a request in flight.
pub const DRAIN_IDLE_GRACE: Duration = Duration::from_secs(1);
/// Time from a client's half-close to the first early byte, which probes whether the client is
/// there. The time doubles with each pair of bytes.
pub const PROBE_AFTER: Duration = Duration::from_secs(2);
/// Time between the two bytes of a pair, for the reset from the system of a dead client to arrive.
pub const PROBE_ANSWER: Duration = Duration::from_millis(200);
/// Bytes of a request's body.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of all bodies until they are parsed, without the first `SMALL_BODY_BYTES` of each.
pub const BODIES_BYTES_MAX: usize = 48 * 1024 * 1024;
/// Bytes of the largest small body; as many first bytes of each larger body count as small.
pub const SMALL_BODY_BYTES: usize = 32 * 1024;
/// Bytes of all small bodies and of the first bytes of larger ones.
pub const SMALL_BODIES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of all large bodies and their parsed forms while they are parsed.
pub const PARSING_BYTES_MAX: usize = 96 * 1024 * 1024;
/// Bytes of the longest reasoning that is sealed: many times that of one reply.
pub const SEALED_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Items of a stored response's input in one page of the list.
pub const INPUT_ITEMS_MAX: usize = 100;
/// Template variables that a request may set.
pub const TEMPLATE_VARIABLES_MAX: usize = 64;
pub const TEMPLATE_TEXT_BYTES_MAX: usize = 4096;
/// Time for the whole body to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two pieces of a body.
pub const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes around one chunk of a chunked body: its size line with extensions, or all trailers.
pub const CHUNK_FRAMING_BYTES_MAX: usize = 4 * 1024;

/// Bytes of the id that a client gives a request; a longer id is replaced.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Lines queued for a log file; further lines are lost.
pub const JOURNAL_LINES_MAX: usize = 4096;
/// Bytes of the lines queued for a log file.
pub const JOURNAL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time to write queued lines when the server stops.
pub const JOURNAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections open at once, if the system lets the process open as many files.
pub const CONNECTIONS_MAX: usize = 4096;
/// Open files that are reserved for everything but connections, such as weights and logs.
pub const FILES_BESIDE_CONNECTIONS: usize = 64;
/// Bytes of a file of recorded requests and answers.
pub const DUMP_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes of one answer that are recorded; the rest is cut off.
pub const DUMP_ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Threads that serve connections.
pub const IO_THREADS: usize = 2;
/// Jobs that parse small bodies at once, on threads beside those of connections.
pub const PARSERS_MAX: usize = 4;
/// Jobs that parse large bodies at once, in addition to the small ones.
pub const LARGE_PARSERS_MAX: usize = 2;
/// Parsing jobs of each kind, and processors, that one client leaves to other clients.
pub const PARSERS_RESERVED: usize = 1;
/// Time of a step of parsing, after which other jobs have the processor.
pub const PARSING_STEP: Duration = Duration::from_millis(10);
/// CPU time for parsing one body.
pub const PARSING_TIME_MAX: Duration = Duration::from_secs(2);
/// Niceness of parsing threads: on a core shared with the engine, 10 leaves the engine nine tenths.
/// A larger niceness would keep requests waiting on a busy machine.
pub const PARSER_NICE: i32 = 10;
/// Time for which a client may read nothing of its answer.
pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a stream begins before its first token.
pub const STREAM_START_WAIT: Duration = Duration::from_millis(100);
/// Time without an event after which a stream sends a keep-alive.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time for open replies to finish once the server is told to stop.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after `DRAIN_TIMEOUT` to write the errors of aborted replies.
pub const ABORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after the system had no resources to accept a connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Seconds in `Retry-After` if the queue is full.
pub const RETRY_AFTER_FULL_S: u64 = 1;
/// Seconds in `Retry-After` while the server starts or stops.
pub const RETRY_AFTER_UNAVAILABLE_S: u64 = 5;

/// Most events of a reply in one write.
pub const EVENTS_MAX: usize = 64;

/// Depth of objects and lists inside each other in a body.
pub const JSON_DEPTH_MAX: usize = 64;
/// Values in a body, counting keys' values and items; room for four prompts of 131,072 token ids.
pub const JSON_VALUES_MAX: usize = 600_000;

/// Responses that are stored for their clients.
pub const STORED_RESPONSES_MAX: usize = 1024;
/// Bytes of the JSON of all stored responses.
pub const STORED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time for which a response is stored.
pub const STORED_TIME: Duration = Duration::from_secs(60 * 60);
/// Stored responses that one key may have.
pub const STORED_RESPONSES_OF_KEY_MAX: usize = STORED_RESPONSES_MAX / 4;
/// Bytes of the JSON of one key's stored responses.
pub const STORED_BYTES_OF_KEY_MAX: usize = STORED_BYTES_MAX / 4;

/// Running responses that are known by their ids: one for each connection.
pub const RUNNING_RESPONSES_MAX: usize = CONNECTIONS_MAX;

/// Pairs of a request's metadata, which its response repeats.
pub const METADATA_PAIRS_MAX: usize = 16;
/// Bytes of a value in a request's metadata.
pub const METADATA_BYTES_MAX: usize = 512;

pub const MESSAGES_MAX: usize = 4096;
/// Parts of one message's content.
pub const CONTENT_PARTS_MAX: usize = 1024;
pub const TOOLS_MAX: usize = 256;
/// Tool calls of one message.
pub const TOOL_CALLS_MAX: usize = 256;
pub const STOPS_MAX: usize = 16;
pub const STOP_BYTES_MAX: usize = 256;
pub const STOP_TOKENS_MAX: usize = 16;
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Words that a request may exclude from replies.
pub const BAD_WORDS_MAX: usize = 256;
/// Breakers of the DRY rule that a request may set.
pub const BREAKERS_MAX: usize = 64;
/// Bytes of an excluded word or of a breaker.
pub const WORD_BYTES_MAX: usize = 256;
/// Replies to one prompt.
pub const CHOICES_MAX: usize = 8;
/// Tokens of a completion if the request does not state a length.
pub const COMPLETION_TOKENS_DEFAULT: usize = 16;
/// Log-probabilities of prompts in one answer, those of more likely tokens included.
pub const PROMPT_LOGPROBS_MAX: usize = 1 << 20;

/// Bytes of the program, its threads, the texts of its model and the compiled grammars.
const PROGRAM_BYTES: usize = 80 * 1024 * 1024;
/// Bytes that the jobs of small bodies may take together while they parse and encode.
const SMALL_PARSING_BYTES: usize = 4 * 1024 * 1024 * PARSERS_MAX;

const _: () = assert!(
    BODIES_BYTES_MAX
        + SMALL_BODIES_BYTES_MAX
        + PARSING_BYTES_MAX
        + SMALL_PARSING_BYTES
        + STORED_BYTES_MAX
        + BACKLOG_BYTES_MAX
        + SEGMENTS_BYTES_MAX
        + PROGRAM_BYTES
        <= SERVER_BYTES as usize,
    "the server takes more than the ledger says"
);
const _: () = assert!(BODIES_BYTES_MAX >= BODY_BYTES_MAX);
const _: () = assert!(SMALL_BODY_BYTES < BODY_BYTES_MAX);
const _: () = assert!(HEAD_BYTES_MAX > URI_BYTES_MAX);
const _: () = assert!(REFUSED_MAX < FILES_BESIDE_CONNECTIONS);
const _: () = assert!(BODY_IDLE_TIMEOUT.as_secs() < BODY_TIMEOUT.as_secs());
