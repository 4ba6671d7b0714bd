//! Calls whose arguments are between tags.

use serde_json::{Value, json};

use crate::tools::Types;
use crate::tools::markup::{Markup, Tags, UNKNOWN_NAME_BYTES_MAX};

use super::text::{ANY_TEXT, Text, text_of};
use super::{Argument, CallGrammar, Described, Form, Function, Lark, at, literal, quoted};

/// Name of the rule for an argument of any name, whose value is text.
const FREE: &str = "free_argument";
/// Characters of the name of an argument of [`FREE`], none of which has more than four bytes.
const UNKNOWN_NAME_CHARS_MAX: usize = UNKNOWN_NAME_BYTES_MAX / 4;

impl<T: Tags> CallGrammar for Markup<T> {
    const BETWEEN: &'static str = "\n";
    const AROUND: (&'static str, &'static str) = match T::FUNCTION.0.is_empty() {
        true => ("", ""),
        false => ("\n", T::CALL.1),
    };
    const SIGN: &'static str = T::FUNCTION.0;
    const SEVERAL: bool = T::SEVERAL;

    fn head(name: &str) -> String {
        format!("{}{name}{}\n", T::FUNCTION.0, T::FUNCTION.1)
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let close = T::FUNCTION.2;
        let mut written = quoted(&Self::head(function.name));
        if function.free {
            free_argument::<T>(lark);
            written.push_str(&format!(" {FREE}*"));
        } else {
            let alternatives = function.arguments(lark)?;
            let mut lists = Vec::with_capacity(alternatives.len());
            for (at, arguments) in alternatives.iter().enumerate() {
                let mut list = Vec::with_capacity(arguments.len());
                for (index, argument) in arguments.iter().enumerate() {
                    let rule = format!("argument_{}_{at}_{index}", function.at);
                    write_argument::<T>(lark, &rule, argument, function)?;
                    let often = if argument.required { "" } else { "?" };
                    list.push(format!("{rule}{often}"));
                }
                lists.push(list.join(" "));
            }
            written.push_str(&format!(" {}", one_of_lists(&lists)));
        }
        let line_break = if T::CALL.1.is_empty() { "" } else { "\n" };
        let close = quoted(&format!("{close}{line_break}"));
        Ok(format!("{written} {close}"))
    }
}

/// Rule part for one of `lists`; optional if one of the lists is empty.
fn one_of_lists(lists: &[String]) -> String {
    let said = lists.iter().map(String::as_str);
    let said: Vec<&str> = said.filter(|list| !list.is_empty()).collect();
    match (said.as_slice(), said.len() < lists.len()) {
        ([], _) => String::new(),
        (said, true) => format!("({})?", said.join(" | ")),
        ([one], false) => (*one).to_string(),
        (said, false) => format!("({})", said.join(" | ")),
    }
}

/// Rule part between the name of an argument and its value.
fn value_open<T: Tags>() -> String {
    let line_break = match T::OWN_LINES || !T::VALUE_OPEN.is_empty() {
        true => "\n",
        false => "",
    };
    format!("{}{line_break}{}", T::ARGUMENT.1, T::VALUE_OPEN)
}

/// Rule part after a value; the line break before it belongs to the rule of the value.
fn value_close<T: Tags>() -> String {
    let line_break = if T::OWN_LINES { "\n" } else { "" };
    format!("{line_break}{}", T::ARGUMENT.2)
}

fn free_argument<T: Tags>(lark: &mut Lark) {
    if lark.has_rule(FREE) {
        return;
    }
    let (before, after) = (literal(T::ARGUMENT.0), literal(&value_open::<T>()));
    lark.line(&format!(
        r#"{FREE}: {before} /[^<>"\n\r]{{1,{UNKNOWN_NAME_CHARS_MAX}}}/ {after} free_text "\n""#
    ));
    lark.text_rule("free_text", ANY_TEXT, &value_close::<T>(), T::ARGUMENT.2);
}

/// Writes the rule of one argument.
fn write_argument<'v, T: Tags>(
    lark: &mut Lark,
    rule: &str,
    argument: &Argument<'v>,
    function: &Function<'v>,
) -> Result<(), String> {
    let name = &argument.name;
    let path = format!("properties.{name}");
    let open = quoted(&format!("{}{name}{}", T::ARGUMENT.0, value_open::<T>()));
    let close = quoted(&format!("{}\n", value_close::<T>()));
    let read = function.types(name);
    let (text, json) = match argument.schema {
        Described::By(schema) => {
            let text = text_part::<T>(lark, &path, schema, function, read)?;
            let types = text.as_ref().map(|text| text.json);
            let json = match types {
                Some(types) if types.unsaid() => None,
                types => {
                    let names = types.map_or(Vec::new(), Types::names);
                    let form = Form {
                        whitespace: true,
                        of_types: &names,
                        call: None,
                    };
                    Some(function.json(lark, &path, schema, form)?)
                }
            };
            (text, json)
        }
        Described::Of(types) if types.is_text() => (Some(Text::any()), None),
        Described::Of(types) => (None, Some(lark.json(&json!({"type": types.names()}))?)),
    };
    let json = json.map(|json| format!("{json} {close}"));
    let mut values: Vec<String> = json.into_iter().collect();
    if let Some(text) = text {
        let value = text.expression(lark, rule);
        let (rule, close) = (format!("{rule}_text"), value_close::<T>());
        lark.text_rule(&rule, &value, &close, T::ARGUMENT.2);
        values.push(format!(r#"{rule} "\n""#));
    }
    lark.line(&format!("{rule}: {open} ({})", values.join(" | ")));
    Ok(())
}

/// Texts that an argument may have as a bare string; None if its schema allows no string. A schema
/// that cannot be enforced allows any text with a warning; in a strict function it is an error.
fn text_part<'v, T: Tags>(
    lark: &mut Lark,
    path: &str,
    schema: &'v Value,
    function: &Function<'v>,
    read: Types,
) -> Result<Option<Text>, String> {
    let types = function.root.types(schema);
    if !types.is_text() {
        return Ok(None);
    }
    match text_of(schema, &function.root, T::ARGUMENT.2, read) {
        Ok(text) => Ok(Some(text)),
        Err(problem) => {
            function.tolerate(lark, at(path, problem))?;
            Ok(Some(Text::any()))
        }
    }
}
