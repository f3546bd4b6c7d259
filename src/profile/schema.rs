//! JSON Schema of a profile file, for editors: `sandboxctl profile schema`, `docs/profile.schema.json`.
//!
//! Names come from the tables that the parser uses, so a new capability, layer or limit is in it by itself. A test
//! holds it against the parser: what the one takes, the other takes.

use crate::model::{Capability, Layer, Limit};
use crate::terms::{CapKey, Size};
use serde_json::{Map, Value, json};

/// The schema.
#[must_use]
pub fn schema() -> Value {
    let words: Vec<String> = Capability::ALL
        .iter()
        .flat_map(|capability| {
            let operations =
                capability.operations().iter().map(|operation| format!("{}:{operation}", capability.name()));
            std::iter::once(capability.name().to_owned()).chain(operations)
        })
        .collect();
    let names: Vec<&str> = Capability::ALL.iter().map(|capability| capability.name()).collect();
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let allowance = json!({
        "type": "object",
        "properties": {
            "capability": {"enum": names},
            "operations": texts,
            "path": {"type": "string"},
            "host": {"type": "string"},
            "ports": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
            "schemes": texts,
            "methods": texts,
            "tools": texts,
        },
        "required": ["capability"],
        "additionalProperties": false,
    });
    let layers: Vec<&str> = Layer::ALL.iter().map(|layer| layer.name()).collect();
    let effects = json!({"type": "array", "items": {"enum": ["none", "read", "write", "network", "filesystem", "browser", "process"]}});
    let safety = json!({"enum": ["low", "medium", "high"]});
    let limits: Map<String, Value> = Limit::ALL
        .iter()
        .map(|limit| {
            let amount = json!({"type": "integer", "minimum": limit.floor(), "maximum": limit.ceiling(), "default": limit.default_amount()});
            (limit.name().to_owned(), amount)
        })
        .collect();
    let sizes: Map<String, Value> =
        Size::ALL.iter().map(|size| (size.key().to_owned(), json!({"type": "integer", "minimum": 0}))).collect();
    let rule = json!({
        "type": "object",
        "properties": {
            "position": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 65535}, {"enum": ["rest", "any"]}]},
            "regex": {"type": "string"},
            "enum": texts,
            "max_length": {"type": "integer", "minimum": 0},
            "optional": {"type": "boolean"},
        },
        "required": ["position"],
        "additionalProperties": false,
    });
    let table = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sandboxd profile",
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"},
            "description": {"type": "string"},
            "extends": {"type": "string"},
            "rootfs": {"type": "string", "pattern": "^(host|/.*)$"},
            "capabilities": {"type": "array", "items": {"anyOf": [{"enum": words}, allowance]}},
            "grant_required": {"type": "boolean"},
            "security_mode": {"enum": ["permissive", "strict"]},
            "safety": safety,
            "side_effects": effects,
            "sizes": table(Value::Object(sizes)),
            "allow": table(json!({"hosts": texts, "paths": texts, "methods": texts, "mime": texts, "tools": texts})),
            "templates": {"type": "array", "items": {
                "type": "object",
                "properties": {"tool": {"type": "string"}, "rules": {"type": "array", "items": rule}},
                "required": ["tool", "rules"],
                "additionalProperties": false,
            }},
            "consent": table(json!({"from_safety": safety, "side_effects": effects})),
            "layers": table(json!({
                "require": {"type": "array", "items": {"enum": layers}},
                "landlock_min_abi": {"type": "integer", "minimum": 0},
            })),
            "seccomp": table(json!({"filter": {"type": "string"}})),
            "network": table(json!({
                "tcp": {"enum": ["loopback", "none"]},
                "net_namespace": {"enum": ["fresh", "recycled"]},
            })),
            "limits": table(Value::Object(limits)),
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["id", "description"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Where the checked-in copy is.
    const FILE: &str = "docs/profile.schema.json";

    #[test]
    fn the_copy_in_docs_is_current() {
        let text = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
        if std::env::var_os("SANDBOXD_WRITE_DOCS").is_some() {
            std::fs::write(FILE, &text).expect("docs can be written");
        }
        let copy = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(copy == text, "{FILE} is not current; SANDBOXD_WRITE_DOCS=1 cargo test --lib schema writes it");
    }

    /// Every shipped profile, every profile of the fuzz corpus, and a file that uses every key.
    #[test]
    fn schema_and_parser_take_the_same_files() {
        let schema = jsonschema::validator_for(&schema()).expect("a schema");
        let mut files: Vec<(String, String)> = Vec::new();
        for directory in ["profiles", "fuzz/corpus/profile"] {
            for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
                if let Ok(text) = std::fs::read_to_string(entry.path()) {
                    files.push((entry.path().display().to_string(), text));
                }
            }
        }
        files.push(("every key".to_owned(), EVERY_KEY.to_owned()));
        files.push(("unknown size".to_owned(), EVERY_KEY.replace("max_args", "max_arms")));
        files.push(("unknown rule".to_owned(), EVERY_KEY.replace("max_length", "max_width")));
        let (mut good, mut bad) = (0, 0);
        for (name, text) in &files {
            let Ok(table) = text.parse::<toml::Table>() else { continue };
            let takes = schema.is_valid(&serde_json::to_value(table).expect("TOML fits into JSON"));
            let parsed = super::super::parse(Path::new("p.toml"), text);
            // What only the parser can know: whether a base is there, and that 1000.0 is no integer in TOML.
            let beyond = |error: &super::super::ProfileError| {
                matches!(error, super::super::ProfileError::Extends { .. })
                    || error.to_string().contains("floating point")
            };
            if parsed.as_ref().err().is_some_and(beyond) {
                continue;
            }
            assert_eq!(takes, parsed.is_ok(), "{name}: {:?}", parsed.err().map(|error| error.to_string()));
            if takes { good += 1 } else { bad += 1 }
        }
        assert!(good >= 10 && bad >= 10, "{good} good and {bad} bad files: not much of a test");
    }

    const EVERY_KEY: &str = r#"
id = "every-key"
description = "all of it"
extends = "strict"
rootfs = "host"
capabilities = ["python", "filesystem:read", { capability = "net", operations = ["http"], host = "*.example.org", ports = [443], schemes = ["https"], methods = ["GET"] }]
grant_required = true
security_mode = "strict"
safety = "high"
side_effects = ["read", "network"]
sizes = { max_args = 3 }
allow = { hosts = ["*.example.org"], paths = ["reports"], methods = ["GET"], mime = ["text/*"], tools = ["git"] }
templates = [{ tool = "git", rules = [{ position = 0, enum = ["log"], optional = true }, { position = "rest", regex = "[a-z]+", max_length = 9 }] }]
consent = { from_safety = "high", side_effects = ["write"] }
layers = { require = ["seccomp"], landlock_min_abi = 6 }
seccomp = { filter = "strict" }
network = { tcp = "none", net_namespace = "recycled" }
limits = { pids = 3 }
env = { A = "b" }
"#;
}
