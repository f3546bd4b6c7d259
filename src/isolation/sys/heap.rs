//! The heap: what is in it is copied, page by page, with each fork.

/// Keeps no list of small free chunks that a large allocation would join. A child that allocates its buffer would otherwise
/// walk through all of its parent's heap first, and each page that it touches is copied: 75 faults of each sandbox.
pub fn join_chunks_early() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) takes two numbers; an option that it does not know changes nothing.
    unsafe {
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// Gives what is free of the heap back to the kernel. A process that forks often should hold little.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no conditions; it gives back only what nobody holds.
    unsafe {
        libc::malloc_trim(0);
    }
}
