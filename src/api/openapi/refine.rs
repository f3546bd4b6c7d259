//! What derived schemas can't say: bounds of numbers, shapes of text, which fields belong together.

use crate::model::Limit;
use serde_json::{Map, Value, json};

/// Base64 with padding, as it is read.
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
/// What the kernel takes as a word of a program.
const NO_NUL: &str = "^[^\\u0000]*$";

/// What stands in tables and logs.
const NO_CONTROL: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";

/// Fields whose shape is the same wherever they stand.
fn of_field(name: &str) -> Option<Value> {
    Some(match name {
        "project_id" => json!({"pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"}),
        "stdin_base64" | "base64" | "content_base64" => json!({"pattern": BASE64}),
        "code" | "command" => json!({"pattern": NO_NUL}),
        "session" => json!({"pattern": "^[A-Za-z0-9._-]{1,64}$"}),
        "mode" => json!({"pattern": "^(0o)?[0-7]{1,3}$"}),
        _ => return None,
    })
}

/// Adds to the schemas what their types do not show.
pub(super) fn refine(schemas: &mut Map<String, Value>) {
    for schema in schemas.values_mut() {
        bound(schema);
    }
    let requests = ["ExecRequest", "ExecSpec", "Input", "NewSandboxRequest", "WriteRequest"];
    let parts: Vec<String> = schemas.keys().filter(|name| name.ends_with("ExecRequest")).cloned().collect();
    for name in requests.iter().map(|name| (*name).to_owned()).chain(parts) {
        let Some(fields) = schemas.get_mut(&name).and_then(|schema| schema["properties"].as_object_mut()) else {
            continue;
        };
        for (field, schema) in fields {
            let text = matches!(&schema["type"], Value::String(kind) if kind == "string")
                || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("string")));
            if let (true, Some(shape)) = (text, of_field(field)) {
                merge(schema, shape);
            }
        }
    }
    for (name, patch) in patches() {
        let schema = schemas.get_mut(name).unwrap_or_else(|| panic!("refine: there is no schema {name}"));
        merge(schema, patch);
    }
}

/// A number of 0 or more has an end too.
fn bound(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            let integer = match map.get("type") {
                Some(Value::String(kind)) => kind == "integer",
                Some(Value::Array(kinds)) => kinds.contains(&json!("integer")),
                _ => false,
            };
            if integer && map.get("minimum") == Some(&json!(0)) && !map.contains_key("maximum") {
                let most = if map.get("format") == Some(&json!("int32")) { u64::from(u32::MAX) } else { u64::MAX };
                map.insert("maximum".to_owned(), most.into());
            }
            map.values_mut().for_each(bound);
        }
        Value::Array(list) => list.iter_mut().for_each(bound),
        _ => {}
    }
}

/// Lays `patch` over `schema`, object by object; null takes a key away.
fn merge(schema: &mut Value, patch: Value) {
    match (schema, patch) {
        (Value::Object(schema), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    schema.remove(&key);
                } else {
                    merge(schema.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (schema, patch) => *schema = patch,
    }
}

fn patches() -> Vec<(&'static str, Value)> {
    let profile = crate::profile::schema();
    let limits: Map<String, Value> = Limit::ALL
        .iter()
        .map(|limit| {
            let amount = json!({"type": "integer", "minimum": limit.floor(), "maximum": limit.ceiling()});
            (limit.name().to_owned(), amount)
        })
        .collect();
    let closed = json!({"type": "object", "properties": limits, "additionalProperties": false,
        "propertyNames": null});
    let plain = |least: usize, most: usize| json!({"minLength": least, "maxLength": most, "pattern": NO_CONTROL});
    let either = |one: &str, other: &str| {
        let given = |given: &str, left_out: &str| json!({"required": [given], "properties": {given: {"not": {"type": "null"}}, left_out: {"type": "null"}}});
        json!({"oneOf": [given(one, other), given(other, one)]})
    };
    let name = plain(1, 128);
    let areas = json!({"properties": {"area": {"enum": ["work", "inputs", null]}}});
    let variables = json!({"properties": {"env": {"propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,255}$"},
        "additionalProperties": {"pattern": NO_NUL}}}});
    vec![
        ("PolicyOverrides", json!({"properties": {"limits": closed, "sizes": profile["properties"]["sizes"]}})),
        ("EvidenceRecord", json!({"additionalProperties": true})),
        ("DenyRequest", json!({"properties": {"reason": plain(0, 512)}})),
        ("RevokeGrantRequest", json!({"properties": {"reason": plain(1, 512)}})),
        ("NewTokenRequest", json!({"properties": {"name": name, "tenant": name, "subject": name}})),
        ("NewGrantRequest", either("expires_at", "expires_in_ms")),
        (
            "NewGrantRequest",
            json!({"properties": {"capabilities": profile["properties"]["capabilities"],
            "subject": name, "tenant": name}}),
        ),
        ("WriteRequest", either("content", "content_base64")),
        ("WriteRequest", areas.clone()),
        ("MakeDirectoryRequest", areas.clone()),
        ("MoveRequest", areas),
        ("ExecSpec", variables.clone()),
        ("PythonExecRequest", variables.clone()),
        ("ShellExecRequest", variables.clone()),
        ("ProcessExecRequest", variables),
        ("Input", either("text", "base64")),
        (
            "ProcessExecRequest",
            json!({"properties": {"argv": {"minItems": 1, "items": {"pattern": NO_NUL},
            "prefixItems": [{"type": "string", "minLength": 1, "pattern": NO_NUL}]}}}),
        ),
        ("KeepaliveRequest", json!({"properties": {"ttl_s": {"minimum": 1}}})),
        ("NewSandboxRequest", json!({"properties": {"ttl_s": {"minimum": 1}, "idle_s": {"minimum": 1}}})),
    ]
}
