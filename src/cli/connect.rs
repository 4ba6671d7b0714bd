//! `connect`: prints the settings that a client needs for this server, in the client's own form.

mod check;
mod settings;

use std::os::unix::process::CommandExt;
use std::process::Command;

use argh::{ArgsInfo, FromArgValue, FromArgs};
use serde_json::json;

use model::target;

use super::{Exit, Failure};
use crate::start::boot;

/// print the settings of a client for this server, or start it with them
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "connect", help_triggers("--help"))]
pub struct Connect {
    /// the client: claude, codex, opencode, qwen, cline, aider, continue, openwebui, litellm, llm,
    /// langchain or ai-sdk
    #[argh(positional)]
    client: Client,

    /// address of the server (default http://127.0.0.1:8000)
    #[argh(option, default = "URL_DEFAULT.to_string()")]
    url: String,

    /// model id that the server reports (default: that of this binary)
    #[argh(option, default = "target::MODEL_ID.to_string()")]
    model: String,

    /// API key, where the server asks for one (default: none)
    #[argh(option, default = "NO_KEY.to_string()")]
    key: String,

    /// start the client with the settings; its arguments follow --
    #[argh(switch)]
    run: bool,

    /// send what the client sends first to the server, and say what comes
    #[argh(switch)]
    check: bool,

    /// arguments of the client, with --run
    #[argh(positional)]
    arguments: Vec<String>,
}

/// Address where a server listens by default.
pub const URL_DEFAULT: &str = "http://127.0.0.1:8000";
/// Stand-in for an API key if the server needs none, since clients insist on one.
const NO_KEY: &str = "none";
/// Tokens of the context that clients leave for a reply.
const OUTPUT_TOKENS: usize = target::MAX_CONTEXT / 4;
/// Environment variable from which Codex takes the key.
const CODEX_KEY: &str = "ATLAS_KEY";

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromArgValue)]
enum Client {
    Claude,
    Codex,
    Opencode,
    Qwen,
    Cline,
    Aider,
    Continue,
    Openwebui,
    Litellm,
    Llm,
    Langchain,
    #[argh(name = "ai-sdk")]
    AiSdk,
}

/// Prints the settings, or becomes the client.
///
/// # Errors
/// If an option has characters that settings cannot have, or the client cannot be started.
pub fn run(options: &Connect) -> Result<(), Failure> {
    let usage = |why: &str| Exit::Usage.failure(why);
    let Connect {
        url, model, key, ..
    } = options;
    for (flag, value) in [("--url", url), ("--model", model), ("--key", key)] {
        let breaks = |c: char| c.is_control() || "'\"\\ ".contains(c);
        if value.is_empty() || value.chars().any(breaks) {
            let problem = "is empty, or has a space or a quotation mark";
            return Err(usage(&format!("{flag}: {problem}")));
        }
    }
    if options.run && options.check {
        return Err(usage("give --run or --check"));
    }
    if !options.run {
        if !options.arguments.is_empty() {
            return Err(usage("arguments of a client go with --run"));
        }
        return match options.check {
            true => check::run(options),
            false => boot::print(&settings::of(options)),
        };
    }
    let Some((program, variables, arguments)) = start(options) else {
        return Err(usage(
            "--run starts claude, codex or opencode, which can be told all by their command line: \
             print the settings of the others instead",
        ));
    };
    let mut command = Command::new(program);
    command.envs(variables).args(arguments);
    let why = command.args(&options.arguments).exec();
    let message = format!("cannot start {program}: {why}; install it first");
    Err(Exit::Unavailable.failure(message))
}

/// Address without a slash at its end.
fn base(options: &Connect) -> &str {
    options.url.trim_end_matches('/')
}

/// Environment variables of Claude Code: the address, the size of the context, and no telemetry.
fn claude(options: &Connect) -> Vec<(&'static str, String)> {
    let Connect { model, key, .. } = options;
    vec![
        ("ANTHROPIC_BASE_URL", base(options).to_string()),
        ("ANTHROPIC_AUTH_TOKEN", key.clone()),
        ("ANTHROPIC_MODEL", model.clone()),
        ("ANTHROPIC_SMALL_FAST_MODEL", model.clone()),
        // Without this variable the client assumes the context of its maker's models.
        (
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS",
            target::MAX_CONTEXT.to_string(),
        ),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_string()),
    ]
}

/// Arguments of Claude Code: the client asks its user for permission, since its automatic mode
/// needs a check that only its maker's servers have.
const CLAUDE_ARGUMENTS: [&str; 2] = ["--permission-mode", "default"];

