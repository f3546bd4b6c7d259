//! Files of a sandbox through the socket: what comes back, what is refused, and what a hostile program can do to it.

use super::{Daemon, MIB, Someone, refusal, sandbox};
use crate::harness::Answer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often operations meet a program that swaps what they are about.
const RACES: u32 = 10_000;

pub(super) struct Files<'a> {
    daemon: &'a Daemon,
    pub(super) id: String,
}

/// A path as part of a query.
pub(super) fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

impl<'a> Files<'a> {
    pub(super) fn new(daemon: &'a Daemon, wish: Value) -> Self {
        Self { daemon, id: sandbox(daemon, wish) }
    }

    pub(super) fn at(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}/filesystem/{rest}", self.id)
    }

    pub(super) fn ask(&self, method: &str, rest: &str, body: Option<&Value>) -> Answer {
        self.daemon.request(method, &self.at(rest), body)
    }

    fn put(&self, path: &str, content: &str) -> Answer {
        self.ask("PUT", "files", Some(&json!({"path": path, "content": content, "parents": true})))
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("files?path={}", escaped(path)), None)
    }

    pub(super) fn shell(&self, command: &str) -> Answer {
        let path = format!("/v1/sandboxes/{}/shell/exec", self.id);
        let answer = self.daemon.request("POST", &path, Some(&json!({"command": command})));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    /// The same path at every endpoint that takes one: the endpoint, its field, the answer.
    fn everywhere(&self, path: &str) -> Vec<(&'static str, &'static str, Answer)> {
        let query = escaped(path);
        vec![
            ("read", "path", self.get(path)),
            ("stat", "path", self.ask("GET", &format!("stat?path={query}"), None)),
            ("list", "path", self.ask("GET", &format!("directories?path={query}"), None)),
            ("download", "path", self.ask("GET", &format!("download?path={query}"), None)),
            ("write", "path", self.put(path, "x")),
            ("append", "path", self.ask("PUT", "files", Some(&json!({"path": path, "content": "x", "append": true})))),
            ("mkdir", "path", self.ask("POST", "directories", Some(&json!({"path": path, "parents": true})))),
            ("from", "from", self.ask("POST", "move", Some(&json!({"from": path, "to": "elsewhere"})))),
            ("to", "to", self.ask("POST", "move", Some(&json!({"from": "here", "to": path, "replace": true})))),
            ("upload", "path", self.ask("POST", &format!("upload?path={query}"), Some(&json!("x")))),
            ("delete", "path", self.ask("DELETE", &format!("files?path={query}&recursive=true"), None)),
        ]
    }
}

/// Rows of the path tables of the source documents that are refused, with the reason that the answer gives.
pub fn refused_paths() -> Vec<(String, &'static str)> {
    let rows = [
        ("../file.txt", "path_traversal"),
        ("a/../../b.txt", "path_traversal"),
        ("../../etc/passwd", "path_traversal"),
        ("../../../etc/passwd", "path_traversal"),
        ("....//....//etc/passwd", "path_traversal"),
        ("...", "path_traversal"),
        ("/etc/passwd", "absolute_path"),
        ("", "empty_path"),
        ("file\0.txt", "null_byte"),
    ];
    let long = [("n".repeat(256), "too_long"), ("a/".repeat(2049), "too_long")];
    rows.map(|(given, reason)| (given.to_owned(), reason)).into_iter().chain(long).collect()
}

