//! Templates without end, and that bounds change nothing else.

use serde_json::json;

use super::super::{
    Conversation, SpecialTokens, Template, TemplateError, conversation, plain_conversation,
};
use super::*;

/// How long a refusal may take; a debug build copies and counts several times slower.
const REFUSAL_MAX: Duration = match cfg!(debug_assertions) {
    true => Duration::from_secs(10),
    false => Duration::from_secs(1),
};
/// What all that one rendering makes has to stay below.
const MEMORY_MAX: usize = 200_000_000;
const _: () = assert!(MADE_BYTES_MAX < MEMORY_MAX);

/// Templates that double, multiply or keep what they make, without a word of the conversation.
const GROWTH: [(&str, &str); 35] = [
    ("~", "{% set ns.s = ns.s ~ ns.s %}"),
    ("+", "{% set ns.s = ns.s + ns.s %}"),
    ("*", "{% set ns.s = ns.s * 2 %}"),
    ("* once", "{% set ns.s = 'x' * 99999999 %}"),
    (
        "* of literals",
        "{% set ns.s = ('x' * 99999999) ~ ('x' * 99999999) %}",
    ),
    (
        "* in a list",
        "{% set ns.s = [('x' * 9999 * 9999) * 99999999] %}",
    ),
    ("replace", "{% set ns.s = ns.s | replace('x', 'xx') %}"),
    ("replace method", "{% set ns.s = ns.s.replace('x', 'xx') %}"),
    (
        "replace of nothing",
        "{% set ns.s = ns.s | replace('', ns.s) %}",
    ),
    (
        "set block",
        "{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}",
    ),
    (
        "filter block",
        "{% set s %}{% filter upper %}{{ ns.s }}{{ ns.s }}{% endfilter %}\
        {% endset %}{% set ns.s = s %}",
    ),
    (
        "macro body",
        "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns.s = m(ns.s) %}",
    ),
    (
        "macro argument",
        "{% macro m(s, n) %}{% if n %}{{ m(s ~ s, n - 1) }}{% endif %}\
        {% endmacro %}{{ m('x', 60) }}",
    ),
    (
        "caller",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}\
        {% set s %}{% call m() %}{{ ns.s }}{% endcall %}{% endset %}{% set ns.s = s %}",
    ),
    (
        "block",
        "{% block b %}{{ ns.s }}{% endblock %}\
        {% set ns.s = self.b() ~ self.b() ~ 'x' %}",
    ),
    ("list", "{% set ns.l = ns.l + ns.l %}"),
    ("list *", "{% set ns.l = ns.l * 2 %}"),
    ("list in list", "{% set ns.l = [ns.l, ns.l] %}"),
    ("tuple in tuple", "{% set ns.l = (ns.l, ns.l) %}"),
    ("map in map", "{% set ns.l = {'a': ns.l, 'b': ns.l} %}"),
    ("zip", "{% set ns.l = ns.l | zip(ns.l) | list %}"),
    ("deep list", "{% set ns.l = [ns.l] %}"),
    ("batch", "{% set ns.l = ns.l | batch(1) | list %}"),
    (
        "batch of many",
        "{% set ns.l = ns.l | batch(99999999, 'x') | list %}",
    ),
    (
        "slice of many",
        "{% set ns.l = ns.l | slice(99999999) | list %}",
    ),
    ("chain", "{% set ns.l = ns.l | chain(ns.l) | list %}"),
    ("join", "{% set ns.s = [ns.s, ns.s] | join %}"),
    ("join method", "{% set ns.s = ns.s.join(['x', 'x', 'x']) %}"),
    (
        "indent",
        "{% set ns.s = ns.s | indent(width=999999999, first=true) %}",
    ),
    ("format", "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"),
    ("format width", "{% set ns.s = '%999999999d' | format(1) %}"),
    ("format method", "{% set ns.s = '{0}{0}'.format(ns.s) %}"),
    (
        "format method width",
        "{% set ns.s = '{:>999999999}'.format(1) %}",
    ),
    (
        "map",
        "{% set ns.l = ['x' * 9999999] * 99 %}{% set ns.l = ns.l | map('upper') %}",
    ),
    ("texts kept", "{% set ns.l = ns.l + ['x' * 9999999 ~ i] %}"),
];

fn looped(body: &str) -> String {
    format!(
        "{{% set ns = namespace(s='x', l=['x']) %}}{{% for j in range(9999) %}}\
         {{% for i in range(9999) %}}{body}{{% endfor %}}{{% endfor %}}"
    )
}

