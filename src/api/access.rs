//! Level 0: who is calling. `SO_PEERCRED` of the connection, matched against `[access]`.

use crate::model::Principal;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::Deserialize;
use std::ffi::CString;

/// The kernel's word on the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its uid when it connected.
    pub uid: u32,
    /// Its gid when it connected.
    pub gid: u32,
}

/// `[access]` in the config: an empty list lets nobody in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessRules {
    /// Users by uid.
    pub uids: Vec<u32>,
    /// Members of groups, by name.
    pub groups: Vec<String>,
}

impl Default for AccessRules {
    /// Root, and whoever the operator puts in the service's group.
    fn default() -> Self {
        Self { uids: vec![0], groups: vec!["sandboxd".to_owned()] }
    }
}

/// The rules in force.
#[derive(Debug, Clone)]
pub struct Access(AccessRules);

impl Access {
    /// Takes the rules.
    #[must_use]
    pub fn new(rules: AccessRules) -> Self {
        Self(rules)
    }

    /// The caller as a principal, if a rule matches.
    #[must_use]
    pub fn identify(&self, peer: Peer) -> Option<Principal> {
        let known = self.0.uids.contains(&peer.uid) || (!self.0.groups.is_empty() && self.in_group(peer));
        known.then(|| Principal { tenant: "local".to_owned(), subject: format!("uid:{}", peer.uid) })
    }

    /// Looked up for each connection, so that a change of membership counts from the next one.
    fn in_group(&self, peer: Peer) -> bool {
        let wanted: Vec<Gid> =
            self.0.groups.iter().filter_map(|name| Group::from_name(name).ok()?).map(|group| group.gid).collect();
        if wanted.contains(&Gid::from_raw(peer.gid)) {
            return true;
        }
        let Ok(Some(user)) = User::from_uid(Uid::from_raw(peer.uid)) else { return false };
        let Ok(name) = CString::new(user.name) else { return false };
        getgrouplist(&name, user.gid).is_ok_and(|groups| groups.iter().any(|gid| wanted.contains(gid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_without_a_rule_is_nobody() {
        let access = Access::new(AccessRules { uids: vec![0], groups: vec![] });
        assert_eq!(access.identify(Peer { uid: 0, gid: 0 }).map(|p| p.subject), Some("uid:0".to_owned()));
        assert_eq!(access.identify(Peer { uid: 1, gid: 0 }), None);
    }

    #[test]
    fn empty_rules_let_nobody_in() {
        let access = Access::new(AccessRules { uids: vec![], groups: vec![] });
        assert_eq!(access.identify(Peer { uid: 0, gid: 0 }), None);
    }

    #[test]
    fn the_group_of_a_caller_counts() {
        let access = Access::new(AccessRules { uids: vec![], groups: vec!["root".to_owned()] });
        assert!(access.identify(Peer { uid: 12345, gid: 0 }).is_some());
        assert!(access.identify(Peer { uid: 12345, gid: 12345 }).is_none());
    }
}
