//! Input items of a request whose response is stored.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::limits::INPUT_ITEMS_MAX;
use crate::random::new_id;

use super::store::{Item, Store};

/// Items of a page if a client does not state a limit.
const PAGE_DEFAULT: usize = 20;

/// Items of the field `input` in full, with their ids: a reference by id is replaced by the item,
/// and missing ids and types are added.
pub fn of(input: &Value, store: &Store) -> Vec<Item> {
    let text = |text: &str| json!([{"type": "input_text", "text": text}]);
    let items = match input {
        Value::String(said) => vec![json!({"role": "user", "content": text(said)})],
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    let full = |mut item: Value| {
        if let Some(id) = item["id"].as_str()
            && let Some(known) = store.item(id)
        {
            return (id.to_string(), known);
        }
        if item.get("type").is_none() {
            item["type"] = Value::from("message");
        }
        let id = item["id"].as_str().map(str::to_string);
        let prefix = match item["type"] == "message" {
            true => "msg",
            false => "item",
        };
        let id = id.unwrap_or_else(|| new_id(prefix));
        item["id"] = Value::from(id.as_str());
        (id, item.to_string())
    };
    let items = items.into_iter().filter(Value::is_object);
    items.map(full).collect()
}

/// Query parameters that select a page of items.
struct Page<'q> {
    limit: usize,
    /// Whether the oldest item comes first.
    ascending: bool,
    after: Option<&'q str>,
}

impl<'q> Page<'q> {
    fn parse(query: &'q str) -> Result<Page<'q>, ApiError> {
        let mut page = Page {
            limit: PAGE_DEFAULT,
            ascending: false,
            after: None,
        };
        for (name, value) in query.split('&').filter_map(|field| field.split_once('=')) {
            let wrong = |problem: String| Err(ApiError::field(name, problem));
            match (name, value) {
                ("limit", value) => match value.parse() {
                    Ok(limit @ 1..=INPUT_ITEMS_MAX) => page.limit = limit,
                    _ => return wrong(format!("must be a number from 1 to {INPUT_ITEMS_MAX}")),
                },
                ("order", "asc") => page.ascending = true,
                ("order", "desc") => page.ascending = false,
                ("order", _) => return wrong("must be asc or desc".to_string()),
                ("after", id) => page.after = Some(id),
                _ => {}
            }
        }
        Ok(page)
    }
}

/// One page of `items` in the form of the API; `query` is the query part of the URI.
///
/// # Errors
/// Names the parameter that is wrong.
pub fn page(items: &[Item], query: &str) -> Result<Value, ApiError> {
    let page = Page::parse(query)?;
    let mut ordered: Vec<&Item> = items.iter().collect();
    if !page.ascending {
        ordered.reverse();
    }
    let from = match page.after {
        None => 0,
        Some(after) => match ordered.iter().position(|(id, _)| id == after) {
            Some(at) => at + 1,
            None => {
                let error = ApiError::field("after", "is the id of none of these items");
                let status = StatusCode::NOT_FOUND;
                return Err(ApiError { status, ..error });
            }
        },
    };
    let rest = &ordered[from..];
    let listed = &rest[..rest.len().min(page.limit)];
    let data = listed.iter().map(|(_, json)| serde_json::from_str(json));
    let data: Vec<Value> = data.filter_map(Result::ok).collect();
    let id = |item: Option<&&Item>| item.map(|(id, _)| id.clone());
    Ok(json!({
        "object": "list",
        "data": data,
        "first_id": id(listed.first()),
        "last_id": id(listed.last()),
        "has_more": listed.len() < rest.len(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize) -> Vec<Item> {
        let message = |at: usize| json!({"role": "user", "id": format!("i{at}"), "content": "x"});
        let input = Value::Array((0..count).map(message).collect());
        of(&input, &Store::default())
    }

    fn listed(query: &str) -> (Vec<String>, bool) {
        let page = page(&items(5), query).unwrap();
        let ids = page["data"].as_array().unwrap().iter();
        let ids: Vec<String> = ids
            .map(|item| item["id"].as_str().unwrap().to_string())
            .collect();
        assert_eq!(page["first_id"].as_str(), ids.first().map(String::as_str));
        assert_eq!(page["last_id"].as_str(), ids.last().map(String::as_str));
        (ids, page["has_more"] == true)
    }

    #[test]
    fn items_are_listed_in_pages_the_last_first() {
        assert_eq!(listed("").0, ["i4", "i3", "i2", "i1", "i0"]);
        let of = |ids: &[&str], more| (ids.iter().map(|id| id.to_string()).collect(), more);
        assert_eq!(listed("limit=2"), of(&["i4", "i3"], true));
        assert_eq!(listed("limit=2&after=i3"), of(&["i2", "i1"], true));
        assert_eq!(
            listed("order=asc&after=i2&limit=9"),
            of(&["i3", "i4"], false)
        );
        assert_eq!(listed("after=i0"), of(&[], false));
        for (query, at) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("order=up", "order"),
            ("after=i9", "after"),
        ] {
            let error = page(&items(5), query).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(at));
        }
    }

    #[test]
    fn each_item_has_an_id_and_a_type() {
        let found = of(&json!("hi"), &Store::default());
        let item: Value = serde_json::from_str(&found[0].1).unwrap();
        assert_eq!(
            (&item["type"], &item["role"]),
            (&json!("message"), &json!("user"))
        );
        assert_eq!(item["content"][0]["text"], "hi");
        assert_eq!(item["id"], found[0].0.as_str());
        let call = json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]);
        assert!(of(&call, &Store::default())[0].0.starts_with("item_"));
    }
}
