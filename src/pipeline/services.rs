//! Services of a sandbox: background execs with a name.
//!
//! A service runs until it ends, is stopped, or its sandbox, its grant or the daemon ends. Nothing starts it again: whoever
//! wants that asks again, and finds out from the record why it ended. Names are known for as long as the daemon lives and
//! the sandbox does; a name whose service has ended can be given anew.

use super::{Call, Failure, Launched, Pipeline, now_ms};
use crate::evidence::Begin;
use crate::executor::{Live, StopCause};
use crate::ledger::ExecRow;
use crate::model::{ExecId, ExecRequest, Mode, Principal, ProgramSignal, SandboxId};
use crate::policy::Refusal;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Services that one sandbox may have, ended ones included.
const MOST: usize = 32;
/// Characters of a name.
const NAME_MAX: usize = 64;
/// How long a service has to end by itself when it is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// One service as it stands.
#[derive(Debug, Clone)]
pub struct ServiceView {
    /// Its name.
    pub name: String,
    /// What is known of its exec.
    pub row: ExecRow,
}

/// A name and what it stands for.
struct Service {
    exec: Option<ExecId>,
    since_ms: u64,
}

/// The services of every sandbox.
#[derive(Default)]
pub(super) struct Services(Mutex<BTreeMap<SandboxId, BTreeMap<String, Service>>>);

impl Services {
    fn all(&self) -> MutexGuard<'_, BTreeMap<SandboxId, BTreeMap<String, Service>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a sandbox that has ended.
    pub(super) fn forget(&self, sandbox: &SandboxId) {
        self.all().remove(sandbox);
    }

    fn find(&self, sandbox: &SandboxId, name: &str) -> Option<ExecId> {
        self.all().get(sandbox)?.get(name)?.exec.clone()
    }

    fn set(&self, sandbox: &SandboxId, name: &str, exec: Option<ExecId>) {
        let mut all = self.all();
        let services = all.entry(sandbox.clone()).or_default();
        services.insert(name.to_owned(), Service { exec, since_ms: now_ms() });
    }

    fn remove(&self, sandbox: &SandboxId, name: &str) {
        if let Some(services) = self.all().get_mut(sandbox) {
            services.remove(name);
        }
    }
}

fn invalid(field: &str, problem: impl Into<String>) -> Failure {
    Refusal::InvalidField { field: field.to_owned(), problem: problem.into() }.into()
}

fn check_name(name: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let good = (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain);
    let problem = format!("has 1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ - and does not begin with a dot");
    if good { Ok(()) } else { Err(invalid("name", problem)) }
}

impl Pipeline {
    /// Starts a service in a sandbox.
    pub async fn start_service(
        &self,
        call: &Call,
        id: &SandboxId,
        name: &str,
        request: ExecRequest,
    ) -> Result<Launched, Failure> {
        let asked = Begin { sandbox_id: Some(id.to_string()), ..call.asks_exec(&request) };
        // Whose the sandbox is comes first: a stranger learns nothing of its names.
        let named = match self.sandbox(&call.principal, id).await {
            Ok(_) => check_name(name).and_then(|()| self.claim_name(&call.principal, id, name)),
            Err(failure) => Err(failure),
        };
        self.told(&asked, named).await?;
        let stdin_open = request.stdin_open.or(Some(request.tty.is_some()));
        let request = ExecRequest { mode: Mode::Background, stdin_open, ..request };
        match self.launch_in(call, id, request).await {
            Ok(launched) => {
                self.0.services.set(id, name, Some(launched.exec.clone()));
                Ok(launched)
            }
            Err(failure) => {
                self.0.services.remove(id, name);
                Err(failure)
            }
        }
    }

    /// Takes a name that no living service of the sandbox has.
    fn claim_name(&self, principal: &Principal, id: &SandboxId, name: &str) -> Result<(), Failure> {
        let living = |exec: &ExecId| self.0.admission.find(principal, exec).is_some();
        let mut all = self.0.services.all();
        let services = all.entry(id.clone()).or_default();
        match services.get(name) {
            Some(Service { exec: None, .. }) => return Err(Refusal::ServiceRuns.into()), // it is just being started
            Some(Service { exec: Some(exec), .. }) if living(exec) => return Err(Refusal::ServiceRuns.into()),
            Some(_) => {}
            None if services.len() >= MOST => {
                let ended =
                    services.iter().filter(|(_, service)| service.exec.as_ref().is_some_and(|exec| !living(exec)));
                let oldest = ended.min_by_key(|(_, service)| service.since_ms).map(|(name, _)| name.clone());
                let Some(oldest) = oldest else {
                    return Err(invalid("name", format!("the sandbox has {MOST} services, which is all it may")));
                };
                services.remove(&oldest);
            }
            None => {}
        }
        services.insert(name.to_owned(), Service { exec: None, since_ms: now_ms() });
        Ok(())
    }

    /// The services of a sandbox, by name.
    pub async fn services(&self, principal: &Principal, id: &SandboxId) -> Result<Vec<ServiceView>, Failure> {
        self.sandbox(principal, id).await?;
        let named: Vec<(String, ExecId)> = {
            let all = self.0.services.all();
            let services = all.get(id).into_iter().flatten();
            services.filter_map(|(name, service)| Some((name.clone(), service.exec.clone()?))).collect()
        };
        let mut views = Vec::with_capacity(named.len());
        for (name, exec) in named {
            views.push(ServiceView { name, row: self.exec_row(principal, &exec).await? });
        }
        Ok(views)
    }

    /// The exec of a service.
    pub async fn service(&self, principal: &Principal, id: &SandboxId, name: &str) -> Result<ExecId, Failure> {
        self.sandbox(principal, id).await?;
        self.0.services.find(id, name).ok_or_else(|| Refusal::NoSuchService.into())
    }

    /// Stops a service: asks it to end, ends it if it does not, and resolves when it has ended. Whoever hangs up does not
    /// stop that.
    pub async fn stop_service(
        &self,
        principal: &Principal,
        id: &SandboxId,
        name: &str,
    ) -> Result<ServiceView, Failure> {
        let exec = self.service(principal, id, name).await?;
        if let Some(live) = self.0.admission.find(principal, &exec) {
            let ended = tokio::spawn(end(live));
            ended.await.map_err(|_| Failure::Internal)?;
        }
        Ok(ServiceView { name: name.to_owned(), row: self.exec_row(principal, &exec).await? })
    }
}

impl Pipeline {
    /// Asks every service to end.
    pub(super) fn stop_services(&self) {
        let execs: Vec<ExecId> = self
            .0
            .services
            .all()
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|service| service.exec.clone())
            .collect();
        for live in execs.iter().filter_map(|exec| self.0.admission.any(exec)) {
            tokio::spawn(end(live));
        }
    }
}

async fn end(live: Arc<Live>) {
    // One that has not started has nobody to ask.
    if live.signal(ProgramSignal::Term).is_ok() && tokio::time::timeout(GRACE, live.log.wait_closed()).await.is_ok() {
        return;
    }
    live.stop.stop(StopCause::Cancelled);
    live.log.wait_closed().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        assert!(check_name("web-1.a_B").is_ok());
        for bad in ["", ".x", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
