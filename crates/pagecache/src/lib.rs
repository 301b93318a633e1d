//! The folio cache: folios from a pooled arena, one mapping per inode, reclaim under a byte limit.
//! Not here: devices, formats.
