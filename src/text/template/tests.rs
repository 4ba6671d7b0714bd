//! Templates as Hugging Face renders them; expectations are what its renderer gives.

use serde_json::{Value as Json, json};

use super::*;

const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

fn conversation(messages: Json) -> Conversation {
    Conversation {
        messages: messages.as_array().cloned().unwrap_or_default(),
        tools: Vec::new(),
        add_generation_prompt: true,
        enable_thinking: false,
        ..Conversation::default()
    }
}

fn rendered(source: &str, messages: Json) -> Result<String, TemplateError> {
    Template::compile(source, SpecialTokens::default())?.render(&conversation(messages))
}

/// Rendering of one message of these fields.
fn shown(source: &str, message: Json) -> String {
    let text = rendered(source, json!([message]));
    text.unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn loaded(source: &str) -> Result<Template, TemplateError> {
    Template::load(source, SpecialTokens::default())
}

fn abilities(source: &str) -> Abilities {
    loaded(source).unwrap().abilities().clone()
}

#[test]
fn messages_are_rendered_in_order() {
    let text = rendered(PLAIN, json!([{"role": "user", "content": "<a&b>"}])).unwrap();
    assert_eq!(text, "[user]<a&b>");
}

#[test]
fn floats_are_printed_as_python_prints_them() {
    let message = json!({"x": 1e-7, "y": [2.5e30, {"z": 1.0}], "w": -0.0, "v": 123456789.5});
    for (source, expected) in [
        ("{{ messages[0].x }}", "1e-07"),
        ("{{ messages[0].x | string }}", "1e-07"),
        ("{{ messages[0].x ~ '|' ~ messages[0].w }}", "1e-07|-0.0"),
        ("{{ 'a' + messages[0].x ~ 'b' }}", "a1e-07b"),
        ("{{ messages[0].x * 2 }}", "2e-07"),
        ("{{ messages[0].y }}", "[2.5e+30, {'z': 1.0}]"),
        ("{{ [messages[0].x] ~ '' }}", "[1e-07]"),
        ("{{ (messages[0].x,) }}", "(1e-07,)"),
        ("{{ messages[0].y | join('-') }}", "2.5e+30-{'z': 1.0}"),
        ("{{ '%s' | format(messages[0].x) }}", "1e-07"),
        ("{{ '{}/{}'.format(messages[0].x, 'b') }}", "1e-07/b"),
        ("{{ messages[0].x | trim | upper }}", "1E-07"),
        ("{% set s %}{{ messages[0].x }}{% endset %}{{ s }}", "1e-07"),
        ("{{ messages[0].v }}", "123456789.5"),
    ] {
        assert_eq!(shown(source, message.clone()), expected, "{source}");
    }
}

#[test]
fn values_in_lists_are_printed_as_python_prints_them() {
    let message = json!({"x": [true, null, "it's", "\"'", "\u{200b}\u{7f}é\u{301}\n", {"k": []}]});
    assert_eq!(
        shown("{{ messages[0].x }}", message),
        "[True, None, \"it's\", '\"\\'', '\\u200b\\x7fé\u{301}\\n', {'k': []}]"
    );
}

#[test]
fn json_is_written_as_python_writes_it() {
    let text = "é<\"\u{1}\u{7f}🦀";
    let message = json!({"z": text, "a": [1, 1.0, 1e16, 1e-5, true, null], "e": {}});
    for (options, expected) in [
        (
            "",
            r#"{"z": "é<\"\u0001🦀", "a": [1, 1.0, 1e+16, 1e-05, true, null], "e": {}}"#,
        ),
        (
            "(separators=(',', ':'), sort_keys=true)",
            r#"{"a":[1,1.0,1e+16,1e-05,true,null],"e":{},"z":"é<\"\u0001🦀"}"#,
        ),
        (
            "(true)",
            r#"{"z": "\u00e9<\"\u0001\u007f\ud83e\udd80", "a": [1, 1.0, 1e+16, 1e-05, true, null], "e": {}}"#,
        ),
    ] {
        let source = format!("{{{{ messages[0] | tojson{options} }}}}");
        let found = shown(&source, message.clone());
        let found = match options {
            "(true)" => found,
            _ => found.replace('\u{7f}', ""),
        };
        assert_eq!(found, expected, "{source}");
    }
    let indented = shown(
        "{{ messages | tojson(indent=2) }}",
        json!({"a": [], "b": [1]}),
    );
    let expected = "[\n  {\n    \"a\": [],\n    \"b\": [\n      1\n    ]\n  }\n]";
    assert_eq!(indented, expected);
    assert!(rendered("{{ nothing | tojson }}", json!([])).is_err());
}

#[test]
fn whole_numbers_have_any_size() {
    let long = "98765432109876543210987654321098765432109876543210";
    let quoted =
        digits::quoted(&format!("{{\"x\": {long}, \"y\": [{}]}}", &long[..25])).into_owned();
    let message: Json = serde_json::from_str(&quoted).unwrap();
    let source = "{{ messages[0].x }} {{ messages[0] | tojson }} {{ messages[0].y }}";
    let (x, y) = (long, &long[..25]);
    assert_eq!(
        shown(source, message),
        format!("{x} {{\"x\": {x}, \"y\": [{y}]}} [{y}]")
    );
}

#[test]
fn loops_know_their_length_whatever_they_run_over() {
    for (source, expected) in [
        (
            "{% for c in messages[0].content %}{{ c }}{{ ',' if not loop.last }}{% endfor %}",
            "a,é",
        ),
        (
            "{% for c in 'abc' if c != 'c' %}{{ c }}{{ loop.length }}{% endfor %}",
            "a2b2",
        ),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}",
            "a1True",
        ),
        (
            "{% for x in 1, 2 %}{{ x }}{{ loop.revindex }}{% endfor %}",
            "1221",
        ),
        (
            "{% for k, v in nothing | items %}{{ k }}{% else %}none{% endfor %}",
            "none",
        ),
        ("{% for m in nothing %}{% endfor %}ok", "ok"),
    ] {
        assert_eq!(
            shown(source, json!({"content": "aé"})),
            expected,
            "{source}"
        );
    }
    assert!(rendered("{% for m in none %}{% endfor %}", json!([])).is_err());
}

