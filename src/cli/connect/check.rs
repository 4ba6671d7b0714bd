//! `connect --check`: sends a client's first request to the server and reports the answer.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::{Client, Connect};
use crate::bench::client::{Connection, Endpoint, Outgoing};
use crate::cli::{Exit, Failure};
use crate::start::machine::{self, Finding};

/// Longest wait for the first token: an agent's prompt is long, and may wait for other requests.
const FIRST_TOKEN_TIMEOUT: Duration = Duration::from_secs(300);
/// Characters of an answer that are shown.
const SHOWN_CHARS_MAX: usize = 40;

/// Recorded requests of a client, one per line in order; texts of agents are shortened.
macro_rules! recording {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/ci/e2e/recordings/",
            $name,
            ".jsonl"
        ))
    };
}

/// Prints a line for each step of the check.
///
/// # Errors
/// If the address is not valid, or a step failed.
pub(super) fn run(options: &Connect) -> Result<(), Failure> {
    let endpoint = Endpoint::parse(&options.url, Some(options.key.clone()))
        .map_err(|why| Exit::Usage.failure(why))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Exit::Internal.failure(why))?;
    machine::report(&runtime.block_on(steps(options, &endpoint)))
}

/// Findings of the check: each request, with the answer or the error.
async fn steps(options: &Connect, endpoint: &Endpoint) -> Vec<Finding> {
    let mut connection = match endpoint.connect().await {
        Ok(connection) => connection,
        Err(why) => return vec![step("connection", Err(why))],
    };
    let listed = listed(&mut connection, &options.model).await;
    let (sender, outgoing) = first(options);
    let sent = format!("POST {} {sender}", outgoing.path);
    // A new connection, since the server may have closed the last one after its answer.
    let came = match endpoint.connect().await {
        Ok(mut connection) => timeout(FIRST_TOKEN_TIMEOUT, connection.first_text(outgoing)).await,
        Err(why) => Ok(Err(why)),
    };
    let came = came.unwrap_or_else(|_| {
        let seconds = FIRST_TOKEN_TIMEOUT.as_secs();
        Err(format!("no token came within {seconds} s"))
    });
    let came = came.map(|(after, text)| {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        format!("200 OK, {shown:?} after {} ms", after.as_millis())
    });
    vec![step("GET /v1/models", listed), step(&sent, came)]
}

fn step(sent: &str, came: Result<String, String>) -> Finding {
    let named = |text| format!("{sent}: {text}");
    came.map(named).map_err(named)
}

/// Checks that the server lists the model that the client asks for.
async fn listed(connection: &mut Connection, model: &str) -> Result<String, String> {
    let list = connection.read("/v1/models").await?;
    let models = list["data"].as_array().into_iter().flatten();
    let ids: Vec<&str> = models.filter_map(|model| model["id"].as_str()).collect();
    match ids.contains(&model) {
        true => Ok(format!("200 OK, {model} is listed")),
        false => Err(format!(
            "200 OK, but {model} is not listed; give --model one of {}",
            ids.join(", ")
        )),
    }
}

/// Words on the origin of a client's first request, for messages, and the request itself.
fn first(options: &Connect) -> (String, Outgoing) {
    let recorded = match options.client {
        Client::Claude => recording!("claude-edit"),
        Client::Codex => recording!("codex-edit"),
        Client::Opencode => recording!("opencode-edit"),
        Client::Qwen => recording!("qwen-edit"),
        Client::Cline => recording!("cline-edit"),
        Client::Aider => recording!("aider-edit"),
        Client::Continue => recording!("continue-edit"),
        Client::AiSdk => recording!("vercel"),
        _ => return least(options),
    };
    let first = recorded.lines().next().unwrap_or_default();
    let mut exchange: Value = serde_json::from_str(first).unwrap_or_default();
    let client = exchange["client"].as_str().map(str::to_string);
    let request = &mut exchange["request"];
    request["body"]["model"] = json!(options.model);
    let headers = request["headers"].as_array().into_iter().flatten();
    let headers: Vec<(String, String)> = headers
        .filter_map(|pair| Some((pair[0].as_str()?.to_string(), pair[1].as_str()?.to_string())))
        .filter(|(name, _)| name != "authorization" && name != "content-type")
        .collect();
    let agent = headers.iter().find(|(name, _)| name == "user-agent");
    let agent = agent.and_then(|(_, agent)| agent.split(' ').next());
    let client = client.as_deref().or(agent);
    let outgoing = Outgoing {
        path: request["path"].as_str().unwrap_or_default().to_string(),
        body: request["body"].to_string(),
        headers: headers.clone(),
    };
    let sender = client.unwrap_or("this client");
    let cut = match options.client {
        Client::AiSdk => "",
        _ => ", with its texts cut",
    };
    (format!("as {sender} sends it first{cut}"), outgoing)
}