#[test]
fn every_row_of_the_path_tables_at_every_endpoint() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    for (given, reason) in refused_paths() {
        let given = given.as_str();
        for (endpoint, field, answer) in files.everywhere(given) {
            assert_eq!(refusal(&answer), (400, "invalid_path"), "{endpoint} {given:?}");
            assert_eq!(
                answer.body["error"]["details"],
                json!({"field": field, "reason": reason}),
                "{endpoint} {given:?}"
            );
            assert_eq!(answer.body["error"]["class"], "SCHEMA.VALIDATION_FAILED");
        }
        let cwd = json!({"command": "true", "cwd": given});
        let answer = daemon.request("POST", &format!("/v1/sandboxes/{}/shell/exec", files.id), Some(&cwd));
        assert_eq!(answer.body["error"]["details"], json!({"field": "cwd", "reason": reason}), "cwd {given:?}");
    }
    for (given, normal) in [
        ("file.txt", "file.txt"),
        ("valid/path.txt", "valid/path.txt"),
        ("a/b/c.txt", "a/b/c.txt"),
        ("./file.txt", "file.txt"),
        ("./x", "x"),
        ("subdir/../file.txt", "file.txt"),
        ("a/b/../c/d", "a/c/d"),
        ("./a/./b/./c", "a/b/c"),
        ("./a/b/../c.txt", "a/c.txt"),
        ("a//b", "a/b"),
        (".hidden", ".hidden"),
        ("...file", "...file"),
    ] {
        assert_eq!(files.ask("DELETE", "files?path=.&recursive=true", None).status, 200);
        let put = files.put(given, given);
        assert_eq!((put.status, put.body["path"].as_str()), (200, Some(normal)), "{given}: {}", put.text);
        let got = files.get(given);
        assert_eq!(
            (got.body["path"].as_str(), got.body["content"].as_str()),
            (Some(normal), Some(given)),
            "{}",
            got.text
        );
        let stat = files.ask("GET", &format!("stat?path={}", escaped(given)), None);
        assert_eq!((stat.body["path"].as_str(), stat.body["kind"].as_str()), (Some(normal), Some("file")));
        assert_eq!(files.ask("GET", &format!("download?path={}", escaped(given)), None).text, given);
        let moved = files.ask("POST", "move", Some(&json!({"from": given, "to": "moved"})));
        assert_eq!(moved.body, json!({"from": normal, "to": "moved"}), "{}", moved.text);
        assert_eq!(files.ask("DELETE", "files?path=moved", None).body, json!({"path": "moved", "removed": 1}));
    }
    assert_eq!(files.ask("GET", "directories?path=a%2F..", None).status, 200, "a/.. is the area itself");
}

#[test]
fn links_out_are_403_at_every_endpoint_and_nothing_outside_is_touched() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell", "project_id": "p"}));
    files.shell("ln -s /etc etc; ln -s ../../../.. up; mkdir valid; ln -s . valid/symlink; echo x > here; ln -s /etc/passwd symlink_to_outside");
    for path in ["etc/passwd", "up/x", "valid/symlink/x", "etc/new/deep"] {
        for (endpoint, _, answer) in files.everywhere(path) {
            assert_eq!(refusal(&answer), (403, "boundary"), "{endpoint} {path}: {}", answer.text);
            assert_eq!(answer.body["error"]["class"], "SANDBOX.CAPABILITY_BLOCKED", "{endpoint} {path}");
        }
    }
    // The link itself: seen as a link, never read or written through; it can be moved and removed.
    for (endpoint, _, answer) in files.everywhere("symlink_to_outside") {
        match endpoint {
            "stat" => assert_eq!(answer.body["kind"], "link"),
            "from" => assert_eq!(answer.status, 200, "{}", answer.text),
            "to" | "delete" => {}
            // It was moved away before these came.
            "upload" => assert!([201, 403].contains(&answer.status), "{}", answer.text),
            _ => assert_eq!(answer.status, 403, "{endpoint}: {}", answer.text),
        }
    }
    assert!(std::fs::read_to_string("/etc/passwd").unwrap().contains("root:"));
    assert!(!std::path::Path::new("/etc/new").exists());
}

