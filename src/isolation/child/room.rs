//! The memory of a program without an allocator.

/// Longest order, and most words of each kind (`protocol::MESSAGE_MAX`, `words::COUNT_MAX`).
const ORDER_MAX: usize = 256 * 1024 + 1024;
pub const WORDS_MAX: usize = 4096;
/// Longest path that execve takes, with its NUL.
const PATH_MAX: usize = 4096;

/// All memory that a run may need. Pages that nobody touches cost nothing.
pub struct Room {
    pub order: [u8; ORDER_MAX],
    pub argv: [*const u8; WORDS_MAX + 1],
    pub envp: [*const u8; WORDS_MAX + 1],
    pub path: [u8; PATH_MAX],
}

/// The room, once.
pub fn room() -> &'static mut Room {
    static mut ROOM: Room = Room {
        order: [0; ORDER_MAX],
        argv: [core::ptr::null(); WORDS_MAX + 1],
        envp: [core::ptr::null(); WORDS_MAX + 1],
        path: [0; PATH_MAX],
    };
    let room = &raw mut ROOM;
    // SAFETY: this process has one thread and `program::run`, the only caller, calls it once.
    unsafe { &mut *room }
}
