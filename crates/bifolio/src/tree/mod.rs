//! Trees in an image: walks, listings, links, destinations and owners.

pub(crate) mod accounts;
pub(crate) mod destination;
pub(crate) mod directory;
pub(crate) mod links;
pub(crate) mod listing;
pub(crate) mod tree_change;
pub(crate) mod walk;