#[test]
fn a_file_comes_back_as_it_was_put() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    let put = files.ask("PUT", "files", Some(&json!({"path": "x.bin", "content_base64": "AP8=", "mode": "755"})));
    assert_eq!((put.status, &put.body["size"], &put.body["mode"]), (200, &json!(2), &json!("0755")), "{}", put.text);
    assert_eq!(files.get("x.bin").body["content_base64"], "AP8=");
    files.put("d/t", "0123456789");
    let more = files.ask("PUT", "files", Some(&json!({"path": "d/t", "content": "ab", "append": true})));
    assert_eq!(more.body["size"], 12, "{}", more.text);
    let part = files.ask("GET", "files?path=d%2Ft&offset=8&length=3", None);
    assert_eq!(
        (&part.body["content"], &part.body["truncated"], &part.body["size"]),
        (&json!("89a"), &json!(true), &json!(12))
    );
    let taken = files.ask("PUT", "files", Some(&json!({"path": "d/t", "content": "", "create_only": true})));
    assert_eq!(refusal(&taken), (409, "exists"));
    assert_eq!(files.shell("stat -c %U:%a d/t x.bin; cat d/t").stdout(), "sandbox:644\nsandbox:755\n0123456789ab");
    assert_eq!(refusal(&files.get("none")), (404, "no_such_file"));
    assert_eq!(refusal(&files.get("d")), (409, "is_a_directory"));
    assert_eq!(refusal(&files.ask("DELETE", "files?path=d", None)), (409, "not_empty"));
    assert_eq!(refusal(&files.ask("POST", "directories", Some(&json!({"path": "d"})))), (409, "exists"));
    assert_eq!(refusal(&files.ask("POST", "move", Some(&json!({"from": "d", "to": "d/e"})))), (400, "invalid_path"));
    let inputs = files.ask("PUT", "files", Some(&json!({"area": "inputs", "path": "i", "content": "in"})));
    assert_eq!(inputs.status, 200, "{}", inputs.text);
    assert_eq!(files.shell("cat /workspace/inputs/i").stdout(), "in");
    for (body, field) in [
        (json!({"path": "a"}), "content"),
        (json!({"path": "a", "content": "", "content_base64": ""}), "content_base64"),
        (json!({"path": "a", "content": "", "mode": "4755"}), "mode"),
        (json!({"path": "a", "content": "", "area": "moon"}), "area"),
        (json!({"path": "a", "content": "", "colour": 1}), "colour"),
    ] {
        let answer = files.ask("PUT", "files", Some(&body));
        assert_eq!(
            (answer.status, answer.body["error"]["details"]["field"].as_str()),
            (422, Some(field)),
            "{}",
            answer.text
        );
    }
}

#[test]
fn directories_are_listed_in_pages_and_levels() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    files.shell("mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3 z; ln -s / l; touch $'bad\\xff'");
    let paths = |answer: &Answer| -> Vec<String> {
        let items = answer.body["items"].as_array().unwrap_or_else(|| panic!("{}", answer.text));
        items.iter().map(|item| item["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&files.ask("GET", "directories", None)), ["a", "bad\u{fffd}", "l", "z"]);
    assert_eq!(paths(&files.ask("GET", "directories?path=a&depth=2", None)), ["a/1", "a/b", "a/b/2", "a/b/c"]);
    let all = ["a", "a/1", "a/b", "a/b/2", "a/b/c", "a/b/c/3", "bad\u{fffd}", "l", "z"];
    assert_eq!(paths(&files.ask("GET", "directories?recursive=true", None)), all);
    let (mut seen, mut next) = (Vec::new(), Some(String::new()));
    while let Some(cursor) = next {
        let cursor = if cursor.is_empty() { cursor } else { format!("&cursor={cursor}") };
        let page = files.ask("GET", &format!("directories?recursive=true&limit=2{cursor}"), None);
        seen.extend(paths(&page));
        next = page.body["next_cursor"].as_str().map(str::to_owned);
        assert!(seen.len() <= all.len());
    }
    assert_eq!(seen, all);
    let odd = files.ask("GET", "directories?cursor=Li4", None);
    assert_eq!(odd.status, 422, "{}", odd.text);
}

#[test]
fn a_profile_without_an_operation_is_a_400_that_says_what_there_is() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "analyst"}));
    for (endpoint, _, answer) in files.everywhere("x") {
        match endpoint {
            "read" | "stat" | "list" => assert_ne!(answer.error_code(), "capability_not_supported", "{endpoint}"),
            _ => {
                assert_eq!(refusal(&answer), (400, "capability_not_supported"), "{endpoint}");
                assert_eq!(answer.body["error"]["details"]["capability"], "filesystem", "{endpoint}");
            }
        }
    }
}

