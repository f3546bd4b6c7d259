//! The API's description, OpenAPI 3.1: made from the table of routes ([`super::routes`]) and the wire's own types.
//!
//! An [`Op`] says of one route what its types can't: its words of the query, its answers, the errors that are its own.
//! Everything that holds for all is added here, once: the ids in a path, what a JSON body or a key can go wrong with,
//! who may call, the request's id. What derived schemas can't say is in `refine`. The same descriptions are enforced:
//! the router refuses words of a query that are not described (`known_words`).
//!
//! `GET /openapi.json` serves it; `docs/openapi.json` is the copy that a test holds current.

mod refine;

use super::wire::ErrorAnswer;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use utoipa::ToSchema;

type Schemas = Vec<(String, Value)>;

/// One word of a query, or one header.
#[derive(Debug, Clone)]
pub(super) struct Param {
    pub(super) name: &'static str,
    about: &'static str,
    schema: Value,
    required: bool,
    /// Whether it may be given many times.
    pub(super) many: bool,
}

impl Param {
    /// A text.
    pub(super) fn text(name: &'static str, about: &'static str) -> Self {
        Self { name, about, schema: json!({"type": "string"}), required: false, many: false }
    }

    /// A number of 0 or more.
    pub(super) fn number(name: &'static str, about: &'static str) -> Self {
        Self::text(name, about).like(json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": u64::MAX}))
    }

    /// `true` or `false`.
    pub(super) fn flag(name: &'static str, about: &'static str) -> Self {
        Self::text(name, about).like(json!({"type": "boolean", "default": false}))
    }

    /// One of some words.
    pub(super) fn one_of(name: &'static str, about: &'static str, words: &[&str]) -> Self {
        Self::text(name, about).like(json!({"type": "string", "enum": words}))
    }

    /// With another schema.
    pub(super) fn like(self, schema: Value) -> Self {
        Self { schema, ..self }
    }

    /// It must be there.
    pub(super) fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// It may be given many times.
    pub(super) fn many(self) -> Self {
        let schema = json!({"type": "array", "items": self.schema});
        Self { many: true, schema, ..self }
    }

    fn describe(&self, place: &str) -> Value {
        let mut described = json!({"name": self.name, "in": place, "description": self.about,
            "required": self.required, "schema": self.schema});
        if self.many {
            described["style"] = "form".into();
            described["explode"] = true.into();
        }
        described
    }
}

/// What one route does, in the words of the description.
#[derive(Debug, Clone)]
pub(super) struct Op {
    id: &'static str,
    summary: &'static str,
    pub(super) query: Vec<Param>,
    headers: Vec<Param>,
    body: Option<Value>,
    json_body: bool,
    answers: Vec<(u16, Value)>,
    fails: Vec<u16>,
    pub(super) keyed: bool,
    makes: Option<&'static str>,
    schemas: Schemas,
}

/// Begins the description of a route: its name and what it does, in one line.
pub(super) fn op(id: &'static str, summary: &'static str) -> Op {
    Op {
        id,
        summary,
        query: Vec::new(),
        headers: Vec::new(),
        body: None,
        json_body: false,
        answers: Vec::new(),
        fails: Vec::new(),
        keyed: false,
        makes: None,
        schemas: Vec::new(),
    }
}

/// The pattern of an id in a path, for words of a query that take the same.
pub(super) fn id_pattern(name: &str) -> Value {
    let (_, pattern, _) = IDS.iter().find(|(known, ..)| *known == name).expect("an id of the table");
    json!({"type": "string", "pattern": pattern})
}

/// What is sent as it is: text, one event of a stream of them, or bytes.
fn raw(kind: &str) -> Value {
    let text = json!({"type": "string"});
    match kind {
        "text/event-stream" => json!({"type": "object", "required": ["event", "data"],
            "properties": {"id": text, "event": text, "data": text}}),
        _ if kind.starts_with("text/") => text,
        _ => json!({}),
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The schema of a type and of all that it is made of.
fn collect<T: ToSchema>(into: &mut Schemas) -> Value {
    let value = |schema| serde_json::to_value(schema).expect("a schema is JSON");
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    into.extend(parts.into_iter().map(|(name, schema)| (name, value(schema))));
    into.push((T::name().into_owned(), value(T::schema())));
    reference(&T::name())
}

impl Op {
    /// Words of its query.
    pub(super) fn query(mut self, words: impl IntoIterator<Item = Param>) -> Self {
        self.query.extend(words);
        self
    }

    /// Headers that it reads.
    pub(super) fn headers(mut self, headers: impl IntoIterator<Item = Param>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// A JSON body.
    pub(super) fn takes<T: ToSchema>(mut self) -> Self {
        let schema = collect::<T>(&mut self.schemas);
        self.json_body = true;
        self.body = Some(json!({"required": true, "content": {"application/json": {"schema": schema}}}));
        self
    }

    /// A JSON body that has only some of a type's fields, under a name of its own.
    pub(super) fn takes_part<T: ToSchema>(mut self, name: &str, without: &[&str], required: &[&str]) -> Self {
        let mut op = self.takes::<T>();
        let whole = op.schemas.pop().map(|(_, schema)| schema).unwrap_or_default();
        let mut part = whole;
        if let Some(fields) = part.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|field, _| !without.contains(&field.as_str()));
        }
        part["required"] = json!(required);
        for field in required {
            // Null is as good as left out, and that it must not be.
            if let Some(kinds) = part["properties"][field]["type"].as_array_mut() {
                kinds.retain(|kind| kind != "null");
            }
        }
        part["description"] = format!("The body of {}.", op.id).into();
        op.schemas.push((name.to_owned(), part));
        op.body = Some(json!({"required": true, "content": {"application/json": {"schema": reference(name)}}}));
        self = op;
        self
    }

    /// Any other body.
    pub(super) fn takes_raw(mut self, content: Value) -> Self {
        self.body = Some(json!({"required": true, "content": content}));
        self
    }

    /// A JSON answer.
    pub(super) fn answers<T: ToSchema>(mut self, status: u16, about: &str) -> Self {
        let schema = collect::<T>(&mut self.schemas);
        self.answers.push((status, json!({"description": about, "content": {"application/json": {"schema": schema}}})));
        self
    }

    /// An answer of another kind.
    pub(super) fn sends(mut self, status: u16, about: &str, kinds: &[&str]) -> Self {
        let mut answer = json!({"description": about});
        let content: Map<String, Value> =
            kinds.iter().map(|kind| ((*kind).to_owned(), json!({"schema": raw(kind)}))).collect();
        if !content.is_empty() {
            answer["content"] = content.into();
        }
        self.answers.push((status, answer));
        self
    }

    /// The last answer in other shapes, too.
    pub(super) fn or_as(mut self, kinds: &[&str]) -> Self {
        if let Some((_, answer)) = self.answers.last_mut() {
            for kind in kinds {
                answer["content"][kind] = json!({"schema": raw(kind)});
            }
        }
        self
    }

    /// With headers on every answer so far that is no error.
    pub(super) fn with_headers(mut self, headers: &[(&str, &str)]) -> Self {
        for (_, answer) in &mut self.answers {
            for (name, about) in headers {
                answer["headers"][name] = json!({"description": about, "schema": {"type": "string"}});
            }
        }
        self
    }

    /// Errors of its own.
    pub(super) fn fails(mut self, statuses: &[u16]) -> Self {
        self.fails.extend(statuses);
        self
    }

    /// Takes an `Idempotency-Key`.
    pub(super) fn keyed(self) -> Self {
        Self { keyed: true, ..self }
    }

    /// Its answer has the id of something new, which other routes have in their path.
    pub(super) fn makes(self, id: &'static str) -> Self {
        Self { makes: Some(id), ..self }
    }
}

/// What errors there are, by status: the name of the response and the codes that come with it.
const ERRORS: &[(u16, &str, &str)] = &[
    (400, "BadRequest", "`bad_body`, `invalid_path`, `capability_not_supported`"),
    (401, "Unauthenticated", "`unauthenticated`: no access rule or token matches the caller"),
    (403, "Refused", "the policy's no, or the boundary of the workspace"),
    (404, "NotFound", "`not_found`, `no_such_…`: there is none of yours; another's is as unknown as none"),
    (408, "TooSlow", "`body_timed_out`: the body did not come"),
    (
        409,
        "Conflict",
        "`exists`, `not_empty`, `busy`, `key_reused`, `in_flight`, `fingerprint_used`, `other_digest`, …",
    ),
    (410, "Gone", "`output_gone`: what it wrote is not kept any more"),
    (413, "BodyTooLarge", "`body_too_large`"),
    (415, "NotJson", "`not_json`: the body is said to be something else"),
    (422, "InvalidField", "`invalid_field`, `unknown_profile`: `details.field` names it"),
    (429, "TooMuch", "`queue_full`, `concurrency`, `budget_exceeded`, `too_many_…`; `Retry-After` where time helps"),
    (500, "OurFault", "`internal`, `execution_failed`: the log has the cause under the request id"),
    (502, "RuntimeMissing", "`runtime_capability_missing`"),
    (503, "Unavailable", "`layer_missing`, `draining`, `evidence_full`, `warden_gone`, …: nothing was started"),
    (504, "TimedOut", "`consent_timed_out`"),
    (507, "NoSpace", "`no_space`"),
];

/// Ids that stand in a path: name, pattern, what it is.
const IDS: &[(&str, &str, &str)] = &[
    ("sandbox_id", "^sb_[0-9a-hjkmnp-tv-z]{26}$", "A sandbox of the caller."),
    ("snapshot_id", "^sn_[0-9a-hjkmnp-tv-z]{26}$", "A snapshot of the sandbox."),
    ("exec_id", "^ex_[0-9a-hjkmnp-tv-z]{26}$", "An exec of the caller."),
    ("grant_id", "^gr_[0-9a-hjkmnp-tv-z]{26}$", "A grant that the caller may see."),
    ("token_id", "^tk_[0-9a-hjkmnp-tv-z]{26}$", "A token."),
    ("confirmation_id", "^cf_[0-9a-hjkmnp-tv-z]{26}$", "A confirmation that the caller may see."),
    ("evidence_id", "^ev_[0-9a-hjkmnp-tv-z]{26}$", "A record that the caller may see."),
    ("session_name", "^[A-Za-z0-9._-]{1,64}$", "A session of the sandbox."),
    ("profile_id", "^[a-z0-9-]{1,64}$", "A profile."),
    ("service", "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$", "A service of the sandbox, by its name."),
    ("path", "^[^/]", "A path, with slashes."),
];

/// The names in braces of a path; a `*` before the last takes slashes too.
pub(super) fn in_path(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).map(|name| name.trim_start_matches('*'))
}

fn path_parameter(name: &str) -> Value {
    let (_, pattern, about) = IDS.iter().find(|(known, ..)| *known == name).unwrap_or_else(|| {
        panic!("the id {name:?} of a path is not described: add it to IDS in src/api/openapi.rs");
    });
    json!({"name": name, "in": "path", "required": true, "description": about,
        "schema": {"type": "string", "pattern": pattern}})
}

fn request_id() -> Value {
    json!({"x-request-id": {"required": true, "description": "Find it in the log by this.",
        "schema": {"type": "string", "pattern": "^rq_[0-9a-z]{26}$"}}})
}

fn errors() -> Map<String, Value> {
    let describe = |(status, name, about): &(u16, &str, &str)| {
        let mut headers = request_id();
        if *status == 429 {
            headers["retry-after"] = json!({"description": "Seconds.", "schema": {"type": "integer", "minimum": 0}});
        }
        let schema = reference("ErrorAnswer");
        let error =
            json!({"description": about, "headers": headers, "content": {"application/json": {"schema": schema}}});
        ((*name).to_owned(), error)
    };
    ERRORS.iter().map(describe).collect()
}

fn operation(method: &str, path: &str, op: &Op, all: &[(String, String, &Op)]) -> Value {
    let mut responses = Map::new();
    for (status, answer) in &op.answers {
        let mut answer = answer.clone();
        let mut headers = request_id();
        if let (Some(all), Some(own)) = (headers.as_object_mut(), answer.get("headers").and_then(Value::as_object)) {
            all.extend(own.clone());
        }
        if op.keyed {
            headers["idempotency-replayed"] =
                json!({"description": "`true`: this answer was given before.", "schema": {"type": "string"}});
        }
        answer["headers"] = headers;
        if let Some(made) = op.makes {
            let uses = |(_, path, _): &&(String, String, &Op)| in_path(path).any(|name| name == made);
            let link = |(_, _, user): &(String, String, &Op)| {
                let from = format!("$response.body#/{made}");
                (user.id.to_owned(), json!({"operationId": user.id, "parameters": {made: from}}))
            };
            answer["links"] = all.iter().filter(uses).map(link).collect::<Map<_, _>>().into();
        }
        responses.insert(status.to_string(), answer);
    }
    // Every route: who is calling, words of the query, our own faults.
    let mut fails = vec![401, 422, 500, 503];
    fails.extend(in_path(path).next().map(|_| 404));
    if op.json_body {
        fails.extend([400, 408, 413, 415]);
    }
    if op.keyed {
        fails.extend([400, 408, 409, 413, 429]);
    }
    fails.extend(&op.fails);
    for status in fails {
        let (_, name, _) = ERRORS.iter().find(|(known, ..)| *known == status).unwrap_or_else(|| {
            panic!("the error {status} of {} is not described: add it to ERRORS in src/api/openapi.rs", op.id);
        });
        responses.insert(status.to_string(), json!({"$ref": format!("#/components/responses/{name}")}));
    }
    let mut parameters: Vec<Value> = in_path(path).map(path_parameter).collect();
    parameters.extend(op.query.iter().map(|word| word.describe("query")));
    parameters.extend(op.headers.iter().map(|header| header.describe("header")));
    if op.keyed {
        let about = "The same key and body within a day get the first answer; another body is 409.";
        let key = Param::text("idempotency-key", about)
            .like(json!({"type": "string", "pattern": "^[!-~]([ -~]*[!-~])?$", "maxLength": 255}));
        parameters.push(key.describe("header"));
    }
    let tag = path.trim_start_matches("/v1/").trim_start_matches('/').split('/').next().unwrap_or_default();
    let mut described = json!({"operationId": op.id, "summary": op.summary, "tags": [tag],
        "parameters": parameters, "responses": responses});
    if let Some(body) = &op.body {
        described["requestBody"] = body.clone();
    }
    debug_assert!(method != "get" || op.body.is_none(), "a GET with a body: {path}");
    described
}

/// The whole description.
pub(super) fn document() -> Value {
    let routes = super::routes::table();
    let mut schemas: Schemas = Vec::new();
    collect::<ErrorAnswer>(&mut schemas);
    let all: Vec<(String, String, &Op)> = routes
        .iter()
        .map(|route| (route.method.as_str().to_lowercase(), route.path.replace("{*", "{"), &route.op))
        .collect();
    let mut paths: Map<String, Value> = Map::new();
    for (method, path, op) in &all {
        schemas.extend(op.schemas.iter().cloned());
        let item = paths.entry(path.clone()).or_insert_with(|| json!({}));
        item[method] = operation(method, path, op, &all);
    }
    let mut components: Map<String, Value> = schemas.into_iter().collect();
    refine::refine(&mut components);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "sandboxd",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Runs code that nobody has read in a fresh, kernel-enforced sandbox. HTTP/1.1 on a Unix \
                socket; the caller is who its bearer token says, else who SO_PEERCRED says.",
        },
        "servers": [{"url": "/"}],
        // A token stands in for the peer's own identity, so both ways are open.
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": errors(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// The description as it is sent: made once.
pub(super) static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string_pretty(&document()).expect("a description is JSON") + "\n");

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Where the checked-in copy is.
    const FILE: &str = "docs/openapi.json";

    #[test]
    fn the_copy_in_docs_is_current() {
        if std::env::var_os("SANDBOXD_WRITE_DOCS").is_some() {
            std::fs::write(FILE, &*DOCUMENT).expect("docs can be written");
        }
        let copy = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(copy == *DOCUMENT, "{FILE} is not current; SANDBOXD_WRITE_DOCS=1 cargo test --lib openapi writes it");
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_name_is_used_once() {
        let document = document();
        fn walk<'a>(value: &'a Value, seen: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    seen.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| walk(value, seen));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, seen)),
                _ => {}
            }
        }
        let mut references = Vec::new();
        walk(&document, &mut references);
        assert!(references.len() > 100, "{references:?}");
        for reference in references {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
        let table = super::super::routes::table();
        let names: BTreeSet<&str> = table.iter().map(|route| route.op.id).collect();
        assert_eq!(names.len(), table.len(), "two routes have the same name");
    }

    #[test]
    fn every_schema_is_a_schema() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        for (name, _) in schemas {
            let whole = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
            jsonschema::draft202012::new(&whole).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
