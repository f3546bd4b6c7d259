//! The heap: what is in it is copied, page by page, with each fork.

/// Gives what is free of the heap back to the kernel. A process that forks often should hold little.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no conditions; it gives back only what nobody holds.
    unsafe {
        libc::malloc_trim(0);
    }
}
