//! Sessions: interpreters of a sandbox that are kept between execs, by name.
//!
//! ```text
//! first call ─▶ new ─▶ running ⇄ idle ── exited, killed, out of memory, idle too long, profile or grant gone ─▶ dead
//!                ▲                                                                                      │
//!                └──────────────────────────────── reset ───────────────────────────────────────────────┘
//! ```
//!
//! A call is an exec like any other: judged, listed, reserved, recorded; only its program is there already. Calls of one
//! session come one after the other ([`Seat`]), and a few may wait. A dead session keeps its name and says how it died
//! until somebody resets or removes it, so nobody takes an empty interpreter for the one that knew something. Sessions end
//! with their sandbox, with a grant that one of their calls was made under, and with the daemon.

mod seat;

pub(super) use seat::{Seat, only_real_figures};

use super::{Call, Failure, Pipeline, now_ms};
use crate::evidence::{Begin, Operation};
use crate::executor::{Control, Interpreter, StopCause};
use crate::model::{ExecId, GrantId, Kind, Limits, Owner, Principal, SandboxId, SessionState};
use crate::policy::{Permit, Refusal};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Longest name of a session.
const NAME_MAX: usize = 64;
/// `[sessions]` of the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionSettings {
    /// How long a session that asks for nothing else may lie idle.
    pub idle_s: u64,
    /// Sessions of one sandbox.
    pub max_per_sandbox: usize,
    /// Sessions of one owner.
    pub max_per_owner: usize,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { idle_s: 900, max_per_sandbox: 32, max_per_owner: 256 }
    }
}

/// The session that an exec asks for.
#[derive(Debug, Clone)]
pub struct SessionWish {
    /// Its name within the sandbox.
    pub name: String,
    /// How long it may lie idle, if this call begins it.
    pub idle_s: Option<u64>,
}

/// A session as it stands.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// Its name.
    pub name: String,
    /// Python or shell.
    pub kind: Kind,
    /// How it stands.
    pub state: SessionState,
    /// How it died, if it did.
    pub died: Option<String>,
    /// Calls that its interpreter has answered.
    pub calls: u64,
    /// The call that runs.
    pub running: Option<ExecId>,
    /// Calls that wait.
    pub waiting: usize,
    /// When its name was first used.
    pub created_at_ms: u64,
    /// When its last call ended.
    pub last_used_ms: u64,
    /// How long it may lie idle.
    pub idle_s: u64,
}

/// What is known of a session without waiting for it.
#[derive(Default)]
struct Standing {
    alive: bool,
    died: Option<String>,
    removed: bool,
    calls: u64,
    running: Option<ExecId>,
    waiting: usize,
    last_used_ms: u64,
    /// Grants whose end ends it.
    grants: BTreeMap<GrantId, AbortHandle>,
    /// The way to the interpreter that runs now; the next one has its own.
    control: Arc<Control>,
}

/// The interpreter, for whoever has the turn.
struct Inside {
    interpreter: Option<Interpreter>,
    /// Names the artifacts directory that it has mounted.
    home: ExecId,
    limits: Limits,
    profile_hash: String,
}

/// One session.
pub(super) struct Session {
    sandbox: SandboxId,
    name: String,
    owner: Owner,
    kind: Kind,
    created_at_ms: u64,
    idle_ms: u64,
    standing: Mutex<Standing>,
    inside: Arc<tokio::sync::Mutex<Inside>>,
}

type Key = (SandboxId, String);

/// All sessions of a daemon.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Key, Arc<Session>>>);

fn invalid(field: &str, problem: impl Into<String>) -> Refusal {
    Refusal::InvalidField { field: field.to_owned(), problem: problem.into() }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(invalid("session", format!("a name has 1 to {NAME_MAX} letters, digits, dots, hyphens and underscores")))
}

impl Session {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how the interpreter died. The first word counts.
    fn bury(&self, died: String) {
        let mut standing = self.standing();
        standing.alive = false;
        standing.died.get_or_insert(died);
        for (_, watch) in std::mem::take(&mut standing.grants) {
            watch.abort();
        }
    }

    fn refuse_dead(&self) -> Result<(), Refusal> {
        let standing = self.standing();
        if standing.removed {
            return Err(Refusal::NoSuchSession);
        }
        match &standing.died {
            Some(died) => Err(Refusal::SessionDead { name: self.name.clone(), died: died.clone() }),
            None => Ok(()),
        }
    }

