//! The API against its own description, `/openapi.json`.
//!
//! `schemathesis` (installed by `scripts/setup test`) asks every operation with generated requests, good and bad, and
//! holds each answer against the description: tests/schemathesis has its settings. And every operation is asked by
//! strangers about objects that are real and about such as never were: they must not be able to tell.
#![allow(clippy::unwrap_used)] // tests
#![forbid(unsafe_code)]

#[path = "harness/mod.rs"]
mod harness;

use harness::{Answer, Daemon, wait_for};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What needs a person's consent.
const CAREFUL: &str = "id = \"careful\"\ndescription = \"\"\nextends = \"shell\"\nside_effects = [\"write\"]\n[consent]\nside_effects = [\"write\"]\n";

/// Passes connections from a port of the loopback on to the socket, as the clients of schemathesis speak TCP only.
fn forward(socket: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let socket = socket.clone();
            std::thread::spawn(move || {
                let Ok(daemon) = UnixStream::connect(socket) else { return };
                let (from, to) = (stream.try_clone().unwrap(), daemon.try_clone().unwrap());
                let up = std::thread::spawn(move || pass(from, to, |to| to.shutdown(Shutdown::Write)));
                pass(daemon, stream, |to: &TcpStream| to.shutdown(Shutdown::Both));
                let _ = up.join();
            });
        }
    });
    port
}

/// Copies until either side ends, then closes the other.
fn pass<W: Write>(mut from: impl Read, mut to: W, close: impl Fn(&W) -> io::Result<()>) {
    let _ = io::copy(&mut from, &mut to); // a broken connection is the client's business
    let _ = close(&to);
}

#[test]
fn schemathesis_finds_no_answer_that_the_description_does_not_allow() {
    let st = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../schemathesis/bin/st");
    assert!(st.exists(), "missing: {}; scripts/setup test installs it", st.display());
    let daemon = Daemon::start();
    let port = forward(daemon.socket());
    // Objects for it to ask about: what it makes up itself is never there.
    let made = |path: &str, body: Value| daemon.request("POST", path, Some(&body)).body;
    let sandbox = made("/v1/sandboxes", json!({"profile": "shell", "ttl_s": 3600}))["sandbox_id"].clone();
    let sandbox = sandbox.as_str().expect("a sandbox");
    let ran = made(&format!("/v1/sandboxes/{sandbox}/shell/exec"), json!({"command": "echo hello | tee hello.txt"}));
    let real = json!({"sandbox_id": sandbox, "exec_id": ran["exec_id"], "evidence_id": ran["evidence"]["begin"]});
    let output = Command::new(st)
        .arg("--config-file")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis/schemathesis.toml"))
        .args(["--no-color", "run", &format!("http://127.0.0.1:{port}/openapi.json")])
        .env("SCHEMATHESIS_HOOKS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis/hooks.py"))
        .env("SANDBOXD_TEST_REAL", real.to_string())
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Stateful"), "it did not go through all phases:\n{said}");
    let health = daemon.request("GET", "/v1/health", None);
    assert_eq!(health.status, 200, "the daemon is no longer well: {}", health.text);
}

/// A caller, by its token.
struct Caller<'a>(&'a Daemon, String);

impl<'a> Caller<'a> {
    fn new(daemon: &'a Daemon, tenant: &str, subject: &str, roles: &[&str]) -> Self {
        let wish = json!({"name": subject, "tenant": tenant, "subject": subject, "roles": roles});
        let made = daemon.request("POST", "/v1/tokens", Some(&wish));
        Self(daemon, made.body["secret"].as_str().expect("a secret").to_owned())
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let (authorization, body) = (format!("Bearer {}", self.1), body.map(ToString::to_string));
        let mut client = self.0.client();
        client.send(method, path, body.as_deref(), &[("authorization", &authorization)]).unwrap();
        client.receive().unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }
}

/// One operation of the description.
struct Operation {
    id: String,
    method: String,
    path: String,
    description: Value,
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, description) in item.as_object().unwrap() {
            let id = description["operationId"].as_str().unwrap().to_owned();
            let (method, path) = (method.to_uppercase(), path.clone());
            all.push(Operation { id, method, path, description: description.clone() });
        }
    }
    assert!(all.len() > 40, "only {} operations are described", all.len());
    all
}

impl Operation {
    fn ids(&self) -> Vec<&str> {
        self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect()
    }

    /// Its address with these ids, and the words that it must have.
    fn address(&self, ids: &BTreeMap<&str, String>) -> String {
        let mut path = self.path.clone();
        for name in self.ids() {
            let id = ids.get(name).unwrap_or_else(|| panic!("{}: teach this test to make a {name}", self.id));
            path = path.replace(&format!("{{{name}}}"), id);
        }
        let words: Vec<String> = self
            .words()
            .filter(|word| word["required"] == true)
            .map(|word| match word["name"].as_str() {
                Some("path") => "path=stdout.txt".to_owned(),
                other => panic!("{}: teach this test the word {other:?}", self.id),
            })
            .collect();
        // An upload's path is a word that a form may leave out.
        let upload = if self.id == "upload_file" { vec!["path=new.txt".to_owned()] } else { Vec::new() };
        let words = [words, upload].concat().join("&");
        if words.is_empty() { path } else { format!("{path}?{words}") }
    }