/// Keys and values of Codex's configuration, in the form of its file. Codex summarises a
/// conversation at the limit, which takes tokens of the context too.
fn codex(options: &Connect) -> [(&'static str, String); 7] {
    let text = |text: &str| format!("\"{text}\"");
    let compact = (target::MAX_CONTEXT - OUTPUT_TOKENS).to_string();
    let url = text(&format!("{}/v1", base(options)));
    [
        ("model", text(&options.model)),
        ("model_provider", text("atlas")),
        ("model_context_window", target::MAX_CONTEXT.to_string()),
        ("model_auto_compact_token_limit", compact),
        ("model_providers.atlas.name", text("Atlas")),
        ("model_providers.atlas.base_url", url),
        ("model_providers.atlas.env_key", text(CODEX_KEY)),
    ]
}

fn opencode(options: &Connect) -> serde_json::Value {
    let Connect { model, key, .. } = options;
    json!({
        "$schema": "https://opencode.ai/config.json",
        "provider": {"atlas": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Atlas",
            "options": {"baseURL": format!("{}/v1", base(options)), "apiKey": key},
            "models": {model: {
                "name": model,
                "limit": {"context": target::MAX_CONTEXT, "output": OUTPUT_TOKENS},
            }},
        }},
        "model": format!("atlas/{model}"),
        "small_model": format!("atlas/{model}"),
    })
}

/// Program, variables and arguments of a client's command with the settings.
type Start = (&'static str, Vec<(&'static str, String)>, Vec<String>);

/// Command that starts a client; None for a client without a command.
fn start(options: &Connect) -> Option<Start> {
    Some(match options.client {
        Client::Claude => {
            let arguments = CLAUDE_ARGUMENTS.map(str::to_string);
            ("claude", claude(options), arguments.to_vec())
        }
        Client::Codex => {
            let pairs = codex(options).map(|(name, value)| format!("{name}={value}"));
            let arguments = pairs.into_iter().flat_map(|pair| ["-c".to_string(), pair]);
            let variables = vec![(CODEX_KEY, options.key.clone())];
            ("codex", variables, arguments.collect())
        }
        Client::Opencode => {
            let content = opencode(options).to_string();
            let variables = vec![("OPENCODE_CONFIG_CONTENT", content)];
            ("opencode", variables, Vec::new())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: Client) -> Connect {
        Connect {
            client,
            url: "http://host:9/".into(),
            model: "m".into(),
            key: "k".into(),
            run: false,
            check: false,
            arguments: Vec::new(),
        }
    }

    #[test]
    fn every_client_gets_address_model_and_key() {
        let names = "claude codex opencode qwen cline aider continue openwebui litellm llm \
                     langchain ai-sdk";
        for name in names.split(' ') {
            let client = Client::from_arg_value(name).unwrap();
            let text = settings::of(&of(client));
            assert!(
                text.contains("http://host:9") && !text.contains(":9//"),
                "{text}"
            );
            let model = text.contains("/m`") || text.contains("m'") || text.contains("m\"");
            assert!(client == Client::Openwebui || model, "{text}");
            assert!(text.contains('k'), "{text}");
        }
        assert!(Client::from_arg_value("emacs").is_err());
    }

    #[test]
    fn files_are_of_their_form() {
        let codex: toml::Table = settings::of(&of(Client::Codex)).parse().unwrap();
        assert_eq!(
            codex["model_providers"]["atlas"]["base_url"].as_str(),
            Some("http://host:9/v1")
        );
        for (client, pointer) in [
            (Client::Opencode, "/provider/atlas/options/baseURL"),
            (Client::Qwen, "/modelProviders/openai/0/baseUrl"),
            (
                Client::Cline,
                "/providers/openai-compatible/settings/baseUrl",
            ),
        ] {
            let text = settings::of(&of(client));
            let [from, to] = [text.find("\n{").unwrap(), text.rfind('}').unwrap()];
            let value: serde_json::Value = serde_json::from_str(&text[from..=to]).unwrap();
            assert_eq!(value.pointer(pointer).unwrap(), "http://host:9/v1");
        }
    }

    #[test]
    fn what_is_started_gets_what_is_printed() {
        let (program, variables, _) = start(&of(Client::Claude)).unwrap();
        let (_, url) = &variables[0];
        assert_eq!((program, url.as_str()), ("claude", "http://host:9"));
        let (_, _, arguments) = start(&of(Client::Codex)).unwrap();
        let pair = "model_providers.atlas.base_url=\"http://host:9/v1\"";
        assert!(arguments.iter().any(|argument| argument == pair));
        assert!(start(&of(Client::Litellm)).is_none());
    }

    #[test]
    fn agents_get_the_size_of_the_context() {
        let context = target::MAX_CONTEXT.to_string();
        for client in [
            Client::Opencode,
            Client::Qwen,
            Client::Cline,
            Client::Aider,
            Client::Continue,
        ] {
            let shown = settings::of(&of(client));
            assert!(shown.contains(&context), "{client:?}");
        }
        let (_, variables, arguments) = start(&of(Client::Claude)).unwrap();
        let stated = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", context);
        assert!(variables.contains(&stated));
        assert_eq!(arguments, CLAUDE_ARGUMENTS);
        let codex: toml::Table = settings::of(&of(Client::Codex)).parse().unwrap();
        let stated = |name: &str| codex[name].as_integer().unwrap() as usize;
        assert_eq!(stated("model_context_window"), target::MAX_CONTEXT);
        assert!(stated("model_auto_compact_token_limit") < target::MAX_CONTEXT);
    }

    #[test]
    fn nothing_that_would_end_a_text_is_taken() {
        let mut options = of(Client::Codex);
        options.model = "a\"b".into();
        assert_eq!(run(&options).unwrap_err().exit, Exit::Usage);
    }
}
