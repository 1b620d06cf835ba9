"""Scripts of one process, on several ranks (`castor run --nproc N`) or alone."""
