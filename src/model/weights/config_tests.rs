//! The configuration of the release, edited. What is a contradiction is tested where facts are
//! made; here, that the server sees it, and says what to do.

use super::*;

/// A configuration that states what must be stated.
fn stated() -> Value {
    let mut config = serde_json::json!({});
    for fact in target::CONFIG.iter().filter(|fact| fact.required) {
        let right: Vec<Value> = serde_json::from_str(&fact.right).unwrap();
        let mut value = &mut config;
        for name in fact.pointer.split('/').skip(1) {
            value = &mut value[name];
        }
        *value = right[0].clone();
    }
    config
}

fn refusal(config: &Value) -> String {
    compare(CONFIG, config.to_string().as_bytes(), target::CONFIG).unwrap_err()
}

#[test]
fn what_is_stated_as_compiled_is_accepted() {
    let content = stated().to_string();
    compare(CONFIG, content.as_bytes(), target::CONFIG).unwrap();
}

#[test]
fn an_edit_is_refused_by_key_value_and_what_is_right() {
    let mut config = stated();
    config["rope_parameters"]["rope_type"] = "yarn".into();
    let said = refusal(&config);
    for words in [
        "states \"yarn\" at /rope_parameters/rope_type",
        "built for \"default\"",
        "attention.rope_scaling of its manifest",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn every_required_fact_is_missed() {
    for fact in target::CONFIG.iter().filter(|fact| fact.required) {
        let mut config = stated();
        *config.pointer_mut(fact.pointer).unwrap() = Value::Null;
        assert!(refusal(&config).contains(fact.key), "{}", fact.key);
    }
}

/// The keys are reported, and nothing is refused for them.
#[test]
fn unknown_keys_of_the_maths_are_reported_with_their_values() {
    for (pointer, key, value) in [
        ("", "residual_scale", serde_json::json!(0.5)),
        ("/text_config", "no_rope_layer_interval", 4.into()),
        ("/text_config/rope_parameters", "query_multiplier", 2.into()),
        ("", "useCausalMask", false.into()),
    ] {
        let mut config = stated();
        let names = pointer.split('/').skip(1);
        names.fold(&mut config, |at, name| &mut at[name])[key] = value.clone();
        let content = config.to_string();
        let config = compare(CONFIG, content.as_bytes(), target::CONFIG).unwrap();
        let found = unknown_maths(&config, target::CONFIG);
        assert_eq!(found, [format!("{pointer}/{key} = {value}")]);
    }
}

#[test]
fn a_configuration_that_is_none_is_refused_with_the_fix() {
    for (content, words) in [
        (&b""[..], "is empty"),
        (b"<html>", "web page"),
        (b"{", "is no JSON"),
        (
            b"version https://git-lfs.github.com/spec/v1",
            "git lfs pull",
        ),
    ] {
        let said = compare(CONFIG, content, target::CONFIG).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}