    /// Ends the interpreter, at once if a call runs, and waits until it is gone. `died` is what callers are told.
    async fn end(&self, cause: StopCause, died: String) {
        self.standing().control.end.stop(cause);
        let mut inside = self.inside.lock().await;
        let interpreter = inside.interpreter.take();
        if let Some(interpreter) = interpreter {
            self.bury(died);
            interpreter.end().await;
        }
    }

    fn view(&self) -> SessionView {
        let standing = self.standing();
        let state = match (&standing.died, &standing.running, standing.alive) {
            (Some(_), ..) => SessionState::Dead,
            (_, Some(_), _) => SessionState::Running,
            (_, _, true) => SessionState::Idle,
            (_, _, false) => SessionState::New,
        };
        SessionView {
            name: self.name.clone(),
            kind: self.kind,
            state,
            died: standing.died.clone(),
            calls: standing.calls,
            running: standing.running.clone(),
            waiting: standing.waiting,
            created_at_ms: self.created_at_ms,
            last_used_ms: standing.last_used_ms,
            idle_s: self.idle_ms / 1000,
        }
    }

    /// Notices an interpreter that died while nobody looked.
    async fn look(&self) {
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let Some(interpreter) = &mut inside.interpreter else { return };
        if let Some(died) = interpreter.died() {
            inside.interpreter = None;
            self.bury(died);
        }
    }
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, sandbox: &SandboxId, name: &str) -> Option<Arc<Session>> {
        self.all().get(&(sandbox.clone(), name.to_owned())).cloned()
    }

    fn of(&self, sandbox: &SandboxId) -> Vec<Arc<Session>> {
        let mut found: Vec<_> = self.all().values().filter(|session| session.sandbox == *sandbox).cloned().collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    fn forget(&self, key: &Key, session: &Arc<Session>) {
        let mut all = self.all();
        if all.get(key).is_some_and(|found| Arc::ptr_eq(found, session)) {
            all.remove(key);
        }
    }

    /// Whether an interpreter lives in one of these sandboxes.
    pub(super) fn live_in(&self, sandboxes: &[SandboxId]) -> bool {
        self.all().values().any(|session| sandboxes.contains(&session.sandbox) && session.standing().alive)
    }

    /// Sessions whose interpreter lives.
    fn live(&self) -> usize {
        self.all().values().filter(|session| session.standing().alive).count()
    }

    /// The session of that name, made if there is none and there may be one more.
    fn find_or_make(
        &self,
        sandbox: &SandboxId,
        permit: &Permit,
        wish: &SessionWish,
        settings: &SessionSettings,
    ) -> Result<Arc<Session>, Refusal> {
        let mut all = self.all();
        let key = (sandbox.clone(), wish.name.clone());
        if let Some(found) = all.get(&key) {
            return Ok(found.clone());
        }
        let of_sandbox = all.values().filter(|session| session.sandbox == *sandbox).count();
        let of_owner = all.values().filter(|session| session.owner == *permit.owner()).count();
        for (count, most) in [(of_sandbox, settings.max_per_sandbox), (of_owner, settings.max_per_owner)] {
            if count >= most {
                return Err(Refusal::TooManySessions { most: most as u64 });
            }
        }
        let inside = Inside {
            interpreter: None,
            home: ExecId::generate(),
            limits: *permit.limits(),
            profile_hash: String::new(),
        };
        let session = Arc::new(Session {
            sandbox: sandbox.clone(),
            name: wish.name.clone(),
            owner: permit.owner().clone(),
            kind: permit.kind(),
            created_at_ms: now_ms(),
            idle_ms: wish.idle_s.unwrap_or(settings.idle_s).saturating_mul(1000),
            standing: Mutex::new(Standing { last_used_ms: now_ms(), ..Standing::default() }),
            inside: Arc::new(tokio::sync::Mutex::new(inside)),
        });
        all.insert(key, session.clone());
        Ok(session)
    }
}

impl Pipeline {
    async fn session_of(&self, principal: &Principal, id: &SandboxId, name: &str) -> Result<Arc<Session>, Failure> {
        // Another's sandbox is as unknown as none, and so is what is in it.
        self.0.ledger.get_sandbox(&principal.owner, id).await.map_err(Failure::Ledger)?;
        self.0.sessions.find(id, name).ok_or_else(|| Refusal::NoSuchSession.into())
    }

    /// The sessions of a sandbox, by name.
    pub async fn sessions(&self, principal: &Principal, id: &SandboxId) -> Result<Vec<SessionView>, Failure> {
        self.0.ledger.get_sandbox(&principal.owner, id).await.map_err(Failure::Ledger)?;
        let mut views = Vec::new();
        for session in self.0.sessions.of(id) {
            session.look().await;
            views.push(session.view());
        }
        Ok(views)
    }

