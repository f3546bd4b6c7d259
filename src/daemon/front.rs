//! The front's life: from the moment it is nobody to the moment it has ended everything.

use super::activation::Door;
use super::manager::Manager;
use super::rules::{Files, Rules};
use super::{Config, Places};
use crate::api::{Access, Doctor, Owed, State, router, serve};
use crate::doctor::Finding;
use crate::evidence::{Journal, Opened};
use crate::executor::{Btrfs, Executor, HostReport, Warden};
use crate::ledger::Ledger;
use crate::observe::Metrics;
use crate::pipeline::{InForce, Pipeline, PressureFiles, Settings};
use crate::workspace::{Store, Volumes};
use anyhow::Context;
use nix::fcntl::Flock;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// How often a stopping daemon looks whether the last exec has ended.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How long a connection that was let in before the stop may take to ask, if the socket was handed over to us.
const HANDED_OVER_PATIENCE: Duration = Duration::from_secs(2);

/// How long the end may take beyond the time that running execs have.
const END_SLACK: Duration = Duration::from_secs(10);

/// What start-up hands over.
pub(super) struct Parts {
    pub config: Config,
    pub files: Files,
    pub in_force: InForce,
    pub report: HostReport,
    pub findings: Vec<Finding>,
    /// Where the kernel tells how it is.
    pub pressure: PressureFiles,
    pub warden: OwnedFd,
    pub warden_pid: Pid,
    pub door: Door,
    pub places: Places,
    /// The directory of all projects.
    pub projects: OwnedFd,
    /// Held for as long as the daemon lives.
    pub _lock: Flock<File>,
}

/// Why the daemon ends.
enum End {
    Asked,
    WardenGone,
}

pub(super) fn run(parts: Parts) -> anyhow::Result<i32> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the async runtime")?;
    runtime.block_on(serve_until_end(parts))
}

async fn serve_until_end(parts: Parts) -> anyhow::Result<i32> {
    let Parts {
        config,
        files,
        in_force,
        report,
        findings,
        pressure,
        warden,
        warden_pid,
        door,
        places,
        projects,
        _lock,
    } = parts;
    let warden = Warden::connect(warden).context("the socket to the warden")?;
    let volumes = (report.store.driver == "btrfs").then(|| Arc::new(Btrfs) as Arc<dyn Volumes>);
    let store = Arc::new(Store::over(projects, volumes).context("the workspaces")?);
    tracing::info!(driver = report.store.driver, place = report.store.place, "the store is open");
    let report = Arc::new(report);
    let executor = Executor::new(warden.clone(), store.clone(), report.clone());
    let ledger = Ledger::open(&places.state_dir).context("the ledger of tokens and grants")?;
    let (journal, set_aside) = open_journal(&places, &config)?;
    let doctor = Arc::new(Doctor::new(report, findings, set_aside));
    for check in doctor.answer(&in_force).checks.iter().filter(|check| check.cure.is_some()) {
        tracing::warn!(check = check.name, found = check.found, cure = check.cure, "not all is as it should be");
    }
    let rules = Arc::new(Rules::new(files, in_force, warden.clone()));
    for lost in ledger.recovered() {
        tracing::warn!(grant = %lost.grant_id, amounts = ?lost.amounts, "a reservation of a dead daemon counts as used");
    }
    let settings = Settings {
        places: config.max_concurrent_execs,
        queue_max: config.max_queued_execs,
        consent_seconds: config.consent_seconds,
        sandboxes: config.sandboxes,
        sessions: config.sessions,
        retention: config.retention,
        max_snapshots: config.store.max_snapshots,
    };
    let pipeline = Pipeline::new(
        rules.clone(),
        executor,
        ledger.clone(),
        journal.clone(),
        store,
        settings,
        config.warm_python.clone(),
        (config.admission.clone(), pressure),
    );
    pipeline.reconcile().await.context("what a daemon before left in the ledger")?;
    let reaper = tokio::spawn(pipeline.clone().reap());
    let keeper = tokio::spawn(pipeline.clone().keep_ahead());
    let watcher = tokio::spawn(pipeline.clone().watch_pressure());
    let access = Access::new(config.access.clone(), ledger.clone());
    let metrics = Metrics::start().context("the metrics")?;
    let counter = tokio::spawn(metrics.clone().keep_up());
    let state = State {
        ledger: ledger.clone(),
        journal: journal.clone(),
        metrics,
        pipeline: pipeline.clone(),
        access,
        doctor,
        warden: warden.clone(),
    };
    let Door { listener, handed_over } = door;
    let listener = tokio::net::UnixListener::from_std(listener).context("the socket")?;
    // Before the first caller can see us well: a signal must never find its default disposition.
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hang_up = signal(SignalKind::hangup()).context("SIGHUP")?;
    let (stop, stopped) = watch::channel(false);
    let patience = if handed_over { HANDED_OVER_PATIENCE } else { Duration::ZERO };
    let owed = Owed::default();
    let mut server = tokio::spawn(serve(listener, router(state), stopped, patience, owed.clone()));
    tracing::info!(socket = %places.socket.display(), handed_over, "ready");
    let mut manager = Manager::new();
    manager.ready();

    let end = loop {
        tokio::select! {
            never = manager.beat() => match never {},
            _ = terminate.recv() => break End::Asked,
            _ = interrupt.recv() => break End::Asked,
            () = warden.gone() => break End::WardenGone,
            _ = hang_up.recv() => {
                rules.ask();
                let _ = pipeline.in_force().await; // reads now, so that the log has the result at once
            }
        }
    };
    // From here on nobody new gets in; whoever is in gets an answer. Where the next daemon listens on the same socket
    // that answer is what was asked for, not that we are going: what comes next waits for the next.
    if !handed_over {
        pipeline.drain();
    }
    stop.send_replace(true);
    manager.stopping(Duration::from_secs(config.drain_seconds) + END_SLACK);
    let code = match end {
        End::Asked => {
            tracing::info!(running = pipeline.live(), "stopping");
            let deadline = Instant::now() + Duration::from_secs(config.drain_seconds);
            let draining = async {
                if handed_over {
                    see_out(&pipeline, &owed, &mut server, deadline).await;
                    pipeline.drain();
                }
                drain(&pipeline, &warden, deadline).await;
            };
            tokio::select! {
                never = manager.beat() => match never {},
                () = draining => {}
            }
            0
        }
        End::WardenGone => {
            tracing::error!(
                live = pipeline.live(),
                "the warden died; every exec ends with an error and so does the daemon"
            );
            1 // systemd starts both anew
        }
    };
    // The answers that are on their way have a second to get out.
    if !server.is_finished() {
        let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    }
    drain_answers(&pipeline).await;
    keeper.abort();
    watcher.abort();
    counter.abort();
    reaper.abort(); // an end that is cut short is finished at the next start
    ledger.close().await;
    journal.close().await;
    reap_warden(warden_pid).await;
    for file in [&places.socket, &places.pid_file].into_iter().skip(usize::from(handed_over)) {
        // The next start removes what is left.
        let _ = std::fs::remove_file(file);
    }
    Ok(code)
}

