use super::*;
use crate::isolation::fault::Step;
use proptest::prelude::*;

fn a_run(workspace: Workspace) -> Request {
    Request::Run(Box::new(Run {
        number: RunNumber(7),
        profile: 2,
        set: 3,
        exec: ExecId::generate(),
        limits: Limits::default(),
        workspace,
        life: Life::Session,
        signals: true,
        tty: Some(Tty { cols: 80, rows: 24 }),
        words: Words::new("/bin/true", "", ["true"], ["A=b"]).expect("small words"),
    }))
}

#[test]
fn requests_survive_the_wire() {
    let project = Workspace::Project("p1".parse().expect("a plain name"));
    for request in [
        a_run(Workspace::ThrowAway { inputs: true }),
        a_run(project.clone()),
        Request::Kill(RunNumber(u64::MAX)),
        Request::Call { number: RunNumber(4), wall_ms: 5, cpu_ms: 6 },
        Request::Rest(RunNumber(4)),
        a_run(Workspace::Later),
        Request::Attach { number: RunNumber(4), exec: ExecId::generate(), workspace: project.clone() },
        Request::Attach {
            number: RunNumber(4),
            exec: ExecId::generate(),
            workspace: Workspace::ThrowAway { inputs: true },
        },
        Request::Signal(RunNumber(1), ProgramSignal::Term),
        Request::Reload,
        Request::Stats,
        Request::Shutdown,
    ] {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
}

#[test]
fn replies_and_statuses_survive_the_wire() {
    let counted = Counted { cpu_us: 1, memory_peak_bytes: Some(2), pids_peak: None, pids_refused: 3 };
    let number = RunNumber(9);
    let refusals =
        [Refused::Profile, Refused::Wider(Limit::Pids), Refused::Workspace(2), Refused::Layer(3), Refused::Busy];
    for reply in refusals.map(|refused| Reply::Refused(number, refused)).into_iter().chain([
        Reply::Accepted(number),
        Reply::Ended(number, Cause::Oom, counted),
        Reply::Rested(number, counted),
        Reply::Attached(number, 13),
        Reply::Reloaded(None),
        Reply::Stats(vec![PoolGauges { idle: 1, busy: 2, target: 3, hits: 4, misses: u64::MAX }; STATS_MAX]),
        Reply::Reloaded(Some(Ready { digest: [7; 32], idmap_errno: 0, profiles: vec![], lacking: vec![] })),
    ]) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply.clone()));
    }
    let fault = Fault { step: Step::Exec, index: 3, errno: 2 };
    for status in [Status::Fault(fault), Status::Exited(255), Status::Signaled(9), Status::Terminal] {
        assert_eq!(Status::decode(&status.encode()), Ok(status));
    }
}

#[test]
fn every_truncation_and_extension_is_refused() {
    let whole = a_run(Workspace::ThrowAway { inputs: false }).encode();
    for len in 0..whole.len() {
        assert!(Request::decode(&whole[..len]).is_err(), "{len} bytes were taken for a message");
    }
    let mut longer = whole;
    longer.push(0);
    assert!(Request::decode(&longer).is_err());
}

#[test]
fn a_limit_outside_its_bounds_is_refused() {
    let mut bytes = a_run(Workspace::ThrowAway { inputs: false }).encode();
    // version, tag, number, profile, set, length byte and text of the exec id; then the first limit
    let first_limit = 2 + 8 + 2 + 8 + 1 + 29;
    bytes[first_limit..first_limit + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(Request::decode(&bytes), Err(ProtocolError::Limit(_))));
}

proptest! {
    #[test]
    fn no_datagram_panics_the_decoders(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut versioned = bytes.clone();
        if let Some(first) = versioned.first_mut() { *first = VERSION; }
        for candidate in [&bytes, &versioned] {
            let _ = (Request::decode(candidate), Reply::decode(candidate), Status::decode(candidate));
        }
    }
}
