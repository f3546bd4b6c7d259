//! Sandboxes: whether a caller may have one of a profile.

use super::judge::permit_caller;
use super::refusal::Refusal;
use crate::model::Principal;
use crate::profile::{Profile, Profiles};

/// The profile that a caller asks a sandbox of, if it is known and the caller may use it. What is done in the sandbox
/// later is judged each time anew.
pub fn judge_sandbox<'a>(principal: &Principal, profile: &str, profiles: &'a Profiles) -> Result<&'a Profile, Refusal> {
    let (_, found) = profiles.find(profile).ok_or_else(|| Refusal::UnknownProfile {
        given: profile.to_owned(),
        known: profiles.ids().into_iter().map(str::to_owned).collect(),
    })?;
    permit_caller(principal, found)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Owner, Role};
    use crate::policy::shipped_profiles;
    use std::collections::BTreeSet;

    #[test]
    fn a_sandbox_needs_a_known_profile_a_user_and_the_users_right_to_it() {
        let profiles = shipped_profiles();
        let owner = Owner { tenant: "local".to_owned(), subject: "uid:7".to_owned() };
        let user = Principal { owner, roles: BTreeSet::from([Role::User]), profiles: None };
        assert_eq!(judge_sandbox(&user, "shell", &profiles).expect("permitted").id, "shell");
        assert!(matches!(judge_sandbox(&user, "rocket", &profiles), Err(Refusal::UnknownProfile { .. })));
        let approver = Principal { roles: BTreeSet::from([Role::Approver]), ..user.clone() };
        assert!(matches!(judge_sandbox(&approver, "shell", &profiles), Err(Refusal::RoleMissing { role: Role::User })));
        let other = Principal { profiles: Some(BTreeSet::from(["strict".to_owned()])), ..user };
        assert!(matches!(judge_sandbox(&other, "shell", &profiles), Err(Refusal::ProfileNotAllowed { .. })));
    }
}
