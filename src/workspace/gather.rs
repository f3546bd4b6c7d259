//! Moving what a session left during one call out of the directory that it has mounted, into the call's own.

use super::area::{AreaDir, Existing};
use super::beneath::sorted_names;
use super::error::{WorkspaceError, at, errno_of};
use super::read::open_file;
use super::write::Staged;
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::OsStr;

impl AreaDir {
    /// Moves the entries of `from` here, `most` of them. A rename takes a name from one directory to the other and looks
    /// at nothing behind it, so whatever a program does to them meanwhile, nothing else is touched. How many stayed
    /// behind: because the program has locked them, or took them away in that moment.
    pub fn gather(&self, from: &AreaDir, most: usize) -> Result<usize, WorkspaceError> {
        let (names, whole) = sorted_names(from.root(), most).map_err(at(".", "list what a session left"))?;
        let mut stayed = usize::from(!whole);
        for name in names {
            let moved =
                renameat2(from.root(), name.as_os_str(), self.root(), name.as_os_str(), RenameFlags::RENAME_NOREPLACE);
            match moved {
                Ok(()) | Err(Errno::ENOENT) => {}
                // Each is a subvolume of its own.
                Err(Errno::EXDEV) => stayed += usize::from(self.carry_over(from, &name).is_err()),
                Err(_) => stayed += 1,
            }
        }
        Ok(stayed)
    }

    /// Moves one file where a rename can't cross. Directories and links stay where they are.
    fn carry_over(&self, from: &AreaDir, name: &OsStr) -> Result<(), WorkspaceError> {
        let failed = at(".", "move what a session left");
        let text = name.to_str().ok_or_else(|| failed(Errno::EILSEQ))?;
        let (mut file, stat) = open_file(from.root(), name, OFlag::O_RDONLY).map_err(&failed)?;
        let mut staged = Staged::new(self)?;
        std::io::copy(&mut file, &mut staged.file).map_err(|error| failed(errno_of(&error)))?;
        staged.settle(stat.st_mode)?;
        staged.place(self.root(), text, Existing::Refuse).map_err(&failed)?;
        unlinkat(from.root(), name, UnlinkatFlags::NoRemoveDir).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::AreaKind;
    use super::super::testing::{Fixture, owner, project};
    use crate::model::ExecId;

    #[test]
    fn what_a_session_left_is_its_calls_and_links_are_not_followed() {
        let fixture = Fixture::new();
        let [home, call] = [ExecId::generate(), ExecId::generate()];
        for exec in [&home, &call] {
            let nothing = std::iter::empty::<(&str, &[u8])>();
            fixture.store.lay(exec, &owner("a"), Some(&project()), "", nothing).expect("laid down");
        }
        let area = |exec: &ExecId| {
            let kind = AreaKind::Artifacts(exec.clone());
            fixture.store.area(&owner("a"), &project(), &kind).expect("an area")
        };
        let at = |exec: &ExecId, name: &str| fixture.path(&format!("artifacts/{exec}/{name}"));
        std::fs::create_dir(at(&home, "d")).expect("a directory");
        std::fs::write(at(&home, "d/f"), "x").expect("a file");
        std::os::unix::fs::symlink("/etc", at(&home, "link")).expect("a link");
        assert_eq!(area(&call).gather(&area(&home), 10).expect("gathered"), 0);
        assert_eq!(std::fs::read(at(&call, "d/f")).expect("moved"), b"x");
        assert!(std::fs::symlink_metadata(at(&call, "link")).expect("moved").is_symlink());
        assert_eq!(std::fs::read_dir(at(&home, "")).expect("still there").count(), 0);
    }
}
