//! The stable families of errors (SPEC §6): in answers, in evidence and in metrics.

/// One family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The caller's mistake.
    Schema,
    /// Not this caller, or not under this grant.
    PermissionDeny,
    /// Not this tool, or not like this.
    DenyTool,
    /// Beyond a boundary or a size.
    CapabilityBlocked,
    /// No more of it now.
    BudgetExceeded,
    /// The host or the daemon lacks something.
    Unavailable,
    /// It took too long.
    Timeout,
    /// It could not be carried out, by our fault.
    ExecutionFailed,
    /// Nobody foresaw it.
    Internal,
}

impl Class {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Schema => "SCHEMA.VALIDATION_FAILED",
            Class::PermissionDeny => "SANDBOX.PERMISSION_DENY",
            Class::DenyTool => "POLICY.DENY_TOOL",
            Class::CapabilityBlocked => "SANDBOX.CAPABILITY_BLOCKED",
            Class::BudgetExceeded => "QUOTA.BUDGET_EXCEEDED",
            Class::Unavailable => "PROVIDER.UNAVAILABLE",
            Class::Timeout => "LLM.TIMEOUT",
            Class::ExecutionFailed => "TOOL.EXECUTION_FAILED",
            Class::Internal => "UNKNOWN.INTERNAL",
        }
    }
}
