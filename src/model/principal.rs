//! Who is calling.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a caller may do beside running code under its profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs code.
    User,
    /// Issues grants.
    Issuer,
    /// Answers confirmations.
    Approver,
    /// Makes and revokes tokens.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::User, Role::Issuer, Role::Approver, Role::Admin];

    /// The name in configs, tokens and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Issuer => "issuer",
            Role::Approver => "approver",
            Role::Admin => "admin",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Whose things are whose: tenant and subject together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The account that is charged.
    pub tenant: String,
    /// The caller within it; `uid:<n>` for a local user without another name.
    pub subject: String,
}

/// A caller that an `[access]` rule or a token has matched. Nothing is done for anybody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Who it is, whichever way it came.
    pub owner: Owner,
    /// What it may do.
    pub roles: BTreeSet<Role>,
    /// Profiles it may use; none: all of them.
    pub profiles: Option<BTreeSet<String>>,
}

impl Principal {
    /// Whether it has a role.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Whether it may use a profile.
    #[must_use]
    pub fn may_use(&self, profile: &str) -> bool {
        self.profiles.as_ref().is_none_or(|profiles| profiles.contains(profile))
    }
}
