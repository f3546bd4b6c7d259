//! The fuzz corpus, replayed on stable: every file through the body of its target, with the same assertions.
//!
//! `make fuzz` looks for new inputs; one that broke something goes into `fuzz/corpus/<target>/` under a name that says
//! what it is, and stays. The messages between front and warden are written by [`messages`], so that they follow the
//! protocol when it changes.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use sandboxd::isolation::fault::{Fault, Step};
use sandboxd::isolation::warden::protocol::{
    Cause, Counted, Life, Refused, Reply, Request, Run, RunNumber, Status, Workspace,
};
use sandboxd::isolation::warden::words::Words;
use sandboxd::isolation::warden::{ProfileState, Ready};
use sandboxd::model::{Lacking, Layer, Limit, Limits};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Set to write the messages instead of comparing them.
const WRITE: &str = "SANDBOXD_WRITE_CORPUS";
/// What the whole corpus may have: it is read in every test run and lives in the history for good.
const FILES_MAX: usize = 200;
const BYTES_MAX: usize = 200 * 1024;

fn corpus(target: &str) -> PathBuf {
    Path::new("fuzz/corpus").join(target)
}

/// The files of a directory with their bytes, in the order of their names.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).expect("a readable file"))).collect()
}

#[test]
fn every_file_of_the_corpus_keeps_its_promise() {
    let (mut count, mut bytes) = (0, 0);
    let mut broken = Vec::new();
    for (target, body) in bodies::TARGETS {
        let mut inputs = files(&corpus(target));
        assert!(!inputs.is_empty(), "the corpus of {target} is empty");
        count += inputs.len();
        bytes += inputs.iter().map(|(_, content)| content.len()).sum::<usize>();
        // What is shipped is a corpus too, and never out of date: scripts/fuzz gives it to the fuzzer likewise.
        match target {
            "profile" => inputs.extend(files(Path::new("profiles"))),
            "seccomp" => inputs.extend(files(Path::new("seccomp"))),
            _ => {}
        }
        for (path, content) in inputs {
            if catch_unwind(|| body(&content)).is_err() {
                broken.push(format!("{target}: {}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "promises broken (the panics are above):\n{}", broken.join("\n"));
    assert!(count <= FILES_MAX && bytes <= BYTES_MAX, "the corpus has {count} files and {bytes} bytes; minimise it");
}

/// One message of each kind, by the name of its file.
fn messages() -> Vec<(String, Vec<u8>)> {
    let number = RunNumber(7);
    let run = |workspace, words| {
        let exec = "ex_01jd0000000000000000000000".parse().expect("an exec id");
        Request::Run(Box::new(Run {
            number,
            profile: 2,
            set: 3,
            exec,
            limits: Limits::default(),
            workspace,
            life: Life::Once,
            words,
        }))
        .encode()
    };
    let no_env: [&str; 0] = [];
    let small = Words::new("/bin/true", "", ["true"], ["A=b"]).expect("small words");
    let more = Words::new("python3", "a/b", ["python3", "-c", "ä"], no_env).expect("small words");
    let project = Workspace::Project("p1".parse().expect("a project id"));
    let whole = run(Workspace::ThrowAway { inputs: true }, small.clone());
    let longer: Vec<u8> = whole.iter().copied().chain([0]).collect();

    let refused = |refused| Reply::Refused(number, refused).encode();
    let counted = Counted { cpu_us: 1, memory_peak_bytes: Some(2), pids_peak: None, pids_refused: 3 };
    let fault = Fault { step: Step::Exec, index: 3, errno: 2 };
    let profiles = vec![ProfileState::Usable, ProfileState::Missing(Layer::Landlock), ProfileState::NoRoot];
    let lacking = vec![Lacking(0), Lacking(5), Lacking(0x40)];
    let ready = Ready { digest: [9; 32], idmap_errno: 22, profiles, lacking };
    [
        ("run-throw-away", whole.clone()),
        ("run-project", run(project, more)),
        ("run-cut-in-words", whole[..whole.len() - 1].to_vec()),
        ("run-cut-in-limits", whole[..60].to_vec()),
        ("run-longer", longer),
        ("kill", Request::Kill(RunNumber(u64::MAX)).encode()),
        ("reload", Request::Reload.encode()),
        ("shutdown", Request::Shutdown.encode()),
        ("accepted", Reply::Accepted(number).encode()),
        ("refused-profile", refused(Refused::Profile)),
        ("refused-wider", refused(Refused::Wider(Limit::StderrBytes))),
        ("refused-workspace", refused(Refused::Workspace(-1))),
        ("refused-layer", refused(Refused::Layer(255))),
        ("refused-cgroup", refused(Refused::Cgroup(28))),
        ("refused-spawn", refused(Refused::Spawn(1))),
        ("refused-busy", refused(Refused::Busy)),
        ("ended-itself", Reply::Ended(number, Cause::Itself, Counted::default()).encode()),
        ("ended-oom", Reply::Ended(number, Cause::Oom, counted).encode()),
        ("status-fault", Status::Fault(fault).encode().to_vec()),
        ("status-exited", Status::Exited(255).encode().to_vec()),
        ("status-signaled", Status::Signaled(9).encode().to_vec()),
        ("status-cut", Status::Exited(0).encode()[..11].to_vec()),
        ("ready", ready.encode()),
        ("ready-no-profiles", Ready { profiles: vec![], lacking: vec![], ..ready.clone() }.encode()),
        ("ready-cut", ready.encode()[..36].to_vec()),
        ("reloaded", Reply::Reloaded(Some(ready)).encode()),
        ("reloaded-not", Reply::Reloaded(None).encode()),
        ("empty", vec![]),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

#[test]
fn the_messages_in_the_corpus_are_todays() {
    let write = std::env::var_os(WRITE).is_some();
    for (name, bytes) in messages() {
        let path = corpus("protocol").join(&name);
        if write {
            std::fs::write(&path, &bytes).expect("a corpus that can be written");
        }
        let there = std::fs::read(&path).ok();
        assert!(
            there.as_ref() == Some(&bytes),
            "{name} is not what the protocol says today; {WRITE}=1 cargo test --test corpus writes it"
        );
    }
}