/// Sends a head and a body in pieces; the whole answer as it came.
pub(super) fn raw(daemon: &Daemon, head: &str, body: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(super::patient(Duration::from_secs(60)))).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    for piece in body {
        if stream.write_all(&piece).is_err() {
            break; // the daemon has said no
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset after the answer is as good
    answer
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn sixty_four_mebibytes_go_in_and_out_unchanged_without_being_held_in_memory() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    let piece = |n: u64| -> Vec<u8> { (0..MIB).map(|i| ((n * 31 + i * 7) % 251) as u8).collect() };
    let mut digest = Sha256::new();
    (0..64).for_each(|n| digest.update(piece(n)));
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    files.put("warm", "up");
    let before = resident_kib(daemon.front_pid());
    let started = Instant::now();
    let head = format!(
        "POST {}?path=big&sha256={digest} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        files.at("upload"),
        64 * MIB
    );
    let answer = String::from_utf8(raw(&daemon, &head, (0..64).map(piece))).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains(&digest), "{answer}");
    let up = started.elapsed();
    let started = Instant::now();
    let head = format!("GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", files.at("download?path=big"));
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let (mut got, mut buffer, mut seen, mut text) = (Sha256::new(), vec![0; 1 << 16], 0_u64, Vec::new());
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        if text.ends_with(b"\r\n\r\n") {
            got.update(&buffer[..count]);
            seen += count as u64;
        } else {
            for (place, byte) in buffer[..count].iter().enumerate() {
                text.push(*byte);
                if text.ends_with(b"\r\n\r\n") {
                    got.update(&buffer[place + 1..count]);
                    seen += (count - place - 1) as u64;
                    break;
                }
            }
        }
    }
    let got: String = got.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((seen, got), (64 * MIB, digest));
    let grown = resident_kib(daemon.front_pid()).saturating_sub(before);
    println!("64 MiB: up {up:?}, down {:?}, memory grew by {grown} KiB", started.elapsed());
    assert!(grown < 16 << 10, "the daemon grew by {grown} KiB");
}

#[test]
fn an_upload_that_is_not_what_was_announced_was_never_there() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let head = |query: &str, length: usize| {
        format!(
            "POST {}?path=f{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n",
            files.at("upload")
        )
    };
    let one = |bytes: &str| std::iter::once(bytes.as_bytes().to_vec());
    let answer = String::from_utf8(raw(&daemon, &head(&format!("&sha256={}", "0".repeat(64)), 3), one("abc"))).unwrap();
    assert!(answer.contains("422") && answer.contains("sha256"), "{answer}");
    // Hangs up in the middle.
    {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.write_all(head("", 100).as_bytes()).unwrap();
        stream.write_all(b"half").unwrap();
    }
    let staging = super::project_directory(&daemon, "p").join(".new");
    super::wait_for("nothing is left of it", Duration::from_secs(10), || {
        (std::fs::read_dir(&staging).unwrap().count() == 0).then_some(())
    });
    assert_eq!(refusal(&files.get("f")), (404, "no_such_file"));
    // A form, and chunks.
    let form = "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"n.txt\"\r\n\r\nhello\r\n--B--\r\n";
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: multipart/form-data; boundary=B\r\ncontent-length: {}\r\n\r\n",
        files.at("upload"),
        form.len()
    );
    let answer = String::from_utf8(raw(&daemon, &head, one(form))).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(files.get("n.txt").body["content"], "hello");
    let head = format!(
        "POST {}?path=c HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        files.at("upload")
    );
    let answer = String::from_utf8(raw(&daemon, &head, one("3\r\nabc\r\n0\r\n\r\n"))).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(files.get("c").body["content"], "abc");
}

