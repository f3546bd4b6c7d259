//! Level 0: who is calling. A bearer token if there is one, else `SO_PEERCRED` matched against `[access]`.
//!
//! A token that is unknown, expired or revoked is a 401: it never falls back to the connection's own uid, so that a
//! caller always knows as whom it acts.

use crate::ledger::{Ledger, TokenRow};
use crate::model::{Owner, Principal, Role};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tenant of local users whose rule names none.
const LOCAL: &str = "local";

/// The kernel's word on the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its uid when it connected.
    pub uid: u32,
    /// Its gid when it connected.
    pub gid: u32,
}

/// `[access]` in the config: empty lists let nobody in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessRules {
    /// Users by uid, as themselves: role user; uid 0 has every role.
    pub uids: Vec<u32>,
    /// Members of groups, by name, likewise.
    pub groups: Vec<String>,
    /// Rules that say more. The first that matches wins, before the two lists.
    pub rules: Vec<AccessRule>,
}

/// One rule: whom it matches and who that is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// A user.
    #[serde(default)]
    uid: Option<u32>,
    /// Or the members of a group.
    #[serde(default)]
    group: Option<String>,
    /// The account that is charged.
    #[serde(default)]
    tenant: Option<String>,
    /// The caller within it; its uid if left out.
    #[serde(default)]
    subject: Option<String>,
    /// What it may do.
    #[serde(default = "users_role")]
    roles: BTreeSet<Role>,
    /// Which profiles it may use; all if left out, none if empty.
    #[serde(default)]
    profiles: Option<BTreeSet<String>>,
}

fn users_role() -> BTreeSet<Role> {
    [Role::User].into()
}

impl Default for AccessRules {
    /// Root, and whoever the operator puts in the service's group.
    fn default() -> Self {
        Self { uids: vec![0], groups: vec!["sandboxd".to_owned()], rules: vec![] }
    }
}

/// The rules in force and the tokens.
#[derive(Clone)]
pub struct Access {
    rules: Arc<AccessRules>,
    ledger: Ledger,
}

/// Milliseconds since the epoch.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Access {
    /// Takes the rules and the ledger that knows the tokens.
    #[must_use]
    pub fn new(rules: AccessRules, ledger: Ledger) -> Self {
        Self { rules: Arc::new(rules), ledger }
    }

    /// The caller as a principal: by its token if it shows one, else by who it is on this host.
    #[must_use]
    pub fn identify(&self, peer: Peer, authorization: Option<&str>) -> Option<Principal> {
        match authorization {
            None => self.rules.identify(peer),
            Some(header) => {
                let (scheme, secret) = header.split_once(' ')?;
                let token =
                    scheme.eq_ignore_ascii_case("bearer").then(|| self.ledger.find_token(secret.trim(), now_ms()));
                token.flatten().map(|row| of_token(&row))
            }
        }
    }
}

fn of_token(row: &TokenRow) -> Principal {
    Principal {
        owner: Owner { tenant: row.tenant.clone(), subject: row.subject.clone() },
        // A role that this build does not know gives nothing.
        roles: row.roles.iter().filter_map(|name| Role::from_name(name)).collect(),
        profiles: row.profiles.as_ref().map(|profiles| profiles.iter().cloned().collect()),
    }
}

impl AccessRules {
    fn identify(&self, peer: Peer) -> Option<Principal> {
        let groups = Groups::of(peer);
        let own_name = format!("uid:{}", peer.uid);
        let matches = |rule: &&AccessRule| {
            rule.uid == Some(peer.uid) || rule.group.as_ref().is_some_and(|group| groups.contains(group))
        };
        if let Some(rule) = self.rules.iter().find(matches) {
            let tenant = rule.tenant.clone().unwrap_or_else(|| LOCAL.to_owned());
            let subject = rule.subject.clone().unwrap_or(own_name);
            let owner = Owner { tenant, subject };
            return Some(Principal { owner, roles: rule.roles.clone(), profiles: rule.profiles.clone() });
        }
        let listed = self.uids.contains(&peer.uid) || self.groups.iter().any(|group| groups.contains(group));
        listed.then(|| Principal {
            owner: Owner { tenant: LOCAL.to_owned(), subject: own_name },
            roles: if peer.uid == 0 { Role::ALL.into() } else { users_role() },
            profiles: None,
        })
    }
}

/// The groups of a caller, looked up when first asked for: most callers are matched by uid.
struct Groups {
    peer: Peer,
    found: std::cell::OnceCell<Vec<Gid>>,
}

impl Groups {
    fn of(peer: Peer) -> Self {
        Self { peer, found: std::cell::OnceCell::new() }
    }

    fn contains(&self, name: &str) -> bool {
        let Ok(Some(group)) = Group::from_name(name) else { return false };
        self.found.get_or_init(|| self.look_up()).contains(&group.gid)
    }

    /// The gid of the connection, and what the user database says now: a change of membership counts from the next request.
    fn look_up(&self) -> Vec<Gid> {
        let mut gids = vec![Gid::from_raw(self.peer.gid)];
        if let Ok(Some(user)) = User::from_uid(Uid::from_raw(self.peer.uid))
            && let Ok(name) = CString::new(user.name)
        {
            gids.extend(getgrouplist(&name, user.gid).unwrap_or_default());
        }
        gids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> AccessRules {
        toml::from_str(text).expect("rules")
    }

    fn who(rules: &AccessRules, uid: u32, gid: u32) -> Option<Principal> {
        rules.identify(Peer { uid, gid })
    }

    #[test]
    fn a_caller_without_a_rule_is_nobody() {
        let rules = rules("uids = [0]\ngroups = []");
        let root = who(&rules, 0, 0).expect("root");
        assert_eq!((root.owner.subject.as_str(), root.roles.len()), ("uid:0", Role::ALL.len()));
        assert_eq!(who(&rules, 1, 0), None);
    }

    #[test]
    fn empty_rules_let_nobody_in() {
        assert_eq!(who(&rules("uids = []\ngroups = []"), 0, 0), None);
    }

    #[test]
    fn the_group_of_a_caller_counts() {
        let rules = rules("uids = []\ngroups = [\"root\"]");
        let member = who(&rules, 12345, 0).expect("a member");
        assert_eq!(member.roles, users_role());
        assert!(who(&rules, 12345, 12345).is_none());
    }

    #[test]
    fn the_first_matching_rule_says_who_it_is() {
        let rules = rules(
            "uids = [7]\n[[rules]]\nuid = 7\ntenant = \"acme\"\nsubject = \"alice\"\nroles = [\"user\", \"issuer\"]\nprofiles = [\"strict\"]\n\
             [[rules]]\ngroup = \"root\"\nroles = [\"approver\"]\n",
        );
        let alice = who(&rules, 7, 7).expect("alice");
        assert_eq!((alice.owner.tenant.as_str(), alice.owner.subject.as_str()), ("acme", "alice"));
        assert!(alice.has(Role::Issuer) && !alice.has(Role::Admin));
        assert!(alice.may_use("strict") && !alice.may_use("shell"));
        let approver = who(&rules, 8, 0).expect("a member of root");
        assert_eq!((approver.owner.subject.as_str(), approver.has(Role::User)), ("uid:8", false));
    }
}