#[test]
fn blanks_are_those_of_python() {
    let message = json!({"content": "\u{1c}\u{a0} a\u{1f}b\u{85}\u{3000}"});
    for (source, expected) in [
        ("{{ messages[0].content | trim }}", "a\u{1f}b"),
        ("{{ messages[0].content.strip() }}", "a\u{1f}b"),
        ("{{ messages[0].content.lstrip() | length }}", "5"),
        ("{{ messages[0].content.split() }}", "['a', 'b']"),
        ("{{ messages[0].content.splitlines() | length }}", "3"),
        ("{{ 'xxaxx'.rstrip('x') }}", "xxa"),
        (
            "{{ ' a  b c '.rsplit(none, 1) }}{{ ' a b c '.split(none, 1) }}",
            "[' a  b', 'c']['a', 'b c ']",
        ),
        (
            "{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a-b'.partition('-') }}",
            "['a-b', 'c']('a', '-', 'b')",
        ),
    ] {
        assert_eq!(shown(source, message.clone()), expected, "{source}");
    }
}

#[test]
fn lines_are_indented_as_jinja_indents_them() {
    for (source, expected) in [
        ("{{ 'a\n' | indent }}|", "a\n|"),
        ("{{ '[\n' | indent(2, true) }}|", "  [\n|"),
        ("{{ 'a\n\nb' | indent(2) }}", "a\n\n  b"),
        ("{{ 'a\n\nb' | indent('> ', blank=true) }}", "a\n> \n> b"),
    ] {
        assert_eq!(shown(source, json!({})), expected, "{source}");
    }
}

#[test]
fn what_a_request_leaves_out_is_none() {
    let source = "{{ tools is none }}{{ documents is none }}{{ tools is iterable }}\
        {{ messages[0].content is defined }}{{ nothing | length }}";
    assert_eq!(
        shown(source, json!({"content": null})),
        "TrueTrueFalseFalse0"
    );
}

#[test]
fn reasoning_has_both_of_its_names() {
    let source = "{{ messages[0].thinking }}/{{ messages[0].reasoning_content }}";
    for name in ["thinking", "reasoning_content"] {
        assert_eq!(shown(source, json!({name: "why"})), "why/why");
    }
}

#[test]
fn what_the_model_said_may_be_marked() {
    let source = "{% set x = 1 %}\n {%- generation -%} \n{% set x = 2 %}a{{ x }} \
        {%- endgeneration %}{{ x }}";
    assert_eq!(shown(source, json!({})), "a21");
}

