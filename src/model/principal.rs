//! Who is calling.

/// A caller that an `[access]` rule has matched. Nothing is done for anybody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The account that is charged.
    pub tenant: String,
    /// The caller within it; `uid:<n>` for a local user.
    pub subject: String,
}
