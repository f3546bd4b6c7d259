//! What each fuzz target does with its bytes, without libfuzzer: `tests/corpus.rs` runs the same on stable.
//!
//! A body panics when a promise is broken and says nothing otherwise. Bytes that are refused are fine.
#![forbid(unsafe_code)]

use sandboxd::api::parse_exec;
use sandboxd::isolation::seccomp;
use sandboxd::isolation::warden::Ready;
use sandboxd::isolation::warden::protocol::{Reply, Request, Run, Status};
use sandboxd::isolation::warden::words::Words;
use sandboxd::model::{Limit, Limits, Owner, Principal, Role};
use sandboxd::policy::explain::explain;
use sandboxd::policy::path::{PathReason, normalise};
use sandboxd::policy::{Facts, judge};
use sandboxd::profile::{self, ProfileError, Profiles};
use std::ffi::CStr;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

/// A target: its name, which is also its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 5] =
    [("path", path), ("profile", profile), ("protocol", protocol), ("seccomp", seccomp), ("request", request)];

/// Path validator: it agrees with the model, what it lets through stays inside, and a second pass changes nothing.
pub fn path(bytes: &[u8]) {
    let Ok(given) = std::str::from_utf8(bytes) else { return };
    let normal = normalise(given);
    assert_eq!(normal, model(given), "validator and model disagree about {given:?}");
    if let Ok(normal) = normal {
        assert_inside(&normal);
        assert!(normal.len() <= given.len(), "{given:?} grew to {normal:?}");
        assert_eq!(normalise(&normal), Ok(normal.clone()), "a second pass changed {normal:?}");
    }
}

/// The validator again, by the standard library's idea of components.
fn model(given: &str) -> Result<String, PathReason> {
    if given.is_empty() {
        return Err(PathReason::EmptyPath);
    }
    if given.contains('\0') {
        return Err(PathReason::NullByte);
    }
    if Path::new(given).is_absolute() {
        return Err(PathReason::AbsolutePath);
    }
    if given.len() > 4096 {
        return Err(PathReason::TooLong);
    }
    let mut inside = PathBuf::new();
    for component in Path::new(given).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if inside.pop() => {}
            Component::Normal(name) if name.len() > 255 => return Err(PathReason::TooLong),
            Component::Normal(name) if name.to_str().is_some_and(|name| name.trim_matches('.').is_empty()) => {
                return Err(PathReason::PathTraversal);
            }
            Component::Normal(name) => inside.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(PathReason::PathTraversal),
        }
    }
    match inside.to_str().expect("made of parts of a str") {
        "" => Ok(".".to_owned()),
        inside => Ok(inside.to_owned()),
    }
}

/// `path` is `.` or plain names with single slashes between.
fn assert_inside(path: &str) {
    let plain = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains('\0');
    assert!(path == "." || path.split('/').all(plain), "{path:?} is not plain");
}

fn assert_within_bounds(limits: &Limits) {
    for &limit in Limit::ALL {
        let amount = limits.get(limit);
        assert!((limit.floor()..=limit.ceiling()).contains(&amount), "{} is {amount}", limit.name());
    }
}

/// `line` is a line of `text`; the place after the last line break counts, as an error at the end of a file is there.
fn assert_line_of(text: &str, line: usize) {
    let lines = 1 + text.matches('\n').count();
    assert!((1..=lines).contains(&line), "line {line} of a text of {lines}");
}

/// Profile parser: what it takes has limits within bounds and an id that is a file name; what it refuses has a place.
pub fn profile(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = Path::new("fuzz.toml");
    match profile::parse(file, text) {
        Ok(profile) => {
            assert_within_bounds(&profile.limits);
            assert!((1..=64).contains(&profile.id.len()), "id {:?}", profile.id);
            assert_inside(&profile.id);
            assert_eq!(profile::parse(file, text).expect("taken a moment ago"), profile);
        }
        Err(error) => {
            if let ProfileError::Parse { line, .. } = &error {
                assert_line_of(text, *line);
            }
            assert!(error.to_string().starts_with("fuzz.toml:"), "{error} does not begin with its file");
        }
    }
}