#[test]
fn a_file_above_the_profiles_largest_is_refused_before_and_while_it_comes() {
    let small = "id = \"small\"\ndescription = \"x\"\nextends = \"shell\"\n[limits]\nfsize_bytes = 65536\n";
    let daemon = Daemon::start_with("", &[("small", small)]);
    let files = Files::new(&daemon, json!({"profile": "small"}));
    let head = format!(
        "POST {}?path=c HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        files.at("upload")
    );
    let chunk = || [format!("{:x}\r\n", 16384).into_bytes(), vec![b'x'; 16384], b"\r\n".to_vec()].concat();
    let answer = String::from_utf8_lossy(&raw(&daemon, &head, (0..64).map(|_| chunk()))).into_owned();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("too_large"), "{answer}");
    let put = files.put("d", &"x".repeat(65_537));
    assert_eq!(refusal(&put), (403, "too_large"), "{}", put.text);
    assert_eq!(files.put("d", &"x".repeat(65_536)).status, 200);
}

#[test]
fn downloads_have_ranges_and_entity_tags_and_directories_come_as_tar() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    files.put("d/f", "0123456789");
    let get = |headers: &[(&str, &str)]| {
        let mut client = daemon.client();
        client.send("GET", &files.at("download?path=d%2Ff"), None, headers).unwrap();
        client.receive().unwrap()
    };
    let whole = get(&[]);
    let etag = whole.header("etag").unwrap().to_owned();
    assert_eq!((whole.status, whole.text.as_str(), whole.header("content-length")), (200, "0123456789", Some("10")));
    assert_eq!(get(&[("if-none-match", &etag)]).status, 304);
    let part = get(&[("range", "bytes=2-4")]);
    assert_eq!((part.status, part.text.as_str(), part.header("content-range")), (206, "234", Some("bytes 2-4/10")));
    assert_eq!(get(&[("range", "bytes=-3"), ("if-range", &etag)]).text, "789");
    let beyond = get(&[("range", "bytes=10-")]);
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
    files.put("d/f", "changed");
    assert_eq!(get(&[("if-none-match", &etag)]).text, "changed");
    assert_eq!(get(&[("range", "bytes=0-0"), ("if-range", &etag)]).status, 200);
    let tar = files.ask("GET", "download?path=d", None);
    assert_eq!((tar.status, tar.header("content-type")), (200, Some("application/x-tar")));
    assert!(tar.text.contains("changed") && tar.text.contains("ustar"), "{}", tar.text);
}

#[test]
fn a_file_that_shrinks_on_its_way_breaks_the_connection() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell"}));
    files.shell("truncate -s 64M big");
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(super::patient(Duration::from_secs(30)))).unwrap();
    let head = format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", files.at("download?path=big"));
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 1024];
    stream.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200") && String::from_utf8_lossy(&first).contains("content-length: 67108864"));
    files.shell("truncate -s 1M big"); // the rest of it is in no buffer: socket and channel hold less
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20, "{ended:?}: all of it came");
    assert!(!rest.windows(8).any(|part| part == b"HTTP/1.1"), "nothing else may follow on that connection");
}