#[test]
fn python_methods_loop_controls_and_namespaces_work() {
    let source = "{% set ns = namespace(n=0) %}{% for m in messages %}\
        {% if m.content.startswith('skip') %}{% continue %}{% endif %}\
        {% set ns.n = ns.n + 1 %}{{ m.content.strip().split(' ')[-1] }}\
        {% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}";
    let messages =
        json!([{"content": "skip"}, {"content": " a b "}, {"content": "c"}, {"content": "d"}]);
    assert_eq!(rendered(source, messages).unwrap(), "bc");
}

#[test]
fn an_exception_of_the_template_is_reported_in_its_words() {
    let error = rendered("{{ raise_exception('No user query.') }}", json!([])).unwrap_err();
    assert!(matches!(error, TemplateError::Refused(why) if why == "No user query."));
}

#[test]
fn special_tokens_are_known_by_their_names() {
    let source = "{{ bos_token + messages[0].content + eos_token }}\
        {% if pad_token is defined %}{{ pad_token }}{% endif %}";
    assert!(
        loaded(source).is_err(),
        "nothing is added to a token that is not there"
    );
    let file = br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}"#;
    let template = Template::load(source, SpecialTokens::parse(file).unwrap()).unwrap();
    let text = template.render(&conversation(json!([{"content": "Hi"}])));
    assert_eq!(text.unwrap(), "<s>Hi</s>");
}

#[test]
fn a_template_is_shown_as_it_was_written() {
    let source = "{{ 2 ~ 3 }}\r\n{{ messages[0].role }}";
    assert_eq!(loaded(source).unwrap().source(), source);
}

/// [`rendered`] with little fuel; the bound itself takes seconds to reach.
fn rendered_with_little_fuel(source: &str) -> Result<String, TemplateError> {
    const LITTLE: u64 = 1_000_000;
    let mut template = Template::compile(source, SpecialTokens::default())?;
    assert_eq!(
        template.environment.as_ref().unwrap().fuel(),
        Some(FUEL_MAX)
    );
    template
        .environment
        .as_mut()
        .unwrap()
        .set_fuel(Some(LITTLE));
    template.render(&conversation(json!([])))
}

#[test]
fn endless_work_is_cut_off() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}";
    for body in [
        "",
        "{{ 'x' * 9999 }}",
        "{% set s %}{{ 'x' * 99999 }}{% endset %}",
    ] {
        let source = format!("{loops}{body}{}", "{% endfor %}".repeat(2));
        let error = rendered_with_little_fuel(&source).unwrap_err();
        assert!(matches!(error, TemplateError::TooLarge), "{body}: {error}");
    }
}

#[test]
fn endless_recursion_is_refused() {
    let source = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let error = rendered(source, json!([])).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let deep = format!(
        "{}{}",
        "{% if 1 %}".repeat(5500),
        "{% endif %}".repeat(5500)
    );
    assert!(matches!(
        rendered(&deep, json!([])),
        Err(TemplateError::Load(_))
    ));
}

/// Templates look through all messages for each of them; a conversation of as many as the routes
/// take is rendered.
#[test]
fn a_long_conversation_of_short_messages_is_rendered() {
    let source = "{% for m in messages %}{% for later in messages[loop.index:] %}\
        {% if later.role == 'x' %}x{% endif %}{% endfor %}{{ m.content }}{% endfor %}";
    let role = |at: usize| ["user", "assistant"][at % 2];
    let turn = |at: usize| json!({"role": role(at), "content": "a"});
    let messages: Vec<Json> = (0..4096).map(turn).collect();
    let count = messages.len();
    assert_eq!(
        rendered(source, Json::Array(messages)).unwrap().len(),
        count
    );
}

#[test]
fn a_template_that_fails_on_a_plain_conversation_is_not_loaded() {
    let error = loaded("{{ messages[0].missing.deeper }}").err().unwrap();
    assert!(error.to_string().contains("fails when tried"), "{error}");
}

#[test]
fn system_messages_are_tried_at_load() {
    let refusing = |condition: &str| {
        format!(
            "{{% for m in messages %}}{{% if m.role == 'system' and {condition} %}}\
             {{{{ raise_exception('no') }}}}{{% endif %}}{{{{ m.content }}}}{{% endfor %}}"
        )
    };
    let found = |source: &str| (abilities(source).system, abilities(source).late_system);
    assert_eq!(found(PLAIN), (true, true));
    assert_eq!(found(&refusing("not loop.first")), (true, false));
    assert_eq!(found(&refusing("true")), (false, false));
    let silent = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    assert_eq!(found(silent), (false, false));
    let asking = "{% set s = messages[0].content if messages[0].role == 'system' %}\
        {{ s + messages[1].content }}";
    assert_eq!(found(asking), (true, false));
}