/// Decoders of front, warden and init: a datagram they take is the one datagram of its message.
pub fn protocol(bytes: &[u8]) {
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes, "{request:?} has two datagrams");
        if let Request::Run(run) = &request {
            assert_run_is_sound(run);
        }
    }
    if let Ok(reply) = Reply::decode(bytes) {
        assert_eq!(reply.encode(), bytes, "{reply:?} has two datagrams");
    }
    if let Ok(status) = Status::decode(bytes) {
        assert_eq!(status.encode(), bytes, "{status:?} has two records");
        if let Status::Fault(fault) = status {
            assert!(fault.to_string().starts_with("could not "), "{fault}");
        }
    }
    if let Some(ready) = Ready::decode(bytes) {
        assert_eq!(ready.encode(), bytes, "{ready:?} has two datagrams");
    }
}

/// Everything the warden and init will ask of a run is there, and the front's own constructor makes the same words.
fn assert_run_is_sound(run: &Run) {
    assert_within_bounds(&run.limits);
    let words = &run.words;
    assert!(!words.command().is_empty(), "no command");
    assert!(words.argv().count() >= 1, "no name for the program");
    let texts = |words: &mut dyn Iterator<Item = &CStr>| -> Option<Vec<String>> {
        words.map(|word| word.to_str().ok().map(str::to_owned)).collect()
    };
    let (Ok(command), Ok(cwd)) = (words.command().to_str(), words.cwd().to_str()) else { return };
    let (Some(argv), Some(env)) = (texts(&mut words.argv()), texts(&mut words.env())) else { return };
    assert_eq!(Words::new(command, cwd, argv, env).as_ref(), Ok(words), "decoder and constructor disagree");
}

/// Filter parser, with the shipped files to include: an error is one line that begins with its place.
pub fn seccomp(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Err(error) = seccomp::parse("fuzz", text, &seccomp::shipped) else { return };
    let words = error.to_string();
    assert!(!words.contains('\n'), "{words:?} has several lines");
    let place = words.split_once(".toml:").and_then(|(file, rest)| Some((file, rest.split(':').next()?.parse().ok()?)));
    match place {
        Some(("fuzz", line)) => assert_line_of(text, line),
        // A rule of an included file may clash with an earlier one.
        Some((included, line)) => {
            let text = seccomp::shipped(included).unwrap_or_else(|| panic!("{words:?} names a file that is not there"));
            assert_line_of(&text, line);
        }
        None => panic!("{words:?} does not begin with file and line"),
    }
}

static PROFILES: LazyLock<Profiles> = LazyLock::new(|| Profiles::load(None).expect("the shipped profiles load"));

/// The way of `POST /v1/execs` from bytes to a permit: nothing in a permit is wider than its profile or leads out.
pub fn request(bytes: &[u8]) {
    let request = match parse_exec(bytes) {
        Ok(request) => request,
        Err(answer) => {
            assert!(answer.status().is_client_error(), "a bad body is answered with {}", answer.status());
            return;
        }
    };
    let again = serde_json::to_vec(&request).expect("a request is plain JSON");
    assert_eq!(parse_exec(&again).ok().as_ref(), Some(&request), "a request does not survive the wire");

    let caller = Principal {
        owner: Owner { tenant: "local".to_owned(), subject: "uid:0".to_owned() },
        roles: [Role::User].into(),
        profiles: None,
    };
    let facts = Facts { profiles: &PROFILES, lacking: &[], grant: None, risk: None, approval: None, now_ms: 0 };
    let judged = judge(&caller, &request, &facts);
    let verdict = explain(&caller, &request, &facts);
    assert_eq!(verdict.refusal, judged.as_ref().err().cloned(), "explain and judge disagree");
    let Ok(permit) = judged else { return };
    let (index, profile) = PROFILES.find(permit.profile_id()).expect("a permit is for a profile there is");
    assert_eq!(permit.profile_index(), index);
    assert_eq!(permit.limits().first_wider_than(&profile.limits), None, "a limit is wider than the profile's");
    assert_within_bounds(permit.limits());
    if !permit.cwd().is_empty() {
        assert_inside(permit.cwd());
    }
    for (place, input) in permit.inputs().iter().enumerate() {
        assert_inside(&input.path);
        assert!(permit.inputs()[..place].iter().all(|other| other.path != input.path), "{:?} twice", input.path);
    }
    // What the executor does next: it may refuse the words, but it must not fall over them.
    let env = permit.env().iter().map(|(name, value)| format!("{name}={value}"));
    let _ = Words::new(permit.command(), permit.cwd(), permit.argv(), env);
}
