//! sandboxd runs code that nobody has read, in a fresh kernel-enforced sandbox, and says honestly what was enforced.
//!
//! ```text
//! agents, sandboxctl ── HTTP/1.1 on a Unix socket ──▶ front    service user, no capability, Landlocked; tokio
//!                                                      │        api → pipeline → policy → executor
//!                                                      │  SEQPACKET: small typed records + descriptors
//!                                                      ▼
//!                                                     warden   root, one thread, no async, no HTTP, no JSON
//!                                                      │  clone3(all namespaces | PIDFD [| INTO_CGROUP])
//!                                                      ▼
//!                                                     init     pid 1 of one sandbox: builds it, reaps, reports
//!                                                      └─ program: uid 1000, no capability, Landlock, seccomp, limits
//! ```
//!
//! **Threat model.** The program is hostile and may know this source. It must not read, write, signal, connect to or
//! outlive anything outside its sandbox, nor use more than its limits. The caller may be careless but is a known local
//! user. The front is assumed to fall one day: it holds no privilege, and the warden takes nothing from it but ids,
//! bounded words and limits below the profile's. Not covered: bugs of the kernel in what the filter lets through, side
//! channels of the processor, and what the operator puts into a profile.
//!
//! | module | what it is for |
//! |---|---|
//! | [`model`] | shared words: ids, limits, layers, requests, outcomes |
//! | [`terms`] | the words of a policy: allowances, lists, templates, and the strictest of two. Pure |
//! | [`profile`] | `profiles/*.toml` → checked profiles |
//! | [`policy`] | decides: request → permit or refusal. Pure |
//! | [`socket`] | sockets that wake nobody for what nobody waits for |
//! | [`sqlite`] | files of SQLite: made, checked, one writer |
//! | [`ledger`] | tokens, grants, budgets, sandboxes, execs, idempotency keys: one SQLite file, one writer |
//! | [`evidence`] | the journal: a signed chain of what every operation did |
//! | [`observe`] | metrics |
//! | [`workspace`] | files of projects and execs, descriptor-relative |
//! | [`isolation`] | the walls; warden and init; the only home of `unsafe` |
//! | [`executor`] | runs a permit: warden's client, pumps, outcome |
//! | [`pipeline`] | the order, once |
//! | [`api`] | HTTP around it |
//! | [`daemon`] | start-up, shut-down: the only wiring |
//! | [`ctl`] | `sandboxctl` |
//! | [`doctor`] | what a host lacks for sandboxes, and the cure |
//! | [`manual`] | man pages and completions of the command lines |
//!
//! Arrows go one way; `tests/arrows.rs` holds them.

pub mod api;
pub mod ctl;
pub mod daemon;
pub mod doctor;
pub mod evidence;
pub mod executor;
pub mod isolation;
pub mod ledger;
pub mod manual;
pub mod model;
pub mod observe;
pub mod pipeline;
pub mod policy;
pub mod profile;
pub mod socket;
pub mod sqlite;
pub mod terms;
pub mod workspace;