#[test]
fn links_that_a_program_swaps_meanwhile_never_lead_out() {
    let daemon = Daemon::start();
    let files = Files::new(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let secret = daemon.state_dir().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    let code = "import os\nos.makedirs('real', exist_ok=True)\nopen('ready','w').close()\n\
                while not os.path.exists('stop'):\n  for target in ('real', '../../..', '/etc'):\n    os.symlink(target, 'tmp')\n    os.rename('tmp', 'd')\n  os.unlink('d')\n  \
                os.rename('real', 'd')\n  try: open('d/f', 'w').write('inside')\n  except OSError: pass\n  os.rename('d', 'real')\n";
    let mut client = daemon.client();
    let body = json!({"code": code}).to_string();
    client.send("POST", &format!("/v1/sandboxes/{}/python/exec", files.id), Some(&body), &[]).unwrap();
    super::wait_for("the program runs", Duration::from_secs(20), || (files.get("ready").status == 200).then_some(()));
    let (asked, seen) = (AtomicU32::new(0), Mutex::new(std::collections::BTreeMap::<u16, u32>::new()));
    let started = Instant::now();
    let race = |n: u32, connection: &mut crate::harness::Client| {
        let put = json!({"path": "d/g", "content": "x"});
        let swap = json!({"from": "d/g", "to": "d/h", "replace": true});
        let (method, rest, body) = match n % 16 {
            0 => ("PUT", "files", Some(&put)),
            1 => ("POST", "move", Some(&swap)),
            2 | 3 => ("DELETE", "files?path=d%2Fsecret", None),
            4 => ("GET", "download?path=d", None),
            5..8 => ("GET", "download?path=d%2Ff", None),
            8..11 => ("GET", "directories?path=d", None),
            11..13 => ("GET", "files?path=d%2Ff", None),
            13 => ("GET", "stat?path=d%2Fpasswd", None),
            14 => ("GET", "files?path=d%2Fpasswd", None),
            _ => ("GET", "files?path=d%2Fsecret", None),
        };
        // An archive of what is being swapped may break off, and then says so by hanging up.
        let Ok(answer) = connection.request(method, &files.at(rest), body) else {
            assert!(rest.starts_with("download"), "{method} {rest} broke off");
            *connection = daemon.client();
            return;
        };
        assert!(!answer.text.contains("outside") && !answer.text.contains("root:"), "{method} {rest}: {}", answer.text);
        assert!(answer.status < 500, "{method} {rest}: {}", answer.text);
        *seen.lock().unwrap().entry(answer.status).or_default() += 1;
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut connection = daemon.client();
                loop {
                    match asked.fetch_add(1, Ordering::Relaxed) {
                        n if n < RACES => race(n, &mut connection),
                        _ => break,
                    }
                }
            });
        }
    });
    let (took, seen) = (started.elapsed(), seen.into_inner().unwrap());
    assert_eq!(files.put("stop", "").status, 200);
    println!("{RACES} races in {took:?}");
    assert_eq!(client.receive().unwrap().exec_status(), "ok");
    println!("answers by status: {seen:?}");
    assert!(seen.contains_key(&200) && seen.contains_key(&403), "the race was no race: {seen:?}");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "outside");
    assert!(!std::path::Path::new("/etc/g").exists() && !daemon.state_dir().join("g").exists());
}

#[test]
fn a_grant_narrows_file_operations_and_pays_for_them() {
    let daemon = Daemon::start();
    let alice = Someone::new(&daemon, "alice");
    let made = alice.ask("POST", "/v1/sandboxes", Some(&json!({"profile": "shell"})));
    let at = |rest: &str| format!("/v1/sandboxes/{}/filesystem/{rest}", made.body["sandbox_id"].as_str().unwrap());
    let grant = daemon.request("POST", "/v1/grants", Some(&json!({
        "tenant": "acme", "subject": "alice", "tool": "*", "call_id": "c", "expires_in_ms": 60_000, "budget": {"calls": 2},
        "capabilities": [{"capability": "filesystem", "operations": ["write", "read"], "path": "data"}]})));
    let id = grant.body["grant_id"].as_str().unwrap_or_else(|| panic!("{}", grant.text));
    let put = |path: &str| {
        alice.ask("PUT", &at("files"), Some(&json!({"path": path, "content": "x", "parents": true, "grant_id": id})))
    };
    assert_eq!(put("data/a").status, 200);
    assert_eq!(refusal(&put("other/a")), (403, "grant_does_not_cover"));
    assert_eq!(alice.ask("GET", &at(&format!("files?path=data%2Fa&grant_id={id}")), None).body["content"], "x");
    assert_eq!(refusal(&put("data/b")), (429, "budget_exceeded"));
    assert_eq!(refusal(&alice.ask("GET", &at("files?path=data%2Fb"), None)), (404, "no_such_file"));
}
