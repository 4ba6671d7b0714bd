//! Settings of each client as a text to copy. If the form has comments, the first comment states
//! where the settings belong.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    CLAUDE_ARGUMENTS, CODEX_KEY, Client, Connect, OUTPUT_TOKENS, base, claude, codex, opencode,
};
use model::target;

/// Settings of the chosen client.
pub(super) fn of(options: &Connect) -> String {
    match options.client {
        Client::Claude => {
            let command = format!("claude {}", CLAUDE_ARGUMENTS.join(" "));
            let location = format!("in the shell that starts `{command}`");
            exports(&location, &claude(options))
        }
        Client::Codex => codex_file(options),
        Client::Opencode => file("~/.config/opencode/opencode.json", &opencode(options)),
        Client::Qwen => file("~/.qwen/settings.json", &qwen(options)),
        Client::Cline => cline(options),
        Client::Aider => aider(options),
        Client::Continue => continue_file(options),
        Client::Openwebui => openwebui(options),
        Client::Litellm => litellm(options),
        Client::Llm => llm(options),
        Client::Langchain => langchain(options),
        Client::AiSdk => ai_sdk(options),
    }
}

/// Base URL of the OpenAI API.
fn v1(options: &Connect) -> String {
    format!("{}/v1", base(options))
}

fn exports(location: &str, variables: &[(&str, String)]) -> String {
    let mut out = format!("# {location}\n");
    for (name, value) in variables {
        let _ = writeln!(out, "export {name}='{value}'");
    }
    out
}

fn file(location: &str, content: &Value) -> String {
    format!("// {location}\n{content:#}\n")
}

/// Shell commands that write a file whose form has no comments.
fn written(location: &str, content: &Value) -> String {
    format!("cat > {location} <<'END'\n{content:#}\nEND\n")
}

fn codex_file(options: &Connect) -> String {
    let [model, provider, window, limit, rest @ ..] = codex(options);
    let key = &options.key;
    let mut out = format!("# ~/.codex/config.toml; and in the shell: export {CODEX_KEY}='{key}'\n");
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

fn qwen(options: &Connect) -> Value {
    let Connect { model, key, .. } = options;
    json!({
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": model},
        "env": {"ATLAS_KEY": key},
        "modelProviders": {"openai": [{
            "id": model,
            "name": "Atlas",
            "baseUrl": v1(options),
            "envKey": "ATLAS_KEY",
            "generationConfig": {"contextWindowSize": target::MAX_CONTEXT},
        }]},
    })
}

fn cline(options: &Connect) -> String {
    const PROVIDER: &str = "openai-compatible";
    let Connect { model, key, .. } = options;
    let content = json!({
        "version": 1,
        "lastUsedProvider": PROVIDER,
        "modes": {},
        "providers": {PROVIDER: {
            "settings": {
                "provider": PROVIDER,
                "apiKey": key,
                "model": model,
                "baseUrl": v1(options),
                "contextWindow": target::MAX_CONTEXT,
                "maxTokens": OUTPUT_TOKENS,
            },
            "updatedAt": "1970-01-01T00:00:00.000Z",
            "tokenSource": "manual",
        }},
    });
    format!(
        "# in a shell; in an editor, the same under \"OpenAI Compatible\"\n\
         mkdir -p ~/.cline/data/settings\n{}",
        written("~/.cline/data/settings/providers.json", &content)
    )
}

/// Aider knows only the contexts of models by name, so a file states this model's.
fn aider(options: &Connect) -> String {
    let Connect { model, key, .. } = options;
    let location = format!("in the shell that starts `aider --model openai/{model}`");
    let variables = [
        ("OPENAI_API_BASE", v1(options)),
        ("OPENAI_API_KEY", key.clone()),
    ];
    let fits = json!({format!("openai/{model}"): {
        "max_input_tokens": target::MAX_CONTEXT,
        "max_output_tokens": OUTPUT_TOKENS,
        "litellm_provider": "openai",
        "mode": "chat",
    }});
    exports(&location, &variables) + &written("~/.aider.model.metadata.json", &fits)
}

fn continue_file(options: &Connect) -> String {
    let (Connect { model, key, .. }, url) = (options, v1(options));
    let context = target::MAX_CONTEXT;
    format!(
        "# ~/.continue/config.yaml, for the editor and for `cn`\nname: Atlas\nversion: 1.0.0\n\
         schema: v1\nmodels:\n  - name: \"{model}\"\n    provider: openai\n    \
         model: \"{model}\"\n    apiBase: \"{url}\"\n    apiKey: \"{key}\"\n    \
         roles: [chat, edit, apply]\n    capabilities: [tool_use]\n    \
         defaultCompletionOptions:\n      contextLength: {context}\n      \
         maxTokens: {OUTPUT_TOKENS}\n"
    )
}

fn openwebui(options: &Connect) -> String {
    let variables = [
        ("OPENAI_API_BASE_URL", v1(options)),
        ("OPENAI_API_KEY", options.key.clone()),
        ("ENABLE_OLLAMA_API", "false".to_string()),
    ];
    let location = "of Open WebUI; in a container, 127.0.0.1 is the container";
    exports(location, &variables)
}

fn litellm(options: &Connect) -> String {
    let (Connect { model, key, .. }, url) = (options, v1(options));
    format!(
        "# config.yaml of LiteLLM's proxy; who uses it sends LITELLM_MASTER_KEY, set where it \
         starts\ngeneral_settings:\n  master_key: os.environ/LITELLM_MASTER_KEY\n\
         model_list:\n  - model_name: \"{model}\"\n    \
         litellm_params:\n      model: \"openai/{model}\"\n      api_base: \"{url}\"\n      \
         api_key: \"{key}\"\n"
    )
}

fn llm(options: &Connect) -> String {
    let (Connect { model, key, .. }, url) = (options, v1(options));
    format!(
        "# extra-openai-models.yaml beside the file that `llm logs path` prints; once: \
         llm keys set atlas --value '{key}'\n- model_id: \"{model}\"\n  \
         model_name: \"{model}\"\n  api_base: \"{url}\"\n  api_key_name: atlas\n"
    )
}

fn langchain(options: &Connect) -> String {
    let (Connect { model, key, .. }, url) = (options, v1(options));
    format!(
        "# pip install langchain-openai\nfrom langchain_openai import ChatOpenAI\n\n\
         model = ChatOpenAI(model=\"{model}\", base_url=\"{url}\", api_key=\"{key}\")\n\
         print(model.invoke(\"What is the capital of France?\").content)\n"
    )
}

fn ai_sdk(options: &Connect) -> String {
    let (Connect { model, key, .. }, url) = (options, v1(options));
    format!(
        "// npm install ai @ai-sdk/openai-compatible\n\
         import {{ createOpenAICompatible }} from \"@ai-sdk/openai-compatible\";\n\
         import {{ generateText }} from \"ai\";\n\n\
         const atlas = createOpenAICompatible({{\n  name: \"atlas\",\n  baseURL: \"{url}\",\n  \
         apiKey: \"{key}\",\n}});\nconst {{ text }} = await generateText({{\n  \
         model: atlas(\"{model}\"),\n  prompt: \"What is the capital of France?\",\n}});\n\
         console.log(text);\n"
    )
}