fn compiled(source: &str) -> Result<Template, TemplateError> {
    Template::compile(source, SpecialTokens::default())
}

fn rendered(source: &str) -> Result<String, TemplateError> {
    compiled(source)?.render(&plain_conversation())
}

/// Renders a template without end, and says what is wrong with its end.
fn complaint(name: &str, source: &str) -> Option<String> {
    let begun = Instant::now();
    let result = rendered(source).map(|text| text.len());
    let elapsed = begun.elapsed();
    println!("{name}: {result:?} after {elapsed:?}");
    let refused = matches!(result, Err(TemplateError::TooLarge)) && elapsed < REFUSAL_MAX;
    (!refused).then(|| format!("{name}: {result:?} after {elapsed:?}"))
}

#[test]
fn string_doubling_is_cut_off() {
    let complaints = GROWTH.map(|(name, body)| complaint(name, &looped(body)));
    let complaints: Vec<_> = complaints.into_iter().flatten().collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_long_literal_in_a_capture_is_cut_off() {
    let body = format!("{{% set s %}}{}{{% endset %}}", "x".repeat(100_000));
    assert_eq!(complaint("set block of a literal", &looped(&body)), None);
    let source = format!(
        "{{% set s %}}{}{{% endset %}}",
        looped(&"x".repeat(100_000))
    );
    assert_eq!(complaint("loop of a literal", &source), None);
}

/// What is bounded in size may still be compared again and again.
#[test]
fn long_work_is_cut_off_by_the_clock() {
    let compared = "{% if a == b %}{% endif %}".repeat(1000);
    let source = format!(
        "{{% set a = 'x' * 9999999 ~ 'a' %}}{{% set b = 'x' * 9999999 ~ 'b' %}}{}",
        looped(&compared)
    );
    let begun = Instant::now();
    let error = rendered(&source).unwrap_err();
    assert!(matches!(error, TemplateError::TooLarge), "{error}");
    assert!(begun.elapsed() < RENDER_TIME_MAX + REFUSAL_MAX);
}

#[test]
fn deep_nesting_is_refused() {
    const DEPTH: usize = 5500;
    let source = format!(
        "{}{}",
        "{% if 1 %}".repeat(DEPTH),
        "{% endif %}".repeat(DEPTH)
    );
    assert!(matches!(rendered(&source), Err(TemplateError::Load(_))));
    let source = format!("{{{{ {}1{} }}}}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    assert!(matches!(rendered(&source), Err(TemplateError::Load(_))));
}

#[test]
fn endless_macro_recursion_is_refused() {
    let source = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let error = rendered(source).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let source = "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(rendered(source), Err(TemplateError::Refused(_))));
    let source = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}\
        {% endmacro %}{{ m(60) }}";
    assert!(matches!(rendered(source), Err(TemplateError::TooLarge)));
}

#[test]
fn a_huge_range_is_refused() {
    for source in [
        "{{ range(999999999) | list }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ] {
        let error = rendered(source).unwrap_err();
        assert!(error.to_string().contains("too many elements"), "{error}");
    }
}

/// What templates of models are made of, in one.
const EVERYTHING: &str = r#"
{%- macro content(m, upper=false) -%}
    {%- if m.content is string %}{{ m.content | trim }}
    {%- elif m.content is iterable %}{% for p in m.content %}{{ p.text }}{% endfor %}
    {%- else %}{{ '' }}{% endif %}
    {%- if upper %}{{ caller is defined }}{% endif %}
{%- endmacro -%}
{%- macro wrapped(name) %}<{{ name }}>{{ caller() }}</{{ name }}>{% endmacro -%}
{%- set ns = namespace(last=messages|length - 1, seen=[], text='', n=0) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if m.role == "user" and ns.n == 0 %}{% set ns.last = index %}{% set ns.n = 1 %}{% endif %}
{%- endfor %}
{%- for m in ([messages[0]] + messages[1:]) if m.role != 'none' %}
    {%- set text = content(m, upper=true) %}
    {%- set ns.text = ns.text ~ '|' ~ m.role + ':' ~ loop.index0 * 2 %}
    {%- set ns.seen = ns.seen + [m.role] %}
    {{- '<|im_start|>' + m.role + '\n' + text }}
    {%- if '</think>' in text %}{{ text.split('</think>')[-1].lstrip('\n') }}
    {%- elif 0 < loop.index <= 2 and m.role in ['user', 'system'] %}{{ m['role'].upper() }}
    {%- else %}{% set x %}{{ m.role | upper }}-{{ loop.cycle('a', 'b') }}{% endset %}{{ x }}
    {%- endif %}
    {%- if loop.last %}{% break %}{% else %}{% continue %}{% endif %}
{%- else %}none{% endfor %}
{%- for key, value in {'b': 1, 'a': [1, 2]} | dictsort %}{{ key }}={{ value }};{% endfor %}
{%- for key, value in messages[0].items() %}{{ '%s->%s' | format(key, value) }}{% endfor %}
{%- call wrapped('x') %}{{ ns.seen | unique | join(', ') }} {{ ns.text }}{% endcall %}
{%- filter replace('a', 'bb') %}banana{{ 3 * '=' }}{{ -2 * 3 ** 2 }}{% endfilter %}
{%- for tree in [[1, [2]], [3]] recursive %}{{ tree if tree is number else loop(tree) }}{% endfor %}
{{- 'a\nb' | indent(4, true) }}{{ 7 // 2 }}{{ (1, 2) + (3,) }}{{ [1] * 3 }}{{ missing ~ none }}
{{- messages | map(attribute='role') | list }}{{ (messages | selectattr('role', 'eq', 'user') |
   list) | length }}{{ 'a,b'.split(',') }}{{ "{} {}".format(1, 'x') }}{{ 'x' ~ true ~ 1.0 }}
{{- messages | batch(2) | length }}{{ range(3) | list }}{{ [3, 1] | sort }}{{ [1, 2] | sum }}
{%- block tail %}<tail {{ 'a' < 'b' }}>{% endblock %}{{ self.tail() }}
{%- autoescape true %}{{ '<' }}<
{%- endautoescape %}{{ not messages }}{{ messages and 1 == 1.0 }}"#;

fn talk() -> Conversation {
    let messages = json!([
        {"role": "system", "content": " Be <brief>. "},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "<think>x</think>\n\nHello"},
        {"role": "user", "content": null}
    ]);
    conversation(messages, Vec::new())
}

/// Renders without any bound.
fn unbounded(source: &str, conversation: &Conversation) -> String {
    let mut environment = Environment::new();
    environment.set_syntax(super::super::syntax().unwrap());
    environment.set_unknown_method_callback(unknown_method_callback);
    let conversation = Value::from(minijinja::value::Serde(conversation));
    environment.render_str(source, conversation).unwrap()
}

#[test]
fn bounds_change_no_output() {
    let tiny = include_str!("../../../../targets/_model/tiny/chat_template.jinja");
    for source in [EVERYTHING, crate::text::testing::TEMPLATE, tiny] {
        let bounded = compiled(source).unwrap().render(&talk()).unwrap();
        assert_eq!(bounded, unbounded(source, &talk()));
    }
}

#[test]
fn a_template_is_shown_as_it_was_written() {
    let source = "{{ 2 * 3 }}{{ messages[0].role * 2 }}";
    let template = Template::load(source, SpecialTokens::default()).unwrap();
    assert_eq!(template.source(), source);
    assert_eq!(
        template.render(&plain_conversation()).unwrap(),
        "6systemsystem"
    );
}

/// A long conversation of any shape is far below the bounds.
#[test]
fn a_long_conversation_is_rendered() {
    const ROLES: [&str; 2] = ["user", "assistant"];
    let said = "The capital of France is Paris. ".repeat(20);
    let turn = |at: usize| json!({"role": ROLES[at % 2], "content": said});
    let messages = (0..3000).map(turn).collect();
    let source = "{% for m in messages %}{% set text = m.content | trim %}\
        {{ '<|im_start|>' ~ m.role + '\n' + text + '<|im_end|>' }}{% endfor %}";
    let talk = conversation(serde_json::Value::Array(messages), Vec::new());
    let template = compiled(source).unwrap();
    let time = |render: &dyn Fn() -> String| {
        let begun = Instant::now();
        (render(), begun.elapsed())
    };
    let (bounded, with) = time(&|| template.render(&talk).unwrap());
    let (plain, without) = time(&|| unbounded(source, &talk));
    println!(
        "{} bytes: {with:?} with bounds, {without:?} without",
        plain.len()
    );
    assert_eq!(bounded, plain);
}
