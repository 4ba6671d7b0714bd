//! Calls whose arguments stand between tags.

use crate::text::tools::NAME_BYTES_MAX;
use crate::text::tools::markup::{Markup, Tags};

use super::text::{ANY_TEXT, text_of};
use super::{Argument, CallGrammar, Form, Function, Lark, at, literal, quoted};

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
                write_argument::<T>(lark, &rule, argument, function)?;
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
fn write_argument<'v, T: Tags>(
    lark: &mut Lark,
    rule: &str,
    argument: &Argument<'v>,
    function: &Function<'v>,
) -> Result<(), String> {
    let (name, schema, root) = (argument.name, argument.schema, &function.root);
    let place = format!("properties.{name}");
    let open = quoted(&format!("{}{name}{}", T::ARGUMENT.0, value_open::<T>()));
    let close = value_close::<T>();
    if root.types(schema).is_text() {
        let value = match text_of(schema, root, T::ARGUMENT.2) {
            Ok(value) => value,
            Err(problem) => {
                function.tolerate(lark, at(&place, problem))?;
                ANY_TEXT.to_string()
            }
        };
        lark.line(&format!(r#"{rule}: {open} {rule}_text "\n""#));
        lark.text_rule(&format!("{rule}_text"), &value, &close, T::ARGUMENT.2);
        return Ok(());
    }
    let form = Form {
        whitespace: true,
        of_type: None,
    };
    let json = function.json(lark, &place, schema, form)?;
    let close = quoted(&format!("{close}\n"));
    lark.line(&format!("{rule}: {open} {json} {close}"));
    Ok(())
}