    fn words(&self) -> impl Iterator<Item = &Value> {
        self.description["parameters"].as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query")
    }

    /// The smallest body that is right.
    fn body(&self, document: &Value) -> Option<Value> {
        let schema = &self.description["requestBody"]["content"]["application/json"]["schema"];
        (!schema.is_null()).then(|| self.sample(document, "", schema))
    }

    fn sample(&self, document: &Value, field: &str, schema: &Value) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.sample(document, field, document.pointer(reference.trim_start_matches('#')).unwrap());
        }
        match field {
            "path" | "from" => return json!("stdout.txt"),
            "to" => return json!("moved.txt"),
            "digest" => return json!("0".repeat(64)),
            "code" | "command" | "content" | "reason" => return json!("true"),
            "argv" => return json!(["true"]),
            "signal" => return json!("TERM"),
            "name" => return json!("other"),
            _ => {}
        }
        if schema["type"] != "object" {
            panic!("{}: teach this test a sample of {field:?}: {schema}", self.id);
        }
        let either = schema["oneOf"].as_array().and_then(|ways| ways.first()).map(|way| &way["required"]);
        let required = [&schema["required"], either.unwrap_or(&Value::Null)];
        let required = required.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        let fields = required.map(|name| (name.to_owned(), self.sample(document, name, &schema["properties"][name])));
        Value::Object(fields.collect::<Map<_, _>>())
    }
}

/// An answer without what is different in any two of them.
fn bare(answer: &Answer, ids: &BTreeMap<&str, String>) -> (u16, Option<String>, String) {
    let mut body = answer.body.clone();
    if let Some(error) = body.get_mut("error") {
        error["request_id"] = "".into();
    }
    let mut text = if body.is_null() { answer.text.clone() } else { body.to_string() };
    for (name, id) in ids {
        text = text.replace(id.as_str(), &format!("<{name}>"));
    }
    (answer.status, answer.header("content-type").map(str::to_owned), text)
}

/// Snapshots want a store that has them.
const BTRFS: &str = "[store]\ndriver = \"btrfs\"\nimage_bytes = 2147483648\n";

/// Shared by all who may call; nobody's own.
const OF_NOBODY: &[&str] = &["profile_id"];

