//! Amounts that fit into nobody's memory: they pass through the daemon, and it stays as small as it was.

use super::{Daemon, hit, limited, sandbox, shell, usage, with};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const MIB: u64 = 1 << 20;
/// 2 GiB.
const LARGE: u64 = 2048;
/// What the daemon may grow by, at its highest.
const GROWTH_KIB: u64 = 64 << 10;

/// A profile that permits files of this size.
const ROOMY: &str = "id = \"roomy\"\ndescription = \"\"\nextends = \"shell\"\n[limits]\nfsize_bytes = 4294967296\n";

fn status_kib(pid: i32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// By how much a process grew at its highest, from here on.
struct Peak(i32, u64);

impl Peak {
    fn from_now(pid: i32) -> Self {
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap(); // proc(5): the peak begins anew
        Self(pid, status_kib(pid, "VmRSS:"))
    }

    fn grown_kib(&self) -> u64 {
        status_kib(self.0, "VmHWM:").saturating_sub(self.1)
    }
}

/// The `n`th MiB of what is sent: no two are the same.
fn piece(base: &mut [u8], n: u64) -> &[u8] {
    base[..8].copy_from_slice(&n.to_le_bytes());
    base
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the head of an answer; its first line.
fn head_of(reader: &mut impl BufRead) -> String {
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first).unwrap();
    while reader.read_line(&mut line).unwrap() > 2 {
        line.clear();
    }
    first
}

#[test]
fn two_gibibytes_go_in_and_out_unchanged_and_the_daemon_stays_small() {
    let daemon = Daemon::start_with("", &[("roomy", ROOMY)]);
    let id = sandbox(&daemon, json!({"profile": "roomy"}));
    let at = |rest: &str| format!("/v1/sandboxes/{id}/filesystem/{rest}");
    let warm = daemon.request("PUT", &at("files"), Some(&json!({"path": "warm", "content": "up"})));
    assert_eq!(warm.status, 200, "{}", warm.text);
    let mut base: Vec<u8> = (0..MIB).map(|i| (i * 7 % 251) as u8).collect();
    let peak = Peak::from_now(daemon.front_pid());

    let (started, mut sent) = (Instant::now(), Sha256::new());
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    write!(
        stream,
        "POST {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        at("upload?path=large"),
        LARGE * MIB
    )
    .unwrap();
    for n in 0..LARGE {
        let piece = piece(&mut base, n);
        sent.update(piece);
        stream.write_all(piece).unwrap_or_else(|error| panic!("after {n} MiB: {error}; log:\n{}", daemon.log()));
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let sent = hex(sent);
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains(&sent), "{answer}");
    let up = (started.elapsed(), peak.grown_kib());

    let (started, mut got, mut count) = (Instant::now(), Sha256::new(), 0);
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    write!(stream, "GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", at("download?path=large")).unwrap();
    let mut reader = BufReader::with_capacity(1 << 18, stream);
    assert_eq!(head_of(&mut reader), "HTTP/1.1 200 OK\r\n");
    loop {
        let bytes = reader.fill_buf().unwrap();
        if bytes.is_empty() {
            break;
        }
        got.update(bytes);
        let length = bytes.len();
        count += length as u64;
        reader.consume(length);
    }
    assert_eq!((count, hex(got)), (LARGE * MIB, sent));
    let grown = peak.grown_kib();
    println!("{LARGE} MiB: up {:?} (+{} KiB), down {:?} (+{grown} KiB)", up.0, up.1, started.elapsed());
    assert!(grown < GROWTH_KIB, "the daemon grew by {grown} KiB");
}

#[test]
fn a_gibibyte_of_output_is_cut_and_flagged_and_the_exec_ends_well() {
    let daemon = Daemon::start();
    let warm = daemon.exec(&with(shell("echo warm"), json!({"profile": "shell"})));
    assert_eq!(warm.status, 200, "{}", warm.text);
    let peak = Peak::from_now(daemon.front_pid());
    let started = Instant::now();
    // The last line on the other stream shows that the program came to its own end.
    let code = "head -c 1073741824 /dev/zero | tr '\\0' x; echo done >&2";
    let request = limited(with(shell(code), json!({"profile": "shell"})), json!({"stdout_bytes": MIB}));
    let answer = daemon.exec(&request);
    let grown = peak.grown_kib();
    println!("1 GiB of output: {:?}, memory grew by {grown} KiB", started.elapsed());
    assert_eq!((answer.status, answer.exec_status()), (200, "ok"), "{:.2000}", answer.text);
    assert_eq!(answer.body["stdout_truncated"], true);
    assert_eq!(answer.stdout().len() as u64, MIB);
    assert_eq!(answer.body["stderr"], "done\n", "the program did not come to its end");
    assert_eq!(usage(&answer, "bytes_out"), (1 << 30) + 5, "what was dropped is counted");
    assert_eq!(hit(&answer, "stdout")["amount"], MIB);
    // The kept MiB a few times over: in the pump, in the answer, on its way out.
    assert!(grown < GROWTH_KIB / 2, "the daemon grew by {grown} KiB");
}