/// Opens the journal of evidence and says what it found.
fn open_journal(places: &Places, config: &Config) -> anyhow::Result<(Journal, Option<String>)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let opened = Journal::open(&places.state_dir.join("evidence"), &config.evidence, now_ms);
    let (journal, Opened { head, lost, from_slate, set_aside, warnings }) =
        opened.context("the journal of evidence")?;
    let set_aside = set_aside.map(|aside| {
        let file = aside.path.unwrap_or_default();
        tracing::error!(file = %file.display(), why = aside.why, "the journal of evidence was set aside; a new chain begins");
        format!("{} ({})", file.display(), aside.why)
    });
    for warning in warnings {
        tracing::warn!(warning, "evidence");
    }
    if !lost.is_empty() {
        tracing::warn!(operations = lost.len(), "a dead daemon left operations open; they are recorded as lost");
    }
    if from_slate > 0 {
        tracing::info!(
            records = from_slate,
            "records of a daemon that was killed were moved from the slate into the database"
        );
    }
    tracing::info!(records = head.seq, head = %head.hash, "the journal of evidence is open");
    Ok((journal, set_aside))
}

/// Waits until everybody who was let in has an answer: nobody is owed one, nothing runs, and connections that were
/// open at the stop have had their time to ask.
async fn see_out(pipeline: &Pipeline, owed: &Owed, server: &mut JoinHandle<()>, deadline: Instant) {
    let patient = Instant::now() + HANDED_OVER_PATIENCE;
    loop {
        let now = Instant::now();
        let asked = server.is_finished() || now >= patient;
        if now >= deadline || asked && owed.nobody() && pipeline.live() == 0 {
            return;
        }
        sleep_until(now + DRAIN_LOOK).await;
    }
}

/// Gives running execs their time, then has the warden end the rest.
async fn drain(pipeline: &Pipeline, warden: &Warden, deadline: Instant) {
    while pipeline.live() > 0 && Instant::now() < deadline {
        sleep_until(Instant::now() + DRAIN_LOOK).await;
    }
    warden.shut_down().await;
    // Its end of the socket closes when every sandbox is gone.
    let _ = tokio::time::timeout(Duration::from_secs(5), warden.gone()).await;
}

/// Its socket is closed, so it is dead or about to be: no zombie is left to whoever adopts our children.
async fn reap_warden(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(1);
    while waitpid(pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) && Instant::now() < deadline {
        sleep_until(Instant::now() + DRAIN_LOOK).await;
    }
}

/// Execs that were ended with the warden still have to be answered.
async fn drain_answers(pipeline: &Pipeline) {
    let deadline = Instant::now() + Duration::from_secs(1);
    while pipeline.live() > 0 && Instant::now() < deadline {
        sleep_until(Instant::now() + DRAIN_LOOK).await;
    }
}
