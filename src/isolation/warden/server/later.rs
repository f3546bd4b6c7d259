//! Files for a run that began without them: an interpreter that has waited gets a caller's.

use super::Server;
use crate::isolation::attach::Attach;
use crate::isolation::warden::held::State;
use crate::isolation::warden::protocol::{RunNumber, Workspace};
use crate::model::ExecId;
use nix::errno::Errno;

impl Server {
    /// Moves the mounts in from outside. Once for each run, before its first call and only where the run said so: what is
    /// in there was built from the profile alone, and none of its names leads astray.
    pub(super) fn attach_later(
        &mut self,
        number: RunNumber,
        exec: &ExecId,
        workspace: &Workspace,
    ) -> Result<(), Errno> {
        let slot = self.runs.get(&number).ok_or(Errno::ESRCH)?;
        let held = self.held.get_mut(slot).ok_or(Errno::ESRCH)?;
        let State::Running(run) = &mut held.state else { return Err(Errno::ESRCH) };
        if !std::mem::take(&mut run.later) {
            return Err(Errno::EPERM);
        }
        run.has_files = true;
        let limits = run.limits;
        let (ranges, proof) = (&mut self.ranges, &self.grounds.proof);
        let mounts = self.workspaces.mounts(exec, workspace, &limits, held.range, ranges, proof)?;
        // Its areas are as large as they were made: the run's limits are the same as then.
        held.sandbox.attach(&Attach::of(workspace, &limits, &limits, &mounts.trees)?)?;
        self.limited.extend(mounts.artifacts.map(|top| (number, top)));
        Ok(())
    }
}
