//! `connect`: what a client has to be told to use this server, in the client's own form.

use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;

use argh::{ArgsInfo, FromArgs};
use serde_json::json;

use crate::target;

use super::boot;
use super::{Exit, Failure};

/// print the settings of a client for this server, or start it with them
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand, name = "connect", help_triggers("--help"))]
pub struct Connect {
    /// the client: claude, codex, opencode, openwebui, continue or litellm
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

    /// arguments of the client, with --run
    #[argh(positional)]
    arguments: Vec<String>,
}

/// Where a server listens that is told nothing.
pub const URL_DEFAULT: &str = "http://127.0.0.1:8000";
/// What stands for a key where none is asked for: clients insist on one.
const NO_KEY: &str = "none";
/// Part of the context that clients are told to leave to a reply.
const OUTPUT_TOKENS: usize = target::MAX_CONTEXT / 4;
/// Variable from which Codex takes the key.
const CODEX_KEY: &str = "ATLAS_KEY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Claude,
    Codex,
    Opencode,
    Openwebui,
    Continue,
    Litellm,
}

const CLIENTS: [(&str, Client); 6] = [
    ("claude", Client::Claude),
    ("codex", Client::Codex),
    ("opencode", Client::Opencode),
    ("openwebui", Client::Openwebui),
    ("continue", Client::Continue),
    ("litellm", Client::Litellm),
];

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Client, String> {
        let found = CLIENTS.iter().find(|(name, _)| *name == text);
        let names = CLIENTS.map(|(name, _)| name).join(", ");
        found
            .map(|(_, client)| *client)
            .ok_or_else(|| format!("must be one of {names}"))
    }
}

/// Prints the settings, or becomes the client.
///
/// # Errors
/// When what is given would not be taken for itself in a file of settings, or the client cannot be
/// started.
pub fn run(options: &Connect) -> Result<(), Failure> {
    let usage = |why: &str| Failure::new(Exit::Usage, why);
    for (flag, value) in [
        ("--url", &options.url),
        ("--model", &options.model),
        ("--key", &options.key),
    ] {
        if value.is_empty()
            || value
                .chars()
                .any(|c| c.is_control() || "'\"\\ ".contains(c))
        {
            return Err(usage(&format!(
                "{flag}: is empty, or has a space or a quotation mark"
            )));
        }
    }
    if !options.run {
        if !options.arguments.is_empty() {
            return Err(usage("arguments of a client go with --run"));
        }
        return boot::print(&settings(options));
    }
    let Some(Start {
        program,
        variables,
        arguments,
    }) = start(options)
    else {
        return Err(usage(
            "--run starts claude, codex or opencode; the others are servers or parts \
                          of an editor: print their settings instead",
        ));
    };
    let mut command = Command::new(program);
    command
        .envs(variables)
        .args(arguments)
        .args(&options.arguments);
    let why = command.exec();
    Err(Failure::new(
        Exit::Unavailable,
        format!("cannot start {program}: {why}; install it first"),
    ))
}

/// Address without a slash at its end.
fn base(options: &Connect) -> &str {
    options.url.trim_end_matches('/')
}

/// Variables of Claude Code: where to ask, how much fits, and nothing to tell anybody else.
fn claude(options: &Connect) -> Vec<(&'static str, String)> {
    let Connect { model, key, .. } = options;
    vec![
        ("ANTHROPIC_BASE_URL", base(options).to_string()),
        ("ANTHROPIC_AUTH_TOKEN", key.clone()),
        ("ANTHROPIC_MODEL", model.clone()),
        ("ANTHROPIC_SMALL_FAST_MODEL", model.clone()),
        // It plans for the context of its own models otherwise.
        (
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS",
            target::MAX_CONTEXT.to_string(),
        ),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_string()),
    ]
}

/// Arguments of Claude Code: its user is asked, as the mode that decides by itself needs a check
/// that only its maker's servers do.
const CLAUDE_ARGUMENTS: [&str; 2] = ["--permission-mode", "default"];

