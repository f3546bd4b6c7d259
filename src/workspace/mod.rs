//! Workspaces as the front sees them: projects and throw-away areas on disk, owned by the service user, and every
//! operation on the files in them.
//!
//! ```text
//! <state_dir>/workspace/projects/<project_id>/{inputs, work, artifacts/<exec_id>}   what programs see
//!                                <project_id>/{.owner, .new}                        whose it is; files being written
//!                                .<exec_id>/inputs                                  throw-away, gone with the exec
//! ```
//!
//! So it is where the driver is `directory`; `volumes` has the drawing for one with subvolumes.
//!
//! Every path that a caller or a program had a hand in is opened relative to a descriptor, below it, through no link
//! (`openat2`). After that there are only descriptors and single names in them. A program may rename, link, lock and
//! swap what is in its areas while we look: the worst it reaches is an error for its own caller.
//! New content is written in `.new`, which no program sees, and renamed into place.
//!
//! All of it blocks: async code calls it through `spawn_blocking`.
//! It decides nothing: paths come here normalised, and whose a project is, is a file's word.
#![forbid(unsafe_code)]

mod archive;
mod area;
mod artifacts;
mod beneath;
mod diff;
mod error;
mod gather;
mod image;
mod list;
mod meta;
mod nameless;
mod read;
mod remove;
mod snapshots;
mod store;
#[cfg(test)]
mod testing;
mod volumes;
mod walk;
mod write;

pub use archive::{ArchiveBounds, Archived};
pub use area::{AreaDir, AreaKind, Existing, Parents};
pub use artifacts::{Artifact, Manifest, ManifestBounds};
pub use diff::{Change, Changed, Changes, DiffPage};
pub use error::WorkspaceError;
pub use image::{IMAGE, IMAGE_MIN_BYTES, ImageError, has_projects, make_image};
pub use list::{Entry, Listing, Page};
pub use meta::{FileKind, Meta};
pub use read::{Content, Download, READ_MAX};
pub use remove::Contents;
pub use snapshots::Tree;
pub use store::{Durable, Laid, Store, ThrowAway};
pub use volumes::{Copied, Volumes};
pub use walk::DiskUsage;
pub use write::{Expected, Make, Upload, Written};
