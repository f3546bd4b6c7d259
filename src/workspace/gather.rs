//! Moving what a session left during one call out of the directory that it has mounted, into the call's own.

use super::area::AreaDir;
use super::beneath::sorted_names;
use super::error::{WorkspaceError, at};
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};

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
                Err(_) => stayed += 1,
            }
        }
        Ok(stayed)
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
