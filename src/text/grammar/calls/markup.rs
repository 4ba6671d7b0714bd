//! Calls whose arguments stand between tags.

use serde_json::Value;

use crate::text::grammar::JsonGrammar;
use crate::text::tools::markup::{Markup, Tags};
use crate::text::tools::{NAME_BYTES_MAX, Types};

use super::text::{ANY_TEXT, text_of};
use super::{Argument, CallGrammar, Function, Lark, literal, quoted};

/// The rule of an argument of any name, taken as text.
const FREE: &str = "free_argument";

impl<T: Tags> CallGrammar for Markup<T> {
    const BETWEEN: &'static str = "\n";
    const AROUND: (&'static str, &'static str) = match T::FUNCTION.0.is_empty() {
        true => ("", ""),
        false => ("\n", T::CALL.1),
    };
    const SEVERAL: bool = T::SEVERAL;

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let (before, behind, close) = T::FUNCTION;
        let mut written = quoted(&format!("{before}{}{behind}\n", function.name));
        if function.free {
            free_argument::<T>(lark);
            written.push_str(&format!(" {FREE}*"));
        } else {
            for (index, argument) in function.arguments(lark)?.iter().enumerate() {
                let rule = format!("argument_{}_{index}", function.at);
                write_argument::<T>(lark, &rule, argument, function)
                    .map_err(|problem| format!("properties.{}: {problem}", argument.name))?;
                let often = if argument.required { "" } else { "?" };
                written.push_str(&format!(" {rule}{often}"));
            }
        }
        let line_break = if T::CALL.1.is_empty() { "" } else { "\n" };
        Ok(format!(
            "{written} {}",
            quoted(&format!("{close}{line_break}"))
        ))
    }
}

/// What stands between the name of an argument and its value.
fn value_open<T: Tags>() -> String {
    let line_break = match T::OWN_LINES || !T::VALUE_OPEN.is_empty() {
        true => "\n",
        false => "",
    };
    format!("{}{line_break}{}", T::ARGUMENT.1, T::VALUE_OPEN)
}

/// What stands behind a value; its line break belongs to the text's rule.
fn value_close<T: Tags>() -> String {
    let line_break = if T::OWN_LINES { "\n" } else { "" };
    format!("{line_break}{}", T::ARGUMENT.2)
}

fn free_argument<T: Tags>(lark: &mut Lark) {
    if lark.has_rule(FREE) {
        return;
    }
    let (before, behind) = (literal(T::ARGUMENT.0), literal(&value_open::<T>()));
    lark.line(&format!(
        r#"{FREE}: {before} /[A-Za-z0-9_.:\-]{{1,{NAME_BYTES_MAX}}}/ {behind} free_text "\n""#
    ));
    lark.text_rule("free_text", ANY_TEXT, &value_close::<T>(), T::ARGUMENT.2);
}

/// Writes the rule of one argument.
fn write_argument<T: Tags>(
    lark: &mut Lark,
    rule: &str,
    argument: &Argument<'_>,
    function: &Function<'_>,
) -> Result<(), String> {
    let (name, schema, root) = (argument.name, argument.schema, function.parameters);
    let open = quoted(&format!("{}{name}{}", T::ARGUMENT.0, value_open::<T>()));
    let close = value_close::<T>();
    if Types::of(schema, root).is_text() {
        let value = match text_of(schema, root) {
            Ok(value) => value,
            Err(problem) => {
                function.tolerate(lark, format!("properties.{name}: {problem}"))?;
                ANY_TEXT.to_string()
            }
        };
        lark.line(&format!(r#"{rule}: {open} {rule}_text "\n""#));
        lark.text_rule(&format!("{rule}_text"), &value, &close, T::ARGUMENT.2);
        return Ok(());
    }
    let json = lark.json(JsonGrammar {
        schema: with_definitions(schema, root),
        strict: function.strict,
        whitespace: true,
    })?;
    let close = quoted(&format!("{close}\n"));
    lark.line(&format!("{rule}: {open} {json} {close}"));
    Ok(())
}

/// A part of `root` that stands alone: with the definitions that it may refer to.
pub fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    let refers = schema.to_string().contains("\"$ref\"");
    for definitions in ["$defs", "definitions"] {
        if let (true, Some(map), Some(defined)) =
            (refers, schema.as_object_mut(), root.get(definitions))
        {
            map.insert(definitions.to_string(), defined.clone());
        }
    }
    schema
}