#[test]
fn calls_and_their_ids_are_tried_at_load() {
    const CALLS: &str = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}\
        {% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}CHECK{% endfor %}\
        {% endfor %}";
    let found = |source: &str| (abilities(source).tools, abilities(source).call_ids);
    assert_eq!(found(CALLS), (true, CallIds::Any));
    let nine = "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}";
    assert_eq!(found(&CALLS.replace("CHECK", nine)), (true, CallIds::Nine));
    let refusing = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}\
        {% endif %}{{ m.content }}{% endfor %}";
    assert_eq!(found(refusing), (false, CallIds::Any));
    assert_eq!(found(PLAIN), (false, CallIds::Any), "tools are not shown");
}

/// Calls as Llama 3 writes them, of which a turn may have one.
#[test]
fn a_template_may_put_tools_before_the_first_question_and_take_one_call_a_turn() {
    const ONE: &str = "{% if tools %}{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}\
        {{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}\
        {% for m in messages %}{% if 'tool_calls' in m %}\
        {% if m.tool_calls | length != 1 %}{{ raise_exception('one') }}{% endif %}\
        {% set call = m.tool_calls[0].function %}{{ '{\"name\": \"' + call.name + '\", ' }}\
        {{ '\"parameters\": ' }}{{ call.arguments | tojson }}{{ '}' }}\
        {% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}\
        {% endif %}{% endfor %}";
    let template = loaded(ONE).unwrap();
    assert!(template.abilities().tools && template.abilities().system);
    let call = json!({"function": {"name": "f", "arguments": {"a": [1, "b"]}}});
    let turn = |calls: &[&Json]| {
        let asked = json!({"role": "user", "content": "Q"});
        template.render(&conversation(
            json!([asked, {"role": "assistant", "tool_calls": calls}]),
        ))
    };
    let written = r#"Q{"name": "f", "parameters": {"a": [1, "b"]}}"#;
    assert_eq!(turn(&[&call]).unwrap(), written);
    assert!(matches!(turn(&[&call, &call]), Err(TemplateError::Refused(why)) if why == "one"));
}

/// Turns as Mixtral's first template frames them.
#[test]
fn a_template_of_turns_that_alternate_knows_no_system_and_no_tools() {
    const TURNS: &str = "{{ bos_token }}{% for m in messages %}\
        {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}\
        {% endif %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}\
        {% elif m.role == 'assistant' %}{{ m.content + eos_token }}\
        {% else %}{{ raise_exception('role') }}{% endif %}{% endfor %}";
    let special = br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;
    let template = Template::load(TURNS, SpecialTokens::parse(special).unwrap()).unwrap();
    let found = template.abilities();
    assert_eq!(
        (found.system, found.late_system, found.tools),
        (false, false, false)
    );
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let talk = json!([said("user", "a"), said("assistant", "b"), said("user", "c")]);
    let text = template.render(&conversation(talk)).unwrap();
    assert_eq!(text, "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
}

#[test]
fn ids_of_calls_have_the_form_that_the_template_takes() {
    let source = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.id }},\
        {{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}{{ m.content }}\
        {% endfor %}{{ tools | tojson }}";
    let template = loaded(source).unwrap();
    let talk = |id: &str| {
        let call = json!({"id": id, "function": {"arguments": {}}});
        let text = template.render(&conversation(json!([
            {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": id}])));
        let text = text.unwrap();
        let (named, answered) = text.split_once(",{}").unwrap();
        assert_eq!(answered, format!("{named}null"));
        named.to_string()
    };
    assert_eq!(talk("aB3dE6gH9"), "aB3dE6gH9");
    let long = talk("call_0123456789abcdef01234567");
    assert!(
        long.len() == 9 && long.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{long}"
    );
    assert_ne!(long, talk("call_0123456789abcdef01234568"));
    assert_eq!(CallIds::Any.shaped("call_1"), "call_1");
}

#[test]
fn contents_become_parts_where_a_template_reads_nothing_else() {
    let source = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}";
    let template = loaded(source).unwrap();
    assert!(template.abilities().parts);
    let text = template.render(&conversation(json!([{"role": "user", "content": "Hi"}])));
    assert_eq!(text.unwrap(), "Hi");
    assert!(!abilities(PLAIN).parts);
}