    /// One of them.
    pub async fn session(&self, principal: &Principal, id: &SandboxId, name: &str) -> Result<SessionView, Failure> {
        let session = self.session_of(principal, id, name).await?;
        session.look().await;
        Ok(session.view())
    }

    /// Interrupts the call that runs, as Ctrl-C would. Without one nothing happens.
    pub async fn interrupt_session(&self, call: &Call, id: &SandboxId, name: &str) -> Result<SessionView, Failure> {
        let act = async {
            let session = self.session_of(&call.principal, id, name).await?;
            let standing = session.standing();
            if standing.running.is_some() {
                standing.control.interrupt.notify_one();
            }
            drop(standing);
            Ok(session.view())
        };
        self.recorded(session_begin(call, id, "session.interrupt"), act).await.map(|(view, _)| view)
    }

    /// Ends the interpreter, if there is one; the next call begins with a new one.
    pub async fn reset_session(&self, call: &Call, id: &SandboxId, name: &str) -> Result<SessionView, Failure> {
        let act = async {
            let session = self.session_of(&call.principal, id, name).await?;
            self.end_session(&session, |standing| {
                (standing.died, standing.alive, standing.calls) = (None, false, 0);
                standing.control = Arc::default();
            })
            .await?;
            Ok(session.view())
        };
        self.recorded(session_begin(call, id, "session.reset"), act).await.map(|(view, _)| view)
    }

    /// Ends the interpreter, if there is one, and forgets the session.
    pub async fn remove_session(&self, call: &Call, id: &SandboxId, name: &str) -> Result<(), Failure> {
        let act = async {
            let session = self.session_of(&call.principal, id, name).await?;
            self.drop_session(&session).await
        };
        self.recorded(session_begin(call, id, "session.remove"), act).await.map(|((), _)| ())
    }

    /// Ends a session's interpreter and settles how it stands then. Whoever hangs up does not stop that.
    async fn end_session(
        &self,
        session: &Arc<Session>,
        settle: impl FnOnce(&mut Standing) + Send + 'static,
    ) -> Result<(), Failure> {
        let session = session.clone();
        let ended = tokio::spawn(async move {
            session.standing().control.end.stop(StopCause::Cancelled);
            let mut inside = session.inside.lock().await;
            if let Some(interpreter) = inside.interpreter.take() {
                interpreter.end().await;
            }
            let mut standing = session.standing();
            for (_, watch) in std::mem::take(&mut standing.grants) {
                watch.abort();
            }
            settle(&mut standing);
        });
        ended.await.map_err(|_| Failure::Internal)
    }

    async fn drop_session(&self, session: &Arc<Session>) -> Result<(), Failure> {
        session.standing().removed = true; // whoever waits in it is told so
        let key = (session.sandbox.clone(), session.name.clone());
        self.0.sessions.forget(&key, session);
        self.end_session(session, |standing| standing.alive = false).await
    }

    /// Ends every session of a sandbox and resolves when none is left.
    pub(super) async fn end_sessions(&self, sandbox: &SandboxId) {
        for session in self.0.sessions.of(sandbox) {
            if let Err(failure) = self.drop_session(&session).await {
                tracing::error!(%sandbox, session = session.name, ?failure, "a session of an ended sandbox may still be there");
            }
        }
    }

    /// Ends sessions that nobody used for as long as they may lie idle.
    pub(super) fn end_idle_sessions(&self) {
        let now = now_ms();
        let idle = |session: &&Arc<Session>| {
            let standing = session.standing();
            let unused = standing.running.is_none() && standing.waiting == 0;
            standing.alive && unused && standing.last_used_ms.saturating_add(session.idle_ms) <= now
        };
        let idle: Vec<_> = self.0.sessions.all().values().filter(idle).cloned().collect();
        for session in idle {
            // Somebody who has the turn by now uses it.
            let Ok(mut inside) = session.inside.try_lock() else { continue };
            let Some(interpreter) = inside.interpreter.take() else { continue };
            session.bury(format!("nobody used it for {} s", session.idle_ms / 1000));
            drop(interpreter); // the warden kills it
        }
    }

    /// Sessions whose interpreter lives.
    #[must_use]
    pub fn live_sessions(&self) -> usize {
        self.0.sessions.live()
    }
}

fn session_begin(call: &Call, id: &SandboxId, capability: &str) -> Begin {
    Begin { sandbox_id: Some(id.to_string()), ..call.begin(Operation::Sandbox, capability) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for good in ["a", "My-session_1.0", &"x".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