/// Words on a minimal request for a client without a recording, and the request itself.
fn least(options: &Connect) -> (String, Outgoing) {
    // The names of these clients are of one word each.
    let name = format!("{:?}", options.client).to_lowercase();
    let body = json!({
        "model": options.model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": true,
    });
    let outgoing = Outgoing {
        path: "/v1/chat/completions".to_string(),
        body: body.to_string(),
        headers: Vec::new(),
    };
    (format!("with the least that {name} sends"), outgoing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::testing::{canned, whole};

    fn of(client: Client, url: String) -> Connect {
        Connect {
            client,
            url,
            model: "stub".into(),
            key: "k".into(),
            run: false,
            check: true,
            arguments: Vec::new(),
        }
    }

    #[test]
    fn recorded_clients_send_what_was_recorded_of_them() {
        for (client, path, sender) in [
            (Client::Claude, "/v1/messages?beta=true", "claude-cli/"),
            (Client::Codex, "/v1/responses", "codex_exec/"),
            (Client::Opencode, "/v1/chat/completions", "opencode/"),
            (Client::AiSdk, "/v1/chat/completions", "ai/"),
            (Client::Cline, "/v1/chat/completions", "cline "),
            (Client::Llm, "/v1/chat/completions", "llm"),
        ] {
            let (shown, sent) = first(&of(client, String::new()));
            assert!(shown.contains(sender), "{shown}");
            assert_eq!(sent.path, path);
            let body: Value = serde_json::from_str(&sent.body).unwrap();
            assert_eq!(body["model"], "stub");
            assert!(sent.headers.iter().all(|(name, _)| name != "authorization"));
        }
    }

    /// A server that lists a model and answers in the dialect of messages alone.
    fn answer(path: &str) -> String {
        match path {
            "/v1/models" => whole("200 OK", r#"{"data":[{"id":"stub"}]}"#),
            "/v1/messages?beta=true" => {
                let event = r#"{"type":"content_block_delta","delta":{"text":"Hello"}}"#;
                let text = format!("event: x\ndata: {event}\n\n");
                let plain = whole("200 OK", &text);
                plain.replacen("\r\n", "\r\ncontent-type: text/event-stream\r\n", 1)
            }
            _ => whole("404 Not Found", r#"{"error":{"message":"nothing here"}}"#),
        }
    }

    fn checked(options: &Connect) -> Vec<String> {
        let endpoint = Endpoint::parse(&options.url, None).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let lines = runtime.block_on(steps(options, &endpoint)).into_iter();
        let line = |finding: Finding| match finding {
            Ok(fine) => format!("ok {fine}"),
            Err(fix) => format!("fix {fix}"),
        };
        lines.map(line).collect()
    }

    #[test]
    fn each_step_says_what_came() {
        let url = canned(answer);
        let claude = of(Client::Claude, url.clone());
        let [listed, first] = &checked(&claude)[..] else {
            panic!("not two steps");
        };
        assert_eq!(listed, "ok GET /v1/models: 200 OK, stub is listed");
        assert!(
            first.contains("with its texts cut: 200 OK, \"Hello\" after "),
            "{first}"
        );
        assert_eq!(run(&claude), Ok(()));
        let mut wrong = of(Client::Llm, url);
        wrong.model = "other".into();
        let [listed, first] = &checked(&wrong)[..] else {
            panic!("not two steps");
        };
        assert!(
            listed.ends_with("other is not listed; give --model one of stub"),
            "{listed}"
        );
        assert!(first.ends_with("(404 Not Found): nothing here"), "{first}");
        let failed = run(&wrong).unwrap_err();
        assert_eq!(
            (failed.exit, failed.message.as_str()),
            (Exit::Unavailable, "2 to fix")
        );
    }

    #[test]
    fn an_address_that_nobody_has_is_no_panic() {
        let nobody = of(Client::Claude, "http://127.0.0.1:1".into());
        assert_eq!(run(&nobody).unwrap_err().exit, Exit::Unavailable);
        let secret = of(Client::Claude, "https://host".into());
        assert_eq!(run(&secret).unwrap_err().exit, Exit::Usage);
    }
}