/// Keys and values of Codex's configuration, in the form of its file. It sums a conversation up
/// where the limit is reached, which needs room too.
fn codex(options: &Connect) -> [(&'static str, String); 7] {
    let text = |text: &str| format!("\"{text}\"");
    [
        ("model", text(&options.model)),
        ("model_provider", text("atlas")),
        ("model_context_window", target::MAX_CONTEXT.to_string()),
        (
            "model_auto_compact_token_limit",
            (target::MAX_CONTEXT - OUTPUT_TOKENS).to_string(),
        ),
        ("model_providers.atlas.name", text("Atlas")),
        (
            "model_providers.atlas.base_url",
            text(&format!("{}/v1", base(options))),
        ),
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

/// A client's command with the settings.
struct Start {
    program: &'static str,
    variables: Vec<(&'static str, String)>,
    arguments: Vec<String>,
}

/// How a client is started; none for what is not started by a command.
fn start(options: &Connect) -> Option<Start> {
    let (program, variables, arguments) = match options.client {
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
        Client::Openwebui | Client::Continue | Client::Litellm => return None,
    };
    Some(Start {
        program,
        variables,
        arguments,
    })
}

/// The settings, with where they belong as a comment in front where the form has comments.
fn settings(options: &Connect) -> String {
    let Connect { model, key, .. } = options;
    let url = base(options);
    match options.client {
        Client::Claude => {
            let command = format!("claude {}", CLAUDE_ARGUMENTS.join(" "));
            exports(
                &format!("in the shell that starts `{command}`"),
                &claude(options),
            )
        }
        Client::Codex => {
            let [model, provider, window, limit, rest @ ..] = codex(options);
            let mut out =
                format!("# ~/.codex/config.toml; and in the shell: export {CODEX_KEY}='{key}'\n");
            for (name, value) in [model, provider, window, limit] {
                let _ = writeln!(out, "{name} = {value}");
            }
            out.push_str("\n[model_providers.atlas]\n");
            for (name, value) in rest {
                let name = name.trim_start_matches("model_providers.atlas.");
                let _ = writeln!(out, "{name} = {value}");
            }
            out
        }
        Client::Opencode => format!(
            "// ~/.config/opencode/opencode.json\n{:#}\n",
            opencode(options)
        ),
        Client::Openwebui => exports(
            "of Open WebUI; in a container, 127.0.0.1 is the container",
            &[
                ("OPENAI_API_BASE_URL", format!("{url}/v1")),
                ("OPENAI_API_KEY", key.clone()),
                ("ENABLE_OLLAMA_API", "false".to_string()),
            ],
        ),
        Client::Continue => format!(
            "# ~/.continue/config.yaml\nname: Atlas\nversion: 1.0.0\nschema: v1\nmodels:\n  \
             - name: \"{model}\"\n    provider: openai\n    model: \"{model}\"\n    \
             apiBase: \"{url}/v1\"\n    apiKey: \"{key}\"\n    roles: [chat, edit, apply]\n"
        ),
        Client::Litellm => format!(
            "# config.yaml of LiteLLM's proxy; who uses it sends LITELLM_MASTER_KEY, set where it \
             starts\ngeneral_settings:\n  master_key: os.environ/LITELLM_MASTER_KEY\n\
             model_list:\n  - model_name: \"{model}\"\n    \
             litellm_params:\n      model: \"openai/{model}\"\n      api_base: \"{url}/v1\"\n      \
             api_key: \"{key}\"\n"
        ),
    }
}

fn exports(place: &str, variables: &[(&str, String)]) -> String {
    let mut out = format!("# {place}\n");
    for (name, value) in variables {
        let _ = writeln!(out, "export {name}='{value}'");
    }
    out
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
            arguments: Vec::new(),
        }
    }

    #[test]
    fn every_client_is_told_address_model_and_key() {
        for (name, client) in CLIENTS {
            assert_eq!(name.parse(), Ok(client));
            let text = settings(&of(client));
            assert!(
                text.contains("http://host:9") && !text.contains(":9//"),
                "{text}"
            );
            assert!(
                client == Client::Openwebui || text.contains("m'") || text.contains("m\""),
                "{text}"
            );
            assert!(text.contains('k'), "{text}");
        }
        assert!("emacs".parse::<Client>().is_err());
    }

    #[test]
    fn files_are_of_their_form() {
        let codex: toml::Table = settings(&of(Client::Codex)).parse().unwrap();
        assert_eq!(
            codex["model_providers"]["atlas"]["base_url"].as_str(),
            Some("http://host:9/v1")
        );
        let text = settings(&of(Client::Opencode));
        let (_, json) = text.split_once('\n').unwrap();
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(
            value["provider"]["atlas"]["options"]["baseURL"],
            "http://host:9/v1"
        );
    }

    #[test]
    fn what_is_started_gets_what_is_printed() {
        let claude = start(&of(Client::Claude)).unwrap();
        let (_, url) = &claude.variables[0];
        assert_eq!((claude.program, url.as_str()), ("claude", "http://host:9"));
        let codex = start(&of(Client::Codex)).unwrap();
        let pair = "model_providers.atlas.base_url=\"http://host:9/v1\"";
        assert!(codex.arguments.iter().any(|argument| argument == pair));
        assert!(start(&of(Client::Litellm)).is_none());
    }

    #[test]
    fn agents_are_told_how_much_fits() {
        let context = target::MAX_CONTEXT.to_string();
        let claude = start(&of(Client::Claude)).unwrap();
        let told = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", context);
        assert!(claude.variables.contains(&told));
        assert_eq!(claude.arguments, CLAUDE_ARGUMENTS);
        let codex: toml::Table = settings(&of(Client::Codex)).parse().unwrap();
        let told = |name: &str| codex[name].as_integer().unwrap() as usize;
        assert_eq!(told("model_context_window"), target::MAX_CONTEXT);
        assert!(told("model_auto_compact_token_limit") < target::MAX_CONTEXT);
    }

    #[test]
    fn nothing_that_would_end_a_text_is_taken() {
        let mut options = of(Client::Codex);
        options.model = "a\"b".into();
        assert_eq!(run(&options).unwrap_err().exit, Exit::Usage);
    }
}
