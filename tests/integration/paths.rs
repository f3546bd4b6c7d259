//! The path tables where programs, areas and artifacts take paths, and senders that stop in the middle.

use super::files::{Files, escaped, raw, refused_paths};
use super::{Daemon, refusal};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Endpoints that take a path beside those of files: directories of programs, inputs, areas, artifacts, forms.
#[test]
fn every_row_of_the_path_tables_where_programs_and_areas_take_paths() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let exec = files.shell("mkdir -p a/b/c a/c/d valid .hidden ...file x; mkdir -p /workspace/artifacts/a/c; echo art > /workspace/artifacts/a/c/d");
    let exec = exec.body["exec_id"].as_str().unwrap().to_owned();
    let in_sandbox = |kind: &str, body: Value| {
        daemon.request("POST", &format!("/v1/sandboxes/{}/{kind}/exec", files.id), Some(&body))
    };
    let once = |extra: Value| {
        daemon.exec(&super::with(
            json!({"profile": "shell", "project_id": "p", "exec": {"kind": "shell", "code": "true"}}),
            extra,
        ))
    };
    for (given, reason) in refused_paths() {
        let given = given.as_str();
        let query = escaped(given);
        let input = json!([{"path": given, "text": "x"}]);
        let with_cwd = json!({"exec": {"kind": "shell", "code": "true", "cwd": given}});
        let form = "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--B--\r\n";
        let head = format!(
            "POST {}?path={query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: multipart/form-data; boundary=B\r\ncontent-length: {}\r\n\r\n",
            files.at("upload"),
            form.len()
        );
        let sent = String::from_utf8(raw(&daemon, &head, std::iter::once(form.as_bytes().to_vec()))).unwrap();
        let expected = format!("\"reason\":\"{reason}\"");
        assert!(sent.starts_with("HTTP/1.1 400") && sent.contains(&expected), "form {given:?}: {sent}");
        let mut asked = vec![
            ("python cwd", "cwd", in_sandbox("python", json!({"code": "0", "cwd": given}))),
            ("shell cwd", "cwd", in_sandbox("shell", json!({"command": "true", "cwd": given}))),
            ("process cwd", "cwd", in_sandbox("process", json!({"argv": ["true"], "cwd": given}))),
            ("shell input", "inputs[0].path", in_sandbox("shell", json!({"command": "true", "inputs": input}))),
            ("exec cwd", "exec.cwd", once(with_cwd)),
            ("exec input", "inputs[0].path", once(json!({"inputs": input}))),
            (
                "input area",
                "path",
                files.ask("PUT", "files", Some(&json!({"path": given, "content": "x", "area": "inputs"}))),
            ),
            ("read input", "path", files.ask("GET", &format!("files?path={query}&area=inputs"), None)),
            ("list inputs", "path", files.ask("GET", &format!("directories?path={query}&area=inputs"), None)),
            (
                "read artifact",
                "path",
                files.ask("GET", &format!("files?path={query}&area=artifacts&exec_id={exec}"), None),
            ),
            (
                "download artifact",
                "path",
                files.ask("GET", &format!("download?path={query}&area=artifacts&exec_id={exec}"), None),
            ),
        ];
        if !given.is_empty() {
            // Without a path it is another address: the list.
            let answer = daemon.request("GET", &format!("/v1/execs/{exec}/artifacts/{query}"), None);
            asked.push(("artifact", "path", answer));
        }
        for (endpoint, field, answer) in asked {
            assert_eq!(refusal(&answer), (400, "invalid_path"), "{endpoint} {given:?}: {}", answer.text);
            let details = json!({"field": field, "reason": reason});
            assert_eq!(answer.body["error"]["details"], details, "{endpoint} {given:?}");
        }
    }
    for (given, normal) in [
        ("valid", "valid"),
        ("a/b/c", "a/b/c"),
        ("./x", "x"),
        ("valid/../x", "x"),
        ("a/b/../c/d", "a/c/d"),
        ("./a/./b/./c", "a/b/c"),
        ("a//b", "a/b"),
        (".hidden", ".hidden"),
        ("...file", "...file"),
    ] {
        let inside = format!("/workspace/work/{normal}\n");
        for (kind, mut body) in [
            ("python", json!({"code": "import os; print(os.getcwd())"})),
            ("shell", json!({"command": "pwd"})),
            ("process", json!({"argv": ["/bin/pwd"]})),
        ] {
            body["cwd"] = given.into();
            let answer = in_sandbox(kind, body);
            assert_eq!(answer.stdout(), inside, "{kind} {given}: {}", answer.text);
        }
        let cat = format!("cat '/workspace/inputs/{normal}.in'");
        let input = json!([{"path": format!("{given}.in"), "text": given}]);
        let answer = in_sandbox("shell", json!({"command": cat, "inputs": input}));
        assert_eq!(answer.stdout(), given, "input {given}: {}", answer.text);
    }
    let none = in_sandbox("shell", json!({"command": "pwd", "cwd": null}));
    assert_eq!(none.stdout(), "/workspace/work\n", "no cwd is the area itself");
    for given in ["a/c/d", "./a/c/d", "a/b/../c/d", "a//c/d"] {
        let answer = daemon.request("GET", &format!("/v1/execs/{exec}/artifacts/{}", escaped(given)), None);
        assert_eq!((answer.status, answer.text.as_str()), (200, "art\n"), "artifact {given}");
    }
}

#[test]
fn an_uploader_that_says_nothing_more_is_told_408() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(super::patient(Duration::from_secs(120)))).unwrap();
    let head = format!("POST {}?path=f HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf", files.at("upload"));
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_timed_out"), "{answer}");
    assert_eq!(refusal(&files.get("f")), (404, "no_such_file"), "nothing of it is there");
    let staging = super::project_directory(&daemon, "p").join(".new");
    assert_eq!(std::fs::read_dir(staging).unwrap().count(), 0);
}