#[test]
fn a_stranger_cannot_tell_what_is_anothers_from_what_never_was() {
    let daemon = Daemon::start_with(&format!("consent_seconds = 60\n{BTRFS}"), &[("careful", CAREFUL)]);
    let alice = Caller::new(&daemon, "acme", "alice", &["user", "issuer"]);
    let person = Caller::new(&daemon, "acme", "person", &["approver"]);
    let strangers = [
        Caller::new(&daemon, "acme", "mallory", &["user"]),
        Caller::new(&daemon, "other", "eve", &["user", "issuer", "approver"]),
    ];
    let document = daemon.request("GET", "/openapi.json", None).body;
    let operations = operations(&document);
    let made = |method: &str, path: &str, body: Value| {
        let answer = alice.ask(method, path, Some(&body));
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text);
        answer.body
    };
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("an id")).to_owned();
    let sandbox = text(&made("POST", "/v1/sandboxes", json!({"profile": "shell", "project_id": "p"}))["sandbox_id"]);
    let ran = made(
        "POST",
        &format!("/v1/sandboxes/{sandbox}/shell/exec"),
        json!({"command": "echo hidden | tee stdout.txt"}),
    );
    let services = format!("/v1/sandboxes/{sandbox}/services");
    made("POST", &services, json!({"name": "web", "command": "echo hidden"}));
    let call = json!({"command": "true", "session": "hers"});
    made("POST", &format!("/v1/sandboxes/{sandbox}/shell/exec"), call);
    let snapshot = text(&made("POST", &format!("/v1/sandboxes/{sandbox}/snapshots"), json!({}))["snapshot_id"]);
    let grant =
        json!({"subject": "alice", "tool": "*", "call_id": "c", "capabilities": ["shell"], "expires_in_ms": 600_000});
    let grant = text(&made("POST", "/v1/grants", grant)["grant_id"]);
    let token = daemon.request("GET", "/v1/tokens", None).body["items"][0]["token_id"].clone();
    std::thread::scope(|scope| {
        // It waits for the person until the end of the test.
        let code = json!({"profile": "careful", "exec": {"kind": "shell", "code": "true"}});
        let waits = scope.spawn({
            let alice = &alice;
            move || alice.ask("POST", "/v1/execs", Some(&code))
        });
        let confirmation = wait_for("a confirmation waits", Duration::from_secs(20), || {
            person.ask("GET", "/v1/confirmations", None).body["items"][0]["confirmation_id"].as_str().map(str::to_owned)
        });
        let real = BTreeMap::from([
            ("sandbox_id", sandbox.clone()),
            ("exec_id", text(&ran["exec_id"])),
            ("evidence_id", text(&ran["evidence"]["begin"])),
            ("grant_id", grant.clone()),
            ("token_id", text(&token)),
            ("confirmation_id", confirmation),
            ("session_name", "hers".to_owned()),
            ("snapshot_id", snapshot.clone()),
            ("path", "stdout.txt".to_owned()),
            ("profile_id", "shell".to_owned()),
            ("service", "web".to_owned()),
        ]);
        let none: BTreeMap<&str, String> = real
            .iter()
            .map(|(name, id)| match id.split_once('_') {
                Some((kind, digits)) => (*name, format!("{kind}_{}", "7".repeat(digits.len()))),
                None => (*name, id.clone()),
            })
            .collect();
        let owned: Vec<&Operation> =
            operations.iter().filter(|operation| operation.ids().iter().any(|id| !OF_NOBODY.contains(id))).collect();
        assert!(owned.len() > 20, "only {} operations are about objects", owned.len());
        for stranger in &strangers {
            // Lists first: later the stranger's own evidence names what it asked about.
            for operation in &operations {
                lists_show_nothing(operation, &document, &real, stranger, &alice);
            }
            for operation in &owned {
                let body = operation.body(&document);
                let ask = |ids| stranger.ask(&operation.method, &operation.address(ids), body.as_ref());
                let (about_real, about_none) = (bare(&ask(&real), &real), bare(&ask(&none), &none));
                assert_eq!(about_real, about_none, "{}: a stranger can tell the two apart", operation.id);
                // Whoever lacks the role for it is told so before anything is looked up.
                let refused = about_none.0 == 403 && about_none.2.contains("role_missing");
                assert!(about_none.0 == 404 || refused, "{}: {about_none:?}", operation.id);
            }
        }
        // The objects were there all the time, or nothing of this means anything. What removes comes last.
        let order =
            |operation: &&&Operation| ["GET", "PUT", "POST", "DELETE"].iter().position(|m| *m == operation.method);
        let mut in_order: Vec<&&Operation> = owned.iter().collect();
        in_order.sort_by_key(|operation| {
            (order(operation), operation.id == "revoke_grant", operation.id.as_str() == "delete_sandbox")
        });
        for operation in in_order {
            if operation.id == "cancel_exec" {
                continue; // it has ended: only what runs can be cancelled, and tests/integration does that
            }
            let owner = |body: Option<&Value>| match operation.ids()[0] {
                "confirmation_id" => person.ask(&operation.method, &operation.address(&real), body),
                "token_id" => daemon.request(&operation.method, &operation.address(&real), body),
                _ => alice.ask(&operation.method, &operation.address(&real), body),
            };
            let answer = owner(operation.body(&document).as_ref());
            let gone = ["deny", "approve", "edit"].contains(&&*operation.id) || operation.path.contains("filesystem");
            assert!(answer.status != 404 || gone, "{}: its owner does not find it: {}", operation.id, answer.text);
        }
        let _ = person.ask("POST", &format!("/v1/confirmations/{}/deny", real["confirmation_id"]), Some(&json!({})));
        assert_eq!(waits.join().unwrap().status, 403, "the exec that waited was denied");
    });
}

/// A list without an id in its address shows a stranger nothing of alice's, whatever it asks for.
fn lists_show_nothing(
    operation: &Operation,
    document: &Value,
    real: &BTreeMap<&str, String>,
    stranger: &Caller<'_>,
    alice: &Caller<'_>,
) {
    let schema = &operation.description["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    let list = schema.as_str().and_then(|name| document.pointer(name.trim_start_matches('#')));
    let is_list = list.is_some_and(|schema| schema["properties"]["items"]["type"] == "array");
    if operation.method != "GET" || !operation.ids().is_empty() || !is_list {
        return;
    }
    let hers: Vec<&String> =
        real.iter().filter(|(name, _)| !["path", "profile_id", "service"].contains(name)).map(|(_, id)| id).collect();
    let named: BTreeSet<&str> = operation.words().filter_map(|word| word["name"].as_str()).collect();
    let filters = real.iter().filter(|(name, _)| named.contains(*name)).map(|(name, id)| format!("?{name}={id}"));
    for query in std::iter::once(String::new()).chain(filters) {
        let path = format!("{}{query}", operation.path);
        let shown = stranger.ask("GET", &path, None);
        for id in &hers {
            assert!(!shown.text.contains(*id), "{path} shows a stranger {id}: {}", shown.text);
        }
        if !query.is_empty() {
            assert_eq!(shown.body["items"], json!([]), "{path}: {}", shown.text);
            let own = alice.ask("GET", &path, None);
            let some = own.body["items"].as_array().is_some_and(|items| !items.is_empty());
            assert!(some || query.starts_with("?grant_id"), "{path}: alice does not find her own: {}", own.text);
        }
    }
}
